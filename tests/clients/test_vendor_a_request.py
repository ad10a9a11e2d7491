"""What vendor_a is asked when a chat is for one of its models, as a line to it overhears."""

import base64
import hashlib
import re

import openai
import pytest
from stack import VENDOR_KEY, ask
from talk import CLOCK, WEATHER

# aimock takes whatever it gets; the other simulator refuses what vendor_a would.
pytestmark = [pytest.mark.stores("sqlite"), pytest.mark.vendors("sim")]
MODEL = "lma-opus-5"  # of those which take no temperature; thinks unasked
TEMPERATE = "lma-sonnet-4-6"
WITHOUT_EFFORT = "lma-haiku-4-5"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n not quite a picture").decode()
CACHED = {"cache_control": {"type": "ephemeral"}}


class Asking:
    """A chat over the tapped line: what the vendor got, and what the client was told was dropped."""

    def __init__(self, gateway, model=MODEL, messages=None, **request):
        self.account = gateway.account()
        gateway.wire.forget()
        chat = self.account.client().chat.completions.with_raw_response
        raw = chat.create(model=model, messages=messages or ask("hello"), **request)
        self.sent, self.reply = gateway.wire.request(), raw.parse()
        self.body = self.sent.json
        dropped = raw.headers.get("x-gateway-dropped-params", "")
        self.dropped = set(filter(None, (name.strip() for name in dropped.split(","))))
        self.account.assert_paid(model, self.reply.usage)


def test_the_model_goes_by_the_name_that_vendor_a_has_for_it(tapped):
    asked = Asking(tapped(), model="lma-sonnet-4-5")
    assert (asked.body["model"], asked.reply.model) == ("claude-sonnet-4-5", "lma-sonnet-4-5")


def test_what_is_dropped_is_told_before_a_stream_too(gateway):
    chat = gateway().account().client().chat.completions.with_raw_response
    raw = chat.create(model=MODEL, messages=ask("hello"), stream=True, temperature=0.5, seed=1)
    assert set(re.split(", *", raw.headers["x-gateway-dropped-params"])) == {"temperature", "seed"}
    assert list(raw.parse())


@pytest.mark.vendors("aimock")
def test_aimock_reads_in_the_translation_the_chat_that_was_meant(tapped):
    gw = tapped()
    functions = [call("call_1", "now", "{}"), call("call_2", "get_weather", '{"city":"Rome"}')]
    messages = [
        {"role": "system", "content": "Be brief."},
        *ask("weather"),
        {"role": "assistant", "content": "Let me see.", "tool_calls": functions},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
        {"role": "tool", "tool_call_id": "call_2", "content": "31 degrees"},
    ]
    asked = Asking(gw, model=TEMPERATE, messages=messages, tools=[WEATHER, CLOCK], temperature=0.5, max_tokens=50)
    read = gw.vendor.received()[-1]
    assert [{key: message[key] for key in message if message[key]} for message in read["messages"]] == messages
    assert [tool["function"]["name"] for tool in read["tools"]] == ["get_weather", "now"]
    assert read["tools"][0]["function"]["parameters"] == WEATHER["function"]["parameters"]
    assert (read["model"], read["max_tokens"], read["temperature"]) == (TEMPERATE, 50, 0.5)
    assert "31 degrees" in asked.reply.choices[0].message.content


def test_a_plain_question_becomes_a_minimal_request(tapped):
    asked = Asking(tapped())
    assert asked.body == {
        "model": MODEL,
        "max_tokens": 8192,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    }
    assert asked.dropped == set()


def test_the_vendor_sees_its_own_key_and_the_version_that_is_translated_for(tapped):
    sent = Asking(tapped(), extra_headers={"anthropic-version": "2026-10-21", "anthropic-beta": "x-1"}).sent
    assert sent.first.startswith("POST /") and sent.first.endswith("/v1/messages HTTP/1.1")
    assert (sent.headers["x-api-key"], sent.headers["anthropic-version"]) == (VENDOR_KEY, "2023-06-01")
    assert not {"authorization", "anthropic-beta", "cookie"} & set(sent.headers)
    assert not [name for name in sent.headers if name.startswith("x-stainless")]
    assert "sk-" not in "".join(sent.headers.values())


BOUNDS = [
    ({"max_tokens": 77}, 77),
    ({"max_completion_tokens": 78}, 78),
    ({"max_tokens": 9, "max_completion_tokens": 8}, 8),
]


@pytest.mark.parametrize(("given", "sent"), BOUNDS, ids=str)
def test_the_bound_on_tokens_is_the_clients(tapped, given, sent):
    asked = Asking(tapped(), **given)
    assert asked.body["max_tokens"] == sent and "max_completion_tokens" not in asked.body


def test_system_and_developer_messages_move_to_system_wherever_they_stand(tapped):
    asked = Asking(
        tapped(),
        messages=[
            {"role": "system", "content": "Be brief."},
            *ask("hello"),
            {"role": "developer", "content": [{"type": "text", "text": "Be kind.", **CACHED}]},
        ],
    )
    assert asked.body["system"] == [
        {"type": "text", "text": "Be brief."},
        {"type": "text", "text": "Be kind.", **CACHED},
    ]
    assert asked.body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


def test_images_go_as_blocks_and_cache_control_with_them(tapped):
    parts = [
        {"type": "text", "text": "hello", **CACHED},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/cat.jpg", "detail": "high"}},
    ]
    asked = Asking(tapped(), messages=[{"role": "user", "content": parts}])
    assert asked.body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hello", **CACHED},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                {"type": "image", "source": {"type": "url", "url": "https://pictures.example/cat.jpg"}},
            ],
        }
    ]


@pytest.mark.parametrize(
    ("given", "sent"), [("END", ["END"]), (["END", "\n\n", "STOP"], ["END", "STOP"]), ([" "], None)], ids=str
)
def test_stop_is_always_a_list_and_never_blank(tapped, given, sent):
    assert Asking(tapped(), stop=given).body.get("stop_sequences") == sent


@pytest.mark.parametrize(("effort", "sent"), [("low", "low"), ("high", "high"), ("minimal", "low"), ("none", "low")])
def test_effort_goes_as_output_config(tapped, effort, sent):
    asked = Asking(tapped(), reasoning_effort=effort)
    assert asked.body["output_config"] == {"effort": sent} and asked.dropped == set()
    assert "reasoning_effort" not in asked.body


def test_effort_is_left_out_where_the_model_has_none_and_the_client_is_told(tapped):
    asked = Asking(tapped(), model=WITHOUT_EFFORT, reasoning_effort="high")
    assert "output_config" not in asked.body and asked.dropped == {"reasoning_effort"}


def test_temperature_is_dropped_where_it_would_be_refused_and_the_client_is_told(tapped):
    asked = Asking(tapped(), temperature=0.5, top_p=0.9)
    assert not {"temperature", "top_p"} & set(asked.body)
    assert asked.dropped == {"temperature", "top_p"}


@pytest.mark.parametrize(("given", "sent"), [(0.25, 0.25), (1.4, 1)])
def test_temperature_is_kept_where_it_is_taken_but_at_most_one(tapped, given, sent):
    asked = Asking(tapped(), model=TEMPERATE, temperature=given)
    assert asked.body["temperature"] == sent and asked.dropped == set()


def test_of_temperature_and_top_p_only_the_first_goes(tapped):
    asked = Asking(tapped(), model=TEMPERATE, temperature=0.25, top_p=0.9)
    assert asked.body["temperature"] == 0.25 and "top_p" not in asked.body
    assert asked.dropped == {"top_p"}


def test_what_vendor_a_has_nothing_like_is_named_to_the_client(tapped):
    more = {"seed": 7, "presence_penalty": 0.5, "logit_bias": {"1": 2}, "store": False, "metadata": {"a": "b"}}
    messages = [{"role": "user", "name": "bob", "content": "hello"}]
    asked = Asking(tapped(), messages=messages, **more)
    assert asked.dropped == {*more, "messages[].name"}
    assert set(asked.body) == {"model", "max_tokens", "messages"}


def test_a_json_object_is_asked_for_in_words_and_the_client_is_told(tapped):
    messages = [{"role": "system", "content": "Be brief."}, *ask("hello")]
    asked = Asking(tapped(), messages=messages, response_format={"type": "json_object"})
    first, second = asked.body["system"]
    assert first["text"] == "Be brief." and "one JSON object" in second["text"]
    assert asked.dropped == {"response_format"} and "output_config" not in asked.body


def test_a_conversation_may_begin_with_the_assistant(tapped):
    asked = Asking(tapped(), messages=[{"role": "assistant", "content": "How can I help?"}, *ask("hello")])
    assert [turn["role"] for turn in asked.body["messages"]] == ["assistant", "user"]
    assert asked.dropped == set()


def test_tools_are_rewritten_and_a_tool_without_parameters_gets_an_empty_schema(tapped):
    asked = Asking(tapped(), messages=ask("weather"), tools=[WEATHER, CLOCK | CACHED])
    assert asked.body["tools"] == [
        {
            "name": "get_weather",
            "description": "The weather in a city, now.",
            "input_schema": WEATHER["function"]["parameters"],
            "strict": True,
        },
        {
            "name": "now",
            "description": "The time of day.",
            "input_schema": {"type": "object", "properties": {}},
            **CACHED,
        },
    ]
    assert "tool_choice" not in asked.body


NAMED = {"type": "function", "function": {"name": "get_weather"}}
CHOICES = [
    (MODEL, "auto", {"type": "auto"}),
    (MODEL, "none", {"type": "none"}),
    (MODEL, "required", {"type": "any"}),
    (MODEL, NAMED, {"type": "tool", "name": "get_weather"}),
    ("lma-fable-5", "required", {"type": "auto"}),
    ("lma-fable-5", NAMED, {"type": "auto"}),
]
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize(("model", "kind"), [(MODEL, "any"), ("lma-fable-5", "auto")])
def test_of_the_tools_only_the_allowed_ones_are_sent(tapped, model, kind):
    asked = Asking(tapped(), model=model, messages=ask("weather"), tools=[CLOCK, WEATHER], tool_choice=ALLOWED)
    assert [tool["name"] for tool in asked.body["tools"]] == ["get_weather"]
    assert asked.body["tool_choice"] == {"type": kind} and asked.dropped == set()


@pytest.mark.parametrize(("model", "given", "sent"), CHOICES, ids=str)
def test_a_choice_of_tools_is_translated_and_never_forced_on_fable(tapped, model, given, sent):
    asked = Asking(tapped(), model=model, messages=ask("weather"), tools=[WEATHER], tool_choice=given)
    assert asked.body["tool_choice"] == sent


@pytest.mark.parametrize("choice", [None, "required"])
def test_one_call_at_a_time_is_asked_for_in_the_choice(tapped, choice):
    more = {"tool_choice": choice} if choice else {}
    asked = Asking(tapped(), messages=ask("weather"), tools=[WEATHER], parallel_tool_calls=False, **more)
    kind = "any" if choice else "auto"
    assert asked.body["tool_choice"] == {"type": kind, "disable_parallel_tool_use": True}


def call(number, name, arguments):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_calls_and_results_become_two_turns(tapped):
    messages = [
        *ask("weather"),
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [call("call_1", "now", ""), call("call.2", "get_weather", '{"city":"Rome"}')],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
        {"role": "tool", "tool_call_id": "call.2", "content": [{"type": "text", "text": "31 degrees"}]},
    ]
    asked = Asking(tapped(), messages=messages, tools=[WEATHER, CLOCK])
    assert asked.body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "weather"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "call_1", "name": "now", "input": {}},
                {"type": "tool_use", "id": "call_2", "name": "get_weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "12:00"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "text", "text": "31 degrees"}]},
            ],
        },
    ]
    assert "31 degrees" in asked.reply.choices[0].message.content


def test_functions_as_they_were_before_tools(tapped):
    functions = {"functions": [WEATHER["function"]], "function_call": {"name": "get_weather"}}
    gateway = tapped()
    asked = Asking(gateway, messages=ask("weather"), **functions)
    assert [tool["name"] for tool in asked.body["tools"]] == ["get_weather"]
    assert asked.body["tool_choice"] == {"type": "tool", "name": "get_weather"}
    (called,) = asked.reply.choices[0].message.tool_calls
    history = [
        *ask("weather"),
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": called.function.name, "arguments": called.function.arguments},
        },
        {"role": "function", "name": "get_weather", "content": "31 degrees"},
    ]
    again = Asking(gateway, messages=history, functions=functions["functions"])
    _, use, result = again.body["messages"]
    (use,), (result,) = use["content"], result["content"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "get_weather", {"city": "Rome"})
    assert (result["type"], result["tool_use_id"]) == ("tool_result", use["id"])
    assert "31 degrees" in again.reply.choices[0].message.content


def test_a_schema_for_the_answer_goes_as_output_config(tapped):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "number", "strict": True, "schema": schema}}
    asked = Asking(tapped(), response_format=wanted, reasoning_effort="low")
    assert asked.body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    assert asked.dropped == set()


def test_the_user_is_told_apart_but_not_told(tapped):
    asked = Asking(tapped(), user="alice@example.com")
    digest = hashlib.sha256(f"{asked.account.name}\0alice@example.com".encode()).hexdigest()
    assert asked.body["metadata"] == {"user_id": digest} and asked.dropped == set()


BMP = "data:image/bmp;base64,QQ=="
REFUSED = {
    "n": ({"n": 2}, "n"),
    "custom tool": ({"tools": [{"type": "custom", "custom": {"name": "grep"}}]}, "tools[0].type"),
    "file of somebody's": (
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]},
        "messages[0].content[0].file.file_id",
    ),
    "picture of another kind": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": BMP}}]}]},
        None,
    ),
    "a tool that nobody defined": (
        {"tools": [CLOCK], "tool_choice": ALLOWED},
        "tool_choice.allowed_tools.tools[0]",
    ),
    "nobody asks": ({"messages": [{"role": "system", "content": "Be brief."}]}, "messages"),
    "arguments": (
        {"messages": [*ask("weather"), {"role": "assistant", "tool_calls": [call("call_1", "now", "[1]")]}]},
        "messages[1].tool_calls[0].function.arguments",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_translated_is_refused_and_never_reaches_the_vendor(gateway, case):
    request, param = REFUSED[case]
    gw = gateway()
    alice, before = gw.account(), gw.vendor.count()
    with pytest.raises(openai.BadRequestError) as refused:
        alice.client().chat.completions.create(**({"model": MODEL, "messages": ask("hello")} | request))
    assert refused.value.type == "invalid_request_error"
    assert param is None or refused.value.param == param
    assert alice.charges(0) == [] and gw.vendor.count() == before


def test_texts_and_numbers_arrive_as_they_were(tapped):
    text = "é\u0000\u2028\"\\/ 😀" * 50 + "31 degrees"
    arguments = '{"n":1.10,"long":12345678901234567890,"a":[null,{}]}'
    messages = [
        *ask("weather"),
        {"role": "assistant", "content": None, "tool_calls": [call("call_1", "get_weather", arguments)]},
        {"role": "tool", "tool_call_id": "call_1", "content": text},
    ]
    asked = Asking(tapped(), messages=messages, tools=[WEATHER])
    assert asked.body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": text}
    ]
    assert arguments.encode() in asked.sent.body
