//! How long the records of an outbox are kept after the store has acknowledged them.

use std::time::{Duration, Instant};

/// The retention of the records of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct Retention {
    /// An acknowledged record is kept until the store has answered for this long since, in case the
    /// store falls back to an older state.
    pub(super) keep: Duration,
    /// Whether the records have to survive a power cut, so that they are synced to disk.
    pub(super) synced: bool,
}

impl Retention {
    /// For the hold ends of a server, which may lose what it acknowledged, and is unavailable now
    /// and then.
    pub(in crate::store) const FOR_SERVER: Retention =
        Retention { keep: Duration::from_secs(15 * 60), synced: true };
    /// For the hold ends of an embedded store, whose file is synced itself a moment later.
    pub(in crate::store) const FOR_EMBEDDED: Retention =
        Retention { keep: Duration::ZERO, synced: false };

    /// For the ends of calls of an embedded store whose holds were in memory. Its file is synced a
    /// second later, so these records are synced at once.
    pub(in crate::store) const FOR_ENDS: Retention =
        Retention { keep: Duration::ZERO, synced: true };
    /// For video jobs of a server. When it comes back, it lacks only the newest ones.
    pub(super) const FOR_JOBS: Retention =
        Retention { keep: Duration::from_secs(60), synced: true };

    /// Whether records that were acknowledged at `acked` may be deleted: the store last answered at
    /// `last_answer`, and that is at least `keep` later. With `None` the store may lack records, so
    /// they stay.
    pub(super) fn is_over(self, acked: Instant, last_answer: Option<Instant>) -> bool {
        let answered = |last_answer: Instant| last_answer.saturating_duration_since(acked);
        last_answer.is_some_and(|last_answer| answered(last_answer) >= self.keep)
    }
}
