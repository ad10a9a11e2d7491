//! What waits for the disk: a thread that syncs the log, acknowledges what is in it, and copies it
//! into the file before it grows long.

use std::fs::File;
use std::sync::{Weak, mpsc};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;

use super::writer::{Acknowledge, Writers};

/// So long the disk is not asked to sync again, while what waits for it gathers.
const GATHER: Duration = Duration::from_millis(5);
/// After so many acknowledgements the log is copied into the file.
const COPY_AFTER: usize = 1_000;
/// With so many pages of log it begins anew, for which nobody may write meanwhile.
const LOG_PAGES: i64 = 4_000;

/// See the module.
pub(super) struct Disk {
    log: File,
    /// A connection of its own, so that copying keeps nobody from writing.
    connection: Connection,
    writers: Weak<Writers>,
}

impl Disk {
    pub(super) fn new(log: File, connection: Connection, writers: Weak<Writers>) -> Disk {
        Disk { log, connection, writers }
    }

    /// Waits for the disk, once for all that were written meanwhile, and acknowledges them.
    pub(super) fn serve(&self, to_sync: &mpsc::Receiver<Vec<Acknowledge>>) {
        let mut since = 0;
        while let Ok(mut acknowledge) = to_sync.recv() {
            // Only a background task waits for the disk, and one wait does for many.
            thread::sleep(GATHER);
            acknowledge.extend(to_sync.try_iter().flatten());
            let kept = self.log.sync_data();
            if let Err(why) = &kept {
                log::error!(why:% = why; "the ledger's log could not be synced");
            }
            since += acknowledge.len();
            acknowledge.into_iter().for_each(|a| a(kept.is_ok()));
            if since >= COPY_AFTER {
                since = 0;
                // What is not copied now is copied the next time.
                let copied = self.copy();
                copied.unwrap_or_else(|why| log::warn!(why:% = why; "the log is not copied"));
            }
        }
    }

    /// Copies the log into the file, and has it begin anew if it is long: whatever is written
    /// while it is copied would stand behind, so the rest is copied while nobody writes.
    fn copy(&self) -> rusqlite::Result<()> {
        let pages = self.checkpoint()?;
        match self.writers.upgrade() {
            Some(writers) if pages > LOG_PAGES => writers.pause(|| self.checkpoint()).map(drop),
            _ => Ok(()),
        }
    }

    /// Copies what can be copied without waiting for anybody. Tells how many pages the log has.
    fn checkpoint(&self) -> rusqlite::Result<i64> {
        self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1))
    }
}
