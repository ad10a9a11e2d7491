//! Holds that the store itself keeps, one for each call, as they check lots and windows.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::answer::{AccountStep, LedgerAnswer};
use super::charge::{self, ChargedCall, PaidCharge};
use super::draft::{self, AccountDraft};
use super::lot::LotAmounts;
use super::rate::RateAsk;
use super::rate_slices::{self, TakenRates};
use super::records::{DirectHold, DirectHoldState, PrepaidAccount};
use super::refusal;
use super::window::{KeyId, WindowId};
use crate::money::{Money, MoneyError};

/// A hold that was asked for longer ago than this, in ms, and that the store does not know, is not
/// charged: the store forgets how a hold ended after a day.
pub(crate) const LOST_AGE_MAX_MS: u64 = 12 * 60 * 60 * 1_000;

/// What a hold is asked for with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectHoldRequest {
    /// The caller's id of the hold.
    pub id: String,
    /// The key of the call.
    pub key: Option<KeyId>,
    /// The amount that covers the call at its largest.
    pub wanted: Money,
    /// If less than this can be held, no hold is placed.
    pub least: Money,
    /// What the call takes of rate limits.
    pub rates: Vec<RateAsk>,
    /// The lease of the hold, in ms.
    pub lease_ms: u64,
}

/// The request of a hold and its windows. With it, a store that lost the hold can settle it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectHoldOrigin {
    /// The key of the call.
    pub key: Option<KeyId>,
    /// The amount that covers the call at its largest.
    pub wanted: Money,
    /// The least amount that was requested.
    pub least: Money,
    /// When the hold was requested, in unix ms.
    pub at: i64,
    /// The windows in which the hold was made.
    pub windows: Vec<WindowId>,
}

/// Places a hold: as much of what is wanted as is available and as each window has left, but not
/// below the least. The same id again gives the answer of before; with other amounts, a conflict.
/// The key is not compared: an id is of one call, and all stores keep this rule.
#[must_use]
pub fn place_hold(account: &PrepaidAccount, request: &DirectHoldRequest, now: i64) -> AccountStep {
    draft::run(account, now, |draft| {
        if let Some(known) = draft.hold(&request.id) {
            return Ok(repeated(known, request));
        }
        if let Some(refusal) = refusal::of_caller(draft, request.key) {
            return Ok(refusal);
        }
        let taken = match rate_slices::take_all(draft, &request.rates) {
            Ok(taken) => taken,
            Err(refusal) => return Ok(refusal),
        };
        let TakenRates { buckets, asks, readings } = taken;
        let windows = refusal::windows_now(draft, request.key);
        let room = refusal::room(draft, &windows);
        if room < request.least {
            return refusal::of_amount(draft, &windows, request.least);
        }
        for (id, bucket) in buckets {
            draft.set_bucket(id, bucket);
        }
        let held = request.wanted.min(room);
        let drawn = draft.draw(held)?;
        hold_in(draft, &windows, held)?;
        let record = DirectHold {
            key: request.key,
            wanted: request.wanted,
            least: request.least,
            held,
            drawn,
            windows: windows.clone(),
            rates: asks,
            lease_until: lease_until(now, request.lease_ms),
            state: DirectHoldState::Open { checkpoint: None },
        };
        draft.set_hold(&request.id, record);
        Ok(LedgerAnswer::Held { held, windows, rates: readings })
    })
}

fn repeated(known: &DirectHold, request: &DirectHoldRequest) -> LedgerAnswer {
    let is_same = known.wanted == request.wanted && known.least == request.least;
    match known.state {
        DirectHoldState::Tombstone => LedgerAnswer::Tombstoned,
        _ if !is_same => LedgerAnswer::Conflict,
        _ => {
            let open = matches!(known.state, DirectHoldState::Open { .. });
            let (held, windows) = (known.held, known.windows.clone());
            LedgerAnswer::HoldExists { held, open, windows }
        }
    }
}

/// Raises an open hold to `wanted` in total, as far as money and windows allow. It never lowers the
/// hold. What is missing and lent is called back; then the answer is [`LedgerAnswer::HeldInPart`].
#[must_use]
pub fn extend_hold(account: &PrepaidAccount, id: &str, wanted: Money, now: i64) -> AccountStep {
    draft::run(account, now, |draft| {
        let Some(known) = open_hold(draft, id) else { return Ok(LedgerAnswer::HoldEnded) };
        let missing = wanted.saturating_sub(known.held);
        if missing > Money::ZERO
            && let Some(refusal) = refusal::of_caller(draft, known.key)
        {
            return Ok(refusal);
        }
        let more = missing.min(refusal::room(draft, &known.windows));
        let is_lent = more < missing && refusal::may_return(draft, &known.windows, missing);
        if is_lent {
            refusal::recall(draft);
        }
        let windows = known.windows.clone();
        let held = known.held.checked_add(more)?;
        let mut drawn = known.drawn.clone();
        drawn.merge(&draft.draw(more)?)?;
        hold_in(draft, &windows, more)?;
        draft.set_hold(id, DirectHold { held, drawn, ..known.clone() });
        Ok(if is_lent {
            LedgerAnswer::HeldInPart { held }
        } else {
            LedgerAnswer::Held { held, windows, rates: Vec::new() }
        })
    })
}

/// Extends a hold's lease to at least `lease_ms` from now.
#[must_use]
pub fn renew_hold(account: &PrepaidAccount, id: &str, lease_ms: u64, now: i64) -> AccountStep {
    draft::run(account, now, |draft| {
        let Some(known) = open_hold(draft, id) else { return Ok(LedgerAnswer::HoldEnded) };
        let until = known.lease_until.max(lease_until(now, lease_ms));
        draft.set_hold(id, DirectHold { lease_until: until, ..known.clone() });
        Ok(LedgerAnswer::Done)
    })
}

/// Records what a call has cost so far. If the hold expires, this is charged. A lower cost than the
/// last one is passed over.
#[must_use]
pub fn checkpoint_hold(
    account: &PrepaidAccount,
    id: &str,
    charge: Money,
    line: &str,
    now: i64,
) -> AccountStep {
    draft::run(account, now, |draft| {
        let Some(known) = open_hold(draft, id) else { return Ok(LedgerAnswer::HoldEnded) };
        let DirectHoldState::Open { checkpoint } = &known.state else {
            return Ok(LedgerAnswer::HoldEnded);
        };
        if checkpoint.as_ref().is_none_or(|(before, _)| *before < charge) {
            let checkpoint = Some((charge, line.to_owned()));
            let state = DirectHoldState::Open { checkpoint };
            draft.set_hold(id, DirectHold { state, ..known.clone() });
        }
        Ok(LedgerAnswer::Done)
    })
}

/// Charges a call and ends its hold. A charge above the hold takes what is available, and then from
/// W; so does a charge that comes after the hold has expired. With an origin, a hold that the store
/// lost is settled like one that has expired. `tokens` corrects what the call took of rate limits.
#[must_use]
pub fn settle_hold(
    account: &PrepaidAccount,
    id: &str,
    charge: Money,
    line: &str,
    origin: Option<&DirectHoldOrigin>,
    tokens: Option<i64>,
    now: i64,
) -> AccountStep {
    draft::run(account, now, |draft| {
        let lost = origin.filter(|origin| now.abs_diff(origin.at) < LOST_AGE_MAX_MS);
        let known = match (draft.hold(id), lost) {
            (Some(known), _) => known.clone(),
            (None, Some(origin)) => lost_hold(origin, now),
            (None, None) => return Ok(LedgerAnswer::UnknownHold),
        };
        match known.state {
            DirectHoldState::Open { .. } => {
                rate_slices::end_all(draft, &known.rates, tokens);
                end_hold(draft, id, &known, charge, line)
            }
            DirectHoldState::Posted(amount) => Ok(LedgerAnswer::AlreadyPosted(amount)),
            DirectHoldState::Voided | DirectHoldState::Tombstone => Ok(LedgerAnswer::Voided),
            DirectHoldState::Expired(before) => {
                let due = charge.saturating_sub(before);
                let call = charged(id, &known, line);
                let paid = charge::post(draft, call, LotAmounts::default(), due)?;
                let amount = before.checked_add(due)?;
                let state = DirectHoldState::Posted(amount);
                draft.set_hold(id, DirectHold { state, ..known });
                Ok(posted(amount, &paid))
            }
        }
    })
}

fn posted(amount: Money, paid: &PaidCharge) -> LedgerAnswer {
    let PaidCharge { written_off, over_budget } = *paid;
    LedgerAnswer::Posted { amount, written_off, over_budget }
}

fn lost_hold(origin: &DirectHoldOrigin, now: i64) -> DirectHold {
    DirectHold {
        key: origin.key,
        wanted: origin.wanted,
        least: origin.least,
        held: Money::ZERO,
        drawn: LotAmounts::default(),
        windows: origin.windows.clone(),
        rates: Vec::new(),
        lease_until: now,
        state: DirectHoldState::Expired(Money::ZERO),
    }
}

/// Ends an open hold with a charge, and gives the rest back.
fn end_hold(
    draft: &mut AccountDraft<'_>,
    id: &str,
    known: &DirectHold,
    charge: Money,
    line: &str,
) -> Result<LedgerAnswer, MoneyError> {
    let mut rest = known.drawn.clone();
    let covered = rest.split_first(charge)?;
    draft.give_back(&rest)?;
    for window in &known.windows {
        draft.change_held(*window, known.held, Money::ZERO)?;
    }
    let paid = charge::post(draft, charged(id, known, line), covered, charge)?;
    let state = DirectHoldState::Posted(charge);
    let drawn = LotAmounts::default();
    draft.set_hold(id, DirectHold { drawn, state, ..known.clone() });
    Ok(posted(charge, &paid))
}

/// Ends a hold without a charge. If the hold is unknown, a tombstone is left.
#[must_use]
pub fn void_hold(account: &PrepaidAccount, id: &str, now: i64) -> AccountStep {
    draft::run(account, now, |draft| {
        let Some(known) = draft.hold(id) else {
            let origin = DirectHoldOrigin {
                key: None,
                wanted: Money::ZERO,
                least: Money::ZERO,
                at: now,
                windows: Vec::new(),
            };
            let state = DirectHoldState::Tombstone;
            draft.set_hold(id, DirectHold { state, ..lost_hold(&origin, now) });
            return Ok(LedgerAnswer::Voided);
        };
        match known.state {
            DirectHoldState::Open { .. } => {
                rate_slices::void_all(draft, &known.rates);
                release(draft, id, known, DirectHoldState::Voided)?;
            }
            // A hold that expired without a charge counts as voided in time. It is not charged
            // later either, since a caller that is told so may make the call once more.
            DirectHoldState::Expired(Money::ZERO) => {
                let state = DirectHoldState::Voided;
                draft.set_hold(id, DirectHold { state, ..known.clone() });
            }
            DirectHoldState::Voided | DirectHoldState::Tombstone => {}
            DirectHoldState::Posted(amount) | DirectHoldState::Expired(amount) => {
                return Ok(LedgerAnswer::AlreadyPosted(amount));
            }
        }
        Ok(LedgerAnswer::Voided)
    })
}

/// Ends an open hold whose lease has expired: posts its checkpoint and gives the rest back.
#[must_use]
pub fn expire_hold(account: &PrepaidAccount, id: &str, now: i64) -> AccountStep {
    draft::run(account, now, |draft| {
        let Some(known) = open_hold(draft, id) else { return Ok(LedgerAnswer::HoldEnded) };
        let DirectHoldState::Open { checkpoint } = &known.state else {
            return Ok(LedgerAnswer::HoldEnded);
        };
        if known.lease_until > now {
            return Ok(LedgerAnswer::AlreadyDone);
        }
        rate_slices::end_all(draft, &known.rates, None);
        let Some((charge, line)) = checkpoint.clone().filter(|(c, _)| *c > Money::ZERO) else {
            release(draft, id, known, DirectHoldState::Expired(Money::ZERO))?;
            return Ok(LedgerAnswer::Voided);
        };
        let answer = end_hold(draft, id, known, charge, &line)?;
        let state = DirectHoldState::Expired(charge);
        let drawn = LotAmounts::default();
        draft.set_hold(id, DirectHold { drawn, state, ..known.clone() });
        Ok(answer)
    })
}

fn release(
    draft: &mut AccountDraft<'_>,
    id: &str,
    known: &DirectHold,
    state: DirectHoldState,
) -> Result<(), MoneyError> {
    draft.give_back(&known.drawn)?;
    for window in &known.windows {
        draft.change_held(*window, known.held, Money::ZERO)?;
    }
    let drawn = LotAmounts::default();
    draft.set_hold(id, DirectHold { drawn, state, ..known.clone() });
    Ok(())
}

fn open_hold<'a>(draft: &AccountDraft<'a>, id: &str) -> Option<&'a DirectHold> {
    draft.hold(id).filter(|hold| matches!(hold.state, DirectHoldState::Open { .. }))
}

fn hold_in(
    draft: &mut AccountDraft<'_>,
    windows: &[WindowId],
    amount: Money,
) -> Result<(), MoneyError> {
    windows.iter().try_for_each(|window| draft.change_held(*window, Money::ZERO, amount))
}

fn charged<'a>(id: &'a str, known: &'a DirectHold, line: &'a str) -> ChargedCall<'a> {
    ChargedCall { request: id, key: known.key, windows: &known.windows, line }
}

/// When a lease that begins now ends.
pub(crate) fn lease_until(now: i64, lease_ms: u64) -> i64 {
    now.saturating_add(i64::try_from(lease_ms).unwrap_or(i64::MAX))
}
