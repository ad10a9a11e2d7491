//! Measures the text of a call's body as the vendor reads it: the texts of the messages, and the
//! tools and schemas with the names of their members. The members that steer the call are no input.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::tally::TextTally;
use crate::dialect::json::value::unescape_lossy;
use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};

/// At most about this many bytes of the messages, and as many of the tools and schemas, are
/// measured. The measure of a longer body is that of its beginning, in proportion: each call is
/// measured, and few need it.
const SAMPLE_BYTES_MAX: usize = 8 << 10;

/// What a value takes in the body beside its content: quotes, a comma, the name of a member.
const VALUE_BYTES: usize = 8;
/// Content is read down to this many levels below a message.
const DEPTH_MAX: usize = 8;

/// The input of a call, by what decides its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::dialect) struct InputTally {
    /// The texts of the messages.
    pub(in crate::dialect) text: TextTally,
    /// The tools, and the schema of the output, as compact JSON.
    pub(in crate::dialect) schema: TextTally,
    /// The messages or items, and the system prompt.
    pub(in crate::dialect) messages: u64,
    /// The parts of messages, and the calls of tools in them.
    pub(in crate::dialect) parts: u64,
    pub(in crate::dialect) tools: u64,
    /// The bytes of the messages that were walked over.
    measured_bytes: usize,
}

impl InputTally {
    /// Measures the body of a chat, messages or responses call of which `text_bytes` bytes are no
    /// images and no documents.
    #[must_use]
    pub(in crate::dialect) fn of_document(document: &JsonDocument, text_bytes: u64) -> InputTally {
        let mut tally = InputTally::default();
        let mut schema_bytes = 0;
        for (name, value) in document.members() {
            match &*name {
                "messages" | "input" | "system" | "instructions" => tally.add_messages(value),
                "tools" | "functions" => {
                    schema_bytes += value.raw().len() as u64;
                    tally.add_tools(value);
                }
                "response_format" | "output_format" | "output_config" | "text" => {
                    let is_schema = value.kind() == JsonKind::Object && has_schema(value);
                    if is_schema {
                        add_json_sample(value, &mut tally.schema);
                    }
                }
                _ => {}
            }
        }
        if tally.is_full() {
            let all = text_bytes.saturating_sub(schema_bytes);
            tally.extrapolate_messages(all);
        }
        tally
    }

    /// Whether no more of the messages is measured.
    fn is_full(&self) -> bool {
        self.measured_bytes >= SAMPLE_BYTES_MAX
    }

    /// Extends the measure of the beginning of the messages to all their bytes.
    fn extrapolate_messages(&mut self, all: u64) {
        let measured = self.measured_bytes as u64;
        self.text.extrapolate(measured, all);
        for count in [&mut self.messages, &mut self.parts] {
            *count = extrapolate(*count, measured, all);
        }
    }

    /// Adds a list of tools. Those after the sample count as much as those in it.
    fn add_tools(&mut self, tools: JsonValue<'_>) {
        let (mut own, mut count, mut measured) = (TextTally::default(), 0_u64, 0_usize);
        own.add("[]");
        for tool in tools.elements() {
            if measured >= SAMPLE_BYTES_MAX {
                break;
            }
            own.add(if count > 0 { "," } else { "" });
            add_json_sample(tool, &mut own);
            (count, measured) = (count.saturating_add(1), measured + tool.raw().len());
        }
        if measured >= SAMPLE_BYTES_MAX {
            let all = tools.raw().len() as u64;
            own.extrapolate(measured as u64, all);
            count = extrapolate(count, measured as u64, all);
        }
        self.tools = self.tools.saturating_add(count);
        self.schema.merge(&own);
    }

    fn add_messages(&mut self, value: JsonValue<'_>) {
        if value.kind() != JsonKind::Array {
            self.messages = self.messages.saturating_add(1);
            self.add_content(value, DEPTH_MAX);
            return;
        }
        for message in value.elements() {
            if self.is_full() {
                break;
            }
            self.messages = self.messages.saturating_add(1);
            self.add_content(message, DEPTH_MAX);
        }
    }

    /// Adds the texts in a message, a part or a list of parts.
    fn add_content(&mut self, value: JsonValue<'_>, depth: usize) {
        self.measured_bytes += VALUE_BYTES;
        if depth == 0 {
            return;
        }
        match value.kind() {
            JsonKind::String => {
                let left = SAMPLE_BYTES_MAX.saturating_sub(self.measured_bytes);
                match beginning_of(value, left) {
                    None => self.text.add(&value.text().unwrap_or_default()),
                    Some(beginning) => self.text.add(&unescape_lossy(beginning.as_bytes())),
                }
                self.text.end_text();
                self.measured_bytes += value.raw().len().min(left);
            }
            JsonKind::Array => {
                for part in value.elements() {
                    if self.is_full() {
                        break;
                    }
                    self.parts = self.parts.saturating_add(1);
                    self.add_content(part, depth - 1);
                }
            }
            JsonKind::Object => self.add_members(value, depth - 1),
            JsonKind::Null | JsonKind::Bool | JsonKind::Number => {}
        }
    }

    fn add_members(&mut self, object: JsonValue<'_>, depth: usize) {
        for (name, value) in object.raw_members() {
            match (&*name, value.kind()) {
                // Names of kinds and ids, data that is no text, and marks for the vendor.
                (
                    b"type" | b"role" | b"id" | b"call_id" | b"tool_call_id" | b"tool_use_id"
                    | b"status" | b"signature" | b"encrypted_content" | b"media_type" | b"detail"
                    | b"cache_control" | b"file_id" | b"file_url" | b"annotations" | b"logprobs"
                    | b"result" | b"format" | b"phase" | b"citations",
                    _,
                ) => self.measured_bytes += name.len() + value.raw().len(),
                // Images and documents are no part of the text at all.
                (b"image_url" | b"file_data" | b"input_audio", _) => {}
                (b"source", JsonKind::Object) => self.add_source(value, depth),
                // The arguments of a tool are rendered as JSON.
                (b"input" | b"arguments" | b"action" | b"operation", JsonKind::Object) => {
                    add_json_sample(value, &mut self.text);
                    self.measured_bytes += value.raw().len().min(SAMPLE_BYTES_MAX);
                }
                _ => self.add_content(value, depth),
            }
        }
    }

    /// Adds the text of a document's source, unless its data is encoded.
    fn add_source(&mut self, source: JsonValue<'_>, depth: usize) {
        let kind = source.get("type").and_then(JsonValue::text);
        let text = match kind.as_deref() {
            Some("text") => source.get("data"),
            Some("content") => source.get("content"),
            _ => None,
        };
        text.into_iter().for_each(|text| self.add_content(text, depth));
    }
}

/// Whether an object asks for output by a schema.
fn has_schema(value: JsonValue<'_>) -> bool {
    let named = |value: JsonValue<'_>| {
        value.raw_members().any(|(name, _)| matches!(&*name, b"schema" | b"json_schema"))
    };
    named(value) || value.raw_members().any(|(_, inner)| named(inner))
}

/// Returns the first `bytes_max` bytes of a string or another value as they are in the body, with
/// its escapes; `None` if the value is not longer.
fn beginning_of(value: JsonValue<'_>, bytes_max: usize) -> Option<&str> {
    let raw = value.string_bytes().unwrap_or_else(|| value.raw());
    let beginning = raw.get(..bytes_max).filter(|_| raw.len() > bytes_max)?;
    Some(match std::str::from_utf8(beginning) {
        Ok(text) => text,
        // The last character was cut.
        Err(cut) => std::str::from_utf8(&beginning[..cut.valid_up_to()]).unwrap_or_default(),
    })
}

/// Adds a value as [`add_json`], or the beginning of a long value.
fn add_json_sample(value: JsonValue<'_>, tally: &mut TextTally) {
    match beginning_of(value, SAMPLE_BYTES_MAX) {
        None => add_json(value, tally),
        Some(beginning) => {
            let mut own = TextTally::default();
            own.add(&unescape_lossy(beginning.as_bytes()));
            own.extrapolate(beginning.len() as u64, value.raw().len() as u64);
            tally.merge(&own);
        }
    }
}

/// Returns `count · all ∕ measured`, rounded down.
pub(super) fn extrapolate(count: u64, measured: u64, all: u64) -> u64 {
    let product = u128::from(count) * u128::from(all.max(measured));
    u64::try_from(product / u128::from(measured.max(1))).unwrap_or(u64::MAX)
}

/// Adds a value as compact JSON whose strings have no escapes.
pub(in crate::dialect) fn add_json(value: JsonValue<'_>, tally: &mut TextTally) {
    match value.kind() {
        JsonKind::Object => {
            let mut opening = "{\"";
            for (name, value) in value.members() {
                tally.add(opening);
                tally.add(&name);
                tally.add("\":");
                add_json(value, tally);
                opening = ",\"";
            }
            tally.add(if opening == ",\"" { "}" } else { "{}" });
        }
        JsonKind::Array => {
            let mut opening = "[";
            for value in value.elements() {
                tally.add(opening);
                add_json(value, tally);
                opening = ",";
            }
            tally.add(if opening == "," { "]" } else { "[]" });
        }
        JsonKind::String => {
            tally.add("\"");
            tally.add(&value.text().unwrap_or_default());
            tally.add("\"");
        }
        JsonKind::Null | JsonKind::Bool | JsonKind::Number => {
            tally.add(std::str::from_utf8(value.raw()).unwrap_or_default());
        }
    }
}
