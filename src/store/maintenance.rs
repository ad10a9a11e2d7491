//! Maintenance of a store while a process serves: leases are renewed, the store is probed, and what
//! a shared store may have lost is restored.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::OpenStore;
use super::outbox::{Outbox, OutboxTarget, SegmentReplay, ServerRun};
use super::redis::{RedisStore, RunGate};
use super::sqlite::SqliteStore;
use crate::idempotency::ReplyStore;
use crate::ledger::lease::{LeaseEntry, LeasedItem};
use crate::ledger::{Leases, Ledger, Operation, Unavailable};

mod embedded;
mod identity;
mod shared;

use embedded::EmbeddedMaintenance;
use shared::SharedMaintenance;

/// A store that does not answer within this is away. That is longer than a connection waits before
/// it takes its server for dead.
const PROBE_TIMEOUT: Duration = Duration::from_millis(3_500);
/// After a longer gap between two probes, the uptime in between is not known.
const PROBE_GAP_MAX: Duration = Duration::from_secs(10);
/// The outbox is put in order so often.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// What ended processes left is looked for so often.
const ADOPT_INTERVAL: Duration = Duration::from_secs(10);
/// Leases that could not be renewed are tried again after so long.
const RENEW_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// So many leases are renewed at a time.
const LEASES_BATCH: usize = 128;

/// See the module.
pub struct Maintenance {
    ledger: Arc<dyn Ledger>,
    repeats: Arc<dyn ReplyStore>,
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

/// Since when the store has answered each time it was asked, and when it last did.
#[derive(Default)]
struct Uptime(Mutex<Option<(Instant, Instant)>>);

impl Uptime {
    fn record_success(&self) {
        let (mut since, now) = (self.lock(), Instant::now());
        let known = since.filter(|(_, last)| now.duration_since(*last) < PROBE_GAP_MAX);
        *since = Some((known.map_or(now, |(since, _)| since), now));
    }

    fn reset(&self) {
        *self.lock() = None;
    }

    fn is_at_least(&self, span: Duration) -> bool {
        self.lock().is_some_and(|(since, last)| last.duration_since(since) >= span)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Instant, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Maintenance {
    pub(super) fn embedded(
        outbox: Outbox<SqliteStore>,
        store: &OpenStore,
        (leases, lease): (Leases, Duration),
    ) -> Maintenance {
        Maintenance::new(
            MaintenanceKind::Embedded(EmbeddedMaintenance::new(outbox, store.reply_store.clone())),
            store,
            leases,
            lease,
        )
    }

    pub(super) fn shared(
        (outbox, run_gate): (Outbox<RedisStore>, Arc<RunGate>),
        store: &OpenStore,
        (leases, lease): (Leases, Duration),
    ) -> Maintenance {
        let kept = (leases.clone(), store.reply_store.clone(), lease);
        let fleet = SharedMaintenance::new(outbox, run_gate, kept);
        Maintenance::new(MaintenanceKind::Shared(fleet), store, leases, lease)
    }

    fn new(
        kind: MaintenanceKind,
        store: &OpenStore,
        leases: Leases,
        lease: Duration,
    ) -> Maintenance {
        let (ledger, repeats) = (store.ledger.clone(), store.reply_store.clone());
        let (uptime, last_renewed) = (Uptime::default(), Mutex::default());
        Maintenance { ledger, repeats, leases, lease, uptime, last_renewed, kind }
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
    pub fn may_sweep(&self) -> bool {
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
    pub fn check_open(&self) -> Result<(), Unavailable> {
        match &self.kind {
            MaintenanceKind::Embedded(_) => Ok(()),
            MaintenanceKind::Shared(fleet) => fleet.check_open(),
        }
    }

    /// Whether the end of a hold is safe on this machine before the store has acknowledged it.
    #[must_use]
    pub fn can_write_outbox(&self) -> bool {
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
                self.ledger.apply(account, op).await?;
            }
            LeasedItem::Name { owner, .. } => {
                self.repeats.renew_key(account, id, owner, lease_ms).await?;
            }
        }
        Ok(())
    }
}

/// Keeps an outbox in order, and takes over what ended processes left of theirs. `run` is the run
/// of the store that lacks nothing, and when it last answered.
async fn maintain_outbox<R: ServerRun>(
    outbox: &Outbox<impl OutboxTarget>,
    replay: &tokio::sync::Mutex<SegmentReplay>,
    run: impl Fn() -> Option<(R, Instant)>,
) {
    let mut adopted = Instant::now();
    loop {
        sleep(MAINTENANCE_INTERVAL).await;
        let (log, run) = (outbox.log.clone(), run());
        let alive = run.as_ref().map(|(_, alive)| alive.into_std());
        // Only a panic of it fails; the next does the same.
        let _ = tokio::task::spawn_blocking(move || log.maintain(alive)).await;
        let Some((run, _)) = run else { continue };
        outbox.redeliver().await;
        let mut replay = replay.lock().await;
        if adopted.elapsed() < ADOPT_INTERVAL && !replay.is_behind() {
            continue;
        }
        adopted = Instant::now();
        if let Err(why) = replay.adopt_orphans(&run, alive).await {
            log::warn!(
                event = "outbox_adoption_failed", why:% = why;
                "orphaned outbox segments pending"
            );
        }
    }
}

fn duration_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
