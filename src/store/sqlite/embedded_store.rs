//! A file of the embedded store: made, opened, and served by its threads.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use super::super::section::StoreSection;
use super::disk::DiskSync;
use super::file_identity::{FileId, OpenFiles, side_file};
use super::reader::ReadThread;
use super::schema::{self, BUSY_TIMEOUT};
use super::writer::WriteScheduler;
use crate::ledger::Unavailable;
use crate::permissions;

/// A ledger, cache, job queue and reply store in one SQLite file.
pub struct SqliteStore {
    pub(super) scheduler: Arc<WriteScheduler>,
    pub(super) reader: ReadThread,
    /// Names the file among all that were ever at its path.
    pub(in crate::store) file_identity: Arc<str>,
    /// Names the store, also in a copy of the file.
    pub(in crate::store) store_id: String,
    /// Bytes of what is kept beside the books, at most.
    pub(super) kept_bytes_max: u64,
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
        let disk = DiskSync::new(wal, files, aside, Arc::downgrade(&scheduler));
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

    /// The same, that keeps so many bytes of replies, cache entries and bodies for vendors, at
    /// most.
    #[must_use]
    pub(crate) fn with_kept_bytes_max(mut self, kept_bytes_max: u64) -> SqliteStore {
        self.kept_bytes_max = kept_bytes_max;
        self
    }

    /// The name of its file among all that were ever at its path.
    pub(in crate::store) fn file_identity(&self) -> Arc<str> {
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
