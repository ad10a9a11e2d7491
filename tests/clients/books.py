"""What the vendors of a gateway report, and whether an account of that gateway paid exactly that."""

from decimal import Decimal
from typing import NamedTuple

from processes import VENDOR_KEY, get_json
from stack import NANO

# How the vendors call the models of ours, as conf/live.toml has it.
NAMES = {"vendor_a": {"lma-*": "claude-*"}, "vendor_b": {"lmb-*": "gpt-*"}}


class Call(NamedTuple):
    """A call that a vendor answered: our name of the model, and the tokens of input and output."""

    model: str
    asked: int
    told: int

    def at(self, price):
        return self.asked * price.prompt + self.told * price.completion


class Books:
    """An account that is alone on its gateway, so that whatever the vendors report is for it to pay."""

    def __init__(self, gateway, credit="5"):
        self.gateway, self.credit = gateway, int(Decimal(credit) * NANO)
        self.account = gateway.account(credit)

    def reported(self):
        """The calls that the vendors answered."""
        vendor = self.gateway.vendor
        if hasattr(vendor, "calls"):
            summaries = get_json(f"{vendor.url}/_seen")
            bills = [seen["billed"] for seen in summaries]
            calls = [
                (body, bill["prompt"], bill["total"] - bill["prompt"])
                for body, bill in zip(vendor.received(), bills, strict=True)
            ]
        else:
            entries = get_json(f"{vendor.url}/__aimock/journal", VENDOR_KEY)
            usages = [entry["response"]["fixture"]["response"]["usage"] for entry in entries]
            calls = [
                (entry["body"], usage["prompt_tokens"], usage["completion_tokens"])
                for entry, usage in zip(entries, usages)
            ]
        return [Call(ours(body["model"]), asked, told) for body, asked, told in calls]

    def assert_exact(self, count):
        """The vendors were called so often, each call is one line of its listed price, and no more is held or gone.
        The tokens that they reported in all."""
        reported = self.reported()
        assert len(reported) == self.gateway.vendor.count() == count
        prices = {model: self.account.price(model) for model in {call.model for call in reported}}
        due = [(call.model, "reported", call.at(prices[call.model])) for call in reported]
        lines = [(line.model, line.basis, line.amount_nano) for line in self.account.charges(count)]
        assert sorted(lines) == sorted(due) and all(nano > 0 for _, _, nano in lines)
        balance = self.account.balance()
        assert balance.available_nano == self.credit - sum(nano for _, _, nano in lines)
        assert balance.held_nano == balance.written_off_nano == 0
        return sum(call.asked for call in reported), sum(call.told for call in reported)

    def refusals(self):
        """The codes of the answers to this account that were errors, as the gateway logged them."""
        log = self.gateway.process.log.read_text()
        served = [line for line in log.splitlines() if f'account="{self.account.name}"' in line]
        return [line.split(' code="')[1].split('"')[0] for line in served if ' code="" ' not in line]


def ours(name):
    """Our name of a model that a vendor was asked for."""
    for table in NAMES.values():
        for our, their in table.items():
            if name.startswith(their.rstrip("*")):
                return our.rstrip("*") + name.removeprefix(their.rstrip("*"))
    return name
