//! The wait between retries, which doubles up to a maximum.

use std::time::Duration;

/// Waits that double: each is twice as long as the one before, up to the longest.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Waits that begin with `first`.
    #[must_use]
    pub(crate) fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { next: first, longest }
    }

    /// Waits for the next time.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(self.longest);
    }
}
