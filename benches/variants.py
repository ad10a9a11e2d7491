"""What is compared: each stands in front of the same simulated vendor, with one worker thread."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import urllib.request

from processes import BIN, FOLDER, ROOT, free_port, listening, start, until

LOG = os.environ.get("BENCH_LOG", "off")
# What the variants without a format of their own send, by the kind of a scenario.
SIM_PATHS = {
    "chat": "/vendor_b/fast/v1/chat/completions",
    "translated": "/vendor_a/fast/v1/messages",
}
# What is sent beside the key and the length. "sdk" is what an official Python client sends, as it was
# captured, without the brand (`benches/inputs.rs` has the same fields); "curl" is the least that a request needs.
HEADS = {
    "sdk": {
        "Accept-Encoding": "gzip, deflate",
        "Connection": "keep-alive",
        "Accept": "application/json",
        "Content-Type": "application/json",
        "User-Agent": "Client/Python 2.54.0",
        "X-Stainless-Lang": "python",
        "X-Stainless-Package-Version": "2.54.0",
        "X-Stainless-OS": "Linux",
        "X-Stainless-Arch": "x64",
        "X-Stainless-Runtime": "CPython",
        "X-Stainless-Runtime-Version": "3.12.3",
        "X-Stainless-Async": "false",
        "x-stainless-retry-count": "0",
        "x-stainless-read-timeout": "600",
    },
    "curl": {"Content-Type": "application/json"},
}
# Each request has a number of its own in its text, so that no two bodies are the same, as with real clients.
# wrk puts its numbers where this is; its runs begin far above the numbers of what is asked by hand.
PLACE = "#" * 16
NUMBERS = itertools.count(1)
RUNS = itertools.count(1)
NUMBERS_PER_RUN = 10**9


def body(kind, stream, native, size=None, number=None):
    """A request of 1 KB, as the vendor takes it (native) or as a client of a gateway sends it.

    With a size it has exactly so many bytes: the one message is long then. The message begins with the
    number, which is the next one if none is given.
    """
    number = number or f"{next(NUMBERS):0{len(PLACE)}}"
    text = "Explain in a few plain words what a toll gate does. "
    model = {"chat": "lmb-5.5", "translated": "lma-sonnet-4-6"}[kind]
    call = {"model": model, "stream": stream, "max_tokens": 256}
    if stream and not (kind == "translated" and native):
        # So that the gateway has no reason to keep the vendor's usage chunk to itself.
        call["stream_options"] = {"include_usage": True}
    call["messages"] = [{"role": "user", "content": f"{number} {text * 20}"[:890]}]
    if size:
        longer = 890 + size - len(json.dumps(call))
        call["messages"][0]["content"] = f"{number} {text * (longer // len(text) + 1)}"[:longer]
    return json.dumps(call)


class Variant:
    """Where to send requests, whose CPU time to read, and for tollgate whose ledger to check.

    A peer, another gateway, gets the same requests as tollgate does, with `headers` of its own for
    each kind; `about` says how it was run. `command` is there if it can be run again. `large` is the same
    in front of a vendor that only counts bytes, to which large bodies are sent. `faults` is what the
    simulated vendor is asked for by a variant without routes.
    """

    def __init__(
        self, name, port, process=None, conf=None, key="none", redis=None, *, command=None, headers=None, about=None,
        faults="fast"
    ):
        self.name, self.port, self.process = name, port, process
        self.conf, self.key, self.redis = conf, key, redis
        self.command, self.about = command, about
        self.peer = about is not None
        self.own_headers = headers or {}
        self.faults, self.large = faults, None
        self.completed = 0

    @property
    def native(self):
        """It passes on what is the vendor's already, and so gets it that way."""
        return not (self.conf or self.peer)

    def path(self, kind):
        return SIM_PATHS[kind].replace("/fast/", f"/{self.faults}/") if self.native else "/v1/chat/completions"

    def url(self, kind):
        return f"http://127.0.0.1:{self.port}{self.path(kind)}"

    def headers(self, kind, head="sdk", key=None):
        headers = {"Authorization": f"Bearer {key or self.key}", **HEADS[head]}
        if self.native and kind == "translated":
            headers["vendor_a-version"] = "2023-06-01"
        return headers | self.own_headers.get(kind, {})

    def body(self, kind, stream, size=None, number=None):
        return body(kind, stream, self.native, size, number)

    def request(self, kind, stream=False, size=None, *, number=None, **head):
        """All bytes of a request."""
        data = self.body(kind, stream, size, number)
        headers = {"Host": f"127.0.0.1:{self.port}", **self.headers(kind, **head), "Content-Length": len(data)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {self.path(kind)} HTTP/1.1\r\n{lines}\r\n{data}".encode()


def nginx(name, sim_port):
    port = free_port()
    folder = FOLDER / name
    folder.mkdir()
    words = {
        "FOLDER": folder,
        "UPSTREAM": f"127.0.0.1:{sim_port}",
        "LISTEN": f"127.0.0.1:{port}",
        "ACCESS_LOG": f"{folder}/access.log" if LOG == "info" else "off",
    }
    text = (ROOT / "benches" / "nginx.conf").read_text()
    for word, value in words.items():
        text = text.replace(f"@{word}@", str(value))
    conf = folder / "nginx.conf"
    conf.write_text(text)
    binary = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    process = start(name, [binary, "-p", folder, "-e", folder / "nginx.error.log", "-c", conf])
    until(f"{name} listens", lambda: listening(port))
    return Variant(name, port, process)


def bare_pingora(name, sim_port, ca=None, faults="fast"):
    """With the file of an authority, it speaks to the vendor over TLS."""
    port = free_port()
    command = [BIN / "examples" / "bare_pingora", f"127.0.0.1:{port}", f"127.0.0.1:{sim_port}"]
    command += [ca] if ca else []
    process = start(name, command)
    until("the bare pingora proxy listens", lambda: listening(port))
    return Variant(name, port, process, command=command, faults=faults)


def redis(name="redis"):
    """As tollgate wants it: every charge appended to a file, nothing evicted."""
    port = free_port()
    folder = FOLDER / name
    folder.mkdir()
    process = start(
        name,
        ["redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        + ["--appendonly", "yes", "--appendfsync", "everysec"]
        + ["--maxmemory-policy", "noeviction"],
    )
    until(f"{name} listens", lambda: listening(port))
    return process, f"redis://127.0.0.1:{port}"


def cli(conf, *words):
    command = [BIN / "tollgate", "--conf", conf, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        sys.exit(f"failed: tollgate {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


# Limits that refuse nothing. Three budgets, and a plan that counts all that a plan can count.
BUDGETS = ("--budget", "day=9000000", "--budget", "month=9000000")
KEY_BUDGET = ("--budget", "total=9000000")
# With KEY_PLAN=1 the key has a plan of its own, too: six limits a call instead of three.
KEY_PLAN = ("--plan", "bench") if os.environ.get("KEY_PLAN") else ()
PLAN = '[plan.bench]\nrequests_per_minute = "900M"\ntokens_per_minute = "900M"\ncalls = 900_000\n'


def rules_with_plan(folder):
    """A folder with the rules as they are shipped and a plan."""
    rules = shutil.copytree(ROOT / "lua-free-rules", folder / "rules")
    (rules / "plans.toml").write_text(PLAN)
    return rules


def issue_key(conf, limited=False):
    """Issues a key of the account; if that is limited, it has a plan and two budgets, and the key one."""
    if not limited:
        return cli(conf, "key", "issue", "bench")
    cli(conf, "account", "set", "bench", "--plan", "bench", *BUDGETS)
    return cli(conf, "key", "issue", "bench", *KEY_PLAN, *KEY_BUDGET)


def settings(name, sim_port, store, ca=None, faults="fast", limited=False):
    """The configuration of a gateway with one worker: its folder, its two ports, and the file. With the
    file of an authority, it speaks to the vendors over TLS. If it is limited, there is a plan."""
    http, admin = free_port(), free_port()
    folder = FOLDER / name
    (folder / "files").mkdir(parents=True)
    conf = folder / "tollgate.toml"
    rules = rules_with_plan(folder) if limited else ROOT / "lua-free-rules"
    base = f"{'https' if ca else 'http'}://127.0.0.1:{sim_port}"
    tls = f', tls = {{ ca = "{ca}" }}' if ca else ""
    conf.write_text(
        f"""\
[server]
threads = 1
[listen]
http = "127.0.0.1:{http}"
admin = "127.0.0.1:{admin}"
[store]
url = "{store or f'sqlite:{folder}/tollgate.db'}"
outbox = "{folder}/outbox"
[files]
url = "file:{folder}/files"
[rules]
dir = "{rules}"
# All calls are of one account.
[limits]
requests_per_account_max = 0
[log]
format = "text"
level = "{'info' if LOG == 'info' else 'warn'}"
[vendor.vendor_a]
routes = [{{ name = "simulator", base_url = "{base}/vendor_a/{faults}/v1", key = "vk-simulator"{tls} }}]
[vendor.vendor_b]
routes = [{{ name = "simulator", base_url = "{base}/vendor_b/{faults}/v1", key = "vk-simulator"{tls} }}]
"""
    )
    return folder, http, admin, conf


def wait_ready(name, process, admin, seconds=20):
    def ready():
        if process.poll() is not None:
            sys.exit(f"failed: {name} ended at once; see {FOLDER}/{name}.log")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=2) as reply:
                return reply.status == 200
        except OSError:
            return False

    until(f"{name} is ready", ready, seconds)


def tollgate(name, sim_port, store, redis_process=None, ca=None, faults="fast", limited=False):
    _, http, admin, conf = settings(name, sim_port, store, ca, faults, limited)
    command = [BIN / "tollgate", "--conf", conf, "serve"]
    cli(conf, "init")
    process = start(name, command)
    wait_ready(name, process, admin)
    cli(conf, "account", "create", "bench", "--credit", "9000000")
    key = issue_key(conf, limited)
    return Variant(name, http, process, conf, key, redis_process, command=command)
