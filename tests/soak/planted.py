"""Secrets that can be recognised, and the search for them."""

import base64
import random

# How much of a secret makes a hit: keys show their beginnings on purpose.
TAIL = 24


class Secrets:
    """Recognisable and random; every name maps to the text itself."""

    def __init__(self, seed):
        self.rng, self.of = random.Random(f"canaries {seed}"), {}

    def make(self, name, start=""):
        self.of[name] = f"{start}{self.rng.getrandbits(256):064x}"
        return self.of[name]

    def keep(self, name, text):
        self.of[name] = text
        return text

    def needles(self, name):
        """All that shows it: its end as it is, and as others would write it."""
        tail = self.of[name][-TAIL:]
        raw = tail.encode()
        yield raw
        yield raw.upper()
        yield raw.hex().encode()
        yield ", ".join(map(str, raw)).encode()
        # Wherever in the encoded text it may begin.
        for shift in range(3):
            yield base64.b64encode(b"." * shift + raw)[4:-4]
        yield "".join(f"%{byte:02x}" for byte in raw).encode()
        yield "".join(f"\\x{byte:02x}" for byte in raw).encode()

    def found(self, sink, *but):
        """The names of the secrets that are in some bytes."""
        return [name for name in self.of if name not in but and any(needle in sink for needle in self.needles(name))]


def files_of(folder, but=()):
    """All that is in a folder's files, one after the other, with their names."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(but):
            found.append(str(path.relative_to(folder)).encode() + b"\n" + path.read_bytes())
    return b"\n".join(found)


def around(sink, secrets, name):
    at = next(at for needle in secrets.needles(name) if (at := sink.find(needle)) >= 0)
    return sink[max(0, at - 300) : at + 120].decode(errors="replace")
