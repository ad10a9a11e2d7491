"""POST /v1/moderations: free, for everybody with a key."""

import asyncio

import openai
import pytest
from talk import judge, shown, verdict

CATEGORIES = 13
pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")
sim = pytest.mark.vendors("sim")
PARTS = [
    {"type": "text", "text": "some violence"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
]


@both_stores
def test_a_text_is_judged_at_no_balance_and_without_a_model(gateway):
    poor = gateway().account(credit=None)
    reply = judge(poor.client(), "hello")
    assert (reply.model, reply.id[:4]) == ("omni-moderation-latest", "modr")
    (result,) = reply.results
    assert result.flagged is False and len(result.categories.model_fields_set) == CATEGORIES
    assert poor.charges(0) == [] and poor.balance().available_nano == 0


@pytest.mark.parametrize("model", ["omni-moderation-latest", "omni-moderation-2024-09-26"])
def test_a_model_may_be_named(gateway, model):
    alice = gateway().account()
    assert judge(alice.client(), "hello", model=model).model == model
    assert alice.charges(0) == [] and alice.balance().available_nano == 5 * 10**9


@sim
def test_every_text_of_a_list_has_its_verdict(gateway):
    alice = gateway().account(credit=None)
    reply = judge(alice.client(), ["peace", "some violence", "naïve 👩‍🚀"])
    assert [result.flagged for result in reply.results] == [False, True, False]
    assert reply.results[1].categories.violence and not reply.results[1].categories.hate
    assert reply.results[1].category_scores.violence == 0.9375
    assert alice.charges(0) == []


@sim
def test_parts_of_several_kinds_are_judged_together(gateway):
    (result,) = judge(gateway().account(credit=None).client(), PARTS).results
    assert result.flagged and result.category_applied_input_types.violence == ["text", "image"]


@sim
@pytest.mark.parametrize("more", [{}, {"model": "omni-moderation-2024-09-26"}], ids=shown)
def test_the_body_reaches_the_vendor_with_a_model(gateway, more):
    gw = gateway(vendor_b="")
    judge(gw.account().client(), PARTS, **more)
    assert gw.vendor.received() == [{"input": PARTS, "model": "omni-moderation-latest"} | more]


def test_the_async_client_is_given_verdicts(gateway):
    alice = gateway().account(credit=None)

    async def ten():
        async with alice.async_client() as client:
            return await asyncio.gather(*(client.moderations.create(input="hello") for _ in range(10)))

    assert [reply.results[0].flagged for reply in asyncio.run(ten())] == [False] * 10
    assert alice.charges(0) == []


def test_a_key_is_needed_all_the_same(gateway):
    gw = gateway()
    with pytest.raises(openai.AuthenticationError) as refused:
        judge(gw.client("sk-of-nobody"))
    assert refused.value.code == "invalid_api_key"
    alice = gw.account()
    alice.revoke()
    with pytest.raises(openai.PermissionDeniedError) as refused:
        judge(alice.client())
    assert refused.value.code == "key_revoked"


WRONG = [
    ({"input": openai.omit}, 400, "missing_required_parameter", "input"),
    ({"input": []}, 400, "invalid_value", "input"),
    ({"input": 7}, 400, "invalid_value", "input"),
    ({"extra_body": {"model": 7}}, 400, "invalid_value", "model"),
    ({"model": "lmb-5.5"}, 400, "wrong_endpoint", "model"),
    ({"model": "omni-moderation-lates"}, 404, "model_not_found", "model"),
]


@sim
@pytest.mark.parametrize(("wrong", "status", "code", "param"), WRONG, ids=shown)
def test_what_is_wrong_is_refused_before_the_vendor_is_asked(gateway, wrong, status, code, param):
    gw = gateway()
    alice, before = gw.account(credit=None), gw.vendor.count()
    with pytest.raises(openai.APIStatusError) as refused:
        alice.client().moderations.create(**{"input": "hello"} | wrong)
    assert verdict(refused) == (status, code, param)
    assert gw.vendor.count() == before


@sim
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (["status=429", "status=429"], 503, "upstream_overloaded"),
        (["status=401", "status=401"], 502, "upstream_error"),
        ("status=500", 502, "upstream_error"),
        ("garbage", 502, "upstream_error"),
        ("cut=0", 502, "upstream_error"),
    ],
    ids=shown,
)
def test_a_vendor_that_fails_is_told_as_anywhere(gateway, fault, status, code):
    alice = gateway(vendor_b=fault).account(credit=None)
    with pytest.raises(openai.InternalServerError) as refused:
        judge(alice.client())
    assert verdict(refused)[:2] == (status, code)


@sim
def test_a_vendors_400_passes_with_its_message(gateway):
    alice = gateway(vendor_b="status=400").account(credit=None)
    with pytest.raises(openai.BadRequestError) as refused:
        judge(alice.client())
    assert refused.value.body["message"] and alice.charges(0) == []


@sim
@pytest.mark.parametrize("first", ["unreachable", "status=503"])
def test_a_route_that_is_down_falls_back_to_the_next(gateway, first):
    alice = gateway(vendor_b=[first, ""]).account(credit=None)
    assert judge(alice.client()).results
