"""A store is lost while customers call and pay, and comes back by the words of docs/operate/backup.md: what is
lost is what that page says, and nothing is charged twice."""

import shutil
import sqlite3
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from rehearsal import (
    COST,
    CUSTOMERS,
    LINE_SIGN,
    PAYMENT,
    SLOW_COST,
    RedisStore,
    SentinelStore,
    Shop,
    SqliteStore,
    until,
)

# How far an account's charges may be behind its answers in Redis: some 50 ms, and here on a busy machine.
BEHIND_S = 2.0
# Answers to each customer before the backup, and after it.
BEFORE, AFTER = 8, 8


@pytest.fixture
def shop(stacks):
    mark = len(stacks.running)
    yield lambda *wishes: Shop(stacks, *wishes)
    stacks.stop_since(mark)


def back_up_sqlite(shop):
    shop.shell.run(shop.page.command("Back up", "$ tollgate"))
    (shop.copy,) = shop.backups.glob("*.backup")


def move_away(shop):
    shop.shell.run(shop.page.block("Restore SQLite", "mkdir -m 0700 lost"))


def restore_line(shop):
    line = shop.page.command("Restore SQLite", "restored  /var/lib")
    return line.replace("2026-11-23-21.backup", shop.copy.name)


def restore_sqlite(shop):
    move_away(shop)
    assert "all add up" in shop.shell.run(restore_line(shop))


def back_up_log_folder(shop):
    *copy, check = [line.split(" #")[0] for line in shop.page.block("Back up", "appendonlydir").splitlines()]

    def copied():
        shop.shell.run("\n".join(copy))
        (shop.copy,) = shop.backups.glob("appendonlydir-*")
        shop.check = check.replace("/var/backups/redis/appendonlydir-…", str(shop.copy))
        # A copy that was made in the middle of a write is made again, as the page says.
        return shop.shell.try_run(shop.check).returncode == 0 or shutil.rmtree(shop.copy)

    until(copied, "the copy is whole", 15)


def restore_log_folder(shop):
    """The data of Redis are gone, and Redis with them: nothing to shut down, nothing to move away."""
    shop.shell.run(f"cp -rp {shop.copy} {shop.store.folder}/appendonlydir")
    shop.store.start("redis-server /etc/redis/redis.conf")


def back_up_snapshot(shop):
    dump, check = shop.page.block("Back up", "--rdb").splitlines()
    shop.shell.run(dump)
    (shop.snapshot,) = shop.backups.glob("dump-*.rdb")
    shop.shell.run(check.replace("/var/backups/redis/dump-….rdb", str(shop.snapshot)))


def restore_snapshot(shop):
    shop.shell.run(f"cp {shop.snapshot} {shop.store.folder}/dump.rdb")
    shop.store.start(shop.page.inline("redis-server /etc/redis/redis.conf --appendonly no"))
    shop.shell.run(shop.page.inline("redis-cli CONFIG SET appendonly yes"))
    line = shop.page.inline("redis-cli INFO persistence")

    def rewritten():
        told = shop.shell.run(line)
        return "aof_rewrite_in_progress:0" in told and "aof_last_bgrewrite_status:ok" in told

    until(rewritten, "the log is there")


WAYS = {
    "sqlite": (SqliteStore, back_up_sqlite, restore_sqlite),
    "log folder": (RedisStore, back_up_log_folder, restore_log_folder),
    "snapshot": (RedisStore, back_up_snapshot, restore_snapshot),
}
CASES = [("sqlite", "kept"), ("sqlite", "lost"), ("log folder", "kept"), ("log folder", "lost"), ("snapshot", "kept")]


def run_until_lost(shop, *back_up):
    """Load, a backup, more load, payments and other changes, then the disaster."""
    load = shop.load
    load.start()
    load.until_answers(BEFORE)
    first = load.of("busy")[0].id
    shop.gateway.cli("charge", "correct", first, "0.00001", "--id", "fix-1", "--reason", "as agreed")
    load.due["busy"]["fix-1"] = 0
    began = time.time()
    for make in back_up:
        make(shop)
    load.backup = SimpleNamespace(began=began, ended=time.time())
    load.open("late")
    load.go(load.customer, "late", {})
    shop.gateway.cli("credit", "take", "busy", "0.05", "--id", "refund-1", "--reason", "it's back")
    shop.gateway.cli("credit", "grant", "busy", "0.02", "--id", "gift-1", "--expires", "30d")
    load.due["busy"] |= {"refund-1": -5 * PAYMENT, "gift-1": 2 * PAYMENT}
    load.until_answers(AFTER)
    until(lambda: len(load.of("late")) > 3, "the new account calls")
    shop.gateway.cli("key", "revoke", load.accounts["slow"][0][:14])
    shop.kill()
    shop.store.lose()
    shop.lost_at = time.time()


def lose_outbox(shop):
    for folder in shop.store.outboxes:
        shutil.rmtree(folder)


def assert_exact(shop):
    """Each account has what it paid in less what its journal says, and each line is a call of ours at its price."""
    balances = shop.rows("account", "list")
    for balance in balances:
        name, lines = balance.name, shop.rows("charges", balance.name)
        assert balance.credited_nano == sum(shop.paid(name).values())
        assert balance.posted_nano == sum(LINE_SIGN[line.kind] * line.amount_nano for line in lines)
        assert balance.available_nano == balance.credited_nano - balance.posted_nano
        assert balance.held_nano == balance.written_off_nano == 0
        charges = [line for line in lines if line.kind == "charge"]
        assert len({line.request_id for line in charges}) == len(charges)
        assert {line.amount_nano for line in charges} <= {COST} or name == "slow"
    assert shop.books()["accounts"] == len(balances)


def assert_told_by_both(shop):
    """The last charge of an account is not in its journal."""
    command, script = shop.broken_books()
    assert "the books of account 'busy' do not add up: " in command
    assert script == f"busy: posted = sum of the journal: differs by {COST} nano\n1 differences\n"


def assert_nothing_lost(shop):
    """Each whole answer is charged, and beside them only what nobody saw the end of."""
    for name in (*CUSTOMERS, "late"):
        there, answered = set(shop.journal(name)), {answer.id for answer in shop.load.of(name)}
        assert there >= answered
        assert len(there - answered) <= shop.load.broken[name]
    assert shop.lost() == {}


def assert_paid(shop):
    """All that the operator was told was done is there once, also if it is entered once more."""
    for payment in shop.load.payments[-3:]:
        shop.gateway.cli("credit", "add", payment.account, "0.01", "--id", payment.id)
    for name in CUSTOMERS:
        due = {payment.id: PAYMENT for payment in shop.load.payments if payment.account == name}
        assert shop.paid(name) == due | shop.load.due[name]


def assert_as_of_backup(shop):
    """No payment that began after the backup, and each that was done before it."""
    load = shop.load
    for payment in load.payments:
        there = payment.id in shop.paid(payment.account)
        assert there or payment.ended > load.backup.began
        assert not there or payment.began < load.backup.ended
    assert "late" not in shop.known() and "gift-1" not in shop.paid("busy")
    assert shop.rows("holds", "slow"), "the stream was open at the backup"
    return shop.journals()


def repeat(shop, calls):
    """These named calls once more, until it is clear what became of each; how many were replayed, lost and new."""
    told = Counter()
    for first in calls:

        def again(first=first):
            answer = shop.load.call("named", first.number, first.called, first.options)
            return "idempotency_key_in_use" not in answer.text and answer

        answer = until(again, "the name is free", seconds=15)
        if answer.status == 409:
            assert "reply_lost" in answer.text
            told["lost"] += 1
        elif answer.replayed:
            assert (answer.status, answer.replayed, answer.text) == (200, first.id, first.text)
            told["replayed"] += 1
        else:
            assert answer.status == 200
            told["new"] += 1
            first.again = answer.id
    shop.settled()
    ids = set(shop.journal("named"))
    for first in calls:
        assert len({first.id, getattr(first, "again", first.id)} & ids) == 1
    return told


@pytest.mark.parametrize(("way", "outbox"), CASES, ids=lambda value: value)
def test_a_lost_store_comes_back_by_the_words_of_the_page(shop, way, outbox):
    kind, back_up, restore = WAYS[way]
    shop = shop(kind)
    load = shop.load
    run_until_lost(shop, back_up)
    if outbox == "lost":
        lose_outbox(shop)

    restore(shop)
    copied = assert_as_of_backup(shop)
    shop.payments_again()
    shop.gateway.start_again()
    restored_s = time.time() - shop.lost_at
    shop.settled()

    assert_exact(shop)
    assert_paid(shop)
    journals = shop.journals()
    counts = {name: (len(load.of(name)), len(copied[name]), len(journals[name])) for name in CUSTOMERS}
    if outbox == "kept":
        assert_nothing_lost(shop)
    else:
        told = shop.lost()
        early = load.backup.began - (BEHIND_S if kind is RedisStore else 0)
        gone = []
        for name in (*CUSTOMERS, "late"):
            answered, there = {answer.id: answer for answer in load.of(name)}, set(journals[name])
            assert set(copied.get(name, ())) <= there <= set(answered)
            assert all(answered[id].began < load.backup.ended for id in there)
            lost = set(answered) - there
            assert all(answered[id].ended > early for id in lost)
            assert lost and (there or name == "late")
            gone += lost
        # The log has what is gone, but for the last moment before the kill.
        assert len(set(gone) - set(told)) <= len(load.threads)
        assert len(set(told) - set(gone)) <= sum(load.broken.values())
    # The stream was cut: at most what it had cost at a note in the ledger, and nothing is held.
    assert sum(line.amount_nano for line in journals["slow"].values()) < SLOW_COST

    # A key that was revoked since stays so, one that was issued since is gone.
    assert load.call("slow", 0, None, {}).status == 403
    assert load.call("late", 0, None, {}).status == 401
    # The copy has the replies of the calls before it, and the outbox the names of the later ones: none is paid twice.
    told = repeat(shop, load.of("named"))
    assert told["replayed"] and told["new" if outbox == "lost" else "lost"]
    assert bool(told["new"]) == (outbox == "lost")
    assert_exact(shop)
    print(f"\n{way}, outbox {outbox}: restored in {restored_s:.2f} s; (answered, in the copy, in the end) {counts}")
    print(dict(told), shop.load.broken)


def assert_all_comes_back(shop):
    """After a restore with the right outbox: the payments again, a start, and nothing is lost."""
    shop.payments_again()
    shop.gateway.start_again()
    shop.settled()
    assert_exact(shop)
    assert_paid(shop)
    assert_nothing_lost(shop)


def test_what_is_forgotten_while_sqlite_is_restored_is_told(shop):
    shop = shop(SqliteStore)
    gateway, folder, load = shop.gateway, shop.folder, shop.load

    def copy_outbox(shop):
        for outbox in shop.store.outboxes:
            shutil.copytree(outbox, folder / "older" / outbox.name)

    run_until_lost(shop, copy_outbox, back_up_sqlite)

    # The backup was cut off: nothing is written.
    whole = shop.copy.read_bytes()
    shop.copy.write_bytes(whole[: len(whole) // 2])
    done = shop.shell.try_run(restore_line(shop))
    assert done.returncode == 1 and "cannot be restored, and nothing was changed" in done.stderr
    assert not shop.store.files[0].exists()
    shop.copy.write_bytes(whole)

    # A new store in place of the backup: nobody is known, and nobody is charged for what the outbox has.
    gateway.cli("init")
    gateway.start_again()
    until(lambda: "outbox has settlements for another store id; they are kept" in gateway.log(), "it is told", 15)
    assert load.call("busy", 0, None, {}).status == 401
    gateway.process.kill()
    assert "0 accounts" in gateway.cli("check", "--books") and len(shop.lost()) > AFTER

    # An outbox of an earlier time in place of that of the machine: the log tells what is lost.
    newer = {outbox: outbox.rename(folder / f"newer-{outbox.name}") for outbox in shop.store.outboxes}
    for outbox in shop.store.outboxes:
        shutil.copytree(folder / "older" / outbox.name, outbox)
    restore_sqlite(shop)
    gateway.start_again()
    shop.settled()
    shop.books()
    lost = shop.lost()
    assert lost and set(lost.values()) == {COST}
    gateway.process.kill()

    # A line of the journal is missing.
    with sqlite3.connect(shop.store.files[0]) as c:
        of_busy = "account = (SELECT id FROM account WHERE name = 'busy')"
        c.execute(f"DELETE FROM journal WHERE {of_busy} AND seq = (SELECT max(seq) FROM journal WHERE {of_busy})")
    assert_told_by_both(shop)

    # Once more, as the page says.
    for outbox, kept in newer.items():
        shutil.rmtree(outbox)
        kept.rename(outbox)
    (folder / "lost").rename(folder / "lost-1")
    restore_sqlite(shop)
    assert_all_comes_back(shop)


def test_what_is_forgotten_while_redis_is_restored_is_told(shop):
    shop = shop(RedisStore)
    gateway, store, load = shop.gateway, shop.store, shop.load
    run_until_lost(shop, back_up_log_folder, back_up_snapshot)
    (log,) = shop.copy.glob("*.incr.aof")
    whole = log.read_bytes()

    # Some bytes in the middle of the log are missing: Redis does not start.
    middle = len(whole) // 2
    log.write_bytes(whole[:middle] + whole[middle + 61 :])
    assert shop.shell.try_run(shop.check).returncode == 1
    with pytest.raises((RuntimeError, AssertionError)):
        restore_log_folder(shop)
    # What it stumbles over depends on where the bytes are missing.
    told = store.process.log.read_text()
    assert "Bad file format" in told or "reading the append only file" in told
    shutil.rmtree(store.folder / "appendonlydir")

    # The end is missing: the check says so, Redis starts, and the books are those of an earlier time.
    log.write_bytes(whole[: len(whole) * 3 // 4])
    assert shop.shell.try_run(shop.check).returncode == 1
    restore_log_folder(shop)
    assert "truncated" in store.process.log.read_text()
    assert shop.books()["accounts"] == len(CUSTOMERS) + 1
    short = {name: set(shop.journal(name)) for name in CUSTOMERS}
    # A line of the journal is missing.
    shop.shell.run("redis-cli RPOP tollgate:{busy}:journal")
    assert_told_by_both(shop)
    store.lose()
    log.write_bytes(whole)

    # A snapshot beside a Redis that reads its log: it starts empty, and the gateway says that this is another store.
    shop.shell.run(f"cp {shop.snapshot} {store.folder}/dump.rdb")
    store.start("redis-server /etc/redis/redis.conf")
    gateway.start_again()
    until(lambda: "outbox has settlements for another store id; they are kept" in gateway.log(), "it is told", 15)
    assert load.call("busy", 0, None, {}).status == 401
    assert "0 accounts" in gateway.cli("check", "--books")
    gateway.process.kill()
    store.lose()

    # Once more, as the page says.
    restore_log_folder(shop)
    assert all(short[name] <= set(shop.journal(name)) for name in CUSTOMERS)
    assert_all_comes_back(shop)


def test_a_replica_takes_the_place_of_a_lost_master(shop):
    # A payment waits for the replica here.
    shop = shop(SentinelStore, {})
    load = shop.load
    load.start(slow=False)
    load.until_answers(BEFORE)
    shop.store.lose()
    lost_at = time.time()
    until(shop.store.is_replaced, "the replica is the master", 30)
    load.until_answers(AFTER)
    load.stop()
    assert {answer.status for answer in load.refused} == {503}
    shop.settled()
    assert_exact(shop)
    sold = min(answer.began for answer in load.answers if answer.began > max(no.began for no in load.refused))
    print(f"\nsold again {sold - lost_at:.2f} s after the loss, {len(load.refused)} calls were refused")
    for name in CUSTOMERS:
        there = set(shop.journal(name))
        assert there == {answer.id for answer in load.of(name)}
        due = {payment.id: PAYMENT for payment in load.payments if payment.account == name}
        assert shop.paid(name) == due | load.due[name]
