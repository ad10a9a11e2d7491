//! What a process knows of what the server keeps beside the books, and has yet to tell of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ledger::AccountName;

/// What a process knows of what is kept.
pub(super) struct KeptBytes {
    pub(super) bytes_max: u64,
    /// What is kept in all, as it was told last.
    pub(super) total: AtomicU64,
    /// Whether those that nobody tells of were weighed: what an older version kept.
    pub(super) has_counted_all: AtomicBool,
    reports: Mutex<KeptReports>,
}

/// What is to be told of accounts.
#[derive(Default)]
pub(super) struct KeptReports {
    /// The last of each account.
    pub(super) last_reported: HashMap<AccountName, u64>,
    pub(super) pending: HashMap<AccountName, u64>,
    /// Whether they are on their way.
    pub(super) is_reporting: bool,
}

impl KeptBytes {
    pub(super) fn new(bytes_max: u64) -> KeptBytes {
        let (total, has_counted_all) = (AtomicU64::new(0), AtomicBool::new(false));
        KeptBytes { bytes_max, total, has_counted_all, reports: Mutex::default() }
    }

    /// Above this something is dropped, so that there is room for what comes.
    pub(super) fn low_water(&self) -> u64 {
        self.bytes_max - self.bytes_max / 8
    }

    pub(super) fn reports(&self) -> MutexGuard<'_, KeptReports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
