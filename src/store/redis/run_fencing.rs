//! Fencing by the run id of the server. A server that restarts, or a replica that takes over, may
//! lack the last acknowledged writes. Until they are restored, no new holds are placed there.
//!
//! Therefore the scripts that write are stamped with the run that they are for. A server loses its
//! loaded scripts when it ends, and never sends them to its replicas. So another run refuses these
//! scripts by itself (NOSCRIPT), however quickly it took the place of the first run, and nothing is
//! written until [`maintenance`](crate::store::maintenance) has probed the server.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, FromRedisValue, InfoDict, RedisError, ServerErrorKind, Value};
use sha2::{Digest, Sha256};

use super::forgotten::ScriptAnswer;
use super::keys::{ACCOUNTS_KEY, AccountKeys};
use super::operations::{operation_call, parse_outcome, reply_strings};
use super::run_gate::{Requirement, RunGate};
use super::scripts::{RunScripts, ScriptCall, ScriptSelector};
use super::shared_store::RedisStore;
use super::{aof_tail, config_check};
use crate::hex::to_hex;
use crate::ledger::{AccountName, Operation, Outcome, Unavailable};

/// The states of a hold that has ended, as the script reports them.
const FINAL_HOLD_STATES: [&str; 3] = ["posted", "voided", "tombstone"];

/// What the masters report about themselves (INFO).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct ServerInfo {
    /// The id of the run: a digest of the run ids of all masters.
    pub(in crate::store) run_id: String,
    /// How long the run has lasted: in a cluster, the shortest uptime of a master.
    pub(in crate::store) uptime: Duration,
    /// Whether a master still appends to the append-only file (AOF) that it found when it started.
    pub(super) appends_to_old_aof: bool,
    /// Whether every master writes an AOF.
    pub(in crate::store) has_aof: bool,
    /// Whether an AOF may still lack writes from before it was begun.
    pub(in crate::store) is_rewriting_aof: bool,
}

/// Returns the script of an operation, and what it requires of the run gate; `None` if any run may
/// do the operation.
fn gated_script(op: &Operation) -> Option<(Requirement, ScriptSelector)> {
    match op {
        Operation::Hold { .. } => Some((Requirement::WritableOutbox, |s| &s.money.hold)),
        Operation::Extend { .. } => Some((Requirement::SafeStore, |s| &s.money.extend)),
        Operation::Renew { .. } | Operation::Checkpoint { .. } => {
            Some((Requirement::KnownRun, |s| &s.money.renew))
        }
        Operation::Settle { .. } => Some((Requirement::KnownRun, |s| &s.money.settle)),
        Operation::Void { .. } => Some((Requirement::KnownRun, |s| &s.money.void)),
        // Money that leaves waits until the charges that a server may have lost are back.
        Operation::Take { .. } => Some((Requirement::SafeStore, |s| &s.money.take)),
        Operation::Correct { .. } => Some((Requirement::SafeStore, |s| &s.money.correct)),
        Operation::Credit { .. } | Operation::Grant { .. } => None,
    }
}

impl RedisStore {
    /// Runs a stamped script when the run gate allows it. Returns the reply, and the run that ran
    /// the script.
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

    /// Runs a script that writes, and returns its reply. If there is a run gate, the script runs
    /// only in the run that the gate knows.
    pub(super) async fn run_script(
        &self,
        call: &ScriptCall,
        pick: ScriptSelector,
    ) -> Result<Vec<String>, Unavailable> {
        self.run_script_if(Requirement::KnownRun, call, pick).await
    }

    /// Runs a script that writes, and returns its reply. If there is a run gate, the script waits
    /// for what it needs of the run.
    pub(super) async fn run_script_if(
        &self,
        needs: Requirement,
        call: &ScriptCall,
        pick: ScriptSelector,
    ) -> Result<Vec<String>, Unavailable> {
        let reply = match &self.run_gate {
            Some(gate) => self.run_gated(gate, needs, call, pick).await?.0,
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
        let call = operation_call(&keys, op);
        let (reply, mut run) = self.run_gated(gate, needs, &call, pick).await?;
        let answer = match self.read_answer(&keys, op, &reply).await? {
            ScriptAnswer::Outcome(answer) => answer,
            ScriptAnswer::SendAgain(call) => {
                let (reply, answered_by) = self.run_gated(gate, needs, &call, pick).await?;
                run = answered_by;
                parse_outcome(&reply_strings(&reply)?)?
            }
        };
        self.usage_marks.add(account);
        if answer == Outcome::NoAccount {
            self.confirm_absence(&keys.account()).await?;
        }
        Ok((answer, Some(run).filter(|run| gate.is_current_run(run))))
    }

    /// Whether new holds may be placed, as far as the run gate knows.
    pub(in crate::store) fn may_place_holds(&self) -> bool {
        self.run_gate.as_ref().is_none_or(|gate| gate.check_open().is_ok())
    }

    /// Applies an operation in the given run, without asking the run gate.
    pub(in crate::store) async fn apply_in_run(
        &self,
        run: &RunScripts,
        account: &AccountName,
        op: &Operation,
    ) -> Result<Outcome, Unavailable> {
        let Some((_, pick)) = gated_script(op) else {
            return self.apply_ungated(account, op).await;
        };
        let keys = AccountKeys::of(account);
        let call = operation_call(&keys, op).evalsha(pick(&run.scripts));
        let reply: Value = self.connection().await?.query(&call).await?;
        let answer = match self.read_answer(&keys, op, &reply).await? {
            ScriptAnswer::Outcome(answer) => answer,
            ScriptAnswer::SendAgain(call) => {
                let call = call.evalsha(pick(&run.scripts));
                let reply: Value = self.connection().await?.query(&call).await?;
                parse_outcome(&reply_strings(&reply)?)?
            }
        };
        self.usage_marks.add(account);
        Ok(answer)
    }

    /// Returns for each of an account's holds whether it has ended for good in the given run, so
    /// that neither a settlement nor a void can change anything any more.
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
        let command = call.evalsha(&run.scripts.money.states);
        let states: Vec<String> = self.connection().await?.query(&command).await?;
        if states.len() != ids.len() {
            return Err(Unavailable("the store does not tell how holds stand".to_owned()));
        }
        Ok(states.iter().map(|state| FINAL_HOLD_STATES.contains(&state.as_str())).collect())
    }

    /// Asks all masters for their run, uptime and AOF state.
    ///
    /// # Errors
    /// [`Unavailable`] if a master does not answer, is a replica now, or is still loading its data.
    pub(in crate::store) async fn query_server_info(&self) -> Result<ServerInfo, Unavailable> {
        let connection = self.connection().await?;
        connection.refresh_masters().await?;
        let sections = ["server", "replication", "persistence"];
        let command = redis::cmd("INFO").arg(&sections).to_owned();
        let (mut runs, mut uptime, mut appends_to_old_aof) = (Vec::new(), u64::MAX, false);
        let (mut has_aof, mut is_rewriting_aof) = (true, false);
        let answers = connection.query_masters(&command).await;
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
            // A master that was a replica in between is still the same process with the same run
            // id, but its data has another history. `master_replid2` shows that.
            runs.push(run + &field("master_replid2"));
            appends_to_old_aof |= aof_tail::appends_to_old_aof(&info);
            has_aof &= field("aof_enabled") == "1";
            is_rewriting_aof |= aof_tail::is_rewriting_aof(&info);
            uptime = uptime.min(info.get("uptime_in_seconds").unwrap_or(0));
        }
        runs.sort();
        let digest = Sha256::digest(runs.concat());
        let run_id = to_hex(&digest[..16]);
        let uptime = Duration::from_secs(uptime);
        Ok(ServerInfo { run_id, uptime, appends_to_old_aof, has_aof, is_rewriting_aof })
    }

    /// Returns what is wrong with the settings by which the server keeps acknowledged writes;
    /// `None` if nothing is, or if the operator allows their loss.
    pub(in crate::store) async fn find_config_fault(&self) -> Result<Option<String>, Unavailable> {
        if self.section.allow_volatile {
            return Ok(None);
        }
        config_check::settings_fault(self.connection().await?).await
    }

    /// Forgets the known masters, so that they are looked up again.
    pub(in crate::store) async fn invalidate_master(&self) {
        if let Some(connection) = self.connected.get() {
            connection.invalidate_master().await;
        }
    }

    /// Whether the operator allows the store to lose acknowledged writes (`store.allow_volatile`).
    pub(in crate::store) fn allows_volatile(&self) -> bool {
        self.section.allow_volatile
    }

    /// Whether the store has any account.
    pub(in crate::store) async fn has_accounts(&self) -> Result<bool, Unavailable> {
        self.connection().await?.query(redis::cmd("EXISTS").arg(ACCOUNTS_KEY)).await
    }

    /// Loads the scripts of a run into the masters. Before that, every master has begun a new AOF
    /// if it has to, so that the scripts never write behind a half-written operation in the old
    /// one.
    pub(in crate::store) async fn load_run_scripts(
        &self,
        run: &str,
    ) -> Result<Arc<RunScripts>, Unavailable> {
        self.start_new_aof().await?;
        let run_scripts = RunScripts::for_run(run);
        self.connection().await?.load_scripts(&run_scripts.scripts.all()).await?;
        // The run is checked after loading: if another run had received the scripts, its id would
        // be returned now.
        if self.query_server_info().await?.run_id != run {
            return Err(Unavailable("the store came up again meanwhile".to_owned()));
        }
        Ok(Arc::new(run_scripts))
    }
}

pub(super) fn is_noscript(why: &RedisError) -> bool {
    why.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
