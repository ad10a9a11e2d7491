//! What an operator has set of accounts, which are deleted, and when API keys were last used, in
//! three tables.

use rusqlite::{Connection, OptionalExtension, params};

use super::write_txn::WriteTxn;
use super::{accounts, keys};
use crate::ledger::{
    AccountName, AccountSettings, BudgetOwner, KeyHash, Replaced, Replacement, Unavailable,
};

const SCHEMA: &str = "
-- What is set of an account: JSON. A missing row stands for an account of which nothing is set.
CREATE TABLE IF NOT EXISTS account_setting (
    account      INTEGER PRIMARY KEY REFERENCES account,
    settings     TEXT    NOT NULL,
    is_suspended INTEGER NOT NULL CHECK (is_suspended IN (0, 1))
) STRICT;

CREATE INDEX IF NOT EXISTS account_suspended ON account_setting (account) WHERE is_suspended = 1;

-- The accounts that are deleted, and when (unix seconds). Their books stay.
CREATE TABLE IF NOT EXISTS deleted_account (
    account INTEGER PRIMARY KEY REFERENCES account,
    at      INTEGER NOT NULL
) STRICT;

-- When a key was last used, in unix seconds. A missing row stands for a key that was not.
CREATE TABLE IF NOT EXISTS key_use (
    hash BLOB    NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Creates the tables in a file that has none of them.
pub(super) fn prepare_schema(c: &Connection) -> rusqlite::Result<()> {
    c.execute_batch(SCHEMA)
}

/// Replaces what an operator has set of an account. All keys of the account are moved to where a
/// version of the program that knows no settings does not find them. Settings that cannot be read
/// are not replaced: what they restrict is not known.
pub(super) fn set(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    settings: &Replacement<AccountSettings>,
) -> rusqlite::Result<Result<Replaced, Unavailable>> {
    let conn = txn.conn;
    let living = txn.account_row(name)?.filter(|row| row.deleted_at.is_none());
    let Some(account) = living.map(|row| row.id) else { return Ok(Ok(Replaced::Unknown)) };
    let Some(known) = read_row(conn, account)? else { return Ok(Err(unreadable(name))) };
    if let Some(replaced) = settings.compare(&known) {
        return Ok(Ok(replaced));
    }
    let settings = &settings.after;
    if *settings == AccountSettings::default() {
        let mut delete = conn.prepare_cached("DELETE FROM account_setting WHERE account = ?")?;
        delete.execute([account])?;
    } else {
        keys::raise_version(conn)?;
        let mut insert = conn.prepare_cached(
            "INSERT INTO account_setting (account, settings, is_suspended) VALUES (?, ?, ?)
             ON CONFLICT DO UPDATE
             SET settings = excluded.settings, is_suspended = excluded.is_suspended",
        )?;
        insert.execute(params![account, settings.to_json(), settings.suspended])?;
        keys::restrict(conn, account, BudgetOwner::Account)?;
    }
    keys::raise_revision(conn)?;
    Ok(Ok(Replaced::Done))
}

/// Returns what is set of an account; `None` if there is no such account.
pub(super) fn find(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
) -> rusqlite::Result<Result<Option<AccountSettings>, Unavailable>> {
    let Some(row) = txn.account_row(name)? else { return Ok(Ok(None)) };
    if row.deleted_at.is_some() {
        return Ok(Ok(Some(AccountSettings::of_deleted())));
    }
    let account = row.id;
    let settings = read_row(txn.conn, account)?;
    Ok(settings.map(Some).ok_or_else(|| unreadable(name)))
}

/// Reads what is set of an account; `None` if it cannot be read.
fn read_row(c: &Connection, account: i64) -> rusqlite::Result<Option<AccountSettings>> {
    let mut select = c.prepare_cached("SELECT settings FROM account_setting WHERE account = ?")?;
    let text = select.query_row([account], |row| row.get::<_, String>(0)).optional()?;
    Ok(keys::parse_settings(text.as_deref()))
}

fn unreadable(name: &AccountName) -> Unavailable {
    Unavailable(format!("the settings of account {name} are of a later version of tollgate"))
}

/// Writes in the place of the settings of an account that it was deleted, at this time (unix
/// seconds). It is suspended by that: what runs of it ends.
pub(super) fn write_deletion(c: &Connection, account: i64, at: i64) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT INTO account_setting (account, settings, is_suspended) VALUES (?, ?, 1)
         ON CONFLICT DO UPDATE SET settings = excluded.settings, is_suspended = 1",
    )?;
    insert.execute(params![account, AccountSettings::deletion_json(at)]).map(drop)
}

/// Takes an account out of the list of suspended accounts.
pub(super) fn unlist_suspended(c: &Connection, account: i64) -> rusqlite::Result<()> {
    let mut update =
        c.prepare_cached("UPDATE account_setting SET is_suspended = 0 WHERE account = ?")?;
    update.execute([account]).map(drop)
}

/// Returns the accounts that are suspended, in order.
pub(super) fn list_suspended(c: &Connection) -> rusqlite::Result<Vec<AccountName>> {
    // A cross join begins with the few accounts that are suspended, and not with all accounts.
    let mut select = c.prepare_cached(
        "SELECT name FROM account_setting CROSS JOIN account ON account.id = account_setting.account
         WHERE is_suspended = 1 ORDER BY name",
    )?;
    accounts::read_names(&mut select)
}

/// Notes when keys were last used, in unix seconds. A key that is unknown gets no row, and no time
/// is replaced by an earlier one.
pub(super) fn note_uses(c: &Connection, uses: &[(KeyHash, i64)]) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT INTO key_use (hash, at)
         SELECT ?1, ?2
         WHERE EXISTS (SELECT 1 FROM access_key WHERE hash = ?1)
            OR EXISTS (SELECT 1 FROM restricted_key WHERE hash = ?1)
         ON CONFLICT (hash) DO UPDATE SET at = excluded.at WHERE excluded.at > at",
    )?;
    for (hash, at) in uses {
        insert.execute(params![&hash.0[..], at])?;
    }
    Ok(())
}
