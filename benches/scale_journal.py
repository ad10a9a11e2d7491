"""Cost per request after 0, 1 and 10 million charges, on both stores (about 7 minutes).

The charges are in the journals of a hundred accounts, which take turns. They were not made one by one: see
scale_books. Holds that ended are forgotten after a day, so there are none of these charges. On Redis the
journal is in memory, about 400 bytes a line: what does not fit this machine is left out, and said. Needs
5 GB of disk, since a line of the journal has 340 bytes.
"""

import random
import shutil
import sys
import time
from pathlib import Path

import scale_books as books
from processes import FOLDER, until
from scale_accounts import tell
from scale_world import Gateway, Redis, measure, simulator, sized

ACCOUNTS = 100
LINES = sized([0, 1_000_000, 10_000_000], [0, 20_000, 200_000])
ROUNDS = sized(5, 1)
LOADS = [(32, sized(5, 2)), (1, sized(2, 1))]
WARM = 1
# Of disk for a line in the table; of memory for a line in the list, and for a while a copy of what changes.
SQLITE_LINE_BYTES, REDIS_LINE_BYTES = 400, 500
REDIS_KEEPS_S = 300


class Kept:
    """A gateway whose store has so many lines."""

    def __init__(self, store, count, sim, keys, line):
        self.label, self.count, self.keys, self.done = f"tollgate-{store}", count, keys, count
        name, began = f"{self.label}-{count}", time.monotonic()
        self.redis = Redis(f"redis-{count}", file="no") if store == "redis" else None
        self.gateway = Gateway(name, sim, self.redis and self.redis.url)
        if self.redis:
            books.fill_redis(self.redis.wire, ACCOUNTS, count, line)
            self.keep()
        else:
            books.fill_sqlite(self.gateway.database, ACCOUNTS, count, line)
        self.gateway.serve()
        print(f"{name}: filled in {time.monotonic() - began:.1f} s, {self.size() / 2**20:.0f} MiB", flush=True)

    def keep(self):
        """From here on Redis appends all that changes to its file, as it has to; what is there is written to
        it once, and not line by line as it came."""
        self.redis.wire("CONFIG", "SET", "appendonly", "yes")

        def kept():
            info = self.redis.wire.info("persistence")
            busy = [info["aof_rewrite_in_progress"], info["aof_rewrite_scheduled"], info["rdb_bgsave_in_progress"]]
            return busy == ["0", "0", "0"] and info["aof_last_bgrewrite_status"] == "ok"

        until("Redis has written its file", kept, REDIS_KEEPS_S)

    def size(self):
        if self.redis:
            return int(self.redis.wire.info("memory")["used_memory"])
        return self.gateway.database.stat().st_size

    def stores(self):
        return [self.redis] if self.redis else []

    def run(self, connections, seconds, order):
        self.gateway.resume()
        first = order.randrange(ACCOUNTS)
        self.done += measure(self.gateway, self.keys, 32, WARM, first)["requests"]
        result = measure(self.gateway, self.keys, connections, seconds, first, self.stores())
        self.done += result["requests"]
        self.gateway.pause()
        return result

    def check(self):
        self.gateway.resume()
        if self.redis:
            books.check_redis(self.gateway.name, self.redis.wire, ACCOUNTS, self.done)
        else:
            books.check_sqlite(self.gateway.name, self.gateway.database, ACCOUNTS, self.done)


def fitting(counts, free, each, what):
    """As much of them as there is room for, in whole millions; a fifth stays free."""
    left, fit = free * 0.8, []
    for count in counts:
        room = int(left // each // 1_000_000) * 1_000_000
        if count > room:
            print(f"there is {what} for {room:,} lines and not for {count:,}")
            count = room
        if count not in fit:
            fit.append(count)
        left -= count * each
    return fit


def memory_free():
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def written_line(sim):
    """A line of the journal, as the gateway writes it."""
    gateway = Gateway("pattern", sim)
    books.fill_sqlite(gateway.database, 1)
    gateway.serve().ask(books.key(0))
    # It is there a moment after the answer.
    return until("the charge is in the journal", lambda: books.Line.of(gateway.database))


def run():
    sim = simulator()
    line, keys = written_line(sim), books.keys_file(ACCOUNTS)
    on_disk = fitting(LINES, shutil.disk_usage(FOLDER).free, SQLITE_LINE_BYTES, "disk")
    in_memory = fitting(LINES, memory_free(), REDIS_LINE_BYTES, "memory")
    if len(on_disk) < 2 or len(in_memory) < 2:
        sys.exit("failed: there is no room for anything to compare")
    kept = [Kept("sqlite", count, sim, keys, line) for count in on_disk]
    kept += [Kept("redis", count, sim, keys, line) for count in in_memory]
    for one in kept:
        one.gateway.pause()
    order, seen = random.Random(1), {}
    for _ in range(ROUNDS):
        for connections, seconds in LOADS:
            for one in order.sample(kept, len(kept)):
                result = one.run(connections, seconds, order)
                seen.setdefault((connections, one.label, one.count), []).append(result)
    print(f"{ROUNDS} interleaved rounds, medians; {LOADS[0][1]} s at 32 connections, {LOADS[1][1]} s at one; "
          f"{ACCOUNTS} accounts take turns")
    tell(seen, {}, [0, *sorted({*on_disk, *in_memory} - {0})], "lines")
    for one in kept:
        one.check()
