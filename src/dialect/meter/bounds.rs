//! The most usage that is plausible for one call. A report above it is rejected.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::money::{BilledUnits, TokenUsage};

/// Where the gateway can count tokens, a vendor may report at most this many times the count, plus
/// `ESTIMATE_EXTRA_MAX` tokens. The count is a quarter of the bytes; no token is shorter than a
/// byte, and the text that a vendor adds (for tools, for a role, for the end of a turn) is hundreds
/// of tokens.
const ESTIMATE_FACTOR_MAX: u64 = 16;
const ESTIMATE_EXTRA_MAX: u64 = 4_096;

/// Returns the largest report that is plausible for a count of `counted` tokens, if the vendor
/// tokenizes only text that the gateway counted.
#[must_use]
pub(crate) fn plausible_max(counted: u64) -> u64 {
    counted.saturating_mul(ESTIMATE_FACTOR_MAX).saturating_add(ESTIMATE_EXTRA_MAX)
}

/// The most that a vendor can plausibly report for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsageBounds {
    /// The most input tokens.
    pub input_max: u64,
    /// The most output tokens of all choices together, hidden reasoning included.
    pub output_max: u64,
    /// Whether all output passes through the gateway, so that it can be counted.
    pub output_is_visible: bool,
    /// The largest cost that a vendor may report, in ticks of 10⁻¹⁰ USD.
    pub ticks_max: u64,
}

/// The default has no bounds: every report is plausible.
impl Default for UsageBounds {
    fn default() -> UsageBounds {
        let most = u64::MAX;
        UsageBounds { input_max: most, output_max: most, output_is_visible: false, ticks_max: most }
    }
}

impl UsageBounds {
    /// Whether a report is plausible if the gateway counted `output_counted` tokens of its output.
    #[must_use]
    pub(crate) fn admits_tokens(&self, reported: TokenUsage, output_counted: u64) -> bool {
        let counts = !self.output_is_visible || reported.output <= plausible_max(output_counted);
        reported.input <= self.input_max && reported.output <= self.output_max && counts
    }

    /// Whether the units that a vendor reports for an image are plausible.
    #[must_use]
    pub(crate) fn admits_image(&self, reported: BilledUnits) -> bool {
        match reported {
            BilledUnits::Tokens(tokens) => self.admits_tokens(tokens, 0),
            BilledUnits::BilledImages { ticks, .. } => ticks <= self.ticks_max,
            _ => true,
        }
    }
}
