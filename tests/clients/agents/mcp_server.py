"""A tool server over standard input and output (MCP) with one tool, which spells a word backwards."""

import json
import sys

TOOL = {
    "name": "reverse_word",
    "description": "Spells a word backwards.",
    "inputSchema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}


def initialize(version):
    return {
        "protocolVersion": version,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "words", "version": "1.0.0"},
    }


for line in sys.stdin:
    message = json.loads(line)
    params, reply = message.get("params", {}), {"error": {"code": -32601, "message": "no such method"}}
    if message["method"] == "initialize":
        reply = {"result": initialize(params["protocolVersion"])}
    elif message["method"] == "tools/list":
        reply = {"result": {"tools": [TOOL]}}
    elif message["method"] == "tools/call":
        reply = {"result": {"content": [{"type": "text", "text": params["arguments"]["word"][::-1]}]}}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"]} | reply), flush=True)
