"""Signing in to the console by an identity provider: a real one in a browser (oidc-provider), and one that lies."""

import concurrent.futures
import contextlib
import re
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from processes import GATEWAY, REPO, Process, free_port, until
from test_console import assert_accessible, chromium, fill, visitor  # noqa: F401

FOLDER = REPO / "tests/clients/oidc"
SECRET = "canary of a secret&1"
COOKIE = "tollgate-oidc"
ROLES = {"owners": '["admins"]', "operators": '["finance"]', "support": '["desk"]'}
USAGE = "prompt=1000;completion=100"

pytestmark = pytest.mark.vendors("sim")


class Console:
    """A gateway whose console knows an identity provider, and the provider."""

    def __init__(self, gateway, folder, script, arguments=(), **settings):
        address = f"127.0.0.1:{free_port()}"
        self.root = f"http://{address}"
        command = ["node", FOLDER / script, f"{self.root}/sign-in/callback", *arguments]
        self.provider = Process(script, command, folder, OIDC_SECRET=SECRET)
        self.issuer = self.provider.said(r"listening on (http://\S+)")
        given = {"issuer": self.issuer, "client_id": "tollgate", "client_secret": "env:OIDC_SECRET",
                 "scopes": "openid email groups", "role_claim": "groups"} | ROLES | settings
        oidc = {f"TOLLGATE__CONSOLE__OIDC__{key.upper()}": value for key, value in given.items() if value}
        self.without = {"TOLLGATE__LISTEN__CONSOLE": address}
        self.environment = self.without | oidc | {"OIDC_SECRET": SECRET}
        self.gateway = gateway(vendor_b=USAGE, environment=self.environment)

    def restart(self, environment):
        self.gateway.process.stop()
        command = [GATEWAY, "--conf", self.gateway.conf, "serve"]
        again = Process("again", command, self.gateway.conf.parent, **environment)
        self.gateway.process, self.gateway.stop = again, again.kill
        until(lambda: self.is_up(), "the console is up again")

    def is_up(self):
        try:
            return httpx.get(f"{self.root}/sign-in").status_code == 200
        except httpx.TransportError:
            return False

    def log(self):
        return "".join(path.read_text(errors="replace") for path in self.gateway.conf.parent.glob("*.log"))

    def fault(self, fault):
        httpx.post(f"{self.issuer}/_fault", content=fault).raise_for_status()

    def asked(self, path):
        return httpx.get(f"{self.issuer}/_count").json().get(path, 0)


@pytest.fixture
def console(gateway, tmp_path):
    made = []

    def make(script="serve.mjs", arguments=(), **settings):
        made.append(Console(gateway, tmp_path, script, arguments, **settings))
        return made[-1]
    yield make
    for console in made:
        console.provider.stop()


class Visitor:
    """A browser that follows no redirect."""

    def __init__(self, console):
        self.console, self.client = console, httpx.Client(timeout=40)

    def get(self, path):
        return self.client.get(f"{self.console.root}{path}")

    def begin(self):
        """Begins a sign-in; the address at the provider."""
        begun = self.get("/sign-in/oidc")
        assert begun.status_code == 303, begun.text
        return begun.headers["location"]

    def callback(self):
        """Begins a sign-in, and lets the provider send back; the path and query of the callback."""
        back = httpx.get(self.begin())
        return back.headers["location"].removeprefix(self.console.root)

    def sign_in(self):
        return self.get(self.callback())

    def is_in(self):
        return self.get("/accounts").status_code == 200


def is_signed_in(answer):
    return (answer.status_code, answer.headers.get("location")) == (303, "/")


def assert_refused(answer, status, text):
    assert answer.status_code == status and text in answer.text, (answer.status_code, answer.text)
    cookies = answer.headers.get_list("set-cookie")
    assert not any(cookie.startswith("tollgate=") for cookie in cookies), cookies


@contextlib.contextmanager
def guest(chromium, **options):  # noqa: F811
    """As visitor; what the provider's pages want of elsewhere, such as fonts, is empty."""
    with visitor(chromium, **options) as page:
        page.route(lambda url: urlsplit(url).hostname != "127.0.0.1", lambda route: route.fulfill(body=""))
        yield page


def sign_in_at_provider(page, console, name):
    """From the page of the console through those of the provider."""
    page.goto(f"{console.root}/sign-in")
    page.get_by_role("link", name=f"Sign in with {console.issuer.removeprefix('http://')}").click()
    page.locator("input[name=login]").fill(name)
    page.locator("input[name=password]").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


@pytest.mark.parametrize("kind", ["userinfo", "signed", "public"])
@pytest.mark.stores("sqlite")
def test_each_role_signs_in_and_sees_what_it_may(console, chromium, kind):  # noqa: F811
    public = {"client_id": "public", "client_secret": None} if kind == "public" else {}
    console = console(arguments=["signed"] if kind == "signed" else [], **public)
    for name, role in [("olga", "owner"), ("otto", "operator"), ("sam", "support")]:
        # Without scripts, as every page has to work.
        with guest(chromium, scripts=False) as page:
            sign_in_at_provider(page, console, name)
            assert page.url == f"{console.root}/"
            assert page.get_by_text(f"{name}@example.com ({role})").count() == 1
            cookies = {cookie["name"]: cookie for cookie in page.context.cookies() if "tollgate" in cookie["name"]}
            assert list(cookies) == ["tollgate"] and cookies["tollgate"]["httpOnly"], cookies
            page.goto(f"{console.root}/accounts")
            may_change = page.get_by_role("button", name="Open the account").count() == 1
            assert may_change == (role != "support")
            if role == "operator":
                fill(page, "Open the account", Name="acme")
                assert page.url.endswith("/accounts/acme")
            page.goto(f"{console.root}/audit")
            assert page.get_by_text("identity:otto@example.com").count() == (role != "owner")
    for name, told in [("nina", "You are nina@example.com, and have no role here"),
                       ("uwe", "has not verified your e-mail address uwe@example.com")]:
        with guest(chromium, scripts=False) as page:
            sign_in_at_provider(page, console, name)
            assert page.get_by_text(told).count() == 1, page.content()
            assert not [cookie for cookie in page.context.cookies() if "tollgate" in cookie["name"]]
    assert "console_oidc_failed" in console.log() and "canary" not in console.log()


@pytest.mark.stores("sqlite")
def test_what_the_provider_refuses_is_told(console, chromium):  # noqa: F811
    console = console()
    with guest(chromium) as page:
        page.goto(f"{console.root}/sign-in")
        assert_accessible(page, ("light", 1280))
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        page.get_by_role("link", name="Sign in with").click()
        begun = next(cookie for cookie in page.context.cookies() if cookie["name"] == COOKIE)
        assert begun["httpOnly"] and begun["sameSite"] == "Lax" and begun["expires"] <= time.time() + 601
        page.locator("input[name=login]").fill("olga")
        page.locator("input[name=password]").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").click()
        assert page.url == f"{console.root}/"
    asked = parse_qs(urlsplit(next(url for url in requests if url.startswith(f"{console.issuer}/auth?"))).query)
    assert asked["code_challenge_method"] == ["S256"] and asked["scope"] == ["openid email groups"]
    # The same once more, with the cookie that the browser has forgotten.
    callback = next(url for url in requests if "/sign-in/callback" in url)
    again = httpx.get(callback, cookies={COOKIE: begun["value"]})
    assert_refused(again, 403, "this sign-in was used before")
    # Somebody says no at the provider.
    with guest(chromium) as page:
        page.goto(f"{console.root}/sign-in/oidc")
        page.get_by_role("link", name=re.compile("Cancel")).click()
        assert page.get_by_text("has not signed you in: access_denied").count() == 1, page.content()
    assert "console_oidc_failed" not in console.log()


@pytest.mark.stores("sqlite")
def test_what_comes_back_counts_in_its_browser_only(console):
    console = console("liar.mjs")
    victim, other = Visitor(console), Visitor(console)
    callback = other.callback()
    not_begun = "was not begun in this browser"
    assert_refused(victim.get(callback), 403, not_begun)
    victim.begin()
    assert_refused(victim.get(callback), 403, not_begun)
    # Whatever became of it, the attempt has ended.
    assert COOKIE not in victim.client.cookies
    state = parse_qs(urlsplit(victim.begin()).query)["state"][0]
    assert_refused(victim.get(f"/sign-in/callback?code=code-0&state={state}x"), 403, not_begun)
    for query, told in [("error=access_denied", "has not signed you in: access_denied"),
                        ("error=Call+555-0100", "has not signed you in: an unknown error"),
                        ("code=1&iss=https://id.example.com", "the answer is of another provider"),
                        ("", "there is no code in the answer"),
                        ("code=made-up", "was used before, or is too old")]:
        state = parse_qs(urlsplit(victim.begin()).query)["state"][0]
        assert_refused(victim.get(f"/sign-in/callback?{query}&state={state}"), 403, told)
    # Who only looks ahead uses nothing up.
    callback = victim.callback()
    ahead = victim.client.head(f"{console.root}{callback}")
    early = victim.client.get(f"{console.root}{callback}", headers={"sec-purpose": "prefetch"})
    assert (ahead.status_code, early.status_code) == (204, 204)
    kept = victim.client.cookies.get(COOKIE)
    assert is_signed_in(victim.get(callback)) and victim.is_in()
    victim.client.cookies.set(COOKIE, kept, domain="127.0.0.1")
    assert_refused(victim.get(callback), 403, "was used before, or is too old")
    # By another name of this machine, since the cookie is for the one to which the provider sends back.
    local = httpx.get(f"{console.root.replace('127.0.0.1', 'localhost')}/sign-in/oidc")
    assert (local.status_code, local.headers["location"]) == (303, f"{console.root}/sign-in/oidc")


UNTRUSTED = (502, "cannot be trusted")
UNUSABLE = (502, "cannot be used at the moment")
SLOW = (504, "does not answer in time")
LIES = {
    "nonce": UNTRUSTED, "no nonce": UNTRUSTED, "audience": UNTRUSTED, "audiences": UNTRUSTED, "issuer": UNTRUSTED,
    "expired": UNTRUSTED, "key": UNTRUSTED, "signature": UNTRUSTED, "none": UNTRUSTED, "hs256": UNTRUSTED,
    "hash": UNTRUSTED, "no token": UNTRUSTED, "subject": UNUSABLE,
    "/token large": UNUSABLE, "/token redirect": UNUSABLE, "/token error": UNUSABLE, "/token client": UNUSABLE,
    "/token garbage": UNUSABLE,
    "unverified": (403, "has not verified your e-mail address"), "nobody": (403, "have no role here"),
    "number": (403, "have no role here"), "nested": (403, "have no role here"),
    "no email": (403, "has sent no"), "long name": (403, "cannot be a name"), "unprintable name": (403, "cannot be a name"),
}


@pytest.mark.stores("sqlite")
def test_a_provider_that_lies_lets_nobody_in(console):
    console = console("liar.mjs")
    for fault, (status, told) in LIES.items():
        console.fault(fault)
        person = Visitor(console)
        assert_refused(person.sign_in(), status, told)
        assert not person.is_in(), fault
        assert console.asked("/elsewhere") == 0, "a redirect is not followed"
    console.fault("")
    assert is_signed_in(Visitor(console).sign_in())
    # Roles that only the userinfo endpoint tells count too.
    console.fault("elsewhere")
    assert is_signed_in(Visitor(console).sign_in()) and console.asked("/userinfo") == 1
    log = console.log()
    assert "console_oidc_failed" in log and "canary" not in log and "eyJ" not in log, log
    # The keys were read at the start and once again, for the first token with an unknown key. A new one is found
    # a minute later only.
    console.fault("rotated")
    assert_refused(Visitor(console).sign_in(), *UNTRUSTED)
    assert console.asked("/jwks") == 0


@pytest.mark.stores("sqlite")
def test_a_new_key_is_found(console):
    console = console("liar.mjs")
    assert is_signed_in(Visitor(console).sign_in())
    console.fault("rotated")
    for _ in range(3):
        assert is_signed_in(Visitor(console).sign_in())
    assert (console.asked("/jwks"), console.asked("/.well-known/openid-configuration")) == (1, 0)


@pytest.mark.stores("sqlite")
def test_a_provider_that_does_not_answer_takes_no_page_from_others(console):
    console = console("liar.mjs")
    for fault, (status, told) in [("/.well-known/openid-configuration error", UNUSABLE), ("metadata", UNUSABLE),
                                  ("plain", UNUSABLE), ("/jwks large", UNUSABLE)]:
        console.fault(fault)
        assert_refused(Visitor(console).get("/sign-in/oidc"), status, told)
    console.fault("")
    for fault in ["/token slow", "/token drip"]:
        console.fault(fault)
        people = [Visitor(console) for _ in range(9)]
        callbacks = [person.callback() for person in people]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            began = time.monotonic()
            waiting = [pool.submit(person.get, callback) for person, callback in zip(people[:8], callbacks)]
            until(lambda: console.asked("/token") == 8, "eight wait for the provider")
            assert_refused(people[8].get(callbacks[8]), 503, "Too many people sign in")
            assert Visitor(console).get("/sign-in").status_code == 200
            for answer in waiting:
                assert_refused(answer.result(), *SLOW)
            assert 9 < time.monotonic() - began < 15
    console.fault("")
    assert is_signed_in(Visitor(console).sign_in())
    console.provider.stop()
    person = Visitor(console)
    state = parse_qs(urlsplit(person.begin()).query)["state"][0]
    assert_refused(person.get(f"/sign-in/callback?code=1&state={state}"), *UNUSABLE)


def test_a_session_of_an_identity_lasts_until_it_is_ended(console):
    console = console("liar.mjs")
    one, other = Visitor(console), Visitor(console)
    assert is_signed_in(one.sign_in()) and is_signed_in(other.sign_in())
    console.restart(console.environment)
    assert one.is_in() and other.is_in()
    token = re.search('name="form_token" value="([^"]+)"', one.get("/accounts").text)[1]
    out = one.client.post(f"{console.root}/sign-out-everywhere", data={"form_token": token})
    assert out.headers["location"] == "/sign-in"
    assert not one.is_in() and not other.is_in()
    assert is_signed_in(one.sign_in()) and is_signed_in(other.sign_in())
    ended = console.gateway.cli("console", "end-sessions", "--identity", "ada@example.com")
    assert ended == "2 session(s) ended" and not one.is_in() and not other.is_in()
    assert is_signed_in(one.sign_in()) and one.is_in()
    # Where the provider is taken out, nobody is known to it any more.
    console.restart(console.without)
    assert not one.is_in()
    assert one.get("/sign-in/oidc").status_code == 404 and "Sign in with" not in one.get("/sign-in").text
