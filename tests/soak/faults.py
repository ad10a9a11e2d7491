"""Machine 4: a table of faults of the store, of the vendors and of the machine; for each what must
happen, and what did.
"""

import importlib
import os
import time
from dataclasses import dataclass

from books import Books, Part, check, compare, wait_for_no_holds
from fleet import Fleet, knows
from report import Report
from traffic import Traffic

LEASE_MS = 2_000
OLD_TIMEOUTS = {
    "body_ms": 5_000,
    "total_ms": 15_000,
    "answer_ms": 5_000,
    "stall_ms": 5_000,
    "drain_ms": 5_000,
    "client_write_ms": 5_000,
    "connect_ms": 2_000,
}
OLD_LEASE_S = 105
ACCOUNTS = 6
# Slow streams of three seconds, so that something is always under way.
SLOW = {"vendor_c": "chunk-delay=50;chunks=60"}
MODULES = ("faults_store", "faults_vendor", "faults_machine")


@dataclass
class Row:
    """A fault: how it is made, and what must happen."""

    name: str
    must: str
    make: object
    short: bool


def run(options):
    """All rows, or those whose name has SOAK_ONLY in it."""
    report = Report("faults", options)
    rows = [row for name in MODULES for row in importlib.import_module(name).ROWS]
    only = os.environ.get("SOAK_ONLY", "")
    table = []
    for row in rows:
        if (options.long or row.short or only) and only in row.name:
            bench = Bench(report, row, options)
            bench.run()
            table.append(bench.line())
            print(f"  {row.name}\n    must: {row.must}\n    did:  {'; '.join(bench.done)}", flush=True)
            report.figures[row.name] = {"must": row.must, "did": bench.done, "held": not bench.found.violated}
    return report


def rows_of():
    """An empty table, and what adds to it."""
    rows = []

    def row(name, must, short=True):
        return lambda make: rows.append(Row(name, must, make, short))

    return rows, row


class Bench:
    """Where one row is made: it starts what it needs, and notes what happened."""

    def __init__(self, report, row, options):
        self.found, self.row, self.long, self.seed = Part(report, row.name), row, options.long, options.seed
        self.done, self.has_leases = [], knows("timeouts", "lease_ms", LEASE_MS)
        self.lease_s = LEASE_MS / 1000 if self.has_leases else OLD_LEASE_S

    def run(self):
        try:
            self.row.make(self)
        except (TimeoutError, RuntimeError, OSError, AssertionError) as failure:
            self.found.violation("the row could not be made to its end", repr(failure)[:1500])

    def did(self, text):
        self.done.append(text)

    def check(self, holds, kind, sample=""):
        self.found.check(holds, kind, sample)

    def line(self):
        held = "no" if self.found.violated else "yes"
        return f"| {self.row.name} | {self.row.must} | {'; '.join(self.done)} | {held} |"

    def timeouts(self, **more):
        return {"timeouts": ({"lease_ms": LEASE_MS} if self.has_leases else OLD_TIMEOUTS) | more}

    def fleet(self, store="redis", nodes=2, faults=None, conf=None, **more):
        conf = self.timeouts() | {"log": {"level": "warn"}} | (conf or {})
        return Fleet(store, nodes, SLOW | (faults or {}), conf, "faults", **more)

    def traffic(self, fleet, **more):
        """Traffic of some accounts, which runs for a moment already."""
        accounts = list(fleet.accounts({f"acct{number}": 10**11 for number in range(ACCOUNTS)}).items())
        traffic = Traffic(fleet, accounts, self.seed, **more)
        time.sleep(1)
        return traffic

    def seconds(self, short, long):
        return long if self.long else short

    def money(self, fleet, told, vendor=True):
        """The books at the end, against what every client was told, and what the simulator had."""
        waited = wait_for_no_holds(fleet, 2 * self.lease_s + 3)
        self.check(waited <= 2 * self.lease_s + 3, "holds open after two leases", waited)
        time.sleep(0.5)
        books = Books(fleet)
        other, self.found.violated = self.found.violated, False
        check(books, self.found, vendor_calls=fleet.sim.count() if vendor else None)
        tally = compare(books, told, self.found)
        whole = f", {tally['whole']} whole answers"
        state = "money WRONG" if self.found.violated else "money exact"
        self.found.violated |= other
        written = f", {books.written_off()} nano written off" if books.written_off() else ""
        self.did(f"{state}: {books.count()} charges{whole}, drift {books.drift()}{written}")
        fleet.keep = self.found.violated
        return books
