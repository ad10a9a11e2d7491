"""Redis' protocol, as far as the scale bench speaks it: pipelined commands to a server or to a cluster."""

import binascii
import socket
import sys

HOST = "127.0.0.1"
SLOTS = 16_384
# So many commands are on their way at once; more might fill the buffers of both ends.
PIPELINED = 500


def packed(words):
    """A command as the server reads it."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def slot(key):
    """Where a key lives in a cluster: by what stands in its braces, if there is anything."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    # The checksum that Redis takes has a name of its own in Python: CRC-CCITT, from 0 on.
    return binascii.crc_hqx((tag if brace and end and tag else key).encode(), 0) % SLOTS


class Wire:
    """A connection to a server."""

    def __init__(self, port):
        self.port = port
        self.socket = socket.create_connection((HOST, port), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb", 1 << 16)

    def __call__(self, *words):
        self.socket.sendall(packed(words))
        return self.reply()

    def pipe(self, commands):
        """Sends many; gives their answers in the same order."""
        answers, waiting = [], []
        for words in commands:
            waiting.append(packed(words))
            if len(waiting) == PIPELINED:
                answers += self.flush(waiting)
                waiting = []
        return answers + self.flush(waiting)

    def flush(self, waiting):
        self.socket.sendall(b"".join(waiting))
        return [self.reply() for _ in waiting]

    def reply(self):
        line = self.stream.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-" or not kind:
            sys.exit(f"failed: Redis on port {self.port}: {rest.decode() or 'it hung up'}")
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == b"*":
            return [self.reply() for _ in range(size)]
        return self.stream.read(size + 2)[:-2].decode()

    def info(self, *words):
        """What a server says of a section, or what CLUSTER INFO says, as names and values."""
        lines = (line.partition(":") for line in self(*(words if len(words) > 1 else ("INFO", *words))).splitlines())
        return {name: value for name, colon, value in lines if colon}

    def close(self):
        self.stream.close()
        self.socket.close()


class Cluster:
    """All masters of a cluster, each asked for the keys that it has."""

    def __init__(self, wires):
        self.wires = wires
        by_port = {wire.port: wire for wire in wires}
        self.at = [None] * SLOTS
        for first, last, master, *_ in wires[0]("CLUSTER", "SLOTS"):
            self.at[first : last + 1] = [by_port[master[1]]] * (last - first + 1)

    def of(self, key):
        return self.at[slot(key)]

    def pipe(self, commands):
        """As that of a server; the second word of each command is its key."""
        commands = list(commands)
        answers = [None] * len(commands)
        for wire in self.wires:
            places = [at for at, words in enumerate(commands) if self.of(words[1]) is wire]
            for at, answer in zip(places, wire.pipe(commands[at] for at in places)):
                answers[at] = answer
        return answers
