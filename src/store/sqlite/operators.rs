//! Operators, the record of their changes, and the requests that they have named, in three tables.

use async_trait::async_trait;

use super::embedded_store::SqliteStore;
use super::operator_rows::{self, NewToken};
use super::writer::Priority;
use crate::ledger::Unavailable;
use crate::operators::bounds::{self, AUDIT_PAGE_MAX};
use crate::operators::{NamedRequest, OperatorChange, OperatorRecord, OperatorStore, TokenHash};

/// A sweep deletes expired requests in at most this many steps.
const PURGE_STEPS_MAX: u32 = 100;

impl SqliteStore {
    /// Deletes requests of operators that have expired. The steps are small, so that no call waits
    /// long for the writer.
    pub(super) async fn purge_operator_requests(&self) -> Result<(), Unavailable> {
        for _ in 0..PURGE_STEPS_MAX {
            if self
                .scheduler
                .run(Priority::Now, |txn| operator_rows::purge_expired(txn.conn))
                .await?
                == 0
            {
                break;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl OperatorStore for SqliteStore {
    async fn add_operator(
        &self,
        hash: TokenHash,
        record: OperatorRecord,
    ) -> Result<OperatorChange, Unavailable> {
        bounds::check_operator(&record)?;
        self.write_alone(move |c| operator_rows::add(c, hash, &record)).await?
    }

    async fn find_operator(&self, hash: TokenHash) -> Result<Option<OperatorRecord>, Unavailable> {
        self.scheduler.run(Priority::Now, move |txn| operator_rows::find(txn.conn, hash)).await
    }

    async fn list_operators(&self) -> Result<Vec<OperatorRecord>, Unavailable> {
        self.reader.query(operator_rows::list).await
    }

    async fn replace_token(
        &self,
        name: &str,
        hash: TokenHash,
        prefix: &str,
        expires_at: Option<i64>,
    ) -> Result<OperatorChange, Unavailable> {
        bounds::check_token_prefix(prefix)?;
        let token = NewToken { hash, prefix: prefix.to_owned(), expires_at };
        let name = name.to_owned();
        self.write_alone(move |c| operator_rows::replace_token(c, &name, &token)).await?
    }

    async fn remove_operator(&self, name: &str) -> Result<OperatorChange, Unavailable> {
        let name = name.to_owned();
        self.write_alone(move |c| operator_rows::remove(c, &name)).await
    }

    async fn append_audit(&self, line: &str) -> Result<(), Unavailable> {
        bounds::check_audit_line(line)?;
        let line = line.to_owned();
        self.write_alone(move |c| operator_rows::append_audit(c, &line)).await
    }

    async fn read_audit(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<(u64, String)>, Unavailable> {
        let before = before.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
        let limit = limit.min(AUDIT_PAGE_MAX);
        self.reader.query(move |c| operator_rows::read_audit(c, before, limit)).await
    }

    async fn claim_request(
        &self,
        owner: &str,
        name: &str,
        content: [u8; 32],
    ) -> Result<NamedRequest, Unavailable> {
        bounds::check_request(owner, name)?;
        let (owner, name) = (owner.to_owned(), name.to_owned());
        self.write_alone(move |c| operator_rows::claim_request(c, &owner, &name, content)).await
    }

    async fn answer_request(
        &self,
        owner: &str,
        name: &str,
        reply: &str,
    ) -> Result<(), Unavailable> {
        bounds::check_request(owner, name)?;
        bounds::check_request_reply(reply)?;
        let (owner, name, reply) = (owner.to_owned(), name.to_owned(), reply.to_owned());
        self.write_alone(move |c| operator_rows::answer_request(c, &owner, &name, &reply)).await
    }

    async fn release_request(&self, owner: &str, name: &str) -> Result<(), Unavailable> {
        bounds::check_request(owner, name)?;
        let (owner, name) = (owner.to_owned(), name.to_owned());
        self.write_alone(move |c| operator_rows::release_request(c, &owner, &name)).await
    }
}
