//! The rows of archived days, the lines that are trimmed, and the turn to write to the archive.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{accounts, data_version};
use crate::archive::{ArchiveNote, ArchiveState, ArchivedDay};
use crate::ledger::AccountName;
use crate::usage::FOLD_VERSION;

/// A version that does not know these tables opens no file in which lines were trimmed.
pub(super) const SCHEMA: &str = "
-- The days of journals that are in the archive. day: its beginning in unix ms. last_seq: the number
-- of the account's last line of the day.
CREATE TABLE IF NOT EXISTS archived_day (
    account  INTEGER NOT NULL REFERENCES account,
    last_seq INTEGER NOT NULL CHECK (last_seq > 0),
    day      INTEGER NOT NULL,
    digest   TEXT    NOT NULL CHECK (length(digest) = 64),
    PRIMARY KEY (account, last_seq),
    UNIQUE (account, day)
) STRICT, WITHOUT ROWID;

-- The last line of a journal that was trimmed, and the sums of all lines that were, in nano-USD:
-- the books of the account are proved with them. No row: all lines are there.
CREATE TABLE IF NOT EXISTS journal_base (
    account               INTEGER PRIMARY KEY REFERENCES account,
    seq                   INTEGER NOT NULL CHECK (seq > 0),
    charged               INTEGER NOT NULL CHECK (charged >= 0),
    written_off           INTEGER NOT NULL CHECK (written_off BETWEEN 0 AND charged),
    corrected             INTEGER NOT NULL CHECK (corrected >= 0),
    corrected_written_off INTEGER NOT NULL CHECK (corrected_written_off BETWEEN 0 AND corrected),
    expired               INTEGER NOT NULL CHECK (expired >= 0)
) STRICT;

-- Which process writes to the archive, and until when, in unix ms.
CREATE TABLE IF NOT EXISTS archive_turn (
    row     INTEGER PRIMARY KEY CHECK (row = 1),
    holder  TEXT    NOT NULL,
    ends_at INTEGER NOT NULL
) STRICT;
";

/// A turn that ends later than this after it could end by now was taken by a wrong clock, in ms:
/// one day.
const TURN_EXCESS_MAX_MS: i64 = 86_400_000;

/// The number of sums in a row of `journal_base`.
const SUMS: usize = 5;

/// Returns how far a journal is archived and trimmed; `None` if there is no such account.
pub(super) fn read_state(
    c: &Connection,
    name: &AccountName,
) -> rusqlite::Result<Option<ArchiveState>> {
    // One transaction sees one state.
    let txn = c.unchecked_transaction()?;
    let Some(account) = accounts::find(&txn, name)?.map(|row| row.id) else { return Ok(None) };
    Ok(Some(ArchiveState {
        lines: accounts::last_seq(&txn, account)?.unsigned_abs(),
        folded: read_folded(&txn, account)?.unsigned_abs(),
        archived: last_days(&txn, account)?.into_iter().next(),
        trimmed: base_seq(&txn, account)?.unsigned_abs(),
    }))
}

/// Returns the number of the last line that is in the sums of this version.
fn read_folded(c: &Connection, account: i64) -> rusqlite::Result<i64> {
    let mut select =
        c.prepare_cached("SELECT seq FROM usage_fold WHERE account = ? AND version = ?")?;
    let folded = select.query_row(params![account, FOLD_VERSION], |row| row.get(0)).optional()?;
    Ok(folded.unwrap_or(0))
}

/// Returns the number of the last line that was trimmed; 0 if none was.
pub(super) fn base_seq(c: &Connection, account: i64) -> rusqlite::Result<i64> {
    let mut select = c.prepare_cached("SELECT seq FROM journal_base WHERE account = ?")?;
    Ok(select.query_row([account], |row| row.get(0)).optional()?.unwrap_or(0))
}

/// Fails if the lines after `folded` are no longer all in the journal: sums that begin there would
/// lack some of them.
pub(super) fn require_lines(c: &Connection, account: i64, folded: i64) -> rusqlite::Result<()> {
    let base = base_seq(c, account)?;
    if folded >= base {
        return Ok(());
    }
    let why =
        format!("lines 1 to {base} are in the archive, so the sums cannot be made from the store");
    Err(rusqlite::Error::ToSqlConversionFailure(why.into()))
}

fn read_day(row: &Row<'_>) -> rusqlite::Result<ArchivedDay> {
    let last_seq = row.get::<_, i64>(0)?.unsigned_abs();
    Ok(ArchivedDay { last_seq, day: row.get(1)?, digest: row.get(2)? })
}

/// Returns the last two archived days, the last one first.
fn last_days(c: &Connection, account: i64) -> rusqlite::Result<Vec<ArchivedDay>> {
    let mut select = c.prepare_cached(
        "SELECT last_seq, day, digest FROM archived_day
         WHERE account = ? ORDER BY last_seq DESC LIMIT 2",
    )?;
    select.query_map([account], read_day)?.collect()
}

/// Returns archived days whose last lines have numbers above `seq`, oldest first.
pub(super) fn list_days(
    c: &Connection,
    name: &AccountName,
    seq: u64,
    limit: u32,
) -> rusqlite::Result<Vec<ArchivedDay>> {
    let mut select = c.prepare_cached(
        "SELECT last_seq, day, digest FROM archived_day
         WHERE account = (SELECT id FROM account WHERE name = ?) AND last_seq > ?
         ORDER BY last_seq LIMIT ?",
    )?;
    let after = i64::try_from(seq).unwrap_or(i64::MAX);
    select.query_map(params![name.as_str(), after, limit], read_day)?.collect()
}

/// Notes an archived day. Returns whether it is noted.
pub(super) fn mark(c: &Connection, note: &ArchiveNote) -> rusqlite::Result<bool> {
    let ArchiveNote { account: name, after, day } = note;
    let Some(account) = accounts::find(c, name)?.map(|row| row.id) else { return Ok(false) };
    let known = last_days(c, account)?;
    let seq_at = |at: usize| known.get(at).map_or(0, |known| known.last_seq);
    if known.first() == Some(day) {
        return Ok(seq_at(1) == *after);
    }
    let is_later = known.first().is_none_or(|last| last.day < day.day);
    let lines = accounts::last_seq(c, account)?.unsigned_abs();
    if seq_at(0) != *after || day.last_seq <= *after || day.last_seq > lines || !is_later {
        return Ok(false);
    }
    let Ok(last_seq) = i64::try_from(day.last_seq) else { return Ok(false) };
    let mut insert = c.prepare_cached(
        "INSERT INTO archived_day (account, last_seq, day, digest) VALUES (?, ?, ?, ?)",
    )?;
    insert.execute(params![account, last_seq, day.day, day.digest])?;
    Ok(true)
}

/// Deletes lines up to `to`, at most `limit` of them, as far as they are archived and folded and
/// not the last one. Returns the number of the last line that is no longer there.
pub(super) fn trim(
    c: &Connection,
    name: &AccountName,
    to: u64,
    limit: u32,
) -> rusqlite::Result<u64> {
    let Some(account) = accounts::find(c, name)?.map(|row| row.id) else { return Ok(0) };
    let base = base_seq(c, account)?;
    let archived = last_days(c, account)?.first().map_or(0, |day| day.last_seq);
    let wanted = i64::try_from(to.min(archived)).unwrap_or(i64::MAX);
    let last = wanted
        .min(read_folded(c, account)?)
        .min(accounts::last_seq(c, account)?.saturating_sub(1))
        .min(base.saturating_add(i64::from(limit)));
    if last <= base {
        return Ok(base.unsigned_abs());
    }
    // A version that does not know the base would take the journal for shorter than it is.
    data_version::raise(c, data_version::ARCHIVE_VERSION)?;
    write_base(c, account, base, last)?;
    for table in ["correction_line", "expiry_line", "journal"] {
        let delete = format!("DELETE FROM {table} WHERE account = ? AND seq <= ?");
        c.prepare_cached(&delete)?.execute([account, last])?;
    }
    // The hour of the first line that stays is told by the last mark that is not after it.
    let mut delete = c.prepare_cached(
        "DELETE FROM journal_hour WHERE account = ?1 AND seq < (
             SELECT max(seq) FROM journal_hour WHERE account = ?1 AND seq <= ?2 + 1)",
    )?;
    delete.execute([account, last])?;
    Ok(last.unsigned_abs())
}

/// Adds the lines after `base`, up to `last`, to the sums of the lines that are trimmed.
fn write_base(c: &Connection, account: i64, base: i64, last: i64) -> rusqlite::Result<()> {
    let read = |row: &Row<'_>| {
        let mut sums = [0_i64; SUMS];
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum = row.get(at)?;
        }
        Ok(sums)
    };
    let mut select = c.prepare_cached(
        "SELECT charged, written_off, corrected, corrected_written_off, expired
         FROM journal_base WHERE account = ?",
    )?;
    let mut sums = select.query_row([account], read).optional()?.unwrap_or_default();
    // SQLite reports a sum of whole numbers that leaves 64 bits.
    let mut select = c.prepare_cached(
        "SELECT coalesce(sum(iif(is_charge, amount, 0)), 0),
                coalesce(sum(iif(is_charge, written_off, 0)), 0),
                coalesce(sum(iif(is_correction, amount, 0)), 0),
                coalesce(sum(iif(is_correction, written_off, 0)), 0),
                coalesce(sum(iif(is_charge OR is_correction, 0, amount)), 0)
         FROM (SELECT j.amount, j.written_off, c.seq IS NOT NULL AS is_correction,
                      c.seq IS NULL AND e.seq IS NULL AS is_charge
               FROM journal AS j
               LEFT JOIN correction_line AS c ON c.account = j.account AND c.seq = j.seq
               LEFT JOIN expiry_line AS e ON e.account = j.account AND e.seq = j.seq
               WHERE j.account = ? AND j.seq > ? AND j.seq <= ?)",
    )?;
    let more = select.query_row([account, base, last], read)?;
    for (sum, more) in sums.iter_mut().zip(more) {
        let added = sum.checked_add(more);
        *sum = added.ok_or(rusqlite::Error::IntegralValueOutOfRange(0, more))?;
    }
    let mut write = c.prepare_cached(
        "INSERT OR REPLACE INTO journal_base
             (account, seq, charged, written_off, corrected, corrected_written_off, expired)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    let [charged, written_off, corrected, not_paid, expired] = sums;
    let row = params![account, last, charged, written_off, corrected, not_paid, expired];
    write.execute(row).map(drop)
}

/// Takes or prolongs the turn to write to the archive. Returns whether `holder` has it.
pub(super) fn take_turn(
    c: &Connection,
    holder: &str,
    turn_ms: i64,
    now: i64,
) -> rusqlite::Result<bool> {
    let mut take = c.prepare_cached(
        "INSERT INTO archive_turn (row, holder, ends_at) VALUES (1, ?1, ?2)
         ON CONFLICT (row) DO UPDATE SET holder = excluded.holder, ends_at = excluded.ends_at
         WHERE holder = excluded.holder OR ends_at <= ?3 OR ends_at > ?4",
    )?;
    let ends_at = now.saturating_add(turn_ms);
    let latest = ends_at.saturating_add(TURN_EXCESS_MAX_MS);
    Ok(take.execute(params![holder, ends_at, now, latest])? == 1)
}
