//! The system's clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use once_cell::sync::Lazy;

/// When this process first asked for the monotonic time.
static START: Lazy<Instant> = Lazy::new(Instant::now);

/// Returns the present time in unix ms; 0 if the clock is before 1970.
#[must_use]
pub(crate) fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.ok().and_then(|time| i64::try_from(time.as_millis()).ok()).unwrap_or_default()
}

/// Returns the time since this process first asked for it, in ms, plus one. It never goes back.
#[must_use]
pub(crate) fn monotonic_ms() -> u64 {
    u64::try_from(START.elapsed().as_millis()).map_or(u64::MAX, |ms| ms.saturating_add(1))
}

/// Returns the time since the machine was started, in ms. It never goes back, and counts the time
/// for which the machine was suspended, as the clocks of other machines do.
#[must_use]
pub(crate) fn boottime_ms() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000)
}

/// Returns the present time as a timestamp, which is written in the format of RFC 3339.
#[must_use]
pub(crate) fn timestamp() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
