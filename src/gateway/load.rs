//! How much the gateway has to do, by how late the runtime is. When it is too much, further
//! requests are refused before any work, so that those under way get theirs done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::refusal::ApiError;
use crate::metrics::METRICS;

/// The runtime is asked so often how late it is.
const PROBE_EVERY_MS: u64 = 50;

/// What there is to do, and its bounds. Clones share it.
#[derive(Debug, Clone)]
pub struct OverloadMonitor {
    lag: Arc<RuntimeLag>,
    lag_ms_max: u64,
    since: Instant,
}

impl OverloadMonitor {
    /// Requests are refused while the runtime is later than this. A bound of 0 is none.
    #[must_use]
    pub fn new(lag_max: Duration) -> OverloadMonitor {
        OverloadMonitor {
            lag: Arc::default(),
            lag_ms_max: u64::try_from(lag_max.as_millis()).unwrap_or(u64::MAX),
            since: Instant::now(),
        }
    }

    /// Looks whether a request may begin.
    ///
    /// # Errors
    /// The runtime is too late.
    pub(super) fn check_lag(&self) -> Result<(), ApiError> {
        let is_late = self.lag_ms_max > 0 && self.lag.at(self.now_ms()) > self.lag_ms_max;
        if is_late { Err(shed("lag")) } else { Ok(()) }
    }

    /// Asks the runtime that this runs on how late it is, for ever.
    pub async fn probe(self) {
        loop {
            let due_ms = self.now_ms() + PROBE_EVERY_MS;
            self.lag.expect(due_ms);
            tokio::time::sleep(Duration::from_millis(PROBE_EVERY_MS)).await;
            self.lag.came(self.now_ms().saturating_sub(due_ms));
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Counts something that is refused because there is too much of it.
pub(super) fn shed(reason: &'static str) -> ApiError {
    METRICS.shed.with_label_values(&[reason]).inc();
    ApiError::Overloaded
}

/// Counts something that is refused because its account or address has too much of it.
pub(super) fn shed_tenant(reason: &'static str, message: &'static str) -> ApiError {
    METRICS.shed.with_label_values(&[reason]).inc();
    ApiError::TooManyRequests(message)
}

/// How late a probe came the last two times, in ms. One alone says little: a machine that was
/// paused is late once.
#[derive(Debug, Default)]
struct RuntimeLag {
    /// When the next one is due.
    due: AtomicU64,
    last: AtomicU64,
    before: AtomicU64,
}

impl RuntimeLag {
    fn expect(&self, due_ms: u64) {
        self.due.store(due_ms, Ordering::Relaxed);
    }

    fn came(&self, late_ms: u64) {
        self.before.store(self.last.swap(late_ms, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// How late the runtime is: what two of the probes, one after the other, both were at least.
    /// The one that is due counts with what it is late already.
    fn at(&self, now_ms: u64) -> u64 {
        let told = |ms: &AtomicU64| ms.load(Ordering::Relaxed);
        let overdue = now_ms.saturating_sub(told(&self.due));
        let last = told(&self.last);
        last.min(told(&self.before).max(overdue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_who_was_late_twice() {
        let lag = RuntimeLag::default();
        lag.expect(50);
        assert_eq!(lag.at(40), 0);
        assert_eq!(lag.at(9_000), 0, "once");
        lag.came(700);
        lag.expect(800);
        assert_eq!(lag.at(790), 0, "still once");
        assert_eq!(lag.at(1_400), 600);
        lag.came(900);
        assert_eq!(lag.at(1_400), 700);
        lag.expect(1_500);
        lag.came(1);
        assert_eq!(lag.at(1_400), 1);
    }

    #[tokio::test]
    async fn a_runtime_that_is_held_up_is_noticed_and_forgiven() {
        let load = OverloadMonitor::new(Duration::from_millis(20));
        let probe = tokio::spawn(load.clone().probe());
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            std::thread::sleep(Duration::from_millis(150));
        }
        assert!(load.check_lag().is_err());
        let end = Instant::now() + Duration::from_secs(5);
        while load.check_lag().is_err() {
            assert!(Instant::now() < end, "it is not forgiven");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        probe.abort();
    }
}
