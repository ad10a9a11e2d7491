//! Machines that are wrong on purpose: tables that let one of them pass prove nothing.

use std::collections::BTreeMap;

use tollgate::ledger::account::Balances;
use tollgate::ledger::in_memory::InMemoryAccount;
use tollgate::ledger::{
    BudgetOwner, BudgetUse, EntryKind, HoldRequest, JournalEntry, OpenLot, Operation, Outcome,
    WindowKind,
};
use tollgate::money::Money;

use super::memory::{self, Machine, Memory};
use super::script::{LONG_MS, settle, settle_even_if_lost};
use super::tables::tables;

mod budget_fault;
mod budgets;
mod fault;
mod lots;

use budget_fault::BUDGET_FAULTS;
use budgets::BudgetCanary;
use fault::{FAULTS, Fault, Fault as F};
use lots::{LOT_FAULTS, LotCanary};

/// A machine with a fault; with none it is the right one.
#[derive(Default)]
struct Canary {
    fault: Option<Fault>,
    account: InMemoryAccount,
    /// Where the fault is about checkpoints: they wait here, the latest of each hold.
    checkpoints: BTreeMap<String, Operation>,
    /// What is held for each open hold.
    held: BTreeMap<String, Money>,
    /// What each hold that was extended held at first.
    extended: BTreeMap<String, Money>,
    /// When the last operation came, in unix ms.
    now: i64,
}

impl Canary {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The operation as this machine misunderstands it.
    fn misread(&self, op: &Operation) -> Operation {
        let mut op = op.clone();
        match &mut op {
            Operation::Hold { least, .. } if self.is(F::LeastIsIgnored) => *least = Money::ZERO,
            Operation::Hold { least, wanted, .. } if self.is(F::PartialHoldIsRefused) => {
                *least = *wanted;
            }
            Operation::Renew { lease_ms, .. } if self.is(F::RenewalIsIgnored) => *lease_ms = 0,
            Operation::Settle { id, charge, .. } => {
                let held = self.held.get(id).copied();
                if self.is(F::ChargeStopsAtTheHold) {
                    *charge = (*charge).min(held.unwrap_or(*charge));
                } else if self.is(F::RestOfTheHoldIsLost) {
                    *charge = (*charge).max(held.unwrap_or(*charge));
                }
            }
            Operation::Checkpoint { charge, .. } if self.keeps_checkpoints() => {
                *charge = Money::ZERO;
            }
            Operation::Credit { amount, .. } if self.is(F::LastBitIsLost) => {
                let nano = amount.nano();
                // As if it had been through a double.
                *amount = if nano > 1 << 53 { money(nano & !1) } else { *amount };
            }
            _ => {}
        }
        op
    }

    fn keeps_checkpoints(&self) -> bool {
        self.is(F::ExpiryIgnoresTheCheckpoint)
            || self.is(F::CheckpointGoesBack)
            || self.is(F::ExtensionForgetsTheCheckpoint)
    }

    /// Takes a sum from what is available and writes off the rest, as a charge does.
    fn charge(&mut self, amount: Money, line: &str) {
        let balances = &mut self.account.balances;
        let paid = amount.min(balances.available);
        let lost = amount.saturating_sub(paid);
        balances.available = balances.available.saturating_sub(paid);
        balances.posted = more(balances.posted, amount);
        balances.written_off = more(balances.written_off, lost);
        let seq = self.account.journal.len() as u64 + 1;
        let line = line.to_owned();
        let kind = EntryKind::Charge;
        self.account.journal.push(JournalEntry { seq, kind, amount, written_off: lost, line });
    }

    /// What an operation does here beside what it should.
    fn meddle(&mut self, op: &Operation, before: Balances, answer: Outcome) -> Outcome {
        match (op, &answer) {
            (Operation::Settle { charge, line, .. }, Outcome::AlreadyPosted(_))
                if self.is(F::SettledTwicePostsTwice) =>
            {
                self.charge(*charge, line);
            }
            (Operation::Settle { charge, line, .. }, Outcome::Voided)
                if self.is(F::VoidedHoldCanBeCharged) =>
            {
                self.charge(*charge, line);
            }
            (Operation::Void { .. }, Outcome::Voided) if self.is(F::VoidReleasesNothing) => {
                self.account.balances = before;
            }
            (Operation::Void { .. }, Outcome::AlreadyPosted(amount))
                if self.is(F::VoidRefundsACharge) =>
            {
                let balances = &mut self.account.balances;
                balances.credit = more(balances.credit, *amount);
                balances.available = more(balances.available, *amount);
            }
            (_, Outcome::Posted { written_off, .. }) if self.is(F::LossBecomesCredit) => {
                let balances = &mut self.account.balances;
                balances.credit = more(balances.credit, *written_off);
                balances.written_off = balances.written_off.saturating_sub(*written_off);
            }
            (Operation::Credit { tx, amount }, Outcome::AlreadyDone)
                if self.is(F::RepeatedCreditAddsAgain) =>
            {
                let tx = format!("{tx}-again-{}", self.account.balances.credit.nano());
                self.account.apply(&Operation::Credit { tx, amount: *amount }, 0);
            }
            (
                Operation::Take { .. } | Operation::Correct { .. },
                Outcome::Taken { .. } | Outcome::Corrected(_) | Outcome::UnknownCharge,
            ) => return self.meddle_with_transfer(op, before, answer),
            (Operation::Take { .. } | Operation::Correct { .. }, Outcome::Conflict)
                if self.is(F::TransfersOfOtherKindsAreNoConflict) =>
            {
                return self.apply_again(op).unwrap_or(answer);
            }
            (Operation::Credit { .. }, Outcome::Conflict)
                if self.is(F::OtherCreditIsNoConflict) =>
            {
                return Outcome::AlreadyDone;
            }
            (Operation::Hold { wanted, .. }, Outcome::Conflict)
                if self.is(F::OtherHoldIsNoConflict) =>
            {
                return Outcome::HoldExists { held: *wanted, open: true };
            }
            (Operation::Renew { .. }, Outcome::HoldEnded) if self.is(F::RenewalRevivesTheDead) => {
                return Outcome::Done;
            }
            (_, Outcome::OutOfRange) if self.is(F::OverflowIsSwallowed) => return Outcome::Done,
            _ => {}
        }
        answer
    }

    /// Does a transfer under another id.
    fn apply_again(&mut self, op: &Operation) -> Option<Outcome> {
        let mut op = op.clone();
        let (Operation::Take { tx, .. } | Operation::Correct { tx, .. }) = &mut op else {
            return None;
        };
        *tx = format!("{tx}-again-{}", self.account.journal.len());
        Some(self.account.apply(&op, self.now))
    }

    /// What is wrong with a refund or a correction.
    fn meddle_with_transfer(
        &mut self,
        op: &Operation,
        before: Balances,
        answer: Outcome,
    ) -> Outcome {
        let is_repeated = self.account.balances == before;
        match (op, &answer) {
            (Operation::Take { .. }, Outcome::Taken { taken, .. })
                if self.is(F::RepeatedRefundTakesAgain) && is_repeated && *taken > Money::ZERO =>
            {
                self.apply_again(op);
            }
            (_, Outcome::Taken { taken, .. }) if self.is(F::UncoveredIsNotTold) => {
                return Outcome::Taken { taken: *taken, uncovered: Money::ZERO };
            }
            (Operation::Take { amount, .. }, Outcome::Taken { .. })
                if self.is(F::UncoveredIsTakenLater) && is_repeated =>
            {
                let balances = &mut self.account.balances;
                let taken = balances.available.min(*amount);
                balances.available = balances.available.saturating_sub(taken);
                balances.credit = balances.credit.saturating_sub(taken);
            }
            (_, Outcome::Taken { taken, .. }) if self.is(F::RefundTakesWhatIsHeld) => {
                let balances = &mut self.account.balances;
                let more_taken = balances.held.saturating_sub(*taken);
                balances.held = balances.held.saturating_sub(more_taken);
                balances.credit = balances.credit.saturating_sub(more_taken);
            }
            (Operation::Correct { .. }, Outcome::Corrected(given))
                if self.is(F::RepeatedCorrectionGivesAgain)
                    && is_repeated
                    && *given > Money::ZERO =>
            {
                self.apply_again(op);
            }
            (Operation::Correct { amount, .. }, Outcome::Corrected(given))
                if self.is(F::CorrectionGivesMoreThanTheCharge) =>
            {
                let extra = amount.saturating_sub(*given);
                self.account.balances.available = more(self.account.balances.available, extra);
                self.account.balances.credit = more(self.account.balances.credit, extra);
            }
            (_, Outcome::Corrected(_)) if self.is(F::CorrectionMakesMoneyOfLoss) => {
                let balances = &mut self.account.balances;
                let lost = before.written_off.saturating_sub(balances.written_off);
                balances.written_off = more(balances.written_off, lost);
                balances.available = more(balances.available, lost);
            }
            (_, Outcome::Corrected(_)) if self.is(F::CorrectionWritesNoLine) && !is_repeated => {
                self.account.journal.pop();
            }
            (Operation::Correct { amount, .. }, Outcome::UnknownCharge)
                if self.is(F::UnknownChargeIsCorrected) =>
            {
                return Outcome::Corrected(*amount);
            }
            _ => {}
        }
        answer
    }

    /// What the machine does instead of the operation, if it does something else altogether.
    fn instead(&mut self, op: &Operation, now: i64) -> Option<Outcome> {
        match op {
            Operation::Hold { id, .. } if self.is(F::ExtensionChangesWhatWasAsked) => {
                self.extended.contains_key(id).then_some(Outcome::Conflict)
            }
            Operation::Extend { id, wanted } => self.extend(id, *wanted, now),
            Operation::Void { id } if self.is(F::TombstoneIsForgotten) => {
                let unknown = matches!(self.foreseen(&settlement(id), now), Outcome::UnknownHold);
                unknown.then_some(Outcome::Voided)
            }
            Operation::Void { id } if self.has_expired(id, now) => self.void_late(op, now),
            Operation::Settle { id, charge, line, .. } if self.has_expired(id, now) => {
                if self.is(F::LateChargeIsRefused) {
                    return Some(Outcome::HoldEnded);
                }
                if !self.is(F::LateChargePostsTheWhole) {
                    return None;
                }
                self.account.apply(&settlement(id), now);
                self.account.journal.pop();
                self.charge(*charge, line);
                Some(Outcome::Posted { amount: *charge, written_off: Money::ZERO })
            }
            Operation::Settle { origin: Some(origin), .. } => self.settle_lost(op, *origin, now),
            Operation::Settle { origin: None, id, charge, .. }
                if self.is(F::LostHoldNeedsNoOrigin) =>
            {
                let origin = HoldRequest { wanted: *charge, least: *charge, at: now, key: None };
                let op = settle_even_if_lost(id, *charge, origin);
                Some(self.account.apply(&op, now))
            }
            _ => None,
        }
    }

    fn extend(&mut self, id: &str, wanted: Money, now: i64) -> Option<Outcome> {
        let op = Operation::Extend { id: id.to_owned(), wanted };
        let before = self.held.get(id).copied().unwrap_or_default();
        let answer = self.foreseen(&op, now);
        let Outcome::Held(held) = answer else {
            let revived = self.is(F::ExtensionRevivesTheDead) && answer == Outcome::HoldEnded;
            return revived.then_some(Outcome::Held(wanted));
        };
        if self.is(F::ExtensionTakesWhatIsNotThere) {
            let tx = format!("out of nothing {now}");
            self.account.apply(&Operation::Credit { tx, amount: wanted.saturating_sub(held) }, now);
        }
        if self.is(F::ExtensionIsAllOrNothing) && held < wanted {
            return Some(Outcome::Held(before));
        }
        if self.is(F::ExtensionShrinks) && wanted < before {
            let balances = &mut self.account.balances;
            balances.held = balances.held.saturating_sub(before.saturating_sub(wanted));
            balances.available = more(balances.available, before.saturating_sub(wanted));
            return Some(Outcome::Held(wanted));
        }
        if self.is(F::ExtensionLengthensTheLease) {
            self.account.apply(&Operation::Renew { id: id.to_owned(), lease_ms: LONG_MS }, now);
        }
        if held > before {
            self.extended.entry(id.to_owned()).or_insert(before);
            self.checkpoints.remove(id);
        }
        None
    }

    /// Voids what has expired.
    fn void_late(&mut self, op: &Operation, now: i64) -> Option<Outcome> {
        match self.foreseen(op, now) {
            _ if self.is(F::VoidOfTheExpiredIsRefused) => Some(Outcome::HoldEnded),
            Outcome::Voided if self.is(F::VoidOfTheExpiredIsForgotten) => Some(Outcome::Voided),
            Outcome::AlreadyPosted(_) if self.is(F::VoidOfAnExpiredChargeSaysVoided) => {
                Some(Outcome::Voided)
            }
            Outcome::AlreadyPosted(amount) if self.is(F::VoidOfAnExpiredChargeRefunds) => {
                let balances = &mut self.account.balances;
                balances.posted = balances.posted.saturating_sub(amount);
                balances.available = more(balances.available, amount);
                None
            }
            _ => None,
        }
    }

    /// Settles what the store may have lost.
    fn settle_lost(&mut self, op: &Operation, origin: HoldRequest, now: i64) -> Option<Outcome> {
        let Operation::Settle { id, charge, line, .. } = op else { return None };
        let HoldRequest { wanted, least, key, .. } = origin;
        let again =
            Operation::Hold { id: id.clone(), wanted, least, lease_ms: 0, key, rates: Vec::new() };
        let known = self.foreseen(&again, now);
        if self.is(F::LostHoldOutranksTheTombstone) && known == Outcome::Tombstoned {
            self.charge(*charge, line);
            return Some(Outcome::Posted { amount: *charge, written_off: Money::ZERO });
        }
        if self.is(F::OtherOriginIsAConflict) && known == Outcome::Conflict {
            return Some(Outcome::Conflict);
        }
        if self.foreseen(&settlement(id), now) != Outcome::UnknownHold {
            return None;
        }
        match self.fault? {
            F::LostHoldIsRefused => Some(Outcome::UnknownHold),
            F::LostHoldIsFree => {
                let free = settle_even_if_lost(id, Money::ZERO, origin);
                self.account.apply(&free, now);
                Some(Outcome::Posted { amount: *charge, written_off: Money::ZERO })
            }
            F::LostHoldIsAllLoss => {
                let before = self.account.balances.available;
                let answer = self.account.apply(op, now);
                let balances = &mut self.account.balances;
                let paid = before.saturating_sub(balances.available);
                balances.available = before;
                balances.written_off = more(balances.written_off, paid);
                Some(answer)
            }
            F::LostHoldIsSettledTwice => {
                let mut forgetful = self.account.clone();
                let answer = forgetful.apply(op, now);
                self.account.balances = forgetful.balances;
                self.account.journal = forgetful.journal;
                Some(answer)
            }
            _ => None,
        }
    }

    fn has_expired(&self, id: &str, now: i64) -> bool {
        let extension = Operation::Extend { id: id.to_owned(), wanted: Money::ZERO };
        matches!(self.foreseen(&settlement(id), now), Outcome::Posted { .. })
            && self.foreseen(&extension, now) == Outcome::HoldEnded
    }

    /// What the right machine would answer.
    fn foreseen(&self, op: &Operation, now: i64) -> Outcome {
        self.account.clone().apply(op, now)
    }

    fn remember(&mut self, op: &Operation, answer: &Outcome) {
        match (op, answer) {
            (Operation::Hold { id, .. } | Operation::Extend { id, .. }, Outcome::Held(held)) => {
                self.held.insert(id.clone(), *held);
            }
            (Operation::Settle { id, .. } | Operation::Void { id }, _) => {
                let first = self.extended.remove(id).unwrap_or_default();
                if self.is(F::ExtensionLosesTheOldPart) {
                    let balances = &mut self.account.balances;
                    let stuck = first.min(balances.available);
                    balances.available = balances.available.saturating_sub(stuck);
                    balances.held = more(balances.held, stuck);
                }
                self.held.remove(id);
                self.checkpoints.remove(id);
            }
            (Operation::Checkpoint { id, charge, .. }, Outcome::Done) => {
                let is_more = match self.checkpoints.get(id) {
                    Some(Operation::Checkpoint { charge: before, .. }) => before < charge,
                    _ => true,
                };
                if is_more || self.is(F::CheckpointGoesBack) {
                    self.checkpoints.insert(id.clone(), op.clone());
                }
            }
            _ => {}
        }
    }
}

impl Machine for Canary {
    fn apply(&mut self, op: &Operation, now: i64) -> Outcome {
        self.now = now;
        let before = self.account.balances;
        let answer = self.instead(op, now).unwrap_or_else(|| {
            let answer = self.account.apply(&self.misread(op), now);
            self.meddle(op, before, answer)
        });
        self.remember(op, &answer);
        if self.is(F::JournalLosesZeroes) {
            self.account.journal.retain(|entry| entry.amount > Money::ZERO);
        }
        if self.is(F::JournalForgetsTheLoss) {
            self.account.journal.iter_mut().for_each(|entry| entry.written_off = Money::ZERO);
        }
        answer
    }

    fn expire(&mut self, now: i64) -> u64 {
        if self.is(F::CheckpointGoesBack) || self.is(F::ExtensionForgetsTheCheckpoint) {
            for op in std::mem::take(&mut self.checkpoints).into_values() {
                self.account.apply(&op, now);
            }
        }
        let before = self.account.balances;
        let ended = self.account.expire_holds(now);
        if self.is(F::ExpiryReleasesNothing) {
            self.account.balances = before;
        }
        ended
    }

    fn balances(&self) -> Balances {
        self.account.balances
    }

    fn journal(&self) -> &[JournalEntry] {
        &self.account.journal
    }

    fn set_budget(&mut self, owner: BudgetOwner, kind: WindowKind, limit: Option<Money>, now: i64) {
        self.account.set_budget(owner, kind, limit, now);
    }

    fn budgets(&mut self, now: i64) -> Vec<BudgetUse> {
        self.account.budgets(now)
    }

    fn lots(&self) -> Vec<OpenLot> {
        self.account.lots().collect()
    }
}

fn settlement(id: &str) -> Operation {
    settle(id, Money::ZERO)
}

fn money(nano: i64) -> Money {
    Money::from_nano(nano).unwrap_or_default()
}

fn more(a: Money, b: Money) -> Money {
    a.checked_add(b).unwrap_or(a)
}

fn machine(fault: Option<Fault>) -> Canary {
    Canary { fault, ..Canary::default() }
}

/// The first line of the tables at which a machine is caught.
async fn caught<M: Machine>(make: impl Fn() -> M + Copy + Send + Sync + 'static) -> Option<String> {
    for (file, cases) in tables() {
        let mut memory = Memory::new(make);
        if let Err(why) = memory::run(&mut memory, &cases).await {
            return Some(format!("{file} {why}"));
        }
    }
    None
}

#[tokio::test]
async fn the_tables_catch_every_broken_machine() {
    let mut free = Vec::new();
    for fault in FAULTS {
        if caught(move || machine(Some(fault))).await.is_none() {
            free.push(fault);
        }
    }
    assert!(free.is_empty(), "no line of any table catches {free:?}");
}

#[tokio::test]
async fn the_tables_catch_every_machine_that_is_wrong_about_budgets() {
    let mut free = Vec::new();
    for fault in BUDGET_FAULTS {
        if caught(move || BudgetCanary::new(Some(fault))).await.is_none() {
            free.push(fault);
        }
    }
    assert!(free.is_empty(), "no line of any table catches {free:?}");
}

#[tokio::test]
async fn the_tables_catch_every_machine_that_is_wrong_about_granted_credit() {
    let mut free = Vec::new();
    for fault in LOT_FAULTS {
        if caught(move || LotCanary::new(Some(fault))).await.is_none() {
            free.push(fault);
        }
    }
    assert!(free.is_empty(), "no line of any table catches {free:?}");
}

#[tokio::test]
async fn a_canary_without_a_fault_passes() {
    assert_eq!(caught(|| machine(None)).await, None);
    assert_eq!(caught(|| BudgetCanary::new(None)).await, None);
    assert_eq!(caught(|| LotCanary::new(None)).await, None);
}
