//! Maintenance of a store while a process serves requests: it renews leases, probes the store, and
//! restores what a shared store may have lost.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::allotments::{AllotmentUpkeep, SharedLender};
use super::open_store::OpenStore;
use super::outbox::Outbox;
use super::redis::{RedisFleet, RedisStore, RunGate};
use super::sqlite::SqliteStore;
use crate::clock::monotonic_ms;
use crate::idempotency::{FirstAttempts, ReplyStore};
use crate::ledger::lease::{LeaseEntry, LeasedItem};
use crate::ledger::{Leases, Ledger, Operation, Unavailable};
use crate::metrics::METRICS;
use crate::task_group::run_group;

mod embedded;
mod embedded_fleet;
mod fleet_errors;
mod identity;
mod lease_batches;
mod outbox_upkeep;
mod shared;
mod uptime;

use embedded::EmbeddedMaintenance;
pub(super) use embedded_fleet::EmbeddedFleet;
use lease_batches::{LEASES_BATCH, duration_ms};
use shared::SharedMaintenance;
use uptime::Uptime;

/// First attempts that have expired are forgotten this often.
const PURGE_INTERVAL: Duration = Duration::from_secs(5);
/// After a failure, all leases are renewed again after this time.
const RENEW_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The background task that maintains a store, with what it has found out about the store.
pub struct Maintenance {
    ledger: Arc<dyn Ledger>,
    reply_store: Arc<dyn ReplyStore>,
    leases: Leases,
    attempts: FirstAttempts,
    lease: Duration,
    uptime: Uptime,
    /// When all leases were last renewed.
    last_renewed: Mutex<Option<Instant>>,
    kind: MaintenanceKind,
}

/// The part of the maintenance that depends on the kind of the store.
enum MaintenanceKind {
    Embedded(EmbeddedMaintenance),
    Shared(SharedMaintenance),
}

impl Maintenance {
    pub(super) fn embedded(
        outbox: Outbox<SqliteStore>,
        allotments: AllotmentUpkeep<Arc<SqliteStore>>,
        store: &OpenStore,
        leases: Leases,
        lease: Duration,
        fleet: Arc<EmbeddedFleet>,
    ) -> Maintenance {
        let attempts = fleet.attempts.clone();
        let replies = store.reply_store.clone();
        let embedded = EmbeddedMaintenance::new(outbox, replies, fleet, allotments);
        Maintenance::new(MaintenanceKind::Embedded(embedded), store, leases, attempts, lease)
    }

    pub(super) fn shared(
        outbox: Outbox<RedisStore>,
        allotments: AllotmentUpkeep<SharedLender>,
        run_gate: Arc<RunGate>,
        store: &OpenStore,
        leases: Leases,
        lease: Duration,
        fleet: Arc<RedisFleet>,
    ) -> Maintenance {
        let (reply_store, attempts) = (store.reply_store.clone(), fleet.attempts.clone());
        let shared = SharedMaintenance::new(
            outbox,
            allotments,
            run_gate,
            leases.clone(),
            reply_store,
            lease,
            fleet,
        );
        Maintenance::new(MaintenanceKind::Shared(shared), store, leases, attempts, lease)
    }

    fn new(
        kind: MaintenanceKind,
        store: &OpenStore,
        leases: Leases,
        attempts: FirstAttempts,
        lease: Duration,
    ) -> Maintenance {
        let (ledger, reply_store) = (store.ledger.clone(), store.reply_store.clone());
        let (uptime, last_renewed) = (Uptime::default(), Mutex::default());
        Maintenance { ledger, reply_store, leases, attempts, lease, uptime, last_renewed, kind }
    }

    /// Maintains the store. It never returns; the maintenance stops when the future is dropped.
    pub async fn run(&self) {
        match &self.kind {
            MaintenanceKind::Embedded(embedded) => {
                let own = [self.renew_leases().boxed(), self.purge_attempts().boxed()];
                run_group(embedded.tasks(&self.uptime).into_iter().chain(own)).await;
            }
            MaintenanceKind::Shared(shared) => {
                run_group([
                    shared.watch_server(&self.uptime).boxed(),
                    shared.maintain_outbox().boxed(),
                    shared.poll_fleet().boxed(),
                    shared.run_allotments().boxed(),
                    self.renew_leases().boxed(),
                    self.purge_attempts().boxed(),
                ])
                .await;
            }
        }
    }

    /// Whether holds with an expired lease may be swept: only after the store was reachable for a
    /// whole lease, so that every owner could renew or settle its holds.
    #[must_use]
    pub(crate) fn may_sweep(&self) -> bool {
        let is_settled = match &self.kind {
            MaintenanceKind::Embedded(embedded) => embedded.is_stable_for(self.lease),
            MaintenanceKind::Shared(shared) => shared.is_stable_for(self.lease),
        };
        // A process that was suspended has to renew its own leases before it may sweep.
        let renewed = *self.last_renewed.lock().unwrap_or_else(PoisonError::into_inner);
        let has_renewed = renewed.is_some_and(|renewed| renewed.elapsed() < self.lease / 2);
        is_settled && has_renewed && self.uptime.is_at_least(self.lease)
    }

    /// Checks whether paid calls can be admitted: a shared store must be recovered first.
    ///
    /// # Errors
    /// [`Unavailable`] with the reason why they cannot.
    pub(crate) fn check_open(&self) -> Result<(), Unavailable> {
        match &self.kind {
            MaintenanceKind::Embedded(_) => Ok(()),
            MaintenanceKind::Shared(shared) => shared.check_open(),
        }
    }

    /// Checks whether the store answers and paid calls can be admitted, with all that they have
    /// later. Before an embedded store was probed once, this process neither keeps their first
    /// attempts nor makes their holds in memory; it serves them all the same.
    ///
    /// # Errors
    /// [`Unavailable`] with the reason why not.
    pub(crate) async fn check_ready(&self) -> Result<(), Unavailable> {
        self.ledger.ping().await?;
        match &self.kind {
            MaintenanceKind::Embedded(embedded) if !embedded.has_probed() => {
                Err(Unavailable("the process starts".to_owned()))
            }
            MaintenanceKind::Embedded(_) | MaintenanceKind::Shared(_) => Ok(()),
        }
    }

    /// Whether the outbox can be written, so that the end of a hold is safe on this machine before
    /// the store has acknowledged it.
    #[must_use]
    pub(crate) fn is_outbox_writable(&self) -> bool {
        match &self.kind {
            MaintenanceKind::Embedded(embedded) => embedded.is_outbox_writable(),
            MaintenanceKind::Shared(shared) => shared.is_outbox_writable(),
        }
    }

    /// Writes the first attempts of calls to the store, and keeps new ones there from now on: other
    /// processes will be asked for them.
    ///
    /// # Errors
    /// The store does not answer. If this process then ends, retries of what it served are told
    /// that their reply is lost.
    pub(crate) async fn share_attempts(&self) -> Result<(), Unavailable> {
        match &self.kind {
            MaintenanceKind::Embedded(embedded) => embedded.leave().await,
            MaintenanceKind::Shared(shared) => shared.leave().await,
        }
    }

    /// Tells the store what this process knows of calls that have ended, and gives back what it has
    /// borrowed, before the process exits.
    pub(crate) async fn finish(&self) {
        match &self.kind {
            MaintenanceKind::Embedded(embedded) => embedded.finish().await,
            MaintenanceKind::Shared(shared) => shared.finish().await,
        }
    }

    /// Writes what the outbox still has in memory, before the process exits.
    pub fn flush(&self) {
        match &self.kind {
            MaintenanceKind::Embedded(embedded) => embedded.flush(),
            MaintenanceKind::Shared(shared) => shared.flush(),
        }
    }

    /// Forgets first attempts that have expired.
    async fn purge_attempts(&self) {
        loop {
            sleep(PURGE_INTERVAL).await;
            self.attempts.purge(monotonic_ms());
            let bytes = i64::try_from(self.attempts.bytes()).unwrap_or(i64::MAX);
            METRICS.kept_bytes.with_label_values(&["memory"]).set(bytes);
        }
    }

    /// Renews all leases of this process, four times in each lease.
    async fn renew_leases(&self) {
        let every = self.lease / 4;
        let mut wait = every;
        loop {
            sleep(wait).await;
            wait = match self.renew_all().await {
                Ok(()) => every,
                Err(why) => {
                    log::warn!(
                        event = "lease_renewal_failed", error:% = why;
                        "lease renewal failed"
                    );
                    RENEW_RETRY_INTERVAL.min(every)
                }
            };
        }
    }

    /// Renews all leases, those of holds before those of idempotency keys. A lease that cannot be
    /// renewed does not stop the others; its error is returned at the end.
    async fn renew_all(&self) -> Result<(), Unavailable> {
        let (began, mut all, mut done) = (Instant::now(), self.leases.entries(), Ok(()));
        all.sort_by_key(|entry| matches!(entry.item, LeasedItem::Name { .. }));
        for few in all.chunks(LEASES_BATCH) {
            for renewed in join_all(few.iter().map(|entry| self.renew_one(entry))).await {
                done = done.and(renewed);
            }
        }
        if done.is_ok() {
            *self.last_renewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(began);
        }
        done
    }

    /// Renews a lease. A hold or a key that no longer exists is not an error.
    async fn renew_one(
        &self,
        LeaseEntry { account, id, item }: &LeaseEntry,
    ) -> Result<(), Unavailable> {
        let lease_ms = duration_ms(self.lease);
        match item {
            LeasedItem::Hold { .. } => {
                let op = Operation::Renew { id: id.clone(), lease_ms };
                self.ledger.submit(account, op).await?;
            }
            LeasedItem::Name { owner, .. } => {
                self.reply_store.renew_key(account, id, owner, lease_ms).await?;
            }
        }
        Ok(())
    }
}
