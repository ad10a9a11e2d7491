"""Vendors that the simulator is too well-behaved for: what they do is a segment of their address."""

import socket
import socketserver
import threading
import time

HOST = "127.0.0.1"
# Nothing here goes on longer, whoever forgets to hang up.
LIFE_S = 60
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":"more "},"finish_reason":null}]}\n\n'
)
REPLY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Four."},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,'
    b'"completion_tokens":2,"total_tokens":9}}'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\nx-request-id: odd\r\n"
EVENTS, JSON = HEAD % b"text/event-stream", HEAD % b"application/json"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def endless_events(send):
    send(EVENTS + CHUNKED)
    while True:
        send(chunk(EVENT * 20))


def endless_line(send):
    send(EVENTS + CHUNKED + chunk(b"data: "))
    while True:
        send(chunk(b"x" * 4096))


def endless_body(send):
    send(JSON + CHUNKED + chunk(b'{"id":"'))
    while True:
        send(chunk(b"x" * 4096))


def endless_head(send):
    send(b"HTTP/1.1 200 OK\r\n")
    while True:
        send(b"x-more: %s\r\n" % (b"y" * 1000))


def endless_interim(send):
    while True:
        send(b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n")
        time.sleep(0.001)


def drip_head(send):
    for byte in JSON + b"content-length: 2\r\n\r\n{}":
        send(bytes([byte]))
        time.sleep(0.2)


def drip_body(send):
    send(JSON + b"content-length: %d\r\n\r\n" % len(REPLY))
    for place in range(0, len(REPLY), 2):
        send(REPLY[place : place + 2])
        time.sleep(0.005)


def two_lengths(send):
    send(JSON + b"content-length: %d\r\ncontent-length: 3\r\n\r\n" % len(REPLY) + REPLY)


def length_and_chunks(send):
    send(JSON + b"content-length: 3\r\n" + CHUNKED + chunk(REPLY) + b"0\r\n\r\n")


def bad_chunk(send):
    send(JSON + CHUNKED + b"zz\r\n" + REPLY + b"\r\n0\r\n\r\n")


def huge_chunk(send):
    send(JSON + CHUNKED + b"fffffffffffffffff\r\n" + REPLY)


def negative_length(send):
    send(JSON + b"content-length: -5\r\n\r\n" + REPLY)


def no_length(send):
    send(JSON + b"connection: close\r\n\r\n" + REPLY)


def not_http(send):
    send(b"220 mail.example ESMTP ready\r\n")


def silent(_):
    time.sleep(LIFE_S)


def two_answers(send):
    """A second answer that nobody asked for; the next caller must not get it."""
    one = JSON + b"content-length: %d\r\n\r\n" % len(REPLY) + REPLY
    send(one + one.replace(b'"completion_tokens":2', b'"completion_tokens":9'))


MODES = {mode.__name__.replace("_", "-"): mode for mode in (
    endless_events, endless_line, endless_body, endless_head, endless_interim, drip_head, drip_body,
    two_lengths, length_and_chunks, bad_chunk, huge_chunk, negative_length, no_length, not_http, silent,
    two_answers,
)}  # fmt: skip


class Conversation(socketserver.StreamRequestHandler):
    """One connection; as many requests as come."""

    def handle(self):
        self.request.settimeout(LIFE_S)
        end = time.monotonic() + LIFE_S

        def send(data):
            if time.monotonic() > end or self.server.over.is_set():
                raise OSError("enough")
            self.request.sendall(data)
            self.server.sent += len(data)

        try:
            while path := self.read():
                self.server.requests += 1
                mode = MODES[path.split(b"/")[1].decode()]
                mode(send)
                if mode not in (drip_body, two_answers, length_and_chunks, two_lengths):
                    return
        except OSError:
            return

    def read(self):
        """Takes one request; its path."""
        first = self.rfile.readline()
        length = 0
        while line := self.rfile.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        self.rfile.read(length)
        return first.split(b" ")[1] if first else b""


class OddVendor(socketserver.ThreadingTCPServer):
    """Listens on a port of its own until it is told to stop."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__((HOST, 0), Conversation)
        self.over, self.requests, self.sent = threading.Event(), 0, 0
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def base_url(self, mode):
        return f"http://{HOST}:{self.server_address[1]}/{mode}/v1"

    def get_request(self):
        line, address = super().get_request()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line, address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.shutdown()
        self.server_close()
