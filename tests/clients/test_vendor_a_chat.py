"""Models of vendor_a through the chat endpoint: what comes back is a chat, however vendor_a said it."""

import asyncio
import json
import time

import openai
import pytest
from pydantic import BaseModel
from stack import ask
from talk import CLOCK, STREAMED, WEATHER, final, plain, said_again, text_of

pytestmark = pytest.mark.stores("sqlite")
MODEL = "lma-opus-5"
THOUGHTLESS = "lma-sonnet-4-6"  # unless it is asked to think
whole_and_streamed = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def test_a_reply_has_everything_that_a_chat_reply_has(gateway):
    alice = gateway().account()
    raw = alice.client().chat.completions.with_raw_response.create(model=THOUGHTLESS, messages=ask("hello"))
    reply, body = raw.parse(), json.loads(raw.content)
    assert body["id"].startswith("chatcmpl-") and "msg_" not in body["id"]
    assert (body["object"], body["model"], body["system_fingerprint"]) == ("chat.completion", THOUGHTLESS, None)
    assert abs(body["created"] - time.time()) < 60
    (choice,) = body["choices"]
    assert choice | {"message": {}} == {"index": 0, "message": {}, "logprobs": None, "finish_reason": "stop"}
    content = choice["message"].pop("content")
    assert content and choice["message"] == {"role": "assistant", "refusal": None, "annotations": []}
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert {"cached_tokens", "cache_write_tokens"} <= set(usage["prompt_tokens_details"])
    assert "reasoning_tokens" in usage["completion_tokens_details"]
    alice.assert_paid(THOUGHTLESS, reply.usage)


def test_a_stream_is_a_stream_of_chunks(gateway):
    alice = gateway().account()
    chunks = list(alice.client().chat.completions.create(model=THOUGHTLESS, messages=ask("hello"), stream=True))
    assert {(c.id, c.object, c.model) for c in chunks} == {(chunks[0].id, "chat.completion.chunk", THOUGHTLESS)}
    assert chunks[0].id.startswith("chatcmpl-") and len({chunk.created for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.to_dict() == {"role": "assistant", "content": ""}
    assert [c.choices[0].delta.role for c in chunks[1:]] == [None] * (len(chunks) - 1)
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1].choices[0].delta.to_dict() == {} and len(text_of(chunks)) > 20
    assert not any("usage" in chunk.model_fields_set for chunk in chunks)
    charge = alice.charge()
    assert charge.basis == "reported" and charge.amount_nano > 0


def test_include_usage_adds_one_chunk_which_is_what_is_charged(gateway):
    alice = gateway().account()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = alice.client().chat.completions.create(model=MODEL, messages=ask("hello"), **options)
    assert all("usage" in c.model_fields_set and c.usage is None and c.choices for c in chunks)
    assert last.choices == [] and last.usage.total_tokens > last.usage.prompt_tokens > 0
    alice.assert_paid(MODEL, last.usage)


def test_the_stream_helper_tells_of_content_and_then_of_its_end(gateway):
    alice = gateway().account()
    whole = alice.client().chat.completions.create(model=MODEL, messages=ask("hello"))
    request = {"model": MODEL, "messages": ask("hello"), "stream_options": {"include_usage": True}}
    with alice.client().chat.completions.stream(**request) as stream:
        events = list(stream)
        reply = stream.get_final_completion()
    text = whole.choices[0].message.content
    assert "".join(event.delta for event in events if event.type == "content.delta") == text
    assert [event.content for event in events if event.type == "content.done"] == [text]
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (text, "stop")
    alice.assert_paid(MODEL, whole.usage, reply.usage)


def test_the_stream_helper_tells_of_a_tools_arguments(gateway):
    alice = gateway().account()
    request = {"model": MODEL, "messages": ask("weather"), "tools": [WEATHER]}
    with alice.client().chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        usage = stream.get_final_completion().usage
    assert [(event.name, event.parsed_arguments or json.loads(event.arguments)) for event in done] == [
        ("get_weather", {"city": "Rome"})
    ]
    alice.assert_paid(MODEL, usage)


@whole_and_streamed
def test_parallel_calls_are_answered_together_and_the_talk_goes_on(gateway, streamed):
    alice = gateway(vendor_a="tools=2").account()
    request = {"model": MODEL, "messages": ask("weather tools=2"), "tools": [WEATHER]}
    first = final(alice.client(), request, streamed)
    calls = first.choices[0].message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls" and not first.choices[0].message.content
    assert [(call.type, call.function.name) for call in calls] == [("function", "get_weather")] * 2
    assert all(set(json.loads(call.function.arguments)) == {"city"} for call in calls)
    assert calls[0].id != calls[1].id and all(call.id for call in calls)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "31 degrees"} for call in calls]
    request["messages"] += [said_again(first.choices[0].message), *results]
    second = final(alice.client(), request | {"tool_choice": "none"}, streamed)
    alice.assert_paid(MODEL, first.usage, second.usage)


@whole_and_streamed
def test_a_whole_conversation_with_a_tool(gateway, streamed):
    alice = gateway().account()
    request = {"model": MODEL, "messages": ask("weather"), "tools": [WEATHER]}
    called = final(alice.client(), request, streamed)
    message = called.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "31 degrees"}
    request["messages"] += [said_again(message), result]
    told = final(alice.client(), request, streamed)
    answer = told.choices[0].message
    assert "31 degrees" in answer.content and told.choices[0].finish_reason == "stop" and not answer.tool_calls
    request["messages"] += [{"role": "assistant", "content": answer.content}, *ask("hello")]
    more = final(alice.client(), request | {"tool_choice": "none"}, streamed)
    assert more.choices[0].message.content and more.choices[0].finish_reason == "stop"
    alice.assert_paid(MODEL, called.usage, told.usage, more.usage)


@whole_and_streamed
def test_a_tool_without_parameters_gets_arguments_that_are_json(gateway, streamed):
    alice = gateway().account()
    request = {"model": MODEL, "messages": ask("no-arguments"), "tools": [CLOCK]}
    called = final(alice.client(), request, streamed)
    (call,) = called.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("now", "{}")
    result = {"role": "tool", "tool_call_id": call.id, "content": "12:00"}
    request["messages"] += [said_again(called.choices[0].message), result]
    told = final(alice.client(), request, streamed)
    assert "12:00" in told.choices[0].message.content
    alice.assert_paid(MODEL, called.usage, told.usage)


@whole_and_streamed
def test_an_answer_that_is_cut_short_by_max_tokens_says_length(gateway, streamed):
    alice = gateway().account()
    request = {"model": THOUGHTLESS, "messages": ask("three words"), "max_tokens": 3}
    reply = plain(alice.client().chat.completions.create(**request, **(STREAMED if streamed else {})))
    assert reply.finish_reason == "length" and len(reply.message.content.split()) == 3
    alice.assert_paid(THOUGHTLESS, reply.usage)
    with pytest.raises(openai.LengthFinishReasonError):
        final(alice.client(), request, streamed=True)


@whole_and_streamed
def test_a_refusal_is_filtered_content(gateway, streamed):
    alice = gateway(vendor_a="refusal").account()
    request = {"model": MODEL, "messages": ask("refusal")}
    reply = plain(alice.client().chat.completions.create(**request, **(STREAMED if streamed else {})))
    assert reply.finish_reason == "content_filter"
    alice.assert_paid(MODEL, reply.usage)
    with pytest.raises(openai.ContentFilterFinishReasonError):
        final(alice.client(), request, streamed=True)


@pytest.mark.vendors("sim")  # aimock gives no reasons
@whole_and_streamed
def test_the_reason_of_a_refusal_is_told_as_such(gateway, streamed):
    chat = gateway(vendor_a="refusal").account().client().chat.completions
    reply = plain(chat.create(model=MODEL, messages=ask("hello"), **(STREAMED if streamed else {})))
    assert reply.message.content is None and len(reply.message.refusal) > 5


WRITTEN = ["crlf", "comments", "split-utf8", "odd-events", "double-start", "lean-usage"]
THOUGHT = ["web-json", "redacted", "omitted"]  # a search of its own; thoughts that are hidden, or only signed


@pytest.mark.vendors("sim")  # aimock has no such habits
@pytest.mark.parametrize("habit", WRITTEN + THOUGHT)
def test_however_vendor_a_writes_its_stream_the_client_reads_the_same(gateway, habit):
    alice = gateway(vendor_a=f"{habit};prompt=1000;completion=100").account()
    chat = alice.client().chat.completions
    whole = plain(chat.create(model=MODEL, messages=ask("hello")))
    streamed = plain(chat.create(model=MODEL, messages=ask("hello"), **STREAMED))
    messages = [reply.message.model_dump(exclude={"annotations"}) for reply in (whole, streamed)]
    assert messages[0] == messages[1] and whole.message.content
    assert (streamed.finish_reason, streamed.usage) == (whole.finish_reason, whole.usage) and whole.usage
    assert [charge.amount_nano for charge in alice.charges(2)] == [1000 * 5_000 + 100 * 25_000] * 2


@pytest.mark.vendors("sim")  # aimock has no cache
@whole_and_streamed
def test_what_comes_out_of_the_cache_is_told_and_costs_as_input(gateway, streamed):
    alice = gateway().account()
    part = {"type": "text", "text": f"{alice.name} " * 50, "cache_control": {"type": "ephemeral"}}
    request = {"model": MODEL, "messages": [{"role": "system", "content": [part]}, *ask("hello")]}
    first, second = (final(alice.client(), request, streamed).usage for _ in range(2))
    kept = first.prompt_tokens_details.to_dict()["cache_write_tokens"]
    assert 0 < kept < first.prompt_tokens and first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.to_dict()["cache_write_tokens"] == 0
    assert (second.prompt_tokens_details.cached_tokens, second.prompt_tokens) == (kept, first.prompt_tokens)
    alice.assert_paid(MODEL, first, second)


@pytest.mark.vendors("sim")  # aimock has no cache
@whole_and_streamed
def test_cached_input_is_part_of_the_prompt(gateway, streamed):
    fault = "cache-read=300;cache-write=40;prompt=1000;completion=50"
    alice = gateway(vendor_a=fault).account()
    usage = final(alice.client(), {"model": MODEL, "messages": ask("hello")}, streamed).usage
    details = usage.prompt_tokens_details.to_dict()
    assert (usage.prompt_tokens, details["cached_tokens"], details["cache_write_tokens"]) == (1000, 300, 40)
    assert alice.charge().amount_nano == 1000 * 5_000 + 50 * 25_000


def test_a_stream_left_early_is_charged_what_vendor_a_reported(gateway):
    slow = "prompt=100;completion=50;chunks=20;chunk-delay=40"
    alice = gateway(vendor_a=slow).account()
    stream = alice.client().chat.completions.create(model=MODEL, messages=ask(slow), stream=True)
    next(chunk for chunk in stream if chunk.choices[0].delta.content)
    stream.close()
    assert alice.balance().held_nano > 0
    charge = alice.charge()
    assert (charge.basis, charge.amount_nano) == ("reported", 100 * 5_000 + 50 * 25_000)


class Echo(BaseModel):
    bytes: int
    fnv: str


def test_a_pydantic_model_comes_back_parsed(gateway):
    alice = gateway(vendor_a="echo").account()
    request = {"model": MODEL, "messages": ask("echo"), "response_format": Echo}
    reply = alice.client().chat.completions.parse(**request)
    assert reply.choices[0].message.parsed == Echo.model_validate_json(reply.choices[0].message.content)
    with alice.client().chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
        streamed = stream.get_final_completion()
    assert isinstance(streamed.choices[0].message.parsed, Echo)
    alice.assert_paid(MODEL, reply.usage, streamed.usage)


def test_every_kind_of_call_through_the_asynchronous_client(gateway):
    alice = gateway().account()
    hello, usage_too = {"model": MODEL, "messages": ask("hello")}, {"stream_options": {"include_usage": True}}
    weather = {"model": MODEL, "messages": ask("weather"), "tools": [WEATHER]}

    async def calls(chat):
        whole = await chat.create(**hello)
        chunks = [chunk async for chunk in await chat.create(**hello, **usage_too, stream=True)]
        assert text_of(chunks) == whole.choices[0].message.content
        async with chat.stream(**weather, **usage_too) as stream:
            called = await stream.get_final_completion()
        message = called.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "31 degrees"}
        weather["messages"] += [said_again(message), result]
        told = await chat.create(**weather)
        assert "31 degrees" in told.choices[0].message.content
        with pytest.raises(openai.BadRequestError):
            await chat.create(**hello, n=2)
        return whole.usage, chunks[-1].usage, called.usage, told.usage

    async def with_client():
        async with alice.async_client() as client:
            return await calls(client.chat.completions)

    alice.assert_paid(MODEL, *asyncio.run(with_client()))
