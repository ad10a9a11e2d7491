"""Machine 11: an older version of the program and this one, in turns on one SQLite file and on one
Redis, and both at once on one Redis.

Under load one version takes over from the other (`serve --upgrade`) and gives way again, and each is
killed with -9: the one that leaves, the one that comes, and one that is alone and is replaced by the
other. Each has to go on with what the other left. In the end this version runs, and the books must agree
with each other, with the vendors, and with every answer that a client got, as those of machine 1.

Two weaknesses are accepted, and no check here is about them:

- An older version that sweeps the allotment of a dead gateway drops the checkpoints of its streams: what
  they had cost is not charged. Streams that were cut may so be missing from the journal. Calls that ended
  are in the log of ends, and are charged when this version comes again.
- An older version does not find the first attempt of a call in the memory of this one, so a retry of an
  SDK (`x-stainless-retry-count`) at it may be a second call. The load sends no such retries; calls with an
  `Idempotency-Key` it does send, and these are paid once.
"""

import os
import random
import subprocess
import time
from pathlib import Path

from allotments import judge
from books import Part, check, compare, settled_books, wait_for_no_holds
from children import HOST, TOLLGATE, free_port, until
from fleet import Fleet
from load import Load, Plan
from money import FAULTS, LEASE_MS, MIX
from report import Report

OLDER, NEWER = "older", "newer"
STORES = ("sqlite", "redis")
# What each account begins with; the poor run dry, and the keyed ask again until they are answered.
CREDIT = {"rich0": 10**14, "rich1": 10**14, "poor0": 2 * 10**7, "poor1": 2 * 10**7, "keyed0": 10**13, "keyed1": 10**13}
SHARES = {"rich0": 20, "rich1": 10}
# Who is killed while both serve, or nobody; or who is alone, and is replaced by the other version.
NOBODY, LEAVING, COMING, ALONE = "nobody", "leaving", "coming", "alone"
# From the older version on, and to the newer in the end: a victim that comes leaves the other one in its place.
SHORT_TURNS = (NOBODY, NOBODY, LEAVING, LEAVING, COMING, NOBODY, COMING, ALONE, ALONE)
LONG_TURNS = 60
# Both serve for five seconds; a victim is killed within this time.
TOGETHER_S = (0.2, 3.0)
ALONE_S = 1.5
# An upgrade is done in five seconds and the time of the longest stream.
LEAVES_WITHIN_S = 60
# Both at once on one Redis: kills, and seconds between them.
SHORT_KILLS, LONG_KILLS, KILL_EVERY_S = 6, 60, 2.5
LEAST_IN_MEMORY = 0.05


def run(options):
    """In turns on each store, and then both at once."""
    report = Report("older", options)
    if not Path(options.older_bin).is_file():
        raise FileNotFoundError(f"{options.older_bin} is not built")
    for store in os.environ.get("SOAK_STORES", ",".join(STORES)).split(","):
        turns = turns_of(options)
        Pair(Part(report, f"in turns, {store}"), options, store).burn(lambda pair, turns=turns: pair.take(turns))
    kills = LONG_KILLS if options.long else SHORT_KILLS
    Pair(Part(report, "both at once, redis"), options, "redis", 2).burn(lambda pair: pair.kill_in_turns(kills))
    return report


def turns_of(options):
    """Who is killed in each turn."""
    if not options.long:
        return SHORT_TURNS
    roll = random.Random(f"turns/{options.seed}")
    return [roll.choice((NOBODY, LEAVING, COMING, ALONE)) for _ in range(LONG_TURNS)]


def rules_of(binary):
    """The folder of the rules that a version was built with: it does not read those of another."""
    for folder in Path(binary).resolve().parents:
        if (folder / "lua-free-rules").is_dir():
            return folder / "lua-free-rules"
    raise FileNotFoundError(f"no lua-free-rules above {binary}: build it in a worktree of its own")


class Place:
    """An address that one version serves, or both."""

    def __init__(self, fleet, number, binaries):
        self.fleet, self.binaries, self.http, self.current = fleet, binaries, free_port(), None
        self.folder = fleet.folder / f"place{number}"
        self.folder.mkdir()
        # The socket by which one process takes over from another has a folder that nobody else may enter.
        (self.folder / "upgrade").mkdir(mode=0o700)

    def begin(self, version, *arguments):
        """A process of a version, on its way; it has an admin address of its own."""
        binary, rules = self.binaries[version]
        server = {"pid_file": f"{self.folder}/pid", "upgrade_sock": f"{self.folder}/upgrade/s"}
        store = {"outbox": f"{self.folder}/outbox"}
        gateway = self.fleet.node(binary=binary, rules={"dir": str(rules)}, server=server, store=store)
        gateway.sections["listen"]["http"], gateway.http = f"{HOST}:{self.http}", self.http
        gateway.write()
        gateway.command += arguments
        gateway.version = version
        return gateway.start()

    def start(self, version):
        """Serves by a version, where nobody serves."""
        self.current = self.begin(version)

    def turn(self, victim, seconds):
        """The other version takes the place of the one that serves, or not, by who is killed."""
        leaving, version = self.current, other(self.current.version)
        if victim == ALONE:
            leaving.kill()
            return self.start(version)
        # Whoever stayed need not have written its number again yet.
        (self.folder / "pid").write_text(f"{leaving.child.pid}\n")
        coming = self.begin(version, "--upgrade")
        if victim == NOBODY:
            until(lambda: not leaving.alive(), f"{leaving.name} ({leaving.version}) has left", LEAVES_WITHIN_S)
        else:
            time.sleep(seconds)
            (coming if victim == COMING else leaving).kill()
        self.current = leaving if victim == COMING else coming
        if victim == COMING:
            # It notices, and may be told again.
            until(self.current.ready, f"{leaving.name} ({leaving.version}) stays", LEAVES_WITHIN_S)
            time.sleep(1)


def other(version):
    return NEWER if version == OLDER else OLDER


class Pair:
    """Both versions on one store, under load."""

    def __init__(self, found, options, store, places=1):
        self.found, self.options, self.store, self.places_wanted = found, options, store, places
        self.random, self.killed, self.taken_over = random.Random(f"older/{options.seed}/{store}"), [], 0

    def burn(self, torment):
        """The load, what happens meanwhile, and the books."""
        conf = {"timeouts": {"lease_ms": LEASE_MS}, "log": {"level": "warn"}}
        with Fleet(self.store, 0, FAULTS, conf, "older") as fleet:
            self.places = self.prepare(fleet)
            keys = fleet.accounts(CREDIT, node=1)
            before = fleet.sim.count()
            load = Load(self.plan(keys), self.options.seed, fleet.folder)
            time.sleep(ALONE_S)
            torment(self)
            self.end_with_newer()
            time.sleep(ALONE_S)
            load.stop()
            self.judge(fleet, load, fleet.sim.count() - before)
            fleet.keep = self.found.violated

    def prepare(self, fleet):
        """The store, made by the older version, and the places, served by each version in turn."""
        # A process is taken over only from one of the same name.
        link = fleet.folder / "older" / TOLLGATE.name
        link.parent.mkdir()
        link.symlink_to(self.options.older_bin)
        older = link, rules_of(self.options.older_bin)
        newer = None, fleet.node().sections["rules"]["dir"]
        node = fleet.node(binary=link, rules={"dir": str(older[1])})
        if self.store == "sqlite":
            # Some versions make a store only by a command, and others have no such command.
            subprocess.run([link, "--conf", node.conf, "init"], cwd=fleet.folder, capture_output=True, check=False)
        places = [Place(fleet, number, {OLDER: older, NEWER: newer}) for number in range(self.places_wanted)]
        for place, version in zip(places, (OLDER, NEWER), strict=False):
            place.start(version)
        return places

    def plan(self, keys):
        accounts = [(name, key, SHARES.get(name, 1)) for name, key in keys.items()]
        keyed = [account for account in accounts if account[0].startswith("keyed")]
        others = [account for account in accounts if account not in keyed]
        ports = [place.http for place in self.places]
        return Plan(ports=ports, accounts=others, mix=MIX, insistent=keyed, insistent_share=0.05)

    def take(self, turns):
        """One version after the other, in one place."""
        (place,) = self.places
        for victim in turns:
            came = f"{place.current.version} to {other(place.current.version)}"
            place.turn(victim, self.random.uniform(*TOGETHER_S))
            self.taken_over += victim in (NOBODY, LEAVING)
            if victim != NOBODY:
                self.killed.append(f"{came}: {victim}")
            time.sleep(ALONE_S)

    def kill_in_turns(self, kills):
        """Kills one of two, which starts again as either version."""
        for _ in range(kills):
            place = self.random.choice(self.places)
            self.killed.append(place.current.version)
            place.current.kill()
            place.start(self.random.choice((OLDER, NEWER)))
            time.sleep(KILL_EVERY_S * self.random.uniform(0.6, 1.4))

    def end_with_newer(self):
        """This version in each place: it charges what an older one passed over."""
        for place in self.places:
            if place.current.version == OLDER:
                place.turn(NOBODY, 0)

    def judge(self, fleet, load, vendor_calls):
        bound = 2 * LEASE_MS / 1000 if self.options.long else 60
        clear = wait_for_no_holds(fleet, bound)
        self.found.check(clear < bound, "holds open after two leases", clear)
        books = settled_books(fleet)
        check(books, self.found, CREDIT, fleet.sim.count())
        tally = compare(books, load.told(), self.found)
        judge(fleet, self.found, books.count(), LEAST_IN_MEMORY)
        ends, _ = fleet.holds.sums()
        self.found.check(ends >= LEAST_IN_MEMORY * books.count(), "hardly anything was held in memory", ends)
        for name, value in (
            ("taken over", self.taken_over),
            ("killed", ", ".join(self.killed)),
            ("calls sent", load.sent()),
            ("whole answers", tally["whole"]),
            ("calls cut by a kill", tally["cut"]),
            ("calls the vendors had", vendor_calls),
            ("charges", books.count()),
            ("charges whose answer did not arrive whole", tally["charges nobody read the end of"]),
            ("drift", books.drift()),
            ("written off", books.written_off()),
            ("refusals", {k.split(" ")[1]: tally[k] for k in sorted(tally) if k.startswith("refused ")}),
            ("seconds until nothing was held", clear),
        ):
            self.found.figure(name, value)
