//! Machines that are wrong on purpose: tables that let one of them pass prove nothing.

use std::collections::BTreeMap;

use tollgate::ledger::account::{Account, Balances};
use tollgate::ledger::{Answer, Entry, Operation};
use tollgate::money::Money;

use super::conformance::tables;
use super::subject::{self, Machine, Memory};

/// What is wrong with a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    SettledTwicePostsTwice,
    LeastIsIgnored,
    PartialHoldIsRefused,
    VoidReleasesNothing,
    VoidRefundsACharge,
    VoidedHoldCanBeCharged,
    LossBecomesCredit,
    ChargeStopsAtTheHold,
    RestOfTheHoldIsLost,
    ExpiryIgnoresTheCheckpoint,
    ExpiryReleasesNothing,
    CheckpointGoesBack,
    LateChargePostsTheWhole,
    LateChargeIsRefused,
    RepeatedCreditAddsAgain,
    OtherCreditIsNoConflict,
    OtherHoldIsNoConflict,
    OverflowIsSwallowed,
    TombstoneIsForgotten,
    RenewalIsIgnored,
    RenewalRevivesTheDead,
    LastBitIsLost,
    JournalLosesZeroes,
    JournalForgetsTheLoss,
}

use Fault as F;

const FAULTS: [Fault; 24] = [
    F::SettledTwicePostsTwice,
    F::LeastIsIgnored,
    F::PartialHoldIsRefused,
    F::VoidReleasesNothing,
    F::VoidRefundsACharge,
    F::VoidedHoldCanBeCharged,
    F::LossBecomesCredit,
    F::ChargeStopsAtTheHold,
    F::RestOfTheHoldIsLost,
    F::ExpiryIgnoresTheCheckpoint,
    F::ExpiryReleasesNothing,
    F::CheckpointGoesBack,
    F::LateChargePostsTheWhole,
    F::LateChargeIsRefused,
    F::RepeatedCreditAddsAgain,
    F::OtherCreditIsNoConflict,
    F::OtherHoldIsNoConflict,
    F::OverflowIsSwallowed,
    F::TombstoneIsForgotten,
    F::RenewalIsIgnored,
    F::RenewalRevivesTheDead,
    F::LastBitIsLost,
    F::JournalLosesZeroes,
    F::JournalForgetsTheLoss,
];

/// A machine with a fault; with none it is the right one.
#[derive(Default)]
struct Canary {
    fault: Option<Fault>,
    account: Account,
    /// Where the fault is about checkpoints: they wait here, the latest of each hold.
    checkpoints: BTreeMap<String, Operation>,
    /// What is held for each open hold.
    held: BTreeMap<String, Money>,
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
            Operation::Checkpoint { id, .. } if self.keeps_checkpoints() => {
                return Operation::Renew { id: id.clone(), lease_ms: 0 };
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
        self.is(F::ExpiryIgnoresTheCheckpoint) || self.is(F::CheckpointGoesBack)
    }

    /// Takes a sum from what is available and writes off the rest, as a charge does.
    fn charge(&mut self, amount: Money, line: &str) {
        let balances = &mut self.account.balances;
        let paid = amount.min(balances.available);
        let lost = amount.above(paid);
        balances.available = balances.available.above(paid);
        balances.posted = more(balances.posted, amount);
        balances.written_off = more(balances.written_off, lost);
        let seq = self.account.journal.len() as u64 + 1;
        let line = line.to_owned();
        self.account.journal.push(Entry { seq, amount, written_off: lost, line });
    }

    /// What an operation does here beside what it should.
    fn meddle(&mut self, op: &Operation, before: Balances, answer: Answer) -> Answer {
        match (op, &answer) {
            (Operation::Settle { charge, line, .. }, Answer::AlreadyPosted(_))
                if self.is(F::SettledTwicePostsTwice) =>
            {
                self.charge(*charge, line);
            }
            (Operation::Settle { charge, line, .. }, Answer::Voided)
                if self.is(F::VoidedHoldCanBeCharged) =>
            {
                self.charge(*charge, line);
            }
            (Operation::Void { .. }, Answer::Voided) if self.is(F::VoidReleasesNothing) => {
                self.account.balances = before;
            }
            (Operation::Void { .. }, Answer::AlreadyPosted(amount))
                if self.is(F::VoidRefundsACharge) =>
            {
                let balances = &mut self.account.balances;
                balances.credit = more(balances.credit, *amount);
                balances.available = more(balances.available, *amount);
            }
            (_, Answer::Posted { written_off, .. }) if self.is(F::LossBecomesCredit) => {
                let balances = &mut self.account.balances;
                balances.credit = more(balances.credit, *written_off);
                balances.written_off = balances.written_off.above(*written_off);
            }
            (Operation::Credit { tx, amount }, Answer::Exists)
                if self.is(F::RepeatedCreditAddsAgain) =>
            {
                let tx = format!("{tx}-again-{}", self.account.balances.credit.nano());
                self.account.apply(&Operation::Credit { tx, amount: *amount }, 0);
            }
            (Operation::Credit { .. }, Answer::Conflict) if self.is(F::OtherCreditIsNoConflict) => {
                return Answer::Exists;
            }
            (Operation::Hold { wanted, .. }, Answer::Conflict)
                if self.is(F::OtherHoldIsNoConflict) =>
            {
                return Answer::HoldExists { held: *wanted, open: true };
            }
            (Operation::Renew { .. }, Answer::Gone) if self.is(F::RenewalRevivesTheDead) => {
                return Answer::Done;
            }
            (_, Answer::OutOfRange) if self.is(F::OverflowIsSwallowed) => return Answer::Done,
            _ => {}
        }
        answer
    }

    /// What the machine does instead of the operation, if it does something else altogether.
    fn instead(&mut self, op: &Operation, now: i64) -> Option<Answer> {
        match op {
            Operation::Void { id } if self.is(F::TombstoneIsForgotten) => {
                let unknown = matches!(self.foreseen(&settlement(id), now), Answer::Unknown);
                unknown.then_some(Answer::Voided)
            }
            Operation::Settle { id, charge, line, .. } => {
                let void = Operation::Void { id: id.clone() };
                let late = self.foreseen(&void, now) == Answer::Gone;
                if late && self.is(F::LateChargeIsRefused) {
                    return Some(Answer::Gone);
                }
                if late && self.is(F::LateChargePostsTheWhole) {
                    self.account.apply(&settlement(id), now);
                    self.account.journal.pop();
                    self.charge(*charge, line);
                    return Some(Answer::Posted { amount: *charge, written_off: Money::ZERO });
                }
                None
            }
            _ => None,
        }
    }

    /// What the right machine would answer.
    fn foreseen(&self, op: &Operation, now: i64) -> Answer {
        self.account.clone().apply(op, now)
    }

    fn remember(&mut self, op: &Operation, answer: &Answer) {
        match (op, answer) {
            (Operation::Hold { id, .. }, Answer::Held(held)) => {
                self.held.insert(id.clone(), *held);
            }
            (Operation::Settle { id, .. } | Operation::Void { id }, _) => {
                self.held.remove(id);
                self.checkpoints.remove(id);
            }
            (Operation::Checkpoint { id, .. }, Answer::Done) => {
                self.checkpoints.insert(id.clone(), op.clone());
            }
            _ => {}
        }
    }
}

impl Machine for Canary {
    fn apply(&mut self, op: &Operation, now: i64) -> Answer {
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
        if self.is(F::CheckpointGoesBack) {
            for op in std::mem::take(&mut self.checkpoints).into_values() {
                self.account.apply(&op, now);
            }
        }
        let before = self.account.balances;
        let ended = self.account.expire(now);
        if self.is(F::ExpiryReleasesNothing) {
            self.account.balances = before;
        }
        ended
    }

    fn balances(&self) -> Balances {
        self.account.balances
    }

    fn journal(&self) -> &[Entry] {
        &self.account.journal
    }
}

fn settlement(id: &str) -> Operation {
    super::script::settle(id, Money::ZERO)
}

fn money(nano: i64) -> Money {
    Money::from_nano(nano).unwrap_or_default()
}

fn more(a: Money, b: Money) -> Money {
    a.plus(b).unwrap_or(a)
}

fn machine(fault: Option<Fault>) -> Canary {
    Canary { fault, ..Canary::default() }
}

/// The first line of the tables at which a machine is caught.
async fn caught(make: impl Fn() -> Canary + Copy + Send + Sync + 'static) -> Option<String> {
    for (file, cases) in tables() {
        let mut subject = Memory::new(make);
        if let Err(why) = subject::run(&mut subject, &cases).await {
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
async fn a_canary_without_a_fault_passes() {
    assert_eq!(caught(|| machine(None)).await, None);
}
