"""The official clients' own retries against rate limits: they come again when they are told, and
not where it is of no use. And what they tell their users of the limits."""

import asyncio
import json
import os
import re
import subprocess
from datetime import datetime, timedelta, timezone

import anthropic
import openai
import pytest
from stack import HERE, ask, sdk
from talk import speak

pytestmark = pytest.mark.vendors("sim")

# What both clients do of their own accord.
RETRIES = openai.DEFAULT_MAX_RETRIES
# What headers tell of a limit, and of which limits vendor_a's tell.
WHAT = ("limit", "remaining", "reset")
NATIVE_KINDS = ("requests", "tokens", "input-tokens", "output-tokens")
# Some 67 tokens come back in a second.
PACE = "[plan.pace]\ntokens_per_minute = 4_000"
# More than a minute has, which passes once, and is in the way of all others for two seconds or
# three. Clients that were not told would have given up by then.
LONG = "a" * 4_050
ONE = "[plan.one]\ncalls = 1"
NONE = "[plan.none]\nrequests_per_minute = 0"
# One request comes back in a second and a half.
BRISK = "[plan.brisk]\nrequests_per_minute = 40"
BRISK_MS = 1_500
# One request comes back in twenty seconds.
THREE = "[plan.three]\nrequests_per_minute = 3\ntokens_per_minute = 100_000"
# After what is long, nothing passes for some ten minutes.
SLOW = "[plan.slow]\ntokens_per_minute = 400"
# Longer than what its reader needs to ask for something else, and shorter than a second.
STREAM = "chunks=12;chunk-delay=40"

CHAT = {"model": "lmb-5.5", "messages": ask("hello"), "max_tokens": 120}
MESSAGE = {"model": "lma-sonnet-4-6", "messages": ask("hello"), "max_tokens": 120}


def chat(account, **more):
    client = sdk(account.gateway.base_url, account.key, max_retries=RETRIES)
    return client.chat.completions.with_raw_response.create(**CHAT, **more)


def message(account, **more):
    return account.native(max_retries=RETRIES).messages.with_raw_response.create(**MESSAGE, **more)


CALLS = {"vendor_b": chat, "vendor_a": message}
both = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
families = pytest.mark.parametrize("family", CALLS)


def node(account, family, streamed, more=""):
    """What the user of a family's Node SDK reads of each call, and how many passed before."""
    addresses = {"OPENAI_BASE_URL": account.gateway.base_url, "ANTHROPIC_BASE_URL": account.gateway.root}
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), account.key)
    done = subprocess.run(
        ["node", HERE / "node/rates.mjs", family, json.dumps(streamed), str(more)],
        env=os.environ | addresses | keys,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return told["calls"], told["served"]


def limited(gateway, plans, **wishes):
    """An account of a gateway of its own, with the only plan that there is."""
    account = gateway(plans=plans, **wishes).account()
    name = plans.partition("]")[0].removeprefix("[plan.")
    account.gateway.cli("account", "set", account.name, "--plan", name)
    return account


@both
def test_a_client_comes_again_when_it_is_told_and_is_served(gateway, call):
    alice = limited(gateway, PACE)
    speak(alice.client(), LONG)
    reply = call(alice)
    assert reply.retries_taken == 1
    assert reply.headers["x-request-id"] == alice.charges(2)[-1].request_id


def test_a_client_is_told_in_whole_seconds_and_in_ms(gateway):
    alice = limited(gateway, PACE)
    speak(alice.client(), LONG)
    with pytest.raises(openai.RateLimitError) as refused:
        alice.client().chat.completions.create(**CHAT)
    assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "tokens")
    told = refused.value.response.headers
    ms = int(told["retry-after-ms"])
    assert 0 < ms < 10_000 and int(told["retry-after"]) == -(-ms // 1_000)
    assert told["x-ratelimit-limit-tokens"] == "4000"
    assert int(told["x-ratelimit-remaining-tokens"]) < 400
    alice.charges(1)


@both
def test_a_client_waits_for_the_only_place(gateway, call):
    alice = limited(gateway, ONE, vendor_b=STREAM)
    stream = alice.client().chat.completions.create(**CHAT, stream=True)
    next(stream)
    reply = call(alice)
    assert reply.retries_taken in (1, 2)
    assert len(list(stream)) > 0
    alice.charges(2)


def test_clients_in_one_place_are_all_served_in_the_end(gateway):
    """Each asks again as often as it takes."""
    alice = limited(gateway, ONE, vendor_b="delay=200")

    async def four():
        async with alice.async_client() as client:
            patient = client.with_options(max_retries=9)
            calls = [patient.chat.completions.create(**CHAT) for _ in range(4)]
            return await asyncio.gather(*calls)

    ids = {reply._request_id for reply in asyncio.run(four())}
    assert ids == {charge.request_id for charge in alice.charges(4)}
    assert alice.gateway.vendor.count() == 4


@both
def test_a_client_does_not_come_again_where_nothing_is_allowed(gateway, call):
    alice = limited(gateway, NONE)
    before = alice.gateway.vendor.count()
    with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as refused:
        call(alice)
    reply = refused.value.response
    assert reply.headers["x-should-retry"] == "false" and "retry-after" not in reply.headers
    assert reply.request.headers["x-stainless-retry-count"] == "0"
    assert alice.gateway.vendor.count() == before
    assert alice.charges(0) == []


def test_a_native_client_reads_a_rate_limit_error(gateway):
    alice = limited(gateway, NONE)
    with pytest.raises(anthropic.RateLimitError) as refused:
        alice.native().messages.create(**MESSAGE)
    assert refused.value.body["error"]["type"] == "rate_limit_error"


def test_a_model_outside_of_the_plan_is_a_permission_error(gateway):
    alice = limited(gateway, '[plan.small]\ncalls = 9\nmodels = ["lmb-5-nano"]')
    with pytest.raises(openai.PermissionDeniedError) as refused:
        alice.client().chat.completions.create(**CHAT)
    assert refused.value.code == "model_not_allowed" and "lmb-5-nano" in refused.value.message
    with pytest.raises(anthropic.PermissionDeniedError):
        alice.native().messages.create(**MESSAGE)
    assert [model.id for model in alice.client().models.list()] == ["lmb-5-nano"]
    assert alice.charges(0) == []


@pytest.mark.stores("redis")
def test_on_a_fleet_a_retry_may_come_to_another_node(gateway, stacks):
    alice = limited(gateway, PACE)
    other = stacks.twin(alice.gateway)
    speak(alice.client(), LONG)
    client = sdk(other.base_url, alice.key, max_retries=RETRIES)
    assert client.chat.completions.with_raw_response.create(**CHAT).retries_taken == 1
    alice.charges(2)


@families
def test_the_node_client_waits_as_it_is_told_and_is_served(gateway, family):
    alice = limited(gateway, BRISK)
    (_, reply), served = node(alice, family, [False, False], "spent")
    *refused, last = reply["tries"]
    assert [seen["status"] for seen in reply["tries"]] in ([429, 200], [429, 429, 200])
    for seen, following in zip(refused, reply["tries"][1:]):
        # A timer of Node may be a millisecond early.
        assert 0 < int(seen["waitMs"]) <= BRISK_MS and following["at"] - seen["at"] > int(seen["waitMs"]) - 2
    assert last["retry"] == str(len(refused)) and "idempotent-replayed" not in reply["headers"]
    # Each of these calls is like all others, and is one of its own for all that.
    charges = alice.charges(served + 2)
    assert reply["headers"]["x-request-id"] == charges[-1].request_id


@families
def test_the_node_client_does_not_come_again_where_nothing_is_allowed(gateway, family):
    alice = limited(gateway, NONE)
    (refused,), _ = node(alice, family, [False])
    assert [(seen["status"], seen["retry"]) for seen in refused["tries"]] == [(429, "0")]
    assert (refused["class"], refused["status"]) == ("RateLimitError", 429)
    assert "the account may make 0 requests a minute" in refused["message"]
    told = {"vendor_b": ("rate_limit_exceeded", "requests"), "vendor_a": (None, "rate_limit_error")}
    assert (refused.get("code"), refused["type"]) == told[family]
    assert refused["headers"]["x-should-retry"] == "false" and "retry-after" not in refused["headers"]
    assert refused["headers"]["x-ratelimit-limit-requests"] == "0"
    assert alice.charges(0) == []


def test_the_node_client_comes_twice_too_soon_where_the_wait_is_long(gateway):
    """Of its own accord: it waits for a minute at most when it is told to, and else as it likes."""
    alice = limited(gateway, SLOW)
    speak(alice.client(), LONG)
    (refused,), _ = node(alice, "vendor_b", [False])
    assert [(seen["status"], seen["retry"]) for seen in refused["tries"]] == [(429, "0"), (429, "1"), (429, "2")]
    assert all(int(seen["waitMs"]) > 60_000 for seen in refused["tries"])
    assert (refused["class"], refused["code"], refused["type"]) == ("RateLimitError", "rate_limit_exceeded", "tokens")
    assert "the account may use 400 tokens a minute; try again in " in refused["message"]
    assert int(refused["headers"]["retry-after"]) > 60
    alice.charges(1)


def test_the_native_node_client_waits_for_as_long_as_it_is_told(gateway):
    alice = limited(gateway, SLOW)
    speak(alice.client(), LONG)
    (gave_up,), _ = node(alice, "vendor_a", [False], 2_500)
    assert gave_up["class"] == "APIUserAbortError"
    assert [seen["status"] for seen in gave_up["tries"]] == [429]
    assert int(gave_up["tries"][0]["waitMs"]) > 60_000
    alice.charges(1)


def check_counted_down(family, heads):
    """The heads of three calls tell their user of the plan of three requests."""
    kinds = ("requests", "tokens")
    for left, head in zip(("2", "1", "0"), heads, strict=True):
        usual = {kind: [head[f"x-ratelimit-{what}-{kind}"] for what in WHAT] for kind in kinds}
        (allowed, remaining, _), (tokens_allowed, tokens, _) = usual.values()
        assert (allowed, remaining, tokens_allowed) == ("3", left, "100000")
        assert 99_000 < int(tokens) < 100_000
        assert all(re.fullmatch(r"(\d+m)?[\d.]+m?s", reset) for _, _, reset in usual.values())
        # The vendor's own figures are of the operator's account.
        assert not any(name.startswith("vendor_a-") for name in head)
        native = {name for name in head if name.startswith("anthropic-ratelimit-")}
        counted = dict.fromkeys(NATIVE_KINDS, usual["tokens"]) | {"requests": usual["requests"]}
        if family == "vendor_b":
            assert not native
            continue
        assert native == {f"anthropic-ratelimit-{kind}-{what}" for kind in counted for what in WHAT}
        for kind, figures in counted.items():
            of_kind = [head[f"anthropic-ratelimit-{kind}-{what}"] for what in WHAT]
            assert of_kind[:2] == figures[:2]
            ahead = datetime.fromisoformat(of_kind[2]) - datetime.now(timezone.utc)
            assert timedelta(minutes=-1) < ahead < timedelta(minutes=1, seconds=1)


@families
def test_users_of_a_client_see_how_much_is_left(gateway, family):
    alice, heads = limited(gateway, THREE, live=True), []
    for stream in (False, True, False):
        reply = CALLS[family](alice, stream=stream)
        assert list(reply.parse())
        heads.append(dict(reply.headers))
    check_counted_down(family, heads)
    alice.charges(3)


@families
@pytest.mark.stores("sqlite")
def test_users_of_the_node_client_see_how_much_is_left(gateway, family):
    alice = limited(gateway, THREE, live=True)
    replies, _ = node(alice, family, [False, True, False])
    assert [reply["events"] > 0 for reply in replies] == [False, True, False]
    check_counted_down(family, [reply["headers"] for reply in replies])
    alice.charges(3)
