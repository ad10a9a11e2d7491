"""Clients of the benches for what wrk cannot do: many slow streams, large bodies, the time to a first chunk."""

import errno
import selectors
import socket
import sys
import time

from variants import NUMBERS, PLACE

# Addresses of clients: a gateway lets no more than 1,024 connections of one in.
SOURCES = 20
# So many streams wait for their first word at a time.
OPENING = 100
SILENCE_S = 60


def told_length(said):
    """How long an answer is of which the head came, head and all; 0 if it comes in chunks."""
    head = bytes(said.partition(b"\r\n\r\n")[0])
    told = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return len(head) + 4 + int(told[0].partition(b":")[2]) if told else 0


def is_whole(said):
    """Whether an answer is there to its end."""
    whole = b"\r\n\r\n" in said and told_length(said)
    return len(said) >= whole if whole else said.endswith(b"\r\n0\r\n\r\n")


# --- slow streams ---------------------------------------------------------------------------------


class Stream:
    """A connection on which one stream comes."""

    def __init__(self, number, port, request, selector, line=None):
        self.request, self.said, self.is_open, self.end = request, b"", False, b""
        if line:
            self.socket = line
            self.socket.setblocking(False)
            selector.register(self.socket, selectors.EVENT_WRITE, self)
            return
        self.socket = socket.socket()
        self.socket.bind((f"127.0.1.{1 + number % SOURCES}", 0))
        self.socket.setblocking(False)
        if self.socket.connect_ex(("127.0.0.1", port)) not in (0, errno.EINPROGRESS):
            sys.exit("failed: a connection could not be made")
        selector.register(self.socket, selectors.EVENT_WRITE, self)


class Crowd:
    """So many streams, driven by one loop; `request` makes the bytes of another request. They come on
    the `lines`, connections that are there already, or on new ones."""

    def __init__(self, port, request, count, lines=()):
        self.port, self.request, self.count, self.lines = port, request, count, list(lines)
        self.selector = selectors.DefaultSelector()
        self.made = self.opened = self.ended = 0

    def tick(self):
        for key, _ in self.selector.select(0.05):
            one = key.data
            if one.request:
                one.socket.send(one.request)
                one.request = None
                self.selector.modify(one.socket, selectors.EVENT_READ, one)
            else:
                self.read(one)

    def read(self, one):
        piece = one.socket.recv(1 << 16)
        one.end = (one.end + piece)[-64:]
        if not one.is_open:
            one.said += piece
            if b"\r\n\r\n" in one.said and not one.said.startswith(b"HTTP/1.1 200"):
                sys.exit(f"failed: a stream was refused: {one.said[:400]}")
            if b"\n\n" in one.said:
                one.is_open, one.said = True, b""
                self.opened += 1
        # What a chunked body ends with; the connection could be used again, but is not.
        if one.end.endswith(b"0\r\n\r\n") or not piece:
            if not one.is_open or not (b"[DONE]" in one.end or b"message_stop" in one.end):
                sys.exit(f"failed: a stream broke off: {one.end}")
            self.ended += 1
            self.selector.unregister(one.socket)
            one.socket.close()

    def open(self):
        while self.opened < self.count:
            if self.ended:
                sys.exit("failed: streams ended before all were open; this machine is too slow for so many")
            while self.made < self.count and self.made - self.opened < OPENING:
                line = self.lines.pop() if self.lines else None
                Stream(self.made, self.port, self.request(), self.selector, line)
                self.made += 1
            self.tick()

    def watch(self, look):
        """What is seen every second until the first one ends."""
        seen, due = [], 0.0
        while not self.ended:
            self.tick()
            if time.monotonic() > due:
                due = time.monotonic() + 1
                seen.append(look())
        return seen

    def finish(self):
        end = time.monotonic() + SILENCE_S
        while self.ended < self.count:
            self.tick()
            if time.monotonic() > end:
                sys.exit(f"failed: only {self.ended} of {self.count} streams ended")
        self.selector.close()


# --- one request after another --------------------------------------------------------------------


def exchange(line, request, whose):
    """One request on a connection: the whole answer, and the seconds until its head and first chunk were here."""
    began, said, first, is_stream = time.perf_counter(), bytearray(), None, False
    line.sendall(request)
    # A stream is long: for its end its last bytes are looked at only.
    while not (said.endswith(b"\r\n0\r\n\r\n") if is_stream else is_whole(said)):
        piece = line.recv(1 << 16)
        if not piece:
            sys.exit(f"failed: {whose}: an answer broke off: {bytes(said[-400:])}")
        said += piece
        if first is None and b"\n\n" in said:
            first, is_stream = time.perf_counter() - began, not told_length(said)
    if not said.startswith(b"HTTP/1.1 200"):
        sys.exit(f"failed: {whose}: a request was refused: {bytes(said[:2000])}")
    return said, first


def first_chunks(variant, kind, seconds):
    """The time to the first chunk, in us, of one stream after another on one connection."""
    seen, end = [], time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", variant.port), timeout=30) as line:
        while time.monotonic() < end:
            seen.append(exchange(line, variant.request(kind, True), variant.name)[1] * 1e6)
    variant.completed += len(seen)
    return seen


# --- large bodies ---------------------------------------------------------------------------------


class Line:
    """A connection that sends one large body after another, of which only the number is written anew."""

    def __init__(self, port, request):
        before, place, after = request.partition(PLACE.encode())
        self.before, self.after, self.place = before, memoryview(after), place
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setblocking(False)
        self.begin()

    def begin(self):
        number = f"{next(NUMBERS):0{len(self.place)}}".encode()
        self.left, self.said, self.began = [memoryview(self.before + number), self.after], b"", time.perf_counter()

    def write(self):
        """Sends what fits; whether all is sent."""
        sent = self.socket.sendmsg(self.left)
        while self.left and sent >= len(self.left[0]):
            sent -= len(self.left.pop(0))
        if self.left:
            self.left[0] = self.left[0][sent:]
        return not self.left

    def read(self):
        """Takes what has come of the answer; whether it is there."""
        piece = self.socket.recv(1 << 16)
        self.said += piece
        if not piece or not b"HTTP/1.1 200".startswith(self.said[:12]):
            sys.exit(f"failed: a large body was refused: {self.said[:400]}")
        return is_whole(self.said)


def large_bodies(variant, kind, size, connections, seconds):
    """As many as can be answered, told as wrk tells it; what is under way at the end is waited for, too."""
    request, selector = variant.request(kind, False, size, number=PLACE), selectors.DefaultSelector()
    began, times, ended, total = time.perf_counter(), [], 0.0, 0
    for _ in range(connections):
        line = Line(variant.port, request)
        selector.register(line.socket, selectors.EVENT_WRITE, line)
    open_lines, last = connections, began + 30 + seconds
    while open_lines and time.perf_counter() < last:
        for key, events in selector.select(1):
            line = key.data
            if events & selectors.EVENT_WRITE:
                if line.write():
                    selector.modify(line.socket, selectors.EVENT_READ, line)
                continue
            if not line.read():
                continue
            ended = time.perf_counter()
            times.append((ended - line.began) * 1e6)
            total += len(line.said)
            if ended - began < seconds:
                line.begin()
                selector.modify(line.socket, selectors.EVENT_WRITE, line)
            else:
                selector.unregister(line.socket)
                line.socket.close()
                open_lines -= 1
    if open_lines:
        sys.exit(f"failed: {variant.name} left large bodies unanswered")
    times.sort()
    variant.completed += len(times)
    return {
        "requests": len(times),
        "bytes": total,
        "duration_us": (ended - began) * 1e6,
        "p50_us": times[len(times) // 2],
        "p99_us": times[len(times) * 99 // 100],
    }
