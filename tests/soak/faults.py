"""Machine 4: a table of faults of the store, of the vendors and of the machine; for each what must
happen, and what did. The short form makes some of them, and judges no times.

Where allotments are forced on, one account has most of the calls of a row's traffic.
"""

import importlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from allotments import ON, Shares
from books import Part, check, compare, settled_books, wait_for_no_holds
from fleet import Fleet
from report import Report
from traffic import BUSY, Traffic

LEASE_MS = 2_000
ACCOUNTS = 6
# Where allotments are forced on: how many times as often as another the busy account is chosen, and the
# least share of all charges that must have been held in memory.
BUSY_SHARE, LEAST_IN_MEMORY = 24, 0.2
# Slow streams of three seconds, so that something is always under way.
SLOW = {"vendor_c": "chunk-delay=50;chunks=60"}
# How many rows are made at a time, of which modules. Where times are judged, only those of vendors
# share the machine, whose deadlines are wide.
LONG_GROUPS = ((1, ["faults_store"]), (3, ["faults_vendor"]), (1, ["faults_machine"]))
SHORT_GROUPS = ((4, ["faults_machine", "faults_store", "faults_vendor"]),)


@dataclass
class Row:
    """A fault: how it is made, and what must happen."""

    name: str
    must: str
    make: object
    short: bool


def run(options):
    """All rows, or those whose name has SOAK_ONLY in it."""
    report, shares = Report("faults", options), Shares(options.allotments)
    only = os.environ.get("SOAK_ONLY", "")
    for at_once, names in LONG_GROUPS if options.long else SHORT_GROUPS:
        rows = [row for name in names for row in importlib.import_module(name).ROWS]
        rows = [row for row in rows if (options.long or row.short or only) and only in row.name]
        with ThreadPoolExecutor(at_once) as pool:
            for bench in pool.map(lambda row: made(Bench(report, row, options, shares)), rows):
                bench.tell()
    shares.judge(Part(report, "all rows"), LEAST_IN_MEMORY)
    return report


def made(bench):
    bench.run()
    return bench


def rows_of():
    """An empty table, and what adds to it."""
    rows = []

    def row(name, must, short=True):
        return lambda make: rows.append(Row(name, must, make, short))

    return rows, row


class Bench:
    """Where one row is made: it starts what it needs, and notes what happened."""

    def __init__(self, report, row, options, shares):
        self.found, self.row, self.long, self.seed = Part(report, row.name), row, options.long, options.seed
        self.shares = shares
        self.done = []

    def run(self):
        try:
            self.row.make(self)
        except (TimeoutError, RuntimeError, OSError, AssertionError) as failure:
            self.found.violation("the row could not be made to its end", repr(failure)[:1500])

    def did(self, text):
        self.done.append(text)

    def check(self, holds, kind, sample=""):
        self.found.check(holds, kind, sample)

    def timely(self, holds, kind, sample=""):
        """A check that a machine busy with other things may fail: for the long form, which has it alone."""
        if self.long:
            self.check(holds, kind, sample)

    def tell(self):
        held = not self.found.violated
        did = "; ".join(self.done)
        print(f"  {self.row.name}\n    must: {self.row.must}\n    did:  {did}{'' if held else ' NOT HELD'}", flush=True)
        self.found.report.figures[self.row.name] = {"must": self.row.must, "did": self.done, "held": held}

    def timeouts(self, **more):
        # Many rows at a time are no overload.
        shed = {} if self.long else {"shed_lag_ms": 0}
        return {"timeouts": {"lease_ms": LEASE_MS} | shed | more}

    def fleet(self, store="redis", nodes=2, faults=None, conf=None, **more):
        conf = self.timeouts() | {"log": {"level": "warn"}} | (conf or {})
        return Fleet(store, nodes, SLOW | (faults or {}), conf, "faults", **{"way": self.shares.way} | more)

    def traffic(self, fleet, **more):
        """Traffic of some accounts, which runs for a moment already."""
        accounts = list(fleet.accounts({f"acct{number}": 10**11 for number in range(ACCOUNTS)}).items())
        if fleet.holds.way == ON:
            accounts = accounts[:1] * BUSY_SHARE + accounts
            more = BUSY | more
        traffic = Traffic(fleet, accounts, self.seed, **more)
        time.sleep(1)
        return traffic

    def seconds(self, short, long):
        return long if self.long else short

    def money(self, fleet, told, vendor=True):
        """The books at the end, against what every client was told, and what the simulator had."""
        # A shared store's new run is swept one lease after its start at the earliest.
        bound = self.seconds(60, 2 * LEASE_MS / 1000 + 3)
        waited = wait_for_no_holds(fleet, bound)
        self.check(waited <= bound, "holds open after two leases", waited)
        books = settled_books(fleet)
        other, self.found.violated = self.found.violated, False
        check(books, self.found, vendor_calls=fleet.sim.count() if vendor else None)
        tally = compare(books, told, self.found)
        whole = f", {tally['whole']} whole answers"
        state = "money WRONG" if self.found.violated else "money exact"
        self.found.violated |= other
        written = f", {books.written_off()} nano written off" if books.written_off() else ""
        self.did(f"{state}: {books.count()} charges{whole}, drift {books.drift()}{written}")
        self.did(f"{self.shares.add(fleet, books.count())}; nothing was held {waited:.1f} s after the last call")
        fleet.keep = self.found.violated
        return books
