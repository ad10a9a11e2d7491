"""POST /v1/audio/speech: sound as it comes, at a price known before it begins."""

import asyncio
import base64
import json
import time

import httpx2
import openai
import pytest
from stack import HERE
from talk import noise, speak, verdict

MAGIC = {"mp3": b"ID3\x04", "opus": b"OggS", "aac": b"\xff\xf1", "flac": b"fLaC", "wav": b"RIFF", "pcm": b""}
MEDIA = {name: f"audio/{name}" for name in MAGIC} | {"mp3": "audio/mpeg"}
RATES = {"tts-1": 15_000, "tts-1-hd": 30_000}
LONG = "naïve café 👩‍🚀 東京 — Привет! " * 30
pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")
sim = pytest.mark.vendors("sim")


def sound(kind, text, voice="alloy", form="mp3"):
    """What the simulators say to a text."""
    if kind == "sim":
        return MAGIC[form] + noise(f"{voice}:{form}:{text}", 16 + 64 * len(text))[len(MAGIC[form]) :]
    fixtures = json.loads((HERE / "aimock/speech.json").read_text())["fixtures"]
    (said,) = [fixture["response"] for fixture in fixtures if fixture["match"]["userMessage"] == "hello"]
    return base64.b64decode(said["audio"])


def assert_charged(alice, model, text, headers):
    """Once, by the text's code points; and the answer's head tells so."""
    characters = len(text)
    nano = characters * RATES[model]
    assert (headers["x-service-characters"], headers["x-service-charged-nano"]) == (str(characters), str(nano))
    assert nano == characters * alice.price(model).character
    charge = alice.assert_charged(model, nano, basis="fixed", characters=characters)
    assert (charge.endpoint, charge.vendor, charge.request_id) == ("speech", "vendor_b", headers["x-request-id"])


@both_stores
@pytest.mark.parametrize("model", RATES)
def test_speech_comes_whole_and_its_head_tells_what_it_cost(gateway, vendor_kind, model):
    alice = gateway().account()
    raw = alice.client().audio.speech.with_raw_response.create(model=model, input="hello", voice="alloy")
    assert raw.headers["content-type"].split(";")[0] == "audio/mpeg"
    assert raw.content == raw.parse().content == sound(vendor_kind, "hello")
    assert_charged(alice, model, "hello", raw.headers)


@sim
@pytest.mark.parametrize("form", MAGIC)
def test_every_format_has_the_vendors_content_type(gateway, form):
    alice = gateway().account()
    raw = alice.client().audio.speech.with_raw_response.create(
        model="tts-1", input="hello", voice="nova", response_format=form, speed=1.5
    )
    assert raw.headers["content-type"] == MEDIA[form]
    assert raw.content == sound("sim", "hello", "nova", form)


@sim
@pytest.mark.parametrize("text", ["é", "👩‍🚀", "e\u0301", "a\r\nb", LONG, "語" * 4096], ids=lambda text: ascii(text[:3]))
def test_the_characters_are_unicode_code_points(gateway, text):
    alice = gateway().account()
    raw = alice.client().audio.speech.with_raw_response.create(model="tts-1-hd", input=text, voice="alloy")
    assert raw.content == sound("sim", text)
    assert_charged(alice, "tts-1-hd", text, raw.headers)


def test_a_streamed_answer_has_its_head_first(gateway, vendor_kind, tmp_path):
    alice = gateway().account()
    request = {"model": "tts-1", "input": "hello", "voice": "alloy"}
    with alice.client().audio.speech.with_streaming_response.create(**request) as streamed:
        headers, content = streamed.headers, b"".join(streamed.iter_bytes())
    assert content == sound(vendor_kind, "hello")
    assert_charged(alice, "tts-1", "hello", headers)
    with alice.client().audio.speech.with_streaming_response.create(**request) as streamed:
        streamed.stream_to_file(tmp_path / "hello.mp3")
    assert (tmp_path / "hello.mp3").read_bytes() == content
    alice.charges(2)


@sim
def test_sound_comes_as_the_vendor_speaks(gateway):
    alice = gateway(vendor_b="chunks=5;chunk-delay=200").account()
    begun = time.monotonic()
    pieces = []
    with alice.client().audio.speech.with_streaming_response.create(
        model="tts-1", input="hello", voice="alloy"
    ) as streamed:
        for piece in streamed.iter_bytes():
            pieces.append((time.monotonic() - begun, piece))
    assert b"".join(piece for _, piece in pieces) == sound("sim", "hello")
    assert len(pieces) > 2 and pieces[-1][0] - pieces[0][0] > 0.4
    alice.charge()


@sim
def test_speech_that_breaks_off_is_no_charge_and_no_clean_end(gateway):
    alice = gateway(vendor_b="chunks=8;chunk-delay=50;cut=3").account()
    heard = b""
    with pytest.raises((httpx2.TransportError, openai.APIConnectionError)):
        with alice.client().audio.speech.with_streaming_response.create(
            model="tts-1", input="hello", voice="alloy"
        ) as streamed:
            for piece in streamed.iter_bytes():
                heard += piece
    assert heard and sound("sim", "hello").startswith(heard)
    with pytest.raises(openai.APIConnectionError):
        speak(alice.client())
    assert alice.charges(0) == []


@sim
def test_a_client_that_hangs_up_pays_for_what_the_vendor_spoke(gateway):
    alice = gateway(vendor_b="chunks=8;chunk-delay=100").account()
    with alice.client().audio.speech.with_streaming_response.create(
        model="tts-1", input="hello", voice="alloy"
    ) as streamed:
        next(streamed.iter_bytes())
    alice.assert_charged("tts-1", 5 * 15_000, basis="fixed", characters=5)


def test_the_async_client_is_spoken_to(gateway, vendor_kind):
    alice = gateway().account()

    async def one():
        async with alice.async_client() as client:
            request = client.audio.speech.with_streaming_response.create(model="tts-1", input="hello", voice="alloy")
            async with request as streamed:
                return streamed.headers, await streamed.read()

    headers, content = asyncio.run(one())
    assert content == sound(vendor_kind, "hello")
    assert_charged(alice, "tts-1", "hello", headers)


@both_stores
def test_the_price_is_needed_to_the_last_nano(gateway):
    gw = gateway()
    poor, before = gw.account(credit="0.000074999"), gw.vendor.count()
    with pytest.raises(openai.APIStatusError) as refused:
        speak(poor.client())
    assert verdict(refused) == (402, "insufficient_credits", None)
    assert poor.charges(0) == [] and gw.vendor.count() == before
    just = gw.account(credit="0.000075")
    assert speak(just.client()).content
    just.charge()
    assert just.balance().available_nano == 0


WRONG = [
    ({"input": ""}, "invalid_value", "input"),
    ({"input": "語" * 4097}, "invalid_value", "input"),
    ({"input": 7}, "invalid_value", "input"),
    ({"input": None}, "missing_required_parameter", "input"),
    ({"stream_format": "sse"}, "unsupported_parameter", "stream_format"),
]


@sim
@pytest.mark.parametrize(("wrong", "code", "param"), WRONG, ids=lambda value: ascii(value)[:30])
def test_what_is_wrong_is_refused_before_the_vendor_is_asked(gateway, wrong, code, param):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    body = {"model": "tts-1", "input": "hello", "voice": "alloy"} | wrong
    body = {name: value for name, value in body.items() if value is not None}
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().post("/audio/speech", body=body, cast_to=object)
    assert verdict(refused) == (400, code, param)
    assert alice.charges(0) == [] and gw.vendor.count() == before


@sim
def test_a_voice_that_the_vendor_does_not_know_is_its_400(gateway):
    alice = gateway().account()
    with pytest.raises(openai.BadRequestError) as refused:
        speak(alice.client(), voice="mickey")
    assert "mickey" in refused.value.message and alice.charges(0) == []
