//! A shared store as a lender: its run gate says when it lends, and ends that a retry has
//! superseded are not charged.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::store::AllotmentStore;
use crate::ledger::prepaid::answer::LedgerAnswer;
use crate::ledger::prepaid::records::{AllotmentId, CallEnd};
use crate::ledger::prepaid::update::AllotmentUpdate;
use crate::ledger::{AccountName, Unavailable};
use crate::store::outbox::{AllotmentKey, SupersededCheck};
use crate::store::redis::{RedisStore, RunGate};

/// A shared store that lends money to gateways.
pub(in crate::store) struct SharedLender {
    store: Arc<RedisStore>,
    gate: Arc<RunGate>,
    superseded: SupersededCheck,
}

impl SharedLender {
    pub(in crate::store) fn new(
        store: Arc<RedisStore>,
        gate: Arc<RunGate>,
        superseded: SupersededCheck,
    ) -> SharedLender {
        SharedLender { store, gate, superseded }
    }

    /// Takes the charges out of ends that a retry has superseded. Those of a process that has ended
    /// may all be among them.
    async fn void_superseded(
        &self,
        account: &AccountName,
        update: &mut AllotmentUpdate,
    ) -> Result<(), Unavailable> {
        let is_own = update.step > 0;
        let checking = update.ends.iter_mut().map(async |end: &mut CallEnd| {
            if self.superseded.is_superseded(account, end, is_own).await? {
                end.charge = None;
            }
            Ok::<(), Unavailable>(())
        });
        try_join_all(checking).await.map(drop)
    }
}

impl AllotmentStore for SharedLender {
    async fn update_allotment(
        &self,
        account: &AccountName,
        mut update: AllotmentUpdate,
    ) -> Result<Option<LedgerAnswer>, Unavailable> {
        self.void_superseded(account, &mut update).await?;
        self.store.update_allotment(account, &update).await
    }

    /// Waits for nothing: what the server loses is told again.
    async fn sync(&self) -> Result<(), Unavailable> {
        self.gate.check_open()
    }

    async fn list_allotments(
        &self,
        run: &str,
    ) -> Result<Vec<(AccountName, AllotmentId, i64)>, Unavailable> {
        self.store.list_allotments(run).await
    }

    async fn last_seqs(&self, allotments: &[AllotmentKey]) -> Result<Vec<u64>, Unavailable> {
        self.store.read_last_seqs(allotments).await
    }

    fn store_id(&self) -> Option<String> {
        self.gate.store_id().map(|id| id.as_ref().to_owned())
    }

    fn run_id(&self) -> Option<Arc<str>> {
        self.gate.run_id()
    }

    fn may_lend(&self) -> bool {
        self.gate.check_open().is_ok()
    }
}
