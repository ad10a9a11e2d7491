"""Long replies in an object store: had again from there under their key, at any gateway, for one charge."""

import httpx2
import pytest
from bucket import Bucket
from stack import until

pytestmark = [pytest.mark.stores("sqlite", "redis"), pytest.mark.vendors("sim")]

SIZE = 300_000
BODY = {"model": "lmb-5.5", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def bucket(stacks):
    bucket = Bucket(stacks.new_folder())
    yield bucket
    bucket.stop()


@pytest.fixture
def on_s3(gateway, bucket):
    """on_s3(): a gateway that keeps its files there, and whose vendor is long-winded."""

    def start(**files):
        where = {"url": bucket.url, **files}
        return gateway(vendor_b=f"reply-bytes={SIZE};completion=9", files=where, environment=bucket.environment)

    return start


def ask(alice, key):
    """The answer to a call under a key; its name ends a moment after the answer."""
    headers = {"authorization": f"Bearer {alice.key}", "idempotency-key": key}

    def answered():
        reply = httpx2.post(f"{alice.gateway.base_url}/chat/completions", json=BODY, headers=headers, timeout=30)
        in_use = reply.status_code == 409 and reply.json()["error"]["code"] == "idempotency_key_in_use"
        return None if in_use else reply

    return until(answered, "the call has ended")


def bodies(bucket):
    return {name: length for name, length in bucket.objects().items() if "/bodies/replies/" in name}


def test_a_long_reply_is_kept_in_the_bucket_and_comes_again_from_there(bucket, on_s3):
    alice = on_s3().account()
    first = ask(alice, "one")
    assert first.status_code == 200 and len(first.content) > SIZE
    again = ask(alice, "one")
    assert again.headers["idempotent-replayed"] == "true" and again.content == first.content
    ((name, length),) = bodies(bucket).items()
    assert name.startswith("some/where/bodies/replies/") and length == len(first.content)
    alice.charge()


def test_what_a_bucket_has_lost_is_not_charged_again(bucket, on_s3):
    alice = on_s3().account()
    ask(alice, "one")
    assert ask(alice, "one").status_code == 200
    bucket.end()
    bucket.begin()
    lost = ask(alice, "one")
    assert (lost.status_code, lost.json()["error"]["code"]) == (409, "reply_not_kept")
    alice.charge()


def test_long_replies_in_a_bucket_have_a_bound(bucket, on_s3):
    alice = on_s3(kept_bytes_max=1_000_000).account()
    for number in range(5):
        assert ask(alice, str(number)).status_code == 200
        assert sum(bodies(bucket).values()) <= 1_000_000
    # The next sweep makes room.
    numbers = iter(range(5, 50))

    def is_kept():
        key = str(next(numbers))
        return ask(alice, key).status_code == ask(alice, key).status_code == 200

    until(is_kept, "there is room again")
    assert sum(bodies(bucket).values()) <= 1_000_000
