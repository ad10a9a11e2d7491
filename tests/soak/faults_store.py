"""Faults of the store: away, paused, read-only, full, restarted from what it was earlier."""

import time

from allotments import OFF
from children import free_port
from faults import rows_of

ROWS, row = rows_of()
# Within this a gateway has to say that its ledger is away: its deadline of 250 ms and some work.
REFUSED_WITHIN_S = 1.0
# How long paid calls may be served after the ledger is gone: with their holds in the store, and out of
# allotments, which are used for 900 ms after the last answer of the store.
SERVED_WITHOUT_S, SERVED_OUT_OF_ALLOTMENTS_S = 0.5, 1.2
# A gateway asks the store every 250 ms whether it is still the same.
NOTICED_WITHIN_S = 0.5
RECOVERS_WITHIN_S = 3.0
# On a machine that is busy with other things.
SHORT_RECOVERS_WITHIN_S = 30.0
REFUSED = "503 within 1 s, the free go on, streams under way end well, service is back within 3 s, money exact"


def wait_for_recovery(bench, traffic, healed):
    """For as long as the service is watched after it was healed."""
    end = healed + (RECOVERS_WITHIN_S + 2 if bench.long else SHORT_RECOVERS_WITHIN_S)
    while time.monotonic() < end:
        time.sleep(0.1)
        if not bench.long and traffic.recovery(healed) < float("inf"):
            break


def back_in_time(bench, recovery):
    most = RECOVERS_WITHIN_S if bench.long else SHORT_RECOVERS_WITHIN_S
    bench.check(recovery < most, "not back in time", f"{recovery:.2f} s")


def store_fault(bench, begin, end, seconds, steady=False, **redis):
    """Traffic before, during and after a fault of Redis."""
    with bench.fleet(redis=redis) as fleet:
        traffic = bench.traffic(fleet)
        traffic.phase = "during"
        began = time.monotonic()
        begin(fleet)
        time.sleep(seconds)
        traffic.phase = "after"
        end(fleet)
        healed = time.monotonic()
        wait_for_recovery(bench, traffic, healed)
        traffic.stop()
        streams = [
            seen
            for seen in traffic.seen
            if seen.told.kind == "slow stream" and seen.told.outcome != "refused" and seen.began < healed
        ]
        cut = [seen.said() for seen in streams if seen.told.outcome != "whole"]
        late = traffic.latest("during", "503")
        recovery = traffic.recovery(healed)
        bench.did(f"for {seconds:g} s: {traffic.summary('during')}")
        bench.did(f"free: {traffic.summary('during', free=True)}")
        bench.did(f"{len(streams) - len(cut)} of {len(streams)} streams under way ended well")
        bench.did(f"back {recovery:.2f} s after it was healed")
        bench.timely(late < REFUSED_WITHIN_S, "refused too late", f"{late:.2f} s")
        bench.check(not cut, "streams under way were cut", cut)
        back_in_time(bench, recovery)
        free = [seen.said() for seen in traffic.seen if seen.told.kind == "moderation"]
        bad = [said for said in free if said != "200 whole"]
        bench.check(not bad, "what is free did not go on", bad[:5])
        failed = traffic.failed_after(healed + RECOVERS_WITHIN_S)
        bench.timely(not failed, "refused though all is well again", [seen.said() for seen in failed][:5])
        if not steady:
            most = SERVED_WITHOUT_S if fleet.holds.way == OFF else SERVED_OUT_OF_ALLOTMENTS_S
            during = [s for s in traffic.seen if s.began > began + most and s.began + s.took < healed]
            served = [s.told.kind for s in during if s.told.outcome == "whole" and s.told.kind != "moderation"]
            bench.check(not served, "paid calls were served without the ledger", served[:5])
        bench.money(fleet, traffic.told())


@row("Redis down (kill -9)", REFUSED)
def down(bench):
    store_fault(bench, lambda fleet: fleet.redis.kill(), lambda fleet: fleet.redis.start(), bench.seconds(3, 60))


@row("Redis paused (SIGSTOP)", REFUSED, short=False)
def paused(bench):
    store_fault(bench, lambda fleet: fleet.redis.pause(), lambda fleet: fleet.redis.resume(), bench.seconds(5, 60))


@row("Redis read-only (replica of a dead address)", REFUSED, short=False)
def read_only(bench):
    store_fault(
        bench,
        lambda fleet: fleet.redis.ask("REPLICAOF", "127.0.0.1", free_port()),
        lambda fleet: fleet.redis.ask("REPLICAOF", "NO", "ONE"),
        bench.seconds(5, 60),
    )


@row("Redis full (maxmemory)", REFUSED, short=False)
def full(bench):
    store_fault(
        bench,
        lambda fleet: fleet.redis.ask("CONFIG", "SET", "maxmemory", "1"),
        lambda fleet: fleet.redis.ask("CONFIG", "SET", "maxmemory", "0"),
        bench.seconds(5, 20),
    )


@row(
    "Redis slow (DEBUG SLEEP of 200 ms again and again)", "no error worse than 503 within 1 s, money exact", short=False
)
def slow(bench):
    with bench.fleet(redis={"enable_debug_command": "local"}) as fleet:
        traffic = bench.traffic(fleet)
        traffic.phase = "during"
        end = time.monotonic() + bench.seconds(4, 20)
        while time.monotonic() < end:
            fleet.redis.ask("DEBUG", "SLEEP", "0.2", seconds=5)
            time.sleep(0.1)
        healed, traffic.phase = time.monotonic(), "after"
        time.sleep(RECOVERS_WITHIN_S)
        traffic.stop()
        worse = [s.said() for s in traffic.seen if s.told.outcome != "whole" and s.told.status[:3] != "503"]
        bench.did(traffic.summary("during"))
        bench.did(f"back after {traffic.recovery(healed):.2f} s")
        bench.check(not worse, "worse than 503", worse[:5])
        bench.timely(traffic.latest("during", "503") < REFUSED_WITHIN_S, "refused too late", "")
        bench.money(fleet, traffic.told())


def older(bench, seconds):
    with bench.fleet() as fleet:
        traffic = bench.traffic(fleet)
        copy = fleet.redis.save_copy()
        traffic.phase = "lost"
        time.sleep(seconds)
        traffic.phase = "after"
        fleet.redis.put_back(copy)
        fleet.redis.start()
        healed = time.monotonic()
        wait_for_recovery(bench, traffic, healed)
        traffic.stop()
        paid = [s for s in traffic.seen if s.phase == "lost" and s.told.outcome == "whole" and s.told.cost]
        bench.did(f"{len(paid)} whole answers, paid in the {seconds:g} s that Redis forgot")
        bench.did(f"back {traffic.recovery(healed):.2f} s after Redis")
        back_in_time(bench, traffic.recovery(healed))
        bench.money(fleet, traffic.told())


@row("Redis restarted with an older snapshot", "every whole answer is charged all the same, money exact")
def snapshot(bench):
    older(bench, bench.seconds(3, 60))


@row("Redis restarted again and again with what it was half a second before", "as above", short=False)
def flapping(bench):
    with bench.fleet() as fleet:
        fleet.redis.watch()
        traffic = bench.traffic(fleet)
        lost = 0
        time.sleep(1.5)
        rounds = bench.seconds(3, 20)
        for _ in range(rounds):
            lost += fleet.redis.lose_power(0.5, torn=700)
            fleet.redis.start()
            time.sleep(2.5)
        traffic.stop()
        bench.did(f"{rounds} power failures, {lost} bytes of log lost; {traffic.summary('before')}")
        bench.money(fleet, traffic.told())


@row("all scripts of Redis gone (SCRIPT FLUSH)", "nobody notices", short=False)
def flush(bench):
    with bench.fleet() as fleet:
        traffic = bench.traffic(fleet)
        for _ in range(bench.seconds(4, 20)):
            fleet.redis.ask("SCRIPT", "FLUSH")
            time.sleep(0.5)
        traffic.stop()
        bad = [seen.said() for seen in traffic.seen if seen.told.outcome != "whole"]
        bench.did(traffic.summary("before"))
        bench.timely(len(bad) <= len(traffic.seen) // 20, "more than one in twenty was refused", bad[:5])
        bench.money(fleet, traffic.told())


@row(
    "Redis emptied (FLUSHALL), then restored",
    "nothing sold once a probe had its turn, 503 and never 401, then as with a snapshot",
    short=False,
)
def emptied(bench):
    with bench.fleet() as fleet:
        traffic = bench.traffic(fleet)
        copy = fleet.redis.save_copy()
        fleet.redis.ask("FLUSHALL")
        emptied_at, traffic.phase = time.monotonic(), "emptied"
        time.sleep(bench.seconds(3, 20))
        traffic.phase = "after"
        fleet.redis.put_back(copy)
        fleet.redis.start()
        healed = time.monotonic()
        wait_for_recovery(bench, traffic, healed)
        traffic.stop()
        during = [s for s in traffic.seen if emptied_at < s.began and s.began + s.took < healed]
        # Until then a gateway sells what it has borrowed: its calls do not ask the store.
        noticed = emptied_at + NOTICED_WITHIN_S
        paid = [s for s in during if noticed < s.began and s.told.outcome == "whole" and s.told.cost]
        blamed = [s.said() for s in during if s.told.status.startswith("401")]
        bench.did(traffic.summary("emptied"))
        bench.did(f"{len(paid)} calls sold meanwhile; back {traffic.recovery(healed):.2f} s after it was restored")
        bench.check(not blamed, "a good key was called wrong", blamed[:5])
        bench.check(not paid, "sold into an empty store", len(paid))
        back_in_time(bench, traffic.recovery(healed))
        bench.money(fleet, traffic.told())


@row("the log of Redis switched off (appendonly no)", "nothing sold after 3 s, money exact", short=False)
def unlogged(bench):
    with bench.fleet() as fleet:
        traffic = bench.traffic(fleet)
        traffic.phase = "during"
        fleet.redis.ask("CONFIG", "SET", "appendonly", "no")
        began = time.monotonic()
        time.sleep(bench.seconds(5, 20))
        fleet.redis.ask("CONFIG", "SET", "appendonly", "yes")
        healed, traffic.phase = time.monotonic(), "after"
        wait_for_recovery(bench, traffic, healed)
        traffic.stop()
        late = [s.began - began for s in traffic.seen if s.began < healed and s.told.outcome == "whole" and s.told.cost]
        late = [seconds for seconds in late if seconds > 0]
        bench.did(f"the last call was sold {max(late, default=0):.2f} s after it; {traffic.summary('during')}")
        bench.did(f"back {traffic.recovery(healed):.2f} s after it was on again")
        bench.timely(max(late, default=0) < 3, "sold without a log", max(late, default=0))
        back_in_time(bench, traffic.recovery(healed))
        bench.money(fleet, traffic.told())
