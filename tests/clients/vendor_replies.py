"""The replies of a scripted vendor in the three formats, whole and as streams, with the usage they report."""

import json
from types import SimpleNamespace


def message_reply(number, body, step):
    """A reply in the messages format."""
    usage = {
        "input_tokens": 900 + number,
        "cache_creation_input_tokens": 30,
        "cache_read_input_tokens": 500,
        "output_tokens": 40 + number,
    }
    block, reason = {"type": "text", "text": step.text}, "end_turn"
    if step.tool:
        named = {"id": f"toolu_{number:024}", "name": step.tool.name, "input": step.arguments}
        block, reason = {"type": "tool_use"} | named, "tool_use"
    head = {"id": f"msg_{number:024}", "type": "message", "role": "assistant", "model": body["model"]}
    if not body.get("stream"):
        end = {"content": [block], "stop_reason": reason, "stop_sequence": None, "usage": usage}
        return whole(head | end, usage)
    begun = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage | {"output_tokens": 1}}
    empty, deltas = message_deltas(block)
    events = [
        {"type": "message_start", "message": head | begun},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return stream(events, usage, named=True)


def message_deltas(block):
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in parts(block["text"])]
    written = parts(json.dumps(block["input"]))
    return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in written]


def response_reply(number, body, step):
    """A reply in the responses format."""
    asked, told = 1400 + number, 60 + number
    usage = {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": 512},
        "output_tokens": told,
        "output_tokens_details": {"reasoning_tokens": 16},
        "total_tokens": asked + told,
    }
    item, field = response_item(number, step)
    head = {"id": f"resp_{number:032}", "object": "response", "created_at": 1_790_000_000, "model": body["model"]}
    head |= {"error": None, "incomplete_details": None, "parallel_tool_calls": True, "tools": body.get("tools", [])}
    end = head | {"status": "completed", "output": [item], "usage": usage}
    if not body.get("stream"):
        return whole(end, usage)
    begun = head | {"status": "in_progress", "output": [], "usage": None}
    place = {"output_index": 0, "item_id": item["id"]}
    events = [{"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}]
    events += [{"type": "response.output_item.added", "output_index": 0, "item": opened(item)}]
    if field in ("arguments", "input"):
        kind = {"arguments": "function_call_arguments", "input": "custom_tool_call_input"}[field]
        events += [{"type": f"response.{kind}.delta", "delta": part} | place for part in parts(item[field])]
        events += [{"type": f"response.{kind}.done", field: item[field]} | place]
    if field == "content":
        place |= {"content_index": 0}
        (part,) = item["content"]
        events += [{"type": "response.content_part.added", "part": part | {"text": ""}} | place]
        events += [{"type": "response.output_text.delta", "delta": text} | place for text in parts(step.text)]
        events += [{"type": "response.output_text.done", "text": step.text} | place]
        events += [{"type": "response.content_part.done", "part": part} | place]
    events += [{"type": "response.output_item.done", "output_index": 0, "item": item}]
    events += [{"type": "response.completed", "response": end}]
    return stream([event | {"sequence_number": at} for at, event in enumerate(events)], usage, named=True)


def response_item(number, step):
    """The item of a reply, and the field in which it has what is streamed."""
    if step.tool is None:
        part = {"type": "output_text", "text": step.text, "annotations": []}
        said = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        return {"id": f"msg_{number:032}"} | said, "content"
    call = {"call_id": f"call_{number:020}", "name": step.tool.name, "status": "completed"}
    call |= {"namespace": step.tool.namespace} if step.tool.namespace else {}
    if step.tool.type == "tool_search":
        search = {"type": "tool_search_call", "execution": "client", "arguments": step.arguments}
        return {"id": f"tsc_{number:032}"} | search | {name: call[name] for name in ("call_id", "status")}, None
    if step.tool.is_freeform:
        return {"id": f"ctc_{number:032}", "type": "custom_tool_call", "input": step.arguments} | call, "input"
    given = json.dumps(step.arguments)
    return {"id": f"fc_{number:032}", "type": "function_call", "arguments": given} | call, "arguments"


def opened(item):
    """An item as a stream begins it."""
    empty = {"arguments": "", "input": "", "content": []} if item["type"] != "tool_search_call" else {}
    return item | {"status": "in_progress"} | {name: empty[name] for name in empty if name in item}


def chat_reply(number, body, step):
    """A reply in the chat format."""
    asked, told = 1200 + number, 50 + number
    usage = {
        "prompt_tokens": asked,
        "completion_tokens": told,
        "total_tokens": asked + told,
        "prompt_tokens_details": {"cached_tokens": 256},
        "completion_tokens_details": {"reasoning_tokens": 8},
    }
    message, reason = {"role": "assistant", "content": step.text}, "stop"
    if step.tool:
        function = {"name": step.tool.name, "arguments": json.dumps(step.arguments)}
        call = {"id": f"call_{number:020}", "type": "function", "function": function}
        message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    head = {"id": f"chatcmpl-{number}", "created": 1_790_000_000, "model": body["model"]}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return whole(head | {"object": "chat.completion", "choices": [choice], "usage": usage}, usage)
    head |= {"object": "chat.completion.chunk"}
    chunks = [head | {"choices": [chat_choice(delta)]} for delta in chat_deltas(message)]
    chunks += [head | {"choices": [chat_choice({}, reason)]}, head | {"choices": [], "usage": usage}]
    return stream(chunks, usage, named=False)


def chat_choice(delta, reason=None):
    return {"index": 0, "delta": delta, "finish_reason": reason}


def chat_deltas(message):
    if "tool_calls" not in message:
        yield {"role": "assistant", "content": ""}
        yield from ({"content": part} for part in parts(message["content"]))
        return
    (call,) = message["tool_calls"]
    empty = call["function"] | {"arguments": ""}
    yield {"role": "assistant", "content": None, "tool_calls": [{"index": 0} | call | {"function": empty}]}
    for part in parts(call["function"]["arguments"]):
        yield {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}


def parts(text):
    """A text in the pieces in which a vendor streams it."""
    return [text[at : at + 12] for at in range(0, len(text), 12)]


def whole(reply, usage):
    return SimpleNamespace(content_type="application/json", pieces=[json.dumps(reply).encode()], usage=usage)


def stream(events, usage, named):
    """Server-sent events; those without names are the chat format's, and end with a mark of their own."""
    data = [f"data: {json.dumps(event)}\n\n" for event in events]
    if named:
        pieces = [f"event: {event['type']}\n{piece}" for event, piece in zip(events, data)]
    else:
        pieces = [*data, "data: [DONE]\n\n"]
    encoded = [piece.encode() for piece in pieces]
    return SimpleNamespace(content_type="text/event-stream; charset=utf-8", pieces=encoded, usage=usage)
