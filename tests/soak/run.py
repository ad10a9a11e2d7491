#!/usr/bin/env python3
"""Machines that try to break a gateway, each against a stack of its own on loopback:

    python3 tests/soak/run.py [MACHINE...] [--long] [--seed N] [--report FILE.json]
                              [--allotments on|off|as-is] [--older-bin PATH]

Without a name: all of them, except `older`, which needs the binary of an older version; with
--allotments on or off: all that move money. The short forms of many run a few at a time; the long
forms one after the other, since they also judge times. Prints figures; exits with 1 if anything was
violated.
Programs under test: TOLLGATE_BIN, TOLLGATE_SIM (default: the debug build).
"""

import argparse
import importlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Nothing is left beside the sources.
sys.dont_write_bytecode = True
# The processes of the clients' tests are those of the machines.
sys.path.append(str(Path(__file__).parent.parent / "clients"))

import allotments  # noqa: E402, nothing is left beside it either

# By the name of its module: what it is for, and seconds after which a form of it has hung.
MACHINES = {
    "money": ("ledger operations while processes are killed", 300, 6 * 3_600),
    "crowd": ("many calls at once on credit for few", 300, 2 * 3_600),
    "hangups": ("clients that hang up after each chunk", 300, 3_600),
    "faults": ("stores, vendors and machines that fail", 300, 2 * 3_600),
    "cluster": ("masters that are replaced, in a cluster and behind Sentinels", 600, 2 * 3_600),
    "hostile": ("hostile requests of many families", 300, 3_600),
    "slow": ("slow sockets", 300, 900),
    "tenants": ("one tenant against all", 300, 900),
    "unread": ("clients that read nothing of large answers", 300, 1_800),
    "canaries": ("secrets that must not come out", 300, 900),
    "older": ("an older version beside this one, in turns and at once", 600, 2 * 3_600),
}
# What is run only by its name.
ON_DEMAND = ("older",)
# In these allotments can be forced on and off.
MOVES_MONEY = ("money", "crowd", "hangups", "faults", "cluster")
# Short forms mostly wait.
AT_ONCE = 3
# The machines that run, of many.
RUNNING = set()


def main():
    options = arguments()
    names = options.machines
    if len(names) == 1:
        return alone(names[0], options)
    signal.signal(signal.SIGTERM, lambda *_: stop_all())
    with ThreadPoolExecutor(1 if options.long else AT_ONCE) as pool:
        results = list(pool.map(lambda name: child(name, options), names))
    failed = [name for name, result in zip(names, results, strict=True) if result]
    print(f"violations: {', '.join(failed)}" if failed else "all machines held")
    return 1 if failed else 0


def child(name, options):
    """A machine in a process of its own, told as a whole."""
    command = [sys.executable, __file__, name, "--seed", str(options.seed), "--allotments", options.allotments]
    if options.older_bin:
        command += ["--older-bin", options.older_bin]
    if options.report:
        command += ["--report", Path(options.report).with_name(f"{name}-{Path(options.report).name}")]
    if options.long:
        command.append("--long")
    # The long forms run alone, and are told as they go.
    output = {} if options.long else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **output) as machine:
        RUNNING.add(machine)
        told, _ = machine.communicate()
        RUNNING.discard(machine)
    print(told or "", end="", flush=True)
    return machine.returncode


def stop_all():
    """Has each machine stop what it started. Those that have not begun do not."""
    for machine in set(RUNNING):
        machine.terminate()
    sys.exit(143)


def alone(name, options):
    what, short_max, long_max = MACHINES[name]
    # So that whatever was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: stopped())
    signal.signal(signal.SIGALRM, lambda *_: hung(name))
    signal.alarm(long_max if options.long else short_max)
    way = f", allotments {options.allotments}" if name in MOVES_MONEY else ""
    print(f"{name}: {what}, {'long' if options.long else 'short'} form, seed {options.seed}{way}", flush=True)
    report = importlib.import_module(name).run(options)
    signal.alarm(0)
    sound = report.end()
    if options.report:
        report.write(options.report)
    return 0 if sound else 1


def hung(name):
    end_all_in(30)
    raise TimeoutError(f"{name} has hung")


def stopped():
    end_all_in(10)
    sys.exit(143)


def end_all_in(seconds):
    """Should threads that wait for something keep this process from ending."""
    signal.signal(signal.SIGALRM, lambda *_: end_all())
    signal.alarm(seconds)


def end_all():
    """Ends this process and all that it started."""
    for file in Path("/proc/self/task").glob("*/children"):
        for pid in file.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    os._exit(1)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help=", ".join(MACHINES))
    parser.add_argument("--long", action="store_true", help="the long form")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", metavar="FILE.json")
    parser.add_argument("--allotments", choices=allotments.WAYS, default=allotments.AS_IS)
    what = "an older tollgate, for the machine older"
    parser.add_argument("--older-bin", metavar="PATH", type=os.path.abspath, help=what)
    options = parser.parse_args()
    if unknown := set(options.machines) - set(MACHINES):
        parser.error(f"no such machine: {', '.join(sorted(unknown))}")
    if "older" in options.machines and not options.older_bin:
        parser.error("the machine older needs --older-bin")
    forced = options.allotments != allotments.AS_IS
    if forced and (other := set(options.machines) - set(MOVES_MONEY)):
        parser.error(f"allotments cannot be forced in {', '.join(sorted(other))}")
    usual = [name for name in MACHINES if name not in ON_DEMAND]
    options.machines = options.machines or (list(MOVES_MONEY) if forced else usual)
    return options


if __name__ == "__main__":
    sys.exit(main())
