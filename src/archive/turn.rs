//! The turn to write to the archive: one process of a fleet has it at a time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::archive_store::ArchiveStore;
use super::fault::ArchiveFault;

/// A turn lasts this long, in ms, after it was last taken.
const TURN_MS: u64 = 120_000;
/// A turn that was taken this long ago is taken once more: on SQLite that is a durable write.
const RENEWED_AFTER: Duration = Duration::from_secs(5);

/// The turn of a process.
pub(super) struct ArchiveTurn<'a> {
    store: &'a dyn ArchiveStore,
    holder: &'a str,
    /// When it was last taken; `None` if it was not.
    taken: Mutex<Option<Instant>>,
}

impl ArchiveTurn<'_> {
    /// Makes the turn of a process of which no other has the name. It is not taken yet.
    pub(super) fn new<'a>(store: &'a dyn ArchiveStore, holder: &'a str) -> ArchiveTurn<'a> {
        ArchiveTurn { store, holder, taken: Mutex::default() }
    }

    /// Takes the turn if it was not taken in the last seconds. Returns whether the process has it.
    pub(super) async fn is_kept(&self) -> Result<bool, ArchiveFault> {
        let taken = *self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_some_and(|taken| taken.elapsed() < RENEWED_AFTER) {
            return Ok(true);
        }
        let now = Instant::now();
        let is_taken = self.store.take_archive_turn(self.holder, TURN_MS).await?;
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = is_taken.then_some(now);
        Ok(is_taken)
    }

    /// Takes the turn if it was not taken in the last seconds.
    ///
    /// # Errors
    /// [`ArchiveFault::Unavailable`] if another process has it.
    pub(super) async fn keep(&self) -> Result<(), ArchiveFault> {
        if self.is_kept().await? {
            return Ok(());
        }
        Err(ArchiveFault::Unavailable("another process is at work on the archive".to_owned()))
    }

    /// Ends the turn, so that the next process need not wait.
    pub(super) async fn end(self) -> Result<(), ArchiveFault> {
        self.store.take_archive_turn(self.holder, 1).await?;
        Ok(())
    }
}
