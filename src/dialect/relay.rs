//! A vendor's reply on its way to the client: metered, checked, and passed on as it came or in the
//! other format.
//!
//! A reply in one body is buffered until it is complete, so that a client never takes half of one
//! for a success. A long one whose parts can be validated one by one is passed on piecewise (see
//! `piecewise`). A stream is passed on event by event; one that fails ends with an error event.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::meter::UsageMeter;
use super::meter::bounds::UsageBounds;
use crate::money::{BilledUnits, Usage, UsageBasis};

mod buffered;
mod mode;
mod passthrough;
mod piecewise;
mod progress;
mod stream;

use buffered::BufferedRelay;
use passthrough::PassthroughRelay;
use piecewise::PiecewiseRelay;
use stream::StreamRelay;

pub(crate) use buffered::BUFFERED_BYTES_MAX;
pub use mode::RelayMode;
pub use progress::{RelayError, RelayProgress, RetainedData};

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
    pub(crate) fn with_bounds(mut self, bounds: UsageBounds) -> Relay {
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
    pub(crate) fn buffered_bytes(&self) -> usize {
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
    pub(crate) fn reports_errors_inline(&self) -> bool {
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
    pub(crate) fn set_expected_length(&mut self, bytes: usize) {
        if let Relay::Buffered(whole) = self {
            whole.set_expected_length(bytes);
        }
    }

    /// Whether it was given up on account of the client: it had gone, or does not read.
    #[must_use]
    pub(crate) fn is_abandoned(&self) -> bool {
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
