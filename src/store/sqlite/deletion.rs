//! Deleted accounts in a table, and the erasure of what they had beside their books.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::accounts;
use super::embedded_store::SqliteStore;
use super::write_txn::WriteTxn;
use super::writer::Priority;
use super::{account_settings, data_version, keys, lots, session_rows};
use crate::clock::unix_ms;
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::{
    AccountEraser, AccountName, AccountRemains, BudgetOwner, DeletionMark, Ledger as _, Unavailable,
};
use crate::sessions::Principal;
use crate::webhooks;

/// One step deletes at most this many rows that may be large, so that no call waits long for the
/// writer.
const STEP_ROWS: u32 = 64;

/// Deletes small rows, all at once. The parameter is the row id of the account.
const SMALL: [&str; 6] = [
    "DELETE FROM key_use WHERE hash IN (
         SELECT hash FROM access_key WHERE account = ?1
         UNION ALL SELECT hash FROM restricted_key WHERE account = ?1)",
    "DELETE FROM access_key WHERE account = ?1",
    "DELETE FROM restricted_key WHERE account = ?1",
    "DELETE FROM budget WHERE account = ?1",
    "DELETE FROM budget_window WHERE account = ?1",
    "DELETE FROM rate_buckets WHERE account = ?1",
];

/// Deletes rows that may be large, a few at a time. The parameters are the name of the account and
/// the most rows.
const LARGE: [&str; 5] = [
    "DELETE FROM note WHERE rowid IN (SELECT rowid FROM note WHERE account = ?1 LIMIT ?2)",
    "DELETE FROM reply WHERE row IN (SELECT row FROM reply WHERE account = ?1 LIMIT ?2)",
    "DELETE FROM repeat WHERE row IN (SELECT row FROM repeat WHERE account = ?1 LIMIT ?2)",
    "DELETE FROM video_body WHERE video IN (
         SELECT video FROM video_body JOIN video ON video.row = video_body.video
         WHERE account = (SELECT id FROM account WHERE name = ?1) LIMIT ?2)",
    "DELETE FROM video WHERE row IN (
         SELECT row FROM video WHERE account = (SELECT id FROM account WHERE name = ?1) LIMIT ?2)",
];

#[async_trait]
impl AccountEraser for SqliteStore {
    async fn mark_deleted(&self, account: &AccountName) -> Result<DeletionMark, Unavailable> {
        let account = account.clone();
        self.scheduler.run(Priority::NowDurable, move |txn| mark(txn, &account)).await
    }

    async fn list_deleted(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.scheduler.run(Priority::Now, |txn| list(txn.conn)).await
    }

    async fn erase_account(&self, account: &AccountName) -> Result<(), Unavailable> {
        if self.account_deletion(account).await?.is_none() {
            return Ok(());
        }
        webhooks::erase::erase_account(self, account).await?;
        for sql in LARGE {
            loop {
                let name = account.clone();
                let step = move |txn: &mut WriteTxn<'_>| erase_some(txn, &name, sql);
                if self.scheduler.run(Priority::NowDurable, step).await? == 0 {
                    break;
                }
            }
        }
        let name = account.clone();
        self.scheduler.run(Priority::NowDurable, move |txn| erase_rest(txn, &name)).await
    }
}

/// Marks an account as deleted, if it has nothing left.
fn mark(txn: &mut WriteTxn<'_>, name: &AccountName) -> rusqlite::Result<DeletionMark> {
    let conn = txn.conn;
    let Some(row) = txn.account_row(name)? else { return Ok(DeletionMark::NoAccount) };
    let account = row.id;
    if let Some(at) = row.deleted_at {
        return Ok(DeletionMark::AlreadyDeleted(at));
    }
    lots::expire_credit(txn, name)?;
    let remains = read_remains(txn, name)?;
    if !remains.is_empty() {
        return Ok(DeletionMark::NotEmpty(remains));
    }
    data_version::raise(conn, data_version::DELETION_VERSION)?;
    let at = unix_ms() / 1_000;
    let mut insert =
        conn.prepare_cached("INSERT INTO deleted_account (account, at) VALUES (?, ?)")?;
    insert.execute(params![account, at])?;
    account_settings::write_deletion(conn, account, at)?;
    keys::restrict(conn, account, BudgetOwner::Account)?;
    keys::raise_revision(conn)?;
    txn.note_deleted(name, at);
    Ok(DeletionMark::Deleted(at))
}

/// Returns what an account has, which must exist.
fn read_remains(txn: &mut WriteTxn<'_>, name: &AccountName) -> rusqlite::Result<AccountRemains> {
    let conn = txn.conn;
    let Some(row) = txn.account_row(name)? else { return Ok(AccountRemains::default()) };
    let (account, balances) = (row.id, row.balances);
    let mut count = conn.prepare_cached(
        "SELECT (SELECT count(*) FROM open_hold
                 WHERE account = ?1 AND substr(id, 1, length(?2)) <> ?2)
              + (SELECT count(*) FROM hold WHERE account = ?1 AND state = 0),
                (SELECT count(*) FROM video WHERE account = ?1 AND status < 2)",
    )?;
    let counts = count.query_row(params![account, AllotmentId::PREFIX], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    })?;
    Ok(AccountRemains {
        available: balances.available,
        held: balances.held,
        open_holds: counts.0.unsigned_abs(),
        open_jobs: counts.1.unsigned_abs(),
    })
}

/// Erases a few of the rows that a statement of [`LARGE`] deletes. Returns how many.
fn erase_some(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    sql: &'static str,
) -> rusqlite::Result<usize> {
    if txn.account_row(name)?.is_none_or(|row| row.deleted_at.is_none()) {
        return Ok(0);
    }
    txn.conn.prepare_cached(sql)?.execute(params![name.as_str(), STEP_ROWS])
}

/// Erases the small rows. The account need not be listed as suspended any more: its keys are gone.
fn erase_rest(txn: &mut WriteTxn<'_>, name: &AccountName) -> rusqlite::Result<()> {
    let conn = txn.conn;
    let Some(row) = txn.account_row(name)? else { return Ok(()) };
    let account = row.id;
    if row.deleted_at.is_none() {
        return Ok(());
    }
    for sql in SMALL {
        conn.prepare_cached(sql)?.execute([account])?;
    }
    let mut kept = conn.prepare_cached("DELETE FROM replies WHERE account = ? AND bytes = 0")?;
    kept.execute([name.as_str()])?;
    session_rows::end_all(conn, &Principal::Account(name.clone()))?;
    account_settings::unlist_suspended(conn, account)?;
    keys::raise_revision(conn)?;
    txn.forget_budgets(name);
    txn.forget_rates(name);
    Ok(())
}

/// Returns the accounts that are deleted, in order.
fn list(c: &Connection) -> rusqlite::Result<Vec<AccountName>> {
    let mut select = c.prepare_cached(
        "SELECT name FROM deleted_account JOIN account ON account.id = deleted_account.account
         ORDER BY name",
    )?;
    accounts::read_names(&mut select)
}
