//! Load shedding by the lag of the async runtime. While the lag is too high, new requests are
//! refused before any work is done, so that those in flight can finish.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::gateway::api_error::{ApiError, CapacityError};
use crate::metrics::METRICS;

/// How often the lag of the runtime is measured.
const PROBE_INTERVAL_MS: u64 = 50;

/// The lag of the async runtime, and its limit. Clones share the measurements.
#[derive(Debug, Clone)]
pub(crate) struct OverloadMonitor {
    lag: Arc<RuntimeLag>,
    lag_ms_max: u64,
    started: Instant,
}

impl OverloadMonitor {
    /// Creates a monitor that refuses requests while the lag is more than `lag_max`; 0 for no
    /// limit.
    #[must_use]
    pub(crate) fn new(lag_max: Duration) -> OverloadMonitor {
        OverloadMonitor {
            lag: Arc::default(),
            lag_ms_max: u64::try_from(lag_max.as_millis()).unwrap_or(u64::MAX),
            started: Instant::now(),
        }
    }

    /// Checks whether a request may begin, at the time `now`.
    ///
    /// # Errors
    /// The lag of the runtime is too high.
    pub(crate) fn check_lag(&self, now: Instant) -> Result<(), ApiError> {
        let is_late = self.lag_ms_max > 0 && self.lag.lag_ms_at(self.ms_at(now)) > self.lag_ms_max;
        if is_late { Err(reject("lag")) } else { Ok(()) }
    }

    /// Measures the lag of the runtime on which this future runs, forever.
    pub(crate) async fn measure_lag(self) {
        loop {
            let due_ms = self.ms_at(Instant::now()) + PROBE_INTERVAL_MS;
            self.lag.set_next_due(due_ms);
            tokio::time::sleep(Duration::from_millis(PROBE_INTERVAL_MS)).await;
            self.lag.record_late(self.ms_at(Instant::now()).saturating_sub(due_ms));
        }
    }

    fn ms_at(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.started).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Counts a refusal because of a total limit, and returns its error.
pub(crate) fn reject(reason: &'static str) -> ApiError {
    METRICS.rejected_or_cut.with_label_values(&[reason]).inc();
    ApiError::Capacity(CapacityError::Overloaded)
}

/// Counts a refusal because of a limit of one account or address, and returns its error.
pub(crate) fn reject_tenant(reason: &'static str, message: &'static str) -> ApiError {
    METRICS.rejected_or_cut.with_label_values(&[reason]).inc();
    ApiError::Capacity(CapacityError::TooManyRequests(message))
}

/// The delays of the last two lag measurements; all fields are in ms. One measurement alone is not
/// enough: after a pause of the machine, a single one is late.
#[derive(Debug, Default)]
struct RuntimeLag {
    /// When the next measurement is due.
    next_due: AtomicU64,
    last_delay: AtomicU64,
    previous_delay: AtomicU64,
}

impl RuntimeLag {
    fn set_next_due(&self, due_ms: u64) {
        self.next_due.store(due_ms, Ordering::Relaxed);
    }

    fn record_late(&self, late_ms: u64) {
        self.previous_delay
            .store(self.last_delay.swap(late_ms, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The lag of the runtime: the smaller of the last two measurements. A measurement that is
    /// overdue counts with its delay so far.
    fn lag_ms_at(&self, now_ms: u64) -> u64 {
        let load = |ms: &AtomicU64| ms.load(Ordering::Relaxed);
        let overdue = now_ms.saturating_sub(load(&self.next_due));
        let last = load(&self.last_delay);
        last.min(load(&self.previous_delay).max(overdue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_who_was_late_twice() {
        let lag = RuntimeLag::default();
        lag.set_next_due(50);
        assert_eq!(lag.lag_ms_at(40), 0);
        assert_eq!(lag.lag_ms_at(9_000), 0, "once");
        lag.record_late(700);
        lag.set_next_due(800);
        assert_eq!(lag.lag_ms_at(790), 0, "still once");
        assert_eq!(lag.lag_ms_at(1_400), 600);
        lag.record_late(900);
        assert_eq!(lag.lag_ms_at(1_400), 700);
        lag.set_next_due(1_500);
        lag.record_late(1);
        assert_eq!(lag.lag_ms_at(1_400), 1);
    }

    #[tokio::test]
    async fn a_runtime_that_is_held_up_is_noticed_and_forgiven() {
        let load = OverloadMonitor::new(Duration::from_millis(20));
        let probe = tokio::spawn(load.clone().measure_lag());
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            std::thread::sleep(Duration::from_millis(150));
        }
        assert!(load.check_lag(Instant::now()).is_err());
        let end = Instant::now() + Duration::from_secs(5);
        while load.check_lag(Instant::now()).is_err() {
            assert!(Instant::now() < end, "it is not forgiven");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        probe.abort();
    }
}
