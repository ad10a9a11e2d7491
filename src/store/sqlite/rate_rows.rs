//! The rows of rate limits: buckets, and what holds took of them.
//!
//! Nearly every update of an allotment changes all limits of an account and a key. So the buckets
//! of an owner are one row.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rusqlite::{Connection, OptionalExtension, params};

use super::columns;
use crate::clock::unix_ms;
use crate::ledger::prepaid::rate::{RateAsk, RateBucket, RateId, RateKind, format_rate_asks};
use crate::ledger::prepaid::window::BudgetOwner;
use crate::ledger::push_number;

/// At most this many owners of buckets of an account are kept in memory.
const OWNERS_MAX: usize = 256;
/// A bucket that no call has taken from for so long, in ms, is deleted: it has drained, or what it
/// had beyond that is forgiven.
const UNUSED_TTL_MS: i64 = 2 * 24 * 60 * 60 * 1_000;
/// One step looks at the buckets of at most this many owners.
const PURGE_MAX: usize = 500;

/// The tables of rate limits.
pub(super) const SCHEMA: &str = "
-- What is in the buckets of rate limits. owner: as in the table of budgets. used_at: when the
-- latest of them was taken from (unix ms). buckets: JSON, such as
-- {\"calls/0\":[60000,1795721133000]}: by kind and row of the plan, the level in units times the ms
-- of a minute, and when it was that (unix ms). A bucket that is not there is empty.
CREATE TABLE IF NOT EXISTS rate_buckets (
    account INTEGER NOT NULL REFERENCES account,
    owner   TEXT    NOT NULL,
    used_at INTEGER NOT NULL,
    buckets TEXT    NOT NULL,
    PRIMARY KEY (account, owner)
) STRICT, WITHOUT ROWID;

-- What an open hold took of rate limits, if it took anything. The row is still there after the hold
-- was ended by a version of the program that does not know this table.
CREATE TABLE IF NOT EXISTS hold_rate (
    account INTEGER NOT NULL REFERENCES account,
    id      TEXT    NOT NULL,
    asks    TEXT    NOT NULL,
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;
";

/// The key of a row of buckets: account and owner. The default is before all keys.
pub(super) type BucketsKey = (i64, String);

/// The buckets of an account that were read or written lately, as the writer keeps them in memory
/// from one transaction to the next.
#[derive(Default)]
pub(super) struct RateRows(BTreeMap<BudgetOwner, Buckets>);

/// The buckets of an owner, by their kinds and rows.
type Buckets = BTreeMap<(RateKind, u16), RateBucket>;

impl RateRows {
    /// Returns a bucket; `None` if there is nothing of it in the store.
    pub(super) fn bucket(
        &mut self,
        c: &Connection,
        account: i64,
        RateId { owner, kind, row }: RateId,
    ) -> rusqlite::Result<Option<RateBucket>> {
        Ok(self.buckets(c, account, owner)?.get(&(kind, row)).copied())
    }

    fn buckets(
        &mut self,
        c: &Connection,
        account: i64,
        owner: BudgetOwner,
    ) -> rusqlite::Result<&mut Buckets> {
        if self.0.len() >= OWNERS_MAX && !self.0.contains_key(&owner) {
            self.0.clear();
        }
        match self.0.entry(owner) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(read_buckets(c, account, owner)?)),
        }
    }

    /// Writes the buckets that have changed.
    pub(super) fn write_changed(
        &mut self,
        c: &Connection,
        account: i64,
        changed: &BTreeMap<RateId, RateBucket>,
    ) -> rusqlite::Result<()> {
        let changed: Vec<_> = changed.iter().collect();
        for of_one in changed.chunk_by(|(id, _), (next, _)| id.owner == next.owner) {
            let Some((RateId { owner, .. }, _)) = of_one.first() else { continue };
            let buckets = self.buckets(c, account, *owner)?;
            let mut has_changed = false;
            for (id, bucket) in of_one {
                let known = buckets.get(&(id.kind, id.row));
                let stays_empty = known.is_none() && bucket.level == 0;
                if !stays_empty && known != Some(*bucket) {
                    buckets.insert((id.kind, id.row), **bucket);
                    has_changed = true;
                }
            }
            if has_changed {
                write_buckets(c, account, *owner, buckets)?;
            }
        }
        Ok(())
    }
}

/// Reads the buckets of an owner. One that cannot be read, a later version has written; it is empty
/// here, and the next write forgets it, since no limit may keep an end from being posted.
fn read_buckets(c: &Connection, account: i64, owner: BudgetOwner) -> rusqlite::Result<Buckets> {
    let mut select =
        c.prepare_cached("SELECT buckets FROM rate_buckets WHERE account = ? AND owner = ?")?;
    let found = select.query_row(params![account, owner.to_text()], |row| row.get(0));
    let text: Option<String> = found.optional()?;
    let found = columns::parse_members(text.as_deref());
    let parsed = found.into_iter().filter_map(|(name, value)| {
        let (level, at) = serde_json::from_value(value).ok()?;
        let (kind, row) = name.split_once('/')?;
        let kind = RateKind::ALL.into_iter().find(|known| known.name() == kind)?;
        Some(((kind, row.parse().ok()?), RateBucket { level, at }))
    });
    Ok(parsed.collect())
}

/// Writes the buckets of an owner, and forgets those that were not used for long. Nearly always
/// there is a row of them, and an update takes less than an insert that meets it.
fn write_buckets(
    c: &Connection,
    account: i64,
    owner: BudgetOwner,
    buckets: &mut Buckets,
) -> rusqlite::Result<()> {
    let used_at = buckets.values().map(|bucket| bucket.at).max().unwrap_or_default();
    // A bucket may be from a time at which the clock was ahead.
    let before = used_at.min(unix_ms()).saturating_sub(UNUSED_TTL_MS);
    buckets.retain(|_, bucket| bucket.at >= before);
    let text = columns::json_object(buckets, |text, ((kind, row), RateBucket { level, at })| {
        text.push_str(kind.name());
        push_number(text, "/", *row);
        push_number(text, "\":[", *level);
        push_number(text, ",", *at);
        text.push(']');
    });
    let values = params![used_at, text, account, owner.to_text()];
    let update = "UPDATE rate_buckets SET used_at = ?, buckets = ? WHERE account = ? AND owner = ?";
    if c.prepare_cached(update)?.execute(values)? == 0 {
        let insert =
            "INSERT INTO rate_buckets (used_at, buckets, account, owner) VALUES (?, ?, ?, ?)";
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
        let mut buckets = read_buckets(c, account, id.owner)?;
        if let Some(bucket) = buckets.get_mut(&(id.kind, id.row)) {
            *bucket = bucket.remove(amount);
            write_buckets(c, account, id.owner, &mut buckets)?;
        }
    }
    Ok(())
}

/// Deletes those of the next owners' buckets after `last` that were not used for long, and returns
/// the number of rows. `last` becomes the last one that was looked at; after the end it begins
/// anew. So the table needs no index by time, which every call would have to keep.
pub(super) fn purge_unused(c: &Connection, last: &mut BucketsKey) -> rusqlite::Result<usize> {
    let before = unix_ms().saturating_sub(UNUSED_TTL_MS);
    let limit = i64::try_from(PURGE_MAX).unwrap_or(i64::MAX);
    let mut select = c.prepare_cached(
        "SELECT account, owner, used_at FROM rate_buckets WHERE (account, owner) > (?, ?)
         ORDER BY account, owner LIMIT ?",
    )?;
    let (account, owner) = std::mem::take(last);
    let next = select.query_map(params![account, owner, limit], |found| {
        Ok(((found.get(0)?, found.get(1)?), found.get(2)?))
    })?;
    let mut next: Vec<(BucketsKey, i64)> = next.collect::<rusqlite::Result<_>>()?;
    let mut delete =
        c.prepare_cached("DELETE FROM rate_buckets WHERE account = ? AND owner = ?")?;
    let mut purged = 0;
    for ((account, owner), _) in next.iter().filter(|(_, used_at)| *used_at < before) {
        purged += delete.execute(params![account, owner])?;
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
