//! Counts tokens: estimates those of a text whose vendor reports none, and gives an upper bound of
//! those that a vendor can find in a call.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

mod bound;
mod input;
mod input_count;
mod o200k;
mod tally;
mod tokenizer;
mod weights;

pub(in crate::dialect) use bound::o200k_tokens_max;
pub(in crate::dialect) use input::{InputTally, add_json};
pub use input_count::InputCount;
pub(in crate::dialect) use tally::TextTally;
pub use tokenizer::Tokenizer;

#[cfg(test)]
mod tests;
