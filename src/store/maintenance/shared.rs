//! Maintenance of a shared store: finds out which run of the server answers, and restores what that
//! run may lack.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::fleet_errors::log_fleet_error;
use super::identity::{IdentityError, StoreIdentity};
use super::lease_batches::{LEASES_BATCH, duration_ms};
use super::outbox_upkeep::maintain_outbox;
use super::uptime::{PROBE_TIMEOUT, Uptime};
use crate::idempotency::{ClaimMode, IdempotencyKey, ReplyStore};
use crate::ledger::lease::LeaseEntry;
use crate::ledger::{Leases, Unavailable};
use crate::store::allotments::{AllotmentUpkeep, SharedLender};
use crate::store::outbox::{Outbox, RedisRun, SegmentReplay};
use crate::store::redis::{RedisFleet, RedisStore, RunGate, RunScripts, ServerInfo};

/// The server is asked for its run this often.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// After a new run was noticed, paid calls are refused for at least this long, while other nodes
/// notice it too and replay their settlements.
const PEERS_WAIT: Duration = Duration::from_millis(1_500);
/// When this process starts, a run that is older than this needs no wait for the other nodes.
const FRESH_START_MAX: Duration = Duration::from_secs(2);
/// The server's settings are checked this often.
const SETTINGS_CHECK_INTERVAL: Duration = Duration::from_secs(2);
const STORE_REPLACED: &str = "the store is not the one that is known: it was emptied, or replaced";

/// The maintenance of a shared store and of its outbox.
pub(super) struct SharedMaintenance {
    outbox: Outbox<RedisStore>,
    allotments: AllotmentUpkeep<SharedLender>,
    gate: Arc<RunGate>,
    leases: Leases,
    reply_store: Arc<dyn ReplyStore>,
    lease: Duration,
    replay: tokio::sync::Mutex<SegmentReplay>,
    fleet: Arc<RedisFleet>,
    /// How long the run had lasted when the server last answered, and when that was.
    run_uptime: Mutex<Option<(Duration, Instant)>>,
}

/// How far this process has recovered the runs of the server.
#[derive(Default)]
struct RecoveryProgress {
    /// The last run that was recovered; empty if the store was replaced since.
    recovered_run: Option<String>,
    /// A run that is not recovered yet, and when it was noticed.
    new_run: Option<(String, Instant)>,
    /// Whether the store did not answer the last probe, so that this is logged only once.
    is_unreachable: bool,
    identity: StoreIdentity,
    settings: SettingsCheck,
}

/// Whether the settings of the server make it keep what it acknowledges, as of the last check.
#[derive(Default)]
struct SettingsCheck {
    checked_at: Option<Instant>,
    fault: Option<String>,
    /// Whether the server ran without an append-only file, and the data of that time is not yet in
    /// one.
    is_aof_incomplete: bool,
}

impl SharedMaintenance {
    pub(super) fn new(
        outbox: Outbox<RedisStore>,
        allotments: AllotmentUpkeep<SharedLender>,
        gate: Arc<RunGate>,
        leases: Leases,
        reply_store: Arc<dyn ReplyStore>,
        lease: Duration,
        fleet: Arc<RedisFleet>,
    ) -> SharedMaintenance {
        let replay =
            tokio::sync::Mutex::new(SegmentReplay::new(outbox.log.clone(), reply_store.clone()));
        SharedMaintenance {
            outbox,
            allotments,
            gate,
            leases,
            reply_store,
            lease,
            replay,
            fleet,
            run_uptime: Mutex::default(),
        }
    }

    pub(super) fn is_stable_for(&self, span: Duration) -> bool {
        self.run_uptime().is_some_and(|(uptime, at)| uptime + at.elapsed() >= span)
            && self.gate.recovered_run().is_some()
            && self.outbox.log.is_quiescent(span)
            && self.allotments.is_renewed()
    }

    fn run_uptime(&self) -> Option<(Duration, Instant)> {
        *self.run_uptime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn check_open(&self) -> Result<(), Unavailable> {
        self.gate.check_open()
    }

    pub(super) fn is_outbox_writable(&self) -> bool {
        self.gate.is_outbox_writable() && self.allotments.is_writable()
    }

    pub(super) fn flush(&self) {
        self.outbox.log.flush();
        self.allotments.flush();
    }

    pub(super) async fn finish(&self) {
        self.allotments.finish().await;
    }

    pub(super) async fn run_allotments(&self) {
        self.allotments.run().await;
    }

    /// Asks the server for its run, at every `PROBE_INTERVAL` and whenever the server refuses the
    /// scripts of the last run.
    pub(super) async fn watch_server(&self, uptime: &Uptime) {
        let mut progress = RecoveryProgress::default();
        loop {
            let probed = timeout(PROBE_TIMEOUT, self.probe(&mut progress)).await;
            match probed.unwrap_or_else(|_| Err(probe_timeout_error().into())) {
                Ok(seen) => {
                    if std::mem::take(&mut progress.is_unreachable) {
                        self.outbox.store.topology.force_reconnect();
                        log::info!(event = "store_available"; "store available again");
                    }
                    self.gate.set_unreachable(false);
                    self.on_probe(&seen, &mut progress, uptime).await;
                }
                Err(IdentityError::Unavailable(why)) => {
                    uptime.reset();
                    self.outbox.store.invalidate_master().await;
                    self.gate.set_unreachable(true);
                    if !progress.is_unreachable {
                        log::warn!(event = "store_unavailable", error:% = why; "store unavailable");
                    }
                    progress.is_unreachable = true;
                }
                Err(IdentityError::Replaced) => self.on_replaced(&mut progress, uptime),
            }
            tokio::select! {
                () = sleep(PROBE_INTERVAL) => {}
                () = self.gate.wakeup.notified() => {}
            }
        }
    }

    pub(super) async fn leave(&self) -> Result<(), Unavailable> {
        self.allotments.stop_lending();
        self.fleet.leave().await
    }

    /// Tells the other gateways that this one serves, and answers their questions.
    pub(super) async fn poll_fleet(&self) {
        let mut has_failed = false;
        loop {
            let polled = self.fleet.poll().await;
            self.fleet.note_silence();
            if let Err(why) = &polled
                && !has_failed
            {
                log_fleet_error(why);
            }
            has_failed = polled.is_err();
            sleep(PROBE_INTERVAL).await;
        }
    }

    /// Asks the server for its run, and checks the id of the store and the server's settings.
    async fn probe(&self, progress: &mut RecoveryProgress) -> Result<ServerInfo, IdentityError> {
        let store = &self.outbox.store;
        let seen = store.query_server_info().await?;
        let id = progress.identity.check(store, &seen.run_id).await?;
        self.outbox.log.bind_to_store(&id)?;
        self.gate.set_store_id(&id);
        self.allotments.bind_to_store()?;
        let fault = progress.settings.check(store, &seen).await?;
        if self.gate.set_fault(fault) {
            match fault {
                Some(fault) => log::error!(
                    event = "store_unsafe", fault;
                    "store settings are unsafe; paid calls are refused"
                ),
                None => log::info!(event = "store_safe"; "store settings are safe again"),
            }
        }
        Ok(seen)
    }

    /// Handles a store that is not the known one: paid calls are refused. If the known store comes
    /// back, it may lack any writes, so it has to be recovered.
    fn on_replaced(&self, progress: &mut RecoveryProgress, uptime: &Uptime) {
        uptime.reset();
        self.gate.forget_run();
        (progress.new_run, progress.is_unreachable) = (None, false);
        progress.recovered_run = progress.recovered_run.take().map(|_| String::new());
        self.gate.set_unreachable(false);
        if self.gate.set_fault(Some(STORE_REPLACED)) {
            log::error!(
                event = "store_replaced";
                "{STORE_REPLACED}; paid calls are refused. Restore it, or restart the gateways \
                 to give up what it had"
            );
        }
    }

    async fn on_probe(&self, seen: &ServerInfo, progress: &mut RecoveryProgress, uptime: &Uptime) {
        if progress.recovered_run.as_ref() != Some(&seen.run_id) {
            uptime.reset();
        }
        uptime.record_success();
        let run_uptime = Some((seen.uptime, Instant::now()));
        *self.run_uptime.lock().unwrap_or_else(PoisonError::into_inner) = run_uptime;
        let is_open = self.gate.recovered_run().is_some_and(|now| *now.run_id == *seen.run_id);
        if is_open {
            return;
        }
        if let Err(why) = self.recover(seen, progress).await {
            log::warn!(
                event = "store_recovery_failed", error:% = why;
                "store recovery failed; retrying"
            );
        }
    }

    /// Recovers a run and admits calls again. If the server only lost its scripts, calls are
    /// admitted at once, else when the run has everything that this process and its predecessors
    /// know of.
    async fn recover(
        &self,
        seen: &ServerInfo,
        progress: &mut RecoveryProgress,
    ) -> Result<(), Unavailable> {
        let gate = &self.gate;
        if progress.recovered_run.as_ref() == Some(&seen.run_id) {
            gate.set_recovered_run(&self.outbox.store.load_run_scripts(&seen.run_id).await?);
            return Ok(());
        }
        gate.forget_run();
        let is_first = progress.recovered_run.is_none();
        let noticed = match &progress.new_run {
            Some((run, at)) if *run == seen.run_id => *at,
            _ => {
                let now = Instant::now();
                progress.new_run = Some((seen.run_id.clone(), now));
                if !is_first {
                    log::warn!(
                        event = "store_restarted", run = seen.run_id;
                        "store restarted; calls wait for its recovery"
                    );
                }
                now
            }
        };
        let run = self.outbox.store.load_run_scripts(&seen.run_id).await?;
        gate.set_unrecovered_run(&run);
        self.restore_holds(&run).await?;
        self.allotments.recover().await?;
        self.replay.lock().await.replay_recent(&self.in_run(&run)).await?;
        // No other gateway can know of anything that a store without accounts lacks.
        let must_wait_for_peers =
            !is_first || seen.uptime < FRESH_START_MAX && self.outbox.store.has_accounts().await?;
        if must_wait_for_peers {
            sleep_until(noticed + PEERS_WAIT).await;
        }
        if is_first {
            // A member that has not polled yet keeps the first attempts of its calls in the store.
            // Calls need not wait for more: if this fails, `poll_fleet` says so and goes on.
            let _ = self.fleet.poll().await;
        }
        progress.recovered_run = Some(seen.run_id.clone());
        gate.set_recovered_run(&run);
        self.allotments.start_lending();
        log::info!(
            event = "store_recovery_finished", run = seen.run_id,
            after_ms = duration_ms(noticed.elapsed());
            "store recovery finished"
        );
        Ok(())
    }

    /// Restores the holds and the idempotency keys of running calls, where the server lost them. A
    /// hold that ends meanwhile is not opened again, whichever of the two operations the server
    /// gets first.
    async fn restore_holds(&self, run: &RunScripts) -> Result<(), Unavailable> {
        for few in self.leases.entries().chunks(LEASES_BATCH) {
            for held in join_all(few.iter().map(|entry| self.restore_hold(run, entry))).await {
                held?;
            }
        }
        Ok(())
    }

    async fn restore_hold(&self, run: &RunScripts, entry: &LeaseEntry) -> Result<(), Unavailable> {
        if let Some(key) = IdempotencyKey::from_lease(entry) {
            let (lease_ms, restore) = (duration_ms(self.lease), &ClaimMode::Restore);
            self.reply_store.claim_key(&entry.account, &key, restore, lease_ms).await?;
        }
        for op in entry.restore_operations(duration_ms(self.lease)) {
            self.outbox.store.apply_in_run(run, &entry.account, &op).await?;
        }
        Ok(())
    }

    /// Maintains the outbox. Its entries are sent only to a run that is recovered.
    pub(super) async fn maintain_outbox(&self) {
        let opened = || {
            let run = self.gate.recovered_run().map(|run| self.in_run(&run))?;
            self.run_uptime().map(|(_, at)| (run, at))
        };
        let adopt_ends = || self.allotments.adopt_orphans();
        maintain_outbox(&self.outbox, &self.replay, opened, adopt_ends).await;
    }

    fn in_run(&self, run: &Arc<RunScripts>) -> RedisRun {
        let (redis, run) = (self.outbox.store.clone(), run.clone());
        RedisRun { redis, run, store_id: self.gate.store_id() }
    }
}

impl SettingsCheck {
    /// Returns what is wrong with the settings; `None` if they are safe.
    async fn check(
        &mut self,
        store: &RedisStore,
        seen: &ServerInfo,
    ) -> Result<Option<&str>, Unavailable> {
        self.is_aof_incomplete = !seen.has_aof || self.is_aof_incomplete && seen.is_rewriting_aof;
        let is_due = self.checked_at.is_none_or(|at| at.elapsed() >= SETTINGS_CHECK_INTERVAL);
        if is_due || self.is_aof_incomplete != self.fault.is_some() {
            self.checked_at = Some(Instant::now());
            self.fault = store.find_config_fault().await?;
        }
        Ok(match &self.fault {
            Some(fault) => Some(fault),
            None if self.is_aof_incomplete && !store.allows_volatile() => {
                Some("appendonly is 'yes' again, but the log is not complete yet")
            }
            None => None,
        })
    }
}

fn probe_timeout_error() -> Unavailable {
    Unavailable("no answer in time".to_owned())
}
