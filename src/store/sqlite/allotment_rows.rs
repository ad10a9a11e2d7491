//! The rows of allotments.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::accounts::read_money;
use super::columns::{
    CallWindows, call_windows_columns, rates_column, read_call_windows, read_rates, read_slices,
    slices_column,
};
use super::{lot_rows, rate_rows};
use crate::clock::unix_ms;
use crate::ledger::prepaid::lot::LotAmounts;
use crate::ledger::prepaid::records::{Allotment, AllotmentId, AllotmentState, CallEnd};
use crate::ledger::prepaid::window::WindowId;
use crate::money::Money;

/// An allotment that has ended is remembered for this long, in ms, so that no end is posted twice.
const ENDED_TTL_MS: i64 = 24 * 60 * 60 * 1_000;
/// One step deletes at most this many ended allotments.
const PURGE_MAX: u32 = 500;

/// The states of a row.
const OPEN: i64 = 0;
const FENCED: i64 = 1;
const ENDED: i64 = 2;

/// The key of an allotment in the tables.
#[derive(Clone, Copy)]
pub(super) struct AllotmentRowKey<'a> {
    /// The row id of the account.
    pub(super) account: i64,
    pub(super) id: &'a AllotmentId,
}

const COLUMNS: &str = "id, lent_at, last_seq, last_step, needed, open_calls, may_be_free, tight, \
                       state, slices, rates";

/// Reads the allotments of an account that hold something, or may. One whose hold was swept by a
/// version that does not know allotments has ended.
pub(super) fn read_open(
    c: &Connection,
    account: i64,
) -> rusqlite::Result<BTreeMap<AllotmentId, Allotment>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM allotment INDEXED BY allotment_out
                       WHERE account = ? AND state < {ENDED}"
    );
    let mut select = c.prepare_cached(&sql)?;
    let rows = select.query_map([account], read_row)?;
    let rows: Vec<(AllotmentId, Allotment)> = rows.collect::<rusqlite::Result<_>>()?;
    let mut open = BTreeMap::new();
    for (id, mut allotment) in rows {
        let key = AllotmentRowKey { account, id: &id };
        let mut held = c.prepare_cached(
            "SELECT held, lease_until,
                    (SELECT lots FROM hold_lots AS l WHERE l.account = o.account AND l.id = o.id)
             FROM open_hold AS o WHERE account = ? AND id = ?",
        )?;
        let held = held.query_row(params![account, id.0], |row| {
            let drawn = lot_rows::read_drawn(row, 2, read_money(row, 0)?)?;
            Ok((drawn, row.get::<_, i64>(1)?))
        });
        let Some((drawn, lease_until)) = held.optional()? else {
            log::warn!(
                event = "allotment_ended_elsewhere", allotment = id.0;
                "allotment ended by another version; what is not posted yet is posted late"
            );
            delete_calls(c, key)?;
            release_slices(c, account, &mut allotment)?;
            write_row(c, key, &allotment, ENDED)?;
            continue;
        };
        allotment.drawn = drawn;
        allotment.lease_until = lease_until;
        allotment.checkpoints = read_checkpoints(c, key)?;
        open.insert(id, allotment);
    }
    Ok(open)
}

/// Reads an allotment that has ended; `None` if there is none.
pub(super) fn read_ended(
    c: &Connection,
    key: AllotmentRowKey<'_>,
) -> rusqlite::Result<Option<Allotment>> {
    let sql = format!("SELECT {COLUMNS} FROM allotment WHERE account = ? AND id = ?");
    let mut select = c.prepare_cached(&sql)?;
    let found = select.query_row(params![key.account, key.id.0], read_row).optional()?;
    let Some((_, mut allotment)) = found else { return Ok(None) };
    let charged = read_checkpoints(c, key)?.into_iter();
    let charged = charged.filter_map(|(call, end)| Some((call, end.charge?))).collect();
    allotment.state = AllotmentState::Ended { charged };
    Ok(Some(allotment))
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<(AllotmentId, Allotment)> {
    let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    let state = match row.get::<_, i64>(8)? {
        OPEN => AllotmentState::Open,
        _ => AllotmentState::Fenced,
    };
    let allotment = Allotment {
        drawn: LotAmounts::default(),
        slices: read_slices(row, 9)?,
        rates: read_rates(row, 10)?,
        checkpoints: BTreeMap::new(),
        lent_at: row.get(1)?,
        lease_until: 0,
        needed: read_money(row, 4)?,
        open_calls: row.get(5)?,
        last_seq: count(2)?,
        last_step: count(3)?,
        may_be_free: row.get(6)?,
        tight: row.get(7)?,
        state,
    };
    Ok((AllotmentId(row.get(0)?), allotment))
}

fn read_checkpoints(
    c: &Connection,
    key: AllotmentRowKey<'_>,
) -> rusqlite::Result<BTreeMap<String, CallEnd>> {
    let mut select = c.prepare_cached(
        "SELECT call, charge, held, line FROM allotment_call WHERE account = ? AND allotment = ?",
    )?;
    let ends = select.query_map(params![key.account, key.id.0], |row| {
        let call: String = row.get(0)?;
        let (charge, held) = (Some(read_money(row, 1)?), read_money(row, 2)?);
        let (key, windows, line) = (None, Vec::new(), row.get(3)?);
        Ok((call.clone(), CallEnd { call, key, held, charge, windows, line }))
    })?;
    let mut ends: BTreeMap<String, CallEnd> = ends.collect::<rusqlite::Result<_>>()?;
    if !ends.is_empty() {
        for (call, (key, windows)) in read_call_budgets(c, key)? {
            if let Some(end) = ends.get_mut(&call) {
                (end.key, end.windows) = (key, windows);
            }
        }
    }
    Ok(ends)
}

/// Reads in which windows the calls count that count in any.
fn read_call_budgets(
    c: &Connection,
    key: AllotmentRowKey<'_>,
) -> rusqlite::Result<Vec<(String, CallWindows)>> {
    let mut select = c.prepare_cached(
        "SELECT call, key_id, windows FROM allotment_call_budget
         WHERE account = ? AND allotment = ?",
    )?;
    let rows = select.query_map(params![key.account, key.id.0], |row| {
        Ok((row.get(0)?, read_call_windows(row, 1)?))
    })?;
    rows.collect()
}

/// Writes what has changed of an allotment.
pub(super) fn write(
    c: &Connection,
    key: AllotmentRowKey<'_>,
    before: Option<&Allotment>,
    after: &Allotment,
) -> rusqlite::Result<()> {
    if before == Some(after) {
        return Ok(());
    }
    let state = match after.state {
        AllotmentState::Open => OPEN,
        AllotmentState::Fenced => FENCED,
        AllotmentState::Ended { .. } => ENDED,
    };
    if before.is_some_and(|before| before.state == after.state) {
        update_row(c, key, after)?;
    } else {
        write_row(c, key, after, state)?;
    }
    write_hold(c, key, before, after)?;
    match &after.state {
        AllotmentState::Ended { charged } if before.is_none_or(Allotment::is_out) => {
            delete_calls(c, key)?;
            for (call, charge) in charged {
                write_call(c, key, call, *charge, Money::ZERO, "")?;
            }
        }
        AllotmentState::Ended { .. } => {}
        AllotmentState::Open | AllotmentState::Fenced => write_checkpoints(c, key, before, after)?,
    }
    Ok(())
}

fn write_row(
    c: &Connection,
    key: AllotmentRowKey<'_>,
    allotment: &Allotment,
    state: i64,
) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT INTO allotment (account, id, lent_at, last_seq, last_step, needed, open_calls,
         may_be_free, tight, state, ended_at, slices, rates)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET last_seq = excluded.last_seq, last_step = excluded.last_step,
         needed = excluded.needed, open_calls = excluded.open_calls,
         may_be_free = excluded.may_be_free, tight = excluded.tight, state = excluded.state,
         ended_at = coalesce(ended_at, excluded.ended_at), slices = excluded.slices,
         rates = excluded.rates",
    )?;
    insert
        .execute(params![
            key.account,
            key.id.0,
            allotment.lent_at,
            allotment.last_seq.cast_signed(),
            allotment.last_step.cast_signed(),
            allotment.needed.nano(),
            allotment.open_calls,
            allotment.may_be_free,
            allotment.tight,
            state,
            ended_at(state),
            slices_column(&allotment.slices),
            rates_column(&allotment.rates),
        ])
        .map(drop)
}

/// Writes what has changed of an allotment whose state has not. So no index is written.
fn update_row(
    c: &Connection,
    key: AllotmentRowKey<'_>,
    allotment: &Allotment,
) -> rusqlite::Result<()> {
    let mut update = c.prepare_cached(
        "UPDATE allotment SET last_seq = ?, last_step = ?, needed = ?, open_calls = ?,
         may_be_free = ?, tight = ?, slices = ?, rates = ? WHERE account = ? AND id = ?",
    )?;
    let updated = update.execute(params![
        allotment.last_seq.cast_signed(),
        allotment.last_step.cast_signed(),
        allotment.needed.nano(),
        allotment.open_calls,
        allotment.may_be_free,
        allotment.tight,
        slices_column(&allotment.slices),
        rates_column(&allotment.rates),
        key.account,
        key.id.0,
    ])?;
    if updated == 1 { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(updated)) }
}

fn ended_at(state: i64) -> Option<i64> {
    (state == ENDED).then(unix_ms)
}

/// Writes what an allotment holds, as the row of a hold, and what it has drawn of lots.
fn write_hold(
    c: &Connection,
    key: AllotmentRowKey<'_>,
    before: Option<&Allotment>,
    after: &Allotment,
) -> rusqlite::Result<()> {
    let was_out = before.is_some_and(Allotment::is_out);
    let (account, id, until) = (key.account, &key.id.0, after.lease_until);
    let held = after.drawn.total().unwrap_or_default().nano();
    let drawn_before = before.map(|before| &before.drawn);
    lot_rows::write_drawn(c, account, id, drawn_before, &after.drawn)?;
    match (was_out, after.is_out()) {
        (false, false) => {}
        (true, false) => {
            let sql = "DELETE FROM open_hold WHERE account = ? AND id = ?";
            c.prepare_cached(sql)?.execute(params![account, id])?;
        }
        (false, true) => {
            let mut insert = c.prepare_cached(
                "INSERT INTO open_hold (account, id, wanted, least, held, lease_until)
                 VALUES (?1, ?2, ?3, 0, ?3, ?4)",
            )?;
            insert.execute(params![account, id, held, until])?;
        }
        (true, true) => {
            let mut update = c.prepare_cached(
                "UPDATE open_hold SET held = ?, lease_until = ? WHERE account = ? AND id = ?",
            )?;
            if update.execute(params![held, until, account, id])? != 1 {
                return Err(rusqlite::Error::StatementChangedRows(0));
            }
        }
    }
    Ok(())
}

/// Gives the slices of an allotment back that a version of the program has ended that does not know
/// them.
fn release_slices(c: &Connection, account: i64, allotment: &mut Allotment) -> rusqlite::Result<()> {
    for (window, amount) in std::mem::take(&mut allotment.slices) {
        release_slice(c, account, window, amount)?;
    }
    rate_rows::release_places(c, account, std::mem::take(&mut allotment.rates))
}

/// Gives back what was lent of a window, at most all of it.
pub(super) fn release_slice(
    c: &Connection,
    account: i64,
    WindowId { owner, kind, start }: WindowId,
    amount: Money,
) -> rusqlite::Result<()> {
    let mut update = c.prepare_cached(
        "UPDATE budget_window SET held = held - min(lent, ?1), lent = lent - min(lent, ?1)
         WHERE account = ?2 AND owner = ?3 AND kind = ?4 AND start = ?5",
    )?;
    let values = params![amount.nano(), account, owner.to_text(), kind.name(), start];
    update.execute(values).map(drop)
}

/// Gives the slices of all allotments back that a version of the program has ended that does not
/// know them. Returns the row ids of their accounts.
pub(super) fn release_left_slices(c: &Connection) -> rusqlite::Result<Vec<i64>> {
    let sql = format!(
        "SELECT {COLUMNS}, account FROM allotment INDEXED BY allotment_left
         WHERE state = 2 AND (slices IS NOT NULL OR rates IS NOT NULL)"
    );
    let mut select = c.prepare_cached(&sql)?;
    let left = select.query_map([], |row| Ok((read_row(row)?, row.get(11)?)))?;
    let left: Vec<((AllotmentId, Allotment), i64)> = left.collect::<rusqlite::Result<_>>()?;
    let mut accounts = Vec::with_capacity(left.len());
    for ((id, mut allotment), account) in left {
        release_slices(c, account, &mut allotment)?;
        write_row(c, AllotmentRowKey { account, id: &id }, &allotment, ENDED)?;
        accounts.push(account);
    }
    Ok(accounts)
}

fn write_checkpoints(
    c: &Connection,
    key: AllotmentRowKey<'_>,
    before: Option<&Allotment>,
    after: &Allotment,
) -> rusqlite::Result<()> {
    let none = BTreeMap::new();
    let before = before.map_or(&none, |before| &before.checkpoints);
    for call in before.keys().filter(|call| !after.checkpoints.contains_key(*call)) {
        for table in ["allotment_call", "allotment_call_budget"] {
            let sql =
                format!("DELETE FROM {table} WHERE account = ? AND allotment = ? AND call = ?");
            c.prepare_cached(&sql)?.execute(params![key.account, key.id.0, call])?;
        }
    }
    for (call, end) in &after.checkpoints {
        if before.get(call) != Some(end) {
            write_call(c, key, call, end.charge.unwrap_or_default(), end.held, &end.line)?;
            write_call_budget(c, key, end)?;
        }
    }
    Ok(())
}

fn write_call(
    c: &Connection,
    key: AllotmentRowKey<'_>,
    call: &str,
    charge: Money,
    held: Money,
    line: &str,
) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT OR REPLACE INTO allotment_call (account, allotment, call, charge, held, line)
         VALUES (?, ?, ?, ?, ?, ?)",
    )?;
    let (charge, held) = (charge.nano(), held.nano());
    insert.execute(params![key.account, key.id.0, call, charge, held, line]).map(drop)
}

fn write_call_budget(
    c: &Connection,
    key: AllotmentRowKey<'_>,
    end: &CallEnd,
) -> rusqlite::Result<()> {
    if end.windows.is_empty() {
        return Ok(());
    }
    let mut insert = c.prepare_cached(
        "INSERT OR REPLACE INTO allotment_call_budget (account, allotment, call, key_id, windows)
         VALUES (?, ?, ?, ?, ?)",
    )?;
    let (key_id, windows) = call_windows_columns(end.key, &end.windows);
    insert.execute(params![key.account, key.id.0, end.call, key_id, windows]).map(drop)
}

fn delete_calls(c: &Connection, key: AllotmentRowKey<'_>) -> rusqlite::Result<()> {
    for table in ["allotment_call", "allotment_call_budget"] {
        let sql = format!("DELETE FROM {table} WHERE account = ? AND allotment = ?");
        c.prepare_cached(&sql)?.execute(params![key.account, key.id.0])?;
    }
    Ok(())
}

/// Whether the account has or had an allotment.
pub(super) fn has_any(c: &Connection, account: i64) -> rusqlite::Result<bool> {
    c.prepare_cached("SELECT 1 FROM allotment WHERE account = ?")?.exists([account])
}

/// Returns how many calls were open when gateways last said so, and what they needed.
pub(super) fn totals(c: &Connection) -> rusqlite::Result<(u64, Money)> {
    let mut select = c.prepare_cached(
        "SELECT coalesce(sum(open_calls), 0), coalesce(sum(needed), 0) FROM allotment
         WHERE state < 2",
    )?;
    select.query_row([], |row| Ok((row.get::<_, i64>(0)?.unsigned_abs(), read_money(row, 1)?)))
}

/// Deletes allotments that ended long ago, and returns their number.
pub(super) fn purge_ended(c: &Connection) -> rusqlite::Result<usize> {
    let before = unix_ms().saturating_sub(ENDED_TTL_MS);
    let mut select = c.prepare_cached(
        "SELECT account, id FROM allotment WHERE state = 2 AND ended_at < ? LIMIT ?",
    )?;
    let due = select.query_map(params![before, PURGE_MAX], |row| {
        Ok((row.get::<_, i64>(0)?, AllotmentId(row.get(1)?)))
    })?;
    let due: Vec<_> = due.collect::<rusqlite::Result<_>>()?;
    for (account, id) in &due {
        delete_calls(c, AllotmentRowKey { account: *account, id })?;
        let sql = "DELETE FROM allotment WHERE account = ? AND id = ?";
        c.prepare_cached(sql)?.execute(params![account, id.0])?;
    }
    Ok(due.len())
}
