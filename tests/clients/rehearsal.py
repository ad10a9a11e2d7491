"""A store that is lost while customers call and pay, and what docs/operate/backup.md says to do then.

The commands are read from that page and run as they stand there, with other paths; `Page` finds
them, `Shell` runs them. `Load` is the customers and the operator, and remembers what they saw.
"""

import http.client
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import textwrap
import threading
import time
from collections import Counter
from types import SimpleNamespace

from processes import GATEWAY, REPO, Process, Sim, free_port, until
from stack import Gateway, record

PAGE = REPO / "docs/operate/backup.md"
TOKENS = "prompt=10;completion=10"
MODEL = "lmb-5.5"
# What a call costs: ten tokens in, ten out.
COST = 10 * 5_000 + 10 * 30_000
# A stream of 40 seconds, of which a hold is open at any time.
SLOW = "prompt=10;completion=400;chunks=400;chunk-delay=100"
SLOW_MODEL = "lmc-3.5-flash"
SLOW_COST = 10 * 1_500 + 400 * 9_000
LEASE_S = 2
# Between two calls of a customer: three of them still make an account busy.
PAUSE_S = 0.03
# No power is cut here, so no command waits for the disk of Redis, which takes up to a second.
HASTE = {"TOLLGATE__STORE__ALLOW_VOLATILE": "true"}
OPENING = 5 * 10**9
# What a line of the payments, or of the journal, does to what is credited, or posted.
SIGN = {"payment": 1, "grant": 1, "refund": -1, "correction": 0}
LINE_SIGN = {"charge": 1, "correction": -1}
PAYMENT = 10**7
CUSTOMERS = ("busy", "streams", "named")


class Page:
    """The code blocks of a page, by the heading that they stand under."""

    def __init__(self, path=PAGE):
        self.text = path.read_text()
        self.blocks, heading, block = [], "", None
        for line in self.text.splitlines():
            if line.lstrip().startswith("```"):
                block = [] if block is None else self.blocks.append((heading, textwrap.dedent("\n".join(block))))
            elif block is not None:
                block.append(line)
            elif line.startswith("#"):
                heading = line.lstrip("# ")

    def block(self, heading, mark):
        """The only one under the heading that has this in it."""
        (block,) = [text for under, text in self.blocks if under == heading and mark in text]
        return block

    def command(self, heading, mark):
        """What stands behind the prompt of such a block."""
        (line,) = [line for line in self.block(heading, mark).splitlines() if line.startswith("$ ")]
        return line.removeprefix("$ ")

    def inline(self, words):
        """A command in the middle of a sentence; it has to be there."""
        assert f"`{words}`" in re.sub(r"\s+", " ", self.text), f"{PAGE.name} does not say `{words}`"
        return words

    def script(self, name, folder):
        """A script that stands in the page below a comment with its name; where it is now."""
        (text,) = [text for _, text in self.blocks if text.startswith(f"# {name} ")]
        (folder / name).write_text(text)
        return folder / name


class Shell:
    """Runs lines of the page: `tollgate` and `redis-cli` are those of the test, the paths its own."""

    def __init__(self, folder, places, programs, more):
        self.places = places
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        for name, script in programs.items():
            (bin_folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (bin_folder / name).chmod(0o755)
        env = os.environ | more | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
        self.around = {"cwd": folder, "env": env}

    def words(self, text):
        for place, here in self.places.items():
            text = text.replace(place, str(here))
        return text

    def try_run(self, text):
        command = ["bash", "-euo", "pipefail", "-c", self.words(text)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **self.around)

    def run(self, text):
        done = self.try_run(text)
        assert done.returncode == 0, f"{self.words(text)}\n{done.stdout}{done.stderr}"
        return done.stdout


class Shop:
    """A gateway with a store of its own, which is going to be lost, and the customers of the gateway."""

    def __init__(self, stacks, make_store, haste=HASTE):
        self.stacks, self.folder = stacks, stacks.new_folder()
        vendor = stacks.start(Sim(self.folder))
        routes = {"vendor_b": [vendor.address("vendor_b", TOKENS)], "vendor_c": [vendor.address("vendor_c", SLOW)]}
        more = {
            "store": {"outbox": str(self.folder / "outbox")},
            "audit": {"to": f"file:{self.folder}/audit.jsonl"},
            "timeouts": {"lease_ms": LEASE_S * 1000},
        }
        self.store = make_store(stacks, self.folder)
        self.backups = self.folder / "backups"
        self.backups.mkdir()
        more["store"]["url"] = self.store.url
        self.gateway = Lasting(vendor, routes, self.store.url, self.folder, more, haste)
        stacks.start(self.gateway)
        conf = self.gateway.conf
        programs = {
            "tollgate": f'case "$*" in *--conf*) set -- "$@";; *) set -- --conf {conf} "$@";; esac\nexec {GATEWAY} "$@"'
        }
        places = {"/etc/tollgate/tollgate.toml": conf, "/var/backups/tollgate": self.backups}
        places |= {"/var/backups/redis": self.backups, "/var/lib/tollgate": self.folder}
        places, programs = places | self.store.places, programs | self.store.programs
        self.shell = Shell(self.folder, places, programs, haste)
        self.page = Page()
        self.load = Load(self)

    def rows(self, *words):
        return [record(line) for line in self.gateway.cli("--json", *words).splitlines()]

    def kill(self):
        """The machine is gone, with no chance to say good-bye."""
        self.gateway.process.child.send_signal(signal.SIGKILL)
        self.gateway.process.child.wait()
        self.load.stop()
        assert not self.load.refused, self.load.refused[:3]

    def payments_again(self):
        """Enters what the audit file has since the backup, by the script of the page."""
        script = self.page.script("replay.py", self.folder)
        printed = self.page.command("Payments since the backup", "$ python3 replay.py")
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.load.backup.began - 5))
        printed = printed.replace("2026-11-23T21:00:00Z", since).replace("replay.py", str(script))
        done = [self.shell.try_run(line) for line in self.shell.run(printed).splitlines()]
        told = "".join(one.stderr for one in done if one.returncode)
        # The accounts that are there already, and the key that is not.
        wrong = [line for line in told.splitlines() if "is there already" not in line and "no key" not in line]
        assert not wrong, told

    def broken_books(self):
        """What both proofs of the page say where something differs."""
        done = self.shell.try_run("tollgate check --books")
        script = self.shell.try_run(f"python3 {self.folder}/check-books.py {self.gateway.conf}")
        assert done.returncode == script.returncode == 1, (done, script)
        return done.stderr, script.stdout

    def books(self):
        """What both proofs of the page say: the command, and the script."""
        script = self.page.script("check-books.py", self.folder)
        printed = self.page.command("Check the books", "$ python3 check-books.py")
        assert self.shell.run(printed.replace("check-books.py", str(script))) == "0 differences\n"
        return json.loads(self.gateway.cli("--json", "check", "--books"))

    def journal(self, name):
        """The charges of an account, by the requests that were charged."""
        return {line.request_id: line for line in self.rows("charges", name) if line.kind == "charge"}

    def journals(self):
        return {name: self.journal(name) for name in self.load.accounts if name in self.known()}

    def known(self):
        return {account.name for account in self.rows("account", "list")}

    def lost(self):
        """The charges that the log of the lost gateway tells, and the store does not have: the script of the page."""
        page = Page(REPO / "docs/operate/disaster.md")
        script = page.script("lost.py", self.folder)
        line = page.command("What is lost", "$ python3 lost.py").replace("lost.py", str(script))
        *lines, last = self.shell.run(line.replace("served.log", f"{self.folder}/tollgate.log")).splitlines()
        lost = {line.split()[1]: int(line.split()[2]) for line in lines}
        sums = f"{len(lost)} charges are in the log and not in the store: {sum(lost.values())} nano-USD"
        assert last == sums
        return lost

    def settled(self):
        """Waits until nothing is held any more, which takes the lease of the lost gateway."""
        until(lambda: not self.rows("holds") or time.sleep(0.2), "nothing is held", seconds=20)

    def paid(self, name):
        """What came in for an account and went back, by its ids."""
        return {line.id: SIGN[line.kind] * line.moved_nano for line in self.rows("payments", name)}


class Lasting(Gateway):
    """A gateway that is started again on its configuration, as often as a test wishes."""

    def __init__(self, vendor, routes, store_url, folder, more, haste):
        self.starts, self.haste = 0, haste
        super().__init__(vendor, routes, store_url, folder, None, more)
        self.stop = lambda: self.process.kill()

    def cli(self, *arguments, **environment):
        return super().cli(*arguments, **(self.haste | environment))

    def start_again(self):
        self.starts += 1
        command = [GATEWAY, "--conf", self.conf, "serve"]
        self.process = Process(f"tollgate-{self.starts}", command, self.conf.parent)
        until(lambda: self._ready(f"http://{self.admin}/readyz"), "tollgate is ready again", seconds=20)

    def log(self):
        return self.process.log.read_text(errors="replace")

    def made_good(self):
        """How many charges came out of logs that an ended process had left."""
        return sum(map(int, re.findall(r"outbox replay finished.* charged=(\d+)", self.log())))


class SqliteStore:
    """The file, in the folder of its gateway."""

    programs = {}

    def __init__(self, stacks, folder):
        self.folder, self.url, self.places = folder, f"sqlite:{folder}/tollgate.db", {}
        self.files = [folder / f"tollgate.db{end}" for end in ("", "-wal", "-shm")]
        self.outboxes = [folder / f"tollgate.db{end}" for end in ("-outbox", "-allotments")]

    def lose(self):
        for file in self.files:
            file.unlink(missing_ok=True)


class RedisStore:
    """A Redis of its own, with its data in a folder of its own."""

    def __init__(self, stacks, folder):
        self.stacks, self.port, self.folder, self.starts = stacks, free_port(), folder / "redis", 0
        self.folder.mkdir()
        self.conf, self.url = folder / "redis.conf", f"redis://127.0.0.1:{self.port}/0"
        lines = [f"port {self.port}", f"dir {self.folder}", 'save ""', "appendonly yes"]
        # A snapshot for redis-cli begins at once, and not five seconds later.
        lines += ["repl-diskless-sync-delay 0"]
        self.conf.write_text("\n".join([*lines, "appendfsync everysec", "maxmemory-policy noeviction"]) + "\n")
        self.places = {"/var/lib/redis": self.folder, "/etc/redis/redis.conf": self.conf}
        self.programs = {"redis-cli": f'exec {shutil.which("redis-cli")} -p {self.port} "$@"'}
        self.outboxes = [folder / "outbox"]
        self.process = None
        self.start("redis-server /etc/redis/redis.conf")

    def start(self, line):
        for place, here in self.places.items():
            line = line.replace(place, str(here))
        if self.process is None:
            self.stacks.start(SimpleNamespace(stop=lambda: self.process.stop()))
        self.starts += 1
        self.process = Process(f"redis-{self.starts}", shlex.split(line), self.conf.parent)
        self.process.said("(Ready to accept connections)")

    def kill(self):
        self.process.child.send_signal(signal.SIGKILL)
        self.process.child.wait()

    def lose(self):
        self.kill()
        shutil.rmtree(self.folder)
        self.folder.mkdir()


class SentinelStore:
    """A master and its replica, which three Sentinels watch."""

    programs, places, outboxes = {}, {}, []

    def __init__(self, stacks, folder):
        self.ports = [free_port() for _ in range(2)]
        self.servers = [self.server(stacks, folder / f"redis-{port}", port) for port in self.ports]
        watchers = [free_port() for _ in range(3)]
        for port in watchers:
            conf = folder / f"sentinel-{port}.conf"
            lines = [f"port {port}", f"sentinel monitor shop 127.0.0.1 {self.ports[0]} 2"]
            lines += ["sentinel down-after-milliseconds shop 1000", "sentinel failover-timeout shop 5000"]
            conf.write_text("\n".join(lines) + "\n")
            stacks.start(Process(f"sentinel-{port}", ["redis-server", conf, "--sentinel"], folder))
        self.watcher, self.folder = watchers[0], folder
        self.url = f"redis-sentinel://{','.join(f'127.0.0.1:{port}' for port in watchers)}/shop"
        until(self.is_whole, "the Sentinels know each other and the replica", 20)

    def server(self, stacks, folder, port):
        folder.mkdir()
        words = ["redis-server", "--port", port, "--dir", folder, "--save", "", "--appendonly", "yes"]
        words += ["--repl-diskless-sync-delay", 0]
        if port != self.ports[0]:
            words += ["--replicaof", "127.0.0.1", self.ports[0]]
        process = Process(f"redis-{port}", words, folder)
        stacks.start(SimpleNamespace(process=process, stop=lambda: process.child.poll() is None and process.stop()))
        process.said("(Ready to accept connections)")
        return process

    def told(self):
        command = ["redis-cli", "-p", str(self.watcher), "SENTINEL", "MASTER", "shop"]
        words = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")
        return dict(zip(words[::2], words[1::2], strict=False))

    def is_whole(self):
        told = self.told()
        return (told.get("num-slaves"), told.get("num-other-sentinels")) == ("1", "2")

    def is_replaced(self):
        return self.told().get("port") == str(self.ports[1])

    def lose(self):
        self.servers[0].child.send_signal(signal.SIGKILL)
        self.servers[0].child.wait()
        shutil.rmtree(self.folder / f"redis-{self.ports[0]}")


class Load:
    """Customers that call without a pause, and an operator that takes payments. `answers` is what the customers
    got to the last byte, `broken` how many calls of an account had no whole answer, `payments` what the
    operator was told was done. All times are those of the clock."""

    def __init__(self, shop):
        self.shop, self.over = shop, threading.Event()
        self.answers, self.broken, self.payments, self.refused = [], Counter(), [], []
        self.backup, self.threads, self.accounts, self.lock = None, [], {}, threading.Lock()
        for name in (*CUSTOMERS, "slow"):
            self.open(name)
        self.due = {name: {f"opening-{name}": OPENING} for name in self.accounts}
        host, port = shop.gateway.root.removeprefix("http://").split(":")
        self.address = host, int(port)

    def open(self, name):
        """A new account with two keys."""
        cli = self.shop.gateway.cli
        cli("account", "create", name, "--credit", "5", **HASTE)
        self.accounts[name] = [cli("key", "issue", name, **HASTE) for _ in range(2)]

    def start(self, slow=True):
        kinds = {
            "busy": [{}, {}, {}],
            "streams": [{"stream": True}],
            "named": [{"named": True}, {"named": True, "stream": True}],
        }
        for name, customers in kinds.items():
            for options in customers:
                self.go(self.customer, name, options)
        if slow:
            self.go(self.customer, "slow", {"stream": True, "model": SLOW_MODEL})
        self.go(self.operator)

    def go(self, what, *arguments):
        thread = threading.Thread(target=what, args=arguments, daemon=True)
        thread.start()
        self.threads.append(thread)

    def stop(self):
        """Waits for the calls that run."""
        self.over.set()
        for thread in self.threads:
            thread.join(timeout=20)
            assert not thread.is_alive()

    def customer(self, name, options):
        number, connection = 0, None
        while not self.over.is_set():
            number += 1
            connection = connection or http.client.HTTPConnection(*self.address, timeout=60)
            called = f"{name}-{secrets.token_hex(8)}" if options.get("named") else None
            try:
                answer = self.call(name, number, called, options, connection)
            except ConnectionRefusedError:
                return  # Nobody is there any more.
            except (OSError, http.client.HTTPException):
                with self.lock:
                    self.broken[name] += 1
                connection = None
                continue
            with self.lock:
                (self.answers if answer.status == 200 else self.refused).append(answer)
            self.over.wait(PAUSE_S)

    def call(self, name, number, called, options, connection=None):
        """One call; raises an error unless the answer is there to its last byte."""
        key = self.accounts[name][number % 2]
        body = {"model": options.get("model", MODEL), "messages": [{"role": "user", "content": f"{name} {number}"}]}
        body |= {"stream": True} if options.get("stream") else {}
        head = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        head |= {"idempotency-key": called} if called else {}
        connection = connection or http.client.HTTPConnection(*self.address, timeout=60)
        began = time.time()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), head)
        reply = connection.getresponse()
        text = reply.read().decode()
        if options.get("stream") and reply.status == 200 and "data: [DONE]" not in text:
            raise http.client.IncompleteRead(text.encode())
        replayed = reply.headers.get("x-original-request-id")
        return SimpleNamespace(
            account=name,
            id=reply.headers["x-request-id"],
            status=reply.status,
            called=called,
            number=number,
            options=options,
            replayed=replayed,
            text=text,
            began=began,
            ended=time.time(),
        )

    def operator(self):
        number = 0
        while not self.over.is_set():
            number += 1
            self.pay(CUSTOMERS[number % len(CUSTOMERS)], f"invoice-{number}")
            self.over.wait(0.3)

    def pay(self, name, tx):
        """A payment that fails is made again with the same id, as its page says."""
        began, command = time.time(), ("credit", "add", name, "0.01", "--id", tx)

        def paid():
            try:
                return self.shop.gateway.cli(*command)
            except AssertionError:
                return None

        until(paid, f"{tx} is paid", seconds=30)
        with self.lock:
            self.payments.append(SimpleNamespace(account=name, id=tx, began=began, ended=time.time()))

    def until_answers(self, more, names=CUSTOMERS):
        """Waits for so many more answers to each customer."""
        counts = lambda: Counter(answer.account for answer in list(self.answers))  # noqa: E731
        before = counts()
        came = lambda: all(counts()[name] >= before[name] + more for name in names)  # noqa: E731
        until(came, f"{more} more answers to each", seconds=40)

    def of(self, name):
        return [answer for answer in self.answers if answer.account == name]
