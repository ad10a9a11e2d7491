"""A machine with systemd, in namespaces of its own, and the gateway installed on it."""

import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[2]
UNIT = "tollgate.service"
# A whole start, reload or upgrade takes less.
PATIENCE = 60

CONFIGURATION = """
[listen]
http = "127.0.0.1:8080"
admin = "127.0.0.1:9090"
[store]
url = "sqlite:/var/lib/tollgate/tollgate.db"
outbox = "/var/lib/tollgate/outbox"
[files]
url = "file:/var/lib/tollgate/files"
[audit]
to = "file:/var/lib/tollgate/audit.jsonl"
[rules]
dir = "/usr/share/tollgate/rules"
[vendor.vendor_b]
routes = [{ name = "main", base_url = "http://127.0.0.1:9999/vendor_b/chunk-delay=20;chunks=20/v1",
            key = "file:/run/credentials/tollgate.service/tollgate.vendor_b" }]
[vendor.vendor_c]
routes = [{ name = "main", base_url = "http://127.0.0.1:9999/vendor_c/chunk-delay=100;chunks=120/v1beta/openai",
            key = "file:/run/credentials/tollgate.service/vendor_c" }]
"""
# systemd before 254 knows no ImportCredential.
LOADED = """
[Service]
LoadCredential=vendor_c:/etc/tollgate/vendor_c.key
"""


class Machine:
    """See the module. `suite` is the Debian release whose systemd runs."""

    def __init__(self, suite, tollgate, sim):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tollgate-machine-"))
        self.processes = []
        extra = self.folder / "extra"
        self._install(extra, suite, tollgate)
        root = subprocess.run([HERE / "root", suite], check=True, stdout=subprocess.PIPE, text=True)
        machine = self.folder / "machine"
        machine.mkdir()
        self.log = machine / "log"
        boot = [HERE / "machine", root.stdout.strip(), extra, machine]
        self.processes.append(subprocess.Popen(boot))
        self.wait(lambda: (machine / "pid").exists(), "a machine")
        self.pid = (machine / "pid").read_text().strip()
        self.wait(lambda: self.run("systemctl", "is-system-running", check=False).strip()
                  in ("running", "degraded"), "a machine that is up")
        serve = ["nsenter", "--target", self.pid, "--net", sim, "--listen", "127.0.0.1:9999"]
        self.processes.append(subprocess.Popen(serve, stdout=subprocess.DEVNULL))
        self.run("systemd-sysusers", "--inline", 'u tollgate - "tollgate" /var/lib/tollgate')
        self.run("install", "-d", "-o", "tollgate", "-g", "tollgate", "-m", "0700", "/var/lib/tollgate")
        self.tollgate("init")
        self.tollgate("account", "create", "shop", "--credit", "5000")
        self.key = self.tollgate("key", "issue", "shop").strip()

    def _install(self, extra, suite, tollgate):
        def put(path, text, mode=0o644):
            file = extra / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(mode)

        units = REPO / "packaging/systemd"
        for unit in ("tollgate.service", "tollgate-upgrade.service"):
            put(f"usr/lib/systemd/system/{unit}", (units / unit).read_text())
        put("etc/tollgate/tollgate.toml", CONFIGURATION)
        put("etc/tollgate/vendor_c.key", "vk-loaded-from-a-file\n", 0o600)
        put("etc/credstore/tollgate.vendor_b", "vk-imported-from-the-store\n", 0o600)
        put(f"etc/systemd/system/{UNIT}.d/keys.conf", LOADED)
        if suite == "bookworm":
            put(f"etc/systemd/system/{UNIT}.d/reload.conf", (units / "before-254.conf").read_text())
            put(f"etc/systemd/system/{UNIT}.d/credential.conf",
                "[Service]\nLoadCredential=tollgate.vendor_b:/etc/credstore/tollgate.vendor_b\n")
        # A shorter hang is enough here.
        put(f"etc/systemd/system/{UNIT}.d/watchdog.conf", "[Service]\nWatchdogSec=4\n")
        shutil.copytree(REPO / "lua-free-rules", extra / "usr/share/tollgate/rules")
        (extra / "usr/bin").mkdir(parents=True, exist_ok=True)
        # A debug build is large, and lies in memory here.
        strip = ["objcopy", "--strip-debug", tollgate, extra / "usr/bin/tollgate"]
        subprocess.run(strip, check=True)

    def run(self, *command, check=True):
        """Runs a command on the machine, as root; returns what it says."""
        enter = ["nsenter", "--target", self.pid, "--mount", "--pid", "--net", "--uts", "--ipc",
                 "--cgroup", "--root", "--wd", *command]
        done = subprocess.run(enter, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=120, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        assert not check or done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def tollgate(self, *command):
        """Runs a command of the gateway as its user."""
        return self.run("runuser", "-u", "tollgate", "--", "/usr/bin/tollgate", "--conf",
                        "/etc/tollgate/tollgate.toml", *command)

    def shown(self, name):
        """A property of the unit."""
        return self.run("systemctl", "show", "--property", name, "--value", UNIT).strip()

    def journal(self):
        """What the unit has logged, and what systemd says of it."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--boot", "--unit", UNIT)

    def wait(self, holds, what, patience=PATIENCE):
        end = time.monotonic() + patience
        while not holds():
            ended = [p.args for p in self.processes if p.poll() is not None]
            assert not ended, f"{ended} ended; {self.log.read_text()[-3000:]}"
            assert time.monotonic() < end, f"not in time: {what}; {self.told()}"
            time.sleep(0.1)

    def told(self):
        """All that helps to see why a test fails."""
        status = self.run("systemctl", "status", "--no-pager", "--lines=0", UNIT, check=False)
        return f"{status}\n{self.journal()[-6000:]}\n{self.log.read_text()[-3000:]}"

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)


class Caller:
    """Makes streamed calls, one after the other, until it is told to stop. `anew` says whether
    each comes on a connection of its own."""

    def __init__(self, machine, anew, model="lmb-5.5"):
        self.machine, self.anew, self.model = machine, anew, model
        self.count, self.failed, self.has_begun = 0, None, threading.Event()
        self.stops = False
        self.thread = threading.Thread(target=self._call_on, daemon=True)
        self.thread.start()

    def _call_on(self):
        enter_network(self.machine.pid)
        connection = None
        try:
            while self.count == 0 or not self.stops:
                connection = connection or http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
                closes = self._call(connection)
                self.count += 1
                if closes or self.anew:
                    connection.close()
                    connection = None
        except Exception as why:  # pylint: disable=broad-except
            self.failed = f"call {self.count}: {why!r}"
        finally:
            if connection is not None:
                connection.close()

    def _call(self, connection):
        body = {"model": self.model, "stream": True,
                "messages": [{"role": "user", "content": "How much is two and two?"}]}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {
            "authorization": f"Bearer {self.machine.key}", "content-type": "application/json"})
        answer = connection.getresponse()
        self.has_begun.set()
        text = answer.read().decode()
        assert answer.status == 200, f"{answer.status} {text}"
        assert text.rstrip().endswith("data: [DONE]"), f"cut: {text[-300:]}"
        return answer.will_close

    def stop(self):
        """Stops after the call that runs; returns how many calls were served."""
        self.stops = True
        self.thread.join(PATIENCE)
        assert self.failed is None, f"{self.failed}; {self.machine.told()}"
        return self.count


def enter_network(pid):
    """Moves this thread into the network of the machine."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    assert libc.setns(file, 0x40000000) == 0, os.strerror(ctypes.get_errno())
    os.close(file)
