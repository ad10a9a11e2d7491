//! The rows of operators, of the record of their changes, and of the requests that they have named.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::clock::unix_ms;
use crate::ledger::Unavailable;
use crate::operators::bounds::{
    self, AUDIT_LINES_MAX, AUDIT_RECENT_LINES, AUDIT_TRIM_MAX, OPERATOR_REQUESTS_MAX,
    OPERATORS_MAX, REQUEST_TTL_MS,
};
use crate::operators::{NamedRequest, OperatorChange, OperatorRecord, Role, TokenHash};

const SCHEMA: &str = "
-- Operators by name, with the digests of their tokens.
CREATE TABLE IF NOT EXISTS operator (
    name       TEXT    NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),
    hash       BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
    role       TEXT    NOT NULL CHECK (role IN ('support', 'operator', 'owner')),
    prefix     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;

-- The record of changes. Only its oldest lines are deleted, so no number is used again.
CREATE TABLE IF NOT EXISTS audit (
    seq  INTEGER PRIMARY KEY,
    line TEXT    NOT NULL CHECK (length(CAST(line AS BLOB)) <= 65536)
) STRICT;

-- The requests that operators have named. reply is null while a request runs, and if it ended
-- without one. The table has rowids, since replies are large.
CREATE TABLE IF NOT EXISTS operator_request (
    owner       TEXT    NOT NULL CHECK (length(owner) BETWEEN 1 AND 64),
    name        TEXT    NOT NULL CHECK (length(CAST(name AS BLOB)) <= 255),
    content     BLOB    NOT NULL CHECK (length(content) = 32),
    lives_until INTEGER NOT NULL CHECK (lives_until >= 0),
    reply       TEXT    CHECK (length(CAST(reply AS BLOB)) <= 65536),
    PRIMARY KEY (owner, name)
) STRICT;

CREATE INDEX IF NOT EXISTS operator_request_of ON operator_request (owner, lives_until);
CREATE INDEX IF NOT EXISTS operator_request_end ON operator_request (lives_until);
";

/// A step of a sweep deletes at most this many expired requests. It overwrites at most 4 MiB of
/// replies.
const PURGE_MAX: u32 = 64;
/// A new request makes room by deleting at most this many old ones.
const EVICTIONS_MAX: u32 = 16;

/// The columns of the record of an operator.
const COLUMNS: &str = "name, role, prefix, created_at, expires_at";

/// Creates the tables in a file that has none of them.
pub(super) fn prepare_schema(c: &Connection) -> rusqlite::Result<()> {
    c.execute_batch(SCHEMA)
}

fn read_record(row: &Row<'_>) -> rusqlite::Result<OperatorRecord> {
    let role: String = row.get(1)?;
    let role = Role::of_name(&role).ok_or_else(|| {
        rusqlite::Error::FromSqlConversionFailure(1, Type::Text, format!("role {role}").into())
    })?;
    Ok(OperatorRecord {
        name: row.get(0)?,
        role,
        prefix: row.get(2)?,
        created_at: row.get(3)?,
        expires_at: row.get(4)?,
    })
}

pub(super) fn find(c: &Connection, hash: TokenHash) -> rusqlite::Result<Option<OperatorRecord>> {
    let mut select = c.prepare_cached(&format!("SELECT {COLUMNS} FROM operator WHERE hash = ?"))?;
    select.query_row([&hash.0[..]], read_record).optional()
}

fn find_by_name(c: &Connection, name: &str) -> rusqlite::Result<Option<OperatorRecord>> {
    let mut select = c.prepare_cached(&format!("SELECT {COLUMNS} FROM operator WHERE name = ?"))?;
    select.query_row([name], read_record).optional()
}

pub(super) fn list(c: &Connection) -> rusqlite::Result<Vec<OperatorRecord>> {
    let query = format!("SELECT {COLUMNS} FROM operator ORDER BY name");
    let mut select = c.prepare_cached(&query)?;
    select.query_map([], read_record)?.collect()
}

/// Whether an operator is the only owner whose token does not expire.
fn is_last_owner(c: &Connection, record: &OperatorRecord) -> rusqlite::Result<bool> {
    let mut others = c.prepare_cached(
        "SELECT 1 FROM operator WHERE role = 'owner' AND expires_at IS NULL AND name <> ?",
    )?;
    Ok(record.is_lasting_owner() && !others.exists([&record.name])?)
}

pub(super) fn add(
    c: &Connection,
    hash: TokenHash,
    record: &OperatorRecord,
) -> rusqlite::Result<Result<OperatorChange, Unavailable>> {
    let holder = find(c, hash)?;
    if holder.as_ref() == Some(record) {
        return Ok(Ok(OperatorChange::Done));
    }
    if find_by_name(c, &record.name)?.is_some() {
        return Ok(Ok(OperatorChange::AlreadyExists));
    }
    if holder.is_some() {
        return Ok(Err(bounds::token_taken()));
    }
    let mut count = c.prepare_cached("SELECT count(*) FROM operator")?;
    if count.query_row([], |row| row.get::<_, u32>(0))? >= OPERATORS_MAX {
        return Ok(Err(bounds::too_many_operators()));
    }
    let mut insert = c.prepare_cached(
        "INSERT INTO operator (name, hash, role, prefix, created_at, expires_at)
         VALUES (?, ?, ?, ?, ?, ?)",
    )?;
    let OperatorRecord { name, role, prefix, created_at, expires_at } = record;
    insert.execute(params![name, &hash.0[..], role.name(), prefix, created_at, expires_at])?;
    Ok(Ok(OperatorChange::Done))
}

/// A token that takes the place of another one.
pub(super) struct NewToken {
    pub(super) hash: TokenHash,
    pub(super) prefix: String,
    pub(super) expires_at: Option<i64>,
}

pub(super) fn replace_token(
    c: &Connection,
    name: &str,
    token: &NewToken,
) -> rusqlite::Result<Result<OperatorChange, Unavailable>> {
    let NewToken { hash, prefix, expires_at } = token;
    let Some(record) = find_by_name(c, name)? else { return Ok(Ok(OperatorChange::Unknown)) };
    if find(c, *hash)?.is_some_and(|holder| holder.name != name) {
        return Ok(Err(bounds::token_taken()));
    }
    if expires_at.is_some() && is_last_owner(c, &record)? {
        return Ok(Ok(OperatorChange::LastOwner));
    }
    let mut update = c.prepare_cached(
        "UPDATE operator SET hash = ?, prefix = ?, expires_at = ? WHERE name = ?",
    )?;
    update.execute(params![&hash.0[..], prefix, expires_at, name])?;
    Ok(Ok(OperatorChange::Done))
}

pub(super) fn remove(c: &Connection, name: &str) -> rusqlite::Result<OperatorChange> {
    let Some(record) = find_by_name(c, name)? else { return Ok(OperatorChange::Unknown) };
    if is_last_owner(c, &record)? {
        return Ok(OperatorChange::LastOwner);
    }
    c.prepare_cached("DELETE FROM operator WHERE name = ?")?.execute([name])?;
    Ok(OperatorChange::Done)
}

pub(super) fn append_audit(c: &Connection, line: &str) -> rusqlite::Result<()> {
    let mut recent = c.prepare_cached(
        "SELECT 1 FROM (SELECT line FROM audit ORDER BY seq DESC LIMIT ?) WHERE line = ?",
    )?;
    if recent.exists(params![AUDIT_RECENT_LINES, line])? {
        return Ok(());
    }
    let mut trim = c.prepare_cached(
        "DELETE FROM audit WHERE seq IN (
             SELECT seq FROM audit WHERE seq <= (SELECT max(seq) FROM audit) + 1 - ?
             ORDER BY seq LIMIT ?)",
    )?;
    trim.execute([AUDIT_LINES_MAX, AUDIT_TRIM_MAX])?;
    // The new row has the highest number plus one.
    c.prepare_cached("INSERT INTO audit (line) VALUES (?)")?.execute([line]).map(drop)
}

pub(super) fn read_audit(
    c: &Connection,
    before: i64,
    limit: u32,
) -> rusqlite::Result<Vec<(u64, String)>> {
    let mut select =
        c.prepare_cached("SELECT seq, line FROM audit WHERE seq < ? ORDER BY seq DESC LIMIT ?")?;
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?));
    select.query_map(params![before, limit], read)?.collect()
}

pub(super) fn claim_request(
    c: &Connection,
    owner: &str,
    name: &str,
    content: [u8; 32],
) -> rusqlite::Result<NamedRequest> {
    let now = unix_ms();
    let mut select = c.prepare_cached(
        "SELECT content, reply FROM operator_request
         WHERE owner = ? AND name = ? AND lives_until > ?",
    )?;
    let read = |row: &Row<'_>| Ok((row.get::<_, [u8; 32]>(0)?, row.get::<_, Option<String>>(1)?));
    match select.query_row(params![owner, name, now], read).optional()? {
        Some((known, _)) if known != content => return Ok(NamedRequest::OtherContent),
        Some((_, Some(reply))) => return Ok(NamedRequest::Answered(reply)),
        Some((_, None)) => return Ok(NamedRequest::Running),
        None => {}
    }
    evict_oldest(c, owner)?;
    let mut insert = c.prepare_cached(
        "INSERT OR REPLACE INTO operator_request (owner, name, content, lives_until)
         VALUES (?, ?, ?, ?)",
    )?;
    let lives_until = now.saturating_add(i64::from(REQUEST_TTL_MS));
    insert.execute(params![owner, name, &content[..], lives_until])?;
    Ok(NamedRequest::New)
}

/// Deletes the oldest requests of an operator, so that one more can be kept.
fn evict_oldest(c: &Connection, owner: &str) -> rusqlite::Result<()> {
    let mut count = c.prepare_cached("SELECT count(*) FROM operator_request WHERE owner = ?")?;
    let count: u32 = count.query_row([owner], |row| row.get(0))?;
    let excess = (count + 1).saturating_sub(OPERATOR_REQUESTS_MAX).min(EVICTIONS_MAX);
    if excess == 0 {
        return Ok(());
    }
    let mut delete = c.prepare_cached(
        "DELETE FROM operator_request WHERE rowid IN (
             SELECT rowid FROM operator_request WHERE owner = ?
             ORDER BY lives_until, rowid LIMIT ?)",
    )?;
    delete.execute(params![owner, excess]).map(drop)
}

pub(super) fn answer_request(
    c: &Connection,
    owner: &str,
    name: &str,
    reply: &str,
) -> rusqlite::Result<()> {
    let mut update = c.prepare_cached(
        "UPDATE operator_request SET reply = ?
         WHERE owner = ? AND name = ? AND reply IS NULL AND lives_until > ?",
    )?;
    update.execute(params![reply, owner, name, unix_ms()]).map(drop)
}

pub(super) fn release_request(c: &Connection, owner: &str, name: &str) -> rusqlite::Result<()> {
    let mut delete = c.prepare_cached(
        "DELETE FROM operator_request WHERE owner = ? AND name = ? AND reply IS NULL",
    )?;
    delete.execute([owner, name]).map(drop)
}

/// Deletes some of the expired requests; returns their number.
pub(super) fn purge_expired(c: &Connection) -> rusqlite::Result<usize> {
    let mut delete = c.prepare_cached(
        "DELETE FROM operator_request WHERE rowid IN (
             SELECT rowid FROM operator_request WHERE lives_until <= ?
             ORDER BY lives_until LIMIT ?)",
    )?;
    delete.execute(params![unix_ms(), PURGE_MAX])
}
