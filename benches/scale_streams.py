"""Memory of each of 5,000 slow streams: tollgate on both stores, bare pingora, nginx (about 5 minutes).

A vendor says a word every two seconds. All streams are opened, each by a connection of its own, from twenty
addresses; then memory is looked at until the first of them ends. What a stream takes is what is resident with
all of them open, at most, less what was before, and that over their number. Before is after as many whole
requests as warm up what every process keeps anyway. Memory of the kernel for sockets is nobody's here.

Every variant gets a simulator of its own. All streams must come to their end, and be charged.
"""

import shutil
import socket
import statistics
import sys
import time

import scale_books as books
from clients import Crowd, exchange
from processes import BIN, ROOT, cpu_seconds, free_port, listening, rss_mib, start, started, until
from scale_world import Gateway, Redis, judge, many_files, ratio, room, show, simulator, sized, stop_since
from variants import HEADS, SIM_PATHS, body

COUNT = sized(5_000, 200)
# Words of a stream, and ms between them; the first come at once, the last ones an age after that.
WORDS, PAUSE_MS = sized(25, 8), sized(2_000, 1_000)
WARM = sized(2_000, 200)
FAULTS = f"chunks={WORDS};chunk-delay={PAUSE_MS}"
NGINX_CONNECTIONS = 16_384
TARGET_KIB = 64
# Each stream has two ends in a proxy, and a gateway keeps half of its files for the side of the vendors.
FILES = 2 * COUNT + 1_000


class Variant:
    """Whom streams are opened through: `kind` is what the vendor speaks, `gateway` if it is one of ours."""

    def __init__(self, name, kind, port, process, gateway=None, redis=None):
        self.name, self.kind, self.port, self.process = name, kind, port, process
        self.gateway, self.redis = gateway, redis

    def request(self, stream):
        path = "/v1/chat/completions" if self.gateway else SIM_PATHS[self.kind].replace("/fast/", f"/{FAULTS}/")
        key = books.key(0) if self.gateway else "vk-simulator"
        data = body(self.kind, stream, native=not self.gateway).encode()
        if not stream:
            # The simulator drips streams only; a whole answer is at once.
            path = path.replace(FAULTS, "chunks=8")
        headers = {"Host": "bench", "Authorization": f"Bearer {key}", **HEADS["sdk"]}
        headers |= {"vendor_a-version": "2023-06-01", "Content-Length": len(data)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + data

    def warm(self):
        """Whole requests, one after the other."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as line:
            for _ in range(WARM):
                exchange(line, self.request(False), self.name)

    def check(self):
        """All are charged, and nothing is held."""
        if self.gateway and self.redis:
            books.check_redis(self.name, self.redis.wire, 1, WARM + COUNT)
        elif self.gateway:
            books.check_sqlite(self.name, self.gateway.database, 1, WARM + COUNT)


def nginx(sim):
    """As in benches/nginx.conf, but for as many connections as are needed here."""
    port, folder = free_port(), room("nginx")
    words = {"FOLDER": folder, "UPSTREAM": f"127.0.0.1:{sim}", "LISTEN": f"127.0.0.1:{port}", "ACCESS_LOG": "off"}
    text = (ROOT / "benches" / "nginx.conf").read_text()
    text = text.replace("worker_connections 1024", f"worker_connections {NGINX_CONNECTIONS}")
    for word, value in words.items():
        text = text.replace(f"@{word}@", str(value))
    (folder / "nginx.conf").write_text(text)
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    command = [binary, "-p", folder, "-e", folder / "nginx.error.log", "-c", folder / "nginx.conf"]
    process = start("nginx", command)
    until("nginx listens", lambda: listening(port))
    return Variant("nginx", "chat", port, process)


def bare_pingora(sim):
    port = free_port()
    process = start("bare_pingora", [BIN / "examples" / "bare_pingora", f"127.0.0.1:{port}", f"127.0.0.1:{sim}"])
    until("the bare pingora proxy listens", lambda: listening(port))
    return Variant("bare-pingora", "chat", port, process)


def tollgate(name, sim, kind="chat", redis=None):
    gateway = Gateway(name, sim, redis and redis.url, FAULTS)
    if redis:
        books.fill_redis(redis.wire, 1)
    else:
        books.fill_sqlite(gateway.database, 1)
    gateway.serve()
    return Variant(name, kind, gateway.port, gateway.process, gateway, redis)


MAKERS = {
    "nginx": nginx,
    "bare-pingora": bare_pingora,
    "tollgate-sqlite": lambda sim: tollgate("tollgate-sqlite", sim),
    "tollgate-redis": lambda sim: tollgate("tollgate-redis", sim, redis=Redis("redis")),
    "translated-sqlite": lambda sim: tollgate("translated-sqlite", sim, "translated"),
}


def one(name):
    """Opens all streams through a variant and sees them to their end."""
    sim = simulator(f"sim-{name}")
    variant = MAKERS[name](sim)
    pid = variant.process.pid
    variant.warm()
    idle, spent, began = rss_mib(pid), cpu_seconds(pid), time.monotonic()
    crowd = Crowd(variant.port, lambda: variant.request(True), COUNT)
    crowd.open()
    opened = time.monotonic() - began
    seen = crowd.watch(lambda: rss_mib(pid))
    open_for = time.monotonic() - began - opened
    crowd.finish()
    figures = {
        "idle": idle,
        "peak": max(seen),
        "median": statistics.median(seen),
        "kib": (max(seen) - idle) * 1024 / COUNT,
        "cpu": cpu_seconds(pid) - spent,
        "opened": opened,
        "open_for": open_for,
    }
    variant.check()
    return figures


def run():
    files = many_files()
    if files < FILES:
        sys.exit(f"failed: {COUNT} streams need {FILES} open files, and ulimit -n allows {files}")
    results = {}
    for name in MAKERS:
        before = len(started)
        results[name] = one(name)
        stop_since(before)
    print(f"{COUNT} streams of {WORDS} words, one every {PAUSE_MS} ms; resident memory of the process, in MiB")
    rows = [["variant", "", "idle", "median", "most", "KiB/stream", "opened in s", "all open for s", "CPU s"]]
    for name, r in results.items():
        row = [f"{r['idle']:.1f}", f"{r['median']:.1f}", f"{r['peak']:.1f}", f"{r['kib']:.1f}"]
        rows.append([name, "", *row, f"{r['opened']:.1f}", f"{r['open_for']:.1f}", f"{r['cpu']:.2f}"])
    show(rows)
    for name in results:
        if name not in ("nginx", "bare-pingora"):
            ratio(f"streams memory {name} vs bare-pingora", results[name]["kib"] / results["bare-pingora"]["kib"])
            judge(f"memory of an open slow stream, {name}", results[name]["kib"], most=TARGET_KIB, unit=" KiB")
