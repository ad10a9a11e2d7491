//! API keys in a table.

use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params};

use crate::ledger::{AccountName, KeyHash, KeyRecord, Unavailable};

/// Adds an API key, or returns why it could not: its account does not exist, or its prefix is
/// taken. That is not a failure of the transaction, which has operations of other callers as well.
pub(super) fn add(
    c: &Connection,
    hash: KeyHash,
    record: &KeyRecord,
) -> rusqlite::Result<Result<(), Unavailable>> {
    let mut insert = c.prepare_cached(
        "INSERT INTO access_key (hash, account, prefix, created_at)
         VALUES (?, (SELECT id FROM account WHERE name = ?), ?, ?)",
    )?;
    let name = record.account.as_str();
    match insert.execute(params![&hash.0[..], name, record.prefix, record.created_at]) {
        Ok(_) => Ok(Ok(())),
        Err(why) if why.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
            Ok(Err(Unavailable(format!("the key cannot be added: {why}"))))
        }
        Err(why) => Err(why),
    }
}

pub(super) fn find(c: &Connection, hash: KeyHash) -> rusqlite::Result<Option<KeyRecord>> {
    let mut select = c.prepare_cached(
        "SELECT name, prefix, created_at, revoked_at FROM access_key
         JOIN account ON account.id = access_key.account WHERE hash = ?",
    )?;
    Ok(select.query_row([&hash.0[..]], read_key_record).optional()?.flatten())
}

pub(super) fn list(c: &Connection, name: &AccountName) -> rusqlite::Result<Vec<KeyRecord>> {
    let mut select = c.prepare_cached(
        "SELECT name, prefix, created_at, revoked_at FROM access_key
         JOIN account ON account.id = access_key.account WHERE name = ?
         ORDER BY created_at, prefix",
    )?;
    let records = select.query_map([name.as_str()], read_key_record)?;
    records.filter_map(Result::transpose).collect()
}

pub(super) fn revoke(c: &Connection, prefix: &str, at: i64) -> rusqlite::Result<bool> {
    let mut update = c.prepare_cached(
        "UPDATE access_key SET revoked_at = coalesce(revoked_at, ?) WHERE prefix = ?",
    )?;
    Ok(update.execute(params![at, prefix])? == 1)
}

fn read_key_record(row: &Row<'_>) -> rusqlite::Result<Option<KeyRecord>> {
    let Some(account) = AccountName::parse(&row.get::<_, String>(0)?) else { return Ok(None) };
    Ok(Some(KeyRecord {
        account,
        prefix: row.get(1)?,
        created_at: row.get(2)?,
        revoked_at: row.get(3)?,
    }))
}
