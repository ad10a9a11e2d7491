"""A client beyond reproach, in a process of its own: asks at an even rate over one connection that it
keeps, until it is told to stop, and then prints each answer's moment, milliseconds and status.

    good_client.py PORT KEY MODEL RATE [tls]
"""

import http.client
import json
import signal
import ssl
import subprocess
import sys
import time


class GoodClient:
    """That process; `answers` are there once it has ended."""

    def __init__(self, gateway, key, model, rate, tls=False):
        self.command = [sys.executable, __file__, gateway.port, key, model, rate, *(["tls"] if tls else [])]
        self.answers = []

    def __enter__(self):
        self.process = subprocess.Popen([str(part) for part in self.command], stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            out, _ = self.process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.answers = [tuple(map(float, line.split())) for line in out.splitlines()]


def connection(port, tls):
    if not tls:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)


def main():
    port, key, model, rate = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    body = json.dumps({"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello."}]})
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    line, seen, due = None, [], time.monotonic()
    while not stopped:
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            line = line or connection(port, "tls" in sys.argv[5:])
            line.request("POST", "/v1/chat/completions", body, headers)
            reply = line.getresponse()
            reply.read()
            status = reply.status
        except (OSError, http.client.HTTPException):
            line, status = None, 0
        now = time.monotonic()
        # From the moment at which it was due: who waits behind a slow answer is slow too.
        seen.append((due, (now - due) * 1_000, status))
        due = max(due + 1 / rate, now - 1)
    for moment, took, status in seen:
        print(moment, took, status)


if __name__ == "__main__":
    main()
