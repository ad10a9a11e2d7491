//! The idempotency claim of a call in flight.

use tokio::sync::oneshot;

use super::recorder::ReplyRecorder;
use crate::idempotency::IdempotencyKey;
use crate::ledger::{AccountName, Lease};

pub(in crate::gateway) const DELIVERED_BYTES_MAX: usize = 64 << 10;

/// The idempotency claim of a call in flight, and the recording of its reply.
#[derive(Debug)]
pub(crate) struct IdempotentCall {
    pub(super) account: AccountName,
    pub(super) key: IdempotencyKey,
    pub(super) is_keyed: bool,
    /// A reply of at most this many bytes is stored even if it seems delivered: the connection may
    /// have failed without notice.
    pub(super) delivered_bytes_max: usize,
    /// Whether the client did not receive the whole reply.
    pub(super) is_undelivered: bool,
    /// Closes when the claim that was started in the background has been made. `None` if there is
    /// no such claim, or it has been awaited already.
    pub(super) background_claim: Option<oneshot::Receiver<()>>,
    pub(super) recorder: ReplyRecorder,
    pub(super) lease: Lease,
}
