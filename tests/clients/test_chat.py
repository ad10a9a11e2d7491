"""Whole and streamed chats, and tools, through the official SDK."""

import json
import re

import pytest
from stack import ask
from talk import WEATHER, final, said_again, text_of

MODELS = {
    "lma-opus-5": "vendor_a",
    "lmb-5.5": "vendor_b",
    "lmc-3.5-flash": "vendor_c",
    "lmd-4.6": "vendor_d",
    "orgA/famA-V3.2": "vendor_e",
}
pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")
each_model = pytest.mark.parametrize("model", MODELS)


@both_stores
@each_model
def test_a_whole_chat_is_answered_and_charged_exactly(gateway, model):
    alice = gateway().account()
    reply = alice.client().chat.completions.create(model=model, messages=ask("hello"))
    assert (reply.object, reply.model) == ("chat.completion", model)
    assert reply.choices[0].message.role == "assistant" and reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    charge = alice.charge()
    assert (charge.model, charge.vendor, charge.route, charge.depth) == (model, MODELS[model], "main", 0)
    assert (charge.basis, charge.amount_nano) == ("reported", alice.price(model).of(reply.usage))


@both_stores
@each_model
def test_a_stream_says_the_same_as_a_whole_chat(gateway, model):
    alice = gateway().account()
    whole = alice.client().chat.completions.create(model=model, messages=ask("hello"))
    chunks = list(alice.client().chat.completions.create(model=model, messages=ask("hello"), stream=True))
    assert text_of(chunks) == whole.choices[0].message.content
    assert len(chunks) > 2 and {(c.id, c.object, c.model) for c in chunks} == {
        (chunks[0].id, "chat.completion.chunk", model)
    }
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]


@each_model
def test_a_stream_with_include_usage_ends_in_the_usage_that_is_charged(gateway, model):
    alice = gateway().account()
    chunks = list(
        alice.client().chat.completions.create(
            model=model, messages=ask("hello"), stream=True, stream_options={"include_usage": True}
        )
    )
    usage = chunks[-1].usage
    assert usage and usage.total_tokens >= usage.prompt_tokens + usage.completion_tokens > 0
    assert alice.charge().amount_nano == alice.price(model).of(usage)


@each_model
def test_a_stream_that_did_not_ask_for_usage_shows_none_and_is_charged_all_the_same(gateway, model):
    usage = "prompt=1000;completion=100"
    alice = gateway(**{MODELS[model]: usage}).account()
    whole = alice.client().chat.completions.create(model=model, messages=ask(usage))
    chunks = list(alice.client().chat.completions.create(model=model, messages=ask(usage), stream=True))
    assert all(chunk.choices and "usage" not in chunk.model_fields_set for chunk in chunks)
    _, charge = alice.charges(2)
    assert (charge.basis, charge.amount_nano) == ("reported", alice.price(model).of(whole.usage))


@pytest.mark.vendors("aimock")
def test_the_vendor_gets_the_body_as_sent_with_usage_asked_for(gateway):
    gw = gateway(vendor_b="")
    gw.account().client().chat.completions.create(
        model="lmb-5.5",
        messages=ask("hello"),
        stream=True,
        temperature=0.25,
        seed=7,
        extra_body={"some_new_field": {"of": ["tomorrow", 1e-7]}},
    ).close()
    (body,) = gw.vendor.received()
    assert body["stream_options"]["include_usage"] is True
    assert (body["model"], body["messages"], body["stream"]) == ("lmb-5.5", ask("hello"), True)
    assert (body["temperature"], body["seed"], body["some_new_field"]) == (0.25, 7, {"of": ["tomorrow", 1e-7]})


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("habit", ["crlf", "comments", "split-utf8"])
def test_however_a_vendor_writes_its_stream_the_client_reads_the_same(gateway, habit):
    alice = gateway(vendor_b=f"{habit};prompt=1000;completion=100").account()
    whole = alice.client().chat.completions.create(model="lmb-5.5", messages=ask("hello"))
    chunks = list(alice.client().chat.completions.create(model="lmb-5.5", messages=ask("hello"), stream=True))
    assert text_of(chunks) == whole.choices[0].message.content
    assert [charge.amount_nano for charge in alice.charges(2)] == [8_000_000, 8_000_000]


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_nothing_about_the_gateways_own_account_reaches_the_client(gateway, streamed):
    raw = (
        gateway()
        .account()
        .client()
        .chat.completions.with_raw_response.create(model="lmb-5.5", messages=ask("hello"), stream=streamed)
    )
    assert not {"set-cookie", "openai-organization"} & set(raw.headers)
    assert not [value for value in raw.headers.values() if re.search("sim-|secret|req_vendor|9999", value)]


@each_model
def test_a_tool_is_called(gateway, model):
    alice = gateway().account()
    reply = alice.client().chat.completions.create(model=model, messages=ask("weather"), tools=[WEATHER])
    (call,) = reply.choices[0].message.tool_calls
    assert reply.choices[0].finish_reason == "tool_calls"
    assert (call.type, call.function.name) == ("function", "get_weather") and call.id
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    assert alice.charge().amount_nano == alice.price(model).of(reply.usage)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_two_tools_are_called_in_parallel(gateway, streamed):
    alice = gateway(vendor_b="tools=2").account()
    request = {"model": "lmb-5.5", "messages": ask("weather tools=2"), "tools": [WEATHER]}
    calls = final(alice.client(), request, streamed).choices[0].message.tool_calls
    assert [call.function.name for call in calls] == ["get_weather", "get_weather"]
    assert [set(json.loads(call.function.arguments)) for call in calls] == [{"city"}, {"city"}]
    assert calls[0].id != calls[1].id
    assert alice.charge().amount_nano > 0


@each_model
def test_the_arguments_of_a_streamed_tool_call_come_together(gateway, model):
    alice = gateway().account()
    request = {"model": model, "messages": ask("weather"), "tools": [WEATHER]}
    reply = final(alice.client(), request, streamed=True)
    (call,) = reply.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    assert reply.choices[0].finish_reason == "tool_calls"
    assert alice.charge().amount_nano == alice.price(model).of(reply.usage)


@each_model
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_tools_result_is_fed_back_over_two_turns(gateway, model, streamed):
    alice = gateway().account()
    request = {"model": model, "messages": ask("weather"), "tools": [WEATHER]}
    called = final(alice.client(), request, streamed).choices[0].message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "31 degrees"}
    request["messages"] += [said_again(called), result]
    answer = final(alice.client(), request, streamed).choices[0]
    assert "31 degrees" in answer.message.content
    assert answer.finish_reason == "stop" and not answer.message.tool_calls
    alice.charges(2)


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_vendors_signature_on_a_tool_call_reaches_the_client(gateway, streamed):
    alice = gateway().account()
    request = {"model": "lmc-3.5-flash", "messages": ask("weather"), "tools": [WEATHER]}
    (call,) = final(alice.client(), request, streamed).choices[0].message.tool_calls
    assert call.to_dict()["extra_content"]["vendor_c"]["thought_signature"]


@pytest.mark.vendors("aimock")
def test_a_signature_on_a_tool_call_goes_back_to_the_vendor(gateway):
    gw = gateway(vendor_c="")
    call = {"id": "call_rome", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    signed = call | {"extra_content": {"vendor_c": {"thought_signature": "c2lnbmVk"}}}
    messages = [
        *ask("weather"),
        {"role": "assistant", "content": None, "tool_calls": [signed]},
        {"role": "tool", "tool_call_id": "call_rome", "content": "31 degrees"},
    ]
    gw.account().client().chat.completions.create(model="lmc-3.5-flash", messages=messages, tools=[WEATHER])
    assert [body["messages"] for body in gw.vendor.received()] == [messages]
