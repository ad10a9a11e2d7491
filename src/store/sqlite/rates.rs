//! Rate limits in tables: what an operation needs of them, what it changes, and what versions of
//! the program leave behind that know no rate limits.

use super::columns::read_rate_asks;
use super::hold_rows::HoldKey;
use super::write_txn::WriteTxn;
use super::{allotment_rows, older_tables, rate_rows};
use crate::ledger::AccountName;
use crate::ledger::prepaid::rate::{RateAsk, RateId};
use crate::ledger::prepaid::records::{AccountChanges, PrepaidAccount};

/// Puts buckets into the records for an operation. This comes before the budgets are loaded.
pub(super) fn load(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    records: &mut PrepaidAccount,
    ids: impl IntoIterator<Item = RateId>,
) -> rusqlite::Result<()> {
    let mut ids = ids.into_iter().peekable();
    if ids.peek().is_none() {
        return Ok(());
    }
    // The first look at what is lent gives back what an older version has left, so it comes before
    // anything else is read.
    txn.lending(name)?;
    let conn = txn.conn;
    let Some((account, rows)) = txn.rates(name)? else { return Ok(()) };
    for id in ids {
        if let Some(bucket) = rows.bucket(conn, account, id)? {
            records.rates.insert(id, bucket);
        }
    }
    Ok(())
}

/// Writes the buckets that an operation has changed.
pub(super) fn save(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    changes: &AccountChanges,
) -> rusqlite::Result<()> {
    if changes.rates.is_empty() {
        return Ok(());
    }
    let conn = txn.conn;
    let Some((account, rows)) = txn.rates(name)? else { return Ok(()) };
    rows.write_changed(conn, account, &changes.rates)
}

/// Gives the places of a hold back that a version of the program has ended that knows no rate
/// limits.
pub(super) fn release_hold(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    key: HoldKey<'_>,
    asks: &[RateAsk],
) -> rusqlite::Result<()> {
    let taken = asks.iter().map(|ask| (ask.id, ask.amount));
    rate_rows::release_places(txn.conn, key.account, taken)?;
    rate_rows::delete_asks(txn.conn, key.account, key.id)?;
    txn.forget_rates(name);
    Ok(())
}

/// Gives the places of all holds and the slices of all allotments back that a version of the
/// program has ended that does not know them.
pub(super) fn reconcile(txn: &mut WriteTxn<'_>) -> rusqlite::Result<()> {
    let conn = txn.conn;
    let mut holds = conn.prepare_cached(
        "SELECT account, id, asks, (SELECT name FROM account AS a WHERE a.id = r.account)
         FROM hold_rate AS r
         WHERE NOT EXISTS (
             SELECT 1 FROM open_hold AS o WHERE o.account = r.account AND o.id = r.id)
         AND NOT EXISTS (
             SELECT 1 FROM hold AS h WHERE h.account = r.account AND h.id = r.id AND h.state = 0)",
    )?;
    let ended = holds.query_map([], |row| {
        let (account, id): (i64, String) = (row.get(0)?, row.get(1)?);
        Ok((account, id, read_rate_asks(row, 2)?, row.get::<_, String>(3)?))
    })?;
    for (account, id, asks, name) in ended.collect::<rusqlite::Result<Vec<_>>>()? {
        if let Some(name) = AccountName::parse(&name) {
            release_hold(txn, &name, HoldKey { account, id: &id }, &asks)?;
        }
    }
    let mut accounts = allotment_rows::release_left_slices(conn)?;
    accounts.extend(older_tables::release_ended(conn)?);
    for account in accounts {
        let name = "SELECT name FROM account WHERE id = ?";
        let name: String = conn.prepare_cached(name)?.query_row([account], |row| row.get(0))?;
        if let Some(name) = AccountName::parse(&name) {
            txn.forget_rates(&name);
            txn.forget_budgets(&name);
        }
    }
    Ok(())
}

/// Deletes buckets that were not used for long, and returns their number.
pub(super) fn purge_unused(txn: &mut WriteTxn<'_>) -> rusqlite::Result<usize> {
    let purged = rate_rows::purge_unused(txn.conn, &mut txn.row_cache.last_purged)?;
    if purged > 0 {
        txn.forget_all_rates();
    }
    Ok(purged)
}
