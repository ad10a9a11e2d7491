"""The error of a rate limit in the long run: what it lets through, next to what its law allows (31 minutes).

A limit has a burst of one minute's worth, so in a time it may let through `burst + rate x time`. Each row is a key
with a plan of its own. First all rows are offered 2.5 times their limits until each burst is used up for certain;
what passed meanwhile is told as the error of the burst. The measurement begins in that very moment, with no room
left, so of then on the law is `rate x time`, or what is offered if that is less. A call more or less is the bench's
own error: at 60 a minute that is 0.3 % of five minutes.

direct     each call asks the store: the plan has a small limit of calls at a time, of which nothing is lent
lent       the account is busy, so that gateways borrow of the limits and make holds in memory

Limits of tokens are such that a minute allows as many calls as the row says; the estimate of a call is larger than
what it uses. The limit of 60,000 is measured after the others, with one offer after the other on one key; 4 times
so many calls would be more than this machine can make and serve.

DURATION (300) is the time of a row in seconds, LARGE_DURATION (a fifth) that of each offer on 60,000; 0 leaves
them out. NODES (`sqlite:1,redis:1,redis:2`) selects the stores, each with its number of gateways.
"""

import asyncio
import json
import os
import shutil
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from processes import FOLDER, ROOT, cpu_seconds, started
from rate_error import LATE_S, Load
from scale_world import Gateway, Redis, judge, show, simulator, sized, stop_since
from variants import cli

DURATION = int(os.environ.get("DURATION", sized(300, 20)))
LARGE_DURATION = int(os.environ.get("LARGE_DURATION", sized(DURATION // 5, 0)))
# Kinds of stores, and how many gateways are on one.
STORES = [one.split(":") for one in os.environ.get("NODES", "sqlite:1,redis:1,redis:2").split(",")]
OFFERS = [0.9, 1.0, 1.5, 4.0]
# The burst is used up when the first of them begins; each but the last leaves no room to the next one.
LARGE_OFFERS = [1.5, 1.0, 0.9]
LARGE = 60_000
# Times the limit, and seconds: long enough to use up a burst of a minute.
WARM_OFFER, WARM = 2.5, 50
LARGE_WARM_OFFER, LARGE_WARM = 2.0, 70
# More of a burst in per cent, or more failed calls of those that were offered: then something else was the limit.
BURST_LEFT_MAX, FAILED_MAX = 2, 0.001
# What the simulator reports of each fast call.
CALL_TOKENS = 26
BODY = json.dumps(
    {"model": "lmb-5.5", "max_tokens": 64, "messages": [{"role": "user", "content": "What does a toll gate do?"}]}
)


class Limit:
    """A plan, and how holds are made of it."""

    def __init__(self, how, calls, counts="requests"):
        self.how, self.calls, self.counts = how, calls, counts
        self.name = f"{how}-{counts}-{calls}"

    def plan(self):
        units = self.calls * (CALL_TOKENS if self.counts == "tokens" else 1)
        places = "calls = 60\n" if self.how == "direct" else ""
        return f"[plan.{self.name}]\n{self.counts}_per_minute = {units}\n{places}"

    def label(self):
        return f"{self.calls * (CALL_TOKENS if self.counts == 'tokens' else 1):,} {self.counts}"


LIMITS = [
    Limit("direct", 60),
    Limit("direct", 600),
    Limit("direct", 600, "tokens"),
    Limit("lent", 600),
    *sized([Limit("lent", 6_000)], []),
    Limit("lent", 600, "tokens"),
]


class Row:
    """A key that names a plan, and what it is offered."""

    def __init__(self, limit, offer, key):
        self.limit, self.offer = limit, offer
        self.pace = limit.calls / 60
        head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json"
        text = f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
        self.request = text.encode()
        self.burst_error, self.count, self.seconds = None, None, 0

    def load(self, offer):
        return self.request, offer * self.pace

    def note_burst(self, count, seconds):
        lawful = self.limit.calls + self.pace * seconds
        self.burst_error = 100 * (count.allowed - lawful) / lawful

    def note(self, count, seconds):
        self.count, self.seconds = count, seconds

    def is_of_use(self):
        """Whether the burst was used up when the measurement began, and nearly all calls were answered."""
        return (self.burst_error or 0) > -BURST_LEFT_MAX and self.count.failed <= FAILED_MAX * self.count.offered

    def lawful(self):
        return min(self.count.offered - self.count.failed, self.pace * self.seconds)

    def error(self):
        return 100 * (self.count.allowed - self.lawful()) / self.lawful()

    def cells(self):
        burst = "" if self.burst_error is None else f"{self.burst_error:+.2f}"
        count, early = self.count, max(self.lawful() - self.count.allowed, 0)
        row = [self.limit.label(), self.limit.how, f"{self.offer} x", count.offered, count.failed, count.allowed]
        error = f"{self.error():+.2f}" if self.is_of_use() else "disturbed"
        return row + [f"{self.lawful():.0f}", error, f"{early:.0f}", burst]


def rules_with_plans():
    rules = FOLDER / "rules"
    if not rules.exists():
        shutil.copytree(ROOT / "lua-free-rules", rules)
        plans = [limit.plan() for limit in [*LIMITS, Limit("lent", LARGE)]]
        (rules / "plans.toml").write_text("\n".join(plans))
    return rules


def issue_keys(conf, limits, at_a_time):
    """A key for each of some limits. On Redis each takes the time until it is on disk."""
    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(lambda limit: cli(conf, "key", "issue", limit.how, "--plan", limit.name), limits))


def held_in_memory(gateways):
    """How many calls have ended whose holds were made in memory."""
    ends = 0
    for gateway in gateways:
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway.admin}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        ends += sum(int(line.split()[1]) for line in lines if line.startswith("tollgate_allotment_ends_total"))
    return ends


async def measure(ports, rows, large_key):
    """All rows side by side, and then the large ones in turn. Returns the load, the large rows, and all counts."""
    load, large = Load(ports), []
    await load.begin()
    warm = await load.offer([row.load(WARM_OFFER) for row in rows], WARM)
    counts = await load.offer([row.load(row.offer) for row in rows], DURATION)
    for row, before, count in zip(rows, warm, counts):
        row.note_burst(before, WARM)
        row.note(count, DURATION)
    counts += warm
    if LARGE_DURATION:
        large = [Row(Limit("lent", LARGE), offer, large_key) for offer in LARGE_OFFERS]
        warm = await load.offer([large[0].load(LARGE_WARM_OFFER)], LARGE_WARM)
        for row in large:
            (count,) = await load.offer([row.load(row.offer)], LARGE_DURATION)
            row.note(count, LARGE_DURATION)
            counts.append(count)
        counts += warm
    await load.end(counts)
    for row in large:
        row.note_burst(warm[0], LARGE_WARM)
    return load, large, counts


def run_store(store, nodes, sim):
    redis = Redis(f"redis-{nodes}") if store == "redis" else None
    rules = rules_with_plans()
    names = [f"rates-{store}-{nodes}-{number}" for number in range(1, nodes + 1)]
    gateways = [Gateway(name, sim, redis and redis.url, rules=rules) for name in names]
    conf = gateways[0].conf
    cli(conf, "init")
    for account in ("direct", "lent"):
        cli(conf, "account", "create", account, "--credit", "9000000")
    kinds = [(limit, offer) for limit in LIMITS for offer in OFFERS]
    limits = [*(limit for limit, _ in kinds), Limit("lent", LARGE)]
    keys = issue_keys(conf, limits, 8 if redis else 1)
    rows = [Row(limit, offer, key) for (limit, offer), key in zip(kinds, keys)]
    for gateway in gateways:
        gateway.serve()
    members = [*gateways, *([redis] if redis else [])]
    before, own = [one.cpu() for one in members], cpu_seconds(os.getpid())
    load, large, counts = asyncio.run(measure([one.port for one in gateways], rows, keys[-1]))
    spent = [f"{one.cpu() - was:.0f}" for one, was in zip(members, before)]
    tell(f"{store}, {nodes} gateway{'s' * (nodes > 1)}", [*rows, *large])
    allowed, failed = (sum(getattr(count, what) for count in counts) for what in ("allowed", "failed"))
    print(f"{load.sent} calls sent, {load.late} of them more than {LATE_S} s late, the latest {load.latest_s:.2f} s; "
          f"{allowed} were allowed, of these {held_in_memory(gateways)} held in memory; {failed} failed. Seconds of "
          f"CPU: {', '.join(spent)}; of the bench {cpu_seconds(os.getpid()) - own:.0f}\n", flush=True)


def tell(who, rows):
    print(f"{who}: {DURATION} s a row, {LARGE_DURATION} s with {LARGE:,} a minute; all figures are calls")
    head = ["a minute", "holds", "offered", "calls", "failed", "allowed", "lawful", "error %", "early"]
    show([[*head, "error of the burst %"], *(row.cells() for row in rows)])
    errors = [row.error() for row in rows if row.is_of_use()]
    judge(f"{who}, rows in which nothing but the limit was one", len(errors), least=len(rows))
    judge(f"{who}, most that a limit let through above its law", max(errors, default=0), most=1, unit=" %")
    judge(f"{who}, most that a limit refused early", -min(errors, default=0), most=1, unit=" %")


def run():
    sim = simulator()
    for store, nodes in STORES:
        before = len(started)
        run_store(store, int(nodes), sim)
        stop_since(before)
