//! Each field of the chat format is carried, refused, or named to the client as dropped.

use bytes::Bytes;
use serde_json::{Value as Json, json};

use super::golden::model;
use super::requests::{Outcome, translate};

const MODEL: &str = "lma-opus-4-6";

/// What becomes of a field.
enum Fate {
    /// It has a place in the vendor's call: a pointer.
    Carried(&'static str),
    /// The gateway itself does what it asks for.
    Done,
    /// It is dropped, and named so.
    Named(&'static str),
    /// The call is refused, with this parameter.
    Refused(&'static str),
}

use Fate::{Carried, Done, Named, Refused};

type Row = (&'static str, Json, Fate);

/// The fields of the body, as the format's own library lists them.
const OF_THE_BODY: &str = "messages model audio frequency_penalty function_call functions \
    logit_bias logprobs max_completion_tokens max_tokens metadata modalities moderation n \
    parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options \
    prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier \
    stop store stream stream_options temperature tool_choice tools top_logprobs top_p user \
    verbosity web_search_options";

fn function(name: &str) -> Json {
    json!({ "type": "function", "function": { "name": name } })
}

fn settings() -> Vec<Row> {
    let mut rows = vec![
        ("model", json!({}), Carried("/model")),
        ("messages", json!({}), Carried("/messages/0/content/0/text")),
        ("max_tokens", json!({ "max_tokens": 5 }), Carried("/max_tokens")),
        ("max_completion_tokens", json!({ "max_completion_tokens": 5 }), Carried("/max_tokens")),
        ("temperature", json!({ "temperature": 0.5 }), Carried("/temperature")),
        ("top_p", json!({ "top_p": 0.5 }), Carried("/top_p")),
        ("stop", json!({ "stop": "END" }), Carried("/stop_sequences/0")),
        ("stop", json!({ "stop": ["END", " "] }), Named("stop")),
        ("stream", json!({ "stream": true }), Carried("/stream")),
        ("stream_options", json!({ "stream_options": { "include_usage": true } }), Done),
        ("n", json!({ "n": 1 }), Done),
        ("n", json!({ "n": 2 }), Refused("n")),
        (
            "reasoning_effort",
            json!({ "reasoning_effort": "low" }),
            Carried("/output_config/effort"),
        ),
        ("user", json!({ "user": "u" }), Carried("/metadata/user_id")),
        ("safety_identifier", json!({ "safety_identifier": "u" }), Carried("/metadata/user_id")),
    ];
    let named = [
        ("audio", json!({ "voice": "alloy", "format": "mp3" })),
        ("frequency_penalty", json!(0.5)),
        ("logit_bias", json!({ "1": 2 })),
        ("logprobs", json!(true)),
        ("metadata", json!({ "a": "b" })),
        ("modalities", json!(["text"])),
        ("moderation", json!({ "model": "omni-moderation-latest" })),
        ("prediction", json!({ "type": "content", "content": "x" })),
        ("presence_penalty", json!(0.5)),
        ("prompt_cache_key", json!("k")),
        ("prompt_cache_options", json!({ "mode": "auto", "ttl": "30m" })),
        ("prompt_cache_retention", json!("24h")),
        ("seed", json!(1)),
        ("service_tier", json!("auto")),
        ("store", json!(true)),
        ("top_logprobs", json!(2)),
        ("verbosity", json!("low")),
        ("web_search_options", json!({})),
        ("a_field_of_tomorrow", json!([])),
    ];
    for (name, value) in named {
        rows.push((name, json!({ name: value }), Named(name)));
    }
    let options = json!({ "stream": true, "stream_options": { "include_obfuscation": true } });
    rows.push(("stream_options", options, Named("stream_options.include_obfuscation")));
    rows
}

fn formats() -> Vec<Row> {
    let object = json!({ "type": "json_object" });
    let schema = |more: Json| {
        let mut schema = json!({ "name": "x", "strict": true, "schema": { "type": "object" } });
        schema.as_object_mut().expect("members").extend(more.as_object().expect("members").clone());
        json!({ "response_format": { "type": "json_schema", "json_schema": schema } })
    };
    let described = "response_format.json_schema.description";
    vec![
        ("response_format", json!({ "response_format": { "type": "text" } }), Done),
        ("response_format", json!({ "response_format": object }), Named("response_format")),
        ("response_format", schema(json!({})), Carried("/output_config/format/schema")),
        ("response_format", schema(json!({ "description": "d" })), Named(described)),
    ]
}

fn tools() -> Vec<Row> {
    let strict = json!({ "name": "f", "strict": true, "description": "d", "parameters": {} });
    let strict = json!({ "tools": [{ "type": "function", "function": strict }] });
    let two =
        |choice: Json| json!({ "tools": [function("f"), function("g")], "tool_choice": choice });
    let allowed = json!({ "mode": "required", "tools": [function("g")] });
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": allowed });
    let custom = json!({ "type": "custom", "custom": { "name": "f" } });
    let one = json!({ "tools": [function("f")], "parallel_tool_calls": false });
    let legacy = json!({ "functions": [{ "name": "f" }], "function_call": "auto" });
    let flag = Carried("/tool_choice/disable_parallel_tool_use");
    let odd = json!({ "tools": [{ "type": "function", "function": { "name": "f" }, "odd": 1 }] });
    vec![
        ("tools", strict.clone(), Carried("/tools/0/strict")),
        ("tools", strict.clone(), Carried("/tools/0/description")),
        ("tools", strict, Carried("/tools/0/input_schema")),
        ("tools", json!({ "tools": [custom] }), Refused("tools[0].type")),
        ("tools", odd, Named("tools[].odd")),
        ("tool_choice", two(json!("required")), Carried("/tool_choice/type")),
        ("tool_choice", two(function("g")), Carried("/tool_choice/name")),
        ("tool_choice", two(allowed), Carried("/tool_choice/type")),
        ("tool_choice", two(custom), Refused("tool_choice")),
        ("tool_choice", json!({ "tool_choice": "required" }), Named("tool_choice")),
        ("parallel_tool_calls", one, flag),
        ("functions", legacy.clone(), Carried("/tools/0/name")),
        ("function_call", legacy, Carried("/tool_choice/type")),
    ]
}

fn of_messages(messages: &Json) -> Json {
    json!({ "messages": messages })
}

fn hi() -> Json {
    json!({ "role": "user", "content": "Hi" })
}

/// A message with these members, before a user's.
fn first(message: &Json) -> Json {
    of_messages(&json!([message, hi()]))
}

/// A message of the user with one part.
fn part(part: &Json) -> Json {
    first(&json!({ "role": "user", "content": [part] }))
}

/// An assistant's message with these members, between two of the user.
fn said(members: &Json) -> Json {
    let mut message = json!({ "role": "assistant" });
    let into = message.as_object_mut().expect("members");
    into.extend(members.as_object().expect("members").clone());
    of_messages(&json!([hi(), message, hi()]))
}

fn parts() -> Vec<Row> {
    let image = |detail: &str| {
        let image = json!({ "url": "https://pics.example/a", "detail": detail });
        part(&json!({ "type": "image_url", "image_url": image }))
    };
    let file = json!({ "file_data": "data:application/pdf;base64,JVBE", "filename": "a.pdf" });
    let audio = json!({ "type": "input_audio", "input_audio": { "data": "", "format": "wav" } });
    let by_id = json!({ "type": "file", "file": { "file_id": "file-1" } });
    let text = json!({ "type": "text", "text": "Hi" });
    let odd = json!({ "type": "text", "text": "Hi", "odd": 1 });
    vec![
        ("text", part(&text), Carried("/messages/0/content/0/text")),
        ("text", part(&odd), Named("messages[].content[].odd")),
        ("image_url", image("auto"), Carried("/messages/0/content/0/source/url")),
        ("image_url", image("original"), Named("messages[].content[].image_url.detail")),
        (
            "file",
            part(&json!({ "type": "file", "file": file })),
            Carried("/messages/0/content/0/title"),
        ),
        ("file", part(&by_id), Refused("messages[0].content[0].file.file_id")),
        ("input_audio", part(&audio), Refused("messages[0].content[0].type")),
    ]
}

fn messages() -> Vec<Row> {
    let call = json!({ "name": "f", "arguments": "{}" });
    let calls = json!([{ "id": "c", "type": "function", "function": call }]);
    let custom = json!([{ "id": "c", "type": "custom", "custom": { "name": "f", "input": "x" } }]);
    let result = json!({ "role": "tool", "tool_call_id": "c", "content": "1" });
    let legacy = json!({ "role": "function", "name": "f", "content": "1" });
    let system = |role: &str| first(&json!({ "role": role, "content": "s" }));
    let greeting = json!({ "role": "assistant", "content": "A" });
    let named = json!({ "role": "user", "content": "Hi", "name": "bob" });
    let spoken = json!({ "content": "A", "audio": { "id": "a" } });
    let id = "/messages/0/content/0/tool_use_id";
    let of_custom = Refused("messages[1].tool_calls[0].type");
    let answer = |members: Json| said(&members);
    vec![
        ("system", system("system"), Carried("/system/0/text")),
        ("developer", system("developer"), Carried("/system/0/text")),
        ("user", first(&named), Named("messages[].name")),
        ("assistant", first(&greeting), Carried("/messages/1")),
        ("refusal", answer(json!({ "refusal": "No" })), Carried("/messages/1/content/0/text")),
        ("audio", said(&spoken), Named("messages[].audio")),
        ("tool_calls", answer(json!({ "tool_calls": calls })), Carried("/messages/1/content/0/id")),
        ("tool_calls", answer(json!({ "tool_calls": custom })), of_custom),
        (
            "function_call",
            answer(json!({ "function_call": call })),
            Carried("/messages/1/content/0/id"),
        ),
        ("tool", first(&result), Carried(id)),
        ("function", first(&legacy), Carried(id)),
    ]
}

#[test]
fn each_field_of_the_format_is_carried_or_refused_or_named() {
    let rows: Vec<Row> =
        [settings(), formats(), tools(), parts(), messages()].into_iter().flatten().collect();
    let names: Vec<_> = rows.iter().map(|row| row.0).collect();
    for field in OF_THE_BODY.split_whitespace() {
        assert!(names.contains(&field), "nothing is known of {field}");
    }
    for (name, members, fate) in rows {
        let mut call = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Hi" }] });
        let into = call.as_object_mut().expect("members");
        into.extend(members.as_object().expect("members").clone());
        let outcome = translate(model(MODEL), Bytes::from(call.to_string()));
        match (fate, outcome) {
            (Refused(expected), Outcome::Refused(_, param)) => {
                assert_eq!(param, expected, "{name}");
            }
            (Named(path), Outcome::Body(_, dropped)) => assert_eq!(dropped, [path], "{name}"),
            (Done, Outcome::Body(_, dropped)) => assert!(dropped.is_empty(), "{name}: {dropped:?}"),
            (Carried(pointer), Outcome::Body(body, dropped)) => {
                let body: Json = serde_json::from_slice(&body).expect("JSON");
                assert!(body.pointer(pointer).is_some(), "{name}: no {pointer} in {body}");
                assert!(dropped.is_empty(), "{name}: {dropped:?}");
            }
            (_, outcome) => panic!("{name} becomes {outcome:?}"),
        }
    }
}
