"""The processes of a soak: a simulator, Redis, gateways; and all that is done to them."""

import atexit
import contextlib
import http.client
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from processes import GATEWAY as TOLLGATE
from processes import SIM, VERSION_SEGMENT

VENDOR_KEY = "vk-soak"
# What comes to nobody within this long never comes.
START_WAIT_S = 120
HOST = "127.0.0.1"


def until(probe, what, seconds):
    """The first truthy answer of `probe`; an error after so many seconds."""
    end = time.monotonic() + seconds
    while not (answer := probe()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
    return answer


def free_port():
    """A port where nobody listens, below those that the system hands out to connections."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return port


def many_files():
    """As many open files as this machine allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Process:
    """A child process that can be killed and started again; its output is added to one file."""

    running = []

    def __init__(self, name, command, folder, environment=None):
        self.name, self.command, self.folder = name, [str(part) for part in command], folder
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("TOLLGATE__")}
        self.environment |= environment or {}
        self.log = folder / f"{name}.log"
        self.child, self.starts, self.paused = None, 0, False

    def start(self):
        with self.log.open("ab") as out:
            self.child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env=self.environment,
            )
        self.starts += 1
        self.paused = False
        Process.running.append(self)
        return self

    def alive(self):
        return self.child is not None and self.child.poll() is None

    def kill(self):
        """Ends it at once: kill -9."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        if self in Process.running:
            Process.running.remove(self)

    def stop(self, seconds=5):
        """Asks it to end."""
        if self.alive():
            self.resume()
            self.child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(seconds)
        self.kill()

    def pause(self):
        self.child.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self):
        if self.paused and self.alive():
            self.child.send_signal(signal.SIGCONT)
        self.paused = False

    def said(self, text):
        return text in self.log.read_text(errors="replace") if self.log.exists() else False

    def tail(self, size=1500):
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def memory_mib(self):
        """What of it is in memory; 0 when it is gone."""
        try:
            pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        except (OSError, AttributeError, IndexError):
            return 0
        return pages * resource.getpagesize() >> 20


def kill_all():
    for process in list(Process.running):
        process.kill()


atexit.register(kill_all)


class Sim(Process):
    """The simulator of the vendors."""

    def __init__(self, folder, name="sim"):
        self.port = free_port()
        super().__init__(name, [SIM, "--listen", f"{HOST}:{self.port}"], folder)
        self.url = f"http://{HOST}:{self.port}"

    def start(self):
        super().start()
        until(lambda: reachable(self.port), "the simulator listens", START_WAIT_S)
        return self

    def base_url(self, vendor, faults=""):
        return "/".join(part for part in (self.url, vendor, faults, VERSION_SEGMENT[vendor]) if part)

    def ask(self, path):
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as reply:
            return json.load(reply)

    def count(self, vendor=None):
        """How many calls came, to one vendor or to all."""
        counts = self.ask("/_count")
        return counts[vendor] if vendor else sum(counts.values())

    def seen(self):
        """The last calls with what was billed for each and, of the last 200, what was asked."""
        seen, bodies = self.ask("/_seen"), self.ask("/_bodies")
        for call, body in zip(reversed(seen), reversed(bodies), strict=False):
            assert call["path"] == body["path"], "calls came while they were read"
            call["body"] = body["body"]
        return seen


def reachable(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


class Redis(Process):
    """A redis-server on disk every second, which may lose that second as if the power had failed."""

    OPTIONS = "--save '' --appendonly yes --appendfsync everysec --maxmemory-policy noeviction --loglevel notice"

    def __init__(self, folder, name="redis", **more):
        self.port = free_port()
        data = folder / name
        data.mkdir()
        options = [part.strip("'") for part in self.OPTIONS.split(" ")]
        for key, value in more.items():
            options += [f"--{key.replace('_', '-')}", str(value)]
        command = ["redis-server", "--port", self.port, "--bind", HOST, *options, "--dir", data]
        super().__init__(name, command, folder)
        self.data, self.url = data, f"redis://{HOST}:{self.port}/0"
        self.sizes, self.watching = [], None

    def start(self, wait=True):
        super().start()
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds=START_WAIT_S):
        def up():
            # The start that finds half an operation in a log that is not the last one fails, and mends it.
            if not self.alive():
                super(Redis, self).start()
            return self.answers()

        until(up, f"{self.name} answers", seconds)

    def answers(self):
        try:
            return self.ask("PING") == "+PONG"
        except OSError:
            return False

    def ask(self, *words, seconds=2):
        """The first line of the server's answer to a command; enough for most used here."""
        return self.ask_all(*words, seconds=seconds, most=0)[0]

    def ask_all(self, *words, seconds=2, most=100):
        """The texts of an answer that is a list, or its first line alone."""
        with socket.create_connection((HOST, self.port), timeout=seconds) as line:
            sent = "".join(f"${len(str(word).encode())}\r\n{word}\r\n" for word in words)
            line.sendall(f"*{len(words)}\r\n{sent}".encode())
            lines = line.makefile("r", newline="\r\n")
            first = lines.readline().rstrip("\r\n")
            if not first.startswith("*") or not most:
                return [first]
            return [(lines.readline(), lines.readline().rstrip("\r\n"))[1] for _ in range(int(first[1:]))]

    def watch(self):
        """Notes ten times a second how long its log is, so that a later end can be cut off."""
        self.watching = threading.Thread(target=self._watch, daemon=True)
        self.watching.start()

    def _watch(self):
        while self.watching:
            if found := self.tail_file():
                self.sizes.append((time.monotonic(), found, found.stat().st_size))
                del self.sizes[:-60]
            time.sleep(0.05)

    def tail_file(self):
        """The file of its log that is being written."""
        try:
            manifest = next((self.data / "appendonlydir").glob("*.manifest")).read_text()
        except (OSError, StopIteration):
            return None
        names = [line.split()[1] for line in manifest.splitlines() if line.endswith("type i")]
        file = self.data / "appendonlydir" / names[-1] if names else None
        return file if file and file.exists() else None

    def lose_power(self, seconds, torn):
        """Kills it, and cuts its log back to what it was so long before, and by so many bytes more, which
        will hardly be the end of an operation; how many bytes were lost.
        """
        at = time.monotonic() - seconds
        self.kill()
        file = self.tail_file()
        earlier = [size for when, known, size in self.sizes if known == file and when <= at]
        if not earlier:
            return 0
        end = max(0, earlier[-1] - torn)
        lost = file.stat().st_size - end
        if lost > 0:
            os.truncate(file, end)
        self.sizes.clear()
        return max(lost, 0)

    def save_copy(self):
        """A copy of its data as they are now, with the server paused so that it is of one moment."""
        copy = self.data.with_name(f"{self.name}-copy")
        shutil.rmtree(copy, ignore_errors=True)
        self.pause()
        shutil.copytree(self.data, copy)
        self.resume()
        return copy

    def put_back(self, copy):
        """Kills it and gives it the data of a copy."""
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data)


class Gateway(Process):
    """A node: started, killed and started again on the same ports."""

    def __init__(self, folder, number, sections, vendors, environment=None, prefix=(), binary=None):
        self.http, self.admin = free_port(), free_port()
        name = f"node{number}"
        self.conf = folder / f"{name}.toml"
        own = {"listen": {"http": f"{HOST}:{self.http}", "admin": f"{HOST}:{self.admin}"}}
        self.sections, self.vendors, self.binary = sections | own, vendors, binary or TOLLGATE
        self.write()
        command = [*prefix, self.binary, "--conf", self.conf, "serve"]
        super().__init__(name, command, folder, environment)

    def write(self):
        """Writes its configuration."""
        self.conf.write_text(toml(self.sections, self.vendors))

    def start(self, wait=True):
        scheme, _, file = self.sections["store"]["url"].partition(":")
        if scheme == "sqlite" and not self.starts and not Path(file).exists():
            # Makes a store where there is none yet.
            command = [str(part) for part in (TOLLGATE, "--conf", self.conf, "init")]
            subprocess.run(command, check=True, capture_output=True, cwd=self.conf.parent, env=self.environment)
        super().start()
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds=START_WAIT_S):
        def ready():
            if not self.alive():
                raise RuntimeError(f"{self.name} ended:\n{self.tail()}")
            return self.ready()

        until(ready, f"{self.name} is ready", seconds)

    def ready(self):
        try:
            return self.page("/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def page(self, path, seconds=2):
        """Status and text of a page of its admin address."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.admin}{path}", timeout=seconds) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    def metric(self, name):
        """The sum of a metric over its labels; 0 where there is none."""
        lines = (line for line in self.page("/metrics")[1].splitlines() if line.startswith(name))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line[len(name)] in "{ ")


def toml(sections, vendors):
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    for vendor, addresses in vendors.items():
        named = enumerate([addresses] if isinstance(addresses, str) else addresses)
        rows = (f'{{ name = "r{rank}", base_url = "{url}", key = "{VENDOR_KEY}" }}' for rank, url in named)
        lines += [f"[vendor.{vendor}]", f"routes = [{', '.join(rows)}]"]
    return "\n".join(lines) + "\n"
