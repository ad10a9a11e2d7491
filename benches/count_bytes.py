#!/usr/bin/env python3
"""A vendor for large bodies: it reads a request's head, drops the body, and answers a chat.

What it is sent is counted by the kernel and not even copied, so that it costs next to nothing beside
what is measured. It speaks HTTP/1.1 without TLS, with bodies of known length.
"""

import re
import selectors
import socket

READ = 1 << 20
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.I)
BODY = (
    b'{"id":"chatcmpl-count","object":"chat.completion","created":1795219200,"model":"count","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Read.","refusal":null},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Connection:
    """One request after another."""

    room = bytearray(READ)

    def __init__(self, stream):
        self.stream, self.head, self.missing = stream, b"", 0

    def read(self):
        """Takes what has come; whether the connection goes on."""
        try:
            return self.drop() if self.missing else self.look()
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    def drop(self):
        count = self.stream.recv_into(self.room, min(self.missing, READ), socket.MSG_TRUNC)
        self.missing -= count
        if not self.missing:
            self.stream.sendall(ANSWER)
        return count > 0

    def look(self):
        """Reads on in a head, and finds how much of the body is not there yet."""
        piece = self.stream.recv(1 << 16)
        self.head += piece
        head, end, rest = self.head.partition(b"\r\n\r\n")
        if not end:
            return bool(piece)
        length = LENGTH.search(head + b"\r\n")
        if not length:
            return False
        self.head, self.missing = b"", int(length[1]) - len(rest)
        if not self.missing:
            self.stream.sendall(ANSWER)
        return True


def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        for key, _ in selector.select():
            if key.data:
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                continue
            stream, _ = listener.accept()
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setblocking(False)
            selector.register(stream, selectors.EVENT_READ, Connection(stream))


if __name__ == "__main__":
    main()
