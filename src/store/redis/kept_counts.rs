//! The counts of bytes kept in the store that a process knows, and those that it has yet to report
//! to the fleet-wide index.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ledger::AccountName;

/// The bytes that the store keeps besides balances, holds and journals, as far as this process
/// knows.
pub(super) struct KeptBytes {
    /// At most this many bytes may be kept.
    pub(super) bytes_max: u64,
    /// The bytes of all accounts, as read from the index last.
    pub(super) total: AtomicU64,
    /// Whether this process has measured all accounts of the store once. That finds the data of
    /// older versions, which no gateway reports.
    pub(super) has_counted_all: AtomicBool,
    reports: Mutex<KeptReports>,
}

/// The counts that are reported to the index.
#[derive(Default)]
pub(super) struct KeptReports {
    /// The stored bytes per account, as last reported to the fleet-wide index.
    pub(super) last_reported: HashMap<AccountName, u64>,
    /// The counts in bytes that are yet to be reported.
    pub(super) pending: HashMap<AccountName, u64>,
    /// Whether a background task is reporting them now.
    pub(super) is_reporting: bool,
}

impl KeptBytes {
    pub(super) fn new(bytes_max: u64) -> KeptBytes {
        let (total, has_counted_all) = (AtomicU64::new(0), AtomicBool::new(false));
        KeptBytes { bytes_max, total, has_counted_all, reports: Mutex::default() }
    }

    /// Returns the number of bytes above which something is evicted, so that there is room for new
    /// data.
    pub(super) fn eviction_threshold(&self) -> u64 {
        self.bytes_max - self.bytes_max / 8
    }

    pub(super) fn reports(&self) -> MutexGuard<'_, KeptReports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
