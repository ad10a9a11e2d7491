"""Crowds on budgets: an account has more credit than a thousand calls need, and it or its key has a
budget for a few of them. Two gateways serve it, on one Redis or on one SQLite file.

What is charged never exceeds the limit, to the nano. Of calls whose price is known beforehand
exactly as many are paid as the limit covers. The others hear 402 of the budget where nothing can
make room for them any more, and 429 where money is merely held. Another key of the account is not
limited by the budget of the key.

In the long form half of the rounds lose a gateway in the middle (kill -9). When it is back, a
second crowd gets exactly what the first one has left.
"""

import random
import time
from dataclasses import dataclass
from itertools import product

import calls
from allotments import AS_IS, ON, judge
from books import Books, Part, check, wait_for_no_holds
from budgets import (
    ACCOUNT,
    KEY,
    check_budgets,
    check_refusals,
    lines_of,
    prove_budgets,
    prove_refusals,
    refusal_of,
)
from burst import CALLS, burst, statuses
from fleet import Fleet, budget_options, usd
from report import percentile

# Calls that a budget covers; and of each kind of call whether its price is known beforehand. The
# hold of the first stream grows from a few tokens on; the second begins with a large hold.
COVERED = (5, 500)
KINDS = {"speech": True, "unbounded stream": False, "growing stream": False}
# The short form of each store: the kind, how many calls the budget covers, and whose it is.
SHORT = {
    "redis": (("speech", 500, KEY), ("unbounded stream", 5, ACCOUNT)),
    "sqlite": (("speech", 5, ACCOUNT), ("unbounded stream", 500, KEY)),
}
WINDOWS = ("hour", "day", "total")
# A round is over after this.
ROUND_S = 90
# Nano-USD, which is more than any round costs.
CREDIT = 10**13
# What a killed gateway held is free after this.
LEASE_MS = 10_000
# The first node's vendors take their time, so that all holds stand at once; streams grow.
VENDORS = ("vendor_b", "vendor_d")
SLOW, GROWING = "delay=300", "chunks=60;chunk-delay=1"
# Within so many seconds after the last call was sent a gateway is killed.
KILL_WITHIN_S = 0.6
# Where allotments are forced on: the seconds over which the calls come.
SPREAD_S = 1.5
# Small budgets are held directly; of 500 calls some must have been held in memory.
LEAST_IN_MEMORY = 0.01


@dataclass
class Round:
    """A budget for so many calls of one size, and whether a gateway is killed."""

    kind: calls.Kind
    covered: int
    owner: str
    window: str
    size: int
    # In nano-USD.
    limit: int
    kills: bool

    def budgets(self):
        """The limits, with a wide one beside each, which counts the same."""
        other = KEY if self.owner == ACCOUNT else ACCOUNT
        wide = {"total": CALLS * CALLS * self.limit}
        own = {self.window: self.limit}
        return {self.owner: own if self.window == "total" else wide | own, other: wide}


def limited(options, report, store, way):
    """All rounds on one store."""
    roll = random.Random(f"limited/{options.seed}/{store}/{way}")
    # A machine that is busy with other things must not pass for a ledger that is away.
    conf = {
        "log": {"level": "warn"},
        "timeouts": {"lease_ms": LEASE_MS, "ledger_ms": 10_000, "shed_lag_ms": 0},
    }
    conf["limits"] = {"answers_per_account_bytes_max": 512 << 20, "answers_bytes_max": 1 << 30}
    faults = dict.fromkeys(VENDORS, f"{SLOW};{GROWING}")
    with Fleet(store, 1, faults, conf, f"limited-{store}", way=way) as fleet:
        fleet.node(
            vendors={vendor: fleet.sim.base_url(vendor, GROWING) for vendor in VENDORS}
        ).start()
        end = f"budgets, {store}" + (f", allotments {way}" if way != AS_IS else "")
        rounds = {f"limited{n}": one for n, one in enumerate(rounds_of(options, store))}
        credit = ("--credit", usd(CREDIT))
        fleet.cli_at_once(
            [("account", "create", name, *credit) for name in ("sample", "tiny", *rounds)]
        )
        prices = Prices(fleet)
        plan = planned(rounds, roll, prices)
        crowd = LimitedCrowd(fleet, plan, roll, report, end)
        for name in plan:
            crowd.round(name)
        crowd.told()
        everything, books = Part(report, end), Books(fleet)
        check(books, everything, vendor_calls=fleet.sim.count())
        given = prices.budgets | {name: one.budgets() for name, one in plan.items()}
        check_budgets(books, everything, given, crowd.since)
        prove_budgets(books, everything, given, crowd.since)
        judge(fleet, everything, books.count(), LEAST_IN_MEMORY)
        fleet.keep = bool(report.violations)


class Prices:
    """What calls cost: known, or as a sample was charged, but no less than they need to begin."""

    def __init__(self, fleet):
        self.fleet, self.budgets = fleet, {"tiny": {ACCOUNT: {"total": 1}}}
        limit = budget_options(self.budgets["tiny"][ACCOUNT])
        issue = [("key", "issue", name) for name in ("sample", "tiny")]
        *keys, _ = fleet.cli_at_once([*issue, ("account", "set", "tiny", *limit)])
        self.keys = dict(zip(("sample", "tiny"), keys, strict=True))

    def of(self, kind, size):
        if KINDS[kind.name]:
            return kind.cost(size, b"")
        port = self.fleet.gateways[1].http
        sample, _ = calls.one(port, kind, size, self.keys["sample"])
        tiny, _ = calls.one(port, kind, size, self.keys["tiny"])
        wait_for_no_holds(self.fleet, 20)
        lines = Books(self.fleet, ["sample"]).charges["sample"]
        cost = next(line["amount_nano"] for line in lines if line["request_id"] == sample.id)
        return max(cost, refusal_of(tiny).least)


def rounds_of(options, store):
    """The kind of call, how many the budget covers, whose it is, and whether a gateway dies."""
    if options.long:
        return list(product(KINDS, COVERED, (ACCOUNT, KEY), (False, True)))
    return [(*one, False) for one in SHORT[store]]


def planned(rounds, roll, prices):
    """The rounds by the names of their accounts."""
    plan = {}
    for name, (kind, covered, owner, kills) in rounds.items():
        kind, size, window = calls.KINDS[kind], roll.randint(1, 30), roll.choice(WINDOWS)
        price = prices.of(kind, size)
        limit = covered * price + roll.randrange(price)
        plan[name] = Round(kind, covered, owner, window, size, limit, kills)
    return plan


class LimitedCrowd:
    """The rounds, one after the other."""

    def __init__(self, fleet, plan, roll, report, end):
        self.fleet, self.plan, self.roll = fleet, plan, roll
        kinds = dict.fromkeys(one.kind.name for one in plan.values())
        self.parts = {kind: Part(report, f"{kind}, {end}") for kind in kinds}
        options = [
            (name, owner, budget_options(limits))
            for name, one in plan.items()
            for owner, limits in one.budgets().items()
        ]
        own = [
            ("account", "set", name, *words) for name, owner, words in options if owner == ACCOUNT
        ]
        keys = [("key", "issue", name, *words) for name, owner, words in options if owner == KEY]
        others = [("key", "issue", name) for name in plan]
        made = fleet.cli_at_once([*keys, *others, *own])
        self.keys = dict(zip(plan, made, strict=False))
        self.others = dict(zip(plan, made[len(plan) :], strict=False))
        self.since = time.time_ns() // 1_000_000
        names = ("rounds of 1,000", "kills", "paid", "402", "429", "faults", "limits", "spent")
        self.sums = {kind: dict.fromkeys(names, 0) for kind in kinds}
        self.seconds = {kind: [] for kind in kinds}

    def round(self, name):
        """A crowd, and a call after it; where a gateway was killed, a second crowd before that."""
        plan = self.plan[name]
        left_s = 3_600 - time.time() % 3_600
        if left_s < ROUND_S and plan.window != "total":
            # The window ends, and the round is to be in one.
            time.sleep(left_s)
        self.found, self.sum = self.parts[plan.kind.name], self.sums[plan.kind.name]
        replies = self.crowd(plan, self.keys[name], plan.kills)
        if plan.kills:
            self.sum["kills"] += 1
            for gateway in self.fleet.gateways:
                gateway.alive() or gateway.start()
            self.rest(name)
            replies += self.crowd(plan, self.keys[name], False)
        self.rest(name)
        late, _ = calls.one(self.fleet.gateways[1].http, plan.kind, plan.size, self.keys[name])
        late.at = time.time_ns() // 1_000_000
        other, _ = calls.one(self.fleet.gateways[0].http, plan.kind, plan.size, self.others[name])
        other.at = time.time_ns() // 1_000_000
        self.rest(name)
        self.judge(name, replies, late, other)

    def crowd(self, plan, key, kills):
        victim = (
            (self.fleet.gateways[self.roll.randrange(2)], self.roll.uniform(0, KILL_WITHIN_S))
            if kills
            else None
        )
        spread_s = SPREAD_S if self.fleet.holds.way == ON else 0.0
        replies, took = burst(
            self.fleet.gateways, calls.request(plan.kind, plan.size, key), spread_s, victim
        )
        self.seconds[plan.kind.name].append(took)
        return replies

    def rest(self, name):
        waited = wait_for_no_holds(self.fleet, 40)
        self.found.check(waited < 40, "something is still held", name)

    def judge(self, name, replies, late, other):
        """The charges, the budget and the refusals against each other."""
        plan, books = self.plan[name], Books(self.fleet, [name])
        budgets = books.balances[name]["budgets"]
        budget = next(b for b in budgets if (b["owner"], b["window"]) == (plan.owner, plan.window))
        lines = lines_of(budget, books.charges[name])
        charges = {line["request_id"]: line["amount_nano"] for line in lines}
        here, check = (
            f"{name}, {plan.owner}, {plan.window}, for {plan.covered}: {budget}",
            self.found.check,
        )
        spent = sum(charges.values())
        check(
            spent == budget["spent_nano"], "spent is not the sum of the lines", f"{here}, {spent}"
        )
        check(spent <= plan.limit, "more was charged than the budget allows", here)
        check(not books.balances[name]["written_off_nano"], "something was written off", here)
        # Another key is free of the key's budget, and under the account's.
        replies = [*replies, late, *([other] if plan.owner == ACCOUNT else [])]
        is_free = (
            other.status == 200
            and other.id not in charges
            and len(books.charges[name]) == len(lines) + 1
        )
        check(
            plan.owner == ACCOUNT or is_free,
            "another key was limited, or counted",
            f"{here}, {other.status}",
        )
        answered = {
            reply.id for reply in replies if reply.status == 200 and (reply.whole or not plan.kills)
        }
        cut = [reply for reply in replies if not reply.whole]
        check(
            answered <= set(charges), "answered calls were not charged", f"{here}, {len(answered)}"
        )
        check(plan.kills or not cut, "calls got no whole answer", f"{here}, {statuses(replies)}")
        check(plan.kills or answered == set(charges), "charges are not the answered calls", here)
        if KINDS[plan.kind.name]:
            told = f"{here}, {len(charges)} charges, {statuses(replies)}"
            check(
                len(charges) == plan.covered,
                "paid calls are not those that the budget covers",
                told,
            )
            check(late.status == 402, "a call was not refused though the budget is used up", told)
        # Now nothing is held, so there is nothing to wait for.
        told = f"{here}, {late.status} {late.body()[-300:]}"
        check(late.status in (200, 402), "a call was told to wait while nothing was held", told)
        refusals = [
            refusal_of(reply) for reply in replies if reply.status not in (0, 200) and reply.whole
        ]
        check_refusals(refusals, lines, budget, self.found, here)
        self.sum["faults"] += prove_refusals(refusals, lines, budget, self.found)
        self.sum["rounds of 1,000"] += len(replies) // CALLS
        self.sum["paid"] += len(charges)
        self.sum["limits"] += plan.limit
        self.sum["spent"] += spent
        for status in (402, 429):
            self.sum[str(status)] += sum(one.status == status for one in refusals)

    def told(self):
        for kind, sums in self.sums.items():
            found = self.parts[kind]
            for name, value in sums.items():
                found.figure(
                    name if name != "faults" else "faults planted in refusals and found", value
                )
            # A budget need not be used up by streams; by calls of a known price it always is.
            is_proved = sums["faults"] or not KINDS[kind]
            found.check(is_proved, "no budget refused a call for good, so the check proves nothing")
            found.figure("seconds of a crowd, median", percentile(self.seconds[kind], 0.5))
