//! Payments in a table, by which a repeated payment is recognised.

use rusqlite::{OptionalExtension, params};

use super::accounts::read_money;
use super::write_txn::WriteTxn;
use crate::clock::unix_ms;
use crate::ledger::{AccountName, Outcome, account};
use crate::money::Money;

/// Credits a payment to an account, unless the payment `tx` was credited before.
pub(super) fn credit(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    tx: &str,
    amount: Money,
) -> rusqlite::Result<Outcome> {
    let c = txn.conn;
    let Some(row) = txn.account_row(name)? else { return Ok(Outcome::NoAccount) };
    let (id, mut balances) = (row.id, row.balances);
    let mut select = c.prepare_cached("SELECT amount FROM payment WHERE account = ? AND tx = ?")?;
    let known = select.query_row(params![id, tx], |r| read_money(r, 0)).optional()?;
    let answer = account::credit(&mut balances, known, amount);
    if answer == Outcome::Done {
        let mut insert =
            c.prepare_cached("INSERT INTO payment (account, tx, amount, at) VALUES (?, ?, ?, ?)")?;
        insert.execute(params![id, tx, amount.nano(), unix_ms()])?;
        txn.set_balances(name, balances);
    }
    Ok(answer)
}
