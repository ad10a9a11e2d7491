//! Limits the searches of journals that customers ask for: one at a time for an account, and few
//! in all.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ledger::AccountName;

/// At most this many journals are searched at the same time.
const SEARCHES_MAX: usize = 16;

/// The accounts whose journals are searched at the moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct JournalSearches(Arc<Mutex<HashSet<AccountName>>>);

/// The permit of a search, which ends with it.
#[derive(Debug)]
pub(super) struct SearchPermit {
    searches: JournalSearches,
    account: AccountName,
}

impl JournalSearches {
    /// Begins a search; `None` if the account has one already, or if there are too many.
    pub(super) fn begin(&self, account: &AccountName) -> Option<SearchPermit> {
        let mut running = self.lock();
        if running.len() >= SEARCHES_MAX || !running.insert(account.clone()) {
            return None;
        }
        Some(SearchPermit { searches: self.clone(), account: account.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<AccountName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SearchPermit {
    fn drop(&mut self) {
        self.searches.lock().remove(&self.account);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> AccountName {
        AccountName::parse(&format!("a{number}")).expect("a name")
    }

    #[test]
    fn an_account_has_one_search_at_a_time_and_all_have_some() {
        let searches = JournalSearches::default();
        let first = searches.begin(&name(0)).expect("the first one");
        assert!(searches.begin(&name(0)).is_none(), "it has one already");
        let others: Vec<_> = (1..SEARCHES_MAX).map(|n| searches.begin(&name(n))).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(searches.begin(&name(SEARCHES_MAX)).is_none(), "there are too many");
        assert!(searches.begin(&name(0)).is_none(), "the search that runs has kept its place");
        drop(first);
        assert!(searches.begin(&name(0)).is_some());
        drop(others);
        assert!(searches.lock().is_empty());
    }
}
