"""Child processes of tests: how one is started, waited for and stopped; the vendor simulator; a Redis.

Nothing but the standard library is needed here, so tests/soak uses it too.
"""

import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

REPO = Path(__file__).parent.parent.parent
GATEWAY = Path(os.environ.get("TOLLGATE_BIN", REPO / "target/debug/tollgate"))
SIM = Path(os.environ.get("TOLLGATE_SIM", REPO / "target/debug/examples/sim"))

VENDOR_KEY = "vk-test"
# How each vendor's base URL ends; the endpoint's path after /v1 is appended to it.
VERSION_SEGMENT = {
    "vendor_a": "v1",
    "vendor_b": "v1",
    "vendor_c": "v1beta/openai",
    "vendor_d": "v1",
    "vendor_e": "v1/openai",
}


def until(probe, what, seconds=5.0):
    """The first truthy answer of `probe`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
    return answer


class Process:
    """A child process whose output goes to a file."""

    def __init__(self, name, command, folder, **environment):
        if not Path(command[0]).exists() and "/" in str(command[0]):
            raise FileNotFoundError(f"{name}: {command[0]} is not built")
        self.name, self.log = name, folder / f"{name}.log"
        with self.log.open("wb") as out:
            self.child = subprocess.Popen(
                [str(part) for part in command],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env=os.environ | environment,
            )

    def said(self, pattern):
        """Waits until the output holds `pattern`; its first group."""

        def look():
            self.check_alive()
            return re.search(pattern, self.log.read_text(errors="replace"))

        return until(look, f"{self.name} says {pattern}", seconds=15)[1]

    def check_alive(self):
        if self.child.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name} ended with {self.child.returncode}:\n{tail}")

    def kill(self):
        """Ends it at once. It has to have lived so far, unless its test has seen it end."""
        if self.child.returncode is not None:
            return
        self.check_alive()
        self.child.kill()
        self.child.wait()

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


class Sim:
    """The project's own vendor simulator; refuses any key that isn't a vendor's. What it is asked about
    itself is asked without TLS, on the same port; its vendors' addresses are with TLS where that is wanted,
    and then `ca` is the file that vouches for them."""

    def __init__(self, folder, tls=False):
        self.ca = folder / "sim.pem" if tls else None
        words = ["--ca", self.ca] if tls else []
        self.process = Process("sim", [SIM, "--listen", "127.0.0.1:0", *words], folder)
        self.url = self.process.said(r"listening on (http://\S+)")
        self.stop = self.process.stop

    def address(self, vendor, fault=""):
        root = self.url.replace("http:", "https:") if self.ca else self.url
        return "/".join(part for part in (root, vendor, fault, VERSION_SEGMENT[vendor]) if part)

    def count(self):
        """How many requests have arrived."""
        return total(get_json(f"{self.url}/_count"))

    def received(self, path=""):
        """The bodies that arrived there; a form's as its text."""
        return [request.body for request in self.requests(path)]

    def requests(self, path=""):
        """What arrived at addresses that have this in them: path, headers and body of each."""
        requests = get_json(f"{self.url}/_bodies")
        return [SimpleNamespace(**request) for request in requests if path in request["path"]]

    def videos(self):
        """The videos that were ordered, oldest first, as the vendor has them."""
        return [SimpleNamespace(**video) for video in get_json(f"{self.url}/_videos")["videos"]]

    def calls(self):
        """How many submissions, polls and fetches of videos have arrived, whatever became of them."""
        return SimpleNamespace(**get_json(f"{self.url}/_videos"))

    def files(self):
        """What arrived as a file: its part, name, content_type, len and sha256."""
        return [SimpleNamespace(**file) for seen in get_json(f"{self.url}/_seen") for file in seen.get("files", [])]


def total(count):
    """The simulator's count, whether one number or one for each address."""
    return sum(map(total, count.values())) if isinstance(count, dict) else count


def get_json(url, key=None):
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(request, timeout=5) as reply:
        return json.load(reply)


# Below the ports that the system hands out, so that no connection takes one in between.
PORTS = iter(random.sample(range(10_000, 32_000), 22_000))


def free_port():
    """A port where nobody listens; never the same twice."""
    return next(port for port in PORTS if is_free(port))


def is_free(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Redis:
    """A redis-server as a fleet would run it: on disk every second, nothing evicted."""

    def __init__(self, folder):
        port = free_port()
        options = "--appendonly yes --appendfsync everysec --maxmemory-policy noeviction --databases 10000"
        command = ["redis-server", "--port", port, "--save", "", *options.split(), "--dir", folder]
        self.process = Process("redis", command, folder)
        self.process.said("(Ready to accept connections)")
        self.url = f"redis://127.0.0.1:{port}/0"
        self.stop = self.process.stop
