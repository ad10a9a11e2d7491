//! The upkeep of a shared store: which run of the server answers, and what it may lack.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::identity::{IdentityError, StoreIdentity};
use super::{PROBE_WAIT, TOGETHER, Uptime, millis, tidy};
use crate::ledger::lease::LeaseEntry;
use crate::ledger::{Leases, Unavailable};
use crate::repeats::{ClaimMode, IdempotencyKey, ReplyStore};
use crate::store::outbox::{Outbox, RunStore, SegmentReplay};
use crate::store::redis::{RedisStore, RunGate, RunScripts, ServerInfo};

/// The server is asked which run it is so often.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// After a new run was noticed nothing is bought for so long at least, while other nodes notice it
/// and say how their holds ended.
const OTHERS: Duration = Duration::from_millis(1_500);
/// When this process starts, a run that is older is nobody's news.
const NEWS: Duration = Duration::from_secs(2);
/// The server's settings are looked at so often.
const SETTINGS_EVERY: Duration = Duration::from_secs(2);
const OTHER_STORE: &str = "the store is not the one that is known: it was emptied, or replaced";

/// See the module.
pub(super) struct SharedMaintenance {
    outbox: Outbox<RedisStore>,
    guard: Arc<RunGate>,
    leases: Leases,
    repeats: Arc<dyn ReplyStore>,
    lease: Duration,
    replay: tokio::sync::Mutex<SegmentReplay>,
    /// How long the run lasts, as far as is known, and since when that is.
    lasting: Mutex<Option<(Duration, Instant)>>,
}

/// How far this process is with the runs of the server.
#[derive(Default)]
struct RecoveryProgress {
    /// The run that lacks nothing.
    made_up: Option<String>,
    /// The run that may, and when it was noticed.
    noticed: Option<(String, Instant)>,
    /// Whether the store is away, so that this is told once.
    is_away: bool,
    identity: StoreIdentity,
    safety: SettingsCheck,
}

/// Whether the server keeps what it acknowledges, as its settings are now.
#[derive(Default)]
struct SettingsCheck {
    looked: Option<Instant>,
    fault: Option<String>,
    /// Whether there was no log, and what there was then is not in one yet.
    is_unlogged: bool,
}

impl SharedMaintenance {
    pub(super) fn new(
        outbox: Outbox<RedisStore>,
        guard: Arc<RunGate>,
        (leases, repeats, lease): (Leases, Arc<dyn ReplyStore>, Duration),
    ) -> SharedMaintenance {
        let replay =
            tokio::sync::Mutex::new(SegmentReplay::new(outbox.log.clone(), repeats.clone()));
        SharedMaintenance {
            outbox,
            guard,
            leases,
            repeats,
            lease,
            replay,
            lasting: Mutex::default(),
        }
    }

    pub(super) fn has_lasted(&self, span: Duration) -> bool {
        self.lasting().is_some_and(|(uptime, at)| uptime + at.elapsed() >= span)
            && self.guard.open_run().is_some()
            && self.outbox.log.is_calm(span)
    }

    fn lasting(&self) -> Option<(Duration, Instant)> {
        *self.lasting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_open(&self) -> Result<(), Unavailable> {
        self.guard.check_open()
    }

    pub(super) fn writes_down(&self) -> bool {
        self.guard.can_write_outbox()
    }

    pub(super) fn leave(&self) {
        self.outbox.log.flush();
    }

    /// Asks the server which run it is, now and whenever it refuses the scripts of the last.
    pub(super) async fn watch(&self, answers: &Uptime) {
        let mut progress = RecoveryProgress::default();
        loop {
            let asked = timeout(PROBE_WAIT, self.look(&mut progress)).await;
            match asked.unwrap_or_else(|_| Err(late().into())) {
                Ok(seen) => {
                    if std::mem::take(&mut progress.is_away) {
                        self.outbox.store.topology.force_reconnect();
                        log::info!(event = "store_available"; "the store answers again");
                    }
                    self.guard.set_away(false);
                    self.saw(&seen, &mut progress, answers).await;
                }
                Err(IdentityError::Away(why)) => {
                    answers.began_again();
                    self.outbox.store.invalidate_master().await;
                    self.guard.set_away(true);
                    if !progress.is_away {
                        log::warn!(event = "store_unavailable", why:% = why; "the store is away");
                    }
                    progress.is_away = true;
                }
                Err(IdentityError::Other) => self.is_other(&mut progress, answers),
            }
            tokio::select! {
                () = sleep(PROBE_EVERY) => {}
                () = self.guard.wakeup.notified() => {}
            }
        }
    }

    /// Asks which run of which store it is, and how it keeps what it has.
    async fn look(&self, progress: &mut RecoveryProgress) -> Result<ServerInfo, IdentityError> {
        let store = &self.outbox.store;
        let seen = store.query_server_info().await?;
        let id = progress.identity.check(store, &seen.run_id).await?;
        self.outbox.log.belongs_to(&id)?;
        self.guard.set_store_id(&id);
        let fault = progress.safety.fault(store, &seen).await?;
        if self.guard.set_fault(fault) {
            match fault {
                Some(fault) => log::error!(
                    event = "store_unsafe", fault;
                    "the store may lose money; nothing is sold"
                ),
                None => log::info!(event = "store_safe"; "the store is as it should be again"),
            }
        }
        Ok(seen)
    }

    /// It is a store that nobody here knows. Should the known one come back, it may lack anything.
    fn is_other(&self, progress: &mut RecoveryProgress, answers: &Uptime) {
        answers.began_again();
        self.guard.forget_run();
        (progress.noticed, progress.is_away) = (None, false);
        progress.made_up = progress.made_up.take().map(|_| String::new());
        self.guard.set_away(false);
        if self.guard.set_fault(Some(OTHER_STORE)) {
            log::error!(
                event = "store_replaced";
                "{OTHER_STORE}; nothing is sold. Restore it; or start the gateways anew, \
                 and what it had is given up"
            );
        }
    }

    async fn saw(&self, seen: &ServerInfo, progress: &mut RecoveryProgress, answers: &Uptime) {
        if progress.made_up.as_ref() != Some(&seen.run_id) {
            answers.began_again();
        }
        answers.answered();
        let lasting = Some((seen.uptime, Instant::now()));
        *self.lasting.lock().unwrap_or_else(PoisonError::into_inner) = lasting;
        let is_open = self.guard.open_run().is_some_and(|now| *now.run_id == *seen.run_id);
        if is_open {
            return;
        }
        if let Err(why) = self.make_up(seen, progress).await {
            log::warn!(
                event = "store_recovery_failed", why:% = why;
                "what the store may lack is not made up for yet"
            );
        }
    }

    /// Lets calls in again: at once where the server only lost its scripts, else when nothing that
    /// this process or one before it knows of is missing there.
    async fn make_up(
        &self,
        seen: &ServerInfo,
        progress: &mut RecoveryProgress,
    ) -> Result<(), Unavailable> {
        let guard = &self.guard;
        if progress.made_up.as_ref() == Some(&seen.run_id) {
            guard.set_open_run(&self.outbox.store.load_run_scripts(&seen.run_id).await?);
            return Ok(());
        }
        guard.forget_run();
        let is_first = progress.made_up.is_none();
        let noticed = match &progress.noticed {
            Some((run, at)) if *run == seen.run_id => *at,
            _ => {
                let now = Instant::now();
                progress.noticed = Some((seen.run_id.clone(), now));
                if !is_first {
                    log::warn!(
                        event = "store_restarted", run = seen.run_id;
                        "another run of the store: calls wait for it"
                    );
                }
                now
            }
        };
        let run = self.outbox.store.load_run_scripts(&seen.run_id).await?;
        guard.set_known_run(&run);
        self.hold_again(&run).await?;
        self.replay.lock().await.lately(&self.within(&run)).await?;
        // Of a store without accounts nobody can have known anything.
        let is_news = !is_first || seen.uptime < NEWS && self.outbox.store.has_accounts().await?;
        if is_news {
            sleep_until(noticed + OTHERS).await;
        }
        progress.made_up = Some(seen.run_id.clone());
        guard.set_open_run(&run);
        log::info!(
            event = "store_recovery_finished", run = seen.run_id, after_ms = millis(noticed.elapsed());
            "the store is complete"
        );
        Ok(())
    }

    /// Makes the holds of calls that run again, and their names, where the server lost them. What
    /// has ended meanwhile cannot be opened again, whichever of both comes first.
    async fn hold_again(&self, run: &RunScripts) -> Result<(), Unavailable> {
        for few in self.leases.all().chunks(TOGETHER) {
            for held in join_all(few.iter().map(|entry| self.hold_one(run, entry))).await {
                held?;
            }
        }
        Ok(())
    }

    async fn hold_one(&self, run: &RunScripts, entry: &LeaseEntry) -> Result<(), Unavailable> {
        if let Some(naming) = IdempotencyKey::of(entry) {
            let (lease_ms, free) = (millis(self.lease), &ClaimMode::Free);
            self.repeats.take(&entry.account, &naming, free, lease_ms).await?;
        }
        for op in entry.again(millis(self.lease)) {
            self.outbox.store.apply_in_run(run, &entry.account, &op).await?;
        }
        Ok(())
    }

    /// Keeps the outbox in order.
    pub(super) async fn tidy(&self) {
        let opened = || {
            let run = self.guard.open_run().map(|run| self.within(&run))?;
            self.lasting().map(|(_, at)| (run, at))
        };
        tidy(&self.outbox, &self.replay, opened).await;
    }

    fn within(&self, run: &Arc<RunScripts>) -> RunStore {
        let (redis, run) = (self.outbox.store.clone(), run.clone());
        RunStore { redis, run, store_id: self.guard.store_id() }
    }
}

impl SettingsCheck {
    /// What is wrong, if anything is.
    async fn fault(
        &mut self,
        store: &RedisStore,
        seen: &ServerInfo,
    ) -> Result<Option<&str>, Unavailable> {
        self.is_unlogged = !seen.has_aof || self.is_unlogged && seen.is_rewriting_aof;
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= SETTINGS_EVERY);
        if is_due || self.is_unlogged != self.fault.is_some() {
            self.looked = Some(Instant::now());
            self.fault = store.find_config_fault().await?;
        }
        Ok(match &self.fault {
            Some(fault) => Some(fault),
            None if self.is_unlogged && !store.allows_volatile() => {
                Some("appendonly is 'yes' again, but the log is not complete yet")
            }
            None => None,
        })
    }
}

fn late() -> Unavailable {
    Unavailable("no answer in time".to_owned())
}
