//! Embeddings calls, and the conversion of their replies to what the client asked for: vectors in
//! base64 if the vendor returns numbers only, and counted usage if the vendor reports none.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::CallError;
use super::call::fields::{invalid_value, non_null_member};
use super::json::{JsonDocument, JsonKind, JsonValue};
use super::speech::count_code_points;

mod entries;
mod inputs;
mod reply;

pub use inputs::EmbeddingInputs;
pub use reply::{EmbeddingsReader, EmbeddingsReply, EmbeddingsReplyError, convert_reply};

/// At most this many inputs are accepted in one call (`vendor_b`'s limit).
const INPUTS_MAX: u64 = 2_048;
/// At most this many numbers are in one vector: no model has more.
const DIMENSIONS_MAX: u64 = 3_072;
/// The most bytes that one number takes as text if the vendor indents its JSON.
const NUMBER_BYTES_MAX: u64 = 24;
/// At most this many numbers fit into one reply as text.
const NUMBERS_MAX: u64 = REPLY_BYTES_MAX as u64 / NUMBER_BYTES_MAX;
/// The maximum length of a reply in bytes.
pub(crate) const REPLY_BYTES_MAX: usize = 96 << 20;
/// Code points per token in estimates.
const CODE_POINTS_PER_TOKEN: u64 = 4;

const INPUT_EXPECTED: &str = "a string, or a non-empty array of strings, of token \
    ids or of arrays of token ids";
const TEXT_EXPECTED: &str = "a string";
const TOKEN_EXPECTED: &str = "a token id, a whole number from 0";
const TOKENS_EXPECTED: &str = "a non-empty array of token ids";

/// Parses the body of an embeddings call.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub fn parse_request(document: &JsonDocument) -> Result<EmbeddingInputs, CallError> {
    let Some(input) = non_null_member(document, "input") else {
        return Err(CallError::missing("input", INPUT_EXPECTED));
    };
    let TokenCount { inputs, tokens, tokens_max } = count_input_tokens(input)?;
    let dimensions = match non_null_member(document, "dimensions") {
        None => DIMENSIONS_MAX,
        Some(value) => {
            let expected = format!("a whole number from 1 to {DIMENSIONS_MAX}");
            let known = value.integer().filter(|n| (1..=DIMENSIONS_MAX).contains(n));
            known.ok_or_else(|| invalid_value("dimensions", &expected, value))?
        }
    };
    let base64 = match non_null_member(document, "encoding_format") {
        None => false,
        Some(format) => match format.text().as_deref() {
            Some("float") => false,
            Some("base64") => true,
            _ => return Err(invalid_value("encoding_format", "float or base64", format)),
        },
    };
    if !base64 && inputs.saturating_mul(dimensions) > NUMBERS_MAX {
        let expected = format!(
            "base64 for {inputs} inputs of up to {dimensions} numbers, or send fewer at once: so \
             many do not fit into an answer as text"
        );
        return Err(CallError::invalid("encoding_format", &expected));
    }
    Ok(EmbeddingInputs { base64, tokens, tokens_max })
}

/// The number of inputs and their tokens: `tokens` is an estimate, `tokens_max` an upper bound.
#[derive(Default)]
struct TokenCount {
    inputs: u64,
    tokens: u64,
    tokens_max: u64,
}

impl TokenCount {
    /// Counts the tokens of a text; `None` if the value is not a string. At worst the vendor makes
    /// a token of each byte, and it may add one token. An empty text counts as one token: whether
    /// it may be embedded is left to the vendor.
    fn count_text(&mut self, text: JsonValue<'_>) -> Option<()> {
        let code_points = count_code_points(text)?;
        self.tokens += code_points.div_ceil(CODE_POINTS_PER_TOKEN).max(1);
        self.tokens_max += text.string_bytes().map_or(0, <[u8]>::len) as u64 + 1;
        Some(())
    }

    /// Counts the tokens of a list of token ids; `name` is the path of the list.
    fn count_token_list(&mut self, name: &str, list: JsonValue<'_>) -> Result<(), CallError> {
        let mut count = 0;
        for (i, token) in list.elements().enumerate() {
            token
                .integer()
                .ok_or_else(|| invalid_value(&format!("{name}[{i}]"), TOKEN_EXPECTED, token))?;
            count += 1;
        }
        if count == 0 {
            // This also refuses a value that is not a list, since such a value has no elements.
            return Err(invalid_value(name, TOKENS_EXPECTED, list));
        }
        self.tokens += count;
        self.tokens_max += count;
        Ok(())
    }
}

fn count_input_tokens(input: JsonValue<'_>) -> Result<TokenCount, CallError> {
    let mut count = TokenCount { inputs: 1, ..TokenCount::default() };
    let first = input.elements().next().map(JsonValue::kind);
    match (input.kind(), first) {
        (JsonKind::String, _) => {
            count.count_text(input).ok_or_else(|| invalid_value("input", TEXT_EXPECTED, input))?;
        }
        (_, Some(JsonKind::Number)) => count.count_token_list("input", input)?,
        (_, Some(first)) => {
            let inputs = input.elements().count() as u64;
            if inputs > INPUTS_MAX {
                let expected = format!("of at most {INPUTS_MAX} inputs, not of {inputs}");
                return Err(CallError::invalid("input", &expected));
            }
            count.inputs = inputs;
            for (i, one) in input.elements().enumerate() {
                let name = format!("input[{i}]");
                match first {
                    JsonKind::Array => count.count_token_list(&name, one)?,
                    JsonKind::String => count
                        .count_text(one)
                        .ok_or_else(|| invalid_value(&name, TEXT_EXPECTED, one))?,
                    _ => return Err(invalid_value(&name, "a string or token ids", one)),
                }
            }
        }
        (_, None) => return Err(invalid_value("input", INPUT_EXPECTED, input)),
    }
    Ok(count)
}

#[cfg(test)]
mod tests;
