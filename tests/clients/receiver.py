"""A receiver of webhooks: an HTTPS server with a certificate of its own, which remembers what arrives."""

import http.server
import json
import ssl
import subprocess
import threading
from types import SimpleNamespace

from processes import until
from standardwebhooks import Webhook

SUBJECT = ["-subj", "/CN=webhooks", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]


class Receiver:
    """Answers each message with the next of `answers`, and with 204 when there are none left. An answer is a
    status, or a status and the address that it sends on to."""

    def __init__(self, folder):
        self.ca, key = folder / "webhooks.pem", folder / "webhooks.key"
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        files = ["-days", "2", "-keyout", key, "-out", self.ca]
        end = ["-addext", "basicConstraints=critical,CA:FALSE"]
        subprocess.run([*made, *files, *SUBJECT, *end], check=True, capture_output=True)
        self.messages, self.answers = [], []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, key)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"https://localhost:{self.server.server_port}"

    def handler(self):
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.messages.append(SimpleNamespace(path=self.path, headers=dict(self.headers), body=body))
                answer = receiver.answers.pop(0) if receiver.answers else 204
                status, location = answer if isinstance(answer, tuple) else (answer, None)
                self.send_response(status)
                if location:
                    self.send_header("location", location)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        return Handler

    def settings(self):
        """The section of a gateway that may send here."""
        return {"allow_private": True, "ca": str(self.ca)}

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def at(self, path):
        return [message for message in list(self.messages) if message.path == path]

    def wait(self, path, count, seconds=15):
        """The messages that arrived at a path, once there are so many."""
        until(lambda: len(self.at(path)) >= count, f"{count} messages at {path}: {self.messages}", seconds)
        return self.at(path)


def opened(message, secret):
    """What a message says, if a library that we have not written finds it signed by this secret."""
    headers = {name.lower(): value for name, value in message.headers.items()}
    told = Webhook(secret).verify(message.body, headers)
    assert told == json.loads(message.body) and headers["content-type"] == "application/json"
    assert set(told) == {"type", "timestamp", "data"}
    return SimpleNamespace(id=headers["webhook-id"], type=told["type"], **told["data"])
