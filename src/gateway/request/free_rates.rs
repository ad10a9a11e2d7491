//! Rate limits of requests that cost nothing. They need no store, so each gateway counts its own in
//! its memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moka::sync::Cache;

use crate::gateway::call_rates::{CallRates, RateRefusal};
use crate::ledger::prepaid::rate::RateBucket;
use crate::ledger::prepaid::rate_slices::{self, RefusedRates, TakenRates};
use crate::ledger::{AccountName, RateAsk, RateId};

/// At most this many buckets are kept.
const BUCKETS_MAX: u64 = 100_000;
/// A bucket that was not used for this long is dropped. It has drained by then, since no more comes
/// at once than a minute allows.
const IDLE_MAX: Duration = Duration::from_mins(2);

/// The buckets of requests that cost nothing.
#[derive(Debug)]
pub(crate) struct FreeRates(Cache<(AccountName, RateId), Arc<Mutex<RateBucket>>>);

impl Default for FreeRates {
    fn default() -> FreeRates {
        let cache = Cache::builder().max_capacity(BUCKETS_MAX).time_to_idle(IDLE_MAX);
        FreeRates(cache.build())
    }
}

impl FreeRates {
    /// Takes all that a request of an account asks for, or nothing. `now_ms` is the time by a clock
    /// that never goes back. The limits are in the order of the asks.
    ///
    /// # Errors
    /// The refusal of the limit that lets the request pass last.
    pub(crate) fn take(
        &self,
        account: &AccountName,
        asks: Vec<RateAsk>,
        now_ms: i64,
    ) -> Result<CallRates, RateRefusal> {
        let find = |ask: &RateAsk| self.0.get_with((account.clone(), ask.id), Arc::default);
        let buckets: Vec<Arc<Mutex<RateBucket>>> = asks.iter().map(find).collect();
        // All are locked until the request has passed or not. Every request has them in the same
        // order, so none waits for one that waits for it.
        let mut locked: Vec<_> = buckets
            .iter()
            .map(|bucket| bucket.lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let find = |id: RateId| {
            let found = asks.iter().zip(&locked).find(|(ask, _)| ask.id == id);
            found.map_or_else(RateBucket::default, |(_, bucket)| **bucket)
        };
        match rate_slices::take_rates(&asks, now_ms, find) {
            Ok(TakenRates { buckets, readings, .. }) => {
                for (ask, bucket) in asks.iter().zip(&mut locked) {
                    if let Some(after) = buckets.get(&ask.id) {
                        **bucket = *after;
                    }
                }
                Ok(CallRates { asks, readings })
            }
            Err(RefusedRates { id, retry_after_ms, readings }) => {
                Err(RateRefusal { id, retry_after_ms, rates: CallRates { asks, readings } })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{BudgetOwner, KeyId, RateKind, RateLimit, RateReading};

    fn name(text: &str) -> AccountName {
        AccountName::parse(text).expect("a name")
    }

    fn ask(owner: BudgetOwner, units: i64) -> RateAsk {
        let id = RateId { owner, kind: RateKind::Requests, row: 0 };
        let limit = RateLimit { per_minute: units, burst: units };
        RateAsk { id, limit, amount: 1, is_shadow: false }
    }

    /// What a request of an account takes that may make so many a minute.
    fn asks(units: i64) -> Vec<RateAsk> {
        vec![ask(BudgetOwner::Account, units)]
    }

    #[test]
    fn as_many_pass_as_a_minute_allows_and_each_account_has_its_own() {
        let rates = FreeRates::default();
        let take = |account: &str, now| rates.take(&name(account), asks(2), now);
        let left = |taken: &CallRates| taken.readings.iter().map(|r| r.remaining).sum::<i64>();
        assert_eq!(take("one", 1).map(|taken| left(&taken)), Ok(1));
        assert_eq!(take("one", 1).map(|taken| left(&taken)), Ok(0));
        let refusal = take("one", 1).expect_err("a third one");
        assert_eq!((refusal.retry_after_ms, left(&refusal.rates)), (Some(30_000), 0));
        assert_eq!(take("other", 1).map(|taken| left(&taken)), Ok(1));
        assert!(take("one", 30_000).is_err());
        assert!(take("one", 30_001).is_ok());
    }

    #[test]
    fn a_request_that_one_limit_refuses_is_counted_by_none() {
        let (rates, account) = (FreeRates::default(), name("one"));
        let narrow = ask(BudgetOwner::Key(KeyId(7)), 1);
        let both = || [asks(3), vec![narrow]].concat();
        assert!(rates.take(&account, both(), 1).is_ok());
        for _ in 0..9 {
            let refusal = rates.take(&account, both(), 1).expect_err("the key has one");
            assert_eq!(refusal.id.to_string(), "key:7/requests/0");
            assert_eq!(refusal.rates.readings[0].remaining, 2);
        }
        assert!(rates.take(&account, asks(3), 1).is_ok());
    }

    #[test]
    fn a_limit_of_nothing_refuses_for_ever_and_a_shadow_only_tells() {
        let (rates, account) = (FreeRates::default(), name("one"));
        let refusal = rates.take(&account, asks(0), 1).expect_err("nothing passes");
        assert_eq!(refusal.retry_after_ms, None);
        let shadow = RateAsk { is_shadow: true, ..ask(BudgetOwner::Account, 0) };
        let told = rates.take(&account, vec![shadow], 1).expect("it refuses nothing");
        assert_eq!(told.readings, [RateReading { remaining: 0, is_exceeded: true }]);
    }
}
