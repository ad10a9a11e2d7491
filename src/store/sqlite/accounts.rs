//! The rows of accounts and journals.

use rusqlite::{Connection, OptionalExtension, Row, Statement, params};

use crate::ledger::account::Balances;
use crate::ledger::prepaid::records::{JournalRecord, RecordKind};
use crate::ledger::{AccountName, EntryKind, JournalEntry};
use crate::money::Money;

pub(super) struct AccountRow {
    pub(super) id: i64,
    pub(super) balances: Balances,
    /// When the account was deleted, in unix seconds; `None` if it was not.
    pub(super) deleted_at: Option<i64>,
}

/// Opens an account; `false` if it exists already.
pub(super) fn open(c: &Connection, name: &AccountName) -> rusqlite::Result<bool> {
    let mut insert = c.prepare_cached("INSERT OR IGNORE INTO account (name) VALUES (?)")?;
    Ok(insert.execute([name.as_str()])? == 1)
}

/// Reads an amount of money from a column. The constraints of the tables allow no negative amount.
pub(super) fn read_money(row: &Row<'_>, column: usize) -> rusqlite::Result<Money> {
    let nano: i64 = row.get(column)?;
    Money::from_nano(nano).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, nano))
}

pub(super) fn find(c: &Connection, name: &AccountName) -> rusqlite::Result<Option<AccountRow>> {
    let mut select = c.prepare_cached(
        "SELECT id, credit, available, held, posted, written_off,
                (SELECT at FROM deleted_account AS d WHERE d.account = account.id)
         FROM account WHERE name = ?",
    )?;
    select.query_row([name.as_str()], read_account_row).optional()
}

fn read_account_row(row: &Row<'_>) -> rusqlite::Result<AccountRow> {
    let balances = Balances {
        credit: read_money(row, 1)?,
        available: read_money(row, 2)?,
        held: read_money(row, 3)?,
        posted: read_money(row, 4)?,
        written_off: read_money(row, 5)?,
    };
    Ok(AccountRow { id: row.get(0)?, balances, deleted_at: row.get(6)? })
}

pub(super) fn save_balances(c: &Connection, id: i64, b: &Balances) -> rusqlite::Result<()> {
    let mut update = c.prepare_cached(
        "UPDATE account SET credit = ?, available = ?, held = ?, posted = ?, written_off = ?
         WHERE id = ?",
    )?;
    let nano = [b.credit, b.available, b.held, b.posted, b.written_off].map(Money::nano);
    update.execute(params![nano[0], nano[1], nano[2], nano[3], nano[4], id])?;
    Ok(())
}

pub(super) fn list(c: &Connection) -> rusqlite::Result<Vec<AccountName>> {
    let mut select = c.prepare_cached("SELECT name FROM account ORDER BY name")?;
    read_names(&mut select)
}

/// Reads the names of accounts that a query without parameters selects.
pub(super) fn read_names(select: &mut Statement<'_>) -> rusqlite::Result<Vec<AccountName>> {
    let names = select.query_map([], |row| row.get::<_, String>(0))?;
    names.filter_map(|name| name.map(|n| AccountName::parse(&n)).transpose()).collect()
}

/// Returns the last number in an account's journal; 0 if the journal is empty.
pub(super) fn last_seq(c: &Connection, account: i64) -> rusqlite::Result<i64> {
    let mut select =
        c.prepare_cached("SELECT coalesce(max(seq), 0) FROM journal WHERE account = ?")?;
    select.query_row([account], |row| row.get(0))
}

/// Returns the last number in the journal of the account with this name; 0 if there is none.
pub(super) fn journal_length(c: &Connection, name: &AccountName) -> rusqlite::Result<u64> {
    let mut select = c.prepare_cached(
        "SELECT coalesce(max(seq), 0) FROM journal
         WHERE account = (SELECT id FROM account WHERE name = ?)",
    )?;
    select.query_row([name.as_str()], |row| row.get::<_, i64>(0).map(i64::unsigned_abs))
}

/// Appends a line to an account's journal, with the number `seq`.
pub(super) fn append_line(
    c: &Connection,
    account: i64,
    seq: i64,
    record: &JournalRecord,
) -> rusqlite::Result<()> {
    let (amount, written_off) = (record.amount.nano(), record.written_off.nano());
    let mut insert = c.prepare_cached(
        "INSERT INTO journal (account, seq, amount, written_off, line) VALUES (?, ?, ?, ?, ?)",
    )?;
    insert.execute(params![account, seq, amount, written_off, record.line])?;
    if matches!(record.kind, RecordKind::Correction(_)) {
        let mut mark =
            c.prepare_cached("INSERT INTO correction_line (account, seq) VALUES (?, ?)")?;
        mark.execute(params![account, seq])?;
    }
    if matches!(record.kind, RecordKind::Expiry(_)) {
        let mut mark = c.prepare_cached("INSERT INTO expiry_line (account, seq) VALUES (?, ?)")?;
        mark.execute(params![account, seq])?;
    }
    Ok(())
}

/// The columns of a journal entry, of the journal as `j`.
const ENTRY_COLUMNS: &str = "seq, amount, written_off, line, EXISTS (
    SELECT 1 FROM correction_line AS c WHERE c.account = j.account AND c.seq = j.seq), EXISTS (
    SELECT 1 FROM expiry_line AS e WHERE e.account = j.account AND e.seq = j.seq)";

pub(super) fn read_journal(
    c: &Connection,
    name: &AccountName,
    after: u64,
    limit: u32,
) -> rusqlite::Result<Vec<JournalEntry>> {
    let mut select = c.prepare_cached(&format!(
        "SELECT {ENTRY_COLUMNS} FROM journal AS j
         WHERE account = (SELECT id FROM account WHERE name = ?) AND seq > ? ORDER BY seq LIMIT ?",
    ))?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let entries = select.query_map(params![name.as_str(), after, limit], read_entry_row)?;
    entries.collect()
}

/// Returns the journal entry with a number; `None` if there is none.
pub(super) fn read_entry(
    c: &Connection,
    account: i64,
    seq: u64,
) -> rusqlite::Result<Option<JournalEntry>> {
    let sql = format!("SELECT {ENTRY_COLUMNS} FROM journal AS j WHERE account = ? AND seq = ?");
    let seq = i64::try_from(seq).unwrap_or(i64::MAX);
    c.prepare_cached(&sql)?.query_row(params![account, seq], read_entry_row).optional()
}

fn read_entry_row(row: &Row<'_>) -> rusqlite::Result<JournalEntry> {
    let kind = match (row.get(4)?, row.get(5)?) {
        (true, _) => EntryKind::Correction,
        (_, true) => EntryKind::Expiry,
        (false, false) => EntryKind::Charge,
    };
    Ok(JournalEntry {
        seq: row.get::<_, i64>(0)?.unsigned_abs(),
        kind,
        amount: read_money(row, 1)?,
        written_off: read_money(row, 2)?,
        line: row.get(3)?,
    })
}
