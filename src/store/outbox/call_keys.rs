//! Gives a store the idempotency keys of calls that the outbox has recorded: of those that died
//! with their process, and of those whose charges the store lacks. They come with a lease that is
//! over, so that a repeat asks the ledger how the call ended.

use std::collections::HashMap;
use std::sync::OnceLock;

use futures_util::future::join_all;

use super::segment_dir::SegmentDir;
use super::segment_files::or_log_error;
use super::started_calls::{self, RecordedCall};
use crate::idempotency::{ClaimMode, ReplyStore};
use crate::ledger::{Operation, Unavailable};

/// At most this many keys are claimed at the same time.
const CONCURRENCY_MAX: usize = 128;

/// The calls that a folder has recorded, by their ids. They are read when the first is looked for.
pub(super) struct CallsByOwner<'a> {
    dir: &'a SegmentDir,
    found: OnceLock<HashMap<String, RecordedCall>>,
}

impl<'a> CallsByOwner<'a> {
    pub(super) fn new(dir: &'a SegmentDir) -> CallsByOwner<'a> {
        CallsByOwner { dir, found: OnceLock::new() }
    }

    /// Returns the recorded call of a charge; `None` if that has no idempotency key, or the
    /// operation is no charge.
    pub(super) fn of_charge(&self, op: &Operation) -> Option<&RecordedCall> {
        let Operation::Settle { id, .. } = op else { return None };
        let by_owner = |call: RecordedCall| (call.key.owner.clone(), call);
        let read_all = || read(self.dir).into_iter().map(by_owner).collect();
        self.found.get_or_init(read_all).get(id)
    }
}

fn read(dir: &SegmentDir) -> Vec<RecordedCall> {
    or_log_error(&dir.path, started_calls::read_calls(dir))
}

/// Expires the keys of the calls in a folder that have not ended.
///
/// # Errors
/// The store does not answer.
pub(super) async fn release_dead(
    store: &dyn ReplyStore,
    dir: &SegmentDir,
) -> Result<(), Unavailable> {
    let calls = read(dir);
    let dead: Vec<&RecordedCall> = calls.iter().filter(|call| !call.has_ended).collect();
    for few in dead.chunks(CONCURRENCY_MAX) {
        expire(store, few.iter().copied()).await?;
    }
    if !dead.is_empty() {
        log::info!(
            event = "idempotency_keys_released", names = dead.len();
            "idempotency keys of dead calls released"
        );
    }
    Ok(())
}

/// Expires the keys of calls. A key that another call has, or whose reply is stored, stays as it
/// is.
///
/// # Errors
/// The store does not answer.
pub(super) async fn expire<'a>(
    store: &dyn ReplyStore,
    calls: impl Iterator<Item = &'a RecordedCall>,
) -> Result<(), Unavailable> {
    // A lease of 0 ms expires at once. If the store has lost the key, this creates it again.
    let claims = calls.map(|RecordedCall { account, key, .. }| {
        store.claim_key(account, key, &ClaimMode::IfFree, 0)
    });
    join_all(claims).await.into_iter().try_for_each(|claimed| claimed.map(drop))
}
