//! Parses the vendors' error bodies into one type, without the operator's secrets, and writes error
//! bodies for clients.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use super::json::{JsonDocument, JsonKind, JsonValue, patch::json_string, scan};
use super::redaction::{redact, redact_json};

/// Messages are cut to this many characters, since they are for people. Longer codes and details
/// are left out.
const MESSAGE_CHARS_MAX: usize = 2_000;

/// An API key has at least this many bytes; a shorter one is a placeholder.
const KEY_BYTES_MIN: usize = 8;

/// An error that a vendor reported, without what belongs to the operator: keys, ids of accounts,
/// addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VendorError {
    /// The message for people.
    pub message: Option<String>,
    /// The vendor's error code, if it is a string.
    pub code: Option<String>,
    /// The request field that the vendor rejected.
    pub param: Option<String>,
    /// The vendor's type of error.
    pub kind: Option<String>,
    /// The vendor's `details` object for programs, as JSON on one line.
    pub details: Option<String>,
}

impl VendorError {
    /// Reads the body of an error reply. A body of unknown shape gives an error without a message.
    ///
    /// The known shapes are `{"error":{"message",…}}`, the same in an array,
    /// `{"code","error":"text"}`, `{"error":"text"}`, `{"message"}` and `{"detail"}`.
    #[must_use]
    pub(crate) fn parse(body: &[u8]) -> VendorError {
        if scan::validate_value(body).is_err() {
            return VendorError::default();
        }
        let trimmed = body.trim_ascii();
        let value = JsonValue::from_validated(trimmed);
        match value.kind() {
            JsonKind::Array => {
                value.elements().next().map(VendorError::from_object).unwrap_or_default()
            }
            JsonKind::Object => VendorError::from_object(value),
            _ => VendorError::default(),
        }
    }

    /// Reads the error of a reply or of a stream event; `None` if its `error` member is absent or
    /// null.
    #[must_use]
    pub(crate) fn from_event(event: &JsonDocument) -> Option<VendorError> {
        event.get("error").filter(|e| !e.is_null())?;
        Some(VendorError::from_object(JsonValue::from_validated(event.body().trim_ascii())))
    }

    fn from_object(object: JsonValue<'_>) -> VendorError {
        let outer = |name: &str| object.get(name).and_then(clean_message);
        let outer_name = |label: &str| object.get(label).and_then(clean_identifier);
        match object.get("error") {
            Some(error) if error.kind() == JsonKind::Object => {
                let inner = |label: &str| error.get(label).and_then(clean_identifier);
                VendorError {
                    message: error.get("message").and_then(clean_message),
                    code: inner("code").or_else(|| inner("status")),
                    param: inner("param"),
                    kind: inner("type"),
                    details: error.get("details").and_then(clean_details),
                }
            }
            Some(error) => {
                let code = outer_name("code");
                VendorError { message: clean_message(error), code, ..VendorError::default() }
            }
            None => VendorError {
                message: outer("message").or_else(|| outer("detail")),
                code: outer_name("code"),
                ..VendorError::default()
            },
        }
    }
}

/// Removes the gateway's API key from a vendor's answer, since some vendors repeat the headers of a
/// request that they refuse.
#[must_use]
pub(crate) fn redact_key<'a>(text: &'a [u8], key: &str) -> Cow<'a, [u8]> {
    // A shorter key is a placeholder, and may be an ordinary word of the answer.
    if key.len() < KEY_BYTES_MIN || memchr::memmem::find(text, key.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let mut clean = Vec::with_capacity(text.len());
    let mut from = 0;
    for at in memchr::memmem::find_iter(text, key.as_bytes()) {
        clean.extend_from_slice(&text[from..at]);
        clean.extend_from_slice(b"[redacted]");
        from = at + key.len();
    }
    clean.extend_from_slice(&text[from..]);
    Cow::Owned(clean)
}

fn clean_details(value: JsonValue<'_>) -> Option<String> {
    (is_short(value) && value.kind() == JsonKind::Object).then(|| redact_json(value))
}

/// Whether a value has at most `MESSAGE_CHARS_MAX` bytes of JSON.
pub(super) fn is_short(value: JsonValue<'_>) -> bool {
    value.raw().len() <= MESSAGE_CHARS_MAX
}

/// Returns a redacted message for people, of at most `MESSAGE_CHARS_MAX` characters; `None` if the
/// value is not a string or is empty.
pub(super) fn clean_message(value: JsonValue<'_>) -> Option<String> {
    let text = value.text().filter(|text| !text.is_empty())?;
    // A long text is cut at white space before it is redacted, since half a secret would not be
    // recognised.
    let shown = match text.char_indices().nth(2 * MESSAGE_CHARS_MAX) {
        Some((end, _)) => text[..end].rsplit_once(char::is_whitespace).map_or("", |(rest, _)| rest),
        None => &text,
    };
    Some(redact(shown).chars().take(MESSAGE_CHARS_MAX).collect())
}

/// Returns a code or a name for programs; `None` if the value is not a string, is empty or too
/// long, or contains anything that belongs to the operator.
pub(super) fn clean_identifier(value: JsonValue<'_>) -> Option<String> {
    let text = value.text().filter(|text| !text.is_empty())?;
    let is_clean = text.len() <= MESSAGE_CHARS_MAX && matches!(redact(&text), Cow::Borrowed(_));
    is_clean.then(|| text.into_owned())
}

/// Returns an error body in the chat dialect.
#[must_use]
pub(crate) fn chat_error_body(
    kind: &str,
    code: &str,
    param: Option<&str>,
    message: &str,
) -> String {
    let param = param.map_or_else(|| "null".to_owned(), json_string);
    format!(
        r#"{{"error":{{"message":{},"type":{},"param":{param},"code":{}}}}}"#,
        json_string(message),
        json_string(kind),
        json_string(code),
    )
}

/// Returns an error body in the messages dialect. `details` is JSON text.
#[must_use]
pub(crate) fn messages_error_body(
    kind: &str,
    message: &str,
    details: Option<&str>,
    request_id: &str,
) -> String {
    let details = details.map_or_else(String::new, |json| format!(",\"details\":{json}"));
    format!(
        r#"{{"type":"error","error":{{"type":{},"message":{}{details}}},"request_id":{}}}"#,
        json_string(kind),
        json_string(message),
        json_string(request_id),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::once("key vk-secret-1 is bad", "vk-secret-1", "key [redacted] is bad")]
    #[case::twice("vk-secret-1vk-secret-1.", "vk-secret-1", "[redacted][redacted].")]
    #[case::not_at_all("a key is bad", "vk-secret-1", "a key is bad")]
    #[case::too_short_to_be_one("a key is bad", "key", "a key is bad")]
    #[case::none("a key is bad", "", "a key is bad")]
    fn our_key_went_to_the_client_in_the_vendors_words(
        #[case] text: &str,
        #[case] key: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(&*redact_key(text.as_bytes(), key), expected.as_bytes());
    }

    #[test]
    fn what_a_vendor_tells_programs_is_clean_too() {
        let body = r#"{"error":{"message":"no sk-0123abcd","type":"t","param":"org-abc1234",
            "code":"sk-0123abcd","details":{"a": "at 10.0.0.1", "b": [1]}}}"#;
        let read = VendorError::parse(body.as_bytes());
        assert_eq!(read.message.as_deref(), Some("no [...]"));
        assert_eq!((read.kind.as_deref(), read.code, read.param), (Some("t"), None, None));
        assert_eq!(read.details.as_deref(), Some(r#"{"a":"at [...]","b":[1]}"#));
    }

    #[test]
    fn a_key_at_the_place_where_a_long_message_is_cut_was_shown_in_part() {
        for length in 3_900..4_010 {
            let text = format!("{} sk-0123456789abcdef and on", "é ".repeat(length / 2));
            let body = format!(r#"{{"error":{{"message":"{text}"}}}}"#);
            let message = VendorError::parse(body.as_bytes()).message.unwrap_or_default();
            assert!(!message.contains("sk-") && message.chars().count() <= MESSAGE_CHARS_MAX);
        }
    }

    #[rstest]
    #[case::usual(r#"{"error":{"message":"no","type":"t","param":"p","code":"c"}}"#, "no", "c")]
    #[case::in_a_list(
        r#"[{"error":{"code":400,"message":"no","status":"INVALID_ARGUMENT"}}]"#,
        "no",
        "INVALID_ARGUMENT"
    )]
    #[case::code_and_text(r#"{"code":"invalid-argument","error":"no"}"#, "no", "invalid-argument")]
    #[case::text(r#"{"error":"no"}"#, "no", "")]
    #[case::detail(r#" {"detail":"no"} "#, "no", "")]
    #[case::page("<html>no</html>", "", "")]
    #[case::number("7", "", "")]
    #[case::empty("", "", "")]
    fn every_shape_is_read(#[case] body: &str, #[case] message: &str, #[case] code: &str) {
        let read = VendorError::parse(body.as_bytes());
        assert_eq!(read.message.unwrap_or_default(), message);
        assert_eq!(read.code.unwrap_or_default(), code);
    }
}
