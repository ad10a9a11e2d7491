//! Sealed statements, in a table whose rows are never changed.

use async_trait::async_trait;

use super::embedded_store::SqliteStore;
use super::statement_rows;
use super::writer::Priority;
use crate::clock::unix_ms;
use crate::ledger::{AccountName, Unavailable};
use crate::statement::{SealedStatement, StatementMonth, StatementStore};

#[async_trait]
impl StatementStore for SqliteStore {
    async fn statement_clock(&self) -> Result<i64, Unavailable> {
        Ok(unix_ms())
    }

    async fn list_statements(
        &self,
        account: &AccountName,
    ) -> Result<Vec<SealedStatement>, Unavailable> {
        let account = account.clone();
        self.usage_reader.query(move |c| statement_rows::list(c, &account)).await
    }

    async fn seal_statement(
        &self,
        account: &AccountName,
        month: StatementMonth,
        body: &str,
        sha256: &str,
    ) -> Result<SealedStatement, Unavailable> {
        let (name, month) = (account.clone(), month.to_string());
        let (body, sha256) = (body.to_owned(), sha256.to_owned());
        // A failure of this job is no failure of the transaction, which has operations of other
        // callers as well, unless SQLite has ended the transaction.
        let sealing =
            self.scheduler.run(Priority::NowDurable, move |txn| {
                match statement_rows::seal(txn.conn, &name, &month, &body, &sha256) {
                    Err(why) if !txn.conn.is_autocommit() => Ok(Err(Unavailable(why.to_string()))),
                    done => done.map(Ok),
                }
            });
        let sealed = sealing.await??;
        sealed.ok_or_else(|| Unavailable(format!("there is no account '{account}'")))
    }
}
