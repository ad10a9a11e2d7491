//! Machines that are wrong about budgets: the right one on records of its own, with one fault.

use tollgate::ledger::account::Balances;
use tollgate::ledger::prepaid::answer::{AccountStep, LedgerAnswer};
use tollgate::ledger::prepaid::direct;
use tollgate::ledger::prepaid::operations::{AppliedOperation, apply_operation, budget_uses};
use tollgate::ledger::prepaid::records::{
    AccountChanges, BudgetLimits, DirectHold, DirectHoldState, PrepaidAccount,
};
use tollgate::ledger::prepaid::window::WindowUse;
use tollgate::ledger::prepaid::{settings, transfer};
use tollgate::ledger::{
    BudgetOwner, BudgetUse, JournalEntry, KeyId, OpenLot, Operation, Outcome, WindowId, WindowKind,
};
use tollgate::money::Money;

use super::super::memory::Machine;
use super::budget_fault::{BudgetFault, BudgetFault as F};
use super::{money, more};

/// The key whose budgets most lines of the table are about.
const KEY: KeyId = KeyId(7);

/// A machine with a fault; with none it is the right one.
#[derive(Default)]
pub(super) struct BudgetCanary {
    fault: Option<BudgetFault>,
    account: PrepaidAccount,
    journal: Vec<JournalEntry>,
}

impl BudgetCanary {
    pub(super) fn new(fault: Option<BudgetFault>) -> BudgetCanary {
        BudgetCanary { fault, ..BudgetCanary::default() }
    }

    fn is(&self, fault: BudgetFault) -> bool {
        self.fault == Some(fault)
    }

    fn misread_key(&self, key: &mut Option<KeyId>) {
        match (self.fault, *key) {
            (Some(F::KeysShareABudget), Some(_)) | (Some(F::CallWithoutKeyCountsForOne), None) => {
                *key = Some(KEY);
            }
            // As if it had been through a double.
            (Some(F::KeyLosesItsLastBit), Some(KeyId(id))) if id > 1 << 53 => {
                *key = Some(KeyId(id & !1));
            }
            _ => {}
        }
    }

    /// The operation as this machine misunderstands it.
    fn misread(&self, op: &Operation) -> Operation {
        let mut op = op.clone();
        match &mut op {
            Operation::Hold { wanted, least, key, .. } => {
                self.misread_key(key);
                if self.is(F::BudgetIsAllOrNothing) && !self.account.head.budgets.is_empty() {
                    *least = *wanted;
                }
            }
            Operation::Settle { origin: Some(origin), .. } => {
                self.misread_key(&mut origin.key);
                if self.is(F::LostHoldLosesItsKey) {
                    origin.key = None;
                }
            }
            _ => {}
        }
        op
    }

    /// The account as this machine sees it when it does an operation.
    fn seen_for(&self, op: &Operation) -> PrepaidAccount {
        let mut seen = self.account.clone();
        let (is_hold, is_extension) =
            (matches!(op, Operation::Hold { .. }), matches!(op, Operation::Extend { .. }));
        let Some(fault) = self.fault else { return seen };
        let own = &mut seen.head.budgets;
        let of_keys = seen.keys.values_mut().map(|key| &mut key.budgets);
        match fault {
            F::LimitIgnoresWhatIsHeld if is_hold => {
                seen.windows.values_mut().for_each(|used| used.held = Money::ZERO);
            }
            F::LimitIgnoresWhatIsSpent if is_hold => {
                seen.windows.values_mut().for_each(|used| used.spent = Money::ZERO);
            }
            F::LimitIsOneNanoTooHigh => {
                let limits = own.values_mut().chain(of_keys.flat_map(BudgetLimits::values_mut));
                limits.flatten().for_each(|limit| *limit = more(*limit, money(1)));
            }
            F::OnlyTheFirstWindowIsAsked => own.values_mut().skip(1).for_each(|l| *l = None),
            F::AccountBudgetIsIgnored => own.values_mut().for_each(|limit| *limit = None),
            F::KeyBudgetIsIgnored => of_keys.for_each(forget_limits),
            F::ExtensionIgnoresBudgets if is_extension => {
                forget_limits(own);
                of_keys.for_each(forget_limits);
            }
            F::ExtensionIgnoresTheKey if is_extension => of_keys.for_each(forget_limits),
            F::RemovedLimitStopsCounting => {
                own.retain(|_, limit| limit.is_some());
                of_keys.for_each(|budgets| budgets.retain(|_, limit| limit.is_some()));
            }
            _ => {}
        }
        seen
    }

    fn pay(&mut self, tx: &str, amount: Money, now: i64) -> Outcome {
        let AccountStep { answer, changes } = transfer::add_payment(&self.account, tx, amount, now);
        self.commit(changes);
        match answer {
            LedgerAnswer::Done => Outcome::Done,
            LedgerAnswer::AlreadyDone => Outcome::AlreadyDone,
            LedgerAnswer::OutOfRange => Outcome::OutOfRange,
            _ => Outcome::Conflict,
        }
    }

    /// Does an operation on a hold, and writes what it changes of what was seen.
    fn apply_to_hold(&mut self, op: &Operation, now: i64) -> Outcome {
        let seen = self.seen_for(op);
        let AppliedOperation { outcome, mut changes } = apply_operation(&seen, op, now);
        for (id, used) in &mut changes.windows {
            let was_seen = seen.windows.get(id).copied().unwrap_or_default();
            let really = self.account.windows.get(id).copied().unwrap_or_default();
            used.held = more(used.held, really.held.saturating_sub(was_seen.held));
            used.spent = more(used.spent, really.spent.saturating_sub(was_seen.spent));
        }
        if let Some(head) = &mut changes.head {
            head.budgets.clone_from(&self.account.head.budgets);
        }
        self.commit(changes);
        outcome
    }

    fn commit(&mut self, changes: AccountChanges) {
        for line in &changes.lines {
            self.journal.push(JournalEntry::from(line.clone()));
        }
        self.account.commit(changes);
    }

    /// Puts back what was spent, or what was held, before an operation.
    fn put_back(&mut self, before: &PrepaidAccount, part: fn(&mut WindowUse) -> &mut Money) {
        for (id, used) in &mut self.account.windows {
            let mut earlier = before.windows.get(id).copied().unwrap_or_default();
            *part(used) = *part(&mut earlier);
        }
    }

    fn count(&mut self, hold: &DirectHold, change: impl Fn(&mut WindowUse)) {
        for window in &hold.windows {
            change(self.account.windows.entry(*window).or_default());
        }
    }

    /// What an operation does here beside what it should.
    fn meddle(&mut self, op: &Operation, before: &PrepaidAccount, outcome: &Outcome) {
        let Some(fault) = self.fault else { return };
        let id = match op {
            Operation::Credit { .. }
            | Operation::Grant { .. }
            | Operation::Take { .. }
            | Operation::Correct { .. } => return,
            Operation::Hold { id, .. }
            | Operation::Extend { id, .. }
            | Operation::Renew { id, .. }
            | Operation::Checkpoint { id, .. }
            | Operation::Settle { id, .. }
            | Operation::Void { id } => id,
        };
        let known = before.holds.get(id);
        let was_open = known.is_some_and(is_open);
        match (fault, op, outcome) {
            (F::ChargeIsNotCounted, Operation::Settle { .. }, _) if was_open => {
                self.put_back(before, spent);
            }
            (F::LateChargeIsNotCounted, Operation::Settle { .. }, _)
                if known.is_some() && !was_open =>
            {
                self.put_back(before, spent);
            }
            (F::LostChargeIsNotCounted, Operation::Settle { .. }, _) if known.is_none() => {
                self.put_back(before, spent);
            }
            (F::SettlementGivesNothingBack, Operation::Settle { .. }, _) if was_open => {
                self.put_back(before, held);
            }
            (F::VoidGivesNothingBack, Operation::Void { .. }, _)
            | (F::HoldIsNotCounted, Operation::Hold { .. }, _)
            | (F::ExtensionIsNotCounted, Operation::Extend { .. }, _) => {
                self.put_back(before, held);
            }
            (_, _, outcome) => self.miscount(fault, op, known, outcome),
        }
    }

    /// What is counted wrong of a hold as it was before the operation.
    fn miscount(
        &mut self,
        fault: BudgetFault,
        op: &Operation,
        known: Option<&DirectHold>,
        outcome: &Outcome,
    ) {
        let limits = budget_limits(&self.account);
        let Some(hold) = known else { return };
        match (fault, op, outcome) {
            (F::LossIsNotCounted, _, Outcome::Posted { written_off, .. }) => {
                self.count(hold, |used| used.spent = used.spent.saturating_sub(*written_off));
            }
            (F::CountStopsAtTheHold, _, Outcome::Posted { amount, .. }) => {
                let above = amount.saturating_sub(hold.held);
                self.count(hold, |used| used.spent = used.spent.saturating_sub(above));
            }
            (F::CountStopsAtTheLimit, _, Outcome::Posted { .. }) => {
                for (window, limit) in limits {
                    if let Some(used) = self.account.windows.get_mut(&window) {
                        used.spent = used.spent.min(limit.unwrap_or(used.spent));
                    }
                }
            }
            (
                F::RepeatedSettlementCountsAgain,
                Operation::Settle { .. },
                Outcome::AlreadyPosted(amount),
            ) => self.count(hold, |used| used.spent = more(used.spent, *amount)),
            (F::RepeatedHoldCountsAgain, _, Outcome::HoldExists { held, open: true }) => {
                self.count(hold, |used| used.held = more(used.held, *held));
            }
            (F::RepeatedVoidGivesBackAgain, Operation::Void { .. }, Outcome::Voided)
                if !is_open(hold) =>
            {
                self.count(hold, |used| used.held = used.held.saturating_sub(hold.held));
            }
            _ => {}
        }
    }

    /// The outcome as this machine tells it.
    fn reword(&self, op: &Operation, outcome: Outcome, now: i64) -> Outcome {
        let (Some(fault), Operation::Hold { least, key, .. }) = (self.fault, op) else {
            return outcome;
        };
        match (fault, outcome) {
            (F::ExceededReadsAsInUse, Outcome::BudgetExceeded { left, .. }) => {
                Outcome::BudgetInUse(left)
            }
            (F::InUseReadsAsExceeded, Outcome::BudgetInUse(left)) => {
                let window = WindowId::at(BudgetOwner::Account, WindowKind::Day, now);
                Outcome::BudgetExceeded { window, left }
            }
            (F::InUseTellsWhatIsAvailable, Outcome::BudgetInUse(_)) => {
                Outcome::BudgetInUse(self.account.head.balances.available)
            }
            (F::LeftIsWithoutWhatIsHeld, Outcome::BudgetExceeded { window, left }) => {
                let held = self.account.windows.get(&window).copied().unwrap_or_default().held;
                Outcome::BudgetExceeded { window, left: left.saturating_sub(held) }
            }
            (F::FirstToEndIsNamed, Outcome::BudgetExceeded { window, left }) => {
                first_to_end(&self.account, *key, *least, now)
                    .unwrap_or(Outcome::BudgetExceeded { window, left })
            }
            (_, outcome) => outcome,
        }
    }

    fn budgets_of(&mut self, owner: BudgetOwner) -> &mut BudgetLimits {
        match owner {
            BudgetOwner::Account => &mut self.account.head.budgets,
            BudgetOwner::Key(key) => &mut self.account.keys.entry(key).or_default().budgets,
        }
    }

    /// Sets a limit as this machine does; `false` if it does it right.
    fn set_wrongly(
        &mut self,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
        now: i64,
    ) -> bool {
        let Some(fault) = self.fault else { return false };
        let window = WindowId::at(owner, kind, now);
        let before = self.budgets_of(owner).get(&kind).copied();
        match (fault, before, limit) {
            (F::RemovedLimitForgets, _, None) => {
                self.budgets_of(owner).remove(&kind);
                self.account.windows.remove(&window);
            }
            (F::RemovedLimitIsKept, Some(Some(_)), None) => {}
            (F::LoweredLimitIsIgnored, Some(Some(before)), Some(limit)) if limit < before => {}
            (F::LimitLosesItsLastBit, _, Some(limit)) if limit.nano() > 1 << 53 => {
                self.budgets_of(owner).insert(kind, Some(money(limit.nano() & !1)));
            }
            (F::ChangedLimitResets, Some(_), _) => {
                self.budgets_of(owner).insert(kind, limit);
                self.account.windows.entry(window).or_default().spent = Money::ZERO;
            }
            (F::NewBudgetCountsOldHolds, None, _) => {
                self.budgets_of(owner).insert(kind, limit);
                let open = self.account.holds.values().filter(|hold| is_open(hold));
                let sum = open.fold(Money::ZERO, |sum, hold| more(sum, hold.held));
                self.account.windows.entry(window).or_default().held = sum;
            }
            _ => return false,
        }
        true
    }
}

fn spent(used: &mut WindowUse) -> &mut Money {
    &mut used.spent
}

fn held(used: &mut WindowUse) -> &mut Money {
    &mut used.held
}

fn is_open(hold: &DirectHold) -> bool {
    matches!(hold.state, DirectHoldState::Open { .. })
}

fn forget_limits(budgets: &mut BudgetLimits) {
    budgets.values_mut().for_each(|limit| *limit = None);
}

/// The limits of all windows that are known.
fn budget_limits(account: &PrepaidAccount) -> Vec<(WindowId, Option<Money>)> {
    let limit = |id: &WindowId| match id.owner {
        BudgetOwner::Account => account.head.budgets.get(&id.kind).copied().flatten(),
        BudgetOwner::Key(key) => {
            account.keys.get(&key).and_then(|key| key.budgets.get(&id.kind).copied().flatten())
        }
    };
    account.windows.keys().map(|id| (*id, limit(id))).collect()
}

/// The refusal that names the window that ends first of those that are exceeded.
fn first_to_end(
    account: &PrepaidAccount,
    key: Option<KeyId>,
    least: Money,
    now: i64,
) -> Option<Outcome> {
    let is_own = |budget: &BudgetUse| match budget.owner {
        BudgetOwner::Account => true,
        BudgetOwner::Key(owner) => key == Some(owner),
    };
    let left = |b: BudgetUse| Some((b.window, b.limit?.saturating_sub(b.used.spent)));
    let exceeded = budget_uses(account, now).into_iter().filter(is_own).filter_map(left);
    let exceeded = exceeded.filter(|(_, left)| *left < least);
    let (window, left) = exceeded.min_by_key(|(window, _)| window.end())?;
    Some(Outcome::BudgetExceeded { window, left })
}

impl Machine for BudgetCanary {
    fn apply(&mut self, op: &Operation, now: i64) -> Outcome {
        let (before, op) = (self.account.clone(), self.misread(op));
        let outcome = match &op {
            Operation::Credit { tx, amount } => self.pay(tx, *amount, now),
            op => self.apply_to_hold(op, now),
        };
        self.meddle(&op, &before, &outcome);
        self.reword(&op, outcome, now)
    }

    fn expire(&mut self, now: i64) -> u64 {
        let holds = self.account.holds.iter();
        let due = holds.filter(|(_, hold)| is_open(hold) && hold.lease_until <= now);
        let mut due: Vec<_> = due.map(|(id, hold)| (hold.lease_until, id.clone())).collect();
        due.sort();
        let (before, mut ended) = (self.account.clone(), 0);
        for (_, id) in due {
            let step = direct::expire_hold(&self.account, &id, now);
            ended += u64::from(!step.changes.holds.is_empty());
            self.commit(step.changes);
        }
        if self.is(F::ExpiryGivesNothingBack) {
            self.put_back(&before, held);
        }
        if self.is(F::ExpiredCheckpointIsNotCounted) {
            self.put_back(&before, spent);
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
        if !self.set_wrongly(owner, kind, limit, now) {
            let step = settings::set_budget(&self.account, owner, kind, limit, now);
            self.commit(step.changes);
        }
    }

    fn budgets(&mut self, now: i64) -> Vec<BudgetUse> {
        budget_uses(&self.account, now)
    }

    fn lots(&self) -> Vec<OpenLot> {
        self.account.head.granted_lots().map(|(id, lot)| OpenLot { id, lot }).collect()
    }
}
