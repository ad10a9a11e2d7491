//! The outbox: every settlement and void is written to this machine's disk before it is sent to the
//! store, sent again until the store acknowledges it, and replayed when the store may have lost it.
//!
//! No charge is lost when the store is unavailable, when it falls back to an older state, or when
//! this process dies: the next process on the machine adopts the segments that a dead process left.
//! An operation that the store gets twice changes nothing the second time, since every operation
//! carries the id of its hold.
//!
//! A shared store has an outbox, since it may be unavailable or lose writes. An embedded store has
//! one too, since it commits a moment later: if the process dies in between, the charge for a
//! delivered response must not be lost.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::redis::{RedisStore, RunScripts};
use super::section::StoreSection;
use super::sqlite::SqliteStore;
use crate::failpoints::failpoint;
use crate::jobs::JobQueue as _;
use crate::ledger::account::Balances;
use crate::ledger::{
    AccountName, AccountSettings, BudgetOwner, BudgetUse, HoldCursor, JournalEntry, KeyHash, KeyId,
    KeyPage, KeyRange, KeyRecord, KeyScope, Ledger, OpenHold, OpenLot, Operation, Outcome, Receipt,
    Replaced, Replacement, SweepReport, TransferEntry, TransferPlace, Unavailable, WindowKind,
};
use crate::metrics::METRICS;
use crate::money::Money;
use crate::permissions;

mod attempt_marker;
mod call_keys;
mod embedded_logs;
mod end_files;
mod end_log;
mod end_record;
mod folder_name;
mod fsync_thread;
mod job_orders;
mod job_queue;
mod orphaned_ends;
mod record;
mod replay;
mod replies;
mod retention;
mod segment_dir;
mod segment_files;
mod segment_writer;
mod settlement_log;
mod started_calls;
mod superseded;
mod target;

pub(super) use attempt_marker::{AttemptMarker, OtherMarkers};
use embedded_logs::ENDS_SUFFIX;
pub(super) use embedded_logs::{EmbeddedLog, LogFile};
pub(super) use end_files::{AllotmentKey, EndFiles, LastEnd, WantedEnds};
pub(super) use end_log::EndLog;
use folder_name::folder_name_for;
use job_orders::OrderRecord;
pub(super) use job_queue::OutboxQueue;
pub(super) use orphaned_ends::OrphanedEnds;
pub(super) use replay::SegmentReplay;
pub(super) use replies::OutboxReplies;
pub(super) use retention::Retention;
use segment_dir::{SegmentDir, SegmentKind};
use settlement_log::HoldEndKey;
pub(super) use settlement_log::SettlementLog;
pub(super) use superseded::{SupersededCheck, begun_at};
pub(super) use target::{OutboxTarget, ServerRun};

/// An entry that the store has not acknowledged for this long is sent again. At most
/// `REDELIVERY_BATCH_MAX` entries are sent again at a time.
const REDELIVERY_INTERVAL: Duration = Duration::from_secs(5);
const REDELIVERY_BATCH_MAX: usize = 256;

/// A store with an outbox: settlements and voids are written to the outbox first, and then sent to
/// the store.
pub(super) struct Outbox<B> {
    pub(super) store: Arc<B>,
    pub(super) log: Arc<SettlementLog>,
}

impl<B: OutboxTarget> Outbox<B> {
    pub(super) fn new(store: Arc<B>, log: Arc<SettlementLog>) -> Outbox<B> {
        Outbox { store, log }
    }

    /// Sends again the entries that the store has not acknowledged for `REDELIVERY_INTERVAL`: the
    /// call that sent such an entry first may have been cancelled.
    pub(super) async fn redeliver(&self) {
        let again =
            self.log.take_unacked(REDELIVERY_INTERVAL, REDELIVERY_BATCH_MAX).into_iter().map(
                |(key, op)| async move {
                    // A failed delivery is repeated after the next interval.
                    let _ = self.deliver_entry(&key, &op).await;
                },
            );
        join_all(again).await;
    }

    /// Sends an entry to the store, and records the acknowledgement or the refusal in the log.
    async fn deliver_entry(
        &self,
        key: &HoldEndKey,
        op: &Operation,
    ) -> Result<Outcome, Unavailable> {
        let void = match self.log.superseded.get() {
            Some(check) => check.void_of_own(key.account(), op).await?,
            None => None,
        };
        let delivered = self.store.deliver(key.account(), void.as_ref().unwrap_or(op)).await;
        let (answer, run_id) = delivered.inspect_err(|_| self.log.record_refusal())?;
        failpoint!("settlement_committed");
        if let Some(run_id) = run_id {
            self.log.record_ack(key, run_id.as_ref());
        }
        failpoint!("settlement_noted");
        Ok(answer)
    }
}

impl SettlementLog {
    fn check_writable(&self) -> Result<(), Unavailable> {
        let unsound = || Unavailable("the outbox cannot be written".to_owned());
        self.is_writable().then_some(()).ok_or_else(unsound)
    }

    /// Opens the outbox of a shared store, in a folder that is named after the address of the
    /// store. Entries for another address stay in their own folders, since their holds belong to
    /// another store.
    pub(super) fn open_for_shared(
        section: &StoreSection,
        writable: Arc<AtomicBool>,
    ) -> Result<SettlementLog, Unavailable> {
        let all = Path::new(&section.outbox);
        let to_unavailable = |why: std::io::Error| Unavailable(format!("the outbox: {why}"));
        permissions::make_folder(all).map_err(to_unavailable)?;
        let root = all.join(folder_name_for(&section.url));
        let log = SettlementLog::open(&root, Retention::FOR_SERVER, writable)?;
        warn_foreign_segments(all, &root);
        Ok(log)
    }

    /// Opens the outbox of an embedded store, in the folder `<path>-outbox` beside its file.
    pub(super) fn open_for_embedded(path: &Path) -> Result<SettlementLog, Unavailable> {
        let root = EmbeddedLog::Settlements.root(path);
        SettlementLog::open(&root, Retention::FOR_EMBEDDED, Arc::new(AtomicBool::new(true)))
    }
}

impl EndLog {
    /// Opens the log of ends of an embedded store, in the folder `<path>-allotments` beside its
    /// file.
    pub(super) fn open_for_embedded(path: &Path) -> Result<EndLog, Unavailable> {
        let root = EmbeddedLog::Ends.root(path);
        EndLog::open(&root, Retention::FOR_ENDS, Arc::new(AtomicBool::new(true)))
    }

    /// Opens the log of ends of a shared store, beside the folder of its outbox.
    pub(super) fn open_for_shared(section: &StoreSection) -> Result<EndLog, Unavailable> {
        let name = folder_name_for(&section.url) + ENDS_SUFFIX;
        let root = Path::new(&section.outbox).join(name);
        EndLog::open(&root, Retention::FOR_SERVER, Arc::new(AtomicBool::new(true)))
    }
}

/// Logs segments that were left for another store address. If it is the same store, the operator
/// has to rename the folder.
fn warn_foreign_segments(all: &Path, own: &Path) {
    let Ok(places) = std::fs::read_dir(all) else { return };
    let mut own_ends = own.as_os_str().to_owned();
    own_ends.push(ENDS_SUFFIX);
    let is_own = |place: &std::path::PathBuf| place == own || *place.as_os_str() == own_ends;
    for place in places.flatten().map(|place| place.path()).filter(|place| !is_own(place)) {
        let orphans = SegmentDir::lock_orphans(&place).unwrap_or_default();
        let kinds = [SegmentKind::HoldEnds, SegmentKind::AllotmentEnds];
        let files = orphans.iter().flat_map(|dir| {
            kinds.into_iter().flat_map(|kind| dir.list_segments(kind).unwrap_or_default())
        });
        let written =
            |file| std::fs::File::open(file).and_then(|file| segment_files::written_length(&file));
        if files.into_iter().any(|file| written(file).is_ok_and(|bytes| bytes > 0)) {
            let is_of_ends = place.to_string_lossy().ends_with(ENDS_SUFFIX);
            let own = if is_of_ends { Path::new(&own_ends) } else { own };
            let name = own.file_name().unwrap_or_default();
            ::log::error!(
                event = "outbox_address_mismatch", place:?, name:?;
                "outbox has settlements for another store address; \
                 if it is the same store, rename the folder"
            );
            METRICS.outbox_errors.inc();
        }
    }
}

/// The run of a Redis server (`RunScripts::run_id`) that has applied an operation.
pub(super) struct RedisRunId(Arc<RunScripts>);

impl AsRef<str> for RedisRunId {
    fn as_ref(&self) -> &str {
        &self.0.run_id
    }
}

impl OutboxTarget for RedisStore {
    type RunId = RedisRunId;

    fn may_hold(&self) -> bool {
        self.may_place_holds()
    }

    async fn deliver(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> Result<(Outcome, Option<RedisRunId>), Unavailable> {
        let (answer, run) = self.apply_gated(account, op).await?;
        Ok((answer, run.map(RedisRunId)))
    }
}

/// A run of a Redis server, to which missing entries are replayed.
pub(super) struct RedisRun {
    pub(super) redis: Arc<RedisStore>,
    pub(super) run: Arc<RunScripts>,
    pub(super) store_id: Option<Arc<str>>,
}

impl ServerRun for RedisRun {
    fn name(&self) -> &str {
        &self.run.run_id
    }

    fn store_id(&self) -> Option<&str> {
        self.store_id.as_deref()
    }

    async fn apply_in(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> Result<Outcome, Unavailable> {
        self.redis.apply_in_run(&self.run, account, op).await
    }

    async fn which_ended(
        &self,
        account: &AccountName,
        ids: &[&str],
    ) -> Result<Vec<bool>, Unavailable> {
        self.redis.check_holds_ended(&self.run, account, ids).await
    }

    async fn replay_job_record(&self, record: OrderRecord) -> Result<bool, Unavailable> {
        match record {
            OrderRecord::Placed(order) => self.redis.restore_job(&order).await,
            // If a worker has claimed the job since, its revision is higher and this save is
            // refused: that worker has decided how the job goes on.
            OrderRecord::Accepted(mut claim, update) => {
                self.redis.save_claim(&mut claim, update).await
            }
            OrderRecord::Deleted(account, id) => {
                Ok(self.redis.delete_job(&account, &id).await?.is_some())
            }
        }
    }
}

impl OutboxTarget for SqliteStore {
    /// The identity of the database file takes the place of a run: a file never loses what it has
    /// committed, but another file may be at its path by now.
    type RunId = Arc<str>;

    fn may_hold(&self) -> bool {
        true
    }

    async fn deliver(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> Result<(Outcome, Option<Arc<str>>), Unavailable> {
        Ok((self.submit(account, op.clone()).await?, Some(self.file_identity())))
    }
}

impl ServerRun for Arc<SqliteStore> {
    fn name(&self) -> &str {
        &self.file_identity
    }

    fn store_id(&self) -> Option<&str> {
        Some(&self.store_id)
    }

    async fn apply_in(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> Result<Outcome, Unavailable> {
        self.submit(account, op.clone()).await
    }

    /// Returns `false` for every hold: a file gets few entries by replay, and each only once, so a
    /// lookup before that would save nothing.
    async fn which_ended(&self, _: &AccountName, ids: &[&str]) -> Result<Vec<bool>, Unavailable> {
        Ok(vec![false; ids.len()])
    }

    /// Restores nothing: a job is in the file before its client gets the response.
    async fn replay_job_record(&self, _: OrderRecord) -> Result<bool, Unavailable> {
        Ok(false)
    }
}

#[async_trait]
impl<B: OutboxTarget> Ledger for Outbox<B> {
    async fn open_account(&self, account: &AccountName) -> Result<bool, Unavailable> {
        self.store.open_account(account).await
    }

    fn submit<'a>(&'a self, account: &'a AccountName, op: Operation) -> Receipt<'a> {
        if matches!(op, Operation::Settle { .. } | Operation::Void { .. }) {
            let op = Arc::new(op);
            let key = self.log.append(account, &op);
            return Receipt::start(async move { self.deliver_entry(&key, &op).await });
        }
        Receipt::start(async move {
            let is_hold = matches!(op, Operation::Hold { .. });
            if is_hold {
                self.log.check_writable()?;
            }
            let answer = self.store.submit(account, op).await;
            failpoint!("hold_placed", if is_hold && matches!(answer, Ok(Outcome::Held(_))));
            answer.inspect_err(|_| self.log.record_refusal())
        })
    }

    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable> {
        self.store.balances(account).await
    }

    async fn account_deletion(&self, account: &AccountName) -> Result<Option<i64>, Unavailable> {
        self.store.account_deletion(account).await
    }

    async fn list_accounts(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.store.list_accounts().await
    }

    async fn read_journal(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<JournalEntry>, Unavailable> {
        self.store.read_journal(account, seq, limit).await
    }

    async fn list_lots(&self, account: &AccountName) -> Result<Vec<OpenLot>, Unavailable> {
        self.store.list_lots(account).await
    }

    async fn list_holds(
        &self,
        account: Option<&AccountName>,
        after: Option<&HoldCursor>,
        limit: u32,
    ) -> Result<Vec<OpenHold>, Unavailable> {
        self.store.list_holds(account, after, limit).await
    }

    async fn list_transfers(
        &self,
        account: &AccountName,
        skipped: u64,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        self.store.list_transfers(account, skipped, limit).await
    }

    async fn newest_transfers(
        &self,
        account: &AccountName,
        before: Option<&TransferPlace>,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        self.store.newest_transfers(account, before, limit).await
    }

    async fn journal_length(&self, account: &AccountName) -> Result<u64, Unavailable> {
        self.store.journal_length(account).await
    }

    async fn expire_holds(&self) -> Result<SweepReport, Unavailable> {
        self.store.expire_holds().await
    }

    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable> {
        self.store.add_key(hash, record).await
    }

    async fn find_key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable> {
        self.store.find_key(hash).await
    }

    async fn find_key_by_prefix(&self, prefix: &str) -> Result<Option<KeyRecord>, Unavailable> {
        self.store.find_key_by_prefix(prefix).await
    }

    async fn list_keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable> {
        self.store.list_keys(account).await
    }

    async fn list_keys_in(
        &self,
        account: &AccountName,
        range: KeyRange,
    ) -> Result<KeyPage, Unavailable> {
        self.store.list_keys_in(account, range).await
    }

    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable> {
        self.store.revoke_key(prefix, at).await
    }

    async fn set_key_scope(
        &self,
        prefix: &str,
        scope: Replacement<KeyScope>,
    ) -> Result<Replaced, Unavailable> {
        self.store.set_key_scope(prefix, scope).await
    }

    async fn key_revision(&self) -> Result<u64, Unavailable> {
        self.store.key_revision().await
    }

    async fn set_budget(
        &self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> Result<bool, Unavailable> {
        self.store.set_budget(account, owner, kind, limit).await
    }

    async fn list_budgets(&self, account: &AccountName) -> Result<Vec<BudgetUse>, Unavailable> {
        self.store.list_budgets(account).await
    }

    async fn list_budgets_of(
        &self,
        account: &AccountName,
        keys: &[KeyId],
    ) -> Result<Vec<BudgetUse>, Unavailable> {
        self.store.list_budgets_of(account, keys).await
    }

    async fn set_account_settings(
        &self,
        account: &AccountName,
        settings: Replacement<AccountSettings>,
    ) -> Result<Replaced, Unavailable> {
        self.store.set_account_settings(account, settings).await
    }

    async fn account_settings(
        &self,
        account: &AccountName,
    ) -> Result<Option<AccountSettings>, Unavailable> {
        self.store.account_settings(account).await
    }

    async fn list_suspended(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.store.list_suspended().await
    }

    async fn note_key_uses(&self, uses: Vec<(KeyHash, i64)>) -> Result<(), Unavailable> {
        self.store.note_key_uses(uses).await
    }

    async fn accepts_holds(&self) -> Result<(), Unavailable> {
        self.log.check_writable()?;
        self.store.accepts_holds().await
    }

    async fn ping(&self) -> Result<(), Unavailable> {
        self.log.check_writable()?;
        self.store.ping().await
    }
}
