"""What a machine found: figures, and violations of what it holds to be true."""

import json
import time

# Of one kind of violation so many are written out, and of each so many characters on the screen.
SAMPLES_MAX = 4
SHOWN_MAX = 400


class Report:
    def __init__(self, machine, options):
        self.machine, self.seed, self.form = machine, options.seed, "long" if options.long else "short"
        self.allotments = options.allotments
        self.begun = time.monotonic()
        self.figures, self.violations, self.notes = {}, {}, {}

    def figure(self, name, value, unit=""):
        self.figures[name] = round(value, 3) if isinstance(value, float) else value
        print(f"  {name}: {self.figures[name]}{unit and ' ' + unit}", flush=True)

    def violation(self, kind, sample=""):
        self._add(self.violations, kind, sample)

    def note(self, kind, sample=""):
        """What should be looked at, and breaks no promise."""
        self._add(self.notes, kind, sample)

    def check(self, holds, kind, sample=""):
        if not holds:
            self.violation(kind, sample)

    @staticmethod
    def _add(found, kind, sample):
        entry = found.setdefault(kind, {"count": 0, "samples": []})
        entry["count"] += 1
        if sample and len(entry["samples"]) < SAMPLES_MAX:
            entry["samples"].append(str(sample)[:2_000])

    def end(self):
        """Prints what was found; whether all is well."""
        self.figure("seconds", time.monotonic() - self.begun)
        for title, found in ("note", self.notes), ("VIOLATION", self.violations):
            for kind, entry in found.items():
                print(f"  {title}: {kind} (x{entry['count']})")
                for sample in entry["samples"]:
                    print(f"      {sample[:SHOWN_MAX]}")
        print(f"{self.machine}: {'violations' if self.violations else 'all held'}", flush=True)
        return not self.violations

    def write(self, path):
        told = {key: value for key, value in vars(self).items() if key != "begun"}
        with open(path, "w", encoding="utf-8") as out:
            json.dump(told, out, indent=2)


def percentile(values, share):
    """The value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
