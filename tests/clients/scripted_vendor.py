"""A vendor that plays a script with an agent, in each of the three formats, whole and streamed.

An agent chooses its tools, their names and their arguments, and changes them from version to version. So a
script says what is to be done, such as `write_file`, and finds the tool for it in the request.
"""

import contextlib
import itertools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

from processes import VENDOR_KEY
from vendor_replies import chat_reply, message_reply, response_reply

# What an agent is told when it asks without tools, for a title and the like.
ASIDE = "Notes"
# The tools by which agents load those of their tools that they do not send at once, and how often a
# conversation may call them before its step fails.
TOOL_SEARCHES = ("ToolSearch", "tool_search")
SEARCHES_MAX = 4


def say(text):
    """A step that ends a turn with a text."""
    return lambda request: SimpleNamespace(text=text, tool=None, arguments=None)


def call_tool(name, arguments):
    """A step that calls the tool whose name ends so, whatever an agent puts before it. An agent that does not
    send all of its tools at once is asked for it first. `arguments` may be made of the request."""

    def step(request):
        search = request.tool(Tool.loads_tools)
        if request.tool(is_it) is None and search and request.searches < SEARCHES_MAX:
            return call(search, search.filled({"query": request.full_name(name)}))
        return call(request.need(is_it), arguments(request) if callable(arguments) else arguments)

    def is_it(tool):
        return tool.name.endswith(name)

    return step


def spawn_and_wait(task):
    """The steps for an agent whose sub-agents work beside it: one that starts a sub-agent, one that waits for it."""

    def started(request):
        return {"targets": re.findall(r'agent_id\W+([0-9a-f-]{36})', request.text)}

    return [call_tool("spawn_agent", {"message": task}), call_tool("wait_agent", started)]


def write_file(name, text):
    """A step that writes a file in the agent's workspace, with the tool that the agent has for it."""

    def step(request):
        tool = request.tool(Tool.writes_files) or request.need(Tool.runs_commands)
        if tool.is_freeform:
            return call(tool, f"*** Begin Patch\n*** Add File: {name}\n+{text}\n*** End Patch\n")
        if command := tool.property("cmd", "command"):
            return call(tool, tool.filled({command: f"echo '{text}' > {name}"}))
        path, content = tool.property("file_path", "filePath", "path"), tool.property("content", "text")
        return call(tool, tool.filled({path: name, content: f"{text}\n"}))

    return step


def delegate(task):
    """A step that gives a task to a sub-agent and waits for what it says."""

    def step(request):
        tool = request.need(lambda tool: {"prompt", "subagent_type"} <= set(tool.properties))
        # Agents list the kinds of their sub-agents in a message or with the tool: the general one can write files.
        kind = re.search(r"- (general[\w-]*):", tool.description + request.text)[1]
        given = {"prompt": task, "subagent_type": kind}
        return call(tool, tool.filled(given) | tool.only({"run_in_background": False, "model": "haiku"}))

    return step


def call(tool, arguments):
    return SimpleNamespace(text="", tool=tool, arguments=arguments)


class ScriptError(Exception):
    """The agent asked for something that its script has no step for."""


class Tool:
    """A tool of a request, in any format; `namespace` is that of the responses format."""

    def __init__(self, entry, namespace=None):
        entry = entry.get("function", entry)
        self.type, self.namespace = entry.get("type", "function"), namespace
        self.description = entry.get("description", "")
        self.name, self.is_freeform = entry.get("name", self.type), "format" in entry
        self.schema = entry.get("input_schema") or entry.get("parameters") or {}
        self.properties = self.schema.get("properties", {})

    def property(self, *names):
        """The first of these properties that it has."""
        return next((name for name in names if name in self.properties), None)

    def writes_files(self):
        """Whether it writes new files: by a patch, or by their content."""
        if self.is_freeform:
            return self.name == "apply_patch"
        return self.property("file_path", "filePath", "path") and self.property("content", "text")

    def runs_commands(self):
        return self.property("cmd", "command")

    def only(self, arguments):
        """Those of these arguments that it has."""
        return {name: value for name, value in arguments.items() if name in self.properties}

    def loads_tools(self):
        """Whether it brings tools that the agent has and did not send."""
        return self.name in TOOL_SEARCHES

    def filled(self, arguments):
        """These arguments, and something for each other one that it requires."""
        return {name: example(self.properties[name]) for name in self.schema.get("required", [])} | arguments


def example(schema):
    """A value that the schema of one argument allows."""
    if choices := schema.get("enum"):
        return choices[0]
    return {"string": "a part of the work", "boolean": False, "integer": 1, "number": 1, "array": []}[schema["type"]]


class ScriptedVendor:
    """An HTTP server. `script` maps a mark to the steps of the conversation whose task has the mark. `calls` has
    what it was asked and what it reported, `faults` what it could not answer."""

    def __init__(self, script):
        self.script, self.calls, self.faults = script, [], []
        self.numbers, self.lock = itertools.count(1), threading.Lock()
        handler = type("AnswerOfVendor", (Answer,), {"vendor": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path, body):
        """The reply to a request: its content type and its pieces; and the request's number."""
        endpoint = path.partition("?")[0].removeprefix("/v1/")
        history, make = ENDPOINTS[endpoint]
        with self.lock:
            number = next(self.numbers)
        request = Request(body, body[history])
        place, step = self.next_step(request) if request.tools else (None, say(aside(body)))
        answer = step(request)
        reply = make(number, body, answer)
        # A search for tools comes before its step, and is none.
        place = None if answer.tool and answer.tool.loads_tools() else place
        seen = {"endpoint": endpoint, "body": body, "usage": SimpleNamespace(**reply.usage), "place": place}
        self.calls.append(SimpleNamespace(request_id=f"req_scripted_{number}", **seen))
        return self.calls[-1].request_id, reply

    def next_step(self, request):
        """The step that the request is due, after its place: the mark of its conversation, and its turn there."""
        found = [(request.text.index(mark), mark) for mark in self.script if mark in request.text]
        if not found:
            raise ScriptError(f"no mark of the script is in {request.text[:2000]}")
        _, mark = min(found)
        if request.turns >= len(self.script[mark]):
            raise ScriptError(f"the script of {mark} ends before turn {request.turns}")
        return (mark, request.turns), self.script[mark][request.turns]


class Request:
    """What an agent asks: its tools, its conversation as text, and how many steps that had so far."""

    def __init__(self, body, talk):
        self.tools, self.text = list(tools_of(body)), json.dumps(talk).replace("\\n", "\n")
        ours = [item for item in talk if item.get("role") == "assistant" or item.get("type") in CALLS]
        searches = [item for item in ours if is_search(item)]
        self.turns, self.searches = len(ours) - len(searches), len(searches)

    def tool(self, is_wanted):
        return next((tool for tool in self.tools if is_wanted(tool)), None)

    def need(self, is_wanted):
        tool = self.tool(is_wanted)
        if tool is None:
            raise ScriptError(f"the agent has no tool for this step, only {[tool.name for tool in self.tools]}")
        return tool

    def full_name(self, name):
        """The whole name of a tool that the conversation tells by its name only."""
        return max(re.findall(rf"\w*{name}\b", self.text) or [name], key=len)


# Where a request of each endpoint has its conversation, and what answers it.
ENDPOINTS = {
    "messages": ("messages", message_reply),
    "responses": ("input", response_reply),
    "chat/completions": ("messages", chat_reply),
}
CALLS = ("function_call", "custom_tool_call", "tool_search_call")


def is_search(item):
    """Whether an answer of ours calls a tool that loads tools. Each answer is one text or one call."""
    called = [item, *(part for part in item.get("content") or [] if isinstance(part, dict))]
    return any(part.get("name") in TOOL_SEARCHES or part.get("type") == "tool_search_call" for part in called)


def tools_of(body):
    """The tools of a request, and those that searches have brought since."""
    outputs = [item for item in body.get("input", []) if item.get("type") == "tool_search_output"]
    for entry in body.get("tools", []) + [tool for output in outputs for tool in output["tools"]]:
        if entry.get("type") == "namespace":
            yield from (Tool(inner, entry["name"]) for inner in entry["tools"])
        else:
            yield Tool(entry)


def aside(body):
    """A short text, or JSON of the schema that the request has for it."""
    schema = body.get("output_config", {}).get("format", {}).get("schema")
    if schema is None:
        return ASIDE
    return json.dumps({name: ASIDE for name in schema["properties"]})


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            if VENDOR_KEY not in (self.headers["x-api-key"], (self.headers["authorization"] or "")[len("Bearer ") :]):
                raise ScriptError("the key is not the vendor's")
            request_id, reply = self.vendor.answer(self.path, body)
        except Exception as why:
            # Whatever went wrong, the agent gets an answer, and the test gets the reason.
            self.vendor.faults.append(f"{self.path}: {why!r}")
            return self.send(400, "application/json", [refusal(why)], "req_refused")
        self.send(200, reply.content_type, reply.pieces, request_id)

    def send(self, status, content_type, pieces, request_id):
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked")
        # The two names under which the vendors give their requests' ids.
        self.send_header("request-id", request_id)
        self.send_header("x-request-id", request_id)
        self.end_headers()
        # An agent that has gone is not a fault of the vendor's.
        with contextlib.suppress(OSError):
            for piece in pieces:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


def refusal(why):
    error = {"type": "invalid_request_error", "message": f"the script failed: {why}", "code": None, "param": None}
    return json.dumps({"type": "error", "error": error}).encode()
