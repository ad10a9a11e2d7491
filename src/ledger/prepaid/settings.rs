//! What an operator sets for an account and its keys, and what counts within a second.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::answer::{AccountStep, LedgerAnswer};
use super::draft;
use super::records::{KeyBudgets, KeyStatus, PrepaidAccount};
use super::window::{BudgetOwner, KeyId, WindowKind};
use crate::money::Money;

/// Sets or removes the limit of a budget. What was spent stays spent. A window whose limit was
/// removed counts on, so that a limit that is set again knows what was spent meanwhile.
#[must_use]
pub fn set_budget(
    account: &PrepaidAccount,
    owner: BudgetOwner,
    kind: WindowKind,
    limit: Option<Money>,
    now: i64,
) -> AccountStep {
    draft::run(account, now, |draft| {
        let before = match owner {
            BudgetOwner::Account => draft.head.budgets.insert(kind, limit),
            BudgetOwner::Key(key) => {
                let mut record = draft.key_record(key).cloned().unwrap_or_default();
                let before = record.budgets.insert(kind, limit);
                draft.set_key(key, record);
                before
            }
        };
        if before == Some(limit) {
            return Ok(LedgerAnswer::AlreadyDone);
        }
        draft.raise_revision();
        Ok(LedgerAnswer::Done)
    })
}

/// Suspends an account, or resumes it.
#[must_use]
pub fn set_suspended(account: &PrepaidAccount, suspended: bool, now: i64) -> AccountStep {
    draft::run(account, now, |draft| {
        if draft.head.suspended == suspended {
            return Ok(LedgerAnswer::AlreadyDone);
        }
        draft.head.suspended = suspended;
        draft.raise_revision();
        Ok(LedgerAnswer::Done)
    })
}

/// Disables, enables or revokes a key. A revoked key stays revoked.
#[must_use]
pub fn set_key_status(
    account: &PrepaidAccount,
    key: KeyId,
    status: KeyStatus,
    now: i64,
) -> AccountStep {
    draft::run(account, now, |draft| {
        let record = draft.key_record(key).cloned().unwrap_or_default();
        if record.status == status {
            return Ok(LedgerAnswer::AlreadyDone);
        }
        if record.status == KeyStatus::Revoked {
            return Ok(LedgerAnswer::Conflict);
        }
        draft.set_key(key, KeyBudgets { status, ..record });
        draft.raise_revision();
        Ok(LedgerAnswer::Done)
    })
}
