"""What all endpoints beside those of conversation have in common: who may call them, what they refuse, and what a
vendor that fails costs. Moderations, which are free, and vendor_d's edits have their own tests."""

import openai
import pytest
from stack import VENDOR_KEY, sdk
from talk import draw, edit, embed, respond, speak, verdict

CALLS = {"responses": respond, "images": draw, "edits": edit, "speech": speak, "embeddings": embed}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")


@each_call
def test_a_bad_key_is_an_authentication_error(gateway, call):
    gw = gateway()
    before = gw.vendor.count()
    with pytest.raises(openai.AuthenticationError) as refused:
        call(gw.client("sk-of-nobody"))
    assert verdict(refused) == (401, "invalid_api_key", None) and refused.value.request_id
    assert gw.vendor.count() == before


@each_call
def test_a_revoked_key_is_a_permission_error(gateway, call):
    alice = gateway().account()
    alice.revoke()
    with pytest.raises(openai.PermissionDeniedError) as refused:
        call(alice.client())
    assert verdict(refused) == (403, "key_revoked", None)
    assert alice.charges(0) == []


@both_stores
@each_call
def test_without_credit_nothing_reaches_the_vendor(gateway, call):
    gw = gateway()
    poor, before = gw.account(credit=None), gw.vendor.count()
    with pytest.raises(openai.APIStatusError) as refused:
        call(poor.client())
    assert verdict(refused) == (402, "insufficient_credits", None)
    assert poor.charges(0) == [] and gw.vendor.count() == before


@each_call
def test_an_unknown_model_is_not_found_and_the_closest_is_named(gateway, call):
    alice = gateway().account()
    with pytest.raises(openai.NotFoundError) as refused:
        call(alice.client(), model="lmb-image-1-minni")
    assert verdict(refused) == (404, "model_not_found", "model")
    # The closest of those that are sold there.
    closest = "'lmb-4.1-mini'" if call is respond else "'lmb-image-1-mini'"
    assert closest in refused.value.message
    assert alice.charges(0) == []


CHAT, IMAGES = "/v1/chat/completions", "/v1/images/generations"
WRONG_KINDS = [
    (respond, "lma-opus-5", CHAT),
    (respond, "lmc-3.5-flash", CHAT),
    (respond, "lmd-4.6", CHAT),
    (respond, "orgA/famA-V3.2", CHAT),
    (respond, "lmb-image-2", IMAGES),
    (respond, "text-embedding-3-small", "/v1/embeddings"),
    (draw, "lmb-5.5", CHAT),
    (draw, "lmb-5.5-pro", "/v1/responses"),
    (draw, "lmd-imagine-video", "/v1/videos"),
    (edit, "lmb-5.5", CHAT),
    (edit, "tts-1", "/v1/audio/speech"),
    (speak, "lmb-5.5", CHAT),
    (speak, "omni-moderation-latest", "/v1/moderations"),
    (embed, "lmb-5.5", CHAT),
    (embed, "lmc-3.5-flash", CHAT),
    (embed, "lmd-imagine-image", IMAGES),
]


@pytest.mark.vendors("sim")
@pytest.mark.parametrize(("call", "model", "path"), WRONG_KINDS, ids=lambda value: getattr(value, "__name__", value))
def test_a_model_of_another_kind_is_refused_and_its_endpoint_named(gateway, call, model, path):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(openai.BadRequestError) as refused:
        call(alice.client(), model=model)
    assert verdict(refused) == (400, "wrong_endpoint", "model") and path in refused.value.message
    assert alice.charges(0) == [] and gw.vendor.count() == before


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("path", ["/responses", "/images/generations", "/audio/speech", "/embeddings", "/moderations"])
def test_a_body_that_is_no_json_or_lacks_its_model_is_a_bad_request(gateway, path):
    alice = gateway().account()
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().post(path, content=b'{"model": "lm', cast_to=object)
    assert refused.value.code == "invalid_json"
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().post(path, body={}, cast_to=object)
    missing = "input" if path == "/moderations" else "model"
    assert verdict(refused) == (400, "missing_required_parameter", missing)
    assert alice.charges(0) == []


@each_call
def test_a_vendors_400_passes_with_its_message(gateway, call):
    gw = gateway(vendor_b="status=400")
    alice, direct = gw.account(), sdk(gw.vendor.address("vendor_b", "status=400"), VENDOR_KEY)
    with pytest.raises(openai.BadRequestError) as said:
        call(direct, "status=400")
    with pytest.raises(openai.BadRequestError) as refused:
        call(alice.client(), "status=400")
    assert said.value.body["message"] and said.value.body["message"] in refused.value.body["message"]
    assert alice.charges(0) == []


@pytest.mark.vendors("sim")
@pytest.mark.parametrize(
    ("vendor", "call", "model"),
    [("vendor_c", embed, "lmc-embedding-001"), ("vendor_d", draw, "lmd-imagine-image")]
    + [("vendor_d", edit, "lmd-imagine-image")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_400_in_the_vendors_own_shape_is_readable(gateway, vendor, call, model):
    alice = gateway(**{vendor: "status=400"}).account()
    with pytest.raises(openai.BadRequestError) as refused:
        call(alice.client(), model=model)
    assert isinstance(refused.value.body["message"], str) and refused.value.body["message"]
    assert refused.value.type == "invalid_request_error" and alice.charges(0) == []


@each_call
def test_a_vendor_that_rejects_our_keys_on_every_route_is_our_fault(gateway, call):
    gw = gateway(vendor_b=["status=401", "status=401"])
    alice = gw.account()
    with pytest.raises(openai.InternalServerError) as refused:
        call(alice.client(), "status=401")
    assert verdict(refused)[:2] == (502, "upstream_error") and "key" not in refused.value.message.lower()
    assert gw.vendor.count() == 2 and alice.charges(0) == []


@each_call
def test_a_vendor_overloaded_on_every_route_is_503(gateway, call):
    gw = gateway(vendor_b=["status=429", "status=429"])
    alice = gw.account()
    with pytest.raises(openai.InternalServerError) as refused:
        call(alice.client(), "status=429")
    assert verdict(refused)[:2] == (503, "upstream_overloaded") and "org-sim" not in refused.value.message
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert gw.vendor.count() == 2 and alice.charges(0) == []


@each_call
def test_a_vendors_500_is_502_and_the_sdk_does_not_retry_it(gateway, call):
    gw = gateway(vendor_b="status=500")
    alice = gw.account()
    with pytest.raises(openai.InternalServerError) as refused:
        call(alice.client(max_retries=2), "status=500")
    assert verdict(refused)[:2] == (502, "upstream_error")
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert gw.vendor.count() == 1 and alice.charges(0) == []


# Of sound nobody knows whether it is garbage, and of what is too short the beginning is heard.
BREAKS = [(call, fault) for call in CALLS.values() if call is not speak for fault in ("garbage", "wrong-length=long")]
BREAKS += [(call, "cut=0") for call in CALLS.values()]


@pytest.mark.vendors("sim")
@pytest.mark.parametrize(("call", "fault"), BREAKS, ids=lambda value: getattr(value, "__name__", value))
def test_a_whole_answer_the_vendor_breaks_is_502_and_not_retried(gateway, call, fault):
    gw = gateway(vendor_b=fault)
    alice = gw.account()
    with pytest.raises(openai.InternalServerError) as refused:
        call(alice.client(max_retries=2))
    assert verdict(refused)[:2] == (502, "upstream_error")
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert gw.vendor.count() == 1 and alice.charges(0) == []


@both_stores
@each_call
def test_a_retry_by_the_sdk_is_charged_once(gateway, call):
    gw = gateway(vendor_b="status=503;times=1")
    alice = gw.account()
    assert call(alice.client(max_retries=2), "status=503;times=1")
    charge = alice.charge()
    assert (charge.vendor, charge.route, charge.depth) == ("vendor_b", "main", 0)
    assert gw.vendor.count() == 2


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("first", ["unreachable", "status=503", "status=401", "reset=0"])
@each_call
def test_a_route_that_is_down_falls_back_to_the_next(gateway, call, first):
    alice = gateway(vendor_b=[first, ""]).account()
    assert call(alice.client())
    charge = alice.charge()
    assert (charge.route, charge.depth) == ("second", 1) and charge.amount_nano > 0


@pytest.mark.vendors("sim")
@each_call
def test_nothing_about_the_gateways_own_account_reaches_the_client(gateway, call):
    alice = gateway().account()
    raw = {
        respond: alice.client().responses.with_raw_response,
        draw: alice.client().images.with_raw_response,
        edit: alice.client().images.with_raw_response,
        speak: alice.client().audio.speech.with_raw_response,
        embed: alice.client().embeddings.with_raw_response,
    }[call]
    headers = call(Raw(raw)).headers
    assert not {"set-cookie", "openai-organization"} & set(headers)
    assert not [value for value in headers.values() if "sim-" in value or "secret" in value]
    assert [charge.request_id for charge in alice.charges(1)] == [headers["x-request-id"]]


class Raw:
    """A client all of whose parts are this one."""

    def __init__(self, part):
        self.responses = self.images = self.speech = self.embeddings = part
        self.audio = self


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("path", ["/responses", "/images/edits", "/audio/speech", "/embeddings", "/moderations"])
def test_another_method_is_not_allowed(gateway, path):
    with pytest.raises(openai.APIStatusError) as refused:
        sdk(gateway().base_url, "sk-of-nobody").get(path, cast_to=object)
    assert refused.value.status_code == 405 and refused.value.response.headers["allow"] == "POST"
