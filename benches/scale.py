#!/usr/bin/env python3
"""Whether tollgate stays as quick when there is more of everything.

`scale.py [PART...]`, of these, in all about 24 minutes on a quiet machine with two cores:

accounts   cost per request with 1, 100 and 10,000 accounts that take turns (7 minutes)
journal    cost per request after 0, 1 and 10 million charges (7 minutes; 5 GB of disk, 6 GB of memory)
streams    memory of each of 5,000 slow streams, next to bare pingora and nginx (5 minutes)
nodes      two gateways on one Redis against one (1 minute)
redis      where Redis is the limit; batches, and a cluster of three shards (4 minutes)

and only if it is named:

rates      the error of rate limits in the long run, with one gateway and two (31 minutes)
archive    ten million charges of a thousand accounts, summed up, archived, trimmed and queried (needs DuckDB)
console    pages with ten thousand accounts and keys, and calls while somebody looks (4 minutes)

Each prints a table, `ratio` lines, and `target` lines that say whether what was asked for was met; whatever
it made is gone at the end. It ends with 1 if a target was missed. SCALE=small tries the bench itself out, in
a fiftieth of the size: then nothing is judged.
"""

import importlib
import shutil
import signal
import sys
import time

from processes import FOLDER, begin_folder, started, stop_all
from scale_world import SMALL, many_files, stop_since, verdicts

PARTS = ["accounts", "journal", "streams", "nodes", "redis"]
KNOWN = [*PARTS, "rates", "archive", "console"]


def clear():
    """Takes away what a part made, but for what its processes said."""
    for path in FOLDER.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".log":
            path.unlink()


def main():
    parts = sys.argv[1:] or PARTS
    unknown = [part for part in parts if part not in KNOWN]
    if unknown:
        sys.exit(f"no such part: {' '.join(unknown)}; known are {', '.join(KNOWN)}")
    begin_folder()
    many_files()
    for part in parts:
        began, before = time.monotonic(), len(started)
        print(f"== {part}{' (small)' if SMALL else ''}", flush=True)
        try:
            importlib.import_module(f"scale_{part}").run()
        finally:
            stop_since(before)
            clear()
        print(f"{part}: {time.monotonic() - began:.0f} s\n", flush=True)
    missed = [what for what, good in verdicts if not good]
    print(f"{len(verdicts) - len(missed)} of {len(verdicts)} targets met")
    for what in missed:
        print(f"missed: {what}")
    return 1 if missed and not SMALL else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    finally:
        stop_all()
    sys.exit(code)
