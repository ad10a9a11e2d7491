//! Chat calls for models that speak the messages format: translated both ways, charged exactly.

use std::time::{SystemTime, UNIX_EPOCH};

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Store, VENDOR_KEY, World, chat_of, with};

mod failures;
mod money;
mod sound;

const MODEL: &str = "lma-sonnet-4-6";
const TEXT: &str = "The answer is four and everybody in the room agrees.";
/// Nano-USD of a token of lma-sonnet-4-6, in and out.
const INPUT: i64 = 3_000;
const OUTPUT: i64 = 15_000;

fn tools(names: &[&str]) -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    let function = |name: &&str| json!({ "name": name, "parameters": parameters });
    let tool = |name| json!({ "type": "function", "function": function(name) });
    names.iter().map(tool).collect()
}

fn usage(prompt: u64, completion: u64) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": 0, "cache_write_tokens": 0 },
        "completion_tokens_details": { "reasoning_tokens": 0 },
    })
}

async fn world_of(faults: &str) -> World {
    World::start(Store::Sqlite).vendor("vendor_a", &[faults]).run().await
}

/// A second of this minute.
fn is_now(created: &Value) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
    created.as_u64().is_some_and(|created| (now - 60..=now).contains(&created))
}

#[rstest]
#[tokio::test]
async fn a_whole_answer_is_a_chat_completion(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let builder = World::start(store).vendor("vendor_a", &["prompt=11;completion=7"]);
    let world = builder.run().await;
    let answer = world.chat(chat_of(MODEL)).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("0"));
    assert_eq!(answer.header("request-id"), None);
    let reply = answer.json();
    assert!(is_now(&reply["created"]), "{reply}");
    let id = reply["id"].as_str().expect("an id");
    assert!(id.starts_with("chatcmpl-") && !id.contains("msg_"), "{id}");
    let message =
        json!({ "role": "assistant", "content": TEXT, "refusal": null, "annotations": [] });
    let choice =
        json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": "stop" });
    let expected = json!({
        "id": id,
        "object": "chat.completion",
        "created": reply["created"],
        "model": MODEL,
        "choices": [choice],
        "usage": usage(11, 7),
        "system_fingerprint": null,
    });
    assert_eq!(reply, expected);
    let question = json!([{ "type": "text", "text": "How much is 2 + 2?" }]);
    let messages = json!([{ "role": "user", "content": question }]);
    let sent = json!({ "model": MODEL, "max_tokens": 8192, "messages": messages });
    assert_eq!(world.sim.seen()[0].json(), sent);
    assert_eq!(world.charge().await.amount_nano, 11 * INPUT + 7 * OUTPUT);
}

#[rstest]
#[tokio::test]
async fn a_stream_is_made_of_chunks(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] asked: bool,
) {
    let faults = "prompt=11;completion=7;chunks=3";
    let world = World::start(store).vendor("vendor_a", &[faults]).run().await;
    let members = json!({ "stream_options": { "include_usage": asked } });
    let streamed = world.stream(with(chat_of(MODEL), &members)).await;
    assert!(streamed.is_done(), "{streamed:?}");
    let events = streamed.events();
    let (id, created) = (events[0]["id"].clone(), events[0]["created"].clone());
    assert!(id.as_str().is_some_and(|id| id.starts_with("chatcmpl-")) && is_now(&created), "{id}");
    let chunk = |choices: Value, usage: Value| {
        let mut chunk = json!({
            "id": id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": MODEL,
            "system_fingerprint": null,
            "choices": choices,
        });
        if asked {
            chunk["usage"] = usage;
        }
        chunk
    };
    let piece = |delta: Value, reason: Value| {
        let choice =
            json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason });
        chunk(json!([choice]), Value::Null)
    };
    let mut expected = vec![piece(json!({ "role": "assistant", "content": "" }), Value::Null)];
    let texts =
        ["The ", "answer ", "is"].map(|text| piece(json!({ "content": text }), Value::Null));
    expected.extend(texts);
    expected.push(piece(json!({}), "stop".into()));
    if asked {
        expected.push(chunk(json!([]), usage(11, 7)));
    }
    assert_eq!(events, expected);
    assert_eq!(world.sim.seen()[0].json().get("stream_options"), None);
    assert_eq!(world.charge().await.amount_nano, 11 * INPUT + 7 * OUTPUT);
}

#[tokio::test]
async fn every_event_arrives_before_the_vendor_sends_the_next() {
    let world = world_of("chunk-delay=40;chunks=5").await;
    let mut stream = world.open_stream(chat_of(MODEL)).await;
    for _ in 0..5 {
        stream.next().await.expect("an event");
        assert!(!world.sim.seen()[0].completed, "the vendor has more to say");
    }
    assert!(stream.rest().await.is_done());
}

#[rstest]
#[case::one("", 1)]
#[case::parallel("tools=3", 3)]
#[tokio::test]
async fn tool_calls_are_translated(#[case] faults: &str, #[case] count: usize) {
    let world = world_of(faults).await;
    let call = with(chat_of(MODEL), &json!({ "tools": tools(&["weather", "time"]) }));
    let (message, reason) = world.both_ways(&call).await;
    let calls = message["tool_calls"].as_array().expect("calls");
    assert_eq!((calls.len(), reason.as_str()), (count, "tool_calls"));
    for (call, name) in calls.iter().zip(["weather", "time", "weather"]) {
        let function = json!({ "name": name, "arguments": r#"{"city":"Rome"}"# });
        assert_eq!(*call, json!({ "id": null, "type": "function", "function": function }));
    }
}

#[tokio::test]
async fn a_tool_without_arguments_is_called_with_an_empty_object() {
    let world = world_of("").await;
    let tool = json!([{ "type": "function", "function": { "name": "now" } }]);
    let (message, _) = world.both_ways(&with(chat_of(MODEL), &json!({ "tools": tool }))).await;
    let function = json!({ "name": "now", "arguments": "{}" });
    assert_eq!(message["tool_calls"][0]["function"], function);
}

#[rstest]
#[tokio::test]
async fn results_of_tools_go_back_over_several_turns(#[values(false, true)] stream: bool) {
    let world = world_of("tools=2").await;
    let mut call = with(chat_of(MODEL), &json!({ "tools": tools(&["weather", "time"]) }));
    for turn in 0..3 {
        let message = if stream {
            world.stream(call.clone()).await.message()
        } else {
            world.chat(call.clone()).await.json()["choices"][0]["message"].clone()
        };
        let asked = message["tool_calls"].as_array().expect("calls").clone();
        let said = format!("{turn}");
        let result =
            |call: &Value| json!({ "role": "tool", "tool_call_id": call["id"], "content": said });
        let messages = call["messages"].as_array_mut().expect("messages");
        messages.push(message);
        messages.extend(asked.iter().map(result));
        let sent = world.sim.take_seen().remove(0).json();
        assert_eq!(sent["messages"].as_array().map(Vec::len), Some(2 * turn + 1), "{sent}");
    }
    world.settled(3).await;
}

#[rstest]
#[case("end_turn", "stop")]
#[case("stop_sequence", "stop")]
#[case("max_tokens", "length")]
#[case("tool_use", "tool_calls")]
#[case("refusal", "content_filter")]
#[case("pause_turn", "stop")]
#[case("model_context_window_exceeded", "length")]
#[case("something_new", "stop")]
#[tokio::test]
async fn the_reason_of_the_end_is_translated(#[case] stop: &str, #[case] finish: &str) {
    let world = world_of(&format!("stop={stop}")).await;
    let (_, reason) = world.both_ways(&chat_of(MODEL)).await;
    assert_eq!(reason, finish);
}

#[rstest]
#[case::at_once("refusal", None)]
#[case::after_some_words("refusal=3", Some("The answer is"))]
#[tokio::test]
async fn a_refusal_is_told_and_charged(#[case] faults: &str, #[case] text: Option<&str>) {
    let world = world_of(&format!("{faults};prompt=11;completion=7")).await;
    let (message, reason) = world.both_ways(&chat_of(MODEL)).await;
    assert_eq!((message["content"].as_str(), reason.as_str()), (text, "content_filter"));
    assert!(message["refusal"].as_str().is_some_and(|why| !why.is_empty()), "{message}");
    let charges = world.settled(2).await;
    assert!(charges.iter().all(|c| c.amount_nano == 11 * INPUT + 7 * OUTPUT), "{charges:?}");
}

#[rstest]
#[tokio::test]
async fn what_has_no_place_in_the_chat_format_leaves_no_trace(
    #[values("redacted", "double-start", "odd-events", "web-json", "crlf;comments", "split-utf8")]
    faults: &str,
) {
    let world = world_of(faults).await;
    let plain = world_of(if faults == "split-utf8" { faults } else { "" }).await;
    let (message, reason) = world.both_ways(&chat_of(MODEL)).await;
    let expected = plain.both_ways(&chat_of(MODEL)).await;
    assert_eq!((message, reason), expected);
    let charges = world.settled(2).await;
    assert!(charges.iter().all(|c| c.basis == "reported"), "{charges:?}");
}

#[tokio::test]
async fn thoughts_are_shown_apart_and_pings_are_comments() {
    let world = world_of("reasoning=5").await;
    let (message, _) = world.both_ways(&chat_of("lma-opus-5")).await;
    assert_eq!(message["content"], TEXT);
    assert!(message["reasoning_content"].as_str().is_some_and(|t| !t.is_empty()), "{message}");
    let streamed = world.stream(chat_of("lma-opus-5")).await;
    let raw = String::from_utf8(streamed.raw).expect("text");
    assert!(raw.contains("\n\n: ping\n\n") && !raw.contains("event:"), "{raw}");
}

#[tokio::test]
async fn the_vendor_gets_its_own_headers_and_a_hash_of_the_user() {
    let world = world_of("").await;
    let members =
        json!({ "seed": 7, "user": "someone@example.com", "logit_bias": {}, "store": null });
    let request = world.request("/v1/chat/completions").header("vendor_a-beta", "new");
    let request = request.header("vendor_a-version", "2026-10-21").header("cookie", "mine");
    let body = with(chat_of(MODEL), &members).to_string();
    let answer = request.body(body).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["x-gateway-dropped-params"], "logit_bias,seed");
    let seen = world.sim.seen().remove(0);
    assert_eq!(seen.header("vendor_a-version"), Some("2023-06-01"));
    assert_eq!(seen.header("x-api-key"), Some(VENDOR_KEY));
    let mut names: Vec<_> = seen.headers.iter().map(|(n, _)| n.to_ascii_lowercase()).collect();
    names.sort();
    let allowed = [
        "accept",
        "accept-encoding",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        "vendor_a-version",
        "x-api-key",
    ];
    assert_eq!(names, allowed);
    let told = format!("{seen:?}");
    assert!(!told.contains(&world.key) && !told.contains("someone"), "{told}");
    // SHA-256 of "acct", a zero byte and the user.
    let hash = "7e620a0ba67b94d0a71f8ef5180d699b13b0ef8e0bf511ee242f0c4108ab5733";
    assert_eq!(seen.json()["metadata"], json!({ "user_id": hash }));
}

/// A call that uses most of what can be translated, and what becomes of it.
fn worked_example() -> (Value, Value) {
    let mark = json!({ "type": "ephemeral" });
    let call = |id: &str, name: &str, arguments: &str| {
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "id": id, "type": "function", "function": function })
    };
    let calls = json!([call("call_1", "now", ""), call("call.2", "temp", r#"{ "city": "Rome" }"#)]);
    let url = json!({ "url": "data:image/png;base64,iVBO" });
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    let closed = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let temp = json!({ "name": "temp", "description": "t", "parameters": schema });
    let asked = json!({
        "model": MODEL,
        "max_completion_tokens": 500,
        "stop": "END",
        "temperature": 1.4,
        "tool_choice": "required",
        "parallel_tool_calls": false,
        "reasoning_effort": "low",
        "messages": [
            { "role": "system", "content": [
                { "type": "text", "text": "Be brief.", "cache_control": mark },
            ] },
            { "role": "user", "content": [
                { "type": "text", "text": "Compare" }, { "type": "image_url", "image_url": url },
            ] },
            { "role": "assistant", "content": null, "tool_calls": calls },
            { "role": "tool", "tool_call_id": "call_1", "content": "12:00" },
            { "role": "tool", "tool_call_id": "call.2", "content": "21" },
            { "role": "user", "content": "And now?" },
        ],
        "tools": [
            { "type": "function", "function": { "name": "now", "strict": true } },
            { "type": "function", "function": temp },
        ],
    });
    let source = json!({ "type": "base64", "media_type": "image/png", "data": "iVBO" });
    let sent = json!({
        "model": MODEL,
        "max_tokens": 500,
        "stop_sequences": ["END"],
        "temperature": 1,
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        "output_config": { "effort": "low" },
        "system": [{ "type": "text", "text": "Be brief.", "cache_control": mark }],
        "messages": [
            { "role": "user", "content": [
                { "type": "text", "text": "Compare" }, { "type": "image", "source": source },
            ] },
            { "role": "assistant", "content": [
                { "type": "tool_use", "id": "call_1", "name": "now", "input": {} },
                { "type": "tool_use", "id": "call_2", "name": "temp", "input": { "city": "Rome" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "call_1", "content": "12:00" },
                { "type": "tool_result", "tool_use_id": "call_2", "content": "21" },
                { "type": "text", "text": "And now?" },
            ] },
        ],
        "tools": [
            { "name": "now", "strict": true, "input_schema": closed },
            { "name": "temp", "description": "t", "input_schema": schema },
        ],
    });
    (asked, sent)
}

#[tokio::test]
async fn a_call_of_every_kind_of_field_is_one_that_the_vendor_takes() {
    let (mut asked, mut sent) = worked_example();
    let world = world_of("").await;
    assert_eq!(world.chat(asked.clone()).await.status, 200);
    assert_eq!(world.sim.take_seen()[0].json(), sent);
    (asked["stream"], sent["stream"]) = (true.into(), true.into());
    assert!(world.stream(asked).await.is_done());
    assert_eq!(world.sim.take_seen()[0].json(), sent);
}

/// Chat clients put instructions anywhere. The newest models would take them in their places, the
/// others would not: all of them get them as system text.
#[rstest]
#[tokio::test]
async fn instructions_in_the_midst_of_a_chat_become_system_text(
    #[values("lma-fable-5", "lma-opus-5", MODEL)] model: &str,
    #[values(false, true)] stream: bool,
) {
    let said = |role: &str, words: &str| json!({ "role": role, "content": words });
    let messages = [
        said("user", "Hello."),
        said("system", "Answer in English."),
        said("assistant", "Hello. What is it?"),
        said("developer", "Be brief."),
        said("user", "How much is 2 + 2?"),
        said("system", "Be kind."),
    ];
    let world = world_of("prompt=11;completion=40").await;
    let mut call = chat_of(model);
    call["messages"] = json!(messages);
    call["stream"] = stream.into();
    assert_eq!(world.chat(call).await.status, 200);
    let sent = world.sim.seen()[0].json();
    let texts = ["Answer in English.", "Be brief.", "Be kind."];
    let texts = texts.map(|text| json!({ "type": "text", "text": text }));
    assert_eq!(sent["system"], json!(texts));
    let turns = sent["messages"].as_array().expect("turns").iter();
    let roles: Vec<_> = turns.map(|turn| &turn["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    assert_eq!(world.charge().await.tokens(), (11, 40));
}
