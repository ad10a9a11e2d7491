//! The system's clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the present time in unix ms; 0 if the clock is before 1970.
#[must_use]
pub(crate) fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.ok().and_then(|time| i64::try_from(time.as_millis()).ok()).unwrap_or_default()
}

/// Returns the present time as a timestamp, which is written in the format of RFC 3339.
#[must_use]
pub(crate) fn timestamp() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
