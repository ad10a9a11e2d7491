//! Proves that the books add up: roll-ups, journal and balances of every account.

use super::error::ManagementError;
use crate::ledger::AccountName;
use crate::store::OpenStore;
use crate::usage::{BooksDifference, BooksProof};

/// The number of lines that are read at a time.
const PAGE_SIZE: u32 = 1_000;

/// What was proved of an account, or what does not add up.
#[derive(Debug)]
pub(crate) struct ProvedBooks {
    /// The number of lines of the journal.
    pub(crate) lines: u64,
    /// The number of lines of which the roll-ups have the sums. The others come within seconds, if
    /// a gateway runs.
    pub(crate) folded: u64,
    /// The first difference; `None` if all adds up.
    pub(crate) difference: Option<BooksDifference>,
}

/// Proves the books of an account, also while a gateway serves; `None` if there is no such account.
/// All of its journal is read.
pub(crate) async fn prove_books(
    store: &OpenStore,
    account: &AccountName,
) -> Result<Option<ProvedBooks>, ManagementError> {
    let usage = &store.usage;
    let Some(books) = usage.read_usage_books(account).await? else { return Ok(None) };
    let mut proof = BooksProof::new(books);
    let (lines, folded) = proof.lines();
    let overflow = |why: crate::usage::UsageOverflow| {
        ManagementError::UnexpectedAnswer(format!("account '{account}': {why}"))
    };
    while let Some(after) = proof.next() {
        let entries = usage.read_posted(account, after, PAGE_SIZE).await?;
        let missing = proof.push(&entries).map_err(overflow)?;
        if missing.is_some() {
            return Ok(Some(ProvedBooks { lines, folded, difference: missing }));
        }
    }
    let difference = proof.finish().map_err(overflow)?;
    Ok(Some(ProvedBooks { lines, folded, difference }))
}
