"""Processes of a bench: all are ours, all end with us. What they cost is read from /proc."""

import fcntl
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
FOLDER = ROOT / "var" / "bench"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

started = []


def begin_folder():
    """Makes the folder of the benches, empty. It is of one run at a time: another one would take its files away."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    # It stays open, and so locked, until this process ends.
    lock = os.open(FOLDER.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"failed: another bench uses {FOLDER}")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)


def start(name, command, env=None, cwd=None):
    words, extra = list(map(str, command)), {**os.environ, **(env or {})}
    with open(FOLDER / f"{name}.log", "wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=extra, cwd=cwd)
    started.append(process)
    return process


def end(process, number=signal.SIGTERM):
    """Ends one of ours, and waits for it."""
    process.send_signal(number)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        sys.exit(f"failed: {process.args[0]} did not end within 30 s; see {FOLDER}")


def stop_all():
    for process in reversed(started):
        process.terminate()
    for process in reversed(started):
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# Below the ports that the system hands out, so that no connection takes one in between.
PORTS = iter(random.sample(range(10_000, 32_000), 22_000))


def free_port():
    """A port where nobody listens; never the same twice."""
    return next(port for port in PORTS if not listening(port))


def until(what, probe, seconds=20):
    """Repeats the probe until it returns something true, and returns that."""
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            sys.exit(f"failed: {what} within {seconds} s; see {FOLDER}")
        time.sleep(0.05)


def many_files():
    """As many open files as this machine allows; whatever we start inherits that."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def listening(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def family(pid):
    """A process and its children: nginx works in a child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def cpu_seconds(pid):
    total = 0
    for member in family(pid):
        # The command's name may contain spaces; the fields after it may not.
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def rss_mib(pid):
    pages = sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in family(pid))
    return pages * PAGE / 2**20


def peak_mib(pid):
    """The most that was resident since the last `forget_peak`."""
    kib = 0
    for member in family(pid):
        lines = Path(f"/proc/{member}/status").read_text().splitlines()
        kib += next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return kib / 1024


def forget_peak(pid):
    """From now on the peak is what is resident now, or more."""
    for member in family(pid):
        Path(f"/proc/{member}/clear_refs").write_text("5")
