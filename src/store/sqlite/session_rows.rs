//! The rows of sign-in links and sessions.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::clock::unix_ms;
use crate::sessions::{Principal, SecretHash, SecretKind, Session};

pub(super) const SCHEMA: &str = "
-- The links and sessions of those who sign in, in the order in which they were added. subject is
-- the principal without its role. Times are in unix ms.
CREATE TABLE IF NOT EXISTS sign_in (
    row         INTEGER PRIMARY KEY,
    kind        TEXT    NOT NULL CHECK (kind IN ('link', 'session')),
    hash        BLOB    NOT NULL CHECK (length(hash) = 32),
    subject     TEXT    NOT NULL CHECK (length(subject) BETWEEN 1 AND 300),
    principal   TEXT    NOT NULL CHECK (length(principal) BETWEEN 1 AND 300),
    created_at  INTEGER NOT NULL,
    lives_until INTEGER NOT NULL CHECK (lives_until > created_at),
    UNIQUE (hash, kind)
) STRICT;

CREATE INDEX IF NOT EXISTS sign_in_of ON sign_in (subject, kind);
CREATE INDEX IF NOT EXISTS sign_in_end ON sign_in (lives_until);
";

/// A step of a sweep deletes at most this many rows.
const PURGE_MAX: u32 = 256;

/// The columns of a session.
const COLUMNS: &str = "principal, created_at, lives_until";

/// Reads a session; `None` if its principal is of a kind that this version does not know.
fn read_session(row: &Row<'_>) -> rusqlite::Result<Option<Session>> {
    let principal: String = row.get(0)?;
    let (created_ms, expires_ms): (i64, i64) = (row.get(1)?, row.get(2)?);
    Ok(Principal::parse(&principal).map(|principal| Session {
        principal,
        created_at: created_ms / 1_000,
        expires_at: expires_ms / 1_000,
    }))
}

/// Adds a link or a session. Those of the same principal that have expired, or have to make room,
/// are deleted first.
pub(super) fn add(
    c: &Connection,
    kind: SecretKind,
    hash: SecretHash,
    principal: &Principal,
    ttl_ms: u32,
) -> rusqlite::Result<()> {
    let (now, subject) = (unix_ms(), principal.subject());
    let mut make_room = c.prepare_cached(
        "DELETE FROM sign_in WHERE subject = ?1 AND kind = ?2 AND (lives_until <= ?3 OR row <= (
             SELECT row FROM sign_in
             WHERE subject = ?1 AND kind = ?2 AND lives_until > ?3 AND hash <> ?4
             ORDER BY row DESC LIMIT 1 OFFSET ?5))",
    )?;
    let others_kept = kind.kept_max() - 1;
    make_room.execute(params![subject, kind.name(), now, &hash.0[..], others_kept])?;
    let mut insert = c.prepare_cached(
        "INSERT OR REPLACE INTO sign_in (kind, hash, subject, principal, created_at, lives_until)
         VALUES (?, ?, ?, ?, ?, ?)",
    )?;
    let lives_until = now.saturating_add(i64::from(ttl_ms));
    let (hash, principal) = (&hash.0[..], principal.to_string());
    insert.execute(params![kind.name(), hash, subject, principal, now, lives_until]).map(drop)
}

/// Deletes a link that has not expired, and returns it.
pub(super) fn take_link(c: &Connection, hash: SecretHash) -> rusqlite::Result<Option<Session>> {
    let mut delete = c.prepare_cached(&format!(
        "DELETE FROM sign_in WHERE hash = ? AND kind = ? AND lives_until > ? RETURNING {COLUMNS}"
    ))?;
    let link = params![&hash.0[..], SecretKind::Link.name(), unix_ms()];
    delete.query_row(link, read_session).optional().map(Option::flatten)
}

/// Returns a link or a session that has not expired.
pub(super) fn find(
    c: &Connection,
    kind: SecretKind,
    hash: SecretHash,
) -> rusqlite::Result<Option<Session>> {
    let mut select = c.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM sign_in WHERE hash = ? AND kind = ? AND lives_until > ?"
    ))?;
    let found = params![&hash.0[..], kind.name(), unix_ms()];
    select.query_row(found, read_session).optional().map(Option::flatten)
}

pub(super) fn end_session(c: &Connection, hash: SecretHash) -> rusqlite::Result<()> {
    let mut delete = c.prepare_cached("DELETE FROM sign_in WHERE hash = ? AND kind = ?")?;
    delete.execute(params![&hash.0[..], SecretKind::Session.name()]).map(drop)
}

/// Deletes all links and sessions of a principal. Returns how many sessions had not expired.
pub(super) fn end_all(c: &Connection, principal: &Principal) -> rusqlite::Result<u32> {
    let subject = principal.subject();
    let mut count = c.prepare_cached(
        "SELECT count(*) FROM sign_in WHERE subject = ? AND kind = ? AND lives_until > ?",
    )?;
    let sessions = params![subject, SecretKind::Session.name(), unix_ms()];
    let ended = count.query_row(sessions, |row| row.get(0))?;
    c.prepare_cached("DELETE FROM sign_in WHERE subject = ?")?.execute([subject])?;
    Ok(ended)
}

/// Deletes some of what has expired; returns how many rows.
pub(super) fn purge_expired(c: &Connection) -> rusqlite::Result<usize> {
    let mut delete = c.prepare_cached(
        "DELETE FROM sign_in WHERE row IN (
             SELECT row FROM sign_in WHERE lives_until <= ? ORDER BY lives_until LIMIT ?)",
    )?;
    delete.execute(params![unix_ms(), PURGE_MAX])
}
