//! The facts of an embeddings call that decide its price and the form of its reply.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// The size of a call's input, and the encoding of the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingInputs {
    /// Whether the client asked for vectors in base64.
    pub base64: bool,
    /// The input tokens counted by the gateway, used if the vendor reports none.
    pub tokens: u64,
    /// An upper bound of the input tokens that a vendor may count.
    pub tokens_max: u64,
}
