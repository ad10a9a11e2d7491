//! Tables of older versions: what they have is moved to where it is now.

use rusqlite::Connection;

/// The index of the slices that an older version has left.
const INDEX: &str = "
CREATE INDEX IF NOT EXISTS allotment_left ON allotment (account)
WHERE state = 2 AND (slices IS NOT NULL OR rates IS NOT NULL)";

const ADD_COLUMNS: &str = "
ALTER TABLE allotment ADD COLUMN slices TEXT;
ALTER TABLE allotment ADD COLUMN rates TEXT;";

/// There was a row for what an allotment may hold in each window.
const MOVE_SLICES: &str = "
UPDATE allotment SET slices = (
    SELECT json_group_object(window, amount) FROM allotment_slice AS s
    WHERE s.account = allotment.account AND s.allotment = allotment.id)
WHERE EXISTS (
    SELECT 1 FROM allotment_slice AS s
    WHERE s.account = allotment.account AND s.allotment = allotment.id);
DROP TABLE allotment_slice;";

/// There was a row for each bucket, and for what an allotment has of it.
const MOVE_RATES: &str = "
INSERT OR IGNORE INTO rate_buckets (account, owner, used_at, buckets)
SELECT account, owner, max(at), json_group_object(kind || '/' || row, json_array(level, at))
FROM rate_bucket GROUP BY account, owner;
UPDATE allotment SET rates = (
    SELECT json_group_object(rate, slice) FROM allotment_rate AS r
    WHERE r.account = allotment.account AND r.allotment = allotment.id)
WHERE EXISTS (
    SELECT 1 FROM allotment_rate AS r
    WHERE r.account = allotment.account AND r.allotment = allotment.id);
DROP TABLE rate_bucket;
DROP TABLE allotment_rate;";

/// Moves what older versions have written elsewhere. Nothing is done twice: whether it is to be
/// done is looked up in a transaction that no other one runs beside.
pub(super) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    let has_column = "SELECT 1 FROM pragma_table_info('allotment') WHERE name = 'slices'";
    if !connection.prepare(has_column)?.exists([])? || has_tables(connection)? {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let moved = move_all(connection, has_column);
        connection.execute_batch(if moved.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        moved?;
    }
    connection.execute_batch(INDEX)
}

fn move_all(connection: &Connection, has_column: &str) -> rusqlite::Result<()> {
    if !connection.prepare(has_column)?.exists([])? {
        connection.execute_batch(ADD_COLUMNS)?;
    }
    for (table, moved) in [("allotment_slice", MOVE_SLICES), ("rate_bucket", MOVE_RATES)] {
        if has_table(connection, table)? {
            connection.execute_batch(moved)?;
        }
    }
    Ok(())
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(has_table(connection, "allotment_slice")? || has_table(connection, "rate_bucket")?)
}

fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?";
    connection.prepare_cached(sql)?.exists([name])
}
