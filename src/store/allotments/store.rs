//! What a store does for the allotments of a gateway.

use std::sync::Arc;

use crate::ledger::prepaid::answer::LedgerAnswer;
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::prepaid::update::AllotmentUpdate;
use crate::ledger::{AccountName, Unavailable};
use crate::store::sqlite::SqliteStore;

/// A store that lends money to gateways.
pub(in crate::store) trait AllotmentStore: Send + Sync {
    /// Does what an update of an allotment asks; `None` if there is no such account.
    fn update_allotment(
        &self,
        account: &AccountName,
        update: AllotmentUpdate,
    ) -> impl Future<Output = Result<Option<LedgerAnswer>, Unavailable>> + Send;

    /// Waits until all that was answered before is durable.
    fn sync(&self) -> impl Future<Output = Result<(), Unavailable>> + Send;

    /// Returns the allotments that hold something, or may, whose ids contain `run`, with their
    /// accounts and when they were lent first (unix ms).
    fn list_allotments(
        &self,
        run: &str,
    ) -> impl Future<Output = Result<Vec<(AccountName, AllotmentId, i64)>, Unavailable>> + Send;

    /// Returns the id of the store.
    fn store_id(&self) -> &str;
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

    fn store_id(&self) -> &str {
        &self.store_id
    }
}
