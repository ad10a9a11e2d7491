//! Backups of an embedded store: one file with a copy of the database and of the logs beside it,
//! made while gateways run, and put back where no store is.
//!
//! The file is a tar archive of `manifest.json`, its digest, the database, and the files of the
//! logs. The manifest names each of them with its length and digest; a file that it does not name
//! is not put anywhere.

mod archive;
mod create;
mod durable_files;
mod error;
mod manifest;
mod placement;
mod restore;
mod summary;

pub(crate) use create::create_backup;
pub(crate) use restore::restore_backup;
pub(crate) use summary::BackupSummary;
