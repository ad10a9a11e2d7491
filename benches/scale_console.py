"""How long the console takes for a page, by the clock of its client on the same machine."""

import http.client
import os
import statistics
import subprocess
import time
import urllib.parse

from processes import BIN, free_port

# A page is asked for this often; the first time is apart, since sums of all accounts are read then.
ROUNDS = 30


class Console:
    """That of a gateway which is not served yet. `beside` are settings of the environment."""

    def __init__(self, gateway, beside):
        self.address = f"127.0.0.1:{free_port()}"
        self.settings = {**os.environ, **beside, "TOLLGATE__LISTEN__CONSOLE": self.address}
        self.conf, self.cookie = gateway.conf, None

    def command(self, *words):
        done = subprocess.run([BIN / "tollgate", "--conf", self.conf, *words], capture_output=True, text=True,
                              env=self.settings, timeout=60, check=True)
        return done.stdout.strip()

    def sign_in(self):
        self.command("operator", "add", "bench", "--role", "owner")
        link = urllib.parse.urlparse(self.command("console", "link", "--operator", "bench"))
        status, reply, _ = self.get(http.client.HTTPConnection(self.address, timeout=60), link.path)
        assert status == 303, status
        self.cookie = reply.getheader("set-cookie").split(";")[0]

    def get(self, connection, path):
        connection.request("GET", path, headers={"cookie": self.cookie} if self.cookie else {})
        reply = connection.getresponse()
        return reply.status, reply, reply.read()

    def times(self, path):
        """The first time and the median of the others, in ms, and the bytes of the page."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        taken = []
        for _ in range(ROUNDS):
            began = time.monotonic()
            status, _, body = self.get(connection, path)
            taken.append((time.monotonic() - began) * 1_000)
            assert status == 200, (path, status, body[:500])
        connection.close()
        return taken[0], statistics.median(taken[1:]), len(body)
