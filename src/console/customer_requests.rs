//! How many requests of one customer run at a time, at all addresses of the console together: one
//! customer leaves the others their places.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ledger::AccountName;

/// The most requests of one customer at a time.
const REQUESTS_MAX: usize = 8;

/// The requests of customers that run.
#[derive(Debug, Default)]
pub(crate) struct CustomerRequests {
    running: Mutex<BTreeMap<AccountName, usize>>,
}

/// A request that runs, until this is dropped.
#[derive(Debug)]
pub(super) struct CustomerPermit {
    requests: Arc<CustomerRequests>,
    account: AccountName,
}

impl CustomerRequests {
    /// Counts a request of a customer; `None` if as many run as may.
    pub(super) fn begin(self: &Arc<Self>, account: &AccountName) -> Option<CustomerPermit> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let count = running.get(account).copied().unwrap_or_default();
        if count >= REQUESTS_MAX {
            return None;
        }
        running.insert(account.clone(), count + 1);
        Some(CustomerPermit { requests: self.clone(), account: account.clone() })
    }
}

impl Drop for CustomerPermit {
    fn drop(&mut self) {
        let mut running = self.requests.running.lock().unwrap_or_else(PoisonError::into_inner);
        match running.get_mut(&self.account) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(running.remove(&self.account)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_customer_has_eight_places_and_gives_them_back() {
        let requests = Arc::new(CustomerRequests::default());
        let [ada, bob] = ["ada", "bob"].map(|name| AccountName::parse(name).expect("a name"));
        let mut held: Vec<_> = (0..8).map(|_| requests.begin(&ada).expect("a place")).collect();
        assert!(requests.begin(&ada).is_none());
        assert!(requests.begin(&bob).is_some(), "others have their own");
        held.pop();
        held.push(requests.begin(&ada).expect("the place that became free"));
        assert!(requests.begin(&ada).is_none());
        drop(held);
        let left = requests.running.lock().expect("nobody has panicked").len();
        assert_eq!(left, 0, "nothing is kept of who has left");
    }
}
