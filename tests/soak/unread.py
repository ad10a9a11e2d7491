"""Clients that ask for much and read nothing of it: what is held for them has a bound, and costs only them.

First embeddings, which cost next to nothing and pass entry by entry; then images, which are held as a whole, of
one account, and of many. A good client of another account goes on meanwhile.
"""

import json
import socket
import socketserver
import threading
import time
from collections import Counter

from good_client import GoodClient
from report import Report, percentile
from stack import Stack
from vendors import HOST, JSON, REPLY

CLIENTS_LONG, CLIENTS_SHORT = 200, 30
ACCOUNTS = 8
INPUTS, DIMENSIONS = 2_048, 1_536
IMAGE_BYTES = 8 << 20
# An answer waits a minute for room and a minute for its client, and is read on for half a minute.
GONE_SECONDS = 180
MIB = 1 << 20
# What is held, at most: for embeddings of each a piece, for images what the configuration says. A reply that is
# joined from its pieces takes twice its bytes for a moment, and the allocator keeps what is free for some seconds.
EMBEDDINGS_MIB_MAX = 200
ANSWERS_BYTES_MAX, ANSWERS_PER_ACCOUNT_BYTES_MAX = 256 * MIB, 64 * MIB
BEYOND_BYTES = 4 * IMAGE_BYTES


def embeddings():
    vector = b'{"object":"embedding","index":0,"embedding":"%s"}' % (b"AACAPw==" * (DIMENSIONS * 4 // 6))
    usage = b'{"prompt_tokens":13500,"total_tokens":13500}'
    return b'{"object":"list","data":[%s],"model":"m","usage":%s}' % (b",".join([vector] * INPUTS), usage)


def image():
    usage = b'{"input_tokens":10,"output_tokens":1000,"total_tokens":1010}'
    return b'{"created":1,"data":[{"b64_json":"%s"}],"usage":%s}' % (b"A" * IMAGE_BYTES, usage)


class Conversation(socketserver.StreamRequestHandler):
    """Answers each request from the same bytes, however slowly they are taken."""

    # A head and a body are two writes, of which the second would wait for the first's acknowledgement.
    disable_nagle_algorithm = True

    def handle(self):
        try:
            while path := self.read():
                name = path.rsplit("/", 1)[1]
                body = self.server.bodies[name]
                self.server.asked[name] += 1
                self.request.sendall(JSON + b"content-length: %d\r\n\r\n" % len(body))
                self.request.sendall(body)
        except OSError:
            return

    def read(self):
        first, length = self.rfile.readline().decode(), 0
        while line := self.rfile.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        self.rfile.read(length)
        return first.split(" ")[1] if first else ""


class LargeVendor(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 512

    def __init__(self):
        super().__init__((HOST, 0), Conversation)
        self.bodies = {"embeddings": embeddings(), "generations": image(), "completions": REPLY}
        self.asked = Counter()
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def large(self):
        """How many large answers it was asked for."""
        return sum(self.asked.values()) - self.asked["completions"]

    def route(self):
        return {"name": "large", "base_url": f"http://{HOST}:{self.server_address[1]}/v1", "key": "secret"}

    def stop(self):
        self.shutdown()
        self.server_close()


CALLS = {
    "embeddings": ("/v1/embeddings", {"model": "text-embedding-3-small", "input": ["a"] * INPUTS,
                                      "encoding_format": "base64"}),
    "images": ("/v1/images/generations", {"model": "lmb-image-1", "prompt": "A red dot."}),
}  # fmt: skip


def client(gateway, key, path, call):
    """A connection over which a call was sent, and nothing is read."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    one.connect(gateway.address)
    body = json.dumps(call).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    one.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return one


def run(options):
    report = Report("unread", options)
    clients = CLIENTS_LONG if options.long else CLIENTS_SHORT
    cases = (
        ("embeddings of one account", "embeddings", 1, EMBEDDINGS_MIB_MAX * MIB),
        ("images of one account", "images", 1, 2 * (ANSWERS_PER_ACCOUNT_BYTES_MAX + BEYOND_BYTES)),
        ("images of many accounts", "images", ACCOUNTS, 2 * (ANSWERS_BYTES_MAX + BEYOND_BYTES)),
    )
    # Beside other machines the gateway is late, and a minute each is long.
    timeouts = {} if options.long else {"client_write_ms": 5_000, "shed_lag_ms": 0, "ledger_ms": 5_000}
    for name, endpoint, accounts, most in cases if options.long else cases[:2]:
        with Stack(in_memory=True) as stack:
            crowd(stack, report, name, CALLS[endpoint], (clients, accounts, most), timeouts)
    return report


def crowd(stack, report, name, call, bounds, timeouts):
    clients, accounts, most = bounds
    vendor = stack.start(LargeVendor())
    limits = {"answers_bytes_max": ANSWERS_BYTES_MAX, "answers_per_account_bytes_max": ANSWERS_PER_ACCOUNT_BYTES_MAX}
    routes = {name: [vendor.route()] for name in ("vendor_b", "vendor_d")}
    gateway = stack.gateway(routes, {"limits": limits, "timeouts": timeouts})
    unread = [gateway.account(f"unread{number}", 1_000) for number in range(accounts)]
    good = gateway.account("good", 1_000)
    before = gateway.memory()[0]
    with GoodClient(gateway, good.key, "lmd-4.3", rate=50) as good_client:
        time.sleep(1.0)
        begun = time.monotonic()
        lines = [client(gateway, unread[number % accounts].key, *call) for number in range(clients)]
        settled = all_settled(gateway, vendor, clients)
        ended = time.monotonic()
    for line in lines:
        line.close()
    tell(report, name, gateway, (before, most), (begun, ended), good_client.answers)
    charged = sum(len(account.charges()) for account in unread)
    refused = int(gateway.metric("tollgate_shed_total"))
    report.figure(f"{name}: asked, refused, charged", f"{clients}, {refused}, {charged}")
    report.check(settled, f"{name}: calls did not end", f"{gateway.metric('tollgate_answer_bytes')} bytes are held")
    asked = vendor.large()
    report.check(charged == asked, f"{name}: work was not charged", f"{charged} of {asked}")
    report.check(charged + refused == clients, f"{name}: calls were lost", f"{charged} + {refused} of {clients}")
    held = [account.settled(20)["held_nano"] for account in unread]
    report.check(not any(held), f"{name}: money stayed held", held)


def all_settled(gateway, vendor, clients):
    """Whether each call was refused, or given up and charged, in time."""
    end = time.monotonic() + GONE_SECONDS
    while time.monotonic() < end:
        time.sleep(0.5)
        over = gateway.said().count(b"client_gone=true")
        refused = gateway.metric("tollgate_shed_total")
        if vendor.large() <= over and over + refused >= clients and not gateway.metric("tollgate_answer_bytes"):
            return True
    return False


def tell(report, name, gateway, memory, times, answers):
    (before, most), (begun, ended) = memory, times
    now, peak = gateway.memory()
    told = ", ".join(f"{one / MIB:.1f}" for one in (before, peak, now))
    report.figure(f"{name}: resident MiB before, at most, after", told)
    report.check(gateway.is_alive(), f"{name}: the gateway ended", gateway.said()[-2_000:])
    report.check(peak - before <= most, f"{name}: too much memory", f"{(peak - before) / MIB:.0f} MiB more")
    report.figure(f"{name}: seconds until all were given up", ended - begun)
    calm = [ms for at, ms, _ in answers if at < begun]
    busy = [ms for at, ms, _ in answers if begun <= at < ended]
    report.figure(f"{name}: good p99 before, meanwhile", f"{percentile(calm, 0.99):.1f}, {percentile(busy, 0.99):.1f}", "ms")
    failed = [status for _, _, status in answers if status != 200]
    report.check(busy and not failed, f"{name}: good calls failed", failed[:20])
