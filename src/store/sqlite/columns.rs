//! Values in columns of the tables that SQLite has no type for.

use std::collections::BTreeMap;
use std::str::FromStr;

use rusqlite::Row;
use rusqlite::types::Type;
use serde_json::Value;

use crate::ledger::prepaid::rate::{RateAsk, RateId, parse_rate_asks};
use crate::ledger::prepaid::window::{
    KeyId, WindowError, WindowId, WindowKind, format_windows, parse_windows,
};
use crate::ledger::push_number;
use crate::money::Money;

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

/// Returns what an allotment may hold in windows, in nano-USD, as a JSON object; `None` if there is
/// nothing.
pub(super) fn slices_column(slices: &BTreeMap<WindowId, Money>) -> Option<String> {
    let push = |text: &mut String, (window, amount): (&WindowId, &Money)| {
        window.push_to(text);
        push_number(text, "\":", amount.nano());
    };
    (!slices.is_empty()).then(|| json_object(slices, push))
}

/// Reads what [`slices_column`] returned.
pub(super) fn read_slices(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<BTreeMap<WindowId, Money>> {
    let Some(text) = row.get::<_, Option<String>>(column)? else { return Ok(BTreeMap::new()) };
    let fault = |why: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, why)
    };
    let slices: BTreeMap<String, i64> =
        serde_json::from_str(&text).map_err(|why| fault(why.into()))?;
    let parse = |(window, nano): (String, i64)| {
        let window = window.parse().map_err(|why: WindowError| fault(why.into()))?;
        Ok((window, Money::from_nano(nano).map_err(|why| fault(why.into()))?))
    };
    slices.into_iter().map(parse).collect()
}

/// Returns what an allotment has of rate limits, in units, as a JSON object; `None` if there is
/// nothing.
pub(super) fn rates_column(rates: &BTreeMap<RateId, i64>) -> Option<String> {
    let push = |text: &mut String, (id, units): (&RateId, &i64)| {
        id.push_to(text);
        push_number(text, "\":", *units);
    };
    (!rates.is_empty()).then(|| json_object(rates, push))
}

/// Reads what [`rates_column`] returned. What cannot be read, a later version has written; it is
/// passed over, since no limit may keep an end from being posted.
pub(super) fn read_rates(row: &Row<'_>, column: usize) -> rusqlite::Result<BTreeMap<RateId, i64>> {
    let text: Option<String> = row.get(column)?;
    let rates = parse_members(text.as_deref()).into_iter();
    Ok(rates.filter_map(|(id, units)| Some((id.parse().ok()?, units.as_i64()?))).collect())
}

/// Parses the members of a JSON object; none if the text is no object.
pub(super) fn parse_members(text: Option<&str>) -> BTreeMap<String, Value> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Writes a JSON object. `push_member` appends the name of a member, which needs no escapes, the
/// quote after it, the colon and the value.
pub(super) fn json_object<I: IntoIterator>(
    members: I,
    push_member: impl Fn(&mut String, I::Item),
) -> String {
    let mut text = String::with_capacity(128);
    let mut start_of_member = "{\"";
    for member in members {
        text.push_str(start_of_member);
        push_member(&mut text, member);
        start_of_member = ",\"";
    }
    text.push_str(if text.is_empty() { "{}" } else { "}" });
    text
}
