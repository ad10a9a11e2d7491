//! The queue of pending writes. A caller that places a hold is waiting, so it commits everything
//! that is queued. No caller waits for a settlement: it stays queued until the response is out, or
//! joins the transaction of the next hold. Long jobs are left to a thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// When an item has to be taken from the queue, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Executor {
    /// At once, by the thread.
    Thread,
    /// At once, by its caller.
    Caller,
    /// Together with the next item, or a moment later by its caller.
    AnyCaller,
}

/// What the leader of a group commit has to do when it has waited for more items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeadOutcome {
    /// Take all items.
    TakeBatch,
    /// Do nothing: there are no items, or others will take them.
    NothingToDo,
    /// Keep the lead, and a moment later take the items that were queued after the caller's item.
    KeepLead,
}

/// A queue from which a thread takes items, and the callers that put them there.
pub(super) struct WriteQueue<T> {
    waiting: Mutex<QueueState<T>>,
    wakeup: Condvar,
}

struct QueueState<T> {
    items: VecDeque<T>,
    /// The number of items that have been taken so far.
    taken_count: u64,
    /// The position of the first item that only the thread may take; `None` if there is none.
    thread_only_from: Option<usize>,
    /// Whether the thread was woken to take the items.
    is_thread_woken: bool,
    /// The number of callers that lead a group commit, and so are about to take the items.
    pending_leaders: usize,
    /// Whether the queue was closed, so that no more items come.
    is_closed: bool,
}

impl<T> WriteQueue<T> {
    pub(super) fn new() -> WriteQueue<T> {
        let (items, thread_only_from) = (VecDeque::new(), None);
        let (taken_count, pending_leaders) = (0, 0);
        let waiting = QueueState {
            items,
            taken_count,
            thread_only_from,
            is_thread_woken: false,
            pending_leaders,
            is_closed: false,
        };
        WriteQueue { waiting: Mutex::new(waiting), wakeup: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an item. Returns `None` if the thread will take it. Otherwise returns the item's
    /// number if its caller becomes the leader of a group commit, whose duty it is to see that the
    /// item is taken. The caller of an [`Executor::Caller`] item always becomes one, since another
    /// caller may be delayed; the caller of an [`Executor::AnyCaller`] item only if there is no
    /// other leader.
    #[must_use]
    pub(super) fn push(&self, item: T, executor: Executor) -> Option<u64> {
        let mut waiting = self.lock();
        let number = waiting.taken_count + waiting.items.len() as u64;
        if executor == Executor::Thread && waiting.thread_only_from.is_none() {
            waiting.thread_only_from = Some(waiting.items.len());
        }
        waiting.items.push_back(item);
        if waiting.is_thread_woken {
            return None;
        }
        if executor == Executor::Thread {
            waiting.is_thread_woken = true;
            drop(waiting);
            self.wakeup.notify_one();
            return None;
        }
        let is_leader = executor == Executor::Caller || waiting.pending_leaders == 0;
        waiting.pending_leaders += usize::from(is_leader);
        is_leader.then_some(number)
    }

    /// Wakes the thread to take the items, if there are any.
    pub(super) fn wake_thread(&self) {
        let mut waiting = self.lock();
        if !waiting.is_thread_woken && !waiting.items.is_empty() {
            waiting.is_thread_woken = true;
            drop(waiting);
            self.wakeup.notify_one();
        }
    }

    /// Closes the queue. The thread takes the items that are left.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.wakeup.notify_one();
    }

    /// Ends the lead that a caller got for item `number`, and returns what the caller has to do. If
    /// that item was already taken, the items behind it are left to the other leaders, which take
    /// them in one batch.
    pub(super) fn finish_lead(&self, number: u64, executor: Executor) -> LeadOutcome {
        let mut waiting = self.lock();
        waiting.pending_leaders = waiting.pending_leaders.saturating_sub(1);
        let is_taken = waiting.taken_count > number;
        if executor == Executor::Caller && !is_taken {
            return LeadOutcome::TakeBatch;
        }
        if waiting.pending_leaders > 0 || waiting.is_thread_woken || waiting.items.is_empty() {
            return LeadOutcome::NothingToDo;
        }
        if executor == Executor::AnyCaller {
            return LeadOutcome::TakeBatch;
        }
        waiting.pending_leaders += 1;
        LeadOutcome::KeepLead
    }

    /// Ends the lead of a caller that was cancelled. The thread takes the items.
    pub(super) fn abandon_lead(&self) {
        let mut waiting = self.lock();
        waiting.pending_leaders = waiting.pending_leaders.saturating_sub(1);
        drop(waiting);
        self.wake_thread();
    }

    /// Returns the number of items; `None` if the item with this number was taken.
    pub(super) fn count_unless_taken(&self, number: u64) -> Option<usize> {
        let waiting = self.lock();
        (waiting.taken_count <= number).then_some(waiting.items.len())
    }

    /// Returns the number of items, and whether they are left to the thread.
    pub(super) fn backlog(&self) -> (usize, bool) {
        let waiting = self.lock();
        (waiting.items.len(), waiting.is_thread_woken)
    }

    /// Waits until the thread has to take items. `false` if the queue is closed and empty.
    pub(super) fn wait_for_work(&self) -> bool {
        let mut waiting = self.lock();
        while !(waiting.is_thread_woken || waiting.is_closed) {
            waiting = self.wakeup.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.is_thread_woken || !waiting.items.is_empty()
    }

    /// Takes at most `limit` items, oldest first. A caller takes no item that only the thread may
    /// take, nor any item after that. If items are left, the thread is woken for them.
    pub(super) fn take_batch(&self, limit: usize, executor: Executor) -> Vec<T> {
        let mut waiting = self.lock();
        let own = if executor == Executor::Thread { None } else { waiting.thread_only_from };
        let count = own.unwrap_or(waiting.items.len()).min(limit);
        let has_more = waiting.items.len() > count;
        let was_called = std::mem::replace(&mut waiting.is_thread_woken, has_more);
        // The position may be inexact once its item was taken. That does no harm, since the thread
        // takes everything that is left.
        waiting.thread_only_from =
            waiting.thread_only_from.filter(|_| has_more).map(|from| from.saturating_sub(count));
        waiting.taken_count += count as u64;
        let taken = waiting.items.drain(..count).collect();
        drop(waiting);
        if has_more && !was_called {
            self.wakeup.notify_one();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Executor, LeadOutcome, WriteQueue};

    #[test]
    fn everything_comes_out_once_and_in_order_and_the_end_is_told() {
        let queue = Arc::new(WriteQueue::new());
        let taken_from = queue.clone();
        let reader = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while taken_from.wait_for_work() {
                seen.extend(taken_from.take_batch(3, Executor::Thread));
            }
            seen
        });
        for n in 0..1_000 {
            let by = if n % 7 == 0 { Executor::Thread } else { Executor::AnyCaller };
            let _ = queue.push(n, by);
        }
        queue.close();
        assert_eq!(reader.join().expect("no panic"), (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn who_waits_sees_to_it_and_of_the_others_one() {
        let queue = WriteQueue::new();
        assert_eq!(queue.push(1, Executor::AnyCaller), Some(0));
        assert_eq!(queue.push(2, Executor::AnyCaller), None, "the first does");
        assert_eq!(queue.push(3, Executor::Caller), Some(2));
        assert_eq!(queue.push(4, Executor::Caller), Some(3), "another may be late");
        assert_eq!(queue.push(5, Executor::AnyCaller), None);
        assert_eq!(
            queue.finish_lead(2, Executor::Caller),
            LeadOutcome::TakeBatch,
            "nobody else has taken it"
        );
        assert_eq!(
            (queue.take_batch(10, Executor::Caller), queue.backlog()),
            (vec![1, 2, 3, 4, 5], (0, false))
        );
        assert_eq!(queue.push(6, Executor::AnyCaller), None, "two have yet to come");
        assert_eq!(
            queue.finish_lead(3, Executor::Caller),
            LeadOutcome::NothingToDo,
            "one has yet to come"
        );
        assert_eq!(
            queue.finish_lead(0, Executor::AnyCaller),
            LeadOutcome::TakeBatch,
            "nobody else will"
        );
        assert_eq!(queue.push(7, Executor::AnyCaller), Some(6));
    }

    #[test]
    fn who_is_last_sees_to_what_came_after_the_own_item() {
        let queue = WriteQueue::new();
        let (first, second) = (queue.push(1, Executor::Caller), queue.push(2, Executor::Caller));
        assert_eq!((first, second), (Some(0), Some(1)));
        assert_eq!(queue.finish_lead(0, Executor::Caller), LeadOutcome::TakeBatch);
        assert_eq!(queue.count_unless_taken(1), Some(2));
        assert_eq!(queue.take_batch(10, Executor::Caller), [1, 2]);
        assert_eq!(queue.push(3, Executor::AnyCaller), None);
        assert_eq!(queue.count_unless_taken(1), None, "it is taken");
        assert_eq!(queue.finish_lead(1, Executor::Caller), LeadOutcome::KeepLead);
        assert_eq!(queue.push(4, Executor::AnyCaller), None, "the lead goes on");
        assert_eq!(queue.finish_lead(1, Executor::AnyCaller), LeadOutcome::TakeBatch);
        assert_eq!(queue.take_batch(10, Executor::Caller), [3, 4]);
    }

    #[test]
    fn what_a_lost_leader_leaves_is_the_threads() {
        let queue = WriteQueue::new();
        assert!(queue.push(1, Executor::Caller).is_some());
        queue.abandon_lead();
        assert_eq!(queue.backlog(), (1, true));
        assert_eq!(queue.push(2, Executor::Caller), None);
        assert_eq!(queue.take_batch(10, Executor::Thread), [1, 2]);
        assert_eq!(queue.push(3, Executor::AnyCaller), Some(2));
    }

    #[test]
    fn what_is_left_to_the_thread_is_nobody_elses() {
        let queue = WriteQueue::new();
        assert!(queue.push(1, Executor::Caller).is_some());
        assert_eq!(queue.push(2, Executor::Thread), None);
        assert_eq!(queue.push(3, Executor::Caller), None);
        assert_eq!(queue.backlog(), (3, true));
        assert_eq!(queue.take_batch(10, Executor::Caller), [1], "it was brought before");
        assert_eq!((queue.take_batch(10, Executor::Caller), queue.backlog()), (vec![], (2, true)));
        assert!(queue.wait_for_work());
        assert_eq!(
            (queue.take_batch(1, Executor::Thread), queue.backlog()),
            (vec![2], (1, true)),
            "and more"
        );
        assert_eq!((queue.take_batch(1, Executor::Thread), queue.backlog()), (vec![3], (0, false)));
        assert!(queue.push(4, Executor::Caller).is_some());
        assert_eq!(queue.take_batch(10, Executor::Caller), [4]);
    }
}
