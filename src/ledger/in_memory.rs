//! An account in memory: the reference implementation that the stores are tested against.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::account::Balances;
use super::account_name::AccountName;
use super::budget::BudgetUse;
use super::journal::{EntryKind, JournalEntry};
use super::open_hold::{OpenHold, list_open_holds};
use super::operation::{Operation, Outcome};
use super::prepaid::lot::{CreditLot, LotId, OpenLot};
use super::prepaid::operations::{self, AppliedOperation};
use super::prepaid::posted_line::read_posted;
use super::prepaid::rate::{RateBucket, RateId};
use super::prepaid::records::{
    AccountChanges, AccountHead, BudgetLimits, DirectHold, JournalRecord, KeyBudgets,
    PrepaidAccount, TransferRecord,
};
use super::prepaid::settings;
use super::prepaid::window::{BudgetOwner, KeyId, WindowId, WindowKind, WindowUse};
use super::prepaid::{direct, operations::budget_uses};
use crate::money::Money;

/// An account in memory.
#[derive(Debug, Clone, Default)]
pub struct InMemoryAccount {
    /// The balances.
    pub balances: Balances,
    /// The journal, oldest entry first.
    pub journal: Vec<JournalEntry>,
    /// The open lots beside that of payments.
    lots: BTreeMap<LotId, CreditLot>,
    transfers: BTreeMap<String, TransferRecord>,
    holds: BTreeMap<String, DirectHold>,
    budgets: BudgetLimits,
    keys: BTreeMap<KeyId, KeyBudgets>,
    windows: BTreeMap<WindowId, WindowUse>,
    rates: BTreeMap<RateId, RateBucket>,
}

impl InMemoryAccount {
    /// Applies an operation at the time `now` (unix ms).
    pub fn apply(&mut self, op: &Operation, now: i64) -> Outcome {
        let lines = match op {
            Operation::Correct { found, .. } => self.read_lines(found),
            _ => Vec::new(),
        };
        let AppliedOperation { outcome, changes } =
            self.with_records(lines, |account| operations::apply_operation(account, op, now));
        self.commit(changes);
        outcome
    }

    /// Sets or removes the limit of a budget at the time `now` (unix ms).
    pub fn set_budget(
        &mut self,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
        now: i64,
    ) {
        let step = self.with_records(Vec::new(), |account| {
            settings::set_budget(account, owner, kind, limit, now)
        });
        self.commit(step.changes);
    }

    /// Returns the budgets, with what is used of the windows that run at `now` (unix ms).
    #[must_use]
    pub fn budgets(&mut self, now: i64) -> Vec<BudgetUse> {
        self.with_records(Vec::new(), |account| budget_uses(account, now))
    }

    /// Returns the open lots beside that of payments, in the order in which they are drawn.
    pub fn lots(&self) -> impl Iterator<Item = OpenLot> + '_ {
        self.lots.iter().map(|(id, lot)| OpenLot { id: *id, lot: *lot })
    }

    /// Returns the open holds, in the order of their cursors. `name` is that of the account.
    #[must_use]
    pub fn open_holds(&self, name: &AccountName) -> Vec<OpenHold> {
        // An account in memory lends nothing, so the time does not matter.
        list_open_holds(name, &self.holds, &BTreeMap::new(), 0)
    }

    /// Ends the holds whose lease has expired at `now` (unix ms). Returns how many.
    pub fn expire_holds(&mut self, now: i64) -> u64 {
        let mut ended = 0;
        let is_open = |hold: &DirectHold| {
            matches!(hold.state, super::prepaid::records::DirectHoldState::Open { .. })
        };
        let due = |(_, hold): &(&String, &DirectHold)| is_open(hold) && hold.lease_until <= now;
        let mut holds: Vec<(i64, String)> = self
            .holds
            .iter()
            .filter(due)
            .map(|(id, hold)| (hold.lease_until, id.clone()))
            .collect();
        // The hold that expired first ends first: the order decides which hold gets the available
        // rest.
        holds.sort();
        for (_, id) in holds {
            let step =
                self.with_records(Vec::new(), |account| direct::expire_hold(account, &id, now));
            ended += u64::from(!step.changes.holds.is_empty());
            self.commit(step.changes);
        }
        ended
    }

    /// Returns the records of the journal entries with these numbers, and of all corrections.
    fn read_lines(&self, found: &[u64]) -> Vec<JournalRecord> {
        let is_meant = |entry: &&JournalEntry| {
            entry.kind == EntryKind::Correction || found.contains(&entry.seq)
        };
        self.journal.iter().filter(is_meant).filter_map(read_posted).collect()
    }

    /// Lends the records, with these of the journal, to a function of the pure machine.
    fn with_records<T>(
        &mut self,
        journal: Vec<JournalRecord>,
        function: impl FnOnce(&PrepaidAccount) -> T,
    ) -> T {
        let mut head = AccountHead::with_lots(self.balances, self.lots.clone());
        head.lines = self.journal.len() as u64;
        head.budgets.clone_from(&self.budgets);
        head.has_keys = !self.keys.is_empty();
        let account = PrepaidAccount {
            head,
            keys: std::mem::take(&mut self.keys),
            windows: std::mem::take(&mut self.windows),
            rates: std::mem::take(&mut self.rates),
            holds: std::mem::take(&mut self.holds),
            transfers: std::mem::take(&mut self.transfers),
            journal,
            ..PrepaidAccount::default()
        };
        let result = function(&account);
        (self.keys, self.windows) = (account.keys, account.windows);
        (self.rates, self.holds) = (account.rates, account.holds);
        self.transfers = account.transfers;
        result
    }

    fn commit(&mut self, changes: AccountChanges) {
        if let Some(head) = changes.head {
            self.lots = head.granted_lots().collect();
            (self.balances, self.budgets) = (head.balances, head.budgets);
        }
        self.keys.extend(changes.keys);
        self.windows.extend(changes.windows);
        self.rates.extend(changes.rates);
        self.holds.extend(changes.holds);
        self.transfers.extend(changes.transfers);
        self.journal.extend(changes.lines.into_iter().map(JournalEntry::from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("not negative")
    }

    fn with_hold(lease_ms: u64) -> InMemoryAccount {
        let mut account = InMemoryAccount::default();
        account.apply(&Operation::Credit { tx: "t".to_owned(), amount: nano(9) }, 0);
        let id = "h".to_owned();
        account.apply(
            &Operation::Hold {
                id,
                wanted: nano(5),
                least: nano(5),
                lease_ms,
                key: None,
                rates: Vec::new(),
            },
            100,
        );
        account
    }

    #[test]
    fn a_lease_ends_at_its_last_ms_and_not_before() {
        let mut account = with_hold(5);
        assert_eq!(
            (account.expire_holds(104), account.expire_holds(105), account.expire_holds(106)),
            (0, 1, 0)
        );
    }

    #[test]
    fn a_renewal_counts_from_now_and_never_shortens() {
        for (lease_ms, now, until) in [(5, 102, 107), (5, 100, 105), (4, 100, 105), (0, 104, 105)] {
            let mut account = with_hold(5);
            account.apply(&Operation::Renew { id: "h".to_owned(), lease_ms }, now);
            assert_eq!(
                (account.expire_holds(until - 1), account.expire_holds(until)),
                (0, 1),
                "{lease_ms}"
            );
        }
    }

    #[test]
    fn a_lease_beyond_the_end_of_time_ends_with_it() {
        let mut account = with_hold(u64::MAX);
        assert_eq!((account.expire_holds(i64::MAX - 1), account.expire_holds(i64::MAX)), (0, 1));
    }

    #[test]
    fn of_two_checkpoints_of_one_cost_the_first_stays() {
        let mut account = with_hold(5);
        for line in ["first", "second"].map(str::to_owned) {
            let op = Operation::Checkpoint { id: "h".to_owned(), charge: nano(3), line };
            assert_eq!(account.apply(&op, 100), Outcome::Done);
        }
        account.expire_holds(105);
        assert_eq!(account.journal.iter().map(|e| &*e.line).collect::<Vec<_>>(), ["first"]);
    }
}
