"""Fires shots over bare sockets, paced, and reads whatever comes back."""

import contextlib
import os
import queue
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass

from attacks.shot import END, RESET

# Connections at a time.
WORKERS = 24
# What is larger goes one at a time: that one may be as large as is allowed, and so use as much memory, is no fault.
LARGE_BYTES = 1 << 20
# How much later than the gateway they get their turn.
LATER = 5
HEAD_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class Answer:
    status: int
    headers: list
    body: bytes
    whole: bool

    def header(self, name):
        return next((value for known, value in self.headers if known == name), None)


class Line:
    """One connection, seen as bytes."""

    def __init__(self, address, source):
        self.socket = socket.socket()
        # Each from an address of its own, or the ports of one would all be waiting for their end.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind((source, 0))
        self.socket.settimeout(3)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.bytes, self.ended = b"", False

    def send(self, pieces, until):
        """Sends as far as the peer takes it: one that has refused need not."""
        for piece in pieces:
            try:
                if piece is END:
                    self.socket.shutdown(socket.SHUT_WR)
                elif piece is RESET:
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.socket.close()
                    self.ended = True
                    return
                elif isinstance(piece, float):
                    time.sleep(piece)
                else:
                    self.socket.settimeout(max(0.1, until - time.monotonic()))
                    self.socket.sendall(piece)
            except OSError:
                return

    def more(self, until):
        """Reads what is there; False at the end, or when the time is over."""
        left = until - time.monotonic()
        if self.ended or left <= 0:
            return False
        try:
            self.socket.settimeout(left)
            piece = self.socket.recv(1 << 16)
        except (TimeoutError, ValueError):
            return False
        except OSError:
            piece = b""
        self.ended = not piece
        self.bytes += piece
        return bool(piece)

    def answer(self, until, no_body=False):
        """The next answer that is no 100; None if none came."""
        while True:
            head = self._head(until)
            if head is None:
                return None
            status, headers = head
            if not 100 <= status < 200 or status == 101:
                break
        named = dict(headers)
        if no_body or status in (101, 204, 304):
            return Answer(status, headers, b"", True)
        if "chunked" in named.get("transfer-encoding", ""):
            body, whole = self._chunks(until)
        else:
            length = int(named.get("content-length", "0"))
            while len(self.bytes) < length and self.more(until):
                pass
            body, whole = self.bytes[:length], len(self.bytes) >= length
            self.bytes = self.bytes[length:]
        return Answer(status, headers, body, whole)

    def _head(self, until):
        while (end := self.bytes.find(b"\r\n\r\n")) < 0:
            if len(self.bytes) > HEAD_BYTES_MAX or not self.more(until):
                return None
        first, *lines = self.bytes[:end].decode("latin-1").split("\r\n")
        self.bytes = self.bytes[end + 4 :]
        words = first.split(" ")
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            return None
        pairs = (line.partition(":") for line in lines)
        return int(words[1]), [(name.strip().lower(), value.strip()) for name, _, value in pairs]

    def _chunks(self, until):
        body = []
        while True:
            while (end := self.bytes.find(b"\r\n")) < 0:
                if not self.more(until):
                    return b"".join(body), False
            try:
                size = int(self.bytes[:end].split(b";")[0], 16)
            except ValueError:
                return b"".join(body), False
            while len(self.bytes) < end + 4 + size:
                if not self.more(until):
                    return b"".join(body), False
            body.append(self.bytes[end + 2 : end + 2 + size])
            self.bytes = self.bytes[end + 4 + size :]
            if size == 0:
                return b"".join(body), True

    def is_quiet(self):
        """Whether it can be used for another request."""
        if self.ended or self.bytes:
            return False
        readable, _, _ = select.select([self.socket], [], [], 0)
        return not readable

    def close(self):
        self.socket.close()


class Battery:
    """Workers with a connection each. `fire` returns when all shots of a round have their answers."""

    def __init__(self, address, rate):
        self.address, self.rate = address, rate
        self.shots = queue.SimpleQueue()
        self.fired, self.serial = 0, 0
        self.lock, self.large = threading.Lock(), threading.Lock()
        self.failures = []
        self.workers = [threading.Thread(target=self._work, daemon=True) for _ in range(WORKERS)]
        for worker in self.workers:
            worker.start()

    def fire(self, shots):
        """Fires them at the rate, evenly; the seconds it took."""
        begun = time.monotonic()
        self.left = threading.Semaphore(0)
        for number, shot in enumerate(shots):
            ahead = begun + number / self.rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            self.shots.put(shot)
        for _ in shots:
            if not self.left.acquire(timeout=60):
                raise TimeoutError("a shot has hung")
        self.fired += len(shots)
        return time.monotonic() - begun

    def stop(self):
        for _ in self.workers:
            self.shots.put(None)
        for worker in self.workers:
            worker.join(10)

    def _source(self):
        with self.lock:
            self.serial += 1
            return f"127.0.{1 + self.serial // 250 % 250}.{1 + self.serial % 250}"

    def _work(self):
        # Those who attack come from elsewhere, and bring their own processors.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LATER)
        line = None
        while (shot := self.shots.get()) is not None:
            begun = time.monotonic()
            is_large = sum(len(piece) for piece in shot.pieces if isinstance(piece, bytes)) > LARGE_BYTES
            try:
                with self.large if is_large else contextlib.nullcontext():
                    line = self._one(shot, line)
            except Exception as error:  # noqa: BLE001, a worker must not die in silence
                self.failures.append(f"{shot.family}: {error!r}")
                line = None
            finally:
                shot.seconds = time.monotonic() - begun
                self.left.release()
        if line:
            line.close()

    def _one(self, shot, line):
        until = time.monotonic() + shot.patience
        if shot.raw:
            own = Line(self.address, self._source())
            try:
                own.send(shot.pieces, until)
                self._listen(shot, own, until)
            finally:
                own.close()
            return line
        if line is None or not line.is_quiet():
            if line:
                line.close()
            line = Line(self.address, self._source())
        line.send(shot.pieces, until)
        self._listen(shot, line, until)
        last = shot.answers[-1] if shot.answers else None
        if last and last.whole and last.header("connection") != "close":
            return line
        line.close()
        return None

    @staticmethod
    def _listen(shot, line, until):
        first = shot.pieces[0]
        is_head = isinstance(first, bytes) and first.startswith(b"HEAD ")
        while answer := line.answer(until, no_body=is_head):
            shot.answers.append(answer)
            if not shot.linger:
                break
            until = time.monotonic() + shot.linger
        shot.closed = line.ended
