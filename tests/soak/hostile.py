"""Hostile requests of many families against one gateway, while a good client goes on.

Shots that must be refused come with the key of an account that has credit, so only what is wrong with
them keeps them from a vendor; on that account nothing may ever move. What is served must mean the same
to the gateway, to Python and to JSON.parse in all fields that the price depends on.
"""

import contextlib
import json
import random
import threading
import time
import urllib.request

import attacks.documents
import attacks.drafts
import attacks.fields
import attacks.forms
import attacks.heads
import attacks.paths
import attacks.wire  # noqa: F401, each of them registers its families
from attacks.shot import (
    ACCEPT,
    EDITS,
    EITHER,
    FAMILIES,
    LOCAL,
    REFUSE,
    VIDEOS,
    Ammunition,
)
from firing import Battery
from good_client import GoodClient
from judging import Judge
from report import Report, percentile
from stack import VENDORS, Stack, route, until

SHOTS_LONG, SHOTS_SHORT = 100_000, 3_000
# Shots a second. What is measured is what they do to the gateway, not what making them takes from it.
RATE_LONG, RATE_SHORT = 450, 400
GOOD_RATE = 100
# A round: so many shots, of which so many may reach each simulator, since its pages show the last 200.
ROUND_SHOTS = 450
ROUND_CALLS, ROUND_PICTURES, ROUND_VIDEOS = 150, 60, 3
MEMORY_GROWTH_MAX = 64 << 20
SLOWDOWN_MAX = 2.0


def run(options):
    report = Report("hostile", options)
    with Stack(in_memory=True) as stack:
        Attack(stack, options, report).run()
    return report


class Attack:
    def __init__(self, stack, options, report):
        self.stack, self.options, self.report = stack, options, report
        self.rng = random.Random(options.seed)
        calls, pictures, good = (stack.sim() for _ in range(3))
        routes = {vendor: [route(calls, vendor)] for vendor in VENDORS}
        routes["vendor_d"] = [route(pictures, "vendor_d", "video-ms=100")]
        routes["vendor_e"] = [route(good, "vendor_e", "fast")]
        self.gateway = stack.gateway(routes, {"videos": {"poll_ms": 100, "retry_ms": 100}})
        self.accounts = {name: self.gateway.account(name, credit) for name, credit in ACCOUNTS.items()}
        keys = {label: self.accounts[name].key for label, name in PAYERS.items()}
        self.ammunition = Ammunition(self.rng, keys, self.spoils())
        self.judge = Judge(self.gateway, {"calls": calls, "pictures": pictures}, report)
        stack.start(self.judge)
        self.slowest = []
        self.windows = {"quiet": [], "attack": []}

    def spoils(self):
        """What is another's: a key that was revoked, an account without credit, a video, a response."""
        victim = self.accounts["victim"]
        revoked = self.gateway.key("victim")
        prefix = next(
            key["prefix"]
            for key in map(json.loads, self.gateway.cli("--json", "key", "list", "victim").splitlines())
            if revoked.startswith(key["prefix"])
        )
        self.gateway.cli("key", "revoke", prefix)
        kept = self.post(victim, "/v1/responses", {"model": "lmb-4o-mini", "input": "Mine."})
        video = self.post(victim, VIDEOS, {"model": "lmd-imagine-video", "prompt": "Mine.", "seconds": 1})
        is_made = lambda: self.get(victim, f"{VIDEOS}/{video['id']}")["status"] == "completed"  # noqa: E731
        until(is_made, "the victim's video is made", 20)
        return {
            "revoked": revoked,
            "poor": self.accounts["poor"].key,
            "response": kept["id"],
            "item": kept["output"][0]["id"],
            "video": video["id"],
            "calls": attacks.drafts.calls,
        }

    def post(self, account, path, call):
        return self.ask(account, path, json.dumps(call).encode())

    def get(self, account, path):
        return self.ask(account, path, None)

    def ask(self, account, path, body):
        headers = {"authorization": f"Bearer {account.key}", "content-type": "application/json"}
        url = f"http://127.0.0.1:{self.gateway.port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as reply:
            return json.load(reply)

    def run(self):
        total = SHOTS_LONG if self.options.long else SHOTS_SHORT
        battery = Battery(self.gateway.address, RATE_LONG if self.options.long else RATE_SHORT)
        plan = self.plan(total)
        client = GoodClient(self.gateway, self.accounts["good"].key, self.good_model(), GOOD_RATE)
        with client, Memory(self.gateway) as memory:
            self.rest(3.0 if self.options.long else 1.5)
            memory.begin()
            fired, firing = 0, 0.0
            while fired < total and self.gateway.is_alive():
                shots = self.round(plan, min(ROUND_SHOTS, total - fired))
                start = time.monotonic()
                firing += battery.fire(shots)
                self.windows["attack"].append((start, time.monotonic()))
                fired += len(shots)
                self.judge.round(shots)
                self.slowest = sorted([*self.slowest, *((s.seconds, s.family) for s in shots)])[-9:]
                self.rest(0.4)
            self.report.figure("requests fired", fired)
            self.report.figure("requests a second while firing", fired / firing)
            memory.end(3.0 if self.options.long else 1.0)
        battery.stop()
        slowest = sorted(self.slowest, reverse=True)[:5]
        self.report.figure("slowest shots", ", ".join(f"{family} {seconds:.1f} s" for seconds, family in slowest))
        for failure in battery.failures[:5]:
            self.report.note("the machine could not fire", failure)
        self.after(client.answers, memory)

    def rest(self, seconds):
        """Lets the good client go on alone."""
        start = time.monotonic()
        time.sleep(seconds)
        self.windows["quiet"].append((start, time.monotonic()))

    def plan(self, total):
        """Names of families: each once, then by their weights."""
        names, weights = list(FAMILIES), [weight for _, weight in FAMILIES.values()]
        first = names * (1 if total < 50_000 else 3)
        self.rng.shuffle(first)
        yield from first
        while True:
            yield from self.rng.choices(names, weights, k=1_000)

    def round(self, plan, size):
        shots, calls, pictures, videos = [], 0, 0, 0
        while len(shots) < size:
            name = next(plan)
            shot = FAMILIES[name][0](self.ammunition)
            shot.family = name
            if shot.label in (EITHER, ACCEPT):
                is_video = shot.path == VIDEOS
                is_picture = is_video or b'"lmd-' in shot.body or shot.path == EDITS
                if (
                    (is_video and videos == ROUND_VIDEOS)
                    or (is_picture and pictures == ROUND_PICTURES)
                    or (not is_picture and calls == ROUND_CALLS)
                ):
                    continue
                videos, pictures, calls = videos + is_video, pictures + is_picture, calls + (not is_picture)
            shots.append(shot)
        return shots

    def good_model(self):
        models = map(json.loads, self.gateway.cli("--json", "models").splitlines())
        return next(m["id"] for m in models if m["owned_by"] == "vendor_e" and m["type"] == "chat")

    def after(self, good, memory):
        report, gateway = self.report, self.gateway
        report.figure("families", len(self.judge.families))
        report.check(len(self.judge.families) >= 60, "there are too few families")
        for outcome, count in sorted(self.judge.outcomes.items()):
            report.figure(outcome, count)
        report.check(gateway.is_alive(), "the gateway ended", gateway.said()[-2_000:])
        panics = gateway.said().count(b"panicked at")
        report.figure("panics", panics)
        report.check(not panics, "a request made the gateway panic", tail_of(gateway.said(), b"panicked at"))
        self.latency(good)
        memory.tell(report)
        self.judge.books(self.accounts)
        self.judge.end()
        try:
            until(lambda: gateway.metric("tollgate_holds_open") == 0, "no hold is open", 15)
        except AssertionError:
            report.violation("a hold stayed open", gateway.metric("tollgate_holds_open"))

    def latency(self, good):
        took = {
            name: [ms for moment, ms, _ in good if any(start <= moment < end for start, end in windows)]
            for name, windows in self.windows.items()
        }
        for name, values in took.items():
            self.report.figure(f"good calls, {name}", len(values))
            self.report.figure(f"good p50, {name}", percentile(values, 0.5), "ms")
            self.report.figure(f"good p99, {name}", percentile(values, 0.99), "ms")
        failed = [status for _, _, status in good if status != 200]
        self.report.figure("good calls that failed", len(failed))
        self.report.check(not failed, "good calls failed", failed[:20])
        quiet, attack = (percentile(took[name], 0.99) for name in ("quiet", "attack"))
        self.report.figure("slowdown of good p99", attack / quiet if quiet else 0.0, "x")
        # The short form has too few samples to tell an attack from a hiccup of the machine.
        tell = self.report.violation if self.options.long else self.report.note
        if attack > SLOWDOWN_MAX * quiet:
            tell("good traffic was slowed down", f"p99 {quiet:.2f} -> {attack:.2f} ms")


ACCOUNTS = {"refused": 1_000, "odd": 100_000, "honest": 1_000, "poor": 0, "victim": 100, "good": 1_000}
# An odd call may hold all that its account has, so honest ones have their own.
PAYERS = {REFUSE: "refused", LOCAL: "refused", EITHER: "odd", ACCEPT: "honest"}


def tail_of(text, word):
    at = text.find(word)
    return text[max(0, at - 200) : at + 500].decode(errors="replace") if at >= 0 else ""


class Memory:
    """Looks at the gateway's resident memory again and again."""

    def __init__(self, gateway):
        self.gateway, self.peak, self.stopped = gateway, 0, threading.Event()

    def __enter__(self):
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.watcher.join(5)

    def _watch(self):
        while not self.stopped.wait(0.05):
            with contextlib.suppress(OSError, KeyError):
                self.peak = max(self.peak, self.gateway.memory()[0])

    def begin(self):
        self.before = self.peak = self.gateway.memory()[0]

    def end(self, seconds):
        time.sleep(seconds)
        self.after = self.gateway.memory()[0] if self.gateway.is_alive() else 0

    def tell(self, report):
        for name in ("before", "peak", "after"):
            report.figure(f"resident memory, {name}", getattr(self, name) / (1 << 20), "MiB")
        growth = self.peak - self.before
        report.check(growth < MEMORY_GROWTH_MAX, "memory grew", f"by {growth >> 20} MiB at its peak")
