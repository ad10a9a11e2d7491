//! What versions of the program before this one have in other tables. Such a version may still run
//! beside this one, so its tables stay, and what its open allotments have in them is its own.

use std::collections::BTreeMap;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::accounts::read_money;
use super::allotment_rows::release_slice;
use super::columns::parse_column;
use super::rate_rows;
use crate::ledger::prepaid::rate::RateId;
use crate::ledger::prepaid::window::WindowId;
use crate::money::Money;

/// The index of the slices that an older version has left.
const INDEX: &str = "
CREATE INDEX IF NOT EXISTS allotment_left ON allotment (account)
WHERE state = 2 AND (slices IS NOT NULL OR rates IS NOT NULL)";

const ADD_COLUMNS: &str = "
ALTER TABLE allotment ADD COLUMN slices TEXT;
ALTER TABLE allotment ADD COLUMN rates TEXT";

/// Whether the allotment of a row `s` has ended, or is forgotten.
const HAS_ENDED: &str = "NOT EXISTS (
    SELECT 1 FROM allotment AS a
    WHERE a.account = s.account AND a.id = s.allotment AND a.state < 2)";

/// Adds the columns that older files lack.
pub(super) fn add_columns(connection: &Connection) -> rusqlite::Result<()> {
    if !has_columns(connection)? {
        let adding = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
        // Another process may have added them meanwhile.
        if !has_columns(&adding)? {
            adding.execute_batch(ADD_COLUMNS)?;
        }
        adding.commit()?;
    }
    connection.execute_batch(INDEX)
}

/// Whether allotments have their slices in their own rows.
pub(super) fn has_columns(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM pragma_table_info('allotment') WHERE name = 'rates'";
    connection.prepare_cached(sql)?.exists([])
}

/// Whether there is a table of an older version, `allotment_slice` or `allotment_rate`.
pub(super) fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?";
    connection.prepare_cached(sql)?.exists([name])
}

/// Gives back what an older version had lent to allotments that have ended since. Returns the row
/// ids of their accounts.
pub(super) fn release_ended(c: &Connection) -> rusqlite::Result<Vec<i64>> {
    let mut accounts = Vec::new();
    if has_table(c, "allotment_slice")? {
        let sql =
            format!("SELECT account, window, amount FROM allotment_slice AS s WHERE {HAS_ENDED}");
        let mut select = c.prepare_cached(&sql)?;
        let slices = select.query_map([], |row| {
            Ok((row.get::<_, i64>(0)?, parse_column(row, 1)?, read_money(row, 2)?))
        })?;
        let slices: Vec<(i64, WindowId, Money)> = slices.collect::<rusqlite::Result<_>>()?;
        for (account, window, amount) in slices {
            release_slice(c, account, window, amount)?;
            accounts.push(account);
        }
        let sql = format!("DELETE FROM allotment_slice AS s WHERE {HAS_ENDED}");
        c.prepare_cached(&sql)?.execute([])?;
    }
    if has_table(c, "allotment_rate")? {
        let sql = format!("SELECT account, rate, slice FROM allotment_rate AS s WHERE {HAS_ENDED}");
        let mut select = c.prepare_cached(&sql)?;
        let rates = select
            .query_map([], |row| Ok((row.get::<_, i64>(0)?, parse_column(row, 1)?, row.get(2)?)))?;
        let rates: Vec<(i64, RateId, i64)> = rates.collect::<rusqlite::Result<_>>()?;
        for (account, id, units) in rates {
            rate_rows::release_places(c, account, BTreeMap::from([(id, units)]))?;
            accounts.push(account);
        }
        let sql = format!("DELETE FROM allotment_rate AS s WHERE {HAS_ENDED}");
        c.prepare_cached(&sql)?.execute([])?;
    }
    Ok(accounts)
}
