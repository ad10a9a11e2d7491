"""One tenant against all: an account without balance takes what it can get, and a good client goes on.

Many streams of HTTP/2 ask for the models and take nothing of the answers; then as many announce a body
and send none of it. The good client may not notice: no call fails.
"""

import json
import selectors
import socket
import ssl
import struct
import subprocess
import time
from collections import Counter

from good_client import GoodClient
from report import Report, percentile
from stack import Stack, route

STREAMS = 32
CONNECTIONS_LONG, CONNECTIONS_SHORT = 258, 40
SECONDS_LONG, SECONDS_SHORT = 60.0, 6.0
# What is not refused by then never is.
PATIENCE = 60.0
# The short form has less of everything.
LIMITS_SHORT = {"requests_max": 1_000, "requests_per_account_max": 125}
RATE = 50

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS, RESET, GOAWAY = 1, 4, 3, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(index, value):
    """A header by the index of its name, without compression."""
    prefix = bytes([index]) if index < 15 else bytes([15, index - 15])
    return prefix + bytes([len(value)]) + value.encode()


def models(key):
    return END_HEADERS | END_STREAM, b"\x82\x87" + literal(4, "/v1/models") + common(key)


def body_never_sent(key):
    path = literal(4, "/v1/chat/completions")
    return END_HEADERS, b"\x83\x87" + path + common(key) + literal(28, "1000") + literal(31, "application/json")


def common(key):
    return literal(1, "tollgate") + literal(23, f"Bearer {key}")


class Connection:
    """A connection full of streams that takes no byte of an answer."""

    def __init__(self, address, source, head):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(address, timeout=20, source_address=(source, 0))
        self.socket = context.wrap_socket(plain)
        flags, block = head
        window = struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)
        heads = (frame(HEADERS, flags, 2 * number + 1, block) for number in range(STREAMS))
        settings = frame(SETTINGS, 0, 0, window) + frame(SETTINGS, ACK, 0)
        self.socket.sendall(PREFACE + settings + b"".join(heads))
        self.socket.setblocking(False)
        self.heard, self.answers, self.open = b"", Counter(), True

    def read(self):
        try:
            while piece := self.socket.recv(1 << 16):
                self.heard += piece
            self.open = False
        except (ssl.SSLWantReadError, BlockingIOError):
            pass
        except OSError:
            self.open = False
        while len(self.heard) >= 9 and len(self.heard) >= (end := 9 + int.from_bytes(self.heard[:3], "big")):
            kind, payload = self.heard[3], self.heard[9:end]
            self.heard = self.heard[end:]
            if kind == HEADERS:
                # The first entry is the status, and 200 has one of its own.
                self.answers["200" if payload[:1] == b"\x88" else "refused"] += 1
            elif kind in (RESET, GOAWAY):
                self.answers["given up"] += 1


def attack(gateway, head, count, seconds):
    """The answers to that many connections of one account, from many addresses, within a time that begins when all
    are there. A machine that is busy gets longer, until one stream is refused."""
    answers, selector, connections = Counter(), selectors.DefaultSelector(), []
    for number in range(count):
        one = Connection(gateway.address, f"127.0.{1 + number % 20}.{1 + number // 20}", head)
        selector.register(one.socket, selectors.EVENT_READ, one)
        connections.append(one)
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < seconds or (waited < PATIENCE and not refused(connections)):
        for key, _ in selector.select(0.1):
            key.data.read()
            if not key.data.open:
                selector.unregister(key.fileobj)
    for one in connections:
        answers += one.answers
        one.socket.close()
    return answers


def refused(connections):
    return any(one.answers["refused"] for one in connections)


def run(options):
    report = Report("tenants", options)
    count, seconds = (CONNECTIONS_LONG, SECONDS_LONG) if options.long else (CONNECTIONS_SHORT, SECONDS_SHORT)
    report.figure("streams", count * STREAMS)
    for head in (models, body_never_sent):
        with Stack(in_memory=True) as stack:
            one_attack(report, stack, head, count, seconds, {} if options.long else LIMITS_SHORT)
    return report


def one_attack(report, stack, head, count, seconds, limits):
    name, sim, folder = head.__name__.replace("_", " "), stack.sim(), stack.room("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*made.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    environment = {"TOLLGATE__LISTEN__TLS": f'{{ cert = "{cert}", key = "{key}" }}'}
    routes = {"vendor_b": [route(sim, "vendor_b")]}
    gateway = stack.gateway(routes, {"limits": limits} if limits else None, environment=environment)
    poor, good = gateway.account("poor", 0), gateway.account("good", 1_000)
    before = gateway.memory()[0]
    with GoodClient(gateway, good.key, "lmb-4o-mini", RATE, tls=True) as client:
        time.sleep(1.0)
        calm_until = time.monotonic()
        answers = attack(gateway, head(poor.key), count, seconds)
        busy_until = time.monotonic()
        after, peak = gateway.memory()
    report.figure(f"{name}: answers to the poor account", json.dumps(answers))
    calm = [ms for at, ms, _ in client.answers if at < calm_until]
    busy = [ms for at, ms, _ in client.answers if calm_until <= at < busy_until]
    failed = [status for _, _, status in client.answers if status != 200]
    report.figure(f"{name}: good calls meanwhile", len(busy))
    report.figure(f"{name}: of these failed", len(failed))
    report.figure(f"{name}: good p99 before", percentile(calm, 0.99), "ms")
    report.figure(f"{name}: good p99 meanwhile", percentile(busy, 0.99), "ms")
    megabytes = [bytes_ / (1 << 20) for bytes_ in (before, peak, after)]
    report.figure(f"{name}: resident MiB before, at most, after", ", ".join(f"{one:.1f}" for one in megabytes))
    report.check(busy and not failed, "good calls failed", failed[:20])
    report.check(answers["refused"] > 0, "the poor account met no bound", answers)
    report.check(gateway.is_alive(), "the gateway ended", gateway.said()[-2_000:])
    settled = good.settled(20)
    report.check(settled["held_nano"] == 0, "money stayed held", settled)
