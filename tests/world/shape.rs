//! Calls that many tests make.

use serde_json::{Value, json};

/// A model of a vendor.
pub(crate) fn model_of(vendor: &str) -> &'static str {
    match vendor {
        "vendor_a" => "lma-sonnet-4-6",
        "vendor_b" => "lmb-5.5",
        "vendor_c" => "lmc-3.5-flash",
        "vendor_d" => "lmd-4.6",
        "vendor_e" => "orgA/famA-V3.2",
        other => panic!("{other} has no model here"),
    }
}

/// A short chat call.
pub(crate) fn chat_of(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "How much is 2 + 2?" }] })
}

/// A short messages call.
pub(crate) fn messages_of(model: &str) -> Value {
    let question = json!([{ "role": "user", "content": "How much is 2 + 2?" }]);
    json!({ "model": model, "max_tokens": 1_000, "messages": question })
}

/// A chat or messages call whose question is so many bytes long: a vendor is believed more tokens
/// of input for it.
pub(crate) fn long(mut call: Value, bytes: usize) -> Value {
    call["messages"][0]["content"] = "a ".repeat(bytes / 2).into();
    call
}

/// A call with these members, in the place of those it had; what is null goes.
pub(crate) fn with(mut call: Value, members: &Value) -> Value {
    let body = call.as_object_mut().expect("a call is an object");
    for (name, value) in members.as_object().expect("members") {
        match value {
            Value::Null => drop(body.remove(name)),
            value => drop(body.insert(name.clone(), value.clone())),
        }
    }
    call
}
