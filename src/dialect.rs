//! The wire formats: requests as clients send them, replies as vendors send them.
//!
//! Every function here is a pure function of bytes. The same parser reads what a request may cost
//! and what a reply did cost, so that the two cannot disagree.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

pub mod call;
pub mod chat;
mod data_uri;
pub mod embeddings;
pub mod form;
pub mod images;
pub mod json;
pub mod messages;
pub mod meter;
pub mod moderations;
pub mod payload;
pub mod redaction;
pub mod relay;
pub mod responses;
pub mod speech;
pub mod sse;
mod token_counts;
pub mod tokens;
pub mod translate;
pub mod vendor_error;
pub mod videos;

/// An endpoint of the gateway's HTTP API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Chat completions.
    Chat,
    /// Text in the responses format.
    Responses,
    /// A shorter form of a conversation in the responses format.
    ResponsesCompact,
    /// Text in the native messages format.
    Messages,
    /// Images from text.
    Images,
    /// Images from an image.
    ImageEdits,
    /// Video jobs.
    Videos,
    /// Text to speech.
    Speech,
    /// Embeddings.
    Embeddings,
    /// Moderation of input.
    Moderations,
    /// The number of input tokens that a messages call would have.
    MessagesCountTokens,
    /// The number of input tokens that a responses call would have.
    ResponsesInputTokens,
}

impl Endpoint {
    /// Returns the path at the gateway.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Responses => "/v1/responses",
            Endpoint::ResponsesCompact => "/v1/responses/compact",
            Endpoint::Messages => "/v1/messages",
            Endpoint::Images => "/v1/images/generations",
            Endpoint::ImageEdits => "/v1/images/edits",
            Endpoint::Videos => "/v1/videos",
            Endpoint::Speech => "/v1/audio/speech",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Moderations => "/v1/moderations",
            Endpoint::MessagesCountTokens => "/v1/messages/count_tokens",
            Endpoint::ResponsesInputTokens => "/v1/responses/input_tokens",
        }
    }

    /// Returns the path at a vendor, without `/v1`: a vendor's base address already ends in its API
    /// version.
    #[must_use]
    pub(crate) fn vendor_path(self) -> &'static str {
        &self.path()["/v1".len()..]
    }

    /// Returns the short name that journals, metrics and rules use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat",
            Endpoint::Responses => "responses",
            Endpoint::ResponsesCompact => "responses_compact",
            Endpoint::Messages => "messages",
            Endpoint::Images => "images",
            Endpoint::ImageEdits => "image_edits",
            Endpoint::Videos => "videos",
            Endpoint::Speech => "speech",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Moderations => "moderations",
            Endpoint::MessagesCountTokens => "messages_count_tokens",
            Endpoint::ResponsesInputTokens => "responses_input_tokens",
        }
    }

    /// Returns the endpoint whose models and rules apply. A count of tokens takes the calls that it
    /// counts, and a compaction the conversations of responses, so they have none of their own.
    #[must_use]
    pub(crate) fn rules_endpoint(self) -> Endpoint {
        match self {
            Endpoint::MessagesCountTokens => Endpoint::Messages,
            Endpoint::ResponsesInputTokens | Endpoint::ResponsesCompact => Endpoint::Responses,
            own => own,
        }
    }

    /// Whether its calls cost nothing.
    #[must_use]
    pub(crate) fn is_free(self) -> bool {
        matches!(
            self,
            Endpoint::Moderations | Endpoint::MessagesCountTokens | Endpoint::ResponsesInputTokens
        )
    }

    /// All endpoints.
    pub const ALL: [Endpoint; 12] = [
        Endpoint::Chat,
        Endpoint::Responses,
        Endpoint::ResponsesCompact,
        Endpoint::Messages,
        Endpoint::Images,
        Endpoint::ImageEdits,
        Endpoint::Videos,
        Endpoint::Speech,
        Endpoint::Embeddings,
        Endpoint::Moderations,
        Endpoint::MessagesCountTokens,
        Endpoint::ResponsesInputTokens,
    ];
}

/// An error in a request that the client has to correct.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// The error code for programs.
    pub code: &'static str,
    /// The path of the invalid field, such as `messages[0].role`; `None` if the error is not about
    /// one field.
    pub param: Option<String>,
    /// The message for people: what is wrong and what is expected instead.
    pub message: String,
}

impl CallError {
    /// Returns the error for a required field that is missing.
    #[must_use]
    pub fn missing(field: &str, expected: &str) -> CallError {
        CallError {
            code: "missing_required_parameter",
            param: Some(field.to_owned()),
            message: format!("'{field}' is required: {expected}"),
        }
    }

    /// Returns the error for a field with an invalid value.
    #[must_use]
    pub fn invalid(field: &str, expected: &str) -> CallError {
        CallError {
            code: "invalid_value",
            param: Some(field.to_owned()),
            message: format!("'{field}' must be {expected}"),
        }
    }
}

impl From<json::JsonError> for CallError {
    fn from(fault: json::JsonError) -> CallError {
        CallError {
            code: "invalid_json",
            param: None,
            message: format!("the body is not sound JSON: {fault}"),
        }
    }
}
