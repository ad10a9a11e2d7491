//! The tables of the embedded store. Their constraints state the ledger's invariants once more, so
//! that no code can break them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior};

use super::super::data_version::{
    BASE_VERSION, RESTRICTIONS_VERSION, SLICES_VERSION, version_fault,
};
use super::{
    account_settings, archive_rows, kept_bytes, lot_rows, older_tables, operator_rows,
    posted_lines, rate_rows, session_rows, statement_rows, transfers, usage_rows, webhook_rows,
};

/// How long a connection waits for another process that writes.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts to turn on the write-ahead log of a new file.
const WAL_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// The time between two attempts to write while another process writes.
const BUSY_RETRY_INTERVAL: Duration = Duration::from_micros(300);

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS account (
    id          INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL UNIQUE,
    credit      INTEGER NOT NULL DEFAULT 0 CHECK (credit >= 0),
    available   INTEGER NOT NULL DEFAULT 0 CHECK (available >= 0),
    held        INTEGER NOT NULL DEFAULT 0 CHECK (held >= 0),
    posted      INTEGER NOT NULL DEFAULT 0 CHECK (posted >= 0),
    written_off INTEGER NOT NULL DEFAULT 0 CHECK (written_off >= 0),
    -- C + W = A + H + P, turned so that no sum leaves the range of 64 bits
    CHECK (credit - available - held = posted - written_off)
) STRICT;

CREATE TABLE IF NOT EXISTS payment (
    account INTEGER NOT NULL REFERENCES account,
    tx      TEXT    NOT NULL,
    amount  INTEGER NOT NULL CHECK (amount >= 0),
    at      INTEGER NOT NULL,
    PRIMARY KEY (account, tx)
) STRICT, WITHOUT ROWID;

-- Open holds. There are only as many as calls in progress, so they fit into few pages, and expired
-- ones are found by a scan. A hold is in the next table too only if a version of the program that
-- does not know this table has ended it meanwhile.
CREATE TABLE IF NOT EXISTS open_hold (
    account     INTEGER NOT NULL REFERENCES account,
    id          TEXT    NOT NULL,
    wanted      INTEGER NOT NULL CHECK (wanted >= 0),
    least       INTEGER NOT NULL CHECK (least >= 0),
    held        INTEGER NOT NULL CHECK (held >= 0),
    lease_until INTEGER NOT NULL,
    posted      INTEGER CHECK (posted >= 0),
    line        TEXT,
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;

-- Ended holds. state: 1 posted, 2 voided, 3 expired, 4 tombstone; 0 open, if it was written by a
-- version of the program that does not know the table above, which may still be running.
CREATE TABLE IF NOT EXISTS hold (
    account     INTEGER NOT NULL REFERENCES account,
    id          TEXT    NOT NULL,
    wanted      INTEGER NOT NULL CHECK (wanted >= 0),
    least       INTEGER NOT NULL CHECK (least >= 0),
    held        INTEGER NOT NULL CHECK (held >= 0),
    lease_until INTEGER NOT NULL,
    state       INTEGER NOT NULL CHECK (state BETWEEN 0 AND 4),
    posted      INTEGER CHECK (posted >= 0),
    line        TEXT,
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS hold_open ON hold (lease_until) WHERE state = 0;

CREATE TABLE IF NOT EXISTS journal (
    account     INTEGER NOT NULL REFERENCES account,
    seq         INTEGER NOT NULL,
    amount      INTEGER NOT NULL CHECK (amount >= 0),
    written_off INTEGER NOT NULL CHECK (written_off BETWEEN 0 AND amount),
    line        TEXT    NOT NULL,
    PRIMARY KEY (account, seq)
) STRICT, WITHOUT ROWID;

-- What is lent of an account. Until recall_until nothing is lent; until voided_until a call that
-- ends may have been voided before. A missing row stands for 0.
CREATE TABLE IF NOT EXISTS lending (
    account      INTEGER PRIMARY KEY REFERENCES account,
    recall_until INTEGER NOT NULL,
    voided_until INTEGER NOT NULL
) STRICT;

-- Allotments. What one holds, and until when, is in its row of open_hold, so that a version of the
-- program that does not know this table does not spend it. state: 0 open, 1 fenced, 2 ended.
-- slices: what it may hold in windows, in nano-USD, as JSON ({\"key:7/total/0\":5}); it counts as
-- lent and held there. rates: what it has of rate limits, in units ({\"account/calls/0\":3}); it
-- counts as taken there. Both are null if there is nothing. A version of the program that does not
-- know them leaves them when it ends the allotment, until it forgets that after a day.
CREATE TABLE IF NOT EXISTS allotment (
    account     INTEGER NOT NULL REFERENCES account,
    id          TEXT    NOT NULL,
    lent_at     INTEGER NOT NULL,
    last_seq    INTEGER NOT NULL CHECK (last_seq >= 0),
    last_step   INTEGER NOT NULL CHECK (last_step >= 0),
    needed      INTEGER NOT NULL CHECK (needed >= 0),
    open_calls  INTEGER NOT NULL CHECK (open_calls >= 0),
    may_be_free INTEGER NOT NULL CHECK (may_be_free IN (0, 1)),
    tight       INTEGER NOT NULL CHECK (tight IN (0, 1)),
    state       INTEGER NOT NULL CHECK (state BETWEEN 0 AND 2),
    ended_at    INTEGER CHECK ((ended_at IS NULL) = (state < 2)),
    slices      TEXT,
    rates       TEXT,
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS allotment_out ON allotment (account) WHERE state < 2;
CREATE INDEX IF NOT EXISTS allotment_end ON allotment (ended_at) WHERE state = 2;

-- The cost so far of calls of an allotment; of one that has ended, what was charged then.
CREATE TABLE IF NOT EXISTS allotment_call (
    account   INTEGER NOT NULL REFERENCES account,
    allotment TEXT    NOT NULL,
    call      TEXT    NOT NULL,
    charge    INTEGER NOT NULL CHECK (charge >= 0),
    held      INTEGER NOT NULL CHECK (held >= 0),
    line      TEXT    NOT NULL,
    PRIMARY KEY (account, allotment, call)
) STRICT, WITHOUT ROWID;

-- What the cost of calls of allotments counts in, of those of the table above that count in any
-- window.
CREATE TABLE IF NOT EXISTS allotment_call_budget (
    account   INTEGER NOT NULL REFERENCES account,
    allotment TEXT    NOT NULL,
    call      TEXT    NOT NULL,
    key_id    INTEGER,
    windows   TEXT    NOT NULL,
    PRIMARY KEY (account, allotment, call)
) STRICT, WITHOUT ROWID;

-- The limits of budgets. owner: 'account', or 'key:' and the id of a key. most is null if the limit
-- was removed: the windows count on.
CREATE TABLE IF NOT EXISTS budget (
    account INTEGER NOT NULL REFERENCES account,
    owner   TEXT    NOT NULL,
    kind    TEXT    NOT NULL CHECK (kind IN ('hour', 'day', 'week', 'month', 'total')),
    most    INTEGER CHECK (most >= 0),
    PRIMARY KEY (account, owner, kind)
) STRICT, WITHOUT ROWID;

-- What is used of the windows of budgets.
CREATE TABLE IF NOT EXISTS budget_window (
    account INTEGER NOT NULL REFERENCES account,
    owner   TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    start   INTEGER NOT NULL,
    spent   INTEGER NOT NULL CHECK (spent >= 0),
    held    INTEGER NOT NULL CHECK (held >= 0),
    lent    INTEGER NOT NULL CHECK (lent BETWEEN 0 AND held),
    PRIMARY KEY (account, owner, kind, start)
) STRICT, WITHOUT ROWID;

-- What a hold counts in, if it counts in any window, as long as it is open, or may be charged late.
-- is_held: whether it counts as held there. It still does after a version of the program has ended
-- it that does not know this table.
CREATE TABLE IF NOT EXISTS hold_budget (
    account INTEGER NOT NULL REFERENCES account,
    id      TEXT    NOT NULL,
    key_id  INTEGER,
    windows TEXT    NOT NULL,
    is_held INTEGER NOT NULL CHECK (is_held IN (0, 1)),
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS access_key (
    hash       BLOB    NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    account    INTEGER NOT NULL REFERENCES account,
    prefix     TEXT    NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS access_key_of ON access_key (account, created_at, prefix);

-- It rises when a key is revoked, or its scope or its account's settings change. A missing row
-- stands for 0.
CREATE TABLE IF NOT EXISTS key_revision (
    row      INTEGER PRIMARY KEY CHECK (row = 1),
    revision INTEGER NOT NULL CHECK (revision > 0)
) STRICT;

-- The keys that have a scope, or that a budget or settings of an account are about. A version of
-- the program that knows none of that does not find them. scope: JSON; null if the key has none.
CREATE TABLE IF NOT EXISTS restricted_key (
    hash       BLOB    NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    account    INTEGER NOT NULL REFERENCES account,
    prefix     TEXT    NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER,
    scope      TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS restricted_key_of ON restricted_key (account, created_at, prefix);

-- Cache entries. The account is stored by name, since it need not exist. The table has rowids,
-- since entries are large.
CREATE TABLE IF NOT EXISTS note (
    account     TEXT    NOT NULL CHECK (length(account) BETWEEN 1 AND 64),
    name        TEXT    NOT NULL,
    lives_until INTEGER NOT NULL CHECK (lives_until >= 0),
    body        BLOB    NOT NULL CHECK (length(body) <= 262144),
    PRIMARY KEY (account, name)
) STRICT;

CREATE INDEX IF NOT EXISTS note_of ON note (account, lives_until);
CREATE INDEX IF NOT EXISTS note_end ON note (lives_until);

-- Idempotency keys. head is null while the call runs, and '' if it ended without a reply.
CREATE TABLE IF NOT EXISTS repeat (
    row         INTEGER PRIMARY KEY,
    account     TEXT    NOT NULL CHECK (length(account) BETWEEN 1 AND 64),
    name        TEXT    NOT NULL,
    content     BLOB    NOT NULL CHECK (length(content) = 32),
    owner       TEXT    NOT NULL,
    lease_until INTEGER NOT NULL CHECK (lease_until >= 0),
    lives_until INTEGER NOT NULL CHECK (lives_until >= 0),
    head        TEXT,
    bytes       INTEGER NOT NULL CHECK (bytes >= 0),
    UNIQUE (account, name)
) STRICT;

CREATE INDEX IF NOT EXISTS repeat_end ON repeat (lives_until);

-- The bodies of replies, divided into pieces.
CREATE TABLE IF NOT EXISTS reply (
    row         INTEGER PRIMARY KEY,
    account     TEXT    NOT NULL CHECK (length(account) BETWEEN 1 AND 64),
    owner       TEXT    NOT NULL,
    piece       INTEGER NOT NULL CHECK (piece >= 0),
    lives_until INTEGER NOT NULL CHECK (lives_until >= 0),
    body        BLOB    NOT NULL CHECK (length(body) <= 262144),
    UNIQUE (account, owner, piece)
) STRICT;

CREATE INDEX IF NOT EXISTS reply_end ON reply (lives_until);

-- The bytes of replies that each account keeps, counted by the triggers below.
CREATE TABLE IF NOT EXISTS replies (
    account TEXT    NOT NULL PRIMARY KEY,
    bytes   INTEGER NOT NULL CHECK (bytes >= 0)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS reply_kept AFTER INSERT ON reply BEGIN
    INSERT INTO replies (account, bytes) VALUES (new.account, length(new.body))
    ON CONFLICT (account) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER IF NOT EXISTS reply_forgotten AFTER DELETE ON reply BEGIN
    UPDATE replies SET bytes = bytes - length(old.body) WHERE account = old.account;
END;

-- Video jobs. status: 0 queued, 1 in progress, 2 completed, 3 failed. lease_until is 0 while no
-- worker has claimed the job. saved_from is the revision from which the last save was made; it is
-- null again after the next claim.
CREATE TABLE IF NOT EXISTS video (
    row         INTEGER PRIMARY KEY,
    account     INTEGER NOT NULL REFERENCES account,
    id          TEXT    NOT NULL CHECK (length(id) > 0),
    job         TEXT    NOT NULL,
    status      INTEGER NOT NULL CHECK (status BETWEEN 0 AND 3),
    due         INTEGER NOT NULL CHECK (due >= 0),
    lease_until INTEGER NOT NULL CHECK (lease_until >= 0),
    revision    INTEGER NOT NULL CHECK (revision >= 0),
    deleted     INTEGER NOT NULL CHECK (deleted IN (0, 1)),
    key         TEXT,
    saved_from  INTEGER CHECK (saved_from < revision),
    UNIQUE (account, id),
    UNIQUE (account, key)
) STRICT;

CREATE INDEX IF NOT EXISTS video_next ON video (max(due, lease_until));
CREATE INDEX IF NOT EXISTS video_status ON video (status);
CREATE INDEX IF NOT EXISTS video_open ON video (account) WHERE status < 2;

-- The bodies for vendors. They are in a table of their own, so that a read of a job does not read
-- its body.
CREATE TABLE IF NOT EXISTS video_body (
    video INTEGER PRIMARY KEY REFERENCES video,
    body  BLOB    NOT NULL
) STRICT;

-- The id of the store. It stays the same when the file is moved, and differs if another store's
-- file takes its place.
CREATE TABLE IF NOT EXISTS store_id (
    row INTEGER PRIMARY KEY CHECK (row = 1),
    id  TEXT    NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS secret (
    row    INTEGER PRIMARY KEY CHECK (row = 1),
    secret BLOB    NOT NULL CHECK (length(secret) = 32)
) STRICT;
";

/// When the log has this many pages, the connection that commits copies them into the file and
/// waits for the disk, if the sync thread has not copied them before.
const AUTOCHECKPOINT_PAGES: u32 = 32_000;

/// Returns the flags with which a store is opened. They never create the file.
fn open_flags() -> OpenFlags {
    OpenFlags::default().difference(OpenFlags::SQLITE_OPEN_CREATE)
}

/// Creates the tables in a file that has none, and the file if it does not exist. Returns whether
/// it created the tables.
///
/// # Errors
/// The file belongs to another program, or SQLite's own message.
pub(super) fn create(path: &Path, busy_wait: Duration) -> Result<bool, String> {
    let to_message = |why: rusqlite::Error| why.to_string();
    let mut connection = Connection::open(path).map_err(to_message)?;
    connection.busy_timeout(busy_wait).map_err(to_message)?;
    let made = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let made = made.and_then(|transaction| {
        let has_tables = has_tables(&transaction)?;
        if has_tables.is_none() {
            transaction.execute_batch(SCHEMA)?;
        }
        transaction.commit()?;
        Ok(has_tables)
    });
    match made.map_err(to_message)? {
        None => Ok(true),
        Some(true) => Ok(false),
        Some(false) => Err(NOT_A_STORE.to_owned()),
    }
}

/// The error for a file of another program.
const NOT_A_STORE: &str = "it has tables, but is no store of tollgate";

/// The error for a file that is opened and has no tables of a store.
pub(super) const NO_STORE: &str = "it is no store of tollgate; `tollgate init` makes a new one";

/// Whether a file has the tables of a store; `None` if it has none at all.
pub(super) fn has_tables(connection: &Connection) -> rusqlite::Result<Option<bool>> {
    let sql = "SELECT max(name = 'account') FROM sqlite_schema WHERE type = 'table'";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Opens the file of a store, and creates the tables that an older version did not have. While the
/// returned switch is on, the connection does not wait for locks of other processes.
///
/// # Errors
/// The file is no store, or one of a later version, or SQLite's own message.
pub(super) fn open(
    path: &Path,
    busy_wait: Duration,
) -> Result<(Connection, Arc<AtomicBool>), String> {
    let to_message = |why: rusqlite::Error| why.to_string();
    let mut connection = Connection::open_with_flags(path, open_flags()).map_err(to_message)?;
    let skip_busy_wait = install_busy_handler(&mut connection, busy_wait).map_err(to_message)?;
    if has_tables(&connection).map_err(to_message)? != Some(true) {
        return Err(NO_STORE.to_owned());
    }
    let version = "user_version";
    let found = connection.pragma_query_value(None, version, |row| row.get(0));
    let found: u32 = found.map_err(to_message)?;
    if let Some(fault) = version_fault(found) {
        return Err(fault);
    }
    configure(&connection, busy_wait).map_err(to_message)?;
    let due = match found {
        0 => BASE_VERSION,
        RESTRICTIONS_VERSION => SLICES_VERSION,
        _ => found,
    };
    if due != found {
        connection.pragma_update(None, version, due).map_err(to_message)?;
    }
    Ok((connection, skip_busy_wait))
}

fn configure(connection: &Connection, busy_wait: Duration) -> rusqlite::Result<()> {
    enable_wal(connection, busy_wait)?;
    // A commit does not wait for the disk; a caller that needs that waits until the log is synced.
    // Before SQLite copies the log into the file, it syncs both by itself.
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "wal_autocheckpoint", AUTOCHECKPOINT_PAGES)?;
    connection.pragma_update(None, "cache_size", -16_000)?;
    enable_secure_delete(connection)?;
    let books = [SCHEMA, rate_rows::SCHEMA, transfers::SCHEMA, lot_rows::SCHEMA];
    let sums = [posted_lines::SCHEMA, usage_rows::SCHEMA, statement_rows::SCHEMA];
    let others = [archive_rows::SCHEMA, session_rows::SCHEMA, webhook_rows::SCHEMA];
    for tables in books.iter().chain(&sums).chain(&others) {
        connection.execute_batch(tables)?;
    }
    older_tables::add_columns(connection)?;
    account_settings::prepare_schema(connection)?;
    operator_rows::prepare_schema(connection)?;
    kept_bytes::prepare_schema(connection)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Returns the id of the store. A store that an older version created gets its id now.
///
/// # Errors
/// SQLite's own errors.
pub(super) fn ensure_store_id(connection: &Connection) -> rusqlite::Result<String> {
    let find = || {
        let found = connection.query_row("SELECT id FROM store_id", [], |row| row.get(0));
        found.optional()
    };
    if let Some(id) = find()? {
        return Ok(id);
    }
    let id = uuid::Uuid::new_v4().simple().to_string();
    connection.execute("INSERT OR IGNORE INTO store_id (row, id) VALUES (1, ?1)", [&id])?;
    // Another process may have written its id first.
    Ok(find()?.unwrap_or(id))
}

/// Waits for other processes in steps of equal length. SQLite's own back-off grows, so a second
/// writer beside a busy one would starve.
fn install_busy_handler(
    connection: &mut Connection,
    busy_wait: Duration,
) -> rusqlite::Result<Arc<AtomicBool>> {
    let (skip_busy_wait, mut end) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let skip_wait = skip_busy_wait.clone();
    connection.busy_handler(Some(move |tries| {
        if skip_wait.load(Ordering::Relaxed) {
            return false;
        }
        if tries == 0 {
            end = Instant::now() + busy_wait;
        }
        sleep(BUSY_RETRY_INTERVAL);
        Instant::now() < end
    }))?;
    Ok(skip_busy_wait)
}

/// Opens a further connection to a file that has its tables and its write-ahead log.
pub(super) fn open_secondary(path: &Path, busy_wait: Duration) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, open_flags())?;
    connection.busy_timeout(busy_wait)?;
    connection.pragma_update(None, "synchronous", "normal")?;
    enable_secure_delete(&connection)?;
    Ok(connection)
}

/// Makes the connection overwrite what it deletes (replies, a model's thinking, released
/// idempotency keys), so that this does not stay in the file until its space is needed. It is a
/// setting of the connection, not of the file.
fn enable_secure_delete(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "secure_delete", "on")
}

/// Opens a further connection that only reads.
pub(super) fn open_read_only(path: &Path, busy_wait: Duration) -> rusqlite::Result<Connection> {
    let connection = open_secondary(path, busy_wait)?;
    connection.pragma_update(None, "query_only", "on")?;
    Ok(connection)
}

/// Turns the write-ahead log on, and retries while another connection locks the file: several
/// processes may open a new file at once, and SQLite's own waiting leaves out this step.
fn enable_wal(connection: &Connection, busy_wait: Duration) -> rusqlite::Result<()> {
    let end = Instant::now() + busy_wait;
    loop {
        match connection.pragma_update(None, "journal_mode", "wal") {
            Err(why) if why.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                if Instant::now() >= end {
                    return Err(why);
                }
                sleep(WAL_RETRY_INTERVAL);
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::data_version::DATA_VERSION;
    use super::*;

    #[test]
    fn a_file_of_a_later_version_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let wait = Duration::from_secs(5);
        assert_eq!(create(&path, wait), Ok(true));
        let (first, _) = open(&path, wait).expect("a store");
        let version = |c: &Connection| {
            c.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0)).expect("one")
        };
        assert_eq!(version(&first), BASE_VERSION);
        first.pragma_update(None, "user_version", DATA_VERSION + 1).expect("written");
        let fault = open(&path, wait).expect_err("refused");
        assert!(fault.starts_with("a later version of tollgate has written it"), "{fault}");
        assert_eq!(version(&first), DATA_VERSION + 1);
    }

    #[test]
    fn what_was_deleted_stayed_in_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let wait = Duration::from_secs(5);
        assert_eq!(create(&path, wait), Ok(true));
        let (first, _) = open(&path, wait).expect("a store");
        let canary = "canary-of-a-customer";
        let body = canary.repeat(500);
        let keep = "INSERT INTO note (account, name, lives_until, body) VALUES ('a', ?1, 1, ?2)";
        for number in 0..50 {
            first.execute(keep, (number.to_string(), body.as_bytes())).expect("kept");
        }
        let copied = |c: &Connection| {
            c.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("copied");
        };
        let is_in_file = || {
            let bytes = std::fs::read(&path).expect("the file");
            bytes.windows(canary.len()).any(|part| part == canary.as_bytes())
        };
        copied(&first);
        assert!(is_in_file(), "it is kept as it is");
        let beside = open_secondary(&path, wait).expect("another connection");
        // Each connection deletes a part, since `secure_delete` is a setting of the connection.
        first.execute("DELETE FROM note WHERE name < '3'", []).expect("deleted");
        beside.execute("DELETE FROM note", []).expect("deleted");
        copied(&first);
        assert!(!is_in_file());
    }
}
