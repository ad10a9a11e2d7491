//! The processes that share a store, each with first attempts in its memory.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;

use super::attempt_id::AttemptId;
use crate::ledger::{AccountName, Unavailable};

/// What the other processes say about an attempt that this process does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetAnswer {
    /// If any process had the attempt, it is in the store now.
    AllAnswered,
    /// The same, but a process has forgotten attempts of the account to make room. If one of them
    /// was charged, it is in the journal.
    SomeForgotten,
    /// The same, but a process ended within the last ten minutes without writing its attempts to
    /// the store. If one of them was charged, it is in the journal.
    SomeLost,
    /// A process has not answered yet. The caller asks again.
    Waiting,
    /// Too many retries are being looked for.
    Busy,
}

/// The processes that share a store.
#[async_trait]
pub trait Fleet: Send + Sync {
    /// Asks the other processes for an attempt. `question` is the number of the question, which the
    /// first call sets; the caller passes it again if the answer is [`FleetAnswer::Waiting`].
    ///
    /// # Errors
    /// The store does not answer.
    async fn find_attempt(
        &self,
        account: &AccountName,
        id: &AttemptId,
        question: &mut Option<u64>,
    ) -> Result<FleetAnswer, Unavailable>;
}
