"""Headers that name the wrong client, hide the right one, or are meant for somebody behind us."""

import base64
import zlib

from .shot import ACCEPT, CHAT, EDITS, EITHER, MESSAGES, POSTS, REFUSE, SPEECH, VIDEOS, Shot, family
from .wire import two_marks

UNAUTHORIZED = (401, 403)


def without_key(a, path, body, lines, host="tollgate"):
    head = [
        f"POST {path} HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    return ("\r\n".join([*head, *lines]) + "\r\n\r\n").encode("latin-1") + body


def credentials(a, lines, raw=False, statuses=UNAUTHORIZED):
    mark = a.mark()
    path = a.rng.choice(POSTS)
    return Shot("", [without_key(a, path, a.chat(mark), lines)], REFUSE, (mark,), statuses=statuses, raw=raw)


@family()
def no_key(a):
    return credentials(a, [])


@family(2)
def keys_unknown(a):
    digits = f"{a.rng.getrandbits(256):064x}"
    key = a.rng.choice(
        [
            f"sk-tg-{digits}",
            f"sk-tg-{digits[:-1]}",
            f"sk-tg-{digits}0",
            f"SK-TG-{digits}",
            digits,
            f"sk-tg-{digits.upper()}",
        ]
        + [
            "sk-tg-",
            "x",
            "null",
            "undefined",
            "' OR 1=1 --",
            "../../etc/passwd",
            "${jndi:ldap://x}",
            "k" * 8_000,
            "sk-tg-" + "g" * 64,
        ]
    )
    return credentials(a, [a.rng.choice([f"authorization: Bearer {key}", f"x-api-key: {key}"])])


@family(2)
def keys_misspelt(a):
    key = a.keys[REFUSE]
    wrong = a.rng.choice(
        [
            key[:-1],
            key + "0",
            key[1:],
            key.swapcase(),
            key.replace("-", "_"),
            key[:-1] + "\xe9",
            key + "," + key,
            f'"{key}"',
        ]
        + [
            key[:20] + " " + key[20:],
            key[:-1] + ("0" if key[-1] != "0" else "1"),
            key + "%00",
            base64.b64encode(key.encode()).decode(),
        ]
    )
    return credentials(a, [a.rng.choice([f"authorization: Bearer {wrong}", f"x-api-key: {wrong}"])])


@family()
def schemes_unknown(a):
    key = a.keys[REFUSE]
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    line = a.rng.choice(
        [
            f"authorization: Basic {basic}",
            f"authorization: {key}",
            f"authorization: Bearer{key}",
            f"authorization: Token {key}",
        ]
        + [
            f"authorization: Digest {key}",
            "authorization: Bearer",
            "authorization: Bearer ",
            "authorization:",
            f"api-key: {key}",
        ]
        + [
            f"proxy-authorization: Bearer {key}",
            f"cookie: authorization=Bearer {key}",
            f"x-goog-api-key: {key}",
            f"Bearer: {key}",
        ]
    )
    return credentials(a, [line])


@family()
def keys_revoked(a):
    return credentials(a, [f"authorization: Bearer {a.more['revoked']}"], statuses=(403,))


@family()
def keys_in_the_address(a):
    mark = a.mark()
    key = a.keys[REFUSE]
    path = a.rng.choice(POSTS) + a.rng.choice([f"?key={key}", f"?api_key={key}", f"?access_token={key}"])
    return Shot("", [without_key(a, path, a.chat(mark), [])], REFUSE, (mark,), statuses=UNAUTHORIZED, raw=False)


@family()
def no_balance(a):
    mark = a.mark()
    return Shot(
        "",
        [without_key(a, CHAT, a.chat(mark), [f"authorization: Bearer {a.more['poor']}"])],
        REFUSE,
        (mark,),
        statuses=(402,),
        raw=False,
    )


@family()
def two_keys(a):
    """Ours in one header, another's in the other: served by ours, or not at all."""
    mark = a.mark()
    other = a.rng.choice(["vk-test", f"sk-tg-{'0' * 64}", a.more["revoked"], "x"])
    lines = [f"authorization: Bearer {a.key}", f"x-api-key: {other}"]
    if a.rng.random() < 0.5:
        lines = [f"authorization: Bearer {other}", f"x-api-key: {a.key}"]
    if a.rng.random() < 0.3:
        lines += [f"authorization: Bearer {other}"]
    body = a.chat(mark)
    return Shot("", [without_key(a, CHAT, body, lines)], EITHER, (mark,), path=CHAT, body=body, raw=False)


def passed(a, lines, label=EITHER, path=CHAT, **options):
    """A sound call with further headers, which is served as if they were not there, or refused."""
    mark = a.mark()
    body = a.chat(mark)
    options.setdefault("raw", False)
    return Shot("", [a.request(label, path, body, more=lines)], label, (mark,), path=path, body=body, **options)


@family(2)
def named_hop_by_hop(a):
    """Proxies drop what Connection names; the vendor's key must not be among it."""
    name = a.rng.choice(
        [
            "authorization",
            "x-api-key",
            "content-length",
            "content-type",
            "host",
            "transfer-encoding",
            "x-request-id",
        ]
    )
    word = a.rng.choice([name, f"close, {name}", f"keep-alive, {name}", name.title(), f"{name}, {name}", f"{name},,"])
    return passed(a, [f"connection: {word}"], raw=True)


@family(2)
def hop_by_hop(a):
    line = a.rng.choice(
        [
            "te: trailers",
            "te: chunked",
            "trailer: authorization",
            "keep-alive: timeout=99999",
            "proxy-connection: keep-alive",
        ]
        + [
            "connection: keep-alive, close",
            "connection: ,",
            "connection: " + "x, " * 200 + "y",
            "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA",
        ]
        + ["proxy-authenticate: Basic", "via: 1.1 x", "max-forwards: 0", "upgrade-insecure-requests: 1"]
    )
    return passed(a, [line], raw=True)


@family(2)
def forwarded(a):
    address = a.rng.choice(
        [
            "127.0.0.1",
            "10.0.0.1",
            "::1",
            "unknown",
            "1.2.3.4, 127.0.0.1",
            "'; drop table account; --",
            "x" * 500,
        ]
    )
    name = a.rng.choice(
        "x-forwarded-for x-forwarded-host x-forwarded-proto forwarded x-real-ip x-original-url x-rewrite-url"
        " x-http-method-override x-forwarded-prefix true-client-ip cf-connecting-ip x-original-host x-host"
        " x-forwarded-server x-method-override".split()
    )
    return passed(a, [f"{name}: {address}"])


@family(2)
def for_the_vendor(a):
    name = a.rng.choice(
        "cookie set-cookie x-api-key-id organization project user-agent referer origin x-request-id"
        " traceparent x-amzn-trace-id x-gateway-fallback-depth x-should-retry retry-after x-service-price"
        " range if-none-match if-match accept-language dnt".split()
    )
    value = a.rng.choice(
        ["x", "vk-test", "Bearer vk-test", "bytes=0-1", "*", "\xe9\xff", "a" * 3_000, "%0d%0ax-a: b", "1;2,3"]
    )
    return passed(a, [f"{name}: {value}"])


@family(2)
def into_forwarded_headers(a):
    """Of vendor_a's own headers two go on; nothing must ride on them."""
    mark, inner = two_marks(a)
    name = a.rng.choice(["vendor_a-beta", "vendor_a-version"])
    value = a.rng.choice(
        [
            "x\r\n x-api-key: vk-other",
            "x\nx-api-key: vk-other",
            "x\rx-api-key: vk-other",
            "x\x00y",
            "x" * 9_000,
            "\xe9",
            "",
            "2023-06-01\r\n\r\n" + inner,
        ]
        + ["2023-06-01, 2099-01-01", "a\tb", "%0d%0ax-api-key: vk-other"]
    )
    body = b'{"model":"lma-haiku-4-5","max_tokens":8,"messages":[{"role":"user","content":"%s"}]}' % mark.encode()
    pieces = [a.request(EITHER, MESSAGES, body, more=[f"{name}: {value}"])]
    return Shot("", pieces, EITHER, (mark, inner), path=MESSAGES, body=body, linger=0.1)


@family(2)
def media_types(a):
    mark = a.mark()
    body = a.chat(mark)
    kind = a.rng.choice(
        [
            "text/plain",
            "application/json; charset=utf-16",
            "application/json; charset=shift_jis",
            "application/xml",
            "",
            "x",
            "application/json,text/html",
        ]
        + [
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/json; charset=utf-7",
            "application/octet-stream",
        ]
    )
    lines = [f"authorization: Bearer {a.key}", f"content-type: {kind}"]
    head = [f"POST {CHAT} HTTP/1.1", "host: tollgate", f"content-length: {len(body)}", *lines]
    pieces = [("\r\n".join(head) + "\r\n\r\n").encode("latin-1") + body]
    return Shot("", pieces, EITHER, (mark,), path=CHAT, body=body, raw=False)


@family(3)
def packed_bodies(a):
    """What is packed may be anything once it is unpacked, of any size."""
    mark = a.mark()
    plain = a.rng.choice([a.chat(mark), b"[" * 100_000, b" " * (4 << 20)])
    packed = zlib.compress(plain, 9, wbits=a.rng.choice([31, 15, -15]))
    coding = a.rng.choice(
        "gzip deflate br zstd compress x-gzip gzip,gzip GZIP identity,gzip aws-chunked exi pack200-gzip x".split()
    )
    body = a.rng.choice([packed, packed, a.chat(mark)])
    path = a.rng.choice(POSTS)
    pieces = [a.request(REFUSE, path, body, more=[f"content-encoding: {coding}"])]
    # Where a form belongs, JSON is refused before.
    statuses = (400, 415) if path == EDITS else (415,)
    return Shot("", pieces, REFUSE, (mark,), statuses=statuses, raw=a.rng.random() < 0.3)


@family()
def packed_by_transfer(a):
    mark = a.mark()
    packed = zlib.compress(a.chat(mark), 9, wbits=31)
    head = a.head(REFUSE, CHAT, more=["transfer-encoding: gzip, chunked"]) + b"\r\n"
    return Shot("", [head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed)], REFUSE, (mark,))


@family()
def answers_asked_packed(a):
    value = a.rng.choice(["gzip", "br;q=1.0, *;q=0", "identity;q=0", "*", "gzip;q=nan", "x" * 3_000, ""])
    return passed(a, [f"accept-encoding: {value}"], ACCEPT)


@family()
def answers_asked_otherwise(a):
    value = a.rng.choice(["text/html", "application/xml;q=1", "*/*;q=0", "image/png", "", "text/event-stream", "\xff"])
    return passed(a, [f"accept: {value}"])


@family(3)
def names_of_repeats_unsound(a):
    """What names a call must be a name that all readers agree on."""
    name = a.rng.choice(["", " ", "x" * 256, "x" * 4_000, "a b", "a\tb", "\xe9", "a\x7fb", "\xa0", "a b" * 20])
    path = a.rng.choice([CHAT, SPEECH, VIDEOS])
    mark = a.mark()
    body = a.more["calls"](path, mark)
    return Shot(
        "",
        [a.request(REFUSE, path, body, more=[f"idempotency-key: {name}"])],
        REFUSE,
        (mark,),
        statuses=(400,),
        raw=True,
    )


@family(2)
def names_of_repeats_twice(a):
    mark = a.mark()
    lines = [f"idempotency-key: {mark}", f"Idempotency-Key: {a.rng.choice([mark, mark + 'x', ''])}"]
    path = a.rng.choice([CHAT, SPEECH, VIDEOS])
    body = a.more["calls"](path, mark)
    return Shot("", [a.request(REFUSE, path, body, more=lines)], REFUSE, (mark,), statuses=(400,), raw=True)


@family()
def names_of_repeats(a):
    mark = a.mark()
    name = a.rng.choice(
        [
            mark,
            "!" + mark,
            mark * 10,
            "~" * 20 + mark,
            f"{mark}/../x",
            f"{{{mark}}}",
            f"{mark}:*",
            f"retry:{mark}",
        ]
    )
    return passed(a, [f"idempotency-key: {name}"])


def twice(a, first, second, same_body):
    """A call and right behind it another one, which may be meant as its repeat."""
    mark, inner = two_marks(a)
    path = a.rng.choice([CHAT, SPEECH])
    bodies = a.more["calls"](path, mark), a.more["calls"](path, mark if same_body else inner)
    pieces = [a.request(EITHER, path, body, more=lines) for body, lines in zip(bodies, (first, second))]
    return Shot("", [b"".join(pieces)], EITHER, (mark, inner), path=path, linger=0.3, one_of=True)


@family()
def repeats(a):
    """The same name and body: the first answer once more, and nothing paid twice."""
    lines = [f"idempotency-key: {a.mark()}"]
    return twice(a, lines, lines, same_body=True)


@family()
def repeats_of_another_call(a):
    lines = [f"idempotency-key: {a.mark()}"]
    return twice(a, lines, lines, same_body=False)


@family()
def retries(a):
    """As official clients do it: without a name, and with a count."""
    return twice(a, ["x-stainless-retry-count: 0"], ["x-stainless-retry-count: 1"], same_body=True)


@family(2)
def retry_counts(a):
    value = a.rng.choice(
        [
            "0",
            "-1",
            "1",
            "2",
            "99999999999999999999",
            "x",
            "",
            "1.5",
            " 1",
            "\xb2",
            "true",
            "0x1",
            "1, 1",
            "+1",
        ]
    )
    lines = [f"x-stainless-retry-count: {value}"]
    if a.rng.random() < 0.2:
        lines *= 2
    return passed(a, lines)


@family()
def ranges_and_conditions(a):
    line = a.rng.choice(
        [
            "range: bytes=0-0",
            "if-modified-since: x",
            "if-none-match: *",
            "if-range: x",
            "expect-ct: x",
            "prefer: respond-async",
        ]
    )
    return passed(a, [line])
