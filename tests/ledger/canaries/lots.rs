//! Machines that are wrong about granted credit: the right one on records of its own, with one
//! fault.

use std::collections::BTreeMap;

use tollgate::ledger::account::Balances;
use tollgate::ledger::prepaid::direct;
use tollgate::ledger::prepaid::operations::{apply_operation, budget_uses};
use tollgate::ledger::prepaid::records::{
    AccountChanges, DirectHoldState, PrepaidAccount, RecordKind,
};
use tollgate::ledger::prepaid::settings;
use tollgate::ledger::{
    BudgetOwner, BudgetUse, CreditLot, CreditSource, JournalEntry, LotId, NEVER_EXPIRES, OpenLot,
    Operation, Outcome, WindowKind,
};
use tollgate::money::Money;

use super::super::memory::Machine;

/// What is wrong with a machine that has lots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LotFault {
    GrantIsAPayment,
    GrantNeverExpires,
    SourcesAreOne,
    RepeatedGrantAddsAgain,
    OtherGrantIsNoConflict,
    ThereIsNoLastPlace,
    ExpiryHasNoLine,
    LineNamesNoLots,
    PaymentsAreDrawnFirst,
    ChargeTakesWhatWasDrawnLast,
    RefundTakesGifts,
    CorrectionGivesToPayments,
}

use LotFault as F;

pub(super) const LOT_FAULTS: [LotFault; 12] = [
    F::GrantIsAPayment,
    F::GrantNeverExpires,
    F::SourcesAreOne,
    F::RepeatedGrantAddsAgain,
    F::OtherGrantIsNoConflict,
    F::ThereIsNoLastPlace,
    F::ExpiryHasNoLine,
    F::LineNamesNoLots,
    F::PaymentsAreDrawnFirst,
    F::ChargeTakesWhatWasDrawnLast,
    F::RefundTakesGifts,
    F::CorrectionGivesToPayments,
];

/// A machine with a fault; with none it is the right one.
#[derive(Default)]
pub(super) struct LotCanary {
    fault: Option<LotFault>,
    account: PrepaidAccount,
    journal: Vec<JournalEntry>,
}

type Lots = BTreeMap<LotId, CreditLot>;

impl LotCanary {
    pub(super) fn new(fault: Option<LotFault>) -> LotCanary {
        LotCanary { fault, ..LotCanary::default() }
    }

    fn is(&self, fault: LotFault) -> bool {
        self.fault == Some(fault)
    }

    /// The operation as this machine misunderstands it.
    fn misread(&self, op: &Operation) -> Operation {
        let mut op = op.clone();
        match &mut op {
            Operation::Grant { lot, .. } if self.is(F::GrantIsAPayment) => *lot = LotId::PAID,
            Operation::Grant { lot, .. } if self.is(F::GrantNeverExpires) => {
                lot.expires_at = NEVER_EXPIRES;
            }
            Operation::Grant { lot, .. } if self.is(F::SourcesAreOne) => {
                lot.source = CreditSource::Promotion;
            }
            Operation::Take { amount, .. } if self.is(F::RefundTakesGifts) => {
                *amount = (*amount).min(self.account.head.balances.available);
            }
            _ => {}
        }
        op
    }

    fn commit(&mut self, mut changes: AccountChanges) {
        for line in &mut changes.lines {
            if self.is(F::LineNamesNoLots) {
                let end = line.line.find(r#","lots":"#);
                line.line = end.map_or(line.line.clone(), |end| format!("{}}}", &line.line[..end]));
            }
        }
        if self.is(F::ExpiryHasNoLine) {
            changes.lines.retain(|line| !matches!(line.kind, RecordKind::Expiry(_)));
        }
        self.journal.extend(changes.lines.iter().cloned().map(JournalEntry::from));
        self.account.commit(changes);
    }

    /// Does an operation on lots that are read in another order.
    fn apply_in_disorder(&mut self, op: &Operation, now: i64) -> Option<Outcome> {
        let is_reversed = match op {
            Operation::Hold { .. } | Operation::Extend { .. } => self.is(F::PaymentsAreDrawnFirst),
            Operation::Settle { .. } => self.is(F::ChargeTakesWhatWasDrawnLast),
            Operation::Take { .. } => self.is(F::RefundTakesGifts),
            _ => false,
        };
        // One lot has no order.
        if !is_reversed || self.account.head.granted_lots().next().is_none() {
            return None;
        }
        let mut seen = self.account.clone();
        seen.head.lots = paid_alone(&seen);
        let applied = apply_operation(&seen, op, now);
        let mut changes = applied.changes;
        if let Some(head) = &mut changes.head {
            head.lots = merged(&self.account.head.lots, head.balances);
        }
        self.commit(changes);
        Some(applied.outcome)
    }

    /// What an operation does here beside what it should.
    fn meddle(&mut self, op: &Operation, outcome: Outcome, now: i64) -> Outcome {
        match (op, &outcome) {
            (Operation::Grant { tx, amount, lot }, Outcome::AlreadyDone)
                if self.is(F::RepeatedGrantAddsAgain) =>
            {
                let tx = format!("{tx}-again-{}", self.account.transfers.len());
                let op = Operation::Grant { tx, amount: *amount, lot: *lot };
                let changes = apply_operation(&self.account, &op, now).changes;
                self.commit(changes);
            }
            (Operation::Grant { .. }, Outcome::Conflict) if self.is(F::OtherGrantIsNoConflict) => {
                return Outcome::AlreadyDone;
            }
            (Operation::Grant { .. }, Outcome::TooManyLots) if self.is(F::ThereIsNoLastPlace) => {
                return Outcome::Done;
            }
            (Operation::Correct { .. }, Outcome::Corrected(_))
                if self.is(F::CorrectionGivesToPayments) =>
            {
                self.account.head.lots = paid_alone(&self.account);
            }
            _ => {}
        }
        outcome
    }
}

/// All of an account's credit as one lot of payments.
fn paid_alone(account: &PrepaidAccount) -> Lots {
    let Balances { available, held, .. } = account.head.balances;
    [(LotId::PAID, CreditLot { available, held })].into()
}

/// The lots of before, as far as the balances allow, so that payments were used first.
fn merged(before: &Lots, balances: Balances) -> Lots {
    let granted = before.iter().filter(|(id, _)| **id != LotId::PAID);
    let (mut available, mut held) = (balances.available, balances.held);
    let mut lots = Lots::new();
    for (id, lot) in granted {
        let part = CreditLot { available: lot.available.min(available), held: lot.held.min(held) };
        available = available.saturating_sub(part.available);
        held = held.saturating_sub(part.held);
        lots.insert(*id, part);
    }
    lots.insert(LotId::PAID, CreditLot { available, held });
    lots.retain(|_, lot| !lot.is_empty());
    lots
}

impl Machine for LotCanary {
    fn apply(&mut self, op: &Operation, now: i64) -> Outcome {
        let op = self.misread(op);
        let outcome = self.apply_in_disorder(&op, now).unwrap_or_else(|| {
            let applied = apply_operation(&self.account, &op, now);
            self.commit(applied.changes);
            applied.outcome
        });
        self.meddle(&op, outcome, now)
    }

    fn expire(&mut self, now: i64) -> u64 {
        let is_open = |state: &DirectHoldState| matches!(state, DirectHoldState::Open { .. });
        let holds = self.account.holds.iter();
        let due = holds.filter(|(_, hold)| is_open(&hold.state) && hold.lease_until <= now);
        let mut due: Vec<_> = due.map(|(id, hold)| (hold.lease_until, id.clone())).collect();
        due.sort();
        let mut ended = 0;
        for (_, id) in due {
            let step = direct::expire_hold(&self.account, &id, now);
            ended += u64::from(!step.changes.holds.is_empty());
            self.commit(step.changes);
        }
        ended
    }

    fn balances(&self) -> Balances {
        self.account.head.balances
    }

    fn journal(&self) -> &[JournalEntry] {
        &self.journal
    }

    fn set_budget(&mut self, owner: BudgetOwner, kind: WindowKind, limit: Option<Money>, now: i64) {
        let step = settings::set_budget(&self.account, owner, kind, limit, now);
        self.commit(step.changes);
    }

    fn budgets(&mut self, now: i64) -> Vec<BudgetUse> {
        budget_uses(&self.account, now)
    }

    fn lots(&self) -> Vec<OpenLot> {
        self.account.head.granted_lots().map(|(id, lot)| OpenLot { id, lot }).collect()
    }
}
