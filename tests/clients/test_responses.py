"""POST /v1/responses: the vendor's responses as they are, whole and streamed, and who may go on from them."""

import asyncio
import json

import openai
import pytest
from stack import VENDOR_KEY, sdk
from talk import WEATHER, respond, shown, verdict

pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")
MODEL, PRO = "lmb-5.5", "lmb-5.5-pro"
TOOL = {"type": "function", **WEATHER["function"]}
whole_and_streamed = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
ENDS = {"response.completed", "response.incomplete", "response.failed"}


def said(text):
    return {"role": "user", "content": text}


def final(client, streamed, **request):
    """The response; of a stream, as the SDK itself puts it together."""
    if not streamed:
        return respond(client, **request)
    text = request.pop("text", "hello")
    with client.responses.stream(**{"model": MODEL, "input": text} | request) as stream:
        return stream.get_final_response()


def units(usage):
    return {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}


@both_stores
@pytest.mark.parametrize("model", [MODEL, PRO, "o3-pro", "lmb-4o-mini"])
def test_a_whole_response_is_answered_and_charged_exactly(gateway, model):
    alice = gateway().account()
    reply = respond(alice.client(), model=model)
    assert (reply.object, reply.model, reply.status) == ("response", model, "completed")
    assert reply.output_text and reply.id.startswith("resp")
    nano = alice.price(model).of(reply.usage)
    charge = alice.assert_charged(model, nano, **units(reply.usage))
    assert (charge.endpoint, charge.vendor, charge.request_id) == ("responses", "vendor_b", reply._request_id)


def test_a_stream_brings_the_same_events_as_ever_and_one_end(gateway):
    alice = gateway().account()
    whole = respond(alice.client())
    events = list(respond(alice.client(), stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert sum(kind in ENDS for kind in kinds) == 1
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1 and "".join(deltas) == events[-1].response.output_text == whole.output_text
    price = alice.price(MODEL)
    paid = [price.of(whole.usage), price.of(events[-1].response.usage)]
    assert [charge.amount_nano for charge in alice.charges(2)] == paid and all(paid)


@pytest.mark.parametrize("model", [MODEL, PRO])
def test_the_sdk_puts_a_stream_together(gateway, model):
    alice = gateway().account()
    with alice.client().responses.stream(model=model, input="hello") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        reply = stream.get_final_response()
    assert text == reply.output_text and reply.status == "completed"
    alice.assert_paid(model, reply.usage)


@pytest.mark.vendors("sim")  # aimock numbers nothing
def test_the_events_keep_their_numbers(gateway):
    events = list(respond(gateway().account().client(), stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.vendors("sim")
@whole_and_streamed
def test_the_body_reaches_the_vendor_as_sent(gateway, streamed):
    gw = gateway(vendor_b="")
    more = {
        "instructions": "Be brief.",
        "reasoning": {"effort": "high"},
        "max_output_tokens": 300,
        "metadata": {"a": "ünïcode \u2028"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "stream": streamed,
    }
    reply = gw.account().client().responses.create(model=PRO, input=[said("hello")], **more)
    assert list(reply) if streamed else reply.output_text
    assert gw.vendor.received() == [{"model": PRO, "input": [said("hello")]} | more]


BILLS = [
    (MODEL, "prompt=1000;completion=100", 1000 * 5_000 + 100 * 30_000),
    (MODEL, "prompt=272001;completion=10", 272_001 * 10_000 + 10 * 45_000),
    (PRO, "prompt=272000;completion=10", 272_000 * 30_000 + 10 * 180_000),
    (PRO, "prompt=272001;completion=10", 272_001 * 60_000 + 10 * 270_000),
    ("o1-pro", "prompt=1000;completion=100", 1000 * 150_000 + 100 * 600_000),
]


@pytest.mark.parametrize(("model", "usage", "nano"), BILLS, ids=shown)
def test_the_bill_is_exact_whole_and_streamed(gateway, model, usage, nano):
    alice = gateway(vendor_b=usage).account(credit="100")
    # A vendor is believed so many tokens of input only of a long call.
    long = {"instructions": "a " * 40_000} if "prompt=272" in usage else {}
    for streamed in (False, True):
        final(alice.client(), streamed, text=usage, model=model, **long)
    assert [charge.amount_nano for charge in alice.charges(2)] == [nano, nano]
    assert alice.balance().available_nano == 100 * 10**9 - 2 * nano


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("usage", ["no-usage", "null-usage", "bad-usage"])
@whole_and_streamed
def test_a_response_without_usage_is_counted_and_never_free(gateway, usage, streamed):
    alice = gateway(vendor_b=usage).account()
    reply = respond(alice.client(), stream=streamed)
    assert list(reply) if streamed else reply.output_text
    charge = alice.charge()
    assert charge.basis == "counted" and charge.amount_nano > 0


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("fault", ["incomplete", "failed"])
@whole_and_streamed
def test_a_response_that_ends_otherwise_passes_as_it_is(gateway, fault, streamed):
    alice = gateway(vendor_b=fault).account()
    reply = respond(alice.client(), stream=streamed)
    if streamed:
        *_, end = reply
        assert end.type == f"response.{fault}"
        reply = end.response
    assert reply.status == fault and bool(reply.error) == (fault == "failed")
    if fault == "failed":
        assert alice.charges(0) == []
    else:
        alice.assert_paid(MODEL, reply.usage)


@both_stores
@whole_and_streamed
def test_a_response_is_gone_on_from(gateway, streamed):
    alice = gateway().account()
    first = final(alice.client(), streamed)
    second = final(alice.client(), streamed, previous_response_id=first.id)
    third = respond(alice.client(), previous_response_id=second.id)
    assert third.output_text and len({first.id, second.id, third.id}) == 3
    alice.assert_paid(MODEL, first.usage, second.usage, third.usage)


def stranger_is_refused(gw, bob, param, **request):
    """Refused before the vendor is asked, and for nothing."""
    before = gw.vendor.count()
    with pytest.raises(openai.NotFoundError) as refused:
        bob.client().responses.create(model=MODEL, **request)
    assert verdict(refused)[:2] == (404, "not_found") and refused.value.param.startswith(param)
    assert bob.charges(0) == [] and gw.vendor.count() == before


@both_stores
@whole_and_streamed
def test_nobody_goes_on_from_anothers_response(gateway, streamed):
    gw = gateway()
    alice, bob = gw.account(), gw.account()
    theirs = final(alice.client(), streamed).id
    stranger_is_refused(gw, bob, "previous_response_id", input="hello", previous_response_id=theirs)
    stranger_is_refused(gw, bob, "previous_response_id", input="hello", previous_response_id=theirs, stream=True)
    stranger_is_refused(gw, bob, "previous_response_id", input="hello", previous_response_id="resp_of_nobody")
    assert respond(alice.client(), previous_response_id=theirs).output_text


@both_stores
@pytest.mark.vendors("sim")  # aimock does not tell what it stores
@whole_and_streamed
def test_nobody_refers_to_anothers_items(gateway, streamed):
    gw = gateway()
    alice, bob = gw.account(), gw.account()
    for item in final(alice.client(), streamed, model=PRO).output:
        reference = {"type": "item_reference", "id": item.id}
        assert respond(alice.client(), [reference, said("hello")]).output_text
        stranger_is_refused(gw, bob, "input", input=[said("hello"), reference])
        if item.type == "reasoning":
            stranger_is_refused(gw, bob, "input", input=[item.to_dict(), said("hello")])


@both_stores
@pytest.mark.vendors("sim")
def test_what_the_vendor_did_not_store_is_nobodys(gateway):
    gw = gateway()
    alice = gw.account()
    reply = respond(alice.client(), store=False)
    alice.charges(1)
    with pytest.raises(openai.NotFoundError) as refused:
        respond(alice.client(), previous_response_id=reply.id)
    assert verdict(refused) == (404, "not_found", "previous_response_id")
    alice.charges(1)


@pytest.mark.vendors("sim")
def test_nobody_goes_on_from_a_conversation_of_the_gateways_account(gateway):
    gw = gateway()
    bob = gw.account()
    for conversation in "conv_of_somebody", {"id": "conv_of_somebody"}:
        stranger_is_refused(gw, bob, "conversation", input="hello", conversation=conversation)


@both_stores
@pytest.mark.vendors("sim")
def test_another_node_knows_whose_a_response_is(gateway, stacks):
    gw = gateway()
    alice, bob = gw.account(), gw.account()
    first = respond(alice.client())
    twin = stacks.twin(gw)
    again = respond(twin.client(alice.key), previous_response_id=first.id)
    assert again.output_text
    with pytest.raises(openai.NotFoundError):
        respond(twin.client(bob.key), previous_response_id=first.id)


@pytest.mark.parametrize("model", [MODEL, PRO])
@whole_and_streamed
def test_the_output_is_fed_back_as_input(gateway, model, streamed):
    alice, bob = gateway().account(), gateway().account()
    first = final(alice.client(), streamed, model=model, text=[said("think first")])
    assert first.output_text
    items = [said("think first"), *first.output, said("hello")]
    second = final(alice.client(), streamed, model=model, text=items)
    assert second.output_text and second.id != first.id
    alice.assert_paid(model, first.usage, second.usage)
    # What needs no vendor's memory is anybody's to send.
    told = [item for item in items if getattr(item, "type", "") != "reasoning"]
    assert respond(bob.client(), told, model=model).output_text


@pytest.mark.parametrize("model", [MODEL, PRO])
@whole_and_streamed
def test_a_tool_is_called_and_its_result_fed_back(gateway, model, streamed):
    alice = gateway().account()
    request = {"model": model, "tools": [TOOL]}
    first = final(alice.client(), streamed, text=[said("weather")], **request)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"}) and call.call_id
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "31 degrees"}
    second = final(alice.client(), streamed, text=[said("weather"), *first.output, result], **request)
    assert "31 degrees" in second.output_text
    alice.assert_paid(model, first.usage, second.usage)


@pytest.mark.vendors("sim")  # aimock remembers no response
def test_a_tools_result_alone_goes_on_from_a_response(gateway):
    alice = gateway().account()
    first = respond(alice.client(), "weather", tools=[TOOL])
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "31 degrees"}
    second = respond(alice.client(), [result], tools=[TOOL], previous_response_id=first.id)
    assert "31 degrees" in second.output_text
    alice.assert_paid(MODEL, first.usage, second.usage)


@whole_and_streamed
def test_two_tools_are_called_in_parallel(gateway, streamed):
    alice = gateway(vendor_b="tools=2").account()
    reply = final(alice.client(), streamed, text="weather tools=2", tools=[TOOL])
    calls = [item for item in reply.output if item.type == "function_call"]
    assert [set(json.loads(call.arguments)) for call in calls] == [{"city"}, {"city"}]
    assert calls[0].call_id != calls[1].call_id
    alice.assert_paid(MODEL, reply.usage)


def read_until_it_breaks(alice, fault):
    """What arrived of a stream, and the error it ended in."""
    events = []
    stream = respond(alice.client(), fault, stream=True)
    with pytest.raises(openai.APIError) as broken:
        for event in stream:
            events.append(event)
    return events, broken.value


def test_a_stream_the_vendor_cuts_is_an_error_and_no_clean_end(gateway):
    broken_stream_is_an_error_and_paid(gateway, "cut=7")


@pytest.mark.vendors("sim")
def test_an_error_event_in_a_stream_is_raised(gateway):
    broken_stream_is_an_error_and_paid(gateway, "error-event=7")


def broken_stream_is_an_error_and_paid(gateway, fault):
    alice = gateway(vendor_b=fault).account()
    events, error = read_until_it_breaks(alice, fault)
    # An APIConnectionError, a subclass, would be a broken connection instead of an error event.
    assert type(error) is openai.APIError and error.code == "upstream_error"
    assert not ENDS & {event.type for event in events}
    assert any(event.type == "response.output_text.delta" for event in events)
    charge = alice.charge()
    assert charge.basis == "counted" and charge.amount_nano > 0


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("fault", ["cut=2", "error-event=2"])
def test_a_stream_that_breaks_before_any_output_is_no_charge(gateway, fault):
    alice = gateway(vendor_b=f"{fault};chunk-delay=100").account()
    events, error = read_until_it_breaks(alice, fault)
    assert type(error) is openai.APIError and error.code == "upstream_error"
    assert [event.type for event in events] == ["response.created", "response.in_progress"]
    assert alice.charges(0) == []


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("habit", ["crlf", "comments", "split-utf8"])
def test_however_the_vendor_writes_its_stream_the_client_reads_the_same(gateway, habit):
    alice = gateway(vendor_b=f"{habit};prompt=1000;completion=100").account()
    whole, streamed = (final(alice.client(), way) for way in (False, True))
    assert whole.output_text == streamed.output_text
    assert [charge.amount_nano for charge in alice.charges(2)] == [8_000_000, 8_000_000]


@both_stores
def test_a_stream_left_early_is_charged_what_the_vendor_reported(gateway):
    slow = "prompt=100;completion=50;chunks=20;chunk-delay=40"
    alice = gateway(vendor_b=slow).account()
    stream = respond(alice.client(), slow, stream=True)
    next(event for event in stream if event.type == "response.output_text.delta")
    stream.close()
    assert alice.balance().held_nano > 0
    charge = alice.charge()
    assert (charge.basis, charge.amount_nano) == ("reported", 100 * 5_000 + 50 * 30_000)


def test_the_async_client_is_answered_whole_and_streamed(gateway):
    alice = gateway().account()

    async def both():
        async with alice.async_client() as client:
            whole = await client.responses.create(model=MODEL, input="hello")
            async with client.responses.stream(model=MODEL, input="hello") as stream:
                return whole, await stream.get_final_response()

    whole, streamed = asyncio.run(both())
    assert whole.output_text == streamed.output_text != ""
    alice.assert_paid(MODEL, whole.usage, streamed.usage)


@both_stores
def test_ten_parallel_responses_are_all_answered_and_all_charged(gateway):
    alice = gateway().account()

    async def ten():
        async with alice.async_client() as client:
            return await asyncio.gather(*(client.responses.create(model=MODEL, input="hello") for _ in range(10)))

    price = alice.price(MODEL)
    paid = sorted(price.of(reply.usage) for reply in asyncio.run(ten()))
    assert sorted(charge.amount_nano for charge in alice.charges(10)) == paid


@pytest.mark.parametrize("how", [{"stream": True}, {"stream": False}], ids=shown)
def test_a_vendors_400_passes_with_its_message(gateway, how):
    gw = gateway(vendor_b="status=400")
    alice, direct = gw.account(), sdk(gw.vendor.address("vendor_b", "status=400"), VENDOR_KEY)
    with pytest.raises(openai.BadRequestError) as told:
        respond(direct, "status=400")
    with pytest.raises(openai.BadRequestError) as refused:
        respond(alice.client(), "status=400", **how)
    assert told.value.body["message"] and told.value.body["message"] in refused.value.body["message"]
    assert alice.charges(0) == []


WRONG = [
    ({"input": openai.omit}, "missing_required_parameter", "input"),
    ({"input": []}, "invalid_value", "input"),
    ({"extra_body": {"input": 7}}, "invalid_value", "input"),
    ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
    ({"extra_body": {"stream": "yes"}}, "invalid_value", "stream"),
    ({"extra_body": {"previous_response_id": 7}}, "invalid_value", "previous_response_id"),
    ({"background": True}, "unsupported_parameter", "background"),
    ({"service_tier": "priority"}, "unsupported_parameter", "service_tier"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools"),
    ({"tools": [{"type": "image_generation"}]}, "unsupported_parameter", "tools"),
    ({"prompt": {"id": "pmpt_of_somebody"}}, "unsupported_parameter", "prompt"),
    ({"input": openai.omit, "prompt": {"id": "pmpt_of_somebody"}}, "unsupported_parameter", "prompt"),
]


@pytest.mark.vendors("sim")
@pytest.mark.parametrize(("wrong", "code", "param"), WRONG, ids=shown)
def test_what_is_wrong_or_has_no_price_is_refused_before_the_vendor_is_asked(gateway, wrong, code, param):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().responses.create(**{"model": MODEL, "input": "hello"} | wrong)
    assert refused.value.code == code and refused.value.param.startswith(param)
    assert alice.charges(0) == [] and gw.vendor.count() == before


@pytest.mark.vendors("sim")
def test_the_other_paths_below_responses_are_not_there(gateway):
    alice = gateway().account()
    reply = respond(alice.client())
    with pytest.raises(openai.NotFoundError):
        alice.client().responses.retrieve(reply.id)
    with pytest.raises(openai.NotFoundError):
        alice.client().responses.delete(reply.id)
    alice.charges(1)


@pytest.mark.vendors("sim")
def test_a_conversation_is_compacted_and_charged_exactly(gateway):
    alice = gateway().account()
    compacted = alice.client().responses.compact(model=MODEL, input="hello", instructions="Be brief.")
    assert compacted.object == "response.compaction"
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    alice.assert_paid(MODEL, compacted.usage)
    assert alice.charge().endpoint == "responses_compact"


@pytest.mark.vendors("sim")
@whole_and_streamed
def test_tools_of_a_server_are_called_by_the_vendor(gateway, streamed):
    alice = gateway().account()
    server = {"type": "mcp", "server_label": "sums", "server_url": "https://sums.example", "require_approval": "never"}
    reply = final(alice.client(), streamed, model="lmb-5-mini", tools=[server], max_tool_calls=1)
    assert [item.type for item in reply.output][:2] == ["mcp_list_tools", "mcp_call"]
    alice.assert_paid("lmb-5-mini", reply.usage)


@pytest.mark.vendors("sim")
def test_tools_of_a_server_need_a_limit(gateway):
    server = {"type": "mcp", "server_label": "sums", "server_url": "https://sums.example"}
    with pytest.raises(openai.BadRequestError) as refused:
        respond(gateway().account().client(), tools=[server])
    assert refused.value.param == "max_tool_calls" and "tools[0].type is 'mcp'" in refused.value.message
