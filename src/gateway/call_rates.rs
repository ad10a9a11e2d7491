//! The rate limits of a call, with what each of them has left.

use crate::ledger::{RateAsk, RateId, RateReading};

/// The rate limits of a call, with what each of them has left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallRates {
    /// What the call takes.
    pub(crate) asks: Vec<RateAsk>,
    /// What is left, in the order of `asks`; empty if it is not known.
    pub(crate) readings: Vec<RateReading>,
}

/// Why a rate limit refuses a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RateRefusal {
    /// The limit.
    pub(crate) id: RateId,
    /// When to try again, in ms from now; `None` if that is not known.
    pub(crate) retry_after_ms: Option<i64>,
    /// All limits of the call.
    pub(crate) rates: CallRates,
}
