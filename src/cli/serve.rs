//! `tollgate serve`: the gateway, its admin address, and what goes on in the background.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use pingora_core::connectors::ConnectorOptions;
use pingora_core::server::configuration::{Opt, ServerConf};
use pingora_core::server::{RunArgs, Server};
use pingora_core::services::background::background_service;
use tokio::sync::Notify;

use crate::catalogue::Catalogue;
use crate::conf::Config;
use crate::files::VideoFiles;
use crate::files::bodies::{BodyFiles, BodyStoreLimits};
use crate::gateway::dial::{NO_CERTIFICATES, PlainPool};
use crate::gateway::edge::crowd::ConnectionLimits;
use crate::gateway::routes::{RouteTable, VendorReadiness};
use crate::gateway::videos::VideoService;
use crate::gateway::{Gateway, GatewayConfig};
use crate::jobs::studio::{VideoClient, VideoRoute};
use crate::jobs::worker::{JobWorker, WorkerMemory};
use crate::ledger::Leases;
use crate::metrics;
use crate::repeats::REPLIES_BYTES_MAX;
use crate::store::upkeep::Maintenance;
use crate::store::{self, OpenStore, ServingStore};

mod admin;
mod background;
mod certificate;
mod credentials;
mod descriptors;
mod entrance;
mod handover;
mod opening;
mod reload;
mod signals;
mod takeover;

use certificate::ServerCertificate;
use credentials::VendorCredentials;
use handover::ListenerSet;
use opening::{StoreReadiness, UpgradeRequest};
use signals::SignalHandler;

/// Idle connections to vendors that are kept, for each thread.
const IDLE_MAX: usize = 512;
/// Names are waited for so long before connections are taken.
const RESOLVE_WAIT: Duration = Duration::from_secs(2);

pub(super) fn run(conf: &Config, conf_file: &str, upgrade: bool) -> anyhow::Result<()> {
    super::logging::start(conf.log);
    metrics::init();
    // Only fails if a provider is installed already, which then serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let catalogue = Arc::new(ArcSwap::from_pointee(super::rules::catalogue(conf)?));
    let leases = Leases::default();
    let ServingStore { requests, background: own, worker: workers, upkeep } =
        stores(conf, &leases)?;
    let OpenStore { ledger, notes, queue, repeats, .. } = requests.clone();
    let upkeep = Arc::new(upkeep);
    background::keep(&upkeep)?;
    let routes = routes(conf)?;
    let files = Arc::new(VideoFiles::open(&conf.files).context("cannot open files.url")?);
    let bodies = bodies(conf, &files);
    let link_secrets = super::judge_secrets(conf)?;
    let public_base = conf.files.public_base.clone();
    let videos = VideoService::new(queue, files.clone(), public_base, conf.videos, link_secrets);
    let worker = worker(conf, &routes, &catalogue, workers, (&videos, files, bodies.clone()))?;
    let (clients_max, admin_max) = descriptors::connections_max(conf.limits.connections_max);
    let crowd = ConnectionLimits::new(clients_max, conf.limits.connections_per_address_max);
    let mut server = Server::new_with_opt_and_conf(Some(Opt::default()), server_conf(conf));
    let gateway = Gateway::new(GatewayConfig {
        catalogue: catalogue.clone(),
        routes: routes.clone(),
        ledger,
        notes,
        leases,
        bodies_apart: bodies.clone(),
        videos,
        repeats,
        store_name: store::name(&conf.store),
        limits: conf.limits,
        timeouts: conf.timeouts,
        dial: dial(conf, &server.configuration),
        proxies: conf.listen.proxies.clone().map(Arc::new),
    });
    let credentials = VendorCredentials::load(conf, conf_file, routes.clone())?;
    let acceptor = credentials.certificate.as_ref().map(ServerCertificate::acceptor);
    let background = background::BackgroundTasks {
        ledger: own.ledger.clone(),
        bodies,
        upkeep: upkeep.clone(),
        sweep_every: background::SWEEP_EVERY.min(conf.timeouts.lease / 4),
        routes: routes.clone(),
        dial: gateway.dial.clone(),
        busy: gateway.busy.clone(),
        crowd: crowd.clone(),
        settling: gateway.settling.clone(),
        worker_idle: worker.idle.clone(),
        catalogue: catalogue.clone(),
        timeouts: conf.timeouts,
        rules: reload::RulesReload::new(conf, catalogue.clone()),
        credentials,
        grace_s: conf.server.grace_s,
        hurry: Arc::default(),
    };
    let entrance = entrance::build(conf, &server.configuration, gateway, (crowd, acceptor));
    let entrance = entrance::ListenerService { store: requests, service: entrance };
    let admin = admin::build(conf, own.ledger, (routes.clone(), catalogue), admin_max)?;
    find_vendors(&routes)?;
    let (opening, signals) = prepare(conf, upgrade, upkeep, background.hurry.clone())?;
    let opening = server.add_service(opening);
    server.add_service(entrance).add_dependency(&opening);
    server.add_service(admin).add_dependency(&opening);
    server.add_service(background_service("background", background));
    if conf.videos.worker {
        let worker = background_service("worker", background::VideoWorker(Arc::new(worker)));
        server.add_service(worker).add_dependency(&opening);
    }
    server.bootstrap();
    server.run(RunArgs { shutdown_signal: Box::new(signals) });
    std::process::exit(0)
}

/// The ways to the vendors, each with its key and its TLS.
fn routes(conf: &Config) -> anyhow::Result<Arc<RouteTable>> {
    RouteTable::new(&conf.vendors).map(Arc::new).map_err(|fault| super::faults(&[fault]))
}

/// What is too large for the ledger's store, as much of it as there may be.
fn bodies(conf: &Config, files: &Arc<VideoFiles>) -> Arc<BodyFiles> {
    let limits = BodyStoreLimits { total: conf.files.kept_bytes_max, account: REPLIES_BYTES_MAX };
    Arc::new(BodyFiles::new(files.clone(), limits))
}

/// What begins to serve, and what ends it; for an upgrade, the running process is told as well.
fn prepare(
    conf: &Config,
    upgrade: bool,
    upkeep: Arc<Maintenance>,
    hurry: Arc<Notify>,
) -> anyhow::Result<(StoreReadiness, SignalHandler)> {
    let (socket, listeners) = (takeover::socket(&conf.server)?, Arc::<ListenerSet>::default());
    takeover::check_place(&socket);
    let signals = SignalHandler::new(conf, socket.clone(), listeners.clone(), hurry);
    let arrival =
        if upgrade { Some(takeover::begin(&conf.server, &socket, &upkeep)?) } else { None };
    let opening = StoreReadiness::new(conf, upkeep, listeners);
    Ok((opening.instead(arrival.map(|arrival| UpgradeRequest { socket, arrival })), signals))
}

/// Looks up where the vendors are, so that the first calls find them.
fn find_vendors(routes: &RouteTable) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let looking = async { tokio::time::timeout(RESOLVE_WAIT, background::look_up(routes)).await };
    if runtime.block_on(looking).is_err() {
        log::warn!(event = "dns_lookup_slow"; "not all vendors' names are resolved yet");
    }
    // A name that hangs must not hold it up any longer.
    runtime.shutdown_background();
    Ok(())
}

/// The store, which is asked first whether it is one.
fn stores(conf: &Config, leases: &Leases) -> anyhow::Result<ServingStore> {
    let cannot = "cannot open the store";
    if store::name(&conf.store) != "sqlite" {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(store::open(&conf.store)).context(cannot)?;
    }
    store::serving(&conf.store, leases.clone(), conf.timeouts.lease).context(cannot)
}

/// The worker, which reaches the vendors by the same routes as the gateway.
fn worker(
    conf: &Config,
    routes: &RouteTable,
    catalogue: &Arc<ArcSwap<Catalogue>>,
    store: OpenStore,
    (videos, files, bodies): (&VideoService, Arc<VideoFiles>, Arc<BodyFiles>),
) -> anyhow::Result<JobWorker> {
    let mut outlets = Vec::new();
    for vendor in &conf.vendors {
        let line = routes.of(&vendor.naming.vendor);
        for route in line.into_iter().flat_map(VendorReadiness::routes) {
            let (section, naming) = route.section();
            outlets.push(VideoRoute::new(section, naming, route.key.clone(), &vendor.file_hosts));
        }
    }
    let answer_wait = Duration::from_millis(conf.videos.answer_ms);
    Ok(JobWorker {
        queue: store.queue,
        ledger: store.ledger,
        files,
        bodies,
        catalogue: catalogue.clone(),
        studio: VideoClient::new(outlets, answer_wait)
            .context("cannot speak to the video vendors")?,
        schedule: conf.videos,
        bell: videos.bell.clone(),
        idle: Arc::new(AtomicBool::new(true)),
        room: WorkerMemory::default(),
    })
}

/// The way to vendors. pingora's own is not used, and trusts nobody; this one does.
fn dial(conf: &Config, server: &ServerConf) -> PlainPool {
    let options = ConnectorOptions { ca_file: None, ..ConnectorOptions::from_server_conf(server) };
    PlainPool::new(options, conf.timeouts.idle)
}

fn server_conf(conf: &Config) -> ServerConf {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if conf.server.threads == 0 { cores } else { conf.server.threads };
    ServerConf {
        threads,
        upstream_keepalive_pool_size: IDLE_MAX,
        grace_period_seconds: Some(conf.server.grace_s),
        graceful_shutdown_timeout_seconds: Some(1),
        // Else the proxy that pingora makes would read the system's certificates, which takes
        // longer than most of a start; `dial` makes all connections to vendors.
        ca_file: Some(NO_CERTIFICATES.to_owned()),
        ..ServerConf::default()
    }
}
