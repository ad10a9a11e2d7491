//! The rows of usage roll-ups, and what tells which lines of which journals are to be folded.

use std::sync::atomic::{AtomicI64, Ordering};

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params, params_from_iter};

use super::accounts::read_money;
use super::archive_rows::require_lines;
use super::posted_lines::read_posted;
use crate::ledger::{AccountName, KeyId};
use crate::usage::{
    FOLD_VERSION, HOURS_KEPT_MS, PeriodKind, PostedEntry, RollupKey, RollupOwner, RollupPeriod,
    RollupSums, RollupView, Rollups, UsageBooks, UsageOverflow, UsageQuery, UsageRows,
};

/// An older version ignores these tables, and marks no account. What it posts is found minutes
/// later all the same, and counts in the hour of the last mark.
pub(super) const SCHEMA: &str = "
-- The accounts that may have lines that are not folded.
CREATE TABLE IF NOT EXISTS usage_due (
    account INTEGER PRIMARY KEY REFERENCES account
) STRICT;

-- The number of the last line of an account that is folded, and the version of the fold that the
-- sums are of.
CREATE TABLE IF NOT EXISTS usage_fold (
    account INTEGER PRIMARY KEY REFERENCES account,
    seq     INTEGER NOT NULL CHECK (seq > 0),
    version INTEGER NOT NULL CHECK (version > 0)
) STRICT;

-- The sums. kind: how long the period is that began at start, in unix ms. by_key: whether it is a
-- row of the lines of one key, or of all lines of the account. key_id: -1 if the lines name none,
-- and in the rows of the account. Amounts are in nano-USD.
CREATE TABLE IF NOT EXISTS usage_rollup (
    account               INTEGER NOT NULL REFERENCES account,
    kind                  TEXT    NOT NULL CHECK (kind IN ('hour', 'day')),
    by_key                INTEGER NOT NULL CHECK (by_key IN (0, 1)),
    start                 INTEGER NOT NULL,
    key_id                INTEGER NOT NULL,
    model                 TEXT    NOT NULL,
    endpoint              TEXT    NOT NULL,
    calls                 INTEGER NOT NULL CHECK (calls >= 0),
    calls_without_cost    INTEGER NOT NULL CHECK (calls_without_cost BETWEEN 0 AND calls),
    prompt_tokens         INTEGER NOT NULL CHECK (prompt_tokens >= 0),
    completion_tokens     INTEGER NOT NULL CHECK (completion_tokens >= 0),
    cached_tokens         INTEGER NOT NULL CHECK (cached_tokens >= 0),
    characters            INTEGER NOT NULL CHECK (characters >= 0),
    images                INTEGER NOT NULL CHECK (images >= 0),
    seconds               INTEGER NOT NULL CHECK (seconds >= 0),
    charged               INTEGER NOT NULL CHECK (charged >= 0),
    written_off           INTEGER NOT NULL CHECK (written_off BETWEEN 0 AND charged),
    corrected             INTEGER NOT NULL CHECK (corrected >= 0),
    corrected_written_off INTEGER NOT NULL CHECK (corrected_written_off BETWEEN 0 AND corrected),
    expired               INTEGER NOT NULL CHECK (expired >= 0),
    fees                  INTEGER NOT NULL CHECK (fees >= 0),
    cost                  INTEGER NOT NULL CHECK (cost >= 0),
    PRIMARY KEY (account, kind, by_key, start, key_id, model, endpoint)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS usage_hour ON usage_rollup (start) WHERE kind = 'hour';
";

/// The columns of a row of sums.
const ROLLUP_COLUMNS: &str = "kind, by_key, start, key_id, model, endpoint, calls, \
    calls_without_cost, prompt_tokens, completion_tokens, cached_tokens, characters, images, \
    seconds, charged, written_off, corrected, corrected_written_off, expired, fees, cost";
/// The number of columns before the sums.
const KEY_COLUMNS: usize = 6;
/// What stands for no key. The ids of keys are not below zero.
const NO_KEY: i64 = -1;
/// A step looks at this many accounts for lines that nobody has marked.
const SCANNED_MAX: i64 = 1_000;
/// The accounts are looked at again after this time, in ms.
const SCAN_INTERVAL_MS: i64 = 600_000;
/// A step folds lines of at most this many accounts.
const ACCOUNTS_MAX: i64 = 64;
/// A step deletes at most this many sums of hours.
const PURGE_MAX: u32 = 200;

/// Where folding goes on, by the row ids of accounts.
#[derive(Default)]
pub(super) struct FoldCursor {
    /// All accounts up to this one were looked at for lines that nobody has marked;
    /// [`i64::MAX`] if all were.
    scanned: AtomicI64,
    /// When they are looked at again, in unix ms.
    next_scan: AtomicI64,
    /// The last account of which lines were folded: the others have their turn first.
    folded: AtomicI64,
}

/// Lines of an account that are to be folded.
pub(super) struct DueLines {
    account: i64,
    pub(super) name: AccountName,
    /// The number of the last line that is folded; 0 if the sums are of an older version.
    folded: i64,
    pub(super) entries: Vec<PostedEntry>,
}

/// What a step has to fold.
pub(super) struct DueWork {
    pub(super) accounts: Vec<DueLines>,
    /// Accounts that are to be marked.
    pub(super) unmarked: Vec<i64>,
    /// Whether there may be more.
    pub(super) has_more: bool,
    /// Why the lines of some accounts could not be read.
    pub(super) failed: Vec<String>,
}

/// Marks an account as having lines that are not folded.
pub(super) fn mark_due(c: &Connection, account: i64) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached("INSERT OR IGNORE INTO usage_due (account) VALUES (?)")?;
    insert.execute([account]).map(drop)
}

/// Reads what the next step folds at `now` (unix ms), at most `lines_max` lines.
pub(super) fn read_due(
    c: &Connection,
    cursor: &FoldCursor,
    lines_max: u32,
    now: i64,
) -> rusqlite::Result<DueWork> {
    let unmarked = scan(c, cursor, now)?;
    let is_scanning = cursor.scanned.load(Ordering::SeqCst) != i64::MAX;
    let after = cursor.folded.load(Ordering::SeqCst);
    let (mut due, mut is_from_start) = (list_due(c, after)?, after == 0);
    if due.is_empty() && !is_from_start {
        (due, is_from_start) = (list_due(c, 0)?, true);
    }
    // The accounts before those of this step may have lines, too.
    let is_part = !due.is_empty() && !is_from_start || i64::try_from(due.len()) == Ok(ACCOUNTS_MAX);
    let mut has_more = is_scanning || !unmarked.is_empty() || is_part;
    let (mut accounts, mut failed, mut left) = (Vec::new(), Vec::new(), lines_max);
    for (account, name, folded) in due {
        if left == 0 {
            has_more = true;
            break;
        }
        cursor.folded.store(account, Ordering::SeqCst);
        let lines = require_lines(c, account, folded);
        let entries = match lines.and_then(|()| read_posted(c, account, folded, left)) {
            Ok(entries) => entries,
            Err(why) => {
                failed.push(format!("account '{name}': {why}"));
                continue;
            }
        };
        left = left.saturating_sub(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        accounts.push(DueLines { account, name, folded, entries });
    }
    has_more |= left == 0;
    Ok(DueWork { accounts, unmarked, has_more, failed })
}

/// Looks at some accounts for lines that are not folded, when a process starts and from time to
/// time: an older version of the program, which may still be at work, marks no account.
fn scan(c: &Connection, cursor: &FoldCursor, now: i64) -> rusqlite::Result<Vec<i64>> {
    let mut after = cursor.scanned.load(Ordering::SeqCst);
    if after == i64::MAX {
        if now < cursor.next_scan.load(Ordering::SeqCst) {
            return Ok(Vec::new());
        }
        after = 0;
    }
    let mut select = c.prepare_cached(
        "SELECT id, coalesce((SELECT max(seq) FROM journal WHERE account = id), 0)
                > coalesce((SELECT iif(version < ?, 0, seq) FROM usage_fold WHERE account = id), 0)
         FROM account WHERE id > ? ORDER BY id LIMIT ?",
    )?;
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?));
    let accounts = select.query_map([i64::from(FOLD_VERSION), after, SCANNED_MAX], read)?;
    let (mut unmarked, mut last) = (Vec::new(), i64::MAX);
    for account in accounts {
        let (id, is_behind) = account?;
        last = id;
        if is_behind {
            unmarked.push(id);
        }
    }
    cursor.scanned.store(last, Ordering::SeqCst);
    cursor.next_scan.store(now.saturating_add(SCAN_INTERVAL_MS), Ordering::SeqCst);
    Ok(unmarked)
}

/// Returns accounts that are marked, each with its name and the last line that is folded. Those
/// that a newer version of the program has folded are left to it.
fn list_due(c: &Connection, after: i64) -> rusqlite::Result<Vec<(i64, AccountName, i64)>> {
    let mut select = c.prepare_cached(
        "SELECT d.account, (SELECT name FROM account WHERE id = d.account),
                coalesce((SELECT iif(version < ?1, 0, seq) FROM usage_fold AS f
                          WHERE f.account = d.account), 0)
         FROM usage_due AS d
         WHERE d.account > ?2
           AND NOT EXISTS (SELECT 1 FROM usage_fold AS f
                           WHERE f.account = d.account AND f.version > ?1)
         ORDER BY d.account LIMIT ?3",
    )?;
    let read = |row: &Row<'_>| {
        let name: String = row.get(1)?;
        Ok(AccountName::parse(&name).map(|name| (row.get(0), name, row.get(2))))
    };
    let rows = select.query_map(params![FOLD_VERSION, after, ACCOUNTS_MAX], read)?;
    let due = rows.filter_map(Result::transpose).map(|row| {
        let (account, name, folded) = row?;
        Ok((account?, name, folded?))
    });
    due.collect()
}

/// Adds the sums of lines to an account, unless others have folded them meanwhile, and moves the
/// number of its last folded line. Sums of an older version are deleted first. Returns whether all
/// lines are folded now; `None` if nothing was changed.
pub(super) fn apply(
    c: &Connection,
    due: &DueLines,
    rows: &Rollups,
    now: i64,
) -> rusqlite::Result<Option<bool>> {
    let account = due.account;
    let mut select = c.prepare_cached("SELECT seq, version FROM usage_fold WHERE account = ?")?;
    let known = select.query_row([account], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (seq, version): (i64, u32) = known.unwrap_or((0, FOLD_VERSION));
    let folded = if version < FOLD_VERSION { 0 } else { seq };
    if folded != due.folded || version > FOLD_VERSION {
        return Ok(None);
    }
    // Before sums of an older version go that cannot be made anew.
    require_lines(c, account, folded)?;
    if version < FOLD_VERSION {
        c.prepare_cached("DELETE FROM usage_rollup WHERE account = ?")?.execute([account])?;
    }
    let mut select =
        c.prepare_cached("SELECT coalesce(max(seq), 0) FROM journal WHERE account = ?")?;
    let last: i64 = select.query_row([account], |row| row.get(0))?;
    let to = due.entries.last().map_or(folded, |posted| posted.entry.seq.cast_signed());
    let kept_from = now.saturating_sub(HOURS_KEPT_MS);
    let is_kept =
        |key: &RollupKey| key.period.kind == PeriodKind::Day || key.period.start >= kept_from;
    for (key, sums) in rows.iter().filter(|(key, _)| is_kept(key)) {
        add_sums(c, account, key, sums)?;
    }
    if to > folded {
        let mut update = c.prepare_cached(
            "INSERT OR REPLACE INTO usage_fold (account, seq, version) VALUES (?, ?, ?)",
        )?;
        update.execute(params![account, to, FOLD_VERSION])?;
    }
    if to == last {
        c.prepare_cached("DELETE FROM usage_due WHERE account = ?")?.execute([account])?;
    }
    Ok(Some(to == last))
}

fn add_sums(
    c: &Connection,
    account: i64,
    key: &RollupKey,
    sums: &RollupSums,
) -> rusqlite::Result<()> {
    let RollupKey { period, owner, model, endpoint } = key;
    let by_key = is_by_key(owner.view());
    let key_id = match owner {
        RollupOwner::Account | RollupOwner::NoKey => NO_KEY,
        RollupOwner::Key(KeyId(id)) => id.cast_signed(),
    };
    let kind = period.kind.name();
    let mut select = c.prepare_cached(&format!(
        "SELECT {ROLLUP_COLUMNS} FROM usage_rollup
         WHERE account = ? AND {} AND by_key = ? AND start = ? AND key_id = ? AND model = ?
           AND endpoint = ?",
        is_of_kind(period.kind)
    ))?;
    let known = params![account, by_key, period.start, key_id, model, endpoint];
    let known = select.query_row(known, read_rollup).optional()?;
    let (_, known) = known.unwrap_or_else(|| (key.clone(), RollupSums::default()));
    let values = known.checked_add(sums).and_then(|sum| sum.to_values()).map_err(overflow)?;
    let mut write = c.prepare_cached(&format!(
        "INSERT OR REPLACE INTO usage_rollup (account, {ROLLUP_COLUMNS})
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    ))?;
    let names: [&dyn ToSql; 1 + KEY_COLUMNS] =
        [&account, &kind, &by_key, &period.start, &key_id, model, endpoint];
    let sums = values.iter().map(|value| value as &dyn ToSql);
    write.execute(params_from_iter(names.into_iter().chain(sums))).map(drop)
}

/// Returns a condition on the kind of rows. It is a text and no parameter: there is an index of the
/// hours alone, so SQLite would plan a statement anew whenever the parameter is bound.
fn is_of_kind(kind: PeriodKind) -> &'static str {
    match kind {
        PeriodKind::Hour => "kind = 'hour'",
        PeriodKind::Day => "kind = 'day'",
    }
}

fn is_by_key(view: RollupView) -> bool {
    view == RollupView::Keys
}

fn overflow(why: UsageOverflow) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(why))
}

fn read_rollup(row: &Row<'_>) -> rusqlite::Result<(RollupKey, RollupSums)> {
    let kind: String = row.get(0)?;
    let kind = if kind == PeriodKind::Day.name() { PeriodKind::Day } else { PeriodKind::Hour };
    let (is_by_key, key_id): (bool, i64) = (row.get(1)?, row.get(3)?);
    let owner = match u64::try_from(key_id) {
        _ if !is_by_key => RollupOwner::Account,
        Ok(id) => RollupOwner::Key(KeyId(id)),
        Err(_) => RollupOwner::NoKey,
    };
    let period = RollupPeriod { kind, start: row.get(2)? };
    let mut values = [0; crate::usage::ROLLUP_FIELDS.len()];
    for (at, value) in values.iter_mut().enumerate() {
        *value = row.get(KEY_COLUMNS + at)?;
    }
    let key = RollupKey { period, owner, model: row.get(4)?, endpoint: row.get(5)? };
    Ok((key, RollupSums::of_values(values).map_err(overflow)?))
}

/// Deletes some of the sums of hours that are too old. Returns their number.
pub(super) fn purge_hours(c: &Connection, now: i64) -> rusqlite::Result<usize> {
    let mut delete = c.prepare_cached(
        "DELETE FROM usage_rollup WHERE (account, kind, by_key, start, key_id, model, endpoint) IN (
             SELECT account, kind, by_key, start, key_id, model, endpoint FROM usage_rollup
             WHERE kind = 'hour' AND start < ? ORDER BY start LIMIT ?)",
    )?;
    delete.execute(params![now.saturating_sub(HOURS_KEPT_MS), PURGE_MAX])
}

/// Whether sums of hours are too old.
pub(super) fn has_old_hours(c: &Connection, now: i64) -> rusqlite::Result<bool> {
    let mut select =
        c.prepare_cached("SELECT 1 FROM usage_rollup WHERE kind = 'hour' AND start < ? LIMIT 1")?;
    select.exists([now.saturating_sub(HOURS_KEPT_MS)])
}

pub(super) fn list(
    c: &Connection,
    query: &UsageQuery,
) -> rusqlite::Result<Vec<(RollupKey, RollupSums)>> {
    if let UsageRows::Key(key) = query.rows {
        return list_of_key(c, query, key);
    }
    let UsageQuery { account, kind, rows, from, to, rows_max } = query;
    let mut select = c.prepare_cached(&format!(
        "SELECT {ROLLUP_COLUMNS} FROM usage_rollup
         WHERE account = (SELECT id FROM account WHERE name = ?)
           AND {} AND by_key = ? AND start >= ? AND start < ?
         ORDER BY start, key_id, model, endpoint LIMIT ?",
        is_of_kind(*kind)
    ))?;
    let by_key = is_by_key(rows.view());
    let asked = params![account.as_str(), by_key, from, to, rows_max];
    select.query_map(asked, read_rollup)?.collect()
}

/// Returns the rows of one key. It looks for them in each period that the account has rows of, and
/// passes over those of other keys.
fn list_of_key(
    c: &Connection,
    query: &UsageQuery,
    key: KeyId,
) -> rusqlite::Result<Vec<(RollupKey, RollupSums)>> {
    let UsageQuery { account, from, to, rows_max, .. } = query;
    let kind = is_of_kind(query.kind);
    let mut select = c.prepare_cached(&format!(
        "SELECT {ROLLUP_COLUMNS} FROM usage_rollup
         WHERE account = (SELECT id FROM account WHERE name = ?1)
           AND {kind} AND by_key = 1 AND key_id = ?4
           AND start IN (
               SELECT DISTINCT start FROM usage_rollup
               WHERE account = (SELECT id FROM account WHERE name = ?1)
                 AND {kind} AND by_key = 0 AND start >= ?2 AND start < ?3)
         ORDER BY start, model, endpoint LIMIT ?5"
    ))?;
    let key = key.0.cast_signed();
    let asked = params![account.as_str(), from, to, key, rows_max];
    select.query_map(asked, read_rollup)?.collect()
}

/// Reads the books of an account at one moment, with these kinds of rows.
pub(super) fn read_books(
    c: &Connection,
    name: &AccountName,
    views: &[RollupView],
) -> rusqlite::Result<Option<UsageBooks>> {
    // One transaction sees one state.
    let txn = c.unchecked_transaction()?;
    let mut select = txn.prepare_cached(
        "SELECT id, posted, written_off,
                coalesce((SELECT seq FROM usage_fold WHERE account = id AND version = ?2), 0),
                coalesce((SELECT max(seq) FROM journal WHERE account = id), 0)
         FROM account WHERE name = ?1",
    )?;
    let found = select.query_row(params![name.as_str(), FOLD_VERSION], |row| {
        let (posted, written_off) = (read_money(row, 1)?, read_money(row, 2)?);
        let (folded, lines) = (row.get::<_, i64>(3)?, row.get::<_, i64>(4)?);
        let (folded, lines) = (folded.unsigned_abs(), lines.unsigned_abs());
        let days = Rollups::new();
        Ok((row.get::<_, i64>(0)?, UsageBooks { folded, lines, posted, written_off, days }))
    });
    let Some((account, mut books)) = found.optional()? else { return Ok(None) };
    let mut select = txn.prepare_cached(&format!(
        "SELECT {ROLLUP_COLUMNS} FROM usage_rollup
         WHERE account = ? AND kind = 'day' AND by_key = ?"
    ))?;
    // Sums of another version are no sums yet.
    for view in views.iter().filter(|_| books.folded > 0) {
        for row in select.query_map(params![account, is_by_key(*view)], read_rollup)? {
            let (key, sums) = row?;
            books.days.insert(key, sums);
        }
    }
    Ok(Some(books))
}
