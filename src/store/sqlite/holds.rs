//! Holds in a table: load, let the pure machine decide, write back.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::accounts::money;
use super::desk::Desk;
use super::now_ms;
use crate::ledger::account::{self, Record, State, Step};
use crate::ledger::{AccountName, Answer, Operation, Swept};
use crate::money::Money;

/// Holds ended by one sweep, at most; the next sweep does the rest.
const SWEEP_MAX: u32 = 1_000;
/// Holds forgotten in one step, at most.
const FORGET_MAX: u32 = 500;
/// A hold that ended is remembered so long, in ms, so that a repeat gets the same answer.
const REMEMBER_MS: i64 = 24 * 60 * 60 * 1_000;
/// What may stand before the time in an id: nothing, or the name of a job.
const PREFIXES: [&str; 2] = ["", "video_"];

/// Does an operation on a hold.
pub(super) fn apply(
    desk: &mut Desk<'_>,
    name: &AccountName,
    op: &Operation,
) -> rusqlite::Result<Answer> {
    let Some(id) = op.hold_id() else { return Ok(Answer::Unknown) };
    let Some(row) = desk.row(name)? else { return Ok(Answer::NoAccount) };
    let (account, mut balances) = (row.id, row.balances);
    let now = now_ms();
    let op = match op {
        Operation::Settle { id, charge, line, origin: Some(origin) } if !origin.is_of_late(now) => {
            let (id, line) = (id.clone(), line.clone());
            &Operation::Settle { id, charge: *charge, line, origin: None }
        }
        op => op,
    };
    let mut known = desk.open_hold(name, id).cloned();
    if known.is_none() {
        // The id of a hold that is asked for is new, but for the rarest of cases.
        if matches!(op, Operation::Hold { .. }) {
            let mut after = balances;
            let step = account::step(&mut after, None, op, now);
            if let Some(record) = &step.record
                && add(desk.c, (account, id), record)?
            {
                desk.set(name, after);
                desk.note_hold(name, id, record);
                return Ok(step.answer);
            }
        }
        known = find(desk.c, account, id)?;
    }
    let step = account::step(&mut balances, known.as_ref(), op, now);
    desk.set(name, balances);
    keep(desk, name, (account, id), known.is_some(), &step)?;
    Ok(step.answer)
}

/// Ends what is due.
pub(super) fn expire(desk: &mut Desk<'_>) -> rusqlite::Result<Swept> {
    let now = now_ms();
    let c = desk.c;
    let mut select = c.prepare_cached(
        "SELECT wanted, least, hold.held, lease_until, state, hold.posted, line, account.name,
             hold.id FROM hold JOIN account ON account.id = hold.account
         WHERE state = 0 AND lease_until <= ? ORDER BY lease_until, account, hold.id LIMIT ?",
    )?;
    let due = select.query_map(params![now, SWEEP_MAX], |row| {
        Ok((row.get::<_, String>(7)?, row.get::<_, String>(8)?, record(row)?))
    })?;
    let due: Vec<(String, String, Record)> = due.collect::<rusqlite::Result<_>>()?;
    let mut swept = Swept::default();
    for (name, id, record) in due {
        let Some(name) = AccountName::parse(&name) else { continue };
        let Some(row) = desk.row(&name)? else { continue };
        let (account, mut balances) = (row.id, row.balances);
        if let Some(step) = account::expire(&mut balances, &record, now) {
            desk.set(&name, balances);
            keep(desk, &name, (account, &id), true, &step)?;
            swept.expired += 1;
        }
    }
    let mut totals =
        c.prepare_cached("SELECT count(*), coalesce(sum(held), 0) FROM hold WHERE state = 0")?;
    let (open, held) = totals.query_row([], |r| Ok((r.get::<_, i64>(0)?, money(r, 1)?)))?;
    Ok(Swept { open: open.unsigned_abs(), held, ..swept })
}

/// Drops holds that ended long ago. Ids that begin with their time (UUID version 7, as the gateway
/// makes them) stand in the table in that order within an account, so the oldest are found without
/// a search: the cross join keeps SQLite from reading the whole table instead.
///
/// Tells how many went.
pub(super) fn forget(c: &Connection) -> rusqlite::Result<usize> {
    let before_ms = now_ms() - REMEMBER_MS;
    let oldest = format!("{:012x}", before_ms.max(0));
    let bound = format!("{}-{}", &oldest[..8], &oldest[8..]);
    let mut forgotten = 0;
    let mut delete = c.prepare_cached(
        "DELETE FROM hold WHERE (account, id) IN (
             SELECT hold.account, hold.id FROM account CROSS JOIN hold
             ON hold.account = account.id AND hold.id >= ?1 || '0' AND hold.id < ?1 || ?2
             WHERE hold.state <> 0 LIMIT ?3)",
    )?;
    for prefix in PREFIXES {
        forgotten += delete.execute(params![prefix, bound, FORGET_MAX])?;
    }
    Ok(forgotten)
}

fn find(c: &Connection, account: i64, id: &str) -> rusqlite::Result<Option<Record>> {
    let mut select = c.prepare_cached(
        "SELECT wanted, least, held, lease_until, state, posted, line FROM hold
         WHERE account = ? AND id = ?",
    )?;
    select.query_row(params![account, id], record).optional()
}

/// Writes a hold down, unless there is one of that id; tells whether there was none.
fn add(c: &Connection, (account, id): (i64, &str), record: &Record) -> rusqlite::Result<bool> {
    let mut insert = c.prepare_cached(
        "INSERT INTO hold (account, id, wanted, least, held, lease_until, state, posted, line)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    )?;
    let (state, posted, line) = columns(&record.state);
    let [wanted, least, held] = [record.wanted, record.least, record.held].map(Money::nano);
    let (until, posted) = (record.lease_until, posted.map(Money::nano));
    let values = params![account, id, wanted, least, held, until, state, posted, line];
    Ok(insert.execute(values)? == 1)
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
fn keep(
    desk: &mut Desk<'_>,
    name: &AccountName,
    (account, id): (i64, &str),
    known: bool,
    step: &Step,
) -> rusqlite::Result<()> {
    if let Some(record) = &step.record {
        if known {
            let mut update = desk.c.prepare_cached(
                "UPDATE hold SET held = ?, lease_until = ?, state = ?, posted = ?, line = ?
                 WHERE account = ? AND id = ?",
            )?;
            let (state, posted, line) = columns(&record.state);
            let (held, posted) = (record.held.nano(), posted.map(Money::nano));
            let values = params![held, record.lease_until, state, posted, line, account, id];
            update.execute(values)?;
        } else {
            add(desk.c, (account, id), record)?;
        }
        desk.note_hold(name, id, record);
    }
    if let Some(posting) = &step.posting {
        desk.append(name, posting)?;
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
