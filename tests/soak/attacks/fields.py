"""Values of the fields that the price depends on: odd, of another kind, in quotes, beyond all bounds."""

import json

from .drafts import CALLS, NUMBERS, VIDEO, Draft, number_field, spelled, with_numbers
from .shot import CHAT, EITHER, EMBEDDINGS, IMAGES, MESSAGES, MODERATIONS, REFUSE, RESPONSES, SPEECH, VIDEOS, family


@family(3)
def numbers_beyond_all(a):
    draft = with_numbers(a)
    number = a.rng.choice(
        [
            "1e400",
            "-1e400",
            "1e309",
            "1.8e308",
            "9" * 309,
            "9" * 400,
            "9" * 5_000,
            "1e99999999999999999999",
            "0.1e500",
            "123456789e305",
        ]
    )
    if a.rng.random() < 0.3:
        return draft.add('"seed"', number).shot()
    return draft.set(number_field(draft), number).shot()


@family(2)
def words_for_numbers(a):
    draft = with_numbers(a)
    word = a.rng.choice(
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "nan",
            "inf",
            "undefined",
            "None",
            "True",
            "TRUE",
            "Null",
            "nil",
            "-NaN",
            "+Infinity",
            "1n",
            "1d",
            "1L",
        ]
    )
    return draft.set(number_field(draft), word).shot()


@family(3)
def numbers_unlike_the_grammar(a):
    draft = with_numbers(a)
    number = a.rng.choice(
        [
            "08",
            "00",
            "01",
            "-01",
            "+1",
            ".5",
            "5.",
            "1.e1",
            "1e",
            "1e+",
            "0x10",
            "0b1",
            "0o7",
            "1_000",
            "1,000",
            "--1",
            "-",
            "1e1.5",
            "1 0",
            "\u0661",
            "\uff11",
            "1.2.3",
        ]
        + ["-+1", "1e--1", "1f", "$1", "1%", "(1)"]
    )
    return draft.set(number_field(draft), number).shot()


@family(4)
def numbers_that_count_oddly(a):
    """Sound numbers where a small whole one belongs."""
    draft = with_numbers(a)
    number = a.rng.choice(
        [
            "-0",
            "-1",
            "0",
            "0.0",
            "-0.0",
            "1.0",
            "1.5",
            "1e0",
            "1e2",
            "1E+2",
            "100e-2",
            "0.1e1",
            "2147483648",
            "4294967297",
            "9007199254740993",
            "9223372036854775807",
        ]
        + [
            "9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "1e18",
            "1e-400",
            "129",
            "1000000",
            "0e0",
            "1" + "0" * 300,
            "9007199254740992",
        ]
    )
    return draft.set(number_field(draft), number).shot()


@family(4)
def numbers_in_quotes(a):
    draft = Draft(a, a.rng.choice([call for call in CALLS if call[0] in NUMBERS]))
    number = a.rng.choice(
        ["1", "8", "16", "", " 1", "1.0", "1e1", "-1", "0x10", "NaN", "true", "\\u0031", "null", "9" * 30]
    )
    return draft.set(number_field(draft), f'"{number}"').shot(label=REFUSE)


@family(2)
def seconds_in_quotes(a):
    """Clients may send seconds as a text; only one that reads as one number."""
    seconds = a.rng.choice(
        [
            "04",
            "4.0",
            " 4",
            "4 ",
            "+4",
            "-4",
            "0x4",
            "4e0",
            "\\u0664",
            "4s",
            "",
            "16",
            "0",
            "1_0",
            "4,0",
            "four",
            "4\\u0000",
            "\\uff14",
            "1e1",
            "004",
        ]
    )
    return Draft(a, VIDEO).set("seconds", f'"{seconds}"').shot(label=REFUSE)


@family(2)
def seconds_unsound(a):
    seconds = a.rng.choice(
        [
            "0",
            "16",
            "-1",
            "4.0",
            "1e1",
            "4.5",
            "true",
            "[4]",
            "{}",
            "1000000",
            "-0",
            "0.4e1",
            "18446744073709551617",
        ]
    )
    return Draft(a, VIDEO).set("seconds", seconds).shot(label=REFUSE)


@family(2)
def shapes_of_videos_unsound(a):
    draft = Draft(a, VIDEO)
    name, value = a.rng.choice(
        [
            ("resolution", '"720P"'),
            ("resolution", "720"),
            ("resolution", '"4k"'),
            ("resolution", '"480p "'),
            ("resolution", '["480p"]'),
            ("size", '"1280X720"'),
        ]
        + [
            ("size", '"1x1"'),
            ("size", "1280"),
            ("size", '"1280x720\\u0000"'),
            ("size", '"99999x99999"'),
            ("resolution", '"1080p"'),
            ("size", '"1920x1080"'),
        ]
        + [
            ("aspect_ratio", '"1:0"'),
            ("aspect_ratio", "1"),
            ("n", "2"),
            ("duration", "15"),
            ("fps", "60"),
            ("prompt", '""'),
            ("prompt", "1"),
            ("user", '"x"'),
        ]
        + [
            ("generate_audio", '"yes"'),
            ("generate_audio", "1"),
            ("input_reference", '"x"'),
            ("image_url", '"file:///etc/passwd"'),
            ("image_url", '"http://127.0.0.1/x"'),
        ]
    )
    return draft.set(name, value).shot(label=REFUSE)


@family(0.05)
def videos(a):
    """Sound ones: what is ordered is what both readers read."""
    draft = Draft(a, VIDEO)
    draft.set("seconds", a.rng.choice(["1", "2", '"1"', '"2"', '"\\u0031"', "null"]))
    draft.set("resolution", a.rng.choice(['"480p"', '"\\u0034\\u00380p"', '"720p"', "null"]))
    return draft.shot()


@family(3)
def other_kinds(a):
    """A value of another kind than the one that counts."""
    draft = with_numbers(a)
    name = a.rng.choice([*NUMBERS[draft.path], "model", "stream"])
    value = a.rng.choice(["[1]", "{}", '{"a":1}', "[]", "[true]", '""', '"x"', "[[[]]]", '{"$gt":0}', '{"value":1}'])
    if name not in ("model", "stream"):
        value = a.rng.choice([value, "true", "false"])
    elif name == "stream":
        value = a.rng.choice([value, "1", "0", '"true"', '"false"', '"True"', "[false]"])
        if draft.path == VIDEOS:
            name = "model"
    return draft.set(name, value if name != "model" or value != '"x"' else "7").shot(label=REFUSE)


@family(2)
def options_of_streams(a):
    draft = Draft(a, a.rng.choice([call for call in CALLS if call[0] == CHAT]))
    options = a.rng.choice(
        [
            "[]",
            "true",
            '"x"',
            "7",
            '{"include_usage":"true"}',
            '{"include_usage":1}',
            '{"include_usage":[]}',
            '{"include_usage":{}}',
            '{"include_usage":"false"}',
        ]
    )
    return draft.set("stream_options", options).set("stream", "true").shot(label=REFUSE)


@family(2)
def options_of_streams_sound(a):
    draft = Draft(a, a.rng.choice([call for call in CALLS if call[0] == CHAT]))
    options = a.rng.choice(
        [
            "{}",
            "null",
            '{"include_usage":false}',
            '{"include_usage":null}',
            '{"include_us\\u0061ge":false}',
            '{"a":1,"include_usage":true}',
            '{"Include_usage":true}',
        ]
        + ['{"include_obfuscation":false}', '{ "include_usage" : true }']
    )
    return draft.set("stream_options", options).set("stream", a.rng.choice(["true", "false", "null"])).shot()


@family(2)
def models_unknown(a):
    draft = Draft(a)
    if draft.path == MODERATIONS:
        draft = Draft(a, CALLS[0])
    model = json.loads(draft.value("model"))
    odd = a.rng.choice(
        [
            model.upper(),
            model + " ",
            " " + model,
            model + "\x00",
            model + "/",
            "../" + model,
            model + "\n",
            model.replace("-", "\u2010"),
            model + ":online",
            "",
        ]
        + [
            model.replace("l", "\u217c"),
            f"vendor_b/{model}",
            "x" * 10_000,
            "*",
            model + "\u200b",
            "default",
            "null",
            "\ufeff" + model,
            model + "@latest",
            model + "#x",
        ]
    )
    if odd == model:
        odd += "x"
    return draft.set("model", json.dumps(odd)).shot(label=REFUSE)


@family()
def models_of_other_endpoints(a):
    draft = Draft(a)
    own = json.loads(draft.value("model"))
    other = a.rng.choice(
        [
            m
            for m in (
                "tts-1",
                "lmb-image-1",
                "text-embedding-3-small",
                "lmd-imagine-video",
                "omni-moderation-latest",
                "lmb-5.5-pro",
            )
            if m != own
        ]
    )
    if (draft.path, other) in {
        (RESPONSES, "lmb-5.5-pro"),
        (SPEECH, "tts-1"),
        (IMAGES, "lmb-image-1"),
        (EMBEDDINGS, "text-embedding-3-small"),
    }:
        other = "lmd-imagine-video"
    if draft.path == MODERATIONS and other == "omni-moderation-latest":
        other = "tts-1"
    return draft.set("model", json.dumps(other)).shot(label=REFUSE)


# Fields that move a vendor's bill and have no price here, in any spelling.
UNPRICED = {
    CHAT: [
        ("service_tier", '"priority"'),
        ("service_tier", "1"),
        ("service_tier", '["default"]'),
        ("web_search_options", "{}"),
        ("search_parameters", '{"mode":"on"}'),
        ("tools", '[{"type":"web_search"}]'),
        ("tools", '[{"type":"function","function":{"name":"f"}},{"t\\u0079pe":"code_interpreter"}]'),
        ("background", "true"),
        ("background", '"false"'),
        ("modalities", '["text","audio"]'),
        ("audio", '{"voice":"alloy","format":"mp3"}'),
        ("deferred", "true"),
    ],
    MESSAGES: [
        ("service_tier", '"priority"'),
        ("speed", '"fast"'),
        ("inference_geo", '"us"'),
        ("fallbacks", '[{"model":"lma-opus-5"}]'),
        ("mcp_servers", '[{"url":"http://x"}]'),
        ("tools", '[{"type":"web_search_20250305","name":"web_search"}]'),
        ("tools", '[{"type":"code_execution_20250522","name":"c"}]'),
        ("container", '"c"'),
        ("compaction", "{}"),
    ],
    RESPONSES: [
        ("service_tier", '"priority"'),
        ("background", "true"),
        ("tools", '[{"type":"web_search"}]'),
        ("tools", '[{"type":"file_search"}]'),
        ("prompt", '{"id":"x"}'),
        ("tools", '[{"type":"mcp","server_url":"http://x"}]'),
        ("context_management", "[]"),
        ("generate", "false"),
        ("tools", "{}"),
        ("tools", '"x"'),
    ],
    IMAGES: [
        ("stream", "true"),
        ("partial_images", "1"),
        ("partial_images", '"1"'),
        ("response_format", '"url"'),
        ("n", "2"),
        ("n", "1.0"),
        ("mask", '"x"'),
        ("service_tier", '"priority"'),
    ],
    SPEECH: [
        ("stream_format", '"sse"'),
        ("voice", '{"id":"x"}'),
        ("service_tier", '"priority"'),
        ("input", "7"),
        ("input", '["a"]'),
        ("input", "null"),
    ],
    EMBEDDINGS: [
        ("service_tier", '"priority"'),
        ("input", "7"),
        ("input", "{}"),
        ("input", "[]"),
        ("input", '[["a"]]'),
        ("input", '[1,"a"]'),
        ("input", "[1.5]"),
        ("input", "[-1]"),
    ],
    MODERATIONS: [("service_tier", '"priority"')],
}


@family(4)
def fields_without_a_price(a):
    draft = Draft(a)
    name, value = a.rng.choice(UNPRICED[draft.path])
    draft.drop(name)
    spelling = spelled(a, name) if a.rng.random() < 0.4 else json.dumps(name)
    # A chat that is translated goes out without most of them.
    is_translated = draft.path == CHAT and "lma-" in draft.value("model")
    return draft.add(spelling, value).shot(label=EITHER if is_translated else REFUSE)


@family(2)
def inputs_of_embeddings(a):
    draft = Draft(a, next(call for call in CALLS if call[0] == EMBEDDINGS))
    value = a.rng.choice(
        [
            '[""]',
            '""',
            "[[]]",
            "[[1,2],[3]]",
            "[1,2,3]",
            "[true]",
            "[null]",
            '["a",null]',
            "[1e2]",
            "[9007199254740993]",
            "[[1],2]",
            '["x"]',
            "[" + "1," * 9_000 + "1]",
            "[[[1]]]",
            "[1,-1]",
        ]
    )
    return draft.set("input", value).shot()


@family(2)
def texts_to_speak(a):
    draft = Draft(a, next(call for call in CALLS if call[0] == SPEECH))
    value = a.rng.choice(
        [
            '"\\u0000"',
            '"\\ud83d\\ude00"',
            '"' + "e\u0301" * 50 + '"',
            '" "',
            '"\\n"',
            '"' + "a" * 4_096 + '"',
            '"' + "\U0001f600" * 4_096 + '"',
            '"' + "a" * 4_097 + '"',
        ]
    )
    return draft.set("input", value).shot()


@family()
def objects_in_quotes(a):
    """JSON inside of JSON, of which a second parse would make a member."""
    draft = Draft(a)
    inside = json.dumps('","n":50,"stream":true,"x":"')
    return draft.set("user", inside).shot()


def any_value(a, depth=0):
    kind = a.rng.randrange(9 if depth < 4 else 7)
    if kind == 0:
        return a.rng.choice(["true", "false", "null"])
    if kind == 1:
        return str(a.rng.choice([0, 1, -1, 8, 2**31, 2**53, 2**64, a.rng.getrandbits(20)]))
    if kind == 2:
        return a.rng.choice(["1.5", "1e3", "-0.0", "1E-2", "0.1e1", "1e400", "08", "-", "1."])
    if kind < 7:
        letters = a.rng.choice(
            [
                "",
                "a",
                "\\u0061",
                "\\\\",
                "\\/",
                "\u00e9",
                "\U0001f600",
                "\\ud83d\\ude00",
                "\\ud83d",
                "\x01",
                "__proto__",
            ]
        )
        return f'"{letters * a.rng.choice([1, 1, 3])}"'
    if kind == 7:
        return "[" + ",".join(any_value(a, depth + 1) for _ in range(a.rng.randrange(4))) + "]"
    names = [a.rng.choice(['"a"', '"b"', '"\\u0061"', '"type"', '""', '"n"']) for _ in range(a.rng.randrange(4))]
    return "{" + ",".join(f"{name}:{any_value(a, depth + 1)}" for name in names) + "}"


@family(12)
def grown_from_the_grammar(a):
    """Price fields with any value at all."""
    draft = Draft(a)
    for _ in range(a.rng.choice([1, 1, 2, 3])):
        name = a.rng.choice(
            [
                "max_tokens",
                "max_completion_tokens",
                "max_output_tokens",
                "n",
                "stream",
                "stream_options",
                "tools",
                "service_tier",
                "size",
                "input",
                "metadata",
                "user",
                "model",
            ]
        )
        draft.set(name, any_value(a))
    return draft.shot()
