//! The check of the lots in a copy of a database.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::accounts::read_money;
use super::lot_rows::{parse_drawn, read_lot_id};
use super::older_tables;
use crate::ledger::prepaid::lot::LotId;

/// By how much the lots of an account are more than what it has available, and what it holds.
const EXCESS: &str = "
SELECT name, max(0, sum(l.available) - a.available), max(0, sum(l.held) - a.held)
  FROM credit_lot AS l JOIN account AS a ON a.id = l.account GROUP BY a.id";

/// Returns what does not add up between the lots of accounts, their balances and their holds.
pub(super) fn compare_lots(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    if !older_tables::has_table(connection, "credit_lot")? {
        return Ok(Vec::new());
    }
    let mut faults = Vec::new();
    let mut select = connection.prepare(EXCESS)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        for (column, what) in [(1, "what is available"), (2, "what is held")] {
            let excess: i64 = row.get(column)?;
            if excess > 0 {
                faults.push(format!("the lots of '{name}' exceed {what} by {excess} nano-USD"));
            }
        }
    }
    for ((name, lot), difference) in differences(connection)? {
        if difference != 0 {
            faults.push(format!(
                "what is held of the lot {lot} of '{name}' and its holds differ by {difference} \
                 nano-USD"
            ));
        }
    }
    Ok(faults)
}

/// Returns by how much more is held of each lot than open holds and allotments have drawn.
fn differences(connection: &Connection) -> rusqlite::Result<BTreeMap<(String, LotId), i128>> {
    let mut differences = BTreeMap::new();
    let mut select = connection.prepare(
        "SELECT name, expires_at, source, l.held
         FROM credit_lot AS l JOIN account AS a ON a.id = l.account",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let key = (row.get(0)?, read_lot_id(row, 1)?);
        differences.insert(key, i128::from(read_money(row, 3)?.nano()));
    }
    let mut select = connection.prepare(
        "SELECT name, l.lots, coalesce(o.held, iif(h.state = 0, h.held, 0), 0)
         FROM hold_lots AS l JOIN account AS a ON a.id = l.account
         LEFT JOIN open_hold AS o ON o.account = l.account AND o.id = l.id
         LEFT JOIN hold AS h ON h.account = l.account AND h.id = l.id",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (name, text): (String, String) = (row.get(0)?, row.get(1)?);
        let drawn = parse_drawn(&text, read_money(row, 2)?)?;
        for (lot, amount) in drawn.iter().filter(|(lot, _)| *lot != LotId::PAID) {
            let difference = differences.entry((name.clone(), lot)).or_default();
            *difference = difference.saturating_sub(i128::from(amount.nano()));
        }
    }
    Ok(differences)
}
