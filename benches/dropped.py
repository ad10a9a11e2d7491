"""HTTP/1.1 and HTTP/2 as `count_bytes.py` speaks them: bodies are dropped, answers are all alike.

A protocol has `missing`, the bytes of a body that come next and need not be looked at; `drop` is
told that so many of them have come, and `take` gets bytes. Both return whether the connection goes
on.
"""

import re

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.I)
BODY = (
    b'{"id":"chatcmpl-count","object":"chat.completion","created":1795219200,"model":"count",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"Read.","refusal":null},'
    b'"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
)
TYPE, SIZE = b"application/json", b"%d" % len(BODY)
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %b\r\n\r\n%b" % (TYPE, SIZE, BODY)
)


class Http1:
    """One request after another, with bodies of known length."""

    def __init__(self, send):
        self.send, self.head, self.missing = send, b"", 0

    def drop(self, count):
        self.missing -= count
        if not self.missing:
            self.send(ANSWER)
        return True

    def take(self, piece):
        if self.missing:
            # The client waits for its answer, so nothing comes behind a body.
            return len(piece) <= self.missing and self.drop(len(piece))
        self.head += piece
        head, end, rest = self.head.partition(b"\r\n\r\n")
        if not end:
            return True
        length = LENGTH.search(head + b"\r\n")
        if not length:
            return False
        self.head, self.missing = b"", int(length[1])
        return self.drop(len(rest))


# Types of frames, and flags.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD, FRAME_MAX = 9, 16_384
STREAMS_MAX = 100
# What may be under way: so much that no sender waits for leave while this reads.
WINDOW, WINDOW_OF_ALL, WINDOW_AT_FIRST = 1 << 20, 1 << 24, 65_535


def frame(kind, flags, stream, payload=b""):
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def window_update(stream, count):
    return frame(WINDOW_UPDATE, 0, stream, count.to_bytes(4, "big"))


def setting(name, value):
    return name.to_bytes(2, "big") + value.to_bytes(4, "big")


def literal(name, value):
    """A field whose name is in the static table, from the 15th on; it enters no other table."""
    return bytes([0x0F, name - 15, len(value)]) + value


# Status 200 is the eighth of the static table, the type has the 31st name, the length the 28th.
FIELDS = b"\x88" + literal(31, TYPE) + literal(28, SIZE)


class Http2:
    """Many requests at a time. Fields are not read: each request gets the same answer."""

    def __init__(self, send):
        self.send, self.missing = send, 0
        # What was read of a frame that is not whole yet, how long that has to be, and its head.
        self.part, self.wanted, self.head = bytearray(), len(PREFACE), PREFACE
        # What came since the last leave to send on, of all streams and of each.
        self.came, self.came_of = 0, {}
        opening = setting(3, STREAMS_MAX) + setting(4, WINDOW)
        send(frame(SETTINGS, 0, 0, opening) + window_update(0, WINDOW_OF_ALL - WINDOW_AT_FIRST))

    def take(self, piece):
        at = 0
        while at < len(piece):
            if self.missing:
                count = min(self.missing, len(piece) - at)
                goes_on = self.drop(count)
            else:
                count = min(self.wanted - len(self.part), len(piece) - at)
                self.part += piece[at : at + count]
                goes_on = len(self.part) < self.wanted or self.part_is_whole()
            if not goes_on:
                return False
            at += count
        return True

    def drop(self, count):
        self.missing -= count
        if not self.missing:
            self.end_frame()
        return True

    def part_is_whole(self):
        """What was waited for is there: the preface, the head of a frame, or what it frames."""
        part, self.part = bytes(self.part), bytearray()
        if self.head is PREFACE:
            self.head, self.wanted = None, FRAME_HEAD
            return part == PREFACE
        if self.head:
            self.end_frame(part)
            return True
        length, self.head = int.from_bytes(part[:3], "big"), part
        if length > FRAME_MAX:
            return False
        if part[3] == DATA and length:
            self.missing = length
        elif length:
            self.wanted = length
        else:
            self.end_frame()
        return True

    def end_frame(self, payload=b""):
        length, kind, flags = int.from_bytes(self.head[:3], "big"), self.head[3], self.head[4]
        stream = int.from_bytes(self.head[5:], "big")
        self.head, self.wanted = None, FRAME_HEAD
        if kind == DATA:
            self.count(stream, length)
        elif kind == RST_STREAM:
            self.came_of.pop(stream, None)
        elif kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self.came_of.pop(stream, None)
            fields = frame(HEADERS, END_HEADERS, stream, FIELDS)
            self.send(fields + frame(DATA, END_STREAM, stream, BODY))

    def count(self, stream, length):
        """Gives leave to send as much again, whenever half of a window was used."""
        self.came += length
        self.came_of[stream] = self.came_of.get(stream, 0) + length
        if self.came >= WINDOW_OF_ALL // 2:
            self.send(window_update(0, self.came))
            self.came = 0
        if self.came_of[stream] >= WINDOW // 2:
            self.send(window_update(stream, self.came_of[stream]))
            self.came_of[stream] = 0
