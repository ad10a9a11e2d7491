//! Monthly statements of an account: what it opened with, what came in and went back, what was
//! charged for which models at which prices, and what it closed with, to the nano-USD.
//!
//! ```text
//! closing = opening + payments + grants - refunds - expiries
//!           - charges + corrections + written off - what of corrections had not been paid
//! ```
//!
//! That is `A + H` at the end of the month: `C + W = A + H + P`, where `C` is what was paid and
//! granted less what was paid back and has expired, `P` what was charged less what was corrected,
//! and `W` what was written off less what of it was corrected.
//!
//! A statement of a month that is over is sealed: it is stored, and never changes. What the store
//! gets to know later of that month belongs to the first month that is not sealed, so the closing
//! of each statement is the opening of the next one.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;

use crate::ledger::{AccountName, Unavailable};

mod books;
mod csv;
mod document;
mod draft;
mod focus;
mod focus_record;
mod html;
mod json;
mod lines;
mod month;
mod text;
mod totals;
mod view;

pub(crate) use books::{BooksCredit, DATED_FROM, StatementBooks};
pub(crate) use csv::write_csv;
pub(crate) use document::{Statement, digest_of, usd_text};
pub(crate) use draft::StatementDraft;
pub(crate) use focus::FocusLines;
pub(crate) use focus_record::FocusRecord;
pub(crate) use html::write_html;
pub(crate) use json::write_view;
pub(crate) use lines::{LineRange, StatementLines};
pub use month::{InvalidMonth, StatementMonth};
pub(crate) use text::write_text;
pub(crate) use totals::StatementFault;
pub(crate) use view::{StatementSeal, StatementView};

/// A statement as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedStatement {
    /// Its number, from 1. Each number of an installation is used once.
    pub number: u64,
    /// The month.
    pub month: StatementMonth,
    /// When it was sealed by the clock of the store, in unix ms.
    pub sealed_at: i64,
    /// The SHA-256 of the body, in hexadecimal digits.
    pub sha256: String,
    /// The statement as JSON.
    pub body: String,
}

/// The sealed statements in a store.
#[async_trait]
pub trait StatementStore: Send + Sync {
    /// Returns the time by the clock of the store, in unix ms.
    ///
    /// # Errors
    /// [`Unavailable`] if the store does not answer.
    async fn statement_clock(&self) -> Result<i64, Unavailable>;
    /// Returns the sealed statements of an account, the first month first.
    async fn list_statements(
        &self,
        account: &AccountName,
    ) -> Result<Vec<SealedStatement>, Unavailable>;
    /// Seals a statement, which gets the next number of the installation. If that month of the
    /// account is sealed already, nothing changes. Returns the one that is stored.
    ///
    /// An embedded store returns when it is on disk. On a server, the caller runs it within the
    /// store's `DurabilityScope`: a number that was told must not be given to another statement.
    async fn seal_statement(
        &self,
        account: &AccountName,
        month: StatementMonth,
        body: &str,
        sha256: &str,
    ) -> Result<SealedStatement, Unavailable>;
}

#[cfg(test)]
mod tests;
