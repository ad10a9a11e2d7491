//! What waits to be written. Somebody waits for a hold, so whoever asks for one writes what there
//! is; nobody waits for the end of a call, which lies until its answer is out, or shares the
//! transaction of a hold that comes before. What takes long is left to a thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// When an item is to be taken, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Executor {
    /// At once, by the thread.
    Thread,
    /// At once, by whoever brings it.
    Bringer,
    /// With the next, or in a moment by whoever brings it.
    Anyone,
}

/// What somebody whose turn is over has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnOutcome {
    /// Take what there is.
    Take,
    /// Nothing: what there is is others' to take.
    Leave,
    /// See to it that what came after the own item is taken in a moment. The turn is not given up.
    Stay,
}

/// A queue that a thread takes from, and those who bring something.
pub(super) struct WriteQueue<T> {
    waiting: Mutex<QueueState<T>>,
    bell: Condvar,
}

struct QueueState<T> {
    items: VecDeque<T>,
    /// How many have been taken since the beginning.
    taken: u64,
    /// How many came before the first that only the thread takes, if there is one.
    long_from: Option<usize>,
    /// Whether the thread is to take them.
    is_called: bool,
    /// How many are about to take them.
    turns: usize,
    /// Whether nothing more will come.
    closed: bool,
}

impl<T> WriteQueue<T> {
    pub(super) fn new() -> WriteQueue<T> {
        let (items, long_from) = (VecDeque::new(), None);
        let (taken, turns) = (0, 0);
        let waiting =
            QueueState { items, taken, long_from, is_called: false, turns, closed: false };
        WriteQueue { waiting: Mutex::new(waiting), bell: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item behind all others. Whoever has to see to it that it is taken, gets its number:
    /// of what somebody waits for, everybody does, since another may be kept from it.
    #[must_use]
    pub(super) fn push(&self, item: T, by: Executor) -> Option<u64> {
        let mut waiting = self.lock();
        let number = waiting.taken + waiting.items.len() as u64;
        if by == Executor::Thread && waiting.long_from.is_none() {
            waiting.long_from = Some(waiting.items.len());
        }
        waiting.items.push_back(item);
        if waiting.is_called {
            return None;
        }
        if by == Executor::Thread {
            waiting.is_called = true;
            drop(waiting);
            self.bell.notify_one();
            return None;
        }
        let has_turn = by == Executor::Bringer || waiting.turns == 0;
        waiting.turns += usize::from(has_turn);
        has_turn.then_some(number)
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

    /// Whoever was to see to it that the item of this number is taken has come to that. What came
    /// after it is better taken by those who still wait for others, all at once.
    pub(super) fn turn_is_over(&self, number: u64, by: Executor) -> TurnOutcome {
        let mut waiting = self.lock();
        waiting.turns = waiting.turns.saturating_sub(1);
        let is_taken = waiting.taken > number;
        if by == Executor::Bringer && !is_taken {
            return TurnOutcome::Take;
        }
        if waiting.turns > 0 || waiting.is_called || waiting.items.is_empty() {
            return TurnOutcome::Leave;
        }
        if by == Executor::Anyone {
            return TurnOutcome::Take;
        }
        waiting.turns += 1;
        TurnOutcome::Stay
    }

    /// Whoever saw to it that an item is taken has left: the thread takes what there is.
    pub(super) fn turn_is_lost(&self) {
        let mut waiting = self.lock();
        waiting.turns = waiting.turns.saturating_sub(1);
        drop(waiting);
        self.call();
    }

    /// How many items there are, unless the one of this number is taken.
    pub(super) fn count_for(&self, number: u64) -> Option<usize> {
        let waiting = self.lock();
        (waiting.taken <= number).then_some(waiting.items.len())
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

    /// Takes what is there, oldest first, at most so many; what only the thread takes, and what
    /// came after that, only if `by` is the thread. The thread takes what is left.
    pub(super) fn take(&self, most: usize, by: Executor) -> Vec<T> {
        let mut waiting = self.lock();
        let own = if by == Executor::Thread { None } else { waiting.long_from };
        let count = own.unwrap_or(waiting.items.len()).min(most);
        let has_more = waiting.items.len() > count;
        let was_called = std::mem::replace(&mut waiting.is_called, has_more);
        // Of what is left the thread takes all, so nobody asks for the place any more.
        waiting.long_from =
            waiting.long_from.filter(|_| has_more).map(|from| from.saturating_sub(count));
        waiting.taken += count as u64;
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

    use super::{Executor, TurnOutcome, WriteQueue};

    #[test]
    fn everything_comes_out_once_and_in_order_and_the_end_is_told() {
        let queue = Arc::new(WriteQueue::new());
        let taken_from = queue.clone();
        let reader = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while taken_from.wait() {
                seen.extend(taken_from.take(3, Executor::Thread));
            }
            seen
        });
        for n in 0..1_000 {
            let by = if n % 7 == 0 { Executor::Thread } else { Executor::Anyone };
            let _ = queue.push(n, by);
        }
        queue.close();
        assert_eq!(reader.join().expect("no panic"), (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn who_waits_sees_to_it_and_of_the_others_one() {
        let queue = WriteQueue::new();
        assert_eq!(queue.push(1, Executor::Anyone), Some(0));
        assert_eq!(queue.push(2, Executor::Anyone), None, "the first does");
        assert_eq!(queue.push(3, Executor::Bringer), Some(2));
        assert_eq!(queue.push(4, Executor::Bringer), Some(3), "another may be late");
        assert_eq!(queue.push(5, Executor::Anyone), None);
        assert_eq!(
            queue.turn_is_over(2, Executor::Bringer),
            TurnOutcome::Take,
            "nobody else has taken it"
        );
        assert_eq!(
            (queue.take(10, Executor::Bringer), queue.look()),
            (vec![1, 2, 3, 4, 5], (0, false))
        );
        assert_eq!(queue.push(6, Executor::Anyone), None, "two have yet to come");
        assert_eq!(
            queue.turn_is_over(3, Executor::Bringer),
            TurnOutcome::Leave,
            "one has yet to come"
        );
        assert_eq!(queue.turn_is_over(0, Executor::Anyone), TurnOutcome::Take, "nobody else will");
        assert_eq!(queue.push(7, Executor::Anyone), Some(6));
    }

    #[test]
    fn who_is_last_sees_to_what_came_after_the_own_item() {
        let queue = WriteQueue::new();
        let (first, second) = (queue.push(1, Executor::Bringer), queue.push(2, Executor::Bringer));
        assert_eq!((first, second), (Some(0), Some(1)));
        assert_eq!(queue.turn_is_over(0, Executor::Bringer), TurnOutcome::Take);
        assert_eq!(queue.count_for(1), Some(2));
        assert_eq!(queue.take(10, Executor::Bringer), [1, 2]);
        assert_eq!(queue.push(3, Executor::Anyone), None);
        assert_eq!(queue.count_for(1), None, "it is taken");
        assert_eq!(queue.turn_is_over(1, Executor::Bringer), TurnOutcome::Stay);
        assert_eq!(queue.push(4, Executor::Anyone), None, "the turn goes on");
        assert_eq!(queue.turn_is_over(1, Executor::Anyone), TurnOutcome::Take);
        assert_eq!(queue.take(10, Executor::Bringer), [3, 4]);
    }

    #[test]
    fn what_a_lost_turn_leaves_is_the_threads() {
        let queue = WriteQueue::new();
        assert!(queue.push(1, Executor::Bringer).is_some());
        queue.turn_is_lost();
        assert_eq!(queue.look(), (1, true));
        assert_eq!(queue.push(2, Executor::Bringer), None);
        assert_eq!(queue.take(10, Executor::Thread), [1, 2]);
        assert_eq!(queue.push(3, Executor::Anyone), Some(2));
    }

    #[test]
    fn what_is_left_to_the_thread_is_nobody_elses() {
        let queue = WriteQueue::new();
        assert!(queue.push(1, Executor::Bringer).is_some());
        assert_eq!(queue.push(2, Executor::Thread), None);
        assert_eq!(queue.push(3, Executor::Bringer), None);
        assert_eq!(queue.look(), (3, true));
        assert_eq!(queue.take(10, Executor::Bringer), [1], "it was brought before");
        assert_eq!((queue.take(10, Executor::Bringer), queue.look()), (vec![], (2, true)));
        assert!(queue.wait());
        assert_eq!(
            (queue.take(1, Executor::Thread), queue.look()),
            (vec![2], (1, true)),
            "and more"
        );
        assert_eq!((queue.take(1, Executor::Thread), queue.look()), (vec![3], (0, false)));
        assert!(queue.push(4, Executor::Bringer).is_some());
        assert_eq!(queue.take(10, Executor::Bringer), [4]);
    }
}
