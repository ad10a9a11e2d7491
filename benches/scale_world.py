"""What the parts of the scale bench stand on: simulators, Redis servers, gateways, and load."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

from processes import BIN, FOLDER, ROOT, cpu_seconds, free_port, listening, many_files, rss_mib, start, started, until
from scale_wire import Wire
from variants import NUMBERS_PER_RUN, PLACE, RUNS, Variant, body, cli

# SCALE=small is for trying the bench itself: everything is shorter, and nothing is judged.
SMALL = os.environ.get("SCALE") == "small"
verdicts = []
# Holds that expired are looked for every ten seconds, once a gateway has run as long as a lease is. This is
# the shortest lease for which both are so.
LEASE_MS = 40_000


def sized(full, small):
    return small if SMALL else full


# --- processes ------------------------------------------------------------------------------------


def stop(process):
    """Ends a process of ours before the bench does; a stopped one first has to be let go on."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process in started:
        started.remove(process)


def stop_since(count):
    """Ends what was started after so many others."""
    for process in reversed(started[count:]):
        stop(process)


def room(name):
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def simulator(name="sim"):
    """The port of a simulated vendor of our own."""
    process = start(name, [BIN / "examples" / "sim", "--listen", "127.0.0.1:0"])

    def address():
        if process.poll() is not None:
            sys.exit(f"failed: {name} ended at once; see {FOLDER}/{name}.log")
        for line in (FOLDER / f"{name}.log").read_text().splitlines():
            if line.startswith("listening on http://"):
                return line.rpartition(":")[2]
        return None

    return int(until("the simulator listens", address))


class Redis:
    """A server as tollgate wants it: every charge appended to a file, nothing evicted. It does not rewrite
    that file by itself, since that would fall on whoever is measured just then."""

    def __init__(self, name, *options, file="yes"):
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process = start(
            name,
            ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--dir", room(name), "--save", ""]
            + ["--appendonly", file, "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"]
            + ["--maxmemory-policy", "noeviction", *options],
        )
        until(f"{name} listens", lambda: listening(self.port))
        self.wire = Wire(self.port)

    def cpu(self):
        return cpu_seconds(self.process.pid)


class Gateway:
    """One with one worker thread. It is configured first, so that its store can be filled, and then served."""

    def __init__(self, name, sim_port, store=None, faults="fast", rules=None):
        self.name, self.process = name, None
        self.port, self.admin = free_port(), free_port()
        folder = room(name)
        (folder / "files").mkdir()
        self.database = None if store else folder / "tollgate.db"
        self.conf = folder / "tollgate.toml"
        base = f"http://127.0.0.1:{sim_port}"
        self.conf.write_text(
            f"""\
[server]
threads = 1
[listen]
http = "127.0.0.1:{self.port}"
admin = "127.0.0.1:{self.admin}"
[store]
url = "{store or f'sqlite:{self.database}'}"
outbox = "{folder}/outbox"
[files]
url = "file:{folder}/files"
[rules]
dir = "{rules or ROOT / 'lua-free-rules'}"
# All calls are of one account.
[limits]
requests_per_account_max = 0
[log]
format = "text"
level = "warn"
# A neighbour that makes the machine late may not make calls fail.
[timeouts]
ledger_ms = 5000
shed_lag_ms = 0
lease_ms = {LEASE_MS}
[vendor.vendor_a]
routes = [{{ name = "simulator", base_url = "{base}/vendor_a/{faults}/v1", key = "vk-simulator" }}]
[vendor.vendor_b]
routes = [{{ name = "simulator", base_url = "{base}/vendor_b/{faults}/v1", key = "vk-simulator" }}]
"""
        )
        if self.database:
            # The program itself makes the tables.
            cli(self.conf, "account", "create", "first", "--new-store")

    def serve(self, env=None):
        self.process = start(self.name, [BIN / "tollgate", "--conf", self.conf, "serve"], env)
        self.await_ready()
        return self

    def await_ready(self):
        until(f"{self.name} is ready", self.ready)

    def ready(self):
        if self.process.poll() is not None:
            sys.exit(f"failed: {self.name} ended; see {FOLDER}/{self.name}.log")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=2) as reply:
                return reply.status == 200
        except OSError:
            return False

    def pause(self):
        """Many gateways stand side by side; whoever is not measured costs nothing while it is stopped."""
        # What wrk left in the middle may end first.
        time.sleep(0.3)
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)
        self.await_ready()
        # What was due meanwhile is done at once; a gateway that is late refuses calls until then.
        time.sleep(0.5)

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def rss(self):
        return rss_mib(self.process.pid)

    def ask(self, key):
        """One request by hand."""
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        data = body("chat", False, False).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as reply:
            return json.load(reply)


# --- load -----------------------------------------------------------------------------------------


class Load:
    """wrk on a gateway, with keys that take turns, from the first on or from another."""

    def __init__(self, gateway, keys, connections, seconds, first=0):
        self.gateway, self.seconds = gateway, seconds
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "--latency"]
        command += ["-s", str(ROOT / "benches" / "turns.lua")]
        command += [f"http://127.0.0.1:{gateway.port}/v1/chat/completions"]
        target = Variant("any", gateway.port, conf=gateway.conf, key="@KEY@")
        env = {**os.environ, "BENCH_REQUEST": target.request("chat", number=PLACE).decode(), "BENCH_KEYS": str(keys)}
        env |= {"BENCH_PLACE": PLACE, "BENCH_NUMBER": str(next(RUNS) * NUMBERS_PER_RUN), "BENCH_FIRST": str(first)}
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        started.append(self.child)

    def result(self):
        try:
            said, _ = self.child.communicate(timeout=self.seconds + 60)
        except subprocess.TimeoutExpired:
            sys.exit(f"failed: wrk on {self.gateway.name} did not end; was this machine stopped meanwhile?")
        started.remove(self.child)
        if self.child.returncode != 0:
            sys.exit(f"failed: wrk on {self.gateway.name}: {said}")
        result = json.loads(said.strip().splitlines()[-1])
        if result["bad"] or not result["requests"]:
            sys.exit(f"failed: {self.gateway.name}: {result['bad']} failures, {result['requests']} answers")
        result["rps"] = result["requests"] * 1e6 / result["duration_us"]
        return result


def measure(gateway, keys, connections, seconds, first=0, stores=()):
    """One run of wrk: requests a second, latency, and CPU time of the gateway and its stores per request."""
    before = [one.cpu() for one in (gateway, *stores)]
    result = Load(gateway, keys, connections, seconds, first).result()
    spent = [one.cpu() - was for one, was in zip((gateway, *stores), before)]
    per_request = [1e6 * one / result["requests"] for one in spent]
    result["cpu"], result["stores"] = per_request[0], per_request[1:]
    return result


# --- telling --------------------------------------------------------------------------------------


def show(rows):
    """A table, whose first row names its columns; words stand left, figures right."""
    widths = [max(len(str(row[at])) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = [str(cell).ljust(w) if at < 2 else str(cell).rjust(w) for at, (cell, w) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())
    print(flush=True)


def ratio(what, value):
    print(f"ratio {what} = {value:.3f}")


def judge(what, value, most=None, least=None, unit=""):
    """Says whether a figure is what was asked for."""
    good = value <= most if most is not None else value >= least
    bound = f"at most {most:g}" if most is not None else f"at least {least:g}"
    word = ("met" if good else "missed") + (", but small, so no verdict" if SMALL else "")
    verdicts.append((what, good))
    print(f"target {what}: {value:.3g}{unit}, {bound}{unit}: {word}", flush=True)


def flat(what, value):
    """Flat is what grows by a tenth at most: two runs of the same differ by about half of that."""
    judge(f"flat {what}", value, most=1.1)
