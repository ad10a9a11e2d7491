#!/usr/bin/env python3
"""What of the memory of an open stream is the proxy's need, and what is the way of measuring it.

`open_stream.py [NAME]`: bare-pingora (if nothing is said) or tollgate-sqlite. `make bench` tells
one figure. Here it is found again, each time in a new process, with one thing changed:

as in make bench     500 streams on new connections, an official client's head, the simulator
the least head       the head that a request needs
2,000 streams        what does not grow with streams is a quarter of its share
a short reply head   a vendor whose head has two fields, not ten (only bare-pingora)
after the same       500 streams came and ended before, and what was free had time to go back
kept connections     500 clients' connections had a whole chat each, and are not counted
freed at once        the allocator returns what is free at once, not within ten seconds
no offsets           the allocator begins each large piece at the begin of a page

Of each it tells, in KiB a stream above what was resident before: the most, the median and the least
while all were open, and of the most what is not of a file. COUNT (500) is the number of streams.
"""

import asyncio
import os
import signal
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import report
from clients import Crowd, exchange
from processes import begin_folder, end, family, many_files, rss_mib, stop_all
from run import simulator, start_proxy
from scenarios import OPEN_FAULTS, OPEN_PAUSE_MS, OPEN_STREAMS, OPEN_WARM, OPEN_WORDS
from variants import NUMBERS

COUNT = int(os.environ.get("COUNT", str(OPEN_STREAMS)))
# The allocator gives back within ten seconds what is free.
DECAY_S = 15
ALLOCATOR = "_RJEM_MALLOC_CONF"
CHUNK = b'{"choices":[{"index":0,"delta":{"content":" four"}}]}'
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def anonymous_mib(pid):
    """What is resident and not of a file."""
    kib = 0
    for member in family(pid):
        lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        kib += next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    return kib / 1024


# --- a vendor with a short head -------------------------------------------------------------------


def chunk(data):
    text = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(text), text)


async def serve(reader, writer):
    """One request after another: words, one after a pause each, or a whole answer."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            if b'"stream": true' not in body:
                writer.write(WHOLE)
                continue
            writer.write(STREAM_HEAD)
            for _ in range(OPEN_WORDS):
                writer.write(chunk(CHUNK))
                await asyncio.sleep(OPEN_PAUSE_MS / 1e3)
            writer.write(chunk(b"[DONE]") + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def short_vendor():
    """The port of a vendor in a thread of this process."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    async def run():
        async with await asyncio.start_server(serve, sock=listener) as server:
            await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(run()), daemon=True).start()
    return listener.getsockname()[1]


# --- one way of measuring -------------------------------------------------------------------------


def open_all(variant, count, head, lines=()):
    """Opens all streams and sees them to their end; what was resident meanwhile."""
    crowd = Crowd(variant.port, lambda: variant.request("chat", True, head=head), count, lines)
    crowd.open()
    pid = variant.process.pid
    seen = crowd.watch(lambda: (rss_mib(pid), anonymous_mib(pid)))
    crowd.finish()
    return seen


def keep_lines(variant, count, head):
    """So many connections, each of which has had a whole chat."""
    lines = []
    for number in range(count):
        line = socket.socket()
        line.bind((f"127.0.1.{1 + number % 20}", 0))
        line.connect(("127.0.0.1", variant.port))
        exchange(line, variant.request("chat", head=head), variant.name)
        lines.append(line)
    return lines


def measure(name, vendor_port, count=COUNT, head="sdk", before=None, allocator=None):
    """The KiB of each stream: the most, the median, the least, and the most that is of no file."""
    os.environ.pop(ALLOCATOR, None)
    if allocator:
        os.environ[ALLOCATOR] = allocator
    variant = start_proxy(name, f"{name}.{next(NUMBERS)}", vendor_port, OPEN_FAULTS)
    with socket.create_connection(("127.0.0.1", variant.port), timeout=30) as line:
        for _ in range(OPEN_WARM):
            exchange(line, variant.request("chat", head=head), variant.name)
    lines = keep_lines(variant, count, head) if before == "lines" else ()
    if before == "streams":
        open_all(variant, count, head)
    if before:
        time.sleep(DECAY_S)
    idle = rss_mib(variant.process.pid), anonymous_mib(variant.process.pid)
    seen = open_all(variant, count, head, lines)
    resident = [one for one, _ in seen]
    found = [max(resident), statistics.median(resident), min(resident)]
    found = [one - idle[0] for one in found] + [max(one for _, one in seen) - idle[1]]
    end(variant.process, signal.SIGKILL)
    return [one * 1024 / count for one in found]


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else report.BARE
    if name not in (report.BARE, report.SQLITE):
        sys.exit(f"{name} has no place here: {report.BARE} or {report.SQLITE}")
    begin_folder()
    many_files()
    usual, short = simulator, short_vendor
    ways = {
        "as in make bench": (usual, {}),
        "the least head": (usual, {"head": "curl"}),
        f"{4 * COUNT:,} streams": (usual, {"count": 4 * COUNT}),
        "a short reply head": (short, {}),
        "after the same": (usual, {"before": "streams"}),
        "kept connections": (usual, {"before": "lines"}),
        "freed at once": (usual, {"allocator": "dirty_decay_ms:0,muzzy_decay_ms:0"}),
        "no offsets": (usual, {"allocator": "cache_oblivious:false"}),
    }
    if name != report.BARE:
        del ways["a short reply head"]  # whose whole answers no gateway could charge
    ports = {make: make() for make in (usual, short)}
    print(f"{COUNT} streams of {OPEN_WORDS} words, one every {OPEN_PAUSE_MS} ms, through {name}; "
          "KiB a stream above what was resident before")
    print(f"{'':20} {'most':>8} {'median':>8} {'least':>8} {'no file':>8}")
    for way, (vendor, words) in ways.items():
        found = measure(name, ports[vendor], **words)
        print(f"{way:20} " + " ".join(f"{one:>8.1f}" for one in found), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        stop_all()
