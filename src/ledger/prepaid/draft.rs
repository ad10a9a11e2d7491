//! The working copy of an operation: it reads the records, and gathers what changes.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::answer::{AccountStep, LedgerAnswer};
use super::lot::{CreditLot, LotAmounts, LotId};
use super::rate::{RateBucket, RateId};
use super::records::{
    AccountChanges, AccountHead, Allotment, AllotmentId, BudgetLimits, DirectHold, DirectHoldState,
    JournalRecord, KeyStatus, PrepaidAccount, RecordKind, TransferRecord,
};
use super::window::{BudgetOwner, DAY_MS, KeyId, WindowId, WindowUse};
use crate::ledger::json_text::{push_number, push_string};
use crate::money::{Money, MoneyError};

/// An operation in the making. If it fails, it is dropped, and nothing has changed.
pub(crate) struct AccountDraft<'a> {
    base: &'a PrepaidAccount,
    changes: AccountChanges,
    /// The new record of the account.
    pub head: AccountHead,
    /// The store's time, in unix ms.
    pub now: i64,
}

/// Runs an operation on a working copy. What has expired is taken away first, so that no operation
/// sees credit past its time.
pub(crate) fn run(
    base: &PrepaidAccount,
    now: i64,
    operation: impl FnOnce(&mut AccountDraft<'_>) -> Result<LedgerAnswer, MoneyError>,
) -> AccountStep {
    let head = base.head.clone();
    let mut draft = AccountDraft { base, changes: AccountChanges::default(), head, now };
    let answer = draft.expire_lots().and_then(|()| operation(&mut draft));
    let Ok(answer) = answer else {
        let changes = AccountChanges::default();
        return AccountStep { answer: LedgerAnswer::OutOfRange, changes };
    };
    let AccountDraft { mut changes, head, .. } = draft;
    changes.head = (head != base.head).then_some(head);
    AccountStep { answer, changes }
}

/// Returns the journal line of credit that has expired.
fn expiry_line(lot: LotId, now: i64) -> String {
    let mut json = String::with_capacity(64);
    push_string(&mut json, r#"{"expired":"#, &lot.to_string());
    push_number(&mut json, r#","at":"#, now);
    json.push('}');
    json
}

impl<'a> AccountDraft<'a> {
    pub(crate) fn key_status(&self, key: KeyId) -> KeyStatus {
        self.key_record(key).map_or(KeyStatus::Active, |record| record.status)
    }

    pub(crate) fn key_record(&self, key: KeyId) -> Option<&super::records::KeyBudgets> {
        self.changes.keys.get(&key).or_else(|| self.base.keys.get(&key))
    }

    pub(crate) fn set_key(&mut self, key: KeyId, record: super::records::KeyBudgets) {
        self.head.has_keys = true;
        self.changes.keys.insert(key, record);
    }

    pub(crate) fn hold(&self, id: &str) -> Option<&'a DirectHold> {
        self.base.holds.get(id)
    }

    /// Whether somebody was told that the call of this id is not charged.
    pub(crate) fn is_voided(&self, call: &str) -> bool {
        let voided = [DirectHoldState::Voided, DirectHoldState::Tombstone];
        self.base.holds.get(call).is_some_and(|hold| voided.contains(&hold.state))
    }

    pub(crate) fn set_hold(&mut self, id: &str, hold: DirectHold) {
        self.changes.holds.insert(id.to_owned(), hold);
    }

    pub(crate) fn bucket(&self, id: RateId) -> RateBucket {
        let known = self.changes.rates.get(&id).or_else(|| self.base.rates.get(&id));
        known.copied().unwrap_or_default()
    }

    pub(crate) fn set_bucket(&mut self, id: RateId, bucket: RateBucket) {
        self.changes.rates.insert(id, bucket);
    }

    pub(crate) fn transfer(&self, tx: &str) -> Option<&'a TransferRecord> {
        self.base.transfers.get(tx)
    }

    pub(crate) fn set_transfer(&mut self, tx: &str, record: TransferRecord) {
        self.changes.transfers.insert(tx.to_owned(), record);
    }

    pub(crate) fn allotment(&self, id: &AllotmentId) -> Option<&'a Allotment> {
        self.base.allotments.get(id)
    }

    /// Writes an allotment, and counts whether it may have something free.
    pub(crate) fn set_allotment(&mut self, id: &AllotmentId, allotment: Allotment) {
        let counts = |a: &Allotment| a.is_out() && a.may_be_free;
        let before = self.changes.allotments.get(id).or_else(|| self.base.allotments.get(id));
        match (before.is_some_and(counts), counts(&allotment)) {
            (false, true) => self.head.lent_out = self.head.lent_out.saturating_add(1),
            (true, false) => self.head.lent_out = self.head.lent_out.saturating_sub(1),
            _ => {}
        }
        self.changes.allotments.insert(id.clone(), allotment);
    }

    /// The lines of a call, charges and corrections.
    pub(crate) fn lines_of(&self, request: &str) -> impl Iterator<Item = &'a JournalRecord> {
        self.base.journal.iter().filter(move |line| line.request == request)
    }

    fn budgets(&self, owner: BudgetOwner) -> Option<&BudgetLimits> {
        match owner {
            BudgetOwner::Account => Some(&self.head.budgets),
            BudgetOwner::Key(key) => self.key_record(key).map(|record| &record.budgets),
        }
    }

    /// The limit of a window; `None` if it only counts.
    pub(crate) fn limit(&self, window: WindowId) -> Option<Money> {
        self.budgets(window.owner)?.get(&window.kind).copied().flatten()
    }

    /// The windows of an owner's budgets that run now.
    pub(crate) fn current_windows(&self, owner: BudgetOwner) -> Vec<WindowId> {
        let kinds = self.budgets(owner).into_iter().flat_map(BudgetLimits::keys);
        kinds.map(|kind| WindowId::at(owner, *kind, self.now)).collect()
    }

    pub(crate) fn window(&self, id: WindowId) -> WindowUse {
        self.known_window(id).unwrap_or_default()
    }

    fn known_window(&self, id: WindowId) -> Option<WindowUse> {
        self.changes.windows.get(&id).or_else(|| self.base.windows.get(&id)).copied()
    }

    /// What is used of a window, to be changed.
    fn window_mut(&mut self, id: WindowId) -> &mut WindowUse {
        let known = self.base.windows.get(&id);
        self.changes.windows.entry(id).or_insert_with(|| known.copied().unwrap_or_default())
    }

    /// Changes what is held in a window: it falls by `less` and then grows by `more`.
    pub(crate) fn change_held(
        &mut self,
        id: WindowId,
        less: Money,
        more: Money,
    ) -> Result<(), MoneyError> {
        let used = self.window_mut(id);
        used.held = used.held.checked_sub(less)?.checked_add(more)?;
        Ok(())
    }

    /// Changes what is lent out of a window, and so what is held in it.
    pub(crate) fn change_lent(
        &mut self,
        id: WindowId,
        less: Money,
        more: Money,
    ) -> Result<(), MoneyError> {
        let used = self.window_mut(id);
        used.held = used.held.checked_sub(less)?.checked_add(more)?;
        used.lent = used.lent.checked_sub(less)?.checked_add(more)?;
        Ok(())
    }

    /// Counts a charge in a window. A window that ended long ago and was forgotten stays so.
    /// Returns how far the window is above its limit.
    pub(crate) fn spend(&mut self, id: WindowId, charge: Money) -> Result<Money, MoneyError> {
        let may_be_forgotten = id.end().saturating_add(DAY_MS) <= self.now;
        if may_be_forgotten && self.known_window(id).is_none() {
            return Ok(Money::ZERO);
        }
        let limit = self.limit(id);
        let used = self.window_mut(id);
        used.spent = used.spent.checked_add(charge)?;
        used.excess(limit)
    }

    /// Takes a part of what was spent in a window back.
    pub(crate) fn unspend(&mut self, id: WindowId, amount: Money) {
        if let Some(mut used) = self.known_window(id) {
            used.spent = used.spent.saturating_sub(amount);
            self.changes.windows.insert(id, used);
        }
    }

    /// Appends a line to the journal, and numbers and dates it.
    pub(crate) fn append(&mut self, record: JournalRecord) {
        self.head.lines = self.head.lines.saturating_add(1);
        self.head.posted_at = self.head.posted_at.max(self.now);
        let (seq, posted_at) = (self.head.lines, self.head.posted_at);
        self.changes.lines.push(JournalRecord { seq, posted_at, ..record });
    }

    /// Raises the revision, so that gateways ask again.
    pub(crate) fn raise_revision(&mut self) {
        self.head.revision = self.head.revision.saturating_add(1);
    }

    /// Draws an amount that is available from the lots, the earliest expiry first: from A to H.
    pub(crate) fn draw(&mut self, amount: Money) -> Result<LotAmounts, MoneyError> {
        self.head.balances.available = self.head.balances.available.checked_sub(amount)?;
        self.head.balances.held = self.head.balances.held.checked_add(amount)?;
        let (mut drawn, mut missing) = (LotAmounts::default(), amount);
        for (id, lot) in &mut self.head.lots {
            let part = missing.min(lot.available);
            lot.available = lot.available.checked_sub(part)?;
            lot.held = lot.held.checked_add(part)?;
            missing = missing.checked_sub(part)?;
            drawn.add(*id, part)?;
        }
        if missing > Money::ZERO { Err(MoneyError::OutOfRange) } else { Ok(drawn) }
    }

    /// Gives back what was drawn: from H to A. What belongs to a lot that has expired expires now.
    pub(crate) fn give_back(&mut self, drawn: &LotAmounts) -> Result<(), MoneyError> {
        for (id, amount) in drawn.iter() {
            let lot = self.head.lots.entry(id).or_default();
            lot.held = lot.held.checked_sub(amount)?;
            lot.available = lot.available.checked_add(amount)?;
            self.head.balances.held = self.head.balances.held.checked_sub(amount)?;
            self.head.balances.available = self.head.balances.available.checked_add(amount)?;
        }
        self.expire_lots()
    }

    /// Posts what was drawn: from H to P.
    pub(crate) fn post_drawn(&mut self, drawn: &LotAmounts) -> Result<(), MoneyError> {
        for (id, amount) in drawn.iter() {
            let lot = self.head.lots.entry(id).or_default();
            lot.held = lot.held.checked_sub(amount)?;
            self.head.balances.held = self.head.balances.held.checked_sub(amount)?;
            self.head.balances.posted = self.head.balances.posted.checked_add(amount)?;
        }
        self.close_lots();
        Ok(())
    }

    /// Posts an amount that no hold covers: from A to P, and what A does not have from W. Returns
    /// the lots that paid, and the part that was written off.
    pub(crate) fn post_available(
        &mut self,
        amount: Money,
    ) -> Result<(LotAmounts, Money), MoneyError> {
        let paid = self.draw(amount.min(self.head.balances.available))?;
        self.post_drawn(&paid)?;
        let written_off = amount.checked_sub(paid.total()?)?;
        let balances = &mut self.head.balances;
        balances.written_off = balances.written_off.checked_add(written_off)?;
        balances.posted = balances.posted.checked_add(written_off)?;
        Ok((paid, written_off))
    }

    /// Lets what is available in lots past their time expire: from A, and out of C.
    pub(crate) fn expire_lots(&mut self) -> Result<(), MoneyError> {
        let is_due = |(id, lot): &(&LotId, &CreditLot)| {
            id.is_expired(self.now) && lot.available > Money::ZERO
        };
        let due: Vec<_> = self.head.lots.iter().filter(is_due).map(|(i, l)| (*i, *l)).collect();
        for (id, lot) in due {
            self.expire_available(id, lot.available)?;
        }
        self.close_lots();
        Ok(())
    }

    fn expire_available(&mut self, id: LotId, amount: Money) -> Result<(), MoneyError> {
        let lot = self.head.lots.entry(id).or_default();
        lot.available = lot.available.checked_sub(amount)?;
        let balances = &mut self.head.balances;
        balances.available = balances.available.checked_sub(amount)?;
        balances.credit = balances.credit.checked_sub(amount)?;
        let mut lots = LotAmounts::default();
        lots.add(id, amount)?;
        self.append(JournalRecord {
            seq: 0,
            posted_at: 0,
            kind: RecordKind::Expiry(id),
            request: String::new(),
            key: None,
            amount,
            written_off: Money::ZERO,
            over_budget: Money::ZERO,
            lots,
            windows: Vec::new(),
            line: expiry_line(id, self.now),
        });
        Ok(())
    }

    pub(crate) fn close_lots(&mut self) {
        self.head.lots.retain(|_, lot| !lot.is_empty());
    }
}
