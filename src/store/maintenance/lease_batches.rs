//! In which portions leases are dealt with, and how a store counts their time.

use std::time::Duration;

/// So many leases are renewed at a time.
pub(super) const LEASES_BATCH: usize = 128;

/// As a store counts it, in ms.
pub(super) fn duration_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
