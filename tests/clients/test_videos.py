"""POST /v1/videos and what follows: a job that is asked after, ends, and costs what the vendor bills."""

import asyncio
import re
import time
from decimal import Decimal

import openai
import pytest
from stack import NANO, SHORT_OF_CREDIT, VENDOR_KEY
from talk import ended, film, film_by_json, filmed, footage

SOLD = {
    ("lmd-imagine-video", "480p"): 50_000_000,
    ("lmd-imagine-video", "720p"): 70_000_000,
    ("lmd-imagine-video-1.5", "480p"): 80_000_000,
    ("lmd-imagine-video-1.5", "720p"): 140_000_000,
    ("lmd-imagine-video-1.5", "1080p"): 250_000_000,
}
# What aimock's fixture says that its video cost, in 10^-10 USD.
AIMOCK_TICKS = 2_912_345_678
pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")
sim = pytest.mark.vendors("sim")
each_form = pytest.mark.parametrize("ask", [film, film_by_json], ids=["form", "json"])


def assert_completed(job, seconds=4, size="1280x720"):
    """A finished job is whole, and agrees with itself."""
    assert (job.status, job.progress, job.error) == ("completed", 100, None)
    assert (job.object, job.seconds, job.size) == ("video", str(seconds), size)
    assert job.created_at <= job.completed_at <= time.time()
    assert job.expires_at == job.completed_at + 7 * 24 * 3600
    assert job.usage["seconds"] == seconds


def assert_paid(alice, job, ticks, seconds=4, resolution="720p"):
    """It cost what the vendor billed, once, and says so itself."""
    nano = -(-ticks // 10)
    units = {"seconds": seconds, "resolution": resolution, "cost_in_usd_ticks": ticks}
    charge = alice.assert_charged(job.model, nano, **units)
    assert (charge.endpoint, charge.vendor, charge.request_id) == ("videos", "vendor_d", job.id)
    assert alice.key.startswith(charge.key_prefix)
    assert job.usage["resolution"] == resolution and Decimal(str(job.usage["cost_usd"])) * NANO == nano
    return charge


def submissions(gw):
    """What the vendor was asked to make."""
    return gw.vendor.requests("/videos/generations")


@both_stores
def test_a_video_is_made_downloaded_and_charged_what_the_vendor_bills(gateway, vendor_kind):
    alice = gateway().account()
    client = alice.client()
    job = film(client)
    assert re.fullmatch(r"video_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", job.id)
    assert (job.object, job.model, job.status, job.progress) == ("video", "lmd-imagine-video", "queued", 0)
    assert (job.seconds, job.size, job.error) == ("4", "1280x720", None)
    assert job.completed_at is None and job.expires_at is None and abs(job.created_at - time.time()) < 5
    job = ended(client, job)
    assert_completed(job)
    charge = assert_paid(alice, job, 2_800_000_000 if vendor_kind == "sim" else AIMOCK_TICKS)
    assert client.videos.download_content(job.id).read() == footage(vendor_kind, charge.vendor_request_id)
    assert client.videos.retrieve(job.id) == job
    alice.charges(1)


@both_stores
@sim
def test_the_price_of_its_seconds_is_held_and_then_charged(gateway):
    gw = gateway(vendor_d="video-ms=800")
    under_way = []
    for (model, resolution), rate in SOLD.items():
        alice = gw.account(credit=f"{7 * rate / NANO:.9f}")
        assert alice.price(model).second[resolution] == rate
        job = film(alice.client(), model=model, resolution=resolution, seconds=7)
        balance = alice.balance()
        assert (balance.held_nano, balance.available_nano) == (7 * rate, 0), (model, resolution)
        under_way.append((alice, job, resolution, rate))
    for alice, job, resolution, rate in under_way:
        job = ended(alice.client(), job)
        assert (job.status, job.seconds, job.usage["resolution"]) == ("completed", "7", resolution)
        assert_paid(alice, job, 70 * rate, 7, resolution)
        assert alice.balance().available_nano == 0


@sim
@pytest.mark.parametrize("ticks", [1, 2_799_999_999, 2_800_000_001, 2_820_000_000, 99_999_999_999])
def test_a_part_of_a_nano_counts_as_a_whole_one(gateway, ticks):
    alice = gateway(vendor_d=f"ticks={ticks}").account(credit="20")
    assert_paid(alice, filmed(alice.client()), ticks)


@sim
@pytest.mark.parametrize("usage", ["no-usage", "null-usage", "bad-usage", "poll.ticks=0", "poll.ticks=100000000001"])
def test_a_video_without_a_sane_bill_costs_what_was_held(gateway, usage):
    alice = gateway(vendor_d=usage).account(credit="20")
    job = filmed(alice.client(), seconds=3)
    assert_completed(job, 3)
    assert job.usage == {"seconds": 3, "resolution": "720p", "cost_usd": 0.21}
    alice.assert_charged(job.model, 210_000_000, basis="fixed", seconds=3, resolution="720p")


@sim
def test_a_bill_above_the_balance_takes_the_rest_and_is_told_in_full(gateway):
    alice = gateway(vendor_d="ticks=3000000000").account(credit="0.28")
    job = filmed(alice.client())
    charge = assert_paid(alice, job, 3_000_000_000)
    assert charge.written_off_nano == alice.balance().written_off_nano == 20_000_000


@both_stores
@sim
def test_below_the_price_nothing_is_sent_and_nothing_is_listed(gateway):
    gw = gateway(vendor_d="")
    poor = gw.account(credit="0.279999999")
    for ask in film, film_by_json:
        with pytest.raises(openai.APIStatusError) as refused:
            ask(poor.client())
        assert (refused.value.status_code, refused.value.code) == (402, "insufficient_credits")
        assert type(refused.value) is openai.APIStatusError and "0.28" in refused.value.message
    assert poor.client().videos.list().data == [] and poor.charges(0) == []
    time.sleep(0.3)
    assert gw.vendor.videos() == [] and gw.vendor.count() == 0


@both_stores
@sim
def test_parallel_jobs_do_not_overdraw_an_account(gateway):
    alice = gateway().account(credit="0.9")  # three of 0.28

    async def one(client):
        try:
            job = await client.videos.create(model="lmd-imagine-video", prompt="hello")
            return await asyncio.wait_for(client.videos.poll(job.id, poll_interval_ms=50), 30)
        except openai.APIStatusError as refused:
            assert (refused.status_code, refused.code) in SHORT_OF_CREDIT

    async def six():
        async with alice.async_client() as client:
            return await asyncio.gather(*(one(client) for _ in range(6)))

    jobs = [job for job in asyncio.run(six()) if job]
    assert [job.status for job in jobs] == ["completed"] * 3
    assert {charge.request_id for charge in alice.charges(3)} == {job.id for job in jobs}
    assert alice.balance().available_nano == 60_000_000


@sim
def test_the_sdk_asks_as_often_as_it_is_told_to(gateway, monkeypatch):
    class Enough(Exception):
        pass

    def pause(seconds):
        pauses.append(seconds)
        if seconds > 1 or len(pauses) > 30:
            raise Enough
        time.sleep(seconds)

    pauses = []
    alice = gateway().account()
    client = alice.client()
    monkeypatch.setattr(client.videos, "_sleep", pause)
    assert_completed(client.videos.create_and_poll(model="lmd-imagine-video", prompt="hello"))
    # As often as the gateway asks the vendor: here ten times a second, and every five seconds of its own accord.
    assert len(pauses) > 2 and set(pauses) == {0.1}
    alice.charge()
    client, pauses = gateway(vendor_d="", videos={"poll_ms": 5000}).account().client(), []
    monkeypatch.setattr(client.videos, "_sleep", pause)
    with pytest.raises(Enough):
        client.videos.create_and_poll(model="lmd-imagine-video", prompt="hello")
    assert pauses == [5.0]


@both_stores
def test_a_job_is_queued_then_in_progress_and_then_done(gateway):
    alice = gateway().account()
    client = alice.client()
    seen = [film(client, "[slow 1200] hello")]
    while seen[-1].status not in ("completed", "failed"):
        time.sleep(0.01)
        seen.append(client.videos.retrieve(seen[0].id))
    states = list(dict.fromkeys(job.status for job in seen))
    assert states == ["queued", "in_progress", "completed"]
    told = [job.progress for job in seen]
    assert told == sorted(told) and told[-1] == 100 and any(0 < progress < 100 for progress in told)
    assert all(getattr(job, "usage", None) is None for job in seen[:-1])
    alice.charges(1)


@each_form
def test_the_vendor_is_asked_for_one_video_with_the_keys_of_the_route(gateway, vendor_kind, ask):
    gw = gateway(vendor_d="")
    alice = gw.account()
    job = ended(alice.client(), ask(alice.client()))
    (request,) = submissions(gw)
    if vendor_kind == "sim":
        said = {"model": "lmd-imagine-video", "prompt": "hello", "duration": 4}
        assert request.body == said | {"aspect_ratio": "16:9", "resolution": "720p"}
        assert request.headers["authorization"] == f"Bearer {VENDOR_KEY}"
        assert request.headers["content-type"] == "application/json"
        (video,) = gw.vendor.videos()
        assert (video.outcome, video.audio, video.fetches) == ("done", True, 1)
    else:  # It refuses whoever has another key, and any form.
        assert (request.body["model"], request.body["messages"][0]["content"]) == ("lmd-imagine-video", "hello")
    everything = str([vars(request) for request in gw.vendor.requests()])
    assert alice.key not in everything and alice.name not in everything
    assert job.id not in everything


@sim
def test_the_key_of_the_route_is_not_shown_to_the_host_of_the_file(gateway):
    gw = gateway(vendor_d="")
    filmed(gw.account().client())
    (fetched,) = gw.vendor.requests("/files/")
    assert "authorization" not in fetched.headers and VENDOR_KEY not in str(vars(fetched))
    polled = gw.vendor.requests("/v1/videos/")
    assert {request.headers.get("authorization") for request in polled} == {f"Bearer {VENDOR_KEY}"}


@sim
def test_the_vendor_hears_its_own_name_of_a_model_and_the_client_ours(gateway):
    setting = "TOLLGATE__VENDOR__VENDOR_D__"
    names = {f"{setting}NAMES": '{ "lmd-*" = "grok-*" }', f"{setting}ALIASES": "true"}
    gw = gateway(vendor_d="", environment=names)
    alice = gw.account()
    for model in "lmd-imagine-video", "grok-imagine-video":
        job = filmed(alice.client(), model=model)
        assert job.model == "lmd-imagine-video"
    assert [request.body["model"] for request in submissions(gw)] == ["grok-imagine-video"] * 2
    assert [charge.model for charge in alice.charges(2)] == ["lmd-imagine-video"] * 2


@sim
def test_the_charge_of_a_video_can_be_read(gateway):
    gw = gateway()
    alice = gw.account()
    job = filmed(alice.client(), seconds=3)
    alice.charge()
    (line,) = gw.cli("charges", alice.name).splitlines()
    assert all(part in line for part in (job.id, "lmd-imagine-video", "3 seconds of 720p", " 0.21 USD"))


@sim
def test_the_log_tells_neither_keys_nor_prompts_nor_addresses(gateway):
    gw = gateway(vendor_d=["submit.status=503", ""])
    alice = gw.account()
    client = alice.client()
    job = filmed(client, "a secret of mine", extra_headers={"Idempotency-Key": "a-key-of-mine"})
    assert client.videos.download_content(job.id).read()
    assert filmed(client, "[fails] another secret of mine").status == "failed"
    log = gw.process.log.read_text()
    assert job.id in log and alice.name in log
    assert [said for said in (alice.key, VENDOR_KEY, "secret of mine", "a-key-of-mine", "token=") if said in log] == []
    alice.charge()
