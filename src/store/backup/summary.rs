//! What the commands show of a backup and of a restore.

use super::manifest::{BackupManifest, PartName};

/// What a backup has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackupSummary {
    /// The id of the backup.
    pub(crate) id: String,
    pub(crate) store_id: String,
    /// The version of the data of the store.
    pub(crate) data_version: u32,
    /// When it was begun, in UTC.
    pub(crate) made_at: String,
    pub(crate) database_bytes: u64,
    /// The files of the logs.
    pub(crate) log_files: usize,
    pub(crate) log_bytes: u64,
    /// The number of accounts, all of which add up.
    pub(crate) accounts: usize,
}

/// What a restore has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RestoreSummary {
    pub(crate) backup: BackupSummary,
    /// The folders of logs that were there before, which stay.
    pub(crate) folders_kept: usize,
}

impl BackupSummary {
    pub(super) fn new(manifest: &BackupManifest, accounts: usize) -> BackupSummary {
        let (mut database_bytes, mut log_files, mut log_bytes) = (0, 0, 0);
        for part in &manifest.parts {
            match part.name {
                PartName::Database => database_bytes += part.bytes,
                PartName::Log { .. } => {
                    log_files += 1;
                    log_bytes += part.bytes;
                }
            }
        }
        BackupSummary {
            id: manifest.id.clone(),
            store_id: manifest.store_id.clone(),
            data_version: manifest.data_version,
            made_at: manifest.made_at.clone(),
            database_bytes,
            log_files,
            log_bytes,
            accounts,
        }
    }
}
