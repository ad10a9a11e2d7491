"""The ledger's own calls to Redis without a gateway: captured once, and then sent for other accounts and ids.

What a request costs Redis is two scripts, one that sets money aside and one that charges. The very calls are
read with MONITOR while a gateway makes them, so that nothing here can differ from them but whose they are.
"""

import re
import selectors
import socket
import time

import scale_books as books
from processes import ROOT
from scale_wire import HOST, Wire, packed

SCRIPTS = ROOT / "src" / "store" / "redis" / "scripts"
WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
# The time in an id stays; the rest is a number.
ID_HEAD = 19
# Does one after the other what a script does once: so many keys and arguments belong to each time.
TOGETHER = """
local function one(KEYS, ARGV)
%s
end
local keys, args, answers = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
for at = 0, #KEYS / keys - 1 do
  local from = at * args + 2
  answers[at + 1] = one({unpack(KEYS, at * keys + 1, at * keys + keys)}, {unpack(ARGV, from + 1, from + args)})
end
return answers
"""


class Calls:
    """The two calls of a request, to be filled in."""

    together = 1

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
        self.account, self.both = books.name(number), [split(words) for words in found]
        self.id = self.both[0][2][0]
        wanted, charge = self.both[0][2][1], self.both[1][2][1]
        # What Redis answers when all is well is of one length, so that it need not be read, but compared.
        self.answers = [packed(["held", wanted]), packed(["posted", charge, "0"])]

    def new_id(self, number):
        return self.id[:ID_HEAD].encode() + b"%04x-%012x" % (number >> 48 & 0xFFFF, number)

    def words(self, call, number, request_id):
        """The script, keys and arguments of one of them, for another account."""
        script, keys, args = call
        tag = f"{{{books.name(number)}}}"
        keys = [key.replace(f"{{{self.account}}}", tag).replace(self.id, request_id) for key in keys]
        return script, keys, [arg.replace(self.id, request_id) for arg in args]

    def of(self, number):
        """Both for an account, ready for ids."""
        ids = [self.new_id(at) for at in range(self.together)]
        return [Form(packed(self.command(call, number, ids)), ids) for call in self.both]

    def command(self, call, number, ids):
        script, keys, args = self.words(call, number, ids[0].decode())
        return ["EVALSHA", script, len(keys), *keys, *args]


class CallsTogether(Calls):
    """What no gateway does yet: the same of several requests of an account in one script."""

    def __init__(self, calls, wires, together):
        self.account, self.id, self.both, self.together = calls.account, calls.id, [], together
        self.answers = [b"*%d\r\n" % together + one * together for one in calls.answers]
        prelude, holding = ((SCRIPTS / name).read_text() for name in ("prelude.lua", "holding.lua"))
        for name, (_, keys, args) in zip(("hold.lua", "settle.lua"), calls.both):
            text = "#!lua\n" + prelude + holding + TOGETHER % (SCRIPTS / name).read_text()
            scripts = [wire("SCRIPT", "LOAD", text) for wire in wires]
            self.both.append((scripts[0], keys, args))

    def command(self, call, number, ids):
        all_keys, all_args, script = [], [], call[0]
        for request_id in ids:
            _, keys, args = self.words(call, number, request_id.decode())
            all_keys, all_args = all_keys + keys, all_args + args
        return ["EVALSHA", script, len(all_keys), *all_keys, len(call[1]), len(call[2]), *all_args]


def split(words):
    """Of an EVALSHA: the script, its keys, its arguments."""
    count = int(words[2])
    return words[1], words[3 : 3 + count], words[3 + count :]


class Form:
    """A command with places for ids."""

    def __init__(self, command, ids):
        self.parts = re.split(b"(" + b"|".join(ids) + b")", command)
        self.places = [(at, ids.index(self.parts[at])) for at in range(1, len(self.parts), 2)]

    def filled(self, ids):
        parts = self.parts.copy()
        for at, which in self.places:
            parts[at] = ids[which]
        return b"".join(parts)


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
        forms = [[calls.of(number) for number in accounts] for _, accounts in shards]
        self.lines = [
            Line(place, port, forms[place], depth)
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
        line.batch, together = [], self.calls.together
        for _ in range(line.depth // together):
            first = Driver.serial = Driver.serial + together
            ids = [self.calls.new_id(first + at) for at in range(together)]
            line.batch.append((line.accounts[first // together % len(line.accounts)], ids))
        self.send(line, False)

    def send(self, line, settling):
        line.settling, line.said = settling, b""
        line.expected = self.calls.answers[settling] * len(line.batch)
        line.socket.sendall(b"".join([forms[settling].filled(ids) for forms, ids in line.batch]))
