"""The archive of journals: Parquet in a bucket, which DuckDB sums up to what the balances say."""

import json
import sqlite3
import subprocess
import time

import boto3
import duckdb
import httpx2
import pytest
from bucket import REGION, Bucket
from stack import ask, until

pytestmark = [pytest.mark.stores("sqlite", "redis"), pytest.mark.vendors("sim")]

DAY_MS = 86_400_000
CALLS = 6


@pytest.fixture
def bucket(stacks):
    bucket = Bucket(stacks.new_folder())
    yield bucket
    bucket.stop()


def make_older(node, account):
    """As if half of the account's lines were from forty days ago, and half from the day after. The gateway sums
    them up anew."""
    first = int(time.time() * 1000) // DAY_MS * DAY_MS - 40 * DAY_MS
    marks = [(0, first), (CALLS // 2, first + DAY_MS)]
    if node.store_url.startswith("sqlite:"):
        with sqlite3.connect(node.store_url.removeprefix("sqlite:"), timeout=20) as c:
            (number,) = c.execute("SELECT id FROM account WHERE name = ?", (account,)).fetchone()
            c.execute("DELETE FROM journal_hour WHERE account = ?", (number,))
            rows = [(number, index + 1, hour) for index, hour in marks]
            c.executemany("INSERT INTO journal_hour (account, seq, hour) VALUES (?, ?, ?)", rows)
            for table in "usage_rollup", "usage_fold":
                c.execute(f"DELETE FROM {table} WHERE account = ?", (number,))
            c.execute("INSERT OR IGNORE INTO usage_due (account) VALUES (?)", (number,))
        return
    tag = f"tollgate:{{{account}}}"
    redis = lambda *words: subprocess.run(  # noqa: E731
        ["redis-cli", "-u", node.store_url, *words], check=True, capture_output=True, text=True
    ).stdout.split()
    sums = redis("--scan", "--pattern", f"tollgate:?{account}?:usage:*")
    redis("DEL", f"{tag}:journal-hours", *sums)
    redis("SADD", "tollgate:usage-due", account)
    redis("ZADD", f"{tag}:journal-hours", *[word for index, hour in marks for word in (str(index), f"{index} {hour}")])


def downloaded(bucket, folder):
    """What is in the bucket, in the same folders."""
    keys = {"aws_access_key_id": bucket.key, "aws_secret_access_key": bucket.secret}
    client = boto3.client("s3", endpoint_url=bucket.behind, region_name=REGION, **keys)
    for name in bucket.objects():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(client.get_object(Bucket=bucket.name, Key=name)["Body"].read())
    return folder


def charges_of(account, node):
    """All that a customer sees of the charges of a key at a node, page by page."""
    lines, after = [], 0
    while after is not None:
        url = f"{node.base_url}/charges?limit=4&after={after}"
        page = httpx2.get(url, headers={"authorization": f"Bearer {account.key}"}, timeout=20).json()
        lines, after = lines + page["data"], page["next"]
    return lines


def test_duckdb_sums_an_archive_in_a_bucket_up_to_the_balances(gateway, bucket, stacks):
    where = {"archive": f"{bucket.url}/journal", "keep_days": 3}
    # It does not archive by itself, so that the command has something to do.
    node = gateway(environment=bucket.environment)
    knows = bucket.environment | {f"TOLLGATE__JOURNAL__{name.upper()}": str(value) for name, value in where.items()}
    accounts = [node.account() for _ in range(3)]
    for account in accounts:
        client = account.client()
        for number in range(CALLS):
            client.chat.completions.create(model=f"lmb-5.{5 - number % 2}", messages=ask("hello"))
        account.charges(CALLS)
    command = lambda *words: node.cli("--json", *words, **knows)  # noqa: E731
    books = lambda: json.loads(command("check", "--books"))  # noqa: E731
    until(lambda: books()["lines_not_folded"] == 0, "all lines are summed up")
    for account in accounts:
        make_older(node, account.name)
    until(lambda: books()["lines_not_folded"] == 0, "all lines are summed up again", seconds=30)
    before = {account.name: charges_of(account, node) for account in accounts}

    report = json.loads(command("archive", "run"))
    assert (report["lines_archived"], report["lines_trimmed"], report["finished"]) == (3 * CALLS, 3 * (CALLS - 1), True)

    files = f"{downloaded(bucket, stacks.new_folder())}/some/where/journal/*/*/*.parquet"
    sums = "SELECT account, count(*), CAST(sum(posted_change_nano) AS BIGINT), CAST(sum(prompt_tokens) AS BIGINT)"
    found = duckdb.sql(f"{sums} FROM read_parquet('{files}', hive_partitioning = true) GROUP BY account").fetchall()
    assert {name: nano for name, _, nano, _ in found} == {a.name: a.balance().posted_nano for a in accounts}
    assert all(lines == CALLS and tokens > 0 for _, lines, _, tokens in found)
    days = duckdb.sql(f"SELECT DISTINCT day FROM read_parquet('{files}', hive_partitioning = true)").fetchall()
    assert len(days) == 2

    # Whoever reads the books need not know where a line is.
    reader = stacks.twin(node, journal=where)
    assert {account.name: charges_of(account, reader) for account in accounts} == before
    first = before[accounts[1].name][0]["id"]
    correct = ["charge", "correct", first, "0.001", "--id", "late", "--reason", "too late"]
    with pytest.raises(AssertionError, match="is in the archive, and is not corrected any more"):
        command(*correct)
    for account in accounts:
        told = [json.loads(line) for line in command("charges", account.name).splitlines()]
        assert [line["request_id"] for line in told] == [line["id"] for line in before[account.name]]
        month = time.strftime("%Y-%m", time.gmtime())
        statement = json.loads(command("statement", account.name, month))["statement"]
        assert statement["since_opened"]["charges_nano"] == account.balance().posted_nano
    assert books()["lines"] == 3 * CALLS

    # An archive that does not answer hides no line: the page fails.
    bucket.end()
    url = f"{stacks.twin(node, journal=where).base_url}/charges?limit=4"
    reply = httpx2.get(url, headers={"authorization": f"Bearer {accounts[0].key}"}, timeout=60)
    assert reply.status_code == 503
    # What the store still has needs no archive.
    last = before[accounts[2].name][-1]["id"]
    command("charge", "correct", last, "0.000001", "--id", "late", "--reason", "cut off")
    bucket.begin()
