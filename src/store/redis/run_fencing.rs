//! Fencing by the run id of the server. A server that restarts, or a replica that takes over, may
//! lack the last acknowledged writes: until they are restored, no new holds are placed there.
//!
//! So the scripts that write are stamped with the run that they are for. What a server knows
//! of scripts it forgets when it ends, and never tells its replicas: another run refuses them by
//! itself, however quickly it took the place of the first, and then nothing happens until
//! [`upkeep`](crate::store::upkeep) has had a look.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{ErrorKind, FromRedisValue, InfoDict, RedisError, ServerErrorKind, Value};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};

use super::scripts::{RunScripts, ScriptCall, ScriptSelector};
use super::{
    ACCOUNTS_KEY, AccountKeys, RedisStore, Topology, aof_tail, config_check, operation_call,
    parse_outcome, reply_strings,
};
use crate::ledger::{AccountName, Operation, Outcome, Unavailable};

/// How long a refused operation waits for the new run to be recovered, at most.
const NEW_RUN_TIMEOUT: Duration = Duration::from_secs(1);

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct ServerInfo {
    /// The run: of a cluster, those of all masters.
    pub(in crate::store) run_id: String,
    /// How long it has lasted: of a cluster, the youngest.
    pub(in crate::store) uptime: Duration,
    /// Whether a master writes to the file of its log that it found when it started.
    pub(super) appends_to_old_aof: bool,
    /// Whether every master writes a log.
    pub(in crate::store) has_aof: bool,
    /// Whether that may still lack what was written before it was begun.
    pub(in crate::store) is_rewriting_aof: bool,
}

/// What the connections of a process know of the run, so that each money operation can be refused.
pub(in crate::store) struct RunGate {
    state: watch::Sender<GateState>,
    /// Notified when a server answers NOSCRIPT, so that it is probed at once.
    pub(in crate::store) wakeup: Notify,
    /// Whether the end of a hold can be written down.
    outbox_writable: Arc<AtomicBool>,
    /// Whether the store did not answer when it was asked last.
    is_away: AtomicBool,
    /// Where the servers are.
    pub(super) topology: Arc<Topology>,
}

#[derive(Clone, Default)]
struct GateState {
    run: Option<Arc<RunScripts>>,
    is_open: bool,
    /// Why nothing is to be bought, whichever run it is.
    fault: Option<Arc<str>>,
    store_id: Option<Arc<str>>,
}

impl GateState {
    fn allows(&self, needs: Requirement) -> bool {
        let buys = needs != Requirement::KnownRun;
        self.run.is_some() && !(buys && (!self.is_open || self.fault.is_some()))
    }
}

/// What an operation asks of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requirement {
    /// It ends what was bought, so the run must be known.
    KnownRun,
    /// It sets money aside, so the run must lack nothing as well.
    RecoveredRun,
    /// It buys something new, so its end must be writable too.
    WritableOutbox,
}

/// The script of an operation, and what that needs; `None` if any run may do it.
fn gated_script(op: &Operation) -> Option<(Requirement, ScriptSelector)> {
    match op {
        Operation::Hold { .. } => Some((Requirement::WritableOutbox, |s| &s.money.hold)),
        Operation::Extend { .. } => Some((Requirement::RecoveredRun, |s| &s.money.extend)),
        Operation::Renew { .. } | Operation::Checkpoint { .. } => {
            Some((Requirement::KnownRun, |s| &s.money.renew))
        }
        Operation::Settle { .. } => Some((Requirement::KnownRun, |s| &s.money.settle)),
        Operation::Void { .. } => Some((Requirement::KnownRun, |s| &s.money.void)),
        Operation::Credit { .. } => None,
    }
}

impl RunGate {
    pub(in crate::store) fn new(outbox_writable: Arc<AtomicBool>) -> RunGate {
        let (wakeup, is_away) = (Notify::new(), AtomicBool::new(false));
        let (state, topology) = (watch::Sender::default(), Arc::default());
        RunGate { state, wakeup, outbox_writable, is_away, topology }
    }

    /// What the store is called.
    pub(in crate::store) fn store_id(&self) -> Option<Arc<str>> {
        self.state.borrow().store_id.clone()
    }

    /// The store is called so.
    pub(in crate::store) fn set_store_id(&self, id: &str) {
        self.state.send_if_modified(|state| {
            let is_news = state.store_id.as_deref() != Some(id);
            if is_news {
                state.store_id = Some(id.into());
            }
            is_news
        });
    }

    /// Sets or clears the reason why no hold may be placed. Returns whether it changed.
    pub(in crate::store) fn set_fault(&self, fault: Option<&str>) -> bool {
        self.state.send_if_modified(|state| {
            let is_news = state.fault.as_deref() != fault;
            if is_news {
                state.fault = fault.map(Into::into);
            }
            is_news
        })
    }

    /// The store did not answer, or did.
    pub(in crate::store) fn set_away(&self, away: bool) {
        self.is_away.store(away, Ordering::SeqCst);
    }

    /// Clears the run: it is unknown which one answers.
    pub(in crate::store) fn forget_run(&self) {
        self.state.send_modify(|state| (state.run, state.is_open) = (None, false));
    }

    /// Sets the run. Holds may end in it, but none may be placed yet.
    pub(in crate::store) fn set_known_run(&self, run: &Arc<RunScripts>) {
        self.state.send_modify(|state| (state.run, state.is_open) = (Some(run.clone()), false));
    }

    /// Sets the run, which is fully recovered: holds may be placed in it.
    pub(in crate::store) fn set_open_run(&self, run: &Arc<RunScripts>) {
        self.state.send_modify(|state| (state.run, state.is_open) = (Some(run.clone()), true));
    }

    /// The run that lacks nothing, if there is one.
    pub(in crate::store) fn open_run(&self) -> Option<Arc<RunScripts>> {
        let state = self.state.borrow();
        state.run.clone().filter(|_| state.is_open)
    }

    /// Whether it is the run of now.
    fn is_current_run(&self, run: &RunScripts) -> bool {
        self.state.borrow().run.as_ref().is_some_and(|now| now.run_id == run.run_id)
    }

    /// Whether anything can be bought: the store lacks nothing, and ends can be written down.
    pub(in crate::store) fn check_open(&self) -> Result<(), Unavailable> {
        self.allowed_run(Requirement::WritableOutbox).map(drop)
    }

    /// Whether the end of a hold can be written down.
    pub(in crate::store) fn can_write_outbox(&self) -> bool {
        self.outbox_writable.load(Ordering::SeqCst)
    }

    pub(super) fn allowed_run(&self, needs: Requirement) -> Result<Arc<RunScripts>, Unavailable> {
        if needs == Requirement::WritableOutbox && !self.can_write_outbox() {
            return Err(Unavailable("the outbox cannot be written".to_owned()));
        }
        if needs == Requirement::WritableOutbox && self.is_away.load(Ordering::SeqCst) {
            return Err(Unavailable("the store is away".to_owned()));
        }
        let state = self.state.borrow();
        match (&state.run, &state.fault) {
            (Some(run), _) if state.allows(needs) => Ok(run.clone()),
            (_, Some(fault)) => Err(Unavailable(fault.to_string())),
            _ => Err(Unavailable("the store came up and may lack something yet".to_owned())),
        }
    }

    /// The run that an operation may be done in, waited for if need be: a process that has just
    /// begun will know it in a moment.
    pub(super) async fn await_allowed_run(
        &self,
        needs: Requirement,
    ) -> Result<Arc<RunScripts>, Unavailable> {
        if self.allowed_run(needs).is_err() && self.can_write_outbox() {
            let mut changes = self.state.subscribe();
            let will_do = |state: &GateState| state.allows(needs) || state.fault.is_some();
            // Who asked waits no longer than it likes; in either case it is looked at again.
            let _ = tokio::time::timeout(NEW_RUN_TIMEOUT, changes.wait_for(will_do)).await;
        }
        self.allowed_run(needs)
    }

    /// After a NOSCRIPT error: closes the gate, and waits until a new run is recovered.
    async fn await_new_run(
        &self,
        refused: &Arc<RunScripts>,
        needs: Requirement,
    ) -> Result<Arc<RunScripts>, Unavailable> {
        let is_same =
            |state: &GateState| state.run.as_ref().is_some_and(|run| Arc::ptr_eq(run, refused));
        self.state.send_if_modified(|state| {
            let shuts = state.is_open && is_same(state);
            state.is_open &= !shuts;
            shuts
        });
        self.wakeup.notify_one();
        let mut changes = self.state.subscribe();
        let other = |state: &GateState| state.allows(needs) && !is_same(state);
        // In either case it is looked at again.
        let _ = tokio::time::timeout(NEW_RUN_TIMEOUT, changes.wait_for(other)).await;
        drop(changes);
        let granted = self.allowed_run(needs)?;
        if Arc::ptr_eq(&granted, refused) {
            return Err(Unavailable("it is another run of the store".to_owned()));
        }
        Ok(granted)
    }
}

impl RedisStore {
    /// Runs a stamped script as the guard allows it; tells for which run.
    pub(super) async fn run_gated(
        &self,
        gate: &RunGate,
        needs: Requirement,
        call: &ScriptCall,
        pick: ScriptSelector,
    ) -> Result<(Value, Arc<RunScripts>), Unavailable> {
        let run = gate.await_allowed_run(needs).await?;
        match self.connection().await?.query_raw(&call.evalsha(pick(&run.scripts))).await {
            Err(why) if is_noscript(&why) => {
                let run = gate.await_new_run(&run, needs).await?;
                let call = call.evalsha(pick(&run.scripts));
                Ok((self.connection().await?.query(&call).await?, run))
            }
            answered => Ok((answered?, run)),
        }
    }

    /// Runs a script that writes; what it says. Where there is a guard, that is in the run of the
    /// server that it knows and in no other.
    pub(super) async fn run_script(
        &self,
        call: &ScriptCall,
        pick: ScriptSelector,
    ) -> Result<Vec<String>, Unavailable> {
        let reply = match &self.run_gate {
            Some(gate) => self.run_gated(gate, Requirement::KnownRun, call, pick).await?.0,
            None => {
                self.connection()
                    .await?
                    .invoke_script(&call.invocation(pick(&self.scripts)))
                    .await?
            }
        };
        reply_strings(&reply)
    }

    /// Applies an operation as the run gate allows it, if there is one. Returns the run that
    /// applied it, if the operation is bound to one and that run is still current.
    pub(in crate::store) async fn apply_gated(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> Result<(Outcome, Option<Arc<RunScripts>>), Unavailable> {
        let Some((gate, (needs, pick))) = self.run_gate.as_ref().zip(gated_script(op)) else {
            return Ok((self.apply_ungated(account, op).await?, None));
        };
        let keys = AccountKeys::of(account);
        let (reply, run) = self.run_gated(gate, needs, &operation_call(&keys, op), pick).await?;
        let answer = parse_outcome(&reply_strings(&reply)?)?;
        if answer == Outcome::NoAccount {
            self.confirm_absence(&keys.account()).await?;
        }
        Ok((answer, Some(run).filter(|run| gate.is_current_run(run))))
    }

    /// Does an operation in one run, whatever the guard says.
    pub(in crate::store) async fn apply_in_run(
        &self,
        run: &RunScripts,
        account: &AccountName,
        op: &Operation,
    ) -> Result<Outcome, Unavailable> {
        let Some((_, pick)) = gated_script(op) else {
            return self.apply_ungated(account, op).await;
        };
        let call = operation_call(&AccountKeys::of(account), op);
        let reply: Value =
            self.connection().await?.query(&call.evalsha(pick(&run.scripts))).await?;
        parse_outcome(&reply_strings(&reply)?)
    }

    /// Tells of each of an account's holds whether it has ended for good, in one run: then neither
    /// a settlement nor a void changes anything any more.
    pub(in crate::store) async fn check_holds_ended(
        &self,
        run: &RunScripts,
        account: &AccountName,
        ids: &[&str],
    ) -> Result<Vec<bool>, Unavailable> {
        let (keys, mut call) = (AccountKeys::of(account), ScriptCall::default());
        for id in ids {
            call.key(keys.hold(id));
        }
        let asked = call.evalsha(&run.scripts.money.states);
        let states: Vec<String> = self.connection().await?.query(&asked).await?;
        if states.len() != ids.len() {
            return Err(Unavailable("the store does not tell how holds stand".to_owned()));
        }
        let for_good = ["posted", "voided", "tombstone"];
        Ok(states.iter().map(|state| for_good.contains(&state.as_str())).collect())
    }

    /// Asks the server what it is.
    pub(in crate::store) async fn query_server_info(&self) -> Result<ServerInfo, Unavailable> {
        let connection = self.connection().await?;
        connection.refresh_masters().await?;
        let sections = ["server", "replication", "persistence"];
        let asked = redis::cmd("INFO").arg(&sections).to_owned();
        let (mut runs, mut uptime, mut appends_to_old_aof) = (Vec::new(), u64::MAX, false);
        let (mut has_aof, mut is_rewriting_aof) = (true, false);
        let answers = connection.query_masters(&asked).await;
        if answers.is_err() {
            connection.invalidate_master().await;
        }
        for info in answers? {
            let info = InfoDict::from_redis_value_ref(&info)
                .map_err(|e| Unavailable(format!("INFO cannot be read: {e}")))?;
            let field = |name| info.get::<String>(name).unwrap_or_default();
            let (run, role) = (field("run_id"), field("role"));
            if role != "master" {
                connection.invalidate_master().await;
                return Err(Unavailable(format!("the store's master is a {role} now")));
            }
            if field("loading") != "0" {
                return Err(Unavailable("the store is loading what it has".to_owned()));
            }
            if run.is_empty() {
                return Err(Unavailable("the store does not tell its run".to_owned()));
            }
            // A master that was a replica meanwhile goes on as the same process with another past.
            runs.push(run + &field("master_replid2"));
            appends_to_old_aof |= aof_tail::appends_to_old_aof(&info);
            has_aof &= field("aof_enabled") == "1";
            is_rewriting_aof |= aof_tail::is_rewriting_aof(&info);
            uptime = uptime.min(info.get("uptime_in_seconds").unwrap_or(0));
        }
        runs.sort();
        let digest = Sha256::digest(runs.concat());
        let run_id = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let uptime = Duration::from_secs(uptime);
        Ok(ServerInfo { run_id, uptime, appends_to_old_aof, has_aof, is_rewriting_aof })
    }

    /// What is wrong with how the store keeps what it acknowledges, if that matters.
    pub(in crate::store) async fn find_config_fault(&self) -> Result<Option<String>, Unavailable> {
        if self.section.allow_volatile {
            return Ok(None);
        }
        config_check::settings_fault(self.connection().await?).await
    }

    /// Drops what is known of the masters: they are looked up again.
    pub(in crate::store) async fn invalidate_master(&self) {
        if let Some(connection) = self.connected.get() {
            connection.invalidate_master().await;
        }
    }

    /// Whether the operator has said that it may lose what it acknowledged.
    pub(in crate::store) fn allows_volatile(&self) -> bool {
        self.section.allow_volatile
    }

    /// Whether anybody can have money here.
    pub(in crate::store) async fn has_accounts(&self) -> Result<bool, Unavailable> {
        self.connection().await?.query(redis::cmd("EXISTS").arg(ACCOUNTS_KEY)).await
    }

    /// Gives a run its scripts, once what they write will not come behind half an operation.
    pub(in crate::store) async fn load_run_scripts(
        &self,
        run: &str,
    ) -> Result<Arc<RunScripts>, Unavailable> {
        self.start_new_aof().await?;
        let run_scripts = RunScripts::for_run(run);
        self.connection().await?.load_scripts(&run_scripts.scripts.all()).await?;
        // Asked afterwards: had another run taken them, it would answer now.
        if self.query_server_info().await?.run_id != run {
            return Err(Unavailable("the store came up again meanwhile".to_owned()));
        }
        Ok(Arc::new(run_scripts))
    }
}

fn is_noscript(why: &RedisError) -> bool {
    why.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
