"""Machine 1: ledger operations by the hundred thousand, while a random process is killed every second.

Two gateways on one Redis (or one on SQLite) answer priced calls of every kind for many accounts,
payments come in by the command line, and about every second a gateway or Redis is killed with -9 and
started again. Some of Redis' deaths lose up to a second of its log, as a power failure does. In the
end the books must agree with each other, with the vendors, and with every answer a client got.

Every other account has a plan, whose limits refuse a call now and then. In the end all of their places
have to be free again.

The long form has allotments forced on with its first seed, off with the second, and as they come with
the third.
"""

import itertools
import os
import random
import threading
import time

import calls
from allotments import AS_IS, OFF, ON, judge
from books import Books, Part, check, check_sums, compare, wait_for_no_holds
from budgets import ACCOUNT, KEY, check_budgets, prove_budgets
from children import Redis
from fleet import Fleet
from load import DRY, ENDED, Load, Plan
from rates import NAMES, PLACES, PLANS, check_counts, check_places, check_refusals, prove_counts
from report import Report

LEASE_MS = 2_000
# How many accounts of a kind, in the long form and the short, and what each begins with: some are
# rich, some run dry, some are paid into again and again and have always too little for their
# streams, and some ask again until they are answered.
GROUPS = {
    "rich": (48, 12, 10**14),
    "poor": (8, 3, 2 * 10**7),
    "thin": (3, 3, 3 * 10**5),
    "keyed": (6, 4, 10**13),
    "limited": (10, 5, 10**13),
}
# Budgets in nano-USD of the busiest account and, in turns, of the limited ones: some are used up.
WIDE, TIGHT = 10**13, 3 * 10**7
BUSIEST = "rich0"
BUDGETS = (
    {owner: {"hour": WIDE, "day": WIDE, "total": WIDE} for owner in (ACCOUNT, KEY)},
    {ACCOUNT: {"total": TIGHT}},
    {ACCOUNT: {"day": TIGHT}, KEY: {"total": WIDE}},
    {ACCOUNT: {"hour": WIDE}, KEY: {"total": TIGHT}},
    {ACCOUNT: {"total": WIDE}, KEY: {"hour": TIGHT}},
)
# Where allotments are forced on: the number of rich accounts, which have nearly all calls; the shares of
# the busy ones (the usual load has only the first); and the least share of the charges that must have been
# held in memory.
BUSY_RICH, BUSY_SHARES, LEAST_IN_MEMORY = 2, (20, 10), 0.2
# Kills are fewer then: for about a second after its start a gateway on SQLite lends nothing.
BUSY_KILL_EVERY_S, BUSY_SECONDS = 3.0, 9
STATED = ("refused", "whole", "broken")
KILL_EVERY_S = 1.0
POWER_SHARE = 0.4
# A lease is renewed four times: who is away for no longer than half of it keeps its holds.
LONG_OUTAGE_MS = LEASE_MS // 2
# A gateway has told the store of a charge after this, if both are up.
UNTOLD_MS = 500
# How many of the victims that are still starting are killed all the same.
STARTING_SHARE = 0.2
FAULTS = {
    "vendor_c": "chunk-delay=50;chunks=60",
    "vendor_d": "chunk-delay=1;chunks=150",
    "vendor_e": "status=400",
}
MIX = [
    ("embedding", 40),
    ("speech", 25),
    ("chat", 12),
    ("chat stream", 4),
    ("messages", 5),
    ("messages stream", 2),
    ("translated", 3),
    ("translated stream", 2),
    ("response", 2),
    ("response stream", 1),
    ("image", 1),
    ("image by bill", 1),
    ("refused by vendor", 2),
    ("slow stream", 0.15),
    ("unbounded stream", 0.5),
]
# What is paid at a time; the thin ones' is enough for the beginning of a stream.
PAYMENTS, THIN_PAYMENTS = (1, 3_000_000), (150_000, 450_000)
THIN_MIX = [("growing stream", 1)]


def run(options):
    """Runs it for each store and seed."""
    report = Report("money", options)
    stores = os.environ.get("SOAK_STORES", "redis,sqlite").split(",")
    seeds = int(os.environ.get("SOAK_SEEDS", 3 if options.long else 1))
    operations = int(os.environ.get("SOAK_OPERATIONS", 1_000_000 if options.long else 50_000))
    usual = BUSY_SECONDS if options.allotments == ON else 5
    seconds = float(os.environ.get("SOAK_SECONDS", 3_600 if options.long else usual))
    for store in stores:
        for number in range(seeds):
            seed, way = options.seed + number, way_of(options, number)
            name = f"{store}, seed {seed}" + (f", allotments {way}" if way != AS_IS else "")
            Run(Part(report, name), store, seed, way, options.long, operations, seconds).all()
    return report


def way_of(options, number):
    """How the seed of this number uses allotments."""
    forced = options.allotments != AS_IS or not options.long
    return options.allotments if forced else (ON, OFF, AS_IS)[number % 3]


class Payments(threading.Thread):
    """Pays into accounts by the command line, each payment again until it was taken."""

    def __init__(self, fleet, rich, thin, seed, credited):
        super().__init__(daemon=True)
        self.fleet, self.names, self.random = fleet, (rich, thin), random.Random(f"pay/{seed}")
        self.credited, self.done, self.tries, self.over = credited, 0, 0, threading.Event()

    def run(self):
        while not self.over.is_set():
            names = self.random.choice(self.names)
            name = self.random.choice(names)
            nano = self.random.randint(*(THIN_PAYMENTS if names is self.names[1] else PAYMENTS))
            usd, node = f"0.{nano:09}", self.random.randrange(len(self.fleet.gateways))
            while True:
                self.tries += 1
                taken = self.fleet.try_cli("credit", "add", name, usd, "--id", f"tx{self.done}", node=node)
                if taken.returncode == 0:
                    break
                time.sleep(0.1)
            self.credited[name] += nano
            self.done += 1
            self.over.wait(0.2)


class Killer:
    """Kills a random process about each `every` seconds, and starts again whatever is down."""

    def __init__(self, fleet, seed, every):
        self.fleet, self.random, self.every = fleet, random.Random(f"kill/{seed}"), every
        self.victims = [*fleet.gateways, *([fleet.redis] if fleet.redis else [])]
        # A node's death takes half of the fleet away, Redis' all of it: so it is half as frequent.
        self.shares = [1 if victim is fleet.redis else 2 for victim in self.victims]
        self.kills, self.power, self.lost_bytes = {v.name: 0 for v in self.victims}, 0, 0
        self.next = time.monotonic() + every
        self.again = {}
        # Who is down, with when that began and what may be lost from before it; and what is over.
        self.down, self.outages = {}, []

    def tick(self):
        """What is due now; called often."""
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.every * self.random.uniform(0.6, 1.4)
            victim = self.random.choices(self.victims, self.shares)[0]
            if self.is_up(victim) or self.random.random() < STARTING_SHARE:
                self.kill(victim)
        self.revive(now)

    def revive(self, now):
        for process in self.victims:
            if not process.alive() and now >= self.again.get(process.name, 0):
                process.start(wait=False)
                # A gateway whose store is away ends at once; it is not to eat all of the machine.
                self.again[process.name] = now + 0.2
        for process in [one for one in self.victims if one.name in self.down]:
            if process.alive() and self.is_up(process):
                self.up(process)

    def up(self, process):
        """Notes that it serves again."""
        if began := self.down.pop(process.name, None):
            self.outages.append((process, began, unix_ms()))

    def may_be_unheld(self, at):
        """Whether the hold of a charge that was settled at this time (unix ms) may have been gone:
        with the log of Redis, or with its lease. A gateway that was away for that long told the
        charges of its last moments later; with Redis away, all gateways did.
        """
        for victim, (began, lost_ms), ended in self.outages:
            is_long = ended - began >= LONG_OUTAGE_MS
            if victim is not self.fleet.redis:
                if is_long and began - UNTOLD_MS <= at <= began:
                    return True
            elif lost_ms and began - lost_ms <= at <= ended + LEASE_MS:
                return True
            elif is_long and began - LEASE_MS <= at <= ended + LEASE_MS:
                return True
        return False

    @staticmethod
    def is_up(process):
        """Whether it is past its start, which takes seconds once there is much to read: killed again and
        again in the middle of that, nobody would ever serve.
        """
        return process.answers() if isinstance(process, Redis) else process.ready()

    def kill(self, victim):
        self.kills[victim.name] += 1
        began, lost_ms = unix_ms(), 0
        if victim is self.fleet.redis and self.random.random() < POWER_SHARE:
            seconds = self.random.uniform(0.05, 1.0)
            lost = victim.lose_power(seconds, self.random.randrange(4_096))
            self.power += 1
            self.lost_bytes += lost
            # The length of the log is looked at ten times a second; and a bit more is torn off.
            lost_ms = int(seconds * 1_000) + 500
        else:
            victim.kill()
        # Whoever is killed again while it starts is down since the first time.
        began, lost_before = self.down.get(victim.name, (began, 0))
        self.down[victim.name] = (began, max(lost_ms, lost_before))

    def told(self):
        """How often whom."""
        power = f", {self.power} as if by power failure ({self.lost_bytes} bytes)" if self.power else ""
        return ", ".join(f"{name} {count}" for name, count in self.kills.items()) + power

    def calm(self):
        """Everything up again, and ready."""
        if self.fleet.redis:
            self.revive(time.monotonic() + 1)
            self.fleet.redis.wait_ready()
        for gateway in self.fleet.gateways:
            for _ in range(20):
                if not gateway.alive():
                    gateway.start(wait=False)
                try:
                    gateway.wait_ready(20)
                    break
                except (RuntimeError, TimeoutError):
                    time.sleep(0.5)
        for process in self.victims:
            self.up(process)


class Run:
    """One store, one seed."""

    def __init__(self, found, store, seed, way, long, operations, seconds):
        self.found, self.store, self.seed, self.way, self.long = found, store, seed, way, long
        self.operations, self.seconds = operations, seconds

    def all(self):
        conf = {"timeouts": {"lease_ms": LEASE_MS}, "log": {"level": "warn"}}
        nodes = 2 if self.store == "redis" else 1
        name = f"money-{self.store}-{self.seed}"
        with Fleet(self.store, nodes, FAULTS, conf, name, way=self.way, plans=PLANS) as fleet:
            rich, poor, thin, keyed, limited = self.accounts(fleet)
            plan = Plan(
                ports=[gateway.http for gateway in fleet.gateways],
                accounts=rich + poor + limited,
                mix=MIX,
                insistent=keyed,
                insistent_share=0.05,
                thin=thin,
                thin_mix=THIN_MIX,
                thin_share=0.01,
            )
            self.burn(fleet, plan)
            fleet.keep = self.found.violated

    def accounts(self, fleet):
        """The accounts of all groups; of the rich ones the first is busier than the others."""
        sizes = {prefix: many if self.long else few for prefix, (many, few, _) in GROUPS.items()}
        busy = BUSY_SHARES[:1]
        if self.way == ON:
            sizes["rich"], busy = BUSY_RICH, BUSY_SHARES
        self.credited = {
            f"{prefix}{number}": GROUPS[prefix][2] for prefix, size in sizes.items() for number in range(size)
        }
        limited = [name for name in self.credited if name.startswith("limited")]
        self.budgets = {BUSIEST: BUDGETS[0]}
        self.budgets |= dict(zip(limited, itertools.cycle(BUDGETS)))
        # Thin accounts have enough that stops them.
        rated = [name for name in self.credited if name[-1] in "13579" and not name.startswith("thin")]
        self.plans = dict(zip(rated, itertools.cycle(NAMES)))
        if self.way == ON:
            # Most calls of busy accounts are to be held in memory.
            self.plans["rich1"] = "much"
        keys = self.keys = fleet.accounts(self.credited, budgets=self.budgets, plans=self.plans)
        shares = dict.fromkeys(keys, 1) | {f"rich{number}": share for number, share in enumerate(busy)}
        return [[(n, keys[n], shares[n]) for n in keys if n.startswith(prefix)] for prefix in GROUPS]

    def burn(self, fleet, plan):
        """The load and the kills, the calm after them, and the books."""
        if fleet.redis:
            # No power failure takes what was made up to here.
            fleet.redis.watch()
            time.sleep(0.2)
        before, began, self.since = fleet.sim.count(), time.monotonic(), unix_ms()
        load = Load(plan, self.seed, fleet.folder)
        rich, thin = [name for name, *_ in plan.accounts if name.startswith("rich")], [name for name, *_ in plan.thin]
        payments = Payments(fleet, rich, thin, self.seed, self.credited)
        payments.start()
        killer = Killer(fleet, self.seed, BUSY_KILL_EVERY_S if self.way == ON else KILL_EVERY_S)
        memory = 0
        while load.operations() < self.operations and time.monotonic() - began < self.seconds:
            killer.tick()
            memory = max(memory, *(gateway.memory_mib() for gateway in fleet.gateways))
            time.sleep(0.02)
        took = time.monotonic() - began
        killer.calm()
        payments.over.set()
        load.stop()
        payments.join(30)
        killer.calm()
        bound = 2 * LEASE_MS / 1000 if self.long else 60
        clear = wait_for_no_holds(fleet, bound)
        self.found.check(clear < bound, "holds open after two leases", clear)
        # Replays may still go on, though nothing is held any more.
        time.sleep(1)
        self.rated_s = (unix_ms() - self.since) / 1_000
        self.probe_places(fleet)
        self.found.figure("seconds of kills", took)
        self.found.figure("kills", killer.told())
        self.found.figure("payments (tries)", f"{payments.done} ({payments.tries})")
        self.found.figure("seconds until nothing was held", clear)
        self.found.figure("memory of a gateway at most", memory, "MiB")
        self.judge(fleet, load, killer, payments.done, fleet.sim.count() - before)

    def judge(self, fleet, load, killer, payments, vendor_calls):
        """The books, and the answers that clients got, against each other."""
        books = Books(fleet)
        check(books, self.found, self.credited, fleet.sim.count())
        # A gateway looks at all accounts once a minute for lines of those that died.
        check_sums(fleet, self.found, 90)
        tally = compare(books, load.told(), self.found)
        self.judge_budgets(books, load, killer)
        self.judge_rates(books, load, killer)
        judge(fleet, self.found, books.count(), LEAST_IN_MEMORY)
        ended, dry = (
            sum(tally[name] for name in tally if name.startswith("refused ") and int(name.split(" ")[1][:3]) in statuses)
            for statuses in (ENDED, DRY)
        )
        self.found.figure("ledger operations, at least", 2 * books.count() + 2 * ended + dry + payments)
        for name, value in (
            ("calls sent", load.sent()),
            ("whole answers", tally["whole"]),
            ("calls cut by a kill", tally["cut"]),
            ("calls the vendors had", vendor_calls),
            ("charges", books.count()),
            ("charges whose answer did not arrive whole", tally["charges nobody read the end of"]),
            ("posted", books.posted()),
            ("drift", books.drift()),
            ("written off", books.written_off()),
            ("answers by status", {k: tally[k] for k in sorted(tally) if " " in k and k.split(" ")[0] in STATED}),
            ("streams that outgrew their credit", f"{tally['cut short']}, of {tally['kind growing stream']} that grew"),
            ("calls with idempotency keys", {k: tally[k] for k in tally if "key" in k and "kind" not in k}),
        ):
            self.found.figure(name, value)

    def probe_places(self, fleet):
        """Calls of those that have few places, as many at a time as there are. Of accounts whose charges
        are compared with keys there are none, as these calls have no keys."""
        few = [name for name, plan in self.plans.items() if plan == "places" and not name.startswith("keyed")]
        keys = {name: self.keys[name] for name in few}
        port = fleet.gateways[0].http
        check_places(port, calls.KINDS["slow stream"], keys, PLACES, self.found)
        waited = wait_for_no_holds(fleet, 20)
        self.found.check(waited < 20, "the last calls are still held", waited)

    def judge_rates(self, books, load, killer):
        """What was served of each limit. A power failure takes a bit of what was counted away."""
        if not killer.power:
            check_counts(books.charges, self.plans, self.rated_s, self.found)
        prove_counts(books.charges, self.plans, self.rated_s, self.found)
        counts = check_refusals(load.told(), self.plans, self.way != ON, self.found)
        told = {str(plan): count for plan, count in counts.items()}
        self.found.figure("refused for a rate limit, by the plan", told)

    def judge_budgets(self, books, load, killer):
        """What is spent of each budget, against the journal and the limits. A charge may pass a
        limit only if its hold may have been gone: nobody read the answer to its end, or the store
        lost it.
        """
        whole = (call for call in load.told() if call.outcome == "whole")
        read = {call.original if call.original != "-" else call.id for call in whole}
        limited = [line for name in self.budgets for line in books.charges[name]]
        unheld = {
            line["request_id"]
            for line in limited
            if line["request_id"] not in read or killer.may_be_unheld(line["at"])
        }
        above = check_budgets(books, self.found, self.budgets, self.since, unheld)
        prove_budgets(books, self.found, self.budgets, self.since)
        shown = [budget for name in self.budgets for budget in books.balances[name]["budgets"]]
        tight = [budget for budget in shown if budget["limit_nano"] == TIGHT]
        spent = ", ".join(str(budget["spent_nano"]) for budget in tight)
        self.found.figure("budgets checked", len(shown))
        self.found.figure(f"spent of the tight ones, of {TIGHT}", spent)
        self.found.figure("above limits, by charges whose hold may have been gone", dict(above))
        told = f"{len(limited)}, {len(unheld)}"
        self.found.figure("charges under budgets, of these maybe without their hold", told)


def unix_ms():
    return time.time_ns() // 1_000_000
