"""The processes behind a client test: a simulated vendor, a store, and the gateway in front of them.

A *fault* is a string such as "status=503;times=1". The project's own simulator takes it from the
address it is called by; aimock ignores the address and takes it from the question (its fixtures
in aimock/ match on the same strings). A test that gives the fault as the address and asks it as
the question is therefore the same test on both.
"""

import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import tomllib
import urllib.request
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import anthropic
import openai
from processes import (
    GATEWAY,
    REPO,
    VENDOR_KEY,
    VERSION_SEGMENT,
    Process,
    Redis,
    Sim,
    free_port,
    get_json,
    until,
)
from wiretap import Wiretap

HERE = Path(__file__).parent
AIMOCK = HERE / "aimock/serve.mjs"

# The neutral names of headers, as conf/live.toml translates them.
HEADER_NAMES = {"vendor_a": {"vendor_a-version": "anthropic-version", "vendor_a-beta": "anthropic-beta"}}
# One model that vendor_a knows by another name, and that clients may ask for by either.
NAMES = {"vendor_a": {"lma-sonnet-4-5": "claude-sonnet-4-5"}}
NAME_TABLES = ("header_names", "names", "aliases")
# The files of the rules that a test may write itself.
RULES_FILES = ("plans", "books")
# What a test wishes of a gateway that is no section of its configuration.
BESIDE = ("environment", "live", "names", *RULES_FILES)
HTTP_CLIENTS = {
    openai.OpenAI: openai.DefaultHttpxClient,
    openai.AsyncOpenAI: openai.DefaultAsyncHttpxClient,
    anthropic.Anthropic: anthropic.DefaultHttpxClient,
    anthropic.AsyncAnthropic: anthropic.DefaultAsyncHttpxClient,
}
ROUTE_NAMES = ("main", "second", "third")
# What a test makes need not outlive a power cut, so nobody waits for the disk of Redis.
HASTE = {"TOLLGATE__STORE__ALLOW_VOLATILE": "true"}
# How often jobs are looked at, so that one is over in about a second.
PAUSES = {"poll_ms": 100, "retry_ms": 100}
# A store on a busy machine may take longer than a caller should wait for it; no test is about that but by its own wish.
PATIENCE = {"ledger_ms": 5_000}
# The status and code of a call that the credit does not cover: there is none, or other calls hold it.
SHORT_OF_CREDIT = ((402, "insufficient_credits"), (429, "credit_in_use"))
NANO = 10**9


def ask(text):
    """The messages of a chat that asks one question."""
    return [{"role": "user", "content": text}]


def sdk(base_url, key, kind=openai.OpenAI, max_retries=0, **options):
    """An official client; without its own retries, so that a test sees the first answer."""
    # Without the certificates, which no line here has, and which take longer to read than a call does.
    http = HTTP_CLIENTS[kind](verify=False)
    return kind(base_url=base_url, api_key=key, max_retries=max_retries, timeout=20, http_client=http, **options)


class AimockHost:
    """The process in which all aimocks of a worker run, each for itself."""

    def __init__(self, folder):
        self.process = Process("aimock", ["node", AIMOCK], folder, AIMOCK_API_KEYS=VENDOR_KEY)
        self.url = self.process.said(r"listening on (http://\S+)")
        self.stop = self.process.stop

    def ask(self, method, body=""):
        self.process.check_alive()
        request = urllib.request.Request(self.url, data=body.encode(), method=method)
        with urllib.request.urlopen(request, timeout=15) as reply:
            return reply.read().decode()


class Aimock:
    """@copilotkit/aimock: others' idea of the vendors. Refuses any key but the vendor's."""

    # Its videos are on another port of this host, which is another's unless we are told.
    file_hosts = ("127.0.0.1",)

    def __init__(self, host):
        self.host, self.process = host, host.process
        self.url = host.ask("POST")

    def stop(self):
        self.host.ask("DELETE", self.url)

    def address(self, vendor, fault=""):
        # It knows most endpoints behind any prefix; those of messages, of moderations and of videos behind none.
        prefix = "" if vendor in ("vendor_a", "vendor_b", "vendor_d") else f"/{vendor}"
        return f"{self.url}{prefix}/{VERSION_SEGMENT[vendor]}"

    def count(self):
        return len(self.received())

    def received(self, path=""):
        """The bodies that arrived there, as aimock's journal has them."""
        return [request.body for request in self.requests(path)]

    def requests(self, path=""):
        """What arrived at addresses that have this in them."""
        entries = get_json(f"{self.url}/__aimock/journal", VENDOR_KEY)
        return [SimpleNamespace(**entry) for entry in entries if path in entry["path"]]


VENDORS = ("sim", "aimock")


class Gateway:
    """A running tollgate. `routes` maps a vendor to its addresses, in order of preference; `wire` is what
    listens between it and vendor_a, if anything does; `more` has sections of its configuration, and beside
    them the `environment`, the `names` that vendors have for models, and the `plans` and price `books` of
    accounts. With `live` the vendors have the names that conf/live.toml has for them."""

    def __init__(self, vendor, routes, store_url, folder, wire=None, more=None):
        self.vendor, self.conf, self.wire = vendor, folder / "tollgate.toml", wire
        self.routes, self.store_url = routes, store_url
        # The nodes of a fleet have their files in common.
        self.more = {"files": {"url": f"file:{folder}/files"}} | (more or {})
        if files := {name: self.more[name] for name in RULES_FILES if self.more.get(name)}:
            self.more["rules"] = {"dir": str(rules_with(files, folder))}
        http, admin, console = free_port(), free_port(), free_port()
        listen = {"http": http, "admin": admin, "console": console}
        self.conf.write_text(configuration(listen, store_url, routes, vendor, self.more))
        self.root, self.admin = f"http://127.0.0.1:{http}", f"127.0.0.1:{admin}"
        self.base_url = f"{self.root}/v1"
        self.operators = Operators(self, f"http://127.0.0.1:{console}/admin/v1")
        if store_url.startswith("sqlite:"):
            self.cli("init")
        environment = self.more.get("environment", {})
        self.process = Process("tollgate", [GATEWAY, "--conf", self.conf, "serve"], folder, **environment)
        until(lambda: self._ready(f"http://{self.admin}/readyz"), "tollgate is ready", seconds=15)
        self.stop = self.process.stop

    def ends_with_its_test(self):
        """When its test ends, nobody wants anything of it any more. Told to stop, it would wait half a second
        for another request of each client that is still connected, which is most of them."""
        self.stop = self.process.kill

    def _ready(self, url):
        self.process.check_alive()
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                return reply.status == 200
        except OSError:
            return False

    def cli(self, *arguments, **environment):
        """Runs a tollgate command against this gateway's store; what it prints."""
        command = [str(part) for part in (GATEWAY, "--conf", self.conf, *arguments)]
        around = {"cwd": self.conf.parent, "env": os.environ | environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, **around)
        assert done.returncode == 0, f"tollgate {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def account(self, credit="5"):
        """A new account with a key of its own."""
        name = f"clients-{secrets.token_hex(6)}"
        if self.store_url.startswith("sqlite:") and self.operators.are_served():
            self.operators.call("POST", "/accounts", name=name, credit_usd=credit or "0")
            return Account(self, name, self.operators.call("POST", "/keys", account=name)["key"])
        self.cli("account", "create", name, *(["--credit", credit] if credit else []), **HASTE)
        return Account(self, name, self.cli("key", "issue", name, **HASTE))

    def client(self, key):
        return sdk(self.base_url, key)

    def native(self, key, kind=anthropic.Anthropic, **options):
        """vendor_a's own client, which adds the /v1 itself."""
        return sdk(self.root, key, kind, **options)


class Operators:
    """The API of operators of a gateway. Commands do the same, but each is a process that has to start."""

    def __init__(self, gateway, root):
        self.gateway, self.root, self.token = gateway, root, None

    def are_served(self):
        """Whether the gateway runs, and has its console where it was told to have it."""
        elsewhere = "TOLLGATE__LISTEN__CONSOLE" in self.gateway.more.get("environment", {})
        return not elsewhere and self.gateway.process.child.poll() is None

    def call(self, method, path, **body):
        """Makes a call as an operator of its own; the reply."""
        if not self.token:
            name = f"tests-{secrets.token_hex(4)}"
            self.token = self.gateway.cli("operator", "add", name, "--role", "owner", **HASTE)
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self.root + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=20) as reply:
            return json.load(reply)


def rules_with(files, folder):
    """A folder with the rules as they are, but for these files."""
    copy = shutil.copytree(REPO / "lua-free-rules", folder / "rules")
    for name, text in files.items():
        (copy / f"{name}.toml").write_text(f"{text}\n")
    return copy


def configuration(ports, store_url, routes, vendor, more):
    sections = {
        "listen": {name: f"127.0.0.1:{port}" for name, port in ports.items()},
        "store": {"url": store_url},
        "rules": {"dir": f"{REPO}/lua-free-rules"},
    }
    sections |= {section: values for section, values in more.items() if section not in BESIDE}
    if "videos" in sections:
        sections["videos"] = PAUSES | sections["videos"]
    sections["timeouts"] = PATIENCE | sections.get("timeouts", {})
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    names = more.get("names", NAMES)
    file_hosts, ca = getattr(vendor, "file_hosts", ()), getattr(vendor, "ca", None)
    for name, addresses in routes.items():
        inline = [route(called, url, ca) for called, url in zip(ROUTE_NAMES, addresses)]
        lines += [f"[vendor.{name}]", f"routes = [{', '.join(inline)}]"]
        lines += live_names(name) if more.get("live") else usual_names(name, names)
        lines += [f"file_hosts = {json.dumps(file_hosts)}"] if name == "vendor_d" and file_hosts else []
    return "\n".join(lines) + "\n"


def usual_names(name, models):
    lines = ["aliases = true"] if name in models else []
    tables = ("header_names", HEADER_NAMES), ("names", models)
    return lines + [f"{setting} = {table(names[name])}" for setting, names in tables if name in names]


def live_names(name):
    settings = tomllib.loads((REPO / "conf/live.toml").read_text())["vendor"][name]
    tables = [f"{setting} = {table(settings[setting])}" for setting in NAME_TABLES if setting in settings]
    return ["vendor_names = true", *tables]


def table(pairs):
    """An inline table."""
    return "{ " + ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in pairs.items()) + " }"


def route(name, url, ca):
    tls = f', tls = {{ ca = "{ca}" }}' if url.startswith("https:") else ""
    return f'{{ name = "{name}", base_url = "{url}", key = "{VENDOR_KEY}"{tls} }}'


class Account:
    """An account of a gateway: its clients, and what the ledger says of it."""

    def __init__(self, gateway, name, key):
        self.gateway, self.name, self.key = gateway, name, key

    def client(self, max_retries=0):
        return sdk(self.gateway.base_url, self.key, max_retries=max_retries)

    def async_client(self):
        return sdk(self.gateway.base_url, self.key, kind=openai.AsyncOpenAI)

    def native(self, kind=anthropic.Anthropic, **options):
        return self.gateway.native(self.key, kind, **options)

    def revoke(self):
        """Makes its key useless."""
        (listed,) = self.gateway.cli("--json", "key", "list", self.name).splitlines()
        self.gateway.cli("key", "revoke", record(listed).prefix)

    def balance(self):
        operators = self.gateway.operators
        if operators.are_served():
            return SimpleNamespace(**operators.call("GET", f"/accounts/{self.name}"))
        return record(self.gateway.cli("--json", "account", "show", self.name))

    def journal(self, wanted):
        """The lines of its journal, oldest first. If none is wanted, another process looks, and later: a gateway
        that is asked tells the store first what it has in memory."""
        operators = self.gateway.operators
        if wanted and operators.are_served():
            lines = operators.call("GET", f"/charges?account={self.name}&limit=1000")["data"]
            return [SimpleNamespace(**line) for line in lines]
        return [record(line) for line in self.gateway.cli("--json", "charges", self.name).splitlines()]

    def assert_paid(self, model, *usages):
        """What was charged is the list price of these usages, and nothing else."""
        price = self.price(model)
        of = [price.of(usage) for usage in usages]
        charges = self.charges(len(usages))
        assert [(c.model, c.basis, c.amount_nano) for c in charges] == [(model, "reported", nano) for nano in of]
        assert all(of)

    def assert_charged(self, model, nano, basis="reported", **units):
        """One charge, of so much, whose journal line has these units; the line."""
        charge = self.charge()
        assert (charge.model, charge.basis, charge.amount_nano) == (model, basis, nano)
        assert charge.usage == units and (charge.route, charge.depth) == ("main", 0)
        return charge

    def price(self, model):
        return Price(self.client().models.retrieve(model).pricing)

    def charge(self):
        """The only charge, once everything is settled."""
        (charge,) = self.charges(1)
        return charge

    def charges(self, count):
        """All charges, oldest first, once there are `count` of them, no hold is open, and the books agree."""

        def settled():
            charges, balance = self.journal(count), self.balance()
            return len(charges) >= count and balance.held_nano == 0 and (charges, balance)

        charges, balance = until(settled, f"{count} charge(s) of {self.name} and no open hold")
        assert len(charges) == count
        assert balance.posted_nano == sum(charge.amount_nano for charge in charges)
        assert balance.credited_nano + balance.written_off_nano == balance.available_nano + balance.posted_nano
        return charges


def record(line):
    return SimpleNamespace(**json.loads(line))


class Price:
    """What a model costs, from the decimal strings of its entry in GET /v1/models."""

    def __init__(self, pricing):
        kinds = ("prompt", "completion", "character", "image_reservation")
        self.second = {name: Decimal(price) * NANO for name, price in pricing.get("second", {}).items()}
        self.prompt, self.completion, self.character, self.reservation = (
            Decimal(pricing.get(kind, "0")) * NANO for kind in kinds
        )

    def of(self, usage):
        """Exact nano-USD of a usage, in whatever format: of chats and embeddings, of responses and images, of
        messages. Some vendors leave reasoning out of the output, but not out of the total."""
        if not hasattr(usage, "total_tokens"):
            return self.of_message(usage)
        asked = usage.prompt_tokens if hasattr(usage, "prompt_tokens") else usage.input_tokens
        told = getattr(usage, "completion_tokens", 0) or getattr(usage, "output_tokens", 0)
        return asked * self.prompt + max(told, usage.total_tokens - asked) * self.completion

    def of_message(self, usage):
        """Exact nano-USD of a reply in the messages format, which counts caches apart from the other input."""
        caches = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        return (usage.input_tokens + caches) * self.prompt + usage.output_tokens * self.completion


class Unreachable:
    """An address at which nobody listens: the port is taken, so that nobody else can."""

    def __init__(self):
        self.taken = socket.socket()
        self.taken.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.taken.getsockname()[1]}/v1"
        self.stop = self.taken.close


class Stacks:
    """Makes gateways, each in a folder of its own; shares the healthy ones; stops everything at the end.
    Workers that run tests side by side each have their own, and their own databases of a Redis."""

    def __init__(self, folder, worker=0, workers=1):
        self.folder, self.numbers, self.databases = folder, itertools.count(), itertools.count(worker, workers)
        self.running, self.healthy = [], {}

    def new_folder(self):
        path = self.folder / str(next(self.numbers))
        path.mkdir()
        return path

    def start(self, part):
        self.running.append(part)
        return part

    def gateway(self, store, vendor_kind, wishes, tapped=False, jobs=False):
        """With `jobs` it looks for jobs often, which costs a processor something all the time."""
        if not wishes and (shared := self.healthy.get((store, vendor_kind, tapped, jobs))):
            return shared
        folder = self.new_folder()
        vendor = self.start(self.vendor(vendor_kind, folder, wishes))
        routes = {name: self.addresses(vendor, name, wishes.get(name, "")) for name in VERSION_SEGMENT}
        more = {name: wish for name, wish in wishes.items() if name not in routes}
        if jobs:
            more.setdefault("videos", {})
        wire = self.start(Wiretap(routes["vendor_a"][0])) if tapped else None
        if wire:
            routes["vendor_a"][0] = wire.url
        store_url = f"sqlite:{folder}/tollgate.db" if store == "sqlite" else self.redis_url()
        gateway = self.start(Gateway(vendor, routes, store_url, folder, wire, more))
        if wishes:
            gateway.ends_with_its_test()
        else:
            self.healthy[store, vendor_kind, tapped, jobs] = gateway
        return gateway

    def vendor(self, kind, folder, wishes):
        if kind == "sim":
            return Sim(folder, wishes.pop("tls", True))
        if "aimocks" not in self.__dict__:
            self.aimocks = self.start(AimockHost(folder))
        return Aimock(self.aimocks)

    def twin(self, gateway, **more):
        """Another node of the fleet that this gateway belongs to, with other settings where they are given."""
        folder, same = self.new_folder(), (gateway.vendor, gateway.routes, gateway.store_url)
        twin = self.start(Gateway(*same, folder, gateway.wire, gateway.more | more))
        twin.ends_with_its_test()
        return twin

    def addresses(self, vendor, name, faults):
        faults = [faults] if isinstance(faults, str) else faults
        return [self.start(Unreachable()).url if f == "unreachable" else vendor.address(name, f) for f in faults]

    def redis_url(self):
        """A database that no other gateway has: those that share one are a fleet, and share its jobs."""
        if "redis" not in self.__dict__:
            given = os.environ.get("TOLLGATE_TEST_REDIS_URL")
            self.redis = SimpleNamespace(url=given) if given else self.start(Redis(self.new_folder()))
        server, database = re.fullmatch(r"(rediss?://[^/]+)/?(\d*)", self.redis.url).groups()
        return f"{server}/{int(database or 0) + next(self.databases)}"

    def stop_since(self, mark):
        with contextlib.ExitStack() as ends:
            for part in self.running[mark:]:
                ends.callback(part.stop)
            del self.running[mark:]
