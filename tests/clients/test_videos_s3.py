"""Finished videos in an object store: kept there by the gateway, fetched from there by the client."""

import time
from urllib.parse import parse_qs, urlsplit

import httpx2
import openai
import pytest
from bucket import Bucket
from stack import until
from talk import address_of, ended, film, filmed, footage

pytestmark = [pytest.mark.stores("sqlite"), pytest.mark.vendors("sim")]


@pytest.fixture(scope="module")
def shared_bucket(stacks):
    bucket = Bucket(stacks.new_folder())
    yield bucket
    bucket.stop()


@pytest.fixture
def on_s3(gateway):
    """on_s3(bucket): a gateway that keeps its files there."""

    def start(bucket, vendor_d="", **videos):
        return gateway(vendor_d=vendor_d, files={"url": bucket.url}, environment=bucket.environment, videos=videos)

    return start


@pytest.mark.stores("sqlite", "redis")
def test_a_video_is_kept_in_the_bucket_and_downloaded_from_there_by_a_signed_address(shared_bucket, on_s3):
    bucket, gw = shared_bucket, on_s3(shared_bucket)
    alice = gw.account()
    job = filmed(alice.client())
    content = footage("sim", alice.charge().vendor_request_id)
    ((name, length),) = [(name, length) for name, length in bucket.objects().items() if job.id in name]
    assert name.startswith("some/where/") and length == len(content)
    assert not (gw.conf.parent / "files").exists()
    address = address_of(alice, job)
    assert urlsplit(address).netloc == urlsplit(bucket.wire.url).netloc != urlsplit(gw.root).netloc
    assert urlsplit(address).path == f"/{bucket.name}/{name}"
    query = {name: value for name, (value,) in parse_qs(urlsplit(address).query).items()}
    assert query["X-Amz-Expires"] == "600" and query["X-Amz-Signature"] == bucket.signature(address)
    assert query["X-Amz-Credential"].startswith(bucket.key + "/") and bucket.secret not in address
    reply = httpx2.get(address)
    assert reply.content == content and reply.headers["content-type"] == "video/mp4"
    assert httpx2.get(address, headers={"range": "bytes=5-9"}).content == content[5:10]


def test_the_sdk_follows_to_the_bucket_and_does_not_show_it_its_key(shared_bucket, on_s3):
    alice = on_s3(shared_bucket).account()
    job = filmed(alice.client(), seconds=1)
    shared_bucket.wire.forget()
    content = alice.client().videos.download_content(job.id).read()
    assert content == footage("sim", alice.charge().vendor_request_id, 1)
    # Gateways list what else they keep there, once a minute.
    (request,) = [request for request in shared_bucket.requests("GET") if "list-type" not in request.first]
    assert job.id in request.first and "authorization" not in request.headers
    assert alice.key not in str(vars(request))


def test_no_request_to_the_bucket_shows_a_key_of_a_vendor_or_of_a_client(shared_bucket, on_s3):
    shared_bucket.wire.forget()
    gw = on_s3(shared_bucket)
    alice = gw.account()
    job = filmed(alice.client(), seconds=1)
    alice.client().videos.delete(job.id)
    until(lambda: not [name for name in shared_bucket.objects() if job.id in name], "the object is deleted")
    said = [str(vars(request)) for request in shared_bucket.requests()]
    assert len(said) >= 2 and not any(key in text for text in said for key in (alice.key, "vk-test"))


def test_deleting_a_job_removes_its_object_and_no_other(shared_bucket, on_s3):
    alice = on_s3(shared_bucket).account()
    videos = alice.client().videos
    kept, job = filmed(alice.client(), seconds=1), filmed(alice.client(), seconds=1)
    address = address_of(alice, job)
    assert httpx2.get(address).status_code == 200
    videos.delete(job.id)
    until(lambda: not [name for name in shared_bucket.objects() if job.id in name], "the object is deleted")
    assert httpx2.get(address).status_code == 404
    with pytest.raises(openai.NotFoundError):
        videos.download_content(job.id)
    assert videos.download_content(kept.id).read()
    alice.charges(2)


def test_a_long_video_arrives_in_parts_and_is_whole(shared_bucket, on_s3):
    size = 23_000_001
    alice = on_s3(shared_bucket, f"file.reply-bytes={size}").account()
    job = filmed(alice.client())
    lengths = [length for name, length in shared_bucket.objects().items() if job.id in name]
    assert job.status == "completed" and lengths == [size]
    content = alice.client().videos.download_content(job.id).read()
    assert len(content) == size and content[:32] == b"\0\0\0\x18ftypisom\0\0\2\0isommp42" + content[24:32]
    alice.charge()


@pytest.fixture
def own_bucket(stacks):
    bucket = Bucket(stacks.new_folder())
    yield bucket
    bucket.stop()


# A video takes the simulator so long.
VENDOR_SECONDS = 0.4


def test_a_video_that_no_bucket_takes_in_time_is_undelivered_and_costs_nothing(own_bucket, on_s3):
    gw = on_s3(own_bucket, copies_max=1, timeout_ms=1500)
    alice, begun = gw.account(credit="0.28"), time.monotonic()
    job = film(alice.client())
    own_bucket.end()
    job = ended(alice.client(), job)
    assert (job.status, job.error.code) == ("failed", "undelivered") and job.error.message
    assert alice.charges(0) == [] and alice.balance().available_nano == 280_000_000
    assert len(gw.vendor.requests("/generations")) == 1
    # It was not the vendor's file that failed: from when it was made there is as much time again.
    assert time.monotonic() - begun > 1.5 + VENDOR_SECONDS
    # Nothing of where the files are is told.
    assert own_bucket.name not in job.error.message and str(own_bucket.wire.url) not in job.error.message


def test_a_bucket_that_comes_back_in_time_gets_its_video(own_bucket, on_s3):
    gw = on_s3(own_bucket)
    alice = gw.account()
    job = film(alice.client())
    own_bucket.end()
    until(lambda: gw.vendor.videos()[0].fetches > 0, "the gateway tries to copy it")
    time.sleep(0.5)
    assert alice.client().videos.retrieve(job.id).status == "in_progress"
    own_bucket.begin()
    job = ended(alice.client(), job)
    assert job.status == "completed" and len(own_bucket.objects()) == 1
    charge = alice.charge()
    assert alice.client().videos.download_content(job.id).read() == footage("sim", charge.vendor_request_id)
    assert len(gw.vendor.requests("/generations")) == 1


def test_nothing_is_ordered_while_there_is_nowhere_to_keep_it(own_bucket, on_s3):
    own_bucket.end()
    gw = on_s3(own_bucket)
    alice = gw.account()
    job = film(alice.client(), seconds=1)
    time.sleep(2)
    assert alice.client().videos.retrieve(job.id).status == "queued"
    assert gw.vendor.requests("/generations") == []
    own_bucket.begin()
    assert ended(alice.client(), job).status == "completed"
    assert alice.charge().amount_nano == 70_000_000
