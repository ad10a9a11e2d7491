"""Two gateways on one Redis against one: requests a second when each has as much of a core (about 1 minute).

Two whole cores for gateways would leave none of this machine's for Redis, the simulator and the load. So each
gateway gets a quarter of a core (see scale_quota), which it uses up; the others have what they need, which is
told too. Where such a share cannot be given, a node's capacity is what CPU time per request says: two nodes
then make 2 × (that of one alone) / (that of each of two) times as much, as long as Redis is not the limit.
"""

import statistics

import scale_books as books
from processes import cpu_seconds, started
from scale_quota import Quota, leave_all
from scale_world import Gateway, Load, Redis, judge, ratio, show, simulator, sized

SHARE = 0.25
ACCOUNTS = 100
CONNECTIONS = 32
ROUNDS, SECONDS, WARM = sized(5, 1), sized(4, 2), 1
TARGET = 1.7
# Of its share a gateway uses so much at least, or something else was the limit.
USED_MIN = 0.93


def shared(gateways):
    """Gives each its share; False where that cannot be done."""
    try:
        for gateway in gateways:
            Quota(SHARE).take(gateway.process.pid)
    except OSError as why:
        leave_all()
        print(f"shares of a core cannot be given ({why}), so CPU time per request has to tell")
        return False
    return True


def once(gateways, redis, sim_cpu, keys, seconds):
    """Load on all of them at once, each from a wrk of its own."""
    members = [*gateways, redis]
    before = [one.cpu() for one in members], sim_cpu()
    loads = [Load(gateway, keys, CONNECTIONS, seconds, at * 37) for at, gateway in enumerate(gateways)]
    results = [load.result() for load in loads]
    spent = [one.cpu() - was for one, was in zip(members, before[0])]
    count, took = sum(r["requests"] for r in results), max(r["duration_us"] for r in results) / 1e6
    return {
        "requests": count,
        "rps": count / took,
        "cpu": 1e6 * sum(spent[:-1]) / count,
        "store": 1e6 * spent[-1] / count,
        "used": min(spent[:-1]) / took,
        "redis_core": spent[-1] / took,
        "sim_core": (sim_cpu() - before[1]) / took,
        "p50": statistics.median(r["p50_us"] for r in results),
    }


def run():
    sim = simulator()
    sim_pid = started[-1].pid
    redis = Redis("redis")
    books.fill_redis(redis.wire, ACCOUNTS)
    keys = books.keys_file(ACCOUNTS)
    gateways = [Gateway(f"node-{number}", sim, redis.url).serve() for number in (1, 2)]
    done, seen = 0, {1: [], 2: []}
    try:
        limited = shared(gateways)
        for number in range(ROUNDS):
            # By turns each of the two is the one that works alone.
            for who in ([gateways[number % 2]], gateways):
                done += once(who, redis, lambda: cpu_seconds(sim_pid), keys, WARM)["requests"]
                result = once(who, redis, lambda: cpu_seconds(sim_pid), keys, SECONDS)
                done += result["requests"]
                seen[len(who)].append(result)
    finally:
        leave_all()
    tell(seen, limited)
    books.check_redis("two gateways", redis.wire, ACCOUNTS, done)


def tell(seen, limited):
    middle = {count: {f: statistics.median(one[f] for one in runs) for f in runs[0]} for count, runs in seen.items()}
    share = f"a share of {SHARE} of a core each" if limited else "no limit"
    print(f"{ROUNDS} rounds of {SECONDS} s, medians; {CONNECTIONS} connections to each gateway, {share}")
    rows = [["gateways", "", "req/s", "p50 us", "cpu us", "redis us", "core of each", "redis core", "sim core"]]
    for count, r in middle.items():
        row = [f"{r['rps']:.0f}", f"{r['p50']:.0f}", f"{r['cpu']:.1f}", f"{r['store']:.1f}"]
        rows.append([count, "", *row, f"{r['used']:.3f}", f"{r['redis_core']:.2f}", f"{r['sim_core']:.2f}"])
    show(rows)
    by_cpu = 2 * middle[1]["cpu"] / middle[2]["cpu"]
    ratio("nodes CPU time per request, one of two vs one alone", middle[2]["cpu"] / middle[1]["cpu"])
    ratio("nodes Redis' CPU time per request, with two vs one", middle[2]["store"] / middle[1]["store"])
    if limited:
        ratio("nodes requests/s two vs one", middle[2]["rps"] / middle[1]["rps"])
        for count in (1, 2):
            if middle[count]["used"] < USED_MIN * SHARE:
                print(f"with {count}, a gateway used {middle[count]['used']:.3f} of its {SHARE}: it was not the limit")
    value = middle[2]["rps"] / middle[1]["rps"] if limited else by_cpu
    judge("two gateways on one Redis against one", value, least=TARGET)
    rest = 1e6 / middle[2]["store"]
    print(f"Redis would be full at {rest:.0f} requests a second, that is {rest * middle[2]['cpu'] / 1e6:.1f} gateways "
          "with a core each")
