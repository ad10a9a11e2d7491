//! What customers may do at a time and on a day, at both addresses of the console of a gateway
//! together: what one of them makes the gateway do or keep has a bound.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::customer_permits::CustomerPermits;
use crate::ledger::AccountName;

/// The most requests of one customer at a time.
const REQUESTS_MAX: usize = 8;
/// The most statements that are read for customers at a time, and of these for one customer.
const STATEMENTS_MAX: usize = 8;
const STATEMENTS_EACH_MAX: usize = 1;
/// A customer makes at most this many changes a day at a gateway: each is two lines of the audit
/// trail, of which a store keeps a bounded number for all accounts together.
const CHANGES_A_DAY: u32 = 200;
/// With the keys of an account one signs in at most this often a day at a gateway: each time is a
/// durable write, and may take the place of an older session.
const SIGN_INS_A_DAY: u32 = 200;

/// What a customer is told who wants to make more changes.
pub(super) const TOO_MANY_CHANGES: &str =
    "This account has made 200 changes today. Go on tomorrow (UTC), or ask the operator.";
/// What is told to who signs in by a key once more.
pub(super) const TOO_MANY_SIGN_INS: &str = "With keys of this account 200 browsers have signed in \
    today. Go on tomorrow (UTC), or ask the operator for a link.";

/// The limits of customers, with what they have used of them.
#[derive(Debug)]
pub(crate) struct CustomerLimits {
    /// A permit for each request of a customer that runs.
    pub(super) requests: Arc<CustomerPermits>,
    /// A permit for each statement that is read for a customer.
    pub(super) statements: Arc<CustomerPermits>,
    /// A permit for each statement that is read for any customer.
    pub(super) all_statements: Arc<Semaphore>,
    pub(super) changes: DailyLimit,
    /// Sign-ins by a key.
    pub(super) sign_ins: DailyLimit,
}

impl CustomerLimits {
    /// Makes limits of which nothing is used.
    pub(crate) fn new() -> CustomerLimits {
        CustomerLimits {
            requests: CustomerPermits::new(REQUESTS_MAX),
            statements: CustomerPermits::new(STATEMENTS_EACH_MAX),
            all_statements: Arc::new(Semaphore::new(STATEMENTS_MAX)),
            changes: DailyLimit::new(CHANGES_A_DAY),
            sign_ins: DailyLimit::new(SIGN_INS_A_DAY),
        }
    }
}

/// How often each account may do something on a day.
#[derive(Debug)]
pub(super) struct DailyLimit {
    each_max: u32,
    counts: Mutex<CountsOfDay>,
}

#[derive(Debug, Default)]
struct CountsOfDay {
    /// The beginning of the day, in unix ms.
    day: i64,
    /// Accounts that have done nothing are not in here.
    counts: HashMap<AccountName, u32>,
}

impl DailyLimit {
    fn new(each_max: u32) -> DailyLimit {
        DailyLimit { each_max, counts: Mutex::default() }
    }

    /// Counts what an account does on a day (its beginning in unix ms). Returns `false` if the
    /// account has done all that a day allows.
    pub(super) fn take(&self, account: &AccountName, day: i64) -> bool {
        let mut known = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if known.day != day {
            *known = CountsOfDay { day, counts: HashMap::new() };
        }
        let count = known.counts.entry(account.clone()).or_default();
        if *count >= self.each_max {
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
        let changes = CustomerLimits::new().changes;
        let [one, other] = ["one", "other"].map(|name| AccountName::parse(name).expect("a name"));
        for _ in 0..CHANGES_A_DAY {
            assert!(changes.take(&one, 0));
        }
        assert!(!changes.take(&one, 0) && changes.take(&other, 0));
        assert!(changes.take(&one, 86_400_000));
    }
}
