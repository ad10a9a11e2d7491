//! The object itself, at every stage.

use serde_json::Value;

use super::super::asked::Asked;
use super::super::faults::Fault;
use super::super::record::Billed;
use super::super::reply::Reply;
use super::super::usage::quoted;
use super::hosted::Hosted;
use super::item::Item;

const BROKEN: &str =
    r#"{"input_tokens":-7,"output_tokens":3.75,"total_tokens":99999999999999999999}"#;
const FAILED: &str =
    r#"{"code":"server_error","message":"The model failed to generate a response."}"#;
/// A text that only the vendor can read.
pub(super) const SEALED: &str = "gAAAAABpVHdvIGFuZCB0d28gYXJlIGZvdXIu";
/// Tokens of an image that a tool of the vendor's own makes.
const IMAGE_TOKENS: u64 = 1056;
/// Members that come back as they were sent, and what stands there otherwise.
const ECHOED: [(&str, &str); 17] = [
    ("background", "false"),
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("prompt_cache_key", "null"),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("safety_identifier", "null"),
    ("store", "true"),
    ("temperature", "1.0"),
    ("text", r#"{"format":{"type":"text"},"verbosity":"medium"}"#),
    ("tool_choice", r#""auto""#),
    ("tools", "[]"),
    ("top_p", "1.0"),
    ("truncation", r#""disabled""#),
    ("user", "null"),
];

/// How a response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Completed,
    /// At the bound of its tokens.
    CutOff,
    Filtered,
    Failed,
}

impl Outcome {
    pub(super) fn status(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::CutOff | Outcome::Filtered => "incomplete",
            Outcome::Failed => "failed",
        }
    }

    /// The event that tells it.
    pub(super) fn event(self) -> &'static str {
        match self {
            Outcome::Completed => "response.completed",
            Outcome::CutOff | Outcome::Filtered => "response.incomplete",
            Outcome::Failed => "response.failed",
        }
    }

    fn details(self) -> Details {
        let incomplete = |reason| Details { incomplete: reason, ..NO_DETAILS };
        match self {
            Outcome::Completed => NO_DETAILS,
            Outcome::CutOff => incomplete(r#"{"reason":"max_output_tokens"}"#),
            Outcome::Filtered => incomplete(r#"{"reason":"content_filter"}"#),
            Outcome::Failed => Details { error: FAILED, ..NO_DETAILS },
        }
    }
}

/// Why a response is not as it should be, in JSON.
struct Details {
    /// The member `error`.
    error: &'static str,
    /// The member `incomplete_details`.
    incomplete: &'static str,
}

const NO_DETAILS: Details = Details { error: "null", incomplete: "null" };

/// What does not change from stage to stage.
pub(super) struct Object<'a> {
    pub(super) id: String,
    pub(super) obfuscates: bool,
    /// Whether it is done later, as far as the client is concerned.
    pub(super) background: bool,
    asked: &'a Asked,
    model: String,
    tier: String,
    echoed: String,
    billed: Billed,
    hosted: &'a [Hosted],
}

impl<'a> Object<'a> {
    pub(super) fn new(
        body: &Value,
        asked: &'a Asked,
        reply: &Reply,
        hosted: &'a [Hosted],
    ) -> Object<'a> {
        let told = |(name, usual): (&str, &str)| {
            let value = Some(&body[name]).filter(|value| !value.is_null());
            format!(r#","{name}":{}"#, value.map_or_else(|| usual.to_owned(), Value::to_string))
        };
        let tier = body["service_tier"].as_str().filter(|tier| *tier != "auto");
        let metadata = body["metadata"].as_object().map(|_| body["metadata"].to_string());
        let echoed: String = ECHOED.into_iter().map(told).collect();
        Object {
            id: format!("resp_sim{:045x}", asked.serial),
            obfuscates: body["stream_options"]["include_obfuscation"] != false,
            background: body["background"] == true,
            asked,
            model: body["model"].to_string(),
            tier: quoted(tier.unwrap_or("default")),
            echoed: format!(r#"{echoed},"metadata":{}"#, metadata.as_deref().unwrap_or("{}")),
            billed: reply.billed,
            hosted,
        }
    }

    /// Without output so far.
    pub(super) fn unfinished(&self, status: &str) -> String {
        self.text(status, &NO_DETAILS, "", r#","usage":null"#)
    }

    /// With all that came of it.
    pub(super) fn finished(&self, outcome: Outcome, items: &[Item]) -> String {
        let status = outcome.status();
        let whole = if outcome == Outcome::Completed { "completed" } else { "incomplete" };
        let items: Vec<_> = items.iter().map(|item| item.at_end(whole)).collect();
        let failed = outcome == Outcome::Failed;
        let items = if failed { String::new() } else { items.join(",") };
        let usage = if failed { r#","usage":null"#.to_owned() } else { self.usage() };
        let more = if failed { String::new() } else { self.tool_usage() };
        self.text(status, &outcome.details(), &items, &format!("{usage}{more}"))
    }

    /// What is left of a conversation: these messages, and all else sealed.
    pub(super) fn compacted(&self, messages: &[Value]) -> String {
        let Object { id, asked, .. } = self;
        let (serial, created) = (asked.serial, asked.created);
        let sealed = format!(
            "{{\"id\":\"cmp_sim{serial:012}\",\"type\":\"compaction\",\
             \"encrypted_content\":\"{SEALED}\"}}"
        );
        let output: Vec<_> = messages.iter().map(Value::to_string).chain([sealed]).collect();
        format!(
            "{{\"id\":\"{id}\",\"object\":\"response.compaction\",\
             \"created_at\":{created},\"output\":[{}]{}}}",
            output.join(","),
            self.usage()
        )
    }

    fn text(&self, status: &str, details: &Details, output: &str, end: &str) -> String {
        let Object { id, model, tier, echoed, asked, .. } = self;
        let Details { error, incomplete } = details;
        let created = asked.created;
        format!(
            "{{\"id\":\"{id}\",\"object\":\"response\",\"created_at\":{created}.0,\
             \"status\":\"{status}\",\"error\":{error},\"incomplete_details\":{incomplete},\
             \"model\":{model},\"output\":[{output}],\"service_tier\":{tier}{echoed}{end}}}"
        )
    }

    fn usage(&self) -> String {
        let faults = &self.asked.faults;
        let Billed { prompt, completion, reasoning, total, .. } = self.billed;
        if faults.has(Fault::NoUsage) {
            String::new()
        } else if faults.has(Fault::NullUsage) {
            r#","usage":null"#.to_owned()
        } else if faults.has(Fault::BadUsage) {
            format!(r#","usage":{BROKEN}"#)
        } else {
            let kept = |fault, most: u64| faults.number(fault).unwrap_or_default().min(most);
            let read = kept(Fault::CacheRead, prompt);
            let written = kept(Fault::CacheWrite, prompt - read);
            format!(
                ",\"usage\":{{\"input_tokens\":{prompt},\"input_tokens_details\":\
                 {{\"cached_tokens\":{read},\"cache_write_tokens\":{written}}},\
                 \"output_tokens\":{completion},\"output_tokens_details\":\
                 {{\"reasoning_tokens\":{reasoning}}},\"total_tokens\":{total}}}"
            )
        }
    }

    fn tool_usage(&self) -> String {
        let count = |is: fn(Hosted) -> bool| self.hosted.iter().filter(|call| is(**call)).count();
        let searches = count(Hosted::is_search);
        let output = count(Hosted::is_image) as u64 * IMAGE_TOKENS;
        format!(
            ",\"tool_usage\":{{\"web_search\":{{\"num_requests\":{searches}}},\"image_gen\":\
             {{\"input_tokens\":0,\"output_tokens\":{output},\"total_tokens\":{output}}}}}"
        )
    }
}
