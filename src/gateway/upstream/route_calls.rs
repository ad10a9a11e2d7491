//! The calls of a route: how many are in flight, and how many have begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One call that has begun, in the upper half of the word.
const BEGUN: u64 = 1 << 32;
/// The lower half of the word.
const IN_FLIGHT: u64 = BEGUN - 1;

/// The calls of a route, in one word, so that a call counts both by one operation: those in flight
/// in the lower half; in the upper half those that have begun, a number that wraps.
#[derive(Default)]
pub(super) struct RouteCalls(AtomicU64);

impl RouteCalls {
    /// Takes a slot for a call; `None` if `most` calls are in flight. A `most` of 0 is no limit.
    pub(super) fn acquire(calls: &Arc<RouteCalls>, most: usize) -> Option<RouteSlot> {
        let before = calls.0.fetch_add(BEGUN + 1, Ordering::Relaxed) & IN_FLIGHT;
        let slot = RouteSlot(calls.clone());
        let is_full = most != 0 && usize::try_from(before).is_ok_and(|before| before >= most);
        if is_full {
            // It has not begun; dropping the slot takes it out of those in flight.
            calls.0.fetch_sub(BEGUN, Ordering::Relaxed);
            return None;
        }
        Some(slot)
    }

    /// Returns how many calls have begun.
    pub(super) fn begun(&self) -> u32 {
        u32::try_from(self.0.load(Ordering::Relaxed) >> 32).unwrap_or(u32::MAX)
    }
}

/// A call's slot on a route; dropping it frees the slot.
pub(crate) struct RouteSlot(Arc<RouteCalls>);

impl Drop for RouteSlot {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_found_no_slot_have_not_begun() {
        let calls = Arc::new(RouteCalls::default());
        let mut slots: Vec<_> = (0..5).map_while(|_| RouteCalls::acquire(&calls, 3)).collect();
        assert_eq!((slots.len(), calls.begun()), (3, 3));
        slots.pop();
        slots.extend(RouteCalls::acquire(&calls, 3));
        assert_eq!((slots.len(), calls.begun()), (3, 4));
        drop(slots);
        assert_eq!(calls.0.load(Ordering::Relaxed), 4 * BEGUN);
        // The number of those that have begun wraps, and leaves those in flight alone.
        calls.0.store(u64::from(u32::MAX) << 32, Ordering::Relaxed);
        let slot = RouteCalls::acquire(&calls, 1);
        assert!(slot.is_some() && RouteCalls::acquire(&calls, 1).is_none());
        assert_eq!((calls.begun(), calls.0.load(Ordering::Relaxed)), (0, 1));
    }
}
