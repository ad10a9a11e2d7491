//! A vendor's reply on its way to the client: metered, checked, and passed on as it came or in the
//! other format.
//!
//! A whole reply is kept until it is complete, so that a client never sees half of one as success.
//! One that may be long and whose parts prove themselves is passed on in pieces (see `pieces`).
//! A stream is passed on event by event; one that breaks ends with an error event, never cleanly.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::embeddings::EmbeddingInputs;
use super::meter::UsageMeter;
use super::meter::bounds::UsageBounds;
use super::responses::IssuedIds;
use super::translate::reply::ReplyMetadata;
use super::translate::thinking::SavedThinking;
use super::vendor_error::{VendorError, chat_body, messages_body};
use crate::money::{BilledUnits, Usage, UsageBasis};

mod pieces;
mod raw;
mod stream;
mod whole;

use pieces::PiecewiseRelay;
use raw::PassthroughRelay;
use stream::StreamRelay;
use whole::BufferedRelay;

pub use whole::WHOLE_BYTES_MAX;

/// What the vendor speaks, and what the client is to hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayMode {
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
    Translated(ReplyMetadata),
    /// Responses on both sides.
    Responses,
    /// Embeddings on both sides.
    Embeddings(EmbeddingInputs),
    /// One image on both sides.
    Image {
        /// When the call arrived, in unix seconds.
        created: i64,
        /// Whether the vendor's bill is the price, and not the tokens.
        billed: bool,
    },
    /// A verdict on input, for nothing.
    Verdict,
    /// Sound: bytes that nobody here reads.
    Speech {
        /// Unicode code points of the text that is spoken.
        characters: u64,
    },
}

/// How far a reply has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayProgress {
    /// More is to come.
    Open,
    /// All of it came.
    Complete,
    /// It will never be complete.
    Broken(RelayError),
}

/// Why a reply is not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// It ended or failed before its end.
    #[error("the vendor's reply ended before it was complete")]
    Cut,
    /// It is not what the dialect says.
    #[error("the vendor's reply could not be read")]
    Garbage,
    /// It outgrew what one reply may be.
    #[error("the vendor's reply is too large")]
    TooLarge,
    /// There was no room for more of it in time: replies that clients have not taken have it all.
    #[error("there is no room for the vendor's reply: too much of others was not read yet")]
    NoRoom,
    /// The same, since its own account has taken too little of its other replies for too long.
    #[error("too much of this account's answers was not read; this one is charged all the same")]
    Unread,
    /// Nothing came for too long.
    #[error("the vendor stopped answering")]
    Stalled,
    /// The client had gone, and it was not waited for any longer.
    #[error("the vendor's reply was not waited for")]
    Abandoned,
    /// The balance does not cover more of it.
    #[error("the balance does not cover more of the reply")]
    Insufficient,
    /// Nobody could tell whether the balance covers more of it.
    #[error("balances cannot be checked at the moment, and what is held covers no more")]
    NoLedger,
    /// It was made, but the vendor keeps it back.
    #[error("the vendor's safety rules keep back what was made")]
    Withheld,
    /// The vendor said so itself.
    #[error("the vendor reported an error")]
    Told(VendorError),
}

impl RelayError {
    /// The body of an error that tells the client, in the chat dialect.
    #[must_use]
    pub fn chat_body(&self) -> String {
        let (kind, code) = self.named();
        let code = match self {
            RelayError::Told(VendorError { code: Some(code), .. }) => code,
            _ => code,
        };
        chat_body(kind, code, None, &self.said())
    }

    /// The body of an error that tells the client, in the messages dialect. The vendor's own type
    /// of error stands.
    #[must_use]
    pub fn messages_body(&self, request_id: &str) -> String {
        let (kind, details) = match self {
            RelayError::Told(VendorError { kind: Some(kind), details, .. }) => (&**kind, details),
            RelayError::Insufficient => ("billing_error", &None),
            _ => ("api_error", &None),
        };
        messages_body(kind, &self.said(), details.as_deref(), request_id)
    }

    /// Whether it is not the vendor that broke it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(
            self,
            RelayError::Insufficient
                | RelayError::NoLedger
                | RelayError::NoRoom
                | RelayError::Unread
        )
    }

    /// The type and the code of an error that tells, in the chat dialect.
    fn named(&self) -> (&'static str, &'static str) {
        match self {
            RelayError::Insufficient => ("insufficient_credits", "insufficient_credits"),
            RelayError::NoLedger => ("server_error", "ledger_unavailable"),
            RelayError::NoRoom => ("server_error", "overloaded"),
            RelayError::Unread => ("server_error", "answers_unread"),
            _ => ("server_error", "upstream_error"),
        }
    }

    fn said(&self) -> String {
        match self {
            RelayError::Told(VendorError { message: Some(message), .. }) => message.clone(),
            other => other.to_string(),
        }
    }
}

/// What is to be remembered of a complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remember {
    /// What the model thought before it called tools.
    Thinking(SavedThinking),
    /// Ids of objects at the vendor's that the client was given.
    Given(IssuedIds),
}

/// A reply being passed on.
#[derive(Debug)]
pub enum Relay {
    /// One body.
    Whole(BufferedRelay),
    /// One body, part by part.
    Pieces(PiecewiseRelay),
    /// Events.
    Stream(StreamRelay),
    /// Bytes as they come.
    Raw(PassthroughRelay),
}

impl Relay {
    /// A relay for a reply in one body, or in events.
    #[must_use]
    pub fn new(passage: RelayMode, stream: bool) -> Relay {
        match passage {
            RelayMode::Speech { characters } => Relay::Raw(PassthroughRelay::new(characters)),
            RelayMode::Embeddings(inputs) => Relay::Pieces(PiecewiseRelay::new(inputs)),
            passage if stream => Relay::Stream(StreamRelay::new(passage)),
            passage => Relay::Whole(BufferedRelay::new(passage)),
        }
    }

    /// The same, for a call of which no more than this is believed.
    #[must_use]
    pub fn bounded(mut self, bounds: UsageBounds) -> Relay {
        match &mut self {
            Relay::Whole(whole) => {
                whole.meter.set_bounds(bounds);
                whole.bounds = bounds;
            }
            Relay::Pieces(pieces) => pieces.meter.set_bounds(bounds),
            Relay::Stream(stream) => stream.meter.set_bounds(bounds),
            Relay::Raw(_) => {}
        }
        self
    }

    /// What the vendor reported that was not believed, if anything; then [`Relay::due`] is counted.
    #[must_use]
    pub fn rejected(&self) -> Option<BilledUnits> {
        match self {
            Relay::Whole(BufferedRelay { image_rejected: Some(units), .. }) => Some(*units),
            _ => self.meter().and_then(UsageMeter::rejected).map(BilledUnits::Tokens),
        }
    }

    /// Takes bytes of the vendor's, gives bytes for the client.
    pub fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        match self {
            Relay::Whole(whole) => {
                whole.push(bytes);
                None
            }
            Relay::Pieces(pieces) => pieces.push(&bytes),
            Relay::Stream(stream) => stream.push(bytes),
            Relay::Raw(raw) => raw.push(bytes),
        }
    }

    /// The vendor's bytes have ended; gives what is still due to the client.
    pub fn finish(&mut self) -> Option<Bytes> {
        match self {
            Relay::Whole(whole) => whole.finish(),
            Relay::Pieces(pieces) => pieces.finish(),
            Relay::Stream(stream) => stream.finish(),
            Relay::Raw(raw) => {
                raw.finish();
                None
            }
        }
    }

    /// The vendor's bytes will not go on; gives what tells the client so, inside a stream.
    pub fn fail(&mut self, why: RelayError) -> Option<Bytes> {
        match self {
            Relay::Whole(whole) => {
                whole.fail(why);
                None
            }
            Relay::Pieces(pieces) => {
                pieces.fail(why);
                None
            }
            Relay::Stream(stream) => stream.fail(why),
            Relay::Raw(raw) => {
                raw.progress = RelayProgress::Broken(why);
                None
            }
        }
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> &RelayProgress {
        match self {
            Relay::Whole(whole) => &whole.progress,
            Relay::Pieces(pieces) => &pieces.progress,
            Relay::Stream(stream) => &stream.progress,
            Relay::Raw(raw) => &raw.progress,
        }
    }

    /// How many bytes of it are held: what came and was not given out.
    #[must_use]
    pub fn held(&self) -> usize {
        match self {
            Relay::Whole(whole) => whole.held(),
            Relay::Pieces(pieces) => pieces.held(),
            Relay::Stream(stream) => stream.held(),
            Relay::Raw(_) => 0,
        }
    }

    /// Whether what it gives when it breaks says so. Nothing in sound could, nor in a part of a
    /// body.
    #[must_use]
    pub fn tells_breaks(&self) -> bool {
        !matches!(self, Relay::Raw(_) | Relay::Pieces(_))
    }

    /// What has to be paid for by now, the input being so many tokens where the vendor says
    /// nothing of it; `None` if nothing is due.
    #[must_use]
    pub fn due(&self, input: u64) -> Option<Usage> {
        let complete = *self.progress() == RelayProgress::Complete;
        // What the gateway stopped waiting for on account of the client is billed all the same.
        let ended = complete || self.is_abandoned();
        let (meter, unpaid) = match self {
            Relay::Raw(raw) => return ended.then(|| raw.usage()),
            Relay::Whole(BufferedRelay { passage: RelayMode::Verdict, .. }) => return None,
            Relay::Whole(BufferedRelay {
                passage: RelayMode::Image { .. },
                image,
                image_rejected,
                ..
            }) => {
                return ended.then(|| image.unwrap_or(counted_image(*image_rejected)));
            }
            Relay::Whole(whole) => (&whole.meter, whole.told.is_unpaid()),
            Relay::Pieces(pieces) => (&pieces.meter, false),
            Relay::Stream(stream) => (&stream.meter, stream.is_unpaid()),
        };
        if unpaid || (!ended && !meter.any_output()) {
            return None;
        }
        let usage = if complete { meter.usage(input) } else { meter.usage_so_far(input) };
        Some(usage.into())
    }

    /// Its vendor has told how many bytes it has, which it may never be read to.
    pub fn note_length(&mut self, bytes: usize) {
        if let Relay::Whole(whole) = self {
            whole.note_length(bytes);
        }
    }

    /// Whether it was given up on account of the client: it had gone, or does not read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        matches!(self.progress(), RelayProgress::Broken(RelayError::Abandoned | RelayError::Unread))
    }

    /// What is known of the tokens of a text.
    #[must_use]
    pub fn meter(&self) -> Option<&UsageMeter> {
        match self {
            Relay::Whole(whole) => Some(&whole.meter),
            Relay::Pieces(pieces) => Some(&pieces.meter),
            Relay::Stream(stream) => Some(&stream.meter),
            Relay::Raw(_) => None,
        }
    }

    /// What is to be remembered of a complete answer, if anything.
    pub fn keep(&mut self) -> Option<Remember> {
        match self {
            Relay::Whole(whole) => whole.keep(),
            Relay::Stream(stream) => stream.keep(),
            Relay::Pieces(_) | Relay::Raw(_) => None,
        }
    }
}

/// An image of which the vendor says neither tokens nor a price, or what cannot be.
fn counted_image(rejected: Option<BilledUnits>) -> Usage {
    let basis = if rejected.is_some() { UsageBasis::Counted } else { UsageBasis::Fixed };
    Usage { units: BilledUnits::Images { images: 1 }, basis }
}

#[cfg(test)]
mod tests;
