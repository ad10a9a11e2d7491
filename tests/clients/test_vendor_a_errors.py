"""What goes wrong at vendor_a, as the exception of the SDK that a chat client would catch."""

import re

import openai
import pytest
from stack import ask

pytestmark = pytest.mark.stores("sqlite")
MODEL = "lma-opus-5"
whole_and_streamed = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])

# what vendor_a answers on all of two routes -> the exception, its status, how often it was asked
ANSWERS = {
    "status=400": (openai.BadRequestError, 400, 1),
    "status=404": (openai.NotFoundError, 404, 1),
    "status=413": (openai.APIStatusError, 413, 1),
    "status=401": (openai.InternalServerError, 502, 2),
    "status=429": (openai.InternalServerError, 503, 2),
    "status=529": (openai.InternalServerError, 503, 2),
    "status=500": (openai.InternalServerError, 502, 2),
}


@pytest.mark.parametrize("fault", ANSWERS)
def test_an_error_of_vendor_a_is_the_exception_for_it_and_free(gateway, fault):
    kind, status, asked = ANSWERS[fault]
    gw = gateway(vendor_a=[fault, fault])
    alice = gw.account()
    for streamed in False, True:
        before = gw.vendor.count()
        with pytest.raises(kind) as refused:
            alice.client().chat.completions.create(model=MODEL, messages=ask(fault), stream=streamed)
        assert refused.value.status_code == status and refused.value.request_id
        assert isinstance(refused.value.body["message"], str) and refused.value.body["message"]
        assert refused.value.type == ("invalid_request_error" if status < 500 else "server_error")
        assert not re.search("vk-|sim-account|req_vendor", f"{refused.value} {refused.value.response.headers}")
        assert gw.vendor.count() - before == asked
    assert alice.charges(0) == []


def test_vendor_as_own_words_about_a_bad_request_reach_the_client(gateway):
    gw = gateway(vendor_a="status=400")
    alice = gw.account()
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().chat.completions.create(model=MODEL, messages=ask("status=400"))
    words = {"sim": "The request is invalid.", "aimock": "does not support 3."}
    assert words[gw.vendor.process.name] in refused.value.body["message"]


def test_a_route_nobody_listens_at_is_passed_by(gateway):
    gw = gateway(vendor_a=["unreachable", ""])
    alice = gw.account()
    raw = alice.client().chat.completions.with_raw_response.create(model=MODEL, messages=ask("hello"))
    assert raw.headers["x-gateway-fallback-depth"] == "1"
    alice.assert_paid(MODEL, raw.parse().usage)


@pytest.mark.vendors("sim")  # aimock answers by the question, which is the same on both routes
@pytest.mark.parametrize("fault", ["status=529", "status=429", "status=500", "status=401", "reset=0"])
def test_a_route_that_blocks_is_passed_by(gateway, fault):
    alice = gateway(vendor_a=[fault, ""]).account()
    raw = alice.client().chat.completions.with_raw_response.create(model=MODEL, messages=ask("hello"))
    assert raw.headers["x-gateway-fallback-depth"] == "1"
    alice.assert_paid(MODEL, raw.parse().usage)


def read_until_it_breaks(alice, fault):
    """What arrived of a stream, and the error it ended in."""
    chunks = []
    stream = alice.client().chat.completions.create(model=MODEL, messages=ask(fault), stream=True)
    with pytest.raises(openai.APIError) as broken:
        for chunk in stream:
            chunks.append(chunk)
    # An APIConnectionError, a subclass, would be a broken connection instead of an error event.
    assert type(broken.value) is openai.APIError and broken.value.message
    assert not any(chunk.choices[0].finish_reason for chunk in chunks)
    return chunks, broken.value


def test_a_stream_that_vendor_a_cuts_is_an_error_and_no_clean_end(gateway):
    fault = "reasoning=0;cut=4"
    alice = gateway(vendor_a=fault).account()
    chunks, error = read_until_it_breaks(alice, fault)
    assert (error.type, error.code) == ("server_error", "upstream_error")
    assert any(chunk.choices[0].delta.content for chunk in chunks)
    assert alice.charge().amount_nano > 0


@pytest.mark.vendors("sim")  # aimock knows no error within a stream
def test_an_error_within_vendor_as_stream_is_raised_with_its_message(gateway):
    fault = "reasoning=0;error-event=4"
    alice = gateway(vendor_a=fault).account()
    chunks, error = read_until_it_breaks(alice, fault)
    assert (error.type, error.code) == ("server_error", "upstream_error")
    assert error.message == "Overloaded"
    assert any(chunk.choices[0].delta.content for chunk in chunks)
    assert alice.charge().amount_nano > 0


@pytest.mark.vendors("sim")  # aimock's answers are always whole
@whole_and_streamed
def test_an_answer_that_vendor_a_garbles_is_an_error_and_not_retried(gateway, streamed):
    gw = gateway(vendor_a="garbage")
    alice = gw.account()
    with pytest.raises(openai.APIError):
        reply = alice.client(max_retries=2).chat.completions.create(
            model=MODEL, messages=ask("hello"), stream=streamed
        )
        list(reply)
    assert gw.vendor.count() == 1


def test_a_chat_model_of_vendor_a_misspelt_is_not_found_and_the_closest_is_named(gateway):
    alice = gateway().account()
    with pytest.raises(openai.NotFoundError) as refused:
        alice.client().chat.completions.create(model="lma-opus-4-77", messages=ask("hello"))
    assert "'lma-opus-4-7'" in refused.value.message and refused.value.param == "model"
    assert alice.charges(0) == []
