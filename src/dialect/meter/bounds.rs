//! The most usage that is plausible for one call. A report above it is rejected.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::money::{BilledUnits, TokenUsage};

/// Where tokens can be counted, a report may be so many times as much, and so many tokens more. A
/// count is a quarter of the bytes; no token is less than a byte, and a vendor's own words beside
/// them (for tools, for a role, for the end of a turn) are hundreds of tokens.
const ESTIMATE_FACTOR_MAX: u64 = 16;
const ESTIMATE_EXTRA_MAX: u64 = 4_096;

/// The most that is believed of a count, where the body alone feeds it.
#[must_use]
pub(crate) fn plausible_max(counted: u64) -> u64 {
    counted.saturating_mul(ESTIMATE_FACTOR_MAX).saturating_add(ESTIMATE_EXTRA_MAX)
}

/// The most that a vendor can honestly report for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsageBounds {
    /// Input tokens.
    pub input_max: u64,
    /// Output tokens, of all choices, those of hidden reasoning among them.
    pub output_max: u64,
    /// Whether all output passes here and can be counted.
    pub output_is_visible: bool,
    /// A bill, in ticks of 10⁻¹⁰ USD.
    pub ticks_max: u64,
}

/// No bounds.
impl Default for UsageBounds {
    fn default() -> UsageBounds {
        let most = u64::MAX;
        UsageBounds { input_max: most, output_max: most, output_is_visible: false, ticks_max: most }
    }
}

impl UsageBounds {
    /// Whether a report can be honest, if so much was counted of its output.
    #[must_use]
    pub(crate) fn admits_tokens(&self, reported: TokenUsage, output_counted: u64) -> bool {
        let counts = !self.output_is_visible || reported.output <= plausible_max(output_counted);
        reported.input <= self.input_max && reported.output <= self.output_max && counts
    }

    /// Whether the units that a vendor reports for an image can be honest.
    #[must_use]
    pub(crate) fn admits_image(&self, reported: BilledUnits) -> bool {
        match reported {
            BilledUnits::Tokens(tokens) => self.admits_tokens(tokens, 0),
            BilledUnits::BilledImages { ticks, .. } => ticks <= self.ticks_max,
            _ => true,
        }
    }
}
