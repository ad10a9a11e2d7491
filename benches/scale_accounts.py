"""Cost per request with 1, 100 and 10,000 accounts that take turns, on both stores (about 7 minutes).

Each number of accounts has a store and a gateway of its own; all but the one that is measured are stopped
(SIGSTOP). A gateway looks a key up again after ten seconds, so of ten thousand keys an eighth or so are looked
up in the windows at 32 connections; in the shorter ones at one, which are there for the latency, none is.

Every ten seconds a gateway looks for holds that expired, which on Redis asks every account. One that was
stopped does not until it has gone on for the time of a lease, so this is told apart: what each costs a second
without any request, and what of that came with the accounts. At the rate of 32 connections it is added to the
cost of a request before that is judged.
"""

import random
import statistics
import time

import scale_books as books
from scale_world import LEASE_MS, Gateway, Redis, flat, measure, ratio, show, simulator, sized

COUNTS = sized([1, 100, 10_000], [1, 10, 1_000])
ROUNDS = sized(3, 1)
# Connections, and seconds of a window.
LOADS = [(32, sized(10, 2)), (1, sized(4, 1))]
WARM, IDLE = sized(2, 1), sized(24, 3)
# Until every gateway has looked for expired holds once.
SETTLED = sized(LEASE_MS / 1_000 + 12, 0)


class Kept:
    """A gateway with so many accounts."""

    def __init__(self, store, count, sim):
        self.label, self.count, self.done = f"tollgate-{store}", count, 0
        name = f"{self.label}-{count}"
        self.redis = Redis(f"redis-{count}") if store == "redis" else None
        self.gateway = Gateway(name, sim, self.redis and self.redis.url)
        if self.redis:
            books.fill_redis(self.redis.wire, count)
        else:
            books.fill_sqlite(self.gateway.database, count)
        self.keys = books.keys_file(count)
        self.gateway.serve()

    def stores(self):
        return [self.redis] if self.redis else []

    def run(self, connections, seconds, order):
        self.gateway.resume()
        first = order.randrange(self.count)
        self.done += measure(self.gateway, self.keys, 32, WARM, first)["requests"]
        result = measure(self.gateway, self.keys, connections, seconds, first, self.stores())
        self.done += result["requests"]
        self.gateway.pause()
        return result

    def check(self):
        self.gateway.resume()
        who = self.gateway.name
        if self.redis:
            books.check_redis(who, self.redis.wire, self.count, self.done)
        else:
            books.check_sqlite(who, self.gateway.database, self.count, self.done)


def idle(kept):
    """CPU time a second, in ms, of each gateway and its Redis without a request."""
    time.sleep(SETTLED)
    members = [[one.gateway, *one.stores()] for one in kept]
    before = [[member.cpu() for member in some] for some in members]
    time.sleep(IDLE)
    spent = [[1e3 * (m.cpu() - b) / IDLE for m, b in zip(*pair)] for pair in zip(members, before)]
    return {(one.label, one.count): figures for one, figures in zip(kept, spent)}


def rounds(kept):
    order, seen = random.Random(1), {}
    for one in kept:
        one.gateway.pause()
    for _ in range(ROUNDS):
        for connections, seconds in LOADS:
            for one in order.sample(kept, len(kept)):
                run = one.run(connections, seconds, order)
                seen.setdefault((connections, one.label, one.count), []).append(run)
    return seen


def median(runs, figure):
    return statistics.median(run[figure] for run in runs)


def store_cost(runs):
    costs = [run["stores"][0] for run in runs if run["stores"]]
    return statistics.median(costs) if costs else None


def tell(seen, resting, counts, what):
    """The table, by what there is more and more of; shared with the part of the journal."""
    rows = [["connections", "variant", what, "req/s", "p50 us", "p99 us", "cpu us", "store us"]]
    rows[0] += ["idle ms/s", "store idle"] if resting else []
    for (connections, label, count), runs in sorted(seen.items(), key=lambda item: (-item[0][0], item[0][1:])):
        row = [connections, label, count, f"{median(runs, 'rps'):.0f}"]
        row += [f"{median(runs, figure):.0f}" for figure in ("p50_us", "p99_us")] + [f"{median(runs, 'cpu'):.1f}"]
        cost, quiet = store_cost(runs), resting.get((label, count), [])
        row += ["-" if cost is None else f"{cost:.1f}"]
        rows.append(row + [f"{ms:.2f}" for ms in quiet] + ["-"] * (len(rows[0]) - len(row) - len(quiet)))
    show(rows)
    for connections, label in sorted({key[:2] for key in seen}, key=lambda pair: (-pair[0], pair[1])):
        least = seen[connections, label, counts[0]]
        for count in counts[1:]:
            if (connections, label, count) not in seen:
                continue
            most = seen[connections, label, count]
            tail = f"{label} at {connections} connections, {count} {what} vs {counts[0]}"
            for figure in ("cpu", "p50_us"):
                ratio(f"{what} {figure.removesuffix('_us')} {tail}", median(most, figure) / median(least, figure))
            if store_cost(least):
                ratio(f"{what} store {tail}", store_cost(most) / store_cost(least))
    judged(seen, resting, counts, what)


def judged(seen, resting, counts, what):
    """Whether the most of them cost what the least do, with what comes without a request."""
    for label in sorted({key[1] for key in seen}):
        connections, last = LOADS[0][0], max(key[2] for key in seen if key[1] == label)
        least, most = seen[connections, label, counts[0]], seen[connections, label, last]
        costs = [(f"cpu per request of {label}", median(least, "cpu"), median(most, "cpu"))]
        if store_cost(least):
            costs.append(("Redis' cpu per request", store_cost(least), store_cost(most)))
        for at, (whose, before, after) in enumerate(costs):
            more = 0
            if resting:
                more = 1e3 * (resting[label, last][at] - resting[label, counts[0]][at]) / median(most, "rps")
                print(f"{whose}: without requests {last} {what} cost {more:.2f} us a request more than {counts[0]}")
            flat(f"{whose}, {last} {what} vs {counts[0]}", (after + more) / before)


def run():
    sim = simulator()
    kept = [Kept(store, count, sim) for store in ("sqlite", "redis") for count in COUNTS]
    resting = idle(kept)
    seen = rounds(kept)
    print(f"{ROUNDS} interleaved rounds, medians; {LOADS[0][1]} s at 32 connections, {LOADS[1][1]} s at one; "
          "accounts take turns, a request each")
    tell(seen, resting, COUNTS, "accounts")
    for one in kept:
        one.check()
