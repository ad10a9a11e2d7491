//! How often customers change something: each change is two lines of the audit trail, of which a
//! store keeps a bounded number for all accounts together.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::ledger::AccountName;

/// A customer makes at most this many changes a day, at each gateway.
const CHANGES_A_DAY: u32 = 200;
/// What a customer is told who wants to make more.
pub(super) const TOO_MANY_CHANGES: &str =
    "This account has made 200 changes today. Go on tomorrow (UTC), or ask the operator.";

/// The changes of the current day.
#[derive(Default)]
pub(crate) struct CustomerChanges(Mutex<ChangesOfDay>);

#[derive(Default)]
struct ChangesOfDay {
    /// The beginning of the day, in unix ms.
    day: i64,
    /// Accounts that have changed nothing are not in here.
    counts: HashMap<AccountName, u32>,
}

impl CustomerChanges {
    /// Counts a change of an account on a day (its beginning in unix ms). Returns `false` if the
    /// account has made all that a day allows.
    pub(super) fn take(&self, account: &AccountName, day: i64) -> bool {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.day != day {
            *changes = ChangesOfDay { day, counts: HashMap::new() };
        }
        let count = changes.counts.entry(account.clone()).or_default();
        if *count >= CHANGES_A_DAY {
            return false;
        }
        *count += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_its_changes_of_a_day_and_takes_none_of_another() {
        let changes = CustomerChanges::default();
        let [one, other] = ["one", "other"].map(|name| AccountName::parse(name).expect("a name"));
        for _ in 0..CHANGES_A_DAY {
            assert!(changes.take(&one, 0));
        }
        assert!(!changes.take(&one, 0) && changes.take(&other, 0));
        assert!(changes.take(&one, 86_400_000));
    }
}
