"""Many calls at once, half of them to each of two gateways, and what came of them."""

import selectors
import socket
import time

import calls
from children import HOST

CALLS = 1_000
# After this a call has hung.
WAIT_S = 60


def burst(gateways, text, spread_s=0.0, kill=None):
    """The replies to one call that is sent by many, over so many seconds; and the seconds it took.
    `kill` is a gateway that is killed, and how many seconds after the last call was sent.
    """
    lines = []
    for number in range(CALLS):
        line = socket.create_connection((HOST, gateways[number % 2].http), timeout=WAIT_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines.append(line)
    replies = [calls.Reply() for _ in lines]
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        open_lines, pause = CALLS, spread_s / CALLS
        for number, (line, reply) in enumerate(zip(lines, replies, strict=True)):
            while (ahead := began + number * pause - time.monotonic()) > 0:
                open_lines -= read(selector, ahead)
            line.sendall(text)
            line.setblocking(False)
            selector.register(line, selectors.EVENT_READ, reply)
        sent = time.monotonic()
        while open_lines and time.monotonic() - began < WAIT_S:
            left = kill[1] - (time.monotonic() - sent) if kill else 1
            if left <= 0:
                kill = kill[0].kill()
                continue
            open_lines -= read(selector, min(left, 1))
    took = time.monotonic() - began
    for line in lines:
        line.close()
    return replies, took


def read(selector, seconds):
    """Reads what comes within this time; how many answers ended."""
    ended = 0
    for event, _ in selector.select(seconds):
        try:
            data = event.fileobj.recv(65536)
        except OSError:
            data = b""
        if not data or event.data.feed(data):
            event.data.at = time.time_ns() // 1_000_000
            selector.unregister(event.fileobj)
            ended += 1
    return ended


def statuses(replies):
    """How many answers of each status there were."""
    count = {}
    for reply in replies:
        name = (
            f"{reply.status} {reply.code()}" if reply.status not in (0, 200) else f"{reply.status}"
        )
        count[name] = count.get(name, 0) + 1
    return count
