"""A vendor that repeats what it was told, key and all, in every place where an answer has room for it.

What it does is asked for in the request: `parrot:KIND` anywhere in its body.
"""

import re
import socketserver
import threading

KIND = re.compile(rb"parrot:([a-z0-9-]+)")
GOOD = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    '{"role":"assistant","content":"Hello."},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,'
    '"completion_tokens":2,"total_tokens":5}}'
)
CHUNK = (
    'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    '{"content":"Hello."},"finish_reason":null}]}\n\n'
)
STATUSES = (400, 401, 402, 403, 404, 408, 409, 413, 415, 418, 422, 429, 451, 500, 501, 502, 503, 504, 529)


def answers(said, foreign=""):
    """By kind, the bytes of an answer; `said` is what came in the head of the request, `foreign` what errors
    tell of the account beside it."""
    quoted = said.replace("\\", "\\\\").replace('"', '\\"')
    told = f"{quoted} {foreign}"

    def reply(status, body, *lines, kind="application/json"):
        head = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(body)}", *lines]
        return ("\r\n".join(head) + "\r\n\r\n" + body).encode()

    kinds = {"good": reply(200, GOOD)}
    for status in STATUSES:
        error = f'{{"error":{{"message":"{told}","type":"{told}","param":"{told}","code":"{told}"}}}}'
        kinds[f"error-{status}"] = reply(status, error)
        kinds[f"text-{status}"] = reply(status, f"{said} {foreign}", kind="text/plain")
        native = f'{{"type":"error","error":{{"type":"{told}","message":"{told}","details":{{"x":"{told}"}}}}}}'
        kinds[f"native-{status}"] = reply(status, native)
    kinds["html"] = reply(400, f"<html>{said} {foreign}</html>", kind="text/html")
    kinds["error-in-200"] = reply(200, f'{{"error":{{"message":"{told}"}}}}')
    kinds["headers"] = reply(
        200,
        GOOD,
        f"x-echo: {said}",
        f"set-cookie: {said}",
        f"server: {said}",
        f"www-authenticate: {said}",
        f"via: {said}",
        f"retry-after: {said}",
        f"organization: {said}",
        f"warning: {said}",
        f"link: {said}",
        f"x-ratelimit-reset: {said}",
    )
    kinds["headers-of-an-error"] = reply(
        429, "{}", f"retry-after: {said}", f"x-should-retry: {said}", f"x-echo: {said}"
    )
    kinds["request-id"] = reply(200, GOOD, f"x-request-id: {said}")
    kinds["media-type"] = reply(200, GOOD, kind=f"application/json; x={said}")
    kinds["redirect"] = reply(302, "", f"location: http://127.0.0.1:1/?{said}")
    kinds["early-hints"] = f"HTTP/1.1 103 X\r\nlink: {said}\r\n\r\n".encode() + kinds["good"]
    kinds["status-line"] = f"HTTP/1.1 200 {said}\r\ncontent-length: 0\r\n\r\n".encode()
    kinds["no-http"] = f"{said}\r\n\r\n".encode()
    kinds["bad-header"] = f"HTTP/1.1 200 OK\r\n{said} x y\r\n\r\n".encode()
    kinds["bad-chunk"] = f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{said}\r\n".encode()
    kinds["bad-length"] = f"HTTP/1.1 200 OK\r\ncontent-length: {said}\r\n\r\n".encode()
    kinds["short"] = kinds["good"][:-20]
    kinds["no-json"] = reply(200, said)
    kinds["bad-usage"] = reply(200, GOOD.replace('"prompt_tokens":3', f'"prompt_tokens":"{quoted}"'))
    events = {
        "stream-error": CHUNK + f'data: {{"error":{{"message":"{told}","code":"{told}"}}}}\n\n',
        "stream-error-of-code": CHUNK + f'data: {{"error":{{"message":"No. {told}","code":"rate_limit_exceeded"}}}}\n\n',
        "stream-error-event": f"event: error\ndata: {quoted}\n\n",
        "stream-comment": f": {said}\n\n{CHUNK}: {said}\n\ndata: [DONE]\n\n",
        "stream-fields": f"id: {said}\nretry: {said}\nx: {said}\n{CHUNK}data: [DONE]\n\n",
        "stream-no-json": CHUNK + f"data: {said}\n\n",
        "stream-cut": CHUNK,
    }
    for kind, text in events.items():
        kinds[kind] = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{text}".encode()
    return kinds


class Parrot:
    def __init__(self):
        parrot = self
        self.heard, self.foreign = [], ""

        class Line(socketserver.StreamRequestHandler):
            def handle(self):
                parrot.answer(self.rfile, self.wfile)

        socketserver.ThreadingTCPServer.allow_reuse_address = True
        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Line)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, line, out):
        """One request, then the connection ends: so any answer is told whole."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            read = line.readline(1 << 16)
            if not read:
                return
            head += read
        length = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
        body = line.read(int(length[1])) if length else b""
        self.heard.append(head + body)
        lines = head.decode("latin-1").split("\r\n")[1:]
        said = " ".join(text for text in lines if text.lower().startswith(("authorization", "x-api-key")))
        kind = KIND.search(body)
        out.write(answers(said, self.foreign).get(kind[1].decode() if kind else "good", b""))


# Every kind that there is.
KINDS = tuple(answers(""))
