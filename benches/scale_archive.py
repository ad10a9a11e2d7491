"""Ten million charges of a thousand accounts: summed up, archived, taken out of the store and queried, on both
stores at the same time (about 25 minutes; 12 GB of disk, 8 GB of memory).

The charges are made as in scale_books, and their days are set: forty days in a row, of which the last ended three
days ago. The gateway that sums them up is killed a few times, and so is the command that archives them. In the end
Parquet (read by DuckDB), the sums of usage, the journal (`tollgate check --books`, which reads every line), the
balances and the statements of some accounts are compared, to the nano.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import scale_books as books
from processes import BIN, FOLDER, until
from scale_console import Console
from scale_world import Gateway, Redis, simulator, sized, stop
from scale_journal import written_line

ACCOUNTS = sized(1_000, 50)
# SCALE_LINES=3000000 is for a look in between: less is proved then.
LINES = int(os.environ.get("SCALE_LINES", sized(10_000_000, 50_000)))
DAYS = 40
KILLS = 3
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
PATIENCE_S = 3_600
# Of these accounts statements are compared; each takes all lines of some months.
STATEMENTS = 3


class Archived:
    def __init__(self, store, sim, line):
        self.store, self.name, self.line, self.seen = store, f"archive-{store}", line, {}
        self.redis = Redis(f"redis-{self.name}") if store == "redis" else None
        self.gateway = Gateway(self.name, sim, self.redis and self.redis.url)
        self.folder = FOLDER / f"{self.name}-files"
        self.random = random.Random(store)
        self.beside = {"TOLLGATE__JOURNAL__ARCHIVE": f"file:{self.folder}", "TOLLGATE__JOURNAL__KEEP_DAYS": "3"}
        self.fault = None

    def say(self, what):
        print(f"{self.name}: {what}", flush=True)

    def timed(self, what, work):
        began = time.monotonic()
        result = work()
        self.seen[what] = time.monotonic() - began
        self.say(f"{what}: {self.seen[what]:.0f} s")
        return result

    def command(self, *words, **around):
        command = [BIN / "tollgate", "--conf", self.gateway.conf, "--json", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **self.beside}, **around)

    def told(self, *words):
        process = self.command(*words)
        out, err = process.communicate(timeout=PATIENCE_S)
        if process.returncode != 0:
            raise RuntimeError(f"tollgate {' '.join(words)}: {err.strip()}")
        return [json.loads(row) for row in out.splitlines()]

    # --- the lines ---

    def fill(self):
        if self.redis:
            books.fill_redis(self.redis.wire, ACCOUNTS, LINES, self.line)
        else:
            books.fill_sqlite(self.gateway.database, ACCOUNTS, LINES, self.line)
        self.set_days()

    def set_days(self):
        """Every line is of one of the days, in their order."""
        each = LINES // ACCOUNTS
        last = int(time.time() * 1000) // DAY_MS * DAY_MS - 3 * DAY_MS
        marks = [(each * day // DAYS, last - (DAYS - 1 - day) * DAY_MS + 12 * HOUR_MS) for day in range(DAYS)]
        if self.redis:
            keys = [f"tollgate:{{{books.name(number)}}}:" for number in range(ACCOUNTS)]
            self.redis.wire.pipe(["ZADD", f"{key}journal-hours", first, f"{first} {hour}"]
                                 for key in keys for first, hour in marks)
            self.redis.wire.pipe(["HSET", f"{key}account", "journal_hour", marks[-1][1]] for key in keys)
            return
        with sqlite3.connect(self.gateway.database) as c:
            rows = [(first + 1, hour) for first, hour in marks]
            c.executemany("INSERT INTO journal_hour (account, seq, hour) SELECT id, ?, ? FROM account", rows)

    # --- the work, with kills ---

    def lines_summed(self):
        if self.redis:
            told = self.redis.wire.pipe(["HGET", f"tollgate:{{{books.name(number)}}}:usage:1", "seq"]
                                        for number in range(ACCOUNTS))
            return sum(int(seq or 0) for seq in told)
        with sqlite3.connect(self.gateway.database, timeout=60) as c:
            return c.execute("SELECT coalesce(sum(seq), 0) FROM usage_fold").fetchone()[0]

    def sum_up(self):
        for kill in range(1, KILLS + 1):
            self.gateway.serve()
            wanted = LINES * kill // (KILLS + 1)
            until(f"{self.name} has summed up {wanted}", lambda: self.lines_summed() >= wanted, PATIENCE_S)
            self.gateway.process.send_signal(signal.SIGKILL)
            self.gateway.process.wait()
        self.gateway.serve()
        until(f"{self.name} has summed up all", lambda: self.lines_summed() == LINES, PATIENCE_S)
        stop(self.gateway.process)

    def archive(self):
        """Runs the command until it has finished; the first runs are killed."""
        for number in range(100):
            process = self.command("archive", "run")
            if number < KILLS:
                time.sleep(self.random.uniform(*sized((5, 25), (0.05, 0.3))))
                process.send_signal(signal.SIGKILL)
                process.communicate()
                self.end_turn()
                continue
            out, err = process.communicate(timeout=PATIENCE_S)
            if process.returncode != 0:
                raise RuntimeError(f"tollgate archive run: {err.strip()}")
            if json.loads(out)["finished"]:
                return
            time.sleep(1)
        raise RuntimeError("the archive never ends")

    def end_turn(self):
        """That of a process that was killed would last two minutes."""
        if self.redis:
            for key in self.redis.wire("KEYS", "*archive*turn*"):
                self.redis.wire("DEL", key)
        else:
            with sqlite3.connect(self.gateway.database, timeout=60) as c:
                c.execute("DELETE FROM archive_turn")

    # --- what it comes to ---

    def memory(self):
        return int(self.redis.wire.info("memory")["used_memory"]) if self.redis else None

    def lines_in_store(self):
        if self.redis:
            return sum(self.redis.wire.pipe(["LLEN", f"tollgate:{{{books.name(n)}}}:journal"] for n in range(ACCOUNTS)))
        with sqlite3.connect(self.gateway.database, timeout=60) as c:
            return c.execute("SELECT count(*) FROM journal").fetchone()[0]

    def posted(self):
        """What is posted, by account, as the balances have it."""
        if self.redis:
            keys = [books.name(number) for number in range(ACCOUNTS)]
            told = self.redis.wire.pipe(["HGET", f"tollgate:{{{key}}}:account", "posted"] for key in keys)
            return dict(zip(keys, map(int, told)))
        with sqlite3.connect(self.gateway.database, timeout=60) as c:
            return dict(c.execute("SELECT name, posted FROM account"))

    def parquet(self):
        """The same, and how many lines there are, as DuckDB reads the archive."""
        import duckdb

        files = f"{self.folder}/*/*/*.parquet"
        found = duckdb.sql(f"SELECT account, count(*), CAST(sum(posted_change_nano) AS BIGINT), count(DISTINCT seq), "
                           f"max(seq) FROM read_parquet('{files}') GROUP BY account").fetchall()
        for account, lines, _, numbers, last in found:
            if not lines == numbers == last:
                raise RuntimeError(f"{account}: {lines} lines with {numbers} numbers up to {last}")
        return {account: nano for account, _, nano, *_ in found}, sum(lines for _, lines, *_ in found)

    def statements(self, posted):
        """Each statement goes on where the one before ended, and the last one has all that is posted."""
        for number in self.random.sample(range(ACCOUNTS), STATEMENTS):
            account, closing, now = books.name(number), None, time.gmtime()
            months = [now.tm_year * 12 + now.tm_mon - 1 - back for back in (2, 1, 0)]
            for month in [f"{month // 12}-{month % 12 + 1:02}" for month in months]:
                process = self.command("statement", account, month)
                out, err = process.communicate(timeout=PATIENCE_S)
                if process.returncode != 0 and "nothing is known" in err:
                    continue
                if process.returncode != 0:
                    raise RuntimeError(f"tollgate statement: {err.strip()}")
                told = json.loads(out)["statement"]
                if closing not in (None, told["opening_nano"]):
                    raise RuntimeError(f"{account}: {month} opens with {told['opening_nano']}, not {closing}")
                closing, charged = told["closing_nano"], told["since_opened"]["charges_nano"]
            if (charged, closing) != (posted[account], books.CREDIT - posted[account]):
                raise RuntimeError(f"{account}: {charged} charged and {closing} left, posted is {posted[account]}")

    def pages(self):
        """How long pages of the console take."""
        console = Console(self.gateway, self.beside)
        self.gateway.serve(console.settings)
        console.sign_in()
        account, last = books.name(ACCOUNTS // 2), LINES // ACCOUNTS
        for path in ["/", "/accounts", f"/accounts/{account}", f"/charges?account={account}",
                     f"/charges/{account}/{last}", f"/charges/{account}/1", "/models", "/routes", "/audit"]:
            first, median, size = console.times(path)
            self.say(f"page {path}: {median:.1f} ms, the first time {first:.1f} ms, {size} bytes")
        stop(self.gateway.process)

    def work(self):
        try:
            self.timed("filled", self.fill)
            before = self.memory()
            self.timed(f"summed up, with {KILLS} kills", self.sum_up)
            summed = self.memory()
            self.timed(f"archived and trimmed, with {KILLS} kills", self.archive)
            after, left, size = self.memory(), self.lines_in_store(), sum(
                path.stat().st_size for path in self.folder.rglob("*.parquet"))
            self.say(f"{left} lines are left in the store; the archive has {size / LINES:.1f} bytes a line")
            if self.redis:
                self.say(f"memory of Redis a charge: {before / LINES:.0f} bytes as lines, {summed / LINES:.0f} with "
                         f"sums of usage, {after / LINES:.1f} after archiving")
            posted = self.posted()
            told, lines = self.timed("DuckDB", self.parquet)
            if told != posted or lines != LINES:
                raise RuntimeError(f"DuckDB finds {lines} lines, and other sums than the balances")
            (proved,) = self.timed("check --books", lambda: self.told("check", "--books"))
            if (proved["lines"], proved["lines_not_folded"]) != (LINES, 0):
                raise RuntimeError(f"check --books: {proved}")
            self.timed(f"statements of {STATEMENTS} accounts", lambda: self.statements(posted))
            self.pages()
            self.say(f"Parquet, sums of usage, journal, balances and statements agree: {sum(posted.values())} nano-USD")
        except (Exception, SystemExit) as fault:
            self.fault = fault


def run():
    sim = simulator()
    line = written_line(sim)
    both = [Archived(store, sim, line) for store in ("sqlite", "redis")]
    threads = [threading.Thread(target=one.work) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    faults = [f"{one.name}: {one.fault}" for one in both if one.fault]
    if faults:
        sys.exit("failed: " + "; ".join(faults))
