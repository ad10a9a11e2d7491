"""How long the console takes for a page with ten thousand accounts and an account with ten thousand keys, and
what calls cost while somebody looks at it (about 4 minutes). Times are by the clock of a client on this machine.

Calls are measured one after the other, in windows that take turns: nobody looks; watchers ask for two pages a second
in all, as some people do, and one has the live tail of Today open; and bystanders are as busy with something else.
Whoever looks needs a processor as well, of which a bench with many connections leaves none.
"""

import http.client
import itertools
import os
import socket
import sqlite3
import statistics
import subprocess
import threading
import time
import urllib.parse

import scale_books as books
from processes import BIN, free_port
from scale_world import Gateway, Redis, measure, show, simulator, sized

# A page is asked for this often; the first time is apart, since sums of all accounts are read then.
ROUNDS = 30
COUNT = sized(10_000, 200)
WINDOWS, SECONDS = sized(7, 1), sized(6, 1)
PAGES_A_SECOND = 2
# The live tail tells of this many calls a second at most.
EVENTS_A_SECOND = 20
# An account of which a call is made before.
BUSY = books.name(COUNT // 2)
OPERATORS_PAGES = ["/", "/accounts", f"/accounts?q={BUSY}", f"/accounts/{BUSY}", f"/accounts/{BUSY}/keys",
                   f"/accounts/{BUSY}/keys?q=nobody", f"/charges?account={BUSY}", "/models", "/routes", "/audit"]


class Console:
    """That of a gateway with this configuration which is not served yet."""

    def __init__(self, conf):
        self.address = f"127.0.0.1:{free_port()}"
        self.settings = {**os.environ, "TOLLGATE__LISTEN__CONSOLE": self.address}
        self.conf, self.cookie = conf, None

    def command(self, *words):
        done = subprocess.run([BIN / "tollgate", "--conf", self.conf, *words], capture_output=True, text=True,
                              env=self.settings, timeout=60, check=True)
        return done.stdout.strip()

    def sign_in(self):
        self.command("operator", "add", "bench", "--role", "owner")
        link = urllib.parse.urlparse(self.command("console", "link", "--operator", "bench"))
        status, reply, _ = self.get(http.client.HTTPConnection(self.address, timeout=60), link.path)
        assert status == 303, status
        self.cookie = reply.getheader("set-cookie").split(";")[0]

    def get(self, connection, path):
        connection.request("GET", path, headers={"cookie": self.cookie} if self.cookie else {})
        reply = connection.getresponse()
        return reply.status, reply, reply.read()

    def times(self, path):
        """The first time and the median of the others, in ms, and the bytes of the page."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        taken = []
        for _ in range(ROUNDS):
            began = time.monotonic()
            status, _, body = self.get(connection, path)
            taken.append((time.monotonic() - began) * 1_000)
            assert status == 200, (path, status, body[:500])
        connection.close()
        return taken[0], statistics.median(taken[1:]), len(body)


class Watchers:
    """People at the console, until they are told to go."""

    def __init__(self, console, pages=True):
        self.console, self.gone, self.pages, self.told = console, threading.Event(), 0, 0
        self.threads = [threading.Thread(target=work) for work in (self.look, self.follow)[not pages:]]
        for thread in self.threads:
            thread.start()

    def look(self):
        connection = http.client.HTTPConnection(self.console.address, timeout=60)
        for path in itertools.cycle(OPERATORS_PAGES):
            if self.gone.wait(1 / PAGES_A_SECOND):
                return
            status, *_ = self.console.get(connection, path)
            assert status == 200, (path, status)
            self.pages += 1

    def follow(self):
        host, port = self.console.address.split(":")
        with socket.create_connection((host, int(port)), timeout=1) as stream:
            ask = f"GET /live HTTP/1.1\r\nhost: {self.console.address}\r\ncookie: {self.console.cookie}\r\n\r\n"
            stream.sendall(ask.encode())
            while not self.gone.is_set():
                try:
                    self.told += stream.recv(1 << 16).count(b"event: ")
                except TimeoutError:
                    continue

    def go(self):
        self.gone.set()
        for thread in self.threads:
            thread.join()


class Bystanders:
    """As busy as watchers, but not with the gateway: whatever is slower beside them is so since the machine's
    processors have more to do."""

    pages = told = 0

    def __init__(self, _console):
        self.gone = threading.Event()
        self.ends = socket.socketpair()
        self.threads = [threading.Thread(target=work) for work in (self.tell, self.hear)]
        for thread in self.threads:
            thread.start()

    def tell(self):
        while not self.gone.wait(1 / EVENTS_A_SECOND):
            self.ends[0].sendall(b" " * 200)
        self.ends[0].close()

    def hear(self):
        while self.ends[1].recv(1 << 16):
            continue
        self.ends[1].close()

    def go(self):
        self.gone.set()
        for thread in self.threads:
            thread.join()


# Who is there while calls are made.
AUDIENCES = {"nobody": None, "watchers": Watchers, "bystanders": Bystanders}


class Watched:
    """A gateway with many accounts, one of which has many keys."""

    def __init__(self, store, sim):
        self.name = f"console-{store}"
        self.redis = Redis(f"redis-{self.name}") if store == "redis" else None
        self.gateway = Gateway(self.name, sim, self.redis and self.redis.url)
        if self.redis:
            books.fill_redis(self.redis.wire, COUNT)
            self.add_keys_redis()
        else:
            books.fill_sqlite(self.gateway.database, COUNT)
            self.add_keys_sqlite()
        self.console = Console(self.gateway.conf)
        self.gateway.serve(self.console.settings)
        self.console.sign_in()

    def new_keys(self):
        """Keys of the one account; each is a second older than the next."""
        now = int(time.time())
        for number in range(COUNT, 2 * COUNT):
            text = books.key(number)
            yield books.digest(text), text[:books.PREFIX_CHARS], now - 2 * COUNT + number

    def add_keys_sqlite(self):
        with sqlite3.connect(self.gateway.database, timeout=60) as c:
            (account,) = c.execute("SELECT id FROM account WHERE name = ?", (BUSY,)).fetchone()
            rows = ((told, account, prefix, at) for told, prefix, at in self.new_keys())
            c.executemany("INSERT INTO access_key (hash, account, prefix, created_at) VALUES (?, ?, ?, ?)", rows)

    def add_keys_redis(self):
        def commands():
            for told, prefix, at in self.new_keys():
                yield ["SET", f"tollgate:prefix:{prefix}", told.hex()]
                yield ["SADD", f"tollgate:{{{BUSY}}}:keys", told.hex()]
                yield ["HSET", f"tollgate:key:{told.hex()}", "account", BUSY, "prefix", prefix, "created_at", at]

        self.redis.wire.pipe(commands())

    def sums_are_there(self):
        """Until Today has the sums of all accounts, in seconds."""
        connection, began = http.client.HTTPConnection(self.console.address, timeout=60), time.monotonic()
        while f">{COUNT}<".encode() not in self.console.get(connection, "/")[2]:
            assert time.monotonic() - began < 120, "the sums are not there"
            time.sleep(0.02)
        return time.monotonic() - began

    def pages(self):
        print(f"{self.name}: sums of {COUNT} accounts after {self.sums_are_there():.1f} s", flush=True)
        for path in OPERATORS_PAGES:
            first, median, size = self.console.times(path)
            print(f"{self.name}: page {path}: {median:.1f} ms, the first time {first:.1f} ms, {size} bytes", flush=True)

    def calls(self):
        """Calls with each audience, in windows that take turns."""
        keys, seen = books.keys_file(COUNT), {who: [] for who in AUDIENCES}
        measure(self.gateway, keys, 1, SECONDS)
        for _ in range(WINDOWS):
            for who, audience in AUDIENCES.items():
                there = audience(self.console) if audience else None
                run = measure(self.gateway, keys, 1, SECONDS)
                if there:
                    there.go()
                    run |= {"pages": there.pages, "told": there.told}
                seen[who].append(run)
        return seen


def run():
    sim = simulator()
    # Of ten thousand accounts with a bank's money each, the sum would be out of range.
    books.CREDIT = 100_000 * 10**9
    rows = [["store", "audience", "req/s", "p50 us", "p99 us", "cpu us", "pages", "told"]]
    for store in ("sqlite", "redis"):
        watched = Watched(store, sim)
        watched.pages()
        seen = watched.calls()
        for who, runs in seen.items():
            row = [store, who]
            row += [f"{statistics.median(run[what] for run in runs):.0f}" for what in ("rps", "p50_us", "p99_us")]
            row += [f"{statistics.median(run['cpu'] for run in runs):.1f}"]
            rows.append(row + [sum(run.get(what, 0) for run in runs) for what in ("pages", "told")])
        watched.gateway.pause()
    show(rows)
