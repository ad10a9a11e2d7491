"""Where Redis is the limit, and what moves it (about 4 minutes).

Redis does all its work in one thread, so it is full when that thread is always busy: at (requests) / (seconds
of its CPU time) a second. That is told of a gateway's own traffic, whose gateway is full long before; and of
the same calls without a gateway (scale_driver), which fill Redis' core on two cores already. There each of 16
connections has 1, 8 or 64 requests on their way: that is what batches make of it. What no gateway does yet is
tried too: eight requests of an account in one script.

Of a cluster of three shards the busiest one is the limit. Accounts are spread by their names, and all that a
request needs is in one shard, so shards are as quick together as alone. On two cores three of them and the
load would only take turns; so each is filled alone, and what the cluster takes follows from the part of the
accounts that each has. A gateway's own traffic goes to all three at once.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import scale_books as books
from processes import free_port, until
from scale_driver import Calls, CallsTogether, Driver
from scale_wire import Cluster
from scale_world import Gateway, Load, Redis, ratio, show, simulator, sized

ACCOUNTS = sized(1_000, 100)
ROUNDS, SECONDS, WARM = sized(3, 1), sized(5, 1), 1
GATEWAY_LOADS = [32, 128]
# Requests on their way on each connection, and how many of them in one script.
CONNECTIONS, BATCHES = 16, [(1, 1), (8, 1), (64, 1), (64, 8)]
SHARDS = 3


def busy(servers):
    """Seconds that each server's one thread has worked."""
    told = [Path(f"/proc/{one.process.pid}/task/{one.process.pid}/schedstat").read_text() for one in servers]
    return [int(one.split()[0]) / 1e9 for one in told]


def batch_name(depth, together):
    return f"calls, {depth} at a time" + (f", {together} a script" if together > 1 else "")


def cluster():
    """Three servers that share all slots among them."""
    shards = [
        Redis(f"shard-{number}", "--cluster-enabled", "yes", "--cluster-port", free_port())
        for number in range(1, SHARDS + 1)
    ]
    addresses = [f"127.0.0.1:{shard.port}" for shard in shards]
    create = ["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "0", "--cluster-yes"]
    made = subprocess.run(create, capture_output=True, text=True, timeout=60)
    if made.returncode:
        sys.exit(f"failed: the cluster could not be made: {made.stdout}{made.stderr}")

    def agree():
        return all(shard.wire.info("CLUSTER", "INFO")["cluster_state"] == "ok" for shard in shards)

    until("the shards are a cluster", agree)
    return shards, "redis-cluster://" + ",".join(addresses)


class Side:
    """One server or a cluster, the gateway on it, and the calls to drive it with."""

    def __init__(self, label, servers, store, url, sim):
        self.label, self.servers, self.store, self.done, self.seen = label, servers, store, 0, {}
        books.fill_redis(store, ACCOUNTS)
        self.keys = books.keys_file(ACCOUNTS)
        self.gateway = Gateway(f"gateway-{label.replace(' ', '-')}", sim, url).serve()
        self.spread = [[] for _ in servers]
        for number in range(ACCOUNTS):
            self.spread[self.place(number)].append(number)
        calls = Calls(self.gateway, servers[self.place(0)].wire, 0)
        self.done += 1
        wires = [server.wire for server in servers]
        self.calls = {n: calls if n == 1 else CallsTogether(calls, wires, n) for _, n in BATCHES}

    def place(self, number):
        """Which server has an account."""
        if len(self.servers) == 1:
            return 0
        wire = self.store.of(f"tollgate:{{{books.name(number)}}}:account")
        return next(at for at, server in enumerate(self.servers) if server.wire is wire)

    def keep(self, what, **figures):
        self.seen.setdefault(what, []).append(figures)

    def through_gateway(self, connections):
        self.done += Load(self.gateway, self.keys, connections, WARM).result()["requests"]
        before, own = busy(self.servers), self.gateway.cpu()
        result = Load(self.gateway, self.keys, connections, SECONDS).result()
        spent = [now - was for now, was in zip(busy(self.servers), before)]
        requests, seconds = result["requests"], result["duration_us"] / 1e6
        self.done += requests
        self.keep(
            f"gateway, {connections} connections",
            rps=result["rps"],
            cpu=1e6 * (self.gateway.cpu() - own) / requests,
            store=1e6 * sum(spent) / requests,
            busy=max(spent) / seconds,
            limit=requests / max(spent),
        )

    def driven(self, depth, together):
        """Each server alone, one after the other: what it takes follows from its part of the accounts."""
        rates, costs, cores = [], [], []
        for server, accounts in zip(self.servers, self.spread):
            driver = Driver(self.calls[together], [(server.port, accounts)], CONNECTIONS, depth)
            before, began = busy([server])[0], time.monotonic()
            requests = sum(driver.run(SECONDS if len(self.servers) == 1 else SECONDS / 2))
            spent, seconds = busy([server])[0] - before, time.monotonic() - began
            self.done += requests
            rates.append(requests / seconds)
            costs.append(spent / requests * len(accounts) / ACCOUNTS)
            cores.append(spent / seconds)
        self.keep(
            batch_name(depth, together),
            rps=statistics.mean(rates),
            store=1e6 * sum(costs),
            busy=min(cores),
            limit=1 / max(costs),
        )

    def check(self):
        books.check_redis(self.label, self.store, ACCOUNTS, self.done)


def run():
    sim = simulator()
    single = Redis("redis")
    one = Side("one server", [single], single.wire, single.url, sim)
    shards, url = cluster()
    three = Side("3 shards", shards, Cluster([shard.wire for shard in shards]), url, sim)
    for _ in range(ROUNDS):
        for side in (one, three):
            for connections in GATEWAY_LOADS:
                side.through_gateway(connections)
            for batch in BATCHES:
                side.driven(*batch)
    tell(one, three)
    for side in (one, three):
        side.check()


def tell(one, three):
    middle = {}
    for side in (one, three):
        for what, runs in side.seen.items():
            middle[what, side] = {f: statistics.median(run[f] for run in runs) for f in runs[0]}
    print(f"{ROUNDS} rounds of {SECONDS} s, medians; {ACCOUNTS} accounts; in the shards of the cluster "
          f"{', '.join(str(len(accounts)) for accounts in three.spread)}")
    rows = [["load", "store", "req/s", "gateway us", "redis us", "core", "full at req/s"]]
    for (what, side), r in middle.items():
        row = [f"{r['rps']:.0f}", f"{r['cpu']:.1f}" if "cpu" in r else "-", f"{r['store']:.1f}"]
        rows.append([what, side.label, *row, f"{r['busy']:.2f}", f"{r['limit']:.0f}"])
    show(rows)
    slow = batch_name(*BATCHES[0])
    for batch in BATCHES[1:]:
        quick = batch_name(*batch)
        ratio(f"redis limit, {quick} vs {slow}", middle[quick, one]["limit"] / middle[slow, one]["limit"])
    for what in one.seen:
        limits = [middle[what, side]["limit"] for side in (three, one)]
        ratio(f"redis limit of 3 shards vs one server, {what}", limits[0] / limits[1])
    for connections in GATEWAY_LOADS:
        what = f"gateway, {connections} connections"
        costs = [middle[what, side]["cpu"] for side in (three, one)]
        ratio(f"redis cpu of the gateway on 3 shards vs one server, {what}", costs[0] / costs[1])
