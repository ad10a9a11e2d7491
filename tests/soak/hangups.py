"""Machine 3: clients that hang up, after each chunk of streams in every format, and while whole
answers are made. What is charged must be what the vendor billed, call by call.

Where allotments are forced on, calls that are read to their end make the account of a batch busy before
the others come. They are judged, too.
"""

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import calls
from allotments import ON, Shares
from books import Books, Part, check, wait_for_no_holds
from children import HOST
from fleet import Fleet
from report import Report

CHUNKS = 60
LEASE_MS = 5_000
AT_ONCE = 12
CREDIT = 10**12
WAIT_S = 20
# Calls that make an account busy, the seconds between two of them, and the least share of the charges
# that must then have been held in memory.
AHEAD, AHEAD_EVERY_S, LEAST_IN_MEMORY = 10, 0.01, 0.3


def long_chat(text):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 200, "stream": True}


def long_response(text):
    return {"input": text, "max_output_tokens": 200, "stream": True}


STREAMS = (
    calls.Kind("chat", calls.CHAT, "lmb-5-nano", calls.unbounded),
    calls.Kind("messages", calls.MESSAGES, "lma-haiku-4-5", long_chat),
    calls.Kind("responses", calls.RESPONSES, "lmb-5.5", long_response),
    calls.Kind("chat translated to messages", calls.CHAT, "lma-haiku-4-5", long_chat),
)
STORES = ("sqlite", "redis")
WHOLE = ("embedding", "speech", "chat", "messages", "translated", "response", "image", "image by bill")
# A vendor that works to its end whoever listens, and one that stops and bills what it sent.
VENDORS = (
    ("vendor goes on", f"chunks={CHUNKS};chunk-delay=4"),
    ("vendor would stop", f"chunks={CHUNKS};chunk-delay=4;hangup-stops"),
)


def run(options):
    """Every format, every vendor, every way to hang up."""
    report = Report("hangups", options)
    shares = Shares(options.allotments)
    steps = range(-1, CHUNKS + 6) if options.long else range(-1, CHUNKS + 6, 7)
    # A machine that is busy with other things must not pass for a ledger that is away, nor as drowning.
    conf = {"log": {"level": "warn"}, "timeouts": {"lease_ms": LEASE_MS, "ledger_ms": 10_000, "shed_lag_ms": 0}}
    ways = list(WAYS) if options.long else ["reset"]
    # The short form has each store and each vendor once.
    pairs = product(STORES, VENDORS) if options.long else zip(STORES, VENDORS, strict=True)
    for store, (vendor_name, faults) in pairs:
        both = dict.fromkeys(("vendor_a", "vendor_b"), faults)
        with Fleet(store, 1, both, conf, "hangups", way=options.allotments) as fleet:
            batches = [(kind, way) for kind in STREAMS for way in ways]
            keys = fleet.accounts({f"batch{number}": CREDIT for number in range(len(batches))})
            for (kind, way), account in zip(batches, keys.items(), strict=True):
                found = Part(report, f"{kind.name}, {vendor_name}, {way}, {store}")
                Batch(found, fleet, kind, account).streams(steps, way)
            books = Books(fleet)
            check(books, Part(report, f"{vendor_name}, {store}"), vendor_calls=fleet.sim.count())
            shares.add(fleet, books.count())
            fleet.keep = bool(report.violations)
    for store in STORES if options.long else STORES[:1]:
        late = dict.fromkeys(("vendor_a", "vendor_b", "vendor_d"), "delay=150")
        with Fleet(store, 1, late, conf, "hangups", way=options.allotments) as fleet:
            keys = fleet.accounts({name.replace(" ", "-"): CREDIT for name in WHOLE})
            for name, account in zip(WHOLE, keys.items(), strict=True):
                batch = Batch(Part(report, f"whole {name}, {store}"), fleet, calls.KINDS[name], account)
                batch.whole(20 if options.long else 6)
            books = Books(fleet)
            check(books, Part(report, f"whole answers, {store}"), vendor_calls=fleet.sim.count())
            shares.add(fleet, books.count())
            fleet.keep = bool(report.violations)
    shares.judge(Part(report, "all batches"), LEAST_IN_MEMORY)
    return report


def close(line):
    """A client that ends in good order: FIN, and RST to whatever comes later."""
    line.close()


def reset(line):
    """A client whose machine is gone: RST at once."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def half(line):
    """A client that says no more, and reads no more for a while, but is still there."""
    line.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    line.close()


WAYS = {"close": close, "reset": reset, "half-close": half}


class Batch:
    """Calls of one kind for one account, each of another size, so that its bill is known by its prompt."""

    def __init__(self, found, fleet, kind, account):
        self.found, self.fleet, self.kind = found, fleet, kind
        self.name, self.key = account
        self.lock, self.reached = threading.Lock(), Counter()
        self.ahead = AHEAD if fleet.holds.way == ON else 0

    def streams(self, steps, way):
        """Hangs up after so many events; -1 is before anything was answered."""
        before = self.fleet.sim.count()
        with self.busy(CHUNKS + 10), ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(lambda step: self.stream(step, WAYS[way]), steps):
                pass
        self.judge(before, len(steps))

    @contextlib.contextmanager
    def busy(self, size):
        """Calls from this size on, which are read to their end and began before what is done meanwhile."""
        port = self.fleet.gateways[0].http
        with ThreadPoolExecutor(max(self.ahead, 1)) as pool:
            replies = []
            for number in range(self.ahead):
                replies.append(pool.submit(calls.one, port, self.kind, size + number, self.key))
                time.sleep(AHEAD_EVERY_S)
            yield
        for reply, _ in (reply.result() for reply in replies):
            self.found.check(reply.whole and reply.status == 200, "a whole call was not answered", reply.status)

    def stream(self, step, hang_up):
        line = self.connect()
        line.sendall(calls.request(self.kind, step + 2, self.key))
        if step >= 0:
            got = b""
            while got.count(b"data:") < step + 1:
                piece = line.recv(4096)
                if not piece:
                    break
                got += piece
                if got.endswith(b"0\r\n\r\n"):
                    break
            with self.lock:
                self.reached[got[9:12].decode()] += 1
        hang_up(line)

    def whole(self, count):
        """Hangs up while the vendor works."""
        before = self.fleet.sim.count()

        def one(number):
            line = self.connect()
            line.sendall(calls.request(self.kind, number + 1, self.key))
            time.sleep(number / count * 0.2)
            (reset if number % 2 else close)(line)

        with self.busy(count + 10), ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(one, range(count)))
        self.judge(before, count)

    def connect(self):
        line = socket.create_connection((HOST, self.fleet.gateways[0].http), timeout=WAIT_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line

    def judge(self, before, count):
        """The bills of the vendor against the journal."""
        # What has just been sent may not even hold money yet.
        time.sleep(0.3)
        waited = wait_for_no_holds(self.fleet, WAIT_S)
        self.found.check(waited < WAIT_S, "something is still held", waited)
        arrived = self.fleet.sim.count() - before
        mine = self.fleet.sim.seen()[-arrived:] if arrived else []
        books = Books(self.fleet, [self.name])
        charges = books.charges[self.name]
        bills = Counter(calls.price_of_bill(self.kind.model, seen["billed"]) for seen in mine if seen["billed"])
        charged = Counter(charge["amount_nano"] for charge in charges)
        self.found.check(
            bills == charged,
            "what was charged is not what was billed",
            f"billed only: {sorted((bills - charged).elements())[:6]}, "
            f"charged only: {sorted((charged - bills).elements())[:6]}",
        )
        counted = sum(charge["basis"] == "counted" for charge in charges)
        other = {status: n for status, n in self.reached.items() if status != "200"}
        self.found.check(not other, "answers other than 200", other)
        told = f"{len(charges)} charges for {len(mine)} calls at the vendor"
        nano = f"{books.posted_of(self.name)} of {sum(bills.elements())} nano billed"
        self.found.figure(f"{count} hung up", f"{told}, {nano}, {counted} counted by ourselves")
