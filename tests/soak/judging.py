"""What became of shots: the answers, what the vendors heard, what was charged."""

import json
import re
import time
import urllib.request
from collections import Counter

from processes import VENDOR_KEY, get_json, total

from attacks.shot import ACCEPT, CHAT, EDITS, EITHER, IMAGES, LOCAL, MODERATIONS, REFUSE, VIDEOS
from meaning import LENIENT, PRICED, OtherReader, Unsound, canonical, insane, priced, strict

MARK = re.compile(rb"mk[0-9]{7}[0-9a-f]{8}(?:-inner)?")
PAGE_MAX = 200
# All that a vendor may be told in a head.
VENDOR_HEADERS = {
    "host", "authorization", "x-api-key", "content-type", "content-length", "accept", "accept-encoding", "user-agent",
    "vendor_a-version", "vendor_a-beta", "idempotency-key", "x-request-id", "connection",
}  # fmt: skip


class Judge:
    def __init__(self, gateway, sims, report):
        self.gateway, self.sims, self.report = gateway, sims, report
        self.heard_before = {name: total(get_json(f"{sim.url}/_count")) for name, sim in sims.items()}
        self.reader = OtherReader()
        self.families, self.outcomes = Counter(), Counter()
        # Of what was paid for: the id of the request, the model that the vendor was asked for, its bill.
        self.paid = []
        self.seen_marks = Counter()
        # Marks of what must be refused, and how often a vendor heard of one.
        self.forbidden, self.betrayed = {}, 0

    def stop(self):
        self.reader.stop()

    def round(self, shots):
        """Looks at the shots of a round, all of which have been answered."""
        heard = self.heard()
        by_mark = {}
        for call in heard:
            for mark in set(MARK.findall(call["raw"])):
                by_mark.setdefault(mark.decode(), []).append(call)
        # A mark may itself have been mutated; then the body is what came, if nothing had to be edited.
        by_body = {call["raw"]: call for call in heard}
        able = sum(len(shot.marks) or 1 for shot in shots if shot.label in (EITHER, ACCEPT))
        orders = [call for call in heard if not call["path"].endswith(".mp4") and call["method"] == "POST"]
        if len(orders) > able:
            self.report.violation("vendors heard of more than could be served", f"{len(orders)} of {able}")
        for shot in shots:
            if shot.label in (REFUSE, LOCAL):
                self.forbidden |= dict.fromkeys(shot.marks, shot.family)
        self.refused(by_mark)
        for shot in shots:
            self.families[shot.family] += 1
            self.answers(shot)
            self.marks(shot, by_mark, by_body)
        for call in heard:
            self.head_of(call)

    def refused(self, by_mark):
        """No vendor heard of what must be refused, in this round or in an earlier one."""
        for mark in by_mark.keys() & self.forbidden.keys():
            self.betrayed += 1
            sample = by_mark[mark][0]["raw"][:300]
            self.report.violation(f"a vendor heard of what must be refused: {self.forbidden[mark]}", sample)

    def end(self):
        """Looks once more, for what came late."""
        late = [mark.decode() for call in self.heard() for mark in MARK.findall(call["raw"])]
        self.report.check(not late, "vendors heard of something after the last round", late[:20])
        self.report.figure("calls to vendors for what must be refused", self.betrayed)

    def heard(self):
        """What reached the vendors since the last time, oldest first, with the bills."""
        calls = []
        for name, sim in self.sims.items():
            count, bodies, seen = self.snapshot(sim)
            new = count - self.heard_before[name]
            self.heard_before[name] = count
            if new > PAGE_MAX:
                self.report.violation("vendors heard of more than a page", f"{new} calls in a round")
            if new:
                latest = zip(bodies[-new:], seen[-min(new, len(bodies)) :])
                calls += [call | {"billed": of["billed"], "method": of["method"]} for call, of in latest]
        return calls

    def snapshot(self, sim):
        """How many requests a simulator got so far, and its pages of the last ones at that moment."""
        for _ in range(100):
            count = self.settle(sim)
            bodies, seen = pages(sim), get_json(f"{sim.url}/_seen")
            if total(get_json(f"{sim.url}/_count")) == count:
                return count, bodies, seen
        raise TimeoutError("a simulator never comes to rest")

    @staticmethod
    def settle(sim):
        count = -1
        while count != (count := total(get_json(f"{sim.url}/_count"))):
            time.sleep(0.06)
        return count

    def answers(self, shot):
        statuses = [answer.status for answer in shot.answers]
        told = f"{statuses or 'nothing'}{' closed' if shot.closed else ''} {shown(shot)}"

        def violation(kind, sample=told):
            self.report.violation(f"{kind}: {shot.family}", sample)

        for status in statuses:
            if status >= 500:
                violation("a 5xx of our own", f"{told} -> {shot.answers[0].body[:300]!r}")
        if not statuses and not shot.closed:
            self.outcomes["unanswered"] += 1
            violation("hung: neither an answer nor a close")
        first = statuses[0] if statuses else 0
        served = [status for status in statuses if status < 400]
        if shot.label == REFUSE:
            self.outcomes["refused, as it must be" if not served else "SERVED"] += 1
            if served:
                violation("served what must be refused")
            if shot.statuses and first not in shot.statuses:
                violation("refused with another status", f"{told}, not {shot.statuses}")
        elif shot.label == ACCEPT:
            self.outcomes["honest, served" if first == 200 else "HONEST, REFUSED"] += 1
            if first != 200:
                violation("refused what is honest", f"{told} -> {[a.body[:200] for a in shot.answers]}")
        elif shot.label == LOCAL:
            self.outcomes["answered without a vendor"] += 1
        else:
            self.outcomes["odd but sound, served" if first == 200 else "odd but sound, refused"] += 1
        for answer in shot.answers:
            if answer.status == 200 and not answer.whole:
                violation("an answer broke off")

    def marks(self, shot, by_mark, by_body):
        heard = [mark for mark in shot.marks if by_mark.get(mark)]
        if shot.one_of and len(heard) > 1:
            self.report.violation(f"a vendor heard of a call and of its repeat: {shot.family}", shown(shot))
        for mark in shot.marks:
            calls = by_mark.get(mark, [])
            self.seen_marks[mark] += len(calls)
            if shot.label in (REFUSE, LOCAL):
                continue
            if self.seen_marks[mark] > 1:
                self.report.violation(f"a vendor heard of one request twice: {shot.family}", shown(shot))
            elif shot.label == ACCEPT and not calls:
                self.report.violation(f"no vendor heard of an honest request: {shot.family}", shown(shot))
        calls = by_mark.get(shot.marks[0], []) if shot.marks else []
        if not calls and shot.body and shot.body in by_body:
            calls = [by_body[shot.body]]
        if shot.label in (EITHER, ACCEPT) and not calls and any(answer.status == 200 for answer in shot.answers):
            self.outcomes["served and not traced to a vendor"] += 1
        if shot.label in (EITHER, ACCEPT) and len(calls) == 1 and len(shot.answers) == 1:
            answer = shot.answers[0]
            if answer.status == 200 and shot.path != MODERATIONS:
                # A video is charged under its own id.
                id = json.loads(answer.body)["id"] if shot.path == VIDEOS else answer.header("x-request-id")
                self.paid.append((id, calls[0], shot))
            if shot.body:
                self.meaning(shot, calls[0])

    def meaning(self, shot, call):
        """What was served reads alike to everybody, and is what was sent."""
        self.outcomes["served and compared"] += 1
        told = f"{shot.family}: sent {shot.body[:400]!r}, vendor got {call['raw'][:400]!r}"
        try:
            read = strict(shot.body)
        except Unsound as why:
            self.report.violation("served an unsound body", f"{why}; {told}")
            return
        for wrong in insane(shot.path, read):
            self.report.violation("served a field of no clear meaning", f"{wrong}; {told}")
        for which, body in ("sent", shot.body), ("passed on", call["raw"]):
            if not is_json(call):
                break
            ours, theirs = priced(LENIENT.decode(body.decode())), self.reader.priced(body)
            if ours != theirs:
                fields = [name for name in {*ours, *(theirs or {})} if ours.get(name) != (theirs or {}).get(name)]
                self.report.violation(f"two readers differ on what was {which}", f"{fields} {told}")
        if is_json(call):
            got = LENIENT.decode(call["raw"].decode())
            for name, value in passed_on(shot.path, read).items():
                if canonical(got.get(name)) != canonical(value):
                    self.report.violation("passed on another value", f"{name}: {got.get(name)!r} for {value!r}; {told}")

    def head_of(self, call):
        headers = call["headers"]
        odd = {name for name in headers if name not in VENDOR_HEADERS}
        if odd and call["method"] == "POST":
            self.report.violation("a vendor was told a header of no use", f"{sorted(odd)} at {call['path']}")
        keys = [headers.get("authorization", "").removeprefix("Bearer "), headers.get("x-api-key", "")]
        if sorted(keys) != ["", VENDOR_KEY] and "/files/" not in call["path"]:
            self.report.violation("a vendor was called without its key, or with two", f"{call['path']} {keys}")

    def books(self, accounts):
        """Refused shots moved nothing; what was served was charged once, for what the vendor was asked."""
        settled = {name: account.settled(20) for name, account in accounts.items()}
        for name, balance in settled.items():
            self.report.check(balance["held_nano"] == 0, "money stayed held", f"{name}: {balance}")
            sides = balance["available_nano"] + balance["held_nano"] + balance["posted_nano"]
            added_up = balance["credited_nano"] + balance["written_off_nano"] == sides
            self.report.check(added_up, "an account does not add up", f"{name}: {balance}")
        for name in ("refused", "poor"):
            balance = settled[name]
            touched = balance["available_nano"] != balance["credited_nano"] or accounts[name].charges()
            self.report.check(not touched, "refused requests moved money", f"{name}: {balance}")
        charges = {}
        for name in ("odd", "honest"):
            lines = {charge["request_id"]: charge for charge in accounts[name].charges()}
            posted = sum(charge["amount_nano"] for charge in lines.values())
            self.report.check(posted == settled[name]["posted_nano"], "the journal is not the balance", settled[name])
            charges |= lines
        self.report.figure("charges", len(charges))
        for id, call, shot in self.paid:
            told = f"{shot.family}: {shot.body[:300]!r}, vendor got {call['raw'][:300]!r} billed {call['billed']}"
            charge = charges.get(id)
            if charge is None:
                self.report.violation("what was served was not charged", told)
                continue
            asked = model_of(call)
            if asked != charge["model"]:
                self.report.violation("charged as another model than the vendor heard", f"{asked} {charge} {told}")
            if rejected := charge.get("rejected_usage"):
                # More input than the model's context: the simulator counts each byte of a body.
                self.outcomes["reports that were not believed"] += 1
                counted = charge["basis"] == "counted" and charge["usage"]["prompt_tokens"] < rejected["prompt_tokens"]
                self.report.check(counted, "charged what was not believed", f"{charge} {told}")
                differs = unlike(rejected, call["billed"] or {})
                self.report.check(not differs, "rejected other units than the vendor bills", f"{differs} {told}")
                continue
            differs = unlike(charge["usage"], call["billed"] or {})
            self.report.check(not differs, "charged other units than the vendor bills", f"{differs} {told}")
        self.report.figure("served calls whose charge was compared", len(self.paid))


def unlike(usage, billed):
    """Units that a journal line has otherwise than the vendor's bill."""
    output = billed.get("total", 0) - billed.get("prompt", 0)
    same = {
        "prompt_tokens": billed.get("prompt"),
        "completion_tokens": max(output, billed.get("completion", 0)),
        "characters": billed.get("characters"),
        "seconds": billed.get("seconds"),
        "cost_in_usd_ticks": billed.get("ticks"),
    }
    return [(name, usage[name], same[name]) for name in usage.keys() & same.keys() if usage[name] != same[name]]


def is_json(call):
    return call["raw"].lstrip()[:1] == b"{"


def model_of(call):
    if is_json(call):
        return LENIENT.decode(call["raw"].decode()).get("model")
    found = re.search(rb'name="model"\r\n\r\n(.*?)\r\n', call["raw"])
    return found[1].decode() if found else None


def passed_on(path, read):
    """What a vendor must be told, by what was sent."""
    model = read.get("model")
    if path == VIDEOS:
        return {
            "duration": int(read.get("seconds") or 4),
            "resolution": read.get("resolution") or "720p",
            "model": model,
        }
    if path == CHAT and isinstance(model, str) and model.startswith("lma-"):
        limits = [read.get(name) for name in ("max_completion_tokens", "max_tokens") if read.get(name) is not None]
        return {"model": model, "max_tokens": limits[0] if limits else 8192}
    expected = {name: value for name, value in read.items() if name in (*PRICED, "messages", "prompt")}
    if path == CHAT and read.get("stream") is True:
        expected["stream_options"] = (read.get("stream_options") or {}) | {"include_usage": True}
    if path in (IMAGES, EDITS):
        for dropped in ("response_format", "size", "stream", "partial_images"):
            expected.pop(dropped, None)
    if path == MODERATIONS and model is None:
        expected.pop("model", None)
    return expected


def pages(sim):
    """The last requests that a simulator got, with their bodies as they came."""
    with urllib.request.urlopen(f"{sim.url}/_bodies", timeout=30) as reply:
        text = reply.read().decode("utf-8", "surrogateescape")
    calls, at, decoder = [], 1, json.JSONDecoder(strict=False)
    while at < len(text) and text[at] == "{":
        call = {}
        for name in ("vendor", "path", "headers", "body"):
            at += len(f',"{name}":')
            # A body may have space around it.
            start = at + len(text[at : at + 1_000]) - len(text[at : at + 1_000].lstrip())
            value, end = decoder.raw_decode(text, start)
            while text[end] not in ",}":
                end += 1
            call[name], raw, at = value, text[at:end], end
        is_text = isinstance(call["body"], str)
        call["raw"] = (call["body"] if is_text else raw).encode("utf-8", "surrogateescape")
        calls.append(call)
        at += len("},")
    assert text[at - 1 :] in ("]", ""), "the page was not read to its end"
    return calls


def shown(shot):
    pieces = [p for p in shot.pieces if isinstance(p, bytes)]
    return repr(b"".join(pieces)[:600])
