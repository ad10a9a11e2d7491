//! What waits to be written. Somebody waits for a hold, so whoever asks for one writes what there
//! is; nobody waits for the end of a call, which lies until its answer is out, or shares the
//! transaction of a hold that comes before. What takes long is left to a thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// When an item is to be taken, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// At once, by the thread.
    Thread,
    /// At once, by whoever brings it.
    Bringer,
    /// With the next, or in a moment by whoever brings it.
    Anyone,
}

/// A queue that a thread takes from, and those who bring something.
pub(super) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    bell: Condvar,
}

struct Waiting<T> {
    items: VecDeque<T>,
    /// Whether the thread is to take them.
    is_called: bool,
    turns: Turns,
    /// Whether nothing more will come.
    closed: bool,
}

/// Who has seen to it that items are taken.
#[derive(Default)]
struct Turns {
    /// Whether somebody is about to take them.
    soon: bool,
    /// Whether somebody will take them in a moment.
    later: bool,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Queue<T> {
        let (items, turns) = (VecDeque::new(), Turns::default());
        let waiting = Waiting { items, is_called: false, turns, closed: false };
        Queue { waiting: Mutex::new(waiting), bell: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item behind all others. Tells whether whoever brought it has to see to it that it is
    /// taken.
    #[must_use]
    pub(super) fn push(&self, item: T, by: By) -> bool {
        let mut waiting = self.lock();
        waiting.items.push_back(item);
        if waiting.is_called {
            return false;
        }
        match by {
            By::Thread => {
                waiting.is_called = true;
                drop(waiting);
                self.bell.notify_one();
                false
            }
            By::Bringer => !std::mem::replace(&mut waiting.turns.soon, true),
            By::Anyone if waiting.turns.soon => false,
            By::Anyone => !std::mem::replace(&mut waiting.turns.later, true),
        }
    }

    /// Has the thread take what there is.
    pub(super) fn call(&self) {
        let mut waiting = self.lock();
        if !waiting.is_called && !waiting.items.is_empty() {
            waiting.is_called = true;
            drop(waiting);
            self.bell.notify_one();
        }
    }

    /// Nothing more will come; what is there is taken by the thread.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_one();
    }

    /// Whoever saw to it that an item is taken has come to that, or has left.
    pub(super) fn turn_is_over(&self, by: By) {
        let mut waiting = self.lock();
        match by {
            By::Bringer => waiting.turns.soon = false,
            By::Anyone => waiting.turns.later = false,
            By::Thread => {}
        }
    }

    /// How many items there are, and whether they are left to the thread.
    pub(super) fn look(&self) -> (usize, bool) {
        let waiting = self.lock();
        (waiting.items.len(), waiting.is_called)
    }

    /// Waits until the thread is to take something. `false` when it never will have to.
    pub(super) fn wait(&self) -> bool {
        let mut waiting = self.lock();
        while !(waiting.is_called || waiting.closed) {
            waiting = self.bell.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.is_called || !waiting.items.is_empty()
    }

    /// Takes what is there, oldest first, at most so many. The thread takes what is left.
    pub(super) fn take(&self, most: usize) -> Vec<T> {
        let mut waiting = self.lock();
        let count = waiting.items.len().min(most);
        let has_more = waiting.items.len() > count;
        let was_called = std::mem::replace(&mut waiting.is_called, has_more);
        let taken = waiting.items.drain(..count).collect();
        drop(waiting);
        if has_more && !was_called {
            self.bell.notify_one();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{By, Queue};

    #[test]
    fn everything_comes_out_once_and_in_order_and_the_end_is_told() {
        let queue = Arc::new(Queue::new());
        let taken_from = queue.clone();
        let reader = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while taken_from.wait() {
                seen.extend(taken_from.take(3));
            }
            seen
        });
        for n in 0..1_000 {
            let by = if n % 7 == 0 { By::Thread } else { By::Anyone };
            let _ = queue.push(n, by);
        }
        queue.close();
        assert_eq!(reader.join().expect("no panic"), (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn one_of_those_who_bring_something_sees_to_it() {
        let queue = Queue::new();
        assert!(queue.push(1, By::Anyone));
        assert!(!queue.push(2, By::Anyone), "the first does");
        assert!(queue.push(3, By::Bringer), "the first does so later");
        assert!(!queue.push(4, By::Bringer) && !queue.push(5, By::Anyone));
        queue.turn_is_over(By::Bringer);
        assert_eq!((queue.take(10), queue.look()), (vec![1, 2, 3, 4, 5], (0, false)));
        assert!(!queue.push(6, By::Anyone), "the first has yet to come");
        queue.turn_is_over(By::Anyone);
        assert!(queue.push(7, By::Anyone));
    }

    #[test]
    fn what_is_left_to_the_thread_is_nobody_elses() {
        let queue = Queue::new();
        assert!(!queue.push(1, By::Thread));
        assert!(!queue.push(2, By::Bringer));
        assert_eq!(queue.look(), (2, true));
        assert!(queue.wait());
        assert_eq!((queue.take(1), queue.look()), (vec![1], (1, true)), "there is more for it");
        assert_eq!((queue.take(1), queue.look()), (vec![2], (0, false)));
    }
}
