"""Secrets that can be recognised, planted wherever a gateway has secrets, and looked for wherever it
speaks: answers, log, pages for operators, commands, files, the store, the arguments of its processes.
"""

import contextlib
import json
import os
import random
import socket
import sqlite3
import subprocess
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from processes import free_port, get_json

import attacks.documents
import attacks.drafts
import attacks.fields
import attacks.forms
import attacks.heads
import attacks.paths
import attacks.wire
from attacks.shot import (
    ACCEPT,
    CHAT,
    EDITS,
    EITHER,
    FAMILIES,
    LOCAL,
    MESSAGES,
    POSTS,
    REFUSE,
    RESPONSES,
    SPEECH,
    VIDEOS,
    Ammunition,
)
from firing import Battery, Line
from parrot import KINDS, Parrot
from planted import Secrets, around, files_of
from report import Report
from stack import GATEWAY, VENDORS, Stack, route, until

FAULTS = (
    "status=400",
    "status=401",
    "status=403",
    "status=404",
    "status=413",
    "status=422",
    "status=429;retry-after=2",
    "status=500",
    "status=503",
    "status=529",
    "reset=0",
    "cut=0",
    "cut=2",
    "garbage",
    "wrong-length=long",
    "wrong-length=short",
    "gzip",
    "huge-header",
    "no-usage",
    "bad-usage",
    "error-event=2",
    "no-done",
    "stall=0",
    "moderated",
    "failed",
    "refusal",
)
SHORT_PAIRS = (("sqlite", "json"), ("redis", "text"))
SHOTS_LONG, SHOTS_SHORT = 12_000, 400
# What a family of shots puts into a place that answers repeat, or that takes long.
LEFT_OUT = ("giant", "large", "beyond-the-largest", "without-number")


def run(options):
    report = Report("canaries", options)
    pairs = list(product(("sqlite", "redis"), ("text", "json"))) if options.long else SHORT_PAIRS
    # Most of the time it waits: for faulty vendors, and for commands.
    with ThreadPoolExecutor(len(SHORT_PAIRS)) as pool:
        list(pool.map(lambda pair: Search(*pair, options, report).run(), pairs))
    return report


class Search:
    def __init__(self, store, log, options, report):
        self.store, self.log, self.options, self.report = store, log, options, report
        self.secrets = Secrets(options.seed)
        self.rng = random.Random(options.seed)
        # What was read, by where it was; and requests with their answers.
        self.sinks, self.answers, self.bytes, self.heads = {}, 0, 0, []

    def run(self):
        with Stack() as stack:
            self.prepare(stack)
            for step in self.honest, self.errors, self.vendors, self.hostile:
                step()
                self.listen()
            self.commands()
            self.outage()
            self.collect(stack)
        self.judge()

    def prepare(self, stack):
        secrets = self.secrets
        self.sim, self.parrot = stack.sim(), stack.start(Parrot())
        told = [
            secrets.make("key of the operator at another vendor", "sk-"),
            "of organization",
            secrets.make("organization of the operator", "org-"),
            "at",
            secrets.keep("host of the vendor", secrets.make("name of a host") + ".prod.internal"),
        ]
        self.parrot.foreign = " ".join(told)
        environment, routes = {"HOME": str(stack.folder)}, {}
        for vendor in VENDORS:
            key = secrets.make(f"key of {vendor}", "vk-")
            environment[f"KEY_OF_{vendor.upper()}"] = key
            # Half of them are in the configuration, half in the environment.
            key = key if vendor in ("vendor_a", "vendor_c") else f"env:KEY_OF_{vendor.upper()}"
            routes[vendor] = [route(self.sim, vendor, key=key)]
        routes["vendor_e"] = [{"name": "parrot", "base_url": f"{self.parrot.url}/v1", "key": "env:KEY_OF_VENDOR_E"}]
        store_url = None
        if self.store == "redis":
            self.redis = stack.redis()
            self.redis_port = int(self.redis.url.rsplit(":", 1)[1].split("/")[0])
            password = secrets.make("password of the store")
            self.ask_redis("CONFIG", "SET", "requirepass", password)
            store_url = self.redis.url.replace("redis://", f"redis://:{password}@")
        more = {
            "log": {"format": self.log, "level": "trace"},
            "videos": {"poll_ms": 100, "retry_ms": 100},
            "timeouts": {"answer_ms": 800, "stall_ms": 800, "connect_ms": 500, "total_ms": 4_000},
        }
        self.gateway = stack.gateway(routes, more, store_url, environment=environment)
        self.account = self.gateway.account("canary", 1_000)
        self.key = secrets.keep("key of a client", self.account.key)
        self.other = secrets.keep("key of another client", self.gateway.account("other", 10).key)
        self.poor = secrets.keep("key of a client without credit", self.gateway.account("poor", 0).key)
        self.revoked = secrets.keep("key that was revoked", self.gateway.key("other"))
        listed = map(json.loads, self.gateway.cli("--json", "key", "list", "other").splitlines())
        prefix = next(key["prefix"] for key in listed if self.revoked.startswith(key["prefix"]))
        self.gateway.cli("key", "revoke", prefix)
        self.unknown = secrets.make("key that is unknown", "sk-tg-")
        self.foreign = secrets.make("key of another service", "sk-")
        self.name = secrets.make("name of a repeat")
        self.faulty = self.second_gateway(stack, routes, more, store_url, environment)

    def second_gateway(self, stack, routes, more, store_url, environment):
        """A node whose routes all fail in some way before the last."""
        bad = {}
        for vendor in ("vendor_a", "vendor_b", "vendor_c", "vendor_d"):
            faults = list(FAULTS)
            self.rng.shuffle(faults)
            ways = [
                dict(route(self.sim, vendor, fault, f"r{rank}", routes[vendor][0]["key"]))
                for rank, fault in enumerate(faults[:6])
            ]
            nowhere = dict(ways[0], name="nowhere", base_url="http://127.0.0.1:1/v1")
            nobody = dict(ways[0], name="nobody", base_url="http://nobody.invalid/v1")
            bad[vendor] = [nowhere, nobody, *ways]
        # With a store of its own, or its worker would take the other's videos.
        store_url = store_url and store_url.removesuffix("/0") + "/1"
        gateway = stack.gateway(bad, more, store_url, environment=environment, name="faulty")
        self.faulty_key = self.secrets.keep(
            "key of a client of the second gateway", gateway.account("canary", 1_000).key
        )
        return gateway

    # What is done to it.

    def send(self, gateway, method, path, body=b"", key=None, lines=(), media="application/json", own_words=False):
        """One request; its answer is kept for the search. `own_words`: the secret is where answers repeat it."""
        auth = [f"authorization: Bearer {key}"] if key else []
        head = [f"{method} {path} HTTP/1.1", "host: tollgate", f"content-type: {media}", *auth, *lines]
        head += [f"content-length: {len(body)}", "connection: close"]
        line = Line(gateway.address, "127.0.0.1")
        try:
            until_ = time.monotonic() + 8
            line.send([("\r\n".join(head) + "\r\n\r\n").encode("latin-1") + body], until_)
            while line.more(until_):
                pass
        finally:
            line.close()
        self.told("answers", line.bytes, own_words)
        return line.bytes

    def told(self, where, text, own_words=False):
        self.answers += 1
        self.bytes += len(text)
        if own_words:
            return
        for name in self.secrets.found(text):
            self.report.violation(f"{name} was told in {where}", text[:600])

    def call(self, path, text):
        _, members = next(one for one in (*attacks.drafts.CALLS, attacks.drafts.VIDEO) if one[0] == path)
        return json.dumps(members | {attacks.drafts.TEXTS[path]: attacks.drafts.text(path, text)}).encode()

    def honest(self):
        """Every endpoint, as it is meant to be used."""
        gateway, key = self.gateway, self.key
        named = [f"idempotency-key: {self.name}"]
        for path, members in attacks.drafts.CALLS:
            call = members | {attacks.drafts.TEXTS[path]: attacks.drafts.text(path, "Hello.")}
            self.send(gateway, "POST", path, json.dumps(call).encode(), key)
        for path in POSTS:
            if path != EDITS:
                self.send(gateway, "POST", path, self.call(path, "Hello again."), key, named)
                self.send(gateway, "POST", path, self.call(path, "Hello again."), key, named)
                self.send(gateway, "POST", path, self.call(path, "Hello."), None, [f"x-api-key: {key}"])
        for path in (CHAT, MESSAGES, RESPONSES):
            call = json.loads(self.call(path, "Hello.")) | {"stream": True}
            self.send(gateway, "POST", path, json.dumps(call).encode(), key)
        form = attacks.forms
        parts = [form.field("model", "lmb-image-1-mini"), form.field("prompt", "Redder."), form.file()]
        dashes = b"--" + form.BOUNDARY.encode()
        body = b"".join(dashes + b"\r\n" + part for part in parts) + dashes + b"--\r\n"
        self.send(gateway, "POST", EDITS, body, key, named, f"multipart/form-data; boundary={form.BOUNDARY}")
        for path in ("/v1/models", "/v1/models/lmb-5.5", "/v1/videos", "/v1/videos?limit=1"):
            self.send(gateway, "GET", path, b"", key)
        made = json.loads(self.send(gateway, "POST", VIDEOS, self.call(VIDEOS, "A dot."), key).split(b"\r\n\r\n")[1])
        self.video = made["id"]
        is_over = lambda: b'"completed"' in self.send(gateway, "GET", f"{VIDEOS}/{self.video}", b"", key)  # noqa: E731
        until(is_over, "the video is made", 15)
        content = self.send(gateway, "GET", f"{VIDEOS}/{self.video}/content", b"", key)
        place = next(
            (line for line in content.decode("latin-1").split("\r\n") if line.lower().startswith("location:")),
            "",
        )
        self.send(
            gateway,
            "GET",
            urllib.parse.urlsplit(place[9:].strip())._replace(scheme="", netloc="").geturl(),
            b"",
        )
        for page in ("/metrics", "/readyz", "/healthz", "/nothing"):
            self.told("a page for operators", gateway.admin(page)[1].encode())

    def errors(self):
        """Secrets where they do not belong, and requests that fail."""
        gateway = self.gateway
        for path in POSTS:
            body = self.call(CHAT if path == EDITS else path, "Hello.")
            for key in (
                self.unknown,
                self.revoked,
                self.poor,
                self.foreign,
                f"{self.key}x",
                self.key[:-1],
                f" {self.key} {self.key}",
            ):
                self.send(gateway, "POST", path, body, key)
                self.send(gateway, "POST", path, body, None, [f"x-api-key: {key}", "authorization: Basic x"])
            self.send(gateway, "PUT", path, body, self.key)
            self.send(gateway, "POST", path, body[:-1], self.key)
            self.send(gateway, "POST", path, b"", self.key)
            self.send(gateway, "POST", path, body, self.key, ["content-encoding: gzip"])
        for key in (self.key, self.unknown):
            # Where clients put keys by mistake. The answer may repeat the client's own words; nobody else may.
            for path in (
                f"{CHAT}?api_key={key}",
                f"/v1/{key}",
                f"/{key}/chat/completions",
                f"/v1/models/{key}",
                f"/v1/videos/{key}",
            ):
                self.send(gateway, "POST", path, self.call(CHAT, "Hello."), self.other, own_words=True)
                self.send(gateway, "GET", path, b"", self.other, own_words=True)
            self.send(gateway, "GET", f"/v1/models?owned_by={key}", b"", self.other, own_words=True)
            self.send(gateway, "GET", f"/v1/videos?after={key}", b"", self.other, own_words=True)
            self.send(gateway, "GET", f"/v1/videos/{self.video}/file?token={key}", b"", own_words=True)
            for name in ("model", "user", "service_tier", "max_tokens", "n", "stream", "tools", key):
                call = json.loads(self.call(CHAT, "Hello.")) | {name: key}
                self.send(gateway, "POST", CHAT, json.dumps(call).encode(), self.other, own_words=True)
            for name in (
                "host",
                "content-type",
                "expect",
                "x-stainless-retry-count",
                "x-forwarded-for",
                "user-agent",
                "cookie",
                key,
            ):
                self.send(
                    gateway,
                    "POST",
                    CHAT,
                    self.call(CHAT, "Hello."),
                    self.other,
                    [f"{name}: {key}"],
                    own_words=True,
                )
            self.send(gateway, key, CHAT, b"", self.other, own_words=True)

    def vendors(self):
        """Vendors that fail, and one that repeats the key it was called with."""
        model = self.model_of("vendor_e")
        kinds = list(KINDS)
        for kind in kinds:
            for stream in (False, True):
                call = {
                    "model": model,
                    "max_tokens": 8,
                    "stream": stream,
                    "messages": [{"role": "user", "content": f"parrot:{kind}"}],
                }
                self.send(self.gateway, "POST", CHAT, json.dumps(call).encode(), self.key)
        self.report.figure(f"{self.store}: ways in which a vendor repeated its key", len(kinds))
        rounds = 12 if self.options.long else 2
        for _ in range(rounds):
            for path in POSTS:
                if path not in (EDITS, VIDEOS):
                    self.send(self.faulty, "POST", path, self.call(path, "Hello."), self.faulty_key)
            for path in (CHAT, MESSAGES, RESPONSES):
                call = json.loads(self.call(path, "Hello.")) | {"stream": True}
                self.send(self.faulty, "POST", path, json.dumps(call).encode(), self.faulty_key)
        self.send(self.faulty, "POST", VIDEOS, self.call(VIDEOS, "A dot."), self.faulty_key)

    def model_of(self, vendor):
        models = map(json.loads, self.gateway.cli("--json", "models").splitlines())
        return next(m["id"] for m in models if m["owned_by"] == vendor and m["type"] == "chat")

    def hostile(self):
        """What makes readers of HTTP complain, with real keys in it."""
        keys = {label: self.key for label in (REFUSE, LOCAL, EITHER, ACCEPT)}
        more = {
            "revoked": self.revoked,
            "poor": self.poor,
            "video": self.video,
            "response": "resp_x",
            "item": "msg_x",
        }
        ammunition = Ammunition(self.rng, keys, more | {"calls": attacks.drafts.calls})
        names = [name for name in FAMILIES if not any(word in name for word in LEFT_OUT)]
        battery = Battery(self.gateway.address, 300)
        count, shots = SHOTS_LONG if self.options.long else SHOTS_SHORT, []
        for number in range(count):
            name = names[number % len(names)]
            shot = FAMILIES[name][0](ammunition)
            shot.family = name
            shots.append(shot)
        battery.fire(shots)
        battery.stop()
        for shot in shots:
            # Some carry the key where their answer repeats it.
            own_words = "keys" in shot.family or "hop-by-hop" in shot.family
            for answer in shot.answers:
                head = "\n".join(f"{name}: {value}" for name, value in answer.headers).encode()
                self.told(f"the answer to {shot.family}", head + b"\n\n" + answer.body, own_words)
        self.report.figure(f"{self.store}: hostile requests", len(shots))

    def commands(self):
        """What the commands print, also of configurations that cannot be read."""
        gateway = self.gateway
        for words in (
            "account list",
            "account show canary",
            "account show nobody",
            "key list canary",
            "key list other",
            "models",
            "check",
            "charges canary",
            "charges nobody",
            "key revoke sk-tg-nothing",
            "account create canary",
            "credit add nobody 1",
            "nonsense",
        ):
            for form in ([], ["--json"]):
                done = gateway.command(*form, *words.split())
                self.told(f"tollgate {words}", (done.stdout + done.stderr).encode())
        for key in (self.key, self.unknown):
            done = gateway.command("key", "revoke", key if key is self.unknown else "x")
            self.told("tollgate key revoke", (done.stdout + done.stderr).encode(), own_words=True)
        self.broken_configurations()

    def broken_configurations(self):
        text = self.gateway.conf.read_text()
        secrets = self.secrets.of
        key, password = (
            secrets["key of vendor_a"],
            secrets.get("password of the store", secrets["key of vendor_c"]),
        )
        broken = {
            "a key without its end": text.replace(f'"{key}"', f'"{key}'),
            "a key without quotes": text.replace(f'"{key}"', key),
            "a key under another name": text.replace(f'key = "{key}"', f'kye = "{key}"'),
            "a key as a list": text.replace(f'"{key}"', f'["{key}"]'),
            "a key with a line break": text.replace(f'"{key}"', f'"{key}\\n"'),
            "a key twice": text.replace(f'key = "{key}"', f'key = "{key}", key = "{key}"'),
            "a key of the environment that is not there": text.replace(key, f"env:{key}"),
            "an address with a password": text.replace('base_url = "http://', f'base_url = "http://user:{password}@'),
            "an address without a scheme": text.replace('base_url = "http://', f'base_url = "user:{password}@'),
            "a store of no kind": store_at(text, f"rediz://:{password}@x"),
            "a store at no address": store_at(text, f"redis://:{password}@127.0.0.1:x/0"),
            "a store that is not there": store_at(text, f"redis://:{password}@127.0.0.1:1/0"),
            "a store whose name is unknown": store_at(text, f"redis://:{password}@nobody.invalid/0"),
            "a store with another password": self.other_password(text),
            "a store with more than an address": text.replace(
                "[store]\nurl = ", f'[store]\npassword = "{password}"\nurl = '
            ),
        }
        with ThreadPoolExecutor(4) as pool:
            runs = [pool.submit(self.broken, what, conf) for what, conf in broken.items() if conf != text]
            for name, value in (
                ("TOLLGATE__STORE__URL", f"redis://:{password}@127.0.0.1:1/0"),
                ("TOLLGATE__VENDOR__VENDOR_A__KEY", key),
            ):
                for words in ["check"], ["account", "list"]:
                    file, what = self.gateway.conf, f"{name} that is wrong"
                    runs.append(pool.submit(self.run_with, file, words, what, {name: value}))
            for run in runs:
                run.result()

    def broken(self, what, conf):
        file = self.gateway.folder / f"{what.replace(' ', '-')}.toml"
        file.write_text(conf)
        is_sound = self.run_with(file, ["check"], what)
        # What cannot be read is told by all commands alike.
        if is_sound or self.options.long:
            self.run_with(file, ["account", "list"], what)
            self.run_with(file, ["serve"], what)

    def other_password(self, text):
        if self.store != "redis":
            return text
        right, wrong = self.secrets.of["password of the store"], self.secrets.make("password that is wrong")
        return text.replace(right, wrong)

    def run_with(self, file, words, what, environment=None):
        command = [str(part) for part in (GATEWAY, "--conf", file, *words)]
        ports = {f"TOLLGATE__LISTEN__{name}": f"127.0.0.1:{free_port()}" for name in ("HTTP", "ADMIN")}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | ports | (environment or {}),
            cwd=file.parent,
        )
        try:
            out, _ = process.communicate(timeout=1.5 if words == ["serve"] else 10)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                out, _ = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
        self.told(f"tollgate {words[0]} with {what}", out)
        return process.returncode == 0

    def outage(self):
        """The store goes, and comes back with another password."""
        if self.store != "redis":
            return
        password, second = (
            self.secrets.of["password of the store"],
            self.secrets.make("second password of the store"),
        )
        self.ask_redis("CONFIG", "SET", "requirepass", second, password=password)
        self.ask_redis("CLIENT", "KILL", "TYPE", "normal", password=second)
        for path in (CHAT, SPEECH, VIDEOS, RESPONSES):
            self.send(self.gateway, "POST", path, self.call(path, "Hello."), self.key)
        for page in ("/readyz", "/metrics"):
            self.told("a page for operators", self.gateway.admin(page)[1].encode())
        time.sleep(1.0)
        self.ask_redis("CONFIG", "SET", "requirepass", password, password=second)
        self.redis.process.child.send_signal(19)
        try:
            self.send(self.gateway, "POST", CHAT, self.call(CHAT, "Hello."), self.key)
            self.told("a page for operators", self.gateway.admin("/readyz")[1].encode())
        finally:
            self.redis.process.child.send_signal(18)
        until(lambda: self.gateway.admin("/readyz")[0] == 200, "the store is back", 20)

    def ask_redis(self, *words, password=None):
        with socket.create_connection(("127.0.0.1", self.redis_port), timeout=5) as line:
            for command in ([("AUTH", password)] if password else []) + [words]:
                sent = "".join(f"${len(word)}\r\n{word}\r\n" for word in command)
                line.sendall(f"*{len(command)}\r\n{sent}".encode())
                answer = line.recv(1 << 16)
                assert answer[:1] in b"+:", answer

    # What is looked at.

    def listen(self):
        """Takes down the heads that vendors got, of which the simulator's pages show the last 200."""
        calls = get_json(f"{self.sim.url}/_bodies")
        self.heads += [json.dumps(call["headers"]).encode() for call in calls]
        self.heads += [call.split(b"\r\n\r\n")[0] for call in self.parrot.heard]
        self.parrot.heard.clear()

    def collect(self, stack):
        sinks = self.sinks
        for name, gateway in ("gateway", self.gateway), ("second gateway", self.faulty):
            for page in ("/metrics", "/readyz", "/healthz"):
                sinks[f"{page} of the {name}"] = gateway.admin(page)[1].encode()
            sinks[f"arguments of the {name}"] = Path(f"/proc/{gateway.pid}/cmdline").read_bytes()
        sinks["the journal"] = json.dumps(self.account.charges()).encode()
        sinks["answers of vendors' simulators"] = json.dumps(get_json(f"{self.sim.url}/_seen")).encode()
        self.listen()
        if self.store == "redis":
            # Written anew, so that all there is stands there once more; and readable.
            for command in ("CONFIG", "SET", "rdbcompression", "no"), ("BGREWRITEAOF",):
                self.ask_redis(*command, password=self.secrets.of["password of the store"])
            time.sleep(1.0)
            sinks["the store's files"] = files_of(Path(self.redis.process.log).parent, but=("redis.log",))
            sinks["the store's log"] = self.redis.process.log.read_bytes()
        for gateway in (self.gateway, self.faulty):
            gateway.stop()
            stack.running.remove(gateway)
        sinks["the log"] = self.gateway.said()
        sinks["the log of the second gateway"] = self.faulty.said()
        # The configuration has secrets, and they are its own.
        both = files_of(self.gateway.folder, but=("toml", "log")) + files_of(self.faulty.folder, but=("toml", "log"))
        sinks["files of the gateway: store, outbox, videos"] = both
        for file in self.gateway.folder.glob("*.db"):
            with contextlib.closing(sqlite3.connect(file)) as store:
                sinks["the store, row by row"] = "\n".join(store.iterdump()).encode(errors="replace")

    def judge(self):
        report, secrets = self.report, self.secrets
        where_the_name_may_be = ("the store's files", "files of the gateway: store, outbox, videos")
        for where, sink in self.sinks.items():
            self.bytes += len(sink)
            for name in secrets.found(sink):
                if name == "name of a repeat" and where in where_the_name_may_be:
                    report.note(f"{self.store}: the name of a repeat is in {where}, as it is")
                    continue
                report.violation(f"{name} is in {where}", around(sink, secrets, name))
        heard = b"\n".join(self.heads)
        for name in secrets.of:
            # Known to have been in use, or the search proves nothing.
            if name.startswith("key of vendor") and secrets.of[name].encode() not in heard:
                report.violation("a vendor's key was never used, so the search proves nothing", name)
        for name in secrets.found(heard):
            if not name.startswith("key of vendor"):
                report.violation(f"{name} reached a vendor", around(heard, secrets, name))
        self.prove()
        report.figure(f"{self.store}, log as {self.log}: secrets", len(secrets.of))
        report.figure(f"{self.store}, log as {self.log}: answers and outputs searched", self.answers + len(self.sinks))
        report.figure(f"{self.store}, log as {self.log}: MB searched", self.bytes / 1e6)

    def prove(self):
        """Plants each secret, in each way of writing it, in a copy of each place; the search must find it."""
        planted = 0
        for where, sink in self.sinks.items():
            for name in self.secrets.of:
                needle = self.rng.choice(list(self.secrets.needles(name)))
                at = self.rng.randrange(len(sink) + 1)
                found = self.secrets.found(sink[max(0, at - 2_000) : at] + needle + sink[at : at + 2_000])
                self.report.check(name in found, "the search is blind", f"{name} in {where}")
                planted += 1
        for name in self.secrets.of:
            for needle in self.secrets.needles(name):
                self.report.check(name in self.secrets.found(b"x" + needle + b"x"), "the search is blind", needle)
                planted += 1
        self.report.figure(f"{self.store}: secrets planted and found", planted)


def store_at(text, url):
    """A configuration with another store."""
    lines = text.split("\n")
    place = lines.index("[store]") + 1
    return "\n".join([*lines[:place], f'url = "{url}"', *lines[place + 1 :]])
