"""What a chat costs, to the nano-USD; and that nothing is charged twice, or not at all."""

import asyncio

import openai
import pytest
from stack import SHORT_OF_CREDIT, ask

# model, vendor, the usage the vendor reports, what that costs in nano-USD
# A vendor is believed so many tokens of input only of a long call.
LONG = {"role": "system", "content": "a " * 40_000}

BILLS = [
    ("lmb-5.5", "vendor_b", "prompt=1000;completion=100", 1000 * 5_000 + 100 * 30_000),
    ("lmb-5.5", "vendor_b", "prompt=272000;completion=10", 272_000 * 5_000 + 10 * 30_000),
    ("lmb-5.5", "vendor_b", "prompt=272001;completion=10", 272_001 * 10_000 + 10 * 45_000),
    ("lma-opus-5", "vendor_a", "prompt=1000;completion=100", 1000 * 5_000 + 100 * 25_000),
    ("lma-sonnet-4-6", "vendor_a", "prompt=272001;completion=10", 272_001 * 3_000 + 10 * 15_000),
    ("lmd-4.6", "vendor_d", "prompt=12;completion=1;reasoning=228", 12 * 2_000 + 229 * 6_000),
    ("orgA/famA-V3.2", "vendor_e", "prompt=1000;completion=100", 1000 * 260 + 100 * 380),
]


@pytest.mark.parametrize(("model", "vendor", "usage", "nano"), BILLS, ids=lambda value: str(value))
def test_the_bill_is_exact_whole_and_streamed(gateway, model, vendor, usage, nano):
    alice = gateway(**{vendor: usage}).account(credit="10")
    messages = [LONG, *ask(usage)] if "prompt=272" in usage else ask(usage)
    alice.client().chat.completions.create(model=model, messages=messages)
    for _ in alice.client().chat.completions.create(model=model, messages=messages, stream=True):
        pass
    assert [charge.amount_nano for charge in alice.charges(2)] == [nano, nano]
    assert alice.balance().available_nano == 10 * 10**9 - 2 * nano


@pytest.mark.vendors("sim")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_answer_without_usage_is_counted_and_never_free(gateway, streamed):
    alice = gateway(vendor_b="no-usage").account()
    reply = alice.client().chat.completions.create(model="lmb-5.5", messages=ask("hello"), stream=streamed)
    if streamed:
        assert list(reply)
    charge = alice.charge()
    assert charge.basis == "counted" and charge.amount_nano > 0


def test_an_answer_carries_the_request_id_of_its_charge(gateway):
    alice = gateway().account()
    whole = alice.client().chat.completions.with_raw_response.create(model="lmb-5.5", messages=ask("hello"))
    streamed = alice.client().chat.completions.with_raw_response.create(
        model="lmb-5.5", messages=ask("hello"), stream=True
    )
    list(streamed.parse())
    ids = [reply.headers["x-request-id"] for reply in (whole, streamed)]
    assert whole.parse()._request_id == ids[0]
    assert [charge.request_id for charge in alice.charges(2)] == ids
    assert [reply.headers["x-gateway-fallback-depth"] for reply in (whole, streamed)] == ["0", "0"]


def test_a_retry_by_the_sdk_is_charged_once(gateway):
    gw = gateway(vendor_b="status=503;times=1")
    alice = gw.account()
    reply = alice.client(max_retries=2).chat.completions.create(model="lmb-5.5", messages=ask("status=503;times=1"))
    assert reply.choices[0].message.content
    assert alice.charge().amount_nano == alice.price("lmb-5.5").of(reply.usage)
    assert gw.vendor.count() == 2


def test_a_stream_left_early_is_charged_what_the_vendor_reported(gateway):
    slow = "prompt=100;completion=50;chunks=20;chunk-delay=40"
    alice = gateway(vendor_b=slow).account()
    stream = alice.client().chat.completions.create(model="lmb-5.5", messages=ask(slow), stream=True)
    next(chunk for chunk in stream if chunk.choices[0].delta.content)
    stream.close()
    assert alice.balance().held_nano > 0
    charge = alice.charge()
    assert (charge.basis, charge.amount_nano) == ("reported", 100 * 5_000 + 50 * 30_000)


def test_twenty_parallel_streams_are_all_answered_and_all_charged(gateway):
    alice = gateway().account()

    async def chat(client):
        stream = await client.chat.completions.create(
            model="lmb-5.5", messages=ask("hello"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks[-1].usage

    async def twenty():
        async with alice.async_client() as client:
            return await asyncio.gather(*(chat(client) for _ in range(20)))

    texts, usages = zip(*asyncio.run(twenty()))
    assert len(set(texts)) == 1 and texts[0]
    price = alice.price("lmb-5.5")
    assert sum(c.amount_nano for c in alice.charges(20)) == sum(price.of(usage) for usage in usages)


def test_parallel_chats_do_not_overdraw_an_account(gateway):
    usage = "prompt=10;completion=100"  # costs 0.00305
    alice = gateway(vendor_b=usage).account(credit="0.01")

    async def chat(client):
        try:
            await client.chat.completions.create(model="lmb-5.5", messages=ask(usage), max_tokens=100)
            return 1
        except openai.APIStatusError as refused:
            assert (refused.status_code, refused.code) in SHORT_OF_CREDIT
            return 0

    async def ten():
        async with alice.async_client() as client:
            return sum(await asyncio.gather(*(chat(client) for _ in range(10))))

    answered = asyncio.run(ten())
    assert 3 <= answered <= 5  # three are covered; what is left may begin another, with a lower limit
    amounts = sorted(charge.amount_nano for charge in alice.charges(answered))
    assert amounts[-3:] == [3_050_000] * 3 and sum(amounts) <= 10_000_000
    assert alice.balance().available_nano == 10_000_000 - sum(amounts)
