//! The wire formats: requests as clients send them, replies as vendors send them.
//!
//! Everything here is a pure function of bytes. The same parser reads what a request may cost and
//! what a reply did cost, so the two cannot disagree.
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
pub mod translate;
pub mod vendor_error;
pub mod videos;

/// An endpoint of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Chat completions.
    Chat,
    /// The responses format.
    Responses,
    /// The native messages format.
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
}

impl Endpoint {
    /// Its path.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Responses => "/v1/responses",
            Endpoint::Messages => "/v1/messages",
            Endpoint::Images => "/v1/images/generations",
            Endpoint::ImageEdits => "/v1/images/edits",
            Endpoint::Videos => "/v1/videos",
            Endpoint::Speech => "/v1/audio/speech",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Moderations => "/v1/moderations",
        }
    }

    /// The path at a vendor, whose base address already ends in its version.
    #[must_use]
    pub(crate) fn vendor_path(self) -> &'static str {
        &self.path()["/v1".len()..]
    }

    /// Its short name in journals, metrics and rules.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat",
            Endpoint::Responses => "responses",
            Endpoint::Messages => "messages",
            Endpoint::Images => "images",
            Endpoint::ImageEdits => "image_edits",
            Endpoint::Videos => "videos",
            Endpoint::Speech => "speech",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Moderations => "moderations",
        }
    }

    /// All of them.
    pub const ALL: [Endpoint; 9] = [
        Endpoint::Chat,
        Endpoint::Responses,
        Endpoint::Messages,
        Endpoint::Images,
        Endpoint::ImageEdits,
        Endpoint::Videos,
        Endpoint::Speech,
        Endpoint::Embeddings,
        Endpoint::Moderations,
    ];
}

/// What is wrong with a request; the client has to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// The code that programs read.
    pub code: &'static str,
    /// The field at fault, as a path.
    pub param: Option<String>,
    /// What is wrong and what would be right.
    pub message: String,
}

impl CallError {
    /// A field that has to be there is not.
    #[must_use]
    pub fn missing(field: &str, expected: &str) -> CallError {
        CallError {
            code: "missing_required_parameter",
            param: Some(field.to_owned()),
            message: format!("'{field}' is required: {expected}"),
        }
    }

    /// A field has a value that it can't have.
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
