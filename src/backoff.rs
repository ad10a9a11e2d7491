//! The wait between retries, which doubles up to a maximum.

use std::time::Duration;

/// Pauses that double: each is twice as long as the one before, up to `longest`.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Makes a sequence of pauses that begins with `first`.
    #[must_use]
    pub(crate) fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { next: first, longest }
    }

    /// Sleeps for the next pause.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(self.longest);
    }
}
