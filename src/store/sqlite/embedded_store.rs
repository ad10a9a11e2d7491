//! The embedded store: creates and opens its file, and starts the threads that serve it.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;

use super::super::section::StoreSection;
use super::disk::DiskSync;
use super::file_identity::{FileId, OpenFiles, side_file};
use super::reader::ReadThread;
use super::schema::{self, BUSY_TIMEOUT};
use super::usage_rows::FoldCursor;
use super::writer::{Priority, WriteScheduler};
use crate::ledger::Unavailable;
use crate::permissions;

/// A ledger, cache, job queue and reply store in one SQLite file.
pub struct SqliteStore {
    pub(super) scheduler: Arc<WriteScheduler>,
    pub(super) reader: ReadThread,
    /// Reads sums of usage and the lines that go into them: others do not wait for a long page.
    pub(super) usage_reader: ReadThread,
    /// The identity of the file among all files that were ever at its path.
    pub(in crate::store) file_identity: Arc<str>,
    /// The id of the store, which a copy of the file has too.
    pub(in crate::store) store_id: String,
    /// The most bytes of replies, cache entries and bodies for vendors that are kept.
    pub(super) kept_bytes_max: u64,
    /// How long an operation is repeated whose money is lent.
    pub(super) lent_wait: Duration,
    /// Where folding goes on.
    pub(super) fold_cursor: Arc<FoldCursor>,
}

impl SqliteStore {
    /// Creates a store in a file, unless the file has one. Returns whether it is new.
    ///
    /// # Errors
    /// [`Unavailable`] if the file is something else, or cannot be created.
    pub fn create(path: &Path) -> Result<bool, Unavailable> {
        let to_unavailable = |what: String| Unavailable(format!("{}: {what}", path.display()));
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            permissions::make_shared_folder(folder).map_err(|e| to_unavailable(e.to_string()))?;
        }
        let log = side_file(path, "-wal");
        if is_missing_or_empty(path) && !is_missing_or_empty(&log) {
            let log = log.display();
            return Err(to_unavailable(format!(
                "{log} is left of another store; move it away first"
            )));
        }
        if is_missing_or_empty(path) {
            // SQLite gives the files beside it the same permissions.
            permissions::make_file(path).map_err(|e| to_unavailable(e.to_string()))?;
        }
        schema::create(path, BUSY_TIMEOUT).map_err(to_unavailable)
    }

    /// Opens the file of a store.
    ///
    /// # Errors
    /// [`Unavailable`] if there is no store, or with SQLite's own message.
    pub fn open(path: &Path) -> Result<SqliteStore, Unavailable> {
        let to_unavailable = |what: String| Unavailable(format!("{}: {what}", path.display()));
        if is_missing_or_empty(path) {
            return Err(to_unavailable(
                "there is no store; `tollgate init` makes a new one".to_owned(),
            ));
        }
        for ending in ["", "-wal", "-shm"] {
            let closed = permissions::restrict_file(&side_file(path, ending));
            closed.map_err(|e| to_unavailable(e.to_string()))?;
        }
        let opened = FileId::of(path).map_err(|e| to_unavailable(e.to_string()))?;
        let (connection, skip_busy_wait) =
            schema::open(path, BUSY_TIMEOUT).map_err(&to_unavailable)?;
        let store_id =
            schema::ensure_store_id(&connection).map_err(|e| to_unavailable(e.to_string()))?;
        let wal = open_wal(&side_file(path, "-wal")).map_err(|e| to_unavailable(e.to_string()))?;
        // The outbox records the id of the store that its entries are for, so the id must survive a
        // power cut.
        wal.sync_data().map_err(|e| to_unavailable(e.to_string()))?;
        // The folder is synced too: after a power cut, a file whose name is not in the folder is
        // lost with all that was committed.
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(".".as_ref());
        File::open(folder).and_then(|f| f.sync_all()).map_err(|e| to_unavailable(e.to_string()))?;
        let open_reader = |name| ReadThread::open(path, name).map_err(&to_unavailable);
        let (reader, usage_reader) = (open_reader("notes-reader")?, open_reader("usage-reader")?);
        let checkpoint_connection = schema::open_secondary(path, BUSY_TIMEOUT)
            .map_err(|e| to_unavailable(e.to_string()))?;
        let files = OpenFiles::capture(path, opened).map_err(|e| to_unavailable(e.to_string()))?;
        let (written, to_sync) = mpsc::channel();
        let scheduler = WriteScheduler::new(connection, skip_busy_wait, written);
        let file_identity = files.identity().into();
        let disk = DiskSync::new(wal, files, checkpoint_connection, Arc::downgrade(&scheduler));
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.to_owned()).spawn(body)
        };
        let serving = scheduler.clone();
        spawn("ledger-writer", Box::new(move || serving.run_write_loop()))
            .and_then(|_| spawn("ledger-sync", Box::new(move || disk.run_sync_loop(&to_sync))))
            .map_err(|e| to_unavailable(e.to_string()))?;
        let StoreSection { kept_bytes_max, .. } = StoreSection::default();
        let (lent_wait, fold_cursor) = (Duration::ZERO, Arc::<FoldCursor>::default());
        Ok(SqliteStore {
            scheduler,
            reader,
            usage_reader,
            file_identity,
            store_id,
            kept_bytes_max,
            lent_wait,
            fold_cursor,
        })
    }

    /// Runs a write job. Its failure is no failure of the transaction, which has operations of
    /// other callers as well, unless SQLite has ended the transaction. So the last statement of the
    /// job must be the one that counts.
    pub(super) async fn write_alone<T, F>(&self, job: F) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let done = self.scheduler.run(Priority::NowDurable, move |txn| match job(txn.conn) {
            Err(why) if !txn.conn.is_autocommit() => Ok(Err(Unavailable(why.to_string()))),
            done => done.map(Ok),
        });
        done.await?
    }

    /// Sets the most bytes of replies, cache entries and bodies for vendors that the store keeps.
    #[must_use]
    pub(crate) fn with_kept_bytes_max(mut self, kept_bytes_max: u64) -> SqliteStore {
        self.kept_bytes_max = kept_bytes_max;
        self
    }

    /// Sets how long an operation is repeated whose money is lent.
    #[must_use]
    pub(crate) fn with_lent_wait(mut self, lent_wait: Duration) -> SqliteStore {
        self.lent_wait = lent_wait;
        self
    }

    /// Returns the identity of the file among all files that were ever at its path.
    pub(in crate::store) fn file_identity(&self) -> Arc<str> {
        self.file_identity.clone()
    }
}

/// Whether the file is missing or empty.
pub(super) fn is_missing_or_empty(path: &Path) -> bool {
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
