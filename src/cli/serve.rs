//! `tollgate serve`: the gateway, its admin address, and what goes on in the background.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use pingora::connectors::ConnectorOptions;
use pingora::server::configuration::{Opt, ServerConf};
use pingora::server::{RunArgs, Server};
use pingora::services::background::background_service;
use tokio::sync::Notify;

use super::{logging, rules, settings};
use crate::catalogue::Catalogue;
use crate::conf::Config;
use crate::files::VideoFiles;
use crate::files::bodies::{BodyFiles, BodyStoreLimits};
use crate::gateway::edge::connection_limits::ConnectionLimits;
use crate::gateway::state::{Gateway, GatewayConfig};
use crate::gateway::upstream::pool::{NO_CERTIFICATES, UpstreamPool};
use crate::gateway::upstream::routes::{RouteTable, VendorRouteSet};
use crate::gateway::videos::shared::VideoService;
use crate::idempotency::REPLIES_BYTES_MAX;
use crate::jobs::JobQueue;
use crate::jobs::video_client::{VideoClient, VideoRoute};
use crate::jobs::worker::{JobWorker, WorkerCapacity};
use crate::ledger::Leases;
use crate::metrics;
use crate::store::maintenance::Maintenance;
use crate::store::{self, OpenStore, ServingStore};

mod admin;
mod background;
mod certificate;
mod credentials;
mod handover;
mod listener;
mod readiness;
mod reload;
mod rlimit;
mod signals;
mod upgrade;

use certificate::ServerCertificate;
use credentials::ReloadableCredentials;
use handover::ListenerSet;
use readiness::{StartupGate, UpgradeRequest};
use signals::SignalHandler;

/// Idle connections to vendors that are kept, for each thread.
const IDLE_CONNECTIONS_MAX: usize = 512;
/// Names are waited for so long before connections are taken.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn run(conf: &Config, conf_file: &str, upgrade: bool) -> anyhow::Result<()> {
    start_process(conf);
    let catalogue = Arc::new(ArcSwap::from_pointee(rules::load_catalogue(conf)?));
    let leases = Leases::default();
    let ServingStore { requests, background: own, worker: workers, maintenance } =
        open_stores(conf, &leases)?;
    let OpenStore { ledger, account_cache, queue, reply_store, .. } = requests.clone();
    let maintenance = Arc::new(maintenance);
    background::spawn_maintenance(&maintenance)?;
    let routes = build_routes(conf)?;
    let files = Arc::new(VideoFiles::open(&conf.files).context("cannot open files.url")?);
    let bodies = build_body_files(conf, &files);
    let videos = build_videos(conf, queue, &files)?;
    let worker = build_worker(conf, &routes, &catalogue, workers, &videos, files, bodies.clone())?;
    let (clients_max, admin_max) = rlimit::connections_max(conf.limits.connections_max);
    let connection_limits =
        ConnectionLimits::new(clients_max, conf.limits.connections_per_address_max);
    let mut server = Server::new_with_opt_and_conf(Some(Opt::default()), pingora_conf(conf));
    let gateway = Gateway::new(GatewayConfig {
        catalogue: catalogue.clone(),
        routes: routes.clone(),
        ledger,
        account_cache,
        leases,
        body_files: bodies.clone(),
        videos,
        reply_store,
        store_name: store::kind_label(&conf.store),
        limits: conf.limits,
        timeouts: conf.timeouts,
        upstream_pool: build_pool(conf, &server.configuration),
        trusted_proxies: conf.listen.proxies.clone().map(Arc::new),
    });
    let credentials = ReloadableCredentials::load(conf, conf_file, routes.clone())?;
    let acceptor = credentials.certificate.as_ref().map(ServerCertificate::acceptor);
    let background = background::BackgroundTasks {
        ledger: own.ledger.clone(),
        bodies,
        maintenance: maintenance.clone(),
        sweep_interval: background::SWEEP_INTERVAL.min(conf.timeouts.lease / 4),
        routes: routes.clone(),
        pool: gateway.upstream_pool.clone(),
        in_flight: gateway.in_flight.clone(),
        connections: connection_limits.clone(),
        settling: gateway.settlements.clone(),
        worker_idle: worker.idle.clone(),
        catalogue: catalogue.clone(),
        timeouts: conf.timeouts,
        rules: reload::RulesReload::new(conf, catalogue.clone()),
        credentials,
        grace_s: conf.server.grace_s,
        force_stop: Arc::default(),
    };
    let gateway_service =
        listener::build(conf, &server.configuration, gateway, connection_limits, acceptor);
    let listener_service = listener::ListenerService { store: requests, service: gateway_service };
    let admin = admin::build(conf, own.ledger, routes.clone(), catalogue, admin_max)?;
    resolve_vendors(&routes)?;
    let (startup_gate, signals) =
        prepare(conf, upgrade, maintenance, background.force_stop.clone())?;
    let startup_gate = server.add_service(startup_gate);
    server.add_service(listener_service).add_dependency(&startup_gate);
    server.add_service(admin).add_dependency(&startup_gate);
    server.add_service(background_service("background", background));
    if conf.videos.worker {
        let worker = background_service("worker", background::VideoWorker(Arc::new(worker)));
        server.add_service(worker).add_dependency(&startup_gate);
    }
    server.bootstrap();
    server.run(RunArgs { shutdown_signal: Box::new(signals) });
    std::process::exit(0)
}

/// Sets up what is there once a process: the log, the metrics, the cryptography.
fn start_process(conf: &Config) {
    logging::start(conf.log);
    metrics::register_all();
    // Only fails if a provider is installed already, which then serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The ways to the vendors, each with its key and its TLS.
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

/// What is too large for the ledger's store, as much of it as there may be.
fn build_body_files(conf: &Config, files: &Arc<VideoFiles>) -> Arc<BodyFiles> {
    let limits = BodyStoreLimits { total: conf.files.kept_bytes_max, account: REPLIES_BYTES_MAX };
    Arc::new(BodyFiles::new(files.clone(), limits))
}

/// What begins to serve, and what ends it; for an upgrade, the running process is told as well.
fn prepare(
    conf: &Config,
    upgrade: bool,
    maintenance: Arc<Maintenance>,
    force_stop: Arc<Notify>,
) -> anyhow::Result<(StartupGate, SignalHandler)> {
    let (socket, listeners) =
        (upgrade::upgrade_socket(&conf.server)?, Arc::<ListenerSet>::default());
    upgrade::check_socket_folder(&socket);
    let signals = SignalHandler::new(conf, socket.clone(), listeners.clone(), force_stop);
    let receiver = if upgrade {
        Some(upgrade::request_handover(&conf.server, &socket, &maintenance)?)
    } else {
        None
    };
    let startup_gate = StartupGate::new(conf, maintenance, listeners);
    Ok((
        startup_gate.with_upgrade(receiver.map(|receiver| UpgradeRequest { socket, receiver })),
        signals,
    ))
}

/// Looks up where the vendors are, so that the first calls find them.
fn resolve_vendors(routes: &RouteTable) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let looking =
        async { tokio::time::timeout(RESOLVE_TIMEOUT, background::resolve_all(routes)).await };
    if runtime.block_on(looking).is_err() {
        log::warn!(event = "dns_lookup_slow"; "vendor dns lookups are slow");
    }
    // A name that hangs must not hold it up any longer.
    runtime.shutdown_background();
    Ok(())
}

/// The store, which is asked first whether it is one.
fn open_stores(conf: &Config, leases: &Leases) -> anyhow::Result<ServingStore> {
    let cannot = "cannot open the store";
    if !conf.store.is_embedded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(store::open(&conf.store)).context(cannot)?;
    }
    store::open_for_serving(&conf.store, leases.clone(), conf.timeouts.lease).context(cannot)
}

/// The worker, which reaches the vendors by the same routes as the gateway.
fn build_worker(
    conf: &Config,
    routes: &RouteTable,
    catalogue: &Arc<ArcSwap<Catalogue>>,
    store: OpenStore,
    videos: &VideoService,
    files: Arc<VideoFiles>,
    bodies: Arc<BodyFiles>,
) -> anyhow::Result<JobWorker> {
    let mut video_routes = Vec::new();
    for vendor in &conf.vendors {
        let line = routes.for_vendor(&vendor.naming.vendor);
        for route in line.into_iter().flat_map(VendorRouteSet::routes) {
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
        store_name: store::kind_label(&conf.store),
        files,
        bodies,
        catalogue: catalogue.clone(),
        video_client: VideoClient::new(video_routes, answer_wait)
            .context("cannot speak to the video vendors")?,
        schedule: conf.videos,
        wakeup: videos.worker_wakeup.clone(),
        idle: Arc::new(AtomicBool::new(true)),
        capacity: WorkerCapacity::default(),
    })
}

/// The way to vendors. pingora's own is not used, and trusts nobody; this one does.
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
        // Else the proxy that pingora makes would read the system's certificates, which takes
        // longer than most of a start; `dial` makes all connections to vendors.
        ca_file: Some(NO_CERTIFICATES.to_owned()),
        ..ServerConf::default()
    }
}
