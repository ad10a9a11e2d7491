//! What calls ask for, of any endpoint.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::text_request::TextRequest;
use crate::dialect::embeddings::EmbeddingInputs;
use crate::dialect::images::SourceImage;
use crate::dialect::responses::ResponsesRequest;
use crate::dialect::videos::VideoRequest;

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
        request: VideoRequest,
        /// The image that it begins with.
        file: Option<SourceImage>,
    },
    /// A verdict on the input.
    Moderation,
}
