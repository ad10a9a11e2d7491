//! What of an embeddings call decides its price and the form of its reply.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// What a call wants embedded, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingInputs {
    /// Whether vectors are to come in base64.
    pub base64: bool,
    /// Tokens, as counted where the vendor reports none.
    pub tokens: u64,
    /// More tokens than a vendor may count.
    pub tokens_max: u64,
}
