"""GET /v1/videos/{id}/content: a redirect to a short-lived address, which serves the file to whoever has it."""

import asyncio
import base64
import hashlib
import sqlite3
import time

import httpx2
import openai
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from talk import address_of, ended, film, filmed, footage, verdict

pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")
sim = pytest.mark.vendors("sim")


@pytest.fixture
def kept(gateway):
    """A finished video of a second: its account, its job, and what its file is."""
    alice = gateway().account()
    job = filmed(alice.client(), seconds=1)
    return alice, job, footage("sim", alice.charge().vendor_request_id, 1)


@both_stores
def test_content_is_a_redirect_to_an_address_that_needs_no_key(gateway, vendor_kind):
    alice = gateway().account()
    job = filmed(alice.client())
    content = footage(vendor_kind, alice.charge().vendor_request_id)
    address = address_of(alice, job)
    reply = httpx2.get(address)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "video/mp4") and reply.content == content
    assert (reply.headers["content-length"], reply.headers["accept-ranges"]) == (str(len(content)), "bytes")
    assert alice.key not in address
    asked_for = f"{alice.gateway.base_url}/videos/{job.id}/content?variant=video"
    assert httpx2.get(asked_for, headers={"x-api-key": alice.key}).status_code == 302


@sim
def test_the_sdk_follows_and_downloads_whole_or_in_pieces(kept, tmp_path):
    alice, job, content = kept
    videos = alice.client().videos
    assert videos.download_content(job.id).read() == content
    assert videos.download_content(job.id, variant="video").read() == content
    videos.download_content(job.id).write_to_file(tmp_path / "whole.mp4")
    with videos.with_streaming_response.download_content(job.id) as streamed:
        streamed.stream_to_file(tmp_path / "pieces.mp4")
    assert (tmp_path / "whole.mp4").read_bytes() == (tmp_path / "pieces.mp4").read_bytes() == content


RANGES = {
    "bytes=0-0": slice(0, 1),
    "bytes=0-99": slice(0, 100),
    "bytes=100-": slice(100, None),
    "bytes=-50": slice(-50, None),
    "bytes=5-4000000": slice(5, None),
    "bytes=-4000000": slice(0, None),
}


@sim
def test_a_part_of_the_file_can_be_asked_for(kept):
    alice, job, content = kept
    address = address_of(alice, job)
    for asked, part in RANGES.items():
        reply = httpx2.get(address, headers={"range": asked})
        assert (reply.status_code, reply.content == content[part]) == (206, True), asked
        first, last, _ = part.indices(len(content))
        assert reply.headers["content-range"] == f"bytes {first}-{last - 1}/{len(content)}"
    for asked in f"bytes={len(content)}-", "bytes=4000000-5000000", "bytes=-0":
        reply = httpx2.get(address, headers={"range": asked})
        assert reply.status_code == 416, asked
        assert reply.headers["content-range"] == f"bytes */{len(content)}"
    # What is no range of bytes counts as none.
    for asked in "bytes=9-5", "bytes=a-b", "lines=0-5", "bytes=":
        reply = httpx2.get(address, headers={"range": asked})
        assert (reply.status_code, reply.content == content) == (200, True), asked
    # A part can be asked for through the redirect, too.
    headers = {"range": "bytes=10-19", "authorization": f"Bearer {alice.key}"}
    through = httpx2.get(f"{alice.gateway.base_url}/videos/{job.id}/content", headers=headers, follow_redirects=True)
    assert (through.status_code, through.content) == (206, content[10:20])


@sim
def test_an_address_that_was_changed_anywhere_leads_nowhere(kept):
    alice, job, _ = kept
    address = address_of(alice, job)
    way, token = address.split("token=")
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    forged = [raw[:i] + bytes([raw[i] ^ 1]) + raw[i + 1 :] for i in range(len(raw))]
    later = (int.from_bytes(raw[:8]) + 3_600_000).to_bytes(8) + raw[8:]
    forged += [raw[:-1], raw + b"x", b"", later]
    tokens = [base64.urlsafe_b64encode(bytes_).decode().rstrip("=") for bytes_ in forged]
    tokens += [token + "A", token[1:], "%", "a" * 10_000]
    with httpx2.Client() as client:
        for wrong in tokens:
            reply = client.get(f"{way}token={wrong}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found"), wrong
        without = client.get(way.rstrip("?"), headers={"authorization": f"Bearer {alice.key}"})
        assert without.status_code == 404
        assert client.get(address).status_code == 200


@sim
def test_an_address_is_for_one_file_and_says_until_when(gateway, kept):
    alice, job, _ = kept
    other = filmed(alice.client(), seconds=1)
    address = address_of(alice, job)
    assert httpx2.get(address.replace(job.id, other.id)).status_code == 404
    token = address.split("token=")[1]
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    until_s = int.from_bytes(raw[:8]) / 1000
    assert 560 < until_s - time.time() <= 571
    assert alice.name.encode() not in raw
    alice.charges(2)


def token(secret, account, job, until_ms):
    """What the gateway would put into an address: its end, and the account, encrypted and authenticated."""
    end = until_ms.to_bytes(8)
    salt = b"tollgate: address of a file, version 3"
    key = HKDF(hashes.SHA256(), 32, salt, end + job.encode()).derive(secret)
    sealed = ChaCha20Poly1305(key).encrypt(bytes(12), account.encode().ljust(64, b"\0"), end)
    return base64.urlsafe_b64encode(end + sealed).decode().rstrip("=")


@sim
def test_an_address_whose_time_is_over_leads_nowhere(kept):
    alice, job, content = kept
    other, way = alice.gateway.account(), address_of(alice, job).split("token=")[0]
    with sqlite3.connect(f"file:{alice.gateway.store_url.removeprefix('sqlite:')}?mode=ro", uri=True) as store:
        ((secret,),) = store.execute("SELECT secret FROM secret")
    now_ms = time.time_ns() // 1_000_000
    good = httpx2.get(f"{way}token={token(secret, alice.name, job.id, now_ms + 5000)}")
    assert (good.status_code, good.content == content) == (200, True)
    too_late = now_ms + 660_000
    for owner, until_ms in (alice, now_ms), (alice, now_ms - 1), (alice, 0), (alice, too_late), (other, now_ms + 5000):
        reply = httpx2.get(f"{way}token={token(secret, owner.name, job.id, until_ms)}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


@both_stores
@sim
def test_before_it_is_finished_there_is_no_content_yet(gateway):
    alice = gateway().account()
    job = film(alice.client())
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client(max_retries=2).videos.download_content(job.id)
    assert verdict(refused)[:2] == (400, "video_not_ready")
    ended(alice.client(), job)
    assert alice.client().videos.download_content(job.id).read()
    alice.charge()


@sim
def test_there_is_no_other_variant_than_the_video(kept):
    alice, job, _ = kept
    for variant in "thumbnail", "spritesheet", "", "Video":
        with pytest.raises(openai.BadRequestError) as refused:
            alice.client().videos.download_content(job.id, variant=variant)
        assert verdict(refused) == (400, "invalid_value", "variant")


@sim
def test_content_needs_a_key(kept):
    alice, job, _ = kept
    with pytest.raises(openai.AuthenticationError):
        alice.gateway.client("sk-of-nobody").videos.download_content(job.id)
    for query in "", "?variant=thumbnail":
        assert httpx2.get(f"{alice.gateway.base_url}/videos/{job.id}/content{query}").status_code == 401


@sim
def test_the_address_begins_as_the_configuration_says(gateway):
    gw = gateway(vendor_d="", files={"public_base": "https://files.example/tollgate"})
    alice = gw.account()
    job = filmed(alice.client(), seconds=1)
    address = address_of(alice, job)
    base = "https://files.example/tollgate"
    assert address.startswith(f"{base}/v1/videos/{job.id}/file?token=")
    assert httpx2.get(address.replace(base, gw.root)).content == footage("sim", alice.charge().vendor_request_id, 1)


@sim
def test_a_long_file_comes_whole_to_a_slow_reader_and_to_many_at_once(gateway):
    size = 20_000_000
    alice = gateway(vendor_d=f"file.reply-bytes={size}").account()
    job = filmed(alice.client())
    with alice.client().videos.with_streaming_response.download_content(job.id) as streamed:
        begun, length = time.monotonic(), 0
        for piece in streamed.iter_bytes(1 << 20):
            length += len(piece)
            time.sleep(0.02)
    assert length == size and time.monotonic() - begun > 0.3
    assert alice.charge().amount_nano == 280_000_000

    async def eight():
        async with alice.async_client() as client:
            replies = await asyncio.gather(*(client.videos.download_content(job.id) for _ in range(8)))
        return {hashlib.sha256(reply.content).hexdigest() for reply in replies}, {len(r.content) for r in replies}

    sums, lengths = asyncio.run(eight())
    assert len(sums) == 1 and lengths == {size}


WRONG_METHODS = [
    ("PUT", "/videos"),
    ("POST", "/videos/ID"),
    ("DELETE", "/videos/ID/content"),
    ("POST", "/videos/ID/file"),
]


@sim
def test_methods_that_mean_nothing_here_are_refused(kept):
    alice, job, _ = kept
    headers = {"authorization": f"Bearer {alice.key}"}
    with httpx2.Client(base_url=alice.gateway.base_url, headers=headers) as client:
        for method, path in WRONG_METHODS:
            reply = client.request(method, path.replace("ID", job.id))
            assert reply.status_code == 405 and "GET" in reply.headers["allow"], path
        for path in "/videos/generations", f"/videos/{job.id}/remix", "/videos/edits", f"/videos/{job.id}/file/x":
            assert client.post(path).status_code in (404, 405), path
