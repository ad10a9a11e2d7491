//! Relays a vendor's reply to the client: meters it, checks it, and passes it on as received or
//! translated into the other format.
//!
//! A reply in one body is buffered until it is complete, so that a client never mistakes half a
//! reply for a success. A long reply whose parts can be validated one by one is passed on piecewise
//! (see `piecewise`). A stream is passed on event by event; a stream that fails ends with an error
//! event.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::meter::UsageMeter;
use super::meter::bounds::UsageBounds;
use super::meter::tool_uses::{HostedTool, ToolUses};
use super::tokens::Tokenizer;
use crate::money::{BilledUnits, Usage, UsageBasis};

mod buffered;
mod mode;
mod passthrough;
mod piecewise;
mod progress;
mod reply_id;
mod stream;

use buffered::BufferedRelay;
use passthrough::PassthroughRelay;
use piecewise::PiecewiseRelay;
use stream::StreamRelay;

pub(crate) use buffered::BUFFERED_BYTES_MAX;
pub use mode::RelayMode;
pub use progress::{RelayError, RelayProgress, RetainedData};
pub(crate) use reply_id::is_reply_id;

/// The relay of one reply.
#[derive(Debug)]
pub enum Relay {
    /// A reply in one body, which is buffered until it is complete.
    Buffered(BufferedRelay),
    /// A reply in one body, which is passed on part by part.
    Piecewise(PiecewiseRelay),
    /// A stream of events.
    Stream(StreamRelay),
    /// Bytes that are passed on without being parsed.
    Passthrough(PassthroughRelay),
}

impl Relay {
    /// Returns a relay for a reply in one body or, if `stream` is true, in events.
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
            Relay::Buffered(buffered) => {
                buffered.meter.set_bounds(bounds);
                buffered.bounds = bounds;
            }
            Relay::Piecewise(piecewise) => piecewise.meter.set_bounds(bounds),
            Relay::Stream(stream) => stream.meter.set_bounds(bounds),
            Relay::Passthrough(_) => {}
        }
        self
    }

    /// Sets the tokenizer by which text is counted where the vendor reports no usage.
    #[must_use]
    pub(crate) fn with_tokenizer(mut self, tokenizer: Tokenizer) -> Relay {
        match &mut self {
            Relay::Buffered(buffered) => buffered.meter.set_tokenizer(tokenizer),
            Relay::Piecewise(piecewise) => piecewise.meter.set_tokenizer(tokenizer),
            Relay::Stream(stream) => stream.meter.set_tokenizer(tokenizer),
            Relay::Passthrough(_) => {}
        }
        self
    }

    /// Sets the tools of the vendor whose uses cost a fee.
    #[must_use]
    pub(crate) fn with_tools(mut self, tools: Vec<HostedTool>) -> Relay {
        let (meter, shows_calls) = match &mut self {
            Relay::Buffered(buffered) => (&mut buffered.meter, false),
            Relay::Stream(stream) => {
                let shows_calls = stream.shows_tool_calls();
                (&mut stream.meter, shows_calls)
            }
            Relay::Piecewise(_) | Relay::Passthrough(_) => return self,
        };
        meter.set_tool_uses(ToolUses::new(tools, shows_calls));
        self
    }

    /// Returns the usage report that was rejected as implausible, if any. [`Relay::billable_usage`]
    /// is then counted by the gateway.
    #[must_use]
    pub fn rejected_usage(&self) -> Option<BilledUnits> {
        match self {
            Relay::Buffered(BufferedRelay { rejected_image_units: Some(units), .. }) => {
                Some(*units)
            }
            _ => self.meter().and_then(UsageMeter::rejected_report).map(BilledUnits::Tokens),
        }
    }

    /// Takes bytes from the vendor and returns the bytes for the client, if there are any.
    pub fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        match self {
            Relay::Buffered(buffered) => {
                buffered.push(bytes);
                None
            }
            Relay::Piecewise(piecewise) => piecewise.push(&bytes),
            Relay::Stream(stream) => stream.push(bytes),
            Relay::Passthrough(passthrough) => passthrough.push(bytes),
        }
    }

    /// Ends the reply after the vendor's last bytes; returns the rest of the bytes for the client.
    pub fn finish(&mut self) -> Option<Bytes> {
        match self {
            Relay::Buffered(buffered) => buffered.finish(),
            Relay::Piecewise(piecewise) => piecewise.finish(),
            Relay::Stream(stream) => stream.finish(),
            Relay::Passthrough(passthrough) => {
                passthrough.finish();
                None
            }
        }
    }

    /// Ends the reply because the vendor's bytes will not continue; returns an error event for the
    /// client if the reply is a stream.
    pub fn fail(&mut self, why: RelayError) -> Option<Bytes> {
        match self {
            Relay::Buffered(buffered) => {
                buffered.fail(why);
                None
            }
            Relay::Piecewise(piecewise) => {
                piecewise.fail(why);
                None
            }
            Relay::Stream(stream) => stream.fail(why),
            Relay::Passthrough(passthrough) => {
                passthrough.progress = RelayProgress::Failed(why);
                None
            }
        }
    }

    /// Returns how far the reply has come.
    #[must_use]
    pub fn progress(&self) -> &RelayProgress {
        match self {
            Relay::Buffered(buffered) => &buffered.progress,
            Relay::Piecewise(piecewise) => &piecewise.progress,
            Relay::Stream(stream) => &stream.progress,
            Relay::Passthrough(passthrough) => &passthrough.progress,
        }
    }

    /// Returns how many bytes are buffered: received, but not yet returned for the client.
    #[must_use]
    pub(crate) fn buffered_bytes(&self) -> usize {
        match self {
            Relay::Buffered(buffered) => buffered.buffered_bytes(),
            Relay::Piecewise(piecewise) => piecewise.buffered_bytes(),
            Relay::Stream(stream) => stream.buffered_bytes(),
            Relay::Passthrough(_) => 0,
        }
    }

    /// Whether a failure can be reported inside the reply. Audio and a half-sent JSON body have no
    /// place for an error.
    #[must_use]
    pub(crate) fn reports_errors_inline(&self) -> bool {
        !matches!(self, Relay::Passthrough(_) | Relay::Piecewise(_))
    }

    /// Returns the usage to charge for so far, or `None` if nothing is charged. `input` is the
    /// number of input tokens to assume if the vendor reports none.
    #[must_use]
    pub fn billable_usage(&self, input: u64) -> Option<Usage> {
        let complete = *self.progress() == RelayProgress::Complete;
        // A reply that the gateway stopped waiting for because of the client is charged all the
        // same.
        let ended = complete || self.is_abandoned();
        let (meter, is_unbilled) = match self {
            Relay::Passthrough(passthrough) => return ended.then(|| passthrough.usage()),
            Relay::Buffered(BufferedRelay {
                mode: RelayMode::Moderation | RelayMode::TokenCount,
                ..
            }) => return None,
            Relay::Buffered(BufferedRelay {
                mode: RelayMode::Image { .. },
                image_usage: image,
                rejected_image_units: image_rejected,
                ..
            }) => {
                return ended.then(|| image.unwrap_or(fallback_image_usage(*image_rejected)));
            }
            Relay::Buffered(buffered) => (&buffered.meter, buffered.response_state.is_unbilled()),
            Relay::Piecewise(piecewise) => (&piecewise.meter, false),
            Relay::Stream(stream) => (&stream.meter, stream.is_unbilled()),
        };
        if is_unbilled || (!ended && !meter.has_output()) {
            return None;
        }
        let usage = if complete { meter.usage(input) } else { meter.usage_so_far(input) };
        Some(usage.into())
    }

    /// Whether the input in [`Relay::billable_usage`] is not used, because the vendor has reported
    /// it or it is not billed.
    #[must_use]
    pub(crate) fn has_input_report(&self) -> bool {
        self.meter().is_none_or(UsageMeter::has_input_report)
    }

    /// Whether the vendor of a stream has reported the usage of the whole reply: what is still to
    /// come costs nothing more.
    #[must_use]
    pub(crate) fn has_final_report(&self) -> bool {
        match self {
            Relay::Stream(stream) => stream.has_final_report(),
            _ => false,
        }
    }

    /// Sets the length in bytes that the vendor announced. The reply may still end earlier.
    pub(crate) fn set_expected_length(&mut self, bytes: usize) {
        if let Relay::Buffered(buffered) = self {
            buffered.set_expected_length(bytes);
        }
    }

    /// Whether the reply was given up because of the client, which had disconnected or does not
    /// read.
    #[must_use]
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(
            self.progress(),
            RelayProgress::Failed(RelayError::Abandoned | RelayError::SlowReader)
        )
    }

    /// Returns the meter of the reply's tokens; `None` for bytes that are not parsed.
    #[must_use]
    pub fn meter(&self) -> Option<&UsageMeter> {
        match self {
            Relay::Buffered(buffered) => Some(&buffered.meter),
            Relay::Piecewise(piecewise) => Some(&piecewise.meter),
            Relay::Stream(stream) => Some(&stream.meter),
            Relay::Passthrough(_) => None,
        }
    }

    /// Returns the id of the reply as the client gets it; `None` if there is none, or if it has not
    /// come yet.
    #[must_use]
    pub(crate) fn reply_id(&self) -> Option<&str> {
        match self {
            Relay::Buffered(buffered) => buffered.reply_id.id(),
            Relay::Stream(stream) => stream.reply_id.id(),
            Relay::Piecewise(_) | Relay::Passthrough(_) => None,
        }
    }

    /// Takes the data of a complete reply that the gateway stores for later calls, if there is any.
    pub fn take_retained(&mut self) -> Option<RetainedData> {
        match self {
            Relay::Buffered(buffered) => buffered.take_retained(),
            Relay::Stream(stream) => stream.take_retained(),
            Relay::Piecewise(_) | Relay::Passthrough(_) => None,
        }
    }
}

/// Returns the usage of an image whose report is missing or was rejected.
fn fallback_image_usage(rejected: Option<BilledUnits>) -> Usage {
    let basis = if rejected.is_some() { UsageBasis::Counted } else { UsageBasis::Fixed };
    Usage { units: BilledUnits::Images { images: 1 }, basis }
}

#[cfg(test)]
mod tests;
