"""GET /v1/models, as the SDKs of both formats read it."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

import anthropic
import openai
import pytest
from stack import ask

pytestmark = pytest.mark.stores("sqlite")
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


def test_every_kind_has_the_price_of_its_kind(gateway):
    client = gateway().account().client()
    prices = {
        "tts-1-hd": {"character": "0.00003"},
        "text-embedding-3-small": {"prompt": "0.00000002", "completion": "0"},
        "lmb-image-2": {"prompt": "0.000005", "completion": "0.00003", "image_reservation": "0.28"},
        "lmd-imagine-image": {"prompt": "0", "completion": "0", "image_reservation": "0.02"},
        "omni-moderation-latest": {"prompt": "0", "completion": "0"},
    }
    for model, pricing in prices.items():
        told = client.models.retrieve(model).pricing
        assert {kind: Decimal(usd) for kind, usd in told.items()} == {k: Decimal(usd) for k, usd in pricing.items()}


def test_the_other_formats_sdk_reads_the_same_list(gateway):
    alice = gateway().account()
    page = alice.native().models.list()
    ids = [model.id for model in page]
    assert ids == [model.id for model in alice.client().models.list()]
    assert (page.first_id, page.last_id, page.has_more) == (ids[0], ids[-1], False)
    assert all(model.display_name == model.id for model in page.data)
    assert {model.created_at for model in page.data} == {datetime(1970, 1, 1, tzinfo=UTC)}


def test_the_other_formats_sdk_reads_one_model(gateway):
    client = gateway().account().native()
    model = client.models.retrieve("lma-opus-5")
    assert (model.id, model.display_name) == ("lma-opus-5", "lma-opus-5")
    assert client.models.retrieve("orgA/famA-V3.2").id == "orgA/famA-V3.2"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("lma-opus-55")


def listed(client, query):
    return [(model["type"], model["owned_by"]) for model in client.get(f"/models{query}", cast_to=object)["data"]]


FILTERS = [
    ("?type=speech", lambda kind, owner: kind == "speech"),
    ("?type=image&type=embedding", lambda kind, owner: kind in ("image", "embedding")),
    ("?owned_by=vendor_d", lambda kind, owner: owner == "vendor_d"),
    ("?owned_by=vendor_b&owned_by=vendor_c", lambda kind, owner: owner in ("vendor_b", "vendor_c")),
    ("?type=image&owned_by=vendor_d", lambda kind, owner: (kind, owner) == ("image", "vendor_d")),
    ("?type=speech&owned_by=vendor_e", lambda kind, owner: False),
]


@pytest.mark.vendors("sim")
@pytest.mark.parametrize(("query", "wanted"), FILTERS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_list_is_filtered(gateway, query, wanted):
    client = gateway().account().client()
    assert listed(client, query) == [pair for pair in listed(client, "") if wanted(*pair)]


@pytest.mark.vendors("sim")
def test_both_sdks_pass_a_filter_on(gateway):
    alice = gateway().account()
    ids = [model.id for model in alice.client().models.list(extra_query={"type": "speech"})]
    assert ids == ["tts-1", "tts-1-hd"]
    page = alice.native().models.list(extra_query={"type": "speech"})
    assert ([model.id for model in page], page.first_id, page.last_id) == (ids, "tts-1", "tts-1-hd")
    nothing = alice.native().models.list(extra_query={"type": "speech", "owned_by": "vendor_e"})
    assert (list(nothing), nothing.first_id, nothing.last_id) == ([], None, None)


@pytest.mark.vendors("sim")
@pytest.mark.parametrize(
    ("name", "known"), [("type", {"chat", "speech", "embedding"}), ("owned_by", {"vendor_a", "vendor_e"})]
)
def test_an_unknown_filter_value_is_refused_and_the_known_ones_named(gateway, name, known):
    with pytest.raises(openai.BadRequestError) as refused:
        gateway().account().client().models.list(extra_query={name: "vendor_z"})
    assert (refused.value.code, refused.value.param) == ("invalid_value", name)
    assert all(value in refused.value.message for value in known)


def test_the_async_clients_list_and_retrieve(gateway):
    alice = gateway().account()

    async def both():
        async with alice.async_client() as client, alice.native(anthropic.AsyncAnthropic) as native:
            ids = [model.id async for model in client.models.list()]
            return ids, [model.id async for model in native.models.list()], await client.models.retrieve("tts-1")

    ids, theirs, one = asyncio.run(both())
    assert ids == theirs and (one.id, one.type) == ("tts-1", "speech")


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
    # A name that stands for a model is listed too, and charged as that model.
    assert paid == {getattr(model, "alias_of", model.id) for model in chat_models}


def test_another_name_of_a_model_is_listed_and_found(gateway):
    client = gateway().account().client()
    model, alias = (client.models.retrieve(name) for name in ("lma-sonnet-4-5", "claude-sonnet-4-5"))
    assert (alias.id, alias.alias_of, alias.pricing) == ("claude-sonnet-4-5", "lma-sonnet-4-5", model.pricing)
    assert alias in list(client.models.list())


def test_the_limits_of_a_model_are_told_where_clients_look_for_them(gateway):
    alice = gateway().account()
    model = alice.client().models.retrieve("lma-opus-5")
    assert (model.context_length, model.max_output_tokens) == (1_000_000, 128_000)
    assert model.top_provider == {"context_length": 1_000_000, "max_completion_tokens": 128_000}
    native = alice.native().models.retrieve("lma-opus-5")
    assert (native.max_input_tokens, native.max_tokens) == (1_000_000, 128_000)
