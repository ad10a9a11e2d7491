"""Slow sockets of several styles, all at once, while a good client goes on.

Every one must be closed within 15 s of the moment at which it began to be slow. Beside them are some
that only look slow, and must be left alone.
"""

import errno
import json
import selectors
import shutil
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path

from good_client import GoodClient
from report import Report, percentile
from stack import VENDORS, Stack, route

CLOSED_MAX = 15.0
SOCKETS_LONG, SOCKETS_SHORT = 1_000, 150
# Seconds for all of them to be opened.
RAMP_LONG, RAMP_SHORT = 3.0, 0.5
TICK = 0.02
# A client that has stopped reading is given up after `client_write_ms`, by default 60 s, and closed when its
# answer has been read to the end, which takes its time on a machine that makes ten of them.
READER_MAX = 130.0
READERS = 10
READ_BYTES = 8 << 20


class Slow:
    """A socket and what it does: `script` yields bytes to send and seconds to wait, then waits for ever."""

    def __init__(self, style, address, source, script, reads=True):
        self.style, self.script, self.reads = style, script, reads
        self.socket = socket.socket()
        if not reads:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.bind((source, 0))
        self.socket.setblocking(False)
        self.refused = self.socket.connect_ex(address) not in (0, errno.EINPROGRESS)
        self.opened = self.began = time.monotonic()
        self.due, self.closed_at, self.received, self.sent, self.done = self.opened, None, b"", 0, False

    def step(self, now):
        """Sends what is due."""
        while self.closed_at is None and not self.done and now >= self.due:
            try:
                action = next(self.script)
            except StopIteration:
                self.done = True
                return
            if action == "begin":
                # From here on it is slow.
                self.began = now
            elif isinstance(action, bytes):
                try:
                    self.sent += self.socket.send(action)
                except BlockingIOError:
                    self.due = now + TICK
                except OSError:
                    self.close(now)
            elif callable(action):
                # Goes on once an answer has come.
                if not action(self.received):
                    self.script = again(action, self.script)
                    self.due = now + TICK
                    return
                self.received = b""
            else:
                self.due = now + action

    def read(self, now):
        try:
            piece = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self.received += piece
        if not piece:
            self.close(now)

    def close(self, now):
        if self.closed_at is None:
            self.closed_at = now

    def age(self, now):
        return (self.closed_at or now) - self.began


def again(first, rest):
    yield first
    yield from rest


def head(key, length=None, more=""):
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\n{framing}\r\n{more}\r\n"
    ).encode()


def whole(answer):
    """Whether an answer with a length has come."""
    end = answer.find(b"\r\n\r\n")
    lines = answer[: max(end, 0)].lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
    return end >= 0 and length is not None and len(answer) >= end + 4 + length


def drip(text, step, pause):
    for at in range(0, len(text), step):
        yield text[at : at + step]
        yield pause


def first_served(key):
    """A request that is answered, after which the connection stays open."""
    yield f"GET /v1/models/lmb-4o-mini HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {key}\r\n\r\n".encode()
    yield whole
    yield 0.3
    yield "begin"


def silent(_):
    yield 0.0


def byte_every_two_seconds(key):
    yield from drip(head(key, 100), 1, 2.0)


def byte_every_tenth_of_a_second(key):
    yield from drip(head(key, 100, "x-a: " + "b" * 2_000 + "\r\n"), 1, 0.1)


def header_every_second(key):
    yield head(key, 100)[:-2]
    for number in range(1_000):
        yield f"x-{number}: a\r\n".encode()
        yield 1.0


def half_a_head(key):
    yield head(key, 100)[:60]


def empty_lines(_):
    for _ in range(1_000):
        yield b"\r\n"
        yield 0.5


def body_never_sent(key):
    yield head(key, 5_000)


def body_in_drips(key):
    yield head(key, 5_000)
    yield from drip(b" " * 5_000, 10, 1.0)


def body_in_small_chunks(key):
    yield head(key)
    for _ in range(1_000):
        yield b"1\r\n \r\n"
        yield 0.5


def body_that_stops(key):
    yield head(key, 60_000) + b" " * 30_000


def body_awaited(key):
    yield head(key, 5_000, "expect: 100-continue\r\n")


def form_in_drips(key):
    text = head(key, 50_000).replace(b"/chat/completions", b"/images/edits")
    yield text.replace(b"application/json", b"multipart/form-data; boundary=xyz")
    yield from drip(b'--xyz\r\ncontent-disposition: form-data; name="prompt"\r\n\r\n' + b"a" * 5_000, 20, 1.0)


def half_a_head_on_a_used_connection(key):
    yield from first_served(key)
    yield head(key, 100)[:60]


def drips_on_a_used_connection(key):
    yield from first_served(key)
    yield from drip(head(key, 100), 1, 2.0)


def body_in_drips_on_a_used_connection(key):
    yield from first_served(key)
    yield head(key, 5_000)
    yield from drip(b" " * 5_000, 10, 1.0)


STYLES = (
    silent, byte_every_two_seconds, byte_every_tenth_of_a_second, header_every_second, half_a_head, empty_lines,
    body_never_sent, body_in_drips, body_in_small_chunks, body_that_stops, body_awaited, form_in_drips,
    half_a_head_on_a_used_connection, drips_on_a_used_connection, body_in_drips_on_a_used_connection,
)  # fmt: skip


def at_rest(key):
    """Between two requests a connection may be silent for longer."""
    yield from first_served(key)


def slow_but_steady(key):
    """Two thousand bytes a second, for longer than ten seconds: a poor line, and no attack."""
    call = {"model": "lmb-4o-mini", "max_tokens": 8, "messages": [{"role": "user", "content": "a" * 24_000}]}
    body = json.dumps(call).encode()
    yield head(key, len(body))
    yield from drip(body, 400, 0.2)


def late_after_a_rest(key):
    yield from first_served(key)
    yield 8.0
    yield f"GET /v1/models/lmb-4o-mini HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {key}\r\n\r\n".encode()


HONEST = (at_rest, slow_but_steady, late_after_a_rest)


def long_answer(key):
    call = {
        "model": "lmd-4.3",
        "stream": True,
        "messages": [{"role": "user", "content": "Talk."}],
    }
    body = json.dumps(call).encode()
    yield head(key, len(body)) + body


def run(options):
    report = Report("slow", options)
    with Stack(in_memory=True) as stack:
        sim, busy_sim = stack.sim(), stack.sim()
        routes = {vendor: [route(sim, vendor)] for vendor in VENDORS}
        routes["vendor_d"] = [route(busy_sim, "vendor_d", f"reply-bytes={READ_BYTES};chunks=200")]
        gateway = stack.gateway(routes)
        keys = {name: gateway.account(name, 1_000) for name in ("slow", "good")}
        before = gateway.descriptors(), gateway.memory()[0]
        with GoodClient(gateway, keys["good"].key, "lmb-4o-mini", rate=50) as good:
            time.sleep(1.0)
            calm_until = time.monotonic()
            crowd = Crowd(gateway, keys["slow"].key)
            crowd.open(options)
            peak = crowd.watch(CLOSED_MAX + (2.0 if options.long else 0.5))
            busy_until = time.monotonic()
            crowd.tell(report)
            if options.long:
                readers(crowd, report, gateway)
            crowd.leave()
        good_calls(report, good.answers, calm_until, busy_until)
        afterwards(report, gateway, before, peak)
        settled = keys["slow"].settled(20)
        report.check(settled["held_nano"] == 0, "money stayed held", settled)
    if options.long:
        behind_tls(report)
    return report


class Crowd:
    def __init__(self, gateway, key):
        self.gateway, self.key, self.selector = gateway, key, selectors.DefaultSelector()
        self.slow, self.honest, self.readers = [], [], []

    def open(self, options):
        count, ramp = (SOCKETS_LONG, RAMP_LONG) if options.long else (SOCKETS_SHORT, RAMP_SHORT)
        begun = time.monotonic()
        for style in HONEST:
            self.honest += [self.add(style, 250, number) for number in range(5)]
        for number in range(count):
            # From many addresses, so that it is not the cap of one that ends them.
            self.slow.append(self.add(STYLES[number % len(STYLES)], 1 + number % 20, number // 20))
            while time.monotonic() - begun < ramp * number / count:
                self.tick()

    def add(self, style, network, number, reads=True):
        one = Slow(style, self.gateway.address, f"127.0.{network}.{1 + number % 250}", style(self.key), reads)
        if reads:
            self.selector.register(one.socket, selectors.EVENT_READ, one)
        return one

    def all(self):
        return [*self.slow, *self.honest, *self.readers]

    def tick(self):
        for key, _ in self.selector.select(TICK):
            one = key.data
            one.read(time.monotonic())
            if one.closed_at is not None:
                self.selector.unregister(one.socket)
                one.socket.close()
        now = time.monotonic()
        for one in self.all():
            if one.closed_at is None and not one.done and now >= one.due:
                one.step(now)

    def watch(self, seconds):
        """Goes on for so long after the last one began to be slow; the most descriptors and bytes seen."""
        begun, descriptors, memory, look_at = time.monotonic(), 0, 0, 0.0
        while time.monotonic() - begun < seconds:
            self.tick()
            if time.monotonic() > look_at:
                look_at = time.monotonic() + 0.5
                descriptors = max(descriptors, self.gateway.descriptors())
                memory = max(memory, self.gateway.memory()[0])
        return descriptors, memory

    def tell(self, report):
        now = time.monotonic()
        report.figure("slow sockets", len(self.slow))
        report.figure("styles", len(STYLES))
        for style in STYLES:
            of_style = [one for one in self.slow if one.style is style]
            closed = [one.age(now) for one in of_style if one.closed_at is not None]
            stayed = [one.age(now) for one in of_style if one.closed_at is None]
            answers = Counter((one.received[:12] or b"no answer").decode(errors="replace") for one in of_style)
            told = f"{len(closed)} of {len(of_style)} closed"
            told += f" after {min(closed):.1f} to {max(closed):.1f} s" if closed else ""
            report.figure(style.__name__.replace("_", " "), f"{told}; {dict(answers)}")
            for age in [*stayed, *(age for age in closed if age > CLOSED_MAX)]:
                report.violation(f"a slow socket lived too long: {style.__name__}", f"{age:.1f} s and open")
        refused = sum(one.refused for one in self.slow)
        report.check(refused == 0, "sockets could not be opened", refused)
        for style in HONEST:
            of_style = [one for one in self.honest if one.style is style]
            served = sum(b"HTTP/1.1 200" in one.received for one in of_style)
            stayed = sum(one.closed_at is None for one in of_style)
            report.figure(f"left alone: {style.__name__.replace('_', ' ')}", f"{stayed} of {len(of_style)} open")
            report.check(stayed == len(of_style), f"an honest connection was closed: {style.__name__}")
            if style is not at_rest:
                report.check(served == len(of_style), f"an honest request was not served: {style.__name__}")

    def leave(self):
        for one in self.all():
            one.socket.close()
        self.selector.close()


def readers(crowd, report, gateway):
    """Those who ask for a long answer and do not read it; apart, since their time is another, and making
    such answers keeps the machine busy."""
    crowd.readers = [crowd.add(long_answer, 251, number, reads=False) for number in range(READERS)]
    ports = {one.socket.getsockname()[1]: one.opened for one in crowd.readers}
    gone, memory = {}, 0
    while len(gone) < len(ports) and time.monotonic() < min(ports.values()) + READER_MAX:
        crowd.tick()
        held, memory = connections_of(gateway.port), max(memory, gateway.memory()[0])
        for port in ports.keys() - gone.keys() - held:
            gone[port] = time.monotonic() - ports[port]
        time.sleep(0.1)
    report.figure("readers that do not read", len(ports))
    report.figure("resident MiB with these, at most", memory / (1 << 20))
    told = f", after {min(gone.values()):.1f} to {max(gone.values()):.1f} s" if gone else ""
    report.figure("of these given up", f"{len(gone)}{told}")
    report.check(len(gone) == len(ports), "who does not read was not given up", f"in {READER_MAX} s")


def connections_of(port):
    """The ports of clients that a server on loopback still talks to. A client that does not read cannot
    see itself that it was given up: the end stands behind all that it has not read."""
    established = "01"
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, state = line.split()[:4]
        if state == established and int(here.split(":")[1], 16) == port:
            found.add(int(there.split(":")[1], 16))
    return found


def good_calls(report, answers, calm_until, busy_until):
    calm = [ms for at, ms, _ in answers if at < calm_until]
    busy = [ms for at, ms, _ in answers if calm_until <= at < busy_until]
    report.figure("good calls meanwhile", len(busy))
    report.figure("good p99 before", percentile(calm, 0.99), "ms")
    report.figure("good p99 meanwhile", percentile(busy, 0.99), "ms")
    failed = [status for _, _, status in answers if status != 200]
    report.check(busy and not failed, "good calls failed", failed[:20])


def afterwards(report, gateway, before, peak):
    report.check(gateway.is_alive(), "the gateway ended", gateway.said()[-2_000:])
    end = time.monotonic() + 5
    while (now := gateway.descriptors()) > before[0] + 20 and time.monotonic() < end:
        time.sleep(0.1)
    report.figure("descriptors before, at most, after", f"{before[0]}, {peak[0]}, {now}")
    megabytes = [bytes_ / (1 << 20) for bytes_ in (before[1], peak[1], gateway.memory()[0])]
    report.figure("resident MiB before, at most, after", ", ".join(f"{one:.1f}" for one in megabytes))
    report.check(now <= before[0] + 20, "descriptors were not given back", f"{before[0]} -> {now}")


def behind_tls(report):
    """Who begins a handshake and does not end it."""
    if not shutil.which("openssl"):
        report.note("no openssl, so no handshakes were begun")
        return
    with Stack() as stack:
        sim, folder = stack.sim(), stack.room("tls")
        cert, key = folder / "cert.pem", folder / "key.pem"
        made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
        subprocess.run([*made.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
        tls = {"TOLLGATE__LISTEN__TLS": f'{{ cert = "{cert}", key = "{key}" }}'}
        gateway = stack.gateway({"vendor_b": [route(sim, "vendor_b")]}, environment=tls)
        hello = bytes.fromhex("16030100c8010000c40303") + bytes(60)
        styles = {
            "no hello": [b""],
            "half a hello": [hello],
            "a hello in drips": list(drip(hello * 3, 1, 1.0)),
        }
        crowd = Crowd(gateway, "")
        for number in range(90):
            name = list(styles)[number % 3]

            def script(_, pieces=tuple(styles[name])):
                yield from pieces

            script.__name__ = name
            crowd.slow.append(crowd.add(script, 1, number))
        crowd.watch(CLOSED_MAX + 2.0)
        for name in styles:
            of_style = [one for one in crowd.slow if one.style.__name__ == name]
            closed = [one.age(0) for one in of_style if one.closed_at is not None]
            last = f", the last after {max(closed):.1f} s" if closed else ""
            report.figure(f"TLS, {name}", f"{len(closed)} of {len(of_style)} closed{last}")
            report.check(len(closed) == len(of_style), f"a slow handshake lived too long: {name}")
            report.check(all(age <= CLOSED_MAX for age in closed), f"a slow handshake was closed late: {name}")
        crowd.leave()
