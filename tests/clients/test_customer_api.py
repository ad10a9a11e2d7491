"""What an account is told of itself over HTTP: its balance, its key, and what its calls have cost."""

import json
import time
from decimal import Decimal

import httpx2
import pytest
from stack import NANO, ask

pytestmark = pytest.mark.vendors("sim")
USAGE = "prompt=1000;completion=100"
COST = 1000 * 5_000 + 100 * 30_000


def get(alice, path, status=200, **parameters):
    """What an account is told at a path, with its numbers as they are written."""
    headers = {"authorization": f"Bearer {alice.key}"}
    reply = httpx2.get(f"{alice.gateway.root}{path}", headers=headers, params=parameters, timeout=20)
    assert reply.status_code == status, reply.text
    return json.loads(reply.text, parse_float=Decimal)


def test_the_balance_is_exact_in_both_formats(gateway):
    alice = gateway(vendor_b=USAGE).account(credit="5")
    alice.client().chat.completions.create(model="lmb-5.5", messages=ask(USAGE))
    assert alice.charge().amount_nano == COST
    used = Decimal(COST) / NANO
    for path in "/v1/credits", "/api/v1/credits":
        told = get(alice, path)
        assert (Decimal(told["balance"]), Decimal(told["total_used"])) == (5 - used, used)
        assert told["data"] == {"total_credits": 5, "total_usage": used}


def test_a_key_is_told_without_its_secret(gateway):
    alice = gateway().account()
    told = get(alice, "/v1/key")["data"]
    assert alice.key.startswith(told["prefix"]) and alice.key not in json.dumps(told, default=str)
    assert (told["is_free_tier"], told["is_management_key"], told["limit"]) == (False, False, None)
    again = get(alice, "/api/v1/key")["data"]
    # It may have been noted in between.
    assert again | {"last_used_at": None} == told | {"last_used_at": None}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_what_a_call_has_cost_is_found_by_either_id(gateway, streamed):
    alice = gateway(vendor_b=USAGE).account()
    reply = alice.client().chat.completions.with_raw_response.create(
        model="lmb-5.5", messages=ask(USAGE), stream=streamed
    )
    parsed = reply.parse()
    reply_id = [chunk.id for chunk in parsed][0] if streamed else parsed.id
    charge = alice.charge()
    assert reply.headers.get("x-gateway-charged-nano") == (None if streamed else str(charge.amount_nano))
    told = [get(alice, "/v1/generation", id=id)["data"] for id in (reply.headers["x-request-id"], reply_id)]
    assert told[0] == told[1] and told[0]["id"] == charge.request_id
    assert (told[0]["amount_nano"], told[0]["total_cost"]) == (COST, Decimal(COST) / NANO)
    assert (told[0]["tokens_prompt"], told[0]["tokens_completion"]) == (1000, 100)


def test_another_account_is_told_nothing_of_a_call(gateway):
    gw = gateway()
    alice, bob = gw.account(), gw.account()
    reply = alice.client().chat.completions.with_raw_response.create(model="lmb-5.5", messages=ask("hello"))
    alice.charge()
    for id in reply.headers["x-request-id"], reply.parse().id:
        assert get(bob, "/v1/generation", status=404, id=id)["error"]["code"] == "generation_not_found"
    assert get(bob, "/v1/charges") == {"data": [], "has_more": False, "next": None}


def test_the_charges_come_page_by_page(gateway):
    alice = gateway().account()
    for _ in range(5):
        alice.client().chat.completions.create(model="lmb-5.5", messages=ask("hello"))
    charges, lines, after = alice.charges(5), [], 0
    while after is not None:
        page = get(alice, "/v1/charges", after=after, limit=2)
        assert len(page["data"]) <= 2
        lines += page["data"]
        after = page["next"]
    assert [line["id"] for line in lines] == [charge.request_id for charge in charges]
    assert [Decimal(line["amount_usd"]) * NANO for line in lines] == [charge.amount_nano for charge in charges]
    assert [line["seq"] for line in lines] == [1, 2, 3, 4, 5]


def settled(ask_once, is_whole):
    """What is told once the sums have all that was charged."""
    for _ in range(200):
        told = ask_once()
        if is_whole(told):
            return told
        time.sleep(0.05)
    raise AssertionError(told)


def test_usage_is_told_by_day_and_model(gateway):
    alice = gateway(vendor_b=USAGE).account()
    for _ in range(2):
        alice.client().chat.completions.create(model="lmb-5.5", messages=ask(USAGE))
    told = settled(
        lambda: get(alice, "/v1/usage", group_by="model,day")["data"],
        lambda rows: sum(row["calls"] for row in rows) == 2,
    )
    assert {row["model"] for row in told} == {"lmb-5.5"}
    assert sum(row["charged_nano"] for row in told) == 2 * COST == sum(c.amount_nano for c in alice.charges(2))


def test_the_official_client_reads_the_reports_of_an_organization(gateway):
    alice = gateway(vendor_b=USAGE).account()
    client = alice.client()
    client.chat.completions.create(model="lmb-5.5", messages=ask(USAGE))
    since = int(time.time()) - 86_400

    def report(path, **parameters):
        return client.get(path, cast_to=dict, options={"params": {"start_time": since, **parameters}})

    def results(page):
        assert page["object"] == "page"
        return [result for bucket in page["data"] for result in bucket["results"]]

    path = "/organization/usage/completions"
    page = settled(lambda: report(path, group_by=["model"]), results)
    (result,) = results(page)
    assert (result["model"], result["input_tokens"], result["output_tokens"]) == ("lmb-5.5", 1000, 100)
    (cost,) = results(report("/organization/costs"))
    assert cost["object"] == "organization.costs.result" and cost["amount"]["currency"] == "usd"
    assert round(cost["amount"]["value"] * NANO) == COST
    # Page by page, each with one bucket.
    pages = [report("/organization/costs", limit=1)]
    while pages[-1]["has_more"]:
        pages.append(report("/organization/costs", limit=1, page=pages[-1]["next_page"]))
    assert len(pages) == 2 and sum(len(results(page)) for page in pages) == 1
