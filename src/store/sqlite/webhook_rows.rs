//! The rows of webhooks: endpoints, messages and crossed levels, in one table.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::webhooks::{DueRow, RowBounds, RowPlace, WebhookRow, WebhookRowAdded, WebhookRowKind};

/// An older version ignores the table.
pub(super) const SCHEMA: &str = "
-- Webhooks. owner: an account, an endpoint, or empty. Times are in unix ms. body: JSON.
CREATE TABLE IF NOT EXISTS webhook (
    kind       TEXT    NOT NULL CHECK (kind IN ('endpoint', 'message', 'crossing')),
    id         TEXT    NOT NULL CHECK (length(id) BETWEEN 1 AND 80),
    owner      TEXT    NOT NULL CHECK (length(owner) <= 80),
    created_at INTEGER NOT NULL,
    due_at     INTEGER,
    version    INTEGER NOT NULL CHECK (version > 0),
    body       TEXT    NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS webhook_of_owner ON webhook (kind, owner, created_at, id);
CREATE INDEX IF NOT EXISTS webhook_at ON webhook (kind, created_at, id);
CREATE INDEX IF NOT EXISTS webhook_due ON webhook (kind, due_at, owner)
    WHERE due_at IS NOT NULL;
";

const COLUMNS: &str = "kind, id, owner, created_at, due_at, version, body";

fn read_kind(row: &Row<'_>) -> rusqlite::Result<WebhookRowKind> {
    let kind: String = row.get(0)?;
    WebhookRowKind::of_name(&kind)
        .ok_or_else(|| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, kind.into()))
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<WebhookRow> {
    Ok(WebhookRow {
        kind: read_kind(row)?,
        id: row.get(1)?,
        owner: row.get(2)?,
        created_at: row.get(3)?,
        due_at: row.get(4)?,
        version: row.get::<_, i64>(5)?.unsigned_abs(),
        body: row.get(6)?,
    })
}

/// Adds a row within the bounds, if no row has its id.
pub(super) fn add(
    c: &Connection,
    row: &WebhookRow,
    bounds: RowBounds,
    makes_room: bool,
) -> rusqlite::Result<WebhookRowAdded> {
    let kind = row.kind.name();
    let mut exists = c.prepare_cached("SELECT 1 FROM webhook WHERE kind = ? AND id = ?")?;
    if exists.exists(params![kind, row.id])? {
        return Ok(WebhookRowAdded::Exists);
    }
    let mut count =
        c.prepare_cached("SELECT count(*) FROM webhook WHERE kind = ? AND owner = ?")?;
    let of_owner: u32 = count.query_row(params![kind, row.owner], |row| row.get(0))?;
    let mut is_full = of_owner >= bounds.of_owner;
    if let Some(most) = bounds.in_all {
        let mut count = c.prepare_cached(
            "SELECT count(*) FROM (SELECT 1 FROM webhook WHERE kind = ? LIMIT ?)",
        )?;
        is_full |= count.query_row(params![kind, most], |row| row.get::<_, u32>(0))? >= most;
    }
    let mut removed = None;
    if is_full {
        if !makes_room {
            return Ok(WebhookRowAdded::Full);
        }
        let mut delete = c.prepare_cached(
            "DELETE FROM webhook WHERE kind = ?1 AND id = (
                 SELECT id FROM webhook WHERE kind = ?1 AND owner = ?2
                 ORDER BY created_at, id LIMIT 1) RETURNING body",
        )?;
        removed = delete.query_row(params![kind, row.owner], |row| row.get(0)).optional()?;
        if removed.is_none() {
            return Ok(WebhookRowAdded::Full);
        }
    }
    let mut insert =
        c.prepare_cached(&format!("INSERT INTO webhook ({COLUMNS}) VALUES (?, ?, ?, ?, ?, 1, ?)"))?;
    insert.execute(params![kind, row.id, row.owner, row.created_at, row.due_at, row.body])?;
    Ok(removed.map_or(WebhookRowAdded::Added, WebhookRowAdded::InPlaceOf))
}

pub(super) fn find(
    c: &Connection,
    kind: WebhookRowKind,
    id: &str,
) -> rusqlite::Result<Option<WebhookRow>> {
    let mut select =
        c.prepare_cached(&format!("SELECT {COLUMNS} FROM webhook WHERE kind = ? AND id = ?"))?;
    select.query_row(params![kind.name(), id], read_row).optional()
}

/// Replaces a row that has still the version that was read.
pub(super) fn replace(c: &Connection, row: &WebhookRow) -> rusqlite::Result<bool> {
    let mut update = c.prepare_cached(
        "UPDATE webhook SET body = ?, due_at = ?, version = version + 1
         WHERE kind = ? AND id = ? AND version = ?",
    )?;
    // A version that no row can have replaces none.
    let version = i64::try_from(row.version).unwrap_or(-1);
    let changed = params![row.body, row.due_at, row.kind.name(), row.id, version];
    Ok(update.execute(changed)? > 0)
}

pub(super) fn remove(c: &Connection, kind: WebhookRowKind, id: &str) -> rusqlite::Result<bool> {
    let mut delete = c.prepare_cached("DELETE FROM webhook WHERE kind = ? AND id = ?")?;
    Ok(delete.execute(params![kind.name(), id])? > 0)
}

/// Lists rows of an owner or of all, newest first.
pub(super) fn list(
    c: &Connection,
    kind: WebhookRowKind,
    owner: Option<&str>,
    before: Option<&RowPlace>,
    limit: u32,
) -> rusqlite::Result<Vec<WebhookRow>> {
    let (created_at, id) = match before {
        Some(place) => (place.created_at, place.id.as_str()),
        None => (i64::MAX, ""),
    };
    // Each has an index of its own.
    if let Some(owner) = owner {
        let mut select = c.prepare_cached(&format!(
            "SELECT {COLUMNS} FROM webhook
             WHERE kind = ? AND owner = ? AND (created_at, id) < (?, ?)
             ORDER BY created_at DESC, id DESC LIMIT ?"
        ))?;
        let of_owner = params![kind.name(), owner, created_at, id, limit];
        return select.query_map(of_owner, read_row)?.collect();
    }
    let mut select = c.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM webhook WHERE kind = ? AND (created_at, id) < (?, ?)
         ORDER BY created_at DESC, id DESC LIMIT ?"
    ))?;
    select.query_map(params![kind.name(), created_at, id, limit], read_row)?.collect()
}

/// Lists what is due, the longest due first: of each owner one row, that of the least time.
pub(super) fn list_due(
    c: &Connection,
    kind: WebhookRowKind,
    now: i64,
    limit: u32,
) -> rusqlite::Result<Vec<DueRow>> {
    let mut select = c.prepare_cached(
        "SELECT id, owner, min(due_at) FROM webhook INDEXED BY webhook_due
         WHERE kind = ? AND due_at <= ? GROUP BY owner ORDER BY 3 LIMIT ?",
    )?;
    let read = |row: &Row<'_>| Ok(DueRow { id: row.get(0)?, owner: row.get(1)? });
    select.query_map(params![kind.name(), now, limit], read)?.collect()
}
