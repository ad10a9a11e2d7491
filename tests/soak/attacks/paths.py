"""Paths, methods and queries around those that there are, and ids that are another's."""

from .shot import CHAT, EITHER, LOCAL, MODERATIONS, POSTS, REFUSE, RESPONSES, VIDEOS, Shot, family

# The address as others might read it.
NEAR = (
    "/{0}",
    "//{0}",
    "{0}/",
    "{0}//",
    "{0}/.",
    "{0}/..",
    "/.{0}",
    "/x/..{0}",
    "{0}/../chat/completions",
    "/%2e%2e{0}",
    "{0};x=y",
    "{0};",
    "{0}.json",
    "{0}%20",
    "{0}%00",
    "{0}%2f",
    "{0}\\",
    "/\\{0}",
    "{0}%0d%0ax-a:%20b",
    "{0}:",
    "{0}*",
    "{0}&a=b",
    "/v1{0}/x",
    "/v2{0}",
    "/api{0}",
    "/rest{0}",
    "{0}/stream",
    "{0}~",
    "{0}.",
    "{0}'",
    '{0}"',
    "{0}|x",
    "{0}^",
    "{0}`",
)


def call(a, path, label=REFUSE, method="POST", statuses=(), body=None, **options):
    mark = a.mark()
    body = a.chat(mark) if body is None else body
    options.setdefault("raw", False)
    length = None if method in ("GET", "HEAD") and not body else len(body)
    pieces = [a.head(label, path, length, method=method) + b"\r\n" + body]
    return Shot("", pieces, label, (mark,), statuses=statuses, path=path, **options)


def escaped(a, path):
    """The same path to who unescapes it, another one to who does not."""
    places = [place for place, letter in enumerate(path) if letter != "/"]
    chosen = set(a.rng.sample(places, a.rng.choice([1, 2, len(places)])))
    style = a.rng.choice(["%{:02x}", "%{:02X}", "%25{:02x}", "%u00{:02x}"])
    return "".join(style.format(ord(letter)) if at in chosen else letter for at, letter in enumerate(path))


@family(3)
def paths_near(a):
    return call(a, a.rng.choice(NEAR).format(a.rng.choice(POSTS)), raw=True)


@family(2)
def paths_escaped(a):
    return call(a, escaped(a, a.rng.choice(POSTS)), statuses=(404, 405))


@family()
def paths_with_slashes_escaped(a):
    path = a.rng.choice(POSTS)
    slash = a.rng.choice(["%2f", "%2F", "%5c", "\\", "%252f", "%c0%af", "%e0%80%af", "\xaf", "%ef%bc%8f"])
    at = path.index("/", 1)
    return call(a, path[:at] + slash + path[at + 1 :], raw=True)


@family()
def paths_in_other_letters(a):
    path = a.rng.choice(POSTS)
    return call(
        a,
        a.rng.choice(
            [
                path.upper(),
                path.title(),
                path.swapcase(),
                path.replace("c", "\u0441".encode().decode("latin-1")),
            ]
        ),
        raw=True,
    )


@family()
def escapes_unsound(a):
    path = a.rng.choice(POSTS) + a.rng.choice(
        ["%", "%2", "%zz", "%u0041", "%%", "%ff", "%c3%28", "%ed%a0%80", "%00", "%0a"]
    )
    return call(a, path, raw=True)


@family()
def dots(a):
    path = a.rng.choice(
        [
            "/v1/../v1/chat/completions",
            "/v1/./chat/completions",
            "/v1/chat/../chat/completions",
            "/../../../../etc/passwd",
            "/..%2f..%2fetc/passwd",
        ]
        + [
            "/v1/files/../chat/completions",
            "/.git/config",
            "/.env",
            "/v1/%2e/chat/completions",
            "/v1/..;/v1/chat/completions",
            "/./v1/chat/completions",
        ]
    )
    return call(a, path)


@family()
def fragments(a):
    mark = a.mark()
    path = a.rng.choice(POSTS) + a.rng.choice(["#", "#x", "?a#b", "#?a", "#/../x"])
    return Shot("", [a.request(REFUSE, path, a.chat(mark))], REFUSE, (mark,))


@family(2)
def other_paths(a):
    path = a.rng.choice(
        "/ /v1 /v1/ /v1/completions /v1/files /v1/batches /v1/fine_tuning/jobs /v1/assistants /v1/threads"
        " /v1/uploads /v1/realtime /v1/audio/transcriptions /v1/images/variations /v1/engines"
        " /v1/organization/usage /v1/responses/resp_1 /v1/messages/batches /v1/messages/count /metrics"
        " /healthz /readyz /admin /debug/pprof /actuator/env /server-status /v1/models/../metrics /v1/chat"
        " /v1/chat/completions/x /v1/responses/resp_1/cancel /v1/responses/resp_1/input_items"
        " /v1/conversations".split()
    )
    return call(a, path, method=a.rng.choice(["GET", "POST", "DELETE", "PUT"]), statuses=(404, 405))


@family(2)
def methods(a):
    method = a.rng.choice(
        "GET PUT DELETE PATCH HEAD OPTIONS TRACE TRACK PROPFIND MKCOL SEARCH LINK PURGE M-SEARCH QUERY X".split()
    )
    path = a.rng.choice([path for path in POSTS if path != VIDEOS])
    return call(a, path, method=method, statuses=(405,), raw=True)


@family()
def methods_of_the_listing(a):
    method = a.rng.choice("POST PUT DELETE PATCH OPTIONS TRACE".split())
    path = a.rng.choice(["/v1/models", "/v1/models/lmb-5.5", "/v1/videos/video_1/content", "/v1/videos/video_1/file"])
    return call(a, path, method=method, raw=True)


@family(2)
def queries_of_calls(a):
    query = a.rng.choice(
        [
            "?",
            "?beta=true",
            "?model=lmb-5.5",
            "?stream=true&max_tokens=1",
            "?a=%00",
            "?&&&",
            "?" + "a" * 4_000,
            "?%",
            "?a=b?c=d",
            "??",
            "?\xe9",
        ]
    )
    mark = a.mark()
    body = a.chat(mark)
    pieces = [a.request(EITHER, CHAT + query, body)]
    return Shot("", pieces, EITHER, (mark,), path=CHAT, body=body, raw=False)


@family(2)
def queries_of_the_listing(a):
    query = a.rng.choice(
        [
            "type=x",
            "type=",
            "owned_by=x",
            "owned_by=%ff",
            "type=chat&type=x",
            "type=%00",
            "type=chat%20",
            "type",
            "owned_by",
            "type=CHAT",
            "type=chat,image",
        ]
        + [
            "x=y",
            "",
            "&",
            "limit=-1",
            "type=chat",
            "owned_by=vendor_b&owned_by=vendor_b",
            "type=chat&" * 500 + "a",
            "%74ype=x",
        ]
    )
    return call(a, f"/v1/models?{query}", LOCAL, method="GET", body=b"")


@family(2)
def queries_of_videos(a):
    query = a.rng.choice(
        [
            "limit=x",
            "limit=-1",
            "limit=0",
            "limit=1e9",
            "limit=999999999999999999999",
            "order=x",
            "after=x",
            "after=video_x",
            "after=%00",
            "limit=1&limit=2",
        ]
        + [
            "after=video_00000000-0000-0000-0000-000000000000",
            "limit=",
            "order=",
            "limit=%31",
            "a=b",
            "limit=10&order=asc",
            "before=x",
        ]
    )
    return call(a, f"{VIDEOS}?{query}", LOCAL, method="GET", body=b"")


@family()
def models_unknown(a):
    name = a.rng.choice(
        [
            "x",
            "%00",
            "..",
            "../lmb-5.5",
            "lmb-5.5/",
            "lmb-5.5%00",
            "LMB-5.5",
            "lmb-5.5%20",
            "%ff",
            "a" * 3_000,
            "%2e%2e%2f",
            "lmb-5.5?x",
            "lmb-5.5;",
            "*",
        ]
    )
    return call(a, f"/v1/models/{name}", LOCAL, method="GET", body=b"")


@family(2)
def ids_of_no_video(a):
    id = a.rng.choice(
        [
            "video_1",
            "video_" + "0" * 64,
            "x",
            "..",
            "%2e%2e",
            "video_%00",
            "video_*",
            "video_" + "a" * 3_000,
            "video_1%2fcontent",
            "video_\xe9",
            "video_../x",
        ]
        + [
            "video_00000000-0000-0000-0000-000000000000",
            "{tollgate}",
            "video_1%0d%0aSET%20a%20b",
            "'; drop table video; --".replace(" ", "%20"),
        ]
    )
    way = a.rng.choice(["", "/content", "/content?variant=x", "/file?token=x", "/file", "/remix"])
    return call(a, f"{VIDEOS}/{id}{way}", method=a.rng.choice(["GET", "DELETE", "GET"]), body=b"", raw=True)


@family(2)
def videos_of_others(a):
    id = a.more["video"]
    way, method = a.rng.choice(
        [("", "GET"), ("", "DELETE"), ("/content", "GET"), ("/content?variant=video", "GET"), ("?x", "GET")]
    )
    return call(a, f"{VIDEOS}/{id}{way}", method=method, body=b"", statuses=(404,))


@family()
def pages_after_videos_of_others(a):
    return call(a, f"{VIDEOS}?after={a.more['video']}", method="GET", body=b"", statuses=(404,))


@family()
def addresses_of_files_forged(a):
    token = a.rng.choice(
        [
            "",
            "x",
            "0" * 64,
            f"{a.rng.getrandbits(256):064x}",
            "9999999999." + "0" * 64,
            "%00",
            "a" * 5_000,
            "-1",
            "9999999999-" + "A" * 43,
        ]
    )
    return call(a, f"{VIDEOS}/{a.more['video']}/file?token={token}", method="GET", body=b"", raw=True)


@family(2)
def responses_of_others(a):
    id, item = a.more["response"], a.more["item"]
    mark = a.mark()
    more = a.rng.choice(
        [
            f'"previous_response_id":"{id}","input":"{mark}"',
            f'"input":[{{"type":"item_reference","id":"{item}"}},{{"role":"user","content":"{mark}"}}]',
        ]
        + [
            f'"conversation":"{id}","input":"{mark}"',
            f'"conversation":{{"id":"{id}"}},"input":"{mark}"',
            f'"previous_\\u0072esponse_id":"{id}","input":"{mark}"',
        ]
    )
    body = f'{{"model":"lmb-4o-mini","max_output_tokens":16,{more}}}'.encode()
    return Shot("", [a.request(REFUSE, RESPONSES, body)], REFUSE, (mark,), statuses=(404,), raw=False)


@family()
def responses_of_nobody(a):
    mark = a.mark()
    id = a.rng.choice(["resp_x", "resp_" + "0" * 48, "x" * 256, "resp_\\u0000", "../x", "*", "resp_1\\r\\nDEL a"])
    body = f'{{"model":"lmb-4o-mini","previous_response_id":"{id}","input":"{mark}"}}'.encode()
    return Shot("", [a.request(REFUSE, RESPONSES, body)], REFUSE, (mark,), raw=False)


@family(0.5)
def free_calls(a):
    """What costs nothing is still asked of a vendor once."""
    mark = a.mark()
    body = f'{{"input":"{mark}"}}'.encode()
    return Shot("", [a.request(EITHER, MODERATIONS, body)], EITHER, (mark,), path=MODERATIONS, body=body, raw=False)
