//! The deletion of accounts: what hinders it, and what a store does for it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::money::Money;

/// What an account still has. It is deleted only if that is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccountRemains {
    /// What can be spent; nothing of it is lent to gateways.
    pub available: Money,
    /// What is held for calls and jobs, or lent to gateways.
    pub held: Money,
    /// The number of open holds of calls and jobs, also of those that hold nothing.
    pub open_holds: u64,
    /// The number of video jobs that are queued or in progress.
    pub open_jobs: u64,
}

impl AccountRemains {
    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == AccountRemains::default()
    }
}

/// What came of the attempt to mark an account as deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletionMark {
    /// There is no such account.
    NoAccount,
    /// The account has this, so nothing was changed.
    NotEmpty(AccountRemains),
    /// The account is deleted now, since this time (unix seconds).
    Deleted(i64),
    /// The account was deleted before, at this time (unix seconds).
    AlreadyDeleted(i64),
}
