//! Machines that are wrong on purpose: tables and laws that let one of them pass prove nothing.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::lot::{CreditSource, LotAmounts, LotId};
use tollgate::ledger::prepaid::rate::RateKind;
use tollgate::ledger::prepaid::records::{
    AllotmentState, CallEnd, KeyStatus, PrepaidAccount, RecordKind,
};
use tollgate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
use tollgate::ledger::prepaid::window::WindowId;
use tollgate::money::Money;

use super::machine::{Machine, Op};
use super::script;
use super::tables::tables;
use super::world;

mod fault;

use fault::{FAULTS, Fault, Fault as F};

/// So many random lives must break a law for a fault that no table finds.
const LIVES: usize = 3_000;

/// A machine with a fault; with none it is the right one.
#[derive(Clone, Default)]
struct Canary {
    fault: Option<Fault>,
    account: PrepaidAccount,
}

/// Puts back what a machine did not see.
type PutBack = Box<dyn FnOnce(&mut PrepaidAccount)>;

fn more(sum: Money, amount: Money) -> Money {
    sum.checked_add(amount).unwrap_or(sum)
}

fn less(sum: Money, amount: Money) -> Money {
    sum.saturating_sub(amount)
}

impl Canary {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The operation as this machine misunderstands it.
    fn misread(&self, op: &Op, now: i64) -> Op {
        let mut op = op.clone();
        match &mut op {
            Op::Update(update) => self.misread_update(update, now),
            Op::Hold(request) if self.is(F::ShadowRefuses) => {
                request.rates.iter_mut().for_each(|ask| ask.is_shadow = false);
            }
            Op::Grant { tx, amount, .. } if self.is(F::RepeatedGrantAddsAgain) => {
                let known = self.account.transfers.get(tx);
                if known.is_some_and(|known| known.amount == *amount) {
                    *tx = format!("{tx}-again-{}", self.account.transfers.len());
                }
            }
            _ => {}
        }
        op
    }

    fn misread_update(&self, update: &mut AllotmentUpdate, now: i64) {
        let known = self.account.allotments.get(&update.allotment);
        if self.is(F::MissingEndsAreSkipped) {
            update.earlier_lost = true;
        }
        if self.is(F::OldMessagesCount) && update.step > 0 {
            update.step = update.step.max(known.map_or(0, |known| known.last_step) + 1);
        }
        if self.is(F::LeaseIsNotRenewed) && known.is_some() {
            update.lease_ms = 0;
        }
        if self.is(F::CheckpointIsLost) {
            update.checkpoints.clear();
        }
        if self.is(F::AncientAllotmentIsCharged) {
            update.lent_at = now;
        }
        if self.is(F::SuccessorDoesNotRetire) {
            update.retires = false;
        }
        if self.is(F::ChargeAboveItsHoldTakesFromOthers) {
            let take_all = |end: &mut CallEnd| end.held = end.charge.unwrap_or(end.held);
            update.ends.iter_mut().for_each(take_all);
        }
        let Some(demand) = &mut update.demand else { return };
        if self.is(F::LendsBelowTheFloor) {
            demand.quote = Money::ZERO;
        }
        for wanted in demand.rates.values_mut() {
            if self.is(F::SpentRatesAreForgotten) {
                wanted.spent = 0;
            }
            if self.is(F::PlacesOfOpenCallsAreTaken) {
                (wanted.needed, wanted.kept) = (0, 0);
            }
        }
        if self.is(F::TakesBackWhatIsKept) {
            demand.kept = demand.needed;
            demand.kept_in.clone_from(&demand.needed_in);
        }
        if self.is(F::KeepsSlicesOfEndedWindows) {
            let slices = known.into_iter().flat_map(|known| &known.slices);
            let ended = slices.filter(|(id, _)| id.is_over(now));
            demand.needed_in.extend(ended.map(|(id, slice)| (*id, *slice)));
        }
    }

    /// What of the records this machine does not see while it does an operation. Returns how to put
    /// it back.
    fn overlook(&mut self, op: &Op) -> Option<PutBack> {
        let fault = self.fault?;
        let account = &mut self.account;
        match (fault, op) {
            (F::RecallIsIgnored, Op::Update(_)) => {
                let until = std::mem::take(&mut account.head.recall_until);
                Some(Box::new(move |account| {
                    account.head.recall_until = account.head.recall_until.max(until);
                }))
            }
            (F::LendsOfASuspendedAccount, Op::Update(_))
            | (F::SuspendedAccountIsServed, Op::Hold(_)) => {
                let suspended = std::mem::take(&mut account.head.suspended);
                Some(Box::new(move |account| account.head.suspended = suspended))
            }
            (F::LendsToARefusedKey, Op::Update(_)) | (F::RefusedKeyIsServed, Op::Hold(_)) => {
                let keys = account.keys.clone();
                account.keys.values_mut().for_each(|key| key.status = KeyStatus::Active);
                Some(Box::new(move |account| account.keys = keys))
            }
            (F::ExtensionIgnoresBudgets, Op::Extend { .. })
            | (F::LendsBudgetsAway, Op::Update(_)) => {
                let (budgets, keys) = (account.head.budgets.clone(), account.keys.clone());
                account.head.budgets.values_mut().for_each(|limit| *limit = None);
                for key in account.keys.values_mut() {
                    key.budgets.values_mut().for_each(|limit| *limit = None);
                }
                Some(Box::new(move |account| {
                    account.head.budgets = budgets;
                    account.keys = keys;
                }))
            }
            (F::ExtensionCallsNothingBack, Op::Extend { .. })
            | (F::TakeDoesNotWait, Op::Take { .. }) => {
                let lent_out = std::mem::take(&mut account.head.lent_out);
                Some(Box::new(move |account| account.head.lent_out = lent_out))
            }
            (F::LotsAreUnbounded, Op::Grant { .. }) => {
                let others = account.head.lots.len()
                    - usize::from(account.head.lots.contains_key(&LotId::PAID));
                if others < 15 {
                    return None;
                }
                let first = account.head.lots.pop_first()?;
                let amount = first.1.available;
                let balances = &mut account.head.balances;
                balances.available = less(balances.available, amount);
                Some(Box::new(move |account| {
                    account.head.lots.insert(first.0, first.1);
                    let balances = &mut account.head.balances;
                    balances.available = more(balances.available, amount);
                }))
            }
            _ => None,
        }
    }

    /// How this machine falsifies what it knows before an operation.
    fn forget(&mut self, op: &Op, now: i64) -> Option<()> {
        let fault = self.fault?;
        let account = &mut self.account;
        match (fault, op) {
            (F::PostsTwiceAfterAnExpiry, Op::Update(update)) => {
                let known = account.allotments.get_mut(&update.allotment)?;
                if matches!(known.state, AllotmentState::Ended { .. }) {
                    known.last_seq = known.last_seq.min(update.first_seq.saturating_sub(1));
                }
            }
            (F::LateChargePostsTheWhole, Op::Update(update)) => {
                let known = account.allotments.get_mut(&update.allotment)?;
                if let AllotmentState::Ended { charged } = &mut known.state {
                    charged.clear();
                }
            }
            (F::TakeWaitsForEver, Op::Take { tx, .. }) => {
                account.transfers.get_mut(tx)?.wait.as_mut()?.since = now;
            }
            (F::UncoveredIsTakenLater, Op::Take { tx, amount }) => {
                let known = account.transfers.get(tx)?.clone();
                if known.moved.is_some_and(|moved| moved < *amount) {
                    account.transfers.remove(tx);
                }
            }
            (F::ChargeCountsWhereItIsSettled, Op::Settle { id, .. }) => {
                let hold = account.holds.get_mut(id)?;
                for window in &mut hold.windows {
                    let moved = WindowId::at(window.owner, window.kind, now);
                    let is_open = hold.drawn.total() == Ok(hold.held);
                    if is_open && let Some(used) = account.windows.get_mut(window) {
                        used.held = less(used.held, hold.held);
                        let there = account.windows.entry(moved).or_default();
                        there.held = more(there.held, hold.held);
                    }
                    *window = moved;
                }
            }
            (F::RevokedKeyComesBack, Op::SetKey { .. }) => {
                let revoked =
                    account.keys.values_mut().filter(|key| key.status == KeyStatus::Revoked);
                revoked.for_each(|key| key.status = KeyStatus::Disabled);
            }
            _ => {}
        }
        Some(())
    }

    /// What an operation does here beside what it should.
    fn meddle(
        &mut self,
        op: &Op,
        before: &PrepaidAccount,
        answer: LedgerAnswer,
        now: i64,
    ) -> LedgerAnswer {
        let Some(fault) = self.fault else { return answer };
        if matches!(fault, F::RevisionIsIgnored) {
            self.account.head.revision = 0;
        }
        if matches!(fault, F::PostedAtGoesBack)
            && self.account.journal.len() > 1
            && let Some(last) = self.account.journal.last_mut()
        {
            last.posted_at = 0;
        }
        match (fault, op, &answer) {
            (F::LentMoneyReadsAsNone, _, LedgerAnswer::Wait)
            | (F::HeldMoneyReadsAsNone, _, LedgerAnswer::HeldElsewhere { .. }) => {
                let available = self.account.head.balances.available;
                return LedgerAnswer::Insufficient { available };
            }
            (F::RecallsForNothing, _, LedgerAnswer::HeldElsewhere { .. })
                if self.account.head.lent_out > 0 =>
            {
                self.account.head.recall_until = now + 1_000;
                return LedgerAnswer::Wait;
            }
            (F::SpentBudgetReadsAsHeld, _, LedgerAnswer::BudgetExceeded { left, .. }) => {
                return LedgerAnswer::HeldElsewhere { room: *left };
            }
            (F::OverBudgetIsNotTold, ..) => {
                self.account.journal.iter_mut().for_each(|line| line.over_budget = Money::ZERO);
            }
            (F::RecallIsForgotten, _, LedgerAnswer::Wait) => self.account.head.recall_until = 0,
            (
                F::LostAllotmentIsRefused,
                Op::Update(update),
                LedgerAnswer::AllotmentEnded { .. },
            ) if !before.allotments.contains_key(&update.allotment) => {
                self.account = before.clone();
                return LedgerAnswer::UnknownAllotment;
            }
            (F::PlaceIsNotFreed, Op::Settle { .. } | Op::Void { .. }, _) => {
                let places = before.rates.iter().filter(|(id, _)| id.kind == RateKind::Calls);
                self.account.rates.extend(places.map(|(id, bucket)| (*id, *bucket)));
            }
            (F::LoweredLimitResetsSpent, Op::Budget { .. }, LedgerAnswer::Done) => {
                self.account.windows.values_mut().for_each(|used| used.spent = Money::ZERO);
            }
            (F::LendsMoreThanAQuarter, Op::Update(update), LedgerAnswer::Status(_)) => {
                return self.lend_more(update, before, answer, now);
            }
            (_, Op::Update(update), _) => self.meddle_with_lending(update, before),
            (_, Op::Take { .. } | Op::Correct { .. }, _) => {
                return self.meddle_with_refunds(op, answer, now);
            }
            _ => {}
        }
        answer
    }

    /// Lends all that is wanted beside what is needed.
    fn lend_more(
        &mut self,
        update: &AllotmentUpdate,
        before: &PrepaidAccount,
        answer: LedgerAnswer,
        now: i64,
    ) -> LedgerAnswer {
        let last_step = before.allotments.get(&update.allotment).map_or(0, |known| known.last_step);
        let Some(demand) = update.demand.clone().filter(|_| update.step > last_step) else {
            return answer;
        };
        let needed = more(demand.needed, demand.free);
        let greedy = AllotmentDemand { needed, kept: needed, free: Money::ZERO, ..demand };
        let (step, ends, demand) = (update.step + 1, Vec::new(), Some(greedy));
        let again = AllotmentUpdate { step, ends, demand, ..update.clone() };
        let mut answer = self.account.apply(&Op::Update(again), now);
        if let Some(allotment) = self.account.allotments.get_mut(&update.allotment) {
            allotment.last_step = update.step;
        }
        if let (LedgerAnswer::Status(status), Some(demand)) = (&mut answer, &update.demand) {
            status.step = update.step;
            status.free = less(status.held, demand.needed);
        }
        answer
    }

    fn meddle_with_lending(&mut self, update: &AllotmentUpdate, before: &PrepaidAccount) {
        let id = &update.allotment;
        if self.is(F::LentIsNotCounted) {
            self.account.head.lent_out = 0;
        }
        let Some(allotment) = self.account.allotments.get_mut(id) else { return };
        if self.fault == Some(F::LastNumberIsForgotten) {
            allotment.last_seq = 0;
        }
        if self.fault == Some(F::SuccessorDoesNotFence) && allotment.state == AllotmentState::Fenced
        {
            allotment.state = AllotmentState::Open;
        }
        if self.fault == Some(F::VoidKeepsTheCheckpoint)
            && let Some(known) = before.allotments.get(id)
            && allotment.is_out()
        {
            for end in update.ends.iter().filter(|end| end.charge.is_none()) {
                if let Some(checkpoint) = known.checkpoints.get(&end.call) {
                    allotment.checkpoints.insert(end.call.clone(), checkpoint.clone());
                }
            }
        }
        if self.fault == Some(F::SliceIsNotHeld) {
            for (window, slice) in allotment.slices.clone() {
                if let Some(used) = self.account.windows.get_mut(&window) {
                    used.held = less(used.held, slice);
                }
            }
        }
    }

    fn meddle_with_refunds(&mut self, op: &Op, answer: LedgerAnswer, now: i64) -> LedgerAnswer {
        let head = &mut self.account.head;
        match (self.fault, op, &answer) {
            (
                Some(F::TakeDrawsPromotions),
                Op::Take { tx, .. },
                LedgerAnswer::Taken { taken, uncovered, again: false },
            ) => {
                let gifts = head.lots.iter_mut().filter(|(id, _)| id.source != CreditSource::Paid);
                let mut missing = *uncovered;
                for (_, lot) in gifts {
                    let part = missing.min(lot.available);
                    lot.available = less(lot.available, part);
                    missing = less(missing, part);
                }
                let part = less(*uncovered, missing);
                head.lots.retain(|_, lot| !lot.is_empty());
                head.balances.available = less(head.balances.available, part);
                head.balances.credit = less(head.balances.credit, part);
                let taken = more(*taken, part);
                if let Some(record) = self.account.transfers.get_mut(tx) {
                    record.moved = Some(taken);
                }
                LedgerAnswer::Taken { taken, uncovered: missing, again: false }
            }
            (
                Some(F::CorrectionGivesMoreThanTheCharge),
                Op::Correct { amount, .. },
                LedgerAnswer::Corrected { given, again: false },
            ) => {
                let part = less(*amount, *given).min(head.balances.posted);
                head.balances.posted = less(head.balances.posted, part);
                head.balances.available = more(head.balances.available, part);
                let lot = head.lots.entry(LotId::PAID).or_default();
                lot.available = more(lot.available, part);
                head.lots.retain(|_, lot| !lot.is_empty());
                if let Some(line) = self.account.journal.last_mut() {
                    line.amount = more(line.amount, part);
                    let _ = line.lots.add(LotId::PAID, part);
                }
                LedgerAnswer::Corrected { given: more(*given, part), again: false }
            }
            (
                Some(F::CorrectionIgnoresTheLoss),
                _,
                LedgerAnswer::Corrected { again: false, .. },
            ) => {
                self.pay_back_the_loss();
                answer
            }
            (
                Some(F::CorrectionFreesAnEndedWindow),
                _,
                LedgerAnswer::Corrected { given, again: false },
            ) => {
                let windows = self.account.journal.last().map(|line| line.windows.clone());
                for window in windows.into_iter().flatten().filter(|id| id.is_over(now)) {
                    if let Some(used) = self.account.windows.get_mut(&window) {
                        used.spent = less(used.spent, *given);
                    }
                }
                answer
            }
            _ => answer,
        }
    }

    /// Gives all of a correction to the account, also what the account had not paid.
    fn pay_back_the_loss(&mut self) {
        let head = &mut self.account.head;
        let Some(line) = self.account.journal.last_mut() else { return };
        let loss = std::mem::take(&mut line.written_off);
        let _ = line.lots.add(LotId::PAID, loss);
        head.balances.written_off = more(head.balances.written_off, loss);
        head.balances.available = more(head.balances.available, loss);
        let paid = head.lots.entry(LotId::PAID).or_default();
        paid.available = more(paid.available, loss);
        head.lots.retain(|_, lot| !lot.is_empty());
    }

    /// Undoes the expiries of an operation, so that the credit is there as paid, or as it was.
    fn revive(&mut self, before: &PrepaidAccount) {
        let becomes_paid = self.is(F::ExpiredLotBecomesPaid);
        if !(becomes_paid || self.is(F::ExpiredLotStays)) {
            return;
        }
        let new = self.account.journal.split_off(before.journal.len());
        let (expired, kept): (Vec<_>, Vec<_>) =
            new.into_iter().partition(|line| matches!(line.kind, RecordKind::Expiry(_)));
        for (seq, mut line) in (before.journal.len() as u64 + 1..).zip(kept) {
            line.seq = seq;
            self.account.journal.push(line);
        }
        let head = &mut self.account.head;
        head.lines = self.account.journal.len() as u64;
        for (id, amount) in expired.iter().flat_map(|line| LotAmounts::iter(&line.lots)) {
            let lot = head.lots.entry(if becomes_paid { LotId::PAID } else { id }).or_default();
            lot.available = more(lot.available, amount);
            head.balances.available = more(head.balances.available, amount);
            head.balances.credit = more(head.balances.credit, amount);
        }
    }
}

impl Machine for Canary {
    fn apply(&mut self, op: &Op, now: i64) -> LedgerAnswer {
        let before = self.account.clone();
        let misread = self.misread(op, now);
        self.forget(&misread, now);
        let put_back = self.overlook(&misread);
        let answer = self.account.apply(&misread, now);
        if let Some(put_back) = put_back {
            put_back(&mut self.account);
        }
        self.revive(&before);
        self.meddle(&misread, &before, answer, now)
    }

    fn sweep(&mut self, now: i64) -> u64 {
        let before = self.account.clone();
        let ended = self.account.sweep(now);
        self.revive(&before);
        ended
    }

    fn account(&self) -> &PrepaidAccount {
        &self.account
    }

    fn account_mut(&mut self) -> &mut PrepaidAccount {
        &mut self.account
    }
}

/// Which tables find a fault.
fn found_by_tables(fault: Option<Fault>) -> Vec<String> {
    let make = || Canary { fault, account: PrepaidAccount::default() };
    let failed =
        |(file, cases): (String, Vec<script::Case>)| script::run(make, &cases).err().map(|_| file);
    tables().into_iter().filter_map(failed).collect()
}

/// In which of some random lives a fault breaks a law first.
fn found_by_lives(fault: Option<Fault>) -> Option<usize> {
    let mut runner = TestRunner::deterministic();
    (0..LIVES).find(|_| {
        let events = world::events(120).new_tree(&mut runner).expect("a life").current();
        world::live(Canary { fault, account: PrepaidAccount::default() }, &events).is_err()
    })
}

#[test]
fn every_canary_is_caught_by_the_tables() {
    assert!(found_by_tables(None).is_empty(), "the right machine fails");
    let missed: Vec<_> =
        FAULTS.into_iter().filter(|fault| found_by_tables(Some(*fault)).is_empty()).collect();
    assert!(missed.is_empty(), "no table finds {missed:?}");
}

/// These break a law of lives as well: what they do wrong is wrong whatever happened before.
const LAWLESS: [Fault; 18] = [
    F::LastNumberIsForgotten,
    F::PostsTwiceAfterAnExpiry,
    F::MissingEndsAreSkipped,
    F::OldMessagesCount,
    F::LentMoneyReadsAsNone,
    F::LendsBelowTheFloor,
    F::LendsMoreThanAQuarter,
    F::LendsBudgetsAway,
    F::LendsOfASuspendedAccount,
    F::TakesBackWhatIsKept,
    F::SliceIsNotHeld,
    F::LentIsNotCounted,
    F::LateChargePostsTheWhole,
    F::LostAllotmentIsRefused,
    F::ExpiredLotStays,
    F::LoweredLimitResetsSpent,
    F::ExtensionIgnoresBudgets,
    F::RevisionIsIgnored,
];

#[test]
fn canaries_that_break_a_law_are_caught_by_random_lives() {
    let missed: Vec<_> =
        LAWLESS.into_iter().filter(|fault| found_by_lives(Some(*fault)).is_none()).collect();
    assert!(missed.is_empty(), "no life finds {missed:?}");
}
