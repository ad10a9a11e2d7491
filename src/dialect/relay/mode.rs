//! Which formats a reply is passed on between.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::embeddings::EmbeddingInputs;
use crate::dialect::translate::reply::ReplyMetadata;

/// The format of the vendor's reply, and the format that the client gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayMode {
    /// Chat on both sides.
    Chat {
        /// Whether the client wants to see usage in a stream.
        include_usage: bool,
        /// How many choices there will be.
        choices: u64,
    },
    /// Messages on both sides.
    Messages {
        /// The id that an error names.
        request_id: String,
    },
    /// Messages from the vendor, chat for the client.
    Translated(ReplyMetadata),
    /// Responses on both sides.
    Responses,
    /// Embeddings on both sides.
    Embeddings(EmbeddingInputs),
    /// One image on both sides.
    Image {
        /// When the call arrived, in unix seconds.
        created: i64,
        /// Whether the vendor's bill is the price, and not the tokens.
        uses_vendor_cost: bool,
    },
    /// The result of a moderation, which is free.
    Moderation,
    /// Audio: bytes that are passed on without being parsed.
    Speech {
        /// Unicode code points of the text that is spoken.
        characters: u64,
    },
}
