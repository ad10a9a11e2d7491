//! The formats of a reply: the vendor's, and the client's.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::embeddings::EmbeddingInputs;
use crate::dialect::translate::reply::ReplyMetadata;

/// The format of the vendor's reply, and the format that the client gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayMode {
    /// Chat on both sides.
    Chat {
        /// Whether the client asked for the usage report in a stream.
        include_usage: bool,
        /// How many choices the client asked for.
        choices: u64,
    },
    /// Messages on both sides.
    Messages {
        /// The request id that an error body names.
        request_id: String,
    },
    /// Messages from the vendor, chat for the client.
    Translated(ReplyMetadata),
    /// Responses on both sides.
    Responses,
    /// A compacted conversation in the responses format on both sides.
    Compaction,
    /// Embeddings on both sides.
    Embeddings(EmbeddingInputs),
    /// One image on both sides.
    Image {
        /// When the call arrived, in unix seconds.
        created: i64,
        /// Whether the price is the cost that the vendor reports, instead of a price for tokens.
        uses_vendor_cost: bool,
    },
    /// The result of a moderation, which is free.
    Moderation,
    /// A count of input tokens, which is free.
    TokenCount,
    /// Audio: bytes that are passed on without being parsed.
    Speech {
        /// Unicode code points of the text that is spoken, which are what is billed.
        characters: u64,
    },
}
