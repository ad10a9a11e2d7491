"""Machine 2: a thousand calls at once, on credit for a few of them, through two gateways.

Of calls whose price is known beforehand exactly as many reach the vendor as are paid for. Of chats
nobody knows the price: what is charged never exceeds the credit, and nothing stays held.

Half of these accounts have a plan with fewer requests a minute than a crowd has: then at most so many
calls reach the vendor. One has few places, all of which are free again after the crowd.

The long form has half of its rounds with allotments forced on, and half with them off. Where they are
on, the calls come over a moment, so that most of them find that their account is busy.

Then the same crowds have more credit than they need, and a budget that is too little (limited.py).
"""

import os
import random
from dataclasses import dataclass

import calls
from allotments import AS_IS, OFF, ON, judge
from books import Books, Part, check, wait_for_no_holds
from burst import CALLS, burst, statuses
from fleet import Fleet
from limited import limited
from rates import CROWD_PLACES, CROWD_PLANS, CROWD_REQUESTS, check_places
from report import Report, percentile

# Refused for want of credit, or for a rate limit: there is none, or other calls have it.
SHORT = (402, 429)
LEASE_MS = 30_000
# The first node's vendors take their time, so that all holds stand at once; the second's do not.
SLOW = "delay=300"
KNOWN = ("speech", "image by bill")
# Where allotments are forced on: the seconds over which the calls come, the least number of calls that
# there is credit for, and the least share of the charges that must have been held in memory.
SPREAD_S, WIDE, LEAST_IN_MEMORY = 1.5, 300, 0.2
CHATS = ("chat", "chat stream", "messages stream", "translated")
# Of the rounds on budgets: both gateways on one Redis, and on one file.
STORES = ("redis", "sqlite")


def run(options):
    """Runs all rounds, on one fleet for each way to use allotments."""
    report = Report("crowd", options)
    both = options.long and options.allotments == AS_IS
    ways = (ON, OFF) if both else (options.allotments,)
    rounds = int(os.environ.get("SOAK_ROUNDS", 100 if options.long else 2)) // len(ways)
    for way in ways:
        crowded(options, report, way, max(rounds, 1))
        for store in STORES:
            limited(options, report, store, way)
    return report


def crowded(options, report, way, rounds):
    """All rounds on one fleet."""
    roll = random.Random(f"crowd/{options.seed}")
    # A machine that is busy with other things must not pass for a ledger that is away, nor as drowning.
    conf = {"log": {"level": "warn"}, "timeouts": {"lease_ms": LEASE_MS, "ledger_ms": 10_000, "shed_lag_ms": 0}}
    # Here it is credit that refuses calls: by default an account has 256 images made at a time, and a crowd is more.
    conf["limits"] = {"answers_per_account_bytes_max": 512 << 20, "answers_bytes_max": 1 << 30}
    known = KNOWN if options.long else KNOWN[:1]
    chats = CHATS if options.long else CHATS[1:3]
    faults = {"vendor_b": SLOW, "vendor_d": SLOW}
    with Fleet("redis", 1, faults, conf, "crowd", way=way, plans=CROWD_PLANS) as fleet:
        vendors = {vendor: fleet.sim.base_url(vendor) for vendor in fleet.vendors}
        fleet.node(vendors=vendors).start()
        ((_, sample),) = fleet.accounts({"sample": 10**11}).items()
        end = f", allotments {way}" if way != AS_IS else ""
        crowds = [Crowd(Part(report, f"{name}{end}"), fleet, calls.KINDS[name]) for name in (*known, *chats)]
        # The accounts of all rounds at once, since each has to wait until its credit is safe.
        plans = [
            crowd.known(rounds, roll) if crowd.kind.name in known else crowd.unknown(max(rounds // 2, 1), roll, sample)
            for crowd in crowds
        ]
        rounds_of = {name: one for plan in plans for name, one in plan.items()}
        rated = {name: "requests" for name, one in rounds_of.items() if one.is_rated}
        keys = fleet.accounts({name: one.credit for name, one in rounds_of.items()}, plans=rated)
        for crowd, plan in zip(crowds, plans, strict=True):
            for name, one in plan.items():
                crowd.round(name, keys[name], one)
            crowd.told()
        in_places(fleet, Part(report, f"places{end}"))
        everything, books = Part(report, f"all accounts{end}"), Books(fleet)
        check(books, everything, vendor_calls=fleet.sim.count())
        judge(fleet, everything, books.count(), LEAST_IN_MEMORY)
        fleet.keep = bool(report.violations)


def in_places(fleet, found):
    """A crowd in an account with few places: at least so many calls are served, and all places are free
    afterwards."""
    kind = calls.KINDS["speech"]
    keys = fleet.accounts({"places": 10**12}, plans={"places": "places"})
    replies, _ = burst(fleet.gateways, calls.request(kind, 3, keys["places"]))
    served = sum(reply.status == 200 for reply in replies)
    others = [reply for reply in replies if reply.status not in (200, 429)]
    found.check(served >= CROWD_PLACES, "places were left empty", statuses(replies))
    found.check(not others, "the others were not all refused for want of a place", statuses(replies))
    waited = wait_for_no_holds(fleet, 20)
    found.check(waited < 20, "something is still held", waited)
    # The first node's vendors take their time.
    check_places(fleet.gateways[0].http, kind, keys, CROWD_PLACES, found)
    wait_for_no_holds(fleet, 20)
    found.figure(f"served of {CALLS} in {CROWD_PLACES} places", served)


@dataclass
class Round:
    """The size of its calls, the credit for them, of calls of a known price how many that pays for, and
    whether its requests are limited."""

    size: int
    credit: int
    affordable: int | None = None
    price: int | None = None
    is_rated: bool = False

    def bounds(self, seconds):
        """How many calls of a known price are paid, at least and at most, in a crowd that took so long.
        Near the limit one gateway may have what is refused at the other."""
        if not self.is_rated:
            return self.affordable, self.affordable
        most = CROWD_REQUESTS + int(CROWD_REQUESTS * (seconds + 1) / 60) + 1
        return min(self.affordable, CROWD_REQUESTS * 3 // 4), min(self.affordable, most)


class Crowd:
    """Rounds with one kind of call."""

    def __init__(self, found, fleet, kind):
        self.found, self.fleet, self.kind, self.name = found, fleet, kind, kind.name.replace(" ", "-")
        self.rounds, self.paid, self.refused, self.others = 0, 0, 0, 0
        self.seconds, self.charged, self.credit, self.written_off = [], 0, 0, 0

    def known(self, rounds, roll):
        """Rounds with credit for some calls of one price, and a bit that is too little for one more."""
        plan = {}
        for number in range(rounds):
            size, few = roll.randint(1, 60), roll.choice([0, 1, 2, roll.randint(3, 50)])
            affordable = roll.choice([few, roll.randint(50, 600)]) if number else roll.randint(self.wide(50), 600)
            price = self.kind.cost(size, b"")
            credit = affordable * price + roll.randrange(price)
            plan[f"{self.name}-{number}"] = Round(size, credit, affordable, price, number % 2 == 1)
        return plan

    def unknown(self, rounds, roll, sample):
        """Rounds with credit for about so many chats."""
        plan = {}
        for number in range(rounds):
            size, about = roll.randint(1, 30), roll.choice([0, 1, 2, 10, 50, 200]) if number else self.wide(10)
            reply, _ = calls.one(self.fleet.gateways[1].http, self.kind, size, sample)
            cost = self.kind.cost(size, reply.body())
            credit = about * cost + roll.randrange(cost)
            plan[f"{self.name}-{number}"] = Round(size, credit, is_rated=number % 2 == 1)
        return plan

    def wide(self, usual):
        """Credit for how many calls there is at least in the first round."""
        return WIDE if self.fleet.holds.way == ON else usual

    def round(self, name, key, plan):
        if plan.price is None:
            self.unknown_round(name, key, plan.size, plan.credit)
        else:
            self.known_round(name, key, plan)

    def known_round(self, name, key, plan):
        before = self.fleet.sim.count()
        replies = self.burst(plan.size, key)
        charges, balance = self.books(name)
        reached = self.fleet.sim.count() - before
        paid = {reply.id for reply in replies if reply.status == 200 and reply.whole}
        refused = [reply for reply in replies if reply.status in SHORT and reply.whole]
        here, check = f"{name}: credit for {plan.affordable}", self.found.check
        least, most = plan.bounds(self.seconds[-1])
        here += f", {least} to {most}" if plan.is_rated else ""
        check(least <= len(paid) <= most, "answered calls are not those affordable", f"{here}, {len(paid)}")
        check(reached == len(paid), "calls at the vendor are not those affordable", f"{here}, {reached}")
        check(len(charges) == len(paid), "charges are not those affordable", f"{here}, {len(charges)}")
        check(paid == set(charges), "charges are not the answered calls", here)
        wrong = [amount for amount in charges.values() if amount != plan.price]
        check(not wrong, "charged another price", f"{here}, {wrong[:3]} instead of {plan.price}")
        told = f"{here}, {len(refused)}: {statuses(replies)}"
        check(len(refused) == CALLS - len(paid), "the others were not all refused for want of credit", told)
        self.count(len(paid), len(refused), charges, balance)

    def unknown_round(self, name, key, size, credit):
        replies = self.burst(size, key)
        charges, balance = self.books(name)
        here, check = f"{name}: credit {credit}, {len(charges)} charges, {balance}", self.found.check
        check(sum(charges.values()) <= credit, "more was charged than there was", here)
        check(balance["available_nano"] >= 0, "less than nothing is available", here)
        check(balance["written_off_nano"] == 0, "something was written off", here)
        answered = {reply.id for reply in replies if reply.status == 200}
        check(answered == set(charges), "charges are not the answered calls", here)
        others = [reply for reply in replies if reply.status not in (200, *SHORT)]
        check(not others, "the others were not all refused for want of credit", f"{here}: {statuses(replies)}")
        self.count(len(answered), CALLS - len(answered) - len(others), charges, balance)

    def books(self, name):
        """The charges of an account by the id of their request, and its balances, when nothing is held."""
        waited = wait_for_no_holds(self.fleet, 20)
        self.found.check(waited < 20, "something is still held", name)
        books = Books(self.fleet, [name])
        charges = {charge["request_id"]: charge["amount_nano"] for charge in books.charges[name]}
        return charges, books.balances[name]

    def count(self, paid, refused, charges, balance):
        self.rounds += 1
        self.paid += paid
        self.refused += refused
        self.others += CALLS - paid - refused
        self.charged += sum(charges.values())
        self.credit += balance["credited_nano"]
        self.written_off += balance["written_off_nano"]

    def told(self):
        for name, value in (
            ("rounds of 1,000", self.rounds),
            ("paid", self.paid),
            ("refused for want of credit or for a limit", self.refused),
            ("anything else", self.others),
            ("credit", self.credit),
            ("charged", self.charged),
            ("written off", self.written_off),
        ):
            self.found.figure(name, value)
        self.found.figure("seconds of a round, median", percentile(self.seconds, 0.5))

    def burst(self, size, key):
        """All calls at once, half of them to each node; the answers."""
        spread_s = SPREAD_S if self.fleet.holds.way == ON else 0.0
        replies, took = burst(self.fleet.gateways, calls.request(self.kind, size, key), spread_s)
        self.seconds.append(took)
        return replies
