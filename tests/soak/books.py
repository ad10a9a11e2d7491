"""The books at the end: every account's balances and journal, against what the clients were told."""

import json
import re
import time
from collections import Counter, defaultdict

import calls


class Part:
    """A part of a report, whose figures and violations name it."""

    def __init__(self, report, name):
        self.report, self.name, self.violated = report, name, False

    def figure(self, name, value, unit=""):
        self.report.figure(f"{self.name}: {name}", value, unit)

    def violation(self, kind, sample=""):
        self.violated = True
        self.report.violation(f"{self.name}: {kind}", sample)

    def check(self, holds, kind, sample=""):
        if not holds:
            self.violation(kind, sample)


class Books:
    """Balances and charges of all accounts, as the command line shows them."""

    def __init__(self, fleet, names=None):
        lines = fleet.cli("--json", "account", "list").splitlines()
        self.balances = {record["name"]: record for record in map(json.loads, lines)}
        self.charges = {}
        for name in names or self.balances:
            shown = fleet.cli("--json", "charges", name, seconds=300)
            self.charges[name] = [json.loads(line) for line in shown.splitlines()]

    def count(self):
        return sum(map(len, self.charges.values()))

    def posted(self):
        return sum(balance["posted_nano"] for balance in self.balances.values())

    def posted_of(self, name):
        return self.balances[name]["posted_nano"]

    def written_off(self):
        return sum(balance["written_off_nano"] for balance in self.balances.values())

    def drift(self):
        return sum(abs(drift_of(balance)) for balance in self.balances.values())


def drift_of(balance):
    """Nano-USD by which an account does not add up."""
    came_in = balance["credited_nano"] + balance["written_off_nano"]
    return came_in - balance["available_nano"] - balance["held_nano"] - balance["posted_nano"]


def bills_of(seen):
    """What the simulator billed for each of these calls, at our prices."""
    told = (call for call in seen if call["billed"] and call.get("body"))
    return Counter(calls.price_of_bill(call["body"]["model"], call["billed"]) for call in told)


def wait_for_no_holds(fleet, seconds, node=0):
    """How long it took until nothing was held any more; more than `seconds` if it still is."""
    began = time.monotonic()
    while True:
        shown = fleet.try_cli("--json", "account", "list", node=node)
        took = time.monotonic() - began
        balances = [json.loads(line) for line in shown.stdout.splitlines()]
        if shown.returncode == 0 and balances and not any(b["held_nano"] for b in balances):
            return took
        if took > seconds:
            return float("inf")
        time.sleep(0.1)


def settled_books(fleet):
    """The books, once nothing more comes into them: what a new run lacks is told in the background."""
    end, books = time.monotonic() + 15, Books(fleet)
    while time.monotonic() < end:
        time.sleep(0.5)
        before, books = books.count(), Books(fleet)
        if books.count() == before:
            break
    return books


def check(books, found, credited=None, vendor_calls=None):
    """What must hold of any books, whatever happened before."""
    vendor_ids, requests = Counter(), Counter()
    for name, balance in books.balances.items():
        if drift_of(balance):
            found.violation("account does not add up", f"{name}: {balance}")
        for field, value in balance.items():
            if field.endswith("_nano") and value < 0:
                found.violation("negative", f"{name}: {field} {value}")
        if balance["held_nano"]:
            found.violation("still held", f"{name}: {balance['held_nano']}")
        if credited and balance["credited_nano"] != credited[name]:
            found.violation(
                "credit is not what was paid",
                f"{name}: {balance['credited_nano']} instead of {credited[name]}",
            )
    for name, charges in books.charges.items():
        total = sum(charge["amount_nano"] for charge in charges)
        if total != books.balances[name]["posted_nano"]:
            found.violation(
                "journal is not what was posted",
                f"{name}: {total} in {len(charges)} lines, posted {books.balances[name]['posted_nano']}",
            )
        for charge in charges:
            requests[charge["request_id"]] += 1
            vendor_ids[charge.get("vendor_request_id")] += 1
            if charge["amount_nano"] != calls.price(charge["model"], charge["usage"]):
                found.violation("charge is not the price of its usage", charge)
    for known, count in requests.items():
        if count > 1:
            found.violation("charged more than once", f"{known}: {count} times")
    for known, count in vendor_ids.items():
        if vendor_calls is None:
            break
        if known is None:
            found.violation("charge without a vendor's id", count)
        elif count > 1:
            found.violation("one call to the vendor charged more than once", f"{known}: {count} times")
    if vendor_calls is not None and books.count() > vendor_calls:
        found.violation("more charges than calls to the vendor", f"{books.count()} > {vendor_calls}")
    if vendor_calls is not None:
        for known in vendor_ids:
            number = re.fullmatch(r"req_vendor_(\d+)", known or "")
            if number is None or int(number[1]) > vendor_calls:
                found.violation("charge for a call that no vendor had", known)


def check_sums(fleet, found, seconds):
    """The sums of usage are those of the journals, once all lines are in them."""
    end = time.monotonic() + seconds
    while True:
        shown = fleet.try_cli("--json", "check", "--books")
        if shown.returncode:
            found.violation("sums of usage are not those of the journals", shown.stdout + shown.stderr)
            return
        left = json.loads(shown.stdout)["lines_not_folded"]
        if left == 0:
            return
        if time.monotonic() > end:
            found.violation("lines are in no sums of usage", left)
            return
        time.sleep(0.5)


def compare(books, told, found):
    """What clients were told against the journal; what there is to count."""
    amounts = {c["request_id"]: c["amount_nano"] for charges in books.charges.values() for c in charges}
    tally, keyed = Counter(), defaultdict(list)
    claimed = set()
    for call in told:
        tally[call.outcome] += 1
        tally[f"{call.outcome} {call.status}"] += 1
        tally[f"kind {call.kind}"] += 1
        tally["cut short"] += call.outcome == "broken" and call.status.endswith("insufficient_credits")
        if call.key:
            keyed[call.account, call.key].append(call)
        replayed = call.original != "-" and call.original != call.id
        paid = call.original if replayed else call.id
        if replayed and call.id in amounts:
            found.violation("a repeated reply was charged", call)
        if call.outcome == "whole":
            claimed.add(paid)
            if paid not in amounts:
                found.violation("whole answer that was not charged", call)
            elif call.cost not in (amounts[paid], -1):
                found.violation("whole answer at another price", f"{call} but {amounts[paid]}")
        elif call.outcome == "refused":
            tally["voided or never held"] += 1
            if call.id in amounts:
                found.violation("refused call that was charged", f"{call}: {amounts[call.id]}")
        elif call.outcome == "hung":
            found.violation("no answer, and no end of it", call)
    tally["charges nobody read the end of"] = len(set(amounts) - claimed)
    check_keyed(books, keyed, tally, found)
    return tally


def check_keyed(books, keyed, tally, found):
    """Calls with an idempotency key are paid once, however often they were asked."""
    keys_of = defaultdict(dict)
    for (account, key), attempts in keyed.items():
        keys_of[account][key] = attempts
    for account, keys in keys_of.items():
        # Each attempt has an id of its own, and the first whole reply names the one that was paid.
        charged = {charge["request_id"] for charge in books.charges[account]}
        finished = lost = open_end = 0
        for attempts in keys.values():
            paid = {a.original if a.original != "-" else a.id for a in attempts if a.outcome == "whole"}
            known = {a.id for a in attempts if a.id in charged} | (paid & charged)
            tally["calls with a key"] += 1
            tally["attempts at calls with a key"] += len(attempts)
            if len(known) > 1:
                found.violation("one idempotency key paid twice", f"{account}: {known}")
            if paid:
                finished += 1
            elif any("reply_lost" in a.status or "reply_not_kept" in a.status for a in attempts):
                lost += 1
            elif not all(a.outcome == "refused" and a.status[:1] in "45" for a in attempts[-1:]):
                open_end += 1
        tally["keys answered"] += finished
        tally["keys charged without an answer"] += lost
        if not finished <= len(charged) <= finished + lost + open_end:
            found.violation(
                "charges of an account are not its answered keys",
                f"{account}: {len(charged)} charges, {finished} answered, {lost} lost, {open_end} open",
            )
