//! The accounts whose journals have grown since they were last looked at.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::ledger::AccountName;

/// At most this many accounts are kept. With more, all accounts are looked at.
const ACCOUNTS_MAX: usize = 10_000;

/// The accounts that the journals' follower has seen, for the watcher of webhooks.
#[derive(Debug, Default)]
pub(crate) struct ChangedAccounts(Mutex<Changes>);

/// What has changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) accounts: BTreeSet<AccountName>,
    /// Whether there were more than could be kept.
    pub(crate) is_cut: bool,
}

impl ChangedAccounts {
    /// Adds accounts.
    pub(crate) fn add(&self, accounts: impl IntoIterator<Item = AccountName>) {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for account in accounts {
            if changes.accounts.len() < ACCOUNTS_MAX {
                changes.accounts.insert(account);
            } else if !changes.accounts.contains(&account) {
                changes.is_cut = true;
            }
        }
    }

    /// Takes what has changed since the last time.
    pub(crate) fn take(&self) -> Changes {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_taken_once_and_too_many_are_told() {
        let changed = ChangedAccounts::default();
        let name = |number: usize| AccountName::parse(&format!("a{number}")).expect("a name");
        changed.add([name(1), name(2), name(1)]);
        let taken = changed.take();
        assert_eq!((taken.accounts.len(), taken.is_cut), (2, false));
        assert!(changed.take().accounts.is_empty());
        changed.add((0..ACCOUNTS_MAX).map(name));
        changed.add([name(0)]);
        assert!(!changed.0.lock().expect("a lock").is_cut);
        changed.add([name(ACCOUNTS_MAX)]);
        let taken = changed.take();
        assert_eq!((taken.accounts.len(), taken.is_cut), (ACCOUNTS_MAX, true));
    }
}
