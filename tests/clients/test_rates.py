"""The official clients' own retries against rate limits: they come again when they are told, and
not where it is of no use."""

import asyncio

import anthropic
import openai
import pytest
from stack import ask, sdk
from talk import speak

pytestmark = pytest.mark.vendors("sim")

# What both clients do of their own accord.
RETRIES = openai.DEFAULT_MAX_RETRIES
# Some 67 tokens come back in a second.
PACE = "[plan.pace]\ntokens_per_minute = 4_000"
# More than a minute has, which passes once, and is in the way of all others for two seconds or
# three. Clients that were not told would have given up by then.
LONG = "a" * 4_050
ONE = "[plan.one]\ncalls = 1"
NONE = "[plan.none]\nrequests_per_minute = 0"
# Longer than what its reader needs to ask for something else, and shorter than a second.
STREAM = "chunks=12;chunk-delay=40"

CHAT = {"model": "lmb-5.5", "messages": ask("hello"), "max_tokens": 120}
MESSAGE = {"model": "lma-sonnet-4-6", "messages": ask("hello"), "max_tokens": 120}


def chat(account):
    client = sdk(account.gateway.base_url, account.key, max_retries=RETRIES)
    return client.chat.completions.with_raw_response.create(**CHAT)


def message(account):
    return account.native(max_retries=RETRIES).messages.with_raw_response.create(**MESSAGE)


CALLS = {"vendor_b": chat, "vendor_a": message}
both = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


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
