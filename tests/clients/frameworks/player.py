"""What a framework's script has in common with the others: it does what a test asks for, in lines of JSON.

A line in is a task: `part` (tools, record or crowd), `api` (chat, responses, messages or compatible),
`model`, `streamed`, `root` and `key` of the gateway, and the `text`, or the `texts` of a crowd. A line out
is what the framework made of it: `text` or `texts`, the `cities` that its tool was run with, the `record`,
the tokens that it counts (`input`, `output`), or the `error` that it raised.

The record of a task is an Echo, asked for as the schema of the whole answer, or, where the text is
"place", a Place, asked for as the arguments of a tool.
"""

import asyncio
import json
import sys
from types import SimpleNamespace

from pydantic import BaseModel

CITY_WEATHER = "31 degrees"


class Echo(BaseModel):
    """What has arrived."""

    bytes: int
    fnv: str


class Place(BaseModel):
    """A place."""

    city: str


def play(parts):
    """Plays tasks until there are no more; `parts` are async functions of a task, by their names."""
    out, sys.stdout = sys.stdout, sys.stderr
    loop = asyncio.new_event_loop()
    for line in sys.stdin:
        task = SimpleNamespace(**json.loads(line))
        try:
            told = loop.run_until_complete(parts[task.part](task))
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=out, flush=True)
