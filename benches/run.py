#!/usr/bin/env python3
"""What tollgate adds to a request, next to no proxy, nginx and a bare pingora proxy.

Every variant stands in front of the same simulated vendor and has one worker thread. The rounds
are interleaved, so that a busy neighbour disturbs all variants alike, and medians are reported.
Afterwards the ledgers must agree to the nano: a quick gateway that loses a charge has lost.

Environment: ROUNDS (5), DURATION (4 seconds), VARIANTS (comma separated, all), BENCH_LOG=info
(a log line per request in nginx and tollgate; otherwise neither writes any).
"""

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import urllib.request

from processes import BIN, FOLDER, ROOT, cpu_seconds, rss_mib, start, stop_all, until
from variants import LOG, SIM_PATHS, Variant, bare_pingora, body, cli, nginx, redis, tollgate

ROUNDS = int(os.environ.get("ROUNDS", "5"))
DURATION = int(os.environ.get("DURATION", "4"))
ALL = ["direct", "nginx", "bare-pingora", "tollgate-sqlite", "tollgate-redis"]
VARIANTS = os.environ.get("VARIANTS", ",".join(ALL)).split(",")
# Name, connections, streamed, kind. Of the kind "translated", tollgate gets a chat request and the
# vendor a messages one; the others pass the messages request on as it is.
SCENARIOS = [
    ("chat-whole-1", 1, False, "chat"),
    ("chat-whole-32", 32, False, "chat"),
    ("chat-stream-32", 32, True, "chat"),
    ("translated-whole-32", 32, False, "translated"),
    ("translated-stream-32", 32, True, "translated"),
]


# --- measuring ------------------------------------------------------------------------------------


def probe(variant, kind, stream):
    """One request by hand: it must answer, and tells how many events a stream has."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {variant.key}"}
    headers["vendor_a-version"] = "2023-06-01"
    data = variant.body(kind, stream).encode()
    request = urllib.request.Request(variant.url(kind), data, headers)
    with urllib.request.urlopen(request, timeout=10) as reply:
        text = reply.read()
    variant.completed += 1
    if not stream:
        return len(text)
    return sum(line.startswith(b"data: {") for line in text.splitlines())


def events(variants, kind):
    """How many events a stream of the vendor has; whoever passes it on, passes on as many."""
    counts = {v.name: probe(v, kind, True) for v in variants}
    same = counts if kind == "chat" else {v.name: counts[v.name] for v in variants if not v.conf}
    if len(set(same.values())) > 1:
        sys.exit(f"failed: the variants pass on different numbers of events: {same}")
    return next(iter(same.values()), None) or next(iter(counts.values()))


def wrk(variant, kind, connections, stream, seconds):
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "--latency"]
    command += ["-s", str(ROOT / "benches" / "post.lua"), variant.url(kind)]
    env = {**os.environ, "BENCH_BODY": variant.body(kind, stream), "BENCH_KEY": variant.key}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=seconds + 30)
    if done.returncode != 0:
        sys.exit(f"failed: wrk on {variant.name}: {done.stderr or done.stdout}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    variant.completed += result["requests"]
    if result["bad"] or not result["requests"]:
        sys.exit(f"failed: {variant.name}: {result['bad']} failures, {result['requests']} answers")
    return result


def measure(variant, kind, connections, stream, units):
    """One run of wrk; CPU time per unit, which is a request, or a vendor's event of a stream."""
    pid = variant.process and variant.process.pid
    store = variant.redis and variant.redis.pid
    before = pid and cpu_seconds(pid), store and cpu_seconds(store)
    result = wrk(variant, kind, connections, stream, DURATION)
    count = result["requests"] * units
    figures = {
        "rps": result["requests"] * 1e6 / result["duration_us"],
        "p50": result["p50_us"],
        "p99": result["p99_us"],
    }
    if pid:
        figures["cpu"] = (cpu_seconds(pid) - before[0]) * 1e6 / count
        figures["rss"] = rss_mib(pid)
    if store:
        figures["store_cpu"] = (cpu_seconds(store) - before[1]) * 1e6 / count
    return figures


def rounds(variants, chunks):
    seen = {(s[0], v.name): [] for s in SCENARIOS for v in variants}
    for variant in variants:
        for _, connections, stream, kind in SCENARIOS:
            wrk(variant, kind, connections, stream, 1)  # caches, pools and connections warm
    order = random.Random(1)
    for number in range(ROUNDS):
        print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
        for name, connections, stream, kind in SCENARIOS:
            # Nobody always runs in the shadow of the same neighbour.
            for variant in order.sample(variants, len(variants)):
                units = chunks[kind] if stream else 1
                run = measure(variant, kind, connections, stream, units)
                seen[name, variant.name].append(run)
    return {
        key: {f: statistics.median(run[f] for run in runs) for f in runs[0]}
        for key, runs in seen.items()
    }


# --- reporting ------------------------------------------------------------------------------------


def table(results, variants, chunks, reply_bytes):
    logs = "on" if LOG == "info" else "off"
    print(f"{ROUNDS} interleaved rounds of {DURATION} s, medians; one worker each; "
          f"wrk with one thread; a log line per request: {logs}")
    print(f"whole: a request of {len(body('chat', False, True))} B, a reply of {reply_bytes} B; "
          f"streams: {chunks['chat']} chunks, translated from {chunks['translated']} events; "
          f"CPU time, the store's apart, is per request, chunk or event\n")
    rows = [["scenario", "variant", "req/s", "p50 ms", "p99 ms", "cpu us", "rss MiB", "store us"]]
    for scenario, *_ in SCENARIOS:
        for variant in variants:
            r = results[scenario, variant.name]
            row = [scenario, variant.name, f"{r['rps']:.0f}"]
            row += [f"{r['p50'] / 1000:.3f}", f"{r['p99'] / 1000:.3f}"]
            row += [f"{r[f]:.1f}" if f in r else "-" for f in ["cpu", "rss", "store_cpu"]]
            rows.append(row)
    for row in rows:
        print(f"{row[0]:20} {row[1]:16} " + " ".join(f"{cell:>9}" for cell in row[2:]))
    print()


def ratios(results, variants):
    ours = [v.name for v in variants if v.conf]
    others = [v.name for v in variants if not v.conf]
    for scenario, *_ in SCENARIOS:
        for figure in ["cpu", "rps", "p50"]:
            for our in ours:
                for other in others:
                    base = results[scenario, other].get(figure)
                    if base:  # without a proxy there is no proxy's CPU time
                        ratio = results[scenario, our][figure] / base
                        print(f"ratio {scenario} {figure} {our} vs {other} = {ratio:.3f}")


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
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    start("sim", [BIN / "examples" / "sim", "--listen", "127.0.0.1:0"])

    def sim_address():
        for line in (FOLDER / "sim.log").read_text().splitlines():
            if line.startswith("listening on http://"):
                return line.rpartition(":")[2]
        return None

    sim_port = int(until("the simulator listens", sim_address))
    variants = []
    for name in VARIANTS:
        if name == "direct":
            variants.append(Variant(name, sim_port))
        elif name == "nginx":
            variants.append(nginx(sim_port))
        elif name == "bare-pingora":
            variants.append(bare_pingora(sim_port))
        elif name == "tollgate-sqlite":
            variants.append(tollgate(name, sim_port, None))
        elif name == "tollgate-redis":
            process, url = redis()
            variants.append(tollgate(name, sim_port, url, process))
        else:
            sys.exit(f"no such variant: {name}; known are {', '.join(ALL)}")
    reply_bytes = max(probe(v, "chat", False) for v in variants)
    chunks = {kind: events(variants, kind) for kind in SIM_PATHS}
    results = rounds(variants, chunks)
    table(results, variants, chunks, reply_bytes)
    ratios(results, variants)
    print()
    for variant in variants:
        if variant.conf:
            check_ledger(variant)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        stop_all()
