"""What each package has to do: sell calls against the simulator, and charge each of them once."""

import contextlib
import http.client
import json
import shutil
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

from debian import VAR
from processes import Sim, until

ACCOUNT = "alice"
MODEL = "lmb-5.5"
# The simulator is asked for so many tokens; a token costs so many nano-USD.
TOKENS = "prompt=10;completion=10"
CHARGE = 10 * 5_000 + 10 * 30_000
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "How much is two and two?"}]})


class Seller:
    """A gateway under test: how a command is run beside it, and where it is reached."""

    def __init__(self, command, http_port, admin_port):
        self.command, self.http_port, self.admin_port = command, http_port, admin_port

    def open_account(self):
        """Opens an account, pays in, issues a key: all by commands."""
        self.command("account", "create", ACCOUNT)
        self.command("credit", "add", ACCOUNT, "50")
        self.key = self.command("key", "issue", ACCOUNT).strip()
        assert self.key.startswith("sk-tg-"), self.key

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=2) as reply:
                return reply.status == 200
        except OSError:
            return False

    def wait_ready(self):
        until(self.is_ready, "the gateway is ready", seconds=30)

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)

    def call(self, connection=None):
        """One call: its status, its id, and whether the connection stays open."""
        if connection is None:
            with contextlib.closing(self.connection()) as connection:
                return self.call(connection)
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", BODY, headers)
        reply = connection.getresponse()
        text = reply.read()
        assert reply.status != 200 or json.loads(text)["choices"][0]["message"]["content"], text
        return SimpleNamespace(status=reply.status, id=reply.headers["x-request-id"], closes=reply.will_close)

    def charges(self):
        """The charges of the account, by request."""
        lines = self.command("--json", "charges", ACCOUNT).splitlines()
        charges = [json.loads(line) for line in lines]
        found = {charge["request_id"]: charge["amount_nano"] for charge in charges}
        assert len(found) == len(charges), "a request was charged twice"
        return found

    def settled(self, ids):
        """The charges, once these requests have theirs."""

        def look():
            found = self.charges()
            return found if set(ids) <= set(found) else None

        return until(look, f"{len(ids)} requests are charged", seconds=30)

    def sell(self):
        """The main job: a call is sold, and its charge is found."""
        sold = self.call()
        assert sold.status == 200, sold.status
        assert self.settled([sold.id])[sold.id] == CHARGE
        return sold.id


class Load:
    """Callers that never pause: two with a connection for each call, two that keep theirs open."""

    def __init__(self, seller):
        self.seller, self.answered, self.failed = seller, [], []
        self.refused = self.reset = 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(keeps,)) for keeps in (False, False, True, True)]
        for thread in self.threads:
            thread.start()

    def run(self, keeps):
        connection = None
        while not self.over.is_set():
            try:
                if connection is None:
                    connection = self.seller.connection()
                    connection.connect()
            except ConnectionRefusedError:
                # Nothing was sent, so this costs the caller a moment and nobody money.
                with self.lock:
                    self.refused += 1
                connection = None
                time.sleep(0.02)
                continue
            try:
                sold = self.seller.call(connection)
            except ConnectionResetError:
                with self.lock:
                    self.reset += 1
                connection = None
                continue
            except Exception as why:  # whatever a caller may see is a failure of the upgrade
                with self.lock:
                    self.failed.append(repr(why))
                connection = None
                continue
            with self.lock:
                if sold.status == 200:
                    self.answered.append(sold.id)
                else:
                    self.failed.append(sold.status)
            if sold.closes or not keeps:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def goes_on(self, calls=100):
        """Waits until so many more calls are answered."""
        goal = len(self.answered) + calls
        until(lambda: len(self.answered) >= goal, f"{calls} more calls are answered", seconds=60)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join(timeout=60)
            assert not thread.is_alive(), "a call hangs"


def own_sim(at_the_end):
    """A simulator, which a test may stop itself; `at_the_end` adds a clean-up."""
    folder = Path(tempfile.mkdtemp(prefix="sim-", dir=VAR))
    at_the_end(shutil.rmtree, folder)
    sim = Sim(folder, tls=True)
    at_the_end(sim.stop)
    return sim
