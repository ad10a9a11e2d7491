//! The memory that bodies of requests take up: a bound of all together, and how fast one must come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::limits::{Limits, Timeouts};
use super::load::shed;
use super::refusal::Refusal;

/// All bodies that are in memory.
#[derive(Debug)]
pub struct Bodies {
    bytes: Arc<AtomicUsize>,
    bytes_max: usize,
}

/// What one body weighs, until it is dropped.
#[derive(Debug)]
pub struct Weight {
    all: Arc<AtomicUsize>,
    all_max: usize,
    own: usize,
}

impl Bodies {
    /// None yet, of so many bytes at most.
    #[must_use]
    pub fn new(bytes_max: usize) -> Bodies {
        Bodies { bytes: Arc::default(), bytes_max }
    }

    /// A body of which nothing has come.
    pub(super) fn weight(&self) -> Weight {
        Weight { all: self.bytes.clone(), all_max: self.bytes_max, own: 0 }
    }
}

impl Weight {
    /// So many bytes more have come.
    ///
    /// # Errors
    /// There is no room for them. Nobody waits for it: two that had half of theirs would wait for
    /// each other.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let before = self.all.fetch_add(bytes, Ordering::Relaxed);
        self.own += bytes;
        if before.saturating_add(bytes) > self.all_max { Err(shed("bodies")) } else { Ok(()) }
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

/// How long a client may take for a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// However fast it is.
    most: Duration,
    /// However little has come.
    least: Duration,
    /// Bytes in a second, from then on.
    rate: u64,
}

impl Pace {
    pub(super) fn new(limits: &Limits, timeouts: &Timeouts) -> Pace {
        Pace { most: timeouts.body, least: timeouts.head, rate: limits.body_rate_min }
    }

    /// How long it may have taken until more comes than so many bytes.
    pub(super) fn allows(self, bytes: usize) -> Duration {
        if self.rate == 0 {
            return self.most;
        }
        let earned = (bytes as u64).saturating_mul(1_000) / self.rate;
        self.least.max(Duration::from_millis(earned)).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_weigh_until_they_are_dropped() {
        let bodies = Bodies::new(10);
        let [mut one, mut other] = [bodies.weight(), bodies.weight()];
        assert!(one.grow(6).is_ok() && other.grow(4).is_ok());
        assert!(matches!(other.grow(1), Err(Refusal::Overloaded)));
        drop(one);
        assert!(other.grow(5).is_ok());
        drop(other);
        assert_eq!(bodies.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_body_has_as_long_as_its_bytes_earn_it() {
        let seconds = Duration::from_secs;
        let pace = Pace { most: seconds(120), least: seconds(10), rate: 1_000 };
        assert_eq!(pace.allows(0), seconds(10));
        assert_eq!(pace.allows(10_000), seconds(10));
        assert_eq!(pace.allows(50_000), seconds(50));
        assert_eq!(pace.allows(usize::MAX), seconds(120));
        assert_eq!(Pace { rate: 0, ..pace }.allows(0), seconds(120));
    }
}
