//! Writes the members of JSON objects whose names are known: the names are copied, and only the
//! values are looked at. The result is byte for byte what `serde_json` writes.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// Appends `name`, which is the text up to the value, and then a text in quotes.
pub(crate) fn push_string(json: &mut String, name: &str, value: &str) {
    json.push_str(name);
    if needs_escape(value) {
        // A text can always be written as JSON.
        json.push_str(&serde_json::to_string(value).unwrap_or_default());
    } else {
        json.push('"');
        json.push_str(value);
        json.push('"');
    }
}

/// Appends `name`, which is the text up to the value, and then a number.
pub(crate) fn push_number(json: &mut String, name: &str, value: impl itoa::Integer) {
    json.push_str(name);
    json.push_str(itoa::Buffer::new().format(value));
}

/// Whether a character of a text has to be escaped in JSON. All bytes are looked at, since a loop
/// that never leaves early works on many at a time.
fn needs_escape(text: &str) -> bool {
    let is_special =
        |byte: u8| u8::from(byte < b' ') | u8::from(byte == b'"') | u8::from(byte == b'\\');
    text.bytes().fold(0_u8, |found, byte| found | is_special(byte)) != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn texts_and_numbers_are_written_as_everywhere_else(
            text in "(?s).{0,40}",
            unsigned in any::<u64>(),
            signed in any::<i64>(),
        ) {
            let mut json = String::new();
            push_string(&mut json, "[", &text);
            push_number(&mut json, ",", unsigned);
            push_number(&mut json, ",", signed);
            json.push(']');
            let expected = serde_json::to_string(&(text, unsigned, signed)).expect("JSON");
            prop_assert_eq!(json, expected);
        }
    }

    #[test]
    fn each_character_of_one_byte_is_escaped_as_everywhere_else() {
        for character in '\0'..='\x7f' {
            let (mut json, text) = (String::new(), format!("a{character}b"));
            push_string(&mut json, "", &text);
            assert_eq!(json, serde_json::to_string(&text).expect("JSON"));
        }
    }
}
