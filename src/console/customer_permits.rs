//! Permits for what customers do at a time: some for each customer, so that one of them leaves the
//! others their places.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ledger::AccountName;

/// Permits, of which each customer has some.
#[derive(Debug)]
pub(crate) struct CustomerPermits {
    /// The most permits that one customer has.
    each_max: usize,
    /// Customers that have none are not in here.
    taken: Mutex<BTreeMap<AccountName, usize>>,
}

/// A permit of a customer, until it is dropped.
#[derive(Debug)]
pub(super) struct CustomerPermit {
    permits: Arc<CustomerPermits>,
    account: AccountName,
}

impl CustomerPermits {
    /// Makes permits, at most `each_max` for a customer.
    pub(super) fn new(each_max: usize) -> Arc<CustomerPermits> {
        Arc::new(CustomerPermits { each_max, taken: Mutex::default() })
    }

    /// Takes a permit of a customer; `None` if it has as many as it may.
    pub(super) fn take(self: &Arc<Self>, account: &AccountName) -> Option<CustomerPermit> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.get(account).copied().unwrap_or_default();
        if count >= self.each_max {
            return None;
        }
        taken.insert(account.clone(), count + 1);
        Some(CustomerPermit { permits: self.clone(), account: account.clone() })
    }
}

impl Drop for CustomerPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.account) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.account)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_customer_has_its_places_and_gives_them_back() {
        let permits = CustomerPermits::new(8);
        let [ada, bob] = ["ada", "bob"].map(|name| AccountName::parse(name).expect("a name"));
        let mut held: Vec<_> = (0..8).map(|_| permits.take(&ada).expect("a place")).collect();
        assert!(permits.take(&ada).is_none());
        assert!(permits.take(&bob).is_some(), "others have their own");
        held.pop();
        held.push(permits.take(&ada).expect("the place that became free"));
        assert!(permits.take(&ada).is_none());
        drop(held);
        let left = permits.taken.lock().expect("nobody has panicked").len();
        assert_eq!(left, 0, "nothing is kept of who has left");
    }
}
