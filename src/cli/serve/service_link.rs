//! Tells the service manager, such as systemd, how this process is, as `sd_notify(3)` describes it.
//! If no manager waits for that (`NOTIFY_SOCKET` is not set), nothing is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a message may take. A manager that is stuck must not delay this process.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The service manager. Clones share what it was told.
#[derive(Clone)]
pub(super) struct ServiceManager(Option<Arc<ManagerState>>);

struct ManagerState {
    stage: watch::Sender<ServiceStage>,
    /// The interval of the watchdog, if the manager has one.
    watchdog: Option<Duration>,
    is_reload_refused: AtomicBool,
    has_upgrade_failed: AtomicBool,
}

/// What the manager may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServiceStage {
    /// Nothing: this process has no sockets yet, or another one speaks for the service.
    Starting,
    /// How far the start is.
    Open,
    /// All.
    Ready,
    /// Nothing: another process speaks for the service from now on.
    Replaced,
}

/// What the last reload and the last upgrade were, as far as an operator should look at them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ServiceFaults {
    pub(super) is_reload_refused: bool,
    pub(super) has_upgrade_failed: bool,
}

impl ServiceManager {
    /// Returns the manager that the environment of the process names.
    pub(super) fn from_environment() -> ServiceManager {
        if std::env::var_os("NOTIFY_SOCKET").is_none_or(|path| path.is_empty()) {
            return ServiceManager(None);
        }
        ServiceManager(Some(Arc::new(ManagerState {
            stage: watch::Sender::new(ServiceStage::Starting),
            watchdog: sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero()),
            is_reload_refused: AtomicBool::new(false),
            has_upgrade_failed: AtomicBool::new(false),
        })))
    }

    /// Whether there is a manager.
    pub(super) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// The interval within which the manager wants a sign of life, if it does.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.0.as_ref()?.watchdog
    }

    pub(super) fn faults(&self) -> ServiceFaults {
        let Some(state) = &self.0 else { return ServiceFaults::default() };
        ServiceFaults {
            is_reload_refused: state.is_reload_refused.load(Ordering::Relaxed),
            has_upgrade_failed: state.has_upgrade_failed.load(Ordering::Relaxed),
        }
    }

    /// Notes whether what was read last is refused.
    pub(super) fn note_reload(&self, is_refused: bool) {
        if let Some(state) = &self.0 {
            state.is_reload_refused.store(is_refused, Ordering::Relaxed);
        }
    }

    /// Notes whether the last attempt to replace this process has failed.
    pub(super) fn note_upgrade(&self, has_failed: bool) {
        if let Some(state) = &self.0 {
            state.has_upgrade_failed.store(has_failed, Ordering::Relaxed);
        }
    }

    /// Notes that this process has its sockets, and speaks for the service.
    pub(super) fn note_open(&self) {
        self.advance(ServiceStage::Starting, ServiceStage::Open);
    }

    /// Waits for [`Self::note_open`]; forever if there is no manager.
    pub(super) async fn until_open(&self) {
        let Some(state) = &self.0 else { return std::future::pending().await };
        // This cannot fail, as the sender is borrowed here.
        let _ = state.stage.subscribe().wait_for(|stage| *stage != ServiceStage::Starting).await;
    }

    /// Tells that the service is ready.
    pub(super) async fn tell_ready(&self, status: &str) {
        self.advance(ServiceStage::Open, ServiceStage::Ready);
        self.tell(ServiceStage::Ready, &[NotifyState::Ready, NotifyState::Status(status)]).await;
    }

    /// Tells that the service reads its settings again.
    pub(super) async fn tell_reloading(&self) {
        // The manager drops a reload without the time at which it began.
        let Ok(now) = NotifyState::monotonic_usec_now() else { return };
        self.tell(ServiceStage::Ready, &[NotifyState::Reloading, now]).await;
    }

    /// Tells that the service has read its settings, or has refused them.
    pub(super) async fn tell_reloaded(&self, status: &str) {
        self.tell(ServiceStage::Ready, &[NotifyState::Ready, NotifyState::Status(status)]).await;
    }

    /// Tells how far the start is.
    pub(super) async fn tell_progress(&self, status: &str) {
        // After an upgrade the watchdog of the process before goes on.
        let news = [NotifyState::Status(status), NotifyState::Watchdog];
        let news = if self.watchdog().is_some() { &news[..] } else { &news[..1] };
        self.tell(ServiceStage::Open, news).await;
    }

    /// Gives a sign of life.
    pub(super) async fn tell_alive(&self, status: &str) {
        let news = [NotifyState::Status(status), NotifyState::Watchdog];
        let news = if self.watchdog().is_some() { &news[..] } else { &news[..1] };
        self.tell(ServiceStage::Ready, news).await;
    }

    /// Tells that the service stops.
    pub(super) async fn tell_stopping(&self, status: &str) {
        let news = [NotifyState::Stopping, NotifyState::Status(status)];
        if !self.tell(ServiceStage::Ready, &news).await {
            self.tell(ServiceStage::Open, &news).await;
        }
    }

    /// Tells that another process is the main one of the service. It alone speaks from now on.
    pub(super) async fn tell_replaced(&self, successor: u32) {
        let news = [NotifyState::MainPid(successor)];
        if !self.tell(ServiceStage::Ready, &news).await {
            self.tell(ServiceStage::Open, &news).await;
        }
        self.advance(ServiceStage::Open, ServiceStage::Replaced);
        self.advance(ServiceStage::Ready, ServiceStage::Replaced);
    }

    fn advance(&self, from: ServiceStage, to: ServiceStage) {
        if let Some(state) = &self.0 {
            state.stage.send_if_modified(|stage| {
                let is_next = *stage == from;
                if is_next {
                    *stage = to;
                }
                is_next
            });
        }
    }

    /// Sends a message if the service is at this stage. Returns whether it is.
    async fn tell(&self, stage: ServiceStage, news: &[NotifyState<'_>]) -> bool {
        if self.0.as_ref().is_none_or(|state| *state.stage.borrow() != stage) {
            return false;
        }
        let lines: Vec<_> = news.iter().map(ToString::to_string).collect();
        let message = lines.join("\n");
        // The message blocks while the manager's queue is full.
        let sending = tokio::task::spawn_blocking(move || {
            sd_notify::notify(&[NotifyState::Custom(&message)])
        });
        match timeout(SEND_TIMEOUT, sending).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(why))) => warn_unsent(&why.to_string()),
            Ok(Err(_)) | Err(_) => warn_unsent("no answer in time"),
        }
        true
    }
}

fn warn_unsent(why: &str) {
    log::warn!(
        event = "service_manager_unreachable", error = why;
        "service manager not told"
    );
}
