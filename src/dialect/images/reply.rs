//! Converts replies with images. A reply that has everything that the interface promises is
//! forwarded unchanged; any other is written anew around its images.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};
use crate::dialect::meter;
use crate::money::TokenUsage;

/// A vendor's reply with images, converted for the client.
#[derive(Debug, Clone)]
pub struct ImagesReply {
    /// The body for the client, in pieces; the images are slices of the vendor's body.
    pub body: Vec<Bytes>,
    /// The tokens that the vendor reports; `None` if it reports none or an invalid number.
    pub tokens: Option<TokenUsage>,
    /// The cost that the vendor reports, in ticks (10 ticks are 1 nano-USD); `None` if it reports
    /// none or an invalid number.
    pub ticks: Option<u64>,
}

/// Why a reply has no image for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WithheldImage {
    /// The vendor withheld the image.
    #[error("the image was withheld by the vendor's moderation")]
    Moderated,
    /// The reply has the address of the image, and not its data.
    #[error("the vendor sent the address of the image instead of its data")]
    AddressOnly,
    /// The reply does not have the format of the dialect.
    #[error("the vendor's reply could not be read")]
    Unreadable,
}

/// Converts a reply. `created` (unix seconds) is the time of the reply if the vendor reports none.
///
/// # Errors
/// [`WithheldImage`] if the reply is malformed, has no entries, has an entry without an image or
/// with only its address, or is withheld by the vendor's moderation.
pub fn convert_reply(document: &JsonDocument, created: i64) -> Result<ImagesReply, WithheldImage> {
    let respects_moderation = document.get("respect_moderation").and_then(JsonValue::bool);
    let data = document.get("data").ok_or(WithheldImage::Unreadable)?;
    if !matches!(data.kind(), JsonKind::Array | JsonKind::Null) {
        return Err(WithheldImage::Unreadable);
    }
    let entries = data.elements().map(ImageEntry::parse).collect::<Result<Vec<_>, _>>()?;
    if entries.is_empty() || respects_moderation == Some(false) {
        return Err(WithheldImage::Moderated);
    }
    let body = match document.get("created").map(JsonValue::kind) {
        Some(JsonKind::Number) => vec![document.body().clone()],
        _ => rewrite_reply(document.body(), &entries, created),
    };
    let usage = document.get("usage");
    Ok(ImagesReply {
        body,
        tokens: usage.and_then(|usage| meter::read_tokens(usage, meter::RESPONSES_FIELDS)),
        ticks: usage.and_then(meter::read_cost_ticks),
    })
}

/// The members of an entry that the client may get.
struct ImageEntry<'a> {
    image: JsonValue<'a>,
    prompt: Option<JsonValue<'a>>,
}

impl<'a> ImageEntry<'a> {
    fn parse(entry: JsonValue<'a>) -> Result<ImageEntry<'a>, WithheldImage> {
        if entry.kind() != JsonKind::Object {
            return Err(WithheldImage::Unreadable);
        }
        let (mut image, mut address, mut prompt) = (None, None, None);
        for (name, value) in entry.members() {
            match &*name {
                "b64_json" => image = Some(value),
                "url" => address = Some(value),
                "revised_prompt" if value.kind() == JsonKind::String => prompt = Some(value),
                "respect_moderation" if value.bool() == Some(false) => {
                    return Err(WithheldImage::Moderated);
                }
                _ => {}
            }
        }
        let has_text = |value: &JsonValue<'_>| value.string_bytes().is_some_and(|t| !t.is_empty());
        match (image.filter(has_text), address.filter(has_text)) {
            (Some(image), _) => Ok(ImageEntry { image, prompt }),
            (None, Some(_)) => Err(WithheldImage::AddressOnly),
            (None, None) => Err(WithheldImage::Moderated),
        }
    }
}

fn rewrite_reply(original: &Bytes, entries: &[ImageEntry<'_>], created: i64) -> Vec<Bytes> {
    let mut body = vec![Bytes::from(format!(r#"{{"created":{created},"data":["#))];
    for (i, entry) in entries.iter().enumerate() {
        let opening: &[u8] = if i == 0 { br#"{"b64_json":"# } else { br#",{"b64_json":"# };
        body.push(Bytes::from_static(opening));
        body.push(original.slice_ref(entry.image.raw()));
        if let Some(prompt) = entry.prompt {
            body.push(Bytes::from_static(br#","revised_prompt":"#));
            body.push(original.slice_ref(prompt.raw()));
        }
        body.push(Bytes::from_static(b"}"));
    }
    body.push(Bytes::from_static(b"]}"));
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn document(body: impl Into<Bytes>) -> JsonDocument {
        JsonDocument::parse_from_vendor(body.into()).expect("sound")
    }

    #[rstest]
    #[case::usual(r#" {"created": 1795219200,"data":[{"b64_json":"iVBO"}],"output_format":"png"}"#)]
    #[case::two(
        r#"{"created":1,"data":[{"b64_json":"a"},{"b64_json":"b","revised_prompt":null}]}"#
    )]
    #[case::allowed(r#"{"data":[{"respect_moderation":true,"b64_json":"a"}],"created":1.5}"#)]
    fn a_reply_that_has_all_passes_as_it_came(#[case] body: &'static str) {
        let read = convert_reply(&document(body), 7).expect("an image");
        assert_eq!(read.body, [body]);
    }

    #[rstest]
    #[case::no_created(
        r#"{"data":[{"b64_json":"iV\/O","mime_type":"image/png","revised_prompt":"a \"cat\""}]}"#,
        r#"{"created":7,"data":[{"b64_json":"iV\/O","revised_prompt":"a \"cat\""}]}"#
    )]
    #[case::null_created(
        r#"{"created":null,"data":[ {"url":null, "b64_json" : "a"} , {"b64_json":"b","revised_prompt":1} ]}"#,
        r#"{"created":7,"data":[{"b64_json":"a"},{"b64_json":"b"}]}"#
    )]
    #[case::created_as_text(
        r#"{"created":"now","data":[{"b64_json":"a","revised_prompt":""}],"usage":{}}"#,
        r#"{"created":7,"data":[{"b64_json":"a","revised_prompt":""}]}"#
    )]
    fn a_reply_that_lacks_its_time_is_written_anew(
        #[case] body: &'static str,
        #[case] expected: &str,
    ) {
        let read = convert_reply(&document(body), 7).expect("an image");
        assert_eq!(String::from_utf8_lossy(&read.body.concat()), expected);
        document(read.body.concat());
    }

    #[rstest]
    #[case::no_entry(r#"{"created":1,"data":[]}"#, WithheldImage::Moderated)]
    #[case::null(r#"{"created":1,"data":null}"#, WithheldImage::Moderated)]
    #[case::address_only(r#"{"data":[{"url":"https://a.example/"}]}"#, WithheldImage::AddressOnly)]
    #[case::address_of_one_of_two(
        r#"{"created":1,"data":[{"b64_json":"a"},{"b64_json":null,"url":"https://a.example/"}]}"#,
        WithheldImage::AddressOnly
    )]
    #[case::empty_address(r#"{"data":[{"b64_json":"","url":""}]}"#, WithheldImage::Moderated)]
    #[case::address_of_what_is_withheld(
        r#"{"data":[{"url":"https://a.example/","respect_moderation":false}]}"#,
        WithheldImage::Moderated
    )]
    #[case::empty(r#"{"created":1,"data":[{"b64_json":""}]}"#, WithheldImage::Moderated)]
    #[case::null_image(r#"{"created":1,"data":[{"b64_json":null}]}"#, WithheldImage::Moderated)]
    #[case::one_of_two(r#"{"created":1,"data":[{"b64_json":"a"},{}]}"#, WithheldImage::Moderated)]
    #[case::told(
        r#"{"created":1,"data":[{"b64_json":"a","respect_moderation":false}]}"#,
        WithheldImage::Moderated
    )]
    #[case::told_for_all(
        r#"{"created":1,"data":[{"b64_json":"a"}],"respect_moderation":false}"#,
        WithheldImage::Moderated
    )]
    #[case::no_data(r#"{"created":1}"#, WithheldImage::Unreadable)]
    #[case::no_list(r#"{"created":1,"data":{"b64_json":"a"}}"#, WithheldImage::Unreadable)]
    #[case::no_object(r#"{"created":1,"data":["a"]}"#, WithheldImage::Unreadable)]
    fn a_reply_without_an_image_is_withheld(
        #[case] body: &'static str,
        #[case] why: WithheldImage,
    ) {
        assert_eq!(convert_reply(&document(body), 7).err(), Some(why));
    }

    #[rstest]
    #[case::tokens(
        r#"{"input_tokens":50,"output_tokens":4160,"total_tokens":4210}"#,
        Some((50, 4160)),
        None
    )]
    #[case::more_in_the_total(r#"{"input_tokens":50,"output_tokens":1,"total_tokens":60}"#, Some((50, 10)), None)]
    #[case::less_in_the_total(r#"{"input_tokens":50,"output_tokens":1,"total_tokens":1}"#, Some((50, 1)), None)]
    #[case::no_output(r#"{"input_tokens":50}"#, None, None)]
    #[case::no_input(r#"{"output_tokens":50,"total_tokens":50}"#, None, None)]
    #[case::most(r#"{"input_tokens":0,"output_tokens":1000000000}"#, Some((0, 1_000_000_000)), None)]
    #[case::absurd(r#"{"input_tokens":1,"output_tokens":1000000001}"#, None, None)]
    #[case::absurd_total(r#"{"input_tokens":1,"output_tokens":1,"total_tokens":1e99}"#, None, None)]
    #[case::negative(r#"{"input_tokens":-1,"output_tokens":1}"#, None, None)]
    #[case::fraction(r#"{"input_tokens":1.5,"output_tokens":1}"#, None, None)]
    #[case::ticks(r#"{"cost_in_usd_ticks":200000000}"#, None, Some(200_000_000))]
    #[case::most_ticks(r#"{"cost_in_usd_ticks":100000000000}"#, None, Some(100_000_000_000))]
    #[case::absurd_ticks(r#"{"cost_in_usd_ticks":100000000001}"#, None, None)]
    #[case::no_ticks(r#"{"cost_in_usd_ticks":0}"#, None, None)]
    #[case::negative_ticks(r#"{"cost_in_usd_ticks":-1}"#, None, None)]
    #[case::ticks_with_a_point(r#"{"cost_in_usd_ticks":1.0}"#, None, None)]
    #[case::ticks_as_text(r#"{"cost_in_usd_ticks":"1"}"#, None, None)]
    #[case::both(
        r#"{"input_tokens":1,"output_tokens":2,"cost_in_usd_ticks":3}"#,
        Some((1, 2)),
        Some(3)
    )]
    #[case::null("null", None, None)]
    #[case::list("[1]", None, None)]
    fn usage_is_read_or_is_no_report(
        #[case] usage: &str,
        #[case] tokens: Option<(u64, u64)>,
        #[case] ticks: Option<u64>,
    ) {
        let body = format!(r#"{{"data":[{{"b64_json":"a"}}],"usage":{usage}}}"#);
        let read = convert_reply(&document(body), 7).expect("an image");
        assert_eq!((read.tokens.map(|t| (t.input, t.output)), read.ticks), (tokens, ticks));
    }

    #[test]
    fn images_are_not_copied() {
        let image = "A".repeat(1 << 20);
        let original = document(format!(r#"{{"data":[{{"b64_json":"{image}"}}]}}"#));
        let read = convert_reply(&original, 7).expect("an image");
        let within = original.body().as_ptr_range();
        let slices = read.body.iter().filter(|slice| slice.len() >= image.len());
        assert!(slices.clone().all(|slice| within.contains(&slice.as_ptr())));
        assert_eq!(slices.count(), 1);
    }
}
