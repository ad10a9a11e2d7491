//! What a store does for the allotments of a gateway.

use std::sync::Arc;

use crate::ledger::prepaid::answer::LedgerAnswer;
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::prepaid::update::AllotmentUpdate;
use crate::ledger::{AccountName, Unavailable};
use crate::store::outbox::AllotmentKey;
use crate::store::sqlite::SqliteStore;

/// A store that lends money to gateways.
pub(in crate::store) trait AllotmentStore: Send + Sync {
    /// Does what an update of an allotment asks; `None` if there is no such account.
    fn update_allotment(
        &self,
        account: &AccountName,
        update: AllotmentUpdate,
    ) -> impl Future<Output = Result<Option<LedgerAnswer>, Unavailable>> + Send;

    /// Waits until all that was answered before is as durable as the store makes it.
    ///
    /// # Errors
    /// The store does not answer, or may lack something.
    fn sync(&self) -> impl Future<Output = Result<(), Unavailable>> + Send;

    /// Returns the allotments that hold something, or may, whose ids contain `run`, with their
    /// accounts and when they were lent first (unix ms).
    fn list_allotments(
        &self,
        run: &str,
    ) -> impl Future<Output = Result<Vec<(AccountName, AllotmentId, i64)>, Unavailable>> + Send;

    /// Returns for each allotment a number up to which the store has its ends.
    fn last_seqs(
        &self,
        allotments: &[AllotmentKey],
    ) -> impl Future<Output = Result<Vec<u64>, Unavailable>> + Send;

    /// Returns the id of the store; `None` until it is known.
    fn store_id(&self) -> Option<String>;

    /// Returns the id of the run of the store, which may lack something if it is another one than
    /// before; `None` while it is not known.
    fn run_id(&self) -> Option<Arc<str>>;

    /// Whether the store lends now. If not, nothing is to be asked of it.
    fn may_lend(&self) -> bool;
}

impl AllotmentStore for Arc<SqliteStore> {
    async fn update_allotment(
        &self,
        account: &AccountName,
        update: AllotmentUpdate,
    ) -> Result<Option<LedgerAnswer>, Unavailable> {
        SqliteStore::update_allotment(self, account, update).await
    }

    async fn sync(&self) -> Result<(), Unavailable> {
        SqliteStore::sync(self).await
    }

    async fn list_allotments(
        &self,
        run: &str,
    ) -> Result<Vec<(AccountName, AllotmentId, i64)>, Unavailable> {
        SqliteStore::list_allotments(self, run).await
    }

    /// Returns 0 for each: the log of ends has little more than what the file lacks.
    async fn last_seqs(&self, allotments: &[AllotmentKey]) -> Result<Vec<u64>, Unavailable> {
        Ok(vec![0; allotments.len()])
    }

    fn store_id(&self) -> Option<String> {
        Some(self.store_id.clone())
    }

    fn run_id(&self) -> Option<Arc<str>> {
        Some(self.file_identity())
    }

    fn may_lend(&self) -> bool {
        true
    }
}
