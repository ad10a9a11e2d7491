//! Allotments on the side of the store: what a message of a gateway does, and what an expiry does.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::answer::{AccountStep, LedgerAnswer};
use super::charge::{self, ChargedCall};
use super::direct::{LOST_AGE_MAX_MS, lease_until};
use super::draft::{self, AccountDraft};
use super::lend;
use super::lot::LotAmounts;
use super::rate_slices;
use super::records::{Allotment, AllotmentId, AllotmentState, CallEnd, PrepaidAccount};
use super::update::{AllotmentUpdate, CALLS_MAX};
use crate::money::{Money, MoneyError};

/// Does what a message asks: posts the ends whose numbers are new, notes checkpoints, gives back or
/// lends, and renews the lease.
#[must_use]
pub fn update_allotment(
    account: &PrepaidAccount,
    update: &AllotmentUpdate,
    now: i64,
) -> AccountStep {
    draft::run(account, now, |draft| {
        if !update.is_bounded() {
            return Ok(LedgerAnswer::TooMany);
        }
        let known = draft.allotment(&update.allotment);
        let is_lost_long_ago = now.abs_diff(update.lent_at) >= LOST_AGE_MAX_MS;
        let mut allotment = match known {
            Some(known) => known.clone(),
            None if update.step > 0 => unknown(now, AllotmentState::Open),
            None if is_lost_long_ago => return Ok(LedgerAnswer::UnknownAllotment),
            None => unknown(now, AllotmentState::Ended { charged: BTreeMap::new() }),
        };
        let is_open = allotment.state == AllotmentState::Open;
        let is_repeated = update.step > 0 && update.step <= allotment.last_step;
        if is_open && is_repeated {
            return lend::status(draft, &allotment, update.demand.as_ref());
        }
        if is_open && update.step == 0 {
            allotment.state = AllotmentState::Fenced;
        }
        let last_seq = allotment.last_seq;
        let is_missing = update.first_seq > last_seq.saturating_add(1) && !update.earlier_lost;
        if is_missing && !update.ends.is_empty() {
            return Ok(LedgerAnswer::MissingEnds { last_seq });
        }
        post_ends(draft, &mut allotment, update)?;
        let last_seq = allotment.last_seq;
        if allotment.state != AllotmentState::Open {
            if update.retires && update.step == 0 && allotment.is_out() {
                end(draft, &mut allotment)?;
            }
            draft.set_allotment(&update.allotment, allotment);
            return Ok(LedgerAnswer::AllotmentEnded { last_seq });
        }
        if !note_checkpoints(&mut allotment, &update.checkpoints) {
            return Ok(LedgerAnswer::TooMany);
        }
        allotment.last_step = update.step;
        let until = lease_until(now, update.lease_ms);
        allotment.lease_until = allotment.lease_until.max(until);
        if let Some(demand) = &update.demand {
            (allotment.needed, allotment.open_calls) = (demand.needed, demand.open_calls);
            lend::meet_demand(draft, &update.allotment, &mut allotment, demand)?;
        }
        let answer = lend::status(draft, &allotment, update.demand.as_ref())?;
        draft.set_allotment(&update.allotment, allotment);
        Ok(answer)
    })
}

fn unknown(now: i64, state: AllotmentState) -> Allotment {
    Allotment {
        drawn: LotAmounts::default(),
        slices: BTreeMap::new(),
        rates: BTreeMap::new(),
        checkpoints: BTreeMap::new(),
        lent_at: now,
        lease_until: now,
        needed: Money::ZERO,
        open_calls: 0,
        last_seq: 0,
        last_step: 0,
        may_be_free: false,
        tight: false,
        state,
    }
}

/// Posts the ends whose numbers are above the last one.
fn post_ends(
    draft: &mut AccountDraft<'_>,
    allotment: &mut Allotment,
    update: &AllotmentUpdate,
) -> Result<(), MoneyError> {
    for (seq, end) in (update.first_seq..).zip(&update.ends) {
        if seq <= allotment.last_seq {
            continue;
        }
        match &allotment.state {
            AllotmentState::Open | AllotmentState::Fenced => post_end(draft, allotment, end)?,
            // The number keeps an end from being posted twice, so what was charged stays as it is.
            AllotmentState::Ended { charged } => {
                let before = charged.get(&end.call).copied().unwrap_or_default();
                if let Some(charge) = end.charge.filter(|_| !draft.is_voided(&end.call)) {
                    let due = charge.saturating_sub(before);
                    charge::post(draft, charged_call(end), LotAmounts::default(), due)?;
                }
            }
        }
        allotment.last_seq = seq;
    }
    Ok(())
}

/// Posts the end of a call. What was held for it comes from the allotment and its slices; a charge
/// above that comes from what is available, so that it takes nothing from other calls.
fn post_end(
    draft: &mut AccountDraft<'_>,
    allotment: &mut Allotment,
    end: &CallEnd,
) -> Result<(), MoneyError> {
    allotment.checkpoints.remove(&end.call);
    // Whoever was told that the call is void may have made it again.
    let Some(charge) = end.charge.filter(|_| !draft.is_voided(&end.call)) else { return Ok(()) };
    let within_hold = charge.min(end.held);
    let covered = allotment.drawn.split_first(within_hold)?;
    for window in &end.windows {
        if let Some(slice) = allotment.slices.get_mut(window) {
            let part = within_hold.min(*slice);
            *slice = slice.checked_sub(part)?;
            draft.change_lent(*window, part, Money::ZERO)?;
        }
    }
    charge::post(draft, charged_call(end), covered, charge)?;
    Ok(())
}

fn charged_call(end: &CallEnd) -> ChargedCall<'_> {
    let CallEnd { call, key, windows, line, .. } = end;
    ChargedCall { request: call, key: *key, windows, line }
}

/// Notes what open calls have cost so far. A lower cost than the last one is passed over. `false`
/// if there are too many.
fn note_checkpoints(allotment: &mut Allotment, checkpoints: &[CallEnd]) -> bool {
    for checkpoint in checkpoints {
        let before = allotment.checkpoints.get(&checkpoint.call).and_then(|known| known.charge);
        if before.is_none() || before < checkpoint.charge {
            allotment.checkpoints.insert(checkpoint.call.clone(), checkpoint.clone());
        }
    }
    allotment.checkpoints.len() <= CALLS_MAX
}

/// Ends an allotment whose lease has expired: posts its checkpoints, and gives back the rest. Ends
/// that are told later are posted late, once, from what is available and then from W.
#[must_use]
pub fn expire_allotment(account: &PrepaidAccount, id: &AllotmentId, now: i64) -> AccountStep {
    draft::run(account, now, |draft| {
        let Some(known) = draft.allotment(id) else { return Ok(LedgerAnswer::UnknownAllotment) };
        let last_seq = known.last_seq;
        if !known.is_out() {
            return Ok(LedgerAnswer::AllotmentEnded { last_seq });
        }
        if known.lease_until > now {
            return Ok(LedgerAnswer::AlreadyDone);
        }
        let mut allotment = known.clone();
        end(draft, &mut allotment)?;
        draft.set_allotment(id, allotment);
        Ok(LedgerAnswer::AllotmentEnded { last_seq })
    })
}

fn end(draft: &mut AccountDraft<'_>, allotment: &mut Allotment) -> Result<(), MoneyError> {
    let mut charged = BTreeMap::new();
    for (call, end) in allotment.checkpoints.clone() {
        let is_due = |charge: &Money| *charge > Money::ZERO && !draft.is_voided(&end.call);
        if let Some(charge) = end.charge.filter(is_due) {
            post_end(draft, allotment, &end)?;
            charged.insert(call, charge);
        }
    }
    draft.give_back(&std::mem::take(&mut allotment.drawn))?;
    for (window, slice) in std::mem::take(&mut allotment.slices) {
        draft.change_lent(window, slice, Money::ZERO)?;
    }
    rate_slices::lapse(draft, allotment);
    allotment.checkpoints.clear();
    (allotment.needed, allotment.open_calls) = (Money::ZERO, 0);
    allotment.may_be_free = false;
    allotment.state = AllotmentState::Ended { charged };
    Ok(())
}
