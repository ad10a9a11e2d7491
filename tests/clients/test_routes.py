"""A route that is down, and streams that break."""

import openai
import pytest
from stack import ask

pytestmark = pytest.mark.stores("sqlite")

FIRST_ROUTES_DOWN = ["status=503", "status=429", "status=500", "status=401", "reset=0"]


def fallback(gateway, first, streamed):
    """Asks with a first route that is down; the account, and the header that counts such routes."""
    alice = gateway(vendor_b=[first, ""]).account()
    raw = alice.client().chat.completions.with_raw_response.create(
        model="lmb-5.5", messages=ask("hello"), stream=streamed
    )
    reply = raw.parse()
    assert list(reply) if streamed else reply.choices[0].message.content
    return alice, raw.headers["x-gateway-fallback-depth"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_route_nobody_listens_at_falls_back_to_the_next(gateway, streamed):
    alice, depth = fallback(gateway, "unreachable", streamed)
    charge = alice.charge()
    assert depth == "1" and (charge.depth, charge.route) == (1, "second")


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("first", FIRST_ROUTES_DOWN)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_route_that_blocks_falls_back_to_the_next(gateway, first, streamed):
    alice, depth = fallback(gateway, first, streamed)
    charge = alice.charge()
    assert depth == "1" and (charge.depth, charge.route) == (1, "second")


def test_without_a_route_that_answers_the_failure_is_no_charge(gateway):
    alice = gateway(vendor_b=["unreachable", "unreachable"]).account()
    with pytest.raises(openai.InternalServerError) as refused:
        alice.client().chat.completions.create(model="lmb-5.5", messages=ask("hello"))
    assert refused.value.status_code in (502, 503)
    assert alice.charges(0) == []


def read_until_it_breaks(alice, fault):
    """What arrived of a stream, and the error it ended in."""
    chunks = []
    stream = alice.client().chat.completions.create(model="lmb-5.5", messages=ask(fault), stream=True)
    with pytest.raises(openai.APIError) as broken:
        for chunk in stream:
            chunks.append(chunk)
    return chunks, broken.value


@pytest.mark.vendors("sim")
def test_an_error_event_in_a_stream_is_raised(gateway):
    alice = gateway(vendor_b="error-event=3").account()
    chunks, error = read_until_it_breaks(alice, "error-event=3")
    # An APIConnectionError, a subclass, would be a broken connection instead of an error event.
    assert type(error) is openai.APIError and error.message
    assert any(chunk.choices[0].delta.content for chunk in chunks)
    assert alice.charge().amount_nano > 0


def test_a_stream_the_vendor_cuts_is_an_error_and_no_clean_end(gateway):
    alice = gateway(vendor_b="cut=3").account()
    chunks, error = read_until_it_breaks(alice, "cut=3")
    assert type(error) is openai.APIError and error.code == "upstream_error"
    assert any(chunk.choices[0].delta.content for chunk in chunks)
    charge = alice.charge()
    assert charge.basis == "counted" and charge.amount_nano > 0


@pytest.mark.vendors("sim")
def test_a_whole_answer_the_vendor_garbles_is_502_and_not_retried(gateway):
    gw = gateway(vendor_b="garbage")
    alice = gw.account()
    with pytest.raises(openai.InternalServerError) as refused:
        alice.client(max_retries=2).chat.completions.create(model="lmb-5.5", messages=ask("hello"))
    assert refused.value.status_code == 502
    assert gw.vendor.count() == 1
