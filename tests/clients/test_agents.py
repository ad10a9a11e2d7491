"""Coding agents at work through the gateway: their own programs, with a vendor that plays a script.

Each is to write a file, call a tool of an MCP server, and give a part of the work to a sub-agent if it has them.
The agents' requests are their own; the vendor's replies follow the tools that a request offers.
"""

import json
from types import SimpleNamespace

import pytest
from coding_agents import ClaudeCode, Codex, Llm, OpenCode
from conftest import STORES
from scripted_vendor import ScriptedVendor, call_tool, delegate, say, spawn_and_wait, write_file
from stack import Gateway, until

TASK, PART = "TASK-OF-THE-AGENT", "PART-OF-THE-SUB-AGENT"
DELEGATE = {"awaited": [delegate(PART)], "beside": spawn_and_wait(PART), None: []}
WORD = "repaid"
# An agent, the model that it is given, what its charges name (endpoints and models), and the stores. An agent
# that speaks several formats speaks another one on each.
CASES = {
    "opencode": (OpenCode, "lmb-5.4-mini", {("chat", "lmb-5.4-mini"), ("chat", "lmb-5-nano")}, ["redis"]),
    "opencode-vendor_a": (OpenCode, "claude-sonnet-5", {("chat", "lma-sonnet-5"), ("chat", "lmb-5-nano")}, ["sqlite"]),
    "llm": (Llm, "gpt-5.5", {("responses", "lmb-5.5")}, ["redis"]),
    "llm-chat": (Llm, "gpt-4.1-mini", {("chat", "lmb-4.1-mini")}, ["sqlite"]),
    "claude-code": (ClaudeCode, "claude-opus-5", {("messages", "lma-opus-5"), ("messages", "lma-haiku-4-5")}, STORES),
    "codex": (Codex, "gpt-5.5", {("responses", "lmb-5.5")}, STORES),
}


@pytest.fixture
def work(stacks, store, tmp_path):
    """work(agent, model) is the agent, its account, and the vendor that it ends up at."""
    folder = stacks.new_folder()
    # A Redis stays for the tests after this one.
    store_url = f"sqlite:{folder}/tollgate.db" if store == "sqlite" else stacks.redis_url()
    mark = len(stacks.running)

    def begin(kind, model):
        script = {
            TASK: [
                write_file("note.txt", "written by the agent"),
                call_tool("reverse_word", {"word": WORD}),
                *DELEGATE[kind.sub_agents],
                say("The work is done."),
            ],
            PART: [write_file("part.txt", "written by the sub-agent"), say("The part is done.")],
        }
        vendor = stacks.start(ScriptedVendor(script))
        routes = {name: [vendor.url] for name in ("vendor_a", "vendor_b")}
        gateway = stacks.start(Gateway(vendor, routes, store_url, folder, more={"live": True}))
        gateway.ends_with_its_test()
        account = gateway.account(credit="100")
        return SimpleNamespace(agent=kind(account, tmp_path, model), account=account, vendor=vendor, script=script)

    yield begin
    stacks.stop_since(mark)


@pytest.mark.parametrize(("case", "store"), [(case, store) for case in CASES for store in CASES[case][-1]])
def test_an_agent_works_and_each_of_its_calls_is_charged_exactly(work, case):
    kind, model, asked, _ = CASES[case]
    at = work(kind, model)
    said = at.agent.run(f"{TASK}: write a note, spell a word backwards, and have a part done.")
    assert at.vendor.faults == []
    assert "The work is done." in said
    assert read(at.agent, "note.txt") == "written by the agent\n"
    if kind.sub_agents:
        assert read(at.agent, "part.txt") == "written by the sub-agent\n"
    # Each step was asked for once, so no call was repeated.
    marks = [TASK, PART] if kind.sub_agents else [TASK]
    steps = [(mark, turn) for mark in marks for turn in range(len(at.script[mark]))]
    assert sorted(call.place for call in at.vendor.calls if call.place) == sorted(steps)
    # After its second step, the agent passes on what the tool server said.
    (after,) = [call.body for call in at.vendor.calls if call.place == (TASK, 2)]
    assert WORD[::-1] in json.dumps(after)
    charges = assert_charged_as_reported(at.account, at.vendor)
    assert {(charge.endpoint, charge.model) for charge in charges} == asked


def read(agent, name):
    return (agent.workspace / name).read_text()


def assert_charged_as_reported(account, vendor):
    """One line of the journal for each call that the vendor saw, with its usage at the list price; the lines."""
    # An agent may end while one of its calls is under way.
    until(lambda: account.balance().held_nano == 0, f"no open hold of {account.name}")
    charges = account.charges(len(vendor.calls))
    charge_of = {charge.vendor_request_id: charge for charge in charges}
    for call in vendor.calls:
        charge = charge_of[call.request_id]
        assert (charge.basis, charge.amount_nano) == ("reported", account.price(charge.model).of(call.usage))
    assert all(charge.amount_nano for charge in charges)
    return charges
