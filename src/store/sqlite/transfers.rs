//! Payments, grants, refunds and corrections in tables, by which a repeated one is recognised. The
//! pure machine decides; an older version of the program finds payments where they always were.

use std::collections::BTreeSet;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::json;

use super::accounts::{self, read_money};
use super::data_version;
use super::write_txn::WriteTxn;
use super::{allotments, budgets, lot_rows};
use crate::clock::unix_ms;
use crate::ledger::prepaid::operations::{self, AppliedOperation};
use crate::ledger::prepaid::posted_line::read_posted;
use crate::ledger::prepaid::records::{
    AccountChanges, JournalRecord, PrepaidAccount, RecordKind, RefundWait, TransferKind,
    TransferRecord,
};
use crate::ledger::{
    AccountName, EntryKind, JournalEntry, KeyId, Operation, Outcome, TransferEntry, TransferPlace,
    TransferType,
};
use crate::money::Money;

/// Everything but payments and grants, which have tables of their own. moved: null while a refund
/// waits for money that is lent. `wait_since`, `asked_at`: null unless it waits. The reason is for
/// people.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS transfer (
    account     INTEGER NOT NULL REFERENCES account,
    tx          TEXT    NOT NULL,
    kind        TEXT    NOT NULL CHECK (kind IN ('refund', 'correction')),
    amount      INTEGER NOT NULL CHECK (amount >= 0),
    at          INTEGER NOT NULL,
    moved       INTEGER CHECK (moved BETWEEN 0 AND amount),
    written_off INTEGER NOT NULL CHECK (written_off >= 0),
    request     TEXT,
    reason      TEXT    NOT NULL,
    wait_since  INTEGER,
    asked_at    INTEGER,
    CHECK ((moved IS NULL) = (wait_since IS NOT NULL AND asked_at IS NOT NULL)),
    CHECK ((kind = 'correction') = (request IS NOT NULL)),
    PRIMARY KEY (account, tx)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS payment_time ON payment (account, at, tx);
CREATE INDEX IF NOT EXISTS transfer_time ON transfer (account, at, tx);

CREATE INDEX IF NOT EXISTS transfer_request ON transfer (account, request)
WHERE request IS NOT NULL;

-- The lines of the journal that take a part of a charge back. A column of the journal would be
-- simpler, but SQLite checks each row of a table that gets one.
CREATE TABLE IF NOT EXISTS correction_line (
    account INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (account, seq),
    FOREIGN KEY (account, seq) REFERENCES journal (account, seq)
) STRICT, WITHOUT ROWID;
";

/// Makes a payment, a grant, a refund or a correction, unless it was made before.
pub(super) fn apply(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    op: &Operation,
) -> rusqlite::Result<Outcome> {
    let Some(mut head) = txn.head(name)? else { return Ok(Outcome::NoAccount) };
    let Some(row) = txn.account_row(name)? else { return Ok(Outcome::NoAccount) };
    let (account, available) = (row.id, row.balances.available);
    let is_deleted = row.deleted_at.is_some();
    let (conn, now) = (txn.conn, unix_ms());
    if let Some(lending) = txn.lending(name)? {
        (head.lent_out, head.recall_until) = (lending.lent_out(), lending.recall_until);
    }
    let mut records = PrepaidAccount { head, ..PrepaidAccount::default() };
    let Some(tx) = op.transfer_id() else { return Ok(Outcome::Conflict) };
    let known = find(conn, account, tx)?;
    // A repeat has the answer of the first time. What an older version has paid into a deleted
    // account can be paid back.
    let is_refund = matches!(op, Operation::Take { .. }) && available > Money::ZERO;
    if is_deleted && known.is_none() && !is_refund {
        return Ok(Outcome::AccountDeleted);
    }
    records.transfers.extend(known.map(|known| (tx.to_owned(), known)));
    if let Operation::Correct { request, found, .. } = op {
        records.journal = read_request(conn, account, request, found)?;
        let windows = records.journal.iter().flat_map(|line| line.windows.clone()).collect();
        budgets::load(txn, name, &mut records, std::iter::empty::<KeyId>(), |_| windows)?;
    }
    let AppliedOperation { outcome, changes } = operations::apply_operation(&records, op, now);
    save(txn, name, account, changes)?;
    Ok(outcome)
}

/// Writes what an operation has changed.
fn save(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    account: i64,
    changes: AccountChanges,
) -> rusqlite::Result<()> {
    let conn = txn.conn;
    let is_correction = |line: &&JournalRecord| matches!(line.kind, RecordKind::Correction(_));
    let correction = changes.lines.iter().find(is_correction);
    for (tx, record) in &changes.transfers {
        write(conn, account, tx, record, correction)?;
    }
    for line in &changes.lines {
        txn.append_line(name, line)?;
    }
    budgets::save_windows(txn, name, &changes)?;
    if let Some(head) = changes.head {
        txn.set_head(name, &head);
        allotments::save_recall(txn, name, head.recall_until)?;
    }
    Ok(())
}

/// Writes the record of a transfer, with the line of a correction. A version of the program that
/// does not know refunds and corrections must not open the store any more: it would take a
/// correction for a charge. Nor must one that does not know lots, after a grant.
fn write(
    conn: &Connection,
    account: i64,
    tx: &str,
    record: &TransferRecord,
    correction: Option<&JournalRecord>,
) -> rusqlite::Result<()> {
    let TransferRecord { kind, amount, at, moved, wait, reason } = record;
    let (kind, request) = match kind {
        TransferKind::Grant(lot) => {
            data_version::raise(conn, data_version::LOTS_VERSION)?;
            return lot_rows::write_grant(conn, account, tx, *amount, *at, *lot);
        }
        TransferKind::Payment => {
            let mut insert = conn.prepare_cached(
                "INSERT INTO payment (account, tx, amount, at) VALUES (?, ?, ?, ?)",
            )?;
            return insert.execute(params![account, tx, amount.nano(), at]).map(drop);
        }
        TransferKind::Take => (TransferType::Refund, None),
        TransferKind::Correction(request) => (TransferType::Correction, Some(request)),
    };
    data_version::raise(conn, data_version::TRANSFERS_VERSION)?;
    let mut insert = conn.prepare_cached(
        "INSERT INTO transfer (account, tx, kind, amount, at, moved, written_off, request, reason,
                               wait_since, asked_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
         moved = excluded.moved, wait_since = excluded.wait_since, asked_at = excluded.asked_at",
    )?;
    let (amount, moved) = (amount.nano(), moved.map(Money::nano));
    let (since, asked_at) = wait.map(|wait| (wait.since, wait.asked_at)).unzip();
    let written_off = correction.map_or(Money::ZERO, |line| line.written_off).nano();
    let kind = kind.as_str();
    let row = params![
        account,
        tx,
        kind,
        amount,
        at,
        moved,
        written_off,
        request,
        reason,
        since,
        asked_at
    ];
    insert.execute(row)?;
    correction.map_or(Ok(()), |line| lot_rows::write_corrected(conn, account, tx, line))
}

/// Returns the record of a transfer; `None` if there is none of this id.
fn find(conn: &Connection, account: i64, tx: &str) -> rusqlite::Result<Option<TransferRecord>> {
    let mut select =
        conn.prepare_cached("SELECT amount, at FROM payment WHERE account = ? AND tx = ?")?;
    let payment = select.query_row(params![account, tx], |row| {
        let (kind, amount) = (TransferKind::Payment, read_money(row, 0)?);
        let (at, moved, wait, reason) = (row.get(1)?, Some(amount), None, String::new());
        Ok(TransferRecord { kind, amount, at, moved, wait, reason })
    });
    if let Some(payment) = payment.optional()? {
        return Ok(Some(payment));
    }
    if let Some(grant) = lot_rows::find_grant(conn, account, tx)? {
        return Ok(Some(grant));
    }
    let mut select = conn.prepare_cached(
        "SELECT request, amount, at, moved, reason, wait_since, asked_at FROM transfer
         WHERE account = ? AND tx = ?",
    )?;
    let found = select.query_row(params![account, tx], |row| {
        let request: Option<String> = row.get(0)?;
        let kind = request.map_or(TransferKind::Take, TransferKind::Correction);
        let (amount, moved) = (read_money(row, 1)?, read_optional_money(row, 3)?);
        let (at, reason) = (row.get(2)?, row.get(4)?);
        let since: Option<i64> = row.get(5)?;
        let wait = since.zip(row.get(6)?).map(|(since, asked_at)| RefundWait { since, asked_at });
        Ok(TransferRecord { kind, amount, at, moved, wait, reason })
    });
    found.optional()
}

fn read_optional_money(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Money>> {
    match row.get_ref(column)?.data_type() {
        Type::Null => Ok(None),
        _ => read_money(row, column).map(Some),
    }
}

/// Returns the records of a request: its charges among the lines with these numbers, and all its
/// corrections. The table of transfers has each of these, since a search of the journal that ended
/// before the newest one would give the same money back twice.
fn read_request(
    conn: &Connection,
    account: i64,
    request: &str,
    found: &[u64],
) -> rusqlite::Result<Vec<JournalRecord>> {
    let mut records = Vec::new();
    for seq in found.iter().collect::<BTreeSet<_>>() {
        let entry = accounts::read_entry(conn, account, *seq)?;
        let entry = entry.filter(|entry| entry.kind == EntryKind::Charge);
        records.extend(entry.as_ref().and_then(read_posted));
    }
    let mut select = conn.prepare_cached(
        "SELECT moved, written_off, tx,
                (SELECT lots FROM correction_lots AS l
                 WHERE l.account = t.account AND l.tx = t.tx)
         FROM transfer AS t WHERE account = ? AND request = ?",
    )?;
    let corrections = select.query_map(params![account, request], |row| {
        let (tx, lots): (String, Option<String>) = (row.get(2)?, row.get(3)?);
        let line = json!({ "corrects": request, "correction": tx, "lots": lots });
        let entry = JournalEntry {
            seq: 0,
            kind: EntryKind::Correction,
            amount: read_money(row, 0)?,
            written_off: read_money(row, 1)?,
            line: line.to_string(),
        };
        Ok(read_posted(&entry))
    })?;
    for correction in corrections {
        records.extend(correction?);
    }
    records.retain(|record| record.kind != RecordKind::Charge || record.request == request);
    Ok(records)
}

/// Returns payments, grants, refunds and corrections, oldest first, without the first `skipped`.
pub(super) fn list(
    conn: &Connection,
    name: &AccountName,
    skipped: u64,
    limit: u32,
) -> rusqlite::Result<Vec<TransferEntry>> {
    let mut select = conn.prepare_cached(
        "SELECT * FROM (
             SELECT tx, 'payment', amount, amount, at AS at, NULL, '', NULL, account FROM payment
             UNION ALL
             SELECT tx, 'grant', amount, amount, at, NULL, '', lot, account FROM credit_grant
             UNION ALL
             SELECT tx, kind, amount, moved, at, request, reason, NULL, account FROM transfer)
         WHERE account = (SELECT id FROM account WHERE name = ?)
         ORDER BY at, tx LIMIT ? OFFSET ?",
    )?;
    let skipped = i64::try_from(skipped).unwrap_or(i64::MAX);
    let entries = select.query_map(params![name.as_str(), limit, skipped], read_entry)?;
    entries.collect()
}

/// Returns payments, grants, refunds and corrections, newest first, those before a place. Of each
/// table the index gives the newest rows, and no others are read.
pub(super) fn list_newest(
    conn: &Connection,
    name: &AccountName,
    before: Option<&TransferPlace>,
    limit: u32,
) -> rusqlite::Result<Vec<TransferEntry>> {
    let newest = "account = (SELECT id FROM account WHERE name = ?1) AND (at, tx) < (?2, ?3)
                  ORDER BY at DESC, tx DESC LIMIT ?4";
    let mut select = conn.prepare_cached(&format!(
        "SELECT * FROM (
             SELECT * FROM (SELECT tx, 'payment', amount, amount, at AS at, NULL, '', NULL
                            FROM payment WHERE {newest})
             UNION ALL
             SELECT * FROM (SELECT tx, 'grant', amount, amount, at, NULL, '', lot
                            FROM credit_grant WHERE {newest})
             UNION ALL
             SELECT * FROM (SELECT tx, kind, amount, moved, at, request, reason, NULL
                            FROM transfer WHERE {newest}))
         ORDER BY at DESC, tx DESC LIMIT ?4",
    ))?;
    let (at, tx) = match before {
        Some(TransferPlace { at, tx }) => (at.unwrap_or(i64::MIN), tx.as_str()),
        None => (i64::MAX, ""),
    };
    let entries = select.query_map(params![name.as_str(), at, tx, limit], read_entry)?;
    entries.collect()
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<TransferEntry> {
    let kind: String = row.get(1)?;
    let kind = TransferType::of_name(&kind).unwrap_or(TransferType::Payment);
    Ok(TransferEntry {
        tx: row.get(0)?,
        kind,
        amount: read_money(row, 2)?,
        moved: read_optional_money(row, 3)?,
        at: Some(row.get(4)?),
        lot: lot_rows::read_grant_lot(row, 7)?,
        request: row.get(5)?,
        reason: row.get(6)?,
    })
}
