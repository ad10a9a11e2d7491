"""Requests that two readers of HTTP could take for two different ones, or for none."""

from .shot import ACCEPT, CHAT, EITHER, END, LOCAL, POSTS, REFUSE, RESET, Shot, family

BAD_SPACE = ("\x0b", "\x0c", "\xa0", "\x85", "\x00", "\x1f")


def insert(head, *lines):
    """A head with further lines, latin-1, right after its first one."""
    first, rest = head.split(b"\r\n", 1)
    return first + b"\r\n" + b"".join(line.encode("latin-1") + b"\r\n" for line in lines) + rest


def chunked(body, rng=None, extension=b"", ends=b"\r\n"):
    """The body in chunks; of random sizes, if there is chance."""
    out, at = [], 0
    while at < len(body):
        size = rng.randint(1, max(1, len(body) // 3)) if rng else len(body)
        piece = body[at : at + size]
        out.append(b"%x%s\r\n%s%s" % (len(piece), extension, piece, ends))
        at += len(piece)
    return b"".join(out)


def smuggled(a, mark):
    """A second request that hides behind the first: well formed, and with a key that pays."""
    body = a.chat(mark)
    return a.head(EITHER, CHAT, len(body)) + b"\r\n" + body


def two_marks(a):
    mark = a.mark()
    return mark, mark + "-inner"


def framed(a, *lines, body=None, length=None, rest=None, label=REFUSE, **options):
    """A chat call with these lines about its length instead of an honest one."""
    mark, inner = two_marks(a)
    body = a.chat(mark) if body is None else body
    head = a.head(label, CHAT, length, more=lines)
    pieces = [head + b"\r\n" + body + (smuggled(a, inner) if rest is None else rest)]
    options.setdefault("linger", 0.12)
    return Shot("", pieces, label, (mark, inner), path=CHAT, **options)


def two_readings(a):
    """A body that ends early for who believes in chunks, and late for who counts."""
    mark, inner = two_marks(a)
    return mark, inner, b"0\r\n\r\n" + smuggled(a, inner)


@family(3)
def length_and_chunks(a):
    mark, inner, rest = two_readings(a)
    body = chunked(a.chat(mark)) + rest
    length = a.rng.choice([len(body), 4, 0, len(body) + 40, len(chunked(a.chat(mark)))])
    lines = [f"content-length: {length}", "transfer-encoding: chunked"]
    a.rng.shuffle(lines)
    return Shot("", [a.head(REFUSE, CHAT, more=lines) + b"\r\n" + body], REFUSE, (mark, inner), linger=0.12)


@family(3)
def coding_unknown(a):
    mark, inner, rest = two_readings(a)
    coding = a.rng.choice(
        "xchunked|chunked, identity|identity|gzip, chunked|chunked, gzip|chunkedx|chunked;q=1|chunked,"
        '|,chunked|"chunked"|chunked chunked|cow|deflate|chunked, chunked|gzip'.split("|")
    )
    lines = [f"transfer-encoding: {coding}"]
    if a.rng.random() < 0.4:
        lines.append("content-length: 5")
    body = chunked(a.chat(mark)) + rest
    return Shot("", [a.head(REFUSE, CHAT, more=lines) + b"\r\n" + body], REFUSE, (mark, inner), linger=0.12)


@family(2)
def coding_in_disguise(a):
    mark, inner, rest = two_readings(a)
    name = a.rng.choice(
        ["transfer-encoding ", "transfer-encoding\t", " transfer-encoding", "\ttransfer-encoding"]
        + [f"transfer-encoding{space}" for space in BAD_SPACE]
        + [f"transfer-encoding: {space}chunked\r\nx" for space in BAD_SPACE[:3] + BAD_SPACE[4:]]
        + [
            "transfer-encoding: x\r\n chunked\r\nx",
            "foo: bar\ntransfer-encoding",
            "foo: bar\rtransfer-encoding",
        ]
    )
    body = chunked(a.chat(mark)) + rest
    lines = [f"{name}: chunked"] + (["content-length: 5"] if a.rng.random() < 0.5 else [])
    return Shot("", [a.head(REFUSE, CHAT, more=lines) + b"\r\n" + body], REFUSE, (mark, inner), linger=0.12)


@family()
def coding_twice(a):
    mark, inner, rest = two_readings(a)
    second = a.rng.choice(["chunked", "identity", "", "Chunked", "x"])
    lines = ["transfer-encoding: chunked", f"Transfer-Encoding: {second}"]
    a.rng.shuffle(lines)
    body = chunked(a.chat(mark)) + rest
    return Shot("", [a.head(REFUSE, CHAT, more=lines) + b"\r\n" + body], REFUSE, (mark, inner), linger=0.12)


@family()
def coding_in_capitals(a):
    mark = a.mark()
    body = a.chat(mark)
    lines = [f"{a.rng.choice(['Transfer-Encoding', 'TRANSFER-ENCODING'])}: {a.rng.choice(['Chunked', 'CHUNKED'])}"]
    head = a.head(EITHER, CHAT, more=lines) + b"\r\n"
    return Shot("", [head + chunked(body, a.rng) + b"0\r\n\r\n"], EITHER, (mark,), path=CHAT, body=body)


@family()
def coding_in_old_http(a):
    mark = a.mark()
    body = a.chat(mark)
    head = a.head(EITHER, CHAT, version="HTTP/1.0", more=["transfer-encoding: chunked"]) + b"\r\n"
    return Shot("", [head + chunked(body) + b"0\r\n\r\n", END], EITHER, (mark,), path=CHAT, body=body)


@family(2)
def length_twice_unlike(a):
    mark = a.mark()
    right = len(a.chat(mark))
    return framed(a, f"content-length: {a.rng.choice([0, 1, right, right + 9])}", f"Content-Length: {right - 1}")


@family()
def length_twice_alike(a):
    body = a.chat(mark := a.mark())
    lines = [f"content-length: {len(body)}"] * a.rng.choice([2, 3])
    shot = framed(a, *lines, body=body)
    shot.marks += (mark,)
    return shot


@family(3)
def length_unlike_a_number(a):
    body = a.chat(mark := a.mark())
    n = len(body)
    value = a.rng.choice(
        [
            f"+{n}",
            f"-{n}",
            f"0{n}",
            f"{n:#x}",
            f"{n} {n}",
            f"{n};",
            f"{n}.0",
            f"{n}, {n}",
            f"{n},",
            "",
            " ",
            f"{n}e0",
        ]
        + [
            f"{n}_0",
            "1e2",
            f'"{n}"',
            f"{n}\x0b",
            f"\x0b{n}",
            f"{n}\x00",
            "\xb2\xb3",
            "NaN",
            f"{n}, 1",
            "--1",
            f"0b{n:b}",
        ]
    )
    shot = framed(a, f"content-length: {value}", body=body)
    shot.marks += (mark,)
    return shot


@family()
def length_beyond_all(a):
    value = a.rng.choice([2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 5, 10**30, 10**400])
    return framed(a, f"content-length: {value}", linger=0)


@family(2)
def length_too_short(a):
    """The rest of the body stands where the next request is expected."""
    body = a.chat(a.mark())
    cut = a.rng.randint(1, len(body) - 1)
    return framed(a, length=cut, body=body)


@family(2)
def length_too_long(a):
    mark = a.mark()
    body = a.chat(mark)
    head = a.head(REFUSE, CHAT, len(body) + a.rng.choice([1, 7, 5_000])) + b"\r\n"
    return Shot("", [head + body, 0.01, a.rng.choice([END, END, RESET])], REFUSE, (mark,))


@family(2)
def no_length(a):
    mark, inner = two_marks(a)
    pieces = [a.head(REFUSE, CHAT) + b"\r\n" + smuggled(a, inner).replace(b"POST", b"POSX", 1)]
    return Shot("", pieces, REFUSE, (mark, inner), linger=0.12)


@family(2)
def lone_line_feeds(a):
    mark = a.mark()
    body = a.chat(mark)
    whole = a.request(REFUSE, CHAT, body, more=["x-a: b"])
    head, body = whole.split(b"\r\n\r\n", 1)
    lines = head.split(b"\r\n")
    ends = [b"\r\n"] * len(lines)
    for place in a.rng.sample(range(len(lines)), a.rng.choice([1, 1, 2, len(lines)])):
        ends[place] = b"\n"
    head = b"".join(line + end for line, end in zip(lines, ends))
    return Shot("", [head + a.rng.choice([b"\r\n", b"\n"]) + body], REFUSE, (mark,))


@family(2)
def lone_carriage_returns(a):
    mark = a.mark()
    head = a.request(REFUSE, CHAT, a.chat(mark), more=["x-a: b", "x-c: d"])
    kind = a.rng.choice(["name", "value", "line", "end"])
    if kind == "end":
        head = head.replace(b"\r\n\r\n", b"\r\r\n\r\n", 1)
    else:
        old, new = {"name": (b"x-a", b"x\r-a"), "value": (b": b", b": b\rc"), "line": (b"b\r\nx", b"b\rx")}[kind]
        head = head.replace(old, new, 1)
    return Shot("", [head], REFUSE, (mark,))


@family(2)
def folded_lines(a):
    mark = a.mark()
    line = a.rng.choice(
        ["x-a: b\r\n c", "x-a: b\r\n\tc", "x-a:\r\n b", " x-a: b", "x-a: b\r\n \r\n c", "host: a\r\n b"]
    )
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), more=[line])], REFUSE, (mark,))


@family(2)
def names_unsound(a):
    mark = a.mark()
    name = a.rng.choice(
        [
            "x a",
            "x-a ",
            "x-a\t",
            "",
            "x\x00a",
            "x(a)",
            "x@a",
            "x/a",
            "x[a]",
            "x=a",
            'x"a',
            "x\x7fa",
            "x\xe9",
            "x,a",
            "x{a}",
        ]
    )
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), more=[f"{name}: b"])], REFUSE, (mark,))


@family()
def lines_without_a_colon(a):
    mark = a.mark()
    line = a.rng.choice(["nonsense", "x-a", "GET / HTTP/1.1", "x-a b", "=", ";", "\x01"])
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), more=[line])], REFUSE, (mark,))


@family()
def values_with_control_characters(a):
    mark = a.mark()
    control = a.rng.choice([0, 1, 7, 8, 11, 12, 27, 127])
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), more=[f"x-a: b{chr(control)}c"])], REFUSE, (mark,))


@family()
def no_host(a):
    mark = a.mark()
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), host=None)], REFUSE, (mark,))


@family()
def two_hosts(a):
    mark = a.mark()
    second = a.rng.choice(["tollgate", "other", "", "tollgate:80"])
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), more=[f"Host: {second}"])], REFUSE, (mark,))


@family()
def hosts_unsound(a):
    mark = a.mark()
    host = a.rng.choice(["a b", "a,b", "a@b", "a/b", "[::1", "a:b:c", "\xff", "a?b", "a#b", "", "x" * 5_000, "a:99999"])
    body = a.chat(mark)
    return Shot("", [a.request(EITHER, CHAT, body, host=host)], EITHER, (mark,), path=CHAT, body=body)


@family(2)
def heads_too_large(a):
    """More than any client needs, in one header, in many, or in a target."""
    mark = a.mark()
    kind = a.rng.randrange(4)
    if kind == 0:
        more = [f"x-a: {'b' * a.rng.choice([40_000, 100_000, 900_000])}"]
    elif kind == 1:
        more = [f"x-{i}: {'b' * 400}" for i in range(a.rng.choice([100, 200]))]
    elif kind == 2:
        more = [f"x-{i}: b" for i in range(a.rng.choice([300, 5_000]))]
    else:
        more = [f"{'x' * 40_000}: b"]
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), more=more)], REFUSE, (mark,))


@family()
def heads_without_an_end(a):
    mark = a.mark()
    line = b"x-a: " + b"b" * 1_000 + b"\r\n"
    pieces = [a.head(REFUSE, CHAT, 10)]
    for _ in range(a.rng.choice([40, 80])):
        pieces += [line]
    return Shot("", [*pieces, 0.01, END], REFUSE, (mark,))


@family()
def targets_too_long(a):
    mark = a.mark()
    length = a.rng.choice([9_000, 33_000, 70_000, 300_000])
    path = a.rng.choice(["/" + "a" * length, f"{CHAT}/{'b' * length}", "/v1/models/" + "%41" * (length // 3)])
    return Shot("", [a.request(REFUSE, path, a.chat(mark))], REFUSE, (mark,))


@family()
def empty_lines_first(a):
    mark = a.mark()
    body = a.chat(mark)
    first = a.rng.choice([b"\r\n", b"\r\n\r\n", b"\n", b"\r\n" * 50])
    return Shot("", [first + a.request(EITHER, CHAT, body)], EITHER, (mark,), path=CHAT, body=body)


@family(2)
def versions_unknown(a):
    mark = a.mark()
    version = a.rng.choice(
        "HTTP/0.9|HTTP/1.2|HTTP/1.9|HTTP/2|HTTP/2.0|HTTP/3|HTTP/9.9|HTTP/1|HTTP/1.|HTTP/1.1.1|HTTP/11|http/1.1"
        "|HTTPS/1.1|HTTP /1.1|HTTP/ 1.1|ICY/1.1|HTTP/1.1x|HTTP/+1.1|HTTP/01.1|\x00HTTP/1.1||HTTP/1,1".split("|")
    )
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), version=version), 0.02, END], REFUSE, (mark,))


@family()
def old_http(a):
    mark = a.mark()
    body = a.chat(mark)
    host = a.rng.choice([None, "tollgate"])
    more = a.rng.choice([[], ["connection: keep-alive"]])
    pieces = [a.request(EITHER, CHAT, body, version="HTTP/1.0", host=host, more=more)]
    return Shot("", pieces, EITHER, (mark,), path=CHAT, body=body)


@family(2)
def methods_unsound(a):
    mark = a.mark()
    method = a.rng.choice(
        [
            "post",
            "Post",
            "PO ST",
            "P\x00ST",
            "POST\x0b",
            "P" * 10_000,
            "PRI",
            "(POST)",
            "",
            "POST:",
            "\xc7ET",
            "P/OST",
            "\tPOST",
        ]
    )
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), method=method), 0.02, END], REFUSE, (mark,))


@family()
def first_lines_unsound(a):
    mark = a.mark()
    request = a.request(REFUSE, CHAT, a.chat(mark))
    line = b"POST " + CHAT.encode() + b" HTTP/1.1"
    wrong = a.rng.choice(
        [
            b"POST " + CHAT.encode(),
            b"POST",
            b"POST HTTP/1.1",
            b"\x00" + line,
            line.replace(b" ", b"\t"),
            line + b" x",
        ]
        + [
            line.replace(b" ", b"\x0c"),
            line.replace(b"/v1", b"/v 1"),
            b"HTTP/1.1 200 OK",
            line.replace(b" H", b"\xa0H"),
        ]
        + [line.replace(b"/v1", b"/v\x001"), line.replace(b"/v1", b"/v1\x7f"), line.replace(b"/v1", b"v1")]
    )
    return Shot("", [request.replace(line, wrong, 1), 0.02, END], REFUSE, (mark,))


@family()
def first_lines_with_more_spaces(a):
    mark = a.mark()
    body = a.chat(mark)
    line = b"POST " + CHAT.encode() + b" HTTP/1.1"
    odd = a.rng.choice([line.replace(b" ", b"  "), line + b" ", line + b"\t", b" " + line])
    pieces = [a.request(EITHER, CHAT, body).replace(line, odd, 1), 0.02, END]
    return Shot("", pieces, EITHER, (mark,), path=CHAT, body=body)


def in_chunks(a, text, label=REFUSE, **options):
    mark, inner = two_marks(a)
    body = a.chat(mark)
    head = a.head(label, CHAT, more=["transfer-encoding: chunked"]) + b"\r\n"
    pieces = text(body, smuggled(a, inner))
    pieces = pieces if isinstance(pieces, list) else [pieces]
    return Shot("", [head, *pieces], label, (mark, inner), path=CHAT, body=body, **options)


@family(2)
def chunk_sizes_beyond_all(a):
    size = a.rng.choice(
        [
            "ffffffffffffffff",
            "10000000000000000",
            "8000000000000000",
            "7fffffffffffffff",
            "f" * 40,
            "1" * 5_000,
        ]
    )
    return in_chunks(a, lambda body, inner: [size.encode() + b"\r\n" + body + b"\r\n0\r\n\r\n" + inner, 0.02, END])


@family(3)
def chunk_sizes_unsound(a):
    def text(body, inner):
        n = b"%x" % len(body)
        size = a.rng.choice(
            [
                b"0x" + n,
                b"+" + n,
                b"-" + n,
                b"g",
                b"",
                b" ",
                n + b" 1",
                n + b"h",
                n + b"\x00",
                b"\x0b" + n,
                n + b"_",
                b"\xff" + n,
                n + b",",
            ]
        )
        return [size + b"\r\n" + body + b"\r\n0\r\n\r\n" + inner, 0.02, END]

    return in_chunks(a, text)


@family(2)
def chunk_extensions(a):
    extension = a.rng.choice([b";a", b";a=b", b';a="b;c"', b";a=b;c=d", b"; a = b", b" ", b";", b";" + b"a" * 200])
    return in_chunks(a, lambda body, _: chunked(body, a.rng, extension) + b"0" + extension + b"\r\n\r\n", EITHER)


@family(2)
def chunk_extensions_unsound(a):
    """pingora reads over whatever an extension holds. The connection ends with the body, so that what a
    reader with other line ends takes for a request behind it is none: a vendor hears of one at most."""
    extension = a.rng.choice([b";a\nb", b";a\rb", b";" + b"a" * 70_000, b';a="\n"', b"\n", b";a\x00", b";\xff\n"])

    def text(body, inner):
        return [chunked(body, None, extension) + b"0\r\n\r\n" + inner, 0.02, END]

    return in_chunks(a, text, EITHER, one_of=True)


@family(2)
def chunk_ends_unsound(a):
    ends = a.rng.choice([b"\n", b"\r", b"", b"\n\n", b"\r\r\n", b"x\r\n", b"\r\nx", b"  "])
    return in_chunks(a, lambda body, inner: [chunked(body, None, b"", ends) + b"0\r\n\r\n" + inner, 0.02, END])


@family()
def chunk_heads_with_lone_line_feeds(a):
    def text(body, inner):
        kind = a.rng.randrange(3)
        n = b"%x" % len(body)
        whole = [
            n + b"\n" + body + b"\r\n0\r\n\r\n",
            n + b"\r\n" + body + b"\r\n0\n\r\n",
            n + b"\r\n" + body + b"\r\n0\r\n\n",
        ][kind]
        return [whole + inner, 0.02, END]

    return in_chunks(a, text)


@family(2)
def trailers(a):
    trailer = a.rng.choice(
        [
            b"x-a: b",
            b"content-length: 0",
            b"host: other",
            b"transfer-encoding: chunked",
            b"authorization: Bearer x",
        ]
        + [b"content-encoding: gzip", b"x-a: b\r\nx-c: d", b"idempotency-key: x", b"content-type: text/plain"]
    )
    return in_chunks(a, lambda body, _: chunked(body, a.rng) + b"0\r\n" + trailer + b"\r\n\r\n", EITHER)


@family()
def trailers_unsound(a):
    trailer = a.rng.choice([b"x-a: " + b"b" * 200_000, b"x-a: b\r\n" * 20_000, b"nonsense\nmore", b"\x00", b"x a: b"])
    return in_chunks(
        a, lambda body, inner: [chunked(body) + b"0\r\n" + trailer + b"\r\n\r\n" + inner, 0.02, END], EITHER
    )


@family(2)
def chunks_cut_off(a):
    def text(body, _):
        whole = chunked(body, a.rng) + b"0\r\n\r\n"
        return [whole[: a.rng.randint(1, len(whole) - 6)], 0.01, a.rng.choice([END, RESET])]

    return in_chunks(a, text)


@family(0.3)
def chunks_of_a_byte(a):
    def text(body, _):
        body += b" " * 8_000
        return b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    return in_chunks(a, text, EITHER)


@family()
def pipelined(a):
    """Two honest requests at once: each is served once, or not at all."""
    mark, inner = two_marks(a)
    pieces = [a.request(EITHER, CHAT, a.chat(mark)) + smuggled(a, inner)]
    return Shot("", pieces, EITHER, (mark, inner), path=CHAT, linger=0.3)


@family(2)
def pipelined_behind_a_refusal(a):
    """After a request that could not be read nobody knows where the next one begins."""
    mark, inner = two_marks(a)
    wrong = a.rng.choice(
        [
            ["content-length: 5", "content-length: 6"],
            ["x a: b"],
            ["content-length: 5", "transfer-encoding: chunked"],
            ["x-a: b\r\n c"],
        ]
    )
    return Shot(
        "",
        [a.head(REFUSE, CHAT, more=wrong) + b"\r\n" + smuggled(a, inner)],
        REFUSE,
        (mark, inner),
        linger=0.12,
    )


@family(2)
def body_where_none_is_read(a):
    """A request without a use for its body, and another one as the body."""
    mark, inner = two_marks(a)
    hidden = smuggled(a, inner)
    method, path = a.rng.choice(
        [
            ("GET", "/v1/models"),
            ("GET", "/nothing"),
            ("DELETE", CHAT),
            ("HEAD", "/v1/models"),
            ("OPTIONS", CHAT),
        ]
    )
    if a.rng.random() < 0.5:
        pieces = [a.head(LOCAL, path, len(hidden), method=method) + b"\r\n" + hidden]
    else:
        head = a.head(LOCAL, path, method=method, more=["transfer-encoding: chunked"])
        pieces = [head + b"\r\n" + chunked(hidden) + b"0\r\n\r\n"]
    return Shot("", pieces, LOCAL, (mark, inner), linger=0.12)


@family()
def prefaces_of_http2(a):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    mark = a.mark()
    behind = a.rng.choice([b"", settings, a.rng.randbytes(60), a.request(REFUSE, CHAT, a.chat(mark))])
    return Shot("", [preface + behind, 0.05, END], REFUSE, (mark,), patience=1.5)


@family()
def tls_where_none_is(a):
    hello = bytes.fromhex("16030100c8010000c40303") + a.rng.randbytes(32) + a.rng.randbytes(140)
    return Shot("", [hello, 0.02, END], REFUSE, patience=1.5)


@family(2)
def other_protocols(a):
    said = a.rng.choice(
        [
            b"SSH-2.0-x\r\n",
            b"EHLO x\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"stats\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
            b"USER x\r\n",
        ]
        + [
            b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c",
            b"\x05\x01\x00",
            b"\x04\x01\x00\x50",
            b"GET\r\n\r\n",
            b"\x00" * 100,
            b"{}\n",
            b"<policy/>\x00",
        ]
        + [b"OPTIONS rtsp://x RTSP/1.0\r\n\r\n", b"INVITE sip:x SIP/2.0\r\n\r\n", b"\xff\xf4\xff\xfd\x06"]
    )
    mark = a.mark()
    behind = a.rng.choice([b"", a.request(REFUSE, CHAT, a.chat(mark))])
    return Shot("", [said + behind, 0.02, END], REFUSE, (mark,), patience=1.5)


@family()
def targets_in_absolute_form(a):
    mark = a.mark()
    body = a.chat(mark)
    start = a.rng.choice(
        [
            "http://tollgate",
            "http://other.example",
            "https://tollgate:443",
            "http://u:p@tollgate",
            "HTTP://tollgate",
        ]
    )
    return Shot("", [a.request(EITHER, start + CHAT, body)], EITHER, (mark,), path=CHAT, body=body)


@family()
def targets_of_other_schemes(a):
    mark = a.mark()
    target = a.rng.choice(
        [
            "*",
            "ftp://tollgate/x",
            "file:///etc/passwd",
            "tollgate:443",
            "javascript:x",
            "http://",
            "://",
            "http:/x",
            "?a",
            "\\v1",
        ]
    )
    return Shot("", [a.request(REFUSE, target, a.chat(mark)), 0.02, END], REFUSE, (mark,))


@family()
def tunnels(a):
    mark = a.mark()
    target = a.rng.choice(["127.0.0.1:6379", "tollgate:443", CHAT, "[::1]:80", "http://x/"])
    behind = b"" if a.rng.random() < 0.5 else smuggled(a, mark)
    pieces = [a.head(REFUSE, target, method="CONNECT") + b"\r\n" + behind, 0.02, END]
    return Shot("", pieces, REFUSE, (mark,), linger=0.1)


@family(2)
def upgrades(a):
    mark = a.mark()
    protocol = a.rng.choice(["websocket", "TLS/1.0", "WebSocket", "HTTP/2.0", "foo/1, websocket"])
    more = [f"upgrade: {protocol}", "connection: Upgrade"]
    more += ["sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version: 13"]
    return Shot("", [a.request(REFUSE, CHAT, a.chat(mark), more=more)], REFUSE, (mark,))


@family()
def upgrades_to_http2(a):
    mark = a.mark()
    body = a.chat(mark)
    more = ["upgrade: h2c", "connection: Upgrade, HTTP2-Settings", "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA"]
    return Shot("", [a.request(EITHER, CHAT, body, more=more)], EITHER, (mark,), path=CHAT, body=body)


@family()
def expectations(a):
    mark = a.mark()
    body = a.chat(mark)
    expected = a.rng.choice(["100-continue", "200-ok", "100-continue, x", "", "100-Continue", "chunked"])
    return Shot(
        "",
        [a.request(EITHER, CHAT, body, more=[f"expect: {expected}"])],
        EITHER,
        (mark,),
        path=CHAT,
        body=body,
    )


@family()
def expectations_of_nothing(a):
    head = a.head(REFUSE, CHAT, 100, more=["expect: 100-continue"]) + b"\r\n"
    return Shot("", [head, 0.05, a.rng.choice([END, RESET])], REFUSE)


@family(2)
def cut_off(a):
    mark = a.mark()
    request = a.request(REFUSE, a.rng.choice(POSTS), a.chat(mark))
    pieces = [
        request[: a.rng.randint(1, len(request) - 1)],
        a.rng.choice([0.0, 0.01]),
        a.rng.choice([END, RESET]),
    ]
    return Shot("", pieces, REFUSE, (mark,))


@family()
def half_closed(a):
    """Who has said all that it wants to say may still listen."""
    mark = a.mark()
    body = a.chat(mark)
    return Shot("", [a.request(EITHER, CHAT, body), END], EITHER, (mark,), path=CHAT, body=body)


@family(2)
def noise(a):
    bytes_ = a.rng.randbytes(a.rng.choice([1, 10, 100, 2_000, 40_000]))
    return Shot("", [bytes_, 0.01, END], REFUSE, patience=1.5)


@family(3)
def heads_with_flipped_bytes(a):
    mark = a.mark()
    body = a.chat(mark)
    head = bytearray(a.head(EITHER, CHAT, len(body), more=["x-a: b", "accept: */*"]) + b"\r\n")
    for _ in range(a.rng.choice([1, 1, 2, 5])):
        kind, at = a.rng.randrange(3), a.rng.randrange(len(head))
        if kind == 0:
            head[at] = a.rng.randrange(256)
        elif kind == 1:
            del head[at]
        else:
            head.insert(at, a.rng.choice(b"\r\n \t:;,\x00/%"))
    return Shot("", [bytes(head) + body, 0.02, END], EITHER, (mark,))


@family(0.5)
def in_tiny_pieces(a):
    mark = a.mark()
    body = a.chat(mark)
    request = a.request(ACCEPT, CHAT, body)
    step = a.rng.choice([3, 10, 50])
    pieces = []
    for at in range(0, len(request), step):
        pieces += [request[at : at + step], 0.0005]
    return Shot("", pieces, ACCEPT, (mark,), path=CHAT, body=body)


@family()
def honest(a):
    """What hostile requests differ from; without it the others would prove nothing."""
    mark = a.mark()
    body = a.chat(mark)
    return Shot("", [a.request(ACCEPT, CHAT, body)], ACCEPT, (mark,), path=CHAT, body=body, raw=False)
