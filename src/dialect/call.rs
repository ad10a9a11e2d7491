//! A parsed request, with everything that routing and pricing need.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::images::SourceImage;
use super::json::{JsonDocument, JsonValue};
use super::meter::estimate_tokens;
use super::responses::StoredObjectId;
use super::tokens::{InputTally, Tokenizer, o200k_tokens_max};
use super::{
    CallError, Endpoint, chat, embeddings, images, messages, moderations, responses, speech, videos,
};

pub(super) mod fields;
pub(super) mod request_kind;
pub(super) mod text_request;

use fields::{invalid_value, non_null_member, read_bool};

pub use request_kind::RequestKind;
pub use text_request::{InputSize, TextRequest, VendorReads};

/// A vendor of chats that runs its own tools reads the input once more after each use of one, at
/// most this many times.
const CHAT_REPEATS_MAX: u64 = 16;

/// A valid body that names a model. The caller checks whether the model is on sale before
/// [`ModelCall::parse`] reads the other fields.
#[derive(Debug, Clone)]
pub struct ParsedBody {
    /// The JSON body, or the fields of a form as a JSON object.
    pub document: JsonDocument,
    /// The model that the body names, or the default model.
    pub model: String,
    /// The file that a form uploaded; `None` for a JSON body or a form without a file.
    pub file: Option<SourceImage>,
}

impl ParsedBody {
    /// Parses a body in one strict pass. `default_model` is used if the body names no model.
    ///
    /// # Errors
    /// [`CallError`] if the body is not valid JSON, or names no model and there is no default.
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

/// Returns the model that the body names, or else the default model.
fn requested_model(
    document: &JsonDocument,
    default_model: Option<&str>,
) -> Result<String, CallError> {
    match (non_null_member(document, "model"), default_model) {
        (None, Some(default_model)) => Ok(default_model.to_owned()),
        (named, _) => parse_model_name(named),
    }
}

fn parse_model_name(value: Option<JsonValue<'_>>) -> Result<String, CallError> {
    let missing = || CallError::missing("model", "the id of a model");
    let value = value.ok_or_else(missing)?;
    let model = value.text().ok_or_else(|| invalid_value("model", "a string", value))?;
    if model.is_empty() { Err(missing()) } else { Ok(model.into_owned()) }
}

/// A call whose fields have passed the checks of its endpoint.
#[derive(Debug, Clone)]
pub struct ModelCall {
    /// The JSON body, or the fields of a form as a JSON object.
    pub document: JsonDocument,
    /// The model that the body names, or the default model.
    pub model: String,
    /// Whether the client asked for a stream of events instead of one body.
    pub stream: bool,
    /// What the client asks for, by endpoint.
    pub kind: RequestKind,
}

impl ModelCall {
    /// Reads and checks the fields that routing, pricing and the relay need.
    ///
    /// # Errors
    /// [`CallError`] names the invalid field and what is expected of it.
    pub fn parse(opened: ParsedBody, endpoint: Endpoint) -> Result<ModelCall, CallError> {
        let ParsedBody { document, model, file } = opened;
        let streams = matches!(endpoint, Endpoint::Chat | Endpoint::Messages | Endpoint::Responses);
        let stream = streams && read_bool(&document, "stream")?;
        let kind = match endpoint {
            Endpoint::Chat => chat::parse_request(&document)?,
            Endpoint::Messages => RequestKind::Messages(messages::parse_request(&document)?),
            Endpoint::Responses => RequestKind::Responses(responses::parse_request(&document)?),
            Endpoint::ResponsesCompact => {
                RequestKind::Compaction(responses::parse_compaction(&document)?)
            }
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
            Endpoint::MessagesCountTokens => {
                messages::check_count_request(&document)?;
                RequestKind::TokenCount { references: Vec::new() }
            }
            Endpoint::ResponsesInputTokens => {
                let references = responses::parse_count_request(&document)?.references;
                RequestKind::TokenCount { references }
            }
        };
        Ok(ModelCall { document, model, stream, kind })
    }

    /// Returns the input tokens as estimated from the bytes of the body, which takes no time and
    /// is twice too high at times. They are 0 for speech, images, videos and moderations.
    #[must_use]
    pub(crate) fn estimated_input_tokens(&self) -> u64 {
        match &self.kind {
            RequestKind::Embeddings(inputs) => inputs.tokens,
            _ => estimate_tokens(self.text_bytes()),
        }
    }

    /// Returns a function that counts the input tokens, for the case that the vendor reports none,
    /// in one pass over the beginning of the body's parts. They are 0 for speech, images, videos
    /// and moderations. The function keeps the body.
    pub(crate) fn input_counter(
        &self,
        tokenizer: Tokenizer,
    ) -> impl FnOnce() -> u64 + Send + use<> {
        let estimated = self.estimated_input_tokens();
        let text_bytes = self.text_bytes();
        let document = self.is_text().then(|| self.document.clone());
        move || {
            let Some(document) = document else { return estimated };
            let tally = InputTally::of_document(&document, text_bytes);
            // Thinking that the gateway puts back is in the size, and not in the body.
            let restored = text_bytes.saturating_sub(document.body().len() as u64);
            tokenizer.estimate_input(&tally).saturating_add(estimate_tokens(restored))
        }
    }

    /// Whether the call is one of a model that reads and writes text.
    #[must_use]
    pub(crate) fn is_text(&self) -> bool {
        matches!(
            self.kind,
            RequestKind::Chat { .. }
                | RequestKind::Messages(_)
                | RequestKind::Responses(_)
                | RequestKind::Compaction(_)
        )
    }

    /// Returns a sure upper bound of the tokens of the body's text: its bytes or, if the vendor's
    /// vocabulary is known and that is less, a count. What a vendor finds in images and documents,
    /// and the prompts that it adds for tools of its own, are not in it. The caller calls this only
    /// if the balance does not cover the bytes: a count reads all of the body, and takes up to 0.3
    /// seconds for one of 512 KiB or more.
    #[must_use]
    pub(crate) fn text_tokens_max(&self, tokenizer: Tokenizer) -> u64 {
        let text_bytes = self.text_bytes();
        if tokenizer != Tokenizer::O200k {
            return text_bytes;
        }
        let attachment_bytes = (self.document.body().len() as u64).saturating_sub(text_bytes);
        let counted = o200k_tokens_max(&self.document, attachment_bytes);
        counted.map_or(text_bytes, |tokens| tokens.min(text_bytes))
    }

    /// Returns the bytes of the text of a text call, and 0 for any other call.
    fn text_bytes(&self) -> u64 {
        match &self.kind {
            RequestKind::Chat { text, .. } | RequestKind::Messages(text) => {
                text.input_size.text_bytes
            }
            RequestKind::Responses(request) | RequestKind::Compaction(request) => {
                request.input_size.text_bytes
            }
            _ => 0,
        }
    }

    /// Returns the objects stored at the vendor that the call names, in the order of the body.
    pub(crate) fn references(&self) -> &[StoredObjectId] {
        match &self.kind {
            RequestKind::Responses(request) | RequestKind::Compaction(request) => {
                &request.references
            }
            RequestKind::TokenCount { references } => references,
            _ => &[],
        }
    }

    /// Adds what the vendor reads because of tools that it runs: the whole input at most `rereads`
    /// times more, and what the tools found, which has at most `tokens` tokens.
    pub(crate) fn add_tool_reads(&mut self, rereads: u64, tokens: u64) {
        let (size, repeats_max) = match &mut self.kind {
            RequestKind::Chat { text, .. } => (&mut text.input_size, CHAT_REPEATS_MAX),
            RequestKind::Messages(text) => (&mut text.input_size, messages::REPEATS_MAX),
            RequestKind::Responses(request) => (&mut request.input_size, responses::REPEATS_MAX),
            _ => return,
        };
        // What a tool finds is in no body.
        size.has_external_input = true;
        let reads = &mut size.vendor_reads;
        reads.repeats = reads.repeats.max(rereads.min(repeats_max));
        reads.found_tokens = reads.found_tokens.saturating_add(tokens);
    }

    /// Lowers the limit of output tokens of one choice. A call without output has no such limit.
    pub(crate) fn limit_output(&mut self, limit: u64) {
        match &mut self.kind {
            RequestKind::Chat { text, .. } | RequestKind::Messages(text) => {
                text.output_max = Some(limit);
            }
            RequestKind::Responses(request) => request.output_max = Some(limit),
            _ => {}
        }
    }

    /// Returns the values that bound the tokens of a chat call, so that they can be changed; `None`
    /// for any other call.
    pub(crate) fn chat_text_mut(&mut self) -> Option<&mut TextRequest> {
        match &mut self.kind {
            RequestKind::Chat { text, .. } => Some(text),
            _ => None,
        }
    }
}
