//! The upkeep of a shared store: which run of the server answers, and what it may lack.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::identity::{IdentityError, StoreIdentity};
use super::lease_batches::{LEASES_BATCH, duration_ms};
use super::outbox_upkeep::maintain_outbox;
use super::uptime::{PROBE_TIMEOUT, Uptime};
use crate::idempotency::{ClaimMode, IdempotencyKey, ReplyStore};
use crate::ledger::lease::LeaseEntry;
use crate::ledger::{Leases, Unavailable};
use crate::store::outbox::{Outbox, RunStore, SegmentReplay};
use crate::store::redis::{RedisStore, RunGate, RunScripts, ServerInfo};

/// The server is asked which run it is so often.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// After a new run was noticed, paid calls are refused for at least this long, while other nodes
/// notice it too and replay their settlements.
const PEERS_WAIT: Duration = Duration::from_millis(1_500);
/// At the start of this process, a run that is older than this needs no wait for the peers.
const FRESH_START_MAX: Duration = Duration::from_secs(2);
/// The server's settings are looked at so often.
const SETTINGS_CHECK_INTERVAL: Duration = Duration::from_secs(2);
const STORE_REPLACED: &str = "the store is not the one that is known: it was emptied, or replaced";

/// See the module.
pub(super) struct SharedMaintenance {
    outbox: Outbox<RedisStore>,
    gate: Arc<RunGate>,
    leases: Leases,
    reply_store: Arc<dyn ReplyStore>,
    lease: Duration,
    replay: tokio::sync::Mutex<SegmentReplay>,
    /// How long the run lasts, as far as is known, and since when that is.
    run_uptime: Mutex<Option<(Duration, Instant)>>,
}

/// How far this process is with the runs of the server.
#[derive(Default)]
struct RecoveryProgress {
    /// The run that lacks nothing.
    recovered_run: Option<String>,
    /// The run that may, and when it was noticed.
    new_run: Option<(String, Instant)>,
    /// Whether the store is away, so that this is told once.
    is_away: bool,
    identity: StoreIdentity,
    settings: SettingsCheck,
}

/// Whether the server keeps what it acknowledges, as its settings are now.
#[derive(Default)]
struct SettingsCheck {
    checked_at: Option<Instant>,
    fault: Option<String>,
    /// Whether there was no log, and what there was then is not in one yet.
    is_aof_incomplete: bool,
}

impl SharedMaintenance {
    pub(super) fn new(
        outbox: Outbox<RedisStore>,
        gate: Arc<RunGate>,
        leases: Leases,
        reply_store: Arc<dyn ReplyStore>,
        lease: Duration,
    ) -> SharedMaintenance {
        let replay =
            tokio::sync::Mutex::new(SegmentReplay::new(outbox.log.clone(), reply_store.clone()));
        SharedMaintenance {
            outbox,
            gate,
            leases,
            reply_store,
            lease,
            replay,
            run_uptime: Mutex::default(),
        }
    }

    pub(super) fn is_stable_for(&self, span: Duration) -> bool {
        self.run_uptime().is_some_and(|(uptime, at)| uptime + at.elapsed() >= span)
            && self.gate.open_run().is_some()
            && self.outbox.log.is_quiescent(span)
    }

    fn run_uptime(&self) -> Option<(Duration, Instant)> {
        *self.run_uptime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn check_open(&self) -> Result<(), Unavailable> {
        self.gate.check_open()
    }

    pub(super) fn can_write_outbox(&self) -> bool {
        self.gate.can_write_outbox()
    }

    pub(super) fn flush(&self) {
        self.outbox.log.flush();
    }

    /// Asks the server which run it is, now and whenever it refuses the scripts of the last.
    pub(super) async fn watch_server(&self, uptime: &Uptime) {
        let mut progress = RecoveryProgress::default();
        loop {
            let asked = timeout(PROBE_TIMEOUT, self.probe(&mut progress)).await;
            match asked.unwrap_or_else(|_| Err(probe_timeout_error().into())) {
                Ok(seen) => {
                    if std::mem::take(&mut progress.is_away) {
                        self.outbox.store.topology.force_reconnect();
                        log::info!(event = "store_available"; "store available again");
                    }
                    self.gate.set_away(false);
                    self.on_probe(&seen, &mut progress, uptime).await;
                }
                Err(IdentityError::Unavailable(why)) => {
                    uptime.reset();
                    self.outbox.store.invalidate_master().await;
                    self.gate.set_away(true);
                    if !progress.is_away {
                        log::warn!(event = "store_unavailable", why:% = why; "store unavailable");
                    }
                    progress.is_away = true;
                }
                Err(IdentityError::Replaced) => self.on_replaced(&mut progress, uptime),
            }
            tokio::select! {
                () = sleep(PROBE_INTERVAL) => {}
                () = self.gate.wakeup.notified() => {}
            }
        }
    }

    /// Asks which run of which store it is, and how it keeps what it has.
    async fn probe(&self, progress: &mut RecoveryProgress) -> Result<ServerInfo, IdentityError> {
        let store = &self.outbox.store;
        let seen = store.query_server_info().await?;
        let id = progress.identity.check(store, &seen.run_id).await?;
        self.outbox.log.bind_to_store(&id)?;
        self.gate.set_store_id(&id);
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

    /// It is a store that nobody here knows. Should the known one come back, it may lack anything.
    fn on_replaced(&self, progress: &mut RecoveryProgress, uptime: &Uptime) {
        uptime.reset();
        self.gate.forget_run();
        (progress.new_run, progress.is_away) = (None, false);
        progress.recovered_run = progress.recovered_run.take().map(|_| String::new());
        self.gate.set_away(false);
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
        let is_open = self.gate.open_run().is_some_and(|now| *now.run_id == *seen.run_id);
        if is_open {
            return;
        }
        if let Err(why) = self.recover(seen, progress).await {
            log::warn!(
                event = "store_recovery_failed", why:% = why;
                "store recovery failed; retrying"
            );
        }
    }

    /// Recovers a run and admits calls again: at once if the server only lost its scripts, else
    /// when it has everything that this process and its predecessors know of.
    async fn recover(
        &self,
        seen: &ServerInfo,
        progress: &mut RecoveryProgress,
    ) -> Result<(), Unavailable> {
        let gate = &self.gate;
        if progress.recovered_run.as_ref() == Some(&seen.run_id) {
            gate.set_open_run(&self.outbox.store.load_run_scripts(&seen.run_id).await?);
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
        gate.set_known_run(&run);
        self.restore_holds(&run).await?;
        self.replay.lock().await.replay_recent(&self.in_run(&run)).await?;
        // Of a store without accounts nobody can have known anything.
        let is_news =
            !is_first || seen.uptime < FRESH_START_MAX && self.outbox.store.has_accounts().await?;
        if is_news {
            sleep_until(noticed + PEERS_WAIT).await;
        }
        progress.recovered_run = Some(seen.run_id.clone());
        gate.set_open_run(&run);
        log::info!(
            event = "store_recovery_finished", run = seen.run_id,
            after_ms = duration_ms(noticed.elapsed());
            "store recovery finished"
        );
        Ok(())
    }

    /// Makes the holds of calls that run again, and their names, where the server lost them. What
    /// has ended meanwhile cannot be opened again, whichever of both comes first.
    async fn restore_holds(&self, run: &RunScripts) -> Result<(), Unavailable> {
        for few in self.leases.entries().chunks(LEASES_BATCH) {
            for held in join_all(few.iter().map(|entry| self.restore_hold(run, entry))).await {
                held?;
            }
        }
        Ok(())
    }

    async fn restore_hold(&self, run: &RunScripts, entry: &LeaseEntry) -> Result<(), Unavailable> {
        if let Some(naming) = IdempotencyKey::from_lease(entry) {
            let (lease_ms, free) = (duration_ms(self.lease), &ClaimMode::IfFree);
            self.reply_store.claim_key(&entry.account, &naming, free, lease_ms).await?;
        }
        for op in entry.restore_operations(duration_ms(self.lease)) {
            self.outbox.store.apply_in_run(run, &entry.account, &op).await?;
        }
        Ok(())
    }

    /// Keeps the outbox in order.
    pub(super) async fn maintain_outbox(&self) {
        let opened = || {
            let run = self.gate.open_run().map(|run| self.in_run(&run))?;
            self.run_uptime().map(|(_, at)| (run, at))
        };
        maintain_outbox(&self.outbox, &self.replay, opened).await;
    }

    fn in_run(&self, run: &Arc<RunScripts>) -> RunStore {
        let (redis, run) = (self.outbox.store.clone(), run.clone());
        RunStore { redis, run, store_id: self.gate.store_id() }
    }
}

impl SettingsCheck {
    /// What is wrong, if anything is.
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
