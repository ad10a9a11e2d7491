"""What the tests say to the endpoints, and how they read what comes back."""

import base64
import re
from types import SimpleNamespace

import httpx2
from openai.types import Video
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from stack import until


def shown(case):
    """The name of a case: the same in all processes that run tests, so without addresses of objects."""
    return re.sub(r" object at 0x\w+", "", str(case))


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

CLOCK = {"type": "function", "function": {"name": "now", "description": "The time of day."}}


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def said_again(message):
    """An assistant's message as the next turn quotes it, without what the SDK added for itself."""
    calls = [call.to_dict() for call in message.tool_calls]
    kept = [{key: call[key] for key in ("id", "type", "extra_content") if key in call} for call in calls]
    for quoted, call in zip(kept, message.tool_calls):
        quoted["function"] = {"name": call.function.name, "arguments": call.function.arguments}
    return {"role": "assistant", "content": message.content, "tool_calls": kept}


def final(client, request, streamed):
    """The reply; of a stream, as the SDK itself puts it together."""
    if not streamed:
        return client.chat.completions.create(**request)
    with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
        return stream.get_final_completion()


def plain(reply):
    """The message, the finish reason and the usage of a reply: of a stream, put together chunk by chunk,
    as the SDK's own helper shows no headers and raises an exception on some reasons."""
    if isinstance(reply, ChatCompletion):
        choice = reply.choices[0]
        return SimpleNamespace(message=choice.message, finish_reason=choice.finish_reason, usage=reply.usage)
    text, thought, refusal, calls, reason, usage = "", "", "", {}, None, None
    for chunk in reply:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta, reason = choice.delta, choice.finish_reason or reason
            text += delta.content or ""
            refusal += delta.refusal or ""
            thought += getattr(delta, "reasoning_content", None) or ""
            for part in delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                call["arguments"] += part.function.arguments or ""
    functions = [{"id": call.pop("id"), "type": "function", "function": call} for _, call in sorted(calls.items())]
    said = {"content": text or None, "refusal": refusal or None, "tool_calls": functions or None}
    said |= {"reasoning_content": thought} if thought else {}
    message = ChatCompletionMessage.model_validate({"role": "assistant"} | said)
    return SimpleNamespace(message=message, finish_reason=reason, usage=usage)


# The rest is for the messages format, vendor_a's own.
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def native(account, request, streamed):
    """The message; of a stream, as vendor_a's SDK itself puts it together."""
    if not streamed:
        return account.native().messages.create(**request)
    with account.native().messages.stream(**request) as stream:
        return stream.get_final_message()


def words_of(message):
    """What a message says, its thoughts left out."""
    return "".join(block.text for block in message.content if block.type == "text")


# The rest is for the endpoints beside those of conversation, each called with one text: a simulator that does not
# take a fault from its address takes it from there.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mM4ISICAAKYAPGZtnS8AAAAAElFTkSuQmCC"
)


def respond(client, text="hello", model="lmb-5.5", **more):
    return client.responses.create(model=model, input=text, **more)


def draw(client, text="hello", model="lmb-image-1-mini", **more):
    return client.images.generate(model=model, prompt=text, **more)


def edit(client, text="hello", model="lmb-image-1-mini", image=PNG, **more):
    return client.images.edit(model=model, prompt=text, image=image, **more)


def speak(client, text="hello", model="tts-1", voice="alloy", **more):
    return client.audio.speech.create(model=model, input=text, voice=voice, **more)


def embed(client, text="hello", model="text-embedding-3-small", **more):
    return client.embeddings.create(model=model, input=text, **more)


def judge(client, text="hello", **more):
    return client.moderations.create(input=text, **more)


SDK_FIELDS = ("seconds", "size", "input_reference", "extra_headers")


def film(client, text="hello", model="lmd-imagine-video", **more):
    """Asks for a video; what the SDK has no parameter for goes beside it."""
    known = {name: more.pop(name) for name in SDK_FIELDS if name in more}
    return client.videos.create(model=model, prompt=text, extra_body=more or None, **known)


def film_by_json(client, text="hello", model="lmd-imagine-video", **more):
    """The same by JSON, which the SDK never sends of its own accord."""
    options = {"headers": more.pop("extra_headers", {})}
    body = {"model": model, "prompt": text} | more
    return client.post("/videos", body=body, options=options, cast_to=Video)


def ended(client, job):
    """The job once it is over. The SDK's own way of waiting for that would wait for ever."""

    def over():
        seen = client.videos.retrieve(job.id)
        return seen.status in ("completed", "failed") and seen

    return until(over, f"{job.id} is over", seconds=30)


def filmed(client, *text, **more):
    """A video, asked for and waited for."""
    return ended(client, film(client, *text, **more))


def address_of(account, job):
    """Where the file of a job is, for whoever asks with this account's key."""
    key = {"authorization": f"Bearer {account.key}"}
    reply = httpx2.get(f"{account.gateway.base_url}/videos/{job.id}/content", headers=key)
    assert reply.status_code == 302 and reply.headers["cache-control"] == "no-store" and not reply.content
    return str(reply.url.join(reply.headers["location"]))


def verdict(refused):
    """What a refusal says to programs: its status, its code, and the field at fault."""
    return refused.value.status_code, refused.value.code, refused.value.param


MASK = (1 << 64) - 1


def noise(text, length):
    """The simulator's bytes for a text: of number i, the highest byte of its FNV-1a times 2 i + 1."""
    seed = 0xCBF29CE484222325
    for byte in text.encode():
        seed = (seed ^ byte) * 0x100000001B3 & MASK
    return bytes((seed * (2 * i + 1) & MASK) >> 56 for i in range(length))


SECOND_BYTES = 100 << 10


def footage(kind, vendor_id, seconds=4):
    """The file of a video that the simulators made; aimock's are all alike."""
    if kind == "aimock":
        path = b"/hello.mp4"
        return bytes.fromhex("00000018667479706d703432000000006d70343269736f6d") + (path * 5_000)[:50_000]
    length = SECOND_BYTES * seconds - 32
    box = b"\0\0\0\x18ftypisom\0\0\2\0isommp42" + (length + 8).to_bytes(4, "big") + b"mdat"
    return box + noise(vendor_id, length)
