//! What direct holds and allotments take of rate limits, and give back.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::answer::LedgerAnswer;
use super::draft::AccountDraft;
use super::rate::{RateAsk, RateBucket, RateDemand, RateId, RateKind, RateReading};
use super::records::Allotment;
use super::update::AllotmentDemand;

/// What a call takes of rate limits.
#[derive(Debug, Default)]
pub(crate) struct TakenRates {
    /// The buckets afterwards.
    pub(crate) buckets: BTreeMap<RateId, RateBucket>,
    /// What was counted: all that was asked for but what a limit that refuses nothing has not.
    pub(crate) asks: Vec<RateAsk>,
    /// What each limit that was asked for has left.
    pub(crate) readings: Vec<RateReading>,
}

/// Why a call takes nothing.
#[derive(Debug)]
pub(crate) struct RefusedRates {
    /// The limit that refuses it; of several, the one that lets it pass last.
    pub(crate) id: RateId,
    /// When to try again, in ms from now; `None` if that is not known.
    pub(crate) retry_after_ms: Option<i64>,
    /// What each limit that was asked for has left.
    pub(crate) readings: Vec<RateReading>,
}

/// Computes the buckets after a call has taken what it asks for, at `now` in ms. `find` returns a
/// bucket. Nothing is written yet, as the call may be refused for another reason.
///
/// # Errors
/// A limit refuses the call.
pub(crate) fn take_rates(
    asks: &[RateAsk],
    now: i64,
    find: impl Fn(RateId) -> RateBucket,
) -> Result<TakenRates, RefusedRates> {
    let mut taken = TakenRates::default();
    let mut refusal: Option<(RateId, Option<i64>)> = None;
    for ask in asks {
        let drained = find(ask.id).drained(ask.limit, now);
        match drained.take(*ask) {
            Ok(after) => {
                taken.buckets.insert(ask.id, after);
                taken.asks.push(*ask);
                taken.readings.push(RateReading::within(after.remaining(ask.limit)));
            }
            Err(_) if ask.is_shadow => {
                let reading = RateReading::within(drained.remaining(ask.limit));
                taken.readings.push(RateReading { is_exceeded: true, ..reading });
            }
            Err(retry_after_ms) => {
                let waits = |retry: Option<i64>| retry.unwrap_or(i64::MAX);
                if refusal.is_none_or(|(_, before)| waits(before) < waits(retry_after_ms)) {
                    refusal = Some((ask.id, retry_after_ms));
                }
            }
        }
    }
    let Some((id, retry_after_ms)) = refusal else { return Ok(taken) };
    let reading = |ask: &RateAsk| {
        RateReading::within(find(ask.id).drained(ask.limit, now).remaining(ask.limit))
    };
    let readings = asks.iter().map(reading).collect();
    Err(RefusedRates { id, retry_after_ms, readings })
}

/// Does [`take_rates`] for a direct hold.
///
/// # Errors
/// The refusal of a limit.
pub(crate) fn take_all(
    draft: &AccountDraft<'_>,
    asks: &[RateAsk],
) -> Result<TakenRates, LedgerAnswer> {
    take_rates(asks, draft.now, |id| draft.bucket(id)).map_err(|refused| {
        let RefusedRates { id, retry_after_ms, readings } = refused;
        LedgerAnswer::RateLimited { id, retry_after_ms, rates: readings }
    })
}

/// Corrects what a call took by the tokens that it used in the end; without a report, what it took
/// stands. Its place is free again.
pub(crate) fn end_all(draft: &mut AccountDraft<'_>, asks: &[RateAsk], tokens: Option<i64>) {
    for ask in asks {
        let amount = ask.used(tokens);
        let drained = draft.bucket(ask.id).drained(ask.limit, draft.now);
        let corrected = drained.remove(ask.amount.saturating_sub(amount));
        let corrected = corrected.add(amount.saturating_sub(ask.amount));
        draft.set_bucket(ask.id, corrected);
    }
}

/// Gives back what a call took that was not made: its place and its tokens. It was a request.
pub(crate) fn void_all(draft: &mut AccountDraft<'_>, asks: &[RateAsk]) {
    for ask in asks.iter().filter(|ask| ask.id.kind != RateKind::Requests) {
        draft.set_bucket(ask.id, draft.bucket(ask.id).remove(ask.amount));
    }
}

/// Counts what a gateway has used of rate limits, takes back what it does not keep, and lends.
pub(crate) fn meet_demand(
    draft: &mut AccountDraft<'_>,
    allotment: &mut Allotment,
    demand: &AllotmentDemand,
    is_lending: bool,
    others: u32,
) {
    let unnamed = allotment.rates.iter().filter(|(id, _)| !demand.rates.contains_key(id));
    let unnamed: Vec<(RateId, i64)> = unnamed.map(|(id, slice)| (*id, *slice)).collect();
    for (id, slice) in unnamed {
        draft.set_bucket(id, draft.bucket(id).remove(slice));
        allotment.rates.remove(&id);
    }
    for (id, wanted) in &demand.rates {
        let slice = allotment.rates.get(id).copied().unwrap_or_default();
        let slice = meet_one(draft, *id, slice, wanted, is_lending, others);
        allotment.rates.insert(*id, slice);
    }
    allotment.rates.retain(|_, slice| *slice > 0);
}

/// Returns the new slice.
fn meet_one(
    draft: &mut AccountDraft<'_>,
    id: RateId,
    before: i64,
    demand: &RateDemand,
    is_lending: bool,
    others: u32,
) -> i64 {
    let RateDemand { limit, spent, needed, kept, free, unit } = *demand;
    // More may have been used than there was: what an end has corrected.
    let mut bucket = draft.bucket(id).drained(limit, draft.now);
    bucket = bucket.add(spent.saturating_sub(before));
    // Less than nothing was spent if an end has corrected what was told as spent before.
    bucket = bucket.remove(spent.saturating_neg());
    let mut slice = before.saturating_sub(spent.max(0)).max(0);
    let back = slice.saturating_sub(kept.max(needed).max(0));
    bucket = bucket.remove(back);
    slice = slice.min(kept.max(needed).max(0));
    // Open calls have their places, even where the store has lost them.
    let missing = needed.saturating_sub(slice).max(0);
    bucket = bucket.add(missing);
    slice = slice.saturating_add(missing);
    if is_lending {
        let own = slice.saturating_sub(needed);
        let most = bucket.remove(own).lendable(limit, unit, others);
        let more = free.min(most).saturating_sub(own).max(0);
        bucket = bucket.add(more);
        slice = slice.saturating_add(more);
    }
    draft.set_bucket(id, bucket);
    slice
}

/// Gives back the places of an allotment that has expired. What it had of requests and tokens may
/// have been used, and lapses.
pub(crate) fn lapse(draft: &mut AccountDraft<'_>, allotment: &mut Allotment) {
    for (id, slice) in std::mem::take(&mut allotment.rates) {
        if id.kind == RateKind::Calls {
            draft.set_bucket(id, draft.bucket(id).remove(slice));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rate::RateLimit;
    use super::super::window::BudgetOwner;
    use super::*;

    fn ask(kind: RateKind, row: u16, amount: i64, burst: i64) -> RateAsk {
        let id = RateId { owner: BudgetOwner::Account, kind, row };
        let limit = RateLimit { per_minute: burst.min(60), burst };
        RateAsk { id, limit, amount, is_shadow: false }
    }

    #[test]
    fn of_limits_that_refuse_for_equally_long_the_first_is_named() {
        for (burst, retry_after_ms) in [(60, Some(60_000)), (0, None)] {
            let asks = [0, 1].map(|row| ask(RateKind::Tokens, row, 60, burst));
            let full = RateBucket::default().add(60);
            let refused = take_rates(&asks, 0, |_| full).expect_err("both are full");
            assert_eq!((refused.id, refused.retry_after_ms), (asks[0].id, retry_after_ms));
        }
    }

    #[test]
    fn who_is_refused_reads_what_each_limit_has_left_without_the_call() {
        let asks = [ask(RateKind::Tokens, 0, 60, 60), ask(RateKind::Requests, 0, 1, 90)];
        let used = RateBucket::default().add(20);
        let refused = take_rates(&asks, 0, |_| used).expect_err("60 do not fit into 40");
        assert_eq!(refused.readings, [40, 70].map(RateReading::within));
    }

    #[test]
    fn a_limit_that_only_tells_counts_nothing_of_a_call_that_is_above_it() {
        let shadow = RateAsk { is_shadow: true, ..ask(RateKind::Tokens, 0, 60, 60) };
        let request = ask(RateKind::Requests, 0, 1, 90);
        let used = RateBucket::default().add(20);
        let taken = take_rates(&[shadow, request], 0, |_| used).expect("a shadow refuses nothing");
        assert_eq!(taken.asks, [request]);
        assert_eq!(taken.buckets, [(request.id, used.add(1))].into());
        let above = RateReading { remaining: 40, is_exceeded: true };
        assert_eq!(taken.readings, [above, RateReading::within(69)]);
    }
}
