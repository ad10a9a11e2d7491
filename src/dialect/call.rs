//! A parsed request, with everything that routing and pricing need.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::embeddings::EmbeddingInputs;
use super::images::SourceImage;
use super::json::{JsonDocument, JsonKind, JsonValue};
use super::meter::estimate_tokens;
use super::responses::ResponsesRequest;
use super::{
    CallError, Endpoint, chat, embeddings, images, messages, moderations, responses, speech, videos,
};

/// A valid body that names a model. Whether the model is on offer is checked before the other
/// fields.
#[derive(Debug, Clone)]
pub struct ParsedBody {
    /// The body, or the fields of a form.
    pub document: JsonDocument,
    /// The model asked for.
    pub model: String,
    /// The file of a form.
    pub file: Option<SourceImage>,
}

impl ParsedBody {
    /// Parses a body in one strict pass. `default_model` is used if the body names no model.
    ///
    /// # Errors
    /// [`CallError`] tells what is unsound, or that no model is named.
    pub fn parse(body: Bytes, default_model: Option<&str>) -> Result<ParsedBody, CallError> {
        let document = JsonDocument::parse(body)?;
        let model = requested_model(&document, default_model)?;
        Ok(ParsedBody { document, model, file: None })
    }

    /// Takes a form whose fields were converted to a JSON body. `default_model` is used if the
    /// form names no model.
    ///
    /// # Errors
    /// [`CallError`] if no model is named.
    pub fn from_form(
        document: JsonDocument,
        file: Option<SourceImage>,
        default_model: Option<&str>,
    ) -> Result<ParsedBody, CallError> {
        let model = requested_model(&document, default_model)?;
        Ok(ParsedBody { document, model, file })
    }
}

/// The model that the body names, or else the default model.
fn requested_model(
    document: &JsonDocument,
    default_model: Option<&str>,
) -> Result<String, CallError> {
    match (non_null_member(document, "model"), default_model) {
        (None, Some(unnamed)) => Ok(unnamed.to_owned()),
        (named, _) => parse_model_name(named),
    }
}

fn parse_model_name(value: Option<JsonValue<'_>>) -> Result<String, CallError> {
    let missing = || CallError::missing("model", "the id of a model");
    let value = value.ok_or_else(missing)?;
    let model = value.text().ok_or_else(|| invalid_value("model", "a string", value))?;
    if model.is_empty() { Err(missing()) } else { Ok(model.into_owned()) }
}

/// A call whose fields are of the right shape.
#[derive(Debug, Clone)]
pub struct ModelCall {
    /// The body, or the fields of a form.
    pub document: JsonDocument,
    /// The model asked for.
    pub model: String,
    /// Whether the reply is to come in events.
    pub stream: bool,
    /// What is asked for.
    pub kind: RequestKind,
}

/// What a request asks for, as far as its price or the handling of its reply depends on it.
#[derive(Debug, Clone)]
pub enum RequestKind {
    /// Text, in the chat format.
    Chat {
        /// Whether the client wants to see usage in a stream.
        include_usage: bool,
        /// What bounds its token usage.
        text: TextRequest,
    },
    /// Text, in the messages format.
    Messages(TextRequest),
    /// Text, in the responses format.
    Responses(ResponsesRequest),
    /// Embeddings.
    Embeddings(EmbeddingInputs),
    /// Speech.
    Speech {
        /// Unicode code points of the text to be spoken.
        characters: u64,
    },
    /// One image.
    Image {
        /// The image to be edited.
        file: Option<SourceImage>,
    },
    /// One video.
    Video {
        /// What it is to be like.
        ask: videos::VideoRequest,
        /// The image that it begins with.
        file: Option<SourceImage>,
    },
    /// A verdict on the input.
    Moderation,
}

/// What decides how many tokens a text call may come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRequest {
    /// The most output tokens of one choice, if the client set a limit.
    pub output_max: Option<u64>,
    /// How many choices.
    pub choices: u64,
    /// Output tokens of one choice that the vendor may bill beyond that limit without returning
    /// them.
    pub hidden_output_max: u64,
    /// What the messages hold.
    pub input_size: InputSize,
}

/// What of a call's messages decides how many tokens they may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InputSize {
    /// Images.
    pub images: u64,
    /// Paged documents, whose token count cannot be derived from their bytes.
    pub documents: u64,
    /// How many tool prompts the vendor adds: one for each tool that it hosts itself, and one more
    /// if there are any tools at all.
    pub tool_prompts: u64,
    /// Bytes of the body without images and documents.
    pub text_bytes: u64,
    /// Whether the vendor may read input that is neither in the body nor counted above.
    pub has_external_input: bool,
}

impl InputSize {
    /// Whether the body is the vendor's only input, so that its bytes bound the input tokens.
    #[must_use]
    pub fn is_all_text(&self) -> bool {
        let InputSize { images, documents, has_external_input: reads_elsewhere, .. } = *self;
        images == 0 && documents == 0 && !reads_elsewhere && !self.has_hosted_tools()
    }

    /// Whether a tool is the vendor's own. (Tools that are not count as one.)
    #[must_use]
    pub fn has_hosted_tools(&self) -> bool {
        self.tool_prompts > 1
    }
}

/// Messages of one call, at most: what one costs here is far more than its bytes. (The limit of
/// `vendor_a`.)
const MESSAGES_MAX: usize = 100_000;

impl ModelCall {
    /// Reads the fields that matter out of an opened body.
    ///
    /// # Errors
    /// [`CallError`] names the field and what would be right.
    pub fn parse(opened: ParsedBody, endpoint: Endpoint) -> Result<ModelCall, CallError> {
        let ParsedBody { document, model, file } = opened;
        let streams = matches!(endpoint, Endpoint::Chat | Endpoint::Messages | Endpoint::Responses);
        let stream = streams && read_bool(&document, "stream")?;
        let kind = match endpoint {
            Endpoint::Chat => chat::parse_request(&document)?,
            Endpoint::Messages => RequestKind::Messages(messages::parse_request(&document)?),
            Endpoint::Responses => RequestKind::Responses(responses::parse_request(&document)?),
            Endpoint::Embeddings => RequestKind::Embeddings(embeddings::parse_request(&document)?),
            Endpoint::Speech => {
                RequestKind::Speech { characters: speech::count_characters(&document)? }
            }
            Endpoint::Images | Endpoint::ImageEdits => {
                images::check_request(&document)?;
                RequestKind::Image { file }
            }
            Endpoint::Videos => {
                let ask = videos::parse_request(&document, file.as_ref())?;
                RequestKind::Video { ask, file }
            }
            Endpoint::Moderations => {
                moderations::check_request(&document)?;
                RequestKind::Moderation
            }
        };
        Ok(ModelCall { document, model, stream, kind })
    }

    /// The estimated input tokens, used if the vendor reports none.
    #[must_use]
    pub fn estimated_input_tokens(&self) -> u64 {
        match &self.kind {
            RequestKind::Chat { text, .. } | RequestKind::Messages(text) => {
                estimate_tokens(text.input_size.text_bytes)
            }
            RequestKind::Responses(ask) => estimate_tokens(ask.input_size.text_bytes),
            RequestKind::Embeddings(inputs) => inputs.tokens,
            RequestKind::Speech { .. }
            | RequestKind::Image { .. }
            | RequestKind::Video { .. }
            | RequestKind::Moderation => 0,
        }
    }

    /// What a chat call may come to.
    pub fn chat_text_mut(&mut self) -> Option<&mut TextRequest> {
        match &mut self.kind {
            RequestKind::Chat { text, .. } => Some(text),
            _ => None,
        }
    }
}

/// Checks the shape of the messages, and shows the content of each to `see`.
pub(super) fn visit_messages<'a>(
    document: &'a JsonDocument,
    roles: &str,
    mut see: impl FnMut(JsonValue<'a>),
) -> Result<(), CallError> {
    let expected = "a non-empty array of {role, content}";
    let Some(messages) = non_null_member(document, "messages") else {
        return Err(CallError::missing("messages", expected));
    };
    let mut count = 0;
    for (i, message) in messages.elements().enumerate() {
        count += 1;
        if message.kind() != JsonKind::Object {
            return Err(invalid_value(
                &format!("messages[{i}]"),
                "an object {role, content}",
                message,
            ));
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
            return Err(CallError::missing(&format!("messages[{i}].role"), roles));
        }
    }
    if count == 0 {
        // Anything but a list yields no elements.
        return Err(invalid_value("messages", expected, messages));
    }
    if count > MESSAGES_MAX {
        return Err(CallError::invalid("messages", &format!("at most {MESSAGES_MAX} messages")));
    }
    Ok(())
}

/// How many of a call's tools come with words of the vendor's (see [`InputSize::tool_prompts`]);
/// `custom` is the type of those that do not.
pub(super) fn count_tool_prompts(document: &JsonDocument, custom: &str) -> u64 {
    let mut count = 0;
    for tool in non_null_member(document, "tools").into_iter().flat_map(JsonValue::elements) {
        let kind = tool.get("type").and_then(JsonValue::text);
        count += u64::from(count == 0) + u64::from(kind.is_some_and(|kind| kind != custom));
    }
    count
}

/// A member that is there and not null.
pub(super) fn non_null_member<'a>(
    document: &'a JsonDocument,
    field: &str,
) -> Option<JsonValue<'a>> {
    document.get(field).filter(|v| !v.is_null())
}

pub(super) fn read_bool(document: &JsonDocument, field: &str) -> Result<bool, CallError> {
    let Some(value) = non_null_member(document, field) else { return Ok(false) };
    value.bool().ok_or_else(|| invalid_value(field, "true or false", value))
}

/// A whole number of at least `least`.
pub(super) fn read_integer(
    document: &JsonDocument,
    field: &str,
    least: u64,
) -> Result<Option<u64>, CallError> {
    let Some(value) = non_null_member(document, field) else { return Ok(None) };
    let read = value.integer().filter(|n| *n >= least);
    let right = || format!("a whole number from {least} to 9007199254740991");
    read.map(Some).ok_or_else(|| invalid_value(field, &right(), value))
}

/// What is wrong with a value, with its beginning.
pub(super) fn invalid_value(field: &str, right: &str, found: JsonValue<'_>) -> CallError {
    let shown: String = String::from_utf8_lossy(found.raw()).chars().take(40).collect();
    CallError::invalid(field, &format!("{right}, not {} ({shown})", found.kind().description()))
}
