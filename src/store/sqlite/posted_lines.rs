//! Lines of a journal with the hours in which they were posted.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::accounts::{self, read_money};
use crate::ledger::{AccountName, EntryKind, JournalEntry};
use crate::usage::{HourMark, PostedEntry, hour_of};

pub(super) const SCHEMA: &str = "
-- In which hour lines were posted, in unix ms: the number of the first line of each hour. So a line
-- has the time of its posting for the price of one row an hour.
CREATE TABLE IF NOT EXISTS journal_hour (
    account INTEGER NOT NULL REFERENCES account,
    seq     INTEGER NOT NULL CHECK (seq > 0),
    hour    INTEGER NOT NULL,
    PRIMARY KEY (account, seq)
) STRICT, WITHOUT ROWID;
";

/// Marks the hour of the lines of an account from `seq` on.
pub(super) fn mark_hour(c: &Connection, account: i64, seq: i64, hour: i64) -> rusqlite::Result<()> {
    let mut insert =
        c.prepare_cached("INSERT INTO journal_hour (account, seq, hour) VALUES (?, ?, ?)")?;
    insert.execute([account, seq, hour]).map(drop)
}

/// Returns the last hour that was marked; `None` if none was.
pub(super) fn last_hour(c: &Connection, account: i64) -> rusqlite::Result<Option<i64>> {
    let mut select = c.prepare_cached(
        "SELECT hour FROM journal_hour WHERE account = ? ORDER BY seq DESC LIMIT 1",
    )?;
    select.query_row([account], |row| row.get(0)).optional()
}

/// Returns the lines of an account after a number, with their hours. Hours and kinds are read for
/// all lines at once: one look-up a line for each would cost more than the lines.
pub(super) fn read_posted(
    c: &Connection,
    account: i64,
    after: i64,
    limit: u32,
) -> rusqlite::Result<Vec<PostedEntry>> {
    // One transaction sees one state.
    let txn = c.unchecked_transaction()?;
    let mut select = txn.prepare_cached(
        "SELECT seq, amount, written_off, line FROM journal
         WHERE account = ? AND seq > ? ORDER BY seq LIMIT ?",
    )?;
    let read = |row: &Row<'_>| {
        let seq = row.get::<_, i64>(0)?.unsigned_abs();
        let (amount, written_off) = (read_money(row, 1)?, read_money(row, 2)?);
        let kind = EntryKind::Charge;
        let entry = JournalEntry { seq, kind, amount, written_off, line: row.get(3)? };
        Ok(PostedEntry { entry, posted_at: None })
    };
    let lines = select.query_map(params![account, after, limit], read)?;
    let mut lines: Vec<PostedEntry> = lines.collect::<rusqlite::Result<_>>()?;
    let (Some(first), Some(last)) = (lines.first(), lines.last()) else { return Ok(lines) };
    let range = [account, first.entry.seq.cast_signed(), last.entry.seq.cast_signed()];
    let marks = read_hours(&txn, range)?;
    let kinds = read_kinds(&txn, range)?;
    for PostedEntry { entry, posted_at } in &mut lines {
        *posted_at = hour_of(&marks, entry.seq);
        if let Some(kind) = kinds.get(&entry.seq) {
            entry.kind = *kind;
        }
    }
    Ok(lines)
}

/// Returns the marks of the hours of an account's lines, from one line to another.
fn read_hours(c: &Connection, range: [i64; 3]) -> rusqlite::Result<Vec<HourMark>> {
    let mut select = c.prepare_cached(
        "SELECT seq, hour FROM journal_hour
         WHERE account = ?1 AND seq <= ?3 AND seq >= coalesce((
             SELECT max(seq) FROM journal_hour WHERE account = ?1 AND seq <= ?2), 0)
         ORDER BY seq",
    )?;
    let read = |row: &Row<'_>| {
        Ok(HourMark { seq: row.get::<_, i64>(0)?.unsigned_abs(), hour: row.get(1)? })
    };
    select.query_map(range, read)?.collect()
}

/// Returns the lines of an account that are no charges, from one line to another.
fn read_kinds(c: &Connection, range: [i64; 3]) -> rusqlite::Result<HashMap<u64, EntryKind>> {
    let mut select = c.prepare_cached(
        "SELECT seq, 0 FROM correction_line WHERE account = ?1 AND seq BETWEEN ?2 AND ?3
         UNION ALL
         SELECT seq, 1 FROM expiry_line WHERE account = ?1 AND seq BETWEEN ?2 AND ?3",
    )?;
    let read = |row: &Row<'_>| {
        let is_expiry: bool = row.get(1)?;
        let kind = if is_expiry { EntryKind::Expiry } else { EntryKind::Correction };
        Ok((row.get::<_, i64>(0)?.unsigned_abs(), kind))
    };
    select.query_map(range, read)?.collect()
}

/// Returns the lines of the account with a name after a number, with their hours.
pub(super) fn read_posted_of(
    c: &Connection,
    name: &AccountName,
    after: u64,
    limit: u32,
) -> rusqlite::Result<Vec<PostedEntry>> {
    let Some(row) = accounts::find(c, name)? else { return Ok(Vec::new()) };
    read_posted(c, row.id, i64::try_from(after).unwrap_or(i64::MAX), limit)
}
