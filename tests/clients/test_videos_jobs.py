"""The jobs of /v1/videos: how they fail and cost nothing, who finds them, how they are listed, repeated and deleted."""

import asyncio
import signal
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import openai
import pytest
from stack import Sim, sdk, until
from talk import address_of, ended, film, film_by_json, filmed, footage, verdict

pytestmark = pytest.mark.stores("sqlite")
both_stores = pytest.mark.stores("sqlite", "redis")
redis = pytest.mark.stores("redis")
sim = pytest.mark.vendors("sim")


def assert_failed(alice, job, code):
    """It says why, has no file, and cost nothing."""
    assert (job.status, job.error.code) == ("failed", code) and job.error.message
    assert job.usage == {"seconds": 4, "resolution": "720p", "cost_usd": 0}
    assert job.completed_at >= job.created_at
    with pytest.raises(openai.NotFoundError) as refused:
        alice.client().videos.download_content(job.id)
    assert verdict(refused)[:2] == (404, "not_found")
    assert alice.charges(0) == []


def submissions(gw):
    """How often the vendor was asked to make a video."""
    return gw.vendor.calls().submissions


ENDS = {
    "[blocked] hello": "moderation_blocked",
    "[withheld] hello": "moderation_blocked",
    "[late] hello": "moderation_blocked",
    "[denied] hello": "moderation_blocked",
    "[fails] hello": "vendor_failed",
    "[expires] hello": "vendor_failed",
    "[gone] hello": "vendor_failed",
    "[lost-file] hello": "undelivered",
}


@both_stores
@sim
def test_jobs_that_fail_say_why_and_cost_nothing(gateway):
    gw = gateway(vendor_d="", videos={"copies_max": 3})
    customers = {text: gw.account(credit="0.28") for text in ENDS}
    jobs = {text: film(alice.client(), text) for text, alice in customers.items()}
    for text, alice in customers.items():
        job = ended(alice.client(), jobs[text])
        assert (text, job.status, job.error and job.error.code) == (text, "failed", ENDS[text])
        assert_failed(alice, job, ENDS[text])
        assert alice.balance().available_nano == 280_000_000
    # The blocked one was refused, and no other was asked for twice.
    assert sorted([*(video.prompt for video in gw.vendor.videos()), "[blocked] hello"]) == sorted(ENDS)
    assert submissions(gw) == len(ENDS)


@both_stores
@sim
def test_a_job_that_never_ends_is_given_up_when_its_time_is_over(gateway):
    gw = gateway(vendor_d="", videos={"timeout_ms": 6000})
    alice, begun = gw.account(), time.monotonic()
    job = filmed(alice.client(), "[never] hello")
    # A job is sent when Redis has on disk that it is, which takes a second or two.
    assert 5.9 < time.monotonic() - begun < 15
    assert_failed(alice, job, "timed_out")
    assert submissions(gw) == 1


# What the vendor does when it is asked for a video, and the code of the job.
ORDERS = [
    ("submit.status=400", "vendor_failed"),
    ("submit.status=404", "vendor_failed"),
    ("submit.status=422", "vendor_failed"),
    ("submit.status=401", "vendor_failed"),
    ("submit.status=403", "vendor_failed"),
    ("submit.status=500", "vendor_failed"),
    ("submit.status=502", "vendor_failed"),
    ("submit.status=504", "vendor_failed"),
    ("submit.status=408", "vendor_failed"),
    ("submit.garbage", "vendor_failed"),
    ("submit.cut=0", "vendor_failed"),
    ("submit.reset=0", "vendor_failed"),
    ("moderated=prompt", "moderation_blocked"),
]


@sim
@pytest.mark.parametrize(("fault", "code"), ORDERS)
def test_an_order_whose_fate_is_bad_or_unknown_is_never_sent_again(gateway, fault, code):
    gw = gateway(vendor_d=fault)
    alice = gw.account()
    job = filmed(alice.client())
    time.sleep(0.4)
    assert submissions(gw) == 1
    assert_failed(alice, job, code)


@sim
@pytest.mark.parametrize("fault", ["submit.status=429", "submit.status=503", "submit.status=529", "unreachable"])
def test_an_order_that_nobody_took_goes_to_the_next_route(gateway, fault):
    gw = gateway(vendor_d=[fault, ""])
    alice = gw.account()
    assert filmed(alice.client()).status == "completed"
    (charge,) = alice.charges(1)
    assert (charge.route, charge.depth) == ("second", 1) and len(gw.vendor.videos()) == 1


@sim
def test_an_order_that_nobody_took_is_sent_again_until_somebody_does(gateway):
    gw = gateway(vendor_d="submit.status=503;submit.times=3")
    alice = gw.account()
    job = film(alice.client())
    assert job.status == "queued"
    assert ended(alice.client(), job).status == "completed"
    assert submissions(gw) == 4 and len(gw.vendor.videos()) == 1
    alice.assert_charged(job.model, 280_000_000, seconds=4, resolution="720p", cost_in_usd_ticks=2_800_000_000)


@sim
def test_an_order_that_nobody_ever_took_is_given_up_when_its_time_is_over(gateway):
    gw = gateway(vendor_d="submit.status=503", videos={"timeout_ms": 1200})
    alice = gw.account(credit="0.28")
    assert_failed(alice, filmed(alice.client()), "timed_out")
    assert submissions(gw) >= 3 and alice.balance().available_nano == 280_000_000


@sim
@pytest.mark.parametrize(
    "fault",
    ["poll.status=503;poll.times=3", "poll.status=500;poll.times=2", "poll.cut=0;poll.times=2"]
    + ["poll.garbage;poll.times=2", "poll.status=429;poll.times=2", "file.cut=2;file.times=2"]
    + ["file.status=503;file.times=2", "file.reset=1;file.times=2"],
)
def test_what_breaks_on_the_way_is_asked_for_again(gateway, fault):
    gw = gateway(vendor_d=fault)
    alice = gw.account()
    job = filmed(alice.client(), seconds=1)
    assert job.status == "completed" and submissions(gw) == 1
    (charge,) = alice.charges(1)
    assert alice.client().videos.download_content(job.id).read() == footage("sim", charge.vendor_request_id, 1)


@sim
@pytest.mark.parametrize("url", ["other-host", "metadata", "scheme", "relative"])
def test_a_file_is_fetched_from_the_vendors_hosts_only(gateway, url):
    gw = gateway(vendor_d=f"url={url}", videos={"copies_max": 2})
    alice = gw.account()
    assert_failed(alice, filmed(alice.client()), "undelivered")
    assert gw.vendor.calls().fetches == 0


@sim
def test_another_port_of_the_vendors_host_is_another_host(gateway, stacks):
    other = stacks.start(Sim(stacks.new_folder()))
    gw = gateway(vendor_d=f"url-port={urlsplit(other.url).port}", videos={"copies_max": 2})
    alice = gw.account()
    assert_failed(alice, filmed(alice.client()), "undelivered")
    assert other.calls().fetches == gw.vendor.calls().fetches == 0


@sim
@pytest.mark.parametrize("url", ["empty", "none"])
def test_a_video_that_was_made_without_an_address_is_undelivered(gateway, url):
    alice = gateway(vendor_d=f"url={url}").account()
    assert_failed(alice, filmed(alice.client()), "undelivered")


@sim
def test_a_file_may_be_on_another_host_that_the_configuration_names(gateway):
    hosts = {"TOLLGATE__VENDOR__VENDOR_D__FILE_HOSTS": '["localhost"]'}
    # With TLS, another host would have to be known to the system's authorities.
    gw = gateway(vendor_d="url=other-host", environment=hosts, tls=False)
    alice = gw.account()
    assert filmed(alice.client()).status == "completed"
    assert gw.vendor.calls().fetches == 1
    alice.charges(1)


@sim
def test_a_redirect_of_the_vendors_is_not_followed(gateway):
    gw = gateway(vendor_d="redirect", videos={"copies_max": 2})
    alice = gw.account()
    assert_failed(alice, filmed(alice.client()), "undelivered")
    assert {request.path.split("/v1/")[0] for request in gw.vendor.requests("/files/")} == {"/vendor_d/redirect"}


@pytest.mark.vendors("aimock")
def test_the_failures_of_aimock_are_failures(gateway):
    # Where the vendor's document has {"error": {"code", "message"}}, aimock has {"code": "generation_failed", "error":
    # "the message"}, whatever the reason, so that no moderation is known as such. While a video is pending aimock
    # answers 200 where the vendor answers 202, and never an empty body; and none is ever withheld, or expires.
    gw = gateway()
    alice = gw.account()
    for text in "status=400", "status=500", "fails=silent", "moderated=late":
        assert_failed(alice, filmed(alice.client(), text), "vendor_failed")


# Idempotency.


def keyed(key):
    return {"extra_headers": {"Idempotency-Key": key}}


@both_stores
@sim
def test_the_same_key_again_is_the_same_job_as_it_is_now(gateway):
    gw = gateway(vendor_d="")
    alice = gw.account()
    client = alice.client()
    job = film(client, **keyed("one"))
    assert film(client, **keyed("one")).id == job.id
    # Whatever the body says.
    again = film_by_json(client, "something else", "lmd-imagine-video-1.5", seconds=15, **keyed("one"))
    assert (again.id, again.model, again.seconds) == (job.id, "lmd-imagine-video", "4")
    job = ended(client, job)
    assert film(client, **keyed("one")) == job
    other = filmed(client, **keyed("ONE"))
    assert other.id != job.id
    assert [video.prompt for video in gw.vendor.videos()] == ["hello"] * 2
    assert {charge.request_id for charge in alice.charges(2)} == {job.id, other.id}
    assert len(client.videos.list().data) == 2


@both_stores
@sim
def test_the_same_key_eight_times_at_once_is_one_job_and_one_order(gateway, stacks, store):
    gw = gateway(vendor_d="")
    alice = gw.account(credit="0.28")  # enough for one
    nodes = [gw, stacks.twin(gw)] if store == "redis" else [gw]

    async def eight():
        clients = [sdk(node.base_url, alice.key, openai.AsyncOpenAI) for node in nodes * (8 // len(nodes))]
        create = [c.videos.create(model="lmd-imagine-video", prompt="hello", **keyed("k")) for c in clients]
        return await asyncio.gather(*create)

    jobs = asyncio.run(eight())
    assert len(jobs) == 8 and len({job.id for job in jobs}) == 1
    assert ended(alice.client(), jobs[0]).status == "completed"
    alice.charge()
    assert len(gw.vendor.videos()) == submissions(gw) == 1


@both_stores
@sim
def test_a_key_is_an_accounts_own(gateway):
    gw = gateway()
    alice, bob = gw.account(), gw.account()
    first, second = film(alice.client(), **keyed("one")), film(bob.client(), **keyed("one"))
    assert first.id != second.id
    for account, job in (alice, first), (bob, second):
        ended(account.client(), job)
        assert account.charge().request_id == job.id


@both_stores
@sim
def test_a_call_that_was_refused_leaves_its_key_unused(gateway):
    alice = gateway().account(credit="0.1")
    client = alice.client()
    with pytest.raises(openai.APIStatusError) as refused:
        film(client, **keyed("one"))
    assert refused.value.status_code == 402
    alice.gateway.cli("credit", "add", alice.name, "1", "--id", "more")
    with pytest.raises(openai.BadRequestError):
        film(client, seconds=16, **keyed("one"))
    assert filmed(client, **keyed("one")).status == "completed"
    alice.charge()


@sim
@pytest.mark.parametrize("key", ["", "a" * 256, "a b", "a\tb"], ids=["empty", "long", "space", "tab"])
def test_a_key_that_is_none_is_a_bad_request(gateway, key):
    alice = gateway().account()
    with pytest.raises(openai.BadRequestError) as refused:
        film(alice.client(), extra_headers={"Idempotency-Key": key})
    assert verdict(refused) == (400, "invalid_value", "Idempotency-Key")
    assert alice.client().videos.list().data == [] and alice.charges(0) == []


@sim
def test_a_key_of_255_characters_is_one(gateway):
    alice = gateway().account()
    key = "".join(chr(33 + i % 94) for i in range(255))
    job = film(alice.client(), **keyed(key))
    assert film(alice.client(), **keyed(key)).id == job.id
    ended(alice.client(), job)
    alice.charge()


@both_stores
@sim
def test_the_key_of_a_deleted_job_stays_used(gateway):
    gw = gateway(vendor_d="")
    alice = gw.account()
    job = filmed(alice.client(), **keyed("one"))
    alice.client().videos.delete(job.id)
    with pytest.raises(openai.NotFoundError) as refused:
        film(alice.client(), **keyed("one"))
    assert verdict(refused)[:2] == (404, "not_found")
    alice.charge()
    assert submissions(gw) == 1


# Whose a job is, and which there are.


@both_stores
@sim
def test_a_job_is_found_by_its_account_only(gateway):
    gw = gateway()
    alice, bob = gw.account(), gw.account()
    mine, theirs = filmed(alice.client()), bob.client().videos
    for call in theirs.retrieve, theirs.download_content, theirs.delete, lambda id: theirs.list(after=id):
        said = {}
        for id in mine.id, "video_00000000-0000-7000-8000-000000000000", "video_x", "x":
            with pytest.raises(openai.NotFoundError) as refused:
                call(id)
            assert verdict(refused)[:2] == (404, "not_found")
            said[id] = refused.value.message.replace(id, "ID")
        # Nothing tells whether another account has it.
        assert len(set(list(said.values())[:2])) == 1
    assert theirs.list().data == []
    assert [job.id for job in alice.client().videos.list()] == [mine.id]
    assert alice.client().videos.download_content(mine.id).read()
    alice.charge()


@both_stores
@sim
def test_another_key_of_the_account_finds_its_jobs(gateway):
    gw = gateway()
    alice = gw.account()
    job = filmed(alice.client())
    client = gw.client(gw.cli("key", "issue", alice.name))
    assert client.videos.retrieve(job.id) == job and client.videos.list().data == [job]
    with pytest.raises(openai.AuthenticationError):
        gw.client("sk-of-nobody").videos.retrieve(job.id)
    alice.charge()


@both_stores
@sim
def test_jobs_are_listed_page_by_page_in_either_order(gateway):
    gw = gateway(vendor_d="video-ms=100")
    alice = gw.account()
    client = alice.client()
    empty = client.get("/videos", cast_to=object)
    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    made = [film(client, seconds=1).id for _ in range(23)]
    newest = list(reversed(made))
    page = client.videos.list()
    assert [job.id for job in page.data] == newest[:20] and page.has_more
    assert (page.object, page.first_id, page.last_id) == ("list", newest[0], newest[19])
    # The SDK goes on until there is no more.
    for limit in 1, 4, 20, 23, 100:
        assert [job.id for job in client.videos.list(limit=limit)] == newest
        assert [job.id for job in client.videos.list(limit=limit, order="asc")] == made
    page = client.videos.list(after=made[5], order="asc", limit=3)
    assert [job.id for job in page.data] == made[6:9] and page.has_more
    page = client.videos.list(after=made[5], order="desc", limit=5)
    assert [job.id for job in page.data] == [made[i] for i in (4, 3, 2, 1, 0)] and not page.has_more
    assert client.videos.list(after=made[0]).data == []
    assert [job.id for job in client.videos.list(after="").data] == newest[:20]
    for job in client.videos.list():
        ended(client, job)
    alice.charges(23)


@sim
@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"limit": "ten"}, "limit"), ({"order": "up"}, "order")],
    ids=str,
)
def test_a_page_that_cannot_be_is_a_bad_request(gateway, query, param):
    with pytest.raises(openai.BadRequestError) as refused:
        gateway().account().client().videos.list(**query)
    assert verdict(refused) == (400, "invalid_value", param)


@sim
def test_so_many_jobs_may_be_under_way_and_no_more(gateway):
    gw = gateway(vendor_d="video-ms=700", videos={"open_max": 2})
    alice, bob = gw.account(), gw.account()
    jobs = [film(alice.client(), **keyed("one")), film(alice.client())]
    assert film(alice.client(), **keyed("one")).id == jobs[0].id
    with pytest.raises(openai.RateLimitError) as refused:
        film(alice.client())
    assert verdict(refused)[:2] == (429, "too_many_videos")
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert filmed(bob.client()).status == "completed"
    for job in jobs:
        ended(alice.client(), job)
    assert filmed(alice.client()).status == "completed"
    assert len(alice.charges(3)) == 3


# Deleting.


def status_of(address):
    """What the address of a file answers whoever has no key."""
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status
    except urllib.error.HTTPError as refused:
        return refused.code


def files_of(gw):
    """The files that the gateway keeps."""
    return [path for path in (gw.conf.parent / "files").rglob("*") if path.is_file()]


@both_stores
@sim
def test_a_deleted_job_is_gone_with_its_file_and_was_charged(gateway):
    gw = gateway(vendor_d="")
    alice = gw.account()
    videos = alice.client().videos
    kept, job = filmed(alice.client()), filmed(alice.client())
    address = address_of(alice, job)
    assert status_of(address) == 200
    alice.charges(2)
    deleted = videos.delete(job.id)
    assert deleted.to_dict() == {"id": job.id, "object": "video.deleted", "deleted": True}
    for call in videos.retrieve, videos.download_content, videos.delete, lambda id: videos.list(after=id):
        with pytest.raises(openai.NotFoundError):
            call(job.id)
    assert status_of(address) == 404
    assert [job.id for job in videos.list()] == [kept.id]
    assert videos.download_content(kept.id).read()
    until(lambda: len(files_of(gw)) == 1, "the file is deleted")
    assert sum(charge.amount_nano for charge in alice.charges(2)) == 560_000_000


@both_stores
@sim
def test_a_job_deleted_while_it_runs_is_gone_and_charged_all_the_same(gateway):
    gw = gateway(vendor_d="")
    alice = gw.account()
    videos = alice.client().videos
    job = film(alice.client(), "[slow 1000] hello")
    until(lambda: videos.retrieve(job.id).status == "in_progress", "the vendor has it")
    assert videos.delete(job.id).deleted
    with pytest.raises(openai.NotFoundError):
        videos.retrieve(job.id)
    assert videos.list().data == [] and alice.balance().held_nano == 280_000_000
    charge = alice.charge()
    assert (charge.request_id, charge.amount_nano) == (job.id, 280_000_000)
    until(lambda: not files_of(gw), "its file is deleted")
    time.sleep(0.3)
    assert files_of(gw) == [] and submissions(gw) == 1


@both_stores
@sim
def test_a_job_deleted_while_its_file_is_copied_leaves_no_file(gateway):
    gw = gateway(vendor_d="file.chunk-delay=40")
    alice = gw.account()
    job = film(alice.client())
    until(lambda: gw.vendor.calls().fetches, "the file is copied")
    alice.client().videos.delete(job.id)
    assert alice.charge().amount_nano == 280_000_000
    until(lambda: not files_of(gw), "its file is deleted")
    time.sleep(1.5)
    assert files_of(gw) == []


@both_stores
@sim
def test_a_job_that_is_deleted_and_fails_costs_nothing(gateway):
    gw = gateway(vendor_d="")
    alice = gw.account(credit="0.28")
    job = film(alice.client(), "[fails] [slow 800] hello")
    assert alice.client().videos.delete(job.id).deleted
    assert alice.charges(0) == [] and alice.balance().available_nano == 280_000_000


@both_stores
@sim
def test_a_job_that_is_deleted_before_anybody_took_it_is_not_sent_any_more(gateway):
    gw = gateway(vendor_d="submit.status=503", videos={"retry_ms": 300})
    alice = gw.account(credit="0.28")
    job = film(alice.client())
    until(lambda: submissions(gw) >= 1, "it is sent")
    alice.client().videos.delete(job.id)
    assert alice.charges(0) == [] and alice.balance().available_nano == 280_000_000
    sent = submissions(gw)
    time.sleep(1)
    assert submissions(gw) == sent


@both_stores
@sim
def test_after_its_days_a_job_and_its_file_are_gone(gateway):
    gw = gateway(vendor_d="", videos={"keep_ms": 2000})
    alice = gw.account()
    job = filmed(alice.client(), **keyed("one"))
    assert job.expires_at == job.completed_at + 2
    address = address_of(alice, job)
    assert status_of(address) == 200 and len(files_of(gw)) == 1
    until(lambda: not files_of(gw), "the file is deleted", seconds=10)
    assert status_of(address) == 404
    with pytest.raises(openai.NotFoundError):
        alice.client().videos.download_content(job.id)
    alice.charge()


# More nodes than one.


@redis
@sim
def test_every_node_finds_every_job_and_any_of_them_ends_it(gateway, stacks):
    gw = gateway(vendor_d="")
    twin, alice = stacks.twin(gw), gw.account()
    client, other = alice.client(), twin.client(alice.key)
    job = film(client, seconds=1)
    assert other.videos.retrieve(job.id).id == job.id
    job = ended(other, job)
    assert job.status == "completed" and client.videos.retrieve(job.id) == job
    assert client.videos.download_content(job.id).read() == other.videos.download_content(job.id).read()
    # The address that one gives the other honours: they share the secret.
    assert status_of(address_of(alice, job).replace(gw.root, twin.root)) == 200
    assert other.videos.delete(job.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.download_content(job.id)
    alice.charge()
    assert submissions(gw) == 1


# What makes a step of the job last, whether its node is at it, and what becomes of the job when the node dies there.
STEPS = {
    "ordering": ("submit.delay=1500", submissions, "vendor_failed"),
    "waiting": ("video-ms=1000", lambda gw: gw.vendor.calls().polls, None),
    "copying": ("file.delay=1500", lambda gw: gw.vendor.calls().fetches, None),
}


@both_stores
@sim
@pytest.mark.parametrize("step", STEPS)
def test_a_job_outlives_the_node_that_has_it_and_is_ordered_once(gateway, stacks, step):
    fault, is_at_it, code = STEPS[step]
    gw = gateway(vendor_d=fault, videos={"lease_ms": 1000})
    alice = gw.account()
    job = film(alice.client())
    until(lambda: is_at_it(gw), f"the node is {step}")
    gw.process.child.kill()
    assert gw.process.child.wait() < 0
    alice.gateway = stacks.twin(gw)
    job = ended(alice.client(), job)
    # Who finds that an order was being sent cannot know whether the vendor has it.
    assert job.status == ("failed" if code else "completed") and getattr(job.error, "code", None) == code
    assert submissions(gw) == 1
    if code:
        assert alice.charges(0) == []
    else:
        charge = alice.charge()
        assert (charge.request_id, charge.amount_nano) == (job.id, 280_000_000)
        assert alice.client().videos.download_content(job.id).read() == footage("sim", charge.vendor_request_id)


@redis
@sim
def test_of_two_nodes_each_job_is_taken_by_one(gateway, stacks):
    gw = gateway(vendor_d="video-ms=300", videos={"poll_ms": 20})
    alice = gw.account()
    clients = [alice.client(), stacks.twin(gw).client(alice.key)]
    jobs = [film(clients[i % 2], f"hello {i}", seconds=1) for i in range(16)]
    assert {ended(clients[i % 2], job).status for i, job in enumerate(jobs)} == {"completed"}
    assert {charge.request_id for charge in alice.charges(16)} == {job.id for job in jobs}
    assert sorted(video.prompt for video in gw.vendor.videos()) == sorted(f"hello {i}" for i in range(16))
    assert submissions(gw) == 16


@both_stores
@sim
def test_a_gateway_that_is_stopped_leaves_its_jobs_to_the_next_at_once(gateway, stacks):
    gw = gateway(vendor_d="")  # A lease is 30 s: none may be left behind.
    alice = gw.account()
    jobs = [film(alice.client(), "[slow 1000] hello", seconds=1) for _ in range(3)]
    until(lambda: gw.vendor.calls().polls, "the vendor is asked after one")
    gw.process.child.terminate()
    assert gw.process.child.wait(timeout=5) == 0
    begun = time.monotonic()
    alice.gateway = stacks.twin(gw)
    assert [ended(alice.client(), job).status for job in jobs] == ["completed"] * 3
    assert time.monotonic() - begun < 5
    alice.charges(3)
    assert submissions(gw) == 3


@redis
@sim
def test_a_node_without_a_worker_takes_jobs_in_for_others(gateway, stacks):
    gw = gateway(vendor_d="", videos={"worker": False})
    alice = gw.account()
    job = film(alice.client(), seconds=1)
    time.sleep(1.2)
    assert alice.client().videos.retrieve(job.id).status == "queued" and submissions(gw) == 0
    stacks.twin(gw, videos={})
    assert ended(alice.client(), job).status == "completed"
    charge = alice.charge()
    assert alice.client().videos.download_content(job.id).read() == footage("sim", charge.vendor_request_id, 1)


@redis
@sim
def test_a_job_outlives_an_outage_of_the_store(gateway, stacks):
    gw = gateway(vendor_d="", videos={"lease_ms": 1000}, timeouts={"ledger_ms": 250})
    alice = gw.account()
    job = film(alice.client(), "[slow 1000] hello")
    until(lambda: alice.client().videos.retrieve(job.id).status == "in_progress", "the vendor has it")
    server = stacks.redis.process.child
    server.send_signal(signal.SIGSTOP)
    try:
        time.sleep(2.5)
        with pytest.raises(openai.InternalServerError) as refused:
            alice.client().videos.retrieve(job.id)
        assert verdict(refused)[:2] == (503, "ledger_unavailable")
        assert refused.value.response.headers["retry-after"]
        for key in {}, keyed("one"):
            with pytest.raises(openai.InternalServerError) as refused:
                film(alice.client(), "hello again", **key)
            assert verdict(refused)[:2] == (503, "ledger_unavailable")
    finally:
        server.send_signal(signal.SIGCONT)
    assert ended(alice.client(), job).status == "completed"
    # Of what was refused the store may have heard all the same. What has no name was not made; what has one, once.
    again = filmed(alice.client(), "hello again", **keyed("one"))
    assert again.status == "completed"
    until(lambda: {job.id for job in alice.client().videos.list()} == {job.id, again.id}, "the other is taken back")
    assert {charge.request_id for charge in alice.charges(2)} == {job.id, again.id}
    assert submissions(gw) == 2
