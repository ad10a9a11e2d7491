"""A steady load for the rate limits' bench: calls at fixed times, on kept connections, and what became of them.

A call is sent when it is due, whatever became of those before it: nobody waits for an answer, heeds `retry-after`
or tries again. All rows of a phase share one loop, and a phase begins where the one before it ended.
"""

import asyncio
import heapq
import sys

from clients import is_whole

# A call that is sent later than this after it was due, in seconds, is told: then this machine was too busy.
LATE_S = 0.1
LINES_AT_FIRST = 32
# How long the last answers of a run are waited for, in seconds.
ANSWERS_S = 15


class Count:
    """What became of the calls of a row that were sent in a phase."""

    def __init__(self):
        self.offered = self.allowed = self.refused = self.failed = 0

    def note(self, status):
        if status == b"200":
            self.allowed += 1
        elif status == b"429":
            self.refused += 1
        else:
            self.failed += 1

    def is_answered(self):
        return self.offered == self.allowed + self.refused + self.failed


class Line(asyncio.Protocol):
    """A connection, for one call after another."""

    def __init__(self, idle):
        self.idle, self.transport, self.count, self.said = idle, None, None, b""

    def connection_made(self, transport):
        self.transport = transport

    def send(self, request, count):
        self.count = count
        self.transport.write(request)

    def data_received(self, data):
        self.said += data
        if self.count and is_whole(self.said):
            self.count.note(self.said[9:12])
            self.count, self.said = None, b""
            self.idle.append(self)

    def connection_lost(self, exc):
        if self.count:
            self.count.failed += 1
        if self in self.idle:
            self.idle.remove(self)


class Lines:
    """The connections to a gateway: as many as there are calls under way at a time."""

    def __init__(self, port):
        self.port, self.idle, self.tasks = port, [], set()

    async def open(self):
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(lambda: Line(self.idle), "127.0.0.1", self.port)
        return line

    async def open_some(self):
        self.idle += [await self.open() for _ in range(LINES_AT_FIRST)]

    def send(self, request, count):
        if self.idle:
            return self.idle.pop().send(request, count)
        task = asyncio.create_task(self.open_and_send(request, count))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def open_and_send(self, request, count):
        try:
            (await self.open()).send(request, count)
        except OSError:
            count.failed += 1


class Load:
    """Phases of load on some gateways; the calls of a row take turns among them."""

    def __init__(self, ports):
        self.gateways = [Lines(port) for port in ports]
        self.sent = self.late = 0
        self.latest_s, self.ends_at = 0.0, None

    async def begin(self):
        for lines in self.gateways:
            await lines.open_some()
        self.ends_at = asyncio.get_running_loop().time() + 0.5

    async def offer(self, rows, seconds):
        """A phase: of each row the bytes of a call, and how many of them in a second. Returns the row's counts."""
        counts, began = [Count() for _ in rows], self.ends_at
        self.ends_at = began + seconds
        # All rows begin at different times, so that the load is even.
        due = [(began + (at + 0.5) / len(rows) / pace, at) for at, (_, pace) in enumerate(rows)]
        heapq.heapify(due)
        now = asyncio.get_running_loop().time
        while due[0][0] < self.ends_at:
            when, at = due[0]
            late_s = now() - when
            if late_s < 0:
                await asyncio.sleep(-late_s)
                continue
            request, pace = rows[at]
            self.send(request, counts[at])
            self.late += late_s > LATE_S
            self.latest_s = max(late_s, self.latest_s)
            heapq.heapreplace(due, (when + 1 / pace, at))
            if late_s > LATE_S:
                # Answers have to be read meanwhile.
                await asyncio.sleep(0)
        return counts

    def send(self, request, count):
        self.gateways[count.offered % len(self.gateways)].send(request, count)
        count.offered += 1
        self.sent += 1

    async def end(self, counts):
        """Waits for the last answers."""
        for _ in range(ANSWERS_S * 10):
            if all(count.is_answered() for count in counts):
                break
            await asyncio.sleep(0.1)
        else:
            sys.exit(f"failed: calls were not answered within {ANSWERS_S} s")
        for lines in self.gateways:
            for line in list(lines.idle):
                line.transport.close()
