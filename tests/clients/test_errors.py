"""Every refusal is the exception of the SDK that an application would catch for it."""

import openai
import pytest
from stack import VENDOR_KEY, ask, sdk

pytestmark = pytest.mark.stores("sqlite")


def chat(client, model="lmb-5.5", text="hello", **more):
    return client.chat.completions.create(model=model, messages=ask(text), **more)


def verdict(refused):
    return refused.value.status_code, refused.value.code


def test_a_bad_key_is_an_authentication_error(gateway):
    with pytest.raises(openai.AuthenticationError) as refused:
        chat(gateway().client("sk-of-nobody"))
    assert verdict(refused) == (401, "invalid_api_key")
    assert refused.value.request_id


def test_an_unknown_model_is_not_found_and_the_closest_is_named(gateway):
    alice = gateway().account()
    with pytest.raises(openai.NotFoundError) as refused:
        chat(alice.client(), model="lmb-5.4-minni")
    assert verdict(refused) == (404, "model_not_found")
    assert "'lmb-5.4-mini'" in refused.value.message and refused.value.param == "model"
    assert alice.charges(0) == []


WRONG_KINDS = {
    "lmb-5.5-pro": "/v1/responses",
    "lmb-image-2": "/v1/images/generations",
    "tts-1": "/v1/audio/speech",
}


@pytest.mark.parametrize("model", WRONG_KINDS)
def test_a_model_of_another_kind_is_refused_and_its_endpoint_named(gateway, model):
    alice = gateway().account()
    with pytest.raises(openai.BadRequestError) as refused:
        chat(alice.client(), model=model)
    assert verdict(refused) == (400, "wrong_endpoint")
    assert WRONG_KINDS[model] in refused.value.message
    assert alice.charges(0) == []


def test_a_missing_model_is_a_bad_request(gateway):
    alice = gateway().account()
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().post("/chat/completions", body={"messages": ask("hello")}, cast_to=object)
    assert verdict(refused)[0] == 400
    assert "model" in refused.value.message
    assert alice.charges(0) == []


def test_without_credit_nothing_reaches_the_vendor(gateway):
    gw = gateway()
    poor, before = gw.account(credit=None), gw.vendor.count()
    with pytest.raises(openai.APIStatusError) as refused:
        chat(poor.client())
    assert verdict(refused) == (402, "insufficient_credits")
    assert poor.charges(0) == [] and gw.vendor.count() == before


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_vendors_400_passes_with_its_message(gateway, streamed):
    gw = gateway(vendor_b="status=400")
    alice, direct = gw.account(), sdk(gw.vendor.address("vendor_b", "status=400"), VENDOR_KEY)
    with pytest.raises(openai.BadRequestError) as said:
        chat(direct, text="status=400")
    with pytest.raises(openai.BadRequestError) as refused:
        chat(alice.client(), text="status=400", stream=streamed)
    assert said.value.body["message"] and said.value.body["message"] in refused.value.body["message"]
    assert alice.charges(0) == []


@pytest.mark.vendors("sim")
@pytest.mark.parametrize(
    ("vendor", "model"), [("vendor_c", "lmc-3.5-flash"), ("vendor_d", "lmd-4.6"), ("vendor_e", "orgA/famA-V3.2")]
)
def test_a_400_in_the_vendors_own_shape_is_readable(gateway, vendor, model):
    alice = gateway(**{vendor: "status=400"}).account()
    with pytest.raises(openai.BadRequestError) as refused:
        chat(alice.client(), model=model)
    assert isinstance(refused.value.body["message"], str) and refused.value.body["message"]
    assert refused.value.type == "invalid_request_error"


def test_a_vendor_that_rejects_our_keys_on_every_route_is_our_fault(gateway):
    gw = gateway(vendor_b=["status=401", "status=401"])
    alice = gw.account()
    with pytest.raises(openai.InternalServerError) as refused:
        chat(alice.client(), text="status=401")
    assert verdict(refused)[0] == 502 and "key" not in refused.value.message.lower()
    assert gw.vendor.count() == 2 and alice.charges(0) == []


def test_a_vendor_overloaded_on_every_route_is_503(gateway):
    gw = gateway(vendor_b=["status=429", "status=429"])
    alice = gw.account()
    with pytest.raises(openai.InternalServerError) as refused:
        chat(alice.client(), text="status=429")
    assert verdict(refused)[0] == 503 and "org-sim" not in refused.value.message
    assert gw.vendor.count() == 2 and alice.charges(0) == []


def test_a_vendors_500_is_502_and_the_sdk_does_not_retry_it(gateway):
    gw = gateway(vendor_b="status=500")
    alice = gw.account()
    with pytest.raises(openai.InternalServerError) as refused:
        chat(alice.client(max_retries=2), text="status=500")
    assert verdict(refused)[0] == 502
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert gw.vendor.count() == 1 and alice.charges(0) == []
