//! Speech calls: counts the characters of the text to be spoken.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::CallError;
use super::call::fields::{invalid_value, non_null_member};
use super::json::{JsonDocument, JsonValue};

/// At most this many characters (Unicode code points) are accepted in one input (`vendor_b`'s
/// limit).
const CHARACTERS_MAX: u64 = 4_096;

/// Checks a parsed body and returns the number of Unicode code points in its input, which are
/// billed.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub fn count_characters(document: &JsonDocument) -> Result<u64, CallError> {
    let expected = format!("a string of 1 to {CHARACTERS_MAX} characters (Unicode code points)");
    let Some(input) = non_null_member(document, "input") else {
        return Err(CallError::missing("input", &expected));
    };
    let characters =
        count_code_points(input).ok_or_else(|| invalid_value("input", &expected, input))?;
    if !(1..=CHARACTERS_MAX).contains(&characters) {
        return Err(CallError::invalid("input", &format!("{expected}, not of {characters}")));
    }
    Ok(characters)
}

/// Counts the Unicode code points in the text of a JSON string, whether escaped or not; `None` if
/// the value is not a string.
pub(super) fn count_code_points(value: JsonValue<'_>) -> Option<u64> {
    let mut rest = value.string_bytes()?;
    let mut count = 0;
    while let Some(backslash) = memchr::memchr(b'\\', rest) {
        count += count_char_starts(&rest[..backslash]) + 1;
        let escape = &rest[backslash..];
        rest = escape.get(escape_length(escape)..).unwrap_or_default();
    }
    Some(count + count_char_starts(rest))
}

/// Counts the code points in UTF-8 text by the bytes that begin one.
fn count_char_starts(text: &[u8]) -> u64 {
    text.iter().filter(|byte| !matches!(byte, 0x80..=0xBF)).count() as u64
}

/// Returns the length in bytes of the escape at the start of valid JSON. If the escape is the high
/// half of a surrogate pair, the low half is included, since both are one code point.
fn escape_length(escape: &[u8]) -> usize {
    match escape {
        [_, b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..] => 12,
        [_, b'u', ..] => 6,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn read_json(json: &str) -> Result<u64, CallError> {
        count_characters(&JsonDocument::parse(Bytes::from(json.to_owned())).expect("sound"))
    }

    #[rstest]
    #[case::ascii("hello", 5)]
    #[case::two_bytes("é", 1)]
    #[case::pair_in_utf8("😀", 1)]
    #[case::escaped_letter(r"\u0041", 1)]
    #[case::escaped_pair(r"\ud83d\ude00", 1)]
    #[case::escaped_pair_in_capitals(r"\uDBFF\uDFFF", 1)]
    #[case::last_before_the_pairs(r"\ud7ff\uD7FF", 2)]
    #[case::first_after_the_pairs(r"\ue000\uffff", 2)]
    #[case::short_escapes(r#"\"\\\/\b\f\n\r\t"#, 8)]
    #[case::backslash_before_a_u(r"\\u0041", 6)]
    #[case::zero(r"\u0000", 1)]
    #[case::combined(r"e\u0301é", 3)]
    #[case::family("👨‍👩‍👧", 5)]
    fn characters_are_code_points(#[case] written: &str, #[case] expected: u64) {
        let body = format!(r#"{{"input":"{written}","voice":"v"}}"#);
        assert_eq!(read_json(&body), Ok(expected));
    }

    #[rstest]
    #[case::voice_as_an_object(r#"{"input":"a","voice":{"id":"v"}}"#, None)]
    #[case::no_voice(r#"{"input":"a"}"#, None)]
    #[case::null_voice(r#"{"input":"a","voice":null}"#, None)]
    #[case::empty_voice(r#"{"input":"a","voice":""}"#, None)]
    #[case::numbered_voice(r#"{"input":"a","voice":1}"#, None)]
    #[case::no_input(r#"{"voice":"v"}"#, Some(("missing_required_parameter", "input")))]
    #[case::null_input(
        r#"{"voice":"v","input":null}"#,
        Some(("missing_required_parameter", "input"))
    )]
    #[case::empty_input(r#"{"voice":"v","input":""}"#, Some(("invalid_value", "input")))]
    #[case::list(r#"{"voice":"v","input":["a"]}"#, Some(("invalid_value", "input")))]
    fn the_field_at_fault_is_named(#[case] body: &str, #[case] expected: Option<(&str, &str)>) {
        let fault = read_json(body).err();
        let found = fault.as_ref().map(|f| (f.code, f.param.as_deref().unwrap_or_default()));
        assert_eq!(found, expected);
    }

    #[test]
    fn an_input_is_as_long_as_may_be() {
        let body = |n| format!(r#"{{"input":"{}","voice":"v"}}"#, r"\ud83d\ude00".repeat(n));
        assert_eq!(read_json(&body(4096)), Ok(4096));
        let fault = read_json(&body(4097)).expect_err("too long");
        assert_eq!(fault.param.as_deref(), Some("input"));
        assert!(fault.message.ends_with("(Unicode code points), not of 4097"), "{fault}");
    }

    /// Writes a text as the content of a JSON string, with every character escaped.
    fn escaped(text: &str) -> String {
        text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect()
    }

    /// Generates a text, and whether to write it with every character escaped.
    fn part() -> impl Strategy<Value = (String, bool)> {
        (".{0,6}|[\"\\\\/\u{0}-\u{1f}]{1,3}", any::<bool>())
    }

    proptest! {
        #[test]
        fn code_points_are_the_characters_of_the_text(
            parts in proptest::collection::vec(part(), 0..6),
        ) {
            let text: String = parts.iter().map(|(part, _)| part.as_str()).collect();
            let written = |(part, is_ascii): &(String, bool)| {
                let quoted = serde_json::Value::from(part.as_str()).to_string();
                if *is_ascii { escaped(part) } else { quoted[1..quoted.len() - 1].to_owned() }
            };
            let json = format!("\"{}\"", parts.iter().map(written).collect::<String>());
            prop_assert_eq!(serde_json::from_str::<String>(&json).expect("sound"), text.clone());
            let expected = text.chars().count() as u64;
            let value = JsonValue::from_validated(json.as_bytes());
            prop_assert_eq!(count_code_points(value), Some(expected));
        }

        #[test]
        fn unsound_bytes_are_counted_without_a_panic(bytes: Vec<u8>) {
            count_code_points(JsonValue::from_validated(&bytes));
        }
    }
}
