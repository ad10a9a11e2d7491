//! A call as it came, with everything read that bears on routing and price.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::embeddings::Inputs;
use super::images::File;
use super::json::{Document, Kind, Value};
use super::meter::counted;
use super::responses::Ask;
use super::{
    CallFault, Endpoint, chat, embeddings, images, messages, moderations, responses, speech, videos,
};

/// A body that is sound and names a model; whether that is sold here is told before anything else
/// about it.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The body, or the fields of a form.
    pub document: Document,
    /// The model asked for.
    pub model: String,
    /// The file of a form.
    pub file: Option<File>,
}

impl Opened {
    /// Reads a body in one strict pass. Where it names no model, it is for `unnamed`, if there is
    /// such a model.
    ///
    /// # Errors
    /// [`CallFault`] tells what is unsound, or that no model is named.
    pub fn parse(body: Bytes, unnamed: Option<&str>) -> Result<Opened, CallFault> {
        let document = Document::parse(body)?;
        let model = model_of(&document, unnamed)?;
        Ok(Opened { document, model, file: None })
    }

    /// A form, of which the fields are a body. Where it names no model, it is for `unnamed`, if
    /// there is such a model.
    ///
    /// # Errors
    /// [`CallFault`] if no model is named.
    pub fn form(
        document: Document,
        file: Option<File>,
        unnamed: Option<&str>,
    ) -> Result<Opened, CallFault> {
        let model = model_of(&document, unnamed)?;
        Ok(Opened { document, model, file })
    }
}

/// The model that a body names, or else the one that is for calls which name none.
fn model_of(document: &Document, unnamed: Option<&str>) -> Result<String, CallFault> {
    match (present(document, "model"), unnamed) {
        (None, Some(unnamed)) => Ok(unnamed.to_owned()),
        (named, _) => name(named),
    }
}

fn name(value: Option<Value<'_>>) -> Result<String, CallFault> {
    let missing = || CallFault::missing("model", "the id of a model");
    let value = value.ok_or_else(missing)?;
    let model = value.text().ok_or_else(|| wrong("model", "a string", value))?;
    if model.is_empty() { Err(missing()) } else { Ok(model.into_owned()) }
}

/// A call whose fields are of the right shape.
#[derive(Debug, Clone)]
pub struct Call {
    /// The body, or the fields of a form.
    pub document: Document,
    /// The model asked for.
    pub model: String,
    /// Whether the reply is to come in events.
    pub stream: bool,
    /// What is asked for.
    pub asked: Asked,
}

/// What a call asks for, as far as it bears on its price or on the way of its answer.
#[derive(Debug, Clone)]
pub enum Asked {
    /// Text, in the chat format.
    Chat {
        /// Whether the client wants to see usage in a stream.
        usage_asked: bool,
        /// What it may come to.
        text: Text,
    },
    /// Text, in the messages format.
    Messages(Text),
    /// Text, in the responses format.
    Responses(Ask),
    /// Embeddings.
    Embeddings(Inputs),
    /// Speech.
    Speech {
        /// Unicode code points of the text to be spoken.
        characters: u64,
    },
    /// One image.
    Image {
        /// The image to be edited.
        file: Option<File>,
    },
    /// One video.
    Video {
        /// What it is to be like.
        ask: videos::Ask,
        /// The image that it begins with.
        file: Option<File>,
    },
    /// A verdict on the input.
    Moderation,
}

/// What decides how many tokens a text call may come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text {
    /// The most output tokens of one choice, if the client set a limit.
    pub output_max: Option<u64>,
    /// How many choices.
    pub choices: u64,
    /// Output tokens of one choice that the vendor may bill beyond that limit, and nobody sees.
    pub hidden_max: u64,
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
    /// Whether something may be read that is neither in the body nor counted above.
    pub reads_elsewhere: bool,
}

impl Content {
    /// Whether the vendor reads nothing but the bytes of the body, so that they count its input.
    #[must_use]
    pub fn is_all_text(&self) -> bool {
        let Content { images, documents, reads_elsewhere, .. } = *self;
        images == 0 && documents == 0 && !reads_elsewhere && !self.has_hosted_tools()
    }

    /// Whether a tool is the vendor's own. (Tools that are not count as one.)
    #[must_use]
    pub fn has_hosted_tools(&self) -> bool {
        self.tools > 1
    }
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
        let Opened { document, model, file } = opened;
        let streams = matches!(endpoint, Endpoint::Chat | Endpoint::Messages | Endpoint::Responses);
        let stream = streams && boolean(&document, "stream")?;
        let asked = match endpoint {
            Endpoint::Chat => chat::read(&document)?,
            Endpoint::Messages => Asked::Messages(messages::read(&document)?),
            Endpoint::Responses => Asked::Responses(responses::read(&document)?),
            Endpoint::Embeddings => Asked::Embeddings(embeddings::read(&document)?),
            Endpoint::Speech => Asked::Speech { characters: speech::read(&document)? },
            Endpoint::Images | Endpoint::ImageEdits => {
                images::read(&document)?;
                Asked::Image { file }
            }
            Endpoint::Videos => {
                let ask = videos::read(&document, file.as_ref())?;
                Asked::Video { ask, file }
            }
            Endpoint::Moderations => {
                moderations::read(&document)?;
                Asked::Moderation
            }
        };
        Ok(Call { document, model, stream, asked })
    }

    /// Its input in tokens, as counted where the vendor reports none.
    #[must_use]
    pub fn input_counted(&self) -> u64 {
        match &self.asked {
            Asked::Chat { text, .. } | Asked::Messages(text) => counted(text.content.text_bytes),
            Asked::Responses(ask) => counted(ask.content.text_bytes),
            Asked::Embeddings(inputs) => inputs.tokens,
            Asked::Speech { .. }
            | Asked::Image { .. }
            | Asked::Video { .. }
            | Asked::Moderation => 0,
        }
    }

    /// What a chat call may come to.
    pub fn chat_text(&mut self) -> Option<&mut Text> {
        match &mut self.asked {
            Asked::Chat { text, .. } => Some(text),
            _ => None,
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
    let right = || format!("a whole number from {least} to 9007199254740991");
    read.map(Some).ok_or_else(|| wrong(field, &right(), value))
}

/// What is wrong with a value, with its beginning.
pub(super) fn wrong(field: &str, right: &str, found: Value<'_>) -> CallFault {
    let shown: String = String::from_utf8_lossy(found.raw()).chars().take(40).collect();
    CallFault::invalid(field, &format!("{right}, not {} ({shown})", found.kind().words()))
}
