"""GET /v1/models, as the SDK reads it."""

from decimal import Decimal

import openai
import pytest
from stack import ask

KINDS = {"chat", "responses", "image", "video", "speech", "embedding", "moderation"}


def test_the_list_has_every_kind_with_its_endpoints(gateway):
    models = {model.id: model for model in gateway().account().client().models.list()}
    assert {model.type for model in models.values()} == KINDS
    assert models["lmb-5.5"].owned_by == "vendor_b" and models["lmb-5.5"].supports_effort is True
    assert "/v1/chat/completions" in models["lmb-5.5"].endpoints
    assert models["lmb-5.5-pro"].endpoints == ["/v1/responses"]
    assert (models["lmb-5.5"].context_length, models["lmb-5.2"].context_length) == (400_000, None)


def test_prices_are_exact_decimal_strings_per_token(gateway):
    pricing = gateway().account().client().models.retrieve("lmb-5.5").pricing
    assert [Decimal(pricing[kind]) for kind in ("prompt", "completion")] == [Decimal("0.000005"), Decimal("0.00003")]
    (tier,) = pricing["tiers"]
    assert (tier["above_input_tokens"], Decimal(tier["prompt"])) == (272_000, Decimal("0.00001"))


def test_a_model_with_a_slash_in_its_name_is_found(gateway):
    model = gateway().account().client().models.retrieve("orgA/famA-V3.2")
    assert (model.id, model.object, model.owned_by) == ("orgA/famA-V3.2", "model", "vendor_e")
    assert Decimal(model.pricing["completion"]) == Decimal("0.00000038")


def test_an_unknown_model_is_not_found_and_the_closest_is_named(gateway):
    with pytest.raises(openai.NotFoundError) as refused:
        gateway().account().client().models.retrieve("orgA/famA-V3.3")
    assert refused.value.code == "model_not_found" and "orgA/famA-V3" in refused.value.message


def test_listing_is_free_and_needs_no_credit(gateway):
    poor = gateway().account(credit=None)
    assert list(poor.client().models.list())
    assert poor.charges(0) == []


@pytest.mark.vendors("sim")
def test_every_listed_chat_model_with_a_route_answers(gateway):
    alice = gateway().account(credit="100")
    chat_models = [m for m in alice.client().models.list() if m.type == "chat"]
    assert len(chat_models) > 50
    for model in chat_models:
        reply = alice.client().chat.completions.create(model=model.id, messages=ask("hello"))
        assert reply.choices[0].message.content, model.id
    paid = {charge.model for charge in alice.charges(len(chat_models))}
    assert paid == {model.id for model in chat_models}
