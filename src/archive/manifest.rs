//! Manifests: what the archive has of a day and a bucket of accounts. A manifest is written once,
//! after all files it names, and never changed. Each names the one before it by its digest.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::fault::ArchiveFault;
use super::line::LineSums;
use crate::hex::to_hex;
use crate::ledger::AccountName;
use crate::money::Money;

/// The version of the archive's format.
const FORMAT: u32 = 1;

/// The manifest of a day and a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    /// The day, as in `2026-11-23`.
    pub(super) day: String,
    /// The bucket.
    pub(super) bucket: u8,
    /// The manifest before it in this bucket; `None` if it is the first.
    pub(super) previous: Option<PreviousManifest>,
    /// The files, in order.
    pub(super) parts: Vec<ManifestPart>,
    /// The accounts that have lines, in the order of their names.
    pub(super) accounts: Vec<ManifestAccount>,
}

/// Which manifest was before another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PreviousManifest {
    pub(super) day: String,
    /// The SHA-256 of its bytes, in hexadecimal digits.
    pub(super) sha256: String,
}

/// A file of lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ManifestPart {
    /// Its name in the folder of the manifest.
    pub(super) file: String,
    pub(super) bytes: u64,
    pub(super) lines: u64,
    /// The SHA-256 of its bytes, in hexadecimal digits.
    pub(super) sha256: String,
}

/// What the archive has of an account's lines of the day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ManifestAccount {
    pub(super) account: String,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
    /// The digest of the lines before; empty if there are none.
    pub(super) previous_digest: String,
    /// The digest of the lines up to the last one.
    pub(super) digest: String,
    pub(super) charged_nano: Money,
    pub(super) corrected_nano: Money,
    pub(super) expired_nano: Money,
    pub(super) written_off_nano: Money,
    pub(super) corrected_written_off_nano: Money,
    /// Where the lines are, in order.
    pub(super) pieces: Vec<ManifestPiece>,
}

/// Lines of one account in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ManifestPiece {
    /// The index of the file among the parts, from 0.
    pub(super) part: usize,
    /// The index of the first row in the file, from 0.
    pub(super) first_row: u64,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
    /// The digest of the lines up to the last one.
    pub(super) digest: String,
}

impl Manifest {
    /// Makes a manifest.
    pub(super) fn new(
        day: String,
        bucket: u8,
        previous: Option<PreviousManifest>,
        parts: Vec<ManifestPart>,
        accounts: Vec<ManifestAccount>,
    ) -> Manifest {
        Manifest { format: FORMAT, day, bucket, previous, parts, accounts }
    }

    /// Writes the manifest as JSON.
    pub(super) fn to_json(&self) -> Result<String, ArchiveFault> {
        serde_json::to_string(self).map_err(|why| ArchiveFault::Differs(why.to_string()))
    }

    /// Reads a manifest of a day and a bucket.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] if it is no manifest of these, or has pieces that are not in its
    /// files.
    pub(super) fn parse(bytes: &[u8], day: &str, bucket: u8) -> Result<Manifest, ArchiveFault> {
        let fault = |what: &str| {
            ArchiveFault::Differs(format!("the manifest of {day}, bucket {bucket}: {what}"))
        };
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|why| fault(&why.to_string()))?;
        if manifest.format != FORMAT {
            return Err(fault(&format!("its format is {}, not {FORMAT}", manifest.format)));
        }
        if manifest.day != day || manifest.bucket != bucket {
            return Err(fault("it is another one's"));
        }
        for account in &manifest.accounts {
            account.check(manifest.parts.len()).map_err(fault)?;
        }
        if !manifest.accounts.is_sorted_by(|one, next| one.account < next.account) {
            return Err(fault("its accounts are not in order"));
        }
        Ok(manifest)
    }

    /// Returns what the manifest has of an account.
    pub(super) fn account(&self, name: &AccountName) -> Option<&ManifestAccount> {
        let found = self.accounts.binary_search_by(|one| one.account.as_str().cmp(name.as_str()));
        found.ok().and_then(|at| self.accounts.get(at))
    }
}

impl ManifestAccount {
    /// Returns the sums of the lines.
    pub(super) fn sums(&self) -> LineSums {
        LineSums {
            charged: self.charged_nano,
            corrected: self.corrected_nano,
            expired: self.expired_nano,
            written_off: self.written_off_nano,
            corrected_written_off: self.corrected_written_off_nano,
        }
    }

    /// Checks that the pieces have all lines once, in order.
    fn check(&self, parts: usize) -> Result<(), &'static str> {
        let mut next = self.first_seq;
        for piece in &self.pieces {
            if piece.part >= parts || piece.first_seq != next || piece.last_seq < next {
                return Err("the pieces of an account do not follow each other");
            }
            next = piece.last_seq.checked_add(1).ok_or("a number is too large")?;
        }
        let is_last = self
            .pieces
            .last()
            .is_some_and(|piece| piece.last_seq == self.last_seq && piece.digest == self.digest);
        is_last.then_some(()).ok_or("the pieces of an account are not its lines")
    }
}

/// Returns the SHA-256 of bytes, in hexadecimal digits.
pub(super) fn sha256_of(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}
