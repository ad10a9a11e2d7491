//! What clients and vendors write, and what becomes of it: golden files in every format, and
//! properties that hold for any chat request and its reply in messages.
//!
//! A golden body is given to the translator byte for byte as it stands in its file.

mod chat_replies;
mod chats;
pub(crate) mod checker;
mod edits;
mod embeddings;
mod fields;
mod golden;
mod images;
mod messages;
mod relayed;
mod replies;
mod reply_properties;
mod request_properties;
mod requests;
mod responses;
mod streams;
mod thinking;
mod videos;
