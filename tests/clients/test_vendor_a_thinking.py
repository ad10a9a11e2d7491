"""Thoughts of vendor_a's models in chats: shown as they come, and put back in the loops of tools.

A chat has no place for the vendor's signed thoughts. The gateway keeps them for the turns in which
a tool's results come back; on Redis, every node of a fleet finds them.
"""

import pytest
from stack import ask
from talk import STREAMED, WEATHER, plain, said_again, text_of

MODEL = "lma-opus-5"
QUESTION = "thinking;tools=1"
sqlite = pytest.mark.stores("sqlite")
whole_and_streamed = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def chat(client, streamed, **request):
    """The message that comes back, its usage, and what became of the thoughts before it."""
    request = {"model": MODEL, "tools": [WEATHER]} | request | (STREAMED if streamed else {})
    raw = client.chat.completions.with_raw_response.create(**request)
    reply = plain(raw.parse())
    return reply.message, reply.usage, raw.headers.get("x-gateway-thinking")


def turn(message, result):
    """The two messages with which a client answers a call of a tool."""
    return [said_again(message), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": result}]


def kinds(message):
    return [block["type"] for block in message["content"]]


@sqlite
@whole_and_streamed
def test_a_thought_is_shown_beside_the_answer_and_paid_for(gateway, streamed):
    alice = gateway().account()
    message, usage, thoughts = chat(alice.client(), streamed, messages=ask("thinking"), tools=[])
    assert message.reasoning_content and message.content and message.reasoning_content not in message.content
    assert thoughts is None
    alice.assert_paid(MODEL, usage)


@sqlite
def test_a_streamed_thought_comes_before_the_answer(gateway):
    chunks = list(
        gateway().account().client().chat.completions.create(model=MODEL, messages=ask("thinking"), stream=True)
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    shown = [i for i, delta in enumerate(deltas) if getattr(delta, "reasoning_content", None)]
    said = [i for i, delta in enumerate(deltas) if delta.content]
    assert len(shown) > 1 and said and max(shown) < min(said)
    assert text_of(chunks)


@sqlite
@pytest.mark.vendors("sim")  # aimock's fixtures, not its models, decide whether there is a thought
def test_a_model_that_does_not_think_unasked_shows_none(gateway):
    alice = gateway().account()
    message, usage, thoughts = chat(alice.client(), False, model="lma-sonnet-4-6", messages=ask("weather"))
    assert message.tool_calls and "reasoning_content" not in message.model_fields_set
    _, again, thoughts = chat(
        alice.client(), False, model="lma-sonnet-4-6", messages=[*ask("weather"), *turn(message, "31 degrees")]
    )
    assert thoughts != "restored"
    alice.assert_paid("lma-sonnet-4-6", usage, again)


@whole_and_streamed
def test_thoughts_go_back_with_the_results_of_a_tool(tapped, streamed):
    gw = tapped()
    alice = gw.account()
    called, before, thoughts = chat(alice.client(), streamed, messages=ask(QUESTION))
    assert thoughts is None and called.reasoning_content and called.tool_calls
    answer = gw.wire.reply()
    gw.wire.forget()
    told, after, thoughts = chat(
        alice.client(), streamed, messages=[*ask(QUESTION), *turn(called, "31 degrees")]
    )
    assert thoughts == "restored" and "31 degrees" in told.content
    sent = gw.wire.request().json["messages"][1]
    assert "thinking" in kinds(sent) and kinds(sent)[-1] == "tool_use"
    assert all(block["signature"] for block in sent["content"] if block["type"] == "thinking")
    assert streamed or sent["content"] == answer.json["content"]
    alice.assert_paid(MODEL, before, after)


@sqlite
@whole_and_streamed
def test_all_thoughts_of_a_longer_loop_go_back(tapped, streamed):
    gw = tapped(vendor_a="tools=1")
    alice = gw.account()
    messages = ask(QUESTION)
    for result in "in which country?", "31 degrees":
        called, *_ = chat(alice.client(), streamed, messages=messages)
        messages = [*messages, *turn(called, result)]
        gw.wire.forget()
    *_, thoughts = chat(alice.client(), streamed, messages=messages)
    sent = gw.wire.request().json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert thoughts == "restored" and all("thinking" in kinds(sent[i]) for i in (1, 3))


FORGOTTEN = {"another account": {}, "another model": {"model": "lma-sonnet-5"}}


@sqlite
@pytest.mark.parametrize("case", FORGOTTEN)
def test_thoughts_of_others_are_not_put_back(tapped, case):
    gw = tapped()
    alice = gw.account()
    called, *_ = chat(alice.client(), False, messages=ask(QUESTION))
    other = alice if FORGOTTEN[case] else gw.account()
    gw.wire.forget()
    told, _, thoughts = chat(
        other.client(), False, messages=[*ask(QUESTION), *turn(called, "31 degrees")], **FORGOTTEN[case]
    )
    assert thoughts == "dropped" and "31 degrees" in told.content
    assert kinds(gw.wire.request().json["messages"][1]) == ["tool_use"]


@sqlite
def test_once_one_thought_is_missing_none_is_put_back(tapped):
    gw = tapped(vendor_a="tools=1")
    alice = gw.account()
    called, *_ = chat(alice.client(), False, messages=ask(QUESTION))
    made_up = said_again(called) | {"tool_calls": [said_again(called)["tool_calls"][0] | {"id": "toolu_made_up"}]}
    history = [made_up, {"role": "tool", "tool_call_id": "toolu_made_up", "content": "in which country?"}]
    gw.wire.forget()
    *_, thoughts = chat(alice.client(), False, messages=[*ask(QUESTION), *history, *turn(called, "31 degrees")])
    assert thoughts == "dropped"
    assert not [m for m in gw.wire.request().json["messages"] if "thinking" in kinds(m)]


@pytest.mark.stores("redis")
@whole_and_streamed
def test_a_loop_that_moves_to_another_node_keeps_its_thoughts(tapped, stacks, streamed):
    gw = tapped()
    alice, twin = gw.account(), stacks.twin(gw)
    called, before, _ = chat(alice.client(), streamed, messages=ask(QUESTION))
    gw.wire.forget()
    told, after, thoughts = chat(
        twin.client(alice.key), streamed, messages=[*ask(QUESTION), *turn(called, "31 degrees")]
    )
    assert thoughts == "restored" and "31 degrees" in told.content
    assert "thinking" in kinds(gw.wire.request().json["messages"][1])
    alice.assert_paid(MODEL, before, after)
