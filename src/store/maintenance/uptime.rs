//! Measures how long a store has answered every probe.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A store that does not answer a probe within this time counts as unavailable. That is longer than
/// a connection waits before it takes its server for dead.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(3_500);
/// After a longer gap between two probes, the uptime begins anew, since it is unknown whether the
/// store was available in between.
const PROBE_GAP_MAX: Duration = Duration::from_secs(10);

/// The time since which the store has answered every probe, and the time of the last answer; `None`
/// if the last probe failed.
#[derive(Default)]
pub(super) struct Uptime(Mutex<Option<(Instant, Instant)>>);

impl Uptime {
    pub(super) fn record_success(&self) {
        let (mut since, now) = (self.lock(), Instant::now());
        let known = since.filter(|(_, last)| now.duration_since(*last) < PROBE_GAP_MAX);
        *since = Some((known.map_or(now, |(since, _)| since), now));
    }

    pub(super) fn reset(&self) {
        *self.lock() = None;
    }

    pub(super) fn is_at_least(&self, span: Duration) -> bool {
        self.lock().is_some_and(|(since, last)| last.duration_since(since) >= span)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
