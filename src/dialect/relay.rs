//! A vendor's reply on its way to the client: metered, checked, and passed on as it came.
//!
//! A whole reply is kept until it is complete, so that a client never sees half of one as success.
//! A stream is passed on event by event; one that breaks ends with an error event, never cleanly.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::meter::Meter;
use super::vendor_error::{VendorError, chat_body};

mod stream;
mod whole;

use stream::Stream;
use whole::Whole;

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
    /// The vendor said so itself.
    #[error("the vendor reported an error")]
    Told(VendorError),
}

impl Break {
    /// The body of an error that tells the client, in the chat dialect.
    #[must_use]
    pub fn chat_body(&self) -> String {
        let said = match self {
            Break::Told(VendorError { message: Some(message), .. }) => message.clone(),
            other => other.to_string(),
        };
        chat_body("server_error", "upstream_error", None, &said)
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
    /// A relay for a chat reply in one body.
    #[must_use]
    pub fn whole() -> Relay {
        Relay::Whole(Whole::default())
    }

    /// A relay for a chat reply of so many choices in events; `usage_asked` says whether the client
    /// wants to see usage.
    #[must_use]
    pub fn stream(usage_asked: bool, choices: u64) -> Relay {
        Relay::Stream(Stream::new(usage_asked, choices))
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
}

#[cfg(test)]
mod tests;
