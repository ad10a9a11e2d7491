//! A line of a journal as the archive has it, and the digests that chain lines to each other.

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::fault::ArchiveFault;
use crate::hex::to_hex;
use crate::ledger::{EntryKind, KeyId};
use crate::money::Money;
use crate::usage::PostedEntry;

/// The members of a line that are columns of their own, as far as it has them. What cannot be read
/// is null in the column: the line itself is in the archive as it is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LineColumns {
    pub(super) request_id: Option<String>,
    pub(super) at: Option<i64>,
    pub(super) key_id: Option<KeyId>,
    pub(super) key_prefix: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) model: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) route: Option<String>,
    pub(super) basis: Option<String>,
    pub(super) price_version: Option<String>,
    pub(super) book: Option<String>,
    pub(super) usage: LineUnits,
    pub(super) list_nano: Option<i64>,
    pub(super) cost_nano: Option<i64>,
}

/// The units of a line that are columns.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LineUnits {
    pub(super) prompt_tokens: Option<u64>,
    pub(super) completion_tokens: Option<u64>,
    pub(super) cached_tokens: Option<u64>,
    pub(super) characters: Option<u64>,
    pub(super) images: Option<u64>,
    pub(super) seconds: Option<u64>,
}

impl LineColumns {
    /// Reads the columns of a line.
    pub(super) fn parse(line: &str) -> LineColumns {
        serde_json::from_str(line).unwrap_or_default()
    }
}

/// The digest of the lines of an account up to one of them, in hexadecimal digits. Before its first
/// line it is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LineDigest(String);

impl LineDigest {
    /// Returns the digest that was stored.
    pub(super) fn of_text(text: &str) -> LineDigest {
        LineDigest(text.to_owned())
    }

    /// Returns the digest as a text.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the digest with another line.
    pub(super) fn chained(&self, posted: &PostedEntry) -> LineDigest {
        let PostedEntry { entry, posted_at } = posted;
        let posted_at = posted_at.map_or_else(String::new, |at| at.to_string());
        let head = format!(
            "{}\n{} {} {} {} {posted_at}\n",
            self.0,
            entry.seq,
            entry.kind.as_str(),
            entry.amount.nano(),
            entry.written_off.nano()
        );
        let digest = Sha256::new().chain_update(head).chain_update(&entry.line).finalize();
        LineDigest(to_hex(&digest))
    }
}

/// The sums of lines of an account, in nano-USD.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LineSums {
    pub(super) charged: Money,
    pub(super) corrected: Money,
    pub(super) expired: Money,
    pub(super) written_off: Money,
    pub(super) corrected_written_off: Money,
}

impl LineSums {
    /// Adds a line.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] if a sum does not fit.
    pub(super) fn add(&mut self, posted: &PostedEntry) -> Result<(), ArchiveFault> {
        let entry = &posted.entry;
        let (amounts, written_off) = match entry.kind {
            EntryKind::Charge => (&mut self.charged, Some(&mut self.written_off)),
            EntryKind::Correction => (&mut self.corrected, Some(&mut self.corrected_written_off)),
            EntryKind::Expiry => (&mut self.expired, None),
        };
        let overflow = |_| ArchiveFault::Differs("the sums of lines do not fit".to_owned());
        *amounts = amounts.checked_add(entry.amount).map_err(overflow)?;
        if let Some(sum) = written_off {
            *sum = sum.checked_add(entry.written_off).map_err(overflow)?;
        }
        Ok(())
    }
}

/// Returns by how much a line changes P and W of its account, in nano-USD.
pub(super) fn signed_amounts(posted: &PostedEntry) -> (i64, i64) {
    let (amount, lost) = (posted.entry.amount.nano(), posted.entry.written_off.nano());
    match posted.entry.kind {
        EntryKind::Charge => (amount, lost),
        EntryKind::Correction => (amount.saturating_neg(), lost.saturating_neg()),
        EntryKind::Expiry => (0, 0),
    }
}
