//! A consistent copy of the database of a store, made while other processes write to it, and the
//! check of such a copy.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags, Row};

use super::super::data_version::version_fault;
use super::embedded_store::is_missing_or_empty;
use super::file_identity::{FileId, side_file};
use super::lot_check::compare_lots;
use super::older_tables;
use super::schema::{self, BUSY_TIMEOUT};
use crate::permissions;

/// The time between two attempts to copy a database that another process locks.
const BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What must be 0 of each account: the difference between its credit and its balances, and those
/// between the account and its journal and payments.
const DIFFERENCES: &str = "
SELECT name,
       (credit - available - held) - (posted - written_off),
       posted - COALESCE((SELECT SUM(j.amount) FROM journal AS j WHERE j.account = a.id), 0),
       written_off
           - COALESCE((SELECT SUM(j.written_off) FROM journal AS j WHERE j.account = a.id), 0),
       credit - COALESCE((SELECT SUM(p.amount) FROM payment AS p WHERE p.account = a.id), 0)
  FROM account AS a";
/// The same of a file that knows refunds and corrections: the lines of these take back what the
/// lines of charges say. Before it come the tables of [`GRANTS`] or [`NO_GRANTS`], and of [`BASE`]
/// or [`NO_BASE`].
const DIFFERENCES_WITH_TRANSFERS: &str = "
correction (account, amount, written_off) AS (
    SELECT account, SUM(amount), SUM(written_off)
      FROM correction_line JOIN journal USING (account, seq) GROUP BY account)
SELECT name,
       (credit - available - held) - (posted - a.written_off),
       posted - COALESCE((SELECT SUM(j.amount) FROM journal AS j WHERE j.account = a.id), 0)
           + 2 * COALESCE(c.amount, 0) + COALESCE(e.amount, 0)
           - COALESCE(b.charged - b.corrected, 0),
       a.written_off
           - COALESCE((SELECT SUM(j.written_off) FROM journal AS j WHERE j.account = a.id), 0)
           + 2 * COALESCE(c.written_off, 0)
           - COALESCE(b.written_off - b.corrected_written_off, 0),
       credit - COALESCE((SELECT SUM(p.amount) FROM payment AS p WHERE p.account = a.id), 0)
           + COALESCE((SELECT SUM(t.moved) FROM transfer AS t
                        WHERE t.account = a.id AND t.kind = 'refund'), 0)
           - COALESCE(g.amount, 0) + COALESCE(e.amount, 0) + COALESCE(b.expired, 0)
  FROM account AS a LEFT JOIN correction AS c ON c.account = a.id
  LEFT JOIN granted AS g ON g.account = a.id LEFT JOIN expired AS e ON e.account = a.id
  LEFT JOIN base AS b ON b.account = a.id";
/// What was granted to accounts, and what of it has expired. The lines of expiries charge nothing.
const GRANTS: &str = "
WITH granted (account, amount) AS (
    SELECT account, SUM(amount) FROM credit_grant GROUP BY account),
expired (account, amount) AS (
    SELECT account, SUM(amount)
      FROM expiry_line JOIN journal USING (account, seq) GROUP BY account),";
/// The same of a file that knows no lots.
const NO_GRANTS: &str = "
WITH granted (account, amount) AS (SELECT 0, 0 WHERE 0),
expired (account, amount) AS (SELECT 0, 0 WHERE 0),";
/// What the lines said that have left journals for the archive.
const BASE: &str = "
base (account, charged, written_off, corrected, corrected_written_off, expired) AS (
    SELECT account, charged, written_off, corrected, corrected_written_off, expired
      FROM journal_base),";
/// The same of a file that knows no archive.
const NO_BASE: &str = "
base (account, charged, written_off, corrected, corrected_written_off, expired) AS (
    SELECT 0, 0, 0, 0, 0, 0 WHERE 0),";
/// What must be 0 of each window of a budget: the difference between what is lent of it and the
/// slices of allotments, and between what else is held in it and the holds.
const WINDOW_DIFFERENCES: &str = "
named AS (
    SELECT account, held, lent, owner || '/' || kind || '/' || start AS window
      FROM budget_window)
SELECT name,
       w.lent - COALESCE((SELECT SUM(s.amount) FROM slice AS s
                         WHERE s.account = w.account AND s.window = w.window), 0),
       w.held - w.lent
           - COALESCE((SELECT SUM(COALESCE(o.held, h.held)) FROM hold_budget AS b
                         LEFT JOIN open_hold AS o ON o.account = b.account AND o.id = b.id
                         LEFT JOIN hold AS h ON h.account = b.account AND h.id = b.id
                        WHERE b.account = w.account AND b.is_held = 1
                          AND instr(',' || b.windows || ',', ',' || w.window || ',') > 0), 0)
  FROM named AS w JOIN account AS a ON a.id = w.account";
/// What the numbers of a row of [`WINDOW_DIFFERENCES`] are about.
const COMPARED_IN_WINDOWS: [&str; 2] =
    ["what is lent of a budget and its slices", "what is held in a budget and its holds"];

/// What the numbers of a row of [`DIFFERENCES`] are about.
const COMPARED: [&str; 4] = [
    "the credit and the balances",
    "what is posted and the journal",
    "what is written off and the journal",
    "the credit and the payments, grants and refunds",
];

/// The database of a store, opened to be copied.
pub(in crate::store) struct SnapshotSource {
    connection: Connection,
    store_id: String,
}

/// What a check found in a copy of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct CheckedCopy {
    pub(in crate::store) store_id: String,
    pub(in crate::store) data_version: u32,
    /// The number of accounts, all of which add up.
    pub(in crate::store) accounts: usize,
}

impl SnapshotSource {
    /// Opens the database of a store, which other processes may have open.
    ///
    /// # Errors
    /// There is no store, or one of a later version, or SQLite's own message.
    pub(in crate::store) fn open(path: &Path) -> Result<SnapshotSource, String> {
        if is_missing_or_empty(path) {
            return Err("there is no store; `tollgate init` makes a new one".to_owned());
        }
        for ending in ["", "-wal", "-shm"] {
            let closed = permissions::restrict_file(&side_file(path, ending));
            closed.map_err(|why| why.to_string())?;
        }
        let connection = schema::open_secondary(path, BUSY_TIMEOUT).map_err(to_message)?;
        if schema::has_tables(&connection).map_err(to_message)? != Some(true) {
            return Err(schema::NO_STORE.to_owned());
        }
        if let Some(fault) = version_fault(read_data_version(&connection).map_err(to_message)?) {
            return Err(fault);
        }
        let store_id = schema::ensure_store_id(&connection).map_err(to_message)?;
        Ok(SnapshotSource { connection, store_id })
    }

    /// Returns the id of the store.
    pub(in crate::store) fn store_id(&self) -> &str {
        &self.store_id
    }

    /// Copies the database into the empty file `to`, as it is at one moment after this was called.
    ///
    /// It copies the pages one by one in a single read transaction (SQLite's backup API). That
    /// takes less time than `VACUUM INTO`, which builds all tables and indexes anew, and keeps the
    /// file as it is, with its version and the numbers of its rows. Beside a read transaction the
    /// writer of a write-ahead log goes on; only the log cannot begin anew until the copy is made.
    /// The copy has no write-ahead log, so that it is one file.
    ///
    /// # Errors
    /// SQLite's own message.
    pub(in crate::store) fn copy_to(&self, to: &Path) -> Result<(), String> {
        let mut copy = Connection::open(to).map_err(to_message)?;
        self.copy_pages(&mut copy)?;
        let mode = "journal_mode";
        copy.pragma_update(None, mode, "delete").map_err(to_message)?;
        let found: String =
            copy.pragma_query_value(None, mode, |row| row.get(0)).map_err(to_message)?;
        if found != "delete" {
            return Err(format!("the copy keeps a log beside it ({mode} is {found})"));
        }
        copy.close().map_err(|(_, why)| to_message(why))
    }

    fn copy_pages(&self, to: &mut Connection) -> Result<(), String> {
        let backup = Backup::new(&self.connection, to).map_err(to_message)?;
        let end = Instant::now() + BUSY_TIMEOUT;
        loop {
            match backup.step(-1).map_err(to_message)? {
                StepResult::Done => return Ok(()),
                StepResult::More => {}
                _ if Instant::now() >= end => {
                    return Err("another process keeps the database locked".to_owned());
                }
                _ => sleep(BUSY_RETRY_INTERVAL),
            }
        }
    }
}

/// Checks a copy of a database: its pages and indexes, its version, and that each account adds up.
///
/// # Errors
/// Says what is wrong.
pub(in crate::store) fn check_copy(path: &Path) -> Result<CheckedCopy, String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copy = Connection::open_with_flags(path, flags).map_err(to_message)?;
    let found: String =
        copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(to_message)?;
    if found != "ok" {
        return Err(format!("the integrity check found: {found}"));
    }
    let data_version = read_data_version(&copy).map_err(to_message)?;
    if let Some(fault) = version_fault(data_version) {
        return Err(fault);
    }
    let store_id = copy.query_row("SELECT id FROM store_id", [], |row| row.get(0));
    let store_id = store_id.map_err(to_message)?;
    let accounts = compare_books(&copy).map_err(to_message)?;
    let count = accounts.len();
    let windows = compare_windows(&copy).map_err(to_message)?;
    let lots = compare_lots(&copy).map_err(to_message)?;
    let faults: Vec<String> = accounts.into_iter().chain(windows).flatten().chain(lots).collect();
    if !faults.is_empty() {
        return Err(format!("the books do not add up: {}", faults.join("; ")));
    }
    Ok(CheckedCopy { store_id, data_version, accounts: count })
}

/// Returns the identity of a file among all files that were ever at its path.
///
/// # Errors
/// The file cannot be found.
pub(in crate::store) fn file_identity_of(path: &Path) -> io::Result<String> {
    Ok(FileId::of(path)?.name())
}

fn read_data_version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Returns for each account what does not add up.
fn compare_books(connection: &Connection) -> rusqlite::Result<Vec<Vec<String>>> {
    let has_transfers = older_tables::has_table(connection, "correction_line")?;
    let sql = if has_transfers {
        let has_grants = older_tables::has_table(connection, "expiry_line")?;
        let grants = if has_grants { GRANTS } else { NO_GRANTS };
        let has_base = older_tables::has_table(connection, "journal_base")?;
        let base = if has_base { BASE } else { NO_BASE };
        format!("{grants}{base}{DIFFERENCES_WITH_TRANSFERS}")
    } else {
        DIFFERENCES.to_owned()
    };
    let mut select = connection.prepare(&sql)?;
    let accounts = select.query_map([], |row| read_differences(row, &COMPARED))?;
    accounts.collect()
}

/// Returns for each window of a budget what does not add up.
fn compare_windows(connection: &Connection) -> rusqlite::Result<Vec<Vec<String>>> {
    if !older_tables::has_table(connection, "budget_window")? {
        return Ok(Vec::new());
    }
    // A file may have slices of this version, of one before it, or of both.
    let mut slices = Vec::new();
    if older_tables::has_columns(connection)? {
        slices.push(
            "SELECT account, s.key, s.value FROM allotment, json_each(allotment.slices) AS s",
        );
    }
    if older_tables::has_table(connection, "allotment_slice")? {
        slices.push("SELECT account, window, amount FROM allotment_slice");
    }
    let slices = slices.join(" UNION ALL ");
    let sql = format!("WITH slice (account, window, amount) AS ({slices}), {WINDOW_DIFFERENCES}");
    let mut select = connection.prepare(&sql)?;
    let windows = select.query_map([], |row| read_differences(row, &COMPARED_IN_WINDOWS))?;
    windows.collect()
}

fn read_differences(row: &Row<'_>, compared: &[&str]) -> rusqlite::Result<Vec<String>> {
    let name: String = row.get(0)?;
    let mut faults = Vec::new();
    for (index, compared) in (1_usize..).zip(compared) {
        let difference: i64 = row.get(index)?;
        if difference != 0 {
            faults.push(format!("{compared} of '{name}' differ by {difference} nano-USD"));
        }
    }
    Ok(faults)
}

#[allow(clippy::needless_pass_by_value, reason = "it is an argument of `map_err`")]
fn to_message(why: rusqlite::Error) -> String {
    why.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::SqliteStore;
    use super::*;
    use crate::ledger::{AccountName, Ledger as _, Operation};
    use crate::money::Money;

    async fn store_with_credit(path: &Path) -> SqliteStore {
        assert_eq!(SqliteStore::create(path), Ok(true));
        let store = SqliteStore::open(path).expect("a store");
        let account = AccountName::parse("a").expect("a name");
        store.open_account(&account).await.expect("it is opened");
        let amount = Money::parse_usd("5").expect("an amount");
        let credit = Operation::Credit { tx: "t".to_owned(), amount };
        store.submit(&account, credit).await.expect("it is credited");
        store
    }

    #[tokio::test]
    async fn a_store_that_is_open_is_copied_into_one_file_with_its_id_and_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("t.db"), folder.path().join("copy.db"));
        let store = store_with_credit(&path).await;
        let source = SnapshotSource::open(&path).expect("a source");
        source.copy_to(&copy).expect("copied");
        for ending in ["-wal", "-shm", "-journal"] {
            assert!(!side_file(&copy, ending).exists(), "{ending}");
        }
        let checked = check_copy(&copy).expect("it is sound");
        let expected = (store.store_id.as_str(), 1);
        assert_eq!((checked.store_id.as_str(), checked.accounts), expected);
        assert_eq!(version_fault(checked.data_version), None);
        let opened = SqliteStore::open(&copy).expect("a store");
        let account = AccountName::parse("a").expect("a name");
        let balances = opened.balances(&account).await.expect("an answer").expect("an account");
        assert_eq!(Ok(balances.available), Money::parse_usd("5"));
    }

    #[tokio::test]
    async fn a_copy_whose_books_do_not_add_up_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("t.db"), folder.path().join("copy.db"));
        drop(store_with_credit(&path).await);
        SnapshotSource::open(&path).expect("a source").copy_to(&copy).expect("copied");
        let change = |sql: &str| {
            let changed = Connection::open(&copy).expect("a file").execute_batch(sql);
            changed.expect("changed");
        };
        change("DELETE FROM payment");
        let why = check_copy(&copy).expect_err("a payment is missing");
        let told =
            "the credit and the payments, grants and refunds of 'a' differ by 5000000000 nano-USD";
        assert!(why.contains(told), "{why}");
        change(
            "INSERT INTO payment (account, tx, amount, at) VALUES (1, 't', 5000000000, 1);
             INSERT INTO budget_window (account, owner, kind, start, spent, held, lent)
             VALUES (1, 'account', 'total', 0, 9, 12, 5);
             INSERT INTO allotment (account, id, lent_at, last_seq, last_step, needed, open_calls,
                                    may_be_free, tight, state, slices)
             VALUES (1, 'x', 1, 0, 0, 0, 0, 0, 0, 0, '{\"account/total/0\":3}');
             INSERT INTO hold_budget VALUES (1, 'open', 7, 'account/total/0', 1),
                                            (1, 'other', 7, 'account/total/1', 1),
                                            (1, 'ended', 7, 'account/total/0', 0);
             INSERT INTO open_hold (account, id, wanted, least, held, lease_until)
             VALUES (1, 'open', 4, 4, 4, 1), (1, 'other', 4, 4, 4, 1), (1, 'ended', 4, 4, 4, 1)",
        );
        let why = check_copy(&copy).expect_err("windows are wrong");
        let told = "the books do not add up: what is lent of a budget and its slices of 'a' differ \
                    by 2 nano-USD; what is held in a budget and its holds of 'a' differ by 3 \
                    nano-USD";
        assert_eq!(why, told);
        change("PRAGMA user_version = 1000000");
        let why = check_copy(&copy).expect_err("a later version");
        assert!(why.starts_with("a later version of tollgate has written it"), "{why}");
    }

    #[tokio::test]
    async fn a_store_with_a_refund_and_a_correction_was_not_copied() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("t.db"), folder.path().join("copy.db"));
        let store = store_with_credit(&path).await;
        let account = AccountName::parse("a").expect("a name");
        let amount = |nano: i64| Money::from_nano(nano).expect("an amount");
        let (id, tx, request) = ("r".to_owned(), "t1".to_owned(), "r".to_owned());
        let (wanted, line) = (amount(100), r#"{"request_id":"r"}"#.to_owned());
        let (least, lease_ms, key, rates) = (wanted, 60_000, None, Vec::new());
        let cost = amount(6_000_000_000);
        let (found, reason) = (vec![1], String::new());
        for op in [
            Operation::Hold { id: id.clone(), wanted, least, lease_ms, key, rates },
            Operation::Settle { id, charge: cost, line, origin: None, tokens: None },
            Operation::Correct { tx, request, found, amount: amount(3_000_000_000), reason },
            Operation::Take { tx: "t2".to_owned(), amount: amount(70), reason: String::new() },
        ] {
            store.submit(&account, op).await.expect("an outcome");
        }
        SnapshotSource::open(&path).expect("a source").copy_to(&copy).expect("copied");
        assert_eq!(check_copy(&copy).map(|checked| checked.accounts), Ok(1));
        let change = |sql: &str| {
            let changed = Connection::open(&copy).expect("a file").execute_batch(sql);
            changed.expect("changed");
        };
        change("UPDATE transfer SET moved = 69 WHERE kind = 'refund'");
        let why = check_copy(&copy).expect_err("a refund is wrong");
        assert!(why.contains("refunds of 'a' differ by -1 nano-USD"), "{why}");
        change("UPDATE transfer SET moved = 70 WHERE kind = 'refund'; DELETE FROM correction_line");
        let why = check_copy(&copy).expect_err("a correction is no charge");
        assert!(why.contains("what is posted and the journal of 'a' differ"), "{why}");
    }

    #[tokio::test]
    async fn a_store_with_granted_credit_is_checked_with_its_lots() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("t.db"), folder.path().join("copy.db"));
        let store = store_with_credit(&path).await;
        let account = AccountName::parse("a").expect("a name");
        let amount = |nano: i64| Money::from_nano(nano).expect("an amount");
        let grant = |tx: &str, nano: i64, lot: &str| {
            let (tx, lot) = (tx.to_owned(), lot.parse().expect("a lot"));
            Operation::Grant { tx, amount: amount(nano), lot }
        };
        let hold = |id: &str, nano: i64| {
            let (id, wanted) = (id.to_owned(), amount(nano));
            let (least, lease_ms, key, rates) = (wanted, 60_000, None, Vec::new());
            Operation::Hold { id, wanted, least, lease_ms, key, rates }
        };
        let (line, charge) = (r#"{"request_id":"r"}"#.to_owned(), amount(250));
        let (tx, request) = ("c".to_owned(), "r".to_owned());
        let (found, reason) = (vec![2], String::new());
        for op in [
            grant("g1", 70, "1/promotion"),
            grant("g2", 200, "9999999999999/promotion"),
            grant("g3", 300, "never/voucher"),
            hold("r", 250),
            hold("open", 400),
            Operation::Settle { id: "r".to_owned(), charge, line, origin: None, tokens: None },
            Operation::Correct { tx, request, found, amount: amount(20), reason },
        ] {
            store.submit(&account, op).await.expect("an outcome");
        }
        SnapshotSource::open(&path).expect("a source").copy_to(&copy).expect("copied");
        assert_eq!(check_copy(&copy).map(|checked| checked.accounts), Ok(1));
        let file = Connection::open(&copy).expect("a file");
        let lots = "SELECT group_concat(available || ' ' || held || ' ' || source, ', ')
                    FROM (SELECT * FROM credit_lot ORDER BY expires_at)";
        let lots: String = file.query_row(lots, [], |row| row.get(0)).expect("lots");
        assert_eq!(lots, "20 250 voucher");
        for (change, undo, told) in [
            (
                "UPDATE credit_lot SET held = held + 3",
                "UPDATE credit_lot SET held = held - 3",
                "what is held of the lot never/voucher of 'a' and its holds differ by 3 nano-USD",
            ),
            (
                "UPDATE credit_lot SET available = 5000000000",
                "UPDATE credit_lot SET available = 20",
                "the lots of 'a' exceed what is available by 130 nano-USD",
            ),
            (
                "UPDATE credit_grant SET amount = amount + 5 WHERE tx = 'g1'",
                "UPDATE credit_grant SET amount = amount - 5 WHERE tx = 'g1'",
                "the credit and the payments, grants and refunds of 'a' differ by -5 nano-USD",
            ),
            (
                "DELETE FROM expiry_line",
                "INSERT INTO expiry_line (account, seq) VALUES (1, 1)",
                "what is posted and the journal of 'a' differ by -70 nano-USD; the credit and the \
                 payments, grants and refunds of 'a' differ by -70 nano-USD",
            ),
        ] {
            file.execute_batch(change).expect("changed");
            let why = check_copy(&copy).expect_err(change);
            assert_eq!(why, format!("the books do not add up: {told}"));
            file.execute_batch(undo).expect("changed back");
            assert_eq!(check_copy(&copy).map(|checked| checked.accounts), Ok(1), "{undo}");
        }
    }

    #[tokio::test]
    async fn a_copy_from_before_there_were_lots_is_checked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        drop(store_with_credit(&path).await);
        let file = Connection::open(&path).expect("a file");
        file.execute_batch(
            "DROP TABLE credit_lot; DROP TABLE hold_lots; DROP TABLE credit_grant;
             DROP TABLE correction_lots; DROP TABLE expiry_line; DROP TABLE journal_base;
             DROP TABLE archived_day; DROP TABLE archive_turn",
        )
        .expect("dropped");
        let copy = folder.path().join("copy.db");
        SnapshotSource::open(&path).expect("a source").copy_to(&copy).expect("copied");
        assert_eq!(check_copy(&copy).map(|checked| checked.accounts), Ok(1));
    }

    #[test]
    fn what_is_no_store_is_not_copied() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let fault = || SnapshotSource::open(&path).err().expect("refused");
        assert!(fault().starts_with("there is no store"), "{}", fault());
        let other = Connection::open(&path).expect("a file");
        other.execute_batch("CREATE TABLE t (a)").expect("a table");
        assert_eq!(fault(), schema::NO_STORE);
    }
}
