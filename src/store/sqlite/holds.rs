//! Holds in a table: load, let the pure machine decide, write back.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::accounts::{self, AccountRow, money};
use super::now_ms;
use crate::ledger::account::{self, Record, State, Step};
use crate::ledger::{AccountName, Answer, Operation, Swept};
use crate::money::Money;

/// Holds ended by one sweep, at most; the next sweep does the rest.
const SWEEP_MAX: u32 = 1_000;
/// A hold that ended is remembered so long, in ms, so that a repeat gets the same answer.
const REMEMBER_MS: i64 = 24 * 60 * 60 * 1_000;

/// Does an operation on a hold.
pub(super) fn apply(
    c: &Connection,
    name: &AccountName,
    op: &Operation,
) -> rusqlite::Result<Answer> {
    let id = match op {
        Operation::Credit { .. } => return Ok(Answer::Unknown),
        Operation::Hold { id, .. }
        | Operation::Renew { id, .. }
        | Operation::Checkpoint { id, .. }
        | Operation::Settle { id, .. }
        | Operation::Void { id } => id,
    };
    let Some(mut row) = accounts::find(c, name)? else { return Ok(Answer::NoAccount) };
    let known = find(c, row.id, id)?;
    let before = row.balances;
    let step = account::step(&mut row.balances, known.as_ref(), op, now_ms());
    if row.balances != before {
        accounts::save(c, row.id, &row.balances)?;
    }
    keep(c, row.id, id, known.is_some(), &step)?;
    Ok(step.answer)
}

/// Ends what is due, and forgets what ended long ago.
pub(super) fn expire(c: &Connection) -> rusqlite::Result<Swept> {
    let now = now_ms();
    let mut select = c.prepare_cached(
        "SELECT wanted, least, held, lease_until, state, posted, line, account, id FROM hold
         WHERE state = 0 AND lease_until <= ? ORDER BY lease_until, account, id LIMIT ?",
    )?;
    let due = select.query_map(params![now, SWEEP_MAX], |row| {
        Ok((row.get::<_, i64>(7)?, row.get::<_, String>(8)?, record(row)?))
    })?;
    let due: Vec<(i64, String, Record)> = due.collect::<rusqlite::Result<_>>()?;
    let mut swept = Swept::default();
    for (account, id, record) in due {
        let AccountRow { mut balances, .. } = accounts::by_id(c, account)?;
        if let Some(step) = account::expire(&mut balances, &record, now) {
            accounts::save(c, account, &balances)?;
            keep(c, account, &id, true, &step)?;
            swept.expired += 1;
        }
    }
    forget(c, now - REMEMBER_MS)?;
    let mut totals =
        c.prepare_cached("SELECT count(*), coalesce(sum(held), 0) FROM hold WHERE state = 0")?;
    let (open, held) = totals.query_row([], |r| Ok((r.get::<_, i64>(0)?, money(r, 1)?)))?;
    Ok(Swept { open: open.unsigned_abs(), held, ..swept })
}

/// Drops holds that ended long ago. Ids that begin with their time (UUID version 7, as the gateway
/// makes them) stand in the table in that order within an account, so the oldest are found without
/// a search: the cross join keeps SQLite from reading the whole table instead.
fn forget(c: &Connection, before_ms: i64) -> rusqlite::Result<()> {
    let oldest = format!("{:012x}", before_ms.max(0));
    let bound = format!("{}-{}", &oldest[..8], &oldest[8..]);
    let mut delete = c.prepare_cached(
        "DELETE FROM hold WHERE (account, id) IN (
             SELECT hold.account, hold.id FROM account CROSS JOIN hold
             ON hold.account = account.id AND hold.id >= '0' AND hold.id < ?
             WHERE hold.state <> 0 LIMIT ?)",
    )?;
    delete.execute(params![bound, SWEEP_MAX])?;
    Ok(())
}

fn find(c: &Connection, account: i64, id: &str) -> rusqlite::Result<Option<Record>> {
    let mut select = c.prepare_cached(
        "SELECT wanted, least, held, lease_until, state, posted, line FROM hold
         WHERE account = ? AND id = ?",
    )?;
    select.query_row(params![account, id], record).optional()
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let posted = || row.get::<_, Option<i64>>(5)?.map(|_| money(row, 5)).transpose();
    let state = match row.get::<_, i64>(4)? {
        0 => {
            let line: Option<String> = row.get(6)?;
            State::Open { checkpoint: posted()?.zip(line) }
        }
        1 => State::Posted(posted()?.unwrap_or_default()),
        2 => State::Voided,
        3 => State::Expired(posted()?.unwrap_or_default()),
        _ => State::Tombstone,
    };
    Ok(Record {
        wanted: money(row, 0)?,
        least: money(row, 1)?,
        held: money(row, 2)?,
        lease_until: row.get(3)?,
        state,
    })
}

/// Writes back what a step changed.
fn keep(c: &Connection, account: i64, id: &str, known: bool, step: &Step) -> rusqlite::Result<()> {
    if let Some(record) = &step.record {
        let (state, posted, line) = columns(&record.state);
        let posted = posted.map(Money::nano);
        if known {
            let mut update = c.prepare_cached(
                "UPDATE hold SET lease_until = ?, state = ?, posted = ?, line = ?
                 WHERE account = ? AND id = ?",
            )?;
            update.execute(params![record.lease_until, state, posted, line, account, id])?;
        } else {
            let mut insert = c.prepare_cached(
                "INSERT INTO hold (account, id, wanted, least, held, lease_until, state)
                 VALUES (?, ?, ?, ?, ?, ?, ?)",
            )?;
            let [wanted, least, held] = [record.wanted, record.least, record.held].map(Money::nano);
            let until = record.lease_until;
            insert.execute(params![account, id, wanted, least, held, until, state])?;
        }
    }
    if let Some(posting) = &step.posting {
        accounts::append(c, account, posting)?;
    }
    Ok(())
}

fn columns(state: &State) -> (i64, Option<Money>, Option<&str>) {
    match state {
        State::Open { checkpoint: None } => (0, None, None),
        State::Open { checkpoint: Some((charge, line)) } => (0, Some(*charge), Some(line)),
        State::Posted(amount) => (1, Some(*amount), None),
        State::Voided => (2, None, None),
        State::Expired(amount) => (3, Some(*amount), None),
        State::Tombstone => (4, None, None),
    }
}
