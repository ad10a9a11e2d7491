//! The sync thread: it syncs the write-ahead log, acknowledges the writes that are in it, and
//! copies the log into the file before the log grows long.

use std::fs::File;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::file_identity::OpenFiles;
use super::writer::{CommittedBatch, WriteScheduler};
use crate::failpoints::failpoint;

/// Commits are gathered for this long before one sync of the disk.
const SYNC_BATCH_WAIT: Duration = Duration::from_millis(5);
/// The wait is this many times as long if no caller waits: charges wait for the disk in the
/// background, and a sync costs as much as a whole call.
const UNAWAITED_WAITS: u32 = 4;
/// The size of the log, and the identity of the files, are checked this often.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// If more pages of the log than this are not in the file yet, they are copied.
const CHECKPOINT_PAGES: i64 = 1_000;
/// If the log has more pages than this, it is restarted, and no caller may write meanwhile.
const WAL_RESTART_PAGES: i64 = 4_000;

/// The thread that syncs the write-ahead log and checkpoints it.
pub(super) struct DiskSync {
    wal: File,
    files: OpenFiles,
    /// A separate connection, so that copying the log blocks no writer.
    connection: Connection,
    scheduler: Weak<WriteScheduler>,
}

impl DiskSync {
    pub(super) fn new(
        wal: File,
        files: OpenFiles,
        connection: Connection,
        scheduler: Weak<WriteScheduler>,
    ) -> DiskSync {
        DiskSync { wal, files, connection, scheduler }
    }

    /// Syncs the log, once for all batches that were committed meanwhile, and acknowledges them. It
    /// returns when the store is closed.
    pub(super) fn run_sync_loop(&self, to_sync: &mpsc::Receiver<CommittedBatch>) {
        let mut looked = Instant::now();
        loop {
            match to_sync.recv_timeout(POLL_INTERVAL) {
                Ok(written) => self.sync_batch(written, to_sync),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if looked.elapsed() >= POLL_INTERVAL {
                looked = Instant::now();
                if let Some(why) = self.files.find_lost()
                    && let Some(scheduler) = self.scheduler.upgrade()
                {
                    scheduler.mark_lost(why);
                }
                // Pages that are not copied now are copied the next time.
                let copied = self.checkpoint_if_long();
                copied.unwrap_or_else(|why| {
                    log::warn!(
                        event = "ledger_checkpoint_failed", error:% = why;
                        "WAL checkpoint failed"
                    );
                });
            }
        }
    }

    fn sync_batch(&self, mut written: CommittedBatch, to_sync: &mpsc::Receiver<CommittedBatch>) {
        // One sync serves many commits.
        for _ in 0..UNAWAITED_WAITS {
            thread::sleep(SYNC_BATCH_WAIT);
            for more in to_sync.try_iter() {
                written.acknowledgements.extend(more.acknowledgements);
                written.is_awaited |= more.is_awaited;
            }
            if written.is_awaited {
                break;
            }
        }
        let kept = self.wal.sync_data();
        if let Err(why) = &kept {
            log::error!(
                event = "ledger_sync_failed", error:% = why;
                "ledger WAL sync failed"
            );
        }
        written.acknowledgements.into_iter().for_each(|acknowledge| acknowledge(kept.is_ok()));
    }

    /// Copies a log that has grown into the file, and restarts the log if it is long. Pages that
    /// are written while the log is copied are not copied with it, so the rest is copied while no
    /// caller writes.
    fn checkpoint_if_long(&self) -> rusqlite::Result<()> {
        let (pages, copied) = self.wal_checkpoint("NOOP")?;
        if pages - copied <= CHECKPOINT_PAGES && pages <= WAL_RESTART_PAGES {
            return Ok(());
        }
        self.wal_checkpoint("PASSIVE")?;
        failpoint!("log_copied");
        match self.scheduler.upgrade() {
            Some(scheduler) if pages > WAL_RESTART_PAGES => {
                scheduler.restart_wal(|| self.wal_checkpoint("PASSIVE").map(drop))
            }
            _ => Ok(()),
        }
    }

    /// Runs a checkpoint of the log: `NOOP` copies nothing, `PASSIVE` copies what it can without
    /// waiting for other connections. Returns how many pages the log has, and how many of them are
    /// in the file.
    fn wal_checkpoint(&self, how: &str) -> rusqlite::Result<(i64, i64)> {
        let sql = format!("PRAGMA wal_checkpoint({how})");
        self.connection.query_row(&sql, [], |row| Ok((row.get(1)?, row.get(2)?)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bytes::Bytes;

    use super::super::super::data_version::BASE_VERSION;
    use super::super::SqliteStore;
    use super::super::schema::{self, BUSY_TIMEOUT};
    use super::*;
    use crate::kv_cache::AccountCache as _;
    use crate::ledger::{AccountName, Ledger as _};

    #[tokio::test]
    async fn a_long_log_is_copied_into_the_file_and_begins_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        assert_eq!(SqliteStore::create(&path), Ok(true));
        let store = SqliteStore::open(&path).expect("a store");
        let account = AccountName::parse("a").expect("a name");
        store.open_account(&account).await.expect("it is opened");
        let entry = Bytes::from(vec![7; 200 << 10]);
        for n in 0..100 {
            let kept = store.put(&account, &[format!("n{n}")], entry.clone(), 600_000).await;
            kept.expect("it is kept");
        }
        let beside = schema::open_secondary(&path, BUSY_TIMEOUT).expect("a connection");
        let pages = || -> i64 {
            let sql = "PRAGMA wal_checkpoint(NOOP)";
            beside.query_row(sql, [], |row| row.get(1)).expect("an answer")
        };
        assert!(pages() > WAL_RESTART_PAGES, "it is long");
        let end = Instant::now() + Duration::from_secs(30);
        while pages() > CHECKPOINT_PAGES && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(pages() <= CHECKPOINT_PAGES, "{} pages", pages());
        let found = store.get_many(&account, &["n0".to_owned(), "n99".to_owned()]).await;
        assert_eq!(found.expect("they are found"), [Some(entry.clone()), Some(entry)]);
        assert!(store.balances(&account).await.expect("an answer").is_some());
        let version = "user_version";
        let found = beside.pragma_query_value(None, version, |row| row.get::<_, u32>(0));
        assert_eq!(found.expect("one"), BASE_VERSION, "the new log has forgotten it");
    }
}
