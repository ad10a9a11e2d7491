//! The wait between retries.

use std::time::Duration;

/// Waits that double: each is twice as long as the one before, up to the longest.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Waits that begin with `first`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { next: first, longest }
    }

    /// Waits for the next time.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(self.longest);
    }
}
