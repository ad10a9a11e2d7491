//! The progress of the scan of all accounts that finds jobs which the index has lost.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two batches.
const STEP_INTERVAL: Duration = Duration::from_secs(60);

/// The progress of the scan; its mutex protects the cursor.
#[derive(Default)]
pub(super) struct IndexRepair(Mutex<IndexCursor>);

#[derive(Default)]
struct IndexCursor {
    /// The server's SSCAN cursor.
    cursor: u64,
    last_step_at: Option<Instant>,
}

impl IndexRepair {
    /// Returns the SSCAN cursor of the next batch; `None` until `STEP_INTERVAL` has passed since
    /// the last one.
    pub(super) fn next_scan_cursor(&self) -> Option<u64> {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.last_step_at.is_some_and(|stepped| stepped.elapsed() < STEP_INTERVAL) {
            return None;
        }
        progress.last_step_at = Some(Instant::now());
        Some(progress.cursor)
    }

    pub(super) fn set_cursor(&self, cursor: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).cursor = cursor;
    }
}
