//! Cache entries as rows of the table `note`.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::unix_ms;
use crate::kv_cache::{ID_PREFIX, Namespace};
use crate::ledger::AccountName;

/// One step deletes at most this many expired entries.
const PURGE_MAX: u32 = 16;
/// When a namespace of an account is full, this many entries are evicted at once, so that not every
/// new entry has to search for the one that expires first.
const EVICT_BATCH: usize = 32;

pub(super) fn find_entry(
    c: &Connection,
    account: &AccountName,
    name: &str,
    now: i64,
) -> rusqlite::Result<Option<Bytes>> {
    let mut select = c.prepare_cached(
        "SELECT body FROM note WHERE account = ? AND name = ? AND lives_until > ?",
    )?;
    let body = select.query_row(params![account.as_str(), name, now], |row| row.get(0));
    Ok(body.optional()?.map(|body: Vec<u8>| Bytes::from(body)))
}

/// Evicts the entries of a namespace that expire first, but not the entry that was just written.
pub(super) fn evict_overflow(
    c: &Connection,
    account: &AccountName,
    namespace: Namespace,
) -> rusqlite::Result<usize> {
    let mut delete = c.prepare_cached(
        "DELETE FROM note WHERE rowid IN (
             SELECT rowid FROM note WHERE account = ?1 AND (substr(name, 1, length(?2)) = ?2) = ?3
             ORDER BY lives_until DESC, rowid DESC LIMIT -1 OFFSET ?4)
         AND rowid <> last_insert_rowid()",
    )?;
    let rest = i64::try_from(namespace.entries_max() - EVICT_BATCH).unwrap_or_default();
    let (prefix, is_id) = (ID_PREFIX, namespace == Namespace::Ids);
    delete.execute(params![account.as_str(), prefix, is_id, rest])
}

/// Returns the number of an account's entries in a namespace, including expired ones.
pub(super) fn count_entries(
    c: &Connection,
    account: &AccountName,
    namespace: Namespace,
) -> rusqlite::Result<usize> {
    let mut select = c.prepare_cached(
        "SELECT count(*) FROM note WHERE account = ?1 AND (substr(name, 1, length(?2)) = ?2) = ?3",
    )?;
    let (prefix, is_id) = (ID_PREFIX, namespace == Namespace::Ids);
    let values = params![account.as_str(), prefix, is_id];
    let count: i64 = select.query_row(values, |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or_default())
}

/// Deletes expired entries; returns their number.
pub(super) fn purge_expired(c: &Connection) -> rusqlite::Result<usize> {
    let mut delete = c.prepare_cached(
        "DELETE FROM note WHERE rowid IN (
             SELECT rowid FROM note WHERE lives_until <= ? ORDER BY lives_until LIMIT ?)",
    )?;
    delete.execute(params![unix_ms(), PURGE_MAX])
}
