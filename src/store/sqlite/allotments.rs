//! Allotments in tables: each update loads the allotment, lets the pure state machine of the next
//! ledger decide, and writes the result back.
//!
//! What an allotment holds is a row of the open holds, too. So a version of the program that does
//! not know allotments sees a hold with a lease, and never spends its money.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::allotment_rows::{self, AllotmentRowKey};
use super::write_txn::WriteTxn;
use super::{budgets, hold_rows, rates};
use crate::clock::unix_ms;
use crate::failpoints::failpoint;
use crate::ledger::AccountName;
use crate::ledger::account::Balances;
use crate::ledger::prepaid::allotment;
use crate::ledger::prepaid::answer::{AccountStep, LedgerAnswer};
use crate::ledger::prepaid::lot::LotAmounts;
use crate::ledger::prepaid::operations::windows_at;
use crate::ledger::prepaid::rate::RateId;
use crate::ledger::prepaid::records::{
    AccountChanges, Allotment, AllotmentId, DirectHold, DirectHoldState, PrepaidAccount,
};
use crate::ledger::prepaid::refusal::RECALL_MS;
use crate::ledger::prepaid::update::AllotmentUpdate;
use crate::ledger::prepaid::window::{BudgetOwner, KeyId, WindowId};
use crate::metrics::record_write_off;
use crate::money::Money;

/// A call may be voided before its end arrives. Its id is looked up for this long, in ms.
const VOIDED_TTL_MS: i64 = 24 * 60 * 60 * 1_000;

/// Does what an update of an allotment asks; `None` if there is no such account.
pub(super) fn update(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    update: &AllotmentUpdate,
) -> rusqlite::Result<Option<LedgerAnswer>> {
    let now = unix_ms();
    let calls = update.ends.iter().chain(&update.checkpoints).map(|end| end.call.as_str());
    let Some(mut account) = load(txn, name, &update.allotment, calls, now)? else {
        return Ok(None);
    };
    load_rates(txn, name, &mut account, Some(update))?;
    load_budgets(txn, name, &mut account, Some(update), now)?;
    let step = allotment::update_allotment(&account, update, now);
    let last_seq = account.allotments.get(&update.allotment).map_or(0, |known| known.last_seq);
    for (seq, end) in (update.first_seq..).zip(&update.ends) {
        let is_new = seq > last_seq && end.charge.is_some();
        if is_new && account.holds.contains_key(&end.call) {
            log::error!(
                event = "charge_lost", op = "settle", request_id = end.call;
                "hold voided before settlement; charge lost"
            );
        }
    }
    save(txn, name, &account, step).map(Some)
}

/// Ends an allotment whose lease has expired. Returns whether it did.
pub(super) fn expire(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    id: &AllotmentId,
) -> rusqlite::Result<bool> {
    let now = unix_ms();
    let Some(mut account) = load(txn, name, id, std::iter::empty(), now)? else {
        return Ok(false);
    };
    load_rates(txn, name, &mut account, None)?;
    load_budgets(txn, name, &mut account, None, now)?;
    if !account.allotments.get(id).is_some_and(Allotment::is_out) {
        return Ok(false);
    }
    let step = allotment::expire_allotment(&account, id, now);
    let answer = save(txn, name, &account, step)?;
    Ok(matches!(answer, LedgerAnswer::AllotmentEnded { .. }))
}

/// Writes until when nothing is lent of an account, if that has changed by much: many may wait at
/// the same time.
pub(super) fn save_recall(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    recall_until: i64,
) -> rusqlite::Result<()> {
    if recall_until == 0 {
        return Ok(());
    }
    let Some(account) = txn.account_row(name)?.map(|row| row.id) else { return Ok(()) };
    let conn = txn.conn;
    let Some(lending) = txn.lending(name)? else { return Ok(()) };
    if recall_until.saturating_sub(lending.recall_until) < RECALL_MS / 2 {
        return Ok(());
    }
    lending.recall_until = recall_until;
    lending.write_times(conn, account)
}

/// Notes that a call was voided of which the store knows no hold. If its hold was made out of an
/// allotment, its end is not charged any more.
pub(super) fn note_void(txn: &mut WriteTxn<'_>, name: &AccountName) -> rusqlite::Result<()> {
    let Some(account) = txn.account_row(name)?.map(|row| row.id) else { return Ok(()) };
    let conn = txn.conn;
    let Some(lending) = txn.lending(name)? else { return Ok(()) };
    if lending.allotments.is_empty() && !allotment_rows::has_any(conn, account)? {
        return Ok(());
    }
    lending.voided_until = unix_ms().saturating_add(VOIDED_TTL_MS);
    lending.write_times(conn, account)
}

/// Returns the allotments of a gateway that hold something, or may, with their accounts.
pub(super) fn list_of_run(
    c: &Connection,
    run: &str,
) -> rusqlite::Result<Vec<(AccountName, AllotmentId, i64)>> {
    let mut select = c.prepare_cached(
        "SELECT name, allotment.id, lent_at FROM allotment JOIN account ON account.id = account
         WHERE state < 2 AND instr(allotment.id, ?) > 0",
    )?;
    let rows = select.query_map([run], |row| {
        Ok((row.get::<_, String>(0)?, AllotmentId(row.get(1)?), row.get(2)?))
    })?;
    let known =
        |(name, id, lent_at): (String, _, _)| Some((AccountName::parse(&name)?, id, lent_at));
    rows.filter_map(|row| row.map(known).transpose()).collect()
}

/// Loads what an operation on an allotment needs: with it, which of `calls` and of the calls that
/// have checkpoints were voided. `None` if there is no such account.
fn load<'a>(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    id: &AllotmentId,
    calls: impl Iterator<Item = &'a str>,
    now: i64,
) -> rusqlite::Result<Option<PrepaidAccount>> {
    let Some(mut head) = txn.head(name)? else { return Ok(None) };
    let Some(row) = txn.account_row(name)?.map(|row| row.id) else { return Ok(None) };
    let lines = txn.last_seq(name)?.unsigned_abs();
    let conn = txn.conn;
    let Some(lending) = txn.lending(name)? else { return Ok(None) };
    (head.lines, head.recall_until) = (lines, lending.recall_until);
    head.lent_out = lending.lent_out();
    let mut account = PrepaidAccount { head, ..PrepaidAccount::default() };
    let known = match lending.allotments.get(id) {
        Some(known) => Some(known.clone()),
        None => allotment_rows::read_ended(conn, AllotmentRowKey { account: row, id })?,
    };
    if lending.voided_until > now {
        let noted = known.iter().flat_map(|known| known.checkpoints.keys().cloned());
        for call in calls.map(str::to_owned).chain(noted) {
            let voided = hold_rows::find_hold(conn, row, &call)?;
            let states = [DirectHoldState::Voided, DirectHoldState::Tombstone];
            let voided = voided.filter(|hold| states.contains(&hold.state));
            account.holds.extend(voided.map(|_| (call, tombstone())));
        }
    }
    account.allotments.extend(known.map(|known| (id.clone(), known)));
    Ok(Some(account))
}

/// Loads the buckets that an update may change: those that it names, and those of which the
/// allotment has something.
fn load_rates(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    account: &mut PrepaidAccount,
    update: Option<&AllotmentUpdate>,
) -> rusqlite::Result<()> {
    let demand = update.and_then(|update| update.demand.as_ref());
    let demanded = demand.into_iter().flat_map(|demand| demand.rates.keys());
    let lent = account.allotments.values().flat_map(|known| known.rates.keys());
    let ids: BTreeSet<RateId> = demanded.chain(lent).copied().collect();
    rates::load(txn, name, account, ids)
}

/// Loads the budgets that an update may change: those of the account and of all keys that it names
/// or of whose windows it has slices, and all windows of its calls and slices.
fn load_budgets(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    account: &mut PrepaidAccount,
    update: Option<&AllotmentUpdate>,
    now: i64,
) -> rusqlite::Result<()> {
    if !budgets::has_any(txn, name)? {
        return Ok(());
    }
    let demand = update.and_then(|update| update.demand.as_ref());
    let demanded = demand.into_iter().flat_map(|demand| demand.keys.keys().copied());
    let told = update.into_iter().flat_map(|update| update.ends.iter().chain(&update.checkpoints));
    let checkpoints: Vec<_> =
        account.allotments.values().flat_map(|a| a.checkpoints.values().cloned()).collect();
    let calls: Vec<_> = told.chain(&checkpoints).collect();
    let mut keys: Vec<KeyId> = demanded.chain(calls.iter().filter_map(|end| end.key)).collect();
    let mut windows: Vec<WindowId> =
        account.allotments.values().flat_map(|a| a.slices.keys()).copied().collect();
    windows.extend(demand.into_iter().flat_map(|demand| demand.needed_in.keys().copied()));
    windows.extend(calls.iter().flat_map(|end| &end.windows));
    // Nearly all calls of an update count in the same few windows.
    windows.sort_unstable();
    windows.dedup();
    // A call that runs may ask for more while its key makes no new calls.
    keys.extend(windows.iter().filter_map(|window| match window.owner {
        BudgetOwner::Account => None,
        BudgetOwner::Key(key) => Some(key),
    }));
    keys.sort_unstable();
    keys.dedup();
    budgets::load(txn, name, account, keys.iter().copied(), |known| {
        windows.extend(windows_at(known, None, now));
        windows.extend(keys.iter().flat_map(|key| windows_at(known, Some(*key), now)));
        windows.sort_unstable();
        windows.dedup();
        windows
    })
}

fn tombstone() -> DirectHold {
    DirectHold {
        key: None,
        wanted: Money::ZERO,
        least: Money::ZERO,
        held: Money::ZERO,
        drawn: LotAmounts::default(),
        windows: Vec::new(),
        rates: Vec::new(),
        lease_until: 0,
        state: DirectHoldState::Tombstone,
    }
}

/// Writes what an operation has changed. Returns its answer.
fn save(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    before: &PrepaidAccount,
    AccountStep { answer, changes }: AccountStep,
) -> rusqlite::Result<LedgerAnswer> {
    let Some(account) = txn.account_row(name)?.map(|row| row.id) else { return Ok(answer) };
    rates::save(txn, name, &changes)?;
    budgets::save_windows(txn, name, &changes)?;
    let AccountChanges { head, allotments, lines, .. } = changes;
    let conn = txn.conn;
    for line in lines {
        record_write_off(name.as_str(), &line.request, line.written_off.nano());
        txn.append_line(name, &line)?;
    }
    for (id, allotment) in allotments {
        let key = AllotmentRowKey { account, id: &id };
        allotment_rows::write(conn, key, before.allotments.get(&id), &allotment)?;
        let Some(lending) = txn.lending(name)? else { continue };
        if allotment.is_out() {
            lending.allotments.insert(id, allotment);
        } else {
            lending.allotments.remove(&id);
        }
    }
    if let Some(head) = head {
        txn.set_head(name, &head);
        save_recall(txn, name, head.recall_until)?;
    }
    failpoint!("update_in_transaction");
    Ok(answer)
}

/// Returns the balances of an account as people are shown them: what gateways have free counts as
/// available, and what has expired does not, although its line may not be posted yet.
pub(super) fn shown_balances(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
) -> rusqlite::Result<Option<Balances>> {
    let Some(known) = txn.head(name)? else { return Ok(None) };
    let now = unix_ms();
    let mut balances = known.balances;
    for (_, lot) in known.granted_lots().filter(|(id, _)| id.is_expired(now)) {
        balances.available = balances.available.saturating_sub(lot.available);
        balances.credit = balances.credit.saturating_sub(lot.available);
    }
    let free = txn.lending(name)?.map_or(Money::ZERO, |lending| lending.free(now));
    let free = free.min(balances.held);
    let available = balances.available.checked_add(free).unwrap_or(balances.available);
    let held = balances.held.saturating_sub(free);
    Ok(Some(Balances { available, held, ..balances }))
}
