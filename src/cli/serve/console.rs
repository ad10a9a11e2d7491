//! The services of the API of operators and of the console, at the address of `listen.console`, and
//! of the pages of customers alone, at that of `listen.customers`.

use std::sync::Arc;

use anyhow::anyhow;
use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::background::BackgroundTasks;
use super::handover::ListenerSet;
use crate::admin_api::client_address::AddressSource;
use crate::admin_api::router;
use crate::admin_api::server::{self, ConnectionBounds, ServedRouters};
use crate::admin_api::state::{AdminApi, REFUNDS_MAX, REQUESTS_MAX, SEARCHES_MAX};
use crate::cli::runtime::attach_archive;
use crate::cli::settings::load_client_secret;
use crate::clock::unix_ms;
use crate::conf::Config;
use crate::console;
use crate::console::address::ConsoleAddress;
use crate::console::customer_limits::CustomerLimits;
use crate::console::guide::SetupGuide;
use crate::console::live_streams::LiveStreams;
use crate::console::oidc::CALLBACK_PATH;
use crate::console::oidc::provider::IdentityProvider;
use crate::console::overview::OverviewCache;
use crate::console::state::Console;
use crate::console::upkeep;
use crate::files::VideoFiles;
use crate::gateway::traffic::reading::TrafficLog;
use crate::store::{self, OpenStore};

/// Serves the API of operators and the console, or the pages of customers alone.
pub(super) struct ConsoleService {
    pub(super) name: &'static str,
    address: String,
    console: Console,
    /// Where the addresses of clients are found.
    addresses: Arc<AddressSource>,
    /// The sockets of this process, which a next process takes over.
    listeners: Arc<ListenerSet>,
}

/// Builds the services: one for each address that is configured.
///
/// An embedded store is shared with the rest of the process, which is `store`. To a server each
/// service has connections of its own, on its own runtime, as a command has. What else the process
/// has is `shared`. Each service has its own bounds, so that customers take no operator's place.
pub(super) fn build(
    conf: &Config,
    store: &OpenStore,
    shared: &BackgroundTasks,
    files: &Arc<VideoFiles>,
    listeners: &Arc<ListenerSet>,
) -> anyhow::Result<Vec<ConsoleService>> {
    let (listen, section) = (&conf.listen, &conf.console);
    let limits = Arc::new(CustomerLimits::new());
    let customer_links = ConsoleAddress::of_links(conf, true).map(Arc::new);
    let overview = Arc::new(OverviewCache::new());
    let traffic = Arc::new(TrafficLog::new(shared.routes.clone(), unix_ms()));
    let streams = Arc::new(LiveStreams::new());
    let guide = Arc::new(SetupGuide::new(&client_address(conf)));
    let all = [
        ("console", &listen.console, &section.url, false),
        ("customers", &listen.customers, &section.customers_url, true),
    ];
    let mut services = Vec::new();
    for (name, address, url, is_for_customers) in all {
        let Some(address) = address.clone() else { continue };
        let url = url.as_deref();
        let found_at = ConsoleAddress::new(url, &address, is_for_customers);
        let oidc = if is_for_customers { None } else { build_provider(conf, &found_at)? };
        let console = Console {
            api: build_api(conf, store, shared, files.clone())?,
            address: Arc::new(found_at),
            is_for_customers,
            customer_links: customer_links.clone(),
            limits: limits.clone(),
            overview: Arc::clone(&overview),
            traffic: traffic.clone(),
            live: shared.live.clone(),
            streams: streams.clone(),
            guide: guide.clone(),
            previous_catalogue: shared.rules.previous.clone(),
            oidc,
        };
        let addresses = Arc::new(AddressSource::new(url, listen.proxies.as_ref()));
        let listeners = listeners.clone();
        services.push(ConsoleService { name, address, console, addresses, listeners });
    }
    Ok(services)
}

/// Builds what the requests of one service share.
fn build_api(
    conf: &Config,
    store: &OpenStore,
    shared: &BackgroundTasks,
    files: Arc<VideoFiles>,
) -> anyhow::Result<AdminApi> {
    let store = if conf.store.is_embedded() {
        store.clone()
    } else {
        attach_archive(conf, store::open_lazily(&conf.store)?)
    };
    let permits = |most| Arc::new(Semaphore::new(most));
    Ok(AdminApi {
        store,
        audit: conf.audit.clone(),
        webhooks: conf.webhooks.clone(),
        files,
        catalogue: shared.catalogue.clone(),
        routes: shared.routes.clone(),
        running: permits(REQUESTS_MAX),
        searching: permits(SEARCHES_MAX),
        refunding: permits(REFUNDS_MAX),
        in_flight: shared.report.in_flight.clone(),
    })
}

/// Returns the address at which clients find the gateway, as far as the configuration tells it.
fn client_address(conf: &Config) -> String {
    if let Some(base) = &conf.files.public_base {
        return base.clone();
    }
    let scheme = if conf.listen.tls.is_some() { "https" } else { "http" };
    format!("{scheme}://{}", conf.listen.http)
}

/// Builds the identity provider by which operators sign in, if there is one.
fn build_provider(
    conf: &Config,
    found_at: &ConsoleAddress,
) -> anyhow::Result<Option<Arc<IdentityProvider>>> {
    let Some(section) = &conf.console.oidc else { return Ok(None) };
    let secret = load_client_secret(section)?;
    let provider = IdentityProvider::new(section, secret, found_at.link(CALLBACK_PATH));
    Ok(Some(Arc::new(provider.map_err(|why| anyhow!("console.oidc: {why}"))?)))
}

#[async_trait]
impl BackgroundService for ConsoleService {
    async fn start(&self, shutdown: ShutdownWatch) {
        let socket = self.listeners.find(&self.address);
        let listener = socket.and_then(|socket| socket.map(TcpListener::from_std).transpose());
        match listener {
            Ok(Some(listener)) => {
                let console = &self.console;
                let running = console.api.running.clone();
                let api = (!console.is_for_customers).then(|| router::build(console.api.clone()));
                let pages = console::router::build(console.clone());
                let bounds = if console.is_for_customers {
                    ConnectionBounds::PUBLIC
                } else {
                    ConnectionBounds::PRIVATE
                };
                let routers =
                    ServedRouters { api, pages, addresses: self.addresses.clone(), bounds };
                let serving = server::serve(listener, routers, running, shutdown.clone());
                if console.is_for_customers {
                    return serving.await;
                }
                tokio::select! {
                    () = serving => {}
                    () = upkeep::run(console, shutdown) => {}
                }
            }
            Ok(None) => log::error!(
                event = "console_not_served", address = self.address;
                "no socket for the operators' address"
            ),
            Err(why) => log::error!(
                event = "console_not_served", address = self.address, error:% = why;
                "operators' address not served"
            ),
        }
    }
}
