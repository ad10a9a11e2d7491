"""Accounts, keys and journals for the scale bench, and the check that they balance at the end.

A key by the command line takes a process, and on Redis two seconds until it is on disk: ten thousand
would take hours. So rows and keys are made here, directly, in the layout of src/store/sqlite/schema.rs
and src/store/redis/keys.rs; the gateway then serves those keys like any others, which is the test that
they are right. Journal lines are copies of one that the gateway itself wrote, each with an id of its own.
"""

import hashlib
import json
import sqlite3
import sys
import time

from processes import FOLDER, until

# Each account's, in nano-USD: nine million dollars.
CREDIT = 9_000_000_000_000_000
MARK = "sk-tg-"
PREFIX_CHARS = len(MARK) + 8
# Lines that go to Redis in one command.
LINES = 500
# Adds a journal up where it is: a script's numbers are exact below 2^53, which is a thousand times more.
SUM = """
local count, sum, at = redis.call('LLEN', KEYS[1]), 0, 0
while at < count do
  for _, entry in ipairs(redis.call('LRANGE', KEYS[1], at, at + 999)) do
    sum = sum + tonumber(string.match(entry, '^%d+'))
  end
  at = at + 1000
end
return {count, string.format('%.0f', sum)}
"""


def name(number):
    return f"account-{number:05}"


def key(number):
    """The beginning tells keys apart in lists, so it is a number; the rest looks random."""
    return f"{MARK}{number:08x}{hashlib.sha256(b'bench %d' % number).hexdigest()[8:]}"


def digest(text):
    """All that a store keeps of a key."""
    return hashlib.sha256(text.encode()).digest()


def keys_file(count):
    """A file of the first so many accounts' keys, for wrk."""
    path = FOLDER / f"keys-{count}"
    path.write_text("".join(key(number) + "\n" for number in range(count)))
    return path


class Line:
    """What a journal's line looks like: one that the gateway wrote, to be filled in with other ids."""

    def __init__(self, amount, text):
        self.amount = amount
        request_id = json.loads(text)["request_id"]
        # The time of the id stays, so that ids still look as if they had been made just then.
        before, _, after = text.partition(request_id)
        self.before, self.after = before + request_id[:19], after

    @staticmethod
    def of(database):
        """That of the last charge in a store, if there is one."""
        with sqlite3.connect(database) as c:
            found = c.execute("SELECT amount, line FROM journal ORDER BY account DESC, seq DESC").fetchone()
        return Line(*found) if found else None


# --- making ---------------------------------------------------------------------------------------


def fill_sqlite(database, accounts, lines=0, line=None):
    """Accounts with a key each, and so many lines in all their journals, each in the middle of its life."""
    each, spent, now = lines // accounts, 0, int(time.time())
    c = sqlite3.connect(database, isolation_level=None)
    # Nobody else is here yet; what a power cut would leave is worth nothing.
    for setting in ["journal_mode = delete", "journal_mode = off", "synchronous = off", "cache_size = -64000"]:
        c.execute(f"PRAGMA {setting}")
    c.execute("BEGIN")
    if lines:
        spent = each * line.amount
    names = ((name(n), CREDIT, CREDIT - spent, spent) for n in range(accounts))
    c.executemany("INSERT INTO account (name, credit, available, posted) VALUES (?, ?, ?, ?)", names)
    c.execute("DELETE FROM account WHERE name = 'first'")
    c.execute("INSERT INTO payment SELECT id, 'opening-' || name, credit, ? FROM account", (now * 1000,))
    ids = dict(c.execute("SELECT name, id FROM account"))
    texts = {name(n): key(n) for n in range(accounts)}
    keys = ((digest(text), ids[who], text[:PREFIX_CHARS], now) for who, text in texts.items())
    c.executemany("INSERT INTO access_key (hash, account, prefix, created_at) VALUES (?, ?, ?, ?)", keys)
    if lines:
        # In the order of the table's own tree, so that its pages are filled one after the other.
        c.execute(
            """WITH RECURSIVE one (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM one WHERE seq < ?)
               INSERT INTO journal SELECT id, seq, ?, 0, ? || printf('%04x-%012x', id % 65536, seq) || ?
               FROM account CROSS JOIN one""",
            (each, line.amount, line.before, line.after),
        )
    c.execute("COMMIT")
    c.close()


def fill_redis(store, accounts, lines=0, line=None):
    """The same on Redis: `store` is a server's wire, or a cluster."""
    each, now = lines // accounts, int(time.time())
    spent = each * line.amount if lines else 0

    def commands():
        for number in range(accounts):
            account, text = name(number), key(number)
            tag, told, prefix = f"tollgate:{{{account}}}", digest(text).hex(), text[:PREFIX_CHARS]
            sums = ["credit", CREDIT, "available", CREDIT - spent, "held", 0, "posted", spent, "written_off", 0]
            yield ["HSET", f"{tag}:account", *sums]
            yield ["HSET", f"{tag}:payments", f"opening-{account}", CREDIT]
            yield ["SADD", "tollgate:accounts", account]
            yield ["SET", f"tollgate:prefix:{prefix}", told]
            yield ["SADD", f"{tag}:keys", told]
            yield ["HSET", f"tollgate:key:{told}", "account", account, "prefix", prefix, "created_at", now]

    store.pipe(commands())
    for number in range(accounts if lines else 0):
        journal(store, number, each, line)


def journal(wire, number, count, line):
    """An account's journal; written as bytes, since there are millions of lines."""
    journal_key = f"tollgate:{{{name(number)}}}:journal".encode()
    before = f"{line.amount} 0 {line.before}{number:04x}-".encode()
    after = line.after.encode()
    head, tail = before.replace(b"%", b"%%"), after.replace(b"%", b"%%")
    each = b"$%d\r\n%b%%012x%b\r\n" % (len(before) + 12 + len(after), head, tail)
    sent = 0
    for first in range(1, count + 1, LINES):
        these = range(first, min(first + LINES, count + 1))
        command = b"*%d\r\n$5\r\nRPUSH\r\n$%d\r\n%b\r\n" % (len(these) + 2, len(journal_key), journal_key)
        wire.socket.sendall(command + b"".join([each % seq for seq in these]))
        sent += 1
    for _ in range(sent):
        wire.reply()


# --- checking -------------------------------------------------------------------------------------


def check(who, read, accounts, charges_min):
    """Nothing held, charges sum to what is posted, account by account, and none is missing.

    `read` gives for each account its sums (credit, available, held, posted, written off), and the number
    of its journal's lines and their sum. Of `charges_min` all were answered, so they must be there.
    """

    def settled():
        books = read()
        return books if not any(sums[2] for sums, *_ in books) else None

    # Those that were under way when wrk ended settle in the background.
    books = until(f"{who} has no open hold", settled, 120)
    if len(books) != accounts:
        sys.exit(f"failed: {who}: {len(books)} accounts, not {accounts}")
    count = total = 0
    for (credit, available, held, posted, written_off), lines, amount in books:
        if credit + written_off != available + held + posted:
            sys.exit(f"failed: {who}: an account does not balance")
        if amount != posted:
            sys.exit(f"failed: {who}: charges of {amount}, posted {posted}")
        count, total = count + lines, total + amount
    if count < charges_min:
        sys.exit(f"failed: {who}: {count} charges, but {charges_min} requests were answered")
    print(f"ledger {who}: {charges_min} charges are due at least, {count} are there, their sum is what is posted: "
          f"{total} nano-USD", flush=True)


def check_sqlite(who, database, accounts, charges_min):
    def read():
        with sqlite3.connect(database) as c:
            held = c.execute("SELECT sum(held) FROM account").fetchone()[0]
            if held:
                return [((0, 0, held, 0, 0), 0, 0)]
            rows = c.execute(
                """SELECT credit, available, held, posted, written_off, coalesce(lines, 0), coalesce(amount, 0)
                   FROM account LEFT JOIN (SELECT account, count(*) AS lines, sum(amount) AS amount
                   FROM journal GROUP BY account) ON account = account.id"""
            )
            return [(row[:5], *row[5:]) for row in rows]

    check(who, read, accounts, charges_min)


def check_redis(who, store, accounts, charges_min):
    tags = [f"tollgate:{{{name(number)}}}" for number in range(accounts)]
    fields = ["credit", "available", "held", "posted", "written_off"]

    def read():
        sums = store.pipe(["HMGET", f"{tag}:account", *fields] for tag in tags)
        sums = [tuple(map(int, one)) for one in sums]
        if any(one[2] for one in sums):
            return [(one, 0, 0) for one in sums]
        lines = [summed(store, f"{tag}:journal") for tag in tags]
        return [(one, count, int(total)) for one, (count, total) in zip(sums, lines)]

    check(who, read, accounts, charges_min)


def summed(store, journal_key):
    wire = store.of(journal_key) if hasattr(store, "of") else store
    return wire("EVAL", SUM, 1, journal_key)
