"""vendor_a's own format at /v1/messages, through vendor_a's own SDK: everything passes as it is."""

import asyncio
import json
import re

import anthropic
import httpx2
import pytest
from pydantic import BaseModel
from stack import VENDOR_KEY, ask
from talk import PICTURE, native, words_of

pytestmark = pytest.mark.stores("sqlite")
MODEL = "lma-opus-5"
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city, now.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CACHED = {"cache_control": {"type": "ephemeral"}}
whole_and_streamed = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def request(text="hello", **more):
    return {"model": MODEL, "max_tokens": 200, "messages": ask(text)} | more


@pytest.mark.stores("sqlite", "redis")
@whole_and_streamed
@pytest.mark.parametrize("model", ["lma-fable-5", "lma-opus-5", "lma-haiku-4-5"])
def test_a_message_is_answered_and_charged_exactly(gateway, model, streamed):
    alice = gateway().account()
    reply = native(alice, request(model=model), streamed)
    assert (reply.type, reply.role, reply.model, reply.stop_reason) == ("message", "assistant", model, "end_turn")
    assert reply.id.startswith("msg_") and reply.content[-1].type == "text" and reply.content[-1].text
    alice.assert_paid(model, reply.usage)


def test_a_stream_says_the_same_as_a_whole_message(gateway):
    alice = gateway().account()
    whole = alice.native().messages.create(**request())
    with alice.native().messages.stream(**request()) as stream:
        text, request_id = "".join(stream.text_stream), stream.request_id
        reply = stream.get_final_message()
    assert text == words_of(whole) == words_of(reply)
    alice.assert_paid(MODEL, whole.usage, reply.usage)
    assert [charge.request_id for charge in alice.charges(2)] == [whole._request_id, request_id]


@pytest.mark.vendors("sim")  # aimock has no such habits
@pytest.mark.parametrize("habit", ["crlf", "comments", "split-utf8", "double-start", "redacted", "omitted"])
def test_however_vendor_a_writes_its_stream_the_client_reads_the_same(gateway, habit):
    alice = gateway(vendor_a=f"{habit};prompt=1000;completion=100").account()
    whole, streamed = (native(alice, request(), way) for way in (False, True))
    blocks = [block.model_dump(exclude={"parsed_output"}) for block in streamed.content]
    assert blocks == [block.model_dump() for block in whole.content] and words_of(whole)
    assert [charge.amount_nano for charge in alice.charges(2)] == [1000 * 5_000 + 100 * 25_000] * 2


def test_a_message_of_no_tokens_warms_the_cache(gateway):
    alice = gateway().account()
    reply = alice.native().messages.create(**request("three words", model="lma-sonnet-4-6", max_tokens=0))
    assert reply.stop_reason == "max_tokens"
    alice.assert_paid("lma-sonnet-4-6", reply.usage)


def test_a_raw_stream_has_the_events_in_vendor_as_order(gateway):
    alice = gateway().account()
    kinds = [event.type for event in alice.native().messages.create(**request(), stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds.count("content_block_delta") > 1
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert alice.charge().basis == "reported"


@whole_and_streamed
def test_a_conversation_with_a_tool(gateway, streamed):
    alice = gateway().account()
    talk = request("weather", tools=[WEATHER])
    called = native(alice, talk, streamed)
    use = called.content[-1]
    assert (called.stop_reason, use.type, use.name, use.input) == (
        "tool_use",
        "tool_use",
        "get_weather",
        {"city": "Rome"},
    )
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "31 degrees"}
    talk["messages"] += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    told = native(alice, talk, streamed)
    assert told.stop_reason == "end_turn" and "31 degrees" in told.content[-1].text
    alice.assert_paid(MODEL, called.usage, told.usage)


@whole_and_streamed
def test_thinking_comes_with_its_signature_and_goes_back_with_it(tapped, streamed):
    gw = tapped()
    alice = gw.account()
    thinking = {"type": "enabled", "budget_tokens": 1024}
    talk = request("thinking;tools=1", tools=[WEATHER], max_tokens=2000, thinking=thinking)
    called = native(alice, talk, streamed)
    kinds = [block.type for block in called.content]
    thought = called.content[kinds.index("thinking")]
    assert thought.thinking and thought.signature and kinds[-1] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": called.content[-1].id, "content": "31 degrees"}
    talk["messages"] += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    gw.wire.forget()
    told = native(alice, talk, streamed)
    assert gw.wire.request().json["messages"][1]["content"] == [block.to_dict() for block in called.content]
    assert "31 degrees" in told.content[-1].text
    alice.assert_paid(MODEL, called.usage, told.usage)


class Echo(BaseModel):
    bytes: int
    fnv: str


def test_a_pydantic_model_comes_back_parsed(tapped):
    gw = tapped(vendor_a="echo")
    alice = gw.account()
    reply = alice.native().messages.parse(**request("echo"), output_format=Echo)
    assert gw.wire.request().json["output_config"]["format"]["type"] == "json_schema"
    assert reply.parsed_output == Echo.model_validate_json(words_of(reply))
    alice.assert_paid(MODEL, reply.usage)


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """The weather in a city, now."""
    return "31 degrees" if city == "Rome" else "rain"


@whole_and_streamed
def test_the_sdks_own_loop_runs_a_tool(gateway, streamed):
    alice = gateway().account()
    # It asks for a thread at first, which the vendor would keep; refused, it goes on without.
    runner = alice.native().beta.messages.tool_runner(
        **request("thinking;tools=1"), tools=[get_weather], stream=streamed
    )
    replies = [turn.get_final_message() if streamed else turn for turn in runner]
    assert [reply.stop_reason for reply in replies] == ["tool_use", "end_turn"]
    assert "31 degrees" in words_of(replies[-1])
    alice.assert_paid(MODEL, *(reply.usage for reply in replies))


@pytest.mark.filterwarnings("ignore:The model 'claude-sonnet-4-5' is deprecated")
@pytest.mark.parametrize("asked", ["lma-sonnet-4-5", "claude-sonnet-4-5"])
def test_a_model_is_asked_for_by_our_name_or_vendor_as_and_charged_as_ours(tapped, asked):
    gw = tapped()
    alice = gw.account()
    gw.wire.forget()
    reply = alice.native().messages.create(**request(model=asked))
    assert gw.wire.request().json == request(model="claude-sonnet-4-5") and reply.model == "claude-sonnet-4-5"
    alice.assert_paid("lma-sonnet-4-5", reply.usage)


def test_a_stream_left_early_is_charged_what_vendor_a_reported(gateway):
    slow = "prompt=100;completion=50;chunks=20;chunk-delay=40"
    alice = gateway(vendor_a=slow).account()
    with alice.native().messages.stream(**request(slow)) as stream:
        next(stream.text_stream)
    assert alice.balance().held_nano > 0
    charge = alice.charge()
    assert (charge.basis, charge.amount_nano) == ("reported", 100 * 5_000 + 50 * 25_000)


def test_the_body_and_the_reply_pass_unchanged(tapped):
    gw = tapped()
    alice = gw.account()
    gw.wire.forget()
    body = request(
        messages=[{"role": "user", "content": [{"type": "text", "text": "hello", **CACHED}, PICTURE]}],
        system=[{"type": "text", "text": "Be brief.", **CACHED}],
        tools=[WEATHER | CACHED],
        tool_choice={"type": "none"},
        stop_sequences=["END"],
        metadata={"user_id": "alice"},
        output_config={"effort": "low"},
    )
    raw = alice.native().messages.with_raw_response.create(**body)
    assert gw.wire.request().json == body
    assert raw.http_response.content == gw.wire.reply().body
    alice.assert_paid(MODEL, raw.parse().usage)


@pytest.mark.vendors("aimock")  # the other one refuses fields that it does not know, as vendor_a itself does
def test_fields_of_tomorrow_pass(tapped):
    gw = tapped()
    gw.wire.forget()
    news = {"some_new_field": {"of": ["tomorrow", 1e-7]}, "temperature": 0.1}
    gw.account().native().messages.create(**request(), extra_body=news)
    assert gw.wire.request().json == request() | news


def test_a_body_passes_byte_for_byte(tapped):
    gw = tapped()
    gw.wire.forget()
    body = (
        b' {"max_tokens" : 10,\n "model":"lma-sonnet-4-6","messages":[{"role":"user",'
        b'"content":"hello \\u00e9\\/"}] , "temperature":1.0, "stream":false}\n'
    )
    headers = {"x-api-key": gw.account().key, "content-type": "application/json"}
    reply = httpx2.post(f"{gw.base_url}/messages", content=body, headers=headers)
    assert reply.status_code == 200 and gw.wire.request().body == body
    assert reply.content == gw.wire.reply().body


def test_a_stream_passes_byte_for_byte(tapped):
    gw = tapped()
    alice = gw.account()
    gw.wire.forget()
    messages = alice.native().messages.with_streaming_response
    with messages.create(**request("weather", tools=[WEATHER]), stream=True) as raw:
        data = b"".join(raw.iter_bytes())
    assert data == gw.wire.reply().body and b"event: message_stop" in data
    assert alice.charge().basis == "reported"


KEYS = {
    "api_key": lambda gw, key: gw.native(key),
    "auth_token": lambda gw, key: gw.native(None, auth_token=key),
    "x-api-key as older SDKs send it": lambda gw, key: gw.native(
        None, default_headers={"X-Api-Key": key, "anthropic-version": "2023-06-01"}
    ),
}


@pytest.mark.parametrize("way", KEYS)
def test_the_key_is_taken_from_either_header_and_never_passed_on(tapped, way):
    gw = tapped()
    alice = gw.account()
    gw.wire.forget()
    reply = KEYS[way](gw, alice.key).messages.create(**request())
    headers = gw.wire.request().headers
    assert headers["x-api-key"] == VENDOR_KEY and "authorization" not in headers
    assert alice.key not in json.dumps(headers)
    alice.assert_paid(MODEL, reply.usage)


VERSIONS = {
    "as the SDK sends it": ({"anthropic-version": "2026-10-21"}, "2026-10-21"),
    "older": ({"anthropic-version": "2023-06-01"}, "2023-06-01"),
    "by its neutral name": ({"vendor_a-version": "2024-02-03"}, "2024-02-03"),
    "absent": ({}, "2023-06-01"),
}


@pytest.mark.parametrize("case", VERSIONS)
def test_the_version_is_passed_on_or_filled_in(tapped, case):
    given, sent = VERSIONS[case]
    gw = tapped()
    headers = {"x-api-key": gw.account().key} | given
    gw.wire.forget()
    assert httpx2.post(f"{gw.base_url}/messages", json=request(), headers=headers).status_code == 200
    assert gw.wire.request().headers["anthropic-version"] == sent
    assert not [name for name in gw.wire.request().headers if name.startswith("vendor_a-")]


def test_betas_are_passed_on(tapped):
    gw = tapped()
    alice = gw.account()
    gw.wire.forget()
    reply = alice.native().beta.messages.create(**request(), betas=["context-1m-2025-08-07", "some-2027-01-01"])
    headers = gw.wire.request().headers
    assert headers["anthropic-beta"] == "context-1m-2025-08-07,some-2027-01-01"
    assert headers["anthropic-version"] == "2026-10-21"
    alice.assert_paid(MODEL, reply.usage)


@pytest.mark.vendors("sim")  # aimock reports no caches
@whole_and_streamed
def test_what_caches_gave_and_took_is_charged_as_input(gateway, streamed):
    fault = "cache-read=300;cache-write=40;prompt=1000;completion=50"
    alice = gateway(vendor_a=fault).account()
    usage = native(alice, request(fault), streamed).usage
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (300, 40)
    assert usage.input_tokens + 340 == 1000
    alice.assert_paid(MODEL, usage)
    assert alice.charge().amount_nano == 1000 * 5_000 + 50 * 25_000


def test_nothing_about_the_gateways_own_account_reaches_the_client(gateway):
    raw = gateway().account().native().messages.with_raw_response.create(**request())
    assert raw.headers["request-id"] == raw.headers["x-request-id"] == raw.parse()._request_id
    own = ("anthropic-", "vendor_a-", "set-cookie")
    assert not [name for name in raw.headers if name.startswith(own)]
    assert not [value for value in raw.headers.values() if re.search("sim-|secret|req_vendor|9999", value)]


def test_every_kind_of_call_through_the_asynchronous_client(gateway):
    alice = gateway().account()

    async def calls(messages):
        whole = await messages.create(**request())
        async with messages.stream(**request()) as stream:
            assert await stream.get_final_text() == words_of(whole)
            streamed = await stream.get_final_message()
        talk = request("weather", tools=[WEATHER])
        called = await messages.create(**talk)
        result = {"type": "tool_result", "tool_use_id": called.content[-1].id, "content": "31 degrees"}
        talk["messages"] += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
        told = await messages.create(**talk)
        assert "31 degrees" in told.content[-1].text
        return whole.usage, streamed.usage, called.usage, told.usage

    async def with_client():
        async with alice.native(kind=anthropic.AsyncAnthropic) as client:
            return await calls(client.messages)

    alice.assert_paid(MODEL, *asyncio.run(with_client()))


def test_twenty_parallel_streams_are_all_answered_and_all_charged(gateway):
    alice = gateway().account()

    async def one(client):
        async with client.messages.stream(**request()) as stream:
            return await stream.get_final_message()

    async def twenty():
        async with alice.native(kind=anthropic.AsyncAnthropic) as client:
            return await asyncio.gather(*(one(client) for _ in range(20)))

    replies = asyncio.run(twenty())
    assert len({reply.id for reply in replies}) == 20 and len({words_of(reply) for reply in replies}) == 1
    alice.assert_paid(MODEL, *(reply.usage for reply in replies))


@pytest.mark.vendors("sim")
@whole_and_streamed
def test_pages_are_fetched_by_the_vendor(gateway, streamed):
    alice = gateway().account()
    fetch = {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 2, "max_content_tokens": 5000}
    reply = native(alice, request(model="lma-haiku-4-5", tools=[fetch]), streamed)
    kinds = [block.type for block in reply.content]
    assert kinds == ["text", "server_tool_use", "web_fetch_tool_result", "text"]
    assert reply.usage.server_tool_use.web_fetch_requests == 1
    alice.assert_paid("lma-haiku-4-5", reply.usage)
