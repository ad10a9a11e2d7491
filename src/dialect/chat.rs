//! A chat completions call.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::CallFault;
use super::call::{Call, Content, Opened, boolean, present, whole, wrong};
use super::json::{Document, Draft, Kind, Value};

/// Choices of one call, at most (`vendor_b`'s limit).
const CHOICES_MAX: u64 = 128;

/// Reads an opened body.
///
/// # Errors
/// [`CallFault`] names the field and what would be right.
pub(super) fn read(opened: Opened) -> Result<Call, CallFault> {
    let Opened { document, model } = opened;
    let stream = boolean(&document, "stream")?;
    let usage_asked = match present(&document, "stream_options") {
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
    let limits =
        [whole(&document, "max_tokens", 1)?, whole(&document, "max_completion_tokens", 1)?];
    let output_max = limits.into_iter().flatten().max();
    let choices = whole(&document, "n", 1)?.unwrap_or(1);
    if choices > CHOICES_MAX {
        return Err(CallFault::invalid("n", &format!("from 1 to {CHOICES_MAX}")));
    }
    let content = messages(&document)?;
    Ok(Call { document, model, stream, usage_asked, output_max, choices, content })
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
fn messages(document: &Document) -> Result<Content, CallFault> {
    let expected = "a non-empty array of {role, content}";
    let Some(messages) = present(document, "messages") else {
        return Err(CallFault::missing("messages", expected));
    };
    let mut any = false;
    let (mut images, mut bytes, mut documents) = (0, 0, Vec::new());
    for (i, message) in messages.elements().enumerate() {
        any = true;
        if message.kind() != Kind::Object {
            return Err(wrong(&format!("messages[{i}]"), "an object {role, content}", message));
        }
        let mut role = None;
        for (name, value) in message.members() {
            match &*name {
                "role" => role = value.text(),
                "content" => {
                    for part in value.elements() {
                        if let Some(url) = image_url(part) {
                            images += 1;
                            bytes += url.raw().len() as u64;
                        } else if let Some(pages) = document_data(part) {
                            documents.push(pages.raw().len() as u64);
                        }
                    }
                }
                _ => {}
            }
        }
        if role.is_none() {
            let field = format!("messages[{i}].role");
            return Err(CallFault::missing(&field, "system, user, assistant or tool"));
        }
    }
    if !any {
        // Elements of anything but a list are none.
        return Err(wrong("messages", expected, messages));
    }
    bytes += documents.iter().sum::<u64>();
    let text_bytes = (document.body().len() as u64).saturating_sub(bytes);
    Ok(Content { images, documents, text_bytes })
}

/// The address of an image part, inline or not.
fn image_url(part: Value<'_>) -> Option<Value<'_>> {
    let image = part.get("image_url")?;
    let url = if image.kind() == Kind::Object { image.get("url")? } else { image };
    (url.kind() == Kind::Text).then_some(url)
}

/// The data of a file part whose pages are looked at as pictures too.
fn document_data(part: Value<'_>) -> Option<Value<'_>> {
    const PDF: &[u8] = b"data:application/pdf";
    let data = part.get("file")?.get("file_data")?;
    let start = data.inside()?.get(..PDF.len())?;
    start.eq_ignore_ascii_case(PDF).then_some(data)
}
