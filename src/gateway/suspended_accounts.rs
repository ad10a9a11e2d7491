//! The suspended accounts: a stream that runs ends when its account becomes one of them.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::ledger::AccountName;

/// The accounts that are suspended, as last read from the ledger.
#[derive(Debug, Default)]
pub(crate) struct SuspendedAccounts {
    accounts: ArcSwap<HashSet<AccountName>>,
    /// How often the set has changed: whoever has seen this number need not look at the set.
    changes: AtomicU64,
    /// Wakes the streams whose vendors are silent.
    changed: Notify,
}

impl SuspendedAccounts {
    /// Replaces the set by what the ledger says.
    pub(crate) fn replace(&self, accounts: HashSet<AccountName>) {
        if **self.accounts.load() == accounts {
            return;
        }
        self.accounts.store(accounts.into());
        self.changes.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Whether an account is suspended.
    #[must_use]
    fn contains(&self, account: &AccountName) -> bool {
        self.accounts.load().contains(account)
    }

    /// Returns how often the set has changed.
    #[must_use]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether an account is suspended since the set had changed so often. Before that its key may
    /// have been looked up after the account was resumed, which the set does not know yet.
    #[must_use]
    pub(crate) fn contains_since(&self, account: &AccountName, changes: u64) -> bool {
        self.changes() != changes && self.contains(account)
    }

    /// Begins to watch for changes of the set, since it had changed so often: the account may have
    /// been suspended after its key was looked up.
    #[must_use]
    pub(crate) fn watch_since(&self, changes: u64) -> SuspensionWatch<'_> {
        SuspensionWatch {
            suspended: self,
            seen: changes,
            changed: Box::pin(self.changed.notified()),
        }
    }
}

/// Watches whether one account becomes suspended.
#[derive(Debug)]
pub(crate) struct SuspensionWatch<'a> {
    suspended: &'a SuspendedAccounts,
    /// The number of changes at the last look.
    seen: u64,
    /// Is ready after the next change. It is kept from one wait to the next, so that no change is
    /// missed in between.
    changed: Pin<Box<Notified<'a>>>,
}

impl SuspensionWatch<'_> {
    /// Whether the set has changed since the last look, and the account is in it. Costs one load
    /// if nothing has changed.
    #[must_use]
    pub(crate) fn notices(&mut self, account: Option<&AccountName>) -> bool {
        let changes = self.suspended.changes();
        if changes == self.seen {
            return false;
        }
        self.seen = changes;
        account.is_some_and(|account| self.suspended.contains(account))
    }

    /// Waits until an account is suspended; not at all if it is since the last look.
    pub(crate) async fn await_suspension(&mut self, account: &AccountName) {
        while !self.notices(Some(account)) {
            self.await_change().await;
        }
    }

    /// Waits until the set has changed. If the wait is given up, the next one goes on with it.
    pub(crate) async fn await_change(&mut self) {
        self.changed.as_mut().await;
        self.changed.set(self.suspended.changed.notified());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn name(text: &str) -> AccountName {
        AccountName::parse(text).expect("a name")
    }

    fn set(names: &[&str]) -> HashSet<AccountName> {
        names.iter().map(|text| name(text)).collect()
    }

    #[test]
    fn a_stream_looks_at_the_set_only_after_a_change() {
        let suspended = SuspendedAccounts::default();
        let (one, other) = (name("one"), name("other"));
        let mut watch = suspended.watch_since(0);
        assert!(!watch.notices(Some(&one)));
        suspended.replace(set(&["other"]));
        assert!(!watch.notices(Some(&one)) && !watch.notices(None));
        suspended.replace(set(&["one", "other"]));
        assert!(watch.notices(Some(&one)));
        assert!(!watch.notices(Some(&one)), "nothing has changed since");
        suspended.replace(set(&["one", "other"]));
        assert!(!watch.notices(Some(&one)), "the same set is no change");
        suspended.replace(set(&["one"]));
        assert!(!watch.notices(Some(&other)), "it was resumed");
        assert!(suspended.contains(&one) && !suspended.contains(&other));
    }

    #[test]
    fn an_account_that_was_suspended_before_its_stream_began_is_noticed() {
        let suspended = SuspendedAccounts::default();
        suspended.replace(set(&["one"]));
        assert!(suspended.watch_since(0).notices(Some(&name("one"))));
        assert!(!suspended.watch_since(0).notices(Some(&name("other"))));
    }

    #[tokio::test]
    async fn a_silent_stream_is_woken_by_each_change_and_misses_none() {
        let suspended = SuspendedAccounts::default();
        let mut watch = suspended.watch_since(0);
        let short = Duration::from_millis(20);
        assert!(timeout(short, watch.await_change()).await.is_err(), "there was no change");
        suspended.replace(set(&["one"]));
        timeout(short, watch.await_change()).await.expect("a change while nobody waited");
        assert!(timeout(short, watch.await_change()).await.is_err(), "there was only one change");
        let change = async { suspended.replace(set(&[])) };
        let (woken, ()) =
            tokio::join!(timeout(Duration::from_secs(5), watch.await_change()), change);
        woken.expect("a change while it waited");
    }

    #[tokio::test]
    async fn a_wait_for_one_account_ends_with_its_suspension_and_not_with_that_of_others() {
        let suspended = SuspendedAccounts::default();
        let one = name("one");
        let mut watch = suspended.watch_since(0);
        let short = Duration::from_millis(20);
        suspended.replace(set(&["other"]));
        assert!(timeout(short, watch.await_suspension(&one)).await.is_err(), "it is another one");
        suspended.replace(set(&["one"]));
        timeout(short, watch.await_suspension(&one)).await.expect("it is suspended");
        let mut late = suspended.watch_since(0);
        timeout(short, late.await_suspension(&one)).await.expect("it was suspended before");
    }
}
