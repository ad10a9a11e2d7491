//! Fencing by the run id of the server. A server that restarts, or a replica that takes over, may
//! lack the last acknowledged writes: until they are restored, no new holds are placed there.
//!
//! So the scripts that write are stamped with the run that they are for. What a server knows
//! of scripts it forgets when it ends, and never tells its replicas: another run refuses them by
//! itself, however quickly it took the place of the first, and then nothing happens until
//! [`maintenance`](crate::store::maintenance) has had a look.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, FromRedisValue, InfoDict, RedisError, ServerErrorKind, Value};
use sha2::{Digest, Sha256};

use super::keys::{ACCOUNTS_KEY, AccountKeys};
use super::operations::{operation_call, parse_outcome, reply_strings};
use super::run_gate::{Requirement, RunGate};
use super::scripts::{RunScripts, ScriptCall, ScriptSelector};
use super::shared_store::RedisStore;
use super::{aof_tail, config_check};
use crate::hex::to_hex;
use crate::ledger::{AccountName, Operation, Outcome, Unavailable};

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
        let run_id = to_hex(&digest[..16]).into();
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
