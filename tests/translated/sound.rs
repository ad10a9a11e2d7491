//! Odd but sound calls: each becomes one that the vendor, who is strict, takes.

use serde_json::{Value, json};

use super::{MODEL, tools, world_of};
use crate::world::{chat_of, with};

/// A model, what a call has, a place in what is sent, and what stands there.
type Row = (&'static str, Value, &'static str, Value);

const HAIKU: &str = "lma-haiku-4-5";
const OPUS: &str = "lma-opus-5";

fn user(content: &Value) -> Value {
    json!({ "messages": [{ "role": "user", "content": content }] })
}

fn file(data: &str) -> Value {
    user(&json!([
        { "type": "text", "text": "Read" },
        { "type": "file", "file": { "filename": "a.txt", "file_data": data } },
    ]))
}

fn called(calls: &Value, results: &[Value]) -> Value {
    let said = json!([
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": "", "tool_calls": calls },
    ]);
    let messages = said.as_array().expect("two").iter().chain(results).cloned();
    json!({ "messages": messages.collect::<Value>(), "tools": tools(&["f"]) })
}

fn call(id: &str, arguments: &str) -> Value {
    let function = json!({ "name": "f", "arguments": arguments });
    json!({ "id": id, "type": "function", "function": function })
}

fn result(id: &str, content: &Value) -> Value {
    json!({ "role": "tool", "tool_call_id": id, "content": content })
}

fn settings() -> Vec<Row> {
    let auto = json!({ "type": "auto", "disable_parallel_tool_use": true });
    let format = json!({ "name": "n", "strict": true, "schema": { "type": "object" } });
    let schema = json!({ "type": "json_schema", "schema": { "type": "object" } });
    let allowed = json!({ "mode": "required", "tools": tools(&["g"]) });
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": allowed });
    vec![
        (MODEL, json!({ "max_tokens": null, "n": 1, "stop": null }), "/max_tokens", json!(8192)),
        (MODEL, json!({ "stop": [" ", "a", "\n"] }), "/stop_sequences", json!(["a"])),
        (MODEL, json!({ "stop": "  " }), "/stop_sequences", Value::Null),
        (MODEL, json!({ "temperature": 0.5, "top_p": 0.9 }), "/top_p", Value::Null),
        (MODEL, json!({ "temperature": 2 }), "/temperature", json!(1)),
        (HAIKU, json!({ "top_p": 0.9 }), "/top_p", json!(0.9)),
        (MODEL, json!({ "reasoning_effort": "minimal" }), "/output_config/effort", json!("low")),
        (OPUS, json!({ "reasoning_effort": "xhigh" }), "/output_config/effort", json!("xhigh")),
        (HAIKU, json!({ "reasoning_effort": "high" }), "/output_config", Value::Null),
        (
            HAIKU,
            json!({ "response_format": { "type": "json_schema", "json_schema": format } }),
            "/output_config/format",
            schema,
        ),
        (
            MODEL,
            json!({ "response_format": { "type": "json_object" } }),
            "/output_config",
            Value::Null,
        ),
        (
            MODEL,
            json!({ "tools": tools(&["f"]), "parallel_tool_calls": false }),
            "/tool_choice",
            auto,
        ),
        (
            MODEL,
            json!({ "tools": tools(&["f"]), "tool_choice": "none", "parallel_tool_calls": false }),
            "/tool_choice",
            json!({ "type": "none" }),
        ),
        (MODEL, json!({ "tools": [], "tool_choice": "auto" }), "/tool_choice", Value::Null),
        (
            "lma-fable-5",
            json!({ "tools": tools(&["f", "g"]), "tool_choice": allowed }),
            "/tool_choice",
            json!({ "type": "auto" }),
        ),
        (
            "lma-fable-5",
            json!({ "tools": tools(&["f", "g"]), "tool_choice": allowed }),
            "/tools/1",
            Value::Null,
        ),
        (
            MODEL,
            json!({ "functions": [{ "name": "f" }], "function_call": { "name": "f" } }),
            "/tool_choice",
            json!({ "type": "tool", "name": "f" }),
        ),
    ]
}

fn contents() -> Vec<Row> {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let jpg = json!([{ "type": "image_url", "image_url": "data:image/jpg;base64,iVBO" }]);
    let mark = json!({ "type": "ephemeral" });
    let marked = json!([{ "role": "user", "content": "hi", "cache_control": mark }]);
    let mixed = json!([
        { "role": "developer", "content": "One." },
        { "role": "user", "name": "x", "content": "hi" },
        { "role": "system", "content": " " },
        { "role": "assistant", "content": [{ "type": "refusal", "refusal": "No." }] },
        { "role": "assistant", "content": null },
        { "role": "user", "content": [text(""), text("Why?")] },
        { "role": "system", "content": "Two." },
    ]);
    let prefill = json!([
        { "role": "user", "content": "hi" }, { "role": "assistant", "content": "So \n" },
    ]);
    let pdf = json!({ "type": "base64", "media_type": "application/pdf", "data": "JVBERi0=" });
    let paper = json!({ "type": "text", "media_type": "text/plain", "data": "héllo" });
    let no = json!([text("No.")]);
    vec![
        (MODEL, user(&jpg), "/messages/0/content/0/source/media_type", json!("image/jpeg")),
        (MODEL, file("data:application/pdf;base64,JVBERi0="), "/messages/0/content/1/source", pdf),
        (MODEL, file("data:text/plain;base64,aMOpbGxv"), "/messages/0/content/1/source", paper),
        (MODEL, json!({ "messages": marked }), "/messages/0/content/0/cache_control", mark),
        (MODEL, json!({ "messages": mixed }), "/system", json!([text("One."), text("Two.")])),
        (MODEL, json!({ "messages": mixed }), "/messages/1/content", no),
        (MODEL, json!({ "messages": mixed }), "/messages/2/content", json!([text("Why?")])),
        (HAIKU, json!({ "messages": prefill }), "/messages/1/content", json!([text("So")])),
    ]
}

fn loops() -> Vec<Row> {
    let one = |id: &str, arguments: &str, content: &Value| {
        called(&json!([call(id, arguments)]), &[result(id, content)])
    };
    let twice = called(
        &json!([call("a b", "null"), call("a.b", "{}"), call("a b", "{}")]),
        &[result("a.b", &json!("2")), result("a b", &json!("0")), result("a b", &json!("1"))],
    );
    let image = json!({ "type": "image_url", "image_url": { "url": "https://x.example/a" } });
    let legacy = json!([
        { "role": "user", "content": "hi" },
        { "role": "assistant", "function_call": { "name": "f", "arguments": "{}" } },
        { "role": "function", "name": "f", "content": "1" },
    ]);
    let mut again = one("a", "{}", &json!("1"));
    let rest =
        [json!({ "role": "assistant", "tool_calls": [call("a", "{}")] }), result("a", &json!("2"))];
    again["messages"].as_array_mut().expect("messages").extend(rest);
    let bare = with(one("a", "{}", &json!("1")), &json!({ "tools": null }));
    vec![
        (MODEL, one("a", "", &json!("")), "/messages/2/content/0/content", Value::Null),
        (MODEL, one("é!", "{}", &json!("1")), "/messages/1/content/0/id", json!("__")),
        (
            MODEL,
            one("a", "{}", &json!([image])),
            "/messages/2/content/0/content/0/type",
            json!("image"),
        ),
        (MODEL, twice.clone(), "/messages/1/content/1/id", json!("a_b_2")),
        (MODEL, twice, "/messages/2/content/1/content", json!("1")),
        (
            MODEL,
            json!({ "messages": legacy, "functions": [{ "name": "f" }] }),
            "/messages/2/content/0/tool_use_id",
            json!("call_1"),
        ),
        (MODEL, again, "/messages/3/content/0/type", json!("tool_use")),
        (MODEL, bare, "/tool_choice", json!({ "type": "none" })),
    ]
}

#[tokio::test]
async fn odd_calls_become_sound_ones() {
    let world = world_of("").await;
    for (model, members, place, expected) in [settings(), contents(), loops()].concat() {
        let answer = world.chat(with(chat_of(model), &members)).await;
        assert_eq!(answer.status, 200, "{members}\n{answer:?}\n{:?}", world.sim.seen().pop());
        let sent = world.sim.take_seen().remove(0).json();
        let found = sent.pointer(place).unwrap_or(&Value::Null);
        assert_eq!(*found, expected, "{place} of {sent}");
    }
}

#[tokio::test]
async fn arguments_keep_their_numbers_and_their_order() {
    let world = world_of("").await;
    let arguments =
        r#"{ "z": 1.10, "a": [1E40, 123456789012345678901234567890], "é": "\u00e9\/" }"#;
    let members = called(&json!([call("a", arguments)]), &[result("a", &json!("1"))]);
    assert_eq!(world.chat(with(chat_of(MODEL), &members)).await.status, 200);
    let sent = String::from_utf8(world.sim.seen()[0].body.to_vec()).expect("text");
    assert!(sent.contains(&format!(r#""input":{arguments}"#)), "{sent}");
}
