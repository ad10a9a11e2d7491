//! A parsed request, with everything that routing and pricing need.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::images::SourceImage;
use super::json::{JsonDocument, JsonValue};
use super::meter::estimate_tokens;
use super::{
    CallError, Endpoint, chat, embeddings, images, messages, moderations, responses, speech, videos,
};

pub(super) mod fields;
pub(super) mod request_kind;
pub(super) mod text_request;

use fields::{invalid_value, non_null_member, read_bool};

pub use request_kind::RequestKind;
pub use text_request::InputSize;
pub use text_request::TextRequest;

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
                let request = videos::parse_request(&document, file.as_ref())?;
                RequestKind::Video { request, file }
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
    pub(crate) fn estimated_input_tokens(&self) -> u64 {
        match &self.kind {
            RequestKind::Chat { text, .. } | RequestKind::Messages(text) => {
                estimate_tokens(text.input_size.text_bytes)
            }
            RequestKind::Responses(request) => estimate_tokens(request.input_size.text_bytes),
            RequestKind::Embeddings(inputs) => inputs.tokens,
            RequestKind::Speech { .. }
            | RequestKind::Image { .. }
            | RequestKind::Video { .. }
            | RequestKind::Moderation => 0,
        }
    }

    /// What a chat call may come to.
    pub(crate) fn chat_text_mut(&mut self) -> Option<&mut TextRequest> {
        match &mut self.kind {
            RequestKind::Chat { text, .. } => Some(text),
            _ => None,
        }
    }
}
