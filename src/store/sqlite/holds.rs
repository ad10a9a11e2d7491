//! Holds in tables: each operation loads a hold, lets the pure state machine of the ledger decide,
//! and writes the result back.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::accounts::read_money;
use super::write_txn::WriteTxn;
use super::{allotment_rows, allotments};
use crate::clock::unix_ms;
use crate::failpoints::failpoint;
use crate::ledger::account::{self, Balances, HoldRecord, HoldState, Transition};
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::{AccountName, Operation, Outcome, SweepReport};
use crate::metrics::record_write_off;
use crate::money::Money;

/// One sweep ends at most this many holds; the next sweep ends the rest.
const SWEEP_MAX: u32 = 1_000;
/// One step deletes at most this many holds that ended long ago, for each prefix.
const PURGE_MAX: u32 = 500;
/// A hold that has ended is remembered for this long, in ms, so that a repeated operation gets the
/// same outcome.
const ENDED_HOLD_TTL_MS: i64 = 24 * 60 * 60 * 1_000;
/// The prefixes that the id of a hold may have before its time: none, or the prefix of a video job.
const HOLD_ID_PREFIXES: [&str; 2] = ["", "video_"];

/// Applies an operation to a hold.
pub(super) fn apply_operation(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    op: &Operation,
) -> rusqlite::Result<Outcome> {
    let Some(id) = op.hold_id() else { return Ok(Outcome::UnknownHold) };
    let Some(row) = txn.account_row(name)? else { return Ok(Outcome::NoAccount) };
    let (account, mut balances) = (row.id, row.balances);
    let now = unix_ms();
    let op = match op {
        Operation::Settle { id, charge, line, origin: Some(origin) } if !origin.is_recent(now) => {
            let (id, line) = (id.clone(), line.clone());
            &Operation::Settle { id, charge: *charge, line, origin: None }
        }
        op => op,
    };
    let mut known = txn.cached_hold(name, id).cloned();
    if known.is_none() {
        // The id of a requested hold is nearly always new, so the insert is tried before any
        // lookup.
        if matches!(op, Operation::Hold { .. }) {
            let mut after = balances;
            let step = account::apply_to_hold(&mut after, None, op, now);
            if let Some(record) = &step.record
                && insert_open_hold(txn.conn, HoldKey { account, id }, record)?
            {
                txn.set_balances(name, after);
                txn.cache_hold(name, id, record);
                return Ok(step.answer);
            }
        }
        known = find_hold(txn.conn, account, id)?;
    }
    let mut after = balances;
    let mut step = account::apply_to_hold(&mut after, known.as_ref(), op, now);
    if !save_transition(txn, name, HoldKey { account, id }, known.as_ref(), &step)? {
        release_held(&mut balances, known.as_ref(), id, now);
        known = find_hold(txn.conn, account, id)?;
        after = balances;
        step = account::apply_to_hold(&mut after, known.as_ref(), op, now);
        save_transition(txn, name, HoldKey { account, id }, known.as_ref(), &step)?;
    }
    txn.set_balances(name, after);
    failpoint!("settlement_in_transaction", if matches!(op, Operation::Settle { .. }));
    match step.answer {
        Outcome::Insufficient(_) if recall_for(txn, name, &after, op)? => Ok(Outcome::Wait),
        Outcome::Held(held) if held < op.wanted() && recall_for(txn, name, &after, op)? => {
            Ok(Outcome::HeldInPart(held))
        }
        Outcome::Voided if known.is_none() => {
            allotments::note_void(txn, name)?;
            Ok(Outcome::Voided)
        }
        answer => Ok(answer),
    }
}

/// Calls back what is lent of an account, if a hold or an extension did not get all it needs, and
/// lent money could make up for it.
fn recall_for(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    balances: &Balances,
    op: &Operation,
) -> rusqlite::Result<bool> {
    match op {
        Operation::Hold { least, .. } if balances.available < *least => {
            allotments::recall(txn, name, balances, *least)
        }
        Operation::Extend { .. } => allotments::recall(txn, name, balances, Money::ZERO),
        _ => Ok(false),
    }
}

/// Releases the money of a hold that is in the table of open holds, while an older version of the
/// program has ended it in the other table.
fn release_held(balances: &mut Balances, known: Option<&HoldRecord>, id: &str, now: i64) {
    let void = Operation::Void { id: id.to_owned() };
    let released = account::apply_to_hold(balances, known, &void, now).answer;
    log::warn!(
        event = "hold_released_late", hold = id, answer:? = released;
        "hold already ended by another version, reserved money released"
    );
}

/// Ends the open holds whose lease has expired, at most `SWEEP_MAX` of them. Returns their number,
/// and the number and the sum of the holds that are still open.
pub(super) fn expire_due(txn: &mut WriteTxn<'_>) -> rusqlite::Result<SweepReport> {
    let now = unix_ms();
    let c = txn.conn;
    let mut select = c.prepare_cached(
        "SELECT wanted, least, due.held, lease_until, state, due.posted, line, name, due.id
         FROM (SELECT account, id, wanted, least, held, lease_until, 0 AS state, posted, line
               FROM open_hold WHERE lease_until <= ?1
               UNION ALL
               SELECT account, id, wanted, least, held, lease_until, state, posted, line
               FROM hold WHERE state = 0 AND lease_until <= ?1) AS due
         JOIN account ON account.id = due.account
         ORDER BY lease_until, account, due.id LIMIT ?2",
    )?;
    let due = select.query_map(params![now, SWEEP_MAX], |row| {
        Ok((row.get::<_, String>(7)?, row.get::<_, String>(8)?, read_hold_record(row)?))
    })?;
    let due: Vec<(String, String, HoldRecord)> = due.collect::<rusqlite::Result<_>>()?;
    let mut swept = SweepReport::default();
    for (name, id, record) in due {
        let Some(name) = AccountName::parse(&name) else { continue };
        if id.starts_with(AllotmentId::PREFIX)
            && allotments::expire(txn, &name, &AllotmentId(id.clone()))?
        {
            swept.expired += 1;
            continue;
        }
        let Some(row) = txn.account_row(&name)? else { continue };
        let (account, mut balances) = (row.id, row.balances);
        let mut after = balances;
        if let Some(step) = account::expire_hold(&mut after, &record, now) {
            if !save_transition(txn, &name, HoldKey { account, id: &id }, Some(&record), &step)? {
                release_held(&mut balances, Some(&record), &id, now);
                after = balances;
            }
            txn.set_balances(&name, after);
            let lost = step.posting.as_ref().map_or(Money::ZERO, |posting| posting.written_off);
            record_write_off(name.as_str(), &id, lost.nano());
            swept.expired += 1;
        }
    }
    let mut totals = c.prepare_cached(
        "SELECT count(*), coalesce(sum(held), 0)
         FROM (SELECT held FROM open_hold WHERE substr(id, 1, 10) <> ?
               UNION ALL SELECT held FROM hold WHERE state = 0)",
    )?;
    let totals = totals.query_row([AllotmentId::PREFIX], |row| {
        Ok((row.get::<_, i64>(0)?.unsigned_abs(), read_money(row, 1)?))
    })?;
    let in_memory = allotment_rows::totals(c)?;
    let held = totals.1.checked_add(in_memory.1).unwrap_or(totals.1);
    Ok(SweepReport { open: totals.0 + in_memory.0, held, ..swept })
}

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

pub(super) fn find_hold(
    c: &Connection,
    account: i64,
    id: &str,
) -> rusqlite::Result<Option<HoldRecord>> {
    let mut open = c.prepare_cached(
        "SELECT wanted, least, held, lease_until, 0, posted, line FROM open_hold
         WHERE account = ? AND id = ?",
    )?;
    let known = open.query_row(params![account, id], read_hold_record).optional()?;
    if known.is_some() {
        return Ok(known);
    }
    let mut ended = c.prepare_cached(
        "SELECT wanted, least, held, lease_until, state, posted, line FROM hold
         WHERE account = ? AND id = ?",
    )?;
    ended.query_row(params![account, id], read_hold_record).optional()
}

fn read_hold_record(row: &Row<'_>) -> rusqlite::Result<HoldRecord> {
    let posted = || row.get::<_, Option<i64>>(5)?.map(|_| read_money(row, 5)).transpose();
    let state = match row.get::<_, i64>(4)? {
        0 => {
            let line: Option<String> = row.get(6)?;
            HoldState::Open { checkpoint: posted()?.zip(line) }
        }
        1 => HoldState::Posted(posted()?.unwrap_or_default()),
        2 => HoldState::Voided,
        3 => HoldState::Expired(posted()?.unwrap_or_default()),
        _ => HoldState::Tombstone,
    };
    Ok(HoldRecord {
        wanted: read_money(row, 0)?,
        least: read_money(row, 1)?,
        held: read_money(row, 2)?,
        lease_until: row.get(3)?,
        state,
    })
}

/// The key of a hold in the tables.
#[derive(Clone, Copy)]
struct HoldKey<'a> {
    /// The row id of the account.
    account: i64,
    /// The id of the hold, which was chosen by the caller of the ledger.
    id: &'a str,
}

/// Inserts an open hold; `false` if there is or was a hold with this id. Ended holds are looked up
/// by a separate statement, and the insert has a single row of values: for an insert with a select,
/// SQLite copies each page that it changes, so that it can undo a part of the statement.
fn insert_open_hold(
    c: &Connection,
    key: HoldKey<'_>,
    record: &HoldRecord,
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
    Ok(insert.execute(params![account, id, wanted, least, held, record.lease_until])? == 1)
}

/// Writes back what a transition changed. `false` if an older version of the program has ended the
/// hold in the other table: that version does not know the table of open holds and takes the hold
/// for lost. Then the hold is only removed from the open holds.
fn save_transition(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    key: HoldKey<'_>,
    known: Option<&HoldRecord>,
    step: &Transition,
) -> rusqlite::Result<bool> {
    if let Some(record) = &step.record {
        if !write_hold(txn.conn, key, known, record)? {
            txn.evict_hold(name, key.id);
            return Ok(false);
        }
        txn.cache_hold(name, key.id, record);
    }
    if let Some(posting) = &step.posting {
        txn.append_posting(name, posting)?;
    }
    Ok(true)
}

/// Writes the new state of a hold into the table of open or of ended holds. `false` if the hold was
/// open, but the table of ended holds has it too.
fn write_hold(
    c: &Connection,
    key: HoldKey<'_>,
    known: Option<&HoldRecord>,
    record: &HoldRecord,
) -> rusqlite::Result<bool> {
    let HoldKey { account, id } = key;
    let (state, posted) = match &record.state {
        HoldState::Open { checkpoint } => {
            let checkpoint = checkpoint.as_ref().map(|(charge, line)| (charge.nano(), &**line));
            let (charge, line) = checkpoint.unzip();
            return update_open_hold(c, key, record, charge, line).map(|()| true);
        }
        HoldState::Posted(amount) => (1, Some(amount.nano())),
        HoldState::Voided => (2, None),
        HoldState::Expired(amount) => (3, Some(amount.nano())),
        HoldState::Tombstone => (4, None),
    };
    let was_open = known.is_some_and(|known| matches!(known.state, HoldState::Open { .. })) && {
        let mut delete = c.prepare_cached("DELETE FROM open_hold WHERE account = ? AND id = ?")?;
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
    record: &HoldRecord,
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
