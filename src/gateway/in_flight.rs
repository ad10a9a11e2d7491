//! Counters of requests and of settlements in flight. A shutdown waits until they are zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A counter of operations in flight. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlight(Arc<AtomicUsize>);

/// Counts one operation in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<AtomicUsize>);

impl InFlight {
    /// Counts one more operation, until the returned guard is dropped.
    #[must_use]
    pub(crate) fn begin(&self) -> InFlightGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self.0.clone())
    }

    /// Returns the number of operations in flight.
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
