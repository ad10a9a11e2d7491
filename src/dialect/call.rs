//! A call to a text endpoint as it came, with everything read that bears on routing and price.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::json::{Document, Kind, Value};
use super::{CallFault, Endpoint, chat, messages};

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

/// A call whose fields are of the right shape.
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
    /// What the messages hold.
    pub content: Content,
}

/// What of a call's messages decides how many tokens they may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Content {
    /// Images.
    pub images: u64,
    /// Documents of pages: what one costs is not to be seen from its bytes.
    pub documents: u64,
    /// Tools that are the vendor's own, and come with words of the vendor's; all tools together
    /// come with some and count as one more.
    pub tools: u64,
    /// Bytes of the body without images and documents.
    pub text_bytes: u64,
}

/// Messages of one call, at most: what one costs here is far more than its bytes. (The limit of
/// `vendor_a`.)
const MESSAGES_MAX: usize = 100_000;

impl Call {
    /// Reads the fields that matter out of an opened body.
    ///
    /// # Errors
    /// [`CallFault`] names the field and what would be right.
    pub fn parse(opened: Opened, endpoint: Endpoint) -> Result<Call, CallFault> {
        match endpoint {
            Endpoint::Messages => messages::read(opened),
            _ => chat::read(opened),
        }
    }
}

/// Checks the shape of the messages, and shows the content of each to `see`.
pub(super) fn messages<'a>(
    document: &'a Document,
    roles: &str,
    mut see: impl FnMut(Value<'a>),
) -> Result<(), CallFault> {
    let expected = "a non-empty array of {role, content}";
    let Some(messages) = present(document, "messages") else {
        return Err(CallFault::missing("messages", expected));
    };
    let mut count = 0;
    for (i, message) in messages.elements().enumerate() {
        count += 1;
        if message.kind() != Kind::Object {
            return Err(wrong(&format!("messages[{i}]"), "an object {role, content}", message));
        }
        let mut role = None;
        for (name, value) in message.members() {
            match &*name {
                "role" => role = value.text(),
                "content" => see(value),
                _ => {}
            }
        }
        if role.is_none() {
            return Err(CallFault::missing(&format!("messages[{i}].role"), roles));
        }
    }
    if count == 0 {
        // Elements of anything but a list are none.
        return Err(wrong("messages", expected, messages));
    }
    if count > MESSAGES_MAX {
        return Err(CallFault::invalid("messages", &format!("at most {MESSAGES_MAX} messages")));
    }
    Ok(())
}

/// How many of a call's tools come with words of the vendor's (see [`Content::tools`]); `custom` is
/// the type of those that do not.
pub(super) fn tools(document: &Document, custom: &str) -> u64 {
    let mut count = 0;
    for tool in present(document, "tools").into_iter().flat_map(Value::elements) {
        let kind = tool.get("type").and_then(Value::text);
        count += u64::from(count == 0) + u64::from(kind.is_some_and(|kind| kind != custom));
    }
    count
}

/// A member that is there and not null.
pub(super) fn present<'a>(document: &'a Document, field: &str) -> Option<Value<'a>> {
    document.get(field).filter(|v| !v.is_null())
}

pub(super) fn boolean(document: &Document, field: &str) -> Result<bool, CallFault> {
    let Some(value) = present(document, field) else { return Ok(false) };
    value.bool().ok_or_else(|| wrong(field, "true or false", value))
}

/// A whole number of at least `least`.
pub(super) fn whole(
    document: &Document,
    field: &str,
    least: u64,
) -> Result<Option<u64>, CallFault> {
    let Some(value) = present(document, field) else { return Ok(None) };
    let read = value.whole().filter(|n| *n >= least);
    read.map(Some).ok_or_else(|| wrong(field, &format!("a whole number from {least}"), value))
}

/// What is wrong with a value, with its beginning.
pub(super) fn wrong(field: &str, right: &str, found: Value<'_>) -> CallFault {
    let shown: String = String::from_utf8_lossy(found.raw()).chars().take(40).collect();
    CallFault::invalid(field, &format!("{right}, not {} ({shown})", found.kind().words()))
}
