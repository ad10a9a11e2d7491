//! Maintenance of a store while a process serves: leases are renewed, the store is probed, and what
//! a shared store may have lost is restored.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::open_store::OpenStore;
use super::outbox::Outbox;
use super::redis::{RedisStore, RunGate};
use super::sqlite::SqliteStore;
use crate::idempotency::ReplyStore;
use crate::ledger::lease::{LeaseEntry, LeasedItem};
use crate::ledger::{Leases, Ledger, Operation, Unavailable};

mod embedded;
mod identity;
mod lease_batches;
mod outbox_upkeep;
mod shared;
mod uptime;

use embedded::EmbeddedMaintenance;
use lease_batches::{LEASES_BATCH, duration_ms};
use shared::SharedMaintenance;
use uptime::Uptime;

/// Leases that could not be renewed are tried again after so long.
const RENEW_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub struct Maintenance {
    ledger: Arc<dyn Ledger>,
    reply_store: Arc<dyn ReplyStore>,
    leases: Leases,
    lease: Duration,
    uptime: Uptime,
    /// When all leases were last renewed.
    last_renewed: Mutex<Option<Instant>>,
    kind: MaintenanceKind,
}

/// Who else may use the store.
enum MaintenanceKind {
    Embedded(EmbeddedMaintenance),
    Shared(SharedMaintenance),
}

impl Maintenance {
    pub(super) fn embedded(
        outbox: Outbox<SqliteStore>,
        store: &OpenStore,
        leases: Leases,
        lease: Duration,
    ) -> Maintenance {
        Maintenance::new(
            MaintenanceKind::Embedded(EmbeddedMaintenance::new(outbox, store.reply_store.clone())),
            store,
            leases,
            lease,
        )
    }

    pub(super) fn shared(
        outbox: Outbox<RedisStore>,
        run_gate: Arc<RunGate>,
        store: &OpenStore,
        leases: Leases,
        lease: Duration,
    ) -> Maintenance {
        let reply_store = store.reply_store.clone();
        let fleet = SharedMaintenance::new(outbox, run_gate, leases.clone(), reply_store, lease);
        Maintenance::new(MaintenanceKind::Shared(fleet), store, leases, lease)
    }

    fn new(
        kind: MaintenanceKind,
        store: &OpenStore,
        leases: Leases,
        lease: Duration,
    ) -> Maintenance {
        let (ledger, reply_store) = (store.ledger.clone(), store.reply_store.clone());
        let (uptime, last_renewed) = (Uptime::default(), Mutex::default());
        Maintenance { ledger, reply_store, leases, lease, uptime, last_renewed, kind }
    }

    /// Keeps the store for as long as this is polled.
    pub async fn run(&self) {
        match &self.kind {
            MaintenanceKind::Embedded(alone) => {
                tokio::join!(alone.run(&self.uptime), self.renew_leases()).1;
            }
            MaintenanceKind::Shared(fleet) => {
                tokio::join!(
                    fleet.watch_server(&self.uptime),
                    fleet.maintain_outbox(),
                    self.renew_leases()
                )
                .2;
            }
        }
    }

    /// Whether holds with an expired lease may be swept: only after the store was reachable for a
    /// whole lease, so that every owner could renew or settle its holds.
    #[must_use]
    pub(crate) fn may_sweep(&self) -> bool {
        let is_settled = match &self.kind {
            MaintenanceKind::Embedded(alone) => alone.is_stable_for(self.lease),
            MaintenanceKind::Shared(fleet) => fleet.is_stable_for(self.lease),
        };
        // Whoever slept has to renew its own first.
        let renewed = *self.last_renewed.lock().unwrap_or_else(PoisonError::into_inner);
        let has_renewed = renewed.is_some_and(|renewed| renewed.elapsed() < self.lease / 2);
        is_settled && has_renewed && self.uptime.is_at_least(self.lease)
    }

    /// Whether anything can be bought: a shared store is made up for first.
    ///
    /// # Errors
    /// [`Unavailable`] says why it cannot.
    pub(crate) fn check_open(&self) -> Result<(), Unavailable> {
        match &self.kind {
            MaintenanceKind::Embedded(_) => Ok(()),
            MaintenanceKind::Shared(fleet) => fleet.check_open(),
        }
    }

    /// Whether the end of a hold is safe on this machine before the store has acknowledged it.
    #[must_use]
    pub(crate) fn can_write_outbox(&self) -> bool {
        match &self.kind {
            MaintenanceKind::Embedded(alone) => alone.can_write_outbox(),
            MaintenanceKind::Shared(fleet) => fleet.can_write_outbox(),
        }
    }

    /// Writes what there is to write before the process leaves.
    pub fn flush(&self) {
        match &self.kind {
            MaintenanceKind::Embedded(alone) => alone.flush(),
            MaintenanceKind::Shared(fleet) => fleet.flush(),
        }
    }

    /// Renews what is kept alive, four times in each lease.
    async fn renew_leases(&self) {
        let every = self.lease / 4;
        let mut wait = every;
        loop {
            sleep(wait).await;
            wait = match self.renew_all().await {
                Ok(()) => every,
                Err(why) => {
                    log::warn!(
                        event = "lease_renewal_failed", why:% = why;
                        "lease renewal failed"
                    );
                    RENEW_RETRY_INTERVAL.min(every)
                }
            };
        }
    }

    /// Renews what it can, holds first; one that cannot be renewed keeps no other from it.
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

    /// Renews a lease. What is not there any more is nobody's concern here.
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
