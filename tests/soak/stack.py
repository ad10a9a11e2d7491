"""What a soak machine runs against: simulated vendors, a store, gateways, all on loopback and in a
folder that is gone afterwards. Standard library only.
"""

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from processes import GATEWAY, REPO, VENDOR_KEY, Process, Redis, Sim, free_port, until

VENDORS = ("vendor_a", "vendor_b", "vendor_c", "vendor_d", "vendor_e")
NANO = 10**9
# For whatever the gateway answers by itself.
ANSWER_SECONDS = 10


class Gateway:
    """A running tollgate. `routes` maps a vendor to its routes, each a dict of name, base_url and key;
    `more` has further sections of its configuration."""

    def __init__(self, folder, store_url, routes, more=None, name="tollgate", environment=None):
        self.folder, self.conf = folder, folder / f"{name}.toml"
        self.port, self.admin_port = free_port(), free_port()
        self.address = ("127.0.0.1", self.port)
        sections = {
            "listen": {"http": f"127.0.0.1:{self.port}", "admin": f"127.0.0.1:{self.admin_port}"},
            "store": {"url": store_url},
            "files": {"url": f"file:{folder}/files"},
            "rules": {"dir": f"{REPO}/lua-free-rules"},
        }
        for section, values in (more or {}).items():
            sections[section] = sections.get(section, {}) | values
        self.conf.write_text(configuration(sections, routes))
        if store_url.startswith("sqlite:"):
            self.cli("init")
        self.process = Process(name, [GATEWAY, "--conf", self.conf, "serve"], folder, **(environment or {}))
        self.stop = self.process.stop
        self.pid = self.process.child.pid
        until(self.is_ready, f"{name} is ready", seconds=20)

    def is_ready(self):
        self.process.check_alive()
        try:
            return self.admin("/readyz")[0] == 200
        except OSError:
            return False

    def is_alive(self):
        return self.process.child.poll() is None

    def admin(self, path):
        """Status and text of a page for the operator."""
        try:
            url = f"http://127.0.0.1:{self.admin_port}{path}"
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as reply:
            return reply.code, reply.read().decode()

    def metric(self, name):
        """The sum of all series of a metric."""
        lines = self.admin("/metrics")[1].splitlines()
        mine = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in mine)

    def command(self, *arguments):
        command = [str(part) for part in (GATEWAY, "--conf", self.conf, *arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=self.folder)

    def cli(self, *arguments):
        """Runs a tollgate command on this gateway's store; what it prints."""
        done = self.command(*arguments)
        assert done.returncode == 0, f"tollgate {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def account(self, name, credit):
        self.cli("account", "create", name, "--credit", str(credit))
        return Account(self, name, self.key(name))

    def key(self, account):
        return self.cli("key", "issue", account)

    def memory(self):
        """Resident bytes, now and at most so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith("Vm")}
        return kilobytes["VmRSS"] << 10, kilobytes["VmHWM"] << 10

    def descriptors(self):
        folder = f"/proc/{self.pid}/fd"
        try:
            return len(os.listdir(folder))
        except PermissionError:
            # Only root sees those of a process that leaves no dumps; Linux 6.2 and newer count them.
            return os.stat(folder).st_size

    def said(self):
        """All that it wrote so far."""
        return self.process.log.read_bytes()


class Account:
    def __init__(self, gateway, name, key):
        self.gateway, self.name, self.key = gateway, name, key

    def balance(self):
        return json.loads(self.gateway.cli("--json", "account", "show", self.name))

    def charges(self):
        lines = self.gateway.cli("--json", "charges", self.name).splitlines()
        return [json.loads(line) for line in lines]

    def settled(self, seconds):
        """The balance once nothing is held, or as it is after so long."""
        try:
            return until(lambda: (b := self.balance())["held_nano"] == 0 and b, "nothing is held", seconds)
        except AssertionError:
            return self.balance()


def configuration(sections, routes):
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    for vendor, ways in routes.items():
        inline = ["{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in way.items()) + " }" for way in ways]
        lines += [f"[vendor.{vendor}]", f"routes = [{', '.join(inline)}]"]
    return "\n".join(lines) + "\n"


def route(sim, vendor, fault="", name="main", key=VENDOR_KEY):
    return {"name": name, "base_url": sim.address(vendor, fault), "key": key}


class Stack:
    """Starts the parts and stops them, newest first, whatever happens in between."""

    def __init__(self, store="sqlite", in_memory=False):
        self.store = store
        # A file system without a disk, for who measures time: a disk is shared with all the others.
        self.place = "/dev/shm" if in_memory and os.access("/dev/shm", os.W_OK) else None

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tollgate-stack-", dir=self.place))
        self.running = []
        return self

    def __exit__(self, *_):
        while self.running:
            self.running.pop().stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def room(self, name):
        """A folder of a part's own."""
        path = self.folder / f"{name}-{secrets.token_hex(4)}"
        path.mkdir()
        return path

    def start(self, part):
        self.running.append(part)
        return part

    def sim(self):
        return self.start(Sim(self.room("sim")))

    def redis(self):
        return self.start(Redis(self.room("redis")))

    def gateway(self, routes, more=None, store_url=None, **options):
        folder = self.room("gateway")
        if store_url is None:
            store_url = f"sqlite:{folder}/tollgate.db" if self.store == "sqlite" else self.redis().url
        return self.start(Gateway(folder, store_url, routes, more, **options))
