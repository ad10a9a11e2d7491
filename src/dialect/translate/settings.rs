//! Translates the settings of a chat call: all fields except messages and tools.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::parts::is_blank;
use super::request::TranslationContext;
use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::json::{JsonDocument, JsonKind, JsonPatch, JsonValue};
use crate::hex::to_hex;

/// Fields of a chat call that are translated, unless the rules removed them.
const TRANSLATED_FIELDS: [&str; 13] = [
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
/// Fields that take effect in another way, and so do not count as dropped.
const HANDLED_FIELDS: [&str; 6] =
    ["model", "messages", "max_tokens", "max_completion_tokens", "stream_options", "n"];
/// At most this many names of dropped fields are reported, each of at most `DROPPED_NAME_BYTES_MAX`
/// bytes.
const DROPPED_NAMES_MAX: usize = 32;
const DROPPED_NAME_BYTES_MAX: usize = 64;

/// The translated settings. An absent setting is not written.
#[derive(Default)]
pub(super) struct CallSettings {
    max_tokens: Option<Bytes>,
    stream: bool,
    temperature: Option<Bytes>,
    top_p: Option<Bytes>,
    stop_sequences: Vec<Bytes>,
    effort: Option<Bytes>,
    output_schema: Option<Bytes>,
    user_id: Option<String>,
    /// The names of the chat fields that the messages call does not have.
    pub(super) dropped_fields: Vec<String>,
}

impl CallSettings {
    pub(super) fn parse(
        document: &JsonDocument,
        patch: &JsonPatch<'_>,
        context: TranslationContext<'_>,
    ) -> Result<CallSettings, CallError> {
        let source = SourceBytes(document.body());
        let present = |name: &str| patch.get(name).filter(|v| !v.is_null());
        let number = |name: &str| match present(name) {
            Some(value) if value.kind() != JsonKind::Number => {
                Err(invalid_value(name, "a number", value))
            }
            value => Ok(value.map(|v| source.slice_value(v))),
        };
        let mut settings = CallSettings {
            max_tokens: number("max_tokens")?,
            stream: present("stream").and_then(JsonValue::bool).unwrap_or(false),
            temperature: number("temperature")?,
            top_p: number("top_p")?,
            stop_sequences: present("stop")
                .map_or_else(|| Ok(Vec::new()), |s| parse_stop(source, s))?,
            effort: present("reasoning_effort").map(|e| parse_effort(source, e)).transpose()?,
            user_id: hashed_user_id(patch, context.account)?,
            ..CallSettings::default()
        };
        let format = present("response_format").map(parse_response_format).transpose()?;
        let mut format_dropped = false;
        match format {
            Some(ResponseFormat::Schema(schema)) if context.json_schema => {
                settings.output_schema = Some(source.slice_value(schema));
            }
            Some(ResponseFormat::Schema(_) | ResponseFormat::Object) => format_dropped = true,
            Some(ResponseFormat::Text) | None => {}
        }
        let is_dropped = |name: &str| {
            let carried = TRANSLATED_FIELDS.contains(&name) && present(name).is_some();
            !(carried || HANDLED_FIELDS.contains(&name))
                || (name == "response_format" && format_dropped)
        };
        let is_reportable = |name: &str| {
            let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            (1..=DROPPED_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
        };
        let names = document.members().filter(|(_, v)| !v.is_null()).map(|(name, _)| name);
        let dropped =
            names.filter(|name| is_dropped(name) && is_reportable(name)).take(DROPPED_NAMES_MAX);
        settings.dropped_fields = dropped.map(std::borrow::Cow::into_owned).collect();
        Ok(settings)
    }

    pub(super) fn write(&self, out: &mut MessagesWriter) {
        let mut raw = |name: &str, value: &Option<Bytes>| {
            if let Some(value) = value {
                out.write_str(&format!(",\"{name}\":"));
                out.write_bytes(value);
            }
        };
        raw("max_tokens", &self.max_tokens);
        raw("temperature", &self.temperature);
        raw("top_p", &self.top_p);
        if self.stream {
            out.write_str(r#","stream":true"#);
        }
        if !self.stop_sequences.is_empty() {
            out.write_str(r#","stop_sequences":["#);
            out.write_list(&self.stop_sequences, MessagesWriter::write_bytes);
            out.write_str("]");
        }
        if self.effort.is_some() || self.output_schema.is_some() {
            out.write_str(r#","output_config":{"#);
            if let Some(effort) = &self.effort {
                out.write_str(r#""effort":"#);
                out.write_bytes(effort);
            }
            if let Some(schema) = &self.output_schema {
                out.write_str(if self.effort.is_some() { "," } else { "" });
                out.write_str(r#""format":{"type":"json_schema","schema":"#);
                out.write_bytes(schema);
                out.write_str("}");
            }
            out.write_str("}");
        }
        if let Some(user) = &self.user_id {
            out.write_str(&format!(r#","metadata":{{"user_id":"{user}"}}"#));
        }
    }
}

/// Parses `stop`. Blank stop sequences are left out, because the vendor refuses them.
fn parse_stop(source: SourceBytes<'_>, stop: JsonValue<'_>) -> Result<Vec<Bytes>, CallError> {
    let expected = "a string or an array of strings";
    let entries = match stop.kind() {
        JsonKind::String => vec![stop],
        JsonKind::Array => stop.elements().collect(),
        _ => return Err(invalid_value("stop", expected, stop)),
    };
    if let Some(other) = entries.iter().find(|e| e.kind() != JsonKind::String) {
        return Err(invalid_value("stop", expected, *other));
    }
    Ok(entries.into_iter().filter(|e| !is_blank(*e)).map(|e| source.slice_value(e)).collect())
}

fn parse_effort(source: SourceBytes<'_>, effort: JsonValue<'_>) -> Result<Bytes, CallError> {
    if effort.kind() != JsonKind::String {
        return Err(invalid_value("reasoning_effort", "low, medium or high", effort));
    }
    Ok(source.slice_value(effort))
}

enum ResponseFormat<'a> {
    Text,
    Object,
    Schema(JsonValue<'a>),
}

fn parse_response_format(format: JsonValue<'_>) -> Result<ResponseFormat<'_>, CallError> {
    match format.get("type").and_then(JsonValue::text).as_deref() {
        Some("text") => Ok(ResponseFormat::Text),
        Some("json_object") => Ok(ResponseFormat::Object),
        Some("json_schema") => {
            let field = "response_format.json_schema.schema";
            let schema = format.get("json_schema").and_then(|s| s.get("schema"));
            match schema.filter(|s| s.kind() == JsonKind::Object) {
                Some(schema) => Ok(ResponseFormat::Schema(schema)),
                None => Err(CallError::missing(field, "a JSON schema, an object")),
            }
        }
        _ => Err(invalid_value(
            "response_format",
            "{type: text, json_object or json_schema}",
            format,
        )),
    }
}

/// Returns a digest of the account and the client's user. It lets the vendor tell users apart and
/// nothing more. `None` if the call names no user.
fn hashed_user_id(patch: &JsonPatch<'_>, account: &str) -> Result<Option<String>, CallError> {
    let mut found = None;
    for name in ["safety_identifier", "user"] {
        if let Some(value) = patch.get(name).filter(|v| !v.is_null()) {
            let text =
                value.text().ok_or_else(|| invalid_value(name, "a string", value))?.into_owned();
            found = Some(text).filter(|t| !t.is_empty()).or(found);
        }
    }
    let Some(user) = found else { return Ok(None) };
    let mut digest = Sha256::new();
    for part in [account.as_bytes(), &[0], user.as_bytes()] {
        digest.update(part);
    }
    Ok(Some(to_hex(&digest.finalize())))
}
