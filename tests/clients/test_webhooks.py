"""Webhooks: what endpoints are told, once, by a receiver that checks the signatures with a library of others."""

import json
import subprocess
import time
from collections import Counter

import pytest
from processes import GATEWAY, Process, until
from receiver import Receiver, opened
from stack import ask, record
from standardwebhooks import WebhookVerificationError
from talk import filmed

MODEL = "lmb-5.5"
# 0.8 cents a call.
USAGE = "prompt=1000;completion=100"
ALL = "balance.low,key.budget,payment.received,video.completed,video.failed"


@pytest.fixture
def receiver(tmp_path):
    receiver = Receiver(tmp_path)
    yield receiver
    receiver.stop()


def endpoint(gateway, url, *options):
    """A new endpoint: its id and its secret."""
    added = record(gateway.cli("--json", "webhook", "add", url, *options))
    return added.id, added.secret


def messages_of(gateway, endpoint_id):
    return [record(line) for line in gateway.cli("--json", "webhook", "messages", endpoint_id).splitlines()]


def call(account):
    account.client().chat.completions.create(model=MODEL, messages=ask("hello"))


def refused(gateway, *arguments):
    command = [str(part) for part in (GATEWAY, "--conf", gateway.conf, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1, done.stdout
    return done.stderr


@pytest.mark.vendors("sim")
def test_a_customer_and_the_operators_are_told_of_each_crossing_once(gateway, receiver):
    gw = gateway(vendor_b=USAGE, webhooks=receiver.settings())
    _, all_secret = endpoint(gw, f"{receiver.url}/all", "--events", ALL, "--low-balance", "0.01")
    alice, bob = gw.account(credit="0.05"), gw.account(credit="0.03")
    own = ["--account", alice.name, "--events", "balance.low,payment.received", "--low-balance", "0.036"]
    _, own_secret = endpoint(gw, f"{receiver.url}/own", *own)
    (key,) = (record(line) for line in gw.cli("--json", "key", "list", alice.name).splitlines())
    gw.cli("key", "set", key.prefix, "--budget", "total=0.016")
    paid = [opened(message, all_secret) for message in receiver.wait("/all", 2)]
    assert {(told.type, told.account, told.amount_usd) for told in paid} == {
        ("payment.received", alice.name, "0.05"),
        ("payment.received", bob.name, "0.03"),
    }

    # Half of the budget, and not yet low.
    call(alice)
    (half,) = (opened(message, all_secret) for message in receiver.wait("/all", 3)[2:])
    assert (half.type, half.percent, half.window, half.key_id) == ("key.budget", 50, "total", key.id)
    assert (half.limit_usd, half.spent_usd, half.resets_at) == ("0.016", "0.008", None)
    assert not receiver.at("/own")
    # All of the budget: the level in between is passed by, and the balance is low for the customer.
    call(alice)
    (full,) = (opened(message, all_secret) for message in receiver.wait("/all", 4)[3:])
    assert (full.type, full.percent, full.account) == ("key.budget", 100, alice.name)
    (low,) = (opened(message, own_secret) for message in receiver.wait("/own", 1))
    assert (low.type, low.balance_usd, low.threshold_usd) == ("balance.low", "0.034", "0.036")
    # It goes on falling, which is no news. Of others a customer hears nothing.
    gw.cli("key", "set", key.prefix, "--no-budget", "total")
    call(alice)
    call(bob)
    time.sleep(5)
    assert len(receiver.at("/own")) == 1 and len(receiver.at("/all")) == 4
    # Above it again, and below it once more.
    gw.cli("credit", "add", alice.name, "0.1", "--id", "p-2")
    gw.cli("credit", "add", alice.name, "0.1", "--id", "p-2")
    (second,) = (opened(message, own_secret) for message in receiver.wait("/own", 2)[1:])
    assert (second.type, second.payment_id, second.amount_usd) == ("payment.received", "p-2", "0.10")
    for _ in range(12):
        call(alice)
    (again,) = (opened(message, own_secret) for message in receiver.wait("/own", 3)[2:])
    assert again.type == "balance.low" and again.id != low.id
    told = [opened(message, all_secret).type for message in receiver.wait("/all", 5)]
    assert Counter(told) == {"payment.received": 3, "key.budget": 2}
    ids = [message.headers["webhook-id"] for message in receiver.messages]
    assert len(set(ids)) == len(ids)


@pytest.mark.vendors("sim")
def test_a_video_that_has_ended_is_told(gateway, receiver):
    gw = gateway(webhooks=receiver.settings(), videos={"answer_ms": 2_000})
    account = gw.account()
    events = ["--account", account.name, "--events", "video.completed,video.failed"]
    _, secret = endpoint(gw, f"{receiver.url}/own", *events)
    good, bad = filmed(account.client()), filmed(account.client(), "[fails] hello")
    told = {told.video_id: told for told in (opened(message, secret) for message in receiver.wait("/own", 2))}
    ready, failed = told[good.id], told[bad.id]
    assert (ready.type, ready.model, ready.error) == ("video.completed", good.model, None)
    assert ready.charged_usd == str(account.charge().amount_nano / 10**9)
    assert (failed.type, failed.charged_usd, failed.error["code"]) == ("video.failed", None, "vendor_failed")


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_a_route_that_is_down_is_told_to_operators_alone(gateway, receiver):
    gw = gateway(vendor_c=["unreachable"], webhooks=receiver.settings())
    account = gw.account()
    _, secret = endpoint(gw, f"{receiver.url}/all", "--events", "route.down")
    why = refused(gw, "webhook", "add", receiver.url, "--account", account.name, "--events", "route.down")
    assert "'route.down' is no event here; the events are balance.low" in why
    client = account.client()
    for _ in range(8):
        with pytest.raises(Exception):
            client.chat.completions.create(model="lmc-3.5-flash", messages=ask("hello"))
    (down,) = (opened(message, secret) for message in receiver.wait("/all", 1, seconds=40))
    assert (down.type, down.vendor, down.route) == ("route.down", "vendor_c", "main") and down.reason
    time.sleep(3)
    assert len(receiver.messages) == 1


@pytest.mark.vendors("sim")
def test_a_message_is_sent_until_it_is_accepted(gateway, receiver):
    gw = gateway(webhooks=receiver.settings())
    elsewhere = f"{receiver.url}/elsewhere"
    receiver.answers = [500, (307, elsewhere)]
    we, secret = endpoint(gw, f"{receiver.url}/all", "--events", "payment.received")
    account = gw.account(credit="1")
    first, second = (opened(message, secret) for message in receiver.wait("/all", 2, seconds=20))
    assert first.id == second.id and first.account == account.name
    # A redirect is not followed, and is a failure too. It would take half a minute more.
    (message,) = until(lambda: [m for m in messages_of(gw, we) if m.tries == 2], "two tries")
    assert (message.state, message.last_status) == ("pending", 307) and not receiver.at("/elsewhere")
    assert 20_000 < message.next_try_at - message.last_try_at < 40_000
    gw.cli("webhook", "resend", we, message.id)
    receiver.wait("/all", 3)
    (message,) = until(lambda: [m for m in messages_of(gw, we) if m.state == "delivered"], "delivered")
    assert (message.last_status, message.last_error, json.loads(message.body)["type"]) == (204, None, "payment.received")

    # While the secret is replaced, both are good.
    new = record(gw.cli("--json", "webhook", "rotate", we)).secret
    gw.cli("webhook", "test", we)
    test = receiver.wait("/all", 4)[3]
    for good in secret, new:
        assert opened(test, good).type == "webhook.test"
    newest = record(gw.cli("--json", "webhook", "rotate", we, "--overlap", "0")).secret
    gw.cli("webhook", "test", we)
    test = receiver.wait("/all", 5)[4]
    assert opened(test, newest).endpoint == we
    with pytest.raises(WebhookVerificationError):
        opened(test, new)

    # Who says that nobody is there any more is left alone, until somebody says otherwise.
    receiver.answers = [410]
    gw.cli("webhook", "test", we)
    receiver.wait("/all", 6)
    off = until(lambda: [e for e in endpoints(gw) if not e.enabled], "switched off")
    assert "410" in off[0].disabled_reason
    assert "switch it on first" in refused(gw, "webhook", "test", we)
    gw.cli("webhook", "set", we, "--on")
    gw.cli("webhook", "test", we)
    receiver.wait("/all", 7)
    gw.cli("webhook", "remove", we)
    assert not endpoints(gw)


def endpoints(gateway):
    return [record(line) for line in gateway.cli("--json", "webhook", "list").splitlines()]


@pytest.mark.vendors("sim")
def test_messages_outlive_a_gateway_that_is_killed(gateway, receiver, tmp_path):
    gw = gateway(webhooks=receiver.settings())
    receiver.answers = [503]
    we, secret = endpoint(gw, f"{receiver.url}/all", "--events", "payment.received")
    names = [gw.account(credit="1").name for _ in range(3)]
    until(lambda: any(m.tries for m in messages_of(gw, we)), "a try that failed")
    gw.process.kill()
    # What comes in meanwhile is noted by the command.
    gw.cli("credit", "add", names[0], "2", "--id", "late")
    again = Process("tollgate-again", [GATEWAY, "--conf", gw.conf, "serve"], tmp_path)
    try:
        until(lambda: all(m.state == "delivered" for m in messages_of(gw, we)), "all delivered", seconds=80)
        told = {told.id: told for told in (opened(message, secret) for message in receiver.at("/all"))}
        assert len(told) == 4 == len(messages_of(gw, we))
        assert Counter(told.account for told in told.values()) == {names[0]: 2, names[1]: 1, names[2]: 1}
    finally:
        again.stop()


@pytest.mark.vendors("sim")
@pytest.mark.stores("redis")
def test_a_fleet_tells_each_event_once(gateway, receiver, stacks):
    gw = gateway(vendor_b=USAGE, webhooks=receiver.settings())
    twin = stacks.twin(gw)
    _, secret = endpoint(gw, f"{receiver.url}/all", "--events", ALL, "--low-balance", "0.995")
    accounts = [gw.account(credit="1") for _ in range(6)]
    for account in accounts:
        call(account)
    receiver.wait("/all", 12, seconds=20)
    time.sleep(4)
    told = Counter((told.type, told.account) for told in (opened(m, secret) for m in receiver.messages))
    events = ("payment.received", "balance.low")
    assert told == {(event, account.name): 1 for event in events for account in accounts}
    assert twin.process.child.poll() is None


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_a_customer_had_a_request_sent_into_the_network_of_the_gateway(gateway, receiver):
    """Without `allow_private` no address leads there: not when it is added, and not when its name is resolved."""
    gw = gateway(webhooks={"ca": str(receiver.ca)})
    account = gw.account()
    wanted = ["--account", account.name, "--events", "payment.received"]
    port = receiver.server.server_port
    hosts = ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "0x7f.1", "2130706433", "[::ffff:7f00:1]"]
    for host in hosts:
        why = refused(gw, "webhook", "add", f"https://{host}:{port}/x", *wanted)
        assert "is not a public address" in why, (host, why)
    for url in "http://hooks.example.com/", "https://user@hooks.example.com/", "hooks.example.com":
        assert "no address for webhooks" in refused(gw, "webhook", "add", url, *wanted)
    # An address that was stored when private ones were allowed.
    conf = gw.conf.read_text()
    gw.conf.write_text(conf.replace("[webhooks]", "[webhooks]\nallow_private = true"))
    we, _ = endpoint(gw, f"{receiver.url}/x", *wanted)
    gw.conf.write_text(conf)
    gw.cli("credit", "add", account.name, "1", "--id", "p-1")
    (message,) = until(lambda: [m for m in messages_of(gw, we) if m.tries], "a try", seconds=15)
    assert "is not a public address" in message.last_error and not receiver.messages
