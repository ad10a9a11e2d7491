//! The rows of lots: what is left of granted credit, what open holds and allotments have drawn of
//! it, and what corrections gave back to it. The lot of payments has no row: it is the rest of the
//! account's balances, or of a hold's amount.

use std::collections::BTreeMap;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::accounts::read_money;
use super::columns::parse_column;
use crate::ledger::prepaid::lot::{CreditLot, CreditSource, LotAmounts, LotId};
use crate::ledger::prepaid::records::{JournalRecord, RecordKind, TransferKind, TransferRecord};
use crate::money::Money;

/// `expires_at`: 9223372036854775807 if the credit never expires. A lot of which nothing is left
/// has no row.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS credit_lot (
    account    INTEGER NOT NULL REFERENCES account,
    expires_at INTEGER NOT NULL,
    source     TEXT    NOT NULL CHECK (source IN ('promotion', 'voucher', 'paid')),
    available  INTEGER NOT NULL CHECK (available >= 0),
    held       INTEGER NOT NULL CHECK (held >= 0),
    CHECK (available > 0 OR held > 0),
    CHECK (source <> 'paid' OR expires_at < 9223372036854775807),
    PRIMARY KEY (account, expires_at, source)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS credit_lot_due ON credit_lot (expires_at)
WHERE available > 0 AND expires_at < 9223372036854775807;

-- What an open hold or an allotment has drawn of lots, if it has drawn any of them. A version of
-- the program that does not know this table leaves the row when it ends the hold.
CREATE TABLE IF NOT EXISTS hold_lots (
    account INTEGER NOT NULL REFERENCES account,
    id      TEXT    NOT NULL,
    lots    TEXT    NOT NULL CHECK (lots <> ''),
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;

-- Grants. They are no payments, since nobody paid them, and have a table beside that of transfers,
-- whose kinds are fixed.
CREATE TABLE IF NOT EXISTS credit_grant (
    account INTEGER NOT NULL REFERENCES account,
    tx      TEXT    NOT NULL,
    amount  INTEGER NOT NULL CHECK (amount >= 0),
    at      INTEGER NOT NULL,
    lot     TEXT    NOT NULL,
    PRIMARY KEY (account, tx)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS credit_grant_time ON credit_grant (account, at, tx);

-- The lots to which a correction gave money back, if there was any beside that of payments.
CREATE TABLE IF NOT EXISTS correction_lots (
    account INTEGER NOT NULL,
    tx      TEXT    NOT NULL,
    lots    TEXT    NOT NULL CHECK (lots <> ''),
    PRIMARY KEY (account, tx),
    FOREIGN KEY (account, tx) REFERENCES transfer (account, tx)
) STRICT, WITHOUT ROWID;

-- The lines of the journal that say that credit has expired.
CREATE TABLE IF NOT EXISTS expiry_line (
    account INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (account, seq),
    FOREIGN KEY (account, seq) REFERENCES journal (account, seq)
) STRICT, WITHOUT ROWID;
";

/// The open lots of an account beside that of payments.
pub(super) type NamedLots = BTreeMap<LotId, CreditLot>;

/// The lots of an account, as the writer keeps them in memory from one transaction to the next.
#[derive(Default)]
pub(super) struct LotRows {
    /// The lots as they are now.
    pub(super) open: NamedLots,
    /// The lots as they are in the table.
    written: NamedLots,
}

impl LotRows {
    /// Reads the lots of an account. What versions of the program have changed that do not know
    /// lots is counted in first.
    pub(super) fn read(c: &Connection, account: i64) -> rusqlite::Result<LotRows> {
        let mut select = c.prepare_cached(
            "SELECT expires_at, source, available, held FROM credit_lot WHERE account = ?",
        )?;
        let lots = select.query_map([account], |row| {
            let lot = CreditLot { available: read_money(row, 2)?, held: read_money(row, 3)? };
            Ok((read_lot_id(row, 0)?, lot))
        })?;
        let written: NamedLots = lots.collect::<rusqlite::Result<_>>()?;
        let open = written.clone();
        let mut rows = LotRows { open, written };
        rows.reconcile(c, account)?;
        rows.write(c, account)?;
        Ok(rows)
    }

    /// Writes the lots that have changed.
    pub(super) fn write(&mut self, c: &Connection, account: i64) -> rusqlite::Result<()> {
        if self.open == self.written {
            return Ok(());
        }
        for id in self.written.keys().filter(|id| !self.open.contains_key(id)) {
            let mut delete = c.prepare_cached(
                "DELETE FROM credit_lot WHERE account = ? AND expires_at = ? AND source = ?",
            )?;
            delete.execute(params![account, id.expires_at, id.source.as_str()])?;
        }
        for (id, lot) in &self.open {
            if self.written.get(id) == Some(lot) {
                continue;
            }
            let mut insert = c.prepare_cached(
                "INSERT INTO credit_lot (account, expires_at, source, available, held)
                 VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT DO UPDATE SET available = excluded.available, held = excluded.held",
            )?;
            let (source, available, held) =
                (id.source.as_str(), lot.available.nano(), lot.held.nano());
            insert.execute(params![account, id.expires_at, source, available, held])?;
        }
        self.written.clone_from(&self.open);
        Ok(())
    }

    /// Corrects the lots of holds that a version of the program has ended or made smaller that does
    /// not know lots. What such a hold was charged counts as drawn from its first lots, and the
    /// rest goes back to them. An allotment that has ended so counts as returned: what it was
    /// charged is not known, and no lot is left with more than the account has.
    fn reconcile(&mut self, c: &Connection, account: i64) -> rusqlite::Result<()> {
        let mut held = BTreeMap::new();
        for row in read_drawn_rows(c, account)? {
            let mut rest = parse(&row.lots, most()?)?;
            let kept = if let Some(held) = row.held {
                rest.split_first(held).map_err(|why| misread(why.into()))?
            } else {
                rest.split_first(row.posted).map_err(|why| misread(why.into()))?;
                LotAmounts::default()
            };
            for (id, amount) in named(&kept) {
                add_to(held.entry(id).or_default(), amount)?;
            }
            let text = kept.to_text();
            if text == row.lots {
                continue;
            }
            write_text(c, account, &row.id, &text)?;
            for (id, amount) in named(&rest) {
                add_to(&mut self.open.entry(id).or_default().available, amount)?;
            }
            log::warn!(
                event = "lots_corrected", hold = row.id, drawn = row.lots;
                "hold with granted credit changed by another version; lots corrected"
            );
        }
        for (id, lot) in &mut self.open {
            lot.held = held.remove(id).unwrap_or_default();
        }
        let missing = held.into_iter();
        self.open
            .extend(missing.map(|(id, held)| (id, CreditLot { held, ..CreditLot::default() })));
        self.open.retain(|_, lot| !lot.is_empty());
        Ok(())
    }
}

/// What a hold has drawn, as it is written.
struct DrawnRow {
    id: String,
    lots: String,
    /// What the hold still holds; `None` if it has ended.
    held: Option<Money>,
    /// What it was charged.
    posted: Money,
}

fn read_drawn_rows(c: &Connection, account: i64) -> rusqlite::Result<Vec<DrawnRow>> {
    let mut select = c.prepare_cached(
        "SELECT l.id, l.lots, coalesce(o.held, iif(h.state = 0, h.held, NULL)),
                coalesce(h.posted, 0)
         FROM hold_lots AS l LEFT JOIN open_hold AS o ON o.account = l.account AND o.id = l.id
         LEFT JOIN hold AS h ON h.account = l.account AND h.id = l.id WHERE l.account = ?",
    )?;
    let rows = select.query_map([account], |row| {
        let held = row.get::<_, Option<i64>>(2)?.map(|_| read_money(row, 2)).transpose()?;
        Ok(DrawnRow { id: row.get(0)?, lots: row.get(1)?, held, posted: read_money(row, 3)? })
    })?;
    rows.collect()
}

/// Whether any account has granted credit.
pub(super) fn has_any(c: &Connection) -> rusqlite::Result<bool> {
    c.prepare_cached("SELECT 1 FROM credit_lot LIMIT 1")?.exists([])
}

/// Reads the name of a lot from two columns: its expiry and its source.
pub(super) fn read_lot_id(row: &Row<'_>, column: usize) -> rusqlite::Result<LotId> {
    let name: String = row.get(column + 1)?;
    let source = CreditSource::of_name(&name).ok_or(rusqlite::Error::InvalidColumnType(
        column + 1,
        name,
        Type::Text,
    ))?;
    Ok(LotId { expires_at: row.get(column)?, source })
}

/// Reads what a hold of this amount has drawn: all of it is paid credit if the column is null. If
/// the hold is smaller than what it has drawn, a version of the program has made it smaller that
/// does not know lots.
pub(super) fn read_drawn(
    row: &Row<'_>,
    column: usize,
    held: Money,
) -> rusqlite::Result<LotAmounts> {
    let text: Option<String> = row.get(column)?;
    parse_drawn(text.as_deref().unwrap_or_default(), held)
}

/// Parses what a hold of this amount has drawn.
pub(super) fn parse_drawn(text: &str, held: Money) -> rusqlite::Result<LotAmounts> {
    if text.is_empty() {
        return parse(text, held);
    }
    parse(text, most()?)?.split_first(held).map_err(|why| misread(why.into()))
}

fn parse(text: &str, total: Money) -> rusqlite::Result<LotAmounts> {
    LotAmounts::parse(text, total).map_err(|why| misread(why.into()))
}

fn most() -> rusqlite::Result<Money> {
    Money::from_nano(i64::MAX).map_err(|why| misread(why.into()))
}

fn named(amounts: &LotAmounts) -> impl Iterator<Item = (LotId, Money)> + '_ {
    amounts.iter().filter(|(id, _)| *id != LotId::PAID)
}

fn add_to(sum: &mut Money, amount: Money) -> rusqlite::Result<()> {
    *sum = sum.checked_add(amount).map_err(|why| misread(why.into()))?;
    Ok(())
}

fn misread(why: Box<dyn std::error::Error + Send + Sync>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, why)
}

/// Writes what a hold or an allotment has drawn, if that has changed. One that has ended has drawn
/// nothing.
pub(super) fn write_drawn(
    c: &Connection,
    account: i64,
    id: &str,
    before: Option<&LotAmounts>,
    after: &LotAmounts,
) -> rusqlite::Result<()> {
    if before == Some(after) {
        return Ok(());
    }
    let (before, after) = (before.map(LotAmounts::to_text).unwrap_or_default(), after.to_text());
    if before == after { Ok(()) } else { write_text(c, account, id, &after) }
}

fn write_text(c: &Connection, account: i64, id: &str, text: &str) -> rusqlite::Result<()> {
    if text.is_empty() {
        let sql = "DELETE FROM hold_lots WHERE account = ? AND id = ?";
        return c.prepare_cached(sql)?.execute(params![account, id]).map(drop);
    }
    let mut insert = c.prepare_cached(
        "INSERT INTO hold_lots (account, id, lots) VALUES (?, ?, ?)
         ON CONFLICT DO UPDATE SET lots = excluded.lots",
    )?;
    insert.execute(params![account, id, text]).map(drop)
}

/// Writes to which lots a correction gave money back.
pub(super) fn write_corrected(
    c: &Connection,
    account: i64,
    tx: &str,
    line: &JournalRecord,
) -> rusqlite::Result<()> {
    let text = line.lots.to_text();
    if text.is_empty() || !matches!(line.kind, RecordKind::Correction(_)) {
        return Ok(());
    }
    let sql = "INSERT INTO correction_lots (account, tx, lots) VALUES (?, ?, ?)";
    c.prepare_cached(sql)?.execute(params![account, tx, text]).map(drop)
}

/// Writes a grant.
pub(super) fn write_grant(
    c: &Connection,
    account: i64,
    tx: &str,
    amount: Money,
    at: i64,
    lot: LotId,
) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT INTO credit_grant (account, tx, amount, at, lot) VALUES (?, ?, ?, ?, ?)",
    )?;
    insert.execute(params![account, tx, amount.nano(), at, lot.to_string()]).map(drop)
}

/// Returns the record of a grant; `None` if there is none of this id.
pub(super) fn find_grant(
    c: &Connection,
    account: i64,
    tx: &str,
) -> rusqlite::Result<Option<TransferRecord>> {
    let mut select =
        c.prepare_cached("SELECT amount, at, lot FROM credit_grant WHERE account = ? AND tx = ?")?;
    let found = select.query_row(params![account, tx], |row| {
        let (kind, amount) = (TransferKind::Grant(parse_column(row, 2)?), read_money(row, 0)?);
        let (at, moved, wait, reason) = (row.get(1)?, Some(amount), None, String::new());
        Ok(TransferRecord { kind, amount, at, moved, wait, reason })
    });
    found.optional()
}

/// Reads the lot of a grant; `None` if the column is null.
pub(super) fn read_grant_lot(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<LotId>> {
    row.get::<_, Option<String>>(column)?.map(|_| parse_column(row, column)).transpose()
}
