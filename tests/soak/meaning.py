"""What a body says: one strict reading of our own, and whether two others read the same.

The strict reading is written apart from the gateway's: Python's decoder, with a refusal of all that
other readers are known to take differently.
"""

import base64
import json
import math
import re
import struct
import subprocess
import threading
from pathlib import Path

from attacks.shot import CHAT, EMBEDDINGS, IMAGES, MESSAGES, MODERATIONS, RESPONSES, SPEECH, VIDEOS

DEPTH_MAX, MEMBERS_MAX = 64, 4_096
# The fields of any endpoint that move the price, or the way of the answer.
PRICED = (
    "model max_tokens max_completion_tokens max_output_tokens n best_of stream stream_options input seconds size"
    " resolution tools service_tier background deferred web_search_options modalities audio voice quality dimensions"
    " generate_audio aspect_ratio partial_images previous_response_id conversation"
).split()
SURROGATE = re.compile("[\ud800-\udfff]")


class Unsound(ValueError):
    pass


def _distinct(pairs):
    if len(pairs) > MEMBERS_MAX:
        raise Unsound("too many members")
    read = dict(pairs)
    if len(read) != len(pairs):
        raise Unsound("a member stands twice")
    return read


def _constant(word):
    raise Unsound(word)


def _float(digits):
    # Written with more digits before the point than a double has, if not by its exponent.
    if math.isinf(float(digits)):
        raise Unsound("beyond a double")
    return float(digits)


def _int(digits):
    if len(digits.lstrip("-")) > 308:
        raise Unsound("beyond a double")
    return int(digits)


STRICT = json.JSONDecoder(
    object_pairs_hook=_distinct, parse_constant=_constant, parse_float=_float, parse_int=_int, strict=True
)
# As most programs call it, but for duplicates and the like, of which it takes the last.
LENIENT = json.JSONDecoder()


def strict(body):
    """The object that a body is.

    Raises Unsound where any reader might see another one, or none."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unsound("no UTF-8") from error
    try:
        read = STRICT.decode(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Unsound(str(error)) from error
    if not isinstance(read, dict):
        raise Unsound("no object")
    _look(read, 1)
    return read


def _look(value, depth):
    if depth > DEPTH_MAX:
        if isinstance(value, (dict, list)):
            raise Unsound("too deep")
        return
    if isinstance(value, str):
        if SURROGATE.search(value):
            raise Unsound("half a surrogate pair")
    elif isinstance(value, dict):
        for name, inner in value.items():
            _look(name, depth)
            _look(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _look(inner, depth + 1)


def canonical(value):
    """A value so that equal ones, and only these, are written alike here and in meaning.mjs."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            return ["number", repr(value)]
        whole = isinstance(value, int) or value.is_integer()
        return ["number", str(int(value)) if whole else value.hex()]
    if isinstance(value, str):
        return ["text", value]
    if isinstance(value, list):
        return ["list", [canonical(inner) for inner in value]]
    return [
        "object",
        sorted(([name, canonical(inner)] for name, inner in value.items()), key=lambda pair: pair[0]),
    ]


def priced(read):
    return {name: canonical(read[name]) for name in PRICED if name in read}


class OtherReader:
    """JSON.parse, in a process that lives as long as the machine: a line for a body, a line for what it read."""

    def __init__(self):
        command = ["node", str(Path(__file__).parent / "meaning.mjs"), json.dumps(PRICED)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lock = threading.Lock()

    def priced(self, body):
        """The price fields; None if it is no object to it."""
        with self.lock:
            self.process.stdin.write(base64.b64encode(body) + b"\n")
            self.process.stdin.flush()
            read = json.loads(self.process.stdout.readline())
        if read is not None:
            for value in read.values():
                _from_bits(value)
        return read

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        finally:
            self.process.kill()


def _from_bits(value):
    """Numbers that are not whole come as their bits; turns these into what `float.hex` writes."""
    if isinstance(value, list) and value and value[0] == "number" and value[1].startswith("bits "):
        value[1] = struct.unpack(">d", bytes.fromhex(value[1][5:]))[0].hex()
    elif isinstance(value, list):
        for inner in value:
            _from_bits(inner)


def insane(path, read):
    """What of an accepted call has no meaning that every reader shares, though it is sound JSON."""

    def whole(field, least=1, most=2**53):
        value = read.get(field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
            yield f"{field}={value!r}"

    def kind(field, *kinds):
        value = read.get(field)
        if value is not None and not isinstance(value, kinds):
            yield f"{field}={value!r}"

    unnamed = path == MODERATIONS and read.get("model") is None
    if not unnamed and (not isinstance(read.get("model"), str) or not read["model"]):
        yield f"model={read.get('model')!r}"
    if path in (CHAT, MESSAGES, RESPONSES):
        limits = {CHAT: ("max_tokens", "max_completion_tokens"), MESSAGES: ("max_tokens",)}
        for field in limits.get(path, ("max_output_tokens",)):
            # Of messages none may be asked for: that only fills the vendor's cache.
            yield from whole(field, 0 if path == MESSAGES else 1)
        yield from kind("stream", bool)
    if path == CHAT:
        yield from whole("n", 1, 128)
        yield from kind("stream_options", dict)
        if isinstance(read.get("stream_options"), dict):
            asked = read["stream_options"].get("include_usage")
            if asked is not None and not isinstance(asked, bool):
                yield f"include_usage={asked!r}"
    if path == IMAGES and read.get("n") not in (None, 1):
        yield f"n={read['n']!r}"
    if path == IMAGES:
        yield from whole("n", 1, 1)
        yield from kind("size", str)
    if path == SPEECH:
        yield from kind("input", str)
    if path == EMBEDDINGS:
        yield from kind("input", str, list)
    if path == VIDEOS:
        seconds = read.get("seconds")
        if (
            seconds is not None
            and str(seconds) not in [str(n) for n in range(1, 16)]
            or isinstance(seconds, (bool, float))
        ):
            yield f"seconds={seconds!r}"
        yield from kind("size", str)
        yield from kind("resolution", str)
    tier = read.get("service_tier")
    # A chat that is translated goes out without it.
    if path == CHAT and str(read.get("model")).startswith("lma-"):
        tier = None
    if tier not in (None, "auto", "default", "flex", "standard_only"):
        yield f"service_tier={tier!r}"
