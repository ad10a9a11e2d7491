//! What waits for the writer. Somebody waits for a hold, so it wakes the writer; nobody waits for
//! the end of a call, which may lie a moment, so that it shares a transaction with the next hold.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What nobody waits for lies at most so long.
const LIE: Duration = Duration::from_micros(300);

/// A queue with one reader.
pub(super) struct Queue<T> {
    shared: Arc<(Mutex<Waiting<T>>, Condvar)>,
}

struct Waiting<T> {
    items: VecDeque<T>,
    urgent: bool,
    /// Whether the writing end is gone.
    closed: bool,
}

/// The writing end; when it is dropped the reader stops.
pub(super) struct Sender<T>(Queue<T>);

impl<T> Queue<T> {
    pub(super) fn pair() -> (Sender<T>, Queue<T>) {
        let waiting = Waiting { items: VecDeque::new(), urgent: false, closed: false };
        let shared = Arc::new((Mutex::new(waiting), Condvar::new()));
        (Sender(Queue { shared: shared.clone() }), Queue { shared })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to do. `false` when there never will be.
    pub(super) fn wait(&self) -> bool {
        let mut waiting = self.lock();
        loop {
            if waiting.urgent || (waiting.closed && !waiting.items.is_empty()) {
                return true;
            }
            if waiting.closed {
                return false;
            }
            let bell = &self.shared.1;
            if waiting.items.is_empty() {
                waiting = bell.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            } else {
                let rung = bell.wait_timeout(waiting, LIE).unwrap_or_else(PoisonError::into_inner);
                waiting = rung.0;
                // Whatever lies there has lain long enough.
                waiting.urgent |= rung.1.timed_out();
            }
        }
    }

    /// Takes what is there, oldest first, at most so many.
    pub(super) fn take(&self, most: usize) -> Vec<T> {
        let mut waiting = self.lock();
        let count = waiting.items.len().min(most);
        waiting.urgent = waiting.items.len() > count;
        waiting.items.drain(..count).collect()
    }
}

impl<T> Sender<T> {
    /// Adds an item behind all others.
    pub(super) fn send(&self, item: T, urgent: bool) {
        let mut waiting = self.0.lock();
        // The reader sleeps without a time only while there is nothing.
        let ring = (urgent && !waiting.urgent) || waiting.items.is_empty();
        waiting.items.push_back(item);
        waiting.urgent |= urgent;
        drop(waiting);
        if ring {
            self.0.shared.1.notify_one();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.shared.1.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn everything_comes_out_once_and_in_order_and_the_end_is_told() {
        let (sender, queue) = Queue::pair();
        let reader = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while queue.wait() {
                seen.extend(queue.take(3));
            }
            seen
        });
        for n in 0..1_000 {
            sender.send(n, n % 7 == 0);
        }
        drop(sender);
        assert_eq!(reader.join().expect("no panic"), (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn what_nobody_waits_for_comes_out_all_the_same() {
        let (sender, queue) = Queue::pair();
        sender.send(1, false);
        assert!(queue.wait());
        assert_eq!(queue.take(10), [1]);
    }
}
