"""Budgets of accounts and keys: what must hold of them in the end, and of the refusals that callers
heard.

Each check is proved where it is used: a fault is planted in a copy of what was checked, and the
check has to find it.
"""

import copy
import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

ACCOUNT, KEY = "account", "key"
LENGTHS_S = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400}
# A line has the time of its settlement. Its hold decides where it counts, and is at most so much
# older.
OLDEST_HOLD_MS = 120_000
# What the checks find.
LIMITS, HELD = "budgets are not those that were set", "still held in a budget"
SPENT, ABOVE = "spent is not the sum of the lines", "more was spent than a budget allows"
NO_KEY = "a line does not name its key, or one key has two ids"
EARLY, ROOMY = "refused while more was left in the budget", "refused though the budget left enough"
OTHER, UNADVISED = (
    "refused for another reason than the budget",
    "a refusal does not say when to try again",
)


def check_budgets(books, found, given, since, unheld=frozenset()):
    """How much was spent above limits, by budget. `given` has the limits in nano-USD that were set
    before the first call, by account, owner (`account` or `key`) and window; `since` is the time of
    that call, in unix ms. `unheld` has the ids of charges whose hold may have been gone: the
    contract lets them pass a limit.
    """
    above = Counter()
    for name, balance in books.balances.items():
        limits, lines = given.get(name, {}), books.charges[name]
        check_limits(name, balance["budgets"], limits, found)
        check_keys(name, lines, found)
        for budget in balance["budgets"]:
            here = f"{name}, {budget['owner']}, {budget['window']}"
            if budget["held_nano"]:
                found.violation(HELD, f"{here}: {budget['held_nano']}")
            counted = lines_of(budget, lines)
            least, most = spent_of(budget, counted, since)
            if not least <= budget["spent_nano"] <= most:
                found.violation(
                    SPENT, f"{here}: {budget}, {least} to {most} in {len(counted)} lines"
                )
            over = budget["spent_nano"] - budget["limit_nano"]
            if over > 0:
                above[here] = over
                excess = sum(
                    line["amount_nano"] for line in counted if line["request_id"] in unheld
                )
                if over > excess:
                    found.violation(
                        ABOVE, f"{here}: {budget}, and {excess} of charges without their hold"
                    )
    return above


def check_limits(name, budgets, limits, found):
    given = sorted(
        (owner, window, nano) for owner, some in limits.items() for window, nano in some.items()
    )
    shown = sorted((budget["owner"], budget["window"], budget["limit_nano"]) for budget in budgets)
    if given != shown:
        found.violation(LIMITS, f"{name}: {shown} instead of {given}")


def check_keys(name, lines, found):
    ids = {}
    for line in lines:
        ids.setdefault(line["key_prefix"], set()).add(line.get("key_id"))
    for prefix, known in ids.items():
        if len(known) != 1 or None in known:
            found.violation(NO_KEY, f"{name}: {prefix} {known}")


def lines_of(budget, lines):
    """The lines that count in a budget, if its window is theirs."""
    return [
        line for line in lines if budget["owner"] == ACCOUNT or line["key_prefix"] == budget["key"]
    ]


def spent_of(budget, lines, since):
    """What must be spent in the window that runs now, at least and at most, in nano-USD. Both are
    the same unless the window began after the first call.
    """
    start = start_ms(budget)
    most = sum(line["amount_nano"] for line in lines if line["at"] >= start)
    if start <= since:
        return most, most
    return sum(line["amount_nano"] for line in lines if line["at"] >= start + OLDEST_HOLD_MS), most


def start_ms(budget):
    """When the window of a budget that runs now began, in unix ms."""
    if budget["resets_at"] is None:
        return 0
    if length := LENGTHS_S.get(budget["window"]):
        return (budget["resets_at"] - length) * 1_000
    last = datetime.fromtimestamp(budget["resets_at"] - 1, UTC)
    return int(last.replace(day=1, hour=0, minute=0, second=0).timestamp()) * 1_000


# What is said to callers.

MESSAGE = re.compile(
    rb"needs ([\d.]+) USD at least, and "
    rb"the (?:(total) budget of the \w+|budget of the \w+ for this (\w+)) leaves ([\d.]+) USD"
)


@dataclass(frozen=True)
class Refusal:
    """A refusal, as its caller read it: when (unix ms), and the amounts that it has (nano-USD)."""

    status: int
    code: str
    at: int
    head: bytes
    window: str | None = None
    least: int = 0
    left: int = 0


def refusal_of(reply):
    """What a reply says that is no answer."""
    told = MESSAGE.search(reply.body())
    amounts = {}
    if told:
        window = (told[2] or told[3]).decode()
        amounts = {"window": window, "least": nano(told[1]), "left": nano(told[4])}
    return Refusal(reply.status, reply.code(), reply.at, reply.head.lower(), **amounts)


def nano(usd):
    return int(Decimal(usd.decode()).scaleb(9))


def check_refusals(refusals, lines, budget, found, here):
    """A 402 is right only where what is spent leaves too little, whatever is held. What was spent
    at some time is at most the lines that were settled by then, so at least the rest of the limit
    was left. Where held money would do, the answer is 429.
    """
    for one in refusals:
        told = f"{here}: {one}"
        if one.status == 429:
            if one.code != "credit_in_use":
                found.violation(OTHER, told)
            if b"\r\nretry-after: 1\r\n" not in one.head:
                found.violation(UNADVISED, told)
            continue
        if (one.status, one.code, one.window) != (
            402,
            f"{budget['owner']}_budget_exceeded",
            budget["window"],
        ):
            found.violation(OTHER, told)
            continue
        if b"\r\nx-should-retry: false\r\n" not in one.head:
            found.violation(UNADVISED, told)
        settled = sum(line["amount_nano"] for line in lines if line["at"] <= one.at)
        if one.left < budget["limit_nano"] - settled:
            found.violation(EARLY, f"{told}, {settled} of {budget['limit_nano']} settled")
        # Spent never falls, so this holds in the end, too.
        if max(one.left, budget["limit_nano"] - budget["spent_nano"]) >= one.least:
            found.violation(ROOMY, f"{told}, {budget}")


# Proofs that the checks can fail.


class Finder:
    """Takes what a check finds, and tells nobody."""

    def __init__(self):
        self.kinds = set()

    def violation(self, kind, _sample=""):
        self.kinds.add(kind)


def raise_limit(budget, _balance, _lines):
    budget["limit_nano"] += 1


def drop_budget(budget, balance, _lines):
    balance["budgets"].remove(budget)


def keep_hold(budget, _balance, _lines):
    budget["held_nano"] = 1


def remove_line(budget, _balance, lines):
    lines.remove(lines_of(budget, lines)[0])


def post_line_again(budget, _balance, lines):
    lines.append(lines_of(budget, lines)[0])


def charge_more(budget, _balance, lines):
    lines_of(budget, lines)[0]["amount_nano"] += 1


def forget_charge(budget, _balance, _lines):
    budget["spent_nano"] -= 1


def pass_limit(budget, balance, lines):
    over = budget["limit_nano"] + 1 - budget["spent_nano"]
    lines_of(budget, lines)[0]["amount_nano"] += over
    budget["spent_nano"] += over


def forget_key(budget, _balance, lines):
    del lines_of(budget, lines)[0]["key_id"]


FAULTS = (
    (raise_limit, LIMITS),
    (drop_budget, LIMITS),
    (keep_hold, HELD),
    (remove_line, SPENT),
    (post_line_again, SPENT),
    (charge_more, SPENT),
    (forget_charge, SPENT),
    (pass_limit, ABOVE),
    (forget_key, NO_KEY),
)


def prove_budgets(books, found, given, since):
    """Plants each fault in copies of books, in a budget of an account and in one of a key."""
    planted = 0
    for owner in (ACCOUNT, KEY):
        name, at = next(places_of(books, owner), (None, None))
        if name is None:
            found.violation("no budget counted a call, so its check proves nothing", owner)
            continue
        for plant, kind in FAULTS:
            one = SimpleNamespace(
                balances={name: copy.deepcopy(books.balances[name])},
                charges={name: [dict(line) for line in books.charges[name]]},
            )
            plant(one.balances[name]["budgets"][at], one.balances[name], one.charges[name])
            finder = Finder()
            check_budgets(one, finder, given, since)
            if kind not in finder.kinds:
                found.violation(
                    "the check of budgets is blind", f"{plant.__name__}, {owner}: {finder.kinds}"
                )
            planted += 1
    found.figure("faults planted in budgets and found", planted)


def places_of(books, owner):
    """The accounts that have a total budget of such an owner, in which something counted below its
    limit, and the places of these budgets in their lists.
    """
    for name, balance in books.balances.items():
        for at, budget in enumerate(balance["budgets"]):
            is_usable = (
                budget["window"] == "total" and 0 < budget["spent_nano"] <= budget["limit_nano"]
            )
            if budget["owner"] == owner and is_usable:
                yield name, at


def prove_refusals(refusals, lines, budget, found):
    """Plants each fault in a refusal of 402, if there is one; how many were planted."""
    right = next((one for one in refusals if one.status == 402 and one.window), None)
    if right is None:
        return 0
    faults = (
        (replace(right, left=budget["limit_nano"] - budget["spent_nano"] - 1), EARLY),
        (replace(right, least=right.left), ROOMY),
        (replace(right, code="insufficient_credits"), OTHER),
        (replace(right, window="month"), OTHER),
        (replace(right, status=503), OTHER),
        (replace(right, status=429), OTHER),
        (replace(right, head=b"\r\n"), UNADVISED),
    )
    if lines:
        # Nothing was spent yet, so all that could be missing was held.
        faults += ((replace(right, at=min(line["at"] for line in lines) - 1), EARLY),)
    for refusal, kind in faults:
        finder = Finder()
        check_refusals([refusal], lines, budget, finder, "planted")
        if kind not in finder.kinds:
            found.violation("the check of refusals is blind", f"{kind}: {refusal}")
    return len(faults)
