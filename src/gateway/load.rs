//! How much the gateway has to do: requests under way, and how late the runtime is. When it is too
//! much, further requests are refused before any work, so that those under way get theirs done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::refusal::Refusal;
use crate::metrics::METRICS;

/// The runtime is asked so often how late it is.
const PROBE_EVERY_MS: u64 = 50;

/// What there is to do, and its bounds. Clones share it.
#[derive(Debug, Clone)]
pub struct Load {
    running: Arc<AtomicUsize>,
    running_max: usize,
    lag: Arc<Lag>,
    lag_ms_max: u64,
    since: Instant,
}

/// A request under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Running(Arc<AtomicUsize>);

impl Load {
    /// Nothing yet, of so many requests at most; refused is also while the runtime is so late. A
    /// bound of 0 is none.
    #[must_use]
    pub fn new(running_max: usize, lag_max: Duration) -> Load {
        Load {
            running: Arc::default(),
            running_max,
            lag: Arc::default(),
            lag_ms_max: u64::try_from(lag_max.as_millis()).unwrap_or(u64::MAX),
            since: Instant::now(),
        }
    }

    /// A request begins.
    ///
    /// # Errors
    /// There is too much to do already.
    pub(super) fn enter(&self) -> Result<Running, Refusal> {
        if self.lag_ms_max > 0 && self.lag.at(self.now_ms()) > self.lag_ms_max {
            return Err(shed("lag"));
        }
        let before = self.running.fetch_add(1, Ordering::Relaxed);
        let running = Running(self.running.clone());
        if self.running_max > 0 && before >= self.running_max {
            return Err(shed("requests"));
        }
        Ok(running)
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

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts something that is refused because there is too much of it.
pub(super) fn shed(reason: &'static str) -> Refusal {
    METRICS.shed.with_label_values(&[reason]).inc();
    Refusal::Overloaded
}

/// How late a probe came the last two times, in ms. One alone says little: a machine that was
/// paused is late once.
#[derive(Debug, Default)]
struct Lag {
    /// When the next one is due.
    due: AtomicU64,
    last: AtomicU64,
    before: AtomicU64,
}

impl Lag {
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
        let lag = Lag::default();
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

    #[test]
    fn requests_above_the_bound_are_refused_and_not_counted() {
        let load = Load::new(2, Duration::ZERO);
        let first = load.enter().expect("the first");
        let _second = load.enter().expect("the second");
        assert!(matches!(load.enter(), Err(Refusal::Overloaded)));
        drop(first);
        assert!(load.enter().is_ok());
        assert_eq!(load.running.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_runtime_that_is_held_up_is_noticed_and_forgiven() {
        let load = Load::new(0, Duration::from_millis(20));
        let probe = tokio::spawn(load.clone().probe());
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            std::thread::sleep(Duration::from_millis(150));
        }
        assert!(load.enter().is_err());
        let end = Instant::now() + Duration::from_secs(5);
        while load.enter().is_err() {
            assert!(Instant::now() < end, "it is not forgiven");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        probe.abort();
    }
}
