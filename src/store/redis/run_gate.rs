//! The run gate: what a process knows about the run of the server, and therefore which operations
//! may be sent to the server and which have to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::scripts::RunScripts;
use super::topology::Topology;
use crate::ledger::Unavailable;

/// A refused operation waits at most this long for the new run to be recovered.
const NEW_RUN_TIMEOUT: Duration = Duration::from_secs(1);

/// What a process knows about the run of the server, shared by its connections. Each money
/// operation asks the gate, which can refuse it.
pub(in crate::store) struct RunGate {
    state: watch::Sender<GateState>,
    /// Notified when a server answers NOSCRIPT, so that it is probed at once.
    pub(in crate::store) wakeup: Notify,
    /// Whether the outbox can record the end of a hold.
    outbox_writable: Arc<AtomicBool>,
    /// Whether the store did not answer the last probe.
    is_unreachable: AtomicBool,
    /// The addresses of the servers.
    pub(super) topology: Arc<Topology>,
}

#[derive(Clone, Default)]
struct GateState {
    run: Option<Arc<RunScripts>>,
    is_open: bool,
    /// The reason why no hold may be placed in any run, if there is one.
    fault: Option<Arc<str>>,
    store_id: Option<Arc<str>>,
}

impl GateState {
    fn allows(&self, needs: Requirement) -> bool {
        let is_recovered = self.run.is_some() && self.is_open;
        match needs {
            Requirement::KnownRun => self.run.is_some(),
            Requirement::RecoveredRun => is_recovered,
            Requirement::SafeStore | Requirement::WritableOutbox => {
                is_recovered && self.fault.is_none()
            }
        }
    }
}

/// What an operation requires of the run gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requirement {
    /// The run must be known. Enough for an operation that ends or continues an existing hold or
    /// job.
    KnownRun,
    /// The run must also be recovered, so that it lacks no acknowledged write. For an operation
    /// that finds out whether a call is a repeat.
    RecoveredRun,
    /// There must also be no reason against holds. For an operation that sets money aside.
    SafeStore,
    /// The outbox must be writable too, because the end of the call will have to be recorded there.
    /// For an operation that starts a new purchase.
    WritableOutbox,
}

impl RunGate {
    pub(in crate::store) fn new(outbox_writable: Arc<AtomicBool>) -> RunGate {
        let (wakeup, is_unreachable) = (Notify::new(), AtomicBool::new(false));
        let (state, topology) = (watch::Sender::default(), Arc::default());
        RunGate { state, wakeup, outbox_writable, is_unreachable, topology }
    }

    /// Returns the id of the store; `None` until it is known.
    pub(in crate::store) fn store_id(&self) -> Option<Arc<str>> {
        self.state.borrow().store_id.clone()
    }

    /// Sets the id of the store.
    pub(in crate::store) fn set_store_id(&self, id: &str) {
        self.state.send_if_modified(|state| {
            let has_changed = state.store_id.as_deref() != Some(id);
            if has_changed {
                state.store_id = Some(id.into());
            }
            has_changed
        });
    }

    /// Sets or clears the reason why no hold may be placed. Returns whether it changed.
    pub(in crate::store) fn set_fault(&self, fault: Option<&str>) -> bool {
        self.state.send_if_modified(|state| {
            let has_changed = state.fault.as_deref() != fault;
            if has_changed {
                state.fault = fault.map(Into::into);
            }
            has_changed
        })
    }

    /// Sets whether the store did not answer the last probe.
    pub(in crate::store) fn set_unreachable(&self, unreachable: bool) {
        self.is_unreachable.store(unreachable, Ordering::SeqCst);
    }

    /// Clears the run, because it is unknown which run answers.
    pub(in crate::store) fn forget_run(&self) {
        self.state.send_modify(|state| (state.run, state.is_open) = (None, false));
    }

    /// Sets the run. Holds may end in it, but none may be placed yet.
    pub(in crate::store) fn set_unrecovered_run(&self, run: &Arc<RunScripts>) {
        self.state.send_modify(|state| (state.run, state.is_open) = (Some(run.clone()), false));
    }

    /// Sets the run, which is fully recovered: holds may be placed in it.
    pub(in crate::store) fn set_recovered_run(&self, run: &Arc<RunScripts>) {
        self.state.send_modify(|state| (state.run, state.is_open) = (Some(run.clone()), true));
    }

    /// Returns the run if it is recovered; else `None`.
    pub(in crate::store) fn recovered_run(&self) -> Option<Arc<RunScripts>> {
        let state = self.state.borrow();
        state.run.clone().filter(|_| state.is_open)
    }

    /// Returns the id of the run; `None` while none is known.
    pub(in crate::store) fn run_id(&self) -> Option<Arc<str>> {
        self.state.borrow().run.as_ref().map(|run| (&*run.run_id).into())
    }

    /// Whether `run` is the run that is known now.
    pub(super) fn is_current_run(&self, run: &RunScripts) -> bool {
        self.state.borrow().run.as_ref().is_some_and(|now| now.run_id == run.run_id)
    }

    /// Fails unless new holds may be placed: the store answers and lacks nothing, and the outbox
    /// can record the ends of holds.
    pub(in crate::store) fn check_open(&self) -> Result<(), Unavailable> {
        self.allowed_run(Requirement::WritableOutbox).map(drop)
    }

    /// Whether the outbox can record the end of a hold.
    pub(in crate::store) fn is_outbox_writable(&self) -> bool {
        self.outbox_writable.load(Ordering::SeqCst)
    }

    pub(super) fn allowed_run(&self, needs: Requirement) -> Result<Arc<RunScripts>, Unavailable> {
        if needs == Requirement::WritableOutbox && !self.is_outbox_writable() {
            return Err(Unavailable("the outbox cannot be written".to_owned()));
        }
        if needs == Requirement::WritableOutbox && self.is_unreachable.load(Ordering::SeqCst) {
            return Err(Unavailable("the store is away".to_owned()));
        }
        let state = self.state.borrow();
        match (&state.run, &state.fault) {
            (Some(run), _) if state.allows(needs) => Ok(run.clone()),
            (_, Some(fault)) => Err(Unavailable(fault.to_string())),
            _ => Err(Unavailable("the store came up and may lack something yet".to_owned())),
        }
    }

    /// Returns the run in which an operation with these requirements may be done. If necessary,
    /// waits for it for at most `NEW_RUN_TIMEOUT`: a process that has just started will know the
    /// run in a moment.
    pub(super) async fn await_allowed_run(
        &self,
        needs: Requirement,
    ) -> Result<Arc<RunScripts>, Unavailable> {
        if self.allowed_run(needs).is_err() && self.is_outbox_writable() {
            let mut changes = self.state.subscribe();
            let is_decided = |state: &GateState| state.allows(needs) || state.fault.is_some();
            // The caller may stop waiting earlier. Whether this wait succeeds or times out, the
            // gate is asked again below.
            let _ = tokio::time::timeout(NEW_RUN_TIMEOUT, changes.wait_for(is_decided)).await;
        }
        self.allowed_run(needs)
    }

    /// Closes the gate after a NOSCRIPT error, and returns a run other than `refused` that allows
    /// the operation. Waits for it for at most `NEW_RUN_TIMEOUT`.
    pub(super) async fn await_new_run(
        &self,
        refused: &Arc<RunScripts>,
        needs: Requirement,
    ) -> Result<Arc<RunScripts>, Unavailable> {
        let is_same =
            |state: &GateState| state.run.as_ref().is_some_and(|run| Arc::ptr_eq(run, refused));
        self.state.send_if_modified(|state| {
            let closes_gate = state.is_open && is_same(state);
            state.is_open &= !closes_gate;
            closes_gate
        });
        self.wakeup.notify_one();
        let mut changes = self.state.subscribe();
        let other = |state: &GateState| state.allows(needs) && !is_same(state);
        // Whether the wait succeeds or times out, the gate is asked again below.
        let _ = tokio::time::timeout(NEW_RUN_TIMEOUT, changes.wait_for(other)).await;
        drop(changes);
        let granted = self.allowed_run(needs)?;
        if Arc::ptr_eq(&granted, refused) {
            return Err(Unavailable("it is another run of the store".to_owned()));
        }
        Ok(granted)
    }
}
