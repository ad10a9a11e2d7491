//! The start frame of a video: an uploaded file, or an address that only the vendor fetches.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;
use crate::dialect::call::fields::{invalid_value, non_null_member};
use crate::dialect::images::SourceImage;
use crate::dialect::json::{JsonDocument, JsonValue};

/// The field of an uploaded file; in JSON, of an object that holds the address.
pub(super) const REFERENCE_FIELD: &str = "input_reference";
/// The field that holds the address of the image.
pub(super) const URL_FIELD: &str = "image_url";

/// The maximum length of an `https` address in bytes.
const URL_BYTES_MAX: usize = 8_192;
/// The maximum length of a data URI in bytes: the largest file in base64, and the prefix before it.
const DATA_URI_BYTES_MAX: usize = 5_592_600 + 100;

/// The maximum length in bytes of an address before its JSON escapes are resolved; escapes lengthen
/// a legitimate URL only a little.
const ESCAPED_BYTES_MAX: usize = 2 * DATA_URI_BYTES_MAX;

const OBJECT_EXPECTED: &str = r#"an object {"image_url": "..."}, or a file in a form"#;
const URL_EXPECTED: &str = "an https:// address or data:image/...;base64,...";

/// Returns the address of the start frame as written in the call; `None` if the call has none.
///
/// # Errors
/// [`CallError`] if there is more than one frame, or if the address is invalid.
pub(super) fn find_url<'a>(
    document: &'a JsonDocument,
    file: Option<&SourceImage>,
) -> Result<Option<JsonValue<'a>>, CallError> {
    let (reference, address) =
        (non_null_member(document, REFERENCE_FIELD), non_null_member(document, URL_FIELD));
    let frames = [reference.is_some(), address.is_some(), file.is_some()];
    if frames.into_iter().filter(|is_there| *is_there).count() > 1 {
        return Err(CallError::invalid(URL_FIELD, "left out where 'input_reference' is given"));
    }
    let (field, value) = match (reference, address) {
        (Some(reference), _) => ("input_reference.image_url", reference_url(reference)?),
        (None, Some(address)) => (URL_FIELD, address),
        (None, None) => return Ok(None),
    };
    if value.raw().len() > ESCAPED_BYTES_MAX {
        return Err(invalid_value(field, &at_most_bytes(DATA_URI_BYTES_MAX), value));
    }
    let text = value.text().ok_or_else(|| invalid_value(field, URL_EXPECTED, value))?;
    match check_url(&text) {
        Some(expected) => Err(invalid_value(field, &expected, value)),
        None => Ok(Some(value)),
    }
}

/// Returns the address in an object that has no other member.
fn reference_url(reference: JsonValue<'_>) -> Result<JsonValue<'_>, CallError> {
    let mut members = reference.members().filter(|(_, value)| !value.is_null());
    match (members.next(), members.next()) {
        (Some((name, value)), None) if name == URL_FIELD => Ok(value),
        _ => Err(invalid_value(REFERENCE_FIELD, OBJECT_EXPECTED, reference)),
    }
}

/// Returns what an address must be, if this one is invalid; `None` if it is valid.
fn check_url(address: &str) -> Option<String> {
    let bounded = |most| (address.len() > most).then(|| at_most_bytes(most));
    if let Some(rest) = strip_prefix_ignore_case(address, "https://") {
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
        let is_sound = rest.starts_with(|c: char| c.is_alphanumeric() || c == '[');
        let is_sound = is_sound && rest.chars().all(is_plain);
        return if is_sound { bounded(URL_BYTES_MAX) } else { Some(URL_EXPECTED.to_owned()) };
    }
    match strip_prefix_ignore_case(address, "data:image/").and_then(|rest| rest.split_once(',')) {
        Some((kind, data)) if is_base64_image_type(kind) && is_base64(data) => {
            bounded(DATA_URI_BYTES_MAX)
        }
        _ => Some(URL_EXPECTED.to_owned()),
    }
}

fn at_most_bytes(most: usize) -> String {
    format!("of at most {most} bytes")
}

/// Returns the text after a prefix, whose ASCII case is ignored; `None` if it does not begin with
/// it.
fn strip_prefix_ignore_case<'a>(text: &'a str, beginning: &str) -> Option<&'a str> {
    let (first, rest) = text.split_at_checked(beginning.len())?;
    first.eq_ignore_ascii_case(beginning).then_some(rest)
}

/// Whether this is the subtype of an image followed by `;base64`, such as `png;base64`.
fn is_base64_image_type(kind: &str) -> bool {
    let is_of_kind = |b: u8| b.is_ascii_alphanumeric() || b"+-.;=_".contains(&b);
    let end = kind.rsplit_once(';');
    end.is_some_and(|(kind, encoding)| {
        encoding.eq_ignore_ascii_case("base64")
            && kind.starts_with(|c: char| c.is_ascii_alphanumeric())
            && kind.bytes().all(is_of_kind)
    })
}

fn is_base64(data: &str) -> bool {
    let padding = data.len() - data.trim_end_matches('=').len();
    let digits = &data.as_bytes()[..data.len() - padding];
    let is_digit = |b: &u8| b.is_ascii_alphanumeric() || b"+/".contains(b);
    padding <= 2 && !digits.is_empty() && digits.iter().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::address("https://a.example/a.png?b=c#d", true)]
    #[case::host_only("https://a.example", true)]
    #[case::capitals("HTTPS://A.EXAMPLE/", true)]
    #[case::numbers("https://[2001:db8::1]:8443/a", true)]
    #[case::unicode("https://bücher.example/ä.png", true)]
    #[case::data("data:image/png;base64,iVBORw0KGgo=", true)]
    #[case::data_in_capitals("DATA:IMAGE/PNG;BASE64,iVBORw0KGgo=", true)]
    #[case::data_with_more("data:image/svg+xml;charset=utf-8;base64,PHN2Zz4=", true)]
    #[case::data_without_padding("data:image/png;base64,iVBORw0KGgo", true)]
    #[case::nothing("", false)]
    #[case::open("http://a.example/a.png", false)]
    #[case::file("file:///etc/passwd", false)]
    #[case::path("/a.png", false)]
    #[case::begins_later(" https://a.example/", false)]
    #[case::no_host("https://", false)]
    #[case::only_a_path("https:///a.png", false)]
    #[case::space("https://a.example/a b", false)]
    #[case::line_break("https://a.example/\r\n", false)]
    #[case::zero("https://a.example/\0", false)]
    #[case::data_of_text("data:text/plain;base64,YQ==", false)]
    #[case::data_of_no_kind("data:image/;base64,YQ==", false)]
    #[case::data_not_in_base64("data:image/png,YQ==", false)]
    #[case::data_in_percents("data:image/png;base64,YQ%3D%3D", false)]
    #[case::data_empty("data:image/png;base64,", false)]
    #[case::data_of_padding("data:image/png;base64,==", false)]
    #[case::data_padded_thrice("data:image/png;base64,YQ===", false)]
    #[case::data_with_a_break("data:image/png;base64,YQ\n==", false)]
    #[case::data_with_two_commas("data:image/png;base64,YQ==,", false)]
    #[case::data_to_break_out("data:image/p\"ng;base64,YQ==", false)]
    #[case::cut_in_a_character("https:/é", false)]
    fn an_address_is_sound_or_not(#[case] address: &str, #[case] is_sound: bool) {
        assert_eq!(check_url(address).is_none(), is_sound, "{address}");
    }

    #[test]
    fn addresses_are_as_long_as_may_be() {
        let address = |n: usize| format!("https://{}", "a".repeat(n - 8));
        assert_eq!(check_url(&address(8_192)), None);
        assert!(
            check_url(&address(8_193)).is_some_and(|expected| expected.ends_with("8192 bytes"))
        );
        let data = |n: usize| format!("data:image/png;base64,{}", "A".repeat(n - 22));
        assert_eq!(check_url(&data(5_592_700)), None);
        assert!(
            check_url(&data(5_592_701)).is_some_and(|expected| expected.ends_with("5592700 bytes"))
        );
    }

    #[rstest]
    #[case::somewhat(1_000, true)]
    #[case::much(2_000_000, false)]
    fn escapes_make_it_longer_within_bounds(#[case] escaped: usize, #[case] is_taken: bool) {
        let data = r"\u0041".repeat(escaped);
        let body = format!(r#"{{"image_url":"data:image/png;base64,{data}"}}"#);
        let document = JsonDocument::parse(body.into()).expect("sound");
        assert_eq!(find_url(&document, None).is_ok(), is_taken);
    }
}
