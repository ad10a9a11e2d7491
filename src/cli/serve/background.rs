//! The tasks beside the requests: resolving names, sweeping expired holds, reloading rules; and at
//! the end the process exits as soon as the last response is sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use futures_util::FutureExt as _;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::credentials::ReloadableCredentials;
use super::key_upkeep::KeyUpkeep;
use super::reload::RulesReload;
use super::service_report::ServiceReport;
use super::usage_follower::follow_journals;
use crate::catalogue::Catalogue;
use crate::clock::unix_ms;
use crate::files::bodies::BodyFiles;
use crate::gateway::edge::connection_limits::ConnectionLimits;
use crate::gateway::in_flight::InFlight;
use crate::gateway::limits::Timeouts;
use crate::gateway::traffic::live_feed::LiveFeed;
use crate::gateway::upstream::pool::UpstreamPool;
use crate::gateway::upstream::probe::RouteProber;
use crate::gateway::upstream::routes::RouteTable;
use crate::gateway::upstream::routes::VendorRoute;
use crate::jobs::worker::JobWorker;
use crate::ledger::{Ledger, Unavailable};
use crate::metrics::METRICS;
use crate::notifier::changed_accounts::ChangedAccounts;
use crate::store::OpenStore;
use crate::store::maintenance::Maintenance;
use crate::task_group::run_group;
use crate::traces::tracer::Tracer;

/// The interval between two lookups of the vendors' host names, and the shorter one while some name
/// was never resolved.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
const RESOLVE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two sweeps of expired holds; it is shorter if leases are short.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// The interval between two sweeps of the bodies in the object store. A sweep runs earlier if there
/// is little room, but never without the pause.
const BODY_SWEEP_INTERVAL: Duration = Duration::from_secs(60);
const BODY_SWEEP_PAUSE: Duration = Duration::from_secs(1);
/// How often the rules files are checked for changes.
const RELOAD_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is checked whether a route needs a probe.
const PROBE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Keep-alive clients get this long for one last request, whose response closes the connection: a
/// client whose connection is closed cannot know whether its request was read.
const KEEPALIVE_DRAIN: Duration = Duration::from_millis(500);
/// How long a stopping process waits for the store to acknowledge settlements, if they are in the
/// outbox.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a stopping process tries to write the first attempts of calls to the store.
const SHARE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stopping process waits until the store has noted when keys were last used.
const KEY_USE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a stopping process tries to send the last traces.
const TRACE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a stopping process counts the requests that are still running.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The background tasks and what they need.
pub(super) struct BackgroundTasks {
    pub(super) store: OpenStore,
    /// The accounts whose journals have grown, for the webhooks.
    pub(super) changed_accounts: Arc<ChangedAccounts>,
    pub(super) bodies: Arc<BodyFiles>,
    pub(super) maintenance: Arc<Maintenance>,
    pub(super) routes: Arc<RouteTable>,
    pub(super) pool: Arc<UpstreamPool>,
    pub(super) keys: KeyUpkeep,
    pub(super) catalogue: Arc<ArcSwap<Catalogue>>,
    pub(super) timeouts: Timeouts,
    pub(super) live: Arc<LiveFeed>,
    pub(super) connections: Arc<ConnectionLimits>,
    pub(super) settling: InFlight,
    /// Whether the worker has finished the jobs in work.
    pub(super) worker_idle: Arc<AtomicBool>,
    pub(super) rules: RulesReload,
    pub(super) credentials: ReloadableCredentials,
    /// What the service manager is told.
    pub(super) report: ServiceReport,
    pub(super) grace_s: u64,
    /// Sends the last traces at the end; `None` if nothing is traced.
    pub(super) tracer: Option<Arc<Tracer>>,
    /// Notified when running calls are not to be waited for any longer.
    pub(super) force_stop: Arc<Notify>,
}

/// The worker for video jobs, as a service.
pub(super) struct VideoWorker(pub(super) Arc<JobWorker>);

#[async_trait]
impl BackgroundService for VideoWorker {
    async fn start(&self, shutdown: ShutdownWatch) {
        self.0.clone().run(shutdown).await;
    }
}

#[async_trait]
impl BackgroundService for BackgroundTasks {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let (ledger, patience) = (&*self.store.ledger, self.timeouts.ledger);
        let tasks = [
            self.resolve_periodically().boxed(),
            self.sweep_holds().boxed(),
            self.sweep_bodies().boxed(),
            follow_journals(&*self.store.usage, &self.changed_accounts).boxed(),
            self.reload_periodically().boxed(),
            self.probe_routes().boxed(),
            self.report.report().boxed(),
            self.keys.watch(ledger, patience).boxed(),
            self.keys.tell_uses_periodically(ledger, patience).boxed(),
        ];
        tokio::select! {
            () = run_group(tasks) => {}
            _ = shutdown.changed() => {}
        }
        self.drain_and_exit().await;
    }
}

/// Starts the maintenance of the store on a thread of its own. It begins before clients can
/// connect, and runs until the process has ended, since the last calls need their leases too.
pub(super) fn spawn_maintenance(maintenance: Maintenance) -> anyhow::Result<Arc<Maintenance>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let maintenance = Arc::new(maintenance);
    let shared = maintenance.clone();
    let run_maintenance = move || runtime.block_on(shared.run());
    std::thread::Builder::new().name("maintenance".to_owned()).spawn(run_maintenance)?;
    Ok(maintenance)
}

/// Resolves the host names of all routes. The lookups run concurrently, so that one that hangs does
/// not keep the other routes from their addresses.
pub(super) async fn resolve_all(routes: &RouteTable) {
    futures_util::future::join_all(routes.all().map(|route| resolve_route(route))).await;
}

impl BackgroundTasks {
    async fn resolve_periodically(&self) {
        loop {
            resolve_all(&self.routes).await;
            let all = self.routes.all().all(|route| route.address().is_some());
            tokio::time::sleep(if all { RESOLVE_INTERVAL } else { RESOLVE_RETRY_INTERVAL }).await;
        }
    }

    async fn sweep_holds(&self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL.min(self.timeouts.lease / 4)).await;
            if let Err(why) =
                expire_dead_holds(&*self.store.ledger, || self.maintenance.may_sweep()).await
            {
                log::warn!(event = "hold_sweep_failed", error:% = why; "hold sweep failed");
            }
        }
    }

    /// Deletes expired bodies, and makes room for new ones.
    async fn sweep_bodies(&self) {
        loop {
            let now_s = unix_ms().unsigned_abs() / 1_000;
            match self.bodies.sweep(now_s).await {
                Ok(swept) => {
                    let bytes = i64::try_from(swept.bytes).unwrap_or(i64::MAX);
                    METRICS.kept_bytes.with_label_values(&["files"]).set(bytes);
                    let evicted = METRICS.kept_evicted_bytes.with_label_values(&["files"]);
                    evicted.inc_by(swept.evicted_bytes);
                }
                Err(why) => log::warn!(
                    event = "object_sweep_failed", error:% = why;
                    "stored body sweep failed"
                ),
            }
            tokio::time::sleep(BODY_SWEEP_PAUSE).await;
            tokio::select! {
                () = tokio::time::sleep(BODY_SWEEP_INTERVAL) => {}
                () = self.bodies.low_space.notified() => {}
            }
        }
    }

    async fn reload_periodically(&self) {
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(why) => {
                log::error!(
                    event = "signal_handler_failed", error:% = why;
                    "SIGHUP handler failed; rules are reloaded when their files change"
                );
                return std::future::pending().await;
            }
        };
        let mut has_credentials = true;
        loop {
            tokio::select! {
                _ = hangup.recv() => {
                    self.report.manager.tell_reloading().await;
                    self.rules.reload();
                    has_credentials = self.credentials.reload();
                    let is_refused = self.rules.is_refused() || !has_credentials;
                    self.report.report_reloaded(is_refused).await;
                }
                () = tokio::time::sleep(RELOAD_POLL_INTERVAL) => {
                    self.rules.reload_if_changed();
                    let is_refused = self.rules.is_refused() || !has_credentials;
                    self.report.manager.note_reload(is_refused);
                    self.routes.all().for_each(|route| route.report_state(unix_ms()));
                    self.pool.sweep();
                }
            }
        }
    }

    /// Probes the routes that fail.
    async fn probe_routes(&self) {
        loop {
            tokio::time::sleep(PROBE_POLL_INTERVAL).await;
            let prober = RouteProber { pool: &self.pool, timeouts: &self.timeouts };
            prober.probe_suspected(&self.routes, &self.catalogue.load_full()).await;
        }
    }

    /// Waits for the last response and its settlement, then exits: pingora itself would sleep for
    /// its whole grace period.
    async fn drain_and_exit(&self) {
        let in_time = tokio::select! {
            (in_time, ()) = async { tokio::join!(self.drain(), self.share_attempts()) } => in_time,
            // The last streams may go on for long, and end as well if their accounts are suspended.
            () = self.keys.watch(&*self.store.ledger, self.timeouts.ledger) => false,
            () = self.force_stop.notified() => false,
            () = self.report.report_stopping() => false,
        };
        if in_time {
            self.keys.tell_uses(&*self.store.ledger, KEY_USE_TIMEOUT).await;
        }
        self.maintenance.finish().await;
        self.maintenance.flush();
        if let Some(tracer) = &self.tracer {
            tracer.flush(TRACE_TIMEOUT).await;
        }
        log::info!(event = "stopped", cut = self.report.requests.used(), in_time; "stopped");
        std::process::exit(0);
    }

    /// Writes the first attempts of calls to the store, so that a retry finds them at the next
    /// process. Those of calls that still run are completed there when they end.
    async fn share_attempts(&self) {
        let shared = tokio::time::timeout(SHARE_TIMEOUT, self.maintenance.share_attempts()).await;
        let shared = shared.unwrap_or_else(|_| Err(Unavailable("no answer in time".to_owned())));
        if let Err(why) = shared {
            log::warn!(
                event = "attempts_not_stored", error:% = why;
                "first attempts not stored at shutdown; their retries find no reply"
            );
        }
    }

    /// Waits for the last response and its settlement. Returns whether all requests ended in time.
    async fn drain(&self) -> bool {
        let drain_until = Instant::now() + KEEPALIVE_DRAIN;
        let last = async {
            while self.connections.count() > 0 && Instant::now() < drain_until {
                tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
            }
            // Checked twice: a request may have begun that is not counted yet.
            for _ in 0..2 {
                tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
                while self.report.in_flight.count() > 0 || !self.worker_idle.load(Ordering::SeqCst)
                {
                    tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
                }
            }
        };
        let grace = Duration::from_secs(self.grace_s);
        let began = Instant::now();
        let done = tokio::time::timeout(grace, last).await;
        // Settlements in the outbox will be sent by another process when the store is reachable
        // again, so they are waited for only briefly.
        let rest = grace.saturating_sub(began.elapsed());
        let settle_timeout =
            if self.maintenance.is_outbox_writable() { rest.min(SETTLE_TIMEOUT) } else { rest };
        let settled = async {
            while self.settling.count() > 0 {
                tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(settle_timeout, settled).await.is_err() {
            log::warn!(
                event = "shutdown_settlement_pending", holds = self.settling.count();
                "settlements not acknowledged by the store at shutdown"
            );
        }
        done.is_ok()
    }
}

/// Ends all expired holds while `may_continue` returns true. A store ends one batch at a time; the
/// rest of a large number, as a dead process leaves, must not wait for the next sweep.
async fn expire_dead_holds(
    ledger: &dyn Ledger,
    may_continue: impl Fn() -> bool,
) -> Result<(), Unavailable> {
    while may_continue() {
        let swept = ledger.expire_holds().await?;
        METRICS.holds_open.set(i64::try_from(swept.open).unwrap_or(i64::MAX));
        METRICS.held_nanousd.set(swept.held.nano());
        if swept.expired == 0 {
            break;
        }
        log::warn!(
            event = "holds_expired", expired = swept.expired;
            "expired holds released"
        );
    }
    Ok(())
}

async fn resolve_route(route: &VendorRoute) {
    if route.base.host.parse::<std::net::IpAddr>().is_ok() {
        return;
    }
    match tokio::net::lookup_host((route.base.host.as_str(), route.base.port)).await {
        Ok(found) => {
            let mut addresses: Vec<SocketAddr> = found.collect();
            // On a host without IPv6, a connection to an IPv6 address would fail first.
            addresses.sort_by_key(SocketAddr::is_ipv6);
            route.set_addresses(addresses);
        }
        Err(why) => log::warn!(
            event = "dns_lookup_failed", host = route.base.host, error:% = why;
            "dns lookup failed"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{AccountName, Operation};
    use crate::money::Money;
    use crate::store::sqlite::SqliteStore;

    #[tokio::test]
    async fn of_more_dead_holds_than_a_store_ends_at_a_time_none_waits_for_the_next_sweep() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        assert_eq!(SqliteStore::create(&path), Ok(true));
        let ledger = SqliteStore::open(&path).expect("a store");
        let (account, one) = (AccountName::parse("a").expect("a name"), Money::from_nano(1));
        let (one, all) = (one.expect("money"), Money::from_nano(2_500).expect("money"));
        ledger.open_account(&account).await.expect("an account");
        let paid = Operation::Credit { tx: "t".to_owned(), amount: all };
        ledger.submit(&account, paid).await.expect("credit");
        for number in 0..2_500 {
            let id = number.to_string();
            let hold = Operation::Hold {
                id,
                wanted: one,
                least: one,
                lease_ms: 0,
                key: None,
                rates: Vec::new(),
            };
            ledger.submit(&account, hold).await.expect("a hold");
        }
        let held = async || ledger.balances(&account).await.expect("them").expect("them").held;
        expire_dead_holds(&ledger, || false).await.expect("nothing to be done");
        assert_eq!(held().await, all);
        expire_dead_holds(&ledger, || true).await.expect("a sweep");
        assert_eq!(held().await, Money::ZERO);
    }
}
