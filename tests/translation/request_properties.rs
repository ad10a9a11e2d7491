//! What holds for any chat request.

use std::collections::HashMap;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value as Json;

use super::chats::request;
use super::checker::check;
use super::golden::{model, model_ids};
use super::requests::{Outcome, translate};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(768))]

    #[test]
    fn a_request_is_refused_or_becomes_one_that_the_vendor_takes(
        request in request(),
        id in select(model_ids()),
    ) {
        let outcome = translate(model(id), Bytes::from(request.to_string()));
        match &outcome {
            Outcome::Refused(code, param) => {
                prop_assert!(!code.is_empty());
                let member = param.split(['.', '[']).next().unwrap_or_default();
                prop_assert!(request.get(member).is_some(), "{} is not in the request", param);
            }
            Outcome::Body(body, dropped) => {
                let shown = String::from_utf8_lossy(body);
                prop_assert_eq!(check(body), Ok(()), "{}", shown);
                let top = |path: &String| path.split(['.', '[']).next().map(str::to_owned);
                let is_there = |path| top(path).is_some_and(|name| request.get(name).is_some());
                prop_assert!(dropped.iter().all(is_there), "{:?}", dropped);
            }
        }
        prop_assert_eq!(translate(model(id), Bytes::from(request.to_string())), outcome);
    }

    #[test]
    fn what_is_said_arrives(request in request()) {
        let Outcome::Body(body, _) =
            translate(model("lma-opus-4-6"), Bytes::from(request.to_string()))
        else {
            return Ok(());
        };
        let made: Json = serde_json::from_slice(&body).expect("JSON");
        let mut arrived = Vec::new();
        texts(&made, &mut arrived);
        for text in expected_texts(&request) {
            prop_assert!(arrived.iter().any(|a| a.contains(&text)), "{:?} in {}", text, made);
        }
    }

    #[test]
    fn a_result_belongs_to_the_call_it_belonged_to(request in request()) {
        let Outcome::Body(body, _) =
            translate(model("lma-sonnet-4-6"), Bytes::from(request.to_string()))
        else {
            return Ok(());
        };
        let made: Json = serde_json::from_slice(&body).expect("JSON");
        let (before, after) = (ids_of_chat(&request), ids_of_messages(&made));
        prop_assert_eq!(before.len(), after.len(), "{} becomes {}", request, made);
        let (mut there, mut back) = (HashMap::new(), HashMap::new());
        for (old, new) in before.iter().zip(&after) {
            prop_assert_eq!(there.entry(old.clone()).or_insert(new), &new, "{} has two names", old);
            prop_assert_eq!(back.entry(new.clone()).or_insert(old), &old, "{} names two", new);
        }
    }
}

/// All strings in a value, names too.
fn texts(value: &Json, found: &mut Vec<String>) {
    match value {
        Json::String(text) => found.push(text.clone()),
        Json::Array(list) => list.iter().for_each(|v| texts(v, found)),
        Json::Object(members) => members.iter().for_each(|(name, v)| {
            found.push(name.clone());
            texts(v, found);
        }),
        _ => {}
    }
}

/// What of a request has to arrive: all texts but those of calls and results that lose to others
/// with their id.
fn expected_texts(request: &Json) -> Vec<String> {
    let mut found = Vec::new();
    let messages = request["messages"].as_array().expect("messages");
    for (at, message) in messages.iter().enumerate() {
        let said = &message["content"];
        let mut later = messages[at + 1..].iter().take_while(|m| !begins_a_turn(m));
        let replaced = message["role"] == "tool"
            && later.any(|m| m["tool_call_id"] == message["tool_call_id"]);
        if !replaced {
            texts(said, &mut found);
        }
    }
    found.retain(|text| text.contains("mark"));
    // Blanks at the very end of the conversation are stripped.
    found.iter().map(|text| text.trim_end().to_owned()).collect()
}

/// The calls and results of a conversation, each named apart from all others: an id that a later
/// turn uses again is another call, and the results after it are of that one.
#[derive(Default)]
struct Named {
    /// How many calls had an id before.
    calls: HashMap<String, usize>,
    /// The ids of the turn, calls and results apart.
    turn: Vec<String>,
    names: Vec<String>,
}

impl Named {
    fn call(&mut self, id: String) {
        if !self.turn.contains(&id) {
            *self.calls.entry(id.clone()).or_default() += 1;
            self.names.push(self.name(&id));
            self.turn.push(id);
        }
    }

    fn result(&mut self, id: String) {
        if !self.turn.contains(&id) {
            self.names.push(self.name(&id));
            self.turn.push(id);
        }
    }

    fn name(&self, id: &str) -> String {
        format!("{id} of call {:?}", self.calls.get(id))
    }
}

fn ids_of_chat(request: &Json) -> Vec<String> {
    let mut named = Named::default();
    let (mut was_assistant, mut function) = (false, None);
    for (at, message) in request["messages"].as_array().expect("messages").iter().enumerate() {
        let role = message["role"].as_str().expect("a role");
        let is_assistant = role == "assistant";
        if matches!(role, "system" | "developer") || is_assistant && is_nothing(message) {
            continue;
        }
        if was_assistant != is_assistant {
            named.turn.clear();
        }
        was_assistant = is_assistant;
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            named.call(call["id"].to_string());
        }
        if message.get("function_call").is_some() {
            function = Some(format!("\"call_{at}\""));
            named.call(format!("\"call_{at}\""));
        }
        match role {
            "tool" => named.result(message["tool_call_id"].to_string()),
            "function" => named.result(function.clone().unwrap_or_default()),
            _ => {}
        }
    }
    named.names
}

fn begins_a_turn(message: &Json) -> bool {
    message["role"] == "assistant" && !is_nothing(message)
}

/// Whether an assistant message says nothing and calls nothing.
fn is_nothing(message: &Json) -> bool {
    let mut said = Vec::new();
    match &message["content"] {
        Json::Array(parts) => parts.iter().for_each(|p| texts(&p["text"], &mut said)),
        other => texts(other, &mut said),
    }
    said.iter().all(|text| text.trim().is_empty())
        && message.get("tool_calls").is_none()
        && message.get("function_call").is_none()
}

fn ids_of_messages(made: &Json) -> Vec<String> {
    let turns = made["messages"].as_array().expect("messages").iter();
    let blocks = turns.flat_map(|turn| turn["content"].as_array().expect("blocks"));
    let ids = blocks.filter_map(|block| match block["type"].as_str() {
        Some("tool_use") => block["id"].as_str(),
        Some("tool_result") => block["tool_use_id"].as_str(),
        _ => None,
    });
    ids.map(str::to_owned).collect()
}
