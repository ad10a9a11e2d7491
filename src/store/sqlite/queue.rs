//! The queue of writes, from which one thread takes batches. A write for which a caller waits wakes
//! the thread at once. A charge, for which nobody waits, is taken with the next such write, or
//! after [`DEFERRED_WAIT_MAX`]: then one transaction serves the charges of many calls.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An item that nobody waits for is taken after this time at the latest.
pub(super) const DEFERRED_WAIT_MAX: Duration = Duration::from_millis(5);

/// A queue from which a thread takes items in batches.
pub(super) struct WriteQueue<T> {
    state: Mutex<QueueState<T>>,
    wakeup: Condvar,
}

struct QueueState<T> {
    items: VecDeque<T>,
    /// When the items have to be taken; `None` if there are none.
    due: Option<Instant>,
    /// Whether the queue was closed, so that no more items come.
    is_closed: bool,
}

impl<T> WriteQueue<T> {
    pub(super) fn new() -> WriteQueue<T> {
        let state = QueueState { items: VecDeque::new(), due: None, is_closed: false };
        WriteQueue { state: Mutex::new(state), wakeup: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an item, which is taken at once, or a moment later if it `may_wait`.
    pub(super) fn push(&self, item: T, may_wait: bool) {
        let now = Instant::now();
        let due = if may_wait { now + DEFERRED_WAIT_MAX } else { now };
        let mut state = self.lock();
        state.items.push_back(item);
        // If others are due earlier, the thread wakes for them.
        if state.due.is_none_or(|earlier| due < earlier) {
            state.due = Some(due);
            drop(state);
            self.wakeup.notify_one();
        }
    }

    /// Returns the number of items.
    pub(super) fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Closes the queue. What is in it is due at once.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.wakeup.notify_one();
    }

    /// Waits until items are due. `false` if the queue is closed and empty.
    pub(super) fn wait_for_work(&self) -> bool {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return !state.items.is_empty();
            }
            state = match state.due.map(|due| due.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return true,
                Some(left) => {
                    let woken = self.wakeup.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wakeup.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Takes at most `limit` items, oldest first. If items are left, they are due at once.
    pub(super) fn take_batch(&self, limit: usize) -> Vec<T> {
        let mut state = self.lock();
        let count = state.items.len().min(limit);
        let taken = state.items.drain(..count).collect();
        state.due = if state.items.is_empty() { None } else { Some(Instant::now()) };
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn everything_comes_out_once_and_in_order_and_the_end_is_told() {
        let queue = Arc::new(WriteQueue::new());
        let taken_from = queue.clone();
        let reader = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while taken_from.wait_for_work() {
                seen.extend(taken_from.take_batch(3));
            }
            seen
        });
        for n in 0..1_000 {
            queue.push(n, n % 7 != 0);
        }
        queue.close();
        assert_eq!(reader.join().expect("no panic"), (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn an_item_that_may_wait_is_taken_with_one_that_may_not_or_a_moment_later() {
        let queue = WriteQueue::new();
        queue.push(1, true);
        queue.push(2, false);
        queue.push(3, true);
        assert!(queue.wait_for_work());
        assert_eq!(queue.take_batch(10), [1, 2, 3]);
        let began = Instant::now();
        queue.push(4, true);
        queue.push(5, true);
        assert!(queue.wait_for_work());
        assert!(began.elapsed() >= DEFERRED_WAIT_MAX, "nobody waits for them");
        assert_eq!(queue.take_batch(1), [4]);
        assert!(queue.wait_for_work(), "what is left is due");
        assert_eq!((queue.take_batch(1), queue.len()), (vec![5], 0));
    }
}
