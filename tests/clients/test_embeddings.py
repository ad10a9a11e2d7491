"""POST /v1/embeddings: the same numbers whatever the vendor and however they are asked for."""

import asyncio
import base64
import json
import os
import struct
import subprocess

import openai
import pytest
from stack import HERE, VENDOR_KEY, sdk
from talk import embed, noise, shown, verdict

# The model, its vendor, and its dimensions.
MODELS = {
    "text-embedding-3-small": ("vendor_b", 1536),
    "text-embedding-3-large": ("vendor_b", 3072),
    "text-embedding-ada-002": ("vendor_b", 1536),
    "lmc-embedding-001": ("vendor_c", 3072),
    "lmc-embedding-2": ("vendor_c", 3072),
}
TEXTS = ["hello", "naïve 👩‍🚀 東京"]
each_model = pytest.mark.parametrize("model", MODELS)
of_each_vendor = pytest.mark.parametrize("model", ["text-embedding-3-small", "lmc-embedding-2"])
pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")
sim = pytest.mark.vendors("sim")


def vector(text, dimensions):
    """The simulator's vector of a text; of tokens, their decimals with spaces between them are the text."""
    return [(byte - 128) / 256 for byte in noise(text, dimensions)]


def vectors(reply):
    assert [entry.index for entry in reply.data] == list(range(len(reply.data)))
    return [entry.embedding for entry in reply.data]


def unpacked(text):
    """The numbers of an embedding in base64."""
    content = base64.b64decode(text, validate=True)
    return list(struct.unpack(f"<{len(content) // 4}f", content))


def as_f32(numbers):
    return list(struct.unpack(f"{len(numbers)}f", struct.pack(f"{len(numbers)}f", *numbers)))


def assert_charged(alice, model, reply, tokens, basis):
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (tokens, tokens)
    nano = alice.price(model).of(reply.usage)
    assert nano > 0
    charge = alice.assert_charged(model, nano, basis=basis, prompt_tokens=tokens, completion_tokens=0)
    assert (charge.endpoint, charge.vendor) == ("embeddings", MODELS[model][0])


@both_stores
@sim
@each_model
def test_a_text_is_embedded_and_charged_exactly(gateway, model):
    vendor, dimensions = MODELS[model]
    alice = gateway().account()
    reply = embed(alice.client(), model=model)
    assert (reply.object, reply.model) == ("list", model)
    assert vectors(reply) == [vector("hello", dimensions)]
    # vendor_c does not tell what it counted.
    assert_charged(alice, model, reply, 2, "reported" if vendor == "vendor_b" else "counted")


@pytest.mark.vendors("aimock")
@each_model
def test_the_numbers_are_those_that_the_vendor_gave(gateway, model):
    gw = gateway()
    alice, vendor = gw.account(), MODELS[model][0]
    given = vectors(embed(sdk(gw.vendor.address(vendor), VENDOR_KEY), TEXTS, model))
    reply = embed(alice.client(), TEXTS, model)
    # They came as decimals, and are sent on in base64.
    assert vectors(reply) == [as_f32(numbers) for numbers in given]
    # A usage of nothing is none.
    assert_charged(alice, model, reply, 5, "counted")
    assert vectors(embed(alice.client(), TEXTS, model, encoding_format="float")) == given
    assert [charge.usage["prompt_tokens"] for charge in alice.charges(2)] == [5, 5]


@sim
@each_model
@pytest.mark.parametrize("form", ["float", "base64"])
def test_the_numbers_come_in_the_form_that_was_asked_for(gateway, model, form):
    _, dimensions = MODELS[model]
    alice = gateway().account()
    (entry,) = embed(alice.client(), model=model, encoding_format=form).data
    assert isinstance(entry.embedding, str if form == "base64" else list)
    numbers = unpacked(entry.embedding) if form == "base64" else entry.embedding
    assert numbers == vector("hello", dimensions)
    alice.charge()


@sim
@of_each_vendor
@pytest.mark.parametrize("form", ["float", "base64", None])
def test_fewer_dimensions_and_many_texts(gateway, model, form):
    alice = gateway().account()
    texts = ["hello", "a", "naïve 👩‍🚀 東京", "x" * 999]
    asked = {"encoding_format": form} if form else {}
    reply = embed(alice.client(), texts, model, dimensions=7, **asked)
    told = [unpacked(entry.embedding) if form == "base64" else entry.embedding for entry in reply.data]
    assert told == [vector(text, 7) for text in texts]
    tokens = sum(-(-len(text) // 4) for text in texts)
    assert_charged(alice, model, reply, tokens, "reported" if model[:3] == "tex" else "counted")


@sim
@pytest.mark.parametrize(
    ("tokens", "texts"),
    [([5, 60, 700], ["5 60 700"]), ([[5, 60], [7]], ["5 60", "7"]), ([[0]], ["0"])],
    ids=["one", "many", "zero"],
)
def test_tokens_are_embedded_as_texts_are(gateway, tokens, texts):
    alice = gateway().account()
    reply = embed(alice.client(), tokens, dimensions=5)
    assert vectors(reply) == [vector(text, 5) for text in texts]
    count = sum(len(text.split()) for text in texts)
    assert_charged(alice, "text-embedding-3-small", reply, count, "reported")


BILLS = [
    ("text-embedding-3-small", "prompt=4096", 4096 * 20),
    ("text-embedding-3-large", "prompt=4096", 4096 * 130),
    ("text-embedding-ada-002", "prompt=1", 100),
    ("lmc-embedding-001", "with-usage;prompt=2048", 2048 * 150),
    ("lmc-embedding-2", "with-usage;prompt=999", 999 * 200),
]


@sim
@pytest.mark.parametrize(("model", "usage", "nano"), BILLS, ids=shown)
def test_the_bill_is_exact(gateway, model, usage, nano):
    alice = gateway(**{MODELS[model][0]: usage}).account()
    reply = embed(alice.client(), model=model)
    tokens = int(usage.split("=")[-1])
    assert_charged(alice, model, reply, tokens, "reported")
    assert alice.balance().posted_nano == nano


@sim
@of_each_vendor
@pytest.mark.parametrize("usage", ["no-usage", "null-usage", "bad-usage"])
@pytest.mark.parametrize(
    ("given", "tokens"), [("hello", 2), (["a", "naïve 👩‍🚀 東京"], 4), ("語" * 400, 100)], ids=["one", "two", "long"]
)
def test_without_a_sane_usage_the_text_is_counted_and_never_free(gateway, model, usage, given, tokens):
    alice = gateway(vendor_b=usage, vendor_c=f"with-usage;{usage}").account()
    reply = embed(alice.client(), given, model, dimensions=3)
    texts = [given] if isinstance(given, str) else given
    assert vectors(reply) == [vector(text, 3) for text in texts]
    assert_charged(alice, model, reply, tokens, "counted")


@sim
def test_tokens_without_a_usage_are_counted(gateway):
    alice = gateway(vendor_b="no-usage").account()
    reply = embed(alice.client(), [[1, 2, 3], [4]], dimensions=3)
    assert_charged(alice, "text-embedding-3-small", reply, 4, "counted")


@sim
def test_vendor_c_gets_only_what_it_knows(gateway):
    gw = gateway(vendor_c="")
    embed(gw.account().client(), ["hello"], "lmc-embedding-001", dimensions=3, user="alice", encoding_format="base64")
    (body,) = gw.vendor.received()
    assert body == {"model": "lmc-embedding-001", "input": ["hello"], "dimensions": 3}


@sim
def test_vendor_b_gets_the_body_as_sent(gateway):
    gw = gateway(vendor_b="")
    more = {"input": ["hello"], "dimensions": 3, "user": "alice", "encoding_format": "float"}
    gw.account().client().embeddings.create(model="text-embedding-3-small", **more)
    assert gw.vendor.received() == [{"model": "text-embedding-3-small"} | more]


@sim
@of_each_vendor
def test_as_many_texts_as_may_be_and_no_more(gateway, model):
    gw = gateway()
    alice = gw.account()
    reply = embed(alice.client(), [str(number) for number in range(2048)], model, dimensions=2)
    assert vectors(reply) == [vector(str(number), 2) for number in range(2048)]
    alice.charges(1)
    before = gw.vendor.count()
    with pytest.raises(openai.BadRequestError) as refused:
        embed(alice.client(), ["a"] * 2049, model)
    assert verdict(refused) == (400, "invalid_value", "input")
    alice.charges(1)
    assert gw.vendor.count() == before


WRONG = [
    ({"input": openai.omit}, "missing_required_parameter", "input"),
    ({"input": []}, "invalid_value", "input"),
    ({"input": ["a", 1]}, "invalid_value", "input"),
    ({"input": [1, "a"]}, "invalid_value", "input"),
    ({"input": [[]]}, "invalid_value", "input"),
    ({"input": [[1], []]}, "invalid_value", "input"),
    ({"input": [1.5]}, "invalid_value", "input"),
    ({"input": {"text": "a"}}, "invalid_value", "input"),
    ({"dimensions": 0}, "invalid_value", "dimensions"),
    ({"dimensions": 3073}, "invalid_value", "dimensions"),
    ({"dimensions": 1.5}, "invalid_value", "dimensions"),
    ({"encoding_format": "hex"}, "invalid_value", "encoding_format"),
]


@sim
@of_each_vendor
@pytest.mark.parametrize("text", ["", ["a", ""]], ids=shown)
def test_an_empty_text_is_for_the_vendor_to_judge(gateway, model, text):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(openai.BadRequestError):
        embed(alice.client(), text, model)
    assert gw.vendor.count() == before + 1 and alice.charges(0) == []


@sim
@of_each_vendor
@pytest.mark.parametrize(("wrong", "code", "param"), WRONG, ids=shown)
def test_what_is_wrong_is_refused_before_the_vendor_is_asked(gateway, model, wrong, code, param):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().embeddings.create(**{"model": model, "input": "hello"} | wrong)
    assert verdict(refused)[:2] == (400, code) and refused.value.param.startswith(param)
    assert alice.charges(0) == [] and gw.vendor.count() == before


@sim
@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("text-embedding-ada-002", {"dimensions": 9}),
        ("text-embedding-3-small", {"dimensions": 1537}),
        ("lmc-embedding-2", {"input": [1, 2]}),
    ],
    ids=shown,
)
def test_what_a_model_cannot_do_is_the_vendors_400(gateway, model, more):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().embeddings.create(**{"model": model, "input": "hello"} | more)
    assert refused.value.message and alice.charges(0) == []
    assert gw.vendor.count() == before + 1


@of_each_vendor
def test_the_async_client_is_given_vectors(gateway, vendor_kind, model):
    alice = gateway().account()

    async def three():
        async with alice.async_client() as client:
            texts = ("hello", "good day", "hello")
            calls = [client.embeddings.create(model=model, input=text, dimensions=4) for text in texts]
            return await asyncio.gather(*calls)

    first, second, third = (vectors(reply) for reply in asyncio.run(three()))
    assert first == third != second and len(first[0]) == 4
    assert vendor_kind != "sim" or (first, second) == ([vector("hello", 4)], [vector("good day", 4)])
    alice.charges(3)


@each_model
def test_the_node_sdk_reads_the_same_numbers(gateway, vendor_kind, model):
    vendor, dimensions = MODELS[model]
    gw = gateway()
    alice = gw.account()
    done = subprocess.run(
        ["node", HERE / "node/embeddings.mjs", model, json.dumps(TEXTS)],
        env=os.environ | {"OPENAI_BASE_URL": gw.base_url, "OPENAI_API_KEY": alice.key},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    expected = [vector(text, dimensions) for text in TEXTS]
    if vendor_kind != "sim":
        expected = vectors(embed(sdk(gw.vendor.address(vendor), VENDOR_KEY), TEXTS, model))
    assert told["floats"] == expected
    assert told["usual"] == told["unpacked"] == [as_f32(numbers) for numbers in expected]
    assert told["usage"]["prompt_tokens"] > 0
    assert len({charge.amount_nano for charge in alice.charges(3)}) == 1
