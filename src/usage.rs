//! Usage roll-ups: the lines of a journal, summed up by model, endpoint and day, and for a few days
//! by hour, for each key and for the whole account. A page of usage reads these rows, and never the
//! journal.
//!
//! A store folds the lines of an account in their order, and keeps the number of the last line that
//! is in the sums in the same transaction. So each line is in them once, whatever ends the process.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;

use crate::ledger::{AccountName, KeyId, Unavailable};

mod books;
mod fold;
mod grouping;
mod posting_hours;
mod proof;
mod question;
mod rollup;

pub use books::UsageBooks;
pub use fold::{FOLD_VERSION, PostedEntry, fold};
pub(crate) use grouping::UsageGroup;
pub(crate) use posting_hours::{HourMark, hour_of};
pub(crate) use proof::{BooksDifference, BooksProof};
pub(crate) use question::{
    InvalidQuestion, NoUsagePage, UsageAsk, UsagePage, UsageRange, date_text, moment_text,
};
pub use rollup::{
    PeriodKind, ROLLUP_FIELDS, RollupKey, RollupOwner, RollupPeriod, RollupSums, RollupView,
    Rollups, UsageOverflow, merge_rollups,
};

/// Sums by hour are kept this long after the hour began, in ms: 8 days.
pub const HOURS_KEPT_MS: i64 = 8 * 86_400_000;

/// What a step of folding did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoldReport {
    /// The number of lines that were folded.
    pub lines: u64,
    /// The accounts whose lines were folded.
    pub accounts: Vec<AccountName>,
    /// Whether there may be more to fold now.
    pub has_more: bool,
    /// Why accounts could not be folded. They have their turn again.
    pub failed: Vec<String>,
}

/// Which rows of an account are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageRows {
    /// Those of all keys together.
    Account,
    /// Those of each key.
    Keys,
    /// Those of one key.
    Key(KeyId),
}

impl UsageRows {
    /// Returns the kind of the rows.
    #[must_use]
    pub fn view(self) -> RollupView {
        match self {
            UsageRows::Account => RollupView::Account,
            UsageRows::Keys | UsageRows::Key(_) => RollupView::Keys,
        }
    }
}

impl From<RollupView> for UsageRows {
    fn from(view: RollupView) -> UsageRows {
        match view {
            RollupView::Account => UsageRows::Account,
            RollupView::Keys => UsageRows::Keys,
        }
    }
}

/// Which sums of an account are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuery {
    /// The account.
    pub account: AccountName,
    /// Whether the sums of days or of hours are read.
    pub kind: PeriodKind,
    /// Which rows are read.
    pub rows: UsageRows,
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
    /// [`Unavailable`] if the store does not answer.
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
    /// Returns the same with the sums by day of all keys together, without those of each key.
    async fn read_account_books(
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
