"""The console in a real browser: from the link that `tollgate console link` prints to a sold call and its
arithmetic, for an operator and for a customer, and every page as a screen reader finds it (axe-core)."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest
from playwright.sync_api import expect, sync_playwright
from processes import REPO, free_port, until
from receiver import Receiver, opened
from stack import ask

MODEL = "lmb-5.5"
USAGE = "prompt=1000;completion=100"
# 1,000 tokens of input at 5,000 nano-USD and 100 of output at 30,000.
CHARGE_NANO, CHARGE_USD = "8000000", "0.008"
AXE = REPO / "tests/clients/node_modules/axe-core/axe.min.js"
PAGES = ["/", "/accounts", "/accounts/acme", "/charges", "/charges?account=acme", "/charges/acme/1", "/models",
         "/routes", "/jobs", "/audit", "/webhooks", "/accounts/acme/statements", "/accounts?q=nobody", "/nothing"]
OWN_PAGES = ["/my", "/my/usage", "/my/usage?from=2020-01-01&to=2020-02-01", "/my/keys", "/my/charges",
             "/my/charges/1", "/my/statements", "/my/prices", "/my/webhooks", "/my/setup"]
LOOKS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]


@pytest.fixture
def chromium():
    path = shutil.which("chromium")
    assert path, "the tests of the console need chromium; tests/setup.sh test installs it"
    # Not for the whole run: its event loop would be in the way of tests that have one of their own.
    with sync_playwright() as playwright:
        # As root it starts without its sandbox only.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def console(gateway):
    return console_of(gateway)


def console_of(gateway, **more):
    address = f"127.0.0.1:{free_port()}"
    environment = {"TOLLGATE__LISTEN__CONSOLE": address}
    running = gateway(vendor_b=USAGE, environment=environment, **more)
    running.cli("operator", "add", "ada", "--role", "owner")
    root = f"http://{address}"

    def link(*who):
        return running.cli("console", "link", *who, **environment)

    return SimpleNamespace(gateway=running, root=root, link=link)


@contextlib.contextmanager
def visitor(chromium, look=("light", 1280), scripts=True):
    """A page of a browser of its own, without cookies. Nothing may go wrong in it that it would tell its console."""
    scheme, width = look
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 900},
                                   java_script_enabled=scripts)
    page, faults = context.new_page(), []
    page.on("console", lambda told: faults.append(told.text) if told.type == "error" else None)
    yield page
    context.close()
    refusals = ("400", "403", "404")
    unexpected = [fault for fault in faults if not any(status in fault for status in refusals)]
    assert not unexpected, unexpected


def fill(page, button, **fields):
    """Fills the form that has the button, by the labels of its fields, and sends it."""
    form = page.locator("form", has=page.get_by_role("button", name=button))
    for label, text in fields.items():
        form.get_by_label(label.replace("_", " ")).fill(text)
    form.get_by_role("button", name=button).click()


def confirm(page, change):
    """Answers the question that stands before what is not easily undone."""
    page.get_by_role("button", name=f"Yes: {change}").click()


def reloaded(page, address, text):
    """Shows a page until it has a text: charges are told some moments after the answer."""
    def shown():
        page.goto(address)
        return page.get_by_text(text).count() > 0
    until(shown, f"{address} shows {text}")


@pytest.mark.vendors("sim")
def test_an_operator_sells_a_call_and_finds_its_charge(console, chromium):
    # Without scripts, as every page has to work.
    with visitor(chromium, scripts=False) as page:
        page.goto(console.link("--operator", "ada"))
        assert page.url == f"{console.root}/"
        page.get_by_role("link", name="Accounts", exact=True).click()
        fill(page, "Open the account", Name="acme")
        assert page.url.endswith("/accounts/acme")
        fill(page, "Add the payment", Amount="5 USD", Id="invoice 7")
        # Nobody is asked whether an amount is meant that is none. A form that is refused has what was filled in.
        assert page.get_by_role("alert").count() == 1
        assert page.get_by_label("Id", exact=True).input_value() == "invoice 7"
        fill(page, "Add the payment", Amount="5")
        confirm(page, "add the payment")
        assert page.url.endswith("/accounts/acme#payments")
        assert page.get_by_text("invoice 7").count() == 1
        fill(page, "Issue the key", Name="ci")
        key = page.locator("#new-key").inner_text()
        assert key.startswith("sk-tg-")

        reply = console.gateway.client(key).chat.completions.create(model=MODEL, messages=ask("How much is 2 + 2?"))
        assert reply.choices[0].message.content

        reloaded(page, f"{console.root}/accounts/acme", CHARGE_USD)
        page.get_by_role("link", name="1", exact=True).click()
        assert page.url.endswith("/charges/acme/1")
        sums = page.get_by_role("region", name="Units times price").inner_text()
        assert all(part in sums for part in ("1000", "5000000", "100", "3000000", CHARGE_NANO)), sums
        page.get_by_role("link", name="Audit trail").click()
        assert page.get_by_text("key.issue").count() == 1
        page.get_by_role("button", name="Sign out", exact=True).click()
        page.goto(f"{console.root}/accounts")
        assert page.url.endswith("/sign-in")

    with visitor(chromium, scripts=False) as page:
        page.goto(console.link("--account", "acme"))
        assert page.url.endswith("/my")
        assert page.get_by_text("4.992").count() > 0
        page.get_by_role("link", name="Charges").click()
        assert page.get_by_role("cell", name=CHARGE_USD).count() == 1
        page.get_by_role("link", name="1", exact=True).click()
        sums = page.get_by_role("region", name="Units times price").inner_text()
        assert CHARGE_NANO in sums, sums
        page.get_by_role("link", name="Usage").click()
        assert page.get_by_role("cell", name=CHARGE_USD).count() == 2
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        head, row = Path(download.value.path()).read_text().splitlines()
        day, *rest = row.split(",")
        assert head.startswith("day,model,key_id,calls,") and len(day) == 10
        assert rest[0] == f'"{MODEL}"' and rest[2:] == ["1", "1000", "0", "100", CHARGE_NANO, "0"]
        page.get_by_role("link", name="Statements").click()
        page.locator("main a[href^='/my/statements/']").first.click()
        assert page.get_by_role("cell", name=f"-{CHARGE_USD}").count() == 1
        page.goto(f"{console.root}/accounts/acme")
        assert page.get_by_text("This page is for operators.").count() == 1


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_a_customer_issues_a_key_spends_with_the_lines_of_its_page_and_rotates_it(console, chromium, tmp_path):
    console.gateway.cli("account", "create", "acme", "--credit", "5")
    with visitor(chromium, scripts=False) as page:
        page.goto(console.link("--account", "acme"))
        page.get_by_role("link", name="Keys", exact=True).click()
        fill(page, "Issue the key", Name="laptop", Most_a_day="0.02")
        first = page.locator("#new-key").inner_text()
        # What the page says to copy is run as it stands.
        page.locator("summary", has_text="OpenAI SDK for Python").click()
        lines = page.locator("details[open] pre").first.inner_text()
        (tmp_path / "call.py").write_text(lines)
        told = subprocess.run([sys.executable, tmp_path / "call.py"], capture_output=True, text=True, check=True, timeout=60)
        assert told.stdout.strip()
        page.get_by_role("link", name="Keys", exact=True).click()
        page.get_by_role("link", name=first[:14]).click()
        reloaded(page, page.url, CHARGE_USD)
        fill(page, "Rotate the key", Overlap="1")
        confirm(page, "rotate the key")
        second = page.locator("#new-key").inner_text()
        assert second != first
        for key in (first, second):
            assert console.gateway.client(key).models.list().data
        page.goto(f"{console.root}/my/keys/{first[:14]}")
        page.get_by_role("button", name="Revoke the key").click()
        page.get_by_role("link", name="No, go back").click()
        assert page.get_by_text("valid").count() == 1
        page.get_by_role("button", name="Revoke the key").click()
        confirm(page, "revoke the key")
        assert page.get_by_text("revoked").count() == 1

    def refused():
        try:
            return not console.gateway.client(first).models.list()
        except openai.PermissionDeniedError:
            return True
    until(refused, "the revoked key is refused")
    assert console.gateway.client(second).models.list().data


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_the_lines_of_the_set_up_page_run(gateway, tmp_path):
    """Each client of docs/use/set-up.md that is no agent: agents have tests of their own."""
    running = gateway(vendor_a=USAGE, vendor_b=USAGE)
    running.cli("account", "create", "acme", "--credit", "5")
    key = running.cli("key", "issue", "acme")
    text = (REPO / "docs/use/set-up.md").read_text().replace("http://127.0.0.1:8080", running.root).replace("sk-tg-…", key)
    commands = {"sh": ["bash", "-e"], "python": [sys.executable], "js": ["node"]}
    ran = 0
    for section in text.split("\n## ")[1:6]:
        for language, lines in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL):
            # Beside the packages of the tests, where node looks for them.
            file = REPO / f"tests/clients/set-up-{tmp_path.name}.{'mjs' if language == 'js' else language}"
            file.write_text(lines.replace("curl ", "curl -sSf "))
            try:
                told = subprocess.run([*commands[language], file], capture_output=True, text=True, timeout=60)
            finally:
                file.unlink()
            assert told.returncode == 0 and told.stdout.strip(), (lines, told)
            ran += 1
    assert ran == 6


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_a_call_appears_on_the_first_page_by_itself(console, chromium):
    console.gateway.cli("account", "create", "acme", "--credit", "5")
    client = console.gateway.client(console.gateway.cli("key", "issue", "acme"))

    def call():
        client.chat.completions.create(model=MODEL, messages=ask("How much is 2 + 2?"))

    with visitor(chromium) as page:
        page.goto(console.link("--operator", "ada"))
        rows, status = page.locator("#live-calls tr"), page.locator("#live-status")
        expect(status).to_have_text("Live: calls appear as they end.")
        expect(rows).to_have_text(["No call has ended since."])
        call()
        expect(rows).to_have_count(1)
        for cell in "acme", MODEL, "chat", "200", CHARGE_USD:
            expect(rows.first.get_by_text(cell, exact=True)).to_have_count(1)
        assert "2 + 2" not in page.content()
        assert_accessible(page, "live")
        # What ends while the page pauses is shown when it goes on.
        page.get_by_role("button", name="Pause").click()
        expect(status).to_have_text("Paused.")
        call()
        page.get_by_role("button", name="Go on").click()
        expect(rows).to_have_count(2)
        for _ in range(55):
            call()
            time.sleep(0.06)
        expect(rows).to_have_count(50)
        expect(status).to_have_text("Live: calls appear as they end.")
        # Of more than twenty in a second the others are counted, which the next event tells.
        with ThreadPoolExecutor(8) as callers:
            list(callers.map(lambda _: call(), range(160)))
        time.sleep(1.1)
        call()
        expect(status).to_have_text(re.compile(r" [1-9]\d* events are not shown: they came too fast\."))


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_without_scripts_a_reload_shows_the_calls_that_have_ended(console, chromium):
    console.gateway.cli("account", "create", "acme", "--credit", "5")
    client = console.gateway.client(console.gateway.cli("key", "issue", "acme"))
    with visitor(chromium, scripts=False) as page:
        page.goto(console.link("--operator", "ada"))
        assert not page.get_by_role("button", name="Pause").is_visible()
        client.chat.completions.create(model=MODEL, messages=ask("How much is 2 + 2?"))
        reloaded(page, console.root, MODEL)
        row = page.locator("#live-calls tr")
        assert row.count() == 1 and CHARGE_USD in row.inner_text() and "acme" in row.inner_text()

        def charts():
            page.reload()
            return page.get_by_role("img").count() == 2
        # The counters are read once a second at most.
        until(charts, "the charts count the call")
        page.get_by_text("The figures of the calls").click()
        assert page.get_by_role("table", name="Calls and their errors by hour").is_visible()


@pytest.mark.vendors("sim")
def test_a_customer_is_told_at_an_address_of_the_own_choice(gateway, chromium, tmp_path):
    receiver = Receiver(tmp_path)
    console = console_of(gateway, webhooks=receiver.settings())
    for name in "acme", "other":
        console.gateway.cli("account", "create", name, "--credit", "5")
    with visitor(chromium, scripts=False) as page:
        page.goto(console.link("--account", "acme"))
        page.get_by_role("link", name="Webhooks").click()
        fill(page, "Add the endpoint", Address="http://hooks.example.com")
        assert "no address for webhooks" in page.get_by_role("alert").inner_text()
        # What was filled in is still there, and nothing is ticked that was not.
        form = page.locator("form", has=page.get_by_role("button", name="Add the endpoint"))
        assert form.get_by_label("Address").input_value() == "http://hooks.example.com"
        form.get_by_label("payment.received").check()
        fill(page, "Add the endpoint", Address=f"{receiver.url}/own")
        secret = page.locator("#new-secret").inner_text()
        page.get_by_role("link", name="To the endpoint").click()
        endpoint = page.url
        page.get_by_role("button", name="Send a test").click()
        assert opened(receiver.wait("/own", 1)[0], secret).type == "webhook.test"
        console.gateway.cli("credit", "add", "other", "1", "--id", "p-1")
        console.gateway.cli("credit", "add", "acme", "1", "--id", "p-1")
        told = opened(receiver.wait("/own", 2)[1], secret)
        assert (told.type, told.account) == ("payment.received", "acme")
        again = page.get_by_role("button", name=f"Send again: {told.id}")
        until(lambda: page.goto(endpoint) and again.count(), "the page shows that it was delivered")
        again.click()
        assert receiver.wait("/own", 3)[2].headers["webhook-id"] == told.id

        form = page.locator("form", has=page.get_by_role("button", name="Change the endpoint"))
        assert form.get_by_label("payment.received").is_checked() and not form.get_by_label("video.failed").is_checked()
        form.get_by_label("Messages are sent").uncheck()
        form.get_by_role("button", name="Change the endpoint").click()
        assert page.url == endpoint and page.get_by_text("off: it was switched off").count() == 1
        form.get_by_label("Messages are sent").check()
        form.get_by_label("balance.low").check()
        fill(page, "Change the endpoint", Low_balance="4")
        assert page.get_by_text("off: it was switched off").count() == 0 and page.get_by_text("4.00").count() >= 1
        fill(page, "Replace the secret", Overlap="0")
        new = page.locator("#new-secret").inner_text()
        page.goto(endpoint)
        page.get_by_role("button", name="Send a test").click()
        assert opened(receiver.wait("/own", 4)[3], new).type == "webhook.test"

        with visitor(chromium, scripts=False) as stranger:
            stranger.goto(console.link("--account", "other"))
            assert stranger.goto(endpoint).status == 404
            stranger.goto(f"{console.root}/my/webhooks")
            assert stranger.get_by_text("There is no endpoint yet.").count() == 1
        with visitor(chromium, scripts=False) as operator:
            operator.goto(console.link("--operator", "ada"))
            operator.get_by_role("link", name="Webhooks").click()
            operator.get_by_role("link", name=f"{receiver.url}/own").click()
            fill(operator, "Remove the endpoint")
            confirm(operator, "remove the endpoint")
            assert operator.get_by_text("There is no endpoint yet.").count() == 1
            operator.goto(f"{console.root}/audit")
            assert operator.get_by_text("webhook.remove").count() == 1
        assert page.goto(endpoint).status == 404
    receiver.stop()


@pytest.mark.vendors("sim")
@pytest.mark.stores("sqlite")
def test_no_page_has_a_fault_that_axe_finds(console, chromium, tmp_path):
    """SCREENSHOTS=FOLDER keeps the pictures of all pages."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    console.gateway.cli("account", "create", "acme", "--credit", "5")
    console.gateway.cli("account", "set", "acme", "--budget", "day=2")
    key = console.gateway.cli("key", "issue", "acme")
    console.gateway.client(key).chat.completions.create(model=MODEL, messages=ask("How much is 2 + 2?"))
    own = ["--account", "acme", "--events", "payment.received,video.failed"]
    added = console.gateway.cli("--json", "webhook", "add", "https://hooks.example.invalid/tollgate", *own)
    we = json.loads(added)["id"]
    console.gateway.cli("webhook", "test", we)
    for look in LOOKS:
        with visitor(chromium, look) as page:
            page.goto(console.link("--operator", "ada"))
            reloaded(page, f"{console.root}/charges?account=acme", CHARGE_USD)
            for path in PAGES + [f"/keys/{key[:14]}", f"/webhooks/{we}"]:
                page.goto(f"{console.root}{path}")
                look_at(page, look, folder)
            # The first thing that the keyboard reaches leads past the menu.
            page.goto(console.root)
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.getAttribute('href')") == "#content"
        with visitor(chromium, look) as page:
            page.goto(f"{console.root}/sign-in")
            look_at(page, look, folder)
            page.goto(console.link("--account", "acme"))
            for path in OWN_PAGES + [f"/my/keys/{key[:14]}", f"/my/webhooks/{we}"]:
                page.goto(f"{console.root}{path}")
                look_at(page, look, folder)


def look_at(page, look, folder):
    """Checks a page, and takes a picture of all of it."""
    assert_accessible(page, look)
    name = re.sub(r"[^a-z0-9.-]+", "-", page.url.split("/", 3)[3]) or "-"
    name = re.sub(r"sk-tg-[0-9a-f]+", "key", name)
    picture = folder / f"{name}-{look[0]}-{look[1]}.png"
    page.screenshot(path=picture, full_page=True)
    # An empty page of this size has about 4 KB.
    assert picture.stat().st_size > 6_000, picture


def assert_accessible(page, look):
    # A script of the page itself would be against its policy.
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] })")
    faults = [(fault["id"], [node["html"][:200] for node in fault["nodes"]]) for fault in found["violations"]]
    assert not faults, (page.url, look, faults)
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0, (page.url, look, "the page is wider than the window")
