"""A line between the gateway and a vendor that remembers what went over it, in both directions.

Neither simulator tells how a request in the messages format looked: the project's own keeps no
bodies, and aimock's journal has its own reading of them and hides the keys.
"""

import contextlib
import json
import socket
import threading
from types import SimpleNamespace
from urllib.parse import urlsplit


class Wiretap:
    """Passes bytes to the address behind it, and keeps them."""

    def __init__(self, address):
        parts = urlsplit(address)
        self.behind, self.lines, self.cuts = (parts.hostname, parts.port), [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}{parts.path}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self):
        # Without the shutdown, a thread that waits in accept would keep the port open.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def cut(self, after, times=1):
        """The next lines are cut when so many bytes have come back over them; the rest is lost."""
        self.cuts = [after] * times

    def forget(self):
        """What was said so far is no longer told."""
        for line in self.lines:
            line.told = len(messages(line.there))

    def requests(self):
        """What the vendor was asked."""
        return [request for line in self.lines for request in messages(line.there)[line.told :]]

    def request(self):
        """The only thing that the vendor was asked."""
        (request,) = self.requests()
        return request

    def reply(self):
        """The only thing that the vendor answered."""
        (reply,) = [reply for line in self.lines for reply in messages(line.back)[line.told :]]
        return reply

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                caller = self.listener.accept()[0]
                try:
                    cut = self.cuts.pop() if self.cuts else None
                    line = Line(caller, socket.create_connection(self.behind), cut)
                except OSError:
                    caller.close()
                    continue
                self.lines.append(line)
                line.open()


class Line:
    """One connection; of its exchanges, `told` are over and forgotten. It is cut when `cut` bytes have come back."""

    def __init__(self, gateway, vendor, cut=None):
        self.gateway, self.vendor, self.cut = gateway, vendor, cut
        self.there, self.back, self.told = bytearray(), bytearray(), 0

    def open(self):
        back = (self.vendor, self.gateway, self.back, self.cut)
        for ends in (self.gateway, self.vendor, self.there), back:
            threading.Thread(target=pass_on, args=ends, daemon=True).start()


def pass_on(source, target, kept, cut=None):
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            kept += piece
            if cut is not None and len(kept) >= cut:
                # What the other end had yet to get it never does.
                target.sendall(piece[: len(piece) - (len(kept) - cut)])
                break
            target.sendall(piece)
    # However one end was closed, the other one is told.
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def messages(data):
    """The HTTP messages in these bytes; one whose body is not whole yet is left out."""
    data, found = bytes(data), []
    while b"\r\n\r\n" in data:
        head, data = data.split(b"\r\n\r\n", 1)
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body, data = dechunked(data)
        else:
            length = int(headers.get("content-length", 0))
            body, data = (data[:length] if len(data) >= length else None), data[length:]
        if body is None:
            break
        found.append(Message(first=first, headers=headers, body=body))
    return found


class Message(SimpleNamespace):
    """A request or a reply; the names of its headers are in lower case."""

    @property
    def json(self):
        return json.loads(self.body)


def dechunked(data):
    """A body out of its chunks, and what follows it; no body as long as the last chunk is missing."""
    body = b""
    while b"\r\n" in data:
        size, data = data.split(b"\r\n", 1)
        length = int(size.split(b";")[0], 16)
        if length == 0:
            return body, data.partition(b"\r\n")[2]
        if len(data) < length + 2:
            break
        body, data = body + data[:length], data[length + 2 :]
    return None, b""
