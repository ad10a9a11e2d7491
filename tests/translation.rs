//! Chat requests to messages and back: golden files, and properties that hold for any.
//!
//! A golden body is given to the translator byte for byte as it stands in its file.

mod chats;
mod checker;
mod golden;
mod messages;
mod replies;
mod reply_properties;
mod request_properties;
mod requests;
mod streams;
mod thinking;
