//! The responses format: one object that grows, and events which tell how.

use serde_json::{Value, json};

use super::asked::Asked;
use super::faults::{Fault, Faults};
use super::member::Member;
use super::record::{Billed, Record};
use super::refusal::Refusal;
use super::reply::{Ask, Reply, Tool, ToolChoice, plain_text};
use super::said::{Habit, Said, Stream, Words};
use super::vendor::Vendor;

mod hosted;
mod input;
mod item;
mod object;
mod request;
mod script;

#[cfg(test)]
mod tests;

use hosted::Hosted;
use item::{AGENT_TOOLS, Item, Wishes};
use object::{Object, Outcome};

/// The reasoning of a model that always thinks, and of one that is told to.
const PRO_THOUGHT: u64 = 64;
const THOUGHT: u64 = 16;

/// The fields of a call that only has its tokens counted.
const COUNTED_FIELDS: &str = "model input instructions previous_response_id conversation \
    parallel_tool_calls reasoning text tool_choice tools truncation";

/// The fields of a call that has its conversation made shorter.
const COMPACTED_FIELDS: &str = "model input instructions previous_response_id prompt_cache_key \
    prompt_cache_options prompt_cache_retention service_tier";

/// Counts the tokens of the input, or tells why not. It costs nothing.
pub(super) fn count(asked: &Asked, record: &Record) -> Result<Said, Refusal> {
    let mut body = asked.json()?;
    Member::root(&body).only(COUNTED_FIELDS)?;
    if body.get("input").is_none() {
        body["input"] = "nothing".into();
    }
    request::check(&body, record)?;
    let Asked { serial, created, ref faults, .. } = *asked;
    let reply = Reply::new(Vendor::B, serial, created, &ask(&body, faults), faults, &asked.body);
    let tokens = reply.billed.prompt;
    let body = json!({ "object": "response.input_tokens", "input_tokens": tokens });
    Ok(Said::whole(Billed::default(), body.to_string()))
}

/// Makes a conversation shorter, or tells why not.
pub(super) fn compact(asked: &Asked, record: &Record) -> Result<Said, Refusal> {
    let mut body = asked.json()?;
    Member::root(&body).only(COMPACTED_FIELDS)?;
    if body.get("input").is_none() && body.get("previous_response_id").is_some() {
        body["input"] = "nothing".into();
    }
    request::check(&body, record)?;
    let Asked { serial, created, ref faults, .. } = *asked;
    let reply = Reply::new(Vendor::B, serial, created, &ask(&body, faults), faults, &asked.body);
    let object = Object::new(&body, asked, &reply, &[]).compacted(&messages_of_the_user(&body));
    Ok(Said::new(reply.billed, reply.billed_for_prompt(), Words::Whole(object)))
}

/// The messages of the user in an input, as they came.
fn messages_of_the_user(body: &Value) -> Vec<Value> {
    if let Some(text) = body["input"].as_str() {
        let part = json!({ "type": "input_text", "text": text });
        return vec![json!({ "type": "message", "role": "user", "content": [part] })];
    }
    let items = body["input"].as_array().into_iter().flatten();
    items.filter(|item| item["role"] == "user").cloned().collect()
}

/// Responds, or tells why not.
pub(super) fn answer(asked: &Asked, record: &Record) -> Result<Said, Refusal> {
    let body = asked.json()?;
    request::check(&body, record)?;
    let Asked { serial, created, ref faults, .. } = *asked;
    let ask = ask(&body, faults);
    let mut reply = Reply::new(Vendor::B, serial, created, &ask, faults, &asked.body);
    let wishes = wishes(&body, &ask);
    let hosted = if wishes.compaction { Vec::new() } else { Hosted::called(&body, faults) };
    reply.billed.searches = hosted.iter().filter(|call| call.is_search()).count() as u64;
    reply.billed.images = hosted.iter().filter(|call| call.is_image()).count() as u64;
    let object = Object::new(&body, asked, &reply, hosted.as_slice());
    let outcome = outcome(asked, &reply);
    if body["store"] != false {
        record.keep_response(&object.id);
    }
    let items = Item::all(&reply, &hosted, serial, wishes);
    let words = if ask.stream {
        let (events, end) = script::events(&object, &items, &reply, outcome);
        Words::Streamed(Stream { events, end, habit: Habit::Responses })
    } else if body["background"] == true {
        Words::Whole(object.unfinished("queued"))
    } else {
        Words::Whole(object.finished(outcome, &items))
    };
    let before = Billed { searches: 0, images: 0, ..reply.billed_for_prompt() };
    let mut said = Said::new(reply.billed, before, words);
    said.billed = said.billed.filter(|_| outcome != Outcome::Failed);
    Ok(said)
}

/// How the response ends.
fn outcome(asked: &Asked, reply: &Reply) -> Outcome {
    if asked.faults.has(Fault::Failed) {
        Outcome::Failed
    } else if asked.faults.has(Fault::Incomplete) {
        Outcome::Filtered
    } else if reply.finish_reason == "length" {
        Outcome::CutOff
    } else {
        Outcome::Completed
    }
}

/// What a request says about the items of its reply.
fn wishes(body: &Value, ask: &Ask) -> Wishes {
    let mut included = body["include"].as_array().into_iter().flatten();
    Wishes {
        agent_calls: ask.calls.is_some(),
        sealed_thoughts: included.any(|name| name == "reasoning.encrypted_content"),
        compaction: is_to_be_compacted(body),
    }
}

/// Whether the last item asks for a compaction instead of an answer.
fn is_to_be_compacted(body: &Value) -> bool {
    last_item(body).is_some_and(|item| item["type"] == "compaction_trigger")
}

fn last_item(body: &Value) -> Option<&Value> {
    body["input"].as_array()?.last()
}

/// The calls of tools that agents run which a fault asks for, of those that the request offers.
fn agent_calls(body: &Value, faults: &Faults) -> Vec<Tool> {
    let tools = body["tools"].as_array().into_iter().flatten();
    let offered: Vec<_> = tools.filter_map(|tool| tool["type"].as_str()).collect();
    let known = AGENT_TOOLS.iter().filter(|tool| offered.contains(&tool.name));
    let calls = known.flat_map(|tool| {
        let times = faults.number(tool.fault).unwrap_or(0);
        (0..times).map(move |_| Tool { name: tool.name.to_owned(), with_arguments: true })
    });
    calls.collect()
}

/// What a request asks for, in the terms of all vendors.
fn ask(body: &Value, faults: &Faults) -> Ask {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let model = text(&body["model"]);
    let tokens_max = body["max_output_tokens"].as_u64();
    let effort = body["reasoning"]["effort"].as_str();
    let thought = match effort {
        _ if model.ends_with("-pro") => PRO_THOUGHT,
        None | Some("none") => 0,
        Some(_) => THOUGHT,
    };
    let choice = &body["tool_choice"];
    let tools = body["tools"].as_array().into_iter().flatten();
    let own = tools.filter(|tool| tool["type"] == "function" || tool["type"] == "custom");
    let result = last_item(body)
        .filter(|item| item["type"].as_str().is_some_and(|kind| kind.ends_with("_call_output")));
    let mut own: Vec<_> =
        own.map(|tool| Tool { name: text(&tool["name"]), with_arguments: true }).collect();
    let mut calls = None;
    let agent_calls = agent_calls(body, faults);
    if is_to_be_compacted(body) {
        own.clear();
    } else if result.is_none() && !agent_calls.is_empty() {
        calls = Some(agent_calls.len() as u64);
        own = agent_calls;
    }
    Ask {
        model,
        stream: body["stream"] == true,
        obfuscate: body["stream_options"]["include_obfuscation"] != false,
        service_tier: match body["service_tier"].as_str() {
            None | Some("auto") => "default".to_owned(),
            Some(tier) => tier.to_owned(),
        },
        choices: 1,
        tokens_max,
        tools: own,
        calls,
        tool_choice: match choice["name"].as_str() {
            Some(name) => ToolChoice::Forced(name.to_owned()),
            None if choice == "none" => ToolChoice::Forbidden,
            None => ToolChoice::Free,
        },
        calls_max: (body["parallel_tool_calls"] == false).then_some(1),
        tool_result: result.map(|item| plain_text(&item["output"])),
        thought: thought.min(tokens_max.unwrap_or(u64::MAX)),
        ..Ask::default()
    }
}
