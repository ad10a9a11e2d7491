//! The queue of video jobs with an outbox: what must not be lost is recorded on this machine's disk
//! as well.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Mutex;

use super::job_orders::JobOrders;
use super::segment_dir::SegmentDir;
use super::settlement_log::SettlementLog;
use crate::jobs::{
    ClaimUpdate, Job, JobClaim, JobCursor, JobFilter, JobList, JobListing, JobPage, JobQueue,
    JobStage, JobStatus, NewJob, PlaceResult,
};
use crate::ledger::{AccountName, Unavailable};
use crate::store::redis::RedisStore;

/// The job queue of a Redis server, with the outbox in which jobs are recorded.
pub(in crate::store) struct OutboxQueue {
    store: Arc<RedisStore>,
    log: Arc<SettlementLog>,
    /// When the last successful wait for the server's disk began; `None` before the first.
    last_persist: Mutex<Option<Instant>>,
}

impl OutboxQueue {
    pub(in crate::store) fn new(store: Arc<RedisStore>, log: Arc<SettlementLog>) -> OutboxQueue {
        OutboxQueue { store, log, last_persist: Mutex::default() }
    }

    /// Writes a record of a job to the outbox, on a thread that may block. A failure marks the
    /// outbox as not writable.
    async fn write_record(
        &self,
        job: &str,
        write: impl FnOnce(&JobOrders, &SettlementLog) -> std::io::Result<()> + Send + 'static,
    ) {
        let log = self.log.clone();
        let writing = tokio::task::spawn_blocking(move || write(&log.orders, &log));
        let written = writing.await.unwrap_or_else(|why| Err(why.into()));
        if let Err(why) = written {
            // The operation goes on, since the server has the job or gets it next. New calls are
            // refused.
            log::error!(
                event = "outbox_write_failed", job, error:% = why;
                "video job not written to the outbox"
            );
            self.log.record_write_failure(&why);
        }
    }
}

fn current_dir(log: &SettlementLog) -> impl FnOnce() -> Arc<SegmentDir> {
    || log.segment_dir()
}

#[async_trait]
impl JobQueue for OutboxQueue {
    fn is_embedded(&self) -> bool {
        self.store.is_embedded()
    }

    /// Records a job only after the server has placed it: a replay must not restore an order that
    /// was refused.
    async fn place_job(&self, order: NewJob) -> Result<PlaceResult, Unavailable> {
        let placed = self.store.place_job(order.clone()).await?;
        if matches!(placed, PlaceResult::New(_)) {
            let id = order.job.id.clone();
            self.write_record(&id, move |orders, log| {
                log.request_fsync(&orders.record_placed(&order, current_dir(log))?);
                Ok(())
            })
            .await;
        }
        Ok(placed)
    }

    async fn find_job(&self, account: &AccountName, id: &str) -> Result<Option<Job>, Unavailable> {
        self.store.find_job(account, id).await
    }

    async fn list_jobs(
        &self,
        account: &AccountName,
        page: JobPage,
    ) -> Result<Option<JobList>, Unavailable> {
        self.store.list_jobs(account, page).await
    }

    async fn list_all_jobs(
        &self,
        filter: &JobFilter,
        after: Option<&JobCursor>,
        limit: usize,
    ) -> Result<JobListing, Unavailable> {
        self.store.list_all_jobs(filter, after, limit).await
    }

    async fn delete_job(
        &self,
        account: &AccountName,
        id: &str,
    ) -> Result<Option<Job>, Unavailable> {
        let deleted = self.store.delete_job(account, id).await?;
        if deleted.is_some() {
            let (account, job) = (account.clone(), id.to_owned());
            let write = move |orders: &JobOrders, log: &SettlementLog| -> std::io::Result<()> {
                log.request_fsync(&orders.record_deleted(&account, &job, current_dir(log))?);
                Ok(())
            };
            self.write_record(id, write).await;
        }
        Ok(deleted)
    }

    async fn claim_due(&self, lease_ms: u64, limit: usize) -> Result<Vec<JobClaim>, Unavailable> {
        self.store.claim_due(lease_ms, limit).await
    }

    async fn renew_claim(&self, claim: &JobClaim, lease_ms: u64) -> Result<bool, Unavailable> {
        self.store.renew_claim(claim, lease_ms).await
    }

    async fn read_body(&self, claim: &JobClaim) -> Result<Option<Bytes>, Unavailable> {
        self.store.read_body(claim).await
    }

    /// Records first that a vendor has accepted the job, since this process is the only one that
    /// has this information.
    async fn save_claim(
        &self,
        claim: &mut JobClaim,
        update: ClaimUpdate,
    ) -> Result<bool, Unavailable> {
        let is_taken = update.forget_body && matches!(claim.job.stage, JobStage::Running(_));
        if is_taken {
            let (taken, id) = (claim.clone(), claim.job.id.clone());
            self.write_record(&id, move |orders, log| {
                orders.record_accepted(&taken, update, current_dir(log))
            })
            .await;
        }
        let saved = self.store.save_claim(claim, update).await?;
        if is_taken {
            self.log.orders.mark_saved(&claim.job.id);
        }
        Ok(saved)
    }

    async fn remove_job(&self, claim: &JobClaim) -> Result<bool, Unavailable> {
        self.store.remove_job(claim).await
    }

    /// Waits are shared: a wait that began after a caller asked serves that caller too.
    async fn await_durable(&self) -> Result<(), Unavailable> {
        let called_at = Instant::now();
        let mut persisted = self.last_persist.lock().await;
        if persisted.is_some_and(|began| began >= called_at) {
            return Ok(());
        }
        let began = Instant::now();
        self.store.persist().await?;
        *persisted = Some(began);
        Ok(())
    }

    async fn count_by_status(&self) -> Result<Vec<(JobStatus, u64)>, Unavailable> {
        self.store.count_by_status().await
    }

    async fn get_or_set_secret(&self, candidate: [u8; 32]) -> Result<[u8; 32], Unavailable> {
        self.store.get_or_set_secret(candidate).await
    }
}
