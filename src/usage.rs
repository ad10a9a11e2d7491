//! Usage roll-ups: the lines of a journal, summed up by model, endpoint and day, and for a few days
//! by hour, for each key and for the whole account. A page of usage reads these rows, and never the
//! journal.
//!
//! A store folds the lines of an account in their order, and keeps the number of the last line that
//! is in the sums in the same transaction. So each line is in them once, whatever ends the process.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;

use crate::ledger::{AccountName, Unavailable};

mod books;
mod fold;
mod grouping;
mod proof;
mod rollup;

pub use books::UsageBooks;
pub use fold::{FOLD_VERSION, PostedEntry, fold};
pub(crate) use grouping::{UsageDimension, UsageGroup, group_rollups, view_of};
pub(crate) use proof::{BooksDifference, BooksProof};
pub use rollup::{
    PeriodKind, ROLLUP_FIELDS, RollupKey, RollupOwner, RollupPeriod, RollupSums, RollupView,
    Rollups, UsageOverflow, merge_rollups,
};

/// Sums by hour are kept this long after the hour began, in ms: 8 days.
pub const HOURS_KEPT_MS: i64 = 8 * 86_400_000;

/// What a step of folding did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FoldReport {
    /// The number of lines that were folded.
    pub lines: u64,
    /// Whether there may be more to fold now.
    pub has_more: bool,
}

/// Which sums of an account are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuery {
    /// The account.
    pub account: AccountName,
    /// Whether the sums of days or of hours are read.
    pub kind: PeriodKind,
    /// Whether the rows of all keys together are read, or those of each key.
    pub view: RollupView,
    /// The first period, by its beginning in unix ms.
    pub from: i64,
    /// The end, in unix ms: a period that begins then is left out.
    pub to: i64,
    /// At most this many rows are returned.
    pub rows_max: u32,
}

/// The sums of usage in a store.
#[async_trait]
pub trait UsageStore: Send + Sync {
    /// Folds lines that are not in the sums yet, at most `lines_max`, of one account or of several.
    /// Other processes may do so at the same time: no line is counted twice. Sums by hour that are
    /// too old are deleted.
    ///
    /// # Errors
    /// [`Unavailable`] if the store does not answer, or the sums of an account are out of range;
    /// the next call goes on with the account after it.
    async fn fold_next(&self, lines_max: u32) -> Result<FoldReport, Unavailable>;
    /// Returns the sums of an account, ordered by period, owner, model and endpoint.
    async fn list_usage(
        &self,
        query: UsageQuery,
    ) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable>;
    /// Returns what the books of an account say, read at one moment; `None` if there is no such
    /// account.
    async fn read_usage_books(
        &self,
        account: &AccountName,
    ) -> Result<Option<UsageBooks>, Unavailable>;
    /// Returns entries of an account's journal after `seq`, oldest first, at most `limit`, with
    /// when they were posted.
    async fn read_posted(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<PostedEntry>, Unavailable>;
}
