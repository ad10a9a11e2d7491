//! The rows of rate limits: buckets, what holds took of them, and what allotments have of them.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::unix_ms;
use crate::ledger::prepaid::rate::{RateAsk, RateBucket, RateId, RateKind, format_rate_asks};

/// At most this many buckets of an account are kept in memory.
const BUCKETS_MAX: usize = 1_000;
/// A bucket that no call has taken from for so long, in ms, is deleted: it has drained, or what it
/// had beyond that is forgiven.
const UNUSED_TTL_MS: i64 = 2 * 24 * 60 * 60 * 1_000;
/// One step looks at so many buckets, and so deletes at most as many.
const PURGE_MAX: usize = 500;

/// The tables of rate limits.
pub(super) const SCHEMA: &str = "
-- What is in the buckets of rate limits. owner: as in the table of budgets. row: that of the plan.
-- level: in units times the ms of a minute, at the time at (unix ms). A bucket without a row is
-- empty.
CREATE TABLE IF NOT EXISTS rate_bucket (
    account INTEGER NOT NULL REFERENCES account,
    owner   TEXT    NOT NULL,
    kind    TEXT    NOT NULL CHECK (kind IN ('requests', 'tokens', 'calls')),
    row     INTEGER NOT NULL CHECK (row >= 0),
    level   INTEGER NOT NULL CHECK (level >= 0),
    at      INTEGER NOT NULL,
    PRIMARY KEY (account, owner, kind, row)
) STRICT, WITHOUT ROWID;

-- What an open hold took of rate limits, if it took anything. The row is still there after the hold
-- was ended by a version of the program that does not know this table.
CREATE TABLE IF NOT EXISTS hold_rate (
    account INTEGER NOT NULL REFERENCES account,
    id      TEXT    NOT NULL,
    asks    TEXT    NOT NULL,
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;

-- What an allotment has of a bucket. It counts as taken there.
CREATE TABLE IF NOT EXISTS allotment_rate (
    account   INTEGER NOT NULL REFERENCES account,
    allotment TEXT    NOT NULL,
    rate      TEXT    NOT NULL,
    slice     INTEGER NOT NULL CHECK (slice > 0),
    PRIMARY KEY (account, allotment, rate)
) STRICT, WITHOUT ROWID;
";

/// The key of a bucket in its table: account, owner, kind and row. The default is before all keys.
pub(super) type BucketKey = (i64, String, String, i64);

/// The buckets of an account that were read or written lately, as the writer keeps them in memory
/// from one transaction to the next; `None` if there is no such row.
#[derive(Default)]
pub(super) struct RateRows(BTreeMap<RateId, Option<RateBucket>>);

impl RateRows {
    /// Returns a bucket; `None` if there is no row of it.
    pub(super) fn bucket(
        &mut self,
        c: &Connection,
        account: i64,
        id: RateId,
    ) -> rusqlite::Result<Option<RateBucket>> {
        if let Some(known) = self.0.get(&id) {
            return Ok(*known);
        }
        let found = read_bucket(c, account, id)?;
        if self.0.len() >= BUCKETS_MAX {
            self.0.clear();
        }
        self.0.insert(id, found);
        Ok(found)
    }

    /// Writes a bucket, if it has changed.
    pub(super) fn write_bucket(
        &mut self,
        c: &Connection,
        account: i64,
        id: RateId,
        bucket: RateBucket,
    ) -> rusqlite::Result<()> {
        let known = self.bucket(c, account, id)?;
        let stays_empty = known.is_none() && bucket.level == 0;
        if stays_empty || known == Some(bucket) {
            return Ok(());
        }
        write_bucket(c, account, id, bucket)?;
        self.0.insert(id, Some(bucket));
        Ok(())
    }
}

fn read_bucket(c: &Connection, account: i64, id: RateId) -> rusqlite::Result<Option<RateBucket>> {
    let mut select = c.prepare_cached(
        "SELECT level, at FROM rate_bucket
         WHERE account = ? AND owner = ? AND kind = ? AND row = ?",
    )?;
    let RateId { owner, kind, row } = id;
    let found = select.query_row(params![account, owner.to_string(), kind.name(), row], |found| {
        Ok(RateBucket { level: found.get(0)?, at: found.get(1)? })
    });
    found.optional()
}

/// Writes a bucket. Nearly always there is a row of it, and SQLite checks the kind only for an
/// insert: it makes a table of all kinds for that each time, which takes 20,000 instructions.
fn write_bucket(
    c: &Connection,
    account: i64,
    RateId { owner, kind, row }: RateId,
    RateBucket { level, at }: RateBucket,
) -> rusqlite::Result<()> {
    let values = params![level, at, account, owner.to_string(), kind.name(), row];
    let update = "UPDATE rate_bucket SET level = ?, at = ?
                  WHERE account = ? AND owner = ? AND kind = ? AND row = ?";
    if c.prepare_cached(update)?.execute(values)? == 0 {
        let insert = "INSERT INTO rate_bucket (level, at, account, owner, kind, row)
                      VALUES (?, ?, ?, ?, ?, ?)";
        c.prepare_cached(insert)?.execute(values)?;
    }
    Ok(())
}

/// Gives the places back of what a version of the program has ended that knows no rate limits. What
/// it took of requests and tokens may have been used.
pub(super) fn release_places(
    c: &Connection,
    account: i64,
    taken: impl IntoIterator<Item = (RateId, i64)>,
) -> rusqlite::Result<()> {
    for (id, amount) in taken.into_iter().filter(|(id, _)| id.kind == RateKind::Calls) {
        if let Some(bucket) = read_bucket(c, account, id)? {
            write_bucket(c, account, id, bucket.remove(amount))?;
        }
    }
    Ok(())
}

/// Deletes those of the next buckets after `last` that were not used for long, and returns their
/// number. `last` becomes the last one that was looked at; after the end it begins anew. So the
/// table needs no index by time, which every call would have to keep.
pub(super) fn purge_unused(c: &Connection, last: &mut BucketKey) -> rusqlite::Result<usize> {
    let before = unix_ms().saturating_sub(UNUSED_TTL_MS);
    let limit = i64::try_from(PURGE_MAX).unwrap_or(i64::MAX);
    let mut select = c.prepare_cached(
        "SELECT account, owner, kind, row, at FROM rate_bucket
         WHERE (account, owner, kind, row) > (?, ?, ?, ?)
         ORDER BY account, owner, kind, row LIMIT ?",
    )?;
    let (account, owner, kind, row) = std::mem::take(last);
    let next = select.query_map(params![account, owner, kind, row, limit], |found| {
        let key = (found.get(0)?, found.get(1)?, found.get(2)?, found.get(3)?);
        Ok((key, found.get(4)?))
    })?;
    let mut next: Vec<(BucketKey, i64)> = next.collect::<rusqlite::Result<_>>()?;
    let mut delete = c.prepare_cached(
        "DELETE FROM rate_bucket WHERE account = ? AND owner = ? AND kind = ? AND row = ?",
    )?;
    let mut purged = 0;
    for ((account, owner, kind, row), _) in next.iter().filter(|(_, at)| *at < before) {
        purged += delete.execute(params![account, owner, kind, row])?;
    }
    if next.len() == PURGE_MAX {
        *last = next.pop().map(|(key, _)| key).unwrap_or_default();
    }
    Ok(purged)
}

/// Writes what an open hold took.
pub(super) fn write_asks(
    c: &Connection,
    account: i64,
    hold: &str,
    asks: &[RateAsk],
) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT INTO hold_rate (account, id, asks) VALUES (?, ?, ?)
         ON CONFLICT DO UPDATE SET asks = excluded.asks",
    )?;
    insert.execute(params![account, hold, format_rate_asks(asks)]).map(drop)
}

/// Deletes what a hold took, which has ended.
pub(super) fn delete_asks(c: &Connection, account: i64, hold: &str) -> rusqlite::Result<()> {
    let sql = "DELETE FROM hold_rate WHERE account = ? AND id = ?";
    c.prepare_cached(sql)?.execute(params![account, hold]).map(drop)
}

/// Reads what an allotment has of each bucket. A name that cannot be read, a later version has
/// written; it is passed over, since no limit may keep an end from being posted.
pub(super) fn read_slices(
    c: &Connection,
    account: i64,
    allotment: &str,
) -> rusqlite::Result<BTreeMap<RateId, i64>> {
    let mut select = c.prepare_cached(
        "SELECT rate, slice FROM allotment_rate WHERE account = ? AND allotment = ?",
    )?;
    let slices = select.query_map(params![account, allotment], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
    })?;
    let parsed =
        slices.map(|slice| slice.map(|(id, units)| Some((id.parse::<RateId>().ok()?, units))));
    parsed.filter_map(Result::transpose).collect()
}

/// Writes what has changed of the slices of an allotment.
pub(super) fn write_slices(
    c: &Connection,
    account: i64,
    allotment: &str,
    before: Option<&BTreeMap<RateId, i64>>,
    after: &BTreeMap<RateId, i64>,
) -> rusqlite::Result<()> {
    let none = BTreeMap::new();
    let before = before.unwrap_or(&none);
    for id in before.keys().filter(|id| !after.contains_key(*id)) {
        let sql = "DELETE FROM allotment_rate WHERE account = ? AND allotment = ? AND rate = ?";
        c.prepare_cached(sql)?.execute(params![account, allotment, id.to_string()])?;
    }
    for (id, slice) in after.iter().filter(|(id, slice)| before.get(id) != Some(*slice)) {
        let id = id.to_string();
        let values = params![slice, account, allotment, id];
        let update = "UPDATE allotment_rate SET slice = ?
                      WHERE account = ? AND allotment = ? AND rate = ?";
        if c.prepare_cached(update)?.execute(values)? == 0 {
            let insert = "INSERT INTO allotment_rate (slice, account, allotment, rate)
                          VALUES (?, ?, ?, ?)";
            c.prepare_cached(insert)?.execute(values)?;
        }
    }
    Ok(())
}

/// Gives the places of an allotment back that a version of the program has ended that does not know
/// them.
pub(super) fn release_slices(
    c: &Connection,
    account: i64,
    allotment: &str,
) -> rusqlite::Result<()> {
    release_places(c, account, read_slices(c, account, allotment)?)?;
    let sql = "DELETE FROM allotment_rate WHERE account = ? AND allotment = ?";
    c.prepare_cached(sql)?.execute(params![account, allotment]).map(drop)
}
