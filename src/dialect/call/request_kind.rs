//! What a call asks for, for each endpoint.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::text_request::TextRequest;
use crate::dialect::embeddings::EmbeddingInputs;
use crate::dialect::images::SourceImage;
use crate::dialect::responses::{ResponsesRequest, StoredObjectId};
use crate::dialect::videos::VideoRequest;

/// What a request asks for, as far as its price or the handling of its reply depends on it.
#[derive(Debug, Clone)]
pub enum RequestKind {
    /// Text, in the chat format.
    Chat {
        /// Whether the client asked for the usage report in a stream.
        include_usage: bool,
        /// The values that bound the call's token usage.
        text: TextRequest,
    },
    /// Text, in the messages format.
    Messages(TextRequest),
    /// Text, in the responses format.
    Responses(ResponsesRequest),
    /// A shorter form of a conversation in the responses format.
    Compaction(ResponsesRequest),
    /// Embeddings.
    Embeddings(EmbeddingInputs),
    /// Speech.
    Speech {
        /// Unicode code points of the text to be spoken.
        characters: u64,
    },
    /// One image.
    Image {
        /// The image to be edited; `None` if the image is made from text only.
        file: Option<SourceImage>,
    },
    /// One video.
    Video {
        /// The properties of the video that the client asked for.
        request: VideoRequest,
        /// The uploaded image with which the video begins, if there is one.
        file: Option<SourceImage>,
    },
    /// A moderation of the input.
    Moderation,
    /// The number of tokens of a text. None is generated.
    TokenCount {
        /// The objects stored at the vendor that the call names, in the order of the body.
        references: Vec<StoredObjectId>,
    },
}
