#!/usr/bin/env python3
"""Counts the instructions of a fixed set of work, and fails where they grew by more than 5 %.

The rooms' parts are those of `benches/counted.rs`. Of whole requests, all that the gateway's threads
do for one at a time is counted, on SQLite: with the least head that is needed, and with that of an
official client. Each has another number in its text. The figures to compare with are in
`benches/instructions.json`; --write puts those found in their place. Instructions do not depend on
how busy the machine is, but on the compiler and on the C library: compare like with like.

callgrind counts a `rep movsb`, with which short pieces are copied, once for each byte.
"""

import argparse
import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from processes import BIN, FOLDER, ROOT, begin_folder, cpu_seconds, end, start, stop_all
from run import simulator
from scale_console import Console, Watchers
from variants import Variant, cli, issue_key, settings, wait_ready

FIGURES = ROOT / "benches" / "instructions.json"
GROWTH_MAX = 1.05
TIMES = 20
# As many requests as are made slowly, until the sums of usage have the ones before.
FOLLOWED = 25
# With the least head that is needed, and with an official client's.
WHOSE = {"a request": "curl", "an SDK's request": "sdk"}
# What is counted once more for an account with a plan and three budgets.
LIMITED = ("chat, whole", "translated, whole")
# What is counted once more with an endpoint that is to be told when the account has little left, with one
# call in ten traced, and while somebody looks at the live tail of the console. So few calls a second are
# made here that a large share of them is noted there, of which there are twenty a second at most.
OBSERVED = "chat, whole"
REQUESTS = {"chat, whole": ("chat", False, 300), "chat, streamed": ("chat", True, 30),
            "translated, whole": ("translated", False, 300), "translated, streamed": ("translated", True, 30)}


def counted_binary():
    build = ["cargo", "bench", "--bench", "counted", "--no-run", "--message-format=json"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"failed: {done.stderr}")
    built = [json.loads(line) for line in done.stdout.splitlines()]
    return next(b["executable"] for b in built if b.get("executable") and b["target"]["name"] == "counted")


def totals(pattern):
    """The instructions that files of callgrind's tell, all together."""
    texts = [path.read_text(errors="replace") for path in FOLDER.glob(pattern)]
    return sum(int(number) for text in texts for number in re.findall(r"^totals: (\d+)", text, re.M))


def of_rooms():
    binary = counted_binary()
    for number, name in enumerate(subprocess.run([binary], capture_output=True, text=True).stdout.splitlines()):
        out = f"room-{number}.out"
        command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=counted::measured*",
                   f"--callgrind-out-file={FOLDER / out}", binary, name]
        done = subprocess.run(command, capture_output=True, text=True)
        count = totals(f"{out}*")
        if done.returncode != 0 or not count:
            sys.exit(f"failed: {name} was not counted: {done.stderr[-500:]}")
        yield name, count // TIMES


def of_requests():
    sim_port = simulator()
    for whose, head in WHOSE.items():
        for name, (kind, stream, requests) in REQUESTS.items():
            name = f"{name}, {whose}"
            yield name, of_one_kind(sim_port, name, kind, stream, head, requests)
    for name in LIMITED:
        kind, stream, requests = REQUESTS[name]
        name = f"{name}, an SDK's, with limits"
        yield name, of_one_kind(sim_port, name, kind, stream, "sdk", requests, limited=True)
    kind, stream, requests = REQUESTS[OBSERVED]
    name = f"{OBSERVED}, an SDK's, with the live tail open"
    yield name, of_one_kind(sim_port, name, kind, stream, "sdk", requests, watched=True)
    name = f"{OBSERVED}, an SDK's, with a webhook"
    yield name, of_one_kind(sim_port, name, kind, stream, "sdk", requests, endpoint=True)
    with collector() as url:
        name = f"{OBSERVED}, an SDK's, one in ten traced"
        traces = f'[traces]\nendpoint = "{url}"\nsample_ratio = 0.1\n'
        yield name, of_one_kind(sim_port, name, kind, stream, "sdk", requests, more=traces)


@contextmanager
def collector():
    """Takes the spans of a gateway, and looks at none of them."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            Handler.taken += 1
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    Handler.taken = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    assert Handler.taken, "no spans came"


def of_one_kind(sim_port, name, kind, stream, head, requests, limited=False, watched=False, endpoint=False,
                more=""):
    """The instructions of a request, over so many of them in a process of their own."""
    place = re.sub("[^a-z]+", "-", name.lower())
    folder, port, admin, conf = settings(place, sim_port, None, limited=limited)
    # The first call waits until valgrind has translated the code of the ledger. A busy machine is no
    # reason to refuse one.
    with conf.open("a") as file:
        file.write(f"[timeouts]\nledger_ms = 10_000\nshed_lag_ms = 0\n{more}")
    cli(conf, "account", "create", "bench", "--credit", "9000000", "--new-store")
    if endpoint:
        # It is never sent to: the account has more than enough.
        cli(conf, "webhook", "add", "https://hooks.example.com/", "--account", "bench",
            "--events", "balance.low,key.budget", "--low-balance", "1")
    key = issue_key(conf, limited)
    out = FOLDER / f"{place}.out"
    command = ["valgrind", "--tool=callgrind", "--fair-sched=yes", "--instr-atstart=no",
               f"--callgrind-out-file={out}"]
    console = Console(conf)
    process = start(place, [*command, BIN / "tollgate", "--conf", conf, "serve"], console.settings if watched else None)
    wait_ready(place, process, admin, 60)
    if watched:
        console.sign_in()
        watchers = Watchers(console, pages=False)
    variant = Variant(place, port, process, conf, key)
    load(variant, kind, stream, head, requests // 10)
    switch(process, "on")
    # The first calls of a busy account are held in the store, until what it lends is enough. It must
    # not be idle after that, or it gives everything back: so it is still at work when the counts
    # begin at nothing.
    load(variant, kind, stream, head, requests)
    # The sums of usage follow the calls by a second. Those of the calls so far are not to count.
    load(variant, kind, stream, head, FOLLOWED, pause=0.1)
    with control(process, "-z") as zeroing:
        load(variant, kind, stream, head, requests, after=zeroing)
    if watched:
        watchers.go()
        assert watchers.told, "the live tail told nothing"
    settled(process)
    switch(process, "off")
    subprocess.run(["callgrind_control", "-d", str(process.pid)], check=True, capture_output=True)
    end(process)
    shutil.rmtree(folder)
    return totals(f"{out.name}*") // requests


def load(variant, kind, stream, head, requests, after=None, pause=0):
    """This many requests, one after the other on one connection; others go on until `after` ends."""
    connection = http.client.HTTPConnection("127.0.0.1", variant.port, timeout=60)
    headers = variant.headers(kind, head)
    left = requests
    while left > 0:
        left -= after is None or after.poll() is not None
        connection.request("POST", variant.path(kind), variant.body(kind, stream), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"failed: {variant.name}: {answer.status} {answer.read()[:500]}")
        answer.read()
        time.sleep(pause)
    connection.close()


def switch(process, way):
    subprocess.run(["callgrind_control", "-i", way, str(process.pid)], check=True, capture_output=True)


def control(process, option):
    command = ["callgrind_control", option, str(process.pid)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def settled(process):
    """Waits until nothing goes on in the background."""
    before = -1.0
    while cpu_seconds(process.pid) - before > 0.02:
        before = cpu_seconds(process.pid)
        time.sleep(0.3)


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--write", action="store_true", help="put the figures found into the repository")
    write = words.parse_args().write
    begin_folder()
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    found, grew = {}, []
    for source in (of_rooms, of_requests):
        for name, count in source():
            found[name] = count
            before = known.get(name)
            change = f"{count / before - 1:+.1%}" if before else "new"
            print(f"{name:40} {count:>12,} {before or 0:>12,} {change:>8}", flush=True)
            if not before or count > before * GROWTH_MAX:
                grew.append(name)
    if write:
        FIGURES.write_text(json.dumps(found, indent=4) + "\n")
    elif grew or set(known) - set(found):
        gone = set(known) - set(found)
        sys.exit(f"failed: more than 5 % above what is written down, or not there: {', '.join([*grew, *gone])}")


if __name__ == "__main__":
    try:
        main()
    finally:
        stop_all()
