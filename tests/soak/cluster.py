"""Machine 8: a store with replicas, whose masters are replaced while two gateways sell: as planned, by
death, by silence, and by moving what they have. How long nobody is served, and whether each answer is
charged once all the same. The short form makes some of it, and judges no times.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from allotments import Shares
from books import Part
from faults import LEAST_IN_MEMORY, Bench, made, rows_of
from replicated import Cluster, Watched
from report import Report

ROWS, row = rows_of()
# From the moment on that another master is there.
RECOVERS_WITHIN_S = 10.0
SHORT_RECOVERS_WITHIN_S = 120.0
MUST = f"sold to again within {RECOVERS_WITHIN_S:g} s of another master, money exact"
# Rows of the short form at a time.
AT_ONCE = 2
ROUNDS = 3


def run(options):
    """All rows, or those whose name has SOAK_ONLY in it."""
    report, shares = Report("cluster", options), Shares(options.allotments)
    only = os.environ.get("SOAK_ONLY", "")
    rows = [row for row in ROWS if (options.long or row.short or only) and only in row.name]
    with ThreadPoolExecutor(1 if options.long else AT_ONCE) as pool:
        for bench in pool.map(lambda row: made(Bench(report, row, options, shares)), rows):
            bench.tell()
    shares.judge(Part(report, "all rows"), LEAST_IN_MEMORY)
    return report


def replaced(bench, servers, replace, mend=None):
    """Traffic while masters are replaced, once or several times."""
    most = RECOVERS_WITHIN_S if bench.long else SHORT_RECOVERS_WITHIN_S
    with bench.fleet(servers=servers) as fleet:
        traffic = bench.traffic(fleet)
        traffic.phase = "during"
        took, away, agreed = [], [], []
        for _ in range(bench.seconds(1, ROUNDS)):
            began = time.monotonic()
            harmed = replace(fleet.redis)
            healed = time.monotonic()
            while (seconds := traffic.recovery(healed)) == float("inf") and time.monotonic() < healed + 2 * most:
                time.sleep(0.1)
            # What was replaced as planned may go on for long, and takes what it is told.
            while fleet.redis.is_used_behind() and time.monotonic() < healed + 2 * most:
                seconds = max(seconds, time.monotonic() - healed)
                time.sleep(0.1)
            took.append(seconds)
            away.append(longest_gap(traffic, began))
            if harmed and mend:
                mend(harmed)
            agreed.append(wait_until_whole(fleet))
            time.sleep(bench.seconds(0, 3))
        traffic.stop()
        bench.did(f"sold to again {told(took)} s after another master was there")
        bench.did(f"nobody was served for {told(away)} s")
        bench.did(f"the servers agreed {told(agreed)} s after that")
        bench.did(traffic.summary("during"))
        bench.check(max(took) < most, "not back in time", told(took))
        bench.money(fleet, traffic.told())


def told(seconds):
    return ", ".join(f"{one:.1f}" for one in seconds)


def longest_gap(traffic, since):
    """The longest time since then in which no paid call ended well."""
    with traffic.lock:
        seen = [s for s in traffic.seen if s.told.outcome == "whole" and s.told.cost]
    ends = sorted(s.began + s.took for s in seen if s.began + s.took > since)
    moments = [since, *ends]
    return max((b - a for a, b in zip(moments, moments[1:], strict=False)), default=float("inf"))


def wait_until_whole(fleet):
    """How long it took until all servers were there and knew it."""
    began = time.monotonic()
    while not fleet.redis.is_whole():
        if time.monotonic() > began + SHORT_RECOVERS_WITHIN_S:
            raise TimeoutError("the servers do not come to an agreement")
        time.sleep(0.2)
    return time.monotonic() - began


def starts_again(server):
    server.resume()
    if not server.alive():
        server.start()


def freeze(server):
    server.pause()


def kill(server):
    server.kill()


for NAME, SERVERS in (("cluster", Cluster), ("Sentinels", Watched)):

    @row(f"{NAME}: planned failover", MUST, short=True)
    def planned(bench, servers=SERVERS):
        replaced(bench, servers, lambda redis: redis.fail_over())

    @row(f"{NAME}: master killed", MUST, short=SERVERS is Watched)
    def killed(bench, servers=SERVERS):
        replaced(bench, servers, lambda redis: redis.lose(kill), starts_again)

    @row(f"{NAME}: master frozen", MUST, short=False)
    def frozen(bench, servers=SERVERS):
        replaced(bench, servers, lambda redis: redis.lose(freeze), starts_again)


@row("cluster: 1,000 slots move", "nobody is refused for long, money exact", short=False)
def resharded(bench):
    replaced(bench, Cluster, lambda redis: redis.reshard(1_000))


@row("cluster: all slots of a master move, and it becomes a replica", MUST, short=False)
def emptied(bench):
    with bench.fleet(servers=Cluster) as fleet:
        traffic = bench.traffic(fleet)
        traffic.phase = "during"
        fleet.redis.reshard(5_461)
        healed = time.monotonic()
        while (seconds := traffic.recovery(healed)) == float("inf") and time.monotonic() < healed + 60:
            time.sleep(0.1)
        time.sleep(2)
        traffic.stop()
        bench.did(f"{len(fleet.redis.masters())} masters left; sold to {seconds:.1f} s after that")
        bench.did(traffic.summary("during"))
        bench.check(seconds < (RECOVERS_WITHIN_S if bench.long else SHORT_RECOVERS_WITHIN_S), "not back in time")
        bench.money(fleet, traffic.told())
