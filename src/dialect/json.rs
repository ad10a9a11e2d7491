//! A strict zero-copy JSON reader: one scan validates the body, members are byte ranges in it, and
//! edits are splices of the original.
//!
//! Vendors read bodies with parsers that disagree on duplicate members, lone surrogates or numbers
//! out of range. What one of them bills must be what we held for, so such bodies are refused.
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
