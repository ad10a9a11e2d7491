//! The limit on the bytes that the file keeps besides the ledger: replies, cache entries, bodies
//! for vendors. Triggers count the bytes, by account and in total, so that no code can forget to.
//! If there is no room left, entries of the account that keeps most are evicted.

use rusqlite::{Connection, OptionalExtension, params};

use crate::kv_cache::ID_PREFIX;
use crate::metrics::METRICS;

/// At most this many replies or cache entries are evicted before it is determined again which
/// account keeps most.
const REPLIES_EVICT_BATCH: u32 = 16;
const CACHE_ENTRIES_EVICT_BATCH: u32 = 16;
/// At most this many of the accounts that keep most are considered. An account may have nothing to
/// evict, since the bodies that a vendor still needs are not evicted.
const LARGEST_ACCOUNTS_MAX: u32 = 8;

/// The tables and triggers that count. They also count what an older version of the program writes
/// to the file. A cache entry that is replaced fires no delete trigger, so its bytes are subtracted
/// before the insert.
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS kept (
    account TEXT    NOT NULL PRIMARY KEY,
    bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS kept_most ON kept (bytes);
CREATE INDEX IF NOT EXISTS reply_of ON reply (account, lives_until);

-- The sum over all accounts. The row exists once the bytes that the file had before these triggers
-- are counted.
CREATE TABLE IF NOT EXISTS kept_all (
    row   INTEGER PRIMARY KEY CHECK (row = 1),
    bytes INTEGER NOT NULL
) STRICT;

CREATE TRIGGER IF NOT EXISTS kept_more AFTER INSERT ON kept BEGIN
    UPDATE kept_all SET bytes = bytes + new.bytes;
END;
CREATE TRIGGER IF NOT EXISTS kept_other AFTER UPDATE ON kept BEGIN
    UPDATE kept_all SET bytes = bytes + new.bytes - old.bytes;
END;
CREATE TRIGGER IF NOT EXISTS kept_none AFTER DELETE ON kept BEGIN
    UPDATE kept_all SET bytes = bytes - old.bytes;
END;

CREATE TRIGGER IF NOT EXISTS kept_reply AFTER INSERT ON reply BEGIN
    INSERT INTO kept VALUES (new.account, length(new.body))
    ON CONFLICT (account) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS kept_reply_no_more AFTER DELETE ON reply BEGIN
    UPDATE kept SET bytes = bytes - length(old.body) WHERE account = old.account;
END;

CREATE TRIGGER IF NOT EXISTS kept_note_before BEFORE INSERT ON note BEGIN
    UPDATE kept SET bytes = bytes - coalesce((
        SELECT length(body) + length(name) FROM note
        WHERE account = new.account AND name = new.name), 0)
    WHERE account = new.account;
END;
CREATE TRIGGER IF NOT EXISTS kept_note AFTER INSERT ON note BEGIN
    INSERT INTO kept VALUES (new.account, length(new.body) + length(new.name))
    ON CONFLICT (account) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS kept_note_no_more AFTER DELETE ON note BEGIN
    UPDATE kept SET bytes = bytes - length(old.body) - length(old.name)
    WHERE account = old.account;
END;

CREATE TRIGGER IF NOT EXISTS kept_body AFTER INSERT ON video_body BEGIN
    INSERT INTO kept
    SELECT name, length(new.body) FROM video JOIN account ON account.id = video.account
    WHERE video.row = new.video
    ON CONFLICT (account) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS kept_body_no_more AFTER DELETE ON video_body BEGIN
    UPDATE kept SET bytes = bytes - length(old.body) WHERE account = (
        SELECT name FROM video JOIN account ON account.id = video.account
        WHERE video.row = old.video);
END;
";

/// Counts what the file had before it had these triggers, and commits.
const RECOUNT_SQL: &str = "
DELETE FROM kept;
INSERT INTO kept
SELECT account, sum(bytes) FROM (
    SELECT account, length(body) AS bytes FROM reply
    UNION ALL SELECT account, length(body) + length(name) FROM note
    UNION ALL SELECT name, length(body) FROM video_body
        JOIN video ON video.row = video_body.video JOIN account ON account.id = video.account)
GROUP BY account;
INSERT INTO kept_all SELECT 1, coalesce(sum(bytes), 0) FROM kept;
COMMIT";

/// Creates the tables and triggers that are missing, and counts the bytes of a file in which they
/// were never counted.
pub(super) fn prepare_schema(c: &Connection) -> rusqlite::Result<()> {
    c.execute_batch(SCHEMA)?;
    if is_counted(c)? {
        return Ok(());
    }
    c.execute_batch("BEGIN IMMEDIATE")?;
    // Another process may have been first.
    let counted = if is_counted(c)? { "ROLLBACK" } else { RECOUNT_SQL };
    c.execute_batch(counted)
}

fn is_counted(c: &Connection) -> rusqlite::Result<bool> {
    let mut select = c.prepare("SELECT 1 FROM kept_all")?;
    select.exists([])
}

/// Returns the number of bytes kept, for all accounts together.
pub(super) fn total_bytes(c: &Connection) -> rusqlite::Result<u64> {
    let mut select = c.prepare_cached("SELECT bytes FROM kept_all")?;
    let bytes = select.query_row([], |row| row.get::<_, i64>(0)).optional()?;
    Ok(bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or_default())
}

/// Evicts until there is room for `bytes_needed`; `false` if that is impossible.
pub(super) fn make_room(
    c: &Connection,
    bytes_max: u64,
    bytes_needed: usize,
) -> rusqlite::Result<bool> {
    let bytes_needed = bytes_needed as u64;
    if bytes_needed > bytes_max {
        return Ok(false);
    }
    while total_bytes(c)?.saturating_add(bytes_needed) > bytes_max {
        if evict_batch(c)? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Evicts one batch if more than `bytes_max` bytes are kept. Returns the number of bytes evicted.
pub(super) fn evict_excess(c: &Connection, bytes_max: u64) -> rusqlite::Result<u64> {
    let kept = total_bytes(c)?;
    METRICS.kept_bytes.with_label_values(&["store"]).set(i64::try_from(kept).unwrap_or(i64::MAX));
    if kept > bytes_max { evict_batch(c) } else { Ok(0) }
}

/// Evicts a batch of entries of an account that keeps most, those that expire first. Bodies of
/// replies go first, whose idempotency keys stay. Then go cache entries: a model's thinking before
/// the ids with which clients continue. Returns the number of bytes evicted.
fn evict_batch(c: &Connection) -> rusqlite::Result<u64> {
    const REPLIES: &str = "DELETE FROM reply WHERE account = ?1 AND owner IN (
        SELECT owner FROM reply WHERE account = ?1 ORDER BY lives_until, row LIMIT ?2)";
    const CACHE_ENTRIES: &str = "DELETE FROM note WHERE rowid IN (
        SELECT rowid FROM note
        WHERE account = ?1 AND (substr(name, 1, length(?3)) = ?3) = ?4
        ORDER BY lives_until, rowid LIMIT ?2)";
    let before = total_bytes(c)?;
    let mut select = c.prepare_cached("SELECT account FROM kept ORDER BY bytes DESC LIMIT ?")?;
    let holders: Vec<String> = select
        .query_map([LARGEST_ACCOUNTS_MAX], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for account in holders {
        let mut dropped =
            c.prepare_cached(REPLIES)?.execute(params![account, REPLIES_EVICT_BATCH])?;
        for is_id in [false, true] {
            if dropped == 0 {
                let these = params![account, CACHE_ENTRIES_EVICT_BATCH, ID_PREFIX, is_id];
                dropped = c.prepare_cached(CACHE_ENTRIES)?.execute(these)?;
            }
        }
        if dropped > 0 {
            // Bytes are returned, not entries: if only empty entries were evicted, the caller stops
            // instead of evicting more of them for nothing.
            let bytes = before.saturating_sub(total_bytes(c)?);
            METRICS.kept_evicted_bytes.with_label_values(&["store"]).inc_by(bytes);
            return Ok(bytes);
        }
    }
    Ok(0)
}
