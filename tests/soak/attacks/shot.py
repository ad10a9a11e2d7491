"""A shot: bytes to send, and what may come of them."""

import json
from dataclasses import dataclass, field

# What may become of a shot.
REFUSE = "refuse"  # no vendor hears of it: 4xx, or the connection is closed
EITHER = "either"  # refused, or served once and by what it says to every reader
LOCAL = "local"  # served without a vendor, or refused
ACCEPT = "accept"  # served, or the generator is broken and proves nothing

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018dd8db00000000049454e44ae426082"
)

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
IMAGES = "/v1/images/generations"
EDITS = "/v1/images/edits"
SPEECH = "/v1/audio/speech"
EMBEDDINGS = "/v1/embeddings"
MODERATIONS = "/v1/moderations"
VIDEOS = "/v1/videos"
POSTS = (CHAT, MESSAGES, RESPONSES, IMAGES, EDITS, SPEECH, EMBEDDINGS, MODERATIONS, VIDEOS)


@dataclass(slots=True)
class Shot:
    family: str
    # Bytes to send, numbers of seconds to wait, END to close our half, RESET to cut.
    pieces: list
    label: str = REFUSE
    # No vendor may see one of these in a refused shot, nor one of them twice in any.
    marks: tuple = ()
    # Whether a vendor may hear of one of its marks only.
    one_of: bool = False
    # If it must be refused, with one of these; nothing means any 4xx, or a close.
    statuses: tuple = ()
    # The endpoint and the body that was meant, for comparing what was understood.
    path: str = ""
    body: bytes = b""
    # On a connection of its own.
    raw: bool = True
    # Seconds to listen for more after the first answer.
    linger: float = 0.0
    # Whether an answer is due at all; if not, the connection is closed after so many seconds.
    patience: float = 4.0
    number: int = 0
    answers: list = field(default_factory=list)
    # Whether the gateway ended the connection.
    closed: bool = False
    # How long it took, from its connection on.
    seconds: float = 0.0


END, RESET = object(), object()


class Ammunition:
    """Makes shots of known marks; all chance comes from `rng`."""

    def __init__(self, rng, keys, more=None):
        # By label. Shots that must be refused come with a key of an account of their own, on which
        # nothing may ever move.
        self.rng, self.keys, self.more = rng, keys, more or {}
        self.key = keys[EITHER]
        self.count = 0

    def mark(self):
        self.count += 1
        return f"mk{self.count:07d}{self.rng.getrandbits(32):08x}"

    def key_for(self, label):
        return self.keys[label]

    def head(self, label, path, length=None, method="POST", version="HTTP/1.1", host="tollgate", more=()):
        """A head as a good client writes it, without its last line break; `more` are further lines."""
        lines = [f"{method} {path} {version}"]
        lines += [f"host: {host}"] if host is not None else []
        lines += [f"authorization: Bearer {self.key_for(label)}", "content-type: application/json"]
        lines += [f"content-length: {length}"] if length is not None else []
        return ("\r\n".join([*lines, *more]) + "\r\n").encode("latin-1")

    def request(self, label, path, body, **options):
        return self.head(label, path, len(body), **options) + b"\r\n" + body

    def chat(self, mark, **more):
        """A small chat call that is beyond reproach."""
        call = {"model": "lmb-4o-mini", "messages": [{"role": "user", "content": mark}], "max_tokens": 8}
        return json.dumps(call | more).encode()


# Every family by its name: how one of its shots is made, and how many there are for one of others.
FAMILIES = {}


def family(weight=1.0):
    def register(make):
        name = f"{make.__module__.split('.')[-1]}/{make.__name__.strip('_').replace('_', '-')}"
        assert name not in FAMILIES, name
        FAMILIES[name] = make, weight
        return make

    return register
