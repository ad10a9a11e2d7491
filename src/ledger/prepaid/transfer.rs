//! Money that comes into an account and leaves it beside charges: payments, grants, refunds.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::answer::{AccountStep, LedgerAnswer};
use super::draft::{self, AccountDraft};
use super::lot::{LotAmounts, LotId, OPEN_LOTS_MAX};
use super::records::{PrepaidAccount, RefundWait, TransferKind, TransferRecord, is_refundable};
use super::refusal::{self, RECALL_MS};
use crate::money::{Money, MoneyError};

/// A refund waits at most this long for money that is lent, in ms: one lease of a gateway.
pub const TAKE_WAIT_MS: i64 = 60_000;

/// Adds a payment, which never expires. The same id again does nothing.
#[must_use]
pub fn add_payment(account: &PrepaidAccount, tx: &str, amount: Money, now: i64) -> AccountStep {
    add(account, tx, TransferKind::Payment, LotId::PAID, amount, now)
}

/// Adds credit to a lot. The same id again does nothing. A lot more than [`OPEN_LOTS_MAX`] is
/// refused; one place is kept for payments. Credit whose expiry has passed expires at once.
#[must_use]
pub fn add_grant(
    account: &PrepaidAccount,
    tx: &str,
    amount: Money,
    lot: LotId,
    now: i64,
) -> AccountStep {
    add(account, tx, TransferKind::Grant(lot), lot, amount, now)
}

fn add(
    account: &PrepaidAccount,
    tx: &str,
    kind: TransferKind,
    lot: LotId,
    amount: Money,
    now: i64,
) -> AccountStep {
    draft::run(account, now, |draft| {
        if let Some(known) = draft.transfer(tx) {
            let is_same = known.kind == kind && known.amount == amount;
            return Ok(if is_same { LedgerAnswer::AlreadyDone } else { LedgerAnswer::Conflict });
        }
        if !have_places(draft, [lot]) {
            return Ok(LedgerAnswer::TooManyLots);
        }
        let balances = &mut draft.head.balances;
        balances.credit = balances.credit.checked_add(amount)?;
        put_into_lot(draft, lot, amount)?;
        draft.expire_lots()?;
        let moved = Some(amount);
        let (wait, reason) = (None, String::new());
        draft.set_transfer(tx, TransferRecord { kind, amount, at: now, moved, wait, reason });
        Ok(LedgerAnswer::Done)
    })
}

/// Lets credit expire whose time has come. Every operation does so first; this one does nothing
/// else, for accounts on which nothing happens.
#[must_use]
pub fn expire_credit(account: &PrepaidAccount, now: i64) -> AccountStep {
    draft::run(account, now, |_| Ok(LedgerAnswer::Done))
}

/// Whether all these lots, each named once, are open or may be opened. One place is kept for
/// payments; a lot that has expired takes none, whatever is held of it.
pub(crate) fn have_places(draft: &AccountDraft<'_>, lots: impl IntoIterator<Item = LotId>) -> bool {
    let takes_place = |id: &LotId| *id != LotId::PAID && !id.is_expired(draft.now);
    let open = draft.head.lots.keys().filter(|id| takes_place(id)).count();
    let is_new = |id: &LotId| takes_place(id) && !draft.head.lots.contains_key(id);
    let new = lots.into_iter().filter(is_new).count();
    new == 0 || open + new < OPEN_LOTS_MAX
}

/// Makes an amount available in a lot.
pub(crate) fn put_into_lot(
    draft: &mut AccountDraft<'_>,
    lot: LotId,
    amount: Money,
) -> Result<(), MoneyError> {
    let balances = &mut draft.head.balances;
    balances.available = balances.available.checked_add(amount)?;
    let there = draft.head.lots.entry(lot).or_default();
    there.available = there.available.checked_add(amount)?;
    draft.close_lots();
    Ok(())
}

/// Pays credit back: C and A fall. Only paid lots are drawn, the last to expire first. Money that
/// is lent counts as available: it is called back, and the caller asks again until it has come, for
/// [`TAKE_WAIT_MS`] at most without a pause. What is not there then is told as uncovered, which is
/// final.
#[must_use]
pub fn take_credit(
    account: &PrepaidAccount,
    tx: &str,
    amount: Money,
    reason: &str,
    now: i64,
) -> AccountStep {
    draft::run(account, now, |draft| {
        let known = draft.transfer(tx);
        let is_same =
            |record: &TransferRecord| record.kind == TransferKind::Take && record.amount == amount;
        if known.is_some_and(|record| !is_same(record)) {
            return Ok(LedgerAnswer::Conflict);
        }
        if let Some(taken) = known.and_then(|record| record.moved) {
            let uncovered = amount.saturating_sub(taken);
            return Ok(LedgerAnswer::Taken { taken, uncovered, again: true });
        }
        // While the caller asks, nothing is lent. A refund that was left alone begins to wait anew:
        // what is lent now was not called back yet.
        let at = known.map_or(now, |record| record.at);
        let wait = known.and_then(|record| record.wait);
        let wait = wait.filter(|wait| (0..RECALL_MS).contains(&now.saturating_sub(wait.asked_at)));
        let since = wait.map_or(now, |wait| wait.since);
        let mut paid = LotAmounts::default();
        for (lot, there) in draft.head.lots.iter().filter(|(lot, _)| is_refundable(**lot)) {
            paid.add(*lot, there.available)?;
        }
        let is_lent = draft.head.lent_out > 0 && now < since.saturating_add(TAKE_WAIT_MS);
        let (kind, reason) = (TransferKind::Take, reason.to_owned());
        let mut record = TransferRecord { kind, amount, at, moved: None, wait: None, reason };
        if paid.total()? < amount && is_lent {
            if known.is_none() {
                draft.raise_revision();
            }
            refusal::recall(draft);
            record.wait = Some(RefundWait { since, asked_at: now });
            draft.set_transfer(tx, record);
            return Ok(LedgerAnswer::Wait);
        }
        let taken = paid.split_last(amount)?;
        remove_available(draft, &taken)?;
        draft.raise_revision();
        let taken = taken.total()?;
        record.moved = Some(taken);
        draft.set_transfer(tx, record);
        let uncovered = amount.checked_sub(taken)?;
        Ok(LedgerAnswer::Taken { taken, uncovered, again: false })
    })
}

/// Removes what is available from lots, from A and from C.
fn remove_available(draft: &mut AccountDraft<'_>, lots: &LotAmounts) -> Result<(), MoneyError> {
    for (id, amount) in lots.iter() {
        let lot = draft.head.lots.entry(id).or_default();
        lot.available = lot.available.checked_sub(amount)?;
        let balances = &mut draft.head.balances;
        balances.available = balances.available.checked_sub(amount)?;
        balances.credit = balances.credit.checked_sub(amount)?;
    }
    draft.close_lots();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::account::Balances;
    use crate::ledger::prepaid::records::AccountHead;

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("not negative")
    }

    /// An account of which 60 are lent to a gateway that never answers.
    fn lending_account() -> PrepaidAccount {
        let (credit, available, lent) = (nano(100), nano(40), nano(60));
        let balances = Balances { credit, available, held: lent, ..Balances::default() };
        let head = AccountHead { lent_out: 1, ..AccountHead::from_balances(balances) };
        PrepaidAccount { head, ..PrepaidAccount::default() }
    }

    /// Asks for a refund every 400 ms from `start` on. Returns when it ended, and how.
    fn ask(account: &mut PrepaidAccount, start: i64) -> (i64, LedgerAnswer) {
        for now in (start..).step_by(400) {
            let AccountStep { answer, changes } = take_credit(account, "r", nano(100), "", now);
            account.commit(changes);
            if answer != LedgerAnswer::Wait {
                return (now, answer);
            }
        }
        unreachable!("a refund ends")
    }

    #[test]
    fn a_refund_waits_a_minute_for_money_that_is_lent() {
        let mut account = lending_account();
        let taken = LedgerAnswer::Taken { taken: nano(40), uncovered: nano(60), again: false };
        assert_eq!(ask(&mut account, 1_000), (61_000, taken));
    }

    /// It was finally uncovered at its first word, although nothing had been called back.
    #[test]
    fn a_refund_that_was_left_alone_waits_again() {
        let mut account = lending_account();
        let first = take_credit(&account, "r", nano(100), "", 1_000);
        assert_eq!(first.answer, LedgerAnswer::Wait);
        account.commit(first.changes);
        // Others wait for the account's money, too.
        account.head.recall_until = i64::MAX;
        let (ended, answer) = ask(&mut account, 900_000);
        assert!(matches!(answer, LedgerAnswer::Taken { .. }), "{answer:?}");
        assert_eq!(ended, 960_000);
    }
}
