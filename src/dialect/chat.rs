//! A chat completions call.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::CallFault;
use super::call::{Asked, Content, Text, messages, present, tools, whole, wrong};
use super::json::{Document, Draft, Kind, Value};

/// Choices of one call, at most (`vendor_b`'s limit).
const CHOICES_MAX: u64 = 128;

/// Reads a body.
///
/// # Errors
/// [`CallFault`] names the field and what would be right.
pub(super) fn read(document: &Document) -> Result<Asked, CallFault> {
    let usage_asked = match present(document, "stream_options") {
        None => false,
        Some(options) if options.kind() == Kind::Object => {
            match options.get("include_usage").filter(|v| !v.is_null()) {
                None => false,
                Some(v) => v
                    .bool()
                    .ok_or_else(|| wrong("stream_options.include_usage", "true or false", v))?,
            }
        }
        Some(other) => return Err(wrong("stream_options", "an object", other)),
    };
    let limits = [whole(document, "max_tokens", 1)?, whole(document, "max_completion_tokens", 1)?];
    let output_max = limits.into_iter().flatten().max();
    let choices = whole(document, "n", 1)?.unwrap_or(1);
    if choices > CHOICES_MAX {
        return Err(CallFault::invalid("n", &format!("from 1 to {CHOICES_MAX}")));
    }
    let content = content(document)?;
    // What was predicted and did not come is billed as output, whatever the limit.
    let hidden_max = present(document, "prediction").map_or(0, |p| p.raw().len() as u64);
    Ok(Asked::Chat { usage_asked, text: Text { output_max, choices, hidden_max, content } })
}

/// Asks the vendor for usage at the end of a stream, whether the client did or not: without it,
/// nobody could say what the call cost.
pub fn ask_for_usage(draft: &mut Draft<'_>) {
    let options = draft.get("stream_options").filter(|v| v.kind() == Kind::Object);
    let asked = match options.map(|v| Bytes::copy_from_slice(v.raw())).map(Document::parse) {
        Some(Ok(document)) => {
            let mut inner = Draft::new(&document);
            inner.set("include_usage", "true".to_owned());
            String::from_utf8_lossy(&inner.finish().concat()).into_owned()
        }
        _ => r#"{"include_usage":true}"#.to_owned(),
    };
    draft.set("stream_options", asked);
}

/// Checks the messages' shape; counts what is not text.
fn content(document: &Document) -> Result<Content, CallFault> {
    let mut content = Content { tools: tools(document, "function"), ..Content::default() };
    let mut other_bytes = 0;
    messages(document, "system, user, assistant or tool", |parts| {
        for part in parts.elements() {
            let Some((kind, address)) = attached(part) else {
                content.reads_elsewhere |= !is_text(part);
                continue;
            };
            let counted = match kind {
                Attached::Image => &mut content.images,
                Attached::Pages => &mut content.documents,
                Attached::Text => continue,
            };
            *counted += 1;
            other_bytes += address.raw().len() as u64;
        }
    })?;
    content.text_bytes = (document.body().len() as u64).saturating_sub(other_bytes);
    Ok(content)
}

/// What is attached to a message beside its text.
#[derive(Clone, Copy)]
enum Attached {
    Image,
    /// A document that is looked at page by page.
    Pages,
    /// Something that is read as text.
    Text,
}

/// Whether a part is a text of its own.
fn is_text(part: Value<'_>) -> bool {
    let kind = part.get("type").and_then(Value::text);
    matches!(kind.as_deref(), Some("text" | "refusal"))
}

/// What a part attaches, and the string that holds it or its address.
fn attached(part: Value<'_>) -> Option<(Attached, Value<'_>)> {
    let (address, elsewhere) = match part.get("image_url") {
        Some(image) if image.kind() == Kind::Object => (image.get("url")?, Attached::Image),
        Some(image) => (image, Attached::Image),
        None => (part.get("file")?.get("file_data")?, Attached::Text),
    };
    let text = address.text()?;
    let is_data = |media: &str| {
        let start = text.get(.."data:".len() + media.len());
        start.is_some_and(|s| {
            s.get(.."data:".len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
                && s["data:".len()..].eq_ignore_ascii_case(media)
        })
    };
    let kind = match () {
        () if is_data("application/pdf") => Attached::Pages,
        () if is_data("image/") => Attached::Image,
        () => elsewhere,
    };
    Some((kind, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

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
    #[case::text(r#"{"type":"text","text":"data:image/png"}"#, 0, 0)]
    fn what_is_attached_is_counted_by_what_it_is(
        #[case] part: &str,
        #[case] images: u64,
        #[case] documents: u64,
    ) {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}],"tools":[{{}}]}}"#
        );
        let document = Document::parse(body.into()).expect("sound");
        let Ok(Asked::Chat { text, .. }) = read(&document) else { panic!("no chat") };
        let Content { images: i, documents: d, tools, .. } = text.content;
        assert_eq!((i, d, tools), (images, documents, 1));
    }
}
