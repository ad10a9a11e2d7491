//! Applies the operations of the [`Ledger`](crate::ledger::Ledger), as every store does.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::answer::{AccountStep, LedgerAnswer};
use super::correct::{self, ChargeCorrection};
use super::direct::{self, DirectHoldOrigin, DirectHoldRequest};
use super::records::{AccountChanges, BudgetLimits, PrepaidAccount};
use super::transfer;
use super::window::{BudgetOwner, KeyId, WindowId};
use crate::ledger::budget::BudgetUse;
use crate::ledger::operation::{HoldRequest, Operation, Outcome};
use crate::money::Money;

/// The outcome of an operation, with all changes that the store must write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedOperation {
    /// The outcome for the caller.
    pub outcome: Outcome,
    /// What the store writes, in one transaction.
    pub changes: AccountChanges,
}

/// Applies an operation to the records of an account. `now` is in unix ms.
#[must_use]
pub fn apply_operation(account: &PrepaidAccount, op: &Operation, now: i64) -> AppliedOperation {
    let (step, least) = match op {
        Operation::Credit { tx, amount } => {
            (transfer::add_payment(account, tx, *amount, now), Money::ZERO)
        }
        Operation::Grant { tx, amount, lot } => {
            (transfer::add_grant(account, tx, *amount, *lot, now), Money::ZERO)
        }
        Operation::Take { tx, amount, reason } => {
            (transfer::take_credit(account, tx, *amount, reason, now), Money::ZERO)
        }
        Operation::Correct { tx, request, amount, reason, .. } => {
            let correction = ChargeCorrection { tx, request, amount: *amount, reason };
            (correct::correct_charge(account, correction, now), Money::ZERO)
        }
        Operation::Hold { id, wanted, least, lease_ms, key, rates } => {
            let request = DirectHoldRequest {
                id: id.clone(),
                key: *key,
                wanted: *wanted,
                least: *least,
                rates: rates.clone(),
                lease_ms: *lease_ms,
            };
            (direct::place_hold(account, &request, now), *least)
        }
        Operation::Extend { id, wanted } => {
            (direct::extend_hold(account, id, *wanted, now), Money::ZERO)
        }
        Operation::Renew { id, lease_ms } => {
            (direct::renew_hold(account, id, *lease_ms, now), Money::ZERO)
        }
        Operation::Checkpoint { id, charge, line } => {
            (direct::checkpoint_hold(account, id, *charge, line, now), Money::ZERO)
        }
        Operation::Settle { id, charge, line, origin, tokens } => {
            let origin = origin.map(|origin| lost_origin(account, origin));
            let origin = origin.as_ref();
            (direct::settle_hold(account, id, *charge, line, origin, *tokens, now), Money::ZERO)
        }
        Operation::Void { id } => (direct::void_hold(account, id, now), Money::ZERO),
    };
    let AccountStep { answer, changes } = step;
    AppliedOperation { outcome: outcome_of(account, answer, least), changes }
}

/// The windows in which a hold counts that is made by a key at `now` (unix ms).
#[must_use]
pub fn windows_at(account: &PrepaidAccount, key: Option<KeyId>, now: i64) -> Vec<WindowId> {
    let own = window_ids(&account.head.budgets, BudgetOwner::Account, now);
    let of_key = key.and_then(|key| Some((key, account.keys.get(&key)?)));
    let of_key = of_key
        .into_iter()
        .flat_map(|(key, record)| window_ids(&record.budgets, BudgetOwner::Key(key), now));
    own.chain(of_key).collect()
}

fn window_ids(
    limits: &BudgetLimits,
    owner: BudgetOwner,
    now: i64,
) -> impl Iterator<Item = WindowId> {
    limits.keys().map(move |kind| WindowId::at(owner, *kind, now))
}

/// A hold that the store lost counts in the windows of the time at which it was requested.
fn lost_origin(account: &PrepaidAccount, origin: HoldRequest) -> DirectHoldOrigin {
    let HoldRequest { wanted, least, at, key } = origin;
    DirectHoldOrigin { key, wanted, least, at, windows: windows_at(account, key, at) }
}

fn outcome_of(account: &PrepaidAccount, answer: LedgerAnswer, least: Money) -> Outcome {
    let available = account.head.balances.available;
    match answer {
        LedgerAnswer::Done => Outcome::Done,
        LedgerAnswer::AlreadyDone => Outcome::AlreadyDone,
        LedgerAnswer::Held { held, rates, .. } if rates.is_empty() => Outcome::Held(held),
        LedgerAnswer::Held { held, rates, .. } => Outcome::HeldWithinRates { held, rates },
        LedgerAnswer::RateLimited { id, retry_after_ms, rates } => {
            Outcome::RateLimited { id, retry_after_ms, rates }
        }
        LedgerAnswer::HeldInPart { held } => Outcome::HeldInPart(held),
        LedgerAnswer::HoldExists { held, open, .. } => Outcome::HoldExists { held, open },
        LedgerAnswer::Insufficient { available } => Outcome::Insufficient(available),
        LedgerAnswer::BudgetExceeded { window, left, .. } => {
            Outcome::BudgetExceeded { window, left }
        }
        LedgerAnswer::HeldElsewhere { .. } if available < least => Outcome::Insufficient(available),
        LedgerAnswer::HeldElsewhere { room } => Outcome::BudgetInUse(room),
        LedgerAnswer::Wait => Outcome::Wait,
        LedgerAnswer::Tombstoned => Outcome::Tombstoned,
        LedgerAnswer::Posted { amount, written_off, .. } => Outcome::Posted { amount, written_off },
        LedgerAnswer::AlreadyPosted(amount) => Outcome::AlreadyPosted(amount),
        LedgerAnswer::Voided => Outcome::Voided,
        LedgerAnswer::HoldEnded => Outcome::HoldEnded,
        LedgerAnswer::UnknownHold => Outcome::UnknownHold,
        LedgerAnswer::Taken { taken, uncovered, .. } => Outcome::Taken { taken, uncovered },
        LedgerAnswer::Corrected { given, .. } => Outcome::Corrected(given),
        LedgerAnswer::UnknownCharge => Outcome::UnknownCharge,
        LedgerAnswer::TooManyLots => Outcome::TooManyLots,
        LedgerAnswer::OutOfRange => Outcome::OutOfRange,
        // The other answers are to operations of other kinds.
        _ => Outcome::Conflict,
    }
}

/// Returns the budgets of an account and its keys, with what is used of the windows that run at
/// `now` (unix ms).
#[must_use]
pub fn budget_uses(account: &PrepaidAccount, now: i64) -> Vec<BudgetUse> {
    let own = [(BudgetOwner::Account, &account.head.budgets)];
    let of_keys =
        account.keys.iter().map(|(key, record)| (BudgetOwner::Key(*key), &record.budgets));
    let budgets = own.into_iter().chain(of_keys);
    let limits = budgets
        .flat_map(|(owner, limits)| limits.iter().map(move |(kind, limit)| (owner, *kind, *limit)));
    limits
        .map(|(owner, kind, limit)| {
            let window = WindowId::at(owner, kind, now);
            let used = account.windows.get(&window).copied().unwrap_or_default();
            let free = free_in(account, window).min(used.lent);
            BudgetUse { owner, kind, limit, window, used, free }
        })
        .collect()
}

/// What gateways have free of a window. A gateway says what it needs in all, and not of which
/// window, so this may be less than what is free.
fn free_in(account: &PrepaidAccount, window: WindowId) -> Money {
    let out = account.allotments.values().filter(|allotment| allotment.is_out());
    let free = out.filter_map(|allotment| {
        Some(allotment.slices.get(&window)?.saturating_sub(allotment.needed))
    });
    free.fold(Money::ZERO, |sum, free| sum.checked_add(free).unwrap_or(sum))
}
