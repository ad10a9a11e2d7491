//! Removes insignificant white space from JSON.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

/// Removes the white space between the tokens of valid JSON.
#[must_use]
pub(crate) fn compact(json: &[u8]) -> Cow<'_, [u8]> {
    let is_space = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r');
    if !json.iter().any(is_space) {
        return Cow::Borrowed(json);
    }
    let mut out = Vec::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for byte in json {
        if in_string {
            out.push(*byte);
            in_string = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
        } else if !is_space(byte) {
            out.push(*byte);
            in_string = *byte == b'"';
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::compact;

    #[test]
    fn only_space_between_tokens_goes() {
        let json = b"{ \"a b\" : [ 1 ,\n2.50 ] ,\t\"c\\\" \\\\\" : \" \\\\\\\" \" }\r\n";
        let expected = br#"{"a b":[1,2.50],"c\" \\":" \\\" "}"#;
        assert_eq!(&*compact(json), &expected[..]);
        assert_eq!(&*compact(expected), &expected[..]);
    }
}
