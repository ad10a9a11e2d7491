//! Allotments in tables: each update loads the allotment, lets the pure state machine of the next
//! ledger decide, and writes the result back.
//!
//! What an allotment holds is a row of the open holds, too. So a version of the program that does
//! not know allotments sees a hold with a lease, and never spends its money.

use rusqlite::Connection;

use super::allotment_rows::{self, AllotmentRowKey};
use super::holds;
use super::write_txn::WriteTxn;
use crate::clock::unix_ms;
use crate::failpoints::failpoint;
use crate::ledger::AccountName;
use crate::ledger::account::{Balances, HoldState, Posting};
use crate::ledger::prepaid::allotment;
use crate::ledger::prepaid::answer::{AccountStep, LedgerAnswer};
use crate::ledger::prepaid::lot::LotAmounts;
use crate::ledger::prepaid::records::{
    AccountChanges, AccountHead, Allotment, AllotmentId, DirectHold, DirectHoldState,
    PrepaidAccount,
};
use crate::ledger::prepaid::refusal::RECALL_MS;
use crate::ledger::prepaid::update::AllotmentUpdate;
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
    let Some(account) = load(txn, name, &update.allotment, calls, now)? else {
        return Ok(None);
    };
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
    let Some(account) = load(txn, name, id, std::iter::empty(), now)? else { return Ok(false) };
    if !account.allotments.get(id).is_some_and(Allotment::is_out) {
        return Ok(false);
    }
    let step = allotment::expire_allotment(&account, id, now);
    let answer = save(txn, name, &account, step)?;
    Ok(matches!(answer, LedgerAnswer::AllotmentEnded { .. }))
}

/// Calls back what is lent of an account, so that a hold of `least` may succeed later. `false` if
/// that cannot help: nothing is lent, or all of the account's money would not do.
pub(super) fn recall(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    balances: &Balances,
    least: Money,
) -> rusqlite::Result<bool> {
    let Some(account) = txn.account_row(name)?.map(|row| row.id) else { return Ok(false) };
    let conn = txn.conn;
    let Some(lending) = txn.lending(name)? else { return Ok(false) };
    let all = balances.available.checked_add(balances.held);
    if lending.lent_out() == 0 || all.is_ok_and(|all| all < least) {
        return Ok(false);
    }
    // Many may wait at the same time.
    let now = unix_ms();
    if lending.recall_until.saturating_sub(now) < RECALL_MS / 2 {
        lending.recall_until = now.saturating_add(RECALL_MS);
        lending.write_times(conn, account)?;
    }
    Ok(true)
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
    let Some((row, balances)) = txn.account_row(name)?.map(|row| (row.id, row.balances)) else {
        return Ok(None);
    };
    let lines = txn.last_seq(name)?.unsigned_abs();
    let conn = txn.conn;
    let Some(lending) = txn.lending(name)? else { return Ok(None) };
    let mut head = AccountHead::from_balances(balances);
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
            let voided = holds::find_hold(conn, row, &call)?;
            let voided = voided
                .filter(|hold| matches!(hold.state, HoldState::Voided | HoldState::Tombstone));
            account.holds.extend(voided.map(|_| (call, tombstone())));
        }
    }
    account.allotments.extend(known.map(|known| (id.clone(), known)));
    Ok(Some(account))
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
    let AccountChanges { head, allotments, lines, .. } = changes;
    let conn = txn.conn;
    for line in lines {
        record_write_off(name.as_str(), &line.request, line.written_off.nano());
        let (amount, written_off, line) = (line.amount, line.written_off, line.line);
        txn.append_posting(name, &Posting { amount, written_off, line })?;
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
        txn.set_balances(name, head.balances);
        if head.recall_until != before.head.recall_until
            && let Some(lending) = txn.lending(name)?
        {
            lending.recall_until = head.recall_until;
            lending.write_times(conn, account)?;
        }
    }
    failpoint!("update_in_transaction");
    Ok(answer)
}

/// Returns the balances of an account as people are shown them: what gateways have free counts as
/// available.
pub(super) fn shown_balances(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
) -> rusqlite::Result<Option<Balances>> {
    let Some(balances) = txn.balances(name)? else { return Ok(None) };
    let free = txn.lending(name)?.map_or(Money::ZERO, |lending| lending.free());
    let free = free.min(balances.held);
    let available = balances.available.checked_add(free).unwrap_or(balances.available);
    let held = balances.held.saturating_sub(free);
    Ok(Some(Balances { available, held, ..balances }))
}
