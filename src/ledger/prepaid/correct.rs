//! Gives a part of a posted charge back, by a line of its own.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeSet;

use super::answer::{AccountStep, LedgerAnswer};
use super::draft::{self, AccountDraft};
use super::lot::LotAmounts;
use super::records::{JournalRecord, PrepaidAccount, RecordKind, TransferKind, TransferRecord};
use super::transfer::{have_places, put_into_lot};
use super::window::{KeyId, WindowId};
use crate::ledger::json_text::{push_number, push_string};
use crate::money::{Money, MoneyError};

/// What is left of a charge after its corrections.
#[derive(Default)]
struct ChargeLeft {
    amount: Money,
    written_off: Money,
    lots: LotAmounts,
    windows: BTreeSet<WindowId>,
    key: Option<KeyId>,
}

/// A correction of a charge, as its caller asks for it.
#[derive(Debug, Clone, Copy)]
pub struct ChargeCorrection<'a> {
    /// The caller's id, which makes a repeat harmless.
    pub tx: &'a str,
    /// The id of the request that was charged.
    pub request: &'a str,
    /// The amount to give back.
    pub amount: Money,
    /// Why, for the people who read the journal.
    pub reason: &'a str,
}

impl ChargeCorrection<'_> {
    /// Returns the beginning of the journal line, without the brace that ends it. Its names are not
    /// those of the line of a charge: whoever looks for the charge of a request must not find its
    /// correction.
    pub(crate) fn line_head(&self) -> String {
        let mut json = String::with_capacity(256);
        push_string(&mut json, r#"{"corrects":"#, self.request);
        push_string(&mut json, r#","correction":"#, self.tx);
        push_string(&mut json, r#","reason":"#, self.reason);
        json
    }

    fn line(&self, left: &ChargeLeft, back: &LotAmounts, now: i64) -> String {
        let mut texts: Vec<String> = left.windows.iter().map(|window| window.to_text()).collect();
        // The order of the texts, as in the scripts of Redis.
        texts.sort();
        let mut json = self.line_head();
        push_number(&mut json, r#","at":"#, now);
        if let Some(KeyId(id)) = left.key {
            push_number(&mut json, r#","key_id":"#, id);
        }
        if !texts.is_empty() {
            push_string(&mut json, r#","windows":"#, &texts.join(","));
        }
        let granted = back.to_text();
        if !granted.is_empty() {
            push_string(&mut json, r#","lots":"#, &granted);
        }
        json.push('}');
        json
    }
}

/// Gives back a part of the charge of a call, and at most what is left of it. P falls by it, W by
/// the part that the account had not paid, and the rest goes to the lots it came from, as though
/// the charge had been smaller. A budget's spent falls while its window runs.
#[must_use]
pub fn correct_charge(
    account: &PrepaidAccount,
    correction: ChargeCorrection<'_>,
    now: i64,
) -> AccountStep {
    let ChargeCorrection { tx, request, amount, reason } = correction;
    draft::run(account, now, |draft| {
        let kind = TransferKind::Correction(request.to_owned());
        if let Some(known) = draft.transfer(tx) {
            let is_same = known.kind == kind && known.amount == amount;
            let given = known.moved.unwrap_or_default();
            let again = LedgerAnswer::Corrected { given, again: true };
            return Ok(if is_same { again } else { LedgerAnswer::Conflict });
        }
        let Some(mut left) = charge_left(draft, request)? else {
            return Ok(LedgerAnswer::UnknownCharge);
        };
        let given = amount.min(left.amount);
        let written_off = given.min(left.written_off);
        let back = left.lots.split_last(given.checked_sub(written_off)?)?;
        if !have_places(draft, back.iter().map(|(lot, _)| lot)) {
            return Ok(LedgerAnswer::TooManyLots);
        }
        let balances = &mut draft.head.balances;
        balances.posted = balances.posted.checked_sub(given)?;
        balances.written_off = balances.written_off.checked_sub(written_off)?;
        for (lot, amount) in back.iter() {
            put_into_lot(draft, lot, amount)?;
        }
        for window in left.windows.iter().filter(|window| !window.is_over(now)) {
            draft.unspend(*window, given);
        }
        let line = correction.line(&left, &back, now);
        draft.append(JournalRecord {
            seq: 0,
            posted_at: 0,
            kind: RecordKind::Correction(tx.to_owned()),
            request: request.to_owned(),
            key: left.key,
            amount: given,
            written_off,
            over_budget: Money::ZERO,
            lots: back,
            line,
            windows: left.windows.into_iter().collect(),
        });
        draft.expire_lots()?;
        let moved = Some(given);
        let (wait, reason) = (None, reason.to_owned());
        draft.set_transfer(tx, TransferRecord { kind, amount, at: now, moved, wait, reason });
        Ok(LedgerAnswer::Corrected { given, again: false })
    })
}

/// Adds up the lines of a call; `None` if it was never charged.
fn charge_left(draft: &AccountDraft<'_>, request: &str) -> Result<Option<ChargeLeft>, MoneyError> {
    let mut left: Option<ChargeLeft> = None;
    for line in draft.lines_of(request) {
        match line.kind {
            RecordKind::Charge => {
                let left = left.get_or_insert_default();
                left.amount = left.amount.checked_add(line.amount)?;
                left.written_off = left.written_off.checked_add(line.written_off)?;
                left.lots.merge(&line.lots)?;
                left.windows.extend(&line.windows);
                left.key = line.key;
            }
            RecordKind::Correction(_) => {
                let Some(left) = left.as_mut() else { continue };
                // A search may have found fewer lines than the corrections before it.
                left.amount = left.amount.saturating_sub(line.amount);
                left.written_off = left.written_off.saturating_sub(line.written_off);
                left.lots.subtract(&line.lots);
            }
            RecordKind::Expiry(_) => {}
        }
    }
    Ok(left)
}
