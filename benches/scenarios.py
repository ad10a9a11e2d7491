"""What is asked of the variants, and what it costs them."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

from clients import Crowd, exchange, first_chunks, large_bodies
from processes import FOLDER, ROOT, cpu_seconds, end, forget_peak, peak_mib, rss_mib, start, started
from variants import NUMBERS_PER_RUN, PLACE, RUNS

DURATION = int(os.environ.get("DURATION", "4"))
# Peers may take seconds for a stream, of which some should end in a run.
PEER_DURATION = int(os.environ.get("PEER_DURATION", str(2 * DURATION)))
STARTS = int(os.environ.get("STARTS", "5"))
# While a program starts, it is asked again after so long: what is found is late by that at most.
POLL_SECONDS = 0.0005
START_SECONDS_MAX = 20
# Open streams whose memory is looked at: the vendor says so many words, one after so many ms. Before them, so
# many whole requests warm up what every process keeps anyway.
OPEN_STREAMS, OPEN_WORDS, OPEN_PAUSE_MS, OPEN_WARM = 500, 10, 1_000, 1_000
OPEN_FAULTS = f"chunks={OPEN_WORDS};chunk-delay={OPEN_PAUSE_MS}"


@dataclass(frozen=True)
class Scenario:
    """Of the kind "translated", gateways get a chat request and the vendor a messages one; the
    others pass the messages request on as it is. Requests have 1 KB, unless a size is given, and one of
    the `HEADS`."""

    name: str
    connections: int
    stream: bool
    kind: str
    size: int | None = None
    head: str = "sdk"


LARGE = Scenario("body-5mb-8", 8, False, "chat", 5_000_000)
ALONE = Scenario("chat-whole-1", 1, False, "chat")
# Beside so many busy streams, one new stream after another: its p50 is the time to the first chunk.
FIRST = Scenario("first-chunk-32", 32, True, "chat")
ALL = [
    ALONE,
    Scenario("chat-whole-32", 32, False, "chat"),
    Scenario("chat-whole-32-curl", 32, False, "chat", head="curl"),
    Scenario("chat-stream-32", 32, True, "chat"),
    Scenario("translated-whole-32", 32, False, "translated"),
    Scenario("translated-stream-32", 32, True, "translated"),
    FIRST,
    LARGE,
]
CHOSEN = os.environ.get("SCENARIOS", ",".join(scenario.name for scenario in ALL)).split(",")
SCENARIOS = [scenario for scenario in ALL if scenario.name in CHOSEN]
if len(SCENARIOS) < len(CHOSEN):
    sys.exit(f"no such scenario among {', '.join(CHOSEN)}; known are {', '.join(scenario.name for scenario in ALL)}")


class Stream:
    """What a stream is made of: the vendor's events, and the bytes that each variant makes of it."""

    def __init__(self, variants, kind):
        replies = {variant.name: ask(variant, kind, stream=True) for variant in variants}
        self.bytes = {name: len(reply) for name, reply in replies.items()}
        counts = {name: reply.count(b"data: {") for name, reply in replies.items()}
        # Who passes it on passes on as many events; a translation, or a peer, may make fewer of them.
        same = {counts[v.name] for v in variants if v.native or (kind == "chat" and not v.peer)}
        if len(same) > 1:
            sys.exit(f"failed: the variants pass on different numbers of events: {counts}")
        self.events = same.pop() if same else max(counts.values())
        self.told = {v.name: counts[v.name] for v in variants if v.peer}


def ask(variant, kind, stream, seconds=30):
    """One request by hand, which must be answered with 200: the bytes that came for it, head and all."""
    with socket.create_connection(("127.0.0.1", variant.port), timeout=seconds) as connection:
        reply, _ = exchange(connection, variant.request(kind, stream), variant.name)
    variant.completed += 1
    return bytes(reply)


def refuses_strangers(variant):
    """Whether a key that nobody has is refused."""
    headers = variant.headers("chat", key="sk-of-nobody")
    connection = http.client.HTTPConnection("127.0.0.1", variant.port, timeout=30)
    connection.request("POST", variant.path("chat"), variant.body("chat", False), headers)
    status = connection.getresponse().status
    connection.close()
    return 400 <= status < 500


def begin_wrk(variant, scenario, seconds):
    """As many requests as can be answered; wrk takes their bytes from a file."""
    file = FOLDER / f"{variant.name}.{scenario.name}.request"
    if not file.exists():
        request = variant.request(scenario.kind, scenario.stream, scenario.size, number=PLACE, head=scenario.head)
        file.write_bytes(request)
    command = ["wrk", "-t1", f"-c{scenario.connections}", f"-d{seconds}s", "--timeout", "30s", "--latency"]
    command += ["-s", str(ROOT / "benches" / "post.lua"), variant.url(scenario.kind)]
    env = {**os.environ, "BENCH_REQUEST_FILE": str(file), "BENCH_PLACE": PLACE}
    env["BENCH_NUMBER"] = str(next(RUNS) * NUMBERS_PER_RUN)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    started.append(child)
    return child


def end_wrk(child, variant, scenario, seconds):
    """What wrk found in the end."""
    try:
        said, wrong = child.communicate(timeout=seconds + 60)
    except subprocess.TimeoutExpired:
        sys.exit(f"failed: wrk on {variant.name}, {scenario.name}, did not end after {seconds} s")
    started.remove(child)
    if child.returncode != 0:
        sys.exit(f"failed: wrk on {variant.name}: {wrong or said}")
    result = json.loads(said.strip().splitlines()[-1])
    variant.completed += result["requests"]
    if result["bad"]:
        sys.exit(f"failed: {variant.name}, {scenario.name}: {result['bad']} failures, {result['requests']} answers")
    return result


def load(variant, scenario, seconds):
    """As many requests as can be answered, and what that was like."""
    if scenario == LARGE:
        return large_bodies(variant, scenario.kind, scenario.size, scenario.connections, seconds)
    return end_wrk(begin_wrk(variant, scenario, seconds), variant, scenario, seconds)


def first_chunk(variant, seconds):
    """How long a new stream takes to its first chunk, while others are as busy as can be."""
    child = begin_wrk(variant, FIRST, seconds + 2)
    time.sleep(1)
    seen = sorted(first_chunks(variant, FIRST.kind, seconds))
    end_wrk(child, variant, FIRST, seconds + 2)
    return {"p50": seen[len(seen) // 2], "p99": seen[len(seen) * 99 // 100]}


def measure(variant, scenario, streams):
    """One run of load; CPU time per unit, which is a request, or a vendor's event of a stream."""
    seconds = PEER_DURATION if variant.peer else DURATION
    if scenario == FIRST:
        return first_chunk(variant, seconds)
    if scenario == LARGE:
        variant = variant.large or variant
    pid = variant.process and variant.process.pid
    store = variant.redis and variant.redis.pid
    before = pid and cpu_seconds(pid), store and cpu_seconds(store)
    result = load(variant, scenario, seconds)
    answers, units = result["requests"], 1
    if scenario.stream:
        # Streams that the end of the run cut off were work, too: they count for what of them came.
        stream = streams[scenario.kind]
        answers, units = result["bytes"] / stream.bytes[variant.name], stream.events
    if not answers:
        sys.exit(f"failed: {variant.name} answered nothing of {scenario.name}: run for longer")
    figures = {"rps": answers * 1e6 / result["duration_us"]}
    if result["requests"]:  # else no stream came to its end
        figures |= {"p50": result["p50_us"], "p99": result["p99_us"]}
    if pid:
        figures["cpu"] = (cpu_seconds(pid) - before[0]) * 1e6 / (answers * units)
        figures["rss"] = rss_mib(pid)
    if store:
        figures["store_cpu"] = (cpu_seconds(store) - before[1]) * 1e6 / (answers * units)
    return figures


def rounds(variants, streams, number_of_rounds):
    """The figures of each round, by scenario and variant; the rounds are interleaved."""
    seen = {(s.name, v.name): [] for s in SCENARIOS for v in variants}
    order = random.Random(1)
    for number in range(number_of_rounds):
        print(f"round {number + 1} of {number_of_rounds}", file=sys.stderr)
        for scenario in SCENARIOS:
            # Nobody always runs in the shadow of the same neighbour.
            for variant in order.sample(variants, len(variants)):
                if variant.process or scenario != LARGE:  # how fast a client can send is of no interest
                    seen[scenario.name, variant.name].append(measure(variant, scenario, streams))
    return seen


def warm(variants):
    """Fills caches and pools, and opens connections; of large bodies, tells the memory that they take.

    That is the most that was resident, less what was in the idle process before them, in bodies.
    It is found once, and early: what a process has kept of large bodies would hide it later on.
    """
    found = {}
    for variant in variants:
        for scenario in SCENARIOS:
            if scenario not in (LARGE, FIRST):
                load(variant, scenario, 1)
        large = variant.large or variant
        pid = large.process and large.process.pid
        if not pid or LARGE not in SCENARIOS:
            continue
        time.sleep(1)  # what the streams before were cut off from settles
        idle = rss_mib(pid)
        forget_peak(pid)
        load(large, LARGE, PEER_DURATION if variant.peer else DURATION)
        peak = peak_mib(pid)
        bodies = LARGE.connections * LARGE.size / 2**20
        found[variant.name] = {"idle": idle, "peak": peak, "bodies": (peak - idle) / bodies}
    return found


def open_streams(variant):
    """The KiB that each of many open slow streams takes of a process which had none yet.

    That is the most that was resident with all of them open, less what was before, over their number.
    """
    pid = variant.process.pid
    with socket.create_connection(("127.0.0.1", variant.port), timeout=30) as line:
        for _ in range(OPEN_WARM):
            exchange(line, variant.request("chat"), variant.name)
    idle = rss_mib(pid)
    crowd = Crowd(variant.port, lambda: variant.request("chat", True), OPEN_STREAMS)
    crowd.open()
    seen = crowd.watch(lambda: rss_mib(pid))
    crowd.finish()
    variant.completed += OPEN_WARM + OPEN_STREAMS
    return (max(seen) - idle) * 1024 / OPEN_STREAMS


def starts(variants):
    """From exec to the first answered paid request in ms, of those that can be run again.

    The stores are those that the rounds have filled.
    """
    again = [variant for variant in variants if variant.command]
    seen = {variant.name: [] for variant in again}
    for number in range(STARTS):
        for variant in again:
            # Asked to end, the bare proxy would wait for minutes first.
            end(variant.process, signal.SIGTERM if variant.conf else signal.SIGKILL)
            began = time.perf_counter()
            variant.process = start(f"{variant.name}.start-{number + 1}", variant.command)
            while not answers(variant):
                if time.perf_counter() - began > START_SECONDS_MAX:
                    sys.exit(f"failed: {variant.name} answered nothing in {START_SECONDS_MAX} s after its start")
                time.sleep(POLL_SECONDS)
            seen[variant.name].append((time.perf_counter() - began) * 1e3)
    return seen


def answers(variant):
    """Whether a request is answered as it should."""
    connection = http.client.HTTPConnection("127.0.0.1", variant.port, timeout=5)
    try:
        connection.request("POST", variant.path("chat"), variant.body("chat", False), variant.headers("chat"))
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    variant.completed += status == 200
    return status == 200
