//! What a vendor decides to answer: the text, the tool calls, and the tokens they cost.

use bytes::Bytes;
use serde_json::Value;

use super::faults::{Fault, Faults};
use super::noise;
use super::record::Billed;
use super::vendor::Vendor;

const USUAL_TEXT: &str = "The answer is four and everybody in the room agrees.";
const LONG_CHARACTERS: &str = "héllo 🌍 ✓ naïve café — 東京 Привет 👩‍🚀 fin.";
const TOOL_CALL_TOKENS: u64 = 8;
const TOOL_ARGUMENTS: &str = r#"{"city":"Rome"}"#;

/// What a request asks for, as far as the simulator cares.
#[derive(Clone, Default)]
pub(super) struct Ask {
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) obfuscate: bool,
    pub(super) service_tier: String,
    pub(super) choices: u64,
    pub(super) tokens_max: Option<u64>,
    pub(super) tools: Vec<Tool>,
    pub(super) tool_choice: ToolChoice,
    /// The tool calls of a reply, where there are not as many as usual.
    pub(super) calls: Option<u64>,
    /// The most tool calls of one reply.
    pub(super) calls_max: Option<u64>,
    /// What the tool said, when its message is the last.
    pub(super) tool_result: Option<String>,
    /// Texts before which a reply ends.
    pub(super) stops: Vec<String>,
    /// The reasoning tokens of a reply, if nothing else is said.
    pub(super) thought: u64,
    /// So many tokens of the prompt, at least, are known otherwise.
    pub(super) prompt_min: u64,
}

impl Ask {
    /// Reads the body of a request; the error is the vendor's message about it.
    pub(super) fn parse(body: &[u8], vendor: Vendor) -> Result<Ask, String> {
        let body: Value = serde_json::from_slice(body).map_err(|error| {
            format!("We could not parse the JSON body of your request: {error}")
        })?;
        let model = body["model"].as_str().ok_or("you must provide a model parameter")?;
        let messages =
            body["messages"].as_array().ok_or("Missing required parameter: 'messages'.")?;
        let last = messages.last().ok_or("Invalid 'messages': empty array.")?;
        let options = &body["stream_options"];
        let stream = body["stream"] == true;
        if vendor == Vendor::B && !options.is_null() && !stream {
            return Err("'stream_options' is only allowed when 'stream' is enabled.".to_owned());
        }
        let from_tool = last["role"] == "tool";
        if vendor == Vendor::E && from_tool && !last["content"].is_string() {
            return Err("messages: the content of a tool must be a string".to_owned());
        }
        let bound = body["max_completion_tokens"].as_u64();
        let choice = &body["tool_choice"];
        Ok(Ask {
            model: model.to_owned(),
            stream,
            include_usage: options["include_usage"] == true,
            obfuscate: options["include_obfuscation"] != false,
            service_tier: match body["service_tier"].as_str() {
                None | Some("auto") => "default".to_owned(),
                Some(tier) => tier.to_owned(),
            },
            choices: body["n"].as_u64().unwrap_or(1).clamp(1, 128),
            tokens_max: bound.or(body["max_tokens"].as_u64()),
            tools: body["tools"].as_array().into_iter().flatten().map(Tool::of_chat).collect(),
            tool_choice: match choice["function"]["name"].as_str() {
                Some(name) => ToolChoice::Forced(name.to_owned()),
                None if choice == "none" => ToolChoice::Forbidden,
                None => ToolChoice::Free,
            },
            tool_result: from_tool.then(|| plain_text(&last["content"])),
            ..Ask::default()
        })
    }
}

#[derive(Clone, Default)]
pub(super) enum ToolChoice {
    #[default]
    Free,
    Forbidden,
    Forced(String),
}

/// A tool that may be called.
#[derive(Clone)]
pub(super) struct Tool {
    pub(super) name: String,
    /// Whether it takes arguments.
    pub(super) with_arguments: bool,
}

impl Tool {
    fn of_chat(tool: &Value) -> Tool {
        let names = [&tool["function"]["name"], &tool["custom"]["name"], &tool["name"]];
        let name = names.into_iter().find_map(Value::as_str).unwrap_or("nameless");
        Tool { name: name.to_owned(), with_arguments: true }
    }
}

/// A reply before it is put into the vendor's words.
pub(super) struct Reply {
    pub(super) vendor: Vendor,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) text: String,
    pub(super) calls: Vec<ToolCall>,
    /// In the words of the chat format.
    pub(super) finish_reason: &'static str,
    /// The text before which it ended.
    pub(super) stopped_by: Option<String>,
    pub(super) choices: u64,
    pub(super) billed: Billed,
    /// The pieces of the text asked for; otherwise one per word.
    chunks: Option<u64>,
    reasoning_inside: bool,
}

/// A call of a tool; all choices make the same.
pub(super) struct ToolCall {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: &'static str,
}

impl Reply {
    pub(super) fn new(
        vendor: Vendor,
        serial: u64,
        created: u64,
        ask: &Ask,
        faults: &Faults,
        body: &Bytes,
    ) -> Reply {
        let inside = vendor == Vendor::A
            || vendor.counts_reasoning_inside() && !faults.has(Fault::ReasoningApart);
        let refused = faults.number(Fault::Refusal).filter(|_| vendor == Vendor::A);
        let mut reasoning = faults.number(Fault::Reasoning).unwrap_or(ask.thought);
        if !vendor.bounds_only_visible() {
            reasoning = reasoning.min(ask.tokens_max.unwrap_or(u64::MAX));
        }
        let mut calls = tool_calls(vendor, serial, reasoning > 0, ask, faults);
        let mut finish_reason = if calls.is_empty() { "stop" } else { "tool_calls" };
        let mut stopped_by = None;
        let both = vendor == Vendor::A && faults.has(Fault::TextToo);
        let speaks = both || calls.is_empty() || refused.is_some();
        let mut text = if speaks { text(ask, faults, body) } else { String::new() };
        if let Some((at, stop)) = first_stop(&text, &ask.stops) {
            text.truncate(at);
            calls.clear();
            (finish_reason, stopped_by) = ("stop", Some(stop.to_owned()));
        }
        let thought = if vendor.bounds_only_visible() { 0 } else { reasoning };
        let words_max = ask.tokens_max.map_or(u64::MAX, |max| max.saturating_sub(thought));
        let mut words = text.split_whitespace().count() as u64;
        if words > words_max {
            text = first_words(&text, words_max);
            calls.clear();
            (words, finish_reason, stopped_by) = (words_max, "length", None);
        }
        if let Some(said) = refused {
            text = first_words(&text, said);
            calls.clear();
            (words, reasoning, finish_reason, stopped_by) =
                (said.min(words) + 1, 0, "refusal", None);
        }
        let visible = (words + calls.len() as u64 * TOOL_CALL_TOKENS) * ask.choices;
        let default = if inside { visible + reasoning } else { visible };
        let prompt = faults.number(Fault::Prompt).unwrap_or(body.len() as u64 / 4 + 1);
        let prompt = prompt.max(ask.prompt_min);
        let completion = faults.number(Fault::Completion).unwrap_or(default);
        Reply {
            vendor,
            id: vendor.reply_id(serial),
            created,
            text,
            calls,
            finish_reason,
            stopped_by,
            choices: ask.choices,
            billed: bill(prompt, completion, reasoning, inside),
            chunks: faults.number(Fault::Chunks),
            reasoning_inside: inside,
        }
    }

    /// The text in the pieces in which a stream brings it.
    pub(super) fn pieces(&self) -> Vec<&str> {
        let words: Vec<_> = self.text.split_inclusive(' ').collect();
        let chunks = self.chunks.and_then(|count| usize::try_from(count.max(1)).ok());
        let Some(count) = chunks.filter(|count| *count != words.len()) else {
            return words;
        };
        if self.text.is_empty() {
            return words;
        }
        let mut starts: Vec<_> = self.text.char_indices().map(|(start, _)| start).collect();
        let length = starts.len();
        starts.push(self.text.len());
        let cut = |number: usize| starts[number * length / count];
        (0..count).map(|number| &self.text[cut(number)..cut(number + 1)]).collect()
    }

    /// The bill when only `made` of `all` parts of the visible reply were generated.
    pub(super) fn billed_until(&self, made: u64, all: u64) -> Billed {
        let Billed { prompt, completion, reasoning, .. } = self.billed;
        if made >= all {
            return self.billed;
        }
        let thought = if self.reasoning_inside { reasoning.min(completion) } else { 0 };
        let visible = u128::from(completion - thought) * u128::from(made) / u128::from(all);
        let visible = u64::try_from(visible).expect("a part is no larger than the whole");
        bill(prompt, thought + visible, reasoning, self.reasoning_inside)
    }

    /// The bill before anything was generated, thoughts included.
    pub(super) fn billed_for_prompt(&self) -> Billed {
        bill(self.billed.prompt, 0, 0, self.reasoning_inside)
    }
}

/// FNV-1a of 64 bits, in 16 hex digits.
pub(super) fn fnv(bytes: &[u8]) -> String {
    format!("{:016x}", noise::fnv(bytes))
}

fn bill(prompt: u64, completion: u64, reasoning: u64, inside: bool) -> Billed {
    let apart = if inside { 0 } else { reasoning };
    let total = prompt.saturating_add(completion).saturating_add(apart);
    Billed { prompt, completion, reasoning, total, ..Billed::default() }
}

fn tool_calls(
    vendor: Vendor,
    serial: u64,
    thought: bool,
    ask: &Ask,
    faults: &Faults,
) -> Vec<ToolCall> {
    let wanted = match ask.calls.or(faults.number(Fault::Tools)) {
        Some(count) => count,
        None if matches!(ask.tool_choice, ToolChoice::Forbidden) => 0,
        None => u64::from(ask.tool_result.is_none()),
    };
    let mut tools = ask.tools.clone();
    if let ToolChoice::Forced(name) = &ask.tool_choice {
        for tool in &mut tools {
            let known = ask.tools.iter().find(|tool| tool.name == *name);
            tool.with_arguments = known.is_none_or(|known| known.with_arguments);
            tool.name.clone_from(name);
        }
    }
    let numbered = (0..wanted.min(ask.calls_max.unwrap_or(u64::MAX))).zip(tools.iter().cycle());
    numbered
        .map(|(index, tool)| ToolCall {
            id: vendor.call_id(serial, index, thought),
            name: tool.name.clone(),
            arguments: if tool.with_arguments { TOOL_ARGUMENTS } else { "{}" },
        })
        .collect()
}

/// Where the text first holds one of these, and which.
fn first_stop<'a>(text: &str, stops: &'a [String]) -> Option<(usize, &'a str)> {
    let found = stops.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop.as_str())));
    found.min_by_key(|(at, _)| *at)
}

fn text(ask: &Ask, faults: &Faults, body: &Bytes) -> String {
    let source = if faults.has(Fault::SplitUtf8) { LONG_CHARACTERS } else { USUAL_TEXT };
    if faults.has(Fault::Echo) {
        format!(r#"{{"bytes":{},"fnv":"{}"}}"#, body.len(), fnv(body))
    } else if let Some(length) = faults.number(Fault::ReplyBytes) {
        filled(source, usize::try_from(length).expect("an address space of 64 bits"))
    } else if let Some(result) = &ask.tool_result {
        format!("The tool said: {result}")
    } else if let Some(count) = faults.number(Fault::Chunks) {
        let words = source.split(' ').cycle();
        let words: Vec<_> = (0..count).zip(words).map(|(_, word)| word).collect();
        words.join(" ")
    } else {
        source.to_owned()
    }
}

/// The source again and again, until there are so many bytes.
fn filled(source: &str, length: usize) -> String {
    let mut text = String::with_capacity(length + source.len());
    while text.len() < length {
        text.push_str(source);
        text.push(' ');
    }
    text.truncate(text.floor_char_boundary(length));
    let missing = length - text.len();
    text.extend(std::iter::repeat_n('.', missing));
    text
}

/// The beginning of a text.
pub(super) fn first_words(text: &str, count: u64) -> String {
    let words = (0..count).zip(text.split_whitespace()).map(|(_, word)| word);
    words.collect::<Vec<_>>().join(" ")
}

pub(super) fn plain_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}
