//! Operations on holds: each loads a hold, lets the pure state machine of the ledger decide, and
//! writes the result back.

use rusqlite::params;

use super::accounts::read_money;
use super::hold_rows::{self, HoldKey};
use super::write_txn::WriteTxn;
use super::{allotment_rows, allotments, budgets, rates};
use crate::clock::unix_ms;
use crate::failpoints::failpoint;
use crate::ledger::prepaid::direct;
use crate::ledger::prepaid::operations::{self, AppliedOperation};
use crate::ledger::prepaid::rate::RateAsk;
use crate::ledger::prepaid::records::{
    AccountChanges, AllotmentId, DirectHold, DirectHoldState, PrepaidAccount,
};
use crate::ledger::prepaid::window::{KeyId, WindowId};
use crate::ledger::{AccountName, Operation, Outcome, SweepReport};
use crate::metrics::record_write_off;

/// One sweep ends at most this many holds; the next sweep ends the rest.
const SWEEP_MAX: u32 = 1_000;

/// Applies an operation to a hold.
pub(super) fn apply_operation(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    op: &Operation,
) -> rusqlite::Result<Outcome> {
    let Some(id) = op.hold_id() else { return Ok(Outcome::UnknownHold) };
    let Some(row) = txn.account_row(name)? else { return Ok(Outcome::NoAccount) };
    if row.deleted_at.is_some() && matches!(op, Operation::Hold { .. }) {
        return Ok(Outcome::AccountDeleted);
    }
    let (key, now) = (HoldKey { account: row.id, id }, unix_ms());
    let (mut known, mut unplaced) = (txn.cached_hold(name, id).cloned(), None);
    if known.is_none() {
        // The id of a requested hold is nearly always new, so the insert is tried before any
        // lookup.
        if matches!(op, Operation::Hold { .. }) {
            let applied = decide(txn, name, op, None, now)?;
            if place_new_hold(txn, name, key, &applied.changes)? {
                return Ok(applied.outcome);
            }
            unplaced = Some(applied);
        }
        known = find_hold(txn, name, key)?;
    }
    let mut applied = match unplaced {
        Some(applied) if known.is_none() => applied,
        _ => decide(txn, name, op, known.as_ref(), now)?,
    };
    if !save_hold(txn, name, key, known.as_ref(), &applied.changes)? {
        release_held(txn, name, key, known.as_ref(), now)?;
        known = find_hold(txn, name, key)?;
        applied = decide(txn, name, op, known.as_ref(), now)?;
        save_hold(txn, name, key, known.as_ref(), &applied.changes)?;
    }
    save_sums(txn, name, &applied.changes)?;
    failpoint!("settlement_in_transaction", if matches!(op, Operation::Settle { .. }));
    if applied.outcome == Outcome::Voided && known.is_none() {
        allotments::note_void(txn, name)?;
    }
    Ok(applied.outcome)
}

/// Places a hold whose id is new; `false` if it was refused, or there is or was a hold with this
/// id.
fn place_new_hold(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    key: HoldKey<'_>,
    changes: &AccountChanges,
) -> rusqlite::Result<bool> {
    let Some(record) = changes.holds.get(key.id) else { return Ok(false) };
    if !hold_rows::insert_open_hold(txn.conn, key, record)? {
        return Ok(false);
    }
    txn.cache_hold(name, key.id, record);
    save_sums(txn, name, changes)?;
    Ok(true)
}

/// Finds a hold, and in which windows it counts.
fn find_hold(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    key: HoldKey<'_>,
) -> rusqlite::Result<Option<DirectHold>> {
    let Some(mut hold) = hold_rows::find_hold(txn.conn, key.account, key.id)? else {
        return Ok(None);
    };
    let is_open = matches!(hold.state, DirectHoldState::Open { .. });
    if !is_open && !hold.rates.is_empty() {
        // A version that knows no rate limits has ended it.
        rates::release_hold(txn, name, key, &std::mem::take(&mut hold.rates))?;
    }
    add_windows(txn, name, key, &mut hold)?;
    Ok(Some(hold))
}

/// Adds to a hold that was read in which windows it counts.
fn add_windows(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    key: HoldKey<'_>,
    hold: &mut DirectHold,
) -> rusqlite::Result<()> {
    if !budgets::has_any(txn, name)? {
        return Ok(());
    }
    let is_open = matches!(hold.state, DirectHoldState::Open { .. });
    if !is_open && hold_rows::is_counted_as_held(txn.conn, key)? {
        // A version that knows no budgets has ended it, and an end that comes late deletes the row
        // by which the next sweep would see that.
        budgets::reconcile_holds(txn)?;
    }
    if let Some((key_id, windows)) = hold_rows::read_budget(txn.conn, key)? {
        (hold.key, hold.windows) = (key_id, windows);
    }
    Ok(())
}

/// Decides what an operation does. What is lent of an account without budgets is only looked at if
/// there is not enough without it.
fn decide(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    op: &Operation,
    known: Option<&DirectHold>,
    now: i64,
) -> rusqlite::Result<AppliedOperation> {
    let asking = match op {
        Operation::Hold { key, .. } => *key,
        Operation::Settle { origin: Some(origin), .. } => origin.key,
        _ => None,
    };
    let mut records = PrepaidAccount::default();
    if let Some(head) = txn.head(name)? {
        records.head = head;
    }
    if let (Some(hold), Some(id)) = (known, op.hold_id()) {
        records.holds.insert(id.to_owned(), hold.clone());
    }
    rates::load(txn, name, &mut records, asks_of(op, known).iter().map(|ask| ask.id))?;
    if budgets::has_any(txn, name)? {
        // The first look at what is lent gives back slices that an older version has left, so it
        // comes before the windows are read.
        txn.lending(name)?;
    }
    let keys = asking.into_iter().chain(known.and_then(|hold| hold.key));
    budgets::load(txn, name, &mut records, keys.collect::<Vec<KeyId>>(), |records| {
        windows_of(records, op, known, asking, now)
    })?;
    let applied = operations::apply_operation(&records, op, now);
    let is_short = match (op, &applied.outcome) {
        (_, Outcome::Insufficient(_) | Outcome::BudgetInUse(_)) => true,
        (Operation::Extend { wanted, .. }, Outcome::Held(held)) => held < wanted,
        _ => false,
    };
    let lent = if is_short { txn.lending(name)? } else { None };
    let Some(lending) = lent.filter(|lending| lending.lent_out() > 0) else { return Ok(applied) };
    (records.head.lent_out, records.head.recall_until) = (lending.lent_out(), lending.recall_until);
    Ok(operations::apply_operation(&records, op, now))
}

/// What an operation takes of rate limits, or gives back.
fn asks_of<'a>(op: &'a Operation, known: Option<&'a DirectHold>) -> &'a [RateAsk] {
    match op {
        Operation::Hold { rates, .. } => rates,
        Operation::Settle { .. } | Operation::Void { .. } => {
            known.map(|hold| hold.rates.as_slice()).unwrap_or_default()
        }
        _ => &[],
    }
}

/// The windows that an operation may read or change.
fn windows_of(
    records: &PrepaidAccount,
    op: &Operation,
    known: Option<&DirectHold>,
    asking: Option<KeyId>,
    now: i64,
) -> Vec<WindowId> {
    let mut windows = known.map_or_else(Vec::new, |hold| hold.windows.clone());
    match op {
        Operation::Hold { .. } => windows.extend(operations::windows_at(records, asking, now)),
        Operation::Settle { origin: Some(origin), .. } => {
            windows.extend(operations::windows_at(records, asking, origin.at));
        }
        _ => {}
    }
    windows
}

/// Releases the money of a hold that is in the table of open holds, while an older version of the
/// program has ended it in the other table.
fn release_held(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    key: HoldKey<'_>,
    known: Option<&DirectHold>,
    now: i64,
) -> rusqlite::Result<()> {
    let void = Operation::Void { id: key.id.to_owned() };
    let released = decide(txn, name, &void, known, now)?;
    save_sums(txn, name, &released.changes)?;
    log::warn!(
        event = "hold_released_late", hold = key.id, answer:? = released.outcome;
        "hold already ended by another version, reserved money released"
    );
    Ok(())
}

/// Writes back what an operation has changed of its hold. `false` if an older version of the
/// program has ended the hold in the other table: that version does not know the table of open
/// holds and takes the hold for lost. Then the hold is only removed from the open holds.
fn save_hold(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    key: HoldKey<'_>,
    known: Option<&DirectHold>,
    changes: &AccountChanges,
) -> rusqlite::Result<bool> {
    let Some(hold) = changes.holds.get(key.id) else { return Ok(true) };
    if !hold_rows::write_hold(txn.conn, key, known, hold)? {
        txn.evict_hold(name, key.id);
        return Ok(false);
    }
    txn.cache_hold(name, key.id, hold);
    Ok(true)
}

/// Writes back all else than holds that an operation has changed.
pub(super) fn save_sums(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    changes: &AccountChanges,
) -> rusqlite::Result<()> {
    for line in &changes.lines {
        txn.append_line(name, line)?;
    }
    rates::save(txn, name, changes)?;
    budgets::save_windows(txn, name, changes)?;
    if let Some(head) = &changes.head {
        txn.set_head(name, head);
        allotments::save_recall(txn, name, head.recall_until)?;
    }
    Ok(())
}

/// Ends the open holds whose lease has expired, at most `SWEEP_MAX` of them. Returns their number,
/// and the number and the sum of the holds that are still open.
pub(super) fn expire_due(txn: &mut WriteTxn<'_>) -> rusqlite::Result<SweepReport> {
    let now = unix_ms();
    let c = txn.conn;
    let mut select = c.prepare_cached(
        "SELECT wanted, least, due.held, lease_until, state, due.posted, line,
                (SELECT asks FROM hold_rate AS r WHERE r.account = due.account AND r.id = due.id),
                (SELECT lots FROM hold_lots AS l WHERE l.account = due.account AND l.id = due.id),
                name, due.id
         FROM (SELECT account, id, wanted, least, held, lease_until, 0 AS state, posted, line
               FROM open_hold WHERE lease_until <= ?1
               UNION ALL
               SELECT account, id, wanted, least, held, lease_until, state, posted, line
               FROM hold WHERE state = 0 AND lease_until <= ?1) AS due
         JOIN account ON account.id = due.account
         ORDER BY lease_until, account, due.id LIMIT ?2",
    )?;
    let due = select.query_map(params![now, SWEEP_MAX], |row| {
        Ok((row.get::<_, String>(9)?, row.get::<_, String>(10)?, hold_rows::read_hold(row)?))
    })?;
    let due: Vec<(String, String, DirectHold)> = due.collect::<rusqlite::Result<_>>()?;
    let mut swept = SweepReport::default();
    for (name, id, hold) in due {
        let Some(name) = AccountName::parse(&name) else { continue };
        if id.starts_with(AllotmentId::PREFIX)
            && allotments::expire(txn, &name, &AllotmentId(id.clone()))?
        {
            swept.expired += 1;
            continue;
        }
        swept.expired += u64::from(expire_hold(txn, &name, &id, hold, now)?);
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

/// Ends a hold whose lease has expired. Returns whether it did: a charge that does not fit into the
/// account's sums is not made.
fn expire_hold(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    id: &str,
    mut hold: DirectHold,
    now: i64,
) -> rusqlite::Result<bool> {
    let Some(head) = txn.head(name)? else { return Ok(false) };
    let Some(row) = txn.account_row(name)? else { return Ok(false) };
    let key = HoldKey { account: row.id, id };
    add_windows(txn, name, key, &mut hold)?;
    let mut records = PrepaidAccount { head, ..PrepaidAccount::default() };
    records.holds.insert(id.to_owned(), hold.clone());
    rates::load(txn, name, &mut records, hold.rates.iter().map(|ask| ask.id))?;
    budgets::load(txn, name, &mut records, hold.key, |_| hold.windows.clone())?;
    let changes = direct::expire_hold(&records, id, now).changes;
    if changes.holds.is_empty() {
        return Ok(false);
    }
    if save_hold(txn, name, key, Some(&hold), &changes)? {
        save_sums(txn, name, &changes)?;
        for line in &changes.lines {
            record_write_off(name.as_str(), id, line.written_off.nano());
        }
    } else {
        release_held(txn, name, key, Some(&hold), now)?;
    }
    Ok(true)
}
