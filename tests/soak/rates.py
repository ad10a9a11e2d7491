"""Rate limits of accounts: the plans of the machines, and what must hold of them in the end.

Each check of numbers is proved where it is used: a fault is planted in a copy of what was checked,
and the check has to find it.
"""

import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import calls
from processes import REPO

# What the plans of the machines limit. Few calls have no place among `places`, which no gateway
# lends; of `requests` an account of the short form has used all after some seconds; of `much` all
# is lent; and what only tells refuses nothing.
PLACES, REQUESTS = 2, 240
PLANS = f"""
[plan.places]
calls = {PLACES}
[plan.requests]
requests_per_minute = {REQUESTS}
[plan.tokens]
tokens_per_minute = 40_000
[[plan.tokens.of]]
models = ["tts-1"]
requests_per_minute = 60
[plan.much]
requests_per_minute = 6_000
tokens_per_minute = 2_000_000
calls = 200
[plan.watch]
mode = "shadow"
requests_per_minute = 30
calls = 1
"""
# In turns.
NAMES = ("places", "requests", "tokens", "watch", "much")
ENFORCED = ("places", "requests", "tokens", "much")
# How refusals are told: with a code, and by messages with a type alone.
CODES = ("rate_limit_exceeded", "rate_limit_error")
# What is begun in the same moment counts in one of two.
SLACK_S = 2.0
# What the checks find.
ABOVE, NO_PLAN = "more was served than a limit allows", "an account without a limit was limited"
TAKEN, NEVER = "a place is taken though no call runs", "no limit refused a call"


# Those of a crowd: the requests of an account that has no other limit, and few places.
CROWD_REQUESTS, CROWD_PLACES = 200, 60
CROWD_PLANS = f"""
[plan.requests]
requests_per_minute = {CROWD_REQUESTS}
[plan.places]
calls = {CROWD_PLACES}
"""


def rules_with(plans, folder):
    """A folder with the rules as they are and these plans."""
    copy = shutil.copytree(REPO / "lua-free-rules", folder / "rules")
    (copy / "plans.toml").write_text(plans)
    return copy


def check_counts(charges, given, seconds, found):
    """No account has more charges than its requests allow, of whatever was begun in so many
    seconds. `given` has the plans of accounts."""
    most = REQUESTS + REQUESTS * (seconds + SLACK_S) / 60
    for name, plan in given.items():
        if plan == "requests" and len(charges[name]) > most:
            found.violation(ABOVE, f"{name}: {len(charges[name])} of at most {most:.0f}")


def prove_counts(charges, given, seconds, found):
    """Plants more charges than there can be."""
    name = next((name for name, plan in given.items() if plan == "requests"), None)
    if name is None:
        return
    planted = charges | {name: [{}] * int(2 * REQUESTS + REQUESTS * (seconds + SLACK_S) / 60)}
    finder = Finder()
    check_counts(planted, given, seconds, finder)
    if ABOVE not in finder.kinds:
        found.violation("the check of limits is blind", name)


def check_refusals(told, given, is_sure, found):
    """How many calls of each plan were refused for it; of the usual load some surely are."""
    counts = Counter()
    for call in told:
        if call.outcome == "refused" and call.status in {f"429:{code}" for code in CODES}:
            # Messages tell of held credit in the same way, which any account may have.
            plan = given.get(call.account)
            if call.status.endswith(CODES[0]) and plan not in ENFORCED:
                found.violation(NO_PLAN, call)
            counts[plan] += 1
    if is_sure and not any(counts[plan] for plan in ENFORCED):
        found.violation(NEVER, dict(counts))
    return counts


def check_places(port, kind, keys, places, found):
    """As many calls as an account has places run at a time, once nothing else does. They have to
    take long enough. `keys` are those of accounts, by their names."""

    def call(name):
        reply, _ = calls.one(port, kind, 3, keys[name])
        return name, reply

    at_once = [name for name in keys for _ in range(places)]
    with ThreadPoolExecutor(max(len(at_once), 1)) as pool:
        for name, reply in pool.map(call, at_once):
            if reply.status == 429 and kind_of(reply) == "calls":
                found.violation(TAKEN, f"{name}: {reply.body()}")


def kind_of(reply):
    """What the limit counts that refused a call."""
    try:
        return json.loads(reply.body())["error"]["type"]
    except (ValueError, KeyError, TypeError):
        return "unreadable"


class Finder:
    """Takes what a check finds, and tells nobody."""

    def __init__(self):
        self.kinds = set()

    def violation(self, kind, _sample=""):
        self.kinds.add(kind)
