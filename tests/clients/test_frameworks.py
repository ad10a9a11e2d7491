"""Frameworks that others build on the vendors' SDKs: tools, structured outputs and crowds, as each of them does it.

Each framework is a process that plays what a test asks for; see frameworks/player.py.
"""

import json
import re
import subprocess
import sys

import pytest
from books import NAMES, Books
from stack import HERE, REPO

# LlamaIndex needs an older SDK of vendor_b than everybody else, so it has an environment of its own.
PYTHON_OF_LLAMA_INDEX = REPO / ".venv/llama_index/bin/python"
FRAMEWORKS = {
    "ai_sdk": ["node", "ai_sdk_player.mjs"],
    "langchain": [sys.executable, "langchain_player.py"],
    "pydantic_ai": [sys.executable, "pydantic_ai_player.py"],
    "openai_agents": [sys.executable, "openai_agents_player.py"],
    "llama_index": [PYTHON_OF_LLAMA_INDEX, "llama_index_player.py"],
}

# A framework, the API that it speaks, a model, and the record that it can be asked for there.
WAYS = [
    ("ai_sdk", "responses", "lmb-5.5", "object echo"),
    ("ai_sdk", "chat", "lmb-5.5", "echo"),
    ("ai_sdk", "messages", "claude-opus-5", "echo"),
    ("ai_sdk", "messages", "lma-opus-5", "place"),
    ("ai_sdk", "compatible", "lma-opus-5", "echo"),
    ("ai_sdk", "compatible", "lmc-3.5-flash", "object echo"),
    ("langchain", "chat", "lmb-5.5", "echo"),
    ("langchain", "responses", "lmb-5.5", "echo"),
    ("langchain", "messages", "claude-opus-5", "echo"),
    ("langchain", "messages", "lma-sonnet-4-6", "place"),
    ("langchain", "chat", "lma-opus-5", "echo"),
    ("pydantic_ai", "chat", "lmb-5.5", "place"),
    ("pydantic_ai", "responses", "lmb-5.5", "echo"),
    ("pydantic_ai", "messages", "claude-opus-5", "echo"),
    ("pydantic_ai", "messages", "lma-opus-5", "place"),
    ("pydantic_ai", "chat", "lma-opus-5", "echo"),
    ("openai_agents", "responses", "lmb-5.5", "echo"),
    ("openai_agents", "chat", "lmb-5.5", "echo"),
    ("openai_agents", "chat", "lma-opus-5", "echo"),
    ("llama_index", "chat", "gpt-5.5", "echo"),
    ("llama_index", "responses", "gpt-5.5", "echo"),
    ("llama_index", "messages", "claude-opus-5", "echo"),
    ("llama_index", "compatible", "lma-opus-5", "place"),
]
# What each does unasked; with a credit that covers about half of what ten calls hold at once.
CROWDS = [
    ("ai_sdk", "responses", "lmb-5.5", False, "0.65"),
    ("ai_sdk", "messages", "claude-opus-5", True, "1.1"),
    ("langchain", "chat", "lmb-5.5", False, "0.65"),
    ("langchain", "messages", "claude-opus-5", True, "1.1"),
    ("pydantic_ai", "chat", "lmb-5.5", True, "0.65"),
    ("pydantic_ai", "messages", "claude-opus-5", True, "1.1"),
    ("openai_agents", "responses", "lmb-5.5", False, "0.65"),
    ("llama_index", "chat", "gpt-5.5", True, "0.65"),
    ("llama_index", "messages", "claude-opus-5", False, "0.08"),
]
each_way = pytest.mark.parametrize(("framework", "api", "model", "text"), WAYS, ids=lambda value: str(value))
each_crowd = pytest.mark.parametrize(
    ("framework", "api", "model", "streamed", "credit"), CROWDS, ids=lambda value: str(value)
)
both_stores = pytest.mark.stores("sqlite", "redis")
pytestmark = pytest.mark.stores("sqlite")


class Player:
    """A framework, in a process of its own as long as there are tests."""

    def __init__(self, command, folder):
        interpreter, script = command
        self.log = folder / f"{script}.log"
        self.process = subprocess.Popen(
            [interpreter, HERE / "frameworks" / script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("wb"),
            text=True,
        )

    def play(self, books, **task):
        """What it made of a task."""
        task |= {"root": books.gateway.root, "key": books.account.key}
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.log.read_text(errors="replace")[-3000:]
        told = json.loads(line)
        assert "error" not in told, told["error"]
        return told

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def players(tmp_path_factory):
    folder, started = tmp_path_factory.mktemp("players"), {}

    def player(framework):
        if framework not in started:
            started[framework] = Player(FRAMEWORKS[framework], folder)
        return started[framework]

    yield player
    for one in started.values():
        one.stop()


def counted(*told):
    """The tokens that a framework counts in all, if it does."""
    return tuple(sum(one[kind] for one in told) for kind in ("input", "output")) if "input" in told[0] else None


@each_way
def test_tools_have_their_results_answered_whole_and_streamed(
    gateway, vendor_kind, players, framework, api, model, text
):
    books = Books(gateway(vendor_b="", names=NAMES))
    part = {"part": "tools", "api": api, "model": model, "text": "weather tools=2"}
    both = [players(framework).play(books, **part, streamed=streamed) for streamed in (False, True)]
    for told in both:
        assert "31 degrees" in told["text"]
        # aimock calls two tools at once, and then some frameworks run both at once.
        assert sorted(told["cities"]) == (["Oslo", "Rome"] if vendor_kind == "aimock" else ["Rome"])
    reported = books.assert_exact(4)
    # At the start of a message, where one of them looks, aimock reports no input.
    assert vendor_kind == "aimock" or counted(*both) in (None, reported)


@pytest.mark.vendors("sim")
@each_way
def test_a_record_comes_as_it_was_described_whole_and_streamed(gateway, players, framework, api, model, text):
    # LlamaIndex asks for records of streamed responses by a tool, and then makes nothing of the tool's arguments.
    ways = (False,) if (framework, api) == ("llama_index", "responses") else (False, True)
    fault = "" if text == "place" else "echo"
    books = Books(gateway(vendor_a=fault, vendor_b=fault, vendor_c=fault, names=NAMES))
    part = {"part": "record", "api": api, "model": model, "text": text}
    all_told = [players(framework).play(books, **part, streamed=streamed) for streamed in ways]
    for told, request in zip(all_told, books.gateway.vendor.requests(), strict=True):
        if text == "place":
            assert told["record"] == {"city": "Rome"}
        else:
            assert told["record"]["bytes"] == int(request.headers["content-length"])
            assert re.fullmatch("[0-9a-f]{16}", told["record"]["fnv"])
    assert counted(*all_told) in (None, books.assert_exact(len(ways)))


@both_stores
@pytest.mark.vendors("sim")
@each_crowd
def test_ten_calls_at_once_are_ten_answers(gateway, players, framework, api, model, streamed, credit):
    books = Books(gateway(vendor_b="", names=NAMES), credit="40")
    part = {"part": "crowd", "api": api, "model": model, "streamed": streamed}
    told = players(framework).play(books, **part, texts=["hello"] * 10)
    assert len(told["texts"]) == 10 and all(told["texts"]) and not books.refusals()
    assert counted(told) in (None, books.assert_exact(10))


@both_stores
@pytest.mark.vendors("sim")
@each_crowd
def test_money_that_others_hold_refuses_nobody_for_good(gateway, players, framework, api, model, streamed, credit):
    slow = "delay=700"
    books = Books(gateway(vendor_a=slow, vendor_b=slow, names=NAMES), credit)
    part = {"part": "crowd", "api": api, "model": model, "streamed": streamed}
    told = players(framework).play(books, **part, texts=[f"hello {number}" for number in range(10)])
    assert len(told["texts"]) == 10 and all(told["texts"])
    assert set(books.refusals()) <= {"credit_in_use"}
    assert counted(told) in (None, books.assert_exact(10))
