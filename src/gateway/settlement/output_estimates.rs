//! Estimates of the output of a call, from that of recent calls of the same account to its model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moka::sync::Cache;

use crate::fast_map::HashKeys;
use crate::ledger::AccountName;

/// At most this many estimates are kept. If one is lost, the estimate of the rules counts again.
const ESTIMATES_MAX: u64 = 16_384;
/// An estimate is dropped after this time, and made anew.
const ESTIMATE_TTL: Duration = Duration::from_hours(6);
/// After an output that is shorter than the level, the level falls by this part of the difference.
const DECAY_DIVISOR: u64 = 16;

/// The estimates of all accounts.
#[derive(Debug)]
pub(crate) struct OutputEstimates(Cache<(AccountName, String), Arc<OutputEstimate>, HashKeys>);

impl Default for OutputEstimates {
    fn default() -> OutputEstimates {
        let cache = Cache::builder().max_capacity(ESTIMATES_MAX).time_to_live(ESTIMATE_TTL);
        OutputEstimates(cache.build_with_hasher(HashKeys::default()))
    }
}

impl OutputEstimates {
    /// Returns the estimate for the calls of an account to a model.
    #[must_use]
    pub(crate) fn find(&self, account: &AccountName, model: &str) -> Arc<OutputEstimate> {
        self.0.get_with((account.clone(), model.to_owned()), Arc::default)
    }
}

/// The output tokens of one choice that the calls of an account to a model took lately. The level
/// rises at once and falls slowly, so nearly every call stays below it.
#[derive(Debug, Default)]
pub(crate) struct OutputEstimate {
    /// 0 until an output was recorded.
    level: AtomicU64,
}

impl OutputEstimate {
    /// Returns the output to expect, half as much again as the level; `None` until an output was
    /// recorded.
    #[must_use]
    pub(crate) fn tokens(&self) -> Option<u64> {
        match self.level.load(Ordering::Relaxed) {
            0 => None,
            level => Some(level.saturating_add(level / 2).saturating_add(1)),
        }
    }

    /// Records the output of a choice that has ended. Of two calls that end at the same time, one
    /// may go unrecorded.
    pub(crate) fn record(&self, tokens: u64) {
        let level = self.level.load(Ordering::Relaxed);
        let fall = level.saturating_sub(tokens) / DECAY_DIVISOR;
        self.level.store(tokens.max(level - fall).max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_rises_at_once_and_falls_slowly() {
        let estimate = OutputEstimate::default();
        assert_eq!(estimate.tokens(), None);
        estimate.record(100);
        assert_eq!(estimate.tokens(), Some(151));
        estimate.record(1_000);
        assert_eq!(estimate.tokens(), Some(1_501));
        estimate.record(200);
        assert_eq!(estimate.tokens(), Some(950 + 475 + 1));
        (0..200).for_each(|_| estimate.record(0));
        assert!(estimate.tokens().is_some_and(|tokens| tokens < 40), "{estimate:?}");
    }

    #[test]
    fn accounts_and_models_have_estimates_of_their_own() {
        let estimates = OutputEstimates::default();
        let account = |name: &str| AccountName::parse(name).expect("a name");
        estimates.find(&account("ada"), "m").record(7);
        assert_eq!(estimates.find(&account("ada"), "m").tokens(), Some(11));
        assert_eq!(estimates.find(&account("ada"), "n").tokens(), None);
        assert_eq!(estimates.find(&account("bob"), "m").tokens(), None);
    }
}
