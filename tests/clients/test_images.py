"""POST /v1/images/generations and /v1/images/edits: one picture a call, held by its reservation, paid by its usage."""

import asyncio
import base64
import hashlib
import threading

import openai
import pytest
from stack import SHORT_OF_CREDIT, until
from talk import PNG, draw, edit, verdict

JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(40)
WEBP = b"RIFF\x24\x00\x00\x00WEBPVP8 " + bytes(40)
FILE_BYTES_MAX = 25 << 20
TOKENS = ["lmb-image-2", "lmb-image-1.5", "lmb-image-1", "lmb-image-1-mini"]
# What vendor_d bills for one picture, in 10^-10 USD; and for each that it edits.
TICKS = {
    "lmd-imagine-image": 200_000_000,
    "lmd-imagine-image-2.0": 600_000_000,
    "lmd-imagine-image-quality": 500_000_000,
}
INPUT_TICKS = 20_000_000
OF = {"lmb": "vendor_b", "lmd": "vendor_d"}
pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")
sim = pytest.mark.vendors("sim")
each_model = pytest.mark.parametrize("model", [*TOKENS, *TICKS])
of_each_vendor = pytest.mark.parametrize("model", ["lmb-image-1-mini", "lmd-imagine-image"])
made_and_edited = pytest.mark.parametrize("call", [draw, edit], ids=["made", "edited"])


def picture(reply):
    """The only one of a reply."""
    (image,) = reply.data
    assert reply.created > 0 and not image.url
    return base64.b64decode(image.b64_json, validate=True)


def assert_paid(alice, model, reply, ticks):
    """The one charge is what the vendor told of it: tokens, or ticks, or else the reservation."""
    price = alice.price(model)
    if ticks:
        return alice.assert_charged(model, -(-ticks // 10), images=1, cost_in_usd_ticks=ticks)
    if usage := reply.usage:
        tokens = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
        return alice.assert_charged(model, price.of(usage), **tokens)
    return alice.assert_charged(model, price.reservation, basis="fixed", images=1)


@both_stores
@each_model
def test_an_image_is_made_and_charged_exactly(gateway, vendor_kind, model):
    alice = gateway().account()
    reply = draw(alice.client(), model=model)
    assert picture(reply) == PNG
    told = vendor_kind == "sim"  # aimock tells nothing of what an image costs
    assert bool(reply.usage) == (told and model in TOKENS)
    charge = assert_paid(alice, model, reply, TICKS.get(model) if told else None)
    assert (charge.endpoint, charge.vendor, charge.request_id) == ("images", OF[model[:3]], reply._request_id)


@both_stores
@sim  # aimock takes forms only, which vendor_d does not
@each_model
def test_an_image_is_edited_and_charged_exactly(gateway, model):
    alice = gateway().account()
    reply = edit(alice.client(), model=model)
    assert picture(reply) == PNG
    charge = assert_paid(alice, model, reply, model in TICKS and TICKS[model] + INPUT_TICKS)
    assert (charge.endpoint, charge.vendor) == ("image_edits", OF[model[:3]])
    assert model in TICKS or reply.usage.input_tokens_details.image_tokens == 256


@pytest.mark.vendors("aimock")
@pytest.mark.parametrize("model", TOKENS)
def test_an_edit_without_usage_costs_its_reservation(gateway, model):
    alice = gateway().account()
    reply = edit(alice.client(), model=model)
    assert picture(reply) == PNG
    assert_paid(alice, model, reply, None)


@pytest.fixture
def forms(tmp_path):
    """One picture, in every form in which the SDK takes a file."""
    path = tmp_path / "red dot.png"
    path.write_bytes(PNG)
    with path.open("rb") as file:
        yield {
            "bytes": PNG,
            "tuple": ("a dot.png", PNG),
            "typed": ("a dot.png", PNG, "image/png"),
            "mistyped": ("dot", PNG, "application/octet-stream"),
            "handle": file,
            "path": path,
            "list": [PNG],
            "list of tuples": [("ä dot.png", PNG, "image/png")],
        }


FORMS = ["bytes", "tuple", "typed", "mistyped", "handle", "path", "list", "list of tuples"]


@sim
@of_each_vendor
@pytest.mark.parametrize("form", FORMS)
def test_the_picture_reaches_the_vendor_in_whatever_form_the_sdk_sends_it(gateway, forms, model, form):
    gw = gateway(vendor_b="", vendor_d="")
    assert picture(edit(gw.account().client(), model=model, image=forms[form])) == PNG
    (file,) = gw.vendor.files()
    assert (file.part, file.content_type, file.len) == ("image", "image/png", len(PNG))
    assert file.sha256 == hashlib.sha256(PNG).hexdigest()
    assert getattr(file, "name", None) == ("image.png" if model in TOKENS else None)


@sim
@of_each_vendor
@pytest.mark.parametrize(("media", "content"), [("jpeg", JPEG), ("webp", WEBP)], ids=["jpeg", "webp"])
def test_a_pictures_first_bytes_tell_its_kind(gateway, model, media, content):
    gw = gateway(vendor_b="", vendor_d="")
    assert edit(gw.account().client(), model=model, image=("dot.png", content, "image/png"))
    (file,) = gw.vendor.files()
    assert (file.content_type, file.sha256) == (f"image/{media}", hashlib.sha256(content).hexdigest())


@sim
def test_the_fields_reach_vendor_b_as_sent(gateway):
    gw = gateway(vendor_b="")
    more = {"size": "1024x1536", "quality": "low", "background": "transparent", "output_format": "webp", "n": 1}
    made = draw(gw.account().client(), "a dot, \u00fcnic\u00f6de", "lmb-image-1", **more)
    assert made.size == "1024x1536" and made.quality == "low" and made.usage.output_tokens == 272
    assert gw.vendor.received() == [{"model": "lmb-image-1", "prompt": "a dot, \u00fcnic\u00f6de"} | more]
    edited = edit(gw.account().client(), "a dot, \u00fcnic\u00f6de", "lmb-image-1", input_fidelity="high", **more)
    assert (edited.size, edited.quality, edited.background) == ("1024x1536", "low", "transparent")
    form = gw.vendor.received()[-1]
    assert 'name="prompt"\r\n\r\na dot, \u00fcnic\u00f6de\r\n' in form and 'name="model"\r\n\r\nlmb-image-1\r\n' in form


@sim
def test_vendor_d_never_gets_a_size_and_is_asked_for_the_image_itself(gateway):
    gw = gateway(vendor_d="")
    assert picture(draw(gw.account().client(), "a dot", "lmd-imagine-image", size="1024x1024")) == PNG
    assert picture(edit(gw.account().client(), "a dot", "lmd-imagine-image", size="1024x1024")) == PNG
    made, edited = gw.vendor.received()
    assert made == {"model": "lmd-imagine-image", "prompt": "a dot", "response_format": "b64_json"}
    data = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert edited == made | {"image": {"url": data}}


@sim
@of_each_vendor
@made_and_edited
@pytest.mark.parametrize("usage", ["no-usage", "null-usage", "bad-usage"])
def test_an_image_without_a_sane_usage_costs_its_reservation(gateway, model, call, usage):
    alice = gateway(vendor_b=usage, vendor_d=usage).account()
    assert picture(call(alice.client(), model=model)) == PNG
    alice.assert_charged(model, alice.price(model).reservation, basis="fixed", images=1)


@sim
@made_and_edited
def test_no_image_is_made_of_no_tokens(gateway, call):
    alice = gateway(vendor_b="completion=0").account()
    assert picture(call(alice.client())) == PNG
    alice.assert_charged("lmb-image-1-mini", 75_000_000, basis="fixed", images=1)


@sim
@made_and_edited
@pytest.mark.parametrize("ticks", [200_000_000, 123_456_781, 1, 1_234_567_890])
def test_a_part_of_a_nano_counts_as_a_whole_one(gateway, call, ticks):
    alice = gateway(vendor_d=f"ticks={ticks}").account()
    assert picture(call(alice.client(), model="lmd-imagine-image")) == PNG
    alice.assert_charged("lmd-imagine-image", (ticks + 9) // 10, images=1, cost_in_usd_ticks=ticks)


@sim
@pytest.mark.parametrize("usage", ["prompt=1000;completion=4160", "prompt=7;completion=1"])
@pytest.mark.parametrize("model", TOKENS)
def test_the_bill_of_tokens_is_exact(gateway, model, usage):
    alice = gateway(vendor_b=usage).account()
    reply = draw(alice.client(), model=model)
    asked, made = (int(part.split("=")[1]) for part in usage.split(";"))
    price = alice.price(model)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (asked, made)
    alice.assert_charged(
        model, asked * price.prompt + made * price.completion, prompt_tokens=asked, completion_tokens=made
    )


@each_model
@made_and_edited
def test_below_the_reservation_nothing_reaches_the_vendor(gateway, model, call):
    gw = gateway()
    price = gw.account().price(model)
    poor, before = gw.account(credit=f"{(price.reservation - 1) / 10**9:.9f}"), gw.vendor.count()
    with pytest.raises(openai.APIStatusError) as refused:
        call(poor.client(), model=model)
    assert verdict(refused) == (402, "insufficient_credits", None)
    assert poor.charges(0) == [] and gw.vendor.count() == before


@both_stores
@sim
@each_model
def test_the_reservation_is_enough_and_held_until_it_is_settled(gateway, model):
    gw = gateway(vendor_b="delay=900", vendor_d="delay=900")
    reservation = gw.account().price(model).reservation
    alice = gw.account(credit=f"{reservation / 10**9:.9f}")
    replies = []
    thread = threading.Thread(target=lambda: replies.append(draw(alice.client(), model=model)))
    thread.start()
    until(lambda: alice.balance().held_nano == reservation, "the reservation is held")
    assert alice.balance().available_nano == 0
    thread.join()
    assert picture(replies[0]) == PNG
    assert 0 < alice.charge().amount_nano <= reservation


@both_stores
@sim
@of_each_vendor
def test_parallel_images_do_not_overdraw_an_account(gateway, model):
    alice = gateway().account(credit="0.151")  # two reservations of 0.075, seven of 0.02
    fit = {"lmb-image-1-mini": 2, "lmd-imagine-image": 7}[model]

    async def one(client):
        try:
            return bool(await client.images.generate(model=model, prompt="hello"))
        except openai.APIStatusError as refused:
            assert (refused.status_code, refused.code) in SHORT_OF_CREDIT
            return False

    async def all_at_once():
        async with alice.async_client() as client:
            return sum(await asyncio.gather(*(one(client) for _ in range(fit + 3))))

    made = asyncio.run(all_at_once())
    assert made >= fit
    alice.charges(made)
    assert alice.balance().available_nano >= 0


@sim
@of_each_vendor
@made_and_edited
@pytest.mark.parametrize("fault", ["moderated", "no-image"])
def test_an_image_that_was_not_given_is_no_charge(gateway, model, call, fault):
    gw = gateway(vendor_b=fault, vendor_d=fault)
    alice = gw.account()
    with pytest.raises(openai.BadRequestError) as refused:
        call(alice.client(max_retries=2), model=model)
    # vendor_b refuses such a request itself, with a code of its own.
    code = "moderation_blocked" if fault == "moderated" and model in TOKENS else "content_policy_violation"
    assert verdict(refused)[:2] == (400, code) and refused.value.message
    assert gw.vendor.count() == 1 and alice.charges(0) == []


@sim
@of_each_vendor
def test_a_large_image_comes_whole(gateway, model):
    size = 5_000_000
    alice = gateway(vendor_b=f"image-bytes={size}", vendor_d=f"image-bytes={size}").account()
    reply = picture(draw(alice.client(), model=model))
    assert len(reply) == size and reply.startswith(PNG[:33])
    alice.charge()


@sim
@of_each_vendor
def test_a_file_may_have_25_mb_and_not_a_byte_more(gateway, model):
    gw = gateway(vendor_b="", vendor_d="")
    alice = gw.account()
    most = PNG + bytes(FILE_BYTES_MAX - len(PNG))
    assert edit(alice.client(), model=model, image=most).data
    assert [file.sha256 for file in gw.vendor.files()] == [hashlib.sha256(most).hexdigest()]
    for form in most + b"\0", [most + b"\0"], PNG + bytes(40 << 20):
        with pytest.raises(openai.APIStatusError) as refused:
            edit(alice.client(), model=model, image=form)
        assert verdict(refused)[:2] == (413, "request_too_large")
    assert gw.vendor.count() == 1
    alice.charges(1)


WRONG_EDITS = [
    ({"mask": PNG}, "unsupported_parameter", "mask"),
    ({"extra_body": {"mask": "a text"}}, "unsupported_parameter", "mask"),
    ({"markup": PNG}, "unsupported_parameter", "markup"),
    ({"image": [PNG, PNG]}, "invalid_value", "image"),
    ({"image": []}, "missing_required_parameter", "image"),
    ({"image": b""}, "invalid_value", "image"),
    ({"image": ("a.txt", b"hello", "text/plain")}, "invalid_value", "image"),
]
WRONG = [
    ({"prompt": ""}, "invalid_value", "prompt"),
    ({"n": 2}, "invalid_value", "n"),
    ({"n": 0}, "invalid_value", "n"),
    ({"stream": True}, "unsupported_parameter", "stream"),
    ({"partial_images": 1}, "unsupported_parameter", "partial_images"),
    ({"response_format": "url"}, "unsupported_parameter", "response_format"),
]
WRONG_FOR_B = [({"output_format": form}, "unsupported_parameter", "output_format") for form in ("gif", "svg")]
WRONG_FOR_D = [
    ({"quality": "low"}, "unsupported_parameter", "quality"),
    ({"extra_body": {"resolution": "2k"}}, "unsupported_parameter", "resolution"),
]
CALLS = [
    *((draw, model, *wrong) for model in ("lmb-image-1-mini", "lmd-imagine-image") for wrong in WRONG),
    *((edit, model, *wrong) for model in ("lmb-image-1-mini", "lmd-imagine-image") for wrong in WRONG + WRONG_EDITS),
    *((call, "lmb-image-1-mini", *wrong) for call in (draw, edit) for wrong in WRONG_FOR_B),
    *((call, "lmd-imagine-image", *wrong) for call in (draw, edit) for wrong in WRONG_FOR_D),
    (draw, "lmb-image-1-mini", {"extra_body": {"mask": "x"}}, "unsupported_parameter", "mask"),
    (draw, "lmb-image-1-mini", {"extra_body": {"markup": "x"}}, "unsupported_parameter", "markup"),
]


@sim
@pytest.mark.parametrize(("call", "model", "wrong", "code", "param"), CALLS, ids=lambda value: short(value))
def test_what_is_wrong_or_has_no_price_is_refused_before_the_vendor_is_asked(
    gateway, call, model, wrong, code, param
):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    wrong = dict(wrong)
    text = wrong.pop("prompt", "hello")
    with pytest.raises(openai.BadRequestError) as refused:
        call(alice.client(), text, model, **wrong)
    assert verdict(refused) == (400, code, param)
    assert alice.charges(0) == [] and gw.vendor.count() == before


def short(value):
    """A parameter as part of a test's name."""
    if isinstance(value, dict):
        ((name, inner),) = value.items()
        return short(inner) if isinstance(inner, dict) else f"{name}={str(inner)[:12]}"
    return getattr(value, "__name__", str(value))


@sim
def test_an_edit_that_is_no_form_or_lacks_a_prompt_is_a_bad_request(gateway):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    body = {"model": "lmb-image-1", "prompt": "hello", "image": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().post("/images/edits", body=body, cast_to=object)
    assert refused.value.code == "invalid_form"
    form = {"content-type": "multipart/form-data"}
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().post(
            "/images/edits",
            body={"model": "lmb-image-1"},
            files=[("image", PNG)],
            options={"headers": form},
            cast_to=object,
        )
    assert verdict(refused) == (400, "missing_required_parameter", "prompt")
    assert alice.charges(0) == [] and gw.vendor.count() == before


@of_each_vendor
def test_the_async_client_gets_an_image(gateway, model):
    alice = gateway().account()

    async def one():
        async with alice.async_client() as client:
            return await client.images.generate(model=model, prompt="hello")

    assert picture(asyncio.run(one())) == PNG
    assert alice.charge().model == model


def test_the_async_client_edits_an_image(gateway):
    alice = gateway().account()

    async def one():
        async with alice.async_client() as client:
            return await client.images.edit(model="lmb-image-1-mini", prompt="hello", image=[PNG])

    assert picture(asyncio.run(one())) == PNG
    assert alice.charge().endpoint == "image_edits"
