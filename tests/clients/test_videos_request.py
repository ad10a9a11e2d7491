"""What POST /v1/videos takes, what the vendor hears of it, and what is refused before anything is held."""

import base64
import hashlib
import json
import os
import subprocess

import httpx2
import openai
import pytest
from stack import HERE, until
from talk import PNG, film, film_by_json, footage, verdict

JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(40)
WEBP = b"RIFF\x24\x00\x00\x00WEBPVP8 " + bytes(40)
FILE_BYTES_MAX = 4 << 20
PROMPT_MAX = 32_000
DATA = "data:image/png;base64," + base64.b64encode(PNG).decode()
URL = "https://pictures.example/a%20dot.png?a=1&b=%C3%A9#c"
# Nothing but what is said: the vendor's own values are not ours.
PLAIN = {"duration": 4, "aspect_ratio": "16:9", "resolution": "720p"}
pytestmark = [pytest.mark.stores("sqlite"), pytest.mark.vendors("sim")]
each_form = pytest.mark.parametrize("ask", [film, film_by_json], ids=["form", "json"])


@pytest.fixture
def heard(gateway):
    """heard(ask, **fields): the job as it is answered, and what the vendor was sent beside model and prompt."""
    gw = gateway(vendor_d="")
    alice = gw.account(credit="50")

    def hear(ask, text="hello", model="lmd-imagine-video", **fields):
        before = len(gw.vendor.received("/generations"))
        job = ask(alice.client(), text, model, **fields)
        until(lambda: len(gw.vendor.received("/generations")) > before, "the vendor is asked")
        *_, body = gw.vendor.received("/generations")
        assert (body.pop("model"), body.pop("prompt")) == (model, text)
        return job, body

    hear.gateway, hear.account = gw, alice
    return hear


SIZES = {
    "1280x720": ("16:9", "720p"),
    "720x1280": ("9:16", "720p"),
    "720x720": ("1:1", "720p"),
    "854x480": ("16:9", "480p"),
    "480x854": ("9:16", "480p"),
    "480x480": ("1:1", "480p"),
    "1920x1080": ("16:9", "1080p"),
    "1080x1920": ("9:16", "1080p"),
    "1080x1080": ("1:1", "1080p"),
}
# What is asked for; the ratio and the resolution that the vendor hears; the size that the job tells.
SHAPES = [
    ({}, "16:9", "720p", "1280x720"),
    *(({"size": size}, *told, size) for size, told in SIZES.items()),
    ({"resolution": "480p"}, "16:9", "480p", "854x480"),
    ({"resolution": "1080p"}, "16:9", "1080p", "1920x1080"),
    ({"aspect_ratio": "9:16"}, "9:16", "720p", "720x1280"),
    ({"aspect_ratio": "4:3"}, "4:3", "720p", "960x720"),
    ({"aspect_ratio": "3:4"}, "3:4", "720p", "720x960"),
    ({"aspect_ratio": "3:2"}, "3:2", "720p", "1080x720"),
    ({"aspect_ratio": "2:3"}, "2:3", "720p", "720x1080"),
    ({"aspect_ratio": "9:16", "resolution": "480p"}, "9:16", "480p", "480x854"),
    ({"aspect_ratio": "4:3", "resolution": "1080p"}, "4:3", "1080p", "1440x1080"),
    ({"size": "480x854", "aspect_ratio": "1:1", "resolution": "1080p"}, "9:16", "480p", "480x854"),
]


@each_form
def test_a_shape_is_told_to_the_vendor_in_its_own_words(heard, ask):
    told = {}
    for fields, *_ in SHAPES:
        job, body = heard(ask, model="lmd-imagine-video-1.5", seconds=1, **fields)
        told[str(fields)] = (body["aspect_ratio"], body["resolution"], job.size)
        assert body["duration"] == 1 and len(body) == 3
    assert told == {str(fields): tuple(expected) for fields, *expected in SHAPES}


@each_form
def test_a_length_is_a_number_or_the_same_as_a_text(heard, ask):
    for seconds in 1, 4, 15, "1", "9", "15":
        job, body = heard(ask, seconds=seconds)
        assert (job.seconds, body) == (str(seconds), PLAIN | {"duration": int(seconds)})
        assert isinstance(body["duration"], int)


@each_form
def test_the_sound_is_told_only_when_it_is_turned_off(heard, ask):
    for audio, said in (True, {}), (False, {"generate_audio": False}):
        assert heard(ask, generate_audio=audio)[1] == PLAIN | said
    loud, silent = heard.gateway.vendor.videos()
    assert (loud.audio, silent.audio) == (True, False)
    held = heard.account.balance().held_nano + heard.account.balance().posted_nano
    assert held == 2 * 280_000_000


def test_what_is_null_is_as_if_it_were_not_there(heard):
    names = "seconds size resolution aspect_ratio input_reference image_url generate_audio".split()
    job, body = heard(film_by_json, **dict.fromkeys(names))
    assert body == PLAIN and (job.seconds, job.size) == ("4", "1280x720")


@each_form
@pytest.mark.parametrize(
    "text",
    ["a\r\nb\n", ' "quoted" \\ \x7f\x01', "naïve 👩\u200d🚀 東京", "e\u0301", "👍" * PROMPT_MAX],
    ids=["lines", "quotes", "words", "accent", "longest"],
)
def test_a_prompt_reaches_the_vendor_unchanged(heard, ask, text):
    assert heard(ask, text)[1] == PLAIN


@pytest.fixture
def forms(tmp_path):
    """One picture, in every form in which the SDK takes a file."""
    path = tmp_path / "red dot.png"
    path.write_bytes(PNG)
    with path.open("rb") as file:
        yield {
            "bytes": PNG,
            "tuple": ("a dot.png", PNG),
            "typed": ("ä dot.png", PNG, "image/png"),
            "mistyped": ("dot", PNG, "application/octet-stream"),
            "handle": file,
            "path": path,
        }


def test_a_first_frame_reaches_the_vendor_as_data_in_whatever_form_the_sdk_sends_it(heard, forms):
    for name, form in forms.items():
        job, body = heard(film, input_reference=form)
        # Without a ratio it has that of its first frame; the vendor would stretch the frame otherwise.
        assert body == {"duration": 4, "resolution": "720p", "image": {"url": DATA}}, name
        assert job.size == "1280x720"
    sums = {(file.content_type, file.len, file.sha256) for file in heard.gateway.vendor.files()}
    assert sums == {("image/png", len(PNG), hashlib.sha256(PNG).hexdigest())}


@pytest.mark.parametrize(("media", "content"), [("jpeg", JPEG), ("webp", WEBP)], ids=["jpeg", "webp"])
def test_a_frames_first_bytes_tell_its_kind(heard, media, content):
    _, body = heard(film, input_reference=("dot.png", content, "image/png"))
    assert body["image"] == {"url": f"data:image/{media};base64,{base64.b64encode(content).decode()}"}


ADDRESSES = [URL, DATA, "data:image/jpeg;base64,AAAA"]


@each_form
def test_the_address_of_a_frame_is_passed_on_unchanged_and_not_asked_for(heard, ask):
    for url in ADDRESSES:
        assert heard(ask, image_url=url)[1] == {"duration": 4, "resolution": "720p", "image": {"url": url}}
        shaped = heard(ask, image_url=url, aspect_ratio="1:1")
        assert shaped[1] == {"duration": 4, "aspect_ratio": "1:1", "resolution": "720p", "image": {"url": url}}
        sized = heard(ask, image_url=url, size="480x854")
        assert (sized[1]["aspect_ratio"], sized[1]["resolution"], sized[0].size) == ("9:16", "480p", "480x854")


def test_a_reference_in_json_is_an_address(heard):
    for url in ADDRESSES:
        assert heard(film_by_json, input_reference={"image_url": url})[1]["image"] == {"url": url}


def test_a_frame_may_have_4_mb_and_not_a_byte_more(heard):
    most = PNG + bytes(FILE_BYTES_MAX - len(PNG))
    _, body = heard(film, input_reference=most)
    assert base64.b64decode(body["image"]["url"].partition(",")[2], validate=True) == most
    for form in most + b"\0", ("a.png", PNG + bytes(6 << 20)), PNG + bytes(40 << 20):
        with pytest.raises(openai.APIStatusError) as refused:
            film(heard.account.client(), input_reference=form)
        assert verdict(refused) == (413, "request_too_large", "input_reference")
    assert len(heard.gateway.vendor.received("/generations")) == 1


LONG_DATA = "data:image/png;base64," + "A" * 5_592_700
# The fields, the code, and what is at fault. What only one of the two forms can say is below.
WRONG = [
    ({"seconds": 0}, "invalid_value", "seconds"),
    ({"seconds": 16}, "invalid_value", "seconds"),
    ({"seconds": -4}, "invalid_value", "seconds"),
    ({"seconds": 4.5}, "invalid_value", "seconds"),
    ({"seconds": "4.0"}, "invalid_value", "seconds"),
    ({"seconds": "04"}, "invalid_value", "seconds"),
    ({"seconds": "+4"}, "invalid_value", "seconds"),
    ({"seconds": " 4"}, "invalid_value", "seconds"),
    ({"seconds": "four"}, "invalid_value", "seconds"),
    ({"seconds": "٤"}, "invalid_value", "seconds"),
    ({"seconds": "18446744073709551620"}, "invalid_value", "seconds"),
    ({"size": "1024x1792"}, "invalid_value", "size"),
    ({"size": "720p"}, "invalid_value", "size"),
    ({"size": "1280X720"}, "invalid_value", "size"),
    ({"size": "1920x1080"}, "invalid_value", "size"),
    ({"size": "1080x1080"}, "invalid_value", "size"),
    ({"resolution": "1080p"}, "invalid_value", "resolution"),
    ({"resolution": "4k"}, "invalid_value", "resolution"),
    ({"resolution": "720"}, "invalid_value", "resolution"),
    ({"aspect_ratio": "21:9"}, "invalid_value", "aspect_ratio"),
    ({"size": "1280x720", "aspect_ratio": "21:9"}, "invalid_value", "aspect_ratio"),
    ({"size": "1280x720", "resolution": "4k"}, "invalid_value", "resolution"),
    ({"image_url": "http://pictures.example/a.png"}, "invalid_value", "image_url"),
    ({"image_url": "file:///etc/passwd"}, "invalid_value", "image_url"),
    ({"image_url": "data:text/plain;base64,AAAA"}, "invalid_value", "image_url"),
    ({"image_url": "data:image/png,AAAA"}, "invalid_value", "image_url"),
    ({"image_url": "https://pictures.example/" + "a" * 8192}, "invalid_value", "image_url"),
    ({"generate_audio": "yes"}, "invalid_value", "generate_audio"),
    ({"n": 1}, "unknown_parameter", "n"),
    ({"style": "noir"}, "unknown_parameter", "style"),
    ({"user": "alice"}, "unknown_parameter", "user"),
    ({"duration": 4}, "unknown_parameter", "duration"),
    ({"text": ""}, "invalid_value", "prompt"),
    ({"text": "a" * (PROMPT_MAX + 1)}, "invalid_value", "prompt"),
    ({"text": "👍" * (PROMPT_MAX + 1)}, "invalid_value", "prompt"),
]
WRONG_FORMS = [
    ({"input_reference": b""}, "invalid_value", "input_reference"),
    ({"input_reference": ("a.txt", b"hello", "text/plain")}, "invalid_value", "input_reference"),
    ({"input_reference": PNG, "image_url": URL}, "invalid_value", "image_url"),
    ({"seconds": ""}, "invalid_value", "seconds"),
]
WRONG_JSON = [
    ({"text": 7}, "invalid_value", "prompt"),
    ({"text": None}, "missing_required_parameter", "prompt"),
    ({"text": ["hello"]}, "invalid_value", "prompt"),
    ({"model": 7}, "invalid_value", "model"),
    ({"model": None}, "missing_required_parameter", "model"),
    ({"seconds": [4]}, "invalid_value", "seconds"),
    ({"seconds": True}, "invalid_value", "seconds"),
    ({"seconds": 4.0}, "invalid_value", "seconds"),
    ({"seconds": 1e20}, "invalid_value", "seconds"),
    ({"size": 720}, "invalid_value", "size"),
    ({"generate_audio": 0}, "invalid_value", "generate_audio"),
    ({"image_url": {"url": URL}}, "invalid_value", "image_url"),
    ({"image_url": LONG_DATA}, "invalid_value", "image_url"),
    ({"input_reference": URL}, "invalid_value", "input_reference"),
    ({"input_reference": {"file_id": "file-1"}}, "invalid_value", "input_reference"),
    ({"input_reference": {"image_url": "http://a.example/a"}}, "invalid_value", "input_reference.image_url"),
    ({"input_reference": {"image_url": URL}, "image_url": URL}, "invalid_value", "image_url"),
]
REFUSED = [(film, *wrong) for wrong in WRONG + WRONG_FORMS] + [(film_by_json, *wrong) for wrong in WRONG + WRONG_JSON]


@pytest.mark.parametrize(("ask", "wrong", "code", "param"), REFUSED, ids=lambda value: short(value))
def test_what_is_wrong_is_refused_and_nothing_is_held_or_sent(gateway, ask, wrong, code, param):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(openai.BadRequestError) as refused:
        ask(alice.client(), **wrong)
    assert verdict(refused) == (400, code, param)
    assert refused.value.message and refused.value.type == "invalid_request_error"
    assert alice.client().videos.list().data == [] and alice.charges(0) == []
    assert gw.vendor.count() == before


def short(value):
    """A parameter as part of a test's name."""
    if isinstance(value, dict):
        return ",".join(f"{name}={ascii(inner)[:30]}" for name, inner in value.items())
    return getattr(value, "__name__", str(value))


def test_the_message_of_an_unknown_field_names_the_known_ones(gateway):
    with pytest.raises(openai.BadRequestError) as refused:
        film(gateway().account().client(), quality="high")
    known = "model prompt seconds size resolution aspect_ratio input_reference image_url generate_audio".split()
    assert "quality" in refused.value.message and all(name in refused.value.message for name in known)


def test_the_message_of_a_size_that_is_not_sold_names_those_that_are(gateway):
    for wrong in {"size": "1920x1080"}, {"resolution": "1080p"}:
        with pytest.raises(openai.BadRequestError) as refused:
            film(gateway().account().client(), **wrong)
        assert "480p" in refused.value.message and "720p" in refused.value.message


@each_form
def test_an_unknown_model_is_not_found_and_the_closest_is_named(gateway, ask):
    gw = gateway()
    alice, before = gw.account(credit=None), gw.vendor.count()
    with pytest.raises(openai.NotFoundError) as refused:
        ask(alice.client(), model="lmd-imagine-vido")
    assert verdict(refused) == (404, "model_not_found", "model") and "'lmd-imagine-video'" in refused.value.message
    assert gw.vendor.count() == before


KINDS = {
    "lmb-5.5": "/v1/chat/completions",
    "lma-opus-5": "/v1/chat/completions",
    "lmb-5.5-pro": "/v1/responses",
    "lmd-imagine-image": "/v1/images/generations",
    "tts-1": "/v1/audio/speech",
    "text-embedding-3-small": "/v1/embeddings",
    "omni-moderation-latest": "/v1/moderations",
}


@each_form
@pytest.mark.parametrize(("model", "path"), KINDS.items(), ids=KINDS)
def test_a_model_of_another_kind_is_refused_and_its_endpoint_named(gateway, ask, model, path):
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(openai.BadRequestError) as refused:
        ask(alice.client(), model=model)
    assert verdict(refused) == (400, "wrong_endpoint", "model") and path in refused.value.message
    assert gw.vendor.count() == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/responses", {"input": "hello"}),
        ("/images/generations", {"prompt": "hello"}),
    ],
)
def test_a_video_model_elsewhere_is_refused_and_pointed_here(gateway, path, body):
    with pytest.raises(openai.BadRequestError) as refused:
        gateway().account().client().post(path, body={"model": "lmd-imagine-video"} | body, cast_to=object)
    assert verdict(refused) == (400, "wrong_endpoint", "model") and "/v1/videos" in refused.value.message


@pytest.mark.parametrize("left_out", ["model", "prompt"])
def test_a_form_without_what_is_required_is_a_bad_request(gateway, left_out):
    fields = {"model": "lmd-imagine-video", "prompt": "hello", left_out: openai.omit}
    with pytest.raises(openai.BadRequestError) as refused:
        gateway().account().client().videos.create(**fields, input_reference=PNG)
    assert verdict(refused) == (400, "missing_required_parameter", left_out)


BODIES = {
    "half": ("application/json", b'{"model": "lm', "invalid_json"),
    "list": ("application/json", b"[]", "invalid_json"),
    "twice": ("application/json", b'{"model":"a","model":"b"}', "invalid_json"),
    "field twice": (
        "multipart/form-data; boundary=x",
        b'--x\r\ncontent-disposition: form-data; name="prompt"\r\n\r\na\r\n' * 2 + b"--x--\r\n",
        "invalid_form",
    ),
    "cut form": ("multipart/form-data; boundary=x", b"--x\r\ncontent-disp", "invalid_form"),
    "no boundary": ("multipart/form-data", b"--x--\r\n", "invalid_form"),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_that_is_neither_json_nor_a_form_is_a_bad_request(gateway, case):
    media, body, code = BODIES[case]
    alice = gateway().account()
    headers = {"content-type": media, "authorization": f"Bearer {alice.key}"}
    refused = httpx2.post(f"{alice.gateway.base_url}/videos", content=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)
    assert alice.client().videos.list().data == []


@each_form
def test_a_bad_or_revoked_key_is_refused(gateway, ask):
    gw = gateway()
    before = gw.vendor.count()
    with pytest.raises(openai.AuthenticationError) as refused:
        ask(gw.client("sk-of-nobody"))
    assert verdict(refused) == (401, "invalid_api_key", None)
    alice = gw.account()
    alice.revoke()
    with pytest.raises(openai.PermissionDeniedError) as refused:
        ask(alice.client())
    assert verdict(refused) == (403, "key_revoked", None)
    assert gw.vendor.count() == before


def test_the_node_sdk_makes_videos_of_files_and_addresses_and_downloads_them(gateway, tmp_path):
    gw = gateway(vendor_d="")
    alice = gw.account()
    picture = tmp_path / "dot.png"
    picture.write_bytes(PNG)
    done = subprocess.run(
        ["node", HERE / "node/videos.mjs", picture, URL],
        env=os.environ | {"OPENAI_BASE_URL": gw.base_url, "OPENAI_API_KEY": alice.key},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    jobs = told["jobs"]
    assert [job["status"] for job in jobs] == ["completed"] * 3
    assert [job["seconds"] for job in jobs] == ["1", "2", "3"]
    images = [body.get("image") for body in gw.vendor.received("/generations")]
    assert images == [None, {"url": DATA}, {"url": URL}]
    charges = {charge.request_id: charge for charge in alice.charges(3)}
    for job, sha256 in zip(jobs, told["files"], strict=True):
        content = footage("sim", charges[job["id"]].vendor_request_id, int(job["seconds"]))
        assert sha256 == hashlib.sha256(content).hexdigest()
    assert told["listed"] == [job["id"] for job in reversed(jobs)]
    assert told["pollAfter"] == "100"
    assert told["deleted"] == {"id": jobs[0]["id"], "object": "video.deleted", "deleted": True}
    assert told["gone"] == {"status": 404, "code": "not_found"}
    assert told["refused"] == {"status": 400, "code": "invalid_value", "param": "seconds", "class": "BadRequestError"}
