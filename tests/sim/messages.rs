//! The messages format, as the one vendor speaks it who has no chat endpoint.
//!
//! A request is read as strictly as the real vendor reads it, so that a wrong translation is
//! refused here before it is refused there.

use bytes::Bytes;
use serde_json::Value;

use super::faults::{Fault, Faults};
use super::record::Record;
use super::refusal::Refusal;
use super::reply::{Ask, Reply, Tool, ToolChoice, plain_text};
use super::vendor::Vendor;

mod blocks;
mod cache;
mod family;
mod node;
mod request;
mod script;
mod tools;
mod turn;
mod turns;
mod usage;

#[cfg(test)]
mod replies;
#[cfg(test)]
mod tests;

pub(super) use turn::Turn;

use family::Family;
use node::Node;

/// The vendor's limit of a body.
const BODY_BYTES_MAX: usize = 32 << 20;

/// The fields of a call that only has its tokens counted.
const COUNTED_FIELDS: &str = "model messages system tools tool_choice thinking output_config \
    cache_control mcp_servers context_management";

/// What the headers of a request say about how it is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    version: String,
    beta: bool,
}

impl Terms {
    /// Reads the headers: a key of the vendor's and no other, and one version.
    pub(super) fn of(headers: &[(String, String)]) -> Result<Terms, Refusal> {
        let lower = |(name, value): &(String, String)| (name.to_ascii_lowercase(), value.clone());
        let headers: Vec<_> = headers.iter().map(lower).collect();
        let keys = headers.iter().filter_map(|(name, value)| match name.as_str() {
            "x-api-key" => Some(value.as_str()),
            "authorization" => Some(value.strip_prefix("Bearer ").unwrap_or_default()),
            _ => None,
        });
        let keys: Vec<_> = keys.collect();
        if keys.is_empty() {
            return Err(Refusal::new(401, "x-api-key header is required"));
        }
        if !keys.iter().all(|key| key.trim().starts_with("vk-")) {
            return Err(Refusal::usual(401));
        }
        // The names without the brand; what begins with x- is a library's own.
        let ending = |end: &'static str| {
            let own =
                move |(name, _): &&(String, String)| name.ends_with(end) && !name.starts_with("x-");
            headers.iter().filter(own)
        };
        let mut versions: Vec<_> = ending("-version").map(|(_, value)| value.as_str()).collect();
        versions.dedup();
        match versions.as_slice() {
            [] => Err(Refusal::new(400, "vendor_a-version: header is required")),
            [version] if is_day(version) => {
                let beta = ending("-beta").any(|(_, value)| !value.trim().is_empty());
                Ok(Terms { version: (*version).to_owned(), beta })
            }
            versions => {
                let told = versions.join(", ");
                let message = format!("vendor_a-version: \"{told}\" is not a valid version");
                Err(Refusal::new(400, message))
            }
        }
    }

    /// Whether the fields of sampling are gone.
    fn without_sampling(&self) -> bool {
        self.version.as_str() >= "2026-10-21"
    }
}

/// Whether this is a day such as 2023-06-01.
fn is_day(text: &str) -> bool {
    let shape = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c });
    shape.eq("0000-00-00".chars())
}

/// A request that the vendor accepts.
pub(super) struct Call {
    body: Value,
    ask: Ask,
}

impl Call {
    /// Reads a body, and refuses it as the vendor would.
    pub(super) fn read(body: &[u8], terms: &Terms) -> Result<Call, Refusal> {
        if body.len() > BODY_BYTES_MAX {
            return Err(Refusal::new(413, "Request exceeds the maximum size"));
        }
        let invalid = |message: String| Refusal::new(400, message);
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| invalid(format!("The request body is not valid JSON: {error}")))?;
        let root = Node::root(&body);
        let model = root.need("model").and_then(|model| model.text()).map_err(invalid)?;
        let unknown = || Refusal::new(404, format!("model: {model}"));
        let family = Family::of(model).ok_or_else(unknown)?;
        request::check(&root, family, terms).map_err(invalid)?;
        let ask = ask(&body, family);
        Ok(Call { body, ask })
    }

    /// Reads a body whose tokens are to be counted. It is one of a call without what concerns the
    /// reply.
    pub(super) fn read_to_count(body: &[u8], terms: &Terms) -> Result<Call, Refusal> {
        let invalid = |message: String| Refusal::new(400, message);
        let mut body: Value = serde_json::from_slice(body)
            .map_err(|error| invalid(format!("The request body is not valid JSON: {error}")))?;
        Node::root(&body).only(&[COUNTED_FIELDS, ""]).map_err(invalid)?;
        let thought = body["thinking"]["budget_tokens"].as_u64().unwrap_or(0);
        body["max_tokens"] = (thought + 1).into();
        Call::read(body.to_string().as_bytes(), terms)
    }

    /// The tokens of the input.
    pub(super) fn input_tokens(&self, serial: u64, faults: &Faults, body: &Bytes) -> u64 {
        Reply::new(Vendor::A, serial, 0, &self.ask, faults, body).billed.prompt
    }

    /// Whether the reply is to come in events.
    pub(super) fn stream(&self) -> bool {
        self.ask.stream
    }

    /// The reply.
    pub(super) fn turn<'a>(
        &'a self,
        serial: u64,
        faults: &'a Faults,
        body: &Bytes,
        record: &Record,
    ) -> Turn<'a> {
        let kept = cache::Kept::new(&self.body, faults, record);
        let ask = Ask { prompt_min: kept.least(), ..self.ask.clone() };
        let reply = Reply::new(Vendor::A, serial, 0, &ask, faults, body);
        let usage = usage::Usage::new(&reply.billed, &kept, &self.body, faults);
        let thought = format!("{}{}.", turn::THOUGHT, self.replies_so_far() + 1);
        let omitted = self.body["thinking"]["display"] == "omitted" || faults.has(Fault::Omitted);
        let server_tool = turn::server_tool(&self.body, faults);
        let manner = turn::Manner { model: &self.ask.model, thought, omitted, server_tool };
        Turn::new(reply, usage, &manner, faults)
    }

    fn replies_so_far(&self) -> usize {
        let messages = self.body["messages"].as_array().into_iter().flatten();
        messages.filter(|message| message["role"] == "assistant").count()
    }
}

/// What a request asks for, in the terms of all vendors.
fn ask(body: &Value, family: &Family) -> Ask {
    let tools = body["tools"].as_array().into_iter().flatten();
    let choice = &body["tool_choice"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let stops = body["stop_sequences"].as_array().into_iter().flatten();
    let one_call = choice["disable_parallel_tool_use"] == true;
    let tokens_max = body["max_tokens"].as_u64();
    let thinks = match body["thinking"]["type"].as_str() {
        Some("disabled") => false,
        Some(_) => true,
        None => family.thinks(),
    };
    Ask {
        model: text(&body["model"]),
        stream: body["stream"] == true,
        choices: 1,
        tokens_max,
        tools: tools.filter(|tool| !turn::is_fetch(tool)).map(tool).collect(),
        tool_choice: match choice["type"].as_str() {
            Some("none") => ToolChoice::Forbidden,
            Some("tool") => ToolChoice::Forced(text(&choice["name"])),
            _ => ToolChoice::Free,
        },
        calls_max: if tokens_max == Some(0) { Some(0) } else { one_call.then_some(1) },
        tool_result: tool_result(body),
        stops: stops.map(text).collect(),
        thought: if thinks { turn::thought_tokens() } else { 0 },
        ..Ask::default()
    }
}

fn tool(tool: &Value) -> Tool {
    let properties = tool["input_schema"]["properties"].as_object();
    Tool {
        name: tool["name"].as_str().unwrap_or_default().to_owned(),
        with_arguments: properties.is_some_and(|properties| !properties.is_empty()),
    }
}

/// What the tools said, if results stand in the last message.
fn tool_result(body: &Value) -> Option<String> {
    let mut messages = body["messages"].as_array()?.iter().rev();
    let last = messages.find(|message| message["role"] != "system")?;
    let blocks = last["content"].as_array()?.iter();
    let results = blocks.filter(|block| block["type"] == "tool_result");
    let said: Vec<_> = results.map(|block| plain_text(&block["content"])).collect();
    (!said.is_empty()).then(|| said.join(" "))
}
