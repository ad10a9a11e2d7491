"""The ledger's own calls to Redis without a gateway: captured once, and then sent for other accounts and ids.

What a request costs Redis is two scripts, one that sets money aside and one that charges. The very calls are
read with MONITOR while a gateway makes them, so that nothing here can differ from them but whose they are.
"""

import re
import selectors
import socket
import time

import scale_books as books
from scale_wire import HOST, Wire, packed

WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
# The time in an id stays; the rest is a number.
ID_HEAD = 19


class Calls:
    """The two calls of a request, to be filled in."""

    def __init__(self, gateway, wire, number):
        """As a gateway makes them for an account, to the server that this wire leads to."""
        monitor, found = Wire(wire.port), []
        monitor("MONITOR")
        gateway.ask(books.key(number))
        while len(found) < 2:
            told = monitor.reply()
            words = [word.replace('\\"', '"').replace("\\\\", "\\") for word in WORD.findall(told)]
            if words[0] == "EVALSHA" and "[0 lua]" not in told and any(":hold:" in word for word in words):
                found.append(words)
        monitor.close()
        self.hold, self.settle = found
        self.account = books.name(number)
        self.id = self.hold[3 + int(self.hold[2])]
        self.head = self.id[:ID_HEAD].encode()
        wanted, charge = self.after_keys(self.hold)[1], self.after_keys(self.settle)[1]
        # What Redis answers when all is well is of one length, so that it need not be read, but compared.
        self.answers = [answer("held", wanted), answer("posted", charge, "0")]

    @staticmethod
    def after_keys(words):
        return words[3 + int(words[2]) :]

    def of(self, number):
        """Both calls for an account, each in pieces between which the id of a request belongs."""
        name = books.name(number)
        both = []
        for words in (self.hold, self.settle):
            mine = [word.replace(f"{{{self.account}}}", f"{{{name}}}") for word in words]
            both.append(packed(mine).split(self.id.encode()))
        return both


def answer(*words):
    return packed(words)


class Line:
    """A connection that has a batch on its way: holds first, and then what ends them."""

    def __init__(self, shard, port, accounts, depth):
        self.shard, self.accounts, self.depth = shard, accounts, depth
        self.socket = socket.create_connection((HOST, port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.batch, self.settling, self.expected, self.said = [], False, b"", b""


class Driver:
    """Keeps some connections to each server busy. `shards` are pairs of a port and the accounts there."""

    serial = 0

    def __init__(self, calls, shards, connections, depth):
        self.calls, self.done = calls, [0] * len(shards)
        self.pieces = [[calls.of(number) for number in accounts] for _, accounts in shards]
        self.lines = [
            Line(place, port, self.pieces[place], depth)
            for place, (port, _) in enumerate(shards)
            for _ in range(connections)
        ]

    def run(self, seconds):
        """Requests that each server took in so many seconds; whatever was begun is ended."""
        selector, end = selectors.DefaultSelector(), time.monotonic() + seconds
        for line in self.lines:
            selector.register(line.socket, selectors.EVENT_READ, line)
            self.begin(line)
        open_lines = len(self.lines)
        while open_lines:
            for event, _ in selector.select(10):
                line = event.data
                line.said += line.socket.recv(1 << 18)
                if len(line.said) < len(line.expected):
                    continue
                if line.said != line.expected:
                    raise ValueError(f"Redis did not answer as it should: {line.said[:300]}")
                if not line.settling:
                    self.send(line, True)
                    continue
                self.done[line.shard] += line.depth
                if time.monotonic() < end:
                    self.begin(line)
                else:
                    selector.unregister(line.socket)
                    line.socket.close()
                    open_lines -= 1
        selector.close()
        return self.done

    def begin(self, line):
        """The next batch, of the accounts whose turn it is."""
        line.batch = []
        for _ in range(line.depth):
            Driver.serial += 1
            n = Driver.serial
            number = self.calls.head + b"%04x-%012x" % (n >> 48 & 0xFFFF, n)
            line.batch.append((line.accounts[n % len(line.accounts)], number))
        self.send(line, False)

    def send(self, line, settling):
        line.settling, line.said = settling, b""
        line.expected = self.calls.answers[settling] * line.depth
        line.socket.sendall(b"".join([number.join(pieces[settling]) for pieces, number in line.batch]))
