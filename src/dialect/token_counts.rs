//! Counts of input tokens: whether a vendor's reply is one.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::json::{JsonDocument, JsonValue};

/// Whether a vendor's reply is a count: it has a whole number of input tokens.
#[must_use]
pub(super) fn is_token_count(document: &JsonDocument) -> bool {
    document.get("input_tokens").and_then(JsonValue::integer).is_some()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::of_messages(r#"{"input_tokens":14}"#, true)]
    #[case::of_responses(r#"{"object":"response.input_tokens","input_tokens":0}"#, true)]
    #[case::nothing("{}", false)]
    #[case::null(r#"{"input_tokens":null}"#, false)]
    #[case::text(r#"{"input_tokens":"14"}"#, false)]
    #[case::negative(r#"{"input_tokens":-1}"#, false)]
    #[case::error(r#"{"error":{"message":"no"}}"#, false)]
    fn a_count_is_a_whole_number(#[case] reply: &'static str, #[case] expected: bool) {
        let document = JsonDocument::parse(Bytes::from_static(reply.as_bytes())).expect("sound");
        assert_eq!(is_token_count(&document), expected);
    }
}
