//! How long what is written in an outbox is kept.

use std::time::{Duration, Instant};

/// What the lines of a log have to outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retention {
    /// What was acknowledged is kept for so long while the store answers, in case it falls back to
    /// an older state.
    pub(super) keep: Duration,
    /// Whether what is written has to outlive the machine's power.
    pub(super) synced: bool,
}

impl Retention {
    /// Before a server, which may lose what it acknowledged, and is away now and then.
    pub(super) const FOR_SERVER: Retention =
        Retention { keep: Duration::from_secs(15 * 60), synced: true };
    /// Before a file on this machine, which is synced itself a moment later.
    pub(super) const FOR_EMBEDDED: Retention = Retention { keep: Duration::ZERO, synced: false };

    /// Of jobs, which a server that comes back lacks only where they are new.
    pub(super) const FOR_JOBS: Retention =
        Retention { keep: Duration::from_secs(60), synced: true };

    /// Whether what was acknowledged then can go: the store has answered for long enough since,
    /// as it last did at a moment.
    pub(super) fn is_over(self, acked: Instant, alive: Option<Instant>) -> bool {
        let answered = |alive: Instant| alive.saturating_duration_since(acked);
        alive.is_some_and(|alive| answered(alive) >= self.keep)
    }
}
