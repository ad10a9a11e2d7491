//! Recognises data URIs by their media type.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::json::JsonValue;

/// Prefixes of the media types of text files. The size of any other file does not bound its token
/// count, since many are compressed.
pub(super) const TEXT_MEDIA_TYPES: [&str; 3] = ["text/", "application/json", "application/xml"];

/// At most this many bytes of a string are inspected for its media type; it may be megabytes long.
const DATA_URI_PREFIX_BYTES: usize = 256;

/// Whether a JSON string is a data URI whose media type begins with one of `media`; case is
/// ignored.
pub(super) fn is_data_uri(value: JsonValue<'_>, media: &[&str]) -> bool {
    let beginning = &value.raw()[..value.raw().len().min(DATA_URI_PREFIX_BYTES)];
    let Some(text) = JsonValue::from_validated(beginning).text() else { return false };
    let begins = |from: usize, with: &str| {
        text.get(from..from + with.len()).is_some_and(|part| part.eq_ignore_ascii_case(with))
    };
    let scheme = "data:";
    begins(0, scheme) && media.iter().any(|media| begins(scheme.len(), media))
}
