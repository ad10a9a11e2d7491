//! What an account and a key allow, and why something is refused.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::answer::LedgerAnswer;
use super::draft::AccountDraft;
use super::records::KeyStatus;
use super::window::{BudgetOwner, KeyId, WindowId};
use crate::money::{Money, MoneyError};

/// After a call had to wait, nothing is lent for this long, in ms. Whoever waits asks again sooner.
pub const RECALL_MS: i64 = 1_000;

/// Why a call of a key may not hold anything new; `None` if it may.
pub(crate) fn of_caller(draft: &AccountDraft<'_>, key: Option<KeyId>) -> Option<LedgerAnswer> {
    if draft.head.suspended {
        return Some(LedgerAnswer::Suspended);
    }
    let is_active = key.is_none_or(|key| draft.key_status(key) == KeyStatus::Active);
    (!is_active).then_some(LedgerAnswer::KeyRefused)
}

/// The windows in which a hold that is made now counts.
pub(crate) fn windows_now(draft: &AccountDraft<'_>, key: Option<KeyId>) -> Vec<WindowId> {
    let mut windows = draft.current_windows(BudgetOwner::Account);
    windows.extend(key.into_iter().flat_map(|key| draft.current_windows(BudgetOwner::Key(key))));
    windows
}

/// What can be held now: what is available, and no more than each window has left.
pub(crate) fn room(draft: &AccountDraft<'_>, windows: &[WindowId]) -> Money {
    let left = windows.iter().map(|id| draft.window(*id).left(draft.limit(*id)));
    left.fold(draft.head.balances.available, Money::min)
}

/// Calls back what is lent, and stops lending for a while.
pub(crate) fn recall(draft: &mut AccountDraft<'_>) {
    draft.head.recall_until = draft.now.saturating_add(RECALL_MS);
}

/// Why less than `least` can be held. Only what nothing that is held now could cover is refused for
/// good; what is lent is called back.
pub(crate) fn of_amount(
    draft: &mut AccountDraft<'_>,
    windows: &[WindowId],
    least: Money,
) -> Result<LedgerAnswer, MoneyError> {
    if could_be_available(draft)? < least {
        let available = draft.head.balances.available;
        return Ok(LedgerAnswer::Insufficient { available });
    }
    let without_holds = |id: WindowId| {
        let limit = draft.limit(id)?;
        Some((id, limit.saturating_sub(draft.window(id).spent)))
    };
    let exceeded = windows.iter().filter_map(|id| without_holds(*id));
    let exceeded = exceeded.filter(|(_, left)| *left < least);
    // The last one to end is the one that matters: before that the call cannot be made.
    if let Some((window, left)) = exceeded.max_by_key(|(id, _)| id.end()) {
        let resets_at = Some(window.end()).filter(|end| *end < i64::MAX);
        return Ok(LedgerAnswer::BudgetExceeded { window, left, resets_at });
    }
    if may_return(draft, windows, least) {
        recall(draft);
        return Ok(LedgerAnswer::Wait);
    }
    Ok(LedgerAnswer::HeldElsewhere { room: room(draft, windows) })
}

/// Whether a recall may return what is missing of an amount: something is lent, also of each window
/// that has less left.
pub(crate) fn may_return(draft: &AccountDraft<'_>, windows: &[WindowId], amount: Money) -> bool {
    let lacks = |id: &&WindowId| draft.window(**id).left(draft.limit(**id)) < amount;
    let could_return = |id: &WindowId| draft.window(*id).lent > Money::ZERO;
    draft.head.lent_out > 0 && windows.iter().filter(lacks).all(could_return)
}

/// What would be available if all that is held came back now.
fn could_be_available(draft: &AccountDraft<'_>) -> Result<Money, MoneyError> {
    let lasting = draft.head.lots.iter().filter(|(id, _)| !id.is_expired(draft.now));
    lasting
        .map(|(_, lot)| lot)
        .try_fold(Money::ZERO, |sum, lot| sum.checked_add(lot.available)?.checked_add(lot.held))
}
