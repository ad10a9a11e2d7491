"""LiteLLM's opinion of chats, on standard output: what it would send, and how it reads an answer.

Standard input holds two objects, both from the name of a case:
  requests  the text of a chat; its opinion is {"body": text, "headers": {...}}, or {"refused": why}
  answers   [content type, text] of a vendor's answer; its opinion is {"reply": {...}}, or
            {"chunks": [...]} of a stream, either with an "error" if one came

Nothing reaches the network: a request ends in a function that notes it, and no socket connects.
"""

import json
import os
import socket
import sys
from contextlib import redirect_stdout

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "CRITICAL"}


def refuse_to_connect(*_):
    raise ConnectionRefusedError("LiteLLM is asked offline")


socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse_to_connect

import httpx  # noqa: E402
import litellm  # noqa: E402
from litellm.llms.custom_httpx.http_handler import HTTPHandler  # noqa: E402

litellm.telemetry = False
litellm.suppress_debug_info = True
# As its proxy is commonly run: what a model doesn't take is left out instead of refused.
litellm.drop_params = True

PLAIN = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "ok"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def ask(chat, answer):
    """What LiteLLM returned, and the bodies that it sent."""
    sent = []

    def vendor(request):
        sent.append(request)
        return httpx.Response(200, headers={"content-type": answer[0]}, content=answer[1].encode())

    client = HTTPHandler(client=httpx.Client(transport=httpx.MockTransport(vendor)))
    model = chat.pop("model").replace("lma-", "anthropic/claude-")
    reply = litellm.completion(model=model, client=client, api_key="key", max_retries=0, num_retries=0, **chat)
    return reply, sent


def translated(text):
    try:
        _, sent = ask(json.loads(text), ("application/json", json.dumps(PLAIN)))
    except Exception as why:  # it raises whatever its depths raise
        return {"refused": f"{type(why).__name__}: {why}"[:200]}
    (request,) = sent
    return {"body": request.content.decode(), "headers": dict(request.headers)}


def heard(answer):
    streamed = answer[0].startswith("text/event-stream")
    chat = {"model": "lma-sonnet-4-6", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}
    if not streamed:
        try:
            reply, _ = ask(chat, answer)
        except Exception as why:
            return {"chunks": [], "error": f"{type(why).__name__}: {why}"[:200]}
        return {"reply": reply.model_dump(mode="json")}
    chunks = []
    try:
        reply, _ = ask(chat | {"stream": True, "stream_options": {"include_usage": True}}, answer)
        for chunk in reply:
            chunks.append(chunk.model_dump(mode="json"))
    except Exception as why:
        return {"chunks": chunks, "error": f"{type(why).__name__}: {why}"[:200]}
    return {"chunks": chunks}


def main():
    asked = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        opinion = {
            "requests": {name: translated(text) for name, text in asked["requests"].items()},
            "answers": {name: heard(answer) for name, answer in asked["answers"].items()},
        }
    json.dump(opinion, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # without waiting for the threads LiteLLM has started to log


if __name__ == "__main__":
    main()
