//! Translates between the chat format and the messages format: requests from chat to messages,
//! replies and stream events from messages to chat.
//!
//! A value that both formats share is copied byte for byte, not parsed and serialized again:
//! strings keep their escapes, numbers their digits and objects the order of their members. A field
//! that has no counterpart in the messages format is dropped, and its path is reported. A field
//! whose loss would change the meaning of the call is refused.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

mod dropped_fields;
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
