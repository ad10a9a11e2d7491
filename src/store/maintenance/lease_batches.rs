//! How many leases are processed at a time, and how a duration is given to a store.

use std::time::Duration;

/// At most this many leases are renewed at the same time.
pub(super) const LEASES_BATCH: usize = 128;

/// Returns a duration in ms, as the operations of a store take it.
pub(super) fn duration_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
