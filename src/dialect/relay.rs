//! A vendor's reply on its way to the client: metered, checked, and passed on as it came or in the
//! other format.
//!
//! A reply in one body is buffered until it is complete, so that a client never takes half of one
//! for a success. A long one whose parts can be validated one by one is passed on piecewise (see
//! `piecewise`). A stream is passed on event by event; one that fails ends with an error event.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::embeddings::EmbeddingInputs;
use super::meter::UsageMeter;
use super::meter::bounds::UsageBounds;
use super::responses::IssuedIds;
use super::translate::reply::ReplyMetadata;
use super::translate::thinking::SavedThinking;
use super::vendor_error::{VendorError, chat_error_body, messages_error_body};
use crate::money::{BilledUnits, Usage, UsageBasis};

mod buffered;
mod passthrough;
mod piecewise;
mod stream;

use buffered::BufferedRelay;
use passthrough::PassthroughRelay;
use piecewise::PiecewiseRelay;
use stream::StreamRelay;

pub use buffered::BUFFERED_BYTES_MAX;

/// The format of the vendor's reply, and the format that the client gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayMode {
    /// Chat on both sides.
    Chat {
        /// Whether the client wants to see usage in a stream.
        include_usage: bool,
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
        uses_vendor_cost: bool,
    },
    /// The result of a moderation, which is free.
    Moderation,
    /// Audio: bytes that are passed on without being parsed.
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
    Failed(RelayError),
}

/// Why a reply is not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// It ended or failed before its end.
    #[error("the vendor's reply ended before it was complete")]
    Truncated,
    /// It is not what the dialect says.
    #[error("the vendor's reply could not be read")]
    Malformed,
    /// It outgrew what one reply may be.
    #[error("the vendor's reply is too large")]
    TooLarge,
    /// No buffer space became free in time: replies that other clients have not read fill it.
    #[error("there is no room for the vendor's reply: too much of others was not read yet")]
    NoBufferSpace,
    /// No buffer space became free in time, because this account's own clients have not read their
    /// other replies.
    #[error("too much of this account's answers was not read; this one is charged all the same")]
    SlowReader,
    /// Nothing came for too long.
    #[error("the vendor stopped answering")]
    Stalled,
    /// The client had gone, and it was not waited for any longer.
    #[error("the vendor's reply was not waited for")]
    Abandoned,
    /// The balance does not cover more of it.
    #[error("the balance does not cover more of the reply")]
    InsufficientCredits,
    /// The ledger could not be asked whether the balance covers more of it.
    #[error("balances cannot be checked at the moment, and what is held covers no more")]
    LedgerUnavailable,
    /// It was made, but the vendor keeps it back.
    #[error("the vendor's safety rules keep back what was made")]
    ContentFiltered,
    /// The vendor said so itself.
    #[error("the vendor reported an error")]
    Vendor(VendorError),
}

impl RelayError {
    /// The body of an error that tells the client, in the chat dialect.
    #[must_use]
    pub fn chat_body(&self) -> String {
        let (kind, code) = self.type_and_code();
        let code = match self {
            RelayError::Vendor(VendorError { code: Some(code), .. }) => code,
            _ => code,
        };
        chat_error_body(kind, code, None, &self.message())
    }

    /// The body of an error that tells the client, in the messages dialect. The vendor's own type
    /// of error stands.
    #[must_use]
    pub fn messages_body(&self, request_id: &str) -> String {
        let (kind, details) = match self {
            RelayError::Vendor(VendorError { kind: Some(kind), details, .. }) => (&**kind, details),
            RelayError::InsufficientCredits => ("billing_error", &None),
            _ => ("api_error", &None),
        };
        messages_error_body(kind, &self.message(), details.as_deref(), request_id)
    }

    /// Whether it is not the vendor that broke it.
    #[must_use]
    pub fn is_gateway_side(&self) -> bool {
        matches!(
            self,
            RelayError::InsufficientCredits
                | RelayError::LedgerUnavailable
                | RelayError::NoBufferSpace
                | RelayError::SlowReader
        )
    }

    /// The type and the code of an error that tells, in the chat dialect.
    fn type_and_code(&self) -> (&'static str, &'static str) {
        match self {
            RelayError::InsufficientCredits => ("insufficient_credits", "insufficient_credits"),
            RelayError::LedgerUnavailable => ("server_error", "ledger_unavailable"),
            RelayError::NoBufferSpace => ("server_error", "overloaded"),
            RelayError::SlowReader => ("server_error", "answers_unread"),
            _ => ("server_error", "upstream_error"),
        }
    }

    fn message(&self) -> String {
        match self {
            RelayError::Vendor(VendorError { message: Some(message), .. }) => message.clone(),
            other => other.to_string(),
        }
    }
}

/// What is to be remembered of a complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetainedData {
    /// What the model thought before it called tools.
    Thinking(SavedThinking),
    /// Ids of objects at the vendor's that the client was given.
    IssuedIds(IssuedIds),
}

/// A reply being passed on.
#[derive(Debug)]
pub enum Relay {
    /// One body.
    Buffered(BufferedRelay),
    /// One body, part by part.
    Piecewise(PiecewiseRelay),
    /// Events.
    Stream(StreamRelay),
    /// Bytes as they come.
    Passthrough(PassthroughRelay),
}

impl Relay {
    /// A relay for a reply in one body, or in events.
    #[must_use]
    pub fn new(mode: RelayMode, stream: bool) -> Relay {
        match mode {
            RelayMode::Speech { characters } => {
                Relay::Passthrough(PassthroughRelay::new(characters))
            }
            RelayMode::Embeddings(inputs) => Relay::Piecewise(PiecewiseRelay::new(inputs)),
            mode if stream => Relay::Stream(StreamRelay::new(mode)),
            mode => Relay::Buffered(BufferedRelay::new(mode)),
        }
    }

    /// Sets the limits above which the vendor's usage report is rejected.
    #[must_use]
    pub fn with_bounds(mut self, bounds: UsageBounds) -> Relay {
        match &mut self {
            Relay::Buffered(whole) => {
                whole.meter.set_bounds(bounds);
                whole.bounds = bounds;
            }
            Relay::Piecewise(pieces) => pieces.meter.set_bounds(bounds),
            Relay::Stream(stream) => stream.meter.set_bounds(bounds),
            Relay::Passthrough(_) => {}
        }
        self
    }

    /// The usage report that was rejected as implausible, if any. [`Relay::billable_usage`] is then
    /// counted by the gateway.
    #[must_use]
    pub fn rejected_usage(&self) -> Option<BilledUnits> {
        match self {
            Relay::Buffered(BufferedRelay { rejected_image_units: Some(units), .. }) => {
                Some(*units)
            }
            _ => self.meter().and_then(UsageMeter::rejected_report).map(BilledUnits::Tokens),
        }
    }

    /// Takes bytes of the vendor's, gives bytes for the client.
    pub fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        match self {
            Relay::Buffered(whole) => {
                whole.push(bytes);
                None
            }
            Relay::Piecewise(pieces) => pieces.push(&bytes),
            Relay::Stream(stream) => stream.push(bytes),
            Relay::Passthrough(raw) => raw.push(bytes),
        }
    }

    /// The vendor's bytes have ended; gives what is still due to the client.
    pub fn finish(&mut self) -> Option<Bytes> {
        match self {
            Relay::Buffered(whole) => whole.finish(),
            Relay::Piecewise(pieces) => pieces.finish(),
            Relay::Stream(stream) => stream.finish(),
            Relay::Passthrough(raw) => {
                raw.finish();
                None
            }
        }
    }

    /// The vendor's bytes will not go on; gives what tells the client so, inside a stream.
    pub fn fail(&mut self, why: RelayError) -> Option<Bytes> {
        match self {
            Relay::Buffered(whole) => {
                whole.fail(why);
                None
            }
            Relay::Piecewise(pieces) => {
                pieces.fail(why);
                None
            }
            Relay::Stream(stream) => stream.fail(why),
            Relay::Passthrough(raw) => {
                raw.progress = RelayProgress::Failed(why);
                None
            }
        }
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> &RelayProgress {
        match self {
            Relay::Buffered(whole) => &whole.progress,
            Relay::Piecewise(pieces) => &pieces.progress,
            Relay::Stream(stream) => &stream.progress,
            Relay::Passthrough(raw) => &raw.progress,
        }
    }

    /// How many bytes of it are held: what came and was not given out.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        match self {
            Relay::Buffered(whole) => whole.buffered_bytes(),
            Relay::Piecewise(pieces) => pieces.buffered_bytes(),
            Relay::Stream(stream) => stream.buffered_bytes(),
            Relay::Passthrough(_) => 0,
        }
    }

    /// Whether a failure is reported inside the reply. Audio and a half-sent JSON body have no
    /// place for it.
    #[must_use]
    pub fn reports_errors_inline(&self) -> bool {
        !matches!(self, Relay::Passthrough(_) | Relay::Piecewise(_))
    }

    /// The usage to charge for so far, or `None`. `input` is the number of input tokens to assume
    /// if the vendor reports none.
    #[must_use]
    pub fn billable_usage(&self, input: u64) -> Option<Usage> {
        let complete = *self.progress() == RelayProgress::Complete;
        // What the gateway stopped waiting for on account of the client is billed all the same.
        let ended = complete || self.is_abandoned();
        let (meter, is_unbilled) = match self {
            Relay::Passthrough(raw) => return ended.then(|| raw.usage()),
            Relay::Buffered(BufferedRelay { mode: RelayMode::Moderation, .. }) => return None,
            Relay::Buffered(BufferedRelay {
                mode: RelayMode::Image { .. },
                image_usage: image,
                rejected_image_units: image_rejected,
                ..
            }) => {
                return ended.then(|| image.unwrap_or(fallback_image_usage(*image_rejected)));
            }
            Relay::Buffered(whole) => (&whole.meter, whole.response_state.is_unbilled()),
            Relay::Piecewise(pieces) => (&pieces.meter, false),
            Relay::Stream(stream) => (&stream.meter, stream.is_unbilled()),
        };
        if is_unbilled || (!ended && !meter.has_output()) {
            return None;
        }
        let usage = if complete { meter.usage(input) } else { meter.usage_so_far(input) };
        Some(usage.into())
    }

    /// Sets the length that the vendor announced. The reply may end before it.
    pub fn set_expected_length(&mut self, bytes: usize) {
        if let Relay::Buffered(whole) = self {
            whole.set_expected_length(bytes);
        }
    }

    /// Whether it was given up on account of the client: it had gone, or does not read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        matches!(
            self.progress(),
            RelayProgress::Failed(RelayError::Abandoned | RelayError::SlowReader)
        )
    }

    /// What is known of the tokens of a text.
    #[must_use]
    pub fn meter(&self) -> Option<&UsageMeter> {
        match self {
            Relay::Buffered(whole) => Some(&whole.meter),
            Relay::Piecewise(pieces) => Some(&pieces.meter),
            Relay::Stream(stream) => Some(&stream.meter),
            Relay::Passthrough(_) => None,
        }
    }

    /// What is to be remembered of a complete answer, if anything.
    pub fn take_retained(&mut self) -> Option<RetainedData> {
        match self {
            Relay::Buffered(whole) => whole.take_retained(),
            Relay::Stream(stream) => stream.take_retained(),
            Relay::Piecewise(_) | Relay::Passthrough(_) => None,
        }
    }
}

/// The usage of an image whose report is missing or was rejected.
fn fallback_image_usage(rejected: Option<BilledUnits>) -> Usage {
    let basis = if rejected.is_some() { UsageBasis::Counted } else { UsageBasis::Fixed };
    Usage { units: BilledUnits::Images { images: 1 }, basis }
}

#[cfg(test)]
mod tests;
