//! Any chat request: what clients send, and what they had better not.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value as Json, json};

/// A text that can be told from any other, with what an encoder may stumble over.
fn text() -> impl Strategy<Value = String> {
    let odd =
        select(vec!["", "é", "\u{1F600}", "\"", "\\", "\n", "\u{2028}", "</s>", "\u{1}", "{}"]);
    (any::<u32>(), odd.clone(), odd).prop_map(|(n, a, b)| format!("{a}mark{n}{b}"))
}

fn blank() -> impl Strategy<Value = String> {
    select(vec!["", " ", "\n\t", "\u{a0}"]).prop_map(str::to_owned)
}

fn said() -> impl Strategy<Value = String> {
    prop_oneof![8 => text(), 1 => blank()]
}

fn maybe_marked(value: Json) -> impl Strategy<Value = Json> {
    any::<bool>().prop_map(move |marked| {
        let mut value = value.clone();
        if marked {
            value["cache_control"] = json!({"type": "ephemeral"});
        }
        value
    })
}

fn text_part() -> impl Strategy<Value = Json> {
    said().prop_map(|text| json!({"type": "text", "text": text})).prop_flat_map(maybe_marked)
}

fn user_part() -> impl Strategy<Value = Json> {
    let image = select(vec![
        "https://pics.example/a.png",
        "http://pics.example/b",
        "data:image/png;base64,AAEC",
        "data:image/jpg;base64,AAECAw==",
        "data:application/pdf;base64,JVBE",
        "data:image/svg+xml;base64,AAEC",
        "ftp://pics.example/a",
    ]);
    let image = (image, select(vec!["auto", "high"])).prop_map(
        |(url, detail)| json!({"type": "image_url", "image_url": {"url": url, "detail": detail}}),
    );
    let file = select(vec!["application/pdf", "text/plain", "image/gif", "application/zip"]);
    let file = file.prop_map(
        |kind| json!({"type": "file", "file": {"file_data": format!("data:{kind};base64,aGkh")}}),
    );
    prop_oneof![6 => text_part(), 1 => image.prop_flat_map(maybe_marked), 1 => file]
}

fn content(part: BoxedStrategy<Json>) -> BoxedStrategy<Json> {
    let parts = proptest::collection::vec(part, 1..4).prop_map(Json::from);
    prop_oneof![3 => said().prop_map(Json::from), 2 => parts].boxed()
}

fn id() -> impl Strategy<Value = String> {
    let ids = ["c_1", "c_2", "c.1", "c:1", "c_1_2", "é", "a b", "toolu_X-9"];
    select(ids.map(str::to_owned).to_vec())
}

fn arguments() -> impl Strategy<Value = Json> {
    let sound = (text(), any::<i64>()).prop_map(|(t, n)| json!({"z": t, "a": [n]}).to_string());
    let odd = select(vec!["", "null", "{}", "[1]", "{", "{\"a\":1,\"a\":2}", "{ \"x\" : 1.10 }"]);
    prop_oneof![6 => sound.prop_map(Json::from), 2 => odd.prop_map(Json::from)]
}

fn call() -> impl Strategy<Value = Json> {
    (id(), select(vec!["now", "temp"]), arguments()).prop_map(|(id, name, arguments)| {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    })
}

/// A message, or a call of the older kind with its result.
fn messages() -> impl Strategy<Value = Vec<Json>> {
    let text_content = || content(text_part().boxed());
    let system = (select(vec!["system", "developer"]), text_content())
        .prop_map(|(role, content)| json!({"role": role, "content": content}));
    let user = content(user_part().boxed())
        .prop_map(|content| json!({"role": "user", "content": content, "name": "n"}));
    let said = prop_oneof![3 => text_content(), 2 => Just(Json::Null)];
    let calls = proptest::collection::vec(call(), 0..4);
    let assistant = (said, calls).prop_map(|(content, calls)| {
        let mut message = json!({"role": "assistant", "content": content});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    });
    let tool = (id(), content(user_part().boxed()))
        .prop_map(|(id, content)| json!({"role": "tool", "tool_call_id": id, "content": content}));
    let legacy = (arguments(), text()).prop_map(|(arguments, result)| {
        let call = json!({"name": "now", "arguments": arguments});
        vec![
            json!({"role": "assistant", "content": null, "function_call": call}),
            json!({"role": "function", "name": "now", "content": result}),
        ]
    });
    prop_oneof![
        1 => system.prop_map(|message| vec![message]),
        5 => user.prop_flat_map(maybe_marked).prop_map(|message| vec![message]),
        4 => assistant.prop_flat_map(maybe_marked).prop_map(|message| vec![message]),
        3 => tool.prop_flat_map(maybe_marked).prop_map(|message| vec![message]),
        1 => legacy,
    ]
}

/// Members beside the messages, each with a value that suits it more or less.
fn settings() -> impl Strategy<Value = Vec<(&'static str, Json)>> {
    let function = json!({"type": "function", "function": {"name": "now", "strict": true}});
    let schema = json!({"type": "json_schema", "json_schema": {"schema": {"type": "object"}}});
    let choice = json!({"type": "function", "function": {"name": "now"}});
    let allowed = json!({"mode": "required", "tools": [choice]});
    let all = vec![
        ("max_tokens", json!(7)),
        ("max_completion_tokens", json!(9)),
        ("stop", json!(["END", " ", ""])),
        ("stop", json!("\n")),
        ("temperature", json!(1.5)),
        ("top_p", json!(0.5)),
        ("stream", json!(true)),
        (
            "tools",
            json!([function, {"type": "function", "function": {"name": "b", "parameters": {}}}]),
        ),
        ("tools", json!([])),
        ("functions", json!([{"name": "now", "parameters": {"type": "string"}}])),
        ("tool_choice", json!("required")),
        ("tool_choice", json!("none")),
        ("tool_choice", choice),
        ("tool_choice", json!({"type": "allowed_tools", "allowed_tools": allowed})),
        ("function_call", json!({"name": "now"})),
        ("parallel_tool_calls", json!(false)),
        ("reasoning_effort", json!("minimal")),
        ("reasoning_effort", json!("xhigh")),
        ("response_format", schema),
        ("response_format", json!({"type": "json_object"})),
        ("user", json!("someone")),
        ("safety_identifier", json!("someone")),
        ("seed", json!(1)),
        ("store", Json::Null),
        ("thinking", json!({"type": "enabled", "budget_tokens": 1024})),
    ];
    subsequence(all.clone(), 0..=all.len()).prop_shuffle()
}

/// A request for any model.
pub(super) fn request() -> impl Strategy<Value = Json> {
    let user = content(user_part().boxed());
    let user = user.prop_map(|content| vec![json!({"role": "user", "content": content})]);
    let first = prop_oneof![6 => user, 1 => messages()];
    let messages =
        (first, proptest::collection::vec(messages(), 0..9)).prop_map(|(mut messages, rest)| {
            messages.extend(rest.into_iter().flatten());
            messages
        });
    (messages, settings()).prop_map(|(messages, settings)| {
        let mut request = json!({"model": "m"});
        for (name, value) in settings {
            request[name] = value;
        }
        request["messages"] = messages.into();
        request
    })
}
