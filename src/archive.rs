//! The archive of journals: lines of days that are over, in Parquet files of an object store, so
//! that a store holds days of them and not years.
//!
//! A store keeps for each account how far its journal is in the archive, and how far it has left
//! the store. Both only grow. A line leaves the store only when it is in the archive, in the sums
//! of usage, and not the last one of its account.

mod archive_store;
mod archived_usage;
mod archiver;
mod columns;
mod comparison;
mod day_writer;
mod fault;
mod journal_archive;
mod line;
mod manifest;
mod part_file;
mod places;
mod section;
mod turn;

pub use archive_store::{ArchiveNote, ArchiveState, ArchiveStore, ArchivedDay};
pub use archived_usage::ArchivedUsage;
pub use archiver::{ArchiveReport, Archiver};
pub use fault::ArchiveFault;
pub use journal_archive::JournalArchive;
pub use section::JournalSection;

#[cfg(test)]
mod tests;
