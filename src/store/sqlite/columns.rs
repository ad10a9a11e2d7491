//! Values in columns of the tables that SQLite has no type for.

use std::str::FromStr;

use rusqlite::Row;
use rusqlite::types::Type;

use crate::ledger::prepaid::rate::{RateAsk, parse_rate_asks};
use crate::ledger::prepaid::window::{KeyId, WindowId, WindowKind, format_windows, parse_windows};

/// The key of a call, and the windows in which it counts.
pub(super) type CallWindows = (Option<KeyId>, Vec<WindowId>);

/// Reads a key and windows from two columns: the key's id, and the windows as one text.
pub(super) fn read_call_windows(row: &Row<'_>, column: usize) -> rusqlite::Result<CallWindows> {
    let key = row.get::<_, Option<i64>>(column)?.map(|id| KeyId(id.cast_unsigned()));
    Ok((key, read_windows(row, column + 1)?))
}

/// Reads windows that are written as one text.
pub(super) fn read_windows(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<WindowId>> {
    let text: String = row.get(column)?;
    parse_windows(&text)
        .map_err(|why| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(why)))
}

/// Returns the values of the two columns that [`read_call_windows`] reads.
pub(super) fn call_windows_columns(
    key: Option<KeyId>,
    windows: &[WindowId],
) -> (Option<i64>, String) {
    (key.map(|KeyId(id)| id.cast_signed()), format_windows(windows))
}

/// Reads what a hold took of rate limits: nothing if the column is null. What cannot be read, a
/// later version has written; it is passed over, since no limit may keep a hold from ending.
pub(super) fn read_rate_asks(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<RateAsk>> {
    let text: Option<String> = row.get(column)?;
    let parts = text.as_deref().unwrap_or_default().split(',');
    Ok(parts.filter_map(|one| parse_rate_asks(one).ok()).flatten().collect())
}

/// Parses the text of a column.
pub(super) fn parse_column<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let text: String = row.get(column)?;
    text.parse()
        .map_err(|why| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(why)))
}

/// Reads the kind of a window.
pub(super) fn read_kind(row: &Row<'_>, column: usize) -> rusqlite::Result<WindowKind> {
    let name: String = row.get(column)?;
    WindowKind::of_name(&name).ok_or(rusqlite::Error::InvalidColumnType(column, name, Type::Text))
}
