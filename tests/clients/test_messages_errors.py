"""Every refusal at /v1/messages is the exception of vendor_a's SDK that an application would catch."""

import re

import anthropic
import httpx2
import pytest
from stack import ask
from talk import words_of

pytestmark = pytest.mark.stores("sqlite")
MODEL = "lma-opus-5"


def message(client, model=MODEL, text="hello", **more):
    return client.messages.create(model=model, max_tokens=100, messages=ask(text), **more)


def assert_shape(error, status, kind):
    """The exception's parts, all of which come out of the body and the headers of the answer."""
    assert (error.status_code, error.type) == (status, kind)
    assert error.api_message and error.body["type"] == "error"
    assert error.request_id and error.request_id == error.body["request_id"]
    assert error.response.headers["x-request-id"] == error.request_id


def test_a_bad_key_is_an_authentication_error(gateway):
    with pytest.raises(anthropic.AuthenticationError) as refused:
        message(gateway().native("sk-of-nobody"))
    assert_shape(refused.value, 401, "authentication_error")


def test_no_key_at_all_is_an_authentication_error(gateway):
    reply = httpx2.post(f"{gateway().base_url}/messages", json={})
    assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")


def test_a_revoked_key_is_denied(gateway):
    alice = gateway().account()
    alice.revoke()
    with pytest.raises(anthropic.PermissionDeniedError) as refused:
        message(alice.native())
    assert_shape(refused.value, 403, "permission_error")


def test_an_unknown_model_is_not_found_and_the_closest_is_named(gateway):
    alice = gateway().account()
    with pytest.raises(anthropic.NotFoundError) as refused:
        message(alice.native(), model="lma-opus-4-77")
    assert_shape(refused.value, 404, "not_found_error")
    assert "'lma-opus-4-7'" in refused.value.api_message
    assert alice.charges(0) == []


WRONG_KINDS = {
    "lmb-5.5": "/v1/chat/completions",
    "orgA/famA-V3.2": "/v1/chat/completions",
    "lmb-5.5-pro": "/v1/responses",
    "lmb-image-2": "/v1/images/generations",
}


@pytest.mark.parametrize("model", WRONG_KINDS)
def test_a_model_of_another_kind_is_refused_and_its_endpoint_named(gateway, model):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(anthropic.BadRequestError) as refused:
        message(alice.native(), model=model)
    assert_shape(refused.value, 400, "invalid_request_error")
    assert WRONG_KINDS[model] in refused.value.api_message
    assert alice.charges(0) == [] and gw.vendor.count() == before


@pytest.mark.parametrize("field", ["max_tokens", "messages", "model"])
def test_a_missing_field_is_a_bad_request_that_names_it(gateway, field):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    body = {"model": MODEL, "max_tokens": 5, "messages": ask("hello")}
    del body[field]
    with pytest.raises(anthropic.BadRequestError) as refused:
        alice.native().post("/v1/messages", body=body, cast_to=object)
    assert_shape(refused.value, 400, "invalid_request_error")
    assert field in refused.value.api_message
    assert alice.charges(0) == [] and gw.vendor.count() == before


COSTLY = [{"speed": "fast"}, {"inference_geo": "us"}, {"extra_body": {"fallbacks": [{"model": "lma-sonnet-5"}]}}]


@pytest.mark.parametrize("field", COSTLY, ids=str)
def test_a_field_that_moves_the_bill_is_refused_and_named(gateway, field):
    alice = gateway().account()
    with pytest.raises(anthropic.BadRequestError) as refused:
        message(alice.native(), **field)
    assert_shape(refused.value, 400, "invalid_request_error")
    name = next(iter(field.get("extra_body", field)))
    assert name in refused.value.api_message and alice.charges(0) == []


def test_without_credit_nothing_reaches_the_vendor(gateway):
    gw = gateway()
    poor, before = gw.account(credit=None), gw.vendor.count()
    with pytest.raises(anthropic.PaymentRequiredError) as refused:
        message(poor.native())
    assert_shape(refused.value, 402, "billing_error")
    assert poor.charges(0) == [] and gw.vendor.count() == before


def test_a_body_that_is_too_large_is_refused_here(gateway):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(anthropic.ContentTooLargeError) as refused:
        message(alice.native(), text="x" * (33 << 20))
    assert_shape(refused.value, 413, "request_too_large")
    assert alice.charges(0) == [] and gw.vendor.count() == before


@pytest.mark.vendors("sim")
def test_counting_tokens_is_free(gateway):
    alice = gateway().account()
    counted = alice.native().messages.count_tokens(model=MODEL, messages=ask("hello"))
    assert counted.input_tokens > 0 and alice.charges(0) == []


def test_a_wrong_key_is_not_tried_again(gateway):
    client = anthropic.Anthropic(base_url=gateway().base_url.removesuffix("/v1"), api_key="wrong")
    with pytest.raises(anthropic.AuthenticationError) as refused:
        message(client)
    assert refused.value.response.headers["x-should-retry"] == "false"


def test_a_base_address_with_v1_is_told_to_leave_it_out(gateway):
    gw = gateway()
    client = anthropic.Anthropic(base_url=gw.base_url, api_key=gw.account().key, max_retries=0)
    with pytest.raises(anthropic.NotFoundError) as refused:
        message(client)
    assert_shape(refused.value, 404, "not_found_error")
    said = refused.value.api_message
    assert "'/v1' out of" in said and "base address" in said


# what vendor_a answers on all of two routes -> the exception, its status, its type, how often it was asked
ANSWERS = {
    "status=400": (anthropic.BadRequestError, 400, "invalid_request_error", 1),
    "status=404": (anthropic.NotFoundError, 404, "not_found_error", 1),
    "status=413": (anthropic.ContentTooLargeError, 413, "request_too_large", 1),
    "status=401": (anthropic.InternalServerError, 502, "api_error", 2),
    "status=429": (anthropic.OverloadedError, 529, "overloaded_error", 2),
    "status=529": (anthropic.OverloadedError, 529, "overloaded_error", 2),
    "status=500": (anthropic.InternalServerError, 502, "api_error", 2),
}


@pytest.mark.parametrize("fault", ANSWERS)
def test_an_error_of_vendor_a_is_the_exception_for_it_and_free(gateway, fault):
    exception, status, kind, asked = ANSWERS[fault]
    gw = gateway(vendor_a=[fault, fault])
    alice = gw.account()
    for streamed in False, True:
        before = gw.vendor.count()
        with pytest.raises(exception) as refused:
            message(alice.native(), text=fault, stream=streamed)
        assert_shape(refused.value, status, kind)
        assert not re.search("vk-|sim-account|req_vendor", f"{refused.value} {refused.value.response.headers}")
        assert gw.vendor.count() - before == asked
    assert alice.charges(0) == []


def test_a_500_is_not_retried_by_the_sdk(gateway):
    gw = gateway(vendor_a="status=500")
    with pytest.raises(anthropic.InternalServerError) as refused:
        message(gw.account().native(max_retries=2), text="status=500")
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert gw.vendor.count() == 1


def test_a_retry_by_the_sdk_is_charged_once(gateway):
    gw = gateway(vendor_a="status=503;times=1")
    alice = gw.account()
    reply = message(alice.native(max_retries=2), text="status=503;times=1")
    assert words_of(reply) and gw.vendor.count() == 2
    alice.assert_paid(MODEL, reply.usage)


@pytest.mark.vendors("sim")  # aimock answers by the question, which is the same on both routes
@pytest.mark.parametrize("fault", ["status=529", "status=401", "reset=0"])
def test_a_route_that_blocks_is_passed_by(gateway, fault):
    alice = gateway(vendor_a=[fault, ""]).account()
    raw = alice.native().messages.with_raw_response.create(model=MODEL, max_tokens=100, messages=ask("hello"))
    assert raw.headers["x-gateway-fallback-depth"] == "1"
    alice.assert_paid(MODEL, raw.parse().usage)


def read_until_it_breaks(alice, fault):
    """What arrived of a stream, and the error event it ended in."""
    events = []
    with pytest.raises(anthropic.APIStatusError) as broken:
        for event in message(alice.native(), text=fault, stream=True):
            events.append(event)
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and "content_block_delta" in kinds and "message_stop" not in kinds
    assert broken.value.body["type"] == "error" and broken.value.body["request_id"] == broken.value.request_id
    return broken.value


def test_a_stream_that_vendor_a_cuts_ends_in_an_error_event(gateway):
    fault = "reasoning=0;cut=4"
    alice = gateway(vendor_a=fault).account()
    error = read_until_it_breaks(alice, fault)
    assert error.type == "api_error" and error.api_message
    assert alice.charge().amount_nano > 0


@pytest.mark.vendors("sim")  # aimock knows no error within a stream
def test_an_error_within_the_stream_is_vendor_as_own(gateway):
    fault = "reasoning=0;error-event=4"
    alice = gateway(vendor_a=fault).account()
    error = read_until_it_breaks(alice, fault)
    assert (error.type, error.api_message) == ("overloaded_error", "Overloaded")
    assert alice.charge().amount_nano > 0
