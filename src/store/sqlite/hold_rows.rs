//! The rows of holds: those of open and of ended ones, in which windows of budgets they count, and
//! what they took of rate limits and have drawn of lots.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::accounts::read_money;
use super::columns::{CallWindows, call_windows_columns, read_call_windows, read_rate_asks};
use super::{lot_rows, rate_rows};
use crate::clock::unix_ms;
use crate::ledger::prepaid::lot::LotAmounts;
use crate::ledger::prepaid::records::{DirectHold, DirectHoldState};
use crate::money::Money;

/// One step deletes at most this many holds that ended long ago, for each prefix.
const PURGE_MAX: u32 = 500;
/// A hold that has ended is remembered for this long, in ms, so that a repeated operation gets the
/// same outcome.
const ENDED_HOLD_TTL_MS: i64 = 24 * 60 * 60 * 1_000;
/// The prefixes that the id of a hold may have before its time: none, or the prefix of a video job.
const HOLD_ID_PREFIXES: [&str; 2] = ["", "video_"];

/// Deletes holds that ended long ago, and returns their number.
///
/// Ids that begin with their time (UUID version 7, as the gateway makes them) are sorted by time
/// within an account, so the oldest are found without a scan. The cross join keeps SQLite from
/// scanning the whole table instead. The bounds on the id are repeated in the outer query, so that
/// SQLite does not read all holds of each account that it has found.
pub(super) fn purge_ended(c: &Connection) -> rusqlite::Result<usize> {
    let before_ms = unix_ms() - ENDED_HOLD_TTL_MS;
    let oldest = format!("{:012x}", before_ms.max(0));
    let bound = format!("{}-{}", &oldest[..8], &oldest[8..]);
    let mut forgotten = 0;
    let mut delete = c.prepare_cached(
        "DELETE FROM hold WHERE id >= ?1 || '0' AND id < ?1 || ?2 AND (account, id) IN (
             SELECT hold.account, hold.id FROM account CROSS JOIN hold
             ON hold.account = account.id AND hold.id >= ?1 || '0' AND hold.id < ?1 || ?2
             WHERE hold.state <> 0 LIMIT ?3)",
    )?;
    for prefix in HOLD_ID_PREFIXES {
        forgotten += delete.execute(params![prefix, bound, PURGE_MAX])?;
    }
    Ok(forgotten)
}

/// Finds a hold, without the windows in which it counts. If it has ended and still has rates, a
/// version of the program has ended it that knows none.
pub(super) fn find_hold(
    c: &Connection,
    account: i64,
    id: &str,
) -> rusqlite::Result<Option<DirectHold>> {
    let mut open = c.prepare_cached(
        "SELECT wanted, least, held, lease_until, 0, posted, line,
                (SELECT asks FROM hold_rate AS r WHERE r.account = o.account AND r.id = o.id),
                (SELECT lots FROM hold_lots AS l WHERE l.account = o.account AND l.id = o.id)
         FROM open_hold AS o WHERE account = ? AND id = ?",
    )?;
    let known = open.query_row(params![account, id], read_hold).optional()?;
    if known.is_some() {
        return Ok(known);
    }
    let mut ended = c.prepare_cached(
        "SELECT wanted, least, held, lease_until, state, posted, line,
                (SELECT asks FROM hold_rate AS r WHERE r.account = h.account AND r.id = h.id),
                (SELECT lots FROM hold_lots AS l WHERE l.account = h.account AND l.id = h.id)
         FROM hold AS h WHERE account = ? AND id = ?",
    )?;
    ended.query_row(params![account, id], read_hold).optional()
}

/// Reads a hold from nine columns, of which the last two are what it took of rate limits and what
/// it has drawn of lots.
pub(super) fn read_hold(row: &Row<'_>) -> rusqlite::Result<DirectHold> {
    let posted = || row.get::<_, Option<i64>>(5)?.map(|_| read_money(row, 5)).transpose();
    let state = match row.get::<_, i64>(4)? {
        0 => {
            let line: Option<String> = row.get(6)?;
            DirectHoldState::Open { checkpoint: posted()?.zip(line) }
        }
        1 => DirectHoldState::Posted(posted()?.unwrap_or_default()),
        2 => DirectHoldState::Voided,
        3 => DirectHoldState::Expired(posted()?.unwrap_or_default()),
        _ => DirectHoldState::Tombstone,
    };
    let held = read_money(row, 2)?;
    let drawn = match state {
        DirectHoldState::Open { .. } => lot_rows::read_drawn(row, 8, held)?,
        _ => LotAmounts::default(),
    };
    Ok(DirectHold {
        key: None,
        wanted: read_money(row, 0)?,
        least: read_money(row, 1)?,
        held,
        drawn,
        windows: Vec::new(),
        rates: read_rate_asks(row, 7)?,
        lease_until: row.get(3)?,
        state,
    })
}

/// Reads the key of a hold and the windows in which it counts.
pub(super) fn read_budget(
    c: &Connection,
    key: HoldKey<'_>,
) -> rusqlite::Result<Option<CallWindows>> {
    let mut select =
        c.prepare_cached("SELECT key_id, windows FROM hold_budget WHERE account = ? AND id = ?")?;
    let found = select.query_row(params![key.account, key.id], |row| read_call_windows(row, 0));
    found.optional()
}

/// Whether a hold still counts as held in windows.
pub(super) fn is_counted_as_held(c: &Connection, key: HoldKey<'_>) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM hold_budget WHERE account = ? AND id = ? AND is_held = 1";
    c.prepare_cached(sql)?.exists(params![key.account, key.id])
}

/// Writes in which windows a hold counts, as long as somebody may ask. A hold that has expired may
/// be charged late.
fn write_budget(c: &Connection, key: HoldKey<'_>, hold: &DirectHold) -> rusqlite::Result<()> {
    if hold.windows.is_empty() {
        return Ok(());
    }
    let is_held = match hold.state {
        DirectHoldState::Open { .. } => true,
        DirectHoldState::Expired(_) => false,
        DirectHoldState::Posted(_) | DirectHoldState::Voided | DirectHoldState::Tombstone => {
            let sql = "DELETE FROM hold_budget WHERE account = ? AND id = ?";
            return c.prepare_cached(sql)?.execute(params![key.account, key.id]).map(drop);
        }
    };
    let mut insert = c.prepare_cached(
        "INSERT INTO hold_budget (account, id, key_id, windows, is_held) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET is_held = excluded.is_held WHERE is_held <> excluded.is_held",
    )?;
    let (key_id, windows) = call_windows_columns(hold.key, &hold.windows);
    insert.execute(params![key.account, key.id, key_id, windows, is_held]).map(drop)
}

/// The key of a hold in the tables.
#[derive(Clone, Copy)]
pub(super) struct HoldKey<'a> {
    /// The row id of the account.
    pub(super) account: i64,
    /// The id of the hold, which was chosen by the caller of the ledger.
    pub(super) id: &'a str,
}

/// Inserts an open hold; `false` if there is or was a hold with this id. Ended holds are looked up
/// by a separate statement, and the insert has a single row of values: for an insert with a select,
/// SQLite copies each page that it changes, so that it can undo a part of the statement.
pub(super) fn insert_open_hold(
    c: &Connection,
    key: HoldKey<'_>,
    record: &DirectHold,
) -> rusqlite::Result<bool> {
    let HoldKey { account, id } = key;
    let mut ended = c.prepare_cached("SELECT 1 FROM hold WHERE account = ? AND id = ?")?;
    if ended.exists(params![account, id])? {
        return Ok(false);
    }
    let mut insert = c.prepare_cached(
        "INSERT INTO open_hold (account, id, wanted, least, held, lease_until)
         VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    )?;
    let [wanted, least, held] = [record.wanted, record.least, record.held].map(Money::nano);
    let is_new =
        insert.execute(params![account, id, wanted, least, held, record.lease_until])? == 1;
    if is_new {
        write_budget(c, key, record)?;
        lot_rows::write_drawn(c, account, id, None, &record.drawn)?;
        if !record.rates.is_empty() {
            rate_rows::write_asks(c, account, id, &record.rates)?;
        }
    }
    Ok(is_new)
}

/// Writes the new state of a hold into the table of open or of ended holds. `false` if the hold was
/// open, but the table of ended holds has it too.
pub(super) fn write_hold(
    c: &Connection,
    key: HoldKey<'_>,
    known: Option<&DirectHold>,
    record: &DirectHold,
) -> rusqlite::Result<bool> {
    let HoldKey { account, id } = key;
    write_budget(c, key, record)?;
    lot_rows::write_drawn(c, account, id, known.map(|known| &known.drawn), &record.drawn)?;
    if !record.rates.is_empty() && !matches!(record.state, DirectHoldState::Open { .. }) {
        rate_rows::delete_asks(c, account, id)?;
    }
    let (state, posted) = match &record.state {
        DirectHoldState::Open { checkpoint } => {
            let checkpoint = checkpoint.as_ref().map(|(charge, line)| (charge.nano(), &**line));
            let (charge, line) = checkpoint.unzip();
            return update_open_hold(c, key, record, charge, line).map(|()| true);
        }
        DirectHoldState::Posted(amount) => (1, Some(amount.nano())),
        DirectHoldState::Voided => (2, None),
        DirectHoldState::Expired(amount) => (3, Some(amount.nano())),
        DirectHoldState::Tombstone => (4, None),
    };
    let was_open = known.is_some_and(|known| matches!(known.state, DirectHoldState::Open { .. }))
        && {
            let mut delete =
                c.prepare_cached("DELETE FROM open_hold WHERE account = ? AND id = ?")?;
            delete.execute(params![account, id])? > 0
        };
    let mut insert = c.prepare_cached(
        "INSERT INTO hold (account, id, wanted, least, held, lease_until, state, posted)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO UPDATE
         SET held = excluded.held, state = excluded.state, posted = excluded.posted, line = NULL
         WHERE NOT ?9",
    )?;
    let [wanted, least, held] = [record.wanted, record.least, record.held].map(Money::nano);
    let until = record.lease_until;
    let values = params![account, id, wanted, least, held, until, state, posted, was_open];
    Ok(insert.execute(values)? > 0)
}

/// Updates a hold that stays open, with the charge and the journal line of its last checkpoint.
fn update_open_hold(
    c: &Connection,
    key: HoldKey<'_>,
    record: &DirectHold,
    posted: Option<i64>,
    line: Option<&str>,
) -> rusqlite::Result<()> {
    let HoldKey { account, id } = key;
    let values = params![record.held.nano(), record.lease_until, posted, line, account, id];
    for table in [
        "UPDATE open_hold SET held = ?, lease_until = ?, posted = ?, line = ?
         WHERE account = ? AND id = ?",
        "UPDATE hold SET held = ?, lease_until = ?, posted = ?, line = ?
         WHERE account = ? AND id = ? AND state = 0",
    ] {
        if c.prepare_cached(table)?.execute(values)? > 0 {
            return Ok(());
        }
    }
    // The hold is in neither table, so its money would stay held for ever: the error undoes the
    // whole transaction.
    Err(rusqlite::Error::StatementChangedRows(0))
}
