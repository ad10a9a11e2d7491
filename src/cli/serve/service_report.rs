//! What the service manager is told of this process while it starts, serves and stops.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::ready_check::ReadyCheck;
use super::service_link::{ServiceFaults, ServiceManager};
use crate::clock::unix_ms;
use crate::conf::Config;
use crate::gateway::budgets::tenants::ResourcePool;
use crate::gateway::in_flight::InFlight;
use crate::gateway::state::Gateway;
use crate::gateway::upstream::routes::RouteTable;
use crate::store::maintenance::Maintenance;

/// How often it is checked whether this process is ready.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How often the status is told, if the manager has no watchdog, and at least.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// How often the status of a process that stops is told.
const STOPPING_INTERVAL: Duration = Duration::from_secs(2);

/// The runtime on which requests are served, once it is known.
pub(super) type RequestsRuntime = Arc<OnceLock<Handle>>;

/// Reports to the service manager.
pub(super) struct ServiceReport {
    pub(super) manager: ServiceManager,
    pub(super) check: ReadyCheck,
    pub(super) requests_runtime: RequestsRuntime,
    /// The connections and requests that a stop waits for; a request may count twice.
    pub(super) in_flight: InFlight,
    /// The requests in flight, each once.
    pub(super) requests: Arc<ResourcePool>,
}

impl ServiceReport {
    /// Returns the reports of the process of a gateway.
    pub(super) fn new(
        conf: &Config,
        maintenance: &Arc<Maintenance>,
        routes: &Arc<RouteTable>,
        gateway: &Gateway,
    ) -> ServiceReport {
        ServiceReport {
            manager: ServiceManager::from_environment(),
            check: ReadyCheck {
                maintenance: maintenance.clone(),
                routes: routes.clone(),
                ledger_timeout: conf.timeouts.ledger,
            },
            requests_runtime: Arc::default(),
            in_flight: gateway.in_flight.clone(),
            requests: gateway.concurrency.by_address.pool().clone(),
        }
    }

    /// Reports the start, and then gives signs of life. It never returns.
    pub(super) async fn report(&self) {
        self.manager.until_open().await;
        let half = self.manager.watchdog().map(|interval| interval / 2);
        let interval = half.unwrap_or(STATUS_INTERVAL).min(STATUS_INTERVAL);
        let (mut told, mut told_at) = (String::new(), Instant::now());
        loop {
            self.requests_are_served().await;
            let Err(why) = self.check.check().await else { break };
            let status = one_line(&format!("not ready: {why}"));
            if status != told || told_at.elapsed() >= interval {
                self.manager.tell_progress(&status).await;
                (told, told_at) = (status, Instant::now());
            }
            sleep(READY_POLL_INTERVAL).await;
        }
        self.manager.tell_ready(&self.status()).await;
        loop {
            sleep(interval).await;
            self.requests_are_served().await;
            self.manager.tell_alive(&self.status()).await;
        }
    }

    /// Reports that this process stops, and how many calls still run. It never returns.
    pub(super) async fn report_stopping(&self) {
        if !self.manager.is_there() {
            return std::future::pending().await;
        }
        loop {
            let status = format!("stopping, {} requests running", self.requests.used());
            self.manager.tell_stopping(&status).await;
            sleep(STOPPING_INTERVAL).await;
        }
    }

    /// Reports that the settings were read again. What is refused stays in the status.
    pub(super) async fn report_reloaded(&self, is_refused: bool) {
        self.manager.note_reload(is_refused);
        self.manager.tell_reloaded(&self.status()).await;
    }

    /// Waits until the runtime of the requests has run a task. It does not while all its threads
    /// are stuck.
    async fn requests_are_served(&self) {
        let runtime = loop {
            if let Some(runtime) = self.requests_runtime.get() {
                break runtime;
            }
            sleep(READY_POLL_INTERVAL).await;
        };
        // It fails only if that runtime ends, and the process with it.
        let _ = runtime.spawn(async {}).await;
    }

    fn status(&self) -> String {
        let (up, all) = self.check.count_routes(unix_ms());
        let closed = self.check.maintenance.check_open().err().map(|why| why.to_string());
        let requests = self.requests.used();
        one_line(&status_text(up, all, requests, closed.as_deref(), self.manager.faults()))
    }
}

fn status_text(
    up: usize,
    all: usize,
    requests: usize,
    closed: Option<&str>,
    faults: ServiceFaults,
) -> String {
    let mut text = format!("{up} of {all} routes up, {requests} requests running");
    if let Some(why) = closed {
        text += "; no paid calls: ";
        text += why;
    }
    if faults.is_reload_refused {
        text += "; reload refused, the old settings stay (see the log)";
    }
    if faults.has_upgrade_failed {
        text += "; upgrade failed, this process stays (see the log)";
    }
    text
}

/// Returns the text as one line, since a line break would end the status.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_one_line_that_tells_what_an_operator_should_look_at() {
        let faults = ServiceFaults::default();
        assert_eq!(status_text(2, 3, 14, None, faults), "2 of 3 routes up, 14 requests running");
        let faults = ServiceFaults { is_reload_refused: true, has_upgrade_failed: true };
        let status = one_line(&status_text(0, 1, 0, Some("the store\nis away"), faults));
        assert_eq!(
            status,
            "0 of 1 routes up, 0 requests running; no paid calls: the store is away; reload \
             refused, the old settings stay (see the log); upgrade failed, this \
             process stays (see the log)"
        );
    }
}
