//! A strict zero-copy JSON reader: one scan validates the body, members are byte ranges in it, and
//! edits are splices of the original.
//!
//! Vendors' JSON parsers disagree on duplicate members, lone surrogates and numbers out of range.
//! The vendor must bill the same request that the gateway priced for the hold, so such bodies are
//! rejected.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

pub mod compact;
mod document;
pub mod patch;
pub mod scan;
pub mod value;

pub use document::JsonDocument;
pub use patch::JsonPatch;
pub use scan::JsonError;
pub use value::{JsonKind, JsonValue};
