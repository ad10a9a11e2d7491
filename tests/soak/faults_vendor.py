"""Faults of the vendors: resets, stalls, drips, garbage, endless answers, lengths that are wrong."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import calls
from books import bills_of
from faults import rows_of
from traffic import tell
from vendors import OddVendor

ROWS, row = rows_of()
TIMEOUTS = {
    "connect_ms": 1_000,
    "answer_ms": 1_500,
    "stall_ms": 1_000,
    "total_ms": 4_000,
    "drain_ms": 2_000,
}
# Whatever a vendor does, a client is answered within this.
BOUND_S = 8
WHOLE = ("chat", "embedding", "messages", "translated", "response", "image")
STREAMED = ("chat stream", "unbounded stream", "messages stream", "translated stream", "response stream")
HEALTHY = calls.Kind("chat of another vendor", calls.CHAT, "lmd-4.3", calls.chat)
TIMES = 3


@dataclass
class Fault:
    """What the simulator does, and what clients may see of it: a status, or how a 200 went on."""

    name: str
    faults: str
    must: str
    whole: str
    streamed: str
    speech: str
    short: bool = False


VOID = "502 and nothing charged"
BROKEN = (
    "whole answers 502 and nothing charged; streams end with an error event, charged what came, no more than billed"
)
FAULTS = [
    Fault("reset before the answer", "reset=0", VOID, "502", "502", "502", True),
    Fault("reset in the middle", "reset=5", BROKEN, "502", "broken", "cut 502", True),
    Fault("connection closed in the middle", "cut=5", BROKEN, "502", "broken", "cut 502"),
    Fault("closed after the head", "cut=0", VOID, "502", "502 broken", "cut 502"),
    Fault(
        "silent before the answer",
        "stall=0",
        "502 or 504 within the deadline, nothing charged",
        "504",
        "502 504",
        "502 504",
    ),
    Fault("silent in the middle", "stall=5", BROKEN, "502 504", "broken", "cut 502 504", True),
    Fault("late answer", "delay=4000", "504 within the deadline, nothing charged", "504", "504", "504"),
    Fault("drips of one byte", "split-utf8", "all well, exact", "whole", "whole", "whole"),
    Fault("a chunk every 150 ms", "chunk-delay=150;chunks=9", "all well, exact", "whole", "whole", "whole"),
    Fault("garbage", "garbage", "502, but for sound, which nobody reads", "502", "502", "whole 502", True),
    Fault("length too large", "wrong-length=long", BROKEN, "502", "broken whole", "cut 502", True),
    Fault(
        "length too small",
        "wrong-length=short",
        "502, error event; the next call gets its own answer",
        "502",
        "broken 502",
        "whole cut 502",
        True,
    ),
    Fault("compressed unasked", "gzip", VOID, "502", "502", "502 whole"),
    Fault("header of 512 KiB", "huge-header", "502, or all well", "502 whole", "502 whole", "502 whole"),
    Fault("error in the stream", "error-event=5", BROKEN, "whole", "broken", "cut 502 whole"),
    Fault("no end of the stream", "no-done", "never a clean end of what may be half", "whole", "broken whole", "whole"),
    Fault(
        "stream much longer than total_ms",
        "chunks=20000;chunk-delay=1",
        "cut off in time, charged what came",
        "whole",
        "broken",
        "whole cut",
    ),
    Fault("every answer 500", "status=500", VOID, "502", "502", "502"),
    Fault("every answer 429", "status=429;retry-after=1", "503 or 529, nothing charged", "503 529", "503 529", "503"),
]


def row_of(fault):
    @row(f"vendor: {fault.name}", fault.must, fault.short)
    def make(bench):
        vendors = ("vendor_a", "vendor_b")
        conf = bench.timeouts(**TIMEOUTS)
        with bench.fleet("sqlite", 1, dict.fromkeys(vendors, fault.faults), conf) as fleet:
            key = fleet.account("acct", "1000")
            allowed = dict.fromkeys(WHOLE, fault.whole) | dict.fromkeys(STREAMED, fault.streamed)
            told = ask(bench, fleet, key, allowed | {"speech": fault.speech})
            after(bench, fleet, key, told)
            books = bench.money(fleet, told)
            bills = bills_of(fleet.sim.seen())
            charges = books.charges["acct"]
            reported = Counter(charge["amount_nano"] for charge in charges if charge["basis"] == "reported")
            counted = sum(charge["amount_nano"] for charge in charges if charge["basis"] == "counted")
            bench.did(f"charged {books.posted()} nano ({counted} counted by ourselves), billed {sum(bills.elements())}")
            more = sorted((reported - bills).elements())
            bench.check(not more, "charged as reported what was never billed", more)


for one in FAULTS:
    row_of(one)


@row(
    "vendor: 900 million tokens reported",
    "answered; counted and charged within the hold, nothing written off",
    True,
)
def reports_absurd_usage(bench):
    vendors = ("vendor_a", "vendor_b")
    with bench.fleet("sqlite", 1, dict.fromkeys(vendors, "completion=900000000"), bench.timeouts(**TIMEOUTS)) as fleet:
        key = fleet.account("acct", "10")
        names = [name for name in WHOLE + STREAMED if name not in ("embedding", "image")]
        told = ask(bench, fleet, key, dict.fromkeys(names, "whole"))
        after(bench, fleet, key, told)
        # Clients see what the vendor says; what they pay is another matter.
        books = bench.money(fleet, [replace(call, cost=-1) for call in told])
        charges = books.charges["acct"]
        refused = [charge for charge in charges if charge.get("rejected_usage")]
        bench.did(f"{len(refused)} reports refused, {books.posted()} nano charged for all {len(charges)} calls")
        bench.check(len(refused) == len(names) * TIMES, "a report was believed", len(refused))
        counted = all(charge["basis"] == "counted" for charge in refused)
        bench.check(counted and books.posted() < 10**10, "charged by the report", books.posted())
        written_off = books.balances["acct"]["written_off_nano"]
        bench.check(written_off == 0, "written off", written_off)


BESIDE = [
    ("a redirect", "status=302", 0),
    ("a page with 200", "page", 0),
    ("an empty body", "empty", 0),
    ("418", "status=418", 0),
    ("an error with 200", "status=200", 1),
    ("garbage", "garbage", 1),
    ("compressed unasked", "gzip", 1),
    ("a reset in the body", "reset=1", 1),
    ("silence in the body", "stall=1", 1),
]
CALLS = 15


def beside_row(name, fault, lost):
    after_it = f"after {lost} lost, " if lost else ""

    @row(f"vendor: {name}, beside a healthy route", f"{after_it}{CALLS} of {CALLS} answered well", fault in ("page", "gzip"))
    def make(bench):
        with bench.fleet("sqlite", 1, {"vendor_b": [fault, ""]}, bench.timeouts(**TIMEOUTS)) as fleet:
            key, gateway, kind = fleet.account("acct", "1000"), fleet.gateways[0], calls.KINDS["chat"]
            told, slowest = [], 0

            def call():
                reply, took = calls.one(gateway.http, kind, 3, key, BOUND_S)
                told.append(tell(reply, kind, 3, "acct", took, BOUND_S))
                return took

            for _ in range(lost):
                call()
            bench.check(all(one.outcome == "refused" for one in told), "an answer that is none passed", told)
            end = time.monotonic() + BOUND_S
            while lost and '"down":[]' in gateway.page("/readyz")[1] and time.monotonic() < end:
                time.sleep(0.05)
            slowest = max(call() for _ in range(CALLS))
            well = [one for one in told[lost:] if one.outcome == "whole"]
            bench.did(f"{len(well)} of {CALLS} answered well, {lost} lost before, within {slowest:.1f} s")
            bench.check(len(well) == CALLS, "a healthy route did not serve", told)
            # One account alone closes no route to the others: its own probe does, within a second or so.
            end = time.monotonic() + BOUND_S
            while '"reason"' not in gateway.page("/readyz")[1] and time.monotonic() < end:
                time.sleep(0.05)
            state, page = gateway.page("/readyz")
            bench.check(state == 200 and '"reason"' in page, "the route is not named", page)
            bench.money(fleet, told)


for one in BESIDE:
    beside_row(*one)


def ask(bench, fleet, key, allowed):
    """A few calls of each kind at once; what clients saw of them."""
    jobs = [name for name in allowed for _ in range(TIMES)]
    port = fleet.gateways[0].http

    def call(name):
        kind = calls.KINDS[name]
        reply, took = calls.one(port, kind, 3, key, BOUND_S + 5)
        return tell(reply, kind, 3, "acct", took, BOUND_S + 5), took

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(call, jobs))
    seen, slowest = {}, 0
    for name, (told, took) in zip(jobs, answers, strict=True):
        outcome = told.status[:3] if told.outcome == "refused" else told.outcome
        group = "sound" if name == "speech" else "streams" if name in STREAMED else "whole answers"
        seen.setdefault(group, {}).setdefault(outcome, []).append(name)
        slowest = max(slowest, took)
        bench.check(outcome in allowed[name].split(), f"{name} ended as it must not", f"{told} after {took:.1f} s")
    for group, outcomes in seen.items():
        bench.did(f"{group}: " + ", ".join(f"{len(names)} x {outcome}" for outcome, names in outcomes.items()))
    bench.did(f"within {slowest:.1f} s")
    bench.timely(slowest < BOUND_S, "not answered in time", f"{slowest:.1f} s")
    return [told for told, _ in answers]


def after(bench, fleet, key, told):
    """Another vendor at the same address is as well as ever: no connection was left in disorder."""
    for _ in range(10):
        reply, took = calls.one(fleet.gateways[0].http, HEALTHY, 3, key)
        told.append(tell(reply, HEALTHY, 3, "acct", took))
    bad = [call for call in told[-10:] if call.outcome != "whole"]
    bench.check(not bad, "another vendor's answers suffered", bad[:3])


ODD = {
    "endless-events": (
        "events without end",
        "cut off in time with an error event, never more than the credit",
        "broken cut",
    ),
    "endless-line": ("an event without end", "cut off, little or nothing charged", "broken 502 cut"),
    "endless-body": ("a body without end", "502", "502"),
    "endless-head": ("a head without end", "502", "502"),
    "endless-interim": ("interim answers without end", "502 or 504 in time", "502 504"),
    "drip-head": ("a head byte by byte, for minutes", "504 in time", "502 504"),
    "drip-body": ("a body by two bytes", "all well", "whole 502"),
    "two-lengths": ("two lengths", "502", "502 broken"),
    "length-and-chunks": ("a length and chunks", "502, or the chunks count", "502 whole broken"),
    "bad-chunk": ("a chunk that is none", "502", "502 broken"),
    "huge-chunk": ("a chunk of 2^68 bytes", "502", "502 broken"),
    "negative-length": ("a negative length", "502", "502 whole broken"),
    "no-length": ("no length at all", "502, or all well", "502 whole broken"),
    "not-http": ("another protocol", "502", "502"),
    "silent": ("nothing at all", "504 in time", "504 502"),
    "two-answers": ("an answer that nobody asked for", "the next call gets its own", "whole 502 broken"),
}


def odd_row(mode):
    name, must, allowed = ODD[mode]

    @row(f"vendor: {name}", must, mode in ("endless-events", "two-answers"))
    def make(bench):
        with OddVendor() as odd:
            conf = bench.timeouts(**TIMEOUTS)
            with bench.fleet("sqlite", 1, {}, conf) as fleet:
                gateway = fleet.gateways[0]
                gateway.kill()
                gateway.vendors = fleet.vendors | {"vendor_b": [odd.base_url(mode)]}
                gateway.write()
                gateway.start()
                key = fleet.account("acct", "0.01")
                names = ["chat", "chat stream", "unbounded stream"]
                if mode in ("endless-events", "endless-line"):
                    names = names[1:]
                elif "chunk" in mode:
                    names = names[:1]
                told = ask(bench, fleet, key, dict.fromkeys(names, allowed))
                bench.did(f"{odd.sent >> 20} MiB sent by the vendor, gateway at {gateway.memory_mib()} MiB")
                bench.check(gateway.memory_mib() < 400, "memory", gateway.memory_mib())
                time.sleep(0.5)
                books = bench.money(fleet, told, vendor=False)
                credit = books.balances["acct"]
                bench.did(f"charged {books.posted()} of {credit['credited_nano']} nano")
                bench.check(credit["written_off_nano"] == 0, "written off", credit)
                alive = gateway.alive() and gateway.starts == 2
                bench.check(alive, "the gateway ended", gateway.tail())


for one in ODD:
    odd_row(one)
