#!/usr/bin/env python3
"""What tollgate adds to a request, next to no proxy, nginx, a bare pingora proxy and other gateways.

Every variant stands in front of the same simulated vendor and has one worker thread. The rounds
are interleaved, so that a busy neighbour disturbs all variants alike, and medians are reported.
Before the rounds, the memory that large bodies take is looked at, in processes that had none yet;
after them, that of open slow streams in processes of their own, and how soon a program that starts
has answered a paid request. In the end the ledgers must agree to the nano: a quick gateway that
loses a charge has lost.

Requests have the head that an official client sends, and a number of their own in the text. Those of
the scenario "-curl" have the least head that is needed, for comparison. Other gateways get the same
requests. Bodies of 5 MB go to a vendor that only counts bytes (`count_bytes.py`), through processes of
their own, with and without TLS; through other gateways they go to the simulated vendor.

The last table has what is aimed at. With --check it decides: anything that does not hold, or was
not measured, ends the run with 1.

Other gateways take part where `benches/peers/install` (make bench-peers) has put them; without
billing, as it is printed. They are slow enough to make the run longer by two thirds.

The variants with "-tls" speak to the vendor as production does, over TLS and HTTP/2, and those with
"-tls-http1" over TLS and HTTP/1.1; tollgate's are compared with the bare proxy that does the same. Those
with "-limited" have a plan and three budgets. The latter two take part only if VARIANTS names them.

Environment: ROUNDS (5), DURATION (4 seconds), PEER_DURATION (twice that), STARTS (5), VARIANTS and
SCENARIOS (comma separated, all that are there), BENCH_LOG=info (a log line per request in nginx
and tollgate; otherwise nobody writes any).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import peers
import report
from processes import BIN, FOLDER, begin_folder, end, many_files, start, stop_all, until
from scenarios import LARGE, OPEN_FAULTS, SCENARIOS, Stream, ask, open_streams, refuses_strangers, rounds, starts, warm
from variants import SIM_PATHS, Variant, bare_pingora, cli, nginx, redis, tollgate

ROUNDS = int(os.environ.get("ROUNDS", "5"))
PLAIN = ["nginx", report.BARE, report.SQLITE, report.REDIS]
SECURED = [f"{name}-tls" for name in (report.BARE, report.SQLITE, report.REDIS)]
ALL = ["direct", *PLAIN, *SECURED]
LIMITED = [f"{name}-limited" for name in (report.SQLITE, report.REDIS)]
MORE = [*(f"{name}-http1" for name in SECURED), *LIMITED]
VARIANTS = os.environ.get("VARIANTS", ",".join(ALL + peers.installed())).split(",")


def simulator(name="sim", *words):
    """The port of a simulated vendor."""
    start(name, [BIN / "examples" / "sim", "--listen", "127.0.0.1:0", *words])
    return told_port(name)


def counter(name="count_bytes", *words):
    """The port of a vendor that only counts bytes."""
    start(name, [sys.executable, Path(__file__).parent / "count_bytes.py", *words])
    return told_port(name)


def told_port(name):
    """Where a vendor listens, as it tells."""

    def address():
        for line in (FOLDER / f"{name}.log").read_text().splitlines():
            if line.startswith("listening on http://"):
                return line.rpartition(":")[2]
        return None

    return int(until(f"{name} listens", address))


def secured(name):
    """Starts what a name stands for in front of vendors of its own, to which it speaks TLS."""
    words = ["--http1"] if name.endswith("-http1") else []
    ca = FOLDER / f"{name}.pem"
    made = start_proxy(name, name, simulator(f"{name}.sim", "--ca", ca, *words), ca=ca)
    if LARGE in SCENARIOS:
        ca = FOLDER / f"{name}.count_bytes.pem"
        port = counter(f"{name}.count_bytes", "--ca", ca, *words)
        made.large = start_proxy(name, f"{name}.large", port, ca=ca)
    return made


def start_proxy(name, process_name, vendor_port, faults="fast", ca=None):
    """Starts a proxy; with the file of an authority it speaks to the vendor over TLS."""
    if name == "nginx":
        return nginx(process_name, vendor_port)
    if name.startswith(report.BARE):
        return bare_pingora(process_name, vendor_port, ca, faults)
    process, url = redis(f"{process_name}.redis") if name.startswith(report.REDIS) else (None, None)
    return tollgate(process_name, vendor_port, url, process, ca, faults, limited=name in LIMITED)


def variant(name, sim_port, counter_port):
    """Starts what a name stands for."""
    if name in peers.installed():
        peer = peers.ALL[name](sim_port)
        peer.about += "; a wrong key is " + ("refused" if refuses_strangers(peer) else "NOT refused")
        return peer
    if name in PLAIN + LIMITED:
        made = start_proxy(name, name, sim_port)
        made.large = counter_port and start_proxy(name, f"{name}.large", counter_port)
        return made
    if name in SECURED or name in MORE:
        return secured(name)
    if name == "direct":
        return Variant(name, sim_port)
    if name in peers.ALL:
        sys.exit(f"{name} is not installed, or not as listed: run benches/peers/install")
    sys.exit(f"no such variant: {name}; known are {', '.join([*ALL, *MORE, *peers.ALL])}")


def opened(sim_port):
    """The KiB of an open slow stream, by variant, each in a process that had nothing else to do."""
    found = {}
    for name in PLAIN[1:]:
        if name not in VARIANTS:
            continue
        alone = start_proxy(name, f"{name}.open", sim_port, OPEN_FAULTS)
        found[name] = open_streams(alone)
        if alone.conf:
            check_ledger(alone)
        end(alone.process, signal.SIGTERM if alone.conf else signal.SIGKILL)
    return found


def check_ledger(variant):
    """Nothing held, every answered request charged, and the charges sum to what is posted."""

    def settled():
        account = json.loads(cli(variant.conf, "--json", "account", "show", "bench"))
        return account if account["held_nano"] == 0 else None

    # The last streams of each run were cut off by wrk; those still settle, in the background.
    account = until(f"{variant.name} has no open hold", settled, 60)
    command = [str(BIN / "tollgate"), "--conf", str(variant.conf), "--json", "charges", "bench"]
    count = total = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as charges:
        for line in charges.stdout:
            total += json.loads(line)["amount_nano"]
            count += 1
    if charges.returncode != 0:
        sys.exit(f"failed: {variant.name}: the charges cannot be listed")
    held = account["credited_nano"] + account["written_off_nano"]
    if held != account["available_nano"] + account["posted_nano"]:
        sys.exit(f"failed: {variant.name}: the account does not balance: {account}")
    if total != account["posted_nano"]:
        sys.exit(f"failed: {variant.name}: charges of {total}, posted {account['posted_nano']}")
    if count < variant.completed:
        sys.exit(f"failed: {variant.name}: {variant.completed} requests, {count} charges")
    print(f"ledger {variant.name}: {variant.completed} requests completed, {count} charges, "
          f"their sum is what is posted: {total} nano-USD")


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--check", action="store_true", help="end with 1 unless every target holds")
    check = words.parse_args().check
    begin_folder()
    many_files()
    sim_port, counter_port = simulator(), counter() if LARGE in SCENARIOS else None
    variants = [variant(name, sim_port, counter_port) for name in VARIANTS]
    reply_bytes = max(len(ask(v, "chat", False).partition(b"\r\n\r\n")[2]) for v in variants if not v.peer)
    streams = {kind: Stream(variants, kind) for kind in SIM_PATHS}
    memory = warm(variants)
    in_rounds = rounds(variants, streams, ROUNDS)
    found = report.Found(in_rounds, memory, opened(sim_port), starts(variants))
    report.tables(found, variants, streams, reply_bytes, ROUNDS)
    report.ratios(found, variants)
    report.peers(found, variants, streams)
    for each in variants:
        for one in filter(None, (each, each.large)):
            if one.conf:
                check_ledger(one)
    print()
    held = report.targets(found)
    if ROUNDS < 5:
        print("fewer than 5 rounds: look again before believing it")
    if check and not held:
        sys.exit("failed: a target does not hold")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        stop_all()
