"""Calls of every priced kind: what is sent, when an answer is whole, and what it must have cost.

Prices are written down here once more, in nano-USD a unit, so that the machines don't believe the
gateway's own list.
"""

import json
import re
import socket
import time

# Input and output per token; characters; what an image costs.
TOKENS = {
    "text-embedding-3-small": (20, 0),
    "lmb-5-nano": (50, 400),
    "lmb-5.5": (5_000, 30_000),
    "lma-haiku-4-5": (1_000, 5_000),
    "lmc-3.1-flash-lite": (250, 1_500),
    "lmd-4.3": (1_250, 2_500),
    "lmb-image-1-mini": (2_000, 8_000),
    "orgK/famK-4": (70, 140),
}
SPEECH = {"tts-1": 15_000, "tts-1-hd": 30_000}
# Dollars times 10^10 are a tenth of a nano-USD.
TICKS_PER_NANO = 10


def price(model, usage):
    """Exact nano-USD of a line of the journal."""
    if "characters" in usage:
        return SPEECH[model] * usage["characters"]
    if "cost_in_usd_ticks" in usage:
        return -(-usage["cost_in_usd_ticks"] // TICKS_PER_NANO)
    asked, answered = TOKENS[model]
    return asked * usage["prompt_tokens"] + answered * usage.get("completion_tokens", 0)


def price_of_bill(model, billed):
    """Exact nano-USD of what the simulator billed."""
    if billed.get("characters"):
        return SPEECH[model] * billed["characters"]
    if billed.get("ticks"):
        return -(-billed["ticks"] // TICKS_PER_NANO)
    asked, answered = TOKENS[model]
    return asked * billed["prompt"] + answered * (billed["total"] - billed["prompt"])


def numbers(name):
    return re.compile(rb'"%s":\s*(\d+)' % name.encode())


PROMPT, COMPLETION, TOTAL = map(numbers, ("prompt_tokens", "completion_tokens", "total_tokens"))
INPUT, OUTPUT = map(numbers, ("input_tokens", "output_tokens"))


def told(pattern, usage):
    """A number of a usage; 0 where it has none."""
    found = pattern.search(usage)
    return int(found[1]) if found else 0


class Kind:
    """A kind of call. `size` varies its text, and with it what it costs."""

    def __init__(self, name, path, model, fields, wants=(200,), end=None, usage="chat"):
        self.name, self.path, self.model, self.fields = name, path, model, fields
        self.wants, self.end, self.usage = wants, end, usage

    def body(self, size):
        """The body of a call whose text has so many words."""
        return json.dumps({"model": self.model} | self.fields("word " * size + "?")).encode()

    def cost(self, size, body):
        """What the journal must say of a call that was answered by this body; -1 if the body doesn't tell."""
        if self.usage == "untold":
            return -1
        if self.usage == "characters":
            return SPEECH[self.model] * len("word " * size + "?")
        if self.usage == "bill":
            return 20_000_000
        asked, answered = TOKENS[self.model]
        # The last one of a stream counts.
        usage = body[max(body.rfind(b'"usage":{'), 0) :]
        if self.usage == "input":
            return asked * told(INPUT, usage) + answered * told(OUTPUT, usage)
        prompt = told(PROMPT, usage)
        return asked * prompt + answered * max(told(COMPLETION, usage), told(TOTAL, usage) - prompt)

    def is_whole(self, body):
        """Whether a stream says that it ended well."""
        return self.end is None or (self.end in body and b'"error":{' not in body)


def chat(text):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 20}


def streamed(text):
    return chat(text) | {"stream": True, "stream_options": {"include_usage": True}}


def unbounded(text):
    return {"messages": [{"role": "user", "content": text}], "stream": True}


def response(text):
    return {"input": text, "max_output_tokens": 20}


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
DONE, STOP, COMPLETED = b"data: [DONE]", b'"type":"message_stop"', b'"type":"response.completed"'
IMAGES, SPOKEN, EMBEDDED = "/v1/images/generations", "/v1/audio/speech", "/v1/embeddings"

KINDS = {
    kind.name: kind
    for kind in (
        Kind("embedding", EMBEDDED, "text-embedding-3-small", lambda t: {"input": t, "dimensions": 8}),
        Kind("speech", SPOKEN, "tts-1", lambda t: {"input": t, "voice": "alloy"}, usage="characters"),
        Kind("chat", CHAT, "lmb-5-nano", chat),
        Kind("chat stream", CHAT, "lmb-5-nano", streamed, end=DONE),
        Kind("messages", MESSAGES, "lma-haiku-4-5", chat, usage="input"),
        Kind(
            "messages stream",
            MESSAGES,
            "lma-haiku-4-5",
            lambda t: chat(t) | {"stream": True},
            end=STOP,
            usage="input",
        ),
        Kind("translated", CHAT, "lma-haiku-4-5", chat),
        Kind("translated stream", CHAT, "lma-haiku-4-5", streamed, end=DONE),
        Kind("response", RESPONSES, "lmb-5.5", response, usage="input"),
        Kind(
            "response stream",
            RESPONSES,
            "lmb-5.5",
            lambda t: response(t) | {"stream": True},
            end=COMPLETED,
            usage="input",
        ),
        Kind("image", IMAGES, "lmb-image-1-mini", lambda t: {"prompt": t}, usage="input"),
        Kind("image by bill", IMAGES, "lmd-imagine-image", lambda t: {"prompt": t}, usage="bill"),
        # Without a bound, as most clients send it.
        Kind("unbounded stream", CHAT, "lmb-5-nano", unbounded, end=DONE, usage="untold"),
        # Long and dear beside small credit, and without a bound, so that more is held as it grows.
        Kind("growing stream", CHAT, "lmd-4.3", unbounded, end=DONE, usage="untold"),
        # Seconds long, with the simulator's chunk-delay in its address.
        Kind("slow stream", CHAT, "lmc-3.1-flash-lite", streamed, end=DONE),
        # What the vendor refuses, with a status in its address.
        Kind("refused by vendor", CHAT, "orgK/famK-4", chat, wants=(400,)),
    )
}


def request(kind, size, key, idempotency=None):
    """The bytes of a call."""
    body = kind.body(size)
    more = f"Idempotency-Key: {idempotency}\r\n" if idempotency else ""
    head = (
        f"POST {kind.path} HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer {key}\r\n{more}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


CODES = {
    "the call was made before and paid for; its reply is not kept": "reply_not_kept",
    "the call was made before and paid for; its reply was lost": "reply_lost",
}
# Of an error in a stream.
ERROR_CODE = re.compile(rb'"error":\{[^}]*"(?:code|type)":\s*"([a-z_]+)"[^}]*\}')
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
REQUEST_ID = re.compile(rb"\r\nx-request-id: *([^\r]+)", re.IGNORECASE)
ORIGINAL_ID = re.compile(rb"\r\nx-original-request-id: *([^\r]+)", re.IGNORECASE)


class Reply:
    """An answer as it comes in."""

    __slots__ = (
        *("raw", "head", "start", "length", "status", "id", "original", "whole", "last"),
        "at",
    )

    def __init__(self):
        self.raw, self.head, self.status, self.id, self.original = bytearray(), None, 0, None, None
        self.start, self.length, self.whole, self.last = 0, None, False, False
        # When it ended, in unix ms, if whoever reads it takes that down.
        self.at = 0

    def feed(self, data):
        """Takes what came; whether the answer is whole."""
        raw = self.raw
        raw += data
        if self.head is None:
            end = raw.find(b"\r\n\r\n")
            if end < 0:
                return False
            self._open(bytes(raw[: end + 2]), end + 4)
        if self.length is None:
            self.whole = raw.endswith(b"0\r\n\r\n") and self.dechunked() is not None
        else:
            self.whole = len(raw) - self.start >= self.length
        return self.whole

    def _open(self, head, start):
        self.head, self.start = head, start
        self.status = int(STATUS.match(head)[1])
        self.last = CLOSE.search(head) is not None
        if found := REQUEST_ID.search(head):
            self.id = found[1].decode()
        if found := ORIGINAL_ID.search(head):
            self.original = found[1].decode()
        if not CHUNKED.search(head):
            self.length = int(found[1]) if (found := LENGTH.search(head)) else 0

    def dechunked(self):
        """The body out of its chunks; none if the last one is missing."""
        raw, at, parts = self.raw, self.start, []
        while True:
            end = raw.find(b"\r\n", at)
            if end < 0:
                return None
            size = int(raw[at:end].split(b";")[0], 16)
            if size == 0:
                return b"".join(parts)
            if end + 2 + size + 2 > len(raw):
                return None
            parts.append(bytes(raw[end + 2 : end + 2 + size]))
            at = end + 2 + size + 2

    def body(self):
        """The body as far as it came."""
        if self.head is None:
            return b""
        if self.length is not None:
            return bytes(self.raw[self.start :])
        whole = self.dechunked()
        return bytes(self.raw[self.start :]) if whole is None else whole

    def code(self):
        """The error's code, of a refusal."""
        try:
            error = json.loads(self.body())["error"]
        except (ValueError, KeyError, TypeError):
            return "unreadable"
        # The native dialect of messages has no codes.
        return error.get("code") or CODES.get(error.get("message")) or error.get("type")


def one(port, kind, size, key, seconds=30, idempotency=None, host="127.0.0.1"):
    """One call on a connection of its own: the answer, whole or not, and how long it took."""
    began, reply = time.monotonic(), Reply()
    try:
        with socket.create_connection((host, port), timeout=seconds) as line:
            line.sendall(request(kind, size, key, idempotency))
            while not reply.whole:
                line.settimeout(max(began + seconds - time.monotonic(), 0.01))
                data = line.recv(65536)
                if not data or reply.feed(data):
                    break
    except OSError:
        pass
    return reply, time.monotonic() - began
