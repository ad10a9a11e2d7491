//! A chat completions call.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::CallFault;
use super::json::{Document, Draft, Kind, Value};

/// Choices of one call, at most (`vendor_b`'s limit).
const CHOICES_MAX: u64 = 128;

/// A body that is sound JSON and names a model; whether that is sold here is told before anything
/// else about it.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The body.
    pub document: Document,
    /// The model asked for.
    pub model: String,
}

impl Opened {
    /// Reads a body in one strict pass.
    ///
    /// # Errors
    /// [`CallFault`] tells what is unsound, or that no model is named.
    pub fn parse(body: Bytes) -> Result<Opened, CallFault> {
        let document = Document::parse(body)?;
        let model = match present(&document, "model") {
            None => return Err(CallFault::missing("model", "the id of a model")),
            Some(value) => value.text().ok_or_else(|| wrong("model", "a string", value))?,
        };
        if model.is_empty() {
            return Err(CallFault::missing("model", "the id of a model"));
        }
        let model = model.into_owned();
        Ok(Opened { document, model })
    }
}

/// A chat call as it came, with everything read that bears on routing and price.
#[derive(Debug, Clone)]
pub struct Call {
    /// The body.
    pub document: Document,
    /// The model asked for.
    pub model: String,
    /// Whether the reply is to come in pieces.
    pub stream: bool,
    /// Whether the client asked for usage in the stream.
    pub usage_asked: bool,
    /// The most output tokens of one choice, if the client set a limit.
    pub output_max: Option<u64>,
    /// How many choices.
    pub choices: u64,
    /// Images in the messages.
    pub images: u64,
    /// Bytes of the body without the images.
    pub text_bytes: u64,
}

impl Call {
    /// Reads the fields that matter out of an opened body.
    ///
    /// # Errors
    /// [`CallFault`] names the field and what would be right.
    pub fn parse(opened: Opened) -> Result<Call, CallFault> {
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
        let limits = [whole(&document, "max_tokens")?, whole(&document, "max_completion_tokens")?];
        let output_max = limits.into_iter().flatten().max();
        let choices = whole(&document, "n")?.unwrap_or(1);
        if choices > CHOICES_MAX {
            return Err(CallFault::invalid("n", &format!("from 1 to {CHOICES_MAX}")));
        }
        let (images, image_bytes) = messages(&document)?;
        let text_bytes = (document.body().len() as u64).saturating_sub(image_bytes);
        Ok(Call { document, model, stream, usage_asked, output_max, choices, images, text_bytes })
    }

    /// An upper bound of the input's tokens: no token is less than a byte of text, and an image is
    /// `image_tokens` at most. The JSON around the text makes up for the vendor's own framing.
    #[must_use]
    pub fn input_bound(&self, image_tokens: u64) -> u64 {
        self.text_bytes.saturating_add(self.images.saturating_mul(image_tokens))
    }
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

/// Checks the messages' shape; counts images and their bytes.
fn messages(document: &Document) -> Result<(u64, u64), CallFault> {
    let expected = "a non-empty array of {role, content}";
    let Some(messages) = present(document, "messages") else {
        return Err(CallFault::missing("messages", expected));
    };
    let mut any = false;
    let (mut images, mut bytes) = (0, 0);
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
                    for url in value.elements().filter_map(image_url) {
                        images += 1;
                        bytes += url.raw().len() as u64;
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
    // Elements of anything but a list are none.
    if any { Ok((images, bytes)) } else { Err(wrong("messages", expected, messages)) }
}

/// The address of an image part, inline or not.
fn image_url(part: Value<'_>) -> Option<Value<'_>> {
    let image = part.get("image_url")?;
    let url = if image.kind() == Kind::Object { image.get("url")? } else { image };
    (url.kind() == Kind::Text).then_some(url)
}

fn present<'a>(document: &'a Document, field: &str) -> Option<Value<'a>> {
    document.get(field).filter(|v| !v.is_null())
}

fn boolean(document: &Document, field: &str) -> Result<bool, CallFault> {
    let Some(value) = present(document, field) else { return Ok(false) };
    value.bool().ok_or_else(|| wrong(field, "true or false", value))
}

fn whole(document: &Document, field: &str) -> Result<Option<u64>, CallFault> {
    let Some(value) = present(document, field) else { return Ok(None) };
    let read = value.whole().filter(|n| *n > 0);
    read.map(Some).ok_or_else(|| wrong(field, "a whole number from 1", value))
}

fn wrong(field: &str, right: &str, found: Value<'_>) -> CallFault {
    let shown: String = String::from_utf8_lossy(found.raw()).chars().take(40).collect();
    CallFault::invalid(field, &format!("{right}, not {} ({shown})", found.kind().words()))
}
