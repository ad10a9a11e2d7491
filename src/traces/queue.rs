//! The queue of traces that wait for the exporter. It is bounded, and so is what one account may
//! have in it: a customer who calls much does not push out the traces of all others.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::call::CallTrace;
use crate::fast_map::FastMap;
use crate::metrics::METRICS;

/// At most this many traces wait; of one account, at most a quarter.
const TRACES_MAX: usize = 2_048;
const ACCOUNT_TRACES_MAX: usize = TRACES_MAX / 4;
/// At most this many traces are sent at once.
const BATCH_MAX: usize = 256;

/// Why spans were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DropReason {
    /// The queue was full.
    QueueFull,
    /// The account had its share of the queue.
    AccountShare,
    /// The collector could not be reached, or asked to wait, for too long.
    Unreachable,
    /// The collector refused them.
    Refused,
    /// The process ended.
    Shutdown,
}

impl DropReason {
    /// Returns the name in metrics.
    fn name(self) -> &'static str {
        match self {
            DropReason::QueueFull => "queue_full",
            DropReason::AccountShare => "account_share",
            DropReason::Unreachable => "unreachable",
            DropReason::Refused => "refused",
            DropReason::Shutdown => "shutdown",
        }
    }
}

/// Counts spans that were dropped.
pub(super) fn count_dropped(reason: DropReason, spans: u64) {
    METRICS.spans_dropped.with_label_values(&[reason.name()]).inc_by(spans);
}

/// The traces that wait.
#[derive(Default)]
pub(super) struct TraceQueue {
    waiting: Mutex<WaitingTraces>,
    /// Notified when there are enough for a batch.
    pub(super) filled: Notify,
}

#[derive(Default)]
struct WaitingTraces {
    traces: VecDeque<CallTrace>,
    /// How many of them each account has.
    by_account: FastMap<String, usize>,
}

impl TraceQueue {
    /// Queues a trace, or drops it if there is no room.
    pub(super) fn push(&self, trace: CallTrace) {
        let spans = trace.spans();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.push(trace) {
            Ok(true) => self.filled.notify_one(),
            Ok(false) => {}
            Err(reason) => count_dropped(reason, spans),
        }
    }

    /// Takes the traces that have waited longest, at most as many as are sent at once.
    pub(super) fn take_batch(&self) -> Vec<CallTrace> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.traces.len().min(BATCH_MAX);
        let batch: Vec<_> = waiting.traces.drain(..count).collect();
        for trace in &batch {
            waiting.forget(&trace.account);
        }
        batch
    }
}

impl WaitingTraces {
    /// Adds a trace. Returns whether there are enough for a batch now.
    fn push(&mut self, trace: CallTrace) -> Result<bool, DropReason> {
        if self.traces.len() >= TRACES_MAX {
            return Err(DropReason::QueueFull);
        }
        match self.by_account.get_mut(&trace.account) {
            Some(count) if *count >= ACCOUNT_TRACES_MAX => return Err(DropReason::AccountShare),
            Some(count) => *count += 1,
            None => {
                self.by_account.insert(trace.account.clone(), 1);
            }
        }
        self.traces.push_back(trace);
        Ok(self.traces.len() == BATCH_MAX)
    }

    fn forget(&mut self, account: &str) {
        if let Some(count) = self.by_account.get_mut(account) {
            *count -= 1;
            if *count == 0 {
                self.by_account.remove(account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::context::SpanContext;

    fn trace(account: &str) -> CallTrace {
        let own = SpanContext { trace_id: [1; 16], span_id: [1; 8], is_sampled: true };
        CallTrace::elsewhere(own, String::new(), account.to_owned())
    }

    #[test]
    fn one_account_leaves_room_for_others() {
        let mut waiting = WaitingTraces::default();
        for _ in 0..ACCOUNT_TRACES_MAX {
            assert!(waiting.push(trace("much")).is_ok());
        }
        assert_eq!(waiting.push(trace("much")), Err(DropReason::AccountShare));
        assert!(waiting.push(trace("little")).is_ok());
    }

    #[test]
    fn a_full_queue_takes_no_more_until_some_are_sent() {
        let queue = TraceQueue::default();
        let push = |account: &str| queue.waiting.lock().expect("a lock").push(trace(account));
        for number in 0..TRACES_MAX {
            assert_eq!(push(&number.to_string()), Ok(number + 1 == BATCH_MAX));
        }
        assert_eq!(push("more"), Err(DropReason::QueueFull));
        assert_eq!(queue.take_batch().len(), BATCH_MAX);
        assert!(push("more").is_ok());
        let mut taken = 0;
        loop {
            match queue.take_batch().len() {
                0 => break,
                count => taken += count,
            }
        }
        assert_eq!(taken, TRACES_MAX - BATCH_MAX + 1);
        assert!(queue.waiting.lock().expect("a lock").by_account.is_empty());
    }
}
