//! What direct holds and allotments take of rate limits, and give back.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::answer::LedgerAnswer;
use super::draft::AccountDraft;
use super::rate::{RateAsk, RateBucket, RateDemand, RateId, RateKind, RateUsed};
use super::records::Allotment;
use super::update::AllotmentDemand;
use crate::money::MoneyError;

/// Computes the buckets after a call has taken what it asks for, or the refusal of one of them.
/// Nothing is written yet, as the call may be refused for another reason.
pub(crate) fn take_all(
    draft: &AccountDraft<'_>,
    asks: &[RateAsk],
) -> Result<Result<BTreeMap<RateId, RateBucket>, LedgerAnswer>, MoneyError> {
    let mut after = BTreeMap::new();
    for ask in asks {
        let before = after.get(&ask.id).copied().unwrap_or_else(|| draft.bucket(ask.id));
        let drained = before.drained(ask.limit, draft.now);
        match drained.take(*ask)? {
            Ok(taken) => drop(after.insert(ask.id, taken)),
            Err(_) if ask.is_shadow => {}
            Err(retry_after_ms) => {
                let id = ask.id;
                return Ok(Err(LedgerAnswer::RateLimited { id, retry_after_ms }));
            }
        }
    }
    Ok(Ok(after))
}

/// Corrects what a call took by what it used in the end; without a report, what it took stands. Its
/// place is free again.
pub(crate) fn end_all(
    draft: &mut AccountDraft<'_>,
    asks: &[RateAsk],
    used: &[RateUsed],
) -> Result<(), MoneyError> {
    for ask in asks {
        let reported = used.iter().find(|used| used.id == ask.id).map(|used| used.amount);
        let amount = match ask.id.kind {
            RateKind::Calls => 0,
            RateKind::Requests | RateKind::Tokens => reported.unwrap_or(ask.amount),
        };
        let drained = draft.bucket(ask.id).drained(ask.limit, draft.now);
        let corrected = drained.remove(ask.amount.saturating_sub(amount));
        let corrected = corrected.add(amount.saturating_sub(ask.amount))?;
        draft.set_bucket(ask.id, corrected);
    }
    Ok(())
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
) -> Result<(), MoneyError> {
    let unnamed = allotment.rates.iter().filter(|(id, _)| !demand.rates.contains_key(id));
    let unnamed: Vec<(RateId, i64)> = unnamed.map(|(id, slice)| (*id, *slice)).collect();
    for (id, slice) in unnamed {
        draft.set_bucket(id, draft.bucket(id).remove(slice));
        allotment.rates.remove(&id);
    }
    for (id, wanted) in &demand.rates {
        let slice = allotment.rates.get(id).copied().unwrap_or_default();
        let slice = meet_one(draft, *id, slice, wanted, is_lending, others)?;
        allotment.rates.insert(*id, slice);
    }
    allotment.rates.retain(|_, slice| *slice > 0);
    Ok(())
}

/// Returns the new slice.
fn meet_one(
    draft: &mut AccountDraft<'_>,
    id: RateId,
    before: i64,
    demand: &RateDemand,
    is_lending: bool,
    others: u32,
) -> Result<i64, MoneyError> {
    let RateDemand { limit, spent, needed, kept, free, unit } = *demand;
    // More may have been used than there was: what an end has corrected.
    let mut bucket = draft.bucket(id).drained(limit, draft.now);
    bucket = bucket.add(spent.saturating_sub(before))?;
    let mut slice = before.saturating_sub(spent.max(0)).max(0);
    let back = slice.saturating_sub(kept.max(needed).max(0));
    bucket = bucket.remove(back);
    slice = slice.min(kept.max(needed).max(0));
    // Open calls have their places, even where the store has lost them.
    let missing = needed.saturating_sub(slice).max(0);
    bucket = bucket.add(missing)?;
    slice = slice.saturating_add(missing);
    if is_lending {
        let own = slice.saturating_sub(needed);
        let most = bucket.remove(own).lendable(limit, unit, others);
        let more = free.min(most).saturating_sub(own).max(0);
        bucket = bucket.add(more)?;
        slice = slice.saturating_add(more);
    }
    draft.set_bucket(id, bucket);
    Ok(slice)
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
