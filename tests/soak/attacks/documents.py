"""Bodies in JSON that two parsers take for two different ones, or that one of them chokes on."""

import json

from .drafts import CALLS, TEXTS, Draft, any_priced, spelled
from .shot import EITHER, EMBEDDINGS, REFUSE, RESPONSES, family


@family(3)
def members_twice(a):
    draft = Draft(a)
    name = any_priced(draft)
    other = a.rng.choice([draft.value(name), "null", "1", '"x"', "100000", "true", "[]", '"lmb-5.5"'])
    return draft.add(json.dumps(name), other).shot()


@family(3)
def members_twice_once_unescaped(a):
    draft = Draft(a)
    name = any_priced(draft)
    return draft.add(spelled(a, name), a.rng.choice([draft.value(name), "null", "1", '"lmb-5.5"', "true"])).shot()


@family(3)
def members_twice_inside(a):
    draft = Draft(a)
    inside = f'{{"a":1,"b":{{"c":2,{spelled(a, "c")}:3}}}}'
    kind = a.rng.randrange(4)
    if kind == 0:
        draft.add('"metadata"', inside)
    elif kind == 1:
        draft.set("tools", f'[{{"type":"function","type":"web_search","function":{{"name":"f"}}}},{inside}]')
    elif kind == 2:
        draft.set("stream_options", '{"include_usage":true,"include_us\\u0061ge":false}')
    else:
        draft.set(TEXTS[draft.path], f'[{{"role":"user","content":"{draft.mark}","content":"x"}}]')
    return draft.shot()


@family(2)
def names_in_other_letters(a):
    """Members that only a careless reader takes for one that counts."""
    draft = Draft(a)
    name = any_priced(draft)
    odd = a.rng.choice(
        [
            name.upper(),
            name.title(),
            name + " ",
            " " + name,
            name + "\u0000",
            name + "\u200b",
            name.replace("_", "-"),
            name.replace("s", "\u017f"),
        ]
        + [name.replace("e", "\u0435"), name + "[]", name + ".", "\ufeff" + name, name.replace("o", "\uff4f")]
    )
    return draft.add(
        json.dumps(odd, ensure_ascii=a.rng.random() < 0.5), a.rng.choice(["1", '"x"', "99999", "true"])
    ).shot()


@family()
def names_of_prototypes(a):
    draft = Draft(a)
    name = a.rng.choice(
        [
            "__proto__",
            "constructor",
            "prototype",
            "toString",
            "hasOwnProperty",
            "__class__",
            "$ref",
            "@type",
            "",
        ]
    )
    inside = f'{{"{any_priced(draft)}":"lmb-5.5","n":100,"stream":true}}'
    return draft.add(json.dumps(name), inside).shot()


@family(2)
def too_deep(a):
    draft = Draft(a)
    depth = a.rng.choice([62, 63, 64, 65, 100, 1_000, 20_000, 200_000])
    opening, closing = a.rng.choice([("[", "]"), ('{"a":', "}")])
    closing = closing if a.rng.random() < 0.8 else ""
    return draft.add('"metadata"', opening * depth + ("1" if opening != "[" else "") + closing * depth).shot()


@family()
def byte_order_marks(a):
    draft = Draft(a)
    mark = a.rng.choice([b"\xef\xbb\xbf", b"\xfe\xff", b"\xff\xfe", b"\x00\x00\xfe\xff", b"\x2b\x2f\x76\x38"])
    return draft.shot(mark + draft.written().encode())


@family()
def other_encodings(a):
    draft = Draft(a)
    coding = a.rng.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-7", "cp037"])
    return draft.shot(draft.written().encode(coding), None if coding != "utf-7" else EITHER)


@family(3)
def bad_utf8(a):
    draft = Draft(a)
    bad = a.rng.choice(
        [
            b"\xff",
            b"\xc0\x80",
            b"\xc1\xbf",
            b"\xe0\x80\x80",
            b"\xed\xa0\x80",
            b"\xed\xbf\xbf",
            b"\xf4\x90\x80\x80",
            b"\xf8\x88\x80\x80\x80",
            b"\xc3",
        ]
        + [b"\xe2\x82", b"\x80", b"\xfe", b"\xf0\x9f\x98", b"\xc0\xaf"]
    )
    where = a.rng.choice([draft.mark, any_priced(draft), "{", '"'])
    return draft.shot(draft.written().encode().replace(where.encode(), where.encode() + bad, 1))


@family(3)
def half_surrogates(a):
    draft = Draft(a)
    half = a.rng.choice(
        [
            "\\ud800",
            "\\udc00",
            "\\ud83d",
            "\\udfff\\ud800",
            "\\ud800\\ud800",
            "\\uD83Dx",
            "\\ud83d\\n",
            "\\ud83d\\u0041",
            "\\uDBFF\\uDBFF",
        ]
    )
    if a.rng.random() < 0.3:
        return draft.add(f'"{any_priced(draft)}{half}"', "1").shot()
    return draft.shot(draft.written().replace(draft.mark, draft.mark + half, 1))


@family(2)
def after_the_end(a):
    draft = Draft(a)
    rest = a.rng.choice(
        [
            "}",
            "{}",
            ",",
            "x",
            "\x00",
            '{"n":5}',
            "//x",
            "/**/",
            "]",
            "\ufeff",
            "\u00a0",
            "1",
            "\x1a",
            ";",
            "\u2028",
            "\x0c",
            "<!-- -->",
        ]
    )
    return draft.shot(draft.written() + rest)


@family(2)
def comments(a):
    draft = Draft(a)
    comment = a.rng.choice(["/* x */", "// x\n", "# x\n", "<!-- x -->", "/**/"])
    place = a.rng.choice(["{", ",", ":"])
    return draft.shot(draft.written().replace(place, place + comment, 1))


@family(2)
def grammar_of_others(a):
    draft = Draft(a)
    body = draft.written()
    kind = a.rng.randrange(8)
    if kind == 0:
        body = body[:-1] + ",}"
    elif kind == 1:
        body = body.replace('"', "'")
    elif kind == 2:
        name = any_priced(draft)
        body = body.replace(f'"{name}"', name, 1)
    elif kind == 3:
        body = body.replace(":", "=", 1)
    elif kind == 4:
        body = body.replace(",", ";", 1)
    elif kind == 5:
        body = body.replace("{", "{,", 1)
    elif kind == 6:
        body = body.replace(",", ",,", 1)
    else:
        body = body.replace(":", "::", 1)
    return draft.shot(body)


@family(2)
def control_characters(a):
    draft = Draft(a)
    control = a.rng.choice(["\x00", "\x01", "\n", "\t", "\r", "\x08", "\x1b", "\x1f"])
    return draft.shot(draft.written().replace(draft.mark, draft.mark + control, 1))


@family(2)
def escapes_unknown(a):
    draft = Draft(a)
    escape = a.rng.choice(
        [
            "\\x41",
            "\\'",
            "\\a",
            "\\v",
            "\\0",
            "\\u",
            "\\u1",
            "\\u12",
            "\\u123",
            "\\u{41}",
            "\\U00000041",
            "\\u00g0",
            "\\ ",
            "\\\n",
            "\\u+041",
            "\\N",
        ]
    )
    return draft.shot(draft.written().replace(draft.mark, draft.mark + escape, 1))


@family(2)
def escapes(a):
    """All that may be escaped, in what counts."""
    draft = Draft(a)
    name = any_priced(draft)
    for member in draft.members:
        if member[0] == json.dumps(name):
            member[0] = spelled(a, name)
            if member[1].startswith('"') and len(member[1]) > 2:
                member[1] = spelled(a, json.loads(member[1]))
    return draft.shot()


@family(2)
def cut_short(a):
    draft = Draft(a)
    body = draft.written().encode()
    return draft.shot(body[: a.rng.randint(0, len(body) - 1)].rstrip(b" \r\n\t"), REFUSE)


@family()
def other_than_objects(a):
    draft = Draft(a)
    body = a.rng.choice(
        [
            "",
            " ",
            "null",
            "[]",
            "1",
            '"x"',
            "true",
            f"[{draft.written()}]",
            json.dumps(draft.written()),
            "{}{}",
            "\n",
            '""',
            "-",
        ]
    )
    return draft.shot(body, REFUSE)


@family()
def spaces_of_others(a):
    draft = Draft(a)
    space = a.rng.choice(["\x0b", "\x0c", "\u00a0", "\u2028", "\u2029", "\u3000", "\ufeff", "\x00", "\u200b", "\x85"])
    place = a.rng.choice(["{", ",", ":", "}"])
    return draft.shot(draft.written().replace(place, a.rng.choice([place + space, space + place]), 1))


@family(0.02)
def giant_texts(a):
    draft = Draft(a)
    size = a.rng.choice([1 << 20, 4 << 20, 12 << 20])
    unit = a.rng.choice(["a", "\\u0000", "\\\\", "\u00e9", "\\n"])
    return draft.set("metadata", f'"{unit * (size // len(unit.encode()))}"').shot(raw=True, patience=20.0)


@family(0.02)
def beyond_the_largest(a):
    draft = Draft(a)
    body = draft.written().encode()
    return draft.shot(body[:-1] + b" " * (33 << 20) + b"}", REFUSE, raw=True, patience=20.0)


@family(0.1)
def names_without_number(a):
    draft = Draft(a)
    count = a.rng.choice([4_095, 4_097, 50_000])
    inside = ",".join(f'"k{i}":0' for i in range(count))
    if a.rng.random() < 0.5:
        inside += ',"k0":1'
    return draft.add('"metadata"', f"{{{inside}}}").shot()


@family(0.1)
def elements_without_number(a):
    path, members = a.rng.choice(
        [call for call in CALLS if TEXTS[call[0]] == "messages" or call[0] in (RESPONSES, EMBEDDINGS)]
    )
    draft = Draft(a, (path, members))
    # So many that fit are fewer where each makes the vendor write a list of its own.
    count = a.rng.choice([20 if path == EMBEDDINGS else 1_000, 100_001])
    element = '"x"' if path == EMBEDDINGS else '{"role":"user","content":"x"}'
    return draft.set(TEXTS[path], "[" + ",".join([element] * count) + "]").shot(
        label=REFUSE if count > 100_000 else None, patience=20.0
    )


@family(0.2)
def long_numbers_and_names(a):
    draft = Draft(a)
    kind = a.rng.randrange(3)
    if kind == 0:
        draft.add('"seed"', "0." + "1" * 100_000)
    elif kind == 1:
        draft.add('"' + "k" * 100_000 + '"', "1")
    else:
        draft.add('"seed"', "1e-" + "9" * 1_000)
    return draft.shot()


@family(12)
def mutated(a):
    """Honest bodies with bytes flipped, lost, doubled or moved."""
    draft = Draft(a)
    body = bytearray(draft.written().encode())
    for _ in range(a.rng.choice([1, 1, 1, 2, 4])):
        at, end = sorted(a.rng.randrange(len(body) + 1) for _ in range(2))
        kind = a.rng.randrange(6)
        if kind == 0 and body:
            body[a.rng.randrange(len(body))] = a.rng.choice(b'"\\{}[],:0123456789eE.-+tfn \x00\xff/x')
        elif kind == 1:
            body.insert(at, a.rng.choice(b'"\\{}[],:0123456789eE.-+tfn \x00\xff/x'))
        elif kind == 2:
            del body[at : min(end, at + 3)]
        elif kind == 3:
            body[at:at] = body[at : min(end, at + 40)]
        elif kind == 4:
            body[at:at] = a.rng.choice(
                [
                    b"\\u0000",
                    b'"n":2,',
                    b'"model":"lmb-5.5",',
                    b"\xc0\x80",
                    b"1e999",
                    b"null",
                    b'"stream":true,',
                    b"\\",
                ]
            )
        else:
            body[at:end] = body[at:end].swapcase()
        body = body or bytearray(b"{")
    return draft.shot(bytes(body))
