"""Many calls at a time from a few processes; each tells what became of every call it made.

The lines that they write, one a call: what came of it, the account, the kind, the id of the
request, what it must have cost, the status, the id of the first reply (of a repeated one), and the
idempotency key.
"""

import heapq
import multiprocessing
import os
import random
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import calls

HOST = "127.0.0.1"
# After this without a byte a call has hung.
SILENCE_S = 30
RECONNECT_S = 0.05
RETRY_S = 0.25
TRIES_MAX = 200
CHECK_EVERY_S = 0.5
# A refusal with one of these ended a hold, with one of those there was none to be had.
ENDED, DRY = (400, 502, 504), (402, 429)


@dataclass
class Plan:
    """What a process is to do."""

    ports: list
    accounts: list  # (name, key, share)
    mix: list  # (kind, share)
    lines: int = 24
    sizes: tuple = (1, 12)
    # Accounts whose calls carry idempotency keys and are asked again until they are answered.
    insistent: list = field(default_factory=list)
    insistent_share: float = 0.0
    # Accounts that have always too little, and what they ask for.
    thin: list = field(default_factory=list)
    thin_mix: list = field(default_factory=list)
    thin_share: float = 0.0


class Job:
    """A call, and the same call again where it insists."""

    __slots__ = ("account", "idempotency", "key", "kind", "size", "tries")

    def __init__(self, account, key, kind, size, idempotency):
        self.account, self.key, self.kind, self.size = account, key, kind, size
        self.idempotency, self.tries = idempotency, 0


class Line:
    """A connection, with the call that is under way on it."""

    __slots__ = ("job", "opened", "out", "reply", "since", "socket", "wanted")

    def __init__(self):
        self.socket = self.job = self.reply = None
        self.out, self.since, self.opened, self.wanted = b"", 0.0, False, 0


class Worker:
    """Keeps its lines busy until it is told to stop."""

    def __init__(self, number, seed, plan, told, counters, stop):
        self.random = random.Random(f"{seed}/{number}")
        self.plan, self.counters, self.stop, self.number = plan, counters, stop, number
        self.told = open(told, "w", buffering=1 << 16)
        self.selector, self.timers, self.serial = selectors.DefaultSelector(), [], 0
        self.kinds = [calls.KINDS[name] for name, _ in plan.mix]
        self.shares = [share for _, share in plan.mix]
        self.account_shares = [share for *_, share in plan.accounts]
        self.sent, self.operations, self.texts, self.open = 0, 0, {}, 0
        self.stopping = False

    def run(self):
        lines = [Line() for _ in range(self.plan.lines)]
        for place, line in enumerate(lines):
            self.later(place * 0.001, line)
        check, end = time.monotonic() + CHECK_EVERY_S, None
        while True:
            now = time.monotonic()
            if now > check:
                check = now + CHECK_EVERY_S
                self.look_for_silence(lines, now)
                self.count()
                if self.stop.is_set() and not self.stopping:
                    self.stopping, end = True, now + SILENCE_S
            if self.stopping and (not any(line.job for line in lines) or now > end):
                break
            while self.timers and self.timers[0][0] <= now:
                self.begin(heapq.heappop(self.timers)[2])
            for event, _ in self.selector.select(self.wait(now)):
                self.happened(event.data)
        for line in lines:
            if line.job and line.job.idempotency:
                self.tell("undecided", line.job, line.reply)
        self.count()
        self.told.close()

    def count(self):
        self.counters.sent[self.number], self.counters.operations[self.number] = self.sent, self.operations

    def wait(self, now):
        next_timer = self.timers[0][0] - now if self.timers else 0.1
        return min(max(next_timer, 0), 0.1)

    def later(self, seconds, line):
        self.serial += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.serial, line))

    def new_job(self):
        plan, roll = self.plan, self.random
        size = roll.randint(*plan.sizes)
        if plan.thin and roll.random() < plan.thin_share:
            name, key, _ = roll.choice(plan.thin)
            return Job(name, key, calls.KINDS[roll.choices(*zip(*plan.thin_mix, strict=True))[0]], size, None)
        kind = roll.choices(self.kinds, self.shares)[0]
        if plan.insistent and roll.random() < plan.insistent_share:
            name, key, _ = roll.choice(plan.insistent)
            return Job(name, key, kind, size, f"k{self.number}-{roll.getrandbits(64):x}")
        name, key, _ = roll.choices(plan.accounts, self.account_shares)[0]
        return Job(name, key, kind, size, None)

    def begin(self, line):
        """Connects, or sends the next call."""
        if line.job is None:
            if self.stopping:
                return
            line.job = self.new_job()
        if line.socket is None:
            port = self.random.choice(self.plan.ports)
            line.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            line.socket.setblocking(False)
            line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.opened, line.wanted = False, selectors.EVENT_WRITE
            line.socket.connect_ex((HOST, port))
            self.selector.register(line.socket, line.wanted, line)
            line.since = time.monotonic()
            return
        self.send(line)

    def send(self, line):
        job = line.job
        line.reply, line.since, line.opened = calls.Reply(), time.monotonic(), True
        if job.idempotency:
            line.out = calls.request(job.kind, job.size, job.key, job.idempotency)
        else:
            text = self.texts.get((job.kind.name, job.size, job.key))
            if text is None:
                text = calls.request(job.kind, job.size, job.key)
                self.texts[job.kind.name, job.size, job.key] = text
            line.out = text
        job.tries += 1
        self.sent += 1
        self.push(line)

    def push(self, line):
        try:
            sent = line.socket.send(line.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            return self.lost(line)
        line.out = line.out[sent:]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.out else 0)
        if wanted != line.wanted:
            line.wanted = wanted
            self.selector.modify(line.socket, wanted, line)

    def happened(self, line):
        if not line.opened:
            if line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.drop(line)
                return self.later(RECONNECT_S, line)
            return self.send(line)
        if line.out:
            self.push(line)
            if line.socket is None or line.out:
                return
        try:
            data = line.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if line.reply is None:
            # It was closed between two calls; a timer will begin the next one.
            return self.drop(line)
        if not data:
            return self.lost(line)
        line.since = time.monotonic()
        if line.reply.feed(data):
            self.answered(line)

    def answered(self, line):
        job, reply = line.job, line.reply
        outcome, pause = "refused", 0.0
        if reply.status == 200:
            outcome = "whole" if job.kind.is_whole(reply.body()) else "broken"
        elif reply.status not in (*job.kind.wants, 402):
            # Somebody is away, or overloaded: like any client it comes back a little later.
            pause = RETRY_S * self.random.uniform(0.2, 1)
        self.tell(outcome, job, reply)
        if not self.insists(job, outcome, reply):
            line.job = None
        line.reply = None
        if reply.last:
            self.drop(line)
        elif self.stopping and line.job is None:
            return self.drop(line)
        if pause or line.job:
            self.later(pause or RETRY_S, line)
        else:
            self.begin(line)

    def insists(self, job, outcome, reply):
        """Whether a call with an idempotency key is asked once more."""
        if not job.idempotency or outcome == "whole" or job.tries >= TRIES_MAX:
            return False
        if outcome == "broken" or reply.status in (*job.kind.wants, 402, 422, 400, 413):
            return False
        return not (reply.status == 409 and reply.code() in ("reply_lost", "reply_not_kept"))

    def lost(self, line):
        """The connection ended in the middle of a call."""
        job, reply = line.job, line.reply
        self.drop(line)
        self.tell("cut", job, reply)
        line.reply = None
        if not job.idempotency or job.tries >= TRIES_MAX:
            line.job = None
        self.later(RECONNECT_S, line)

    def drop(self, line):
        if line.socket is not None:
            self.selector.unregister(line.socket)
            line.socket.close()
        line.socket = None

    def look_for_silence(self, lines, now):
        for line in lines:
            if line.socket is not None and line.job and now - line.since > SILENCE_S:
                if line.opened:
                    self.tell("hung", line.job, line.reply)
                self.drop(line)
                line.job = line.reply = None
                self.later(0, line)

    def tell(self, outcome, job, reply):
        cost = job.kind.cost(job.size, reply.body()) if outcome == "whole" else 0
        status = reply.status if reply else 0
        self.operations += operations(outcome, status) if not (reply and reply.original) else 0
        if outcome == "refused":
            status = f"{status}:{reply.code()}"
        elif outcome == "broken":
            ended = calls.ERROR_CODE.findall(reply.body())
            status = f"{status}:{ended[-1].decode() if ended else 'without an error'}"
        parts = (
            outcome,
            job.account,
            job.kind.name,
            (reply and reply.id) or "-",
            str(cost),
            str(status),
            (reply and reply.original) or "-",
            job.idempotency or "-",
        )
        self.told.write("\t".join(parts) + "\n")


def operations(outcome, status):
    """What a call comes to at least, which was let in and ended (a hold and its end), or was without credit.
    What nobody read the answer of, and all renewals, are not counted."""
    return 2 if outcome == "whole" or status in ENDED else int(status in DRY)


def work(number, seed, plan, told, counters, stop):
    # An interrupt is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Worker(number, seed, plan, told, counters, stop).run()
    os._exit(0)


class Load:
    """The processes, and what they tell."""

    def __init__(self, plan, seed, folder, processes=2):
        context = multiprocessing.get_context("fork")
        self.stop_flag = context.Event()
        self.counters = SimpleNamespace(
            sent=context.RawArray("Q", processes), operations=context.RawArray("Q", processes)
        )
        self.files = [folder / f"calls-{number}.tsv" for number in range(processes)]
        self.children = [
            context.Process(target=work, args=(number, seed, plan, file, self.counters, self.stop_flag), daemon=True)
            for number, file in enumerate(self.files)
        ]
        for child in self.children:
            child.start()

    def sent(self):
        """How many calls were sent."""
        return sum(self.counters.sent)

    def operations(self):
        """How many operations on the ledger they came to, at least."""
        return sum(self.counters.operations)

    def stop(self):
        """Lets the calls under way end, and all processes with them."""
        self.stop_flag.set()
        for child in self.children:
            child.join(SILENCE_S + 15)
            if child.is_alive():
                child.kill()
                child.join()

    def told(self):
        """All calls."""
        for file in self.files:
            with file.open() as lines:
                for line in lines:
                    outcome, account, kind, known, cost, status, original, key = line.rstrip("\n").split("\t")
                    yield Told(outcome, account, kind, known, int(cost), status, original, key if key != "-" else None)


@dataclass(slots=True)
class Told:
    """What became of a call."""

    outcome: str
    account: str
    kind: str
    id: str
    cost: int
    status: str
    original: str
    key: str | None
