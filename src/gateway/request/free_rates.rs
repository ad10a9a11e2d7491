//! Rate limits of requests that cost nothing. They need no store, so each gateway counts its own in
//! its memory.

use std::iter;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moka::sync::Cache;

use crate::catalogue::Plan;
use crate::catalogue::plan::{ModelLimits, PlanLimits};
use crate::gateway::call_rates::{CallRates, RateRefusal};
use crate::ledger::prepaid::rate::RateBucket;
use crate::ledger::{
    AccountName, BudgetOwner, KeyId, RateAsk, RateId, RateKind, RateLimit, RateReading,
    matches_pattern,
};

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

/// Returns what a request that costs nothing takes of the plans of its caller, each of which comes
/// with whether it is that of the key. It counts as a request, and has no tokens and no place.
/// `model` is the id of the one that it names, if it names any.
#[must_use]
pub(crate) fn free_asks<'a>(
    plans: impl Iterator<Item = (bool, &'a Plan)>,
    key: KeyId,
    model: Option<&str>,
) -> Vec<RateAsk> {
    let mut asks = Vec::new();
    for (is_key, plan) in plans {
        let owner = if is_key { BudgetOwner::Key(key) } else { BudgetOwner::Account };
        let all = iter::once((0, plan.limits));
        let narrower = (1..).zip(&plan.narrower).filter(|(_, row)| covers(row, model));
        let narrower = narrower.map(|(row, narrower)| (row, narrower.limits));
        let ask = |(row, limits): (u16, PlanLimits)| {
            let units = limits.requests_per_minute?;
            let limit = RateLimit { per_minute: units, burst: units };
            let id = RateId { owner, kind: RateKind::Requests, row };
            Some(RateAsk { id, limit, amount: 1, is_shadow: plan.is_shadow })
        };
        asks.extend(all.chain(narrower).filter_map(ask));
    }
    asks
}

fn covers(limits: &ModelLimits, model: Option<&str>) -> bool {
    model.is_some_and(|id| limits.models.iter().any(|pattern| matches_pattern(pattern, id)))
}

impl FreeRates {
    /// Takes all that a request of an account asks for, or nothing. `now_ms` is the time by a clock
    /// that never goes back. The limits are in the order of [`free_asks`].
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
        for (bucket, ask) in locked.iter_mut().zip(&asks) {
            **bucket = RateBucket::drained(**bucket, ask.limit, now_ms);
        }
        let mut refusal: Option<(RateId, Option<i64>)> = None;
        let mut after = Vec::with_capacity(asks.len());
        for (bucket, ask) in locked.iter().zip(&asks) {
            let taken = RateBucket::take(**bucket, *ask);
            if let Err(wait) = taken
                && !ask.is_shadow
                && refusal.is_none_or(|(_, before)| is_longer(wait, before))
            {
                refusal = Some((ask.id, wait));
            }
            after.push(taken.ok());
        }
        let mut readings = Vec::with_capacity(asks.len());
        for ((bucket, ask), after) in locked.iter_mut().zip(&asks).zip(after) {
            if let (Some(after), None) = (after, refusal) {
                **bucket = after;
            }
            let reading = RateReading::within(bucket.remaining(ask.limit));
            let is_exceeded = refusal.is_none() && after.is_none();
            readings.push(RateReading { is_exceeded, ..reading });
        }
        let rates = CallRates { asks, readings };
        match refusal {
            Some((id, retry_after_ms)) => Err(RateRefusal { id, retry_after_ms, rates }),
            None => Ok(rates),
        }
    }
}

/// Whether a wait is longer than another one; it is the longest if its end is not known.
fn is_longer(wait: Option<i64>, other: Option<i64>) -> bool {
    wait.unwrap_or(i64::MAX) > other.unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::PlanName;

    fn plan(requests_per_minute: Option<i64>) -> Plan {
        Plan {
            name: PlanName::parse("free").expect("a name"),
            limits: PlanLimits { requests_per_minute, ..PlanLimits::default() },
            narrower: Vec::new(),
            models: Vec::new(),
            is_shadow: false,
        }
    }

    fn name(text: &str) -> AccountName {
        AccountName::parse(text).expect("a name")
    }

    /// What a request of a plan of the account takes.
    fn asks(plan: &Plan) -> Vec<RateAsk> {
        free_asks([(false, plan)].into_iter(), KeyId(7), None)
    }

    #[test]
    fn only_requests_count_of_the_account_and_of_the_key_and_of_the_models_that_are_named() {
        let limits = PlanLimits { tokens_per_minute: Some(9), calls: Some(9), ..plan(None).limits };
        let account = Plan { limits, ..plan(None) };
        let some = PlanLimits { requests_per_minute: Some(2), ..PlanLimits::default() };
        let narrower = vec![ModelLimits { models: vec!["lma-*".to_owned()], limits: some }];
        let key = Plan { narrower, ..plan(Some(5)) };
        let found = |model| {
            let plans = [(false, &account), (true, &key)];
            let asks = free_asks(plans.into_iter(), KeyId(7), model);
            asks.iter().map(|ask| (ask.id.to_string(), ask.limit.burst)).collect::<Vec<_>>()
        };
        let of_all = ("key:7/requests/0".to_owned(), 5);
        assert_eq!(found(None), std::slice::from_ref(&of_all));
        assert_eq!(found(Some("lmb-5")), std::slice::from_ref(&of_all));
        assert_eq!(found(Some("lma-5")), [of_all, ("key:7/requests/1".to_owned(), 2)]);
    }

    #[test]
    fn as_many_pass_as_a_minute_allows_and_each_account_has_its_own() {
        let (rates, plan) = (FreeRates::default(), plan(Some(2)));
        let take = |account: &str, now| rates.take(&name(account), asks(&plan), now);
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
        let (rates, wide, narrow) = (FreeRates::default(), plan(Some(3)), plan(Some(1)));
        let account = name("one");
        let both = || free_asks([(false, &wide), (true, &narrow)].into_iter(), KeyId(7), None);
        assert!(rates.take(&account, both(), 1).is_ok());
        for _ in 0..9 {
            let refusal = rates.take(&account, both(), 1).expect_err("the key has one");
            assert_eq!(refusal.id.to_string(), "key:7/requests/0");
            assert_eq!(refusal.rates.readings[0].remaining, 2);
        }
        assert!(rates.take(&account, asks(&wide), 1).is_ok());
    }

    #[test]
    fn a_limit_of_nothing_refuses_for_ever_and_a_shadow_only_tells() {
        let (rates, account, nothing) = (FreeRates::default(), name("one"), plan(Some(0)));
        let refusal = rates.take(&account, asks(&nothing), 1).expect_err("nothing passes");
        assert_eq!(refusal.retry_after_ms, None);
        let shadow = Plan { is_shadow: true, ..nothing };
        let told = rates.take(&account, asks(&shadow), 1).expect("it refuses nothing");
        assert_eq!(told.readings, [RateReading { remaining: 0, is_exceeded: true }]);
    }
}
