//! Gives a store the idempotency keys of calls that the outbox has recorded: of those that died
//! with their process, and of those whose charges the store lacks. They come with a lease that is
//! over, so that a repeat asks the ledger how the call ended.

use std::collections::HashMap;

use futures_util::future::join_all;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use super::record::SettlementEntry;
use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_files::or_log_error;
use super::started_calls::{self, RecordedCall};
use crate::idempotency::{ClaimMode, RACE_PREFIX, ReplyStore};
use crate::ledger::{Operation, Unavailable};

/// At most this many keys are claimed at the same time.
const CONCURRENCY_MAX: usize = 128;

/// The calls that a folder has recorded, by their ids. They are read when the first is looked for.
pub(super) struct CallsByOwner<'a> {
    dir: &'a SegmentDir,
    /// Whether calls may still run, which renew their keys themselves.
    is_own: bool,
    found: OnceCell<HashMap<String, RecordedCall>>,
}

impl<'a> CallsByOwner<'a> {
    pub(super) fn new(dir: &'a SegmentDir, is_own: bool) -> CallsByOwner<'a> {
        CallsByOwner { dir, is_own, found: OnceCell::new() }
    }

    /// Returns the recorded call of a charge; `None` if that has no idempotency key, or the
    /// operation is no charge.
    pub(super) async fn of_charge(&self, op: &Operation) -> Option<&RecordedCall> {
        let Operation::Settle { id, .. } = op else { return None };
        let found = self.found.get_or_init(async || {
            let calls = read(self.dir).await.into_iter();
            // The entry by which a retry excludes a late charge has the same owner.
            let is_key = |call: &RecordedCall| {
                !call.key.name.starts_with(RACE_PREFIX) && (call.has_ended || !self.is_own)
            };
            calls.filter(is_key).map(|call| (call.key.owner.clone(), call)).collect()
        });
        found.await.get(id)
    }

    /// Separates the charges of calls with idempotency keys from other entries. Both parts keep
    /// their order.
    pub(super) async fn split_keyed(
        &self,
        entries: Vec<SettlementEntry>,
    ) -> (Vec<SettlementEntry>, Vec<SettlementEntry>) {
        let (mut keyed, mut others) = (Vec::new(), Vec::new());
        for entry in entries {
            let part =
                if self.of_charge(&entry.op).await.is_some() { &mut keyed } else { &mut others };
            part.push(entry);
        }
        (keyed, others)
    }
}

async fn read(dir: &SegmentDir) -> Vec<RecordedCall> {
    let files = or_log_error(&dir.path, dir.list_segments(SegmentKind::Calls));
    let read = spawn_blocking(move || started_calls::read_calls(&files)).await;
    or_log_error(&dir.path, read.unwrap_or_else(|why| Err(why.into())))
}

/// Expires the keys of the calls in a folder that have not ended, and notes there that this was
/// done: a key may belong to another call afterwards.
///
/// # Errors
/// The store does not answer.
pub(super) async fn release_dead(
    store: &dyn ReplyStore,
    dir: &SegmentDir,
) -> Result<(), Unavailable> {
    let calls = read(dir).await;
    let dead: Vec<&RecordedCall> = calls.iter().filter(|call| !call.has_ended).collect();
    for few in dead.chunks(CONCURRENCY_MAX) {
        expire(store, few.iter().copied()).await?;
    }
    if !dead.is_empty() {
        log::info!(
            event = "idempotency_keys_released", names = dead.len();
            "idempotency keys of dead calls released"
        );
        or_log_error(&dir.path, started_calls::note_ended(dir, &dead));
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
        store.claim_key(account, key, &ClaimMode::Restore, 0)
    });
    join_all(claims).await.into_iter().try_for_each(|claimed| claimed.map(drop))
}
