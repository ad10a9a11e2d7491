//! A stream of chat chunks put together again, to be held against the whole reply.

use serde_json::{Value, json};

use super::{Streamed, World};

impl Streamed {
    /// The message of the first choice, as a whole reply would have it.
    pub(crate) fn message(&self) -> Value {
        let mut message = json!({ "role": null, "content": null, "refusal": null });
        let mut calls: Vec<Value> = Vec::new();
        for event in self.events() {
            let delta = &event["choices"][0]["delta"];
            if let Some(role) = delta.get("role") {
                assert!(message["role"].is_null(), "two roles: {self:?}");
                message["role"] = role.clone();
            }
            for name in ["content", "refusal", "reasoning_content"] {
                append(&mut message[name], delta[name].as_str().unwrap_or_default());
            }
            for part in delta["tool_calls"].as_array().into_iter().flatten() {
                self.add(&mut calls, part.clone());
            }
        }
        let members = message.as_object_mut().expect("a message");
        members.retain(|name, value| name != "reasoning_content" || !value.is_null());
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }

    /// Why the first choice ended; panics unless that is told once.
    pub(crate) fn finish_reason(&self) -> String {
        let events = self.events();
        let told = events.iter().filter_map(|e| e["choices"][0]["finish_reason"].as_str());
        let told: Vec<_> = told.collect();
        assert_eq!(told.len(), 1, "{self:?}");
        told[0].to_owned()
    }

    /// Adds a piece of a tool call: the first of each names it, the others bring arguments.
    fn add(&self, calls: &mut Vec<Value>, mut part: Value) {
        let index = part.as_object_mut().and_then(|part| part.remove("index"));
        let index = index.and_then(|index| index.as_u64()).expect("an index");
        let index = usize::try_from(index).expect("a small index");
        if index == calls.len() {
            assert!(part["id"].is_string() && part["type"] == "function", "{self:?}");
            calls.push(part);
            return;
        }
        let more = part["function"]["arguments"].as_str().expect("more arguments");
        assert_eq!(part, json!({ "function": { "arguments": more } }), "{self:?}");
        append(&mut calls[index]["function"]["arguments"], more);
    }
}

impl World {
    /// What a chat call gives, whole and in a stream, which has to be the same but for ids: the
    /// message and why it ended.
    pub(crate) async fn both_ways(&self, call: &Value) -> (Value, String) {
        let answer = self.chat(call.clone()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let choice = &answer.json()["choices"][0];
        let mut whole = choice["message"].clone();
        let annotations = whole.as_object_mut().and_then(|m| m.remove("annotations"));
        assert_eq!(annotations, Some(json!([])), "{answer:?}");
        let streamed = self.stream(call.clone()).await;
        assert!(streamed.is_done(), "{streamed:?}");
        let mut message = streamed.message();
        for message in [&mut whole, &mut message] {
            for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
                let id = call["id"].take();
                assert!(id.as_str().is_some_and(|id| !id.is_empty()), "{answer:?}");
            }
            if message["tool_calls"].is_null() {
                message.as_object_mut().expect("a message").remove("tool_calls");
            }
        }
        assert_eq!(whole, message, "{streamed:?}");
        assert_eq!(choice["finish_reason"], streamed.finish_reason());
        (whole, streamed.finish_reason())
    }
}

fn append(text: &mut Value, more: &str) {
    if !more.is_empty() {
        *text = format!("{}{more}", text.as_str().unwrap_or_default()).into();
    }
}
