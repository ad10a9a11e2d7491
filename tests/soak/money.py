"""Machine 1: ledger operations by the hundred thousand, while a random process is killed every second.

Two gateways on one Redis (or one on SQLite) answer priced calls of every kind for many accounts,
payments come in by the command line, and about every second a gateway or Redis is killed with -9 and
started again. Some of Redis' deaths lose up to a second of its log, as a power failure does. In the
end the books must agree with each other, with the vendors, and with every answer a client got.

The long form has allotments forced on with its first seed, off with the second, and as they come with
the third.
"""

import os
import random
import threading
import time

import calls
from allotments import AS_IS, OFF, ON, judge
from books import Books, Part, check, compare, wait_for_no_holds
from children import Redis
from fleet import Fleet
from load import DRY, ENDED, Load, Plan
from report import Report

LEASE_MS = 2_000
# How many accounts of a kind, in the long form and the short, and what each begins with: some are
# rich, some run dry, some are paid into again and again and have always too little for their
# streams, and some ask again until they are answered.
GROUPS = {"rich": (48, 12, 10**14), "poor": (8, 3, 2 * 10**7), "thin": (3, 3, 3 * 10**5), "keyed": (6, 4, 10**13)}
# Where allotments are forced on: the number of rich accounts, which have nearly all calls; the shares of
# the busy ones (the usual load has only the first); and the least share of the charges that must have been
# held in memory.
BUSY_RICH, BUSY_SHARES, LEAST_IN_MEMORY = 2, (20, 10), 0.2
# Kills are fewer then: for about a second after its start a gateway on SQLite lends nothing.
BUSY_KILL_EVERY_S, BUSY_SECONDS = 3.0, 9
STATED = ("refused", "whole", "broken")
KILL_EVERY_S = 1.0
POWER_SHARE = 0.4
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

    @staticmethod
    def is_up(process):
        """Whether it is past its start, which takes seconds once there is much to read: killed again and
        again in the middle of that, nobody would ever serve.
        """
        return process.answers() if isinstance(process, Redis) else process.ready()

    def kill(self, victim):
        self.kills[victim.name] += 1
        if victim is self.fleet.redis and self.random.random() < POWER_SHARE:
            lost = victim.lose_power(self.random.uniform(0.05, 1.0), self.random.randrange(4_096))
            self.power += 1
            self.lost_bytes += lost
        else:
            victim.kill()

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


class Run:
    """One store, one seed."""

    def __init__(self, found, store, seed, way, long, operations, seconds):
        self.found, self.store, self.seed, self.way, self.long = found, store, seed, way, long
        self.operations, self.seconds = operations, seconds

    def all(self):
        conf = {"timeouts": {"lease_ms": LEASE_MS}, "log": {"level": "warn"}}
        nodes = 2 if self.store == "redis" else 1
        with Fleet(self.store, nodes, FAULTS, conf, f"money-{self.store}-{self.seed}", way=self.way) as fleet:
            rich, poor, thin, keyed = self.accounts(fleet)
            plan = Plan(
                ports=[gateway.http for gateway in fleet.gateways],
                accounts=rich + poor,
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
        keys = fleet.accounts(self.credited)
        shares = dict.fromkeys(keys, 1) | {f"rich{number}": share for number, share in enumerate(busy)}
        return [[(n, keys[n], shares[n]) for n in keys if n.startswith(prefix)] for prefix in GROUPS]

    def burn(self, fleet, plan):
        """The load and the kills, the calm after them, and the books."""
        if fleet.redis:
            # No power failure takes what was made up to here.
            fleet.redis.watch()
            time.sleep(0.2)
        before, began = fleet.sim.count(), time.monotonic()
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
        self.found.figure("seconds of kills", took)
        self.found.figure("kills", killer.told())
        self.found.figure("payments (tries)", f"{payments.done} ({payments.tries})")
        self.found.figure("seconds until nothing was held", clear)
        self.found.figure("memory of a gateway at most", memory, "MiB")
        self.judge(fleet, load, payments.done, fleet.sim.count() - before)

    def judge(self, fleet, load, payments, vendor_calls):
        """The books, and the answers that clients got, against each other."""
        books = Books(fleet)
        check(books, self.found, self.credited, fleet.sim.count())
        tally = compare(books, load.told(), self.found)
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
