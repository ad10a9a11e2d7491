//! The embedded store: SQLite on disk, written by one at a time.
//!
//! Operations queue up, and whoever asks for a hold does all that are waiting in one transaction;
//! what takes long is left to a thread. A commit does not wait for the disk, so a hold costs no
//! disk wait; payments and charges are acknowledged by a second thread once the log that holds them
//! is on disk. That is what `synchronous = FULL` promises, without making holds wait for the
//! charges of others.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;

use super::StoreSection;
use crate::ledger::account::Balances;
use crate::ledger::{
    AccountName, JournalEntry, KeyHash, KeyRecord, Ledger, Operation, Outcome, SweepReport,
    Unavailable,
};
use crate::permissions;

mod accounts;
mod disk;
mod file_identity;
mod holds;
mod idempotency;
mod jobs;
mod kept_bytes;
mod keys;
mod kv_cache;
mod queue;
mod reader;
mod schema;
mod write_txn;
mod writer;

use disk::DiskSync;
use file_identity::{FileId, OpenFiles, side_file};
use reader::ReadThread;
use writer::{Priority, WriteScheduler};

/// How long to wait for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Steps in which one sweep forgets holds that ended long ago, at most.
const HOLD_PURGE_STEPS_MAX: u32 = 40;
/// The same for notes whose time has come. They are large, so the steps are smaller.
const NOTE_PURGE_STEPS_MAX: u32 = 400;
/// The same for names of calls, and for replies.
const REPLY_PURGE_STEPS_MAX: u32 = 100;

/// A ledger, cache, job queue and reply store in one SQLite file.
pub struct SqliteStore {
    scheduler: Arc<WriteScheduler>,
    reader: ReadThread,
    /// Names the file among all that were ever at its path.
    pub(super) file_identity: Arc<str>,
    /// Names the store, also in a copy of the file.
    pub(super) store_id: String,
    /// Bytes of what is kept beside the books, at most.
    kept_bytes_max: u64,
}

impl SqliteStore {
    /// Makes a store in a file, unless there is one. Tells whether it is new.
    ///
    /// # Errors
    /// [`Unavailable`] if the file is something else, or cannot be made.
    pub fn create(path: &Path) -> Result<bool, Unavailable> {
        let cannot = |what: String| Unavailable(format!("{}: {what}", path.display()));
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            permissions::make_shared_folder(folder).map_err(|e| cannot(e.to_string()))?;
        }
        let log = side_file(path, "-wal");
        if is_missing_or_empty(path) && !is_missing_or_empty(&log) {
            let log = log.display();
            return Err(cannot(format!("{log} is left of another store; move it away first")));
        }
        if is_missing_or_empty(path) {
            // SQLite makes those beside it like it.
            permissions::make_file(path).map_err(|e| cannot(e.to_string()))?;
        }
        schema::create(path, BUSY_TIMEOUT).map_err(cannot)
    }

    /// Opens the file of a store.
    ///
    /// # Errors
    /// [`Unavailable`] if there is none, or with SQLite's own words.
    pub fn open(path: &Path) -> Result<SqliteStore, Unavailable> {
        let cannot = |what: String| Unavailable(format!("{}: {what}", path.display()));
        if is_missing_or_empty(path) {
            return Err(cannot("there is no store; `tollgate init` makes a new one".to_owned()));
        }
        for ending in ["", "-wal", "-shm"] {
            let closed = permissions::restrict_file(&side_file(path, ending));
            closed.map_err(|e| cannot(e.to_string()))?;
        }
        let opened = FileId::of(path).map_err(|e| cannot(e.to_string()))?;
        let (connection, skip_busy_wait) = schema::open(path, BUSY_TIMEOUT).map_err(&cannot)?;
        let store_id = schema::ensure_store_id(&connection).map_err(|e| cannot(e.to_string()))?;
        let wal = open_wal(&side_file(path, "-wal")).map_err(|e| cannot(e.to_string()))?;
        // The outbox notes which store its lines are for: the name has to outlive a power cut.
        wal.sync_data().map_err(|e| cannot(e.to_string()))?;
        // Files of which the folder knows nothing after a power cut have not kept anything.
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(".".as_ref());
        File::open(folder).and_then(|f| f.sync_all()).map_err(|e| cannot(e.to_string()))?;
        let reader = ReadThread::open(path).map_err(&cannot)?;
        let aside =
            schema::open_secondary(path, BUSY_TIMEOUT).map_err(|e| cannot(e.to_string()))?;
        let files = OpenFiles::capture(path, opened).map_err(|e| cannot(e.to_string()))?;
        let (written, to_sync) = mpsc::channel();
        let scheduler = WriteScheduler::new(connection, skip_busy_wait, written);
        let file_identity = files.identity().into();
        let disk = DiskSync::new((wal, files), aside, Arc::downgrade(&scheduler));
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.to_owned()).spawn(body)
        };
        let serving = scheduler.clone();
        spawn("ledger-writer", Box::new(move || serving.run_write_loop()))
            .and_then(|_| spawn("ledger-sync", Box::new(move || disk.run_sync_loop(&to_sync))))
            .map_err(|e| cannot(e.to_string()))?;
        let StoreSection { kept_bytes_max, .. } = StoreSection::default();
        Ok(SqliteStore { scheduler, reader, file_identity, store_id, kept_bytes_max })
    }

    /// The same, that keeps so many bytes of replies, notes and bodies for vendors, at most.
    #[must_use]
    pub fn with_kept_bytes_max(mut self, kept_bytes_max: u64) -> SqliteStore {
        self.kept_bytes_max = kept_bytes_max;
        self
    }

    /// The name of its file among all that were ever at its path.
    pub(super) fn file_identity(&self) -> Arc<str> {
        self.file_identity.clone()
    }
}

/// Whether there is no file, or nothing in it.
fn is_missing_or_empty(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |about| about.len() == 0)
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.scheduler.close();
    }
}

fn open_wal(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

#[async_trait]
impl Ledger for SqliteStore {
    async fn open_account(&self, account: &AccountName) -> Result<bool, Unavailable> {
        let account = account.clone();
        self.scheduler
            .run(Priority::ThreadDurable, move |txn| accounts::open(txn.conn, &account))
            .await
    }

    async fn apply(&self, account: &AccountName, op: Operation) -> Result<Outcome, Unavailable> {
        let account = account.clone();
        let when = match op {
            Operation::Credit { .. } => Priority::ThreadDurable,
            Operation::Settle { .. } | Operation::Checkpoint { .. } => Priority::DeferredDurable,
            Operation::Hold { .. }
            | Operation::Extend { .. }
            | Operation::Renew { .. }
            | Operation::Void { .. } => Priority::Inline,
        };
        self.scheduler
            .run(when, move |txn| match &op {
                Operation::Credit { tx, amount } => accounts::credit(txn, &account, tx, *amount),
                op => holds::apply_operation(txn, &account, op),
            })
            .await
    }

    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable> {
        let account = account.clone();
        self.scheduler.run(Priority::Inline, move |txn| txn.balances(&account)).await
    }

    async fn list_accounts(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.scheduler.run(Priority::Thread, |txn| accounts::list(txn.conn)).await
    }

    async fn read_journal(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<JournalEntry>, Unavailable> {
        let account = account.clone();
        self.scheduler
            .run(Priority::Thread, move |txn| {
                accounts::read_journal(txn.conn, &account, seq, limit)
            })
            .await
    }

    async fn expire_holds(&self) -> Result<SweepReport, Unavailable> {
        let swept = self.scheduler.run(Priority::ThreadDurable, holds::expire_due).await?;
        // In small steps, so that no call waits long for the writer.
        for _ in 0..HOLD_PURGE_STEPS_MAX {
            if self.scheduler.run(Priority::Thread, |txn| holds::purge_ended(txn.conn)).await? == 0
            {
                break;
            }
        }
        for _ in 0..NOTE_PURGE_STEPS_MAX {
            if self.scheduler.run(Priority::Thread, |txn| kv_cache::purge_expired(txn.conn)).await?
                == 0
            {
                break;
            }
        }
        for _ in 0..REPLY_PURGE_STEPS_MAX {
            if self
                .scheduler
                .run(Priority::Thread, |txn| idempotency::purge_expired(txn.conn))
                .await?
                == 0
            {
                break;
            }
        }
        let most = self.kept_bytes_max;
        for _ in 0..REPLY_PURGE_STEPS_MAX {
            if self
                .scheduler
                .run(Priority::Thread, move |txn| kept_bytes::evict_excess(txn.conn, most))
                .await?
                == 0
            {
                break;
            }
        }
        Ok(swept)
    }

    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable> {
        self.scheduler
            .run(Priority::ThreadDurable, move |txn| keys::add(txn.conn, hash, &record))
            .await?
    }

    async fn find_key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable> {
        self.scheduler.run(Priority::Inline, move |txn| keys::find(txn.conn, hash)).await
    }

    async fn list_keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable> {
        let account = account.clone();
        self.scheduler.run(Priority::Thread, move |txn| keys::list(txn.conn, &account)).await
    }

    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable> {
        let prefix = prefix.to_owned();
        self.scheduler
            .run(Priority::ThreadDurable, move |txn| keys::revoke(txn.conn, &prefix, at))
            .await
    }

    async fn ping(&self) -> Result<(), Unavailable> {
        self.scheduler.run(Priority::Thread, |_| Ok(())).await
    }
}

/// The clock of this store, in unix ms.
fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|d| i64::try_from(d.as_millis()).ok()).unwrap_or_default()
}
