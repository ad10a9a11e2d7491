//! `tollgate serve`: runs the gateway, its admin address, and the background tasks.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use pingora::connectors::ConnectorOptions;
use pingora::server::configuration::{Opt, ServerConf};
use pingora::server::{RunArgs, Server};
use pingora::services::background::background_service;
use pingora::services::listening::Service;

use super::runtime::attach_archive;
use super::{logging, rules, settings};
use crate::admin_api::server::ConnectionBounds;
use crate::catalogue::Catalogue;
use crate::conf::Config;
use crate::files::VideoFiles;
use crate::files::bodies::{BodyFiles, BodyStoreLimits};
use crate::gateway::edge::EdgeService;
use crate::gateway::edge::connection_limits::ConnectionLimits;
use crate::gateway::state::{Gateway, GatewayConfig};
use crate::gateway::upstream::pool::{NO_CERTIFICATES, UpstreamPool};
use crate::gateway::upstream::routes::{RouteTable, VendorRouteSet};
use crate::gateway::videos::shared::VideoService;
use crate::idempotency::{FirstAttempts, REPLIES_BYTES_MAX};
use crate::jobs::JobQueue;
use crate::jobs::video_client::{VideoClient, VideoRoute};
use crate::jobs::worker::{JobWorker, WorkerCapacity};
use crate::ledger::Leases;
use crate::metrics;
use crate::store::{self, HoldTimes, OpenStore, ServingStore};

mod admin;
mod archiver;
mod background;
mod certificate;
mod console;
mod credentials;
mod handover;
mod key_upkeep;
mod listener;
mod readiness;
mod ready_check;
mod reload;
mod rlimit;
mod service_link;
mod service_report;
mod signals;
mod successor;
mod tracing;
mod upgrade;
mod usage_follower;
mod webhooks;

use credentials::ReloadableCredentials;
use handover::ListenerSet;
use key_upkeep::KeyUpkeep;
use readiness::{StartupGate, UpgradeRequest};
use service_report::ServiceReport;
use signals::SignalHandler;

/// At most this many idle connections to vendors are kept, per thread.
const IDLE_CONNECTIONS_MAX: usize = 512;
/// How long the start waits for the names of the vendors' hosts to be resolved.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn run(conf: &Config, conf_file: &str, upgrade: bool) -> anyhow::Result<()> {
    start_process(conf);
    let catalogue = Arc::new(ArcSwap::from_pointee(rules::load_catalogue(conf)?));
    let (leases, first_attempts) = <(Leases, FirstAttempts)>::default();
    let stores = open_stores(conf, &leases, &first_attempts)?;
    let OpenStore { ledger, account_cache, queue, reply_store, usage, .. } =
        stores.requests.clone();
    let maintenance = background::spawn_maintenance(stores.maintenance)?;
    let routes = build_routes(conf)?;
    let (files, bodies) = open_files(conf)?;
    let videos = build_videos(conf, queue, &files)?;
    let worker =
        build_worker(conf, &routes, &catalogue, stores.worker, &videos, &files, bodies.clone())?;
    let (connection_limits, admin_max) = build_connection_limits(conf);
    let server = Server::new_with_opt_and_conf(Some(Opt::default()), pingora_conf(conf));
    let gateway = Gateway::new(GatewayConfig {
        catalogue: catalogue.clone(),
        routes: routes.clone(),
        ledger,
        account_cache,
        first_attempts,
        fleet: stores.fleet,
        leases,
        body_files: bodies.clone(),
        videos,
        reply_store,
        usage,
        store_name: store::kind_label(&conf.store),
        limits: conf.limits,
        timeouts: conf.timeouts,
        upstream_pool: build_pool(conf, &server.configuration),
        trusted_proxies: conf.listen.proxies.clone().map(Arc::new),
        cors_origins: conf.listen.cors_origins.clone(),
        tracer: worker.tracer.clone(),
    });
    let credentials = ReloadableCredentials::load(conf, conf_file, routes.clone())?;
    let background = background::BackgroundTasks {
        store: stores.background.clone(),
        changed_accounts: webhooks::spawn(conf, &stores.background, &routes)?,
        bodies,
        maintenance: maintenance.clone(),
        routes: routes.clone(),
        pool: gateway.upstream_pool.clone(),
        live: gateway.live.clone(),
        connections: connection_limits.clone(),
        settling: gateway.settlements.clone(),
        worker_idle: worker.idle.clone(),
        tracer: worker.tracer.clone(),
        keys: KeyUpkeep::of(&gateway),
        catalogue: catalogue.clone(),
        timeouts: conf.timeouts,
        rules: reload::RulesReload::new(conf, catalogue.clone()),
        credentials,
        report: ServiceReport::new(conf, &maintenance, &routes, &gateway),
        grace_s: conf.server.grace_s,
        force_stop: Arc::default(),
    };
    let acceptor = background.credentials.acceptor();
    let runtime = background.report.requests_runtime.clone();
    let service =
        listener::build(conf, &server.configuration, gateway, connection_limits, acceptor);
    let listener_service = listener::ListenerService { store: stores.requests, runtime, service };
    let admin = admin::build(conf, background.report.check.clone(), catalogue, admin_max)?;
    resolve_vendors(&routes, upgrade)?;
    let listeners = Arc::<ListenerSet>::default();
    let consoles = console::build(conf, &stores.background, &background, &files, &listeners)?;
    let (startup, signals) = prepare(conf, upgrade, &background, listeners)?;
    let worker = conf.videos.worker.then(|| background::VideoWorker(Arc::new(worker)));
    let services =
        ServerServices { startup, listener_service, admin, consoles, background, worker };
    run_server(server, services, signals)
}

/// The services of the process. All but the background tasks wait until the sockets are open.
struct ServerServices {
    startup: StartupGate,
    listener_service: listener::ListenerService,
    admin: Service<EdgeService<admin::AdminServer>>,
    /// The API of operators with the console, and the pages of customers; each may be off.
    consoles: Vec<console::ConsoleService>,
    background: background::BackgroundTasks,
    /// The worker of video jobs; `None` if it runs elsewhere.
    worker: Option<background::VideoWorker>,
}

/// Runs the services until a signal stops them.
fn run_server(mut server: Server, services: ServerServices, signals: SignalHandler) -> ! {
    let startup_gate = server.add_service(services.startup);
    server.add_service(services.listener_service).add_dependency(&startup_gate);
    server.add_service(services.admin).add_dependency(&startup_gate);
    for console in services.consoles {
        let service = background_service(console.name, console);
        server.add_service(service).add_dependency(&startup_gate);
    }
    server.add_service(background_service("background", services.background));
    if let Some(worker) = services.worker {
        server.add_service(background_service("worker", worker)).add_dependency(&startup_gate);
    }
    server.bootstrap();
    server.run(RunArgs { shutdown_signal: Box::new(signals) });
    std::process::exit(0)
}

/// Returns the limits of clients' connections, and how many connections the admin address may have.
fn build_connection_limits(conf: &Config) -> (Arc<ConnectionLimits>, usize) {
    let private = conf.listen.console.as_ref().map(|_| ConnectionBounds::PRIVATE);
    let public = conf.listen.customers.as_ref().map(|_| ConnectionBounds::PUBLIC);
    let others = private.into_iter().chain(public).map(|bounds| bounds.total_max).sum();
    let (clients_max, admin_max) = rlimit::connections_max(conf.limits.connections_max, others);
    let per_address_max = conf.limits.connections_per_address_max;
    (ConnectionLimits::new(clients_max, per_address_max), admin_max)
}

/// Sets up what exists once per process: the log, the metrics, the cryptography.
fn start_process(conf: &Config) {
    logging::start(conf.log);
    metrics::register_all();
    // This fails only if a provider is installed already, which then serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Builds the routes to the vendors, each with its key and its TLS settings.
fn build_routes(conf: &Config) -> anyhow::Result<Arc<RouteTable>> {
    RouteTable::new(&conf.vendors).map(Arc::new).map_err(|fault| settings::config_error(&[fault]))
}

fn build_videos(
    conf: &Config,
    queue: Arc<dyn JobQueue>,
    files: &Arc<VideoFiles>,
) -> anyhow::Result<VideoService> {
    let public_base = conf.files.public_base.clone();
    let secrets = settings::load_secrets(conf)?;
    Ok(VideoService::new(queue, files.clone(), public_base, conf.videos, secrets))
}

/// Opens the object store, and in it the store of bodies that are too large for the ledger's store,
/// with its size limits.
fn open_files(conf: &Config) -> anyhow::Result<(Arc<VideoFiles>, Arc<BodyFiles>)> {
    let files = Arc::new(VideoFiles::open(&conf.files).context("cannot open files.url")?);
    let limits = BodyStoreLimits { total: conf.files.kept_bytes_max, account: REPLIES_BYTES_MAX };
    let bodies = Arc::new(BodyFiles::new(files.clone(), limits));
    Ok((files, bodies))
}

/// Prepares the start of service and the signal handler. For an upgrade, it also asks the running
/// process to hand over.
fn prepare(
    conf: &Config,
    upgrade: bool,
    background: &background::BackgroundTasks,
    listeners: Arc<ListenerSet>,
) -> anyhow::Result<(StartupGate, SignalHandler)> {
    let socket = upgrade::upgrade_socket(&conf.server)?;
    upgrade::check_socket_folder(&socket);
    let (maintenance, manager) =
        (background.maintenance.clone(), background.report.manager.clone());
    let (held, force_stop) = (listeners.clone(), background.force_stop.clone());
    let signals = SignalHandler::new(conf, socket.clone(), held, force_stop, manager.clone());
    let receiver = if upgrade {
        Some(upgrade::request_handover(&conf.server, &socket, &maintenance)?)
    } else {
        None
    };
    let startup_gate = StartupGate::new(conf, maintenance, listeners, manager);
    Ok((
        startup_gate.with_upgrade(receiver.map(|receiver| UpgradeRequest { socket, receiver })),
        signals,
    ))
}

/// Resolves the host names of the vendors, so that the first calls have addresses. A process that
/// is to replace another one, which has some, needs at least one.
fn resolve_vendors(routes: &RouteTable, upgrade: bool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let lookup_future =
        async { tokio::time::timeout(RESOLVE_TIMEOUT, background::resolve_all(routes)).await };
    if runtime.block_on(lookup_future).is_err() {
        log::warn!(event = "dns_lookup_slow"; "vendor dns lookups are slow");
    }
    // A lookup that hangs must not delay the start any longer.
    runtime.shutdown_background();
    let mut all = routes.all().peekable();
    if upgrade && all.peek().is_some() && all.all(|route| route.address().is_none()) {
        anyhow::bail!(
            "no address of a vendor is known, so that the running process is not replaced"
        );
    }
    Ok(())
}

/// Opens the store. A remote store is first opened on a short-lived runtime, which checks that the
/// server is reachable and configured so that no money can be lost.
fn open_stores(
    conf: &Config,
    leases: &Leases,
    attempts: &FirstAttempts,
) -> anyhow::Result<ServingStore> {
    let cannot = "cannot open the store";
    if !conf.store.is_embedded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(store::open(&conf.store)).context(cannot)?;
    }
    let times = HoldTimes { lease: conf.timeouts.lease, timeout: conf.timeouts.ledger };
    let opened = store::open_for_serving(&conf.store, leases.clone(), attempts.clone(), times);
    let stores = opened.context(cannot)?;
    archiver::spawn(conf, &stores.background)?;
    Ok(ServingStore {
        requests: attach_archive(conf, stores.requests),
        background: attach_archive(conf, stores.background),
        ..stores
    })
}

/// Builds the worker, which uses the same routes to the vendors as the gateway.
fn build_worker(
    conf: &Config,
    routes: &RouteTable,
    catalogue: &Arc<ArcSwap<Catalogue>>,
    store: OpenStore,
    videos: &VideoService,
    files: &Arc<VideoFiles>,
    bodies: Arc<BodyFiles>,
) -> anyhow::Result<JobWorker> {
    let mut video_routes = Vec::new();
    for vendor in &conf.vendors {
        let route_set = routes.for_vendor(&vendor.naming.vendor);
        for route in route_set.into_iter().flat_map(VendorRouteSet::routes) {
            let (section, naming) = route.section();
            video_routes.push(VideoRoute::new(
                section,
                naming,
                route.key.clone(),
                &vendor.file_hosts,
            ));
        }
    }
    let answer_wait = Duration::from_millis(conf.videos.answer_ms);
    Ok(JobWorker {
        queue: store.queue,
        ledger: store.ledger,
        webhooks: store.webhooks,
        store_name: store::kind_label(&conf.store),
        files: files.clone(),
        bodies,
        catalogue: catalogue.clone(),
        video_client: VideoClient::new(video_routes, answer_wait)
            .context("cannot speak to the video vendors")?,
        schedule: conf.videos,
        wakeup: videos.worker_wakeup.clone(),
        idle: Arc::new(AtomicBool::new(true)),
        capacity: WorkerCapacity::default(),
        tracer: tracing::start_tracer(&conf.traces)?,
    })
}

/// Builds the pool of connections to vendors. pingora's own connector is not used, and is given no
/// trusted certificates; this pool has them.
fn build_pool(conf: &Config, server: &ServerConf) -> UpstreamPool {
    let options = ConnectorOptions { ca_file: None, ..ConnectorOptions::from_server_conf(server) };
    UpstreamPool::new(options, conf.timeouts.idle)
}

fn pingora_conf(conf: &Config) -> ServerConf {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if conf.server.threads == 0 { cores } else { conf.server.threads };
    ServerConf {
        threads,
        upstream_keepalive_pool_size: IDLE_CONNECTIONS_MAX,
        grace_period_seconds: Some(conf.server.grace_s),
        graceful_shutdown_timeout_seconds: Some(1),
        // Otherwise the proxy that pingora makes would load the system's certificates, which takes
        // longer than most of a start; `UpstreamPool` makes all connections to vendors.
        ca_file: Some(NO_CERTIFICATES.to_owned()),
        ..ServerConf::default()
    }
}
