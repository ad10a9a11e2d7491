//! A line of a journal as the archive has it, and the digests that chain lines to each other.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::fault::ArchiveFault;
use crate::hex::to_hex;
use crate::ledger::EntryKind;
use crate::money::Money;
use crate::usage::PostedEntry;

/// The members of a line that are columns of their own. One that is missing or of another type is
/// null in its column: the line itself is in the archive as it is.
#[derive(Debug, Default)]
pub(super) struct LineColumns(Value);

impl LineColumns {
    /// Reads the columns of a line.
    pub(super) fn parse(line: &str) -> LineColumns {
        LineColumns(serde_json::from_str(line).unwrap_or_default())
    }

    /// Returns a text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    /// Returns a number. One that does not fit is `None`.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.0.get(name)?.as_i64()
    }

    /// Returns a number of the billed units.
    pub(super) fn units(&self, name: &str) -> Option<i64> {
        self.0.get("usage")?.get(name)?.as_i64()
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
