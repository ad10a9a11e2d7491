//! The rows of sealed statements, which are never changed.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::accounts;
use crate::clock::unix_ms;
use crate::ledger::AccountName;
use crate::statement::{SealedStatement, StatementMonth};

/// An older version ignores the table.
pub(super) const SCHEMA: &str = "
-- Sealed statements. number: consecutive over all accounts. month: as in 2026-11. body: JSON.
CREATE TABLE IF NOT EXISTS statement (
    number    INTEGER PRIMARY KEY CHECK (number > 0),
    account   INTEGER NOT NULL REFERENCES account,
    month     TEXT    NOT NULL CHECK (length(month) = 7),
    sealed_at INTEGER NOT NULL,
    sha256    TEXT    NOT NULL CHECK (length(sha256) = 64),
    body      TEXT    NOT NULL,
    UNIQUE (account, month)
) STRICT;

CREATE TRIGGER IF NOT EXISTS statement_changed BEFORE UPDATE ON statement BEGIN
    SELECT RAISE(ABORT, 'a sealed statement does not change');
END;

CREATE TRIGGER IF NOT EXISTS statement_deleted BEFORE DELETE ON statement BEGIN
    SELECT RAISE(ABORT, 'a sealed statement is not deleted');
END;
";

const COLUMNS: &str = "number, month, sealed_at, sha256, body";

fn read_statement(row: &Row<'_>) -> rusqlite::Result<SealedStatement> {
    let month: String = row.get(1)?;
    let month = StatementMonth::parse(&month)
        .map_err(|why| rusqlite::Error::FromSqlConversionFailure(1, Type::Text, Box::new(why)))?;
    Ok(SealedStatement {
        number: row.get::<_, i64>(0)?.unsigned_abs(),
        month,
        sealed_at: row.get(2)?,
        sha256: row.get(3)?,
        body: row.get(4)?,
    })
}

pub(super) fn list(c: &Connection, name: &AccountName) -> rusqlite::Result<Vec<SealedStatement>> {
    let mut select = c.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM statement
         WHERE account = (SELECT id FROM account WHERE name = ?) ORDER BY month"
    ))?;
    select.query_map([name.as_str()], read_statement)?.collect()
}

/// Seals a statement, unless its month is sealed already. Returns the one that is stored; `None` if
/// there is no such account. All writers wait for each other, so no number is given twice.
pub(super) fn seal(
    c: &Connection,
    name: &AccountName,
    month: &str,
    body: &str,
    sha256: &str,
) -> rusqlite::Result<Option<SealedStatement>> {
    let Some(account) = accounts::find(c, name)?.map(|row| row.id) else { return Ok(None) };
    let mut select = c.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM statement WHERE account = ? AND month = ?"
    ))?;
    let known = select.query_row(params![account, month], read_statement).optional()?;
    if known.is_some() {
        return Ok(known);
    }
    let mut insert = c.prepare_cached(
        "INSERT INTO statement (number, account, month, sealed_at, sha256, body)
         VALUES ((SELECT coalesce(max(number), 0) + 1 FROM statement), ?, ?, ?, ?, ?)",
    )?;
    insert.execute(params![account, month, unix_ms(), sha256, body])?;
    select.query_row(params![account, month], read_statement).optional()
}
