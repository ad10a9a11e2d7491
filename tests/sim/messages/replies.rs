//! What the vendor answers, whole and in events.

use serde_json::json;

use super::super::record::Billed;
use super::super::script::Event;
use super::*;

const THOUGHT_1: &str =
    "Two and two: \"four\", as ever.\nThe room agrees — naïvely. This is thought 1.";
const TEXT: &str = "The answer is four and everybody in the room agrees.";

fn request(model: &str) -> Value {
    json!({"model": model, "max_tokens": 99,
        "messages": [{"role": "user", "content": "How much is 2 + 2?"}]})
}

/// A request with two tools, the second of which takes no arguments.
fn with_tools(model: &str) -> Value {
    let mut request = request(model);
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    request["tools"] = json!([{"name": "temp", "input_schema": schema},
        {"name": "now", "input_schema": {"type": "object"}}]);
    request
}

/// A request with the vendor's tool for pages.
fn with_fetch(model: &str) -> Value {
    let mut request = request(model);
    request["tools"] = json!([{"type": "web_fetch_20250910", "name": "web_fetch"}]);
    request
}

/// The reply and the stream to the same request, and the tokens of the reply.
fn answered(request: &Value, faults: &str, record: &Record) -> (Value, Vec<Event>, Billed) {
    let faults = Faults::parse(faults).expect("known faults");
    let body = Bytes::from(request.to_string());
    let terms = Terms { version: "2023-06-01".to_owned(), beta: false };
    let call = Call::read(&body, &terms).unwrap_or_else(|refusal| panic!("{refusal:?}"));
    let turn = call.turn(1, &faults, &body, record);
    let whole = serde_json::from_str(&turn.whole()).expect("a reply is JSON");
    (whole, turn.events(), turn.billed())
}

fn reply(request: &Value, faults: &str) -> Value {
    answered(request, faults, &Record::default()).0
}

fn events(request: &Value, faults: &str) -> Vec<Value> {
    let (_, events, _) = answered(request, faults, &Record::default());
    let json = events.iter().map(|event| serde_json::from_str(&event.data).expect("JSON"));
    json.collect()
}

/// The message as a library puts it together from the events of a stream.
fn put_together(events: &[Value]) -> Value {
    let mut message = json!(null);
    let mut inputs = std::collections::BTreeMap::<u64, String>::new();
    for event in events {
        let index = event["index"].as_u64().unwrap_or(0);
        let at = usize::try_from(index).expect("an index");
        let delta = &event["delta"];
        match event["type"].as_str().expect("a type") {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().expect("blocks");
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let block = &mut message["content"][at];
                let member = match delta["type"].as_str().expect("a type") {
                    "text_delta" => "text",
                    "thinking_delta" => "thinking",
                    "signature_delta" => "signature",
                    "input_json_delta" => {
                        let piece = delta["partial_json"].as_str().expect("a piece");
                        inputs.entry(index).or_default().push_str(piece);
                        continue;
                    }
                    _ => continue,
                };
                let known = block[member].as_str().expect("a member").to_owned();
                block[member] = (known + delta[member].as_str().expect("a piece")).into();
            }
            "message_delta" => {
                for from in [&event["delta"], &json!({"usage": event["usage"]})] {
                    merge(&mut message, from);
                }
            }
            _ => {}
        }
    }
    for (index, input) in inputs {
        let block = &mut message["content"][usize::try_from(index).expect("an index")];
        if block["type"].as_str().is_some_and(|kind| kind.ends_with("tool_use")) {
            block["input"] = serde_json::from_str(&input).expect("an input is JSON");
        }
    }
    message
}

/// Members of the second that are not null stand for those of the first.
fn merge(into: &mut Value, from: &Value) {
    let Some(members) = from.as_object() else { return };
    for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
        if value.is_object() && into[name].is_object() {
            merge(&mut into[name], value);
        } else {
            into[name] = value.clone();
        }
    }
}

#[test]
fn a_stream_brings_the_same_as_a_whole_reply() {
    let requests = [request("lma-opus-5"), request("lma-haiku-4-5"), with_tools("lma-opus-5")];
    for request in requests {
        for faults in [
            "",
            "tools=3",
            "tools=3;text-too",
            "lean-usage;cache-read=7;cache-write=9;prompt=50",
            "redacted",
            "omitted",
            "double-start",
            "odd-events",
            "web-json",
            "web-json;tools=2",
            "refusal",
            "refusal=3",
            "stop=pause_turn",
            "reasoning=0",
            "split-utf8",
            "chunks=40",
            "reply-bytes=300",
            "echo",
            "completion=77",
        ] {
            let (whole, events, billed) = answered(&request, faults, &Record::default());
            let json: Vec<_> = events
                .iter()
                .map(|event| {
                    let data: Value = serde_json::from_str(&event.data).expect("JSON");
                    assert_eq!(data["type"], event.name);
                    data
                })
                .collect();
            let mut together = put_together(&json);
            for member in ["server_tool_use", "output_tokens_details"] {
                together["usage"][member] = json[json.len() - 1]["usage"][member].clone();
            }
            assert_eq!(together, whole, "{faults}");
            let usage = &whole["usage"];
            let input = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"]
                .map(|member| usage[member].as_u64().expect("tokens"));
            assert_eq!(input.iter().sum::<u64>(), billed.prompt, "{faults}");
            assert_eq!(usage["output_tokens"], billed.completion, "{faults}");
            assert_eq!(usage["output_tokens_details"]["thinking_tokens"], billed.reasoning);
            assert_eq!(billed.total, billed.prompt + billed.completion);
            let bills: Vec<_> = events.iter().map(|event| event.billed.total).collect();
            assert!(bills.is_sorted() && bills.last() == Some(&billed.total), "{bills:?}");
        }
    }
}

#[test]
fn replies_are_foreseeable() {
    let plain = reply(&request("lma-sonnet-4-6"), "");
    assert_eq!(plain["content"], json!([{"type": "text", "text": TEXT}]));
    assert_eq!(
        (&plain["id"], &plain["model"]),
        (&json!("msg_sim000000000001"), &json!("lma-sonnet-4-6"))
    );
    assert_eq!(plain["usage"]["output_tokens"], 10);
    let thoughtful = reply(&request("lma-opus-5"), "");
    let signed = turn::signature(THOUGHT_1);
    let thought = json!({"type": "thinking", "thinking": THOUGHT_1, "signature": signed});
    assert_eq!(thoughtful["content"][0], thought);
    assert_eq!(thoughtful["content"][1]["text"], TEXT);
    assert_eq!(thoughtful["usage"]["output_tokens"], 10 + turn::thought_tokens());
    let mut disabled = request("lma-opus-5");
    disabled["thinking"] = json!({"type": "disabled"});
    assert_eq!(reply(&disabled, "")["content"][0]["type"], "text");
    let calls = reply(&with_tools("lma-opus-5"), "tools=2");
    assert_eq!(
        calls["content"][1],
        json!({"type": "tool_use", "id": "toolu_thought1_0",
        "name": "temp", "input": {"city": "Rome"}})
    );
    assert_eq!(
        calls["content"][2],
        json!({"type": "tool_use", "id": "toolu_thought1_1",
        "name": "now", "input": {}})
    );
    assert_eq!(calls["usage"]["output_tokens"], 16 + turn::thought_tokens());
    let mut one = with_tools("lma-haiku-4-5");
    one["tool_choice"] = json!({"type": "tool", "name": "now", "disable_parallel_tool_use": true});
    let called = reply(&one, "tools=2");
    let expected = json!([{"type": "tool_use", "id": "toolu_sim1_0", "name": "now", "input": {}}]);
    assert_eq!(called["content"], expected);
    let mut answered = with_tools("lma-haiku-4-5");
    let messages = answered["messages"].as_array_mut().expect("messages");
    messages.push(json!({"role": "assistant", "content": expected}));
    messages.push(json!({"role": "user", "content": [{"type": "tool_result",
        "tool_use_id": "toolu_sim1_0", "content": [{"type": "text", "text": "12:00"}]}]}));
    assert_eq!(reply(&answered, "")["content"][0]["text"], "The tool said: 12:00");
}

#[test]
fn a_reply_says_why_it_ended() {
    let plain = request("lma-haiku-4-5");
    let with = |member: &str, value: Value| {
        let mut request = plain.clone();
        request[member] = value;
        request
    };
    for (request, faults, reason, text) in [
        (plain.clone(), "", "end_turn", TEXT),
        (with("max_tokens", json!(3)), "", "max_tokens", "The answer is"),
        (with("stop_sequences", json!(["room", "four"])), "", "stop_sequence", "The answer is "),
        (with_tools("lma-haiku-4-5"), "", "tool_use", ""),
        (with_tools("lma-haiku-4-5"), "text-too", "tool_use", TEXT),
        (with("max_tokens", json!(0)), "", "max_tokens", ""),
        (plain.clone(), "refusal", "refusal", ""),
        (plain.clone(), "refusal=2", "refusal", "The answer"),
        (
            plain.clone(),
            "stop=model_context_window_exceeded",
            "model_context_window_exceeded",
            TEXT,
        ),
        (plain.clone(), "stop=something_new", "something_new", TEXT),
    ] {
        let reply = reply(&request, faults);
        assert_eq!(reply["stop_reason"], reason);
        assert_eq!(reply["content"][0]["text"].as_str().unwrap_or_default(), text);
        assert_eq!(reply["stop_sequence"] == "four", reason == "stop_sequence");
        let explained = &reply["stop_details"]["explanation"];
        assert_eq!(*explained == turn::EXPLANATION, faults.starts_with("refusal"));
    }
    assert_eq!(reply(&plain, "refusal")["content"], json!([]));
    assert_eq!(reply(&with_tools("lma-opus-5"), "refusal")["content"], json!([]));
    assert_eq!(reply(&plain, "refusal")["usage"]["output_tokens"], 1);
}

#[test]
fn inputs_of_tools_come_in_pieces() {
    let events = events(&with_tools("lma-haiku-4-5"), "tools=2");
    let kinds: Vec<_> =
        events.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_stop",
            "message_delta",
        ]
    );
    let pieces: Vec<_> =
        events[2..5].iter().map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(pieces, [Some(""), Some(r#"{"city""#), Some(r#":"Rome"}"#)]);
    assert_eq!(events[1]["content_block"]["input"], json!({}));
}

#[test]
fn oddities_come_when_asked_for() {
    let odd = events(&request("lma-haiku-4-5"), "odd-events");
    let has = |name: &str| odd.iter().any(|e| e["type"] == name || e["delta"]["type"] == name);
    assert!(has("weather_report") && has("mood_delta"));
    assert_eq!(odd.iter().filter(|event| event["type"] == "message_delta").count(), 2);
    let twice = events(&request("lma-haiku-4-5"), "double-start");
    assert_eq!(twice.iter().filter(|event| event["type"] == "message_start").count(), 2);
    let searched = events(&request("lma-haiku-4-5"), "web-json");
    let json = searched.iter().filter(|event| event["delta"]["type"] == "input_json_delta");
    assert_eq!(json.count(), 6);
    let redacted = reply(&request("lma-opus-5"), "redacted;omitted");
    assert_eq!(redacted["content"][0]["thinking"], "");
    assert_eq!(redacted["content"][1]["type"], "redacted_thinking");
    let usage = |faults: &str| reply(&request("lma-opus-5"), faults)["usage"].clone();
    assert_eq!(usage("bad-usage")["input_tokens"], -7);
    assert_eq!((usage("no-usage"), usage("null-usage")), (json!(null), json!(null)));
}

#[test]
fn pages_are_fetched_if_the_request_allows_it() {
    let mut request = with_fetch("lma-haiku-4-5");
    let fetched = reply(&request, "prompt=900");
    let content = fetched["content"].as_array().expect("blocks");
    let kinds: Vec<_> = content.iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text", "server_tool_use", "web_fetch_tool_result", "text"]);
    assert_eq!(content[2]["tool_use_id"], content[1]["id"]);
    let usage = &fetched["usage"];
    assert_eq!(usage["server_tool_use"]["web_fetch_requests"], 1);
    let events = events(&request, "prompt=900");
    let start = &events[0]["message"]["usage"]["input_tokens"];
    assert_eq!((start, &usage["input_tokens"]), (&json!(300), &json!(900)));
    assert_eq!(put_together(&events)["content"], fetched["content"]);
    request["tool_choice"] = json!({"type": "none"});
    assert_eq!(reply(&request, "")["content"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_summary_is_a_pass_of_its_own_where_the_request_asks_for_it() {
    let mut request = request("lma-haiku-4-5");
    let unasked = reply(&request, "summary=40");
    assert_eq!(unasked["usage"].get("iterations"), None);
    assert_eq!(unasked["content"].as_array().map(Vec::len), Some(1));
    request["context_management"] = json!({"edits": [{"type": "compact_20260112"}]});
    let body = Bytes::from(request.to_string());
    let terms = Terms { version: "2023-06-01".to_owned(), beta: true };
    let call = Call::read(&body, &terms).unwrap_or_else(|refusal| panic!("{refusal:?}"));
    let faults = Faults::parse("summary=40;prompt=900;cache-read=100").expect("known faults");
    let turn = call.turn(1, &faults, &body, &Record::default());
    let whole: Value = serde_json::from_str(&turn.whole()).expect("a reply is JSON");
    assert_eq!(whole["content"][0], json!({"type": "compaction", "content": turn::SUMMARY}));
    let usage = &whole["usage"];
    let tokens = |at: &Value| [&at["input_tokens"], &at["output_tokens"]].map(Value::as_u64);
    assert_eq!(tokens(usage), [Some(800), Some(10)]);
    assert_eq!(tokens(&usage["iterations"][0]), [Some(900), Some(40)]);
    assert_eq!(tokens(&usage["iterations"][1]), [Some(800), Some(10)]);
    let billed = turn.billed();
    assert_eq!((billed.prompt, billed.completion, billed.total), (1_800, 50, 1_850));
    let events = turn.events();
    let last: Value = serde_json::from_str(&events[events.len() - 1].data).expect("JSON");
    assert_eq!(last["usage"]["iterations"], usage["iterations"]);
    assert_eq!(events[events.len() - 1].billed, billed);
    assert!(events[1].data.contains(r#""content_block":{"type":"compaction","content":null}"#));
    assert!(events[2].data.contains("compaction_delta"), "{}", events[2].data);
}

#[test]
fn what_is_marked_is_written_once_and_then_read() {
    let record = Record::default();
    let mut request = request("lma-haiku-4-5");
    let mark = |life: &str| json!({"type": "ephemeral", "ttl": life});
    request["system"] = json!([{"type": "text", "text": "x".repeat(400),
        "cache_control": mark("1h")}]);
    let kept = |request: &Value| {
        let usage = answered(request, "", &record).0["usage"].clone();
        let number = |name: &str| usage[name].as_u64().expect("tokens");
        let hour = usage["cache_creation"]["ephemeral_1h_input_tokens"].as_u64();
        (number("cache_creation_input_tokens"), number("cache_read_input_tokens"), hour)
    };
    let (written, read, hour) = kept(&request);
    assert!(written > 100 && read == 0 && hour == Some(written), "{written}");
    assert_eq!(kept(&request), (0, written, Some(0)));
    request["messages"][0]["content"] = json!([{"type": "text", "text": "y".repeat(40),
        "cache_control": mark("5m")}]);
    let (more, read, hour) = kept(&request);
    assert!((10..30).contains(&more) && read == written && hour == Some(0), "{more} {read}");
    let marked = request["messages"][0]["content"][0].as_object_mut().expect("a block");
    marked.remove("cache_control");
    request["system"][0]["cache_control"] = mark("5m");
    assert_eq!(kept(&request), (0, written, Some(0)), "a mark is no part of what it marks");
    request["model"] = json!("lma-sonnet-4-5");
    assert_eq!(kept(&request).1, 0, "every model has a cache of its own");
}
