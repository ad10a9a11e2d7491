//! The settings of a call: everything but its messages and tools.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt::Write as _;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::parts::is_blank;
use super::request::TranslationContext;
use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::call::wrong;
use crate::dialect::json::{JsonDocument, JsonKind, JsonPatch, JsonValue};

/// What is carried, if the rules have left it in.
const CARRIED: [&str; 13] = [
    "temperature",
    "top_p",
    "stop",
    "stream",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "parallel_tool_calls",
    "reasoning_effort",
    "response_format",
    "user",
    "safety_identifier",
];
/// What has its effect without being carried under its own name.
const SERVED: [&str; 6] =
    ["model", "messages", "max_tokens", "max_completion_tokens", "stream_options", "n"];
/// Names of dropped fields that are told, at most, and how long they may be.
const NAMES_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 64;

/// See the module. What is not there stays away.
#[derive(Default)]
pub(super) struct CallSettings {
    max_tokens: Option<Bytes>,
    stream: bool,
    temperature: Option<Bytes>,
    top_p: Option<Bytes>,
    stop: Vec<Bytes>,
    effort: Option<Bytes>,
    schema: Option<Bytes>,
    user: Option<String>,
    /// Fields of the call that are not carried.
    pub(super) dropped: Vec<String>,
}

impl CallSettings {
    pub(super) fn read(
        document: &JsonDocument,
        draft: &JsonPatch<'_>,
        manner: TranslationContext<'_>,
    ) -> Result<CallSettings, CallError> {
        let source = SourceBytes(document.body());
        let present = |name: &str| draft.get(name).filter(|v| !v.is_null());
        let number = |name: &str| match present(name) {
            Some(value) if value.kind() != JsonKind::Number => Err(wrong(name, "a number", value)),
            value => Ok(value.map(|v| source.keep(v))),
        };
        let mut settings = CallSettings {
            max_tokens: number("max_tokens")?,
            stream: present("stream").and_then(JsonValue::bool).unwrap_or(false),
            temperature: number("temperature")?,
            top_p: number("top_p")?,
            stop: present("stop").map_or_else(|| Ok(Vec::new()), |s| stop(source, s))?,
            effort: present("reasoning_effort").map(|e| effort(source, e)).transpose()?,
            user: user(draft, manner.account)?,
            ..CallSettings::default()
        };
        let format = present("response_format").map(schema).transpose()?;
        let mut lost_format = false;
        match format {
            Some(OutputSchema::Schema(schema)) if manner.json_schema => {
                settings.schema = Some(source.keep(schema));
            }
            Some(OutputSchema::Schema(_) | OutputSchema::Object) => lost_format = true,
            Some(OutputSchema::Text) | None => {}
        }
        let lost = |name: &str| {
            let carried = CARRIED.contains(&name) && present(name).is_some();
            !(carried || SERVED.contains(&name)) || (name == "response_format" && lost_format)
        };
        let told = |name: &str| {
            let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
        };
        let names = document.members().filter(|(_, v)| !v.is_null()).map(|(name, _)| name);
        let dropped = names.filter(|name| lost(name) && told(name)).take(NAMES_MAX);
        settings.dropped = dropped.map(std::borrow::Cow::into_owned).collect();
        Ok(settings)
    }

    pub(super) fn write(&self, out: &mut MessagesWriter) {
        let mut raw = |name: &str, value: &Option<Bytes>| {
            if let Some(value) = value {
                out.text(&format!(",\"{name}\":"));
                out.bytes(value);
            }
        };
        raw("max_tokens", &self.max_tokens);
        raw("temperature", &self.temperature);
        raw("top_p", &self.top_p);
        if self.stream {
            out.text(r#","stream":true"#);
        }
        if !self.stop.is_empty() {
            out.text(r#","stop_sequences":["#);
            out.list(&self.stop, MessagesWriter::bytes);
            out.text("]");
        }
        if self.effort.is_some() || self.schema.is_some() {
            out.text(r#","output_config":{"#);
            if let Some(effort) = &self.effort {
                out.text(r#""effort":"#);
                out.bytes(effort);
            }
            if let Some(schema) = &self.schema {
                out.text(if self.effort.is_some() { "," } else { "" });
                out.text(r#""format":{"type":"json_schema","schema":"#);
                out.bytes(schema);
                out.text("}");
            }
            out.text("}");
        }
        if let Some(user) = &self.user {
            out.text(&format!(r#","metadata":{{"user_id":"{user}"}}"#));
        }
    }
}

/// Where to stop. The vendor refuses white space alone, which then has no effect.
fn stop(source: SourceBytes<'_>, stop: JsonValue<'_>) -> Result<Vec<Bytes>, CallError> {
    let right = "a string or an array of strings";
    let entries = match stop.kind() {
        JsonKind::Text => vec![stop],
        JsonKind::List => stop.elements().collect(),
        _ => return Err(wrong("stop", right, stop)),
    };
    if let Some(other) = entries.iter().find(|e| e.kind() != JsonKind::Text) {
        return Err(wrong("stop", right, *other));
    }
    Ok(entries.into_iter().filter(|e| !is_blank(*e)).map(|e| source.keep(e)).collect())
}

fn effort(source: SourceBytes<'_>, effort: JsonValue<'_>) -> Result<Bytes, CallError> {
    if effort.kind() != JsonKind::Text {
        return Err(wrong("reasoning_effort", "low, medium or high", effort));
    }
    Ok(source.keep(effort))
}

enum OutputSchema<'a> {
    Text,
    Object,
    Schema(JsonValue<'a>),
}

fn schema(format: JsonValue<'_>) -> Result<OutputSchema<'_>, CallError> {
    match format.get("type").and_then(JsonValue::text).as_deref() {
        Some("text") => Ok(OutputSchema::Text),
        Some("json_object") => Ok(OutputSchema::Object),
        Some("json_schema") => {
            let field = "response_format.json_schema.schema";
            let schema = format.get("json_schema").and_then(|s| s.get("schema"));
            match schema.filter(|s| s.kind() == JsonKind::Object) {
                Some(schema) => Ok(OutputSchema::Schema(schema)),
                None => Err(CallError::missing(field, "a JSON schema, an object")),
            }
        }
        _ => Err(wrong("response_format", "{type: text, json_object or json_schema}", format)),
    }
}

/// Who the client's user is: a digest, so that the vendor can tell users apart and nothing more.
fn user(draft: &JsonPatch<'_>, account: &str) -> Result<Option<String>, CallError> {
    let mut found = None;
    for name in ["safety_identifier", "user"] {
        if let Some(value) = draft.get(name).filter(|v| !v.is_null()) {
            let text = value.text().ok_or_else(|| wrong(name, "a string", value))?.into_owned();
            found = Some(text).filter(|t| !t.is_empty()).or(found);
        }
    }
    let Some(user) = found else { return Ok(None) };
    let mut digest = Sha256::new();
    for part in [account.as_bytes(), &[0], user.as_bytes()] {
        digest.update(part);
    }
    let hex = digest.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    Ok(Some(hex))
}
