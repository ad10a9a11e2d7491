"""The official clients' own retries, and idempotency keys: whatever happens on the way, one charge in the end."""

import asyncio
import json
import os
import subprocess
from operator import attrgetter

import anthropic
import openai
import pytest
from stack import HERE, ask, sdk
from talk import PNG, draw, embed, text_of
from wiretap import Wiretap

pytestmark = pytest.mark.vendors("sim")

# A client waits so long for each of its tries, and a vendor takes so long.
TOO_SHORT = 0.4
SLOW = "delay=1500"

CHAT = {"model": "lmb-5.5", "messages": ask("hello")}
# Where the SDK has the method, the method, and what is asked.
CALLS = {
    "chat": ("chat.completions", "create", CHAT),
    "responses": ("responses", "create", {"model": "lmb-5.5", "input": "hello"}),
    "images": ("images", "generate", {"model": "lmb-image-1", "prompt": "hello"}),
    "edits": ("images", "edit", {"model": "lmb-image-1", "prompt": "hello", "image": PNG}),
    "speech": ("audio.speech", "create", {"model": "tts-1", "input": "hello", "voice": "alloy"}),
    "embeddings": ("embeddings", "create", {"model": "text-embedding-3-small", "input": "hello"}),
}


def call(client, endpoint, **more):
    """What the SDK got in the end, head and body."""
    resource, method, members = CALLS[endpoint]
    return getattr(attrgetter(resource)(client).with_raw_response, method)(**members, **more)


def streamed(client, **more):
    return client.chat.completions.create(**CHAT, stream=True, **more)


def hasty(client):
    """A client that gives up on each of its tries too early, and tries again."""
    return client.with_options(timeout=TOO_SHORT, max_retries=6)


@pytest.fixture
def cut_off(gateway):
    """An account, a client of it that tries again, and the line between that client and the gateway."""
    lines = []

    def start(max_retries=6, kind=openai.OpenAI, **wishes):
        gw = gateway(**wishes)
        alice, line = gw.account(), Wiretap(gw.base_url if kind is openai.OpenAI else gw.root)
        lines.append(line)
        return alice, sdk(line.url, alice.key, kind, max_retries=max_retries), line

    yield start
    for line in lines:
        line.stop()


@pytest.mark.parametrize("endpoint", CALLS)
def test_a_client_that_gives_up_too_early_pays_once(gateway, endpoint):
    gw = gateway(vendor_b=SLOW)
    alice = gw.account()
    reply = call(hasty(alice.client()), endpoint)
    charge = alice.charge()
    assert reply.headers["idempotent-replayed"] == "true"
    assert reply.headers["x-original-request-id"] == charge.request_id != reply.headers["x-request-id"]
    assert charge.amount_nano > 0 and gw.vendor.count() == 1


def test_a_stream_that_takes_too_long_to_begin_is_paid_for_once(gateway):
    gw = gateway(vendor_b=SLOW)
    alice = gw.account()
    chunks = list(streamed(hasty(alice.client())))
    assert text_of(chunks) and chunks[-1].choices[0].finish_reason == "stop"
    alice.charge()
    assert gw.vendor.count() == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_native_client_that_gives_up_too_early_pays_once(gateway, stream):
    gw = gateway(vendor_a=SLOW)
    alice = gw.account()
    client = hasty(alice.native())
    reply = client.messages.create(model="lma-sonnet-4-6", max_tokens=99, messages=ask("hello"), stream=stream)
    events = list(reply) if stream else [reply]
    assert events[-1].type == ("message_stop" if stream else "message")
    alice.charge()
    assert gw.vendor.count() == 1


def test_an_async_client_that_gives_up_too_early_pays_once(gateway):
    gw = gateway(vendor_b=SLOW)
    alice = gw.account()

    async def chat():
        async with hasty(alice.async_client()) as client:
            return await client.chat.completions.create(**CHAT)

    assert asyncio.run(chat()).choices[0].message.content
    alice.charge()
    assert gw.vendor.count() == 1


@pytest.mark.parametrize("kind", ["chat", "stream", "responses", "images", "embeddings"])
def test_the_node_client_that_gives_up_too_early_pays_once(gateway, kind):
    gw = gateway(vendor_b=SLOW)
    alice = gw.account()
    done = subprocess.run(
        ["node", HERE / "node/repeats.mjs", str(int(TOO_SHORT * 1000)), kind],
        env=os.environ | {"OPENAI_BASE_URL": gw.base_url, "OPENAI_API_KEY": alice.key},
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    told, charge = json.loads(done.stdout), alice.charge()
    assert told["text"] and (told["replayed"], told["original"]) == ("true", charge.request_id)
    assert gw.vendor.count() == 1


# The line is cut when so much of the reply has come: nothing of it, a part of its head, a part of its body.
@pytest.mark.parametrize("after", [0, 40, 600])
@pytest.mark.parametrize("endpoint", ["chat", "images", "edits", "embeddings"])
def test_a_line_that_is_cut_costs_one_charge(cut_off, endpoint, after):
    alice, client, line = cut_off(vendor_b="")
    line.cut(after)
    assert call(client, endpoint).headers["idempotent-replayed"] == "true"
    assert len(line.lines) == 2
    alice.charge()
    assert alice.gateway.vendor.count() == 1


@pytest.mark.parametrize("after", [0, 40])
def test_a_line_that_is_cut_again_and_again_costs_one_charge(cut_off, after):
    alice, client, line = cut_off(vendor_b="chunk-delay=30")
    line.cut(after, times=3)
    assert text_of(streamed(client))
    assert len(line.lines) == 4
    alice.charge()
    assert alice.gateway.vendor.count() == 1


@pytest.mark.parametrize("after", [0, 40, 300])
def test_a_native_line_that_is_cut_costs_one_charge(cut_off, after):
    alice, client, line = cut_off(kind=anthropic.Anthropic, vendor_a="")
    line.cut(after)
    assert client.messages.create(model="lma-sonnet-4-6", max_tokens=99, messages=ask("hello")).content
    alice.charge()
    assert alice.gateway.vendor.count() == 1


def test_a_large_picture_whose_line_is_cut_comes_again(cut_off):
    alice, client, line = cut_off(vendor_b="image-bytes=2000000")
    line.cut(after=1_000_000)
    assert len(draw(client).data[0].b64_json) > 2_000_000
    alice.charge()
    assert alice.gateway.vendor.count() == 1


def test_a_video_that_is_asked_for_over_a_line_that_is_cut_is_one_job(cut_off):
    alice, client, line = cut_off(vendor_d="")
    line.cut(after=10)
    video = client.videos.create(model="lmd-imagine-video", prompt="A red dot.", seconds="4")
    assert [video.id] == [listed.id for listed in client.videos.list()]
    assert client.videos.poll(video.id, poll_interval_ms=100).status == "completed"
    alice.charge()
    assert len(alice.gateway.vendor.videos()) == 1


def test_a_stream_that_is_lost_half_way_comes_again_under_its_key(cut_off):
    """The SDK does not try a stream again that had begun; whoever has a key can."""
    alice, client, line = cut_off(vendor_b="chunk-delay=60;chunks=20")
    key = {"Idempotency-Key": "mine"}
    line.cut(after=2_000)
    with pytest.raises(openai.APIConnectionError):
        list(streamed(client, extra_headers=key))
    # The call still runs: 409, after which the SDK tries again by itself.
    first = text_of(streamed(client, extra_headers=key))
    assert first and text_of(streamed(client, extra_headers=key)) == first
    alice.charge()
    assert alice.gateway.vendor.count() == 1


def test_a_key_is_good_for_one_call(gateway):
    alice = gateway().account()
    client, key = alice.client(), {"Idempotency-Key": "mine"}
    first = embed(client, extra_headers=key)
    assert embed(client, extra_headers=key) == first
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        embed(client, "good day", extra_headers=key)
    assert (refused.value.code, refused.value.param) == ("idempotency_key_reused", "Idempotency-Key")
    alice.charge()


def test_a_call_that_still_runs_is_a_conflict(gateway):
    alice = gateway(vendor_b=SLOW).account()
    key = {"Idempotency-Key": "mine"}

    async def two():
        async with alice.async_client() as client:
            calls = [client.chat.completions.create(**CHAT, extra_headers=key) for _ in range(2)]
            return await asyncio.gather(*calls, return_exceptions=True)

    came = sorted(asyncio.run(two()), key=lambda reply: isinstance(reply, Exception))
    assert came[0].choices[0].message.content
    assert isinstance(came[1], openai.ConflictError) and came[1].code == "idempotency_key_in_use"
    alice.charge()


def test_samples_that_are_asked_for_at_once_are_calls_of_their_own(gateway):
    gw = gateway(vendor_b="delay=50")
    alice = gw.account()

    async def ten():
        async with alice.async_client() as client:
            return await asyncio.gather(*(client.chat.completions.create(**CHAT) for _ in range(10)))

    ids = {reply._request_id for reply in asyncio.run(ten())}
    assert ids == {charge.request_id for charge in alice.charges(10)} and gw.vendor.count() == 10


@pytest.mark.stores("redis")
def test_on_a_fleet_a_retry_may_come_to_another_node(gateway, stacks):
    gw = gateway(vendor_b=SLOW)
    other, alice = stacks.twin(gw), gw.account()
    with pytest.raises(openai.APITimeoutError):
        call(alice.client().with_options(timeout=TOO_SHORT), "chat")
    reply = call(sdk(other.base_url, alice.key), "chat", extra_headers={"x-stainless-retry-count": "1"})
    assert reply.headers["x-original-request-id"] == alice.charge().request_id
    assert gw.vendor.count() == 1
