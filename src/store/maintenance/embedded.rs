//! Maintenance of an embedded store: probes it, maintains its outbox, and adopts the outbox folders
//! of processes that ended in the middle of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::embedded_fleet::EmbeddedFleet;
use super::fleet_errors::log_fleet_error;
use super::outbox_upkeep::maintain_outbox;
use super::uptime::{PROBE_TIMEOUT, Uptime};
use crate::idempotency::ReplyStore;
use crate::ledger::{Ledger, Unavailable};
use crate::store::allotments::AllotmentUpkeep;
use crate::store::outbox::{Outbox, SegmentReplay};
use crate::store::sqlite::SqliteStore;

/// An embedded store is probed this often.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The maintenance of an embedded store and of its outbox.
pub(super) struct EmbeddedMaintenance {
    outbox: Outbox<SqliteStore>,
    replay: Mutex<SegmentReplay>,
    fleet: Arc<EmbeddedFleet>,
    allotments: AllotmentUpkeep<Arc<SqliteStore>>,
    /// Whether the store answered the last probe. A store whose file was deleted or replaced has
    /// lost what it committed, so no file of the outbox is removed while this is `false`.
    is_store_up: AtomicBool,
    /// Whether the store was probed once.
    has_probed: AtomicBool,
}

impl EmbeddedMaintenance {
    pub(super) fn new(
        outbox: Outbox<SqliteStore>,
        reply_store: Arc<dyn ReplyStore>,
        fleet: Arc<EmbeddedFleet>,
        allotments: AllotmentUpkeep<Arc<SqliteStore>>,
    ) -> EmbeddedMaintenance {
        let replay = Mutex::new(SegmentReplay::new(outbox.log.clone(), reply_store));
        let (is_store_up, has_probed) = (AtomicBool::new(false), AtomicBool::new(false));
        EmbeddedMaintenance { outbox, replay, fleet, allotments, is_store_up, has_probed }
    }

    /// Whether the store has all entries that earlier processes left, and has accepted every write
    /// for `span`, or at least for the time in which callers retry.
    pub(super) fn is_stable_for(&self, span: Duration) -> bool {
        let has_renewed = self.allotments.is_renewed();
        has_renewed && self.fleet.has_adopted() && self.outbox.log.is_quiescent(span)
    }

    pub(super) fn is_outbox_writable(&self) -> bool {
        self.outbox.log.is_writable() && self.allotments.is_writable()
    }

    pub(super) fn flush(&self) {
        self.outbox.log.flush();
        self.allotments.flush();
    }

    pub(super) async fn leave(&self) -> Result<(), Unavailable> {
        self.allotments.stop_lending();
        self.fleet.leave().await
    }

    pub(super) async fn finish(&self) {
        self.allotments.finish().await;
    }

    pub(super) fn has_probed(&self) -> bool {
        self.has_probed.load(Ordering::SeqCst)
    }

    /// Returns what runs until the process ends.
    pub(super) fn tasks<'a>(&'a self, uptime: &'a Uptime) -> [BoxFuture<'a, ()>; 3] {
        let store: &Arc<SqliteStore> = &self.outbox.store;
        let probing = async {
            loop {
                let bound = self.outbox.log.bind_to_store(&store.store_id);
                if let Err(why) = bound.and_then(|()| self.allotments.bind_to_store()) {
                    log::warn!(
                        event = "outbox_write_failed", error:% = why;
                        "store id not written to the outbox"
                    );
                } else if !self.fleet.has_adopted() {
                    self.adopt_orphans().await;
                }
                let has_answered = matches!(timeout(PROBE_TIMEOUT, store.ping()).await, Ok(Ok(())));
                self.is_store_up.store(has_answered, Ordering::SeqCst);
                if has_answered {
                    uptime.record_success();
                } else {
                    uptime.reset();
                }
                if let Err(why) = self.fleet.update().await {
                    log_fleet_error(&why);
                }
                self.has_probed.store(true, Ordering::SeqCst);
                sleep(PROBE_INTERVAL).await;
            }
        };
        let maintaining = maintain_outbox(
            &self.outbox,
            &self.replay,
            || {
                let is_alive = self.is_store_up.load(Ordering::SeqCst);
                is_alive.then(|| (store.clone(), Instant::now()))
            },
            || self.allotments.adopt_orphans(),
        );
        [probing.boxed(), self.allotments.run().boxed(), maintaining.boxed()]
    }

    async fn adopt_orphans(&self) {
        let now = std::time::Instant::now();
        let ends = self.allotments.adopt_orphans().await;
        let settlements =
            self.replay.lock().await.adopt_orphans(&self.outbox.store, Some(now)).await;
        if settlements.is_ok() {
            // The hold of a call with a key is never in memory, so its charge is there now, and its
            // key.
            self.outbox.log.calls.set_adopted();
        }
        match ends.and(settlements) {
            Ok(()) => {
                self.fleet.set_adopted();
                self.allotments.start_lending();
            }
            Err(why) => log::warn!(
                event = "outbox_adoption_failed", error:% = why;
                "orphaned outbox segments pending"
            ),
        }
    }
}
