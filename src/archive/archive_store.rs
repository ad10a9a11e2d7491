//! What a store keeps of the archive.

use async_trait::async_trait;

use crate::ledger::{AccountName, Unavailable};

/// What the archive has of an account's lines of one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedDay {
    /// The beginning of the day, in unix ms.
    pub day: i64,
    /// The number of the last line.
    pub last_seq: u64,
    /// The SHA-256 over all lines of the account up to this one, each chained to the one before, in
    /// hexadecimal digits.
    pub digest: String,
}

/// A note that the archive has lines of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveNote {
    /// The account.
    pub account: AccountName,
    /// The number of the line before the first one.
    pub after: u64,
    /// The day of the lines, and the last one of them.
    pub day: ArchivedDay,
}

/// How far the journal of an account is archived, and how far it has left the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchiveState {
    /// The number of the last line of the journal; 0 if it has none.
    pub lines: u64,
    /// The number of the last line that is in the sums of usage.
    pub folded: u64,
    /// The last day in the archive; `None` if there is none.
    pub archived: Option<ArchivedDay>,
    /// The number of the last line that is no longer in the store; 0 if all are.
    pub trimmed: u64,
}

impl ArchiveState {
    /// Returns the number of the last line in the archive; 0 if none is.
    #[must_use]
    pub fn archived_seq(&self) -> u64 {
        self.archived.as_ref().map_or(0, |day| day.last_seq)
    }
}

/// What a store knows of the archive.
#[async_trait]
pub trait ArchiveStore: Send + Sync {
    /// Returns the time by the clock of the store, in unix ms.
    async fn archive_clock(&self) -> Result<i64, Unavailable>;
    /// Returns how far the journal of an account is archived and has left the store; `None` if
    /// there is no such account.
    async fn read_archive_state(
        &self,
        account: &AccountName,
    ) -> Result<Option<ArchiveState>, Unavailable>;
    /// Notes that lines are in the archive: those after number `after`, up to `day.last_seq`.
    /// Returns whether all are noted. A note is refused if `after` is not the last archived line,
    /// if `day.last_seq` is not above it or is above the last line of the journal, or if `day.day`
    /// is not after the last archived day. The other notes are written even so, and a failure may
    /// leave some written. A repeat of the last note of an account is noted, and changes nothing.
    async fn mark_archived(&self, notes: &[ArchiveNote]) -> Result<bool, Unavailable>;
    /// Returns the archived days of an account whose last lines have numbers above `seq`, oldest
    /// first, at most `limit`.
    async fn list_archived_days(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<ArchivedDay>, Unavailable>;
    /// Deletes lines up to number `to`, oldest first, at most `limit` of them: those that are
    /// archived and in the sums of usage, but never the last one of the journal. Returns the number
    /// of the last line that is no longer in the store.
    async fn trim_journal(
        &self,
        account: &AccountName,
        to: u64,
        limit: u32,
    ) -> Result<u64, Unavailable>;
    /// Takes the turn to write to the archive, or prolongs it, for `turn_ms` by the clock of the
    /// store. Returns whether `holder` has it: one process of a fleet has it at a time.
    async fn take_archive_turn(&self, holder: &str, turn_ms: u64) -> Result<bool, Unavailable>;
}
