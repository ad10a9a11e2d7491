//! The processes that share an embedded store. One that is alone keeps the first attempts of its
//! calls in its memory. As soon as it sees another one, which happens at an upgrade, it writes them
//! to the store, and keeps new ones there.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::clock::monotonic_ms;
use crate::idempotency::{ATTEMPT_TTL_MS, AttemptStore, store_all_attempts};
use crate::idempotency::{AttemptId, FirstAttempts, Fleet, FleetAnswer, ReplyStore};
use crate::ledger::{AccountName, Leases, Unavailable};
use crate::store::outbox::{AttemptMarker, OtherMarkers, SettlementLog};

/// This process as one of those that share an embedded store.
pub(in crate::store) struct EmbeddedFleet {
    log: Arc<SettlementLog>,
    pub(super) attempts: FirstAttempts,
    leases: Leases,
    reply_store: Arc<dyn ReplyStore>,
    lease_ms: u64,
    /// When a process may last have ended without writing its attempts to the store: this one's
    /// predecessor, or one beside it.
    lost_ms: AtomicU64,
    /// Whether the store has all charges of processes that have ended.
    has_adopted: AtomicBool,
    own: Mutex<OwnAttempts>,
}

#[derive(Debug, Default)]
struct OwnAttempts {
    /// Exists while attempts are kept in memory.
    marker: Option<AttemptMarker>,
    /// Whether this process keeps its attempts in the store from now on.
    has_left: bool,
}

impl EmbeddedFleet {
    pub(in crate::store) fn new(
        log: Arc<SettlementLog>,
        attempts: FirstAttempts,
        leases: Leases,
        reply_store: Arc<dyn ReplyStore>,
        lease: Duration,
    ) -> EmbeddedFleet {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let (lost_ms, has_adopted) = (AtomicU64::new(monotonic_ms()), AtomicBool::new(false));
        let own = Mutex::default();
        EmbeddedFleet { log, attempts, leases, reply_store, lease_ms, lost_ms, has_adopted, own }
    }

    /// Whether the store has all charges of processes that have ended.
    pub(super) fn has_adopted(&self) -> bool {
        self.has_adopted.load(Ordering::SeqCst)
    }

    /// Records that the store has all charges of processes that have ended.
    pub(super) fn set_adopted(&self) {
        self.has_adopted.store(true, Ordering::SeqCst);
    }

    /// Decides whether attempts are kept in memory.
    ///
    /// # Errors
    /// The store or the folder of the outbox does not answer.
    pub(super) async fn update(&self) -> Result<(), Unavailable> {
        let mut own = self.own.lock().await;
        let others = self.find_others(&own).map_err(to_unavailable)?;
        if !others.left.is_empty() {
            self.lost_ms.store(monotonic_ms(), Ordering::SeqCst);
            self.has_adopted.store(false, Ordering::SeqCst);
            for path in others.left {
                let _ = fs::remove_file(path);
            }
        }
        let is_alone = !self.log.has_live_peer().map_err(to_unavailable)?;
        if !is_alone || own.has_left {
            return self.share(&mut own).await;
        }
        if own.marker.is_some() {
            // They may have been on their way to the store for a process that has gone again.
            self.attempts.set_in_use(true);
        } else if self.has_adopted() {
            own.marker = Some(AttemptMarker::create(&self.log.root).map_err(to_unavailable)?);
            // One that came before the marker was there did not see it.
            if self.log.has_live_peer().map_err(to_unavailable)? {
                own.marker = None;
                return Ok(());
            }
            self.attempts.set_in_use(true);
        }
        Ok(())
    }

    /// Writes all attempts to the store, and keeps new ones there from now on.
    ///
    /// # Errors
    /// The store does not answer.
    pub(super) async fn leave(&self) -> Result<(), Unavailable> {
        let mut own = self.own.lock().await;
        own.has_left = true;
        self.share(&mut own).await
    }

    async fn share(&self, own: &mut OwnAttempts) -> Result<(), Unavailable> {
        if own.marker.is_some() {
            self.attempts.set_in_use(false);
            let EmbeddedFleet { reply_store, leases, lease_ms, .. } = self;
            let store = AttemptStore { reply_store: &**reply_store, leases, lease_ms: *lease_ms };
            store_all_attempts(&self.attempts, store, monotonic_ms()).await?;
            own.marker = None;
        }
        Ok(())
    }

    fn find_others(&self, own: &OwnAttempts) -> io::Result<OtherMarkers> {
        AttemptMarker::find_others(&self.log.root, own.marker.as_ref())
    }
}

#[async_trait]
impl Fleet for EmbeddedFleet {
    async fn find_attempt(
        &self,
        _: &AccountName,
        _: &AttemptId,
        _: &mut Option<u64>,
    ) -> Result<FleetAnswer, Unavailable> {
        // While attempts are being written to the store, the lock is held.
        let Ok(own) = self.own.try_lock() else { return Ok(FleetAnswer::Waiting) };
        if !self.has_adopted() {
            return Ok(FleetAnswer::Waiting);
        }
        let others = self.find_others(&own).map_err(to_unavailable)?;
        drop(own);
        if others.is_any_held || !others.left.is_empty() {
            return Ok(FleetAnswer::Waiting);
        }
        let since = monotonic_ms().saturating_sub(self.lost_ms.load(Ordering::SeqCst));
        Ok(if since < ATTEMPT_TTL_MS { FleetAnswer::SomeLost } else { FleetAnswer::AllAnswered })
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is an argument of `map_err`")]
fn to_unavailable(why: io::Error) -> Unavailable {
    Unavailable(format!("store.outbox: {why}"))
}
