//! Lends out of an account what a gateway wants, and takes back what it does not need.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::answer::{AllotmentStatus, LedgerAnswer, WindowSlice};
use super::draft::AccountDraft;
use super::lending_rule::lendable;
use super::lot::{LotAmounts, NEVER_EXPIRES};
use super::rate::{RateDemand, RateId, RateStatus};
use super::rate_slices;
use super::records::{Allotment, AllotmentId, KeyStatus};
use super::refusal;
use super::update::AllotmentDemand;
use super::window::{BudgetOwner, KeyId, WindowId};
use crate::money::{Money, MoneyError};

/// Gives an allotment what is needed, as far as it is there, and what may be lent beside that. What
/// its gateway does not keep goes back, also from windows that have ended and to lots that have
/// expired.
pub(crate) fn meet_demand(
    draft: &mut AccountDraft<'_>,
    id: &AllotmentId,
    allotment: &mut Allotment,
    demand: &AllotmentDemand,
) -> Result<(), MoneyError> {
    let others = others_out(draft, id);
    give_back_free(draft, allotment, demand)?;
    if !draft.head.suspended {
        cover_needed(draft, allotment, demand, others)?;
    }
    let is_lending = !draft.head.suspended && draft.head.recall_until <= draft.now;
    let own_free = allotment.drawn.total()?.saturating_sub(demand.needed);
    let left = draft.head.balances.available.checked_add(own_free)?;
    let windows = draft.current_windows(BudgetOwner::Account);
    let limit = lendable(left, demand.quote, others).and_then(|money| {
        let budget = lendable_in(draft, allotment, &windows, demand, others)?;
        Some(money.min(budget))
    });
    // A gateway that wants nothing free is told so, and holds nothing new in memory: whoever waits
    // for money has nothing to expect of it.
    let limit = limit.filter(|_| is_lending && demand.free > Money::ZERO);
    allotment.tight = limit.is_none();
    rate_slices::meet_demand(draft, allotment, demand, limit.is_some(), others);
    let Some(limit) = limit else {
        // What the gateway keeps until it has the answer may still be free.
        allotment.may_be_free = own_free > Money::ZERO || has_free_slice(allotment, demand);
        return Ok(());
    };
    let free = demand.free.min(limit);
    let more = free.saturating_sub(own_free);
    allotment.drawn.merge(&draft.draw(more)?)?;
    for window in windows {
        grow_free(draft, allotment, demand, window, free)?;
    }
    for (key, wanted) in &demand.keys {
        let is_over = lend_to_key(draft, allotment, *key, free.min(*wanted), demand, others)?;
        allotment.tight |= is_over;
    }
    allotment.may_be_free = allotment.drawn.total()? > Money::ZERO;
    Ok(())
}

fn has_free_slice(allotment: &Allotment, demand: &AllotmentDemand) -> bool {
    allotment.slices.iter().any(|(window, slice)| *slice > needed_in(demand, *window))
}

fn needed_in(demand: &AllotmentDemand, window: WindowId) -> Money {
    demand.needed_in.get(&window).copied().unwrap_or_default()
}

/// The part of a slice that is beyond what is needed.
fn free_slice(allotment: &Allotment, demand: &AllotmentDemand, window: WindowId) -> Money {
    let slice = allotment.slices.get(&window).copied().unwrap_or_default();
    slice.saturating_sub(needed_in(demand, window))
}

/// How many others may have something free.
fn others_out(draft: &AccountDraft<'_>, id: &AllotmentId) -> u32 {
    let counts = |a: &Allotment| a.is_out() && a.may_be_free;
    let is_counted = draft.allotment(id).is_some_and(counts);
    draft.head.lent_out.saturating_sub(u32::from(is_counted))
}

fn give_back_free(
    draft: &mut AccountDraft<'_>,
    allotment: &mut Allotment,
    demand: &AllotmentDemand,
) -> Result<(), MoneyError> {
    let kept = demand.needed.max(demand.kept);
    let surplus = allotment.drawn.total()?.saturating_sub(kept);
    // Of credit that has expired no more is kept than running calls may have drawn.
    let mut expired = allotment.drawn.split_expired(draft.now)?;
    let excess = expired.total()?.saturating_sub(demand.needed).min(surplus);
    let mut back = expired.split_last(excess)?;
    allotment.drawn.merge(&expired)?;
    back.merge(&allotment.drawn.split_last(surplus.checked_sub(excess)?)?)?;
    draft.give_back(&back)?;
    for (window, slice) in &mut allotment.slices {
        let kept = demand.kept_in.get(window).copied().unwrap_or_default();
        let kept = kept.max(needed_in(demand, *window)).min(*slice);
        draft.change_lent(*window, slice.checked_sub(kept)?, Money::ZERO)?;
        *slice = kept;
    }
    allotment.slices.retain(|_, slice| *slice > Money::ZERO);
    Ok(())
}

/// Gives what is needed and not there: what an open call asks for more, and all of it where the
/// store has lost the allotment. What others have free is called back if that does not suffice.
fn cover_needed(
    draft: &mut AccountDraft<'_>,
    allotment: &mut Allotment,
    demand: &AllotmentDemand,
    others: u32,
) -> Result<(), MoneyError> {
    let missing = demand.needed.saturating_sub(allotment.drawn.total()?);
    let more = missing.min(draft.head.balances.available);
    allotment.drawn.merge(&draft.draw(more)?)?;
    let mut is_short = more < missing;
    for (window, needed) in &demand.needed_in {
        let slice = allotment.slices.get(window).copied().unwrap_or_default();
        let missing = needed.saturating_sub(slice);
        let left = draft.window(*window).left(draft.limit(*window));
        let more = if is_active(draft, window.owner) { missing.min(left) } else { Money::ZERO };
        grow_slice(draft, allotment, *window, more)?;
        // Of a window of which others have nothing a recall gives nothing.
        let own = allotment.slices.get(window).copied().unwrap_or_default();
        is_short |= more < missing && draft.window(*window).lent > own;
    }
    if is_short && others > 0 {
        refusal::recall(draft);
    }
    Ok(())
}

fn is_active(draft: &AccountDraft<'_>, owner: BudgetOwner) -> bool {
    match owner {
        BudgetOwner::Account => true,
        BudgetOwner::Key(key) => draft.key_status(key) == KeyStatus::Active,
    }
}

/// What may be lent of each of some windows; `None` if one of them has too little left.
fn lendable_in(
    draft: &AccountDraft<'_>,
    allotment: &Allotment,
    windows: &[WindowId],
    demand: &AllotmentDemand,
    others: u32,
) -> Option<Money> {
    windows.iter().try_fold(super::window::MONEY_MAX, |least, window| {
        let left = draft.window(*window).left(draft.limit(*window));
        let own = free_slice(allotment, demand, *window);
        let left = left.checked_add(own).unwrap_or(left);
        Some(least.min(lendable(left, demand.quote, others)?))
    })
}

/// Gives slices of the windows of a key. A key that is refused, or of which too little is left,
/// gets none: its calls go to the store. Returns whether a key of which too little is left has
/// something free: a limit may have been lowered. Then all that is free has to come back once.
fn lend_to_key(
    draft: &mut AccountDraft<'_>,
    allotment: &mut Allotment,
    key: KeyId,
    wanted: Money,
    demand: &AllotmentDemand,
    others: u32,
) -> Result<bool, MoneyError> {
    let owner = BudgetOwner::Key(key);
    if !is_active(draft, owner) {
        return Ok(false);
    }
    let windows = draft.current_windows(owner);
    let Some(limit) = lendable_in(draft, allotment, &windows, demand, others) else {
        let is_free = |window| free_slice(allotment, demand, window) > Money::ZERO;
        return Ok(windows.into_iter().any(is_free));
    };
    let free = wanted.min(limit);
    for window in windows {
        grow_free(draft, allotment, demand, window, free)?;
    }
    Ok(false)
}

/// Grows a slice until so much of it is free.
fn grow_free(
    draft: &mut AccountDraft<'_>,
    allotment: &mut Allotment,
    demand: &AllotmentDemand,
    window: WindowId,
    free: Money,
) -> Result<(), MoneyError> {
    let more = free.saturating_sub(free_slice(allotment, demand, window));
    grow_slice(draft, allotment, window, more)
}

fn grow_slice(
    draft: &mut AccountDraft<'_>,
    allotment: &mut Allotment,
    window: WindowId,
    more: Money,
) -> Result<(), MoneyError> {
    if more == Money::ZERO {
        return Ok(());
    }
    draft.change_lent(window, Money::ZERO, more)?;
    let slice = allotment.slices.entry(window).or_default();
    *slice = slice.checked_add(more)?;
    Ok(())
}

/// Tells a gateway what its allotment holds now.
pub(crate) fn status(
    draft: &AccountDraft<'_>,
    allotment: &Allotment,
    demand: Option<&AllotmentDemand>,
) -> Result<LedgerAnswer, MoneyError> {
    let held = allotment.drawn.total()?;
    let needed = demand.map_or(held, |demand| demand.needed);
    let free = held.saturating_sub(needed);
    let mut rest = allotment.drawn.clone();
    let free_lots = rest.split_last(free)?;
    let for_ms = |until: i64| (until < i64::MAX).then(|| until.saturating_sub(draft.now));
    let slice = |(id, amount): (&WindowId, &Money)| {
        (*id, WindowSlice { amount: *amount, for_ms: for_ms(id.end()) })
    };
    let mut current = draft.current_windows(BudgetOwner::Account);
    let keys = demand.into_iter().flat_map(|demand| demand.keys.keys().copied());
    let (lent_keys, refused_keys) = keys.partition(|key| is_active(draft, BudgetOwner::Key(*key)));
    let lent_keys: std::collections::BTreeSet<KeyId> = lent_keys;
    for key in &lent_keys {
        current.extend(draft.current_windows(BudgetOwner::Key(*key)));
    }
    let of_rate = |(id, wanted): (&RateId, &RateDemand)| {
        let room = draft.bucket(*id).drained(wanted.limit, draft.now).remaining(wanted.limit);
        let slice = allotment.rates.get(id).copied().unwrap_or_default();
        (*id, RateStatus { slice, room })
    };
    let rates = demand.into_iter().flat_map(|demand| &demand.rates).map(of_rate).collect();
    Ok(LedgerAnswer::Status(Box::new(AllotmentStatus {
        step: allotment.last_step,
        last_seq: allotment.last_seq,
        lent_at: allotment.lent_at,
        held,
        free,
        free_for_ms: for_ms(first_expiry(&free_lots)),
        held_for_ms: for_ms(first_expiry(&allotment.drawn)),
        slices: allotment.slices.iter().map(slice).collect(),
        current: current.into_iter().collect(),
        rates,
        tight: allotment.tight || draft.head.suspended,
        refused_keys,
        lent_keys,
        open_to_all: draft.head.budgets.is_empty() && !draft.head.has_keys,
        revision: draft.head.revision,
    })))
}

fn first_expiry(lots: &LotAmounts) -> i64 {
    lots.iter().next().map_or(NEVER_EXPIRES, |(lot, _)| lot.expires_at)
}
