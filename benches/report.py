"""What was found, as tables; and what was aimed at beside it."""

from operator import sub, truediv
from statistics import median

from scenarios import ALONE, DURATION, FIRST, LARGE, OPEN_STREAMS, SCENARIOS, STARTS
from variants import HEADS, LOG, body

BARE = "bare-pingora"
SQLITE, REDIS = "tollgate-sqlite", "tollgate-redis"


def tables(found, variants, streams, reply_bytes, rounds):
    logs = "on" if LOG == "info" else "off"
    print(f"{rounds} interleaved rounds of {DURATION} s, medians; one worker each; "
          f"wrk with one thread; a log line per request: {logs}")
    print(f"whole: a request of {len(body('chat', False, True))} B, a reply of {reply_bytes} B; "
          f"streams: {streams['chat'].events} chunks, translated from {streams['translated'].events} events; "
          f"CPU time, the store's apart, is per request, chunk or event")
    print(f"each body is another; each head is an official client's, with {len(HEADS['sdk'])} fields beside the key, "
          f"but in scenarios with -curl; the p50 of {FIRST.name} is the time to the first chunk of a new stream\n")
    rows = [["scenario", "variant", "req/s", "p50 ms", "p99 ms", "cpu us", "rss MiB", "store us"]]
    for scenario in SCENARIOS:
        for variant in variants:
            runs = found.rounds[scenario.name, variant.name]
            if not runs:
                continue
            r = {figure: median(run[figure] for run in runs if figure in run) for run in runs for figure in run}
            rate = f"{r['rps']:.{0 if r['rps'] >= 100 else 1}f}" if "rps" in r else "-"
            row = [scenario.name, variant.name, rate]
            row += [f"{r[f] / 1000:.3f}" if f in r else "-" for f in ["p50", "p99"]]
            row += [f"{r[f]:.1f}" if f in r else "-" for f in ["cpu", "rss", "store_cpu"]]
            rows.append(row)
    for row in rows:
        print(f"{row[0]:20} {row[1]:25} " + " ".join(f"{cell:>9}" for cell in row[2:]))
    print()
    for name, memory in found.memory.items():
        print(f"memory {LARGE.name} {name}: {memory['idle']:.1f} MiB idle, {memory['peak']:.1f} MiB at most: "
              f"{memory['bodies']:.2f} times the {LARGE.connections} bodies of {LARGE.size / 1e6:.0f} MB under way")
    for name, kib in found.open.items():
        print(f"memory {name}: {kib:.1f} KiB for each of {OPEN_STREAMS} open slow streams")
    for name, times in found.starts.items():
        print(f"start {name}: {median(times):.1f} ms from exec to the first answer, median of {STARTS}")
    print()


def transport(name):
    """How a variant speaks to the vendor, as the end of its name; nothing for HTTP/1.1 without TLS."""
    return name[name.index("-tls") :] if "-tls" in name else ""


def ratios(found, variants):
    """Medians over the rounds, of each of which the two figures are compared first: they had the same neighbours."""
    ours = [v.name for v in variants if v.conf]
    others = [v.name for v in variants if not v.conf]
    for scenario in SCENARIOS:
        for figure in ["cpu", "rps", "p50"]:
            for our in ours:
                for other in others:
                    if transport(our) != transport(other):
                        continue
                    each = found.compared(truediv, scenario.name, figure, our, other)
                    if each:  # without a proxy there is no proxy's CPU time
                        print(f"ratio {scenario.name} {figure} {our} vs {other} = {median(each):.4g}")
    for variant in variants:
        bare = BARE + transport(variant.name)
        each = found.compared(sub, ALONE.name, "p50", variant.name, bare)
        if each and variant.process and variant.name != bare:
            print(f"added {ALONE.name} p50 {variant.name} over {bare} = {median(each):.0f} us")
    for name, kib in found.open.items():
        if name != BARE and BARE in found.open:
            print(f"ratio open-streams memory {name} vs {BARE} = {kib / found.open[BARE]:.4g}")
    print()


def told(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def peers(found, variants, streams):
    """What one has to know about the other gateways before looking at their figures, and these figures
    beside ours, as docs/performance.md has them: with an official client's head, and with the least."""
    there = [variant for variant in variants if variant.peer]
    for variant in there:
        counts = ", ".join(f"{kind} {stream.told[variant.name]}" for kind, stream in streams.items())
        print(f"peer {variant.name}: {variant.about}; events that it makes of a stream: {counts}")
    if not there:
        return
    beside = [v.name for v in variants if v.process and not transport(v.name)]
    tables = {
        "32 connections": [
            ("whole chats/s", "chat-whole-32", "rps", 1), ("p50 in ms", "chat-whole-32", "p50", 1e3),
            ("CPU µs", "chat-whole-32", "cpu", 1), ("streams/s", "chat-stream-32", "rps", 1),
            ("CPU µs a chunk", "chat-stream-32", "cpu", 1), ("MiB", "chat-stream-32", "rss", 1),
            ("least head: whole chats/s", "chat-whole-32-curl", "rps", 1),
            ("CPU µs", "chat-whole-32-curl", "cpu", 1),
        ],
        "chat → messages, 32 connections": [
            ("whole chats/s", "translated-whole-32", "rps", 1), ("CPU µs", "translated-whole-32", "cpu", 1),
            ("streams/s", "translated-stream-32", "rps", 1),
            ("CPU µs an event", "translated-stream-32", "cpu", 1),
        ],
    }
    for title, columns in tables.items():
        print(f"\n| {title} | " + " | ".join(column[0] for column in columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
        for name in beside:
            seen = [(found.seen(scenario, figure, name), unit) for _, scenario, figure, unit in columns]
            print(f"| {name} | " + " | ".join(told(median(s) / unit) if s else "" for s, unit in seen) + " |")
    print()


class Found:
    """All figures: those of rounds, memory of large bodies and of open streams, times of starts."""

    def __init__(self, rounds, memory, opened, starts):
        self.rounds, self.memory, self.open, self.starts = rounds, memory, opened, starts

    def compared(self, how, scenario, figure, name, base=BARE):
        """How a figure compares with another variant's, round by round."""
        runs = zip(*(self.rounds.get((scenario, variant), []) for variant in (name, base)))
        return [how(ours[figure], theirs[figure]) for ours, theirs in runs if figure in ours and figure in theirs]

    def seen(self, scenario, figure, name):
        """A figure of each round by itself."""
        return [run[figure] for run in self.rounds.get((scenario, name), []) if figure in run]

    def ratios(self, name):
        """The targets that compare with the bare proxy, which reaches the vendor in the same way."""
        base = BARE + transport(name)
        for what, bound, scenario in [
            ("CPU per whole chat", 1.35, "chat-whole-32"),
            ("CPU per chunk of a stream", 1.0, "chat-stream-32"),
            ("CPU per whole translated chat", 1.5, "translated-whole-32"),
            ("CPU per event of a translated stream", 1.4, "translated-stream-32"),
        ]:
            yield name, f"{what} / bare's", bound, False, self.compared(truediv, scenario, "cpu", name, base)
        first = self.compared(truediv, FIRST.name, "p50", name, base)
        yield name, "first chunk beside 32 busy streams / bare's", 1.5, False, first
        rps = self.compared(truediv, LARGE.name, "rps", name, base)
        yield name, "5 MB bodies: requests/s / bare's", 0.9, True, rps
        memory = [self.memory[name]["bodies"]] if name in self.memory else []
        yield name, "5 MB bodies: memory above idle / bodies under way", 1.3, False, memory

    def targets(self):
        """Of each target: whose, what, the bound, whether found may not be below it, and what was found each time."""
        for name, added in (SQLITE, 30), (REDIS, 60):
            yield from self.ratios(name)
            yield name, "added p50 at one connection, us", added, False, self.compared(sub, ALONE.name, "p50", name)
            stream = [self.open[name]] if name in self.open else []
            yield name, "memory of an open stream, KiB", 49, False, stream
            yield name, "start to the first answer, ms", 150, False, self.starts.get(name, [])
        store = self.seen("chat-whole-32", "store_cpu", REDIS)
        yield REDIS, "CPU of Redis itself per whole chat, us", 5, False, store
        for name in SQLITE, REDIS:
            yield from self.ratios(f"{name}-tls")


def targets(found):
    """Prints what was aimed at beside the medians of what was found; returns whether all of it holds."""
    all_hold = True
    print(f"{'target':71} {'bound':>8} {'found':>8} {'least':>8} {'most':>8}")
    for name, what, bound, at_least, each in found.targets():
        held = bool(each) and (median(each) >= bound if at_least else median(each) <= bound)
        cells = [format(value, ".4g") for value in (median(each), min(each), max(each))] if each else ["-"] * 3
        cells.insert(0, f"{'>=' if at_least else '<='} {bound:g}")
        verdict = "held" if held else "NOT HELD" if each else "not measured"
        print(f"{name + ': ' + what:71} " + " ".join(f"{cell:>8}" for cell in cells) + f"  {verdict}")
        all_hold &= held
    print()
    return all_hold
