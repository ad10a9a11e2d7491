"""A second opinion on vendor_a's translation: LiteLLM's, of the same chats and the same answers.

The cases are in litellm/requests and litellm/answers. Where the two opinions differ,
litellm/differences.toml holds what each side does and why ours stays as it is. A difference that
isn't there fails a test, and so does one that is there and no longer exists.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
import urllib.error
import urllib.request
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest

import pytest
from stack import HERE, Gateway, ask

FOLDER = HERE / "litellm"
REQUESTS = {
    name: request
    for file in sorted(FOLDER.glob("requests/*.json"))
    for name, request in json.loads(file.read_text()).items()
}
ANSWERS = {file.stem: file for file in sorted(FOLDER.glob("answers/*.*"))}
CONTENT_TYPES = {".json": "application/json", ".sse": "text/event-stream; charset=utf-8"}
DIFFERENCES = tomllib.loads((FOLDER / "differences.toml").read_text())
ABSENT = "absent"


def test_each_case_has_a_name_of_its_own_and_the_table_speaks_of_no_others():
    assert sum(len(json.loads(file.read_text())) for file in FOLDER.glob("requests/*.json")) == len(REQUESTS)
    for kind, cases in ("request", REQUESTS), ("answer", ANSWERS):
        assert all(entry[side] for entry in DIFFERENCES[kind] for side in ("litellm", "tollgate", "because"))
        assert {name for entry in DIFFERENCES[kind] for names in entry["cases"] for name in names.split()} <= set(cases)
    assert set(DIFFERENCES["refused"]) <= set(REQUESTS)


@pytest.mark.parametrize("case", REQUESTS)
def test_the_vendor_is_sent_what_litellm_would_send(case, opinion, vendor):
    theirs, ours = sent(opinion["requests"][case]), vendor.receive(REQUESTS[case])
    assert ours.pop("refused", None) == DIFFERENCES["refused"].get(case)
    assert differences(theirs, ours) == listed("request", case)


@pytest.mark.parametrize("case", ANSWERS)
def test_the_client_hears_what_litellm_would_say(case, opinion, canned):
    theirs, ours = said(opinion["answers"][case]), said(canned.say(case))
    assert differences(theirs, ours) == listed("answer", case)


def listed(kind, case):
    """The differences that the table has for a case: from their paths to both sides."""
    of_case = [paths for entry in DIFFERENCES[kind] for names, paths in entry["cases"].items() if case in names.split()]
    return {path: sides for paths in of_case for path, sides in paths.items()}


@pytest.fixture(scope="module")
def opinion(tmp_path_factory):
    """What LiteLLM makes of all cases. It takes longer to start than all of its tests, so the workers of a run start
    it once: the first of them asks, and leaves its answer to the others."""
    folder = tmp_path_factory.getbasetemp()
    if run := os.environ.get("PYTEST_XDIST_TESTRUNUID"):
        folder = folder.parent / f"opinion-{run}"
        folder.mkdir(exist_ok=True)
    told = folder / "opinion.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            told.write_text(asked())
    return json.loads(told.read_text())


def asked():
    answers = {name: (CONTENT_TYPES[file.suffix], file.read_bytes().decode()) for name, file in ANSWERS.items()}
    requests = {name: json.dumps(request) for name, request in REQUESTS.items()}
    done = subprocess.run(
        [sys.executable, FOLDER / "opinion.py"],
        input=json.dumps({"requests": requests, "answers": answers}),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=FOLDER,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def vendor(stacks):
    mark = len(stacks.running)
    # A gateway of its own, so that the last request is always the one just made.
    yield Vendor(stacks.gateway("sqlite", "sim", {"vendor_a": ""}))
    stacks.stop_since(mark)


@pytest.fixture(scope="module")
def canned(stacks):
    mark, folder = len(stacks.running), stacks.new_folder()
    replayer = stacks.start(Replayer())
    routes, store = {"vendor_a": [replayer.url]}, f"sqlite:{folder}/tollgate.db"
    yield Canned(stacks.start(Gateway(replayer, routes, store, folder)))
    stacks.stop_since(mark)


class Vendor:
    """The simulator, asked through the gateway."""

    def __init__(self, gateway):
        self.gateway, self.sim = gateway, gateway.vendor
        self.account = gateway.account(credit="100")

    def receive(self, chat):
        """What the vendor gets of a chat; `refused` says what the client is told is wrong with it."""
        before = self.sim.count()
        url = f"{self.gateway.base_url}/chat/completions"
        status, reply = post(url, json.dumps(chat), bearer(self.account.key))
        refused = {} if status == 200 else {"refused": reply["error"]["param"] or "the body"}
        assert status in (200, 400), reply
        if self.sim.count() == before:
            return {"sent": False} | refused
        with urllib.request.urlopen(f"{self.sim.url}/_bodies", timeout=5) as page:
            seen = exact(page.read())[-1]
        body, headers = self.plain(seen["body"], chat), of_interest(seen["headers"])
        outcome = {"sent": True, "headers": headers, "body": normal(body)}
        return outcome | ({"refused": "by the vendor"} if refused else {})

    def plain(self, body, chat):
        """A body without the digest of the user, which is another one for each account."""
        metadata = body.get("metadata", {})
        for user in {chat.get("user"), chat.get("safety_identifier")} - {None}:
            digest = hashlib.sha256(f"{self.account.name}\0{user}".encode()).hexdigest()
            if metadata.get("user_id") == digest:
                metadata["user_id"] = f"digest of {user}"
        return body


def sent(opinion):
    """What LiteLLM sends."""
    if "refused" in opinion:
        return {"sent": False}
    body = exact(UUID.sub("a-random-id", opinion["body"]))
    return {"sent": True, "headers": of_interest(opinion["headers"]), "body": normal(body)}


class Canned:
    """The gateway in front of a vendor that gives a case's answer."""

    def __init__(self, gateway):
        self.gateway, self.account = gateway, gateway.account(credit="100")

    def say(self, case):
        """As opinion.py has it: the reply, or the chunks of its stream, with an error if one came."""
        chat = {"model": "lma-sonnet-4-6", "messages": ask(case), "max_tokens": 512}
        streamed = ANSWERS[case].suffix == ".sse"
        if streamed:
            chat |= {"stream": True, "stream_options": {"include_usage": True}}
        url = f"{self.gateway.base_url}/chat/completions"
        status, text = post(url, json.dumps(chat), bearer(self.account.key), read=bytes.decode)
        if not streamed:
            assert status == 200, text
            return {"reply": exact(text)}
        if status != 200:
            return {"chunks": [], "error": text}
        *events, end = text.split("\n\n")
        assert end == ""
        data = [event.removeprefix("data: ") for event in events if not event.startswith(":")]
        chunks = [exact(event) for event in data if event != "[DONE]"]
        errors = [chunk for chunk in chunks if "error" in chunk]
        # Nothing comes after an error, nor after the end; one of the two always comes.
        assert chunks[-1:] == errors if errors else data[-1] == "[DONE]" and "[DONE]" not in data[:-1]
        return {"chunks": [c for c in chunks if c not in errors]} | ({"error": errors} if errors else {})


class Replayer(ThreadingHTTPServer):
    """A vendor that answers with the bytes of the case it is asked for."""

    daemon_threads = True

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            file = ANSWERS[asked["messages"][0]["content"][0]["text"]]
            self.send_response(200)
            self.send_header("content-type", CONTENT_TYPES[file.suffix])
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in file.read_bytes(), b"":
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

        def log_message(self, *_):
            pass

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self):
        self.shutdown()
        self.server_close()


def post(url, body, headers, read=json.loads):
    """The status of the answer, and what it holds."""
    headers = {"content-type": "application/json"} | headers
    request = urllib.request.Request(url, body.encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, read(reply.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, read(refusal.read())


def bearer(key):
    return {"authorization": f"Bearer {key}"}


UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def exact(text):
    """JSON without loss: no float stands between two numbers."""
    return json.loads(text, parse_float=Decimal)


def of_interest(headers):
    """What the headers of a request say to the vendor about its reading."""
    return {name: headers[name] for name in ("anthropic-version", "anthropic-beta") if name in headers}


def normal(body):
    """A messages request, with one way to say what can be said in two.

    A string is the same as one text block, an empty list of what may be left out the same as its
    absence, and a tool's type is `custom` unless it has another. Models have two names as well.
    """
    body = {name: value for name, value in body.items() if value != []}
    body["model"] = body["model"].replace("claude-", "lma-")
    if "system" in body:
        body["system"] = blocks(body["system"])
    for message in body["messages"]:
        message["content"] = blocks(message["content"])
        for block in message["content"]:
            if block["type"] == "tool_result" and "content" in block:
                block["content"] = blocks(block["content"])
                if block["content"] == []:
                    del block["content"]
    for tool in body.get("tools", []):
        if tool.get("type") == "custom":
            del tool["type"]
    return body


def blocks(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else content


def said(answer):
    """What a client gets to know from a reply, or from the chunks of its stream."""
    if "chunks" in answer:
        message, finish, usage = together(answer["chunks"])
    else:
        (choice,) = answer["reply"]["choices"]
        message, finish, usage = choice["message"], choice["finish_reason"], answer["reply"]["usage"]
    calls = message.get("tool_calls") or []
    return {
        "error": "error" in answer,
        **{name: message.get(name) for name in ("content", "refusal", "reasoning_content")},
        "tool_calls": [
            {"id": call["id"], "type": call["type"], "name": call["function"]["name"], "arguments": arguments(call)}
            for call in calls
        ],
        "finish_reason": finish,
        "usage": usage and counts(usage),
    }


def together(chunks):
    """The message, the finish reason and the usage that chunks add up to."""
    message, finish, usage = {}, None, None
    calls = {}
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            for name in "content", "refusal", "reasoning_content":
                if piece := choice["delta"].get(name):
                    message[name] = message.get(name, "") + piece
            for piece in choice["delta"].get("tool_calls") or []:
                call = calls.setdefault(piece["index"], {"id": None, "type": None, "function": {"name": None}})
                call |= {name: piece[name] for name in ("id", "type") if piece.get(name)}
                function = call["function"]
                function["name"] = piece["function"].get("name") or function["name"]
                function["arguments"] = function.get("arguments", "") + (piece["function"].get("arguments") or "")
    return message | {"tool_calls": [calls[index] for index in sorted(calls)]}, finish, usage


def arguments(call):
    """What arguments mean; those that are no JSON, as they are."""
    with contextlib.suppress(json.JSONDecodeError):
        return exact(call["function"]["arguments"])
    return call["function"]["arguments"]


def counts(usage):
    counts = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    for details, names in ("prompt_tokens_details", ("cached_tokens", "cache_write_tokens")), (
        "completion_tokens_details",
        ("reasoning_tokens",),
    ):
        counts |= {name: (usage.get(details) or {}).get(name) for name in names}
    return counts


def differences(theirs, ours, path=""):
    """From the path of each difference to both sides of it, as JSON."""
    if not path and theirs.get("sent") != ours.get("sent"):
        return {"": ["sent" if side["sent"] else "refused" for side in (theirs, ours)]}
    if type(theirs) is type(ours) is dict:
        found = {}
        for name in [*theirs, *(name for name in ours if name not in theirs)]:
            sides = theirs.get(name, ABSENT), ours.get(name, ABSENT)
            found |= differences(*sides, f"{path}.{name}" if path else name)
        return found
    if type(theirs) is type(ours) is list:
        alike = next((i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b), min(len(theirs), len(ours)))
        rest = theirs[alike:], ours[alike:]
        while all(rest) and rest[0][-1] == rest[1][-1]:
            rest = rest[0][:-1], rest[1][:-1]
        found = {}
        for i, sides in enumerate(zip_longest(*rest, fillvalue=ABSENT), alike):
            found |= differences(*sides, f"{path}[{i}]")
        return found
    return {} if theirs == ours else {path: [written(theirs), written(ours)]}


def written(value):
    """A value as JSON, in which a decimal stands as it came."""
    if value is ABSENT:
        return ABSENT
    text = json.dumps(value, ensure_ascii=False, default=lambda number: f"\0{number}\0")
    return text.replace('"\\u0000', "").replace('\\u0000"', "")
