//! Operations on lots of granted credit.

use rusqlite::params;

use super::holds;
use super::write_txn::WriteTxn;
use crate::clock::unix_ms;
use crate::ledger::prepaid::records::PrepaidAccount;
use crate::ledger::prepaid::transfer;
use crate::ledger::{AccountName, OpenLot};
use crate::money::Money;

/// One sweep lets the credit of at most this many accounts expire; the next sweep does the rest.
const SWEEP_MAX: u32 = 1_000;

/// Returns the open lots of an account beside that of payments. Of a lot whose time has come
/// nothing is available.
pub(super) fn list(txn: &mut WriteTxn<'_>, name: &AccountName) -> rusqlite::Result<Vec<OpenLot>> {
    let Some(head) = txn.head(name)? else { return Ok(Vec::new()) };
    let now = unix_ms();
    let shown = head.granted_lots().map(|(id, mut lot)| {
        if id.is_expired(now) {
            lot.available = Money::ZERO;
        }
        OpenLot { id, lot }
    });
    Ok(shown.filter(|open| !open.lot.is_empty()).collect())
}

/// Lets credit expire whose time has come, of accounts on which nothing happens.
pub(super) fn expire_due(txn: &mut WriteTxn<'_>) -> rusqlite::Result<()> {
    if !txn.has_lots()? {
        return Ok(());
    }
    let (conn, now) = (txn.conn, unix_ms());
    let mut select = conn.prepare_cached(
        "SELECT name FROM account WHERE id IN (
             SELECT account FROM credit_lot INDEXED BY credit_lot_due
             WHERE available > 0 AND expires_at < 9223372036854775807 AND expires_at <= ?
             ORDER BY expires_at LIMIT ?)",
    )?;
    let names = select.query_map(params![now, SWEEP_MAX], |row| row.get::<_, String>(0))?;
    for name in names.collect::<rusqlite::Result<Vec<_>>>()? {
        let Some(name) = AccountName::parse(&name) else { continue };
        let Some(head) = txn.head(&name)? else { continue };
        // If a version of the program that does not know lots has spent the credit, nothing
        // expires, but the lot is closed.
        txn.set_head(&name, &head);
        let records = PrepaidAccount { head, ..PrepaidAccount::default() };
        let changes = transfer::expire_credit(&records, now).changes;
        holds::save_sums(txn, &name, &changes)?;
    }
    Ok(())
}
