//! Gives an upper bound of the tokens that a vendor with the vocabulary `o200k` can find in the
//! text of a call.
//!
//! Of other tokenizers nothing below a token a byte is sure: one or another makes a token of a
//! digit, of a control character, of a letter among rare ones, or of each byte of a rare character.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::o200k::count_o200k;
use crate::dialect::data_uri::{TEXT_MEDIA_TYPES, is_data_uri};
use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};

/// At most this many bytes of a call are counted exactly; each byte beyond them counts as a token.
/// The count of so many takes from 60 to 200 milliseconds.
const EXACT_BYTES_MAX: u64 = 512 << 10;

/// The tokens that the vendor may add to the text of a call, and again for tools and for a schema
/// of the output. It was seen to add a third of it.
const PROMPT_TOKENS: u64 = 128;
/// The tokens that frame a name, a value or an element of the body.
const VALUE_TOKENS: u64 = 4;
/// The tokens of a number that the vendor writes without its exponent.
const EXPONENT_TOKENS: u64 = 400;

/// Returns an upper bound of the tokens of the text in a body, including what the vendor adds to
/// frame it. Images and documents are left out; `attachment_bytes` is how many bytes of them the
/// caller counts apart. `None` if the body has more data that looks like them, so that nothing but
/// its bytes bounds its tokens.
#[must_use]
pub(in crate::dialect) fn o200k_tokens_max(
    document: &JsonDocument,
    attachment_bytes: u64,
) -> Option<u64> {
    let mut bound = TextBound::new(PROMPT_TOKENS);
    for (name, value) in document.members() {
        bound.add_name(&name);
        match &*name {
            "tools" | "functions" | "response_format" | "output_format" | "output_config"
            | "text" => {
                bound.tokens = bound.tokens.saturating_add(PROMPT_TOKENS);
                bound.add_value(value, TextRendering::Json);
            }
            _ => bound.add_value(value, TextRendering::Text),
        }
    }
    (bound.attachment_bytes <= attachment_bytes).then_some(bound.tokens)
}

/// How a vendor renders the strings in a part of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextRendering {
    /// As they are.
    Text,
    /// As they are, or as JSON.
    Json,
}

struct TextBound {
    tokens: u64,
    /// How many bytes may still be counted exactly.
    exact_bytes_left: u64,
    /// The bytes of the images and documents that were left out.
    attachment_bytes: u64,
}

impl TextBound {
    fn new(tokens: u64) -> TextBound {
        TextBound { tokens, exact_bytes_left: EXACT_BYTES_MAX, attachment_bytes: 0 }
    }

    fn add_name(&mut self, name: &str) {
        let tokens = self.text_tokens_max(name);
        self.tokens = self.tokens.saturating_add(tokens).saturating_add(VALUE_TOKENS);
    }

    fn add_value(&mut self, value: JsonValue<'_>, rendering: TextRendering) {
        self.tokens = self.tokens.saturating_add(VALUE_TOKENS);
        match value.kind() {
            JsonKind::Object => self.add_object(value, rendering),
            JsonKind::Array => value.elements().for_each(|value| self.add_value(value, rendering)),
            JsonKind::String => self.add_string(value, rendering),
            JsonKind::Number if value.raw().iter().any(|byte| matches!(byte, b'e' | b'E')) => {
                self.tokens = self.tokens.saturating_add(EXPONENT_TOKENS);
                self.add_bytes(value);
            }
            JsonKind::Null | JsonKind::Bool | JsonKind::Number => self.add_bytes(value),
        }
    }

    fn add_object(&mut self, object: JsonValue<'_>, rendering: TextRendering) {
        let is_base64 = || {
            let kind = object.get("type").and_then(JsonValue::text);
            matches!(kind.as_deref(), Some("base64"))
        };
        for (name, value) in object.members() {
            self.add_name(&name);
            let is_text = rendering == TextRendering::Text;
            match (&*name, value.kind()) {
                ("image_url", JsonKind::String) if is_text => self.skip_attachment(value),
                ("image_url", JsonKind::Object) if is_text => self.add_image_address(value),
                ("file_data", JsonKind::String)
                    if is_text && !is_data_uri(value, &TEXT_MEDIA_TYPES) =>
                {
                    self.skip_attachment(value);
                }
                ("data", JsonKind::String) if is_text && is_base64() => {
                    self.skip_attachment(value);
                }
                // Arguments of a tool are written as JSON.
                ("input" | "arguments" | "action" | "operation", JsonKind::Object) => {
                    self.add_value(value, TextRendering::Json);
                }
                // Data that is no text, or text in an encoding: what it decodes to is not longer.
                (
                    "file_data" | "data" | "result" | "encrypted_content" | "signature"
                    | "thought_signature",
                    JsonKind::String,
                ) => self.add_bytes(value),
                _ => self.add_value(value, rendering),
            }
        }
    }

    fn add_image_address(&mut self, image: JsonValue<'_>) {
        for (name, value) in image.members() {
            if name == "url" {
                self.skip_attachment(value);
            } else {
                self.add_bytes(value);
            }
        }
    }

    fn skip_attachment(&mut self, value: JsonValue<'_>) {
        self.attachment_bytes = self.attachment_bytes.saturating_add(value.raw().len() as u64);
    }

    fn add_string(&mut self, value: JsonValue<'_>, rendering: TextRendering) {
        let text = value.text().unwrap_or_default();
        let mut tokens = self.text_tokens_max(&text);
        let escaped = value.string_bytes().unwrap_or_default();
        if rendering == TextRendering::Json && escaped.len() != text.len() {
            let escaped = std::str::from_utf8(escaped).unwrap_or_default();
            tokens = tokens.max(self.text_tokens_max(escaped));
        }
        self.tokens = self.tokens.saturating_add(tokens);
    }

    fn add_bytes(&mut self, value: JsonValue<'_>) {
        self.tokens = self.tokens.saturating_add(value.raw().len() as u64);
    }

    fn text_tokens_max(&mut self, text: &str) -> u64 {
        let bytes = text.len() as u64;
        let counted = self.exact_bytes_left.checked_sub(bytes).zip(count_o200k(text));
        counted.map_or(bytes, |(left, tokens)| {
            self.exact_bytes_left = left;
            tokens
        })
    }
}
