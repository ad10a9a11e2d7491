//! What accounts were charged in a month, as rows of FOCUS 1.2.

use super::error::ManagementError;
use super::statements::{find_first, read_pages, read_statement};
use crate::ledger::AccountName;
use crate::statement::{
    FocusLines, FocusRecord, LineRange, Statement, StatementMonth, StatementView,
};
use crate::store::OpenStore;
use crate::usage::PostedEntry;

/// The rows of an account for a month.
pub(crate) struct AccountFocus {
    lines: FocusLines,
    view: StatementView,
}

impl AccountFocus {
    /// Hands out the rows, one after the other. `issuer` is the name of who sells.
    pub(crate) fn write<E>(
        &self,
        issuer: &str,
        take: impl FnMut(&FocusRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        self.lines.write(&self.view, issuer, take)
    }
}

/// Returns the rows of an account for a month that has begun: those of its statement, which is
/// sealed if the month is over. There are none if the account was opened later.
pub(crate) async fn read_focus(
    store: &OpenStore,
    account: &AccountName,
    month: StatementMonth,
) -> Result<Option<AccountFocus>, ManagementError> {
    let view = match read_statement(store, account, month).await {
        Err(ManagementError::Invalid { field: "month", .. }) => return Ok(None),
        view => view?,
    };
    let end = if view.as_of < month.end() { i64::MAX } else { month.end() };
    let sealed = store.statements.list_statements(account).await?;
    let before = match sealed.iter().find(|one| one.month.next() == month) {
        Some(one) => Some(Statement::parse_stored(&one.body, account, one.month)?),
        None => None,
    };
    let range = LineRange {
        start: month.start(),
        end,
        sealed_lines: before.map(|before| before.journal_lines),
        lines: view.statement.journal_lines,
    };
    let first = find_first(store, account, range).await?;
    let mut lines = read_lines(store, account, range, first, end).await?;
    if lines.compare(&view.statement).is_err() {
        // Times are wrong somewhere, so the lines may be anywhere.
        lines = read_lines(store, account, range, 0, i64::MAX).await?;
        lines.compare(&view.statement)?;
    }
    Ok(Some(AccountFocus { lines, view }))
}

async fn read_lines(
    store: &OpenStore,
    account: &AccountName,
    range: LineRange,
    after: u64,
    end: i64,
) -> Result<FocusLines, ManagementError> {
    let mut lines = FocusLines::new(range);
    let take = |page: &[PostedEntry]| lines.push(page);
    read_pages(store, account, after..range.lines, end, take).await?;
    Ok(lines)
}
