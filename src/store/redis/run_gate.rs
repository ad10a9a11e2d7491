//! What a process knows of the run of the server: which operations may be sent to it, and which
//! have to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::scripts::RunScripts;
use super::topology::Topology;
use crate::ledger::Unavailable;

/// How long a refused operation waits for the new run to be recovered, at most.
const NEW_RUN_TIMEOUT: Duration = Duration::from_secs(1);

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
    pub(super) fn is_current_run(&self, run: &RunScripts) -> bool {
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
    pub(super) async fn await_new_run(
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
