//! Where the archive keeps what: days, buckets of accounts, and the names of files.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::ledger::AccountName;
use crate::usage::date_text;

/// The length of a day, in ms.
pub(super) const DAY_MS: i64 = 86_400_000;
/// The number of buckets. It never changes: the manifests of a bucket are a chain.
pub(super) const BUCKETS: u8 = 16;

/// Returns the bucket of an account: a few accounts or many share the files of a bucket.
pub(super) fn bucket_of(account: &AccountName) -> u8 {
    let digest = Sha256::digest(account.as_str());
    digest.first().copied().unwrap_or_default() % BUCKETS
}

/// The folder of a day and a bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DayFolder {
    /// The day, as in `2026-11-23`.
    pub(super) day: String,
    /// The bucket.
    pub(super) bucket: u8,
}

impl DayFolder {
    /// Returns the folder of a day (unix ms) and a bucket; `None` if the day is out of range.
    pub(super) fn new(day: i64, bucket: u8) -> Option<DayFolder> {
        Some(DayFolder { day: date_text(day)?, bucket })
    }

    /// Returns the folder of the manifest with this name; `None` if it is no name of a manifest.
    pub(super) fn of_manifest(name: &str) -> Option<DayFolder> {
        let rest = name.strip_prefix("day=")?.strip_suffix("/manifest.json")?;
        let (day, bucket) = rest.split_once("/bucket=")?;
        let folder = DayFolder { day: day.to_owned(), bucket: bucket.parse().ok()? };
        (folder.manifest() == name).then_some(folder)
    }

    /// Returns the name of the manifest.
    pub(super) fn manifest(&self) -> String {
        format!("{self}/manifest.json")
    }

    /// Returns the name of a file in the folder.
    pub(super) fn file(&self, name: &str) -> String {
        format!("{self}/{name}")
    }
}

impl fmt::Display for DayFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "day={}/bucket={:02}", self.day, self.bucket)
    }
}
