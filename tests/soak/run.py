#!/usr/bin/env python3
"""Machines that try to break a gateway, each against a stack of its own on loopback:

    python3 tests/soak/run.py MACHINE... [--long] [--seed N] [--report FILE.json]

Prints figures; exits with 1 if anything was violated. Programs under test: TOLLGATE_BIN, TOLLGATE_SIM
(default: the debug build).
"""

import argparse
import importlib
import signal
import sys
from pathlib import Path

# Nothing is left beside the sources.
sys.dont_write_bytecode = True
# The processes of the clients' tests are those of the machines.
sys.path.append(str(Path(__file__).parent.parent / "clients"))

# By the name of its module: what it is for, and seconds after which a form of it has hung.
MACHINES = {
    "money": ("ledger operations while processes are killed", 300, 6 * 3_600),
    "crowd": ("many calls at once on credit for few", 300, 2 * 3_600),
    "hangups": ("clients that hang up after each chunk", 300, 3_600),
    "faults": ("stores, vendors and machines that fail", 300, 2 * 3_600),
    "hostile": ("hostile requests of many families", 120, 3_600),
    "slow": ("slow sockets", 120, 900),
    "canaries": ("secrets that must not come out", 120, 900),
}


def main():
    options = arguments()
    # So that whatever was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sound = True
    for name in options.machines:
        what, short_max, long_max = MACHINES[name]
        print(f"{name}: {what}, {'long' if options.long else 'short'} form, seed {options.seed}", flush=True)
        signal.signal(signal.SIGALRM, lambda *_: hung())
        signal.alarm(long_max if options.long else short_max)
        report = importlib.import_module(name).run(options)
        signal.alarm(0)
        sound &= report.end()
        if options.report:
            report.write(options.report if len(options.machines) == 1 else f"{name}-{options.report}")
    return 0 if sound else 1


def hung():
    raise TimeoutError("the machine has hung")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="+", choices=MACHINES, metavar="MACHINE", help=", ".join(MACHINES))
    parser.add_argument("--long", action="store_true", help="the long form")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", metavar="FILE.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
