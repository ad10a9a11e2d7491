//! Counters of requests and of settlements in flight. A stop waits until they are zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A counter of what is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlight(Arc<AtomicUsize>);

/// Something under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<AtomicUsize>);

impl InFlight {
    /// Counts one more, until the guard is dropped.
    #[must_use]
    pub(crate) fn begin(&self) -> InFlightGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self.0.clone())
    }

    /// How much is under way.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
