//! The idempotency claim of a call in flight.

use tokio::sync::oneshot;

use super::recorder::ReplyRecorder;
use crate::idempotency::FirstAttempt;
use crate::idempotency::{AttemptId, IdempotencyKey};
use crate::ledger::{AccountName, Lease};

pub(in crate::gateway) const DELIVERED_BYTES_MAX: usize = 64 << 10;

/// The idempotency claim of a call in flight, and the recording of its reply.
#[derive(Debug)]
pub(crate) struct IdempotentCall {
    pub(super) account: AccountName,
    pub(super) claim: Claim,
    /// What the attempts of the call have in common; `None` if it has an idempotency key.
    pub(super) attempt_id: Option<AttemptId>,
    /// A reply of at most this many bytes is stored even if it seems delivered: the connection may
    /// have failed without notice.
    pub(super) delivered_bytes_max: usize,
    /// Whether the client did not receive the whole reply.
    pub(super) is_undelivered: bool,
    pub(super) recorder: ReplyRecorder,
}

/// Where the claim of a call is.
#[derive(Debug)]
pub(super) enum Claim {
    /// In the memory of this process, until somebody asks for it.
    InMemory(FirstAttempt),
    /// In the store.
    Stored(StoredClaim),
}

/// A claim in the store.
#[derive(Debug)]
pub(super) struct StoredClaim {
    pub(super) key: IdempotencyKey,
    /// Closes when the claim that was started in the background has been made. `None` if there is
    /// no such claim, or it has been awaited already.
    pub(super) background: Option<oneshot::Receiver<()>>,
    pub(super) lease: Lease,
}

impl IdempotentCall {
    /// Whether the store has, or may have, the claim.
    pub(crate) fn is_claim_stored(&self) -> bool {
        matches!(self.claim, Claim::Stored(_))
    }

    pub(super) fn is_keyed(&self) -> bool {
        self.attempt_id.is_none()
    }
}
