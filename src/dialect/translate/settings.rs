//! Translates the settings of a chat call: all fields except messages and tools.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::dropped_fields::DroppedFields;
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
    /// Whether the answer must be a JSON object, for which the messages format has no setting: its
    /// schemas must name all members of an object.
    pub(super) wants_json_object: bool,
    /// The chat fields that the messages call does not have.
    pub(super) dropped_fields: DroppedFields,
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
            effort: present("reasoning_effort").map(|e| parse_effort(source, e)).transpose()?,
            user_id: hashed_user_id(patch, context.account)?,
            ..CallSettings::default()
        };
        let stop = present("stop").map(|stop| parse_stop(source, stop)).transpose()?;
        let stop = stop.unwrap_or_default();
        settings.stop_sequences = stop.sequences;
        let format = present("response_format").map(parse_response_format).transpose()?;
        let mut format_dropped = false;
        match format {
            Some(ResponseFormat::Schema(schema)) if context.json_schema => {
                settings.output_schema = Some(source.slice_value(schema));
            }
            Some(ResponseFormat::Schema(_)) => format_dropped = true,
            Some(ResponseFormat::Object) => {
                (format_dropped, settings.wants_json_object) = (true, true);
            }
            Some(ResponseFormat::Text) | None => {}
        }
        let max_tokens_dropped = max_tokens_is_dropped(document);
        for (name, _) in document.members().filter(|(_, v)| !v.is_null()) {
            let carried = TRANSLATED_FIELDS.contains(&&*name) && present(&name).is_some();
            let is_dropped = match &*name {
                "response_format" => !carried || format_dropped,
                "stop" => !carried || stop.has_blank,
                "max_tokens" => max_tokens_dropped,
                name => !(carried || HANDLED_FIELDS.contains(&name)),
            };
            if is_dropped {
                settings.dropped_fields.add("", &name);
            }
        }
        settings.add_dropped_members(document);
        Ok(settings)
    }

    /// Sets the limit of output tokens.
    pub(super) fn limit_output(&mut self, limit: u64) {
        self.max_tokens = Some(Bytes::from(limit.to_string()));
    }

    /// Adds the members of translated settings that the messages format does not have.
    fn add_dropped_members(&mut self, document: &JsonDocument) {
        let dropped = &mut self.dropped_fields;
        if let Some(options) = document.get("stream_options") {
            let known = ["include_usage", "include_obfuscation"];
            dropped.add_unknown("stream_options", options, &known);
            // Without obfuscation is how the gateway streams anyway.
            let obfuscation = options.get("include_obfuscation").filter(|v| !v.is_null());
            if obfuscation.is_some_and(|wanted| wanted.bool() != Some(false)) {
                dropped.add("stream_options", "include_obfuscation");
            }
        }
        let Some(format) = document.get("response_format") else { return };
        dropped.add_unknown("response_format", format, &["type", "json_schema"]);
        if let Some(schema) = format.get("json_schema") {
            // The name is a label, and the vendor follows every schema strictly.
            let known = ["name", "schema", "strict"];
            dropped.add_unknown("response_format.json_schema", schema, &known);
        }
    }

    pub(super) fn write(&self, out: &mut MessagesWriter) {
        let mut raw = |name: &str, value: &Option<Bytes>| {
            if let Some(value) = value {
                [",\"", name, "\":"].into_iter().for_each(|part| out.write_str(part));
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

/// Whether `max_tokens` is lost, because the newer `max_completion_tokens` stands beside it with
/// another value.
fn max_tokens_is_dropped(document: &JsonDocument) -> bool {
    let limit = |name: &str| document.get(name).filter(|v| !v.is_null()).map(JsonValue::raw);
    match (limit("max_tokens"), limit("max_completion_tokens")) {
        (Some(older), Some(newer)) => older != newer,
        _ => false,
    }
}

#[derive(Default)]
struct StopSequences {
    /// Those that the vendor gets.
    sequences: Vec<Bytes>,
    /// Whether a blank one was left out.
    has_blank: bool,
}

/// Parses `stop`. Blank stop sequences are left out, because the vendor refuses them.
fn parse_stop(source: SourceBytes<'_>, stop: JsonValue<'_>) -> Result<StopSequences, CallError> {
    let expected = "a string or an array of strings";
    let entries = match stop.kind() {
        JsonKind::String => vec![stop],
        JsonKind::Array => stop.elements().collect(),
        _ => return Err(invalid_value("stop", expected, stop)),
    };
    if let Some(other) = entries.iter().find(|e| e.kind() != JsonKind::String) {
        return Err(invalid_value("stop", expected, *other));
    }
    let count = entries.len();
    let told = entries.into_iter().filter(|e| !is_blank(*e));
    let sequences: Vec<Bytes> = told.map(|e| source.slice_value(e)).collect();
    Ok(StopSequences { has_blank: sequences.len() < count, sequences })
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
