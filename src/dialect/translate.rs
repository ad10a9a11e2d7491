//! Between the chat format and the messages format: requests one way, replies and their events the
//! other, by the bytes.
//!
//! Text keeps its escapes, numbers keep their digits and objects the order of their members: what
//! both formats say alike is copied, never read and written anew. What the messages format has no
//! place for is dropped and named; what would change the meaning of a call is refused.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

mod parts;
pub mod reply;
pub mod request;
mod settings;
pub mod stream;
pub mod thinking;
mod tool_call_ids;
mod tools;
mod turns;
mod writer;
