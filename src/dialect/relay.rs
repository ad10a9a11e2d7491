//! A vendor's reply on its way to the client: metered, checked, and passed on as it came or in the
//! other format.
//!
//! A whole reply is kept until it is complete, so that a client never sees half of one as success.
//! A stream is passed on event by event; one that breaks ends with an error event, never cleanly.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::meter::Meter;
use super::translate::reply::Stamp;
use super::translate::thinking::Kept;
use super::vendor_error::{VendorError, chat_body, messages_body};

mod stream;
mod whole;

use stream::Stream;
use whole::Whole;

/// What the vendor speaks, and what the client is to hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passage {
    /// Chat on both sides.
    Chat {
        /// Whether the client wants to see usage in a stream.
        usage_asked: bool,
        /// How many choices there will be.
        choices: u64,
    },
    /// Messages on both sides.
    Messages {
        /// The id that an error names.
        request_id: String,
    },
    /// Messages from the vendor, chat for the client.
    Translated(Stamp),
}

impl Passage {
    /// An event that tells the client why its stream ends.
    fn error_event(&self, why: &Break) -> String {
        match self {
            Passage::Messages { request_id } => {
                format!("event: error\ndata: {}\n\n", why.messages_body(request_id))
            }
            Passage::Chat { .. } | Passage::Translated(_) => {
                format!("data: {}\n\n", why.chat_body())
            }
        }
    }
}

/// How far a reply has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// More is to come.
    Open,
    /// All of it came.
    Complete,
    /// It will never be complete.
    Broken(Break),
}

/// Why a reply is not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// It ended or failed before its end.
    #[error("the vendor's reply ended before it was complete")]
    Cut,
    /// It is not what the dialect says.
    #[error("the vendor's reply could not be read")]
    Garbage,
    /// It outgrew what one reply may be.
    #[error("the vendor's reply is too large")]
    TooLarge,
    /// Nothing came for too long.
    #[error("the vendor stopped answering")]
    Stalled,
    /// The client had gone, and it was not waited for any longer.
    #[error("the vendor's reply was not waited for")]
    Abandoned,
    /// The vendor said so itself.
    #[error("the vendor reported an error")]
    Told(VendorError),
}

impl Break {
    /// The body of an error that tells the client, in the chat dialect.
    #[must_use]
    pub fn chat_body(&self) -> String {
        chat_body("server_error", "upstream_error", None, &self.said())
    }

    /// The body of an error that tells the client, in the messages dialect. The vendor's own type
    /// of error stands.
    #[must_use]
    pub fn messages_body(&self, request_id: &str) -> String {
        let (kind, details) = match self {
            Break::Told(VendorError { kind: Some(kind), details, .. }) => (&**kind, details),
            _ => ("api_error", &None),
        };
        messages_body(kind, &self.said(), details.as_deref(), request_id)
    }

    fn said(&self) -> String {
        match self {
            Break::Told(VendorError { message: Some(message), .. }) => message.clone(),
            other => other.to_string(),
        }
    }
}

/// A reply being passed on.
#[derive(Debug)]
pub enum Relay {
    /// One body.
    Whole(Whole),
    /// Events.
    Stream(Stream),
}

impl Relay {
    /// A relay for a reply in one body, or in events.
    #[must_use]
    pub fn new(passage: Passage, stream: bool) -> Relay {
        if stream { Relay::Stream(Stream::new(passage)) } else { Relay::Whole(Whole::new(passage)) }
    }

    /// Takes bytes of the vendor's, gives bytes for the client.
    pub fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        match self {
            Relay::Whole(whole) => {
                whole.push(bytes);
                None
            }
            Relay::Stream(stream) => stream.push(bytes),
        }
    }

    /// The vendor's bytes have ended; gives what is still due to the client.
    pub fn finish(&mut self) -> Option<Bytes> {
        match self {
            Relay::Whole(whole) => whole.finish(),
            Relay::Stream(stream) => stream.finish(),
        }
    }

    /// The vendor's bytes will not go on; gives what tells the client so, inside a stream.
    pub fn fail(&mut self, why: Break) -> Option<Bytes> {
        match self {
            Relay::Whole(whole) => {
                whole.progress = Progress::Broken(why);
                None
            }
            Relay::Stream(stream) => stream.fail(why),
        }
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        match self {
            Relay::Whole(whole) => &whole.progress,
            Relay::Stream(stream) => &stream.progress,
        }
    }

    /// What is known of its usage.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        match self {
            Relay::Whole(whole) => &whole.meter,
            Relay::Stream(stream) => &stream.meter,
        }
    }

    /// What is to be kept of a complete translated answer that calls tools, if anything.
    pub fn kept(&mut self) -> Option<Kept> {
        match self {
            Relay::Whole(whole) => whole.kept.take(),
            Relay::Stream(stream) => stream.kept(),
        }
    }
}

#[cfg(test)]
mod tests;
