"""Steady good traffic while something goes wrong, and what it saw, phase by phase."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass

import calls
from load import Told

MIX = (
    ("speech", 30),
    ("embedding", 25),
    ("chat", 15),
    ("chat stream", 10),
    ("messages stream", 6),
    ("translated", 6),
    ("response", 6),
    ("slow stream", 4),
)
# Nobody pays for these; they go on whatever becomes of the store.
FREE = calls.Kind("moderation", "/v1/moderations", "omni-moderation-latest", lambda text: {"input": text})
WAIT_S = 20
PAUSE_S = 0.02
# What keeps an account busy: more threads, which wait less, and not so often for slow streams.
BUSY = {"threads": 16, "pause": 0.002, "mix": (*MIX[:-1], ("slow stream", 1))}


@dataclass
class Seen:
    """A call of the traffic: when it began, how long it took, and what came of it."""

    phase: str
    began: float
    took: float
    port: int
    told: Told

    def said(self):
        """Its answer in a few words."""
        told = self.told
        return told.status if told.outcome == "refused" else f"{told.status} {told.outcome}"


class Traffic:
    """Threads that call one gateway after the other."""

    def __init__(self, fleet, accounts, seed, threads=8, mix=MIX, pause=PAUSE_S):
        self.fleet, self.accounts, self.mix, self.pause = fleet, accounts, mix, pause
        # The gateways that are called; all of them if this is empty.
        self.only = []
        # How many calls are under way, by port.
        self.open = Counter()
        self.phase, self.seen, self.lock = "before", [], threading.Lock()
        self.over = threading.Event()
        self.threads = [
            threading.Thread(target=self._run, args=(f"{seed}/{number}", number), daemon=True)
            for number in range(threads)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, seed, number):
        roll = random.Random(seed)
        kinds = [calls.KINDS[name] for name, _ in self.mix]
        shares = [share for _, share in self.mix]
        while not self.over.is_set():
            # One thread asks for what is free.
            kind = FREE if number == 0 else roll.choices(kinds, shares)[0]
            name, key = roll.choice(self.accounts)
            gateway = roll.choice(self.only or self.fleet.gateways[: self.nodes()])
            size, phase, began = roll.randint(1, 12), self.phase, time.monotonic()
            self.count(gateway.http, 1)
            reply, took = calls.one(gateway.http, kind, size, key, WAIT_S)
            self.count(gateway.http, -1)
            self.note(Seen(phase, began, took, gateway.http, tell(reply, kind, size, name, took)))
            self.over.wait(self.pause)

    def nodes(self):
        return len(self.fleet.gateways)

    def count(self, port, more):
        with self.lock:
            self.open[port] += more

    def under_way(self, port):
        """How many calls a gateway has not answered yet."""
        with self.lock:
            return self.open[port]

    def note(self, seen):
        with self.lock:
            self.seen.append(seen)

    def stop(self):
        """No more calls; those under way end."""
        self.over.set()
        for thread in self.threads:
            thread.join(WAIT_S + 5)

    def told(self):
        """The calls that cost something."""
        return [seen.told for seen in self.seen if seen.told.kind != FREE.name]

    def summary(self, phase, free=False):
        """Answers of a phase: how many of each, and how late the latest was."""
        count, slowest = {}, {}
        for seen in self.seen:
            if seen.phase == phase and (seen.told.kind == FREE.name) == free:
                said = seen.said()
                count[said] = count.get(said, 0) + 1
                if "slow" not in seen.told.kind:
                    slowest[said] = max(slowest.get(said, 0), seen.took)
        rows = sorted(count.items(), key=lambda pair: -pair[1])
        return ", ".join(
            f"{n} x {said}" + (f" (within {slowest[said] * 1000:.0f} ms)" if said in slowest else "")
            for said, n in rows
        )

    def latest(self, phase, status, free=False):
        """The longest time that an answer of this kind took, in seconds."""
        return max(
            (
                seen.took
                for seen in self.seen
                if seen.phase == phase and seen.said().startswith(status) and (seen.told.kind == FREE.name) == free
            ),
            default=0,
        )

    def recovery(self, since):
        """Seconds from then until every gateway answered a paid call well, one that began after it."""
        first = {}
        for seen in self.seen:
            if seen.told.outcome == "whole" and seen.told.kind != FREE.name and seen.began >= since:
                ended = seen.began + (0 if "slow" in seen.told.kind else seen.took)
                first[seen.port] = min(first.get(seen.port, float("inf")), ended)
        ports = {gateway.http for gateway in self.fleet.gateways[: self.nodes()]}
        return max(first.get(port, float("inf")) for port in ports) - since

    def failed_after(self, moment):
        """Paid calls that began after a moment and were not answered well."""
        return [
            seen
            for seen in self.seen
            if seen.began > moment and seen.told.outcome != "whole" and seen.told.kind != FREE.name
        ]


def tell(reply, kind, size, account, took, seconds=WAIT_S):
    """What became of a call, as the load tells it."""
    status, cost = reply.status, 0
    if not reply.whole:
        outcome = "cut" if took < seconds else "hung"
    elif status == 200:
        outcome = "whole" if kind.is_whole(reply.body()) else "broken"
        # What is free has no price.
        cost = kind.cost(size, reply.body()) if outcome == "whole" and kind is not FREE else 0
    else:
        outcome, status = "refused", f"{status} {reply.code()}"
    return Told(outcome, account, kind.name, reply.id or "-", cost, str(status), reply.original or "-", None)
