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

/// How long a client may take for a body: not too long in all, nor for each part of it that has to
/// come in a certain time. So a client that sent much at once does not live on that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// For all of it.
    most: Duration,
    /// For a part.
    part: Duration,
    /// Bytes that make a part.
    part_bytes: u128,
    /// When the last part was there, and how much that was in all.
    since: Duration,
    before: usize,
}

impl Pace {
    pub(super) fn new(limits: &Limits, timeouts: &Timeouts) -> Pace {
        let most = timeouts.body;
        // Whatever speed will do is a part that may take as long as all.
        let part = if limits.body_rate_min == 0 { most } else { timeouts.head };
        let part_bytes = u128::from(limits.body_rate_min) * part.as_millis() / 1_000;
        Pace { most, part, part_bytes, since: Duration::ZERO, before: 0 }
    }

    /// So much has come in all, after such a time.
    pub(super) fn came(&mut self, bytes: usize, after: Duration) {
        if (bytes - self.before) as u128 >= self.part_bytes {
            (self.before, self.since) = (bytes, after);
        }
    }

    /// The time by which more has to come.
    pub(super) fn deadline(&self) -> Duration {
        (self.since + self.part).min(self.most)
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

    fn pace(rate: u64) -> Pace {
        let limits = Limits { body_rate_min: rate, ..Limits::default() };
        Pace::new(&limits, &Timeouts::default())
    }

    #[test]
    fn a_body_has_to_come_part_by_part() {
        let seconds = Duration::from_secs;
        let mut pace = pace(1_000);
        assert_eq!(pace.deadline(), seconds(10));
        pace.came(9_999, seconds(3));
        assert_eq!(pace.deadline(), seconds(10), "that is no part yet");
        pace.came(10_000, seconds(4));
        assert_eq!(pace.deadline(), seconds(14));
        pace.came(500_000, seconds(5));
        assert_eq!(pace.deadline(), seconds(15), "much at once is one part");
        pace.came(510_000, seconds(14));
        assert_eq!(pace.deadline(), seconds(24));
        pace.came(900_000, seconds(119));
        assert_eq!(pace.deadline(), seconds(120));
    }

    #[test]
    fn where_any_speed_will_do_all_of_it_has_its_time() {
        let mut pace = pace(0);
        pace.came(1, Duration::from_secs(100));
        assert_eq!(pace.deadline(), Duration::from_secs(120));
    }
}
