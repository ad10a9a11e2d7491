//! Gives a store the idempotency keys of calls that the outbox has recorded: of those that died
//! with their process, and of those whose charges or video jobs the store lacks. They come with a
//! lease that is over, so that a repeat asks the ledger how the call ended; the key of a call of
//! this process that may still run, with one that is not.

use std::collections::HashMap;

use futures_util::future::join_all;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use super::record::SettlementEntry;
use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_files::or_log_error;
use super::started_calls::{self, RecordedCall};
use crate::idempotency::{ClaimMode, RACE_PREFIX, ReplyStore};
use crate::ledger::Unavailable;

/// At most this many keys are claimed at the same time.
const CONCURRENCY_MAX: usize = 128;
/// The lease of a key whose call may not have stored its reply yet, in ms. A call that has given
/// that up does not renew it.
const RUNNING_LEASE_MS: u64 = 60_000;

/// The calls that a folder has recorded under keys, by their ids. They are read when the first is
/// looked for.
pub(super) struct KeyedCalls<'a> {
    dir: &'a SegmentDir,
    /// Whether calls may still run.
    is_own: bool,
    found: OnceCell<HashMap<String, RecordedCall>>,
}

impl<'a> KeyedCalls<'a> {
    pub(super) fn new(dir: &'a SegmentDir, is_own: bool) -> KeyedCalls<'a> {
        KeyedCalls { dir, is_own, found: OnceCell::new() }
    }

    async fn find(&self, id: &str) -> Option<&RecordedCall> {
        let found = self.found.get_or_init(async || {
            let calls = read(self.dir).await.into_iter();
            // The entry by which a retry excludes a late charge has the same owner.
            let is_key = |call: &RecordedCall| !call.key.name.starts_with(RACE_PREFIX);
            calls.filter(is_key).map(|call| (call.key.owner.clone(), call)).collect()
        });
        found.await.get(id)
    }

    /// Separates the hold ends of calls with idempotency keys from others. Both parts keep their
    /// order.
    pub(super) async fn split_keyed(
        &self,
        entries: Vec<SettlementEntry>,
    ) -> (Vec<SettlementEntry>, Vec<SettlementEntry>) {
        let (mut keyed, mut others) = (Vec::new(), Vec::new());
        for entry in entries {
            let is_keyed = self.find(entry.op.hold_id().unwrap_or_default()).await.is_some();
            let part = if is_keyed { &mut keyed } else { &mut others };
            part.push(entry);
        }
        (keyed, others)
    }

    /// Gives the store the keys of these calls, if it lacks them. A key that another call has, or
    /// whose reply is stored, stays as it is.
    ///
    /// # Errors
    /// The store does not answer.
    pub(super) async fn restore_keys(
        &self,
        store: &dyn ReplyStore,
        ids: impl Iterator<Item = &str>,
    ) -> Result<(), Unavailable> {
        claim_again(store, self.find_with_leases(ids).await).await
    }

    /// Returns the calls among `ids`, each with the lease in ms with which its key comes back.
    async fn find_with_leases<'i>(
        &self,
        ids: impl Iterator<Item = &'i str>,
    ) -> Vec<(&RecordedCall, u64)> {
        let found = join_all(ids.map(|id| self.find(id))).await;
        let calls = found.into_iter().flatten().map(|call| {
            let may_run = self.is_own && !call.has_ended;
            (call, if may_run { RUNNING_LEASE_MS } else { 0 })
        });
        calls.collect()
    }
}

async fn read(dir: &SegmentDir) -> Vec<RecordedCall> {
    let files = or_log_error(&dir.path, dir.list_segments(SegmentKind::Calls));
    spawn_blocking(move || started_calls::read_calls(&files)).await.unwrap_or_default()
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
        // A lease of 0 ms expires at once. If the store has lost the key, this creates it again.
        claim_again(store, few.iter().map(|call| (*call, 0))).await?;
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

/// Claims keys again for their calls, each for a lease in ms.
async fn claim_again<'a>(
    store: &dyn ReplyStore,
    calls: impl IntoIterator<Item = (&'a RecordedCall, u64)>,
) -> Result<(), Unavailable> {
    let claims = calls.into_iter().map(|(RecordedCall { account, key, .. }, lease_ms)| {
        store.claim_key(account, key, &ClaimMode::Restore, lease_ms)
    });
    join_all(claims).await.into_iter().try_for_each(|claimed| claimed.map(drop))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::started_calls::StartedCalls;
    use super::*;
    use crate::idempotency::IdempotencyKey;
    use crate::ledger::{AccountName, Operation};
    use crate::money::Money;

    fn key(owner: &str) -> IdempotencyKey {
        let (name, owner) = (format!("key:{owner}"), owner.to_owned());
        IdempotencyKey { name, content: [7; 32], owner, life_ms: 60_000 }
    }

    /// Its reply could still be stored, and a repeat was told that it was lost.
    #[tokio::test]
    async fn the_key_of_a_call_that_still_ran_came_back_with_a_lease_that_was_over() {
        let root = tempfile::tempdir().expect("a folder");
        let dir = Arc::new(SegmentDir::create(root.path()).expect("a folder"));
        let (account, started) =
            (AccountName::parse("a").expect("a name"), StartedCalls::default());
        for owner in ["ended", "runs"] {
            started.record_start(&account, &key(owner), || dir.clone()).expect("a write");
        }
        started.record_end(&account, "key:ended", "ended");
        started.write_ended(|| dir.clone());
        for (is_own, lease) in [(true, RUNNING_LEASE_MS), (false, 0)] {
            let calls = KeyedCalls::new(&dir, is_own);
            let found = calls.find_with_leases(["runs", "ended", "unknown"].into_iter()).await;
            let found: Vec<_> = found.iter().map(|(c, lease)| (&*c.key.owner, *lease)).collect();
            assert_eq!(found, [("runs", lease), ("ended", 0)]);
        }
    }

    /// A repeat has voided the hold of a call, whose late charge was refused after that.
    #[tokio::test]
    async fn a_void_followed_behind_the_settlement_that_it_had_come_before() {
        let root = tempfile::tempdir().expect("a folder");
        let dir = Arc::new(SegmentDir::create(root.path()).expect("a folder"));
        let account = AccountName::parse("a").expect("a name");
        StartedCalls::default().record_start(&account, &key("x"), || dir.clone()).expect("a write");
        let settle = |id: &str| {
            let (id, line, origin) = (id.to_owned(), "{}".to_owned(), None);
            Operation::Settle { id, charge: Money::ZERO, line, origin, tokens: None }
        };
        let void = |id: &str| Operation::Void { id: id.to_owned() };
        let ops = [void("x"), settle("y"), settle("x"), void("y")];
        let entries = (1..).zip(ops).map(|(seq, op)| SettlementEntry {
            seq,
            at: 0,
            account: account.clone(),
            op,
        });
        let (keyed, others) = KeyedCalls::new(&dir, false).split_keyed(entries.collect()).await;
        let seqs = |part: &[SettlementEntry]| part.iter().map(|e| e.seq).collect::<Vec<_>>();
        assert_eq!((seqs(&keyed), seqs(&others)), (vec![1, 3], vec![2, 4]));
    }
}
