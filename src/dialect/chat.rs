//! Parses chat completions calls.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::CallError;
use super::call::fields::{
    count_tool_prompts, invalid_value, non_null_member, read_integer, visit_messages,
};
use super::call::request_kind::RequestKind;
use super::call::text_request::{InputSize, TextRequest};
use super::data_uri::{TEXT_MEDIA_TYPES, is_data_uri};
use super::json::{JsonDocument, JsonKind, JsonPatch, JsonValue};

/// At most this many choices may be asked for in one call (`vendor_b`'s limit).
const CHOICES_MAX: u64 = 128;

/// Parses the body of a chat completions call.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub(super) fn parse_request(document: &JsonDocument) -> Result<RequestKind, CallError> {
    let include_usage = match non_null_member(document, "stream_options") {
        None => false,
        Some(options) if options.kind() == JsonKind::Object => {
            match options.get("include_usage").filter(|v| !v.is_null()) {
                None => false,
                Some(v) => v.bool().ok_or_else(|| {
                    invalid_value("stream_options.include_usage", "true or false", v)
                })?,
            }
        }
        Some(other) => return Err(invalid_value("stream_options", "an object", other)),
    };
    let limits = [
        read_integer(document, "max_tokens", 1)?,
        read_integer(document, "max_completion_tokens", 1)?,
    ];
    let output_max = limits.into_iter().flatten().max();
    let choices = read_integer(document, "n", 1)?.unwrap_or(1);
    if choices > CHOICES_MAX {
        return Err(CallError::invalid("n", &format!("from 1 to {CHOICES_MAX}")));
    }
    let input_size = measure_input(document)?;
    // Rejected prediction tokens are billed as output, whatever the limit.
    let hidden_max = non_null_member(document, "prediction").map_or(0, |p| p.raw().len() as u64);
    Ok(RequestKind::Chat {
        include_usage,
        text: TextRequest {
            output_max,
            output_min: 1,
            choices,
            hidden_output_max: hidden_max,
            summary_output_max: 0,
            expected_summary_max: 0,
            input_size,
        },
    })
}

/// Asks the vendor for usage at the end of a stream, whether the client did or not: without it, the
/// cost of the call would be unknown.
pub fn set_include_usage(patch: &mut JsonPatch<'_>) {
    let options = patch.get("stream_options").filter(|v| v.kind() == JsonKind::Object);
    let requested = match options.map(|v| Bytes::copy_from_slice(v.raw())).map(JsonDocument::parse)
    {
        Some(Ok(document)) => {
            let mut inner = JsonPatch::new(&document);
            inner.set("include_usage", "true".to_owned());
            String::from_utf8_lossy(&inner.finish().concat()).into_owned()
        }
        _ => r#"{"include_usage":true}"#.to_owned(),
    };
    patch.set("stream_options", requested);
}

/// Checks the shape of the messages, and counts the input that is not text.
fn measure_input(document: &JsonDocument) -> Result<InputSize, CallError> {
    let mut input_size = InputSize {
        vendor_tool_prompt_count: count_tool_prompts(document, "function"),
        ..InputSize::default()
    };
    let mut non_text_bytes = 0;
    visit_messages(document, "system, user, assistant or tool", |parts| {
        for part in parts.elements() {
            let Some((kind, address)) = find_attachment(part) else {
                input_size.has_external_input |= !is_text_part(part);
                continue;
            };
            let counted = match kind {
                AttachmentKind::Image => &mut input_size.images,
                AttachmentKind::Document => &mut input_size.documents,
                AttachmentKind::Text => continue,
            };
            *counted += 1;
            non_text_bytes += address.raw().len() as u64;
        }
    })?;
    input_size.text_bytes = (document.body().len() as u64).saturating_sub(non_text_bytes);
    Ok(input_size)
}

/// The kind of an attachment, which a message has besides its text.
#[derive(Clone, Copy)]
enum AttachmentKind {
    Image,
    /// A document that the vendor reads page by page, or a file that it unpacks.
    Document,
    /// A file that the vendor reads as text.
    Text,
}

/// Whether a part is a text.
fn is_text_part(part: JsonValue<'_>) -> bool {
    let kind = part.get("type").and_then(JsonValue::text);
    matches!(kind.as_deref(), Some("text" | "refusal"))
}

/// Returns the kind of a part's attachment, and the string that holds its data or its address.
fn find_attachment(part: JsonValue<'_>) -> Option<(AttachmentKind, JsonValue<'_>)> {
    let (address, is_file) = match part.get("image_url") {
        Some(image) if image.kind() == JsonKind::Object => (image.get("url")?, false),
        Some(image) => (image, false),
        None => (part.get("file")?.get("file_data")?, true),
    };
    if address.kind() != JsonKind::String {
        return None;
    }
    let kind = match () {
        () if is_data_uri(address, &["application/pdf"]) => AttachmentKind::Document,
        () if is_data_uri(address, &["image/"]) => AttachmentKind::Image,
        () if is_file && is_data_uri(address, &TEXT_MEDIA_TYPES) => AttachmentKind::Text,
        () if is_file => AttachmentKind::Document,
        () => AttachmentKind::Image,
    };
    Some((kind, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Measures the input of a call with one part and one tool.
    fn content_with(part: &str) -> InputSize {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}],"tools":[{{}}]}}"#
        );
        let document = JsonDocument::parse(body.into()).expect("sound");
        let Ok(RequestKind::Chat { text, .. }) = parse_request(&document) else {
            panic!("no chat")
        };
        text.input_size
    }

    #[rstest]
    #[case::image(r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}"#, 1, 0)]
    #[case::bare_address(r#"{"type":"image_url","image_url":"https://x.example/a.png"}"#, 1, 0)]
    #[case::pages_as_an_image(
        r#"{"type":"image_url","image_url":{"url":"data:\u0061pplication/PDF;base64,AA=="}}"#,
        0,
        1
    )]
    #[case::pages(
        r#"{"type":"file","file":{"file_data":"DATA:application/pdf;base64,AA=="}}"#,
        0,
        1
    )]
    #[case::image_as_a_file(
        r#"{"type":"file","file":{"file_data":"data:image/gif;base64,AA=="}}"#,
        1,
        0
    )]
    #[case::text_file(
        r#"{"type":"file","file":{"file_data":"data:text/plain;base64,AA=="}}"#,
        0,
        0
    )]
    #[case::who_knows(r#"{"type":"file","file":{"file_data":"AA==","filename":"a"}}"#, 0, 1)]
    #[case::no_string(r#"{"type":"file","file":{"file_data":7}}"#, 0, 0)]
    #[case::text(r#"{"type":"text","text":"data:image/png"}"#, 0, 0)]
    fn what_is_attached_is_counted_by_what_it_is(
        #[case] part: &str,
        #[case] images: u64,
        #[case] documents: u64,
    ) {
        let InputSize { images: i, documents: d, vendor_tool_prompt_count, .. } =
            content_with(part);
        assert_eq!((i, d, vendor_tool_prompt_count), (images, documents, 1));
    }

    #[rstest]
    #[case::docx("application/vnd.openxmlformats-officedocument.wordprocessingml.document", false)]
    #[case::zip("application/zip", false)]
    #[case::no_media_type("", false)]
    #[case::plain("text/plain", true)]
    #[case::json("application/JSON", true)]
    #[case::xml("application/xml", true)]
    fn a_compressed_document_was_believed_as_many_tokens_as_its_bytes(
        #[case] media: &str,
        #[case] is_bounded_by_body: bool,
    ) {
        let data = format!("data:{media};base64,UEsDBA==");
        let part = format!(r#"{{"type":"file","file":{{"file_data":"{data}"}}}}"#);
        assert_eq!(content_with(&part).is_bounded_by_body(), is_bounded_by_body);
    }
}
