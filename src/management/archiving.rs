//! The archive of journals: what is written to it and leaves the store.

use crate::archive::{Archiver, JournalArchive, JournalSection};
use crate::store::OpenStore;

/// The length of a day, in ms.
const DAY_MS: u64 = 86_400_000;

/// Returns what archives the journals of a store. `store` is the store itself, which does not read
/// the archive, and `holder` a name that no other process has.
pub(crate) fn archiver_of<'a>(
    store: &'a OpenStore,
    archive: &'a JournalArchive,
    section: &JournalSection,
    holder: &'a str,
) -> Archiver<'a> {
    let keep_ms = section.keep_days.saturating_mul(DAY_MS);
    Archiver {
        archive,
        noted: &*store.archive,
        usage: &*store.usage,
        ledger: &*store.ledger,
        keep_ms: i64::try_from(keep_ms).unwrap_or(i64::MAX),
        holder,
    }
}
