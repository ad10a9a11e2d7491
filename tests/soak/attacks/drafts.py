"""Honest bodies in JSON, by endpoint, to be changed member by member.

Whether a changed one is sound decides `meaning.strict`; a family says so itself only where a sound body
must be refused.
"""

import json

from meaning import Unsound, strict

from .shot import CHAT, EITHER, EMBEDDINGS, IMAGES, MESSAGES, MODERATIONS, REFUSE, RESPONSES, SPEECH, VIDEOS, Shot

# Where a text is, by endpoint; and an honest call but for the text.
TEXTS = {CHAT: "messages", MESSAGES: "messages", RESPONSES: "input", IMAGES: "prompt"}


TEXTS |= {SPEECH: "input", EMBEDDINGS: "input", MODERATIONS: "input", VIDEOS: "prompt"}


CALLS = (
    (CHAT, {"model": "lmb-4o-mini", "max_tokens": 8, "n": 1, "stream": False}),
    (
        CHAT,
        {
            "model": "lmb-4o-mini",
            "max_completion_tokens": 8,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (CHAT, {"model": "lma-haiku-4-5", "max_tokens": 8, "stream": False}),
    (CHAT, {"model": "lmd-4.3", "max_tokens": 8, "n": 1}),
    (MESSAGES, {"model": "lma-haiku-4-5", "max_tokens": 8, "stream": False}),
    (RESPONSES, {"model": "lmb-4o-mini", "max_output_tokens": 16, "stream": False}),
    (IMAGES, {"model": "lmb-image-1-mini", "n": 1, "size": "1024x1024"}),
    (IMAGES, {"model": "lmd-imagine-image", "n": 1}),
    (SPEECH, {"model": "tts-1", "voice": "alloy"}),
    (EMBEDDINGS, {"model": "text-embedding-3-small", "encoding_format": "float"}),
    (EMBEDDINGS, {"model": "lmc-embedding-2"}),
    (MODERATIONS, {"model": "omni-moderation-latest"}),
)


VIDEO = (VIDEOS, {"model": "lmd-imagine-video", "seconds": 1, "resolution": "480p"})


# Numbers that bound or multiply what a call costs.
NUMBERS = {
    CHAT: ("max_tokens", "max_completion_tokens", "n"),
    MESSAGES: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
}


NUMBERS |= {IMAGES: ("n",), VIDEOS: ("seconds",)}


def calls(path, mark):
    """An honest body for an endpoint."""
    _, members = next(call for call in (*CALLS, VIDEO) if call[0] == path)
    return json.dumps(members | {TEXTS[path]: text(path, mark)}).encode()


def text(path, mark):
    return [{"role": "user", "content": mark}] if TEXTS[path] == "messages" else mark


class Draft:
    """A body as its members stand in it: names in their quotes, values as they are written."""

    def __init__(self, a, choice=None):
        self.a, self.mark = a, a.mark()
        self.path, members = choice or a.rng.choice(CALLS)
        members = {TEXTS[self.path]: text(self.path, self.mark)} | members
        self.members = [[json.dumps(name), json.dumps(value)] for name, value in members.items()]
        a.rng.shuffle(self.members)

    def names(self):
        return [json.loads(name) for name, _ in self.members]

    def value(self, name):
        return next(value for known, value in self.members if json.loads(known) == name)

    def set(self, name, value):
        """Replaces a member, or adds it."""
        for member in self.members:
            if member[0] == json.dumps(name):
                member[1] = value
                return self
        return self.add(json.dumps(name), value)

    def add(self, name, value):
        self.members.insert(self.a.rng.randrange(len(self.members) + 1), [name, value])
        return self

    def drop(self, name):
        self.members = [member for member in self.members if json.loads(member[0]) != name]
        return self

    def written(self):
        gap = self.a.rng.choice(["", "", " ", "\n", "\t ", "\r\n"])
        return "{" + ",".join(f"{gap}{name}:{gap}{value}" for name, value in self.members) + gap + "}"

    def shot(self, body=None, label=None, **options):
        body = self.written() if body is None else body
        body = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
        return shot(self.a, self.path, self.mark, body, label, **options)


def shot(a, path, mark, body, label=None, **options):
    if label is None:
        label = EITHER
        try:
            strict(body)
        except Unsound:
            label = REFUSE
    options.setdefault("raw", False)
    return Shot("", [a.request(label, path, body)], label, (mark,), path=path, body=body, **options)


def any_priced(draft):
    """One of its members that the price depends on."""
    fields = [name for name in draft.names() if name not in ("messages", "encoding_format")]
    return draft.a.rng.choice(fields)


def number_field(draft):
    return draft.a.rng.choice(NUMBERS.get(draft.path, ("max_tokens",)))


def with_numbers(a):
    return Draft(a, a.rng.choice([call for call in (*CALLS, VIDEO) if call[0] in NUMBERS]))


def spelled(a, word):
    """A word in quotes of which some letters are escaped."""
    letters = [f"\\u{ord(letter):04x}" if a.rng.random() < 0.4 else letter for letter in word]
    place = a.rng.randrange(len(word))
    letters[place] = f"\\u{ord(word[place]):04X}"
    return '"' + "".join(letters) + '"'
