//! The queue of video jobs, with an outbox before it.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Mutex;

use super::log::SettlementLog;
use super::orders::JobOrders;
use super::shelf::SegmentDir;
use crate::jobs::{
    ClaimUpdate, Job, JobClaim, JobList, JobPage, JobQueue, JobStage, JobStatus, NewJob,
    PlaceResult,
};
use crate::ledger::{AccountName, Unavailable};
use crate::store::redis::RedisStore;

/// See the module.
pub(in crate::store) struct OutboxQueue {
    store: Arc<RedisStore>,
    log: Arc<SettlementLog>,
    /// When the last wait for the server's disk began that came to a good end.
    persisted: Mutex<Option<Instant>>,
}

impl OutboxQueue {
    pub(in crate::store) fn new(store: Arc<RedisStore>, log: Arc<SettlementLog>) -> OutboxQueue {
        OutboxQueue { store, log, persisted: Mutex::default() }
    }

    /// Writes something down.
    async fn write(
        &self,
        job: &str,
        write: impl FnOnce(&JobOrders, &SettlementLog) -> std::io::Result<()> + Send + 'static,
    ) {
        let log = self.log.clone();
        let writing = tokio::task::spawn_blocking(move || write(&log.orders, &log));
        let written = writing.await.unwrap_or_else(|why| Err(why.into()));
        if let Err(why) = written {
            // The server has it, or is told in a moment; nobody new is let in.
            log::error!(
                event = "outbox_write_failed", job, why:% = why;
                "a video job is not written down"
            );
            self.log.is_lost(&why);
        }
    }
}

fn folder(log: &SettlementLog) -> impl FnOnce() -> Arc<SegmentDir> {
    || log.folder()
}

#[async_trait]
impl JobQueue for OutboxQueue {
    /// Only what was placed is written down: of an order that was refused nothing may come back.
    async fn place(&self, order: NewJob) -> Result<PlaceResult, Unavailable> {
        let placed = self.store.place(order.clone()).await?;
        if placed == PlaceResult::New {
            let id = order.job.id.clone();
            self.write(&id, move |orders, log| {
                log.sync_soon(&orders.placed(&order, folder(log))?);
                Ok(())
            })
            .await;
        }
        Ok(placed)
    }

    async fn find(&self, account: &AccountName, id: &str) -> Result<Option<Job>, Unavailable> {
        self.store.find(account, id).await
    }

    async fn list(
        &self,
        account: &AccountName,
        page: JobPage,
    ) -> Result<Option<JobList>, Unavailable> {
        self.store.list(account, page).await
    }

    async fn delete(&self, account: &AccountName, id: &str) -> Result<Option<Job>, Unavailable> {
        let deleted = self.store.delete(account, id).await?;
        if deleted.is_some() {
            let (account, job) = (account.clone(), id.to_owned());
            let write = move |orders: &JobOrders, log: &SettlementLog| -> std::io::Result<()> {
                log.sync_soon(&orders.deleted((&account, &job), folder(log))?);
                Ok(())
            };
            self.write(id, write).await;
        }
        Ok(deleted)
    }

    async fn claim(&self, lease_ms: u64, limit: usize) -> Result<Vec<JobClaim>, Unavailable> {
        self.store.claim(lease_ms, limit).await
    }

    async fn renew(&self, claim: &JobClaim, lease_ms: u64) -> Result<bool, Unavailable> {
        self.store.renew(claim, lease_ms).await
    }

    async fn body(&self, claim: &JobClaim) -> Result<Option<Bytes>, Unavailable> {
        self.store.body(claim).await
    }

    /// That a vendor has a job nobody else can tell, so it is written down first.
    async fn save(&self, claim: &mut JobClaim, next: ClaimUpdate) -> Result<bool, Unavailable> {
        let is_taken = next.forget_body && matches!(claim.job.stage, JobStage::Running(_));
        if is_taken {
            let (taken, id) = (claim.clone(), claim.job.id.clone());
            self.write(&id, move |orders, log| orders.taken(&taken, next, folder(log))).await;
        }
        let saved = self.store.save(claim, next).await?;
        if is_taken {
            self.log.orders.said(&claim.job.id);
        }
        Ok(saved)
    }

    async fn remove(&self, claim: &JobClaim) -> Result<bool, Unavailable> {
        self.store.remove(claim).await
    }

    /// Many wait together: a wait that began after somebody asked serves that one too.
    async fn persist(&self) -> Result<(), Unavailable> {
        let asked = Instant::now();
        let mut persisted = self.persisted.lock().await;
        if persisted.is_some_and(|began| began >= asked) {
            return Ok(());
        }
        let began = Instant::now();
        self.store.persist().await?;
        *persisted = Some(began);
        Ok(())
    }

    async fn counts(&self) -> Result<Vec<(JobStatus, u64)>, Unavailable> {
        self.store.counts().await
    }

    async fn secret(&self, candidate: [u8; 32]) -> Result<[u8; 32], Unavailable> {
        self.store.secret(candidate).await
    }
}
