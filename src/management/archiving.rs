//! The archive of journals: what is written to it and leaves the store.

use super::error::ManagementError;
use crate::archive::{ArchiveFault, ArchiveReport, Archiver, JournalArchive, JournalSection};
use crate::store::OpenStore;

/// The length of a day, in ms.
const DAY_MS: u64 = 86_400_000;

impl From<ArchiveFault> for ManagementError {
    fn from(why: ArchiveFault) -> ManagementError {
        match why {
            ArchiveFault::Unavailable(why) => crate::ledger::Unavailable(why).into(),
            ArchiveFault::Differs(_) => ManagementError::BooksDiffer(why.to_string()),
        }
    }
}

/// Archives all days of a store that are over, and takes lines out of the store that are old
/// enough. `holder` is a name that no other process has.
pub(crate) async fn run_archiver(
    store: &OpenStore,
    archive: &JournalArchive,
    section: &JournalSection,
    holder: &str,
) -> Result<ArchiveReport, ManagementError> {
    let keep_ms = section.keep_days.saturating_mul(DAY_MS);
    let archiver = Archiver {
        archive,
        noted: &*store.archive,
        usage: &*store.usage,
        ledger: &*store.ledger,
        keep_ms: i64::try_from(keep_ms).unwrap_or(i64::MAX),
        holder,
    };
    Ok(archiver.run().await?)
}
