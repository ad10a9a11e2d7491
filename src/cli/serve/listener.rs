//! The service at which clients connect: the edge, with the gateway behind it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::HttpServerOptions;
use pingora::listeners::tls::Acceptor;
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora::proxy::{HttpProxy, http_proxy};
use pingora::server::configuration::ServerConf;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service as Opening;
use pingora::services::listening::Service;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::service_report::RequestsRuntime;
use crate::conf::Config;
use crate::gateway::edge::connection_limits::ConnectionLimits;
use crate::gateway::edge::unread_fields::is_for_unread;
use crate::gateway::edge::{EdgeConfig, EdgeService};
use crate::gateway::state::Gateway;
use crate::store::OpenStore;

/// The most streams at a time in one HTTP/2 connection of a client, and the flow-control window of
/// each stream in bytes.
const H2_STREAMS_MAX: u32 = 32;
const H2_STREAM_WINDOW: u32 = 256 << 10;

/// How long the service waits for a connection to the store before it accepts clients.
const STORE_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Accepts connections once the store is connected on the runtime that serves requests. Otherwise
/// the first requests would wait for that, perhaps too long.
pub(super) struct ListenerService {
    pub(super) store: OpenStore,
    /// Set to the runtime of this service when it starts.
    pub(super) runtime: RequestsRuntime,
    pub(super) service: Service<EdgeService<HttpProxy<Gateway>>>,
}

#[async_trait]
impl Opening for ListenerService {
    async fn start_service(
        &mut self,
        sockets: Option<ListenFds>,
        shutdown: ShutdownWatch,
        listeners_per_socket: usize,
    ) {
        // This fails only if the service was started before, which pingora does not do.
        let _ = self.runtime.set(Handle::current());
        // If the store does not connect in time, clients are accepted all the same, and get a
        // response.
        let _ = timeout(STORE_CONNECT_TIMEOUT, self.store.connect()).await;
        Opening::start_service(&mut self.service, sockets, shutdown, listeners_per_socket).await;
    }

    fn name(&self) -> &str {
        Opening::name(&self.service)
    }

    fn threads(&self) -> Option<usize> {
        Opening::threads(&self.service)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        Opening::listen_addresses(&self.service)
    }
}

/// Builds the service.
pub(super) fn build(
    conf: &Config,
    server: &Arc<ServerConf>,
    gateway: Gateway,
    connection_limits: Arc<ConnectionLimits>,
    tls: Option<Acceptor>,
) -> Service<EdgeService<HttpProxy<Gateway>>> {
    let (in_flight, overload) = (gateway.in_flight.clone(), gateway.overload.clone());
    let proxies = gateway.trusted_proxies.clone();
    let (catalogue, routes) = (gateway.catalogue.clone(), gateway.routes.clone());
    let is_renamed = routes.real_header_names().any(is_for_unread);
    let is_unread_forwarded =
        Arc::new(move || is_renamed || catalogue.load().forward_headers().any(is_for_unread));
    let mut app = http_proxy(server, gateway);
    let mut options = HttpServerOptions::default();
    options.h2_idle_timeout = Some(conf.timeouts.keepalive);
    app.server_options = Some(options);
    app.h2_options = Some(h2_options(conf.limits.head_bytes_max));
    let parts = EdgeConfig {
        app,
        tls,
        connection_limits,
        in_flight,
        overload,
        proxies,
        is_unread_forwarded,
    };
    let edge = EdgeService::new(parts, &conf.limits, &conf.timeouts);
    let mut service = Service::new("gateway".to_owned(), edge);
    let mut listener = ListenerConfig::tcp(&conf.listen.http);
    if conf.listen.tls.is_none() {
        // The readers of a connection have their own buffer; one more would use pages of memory for
        // each connection.
        listener = listener.l4_buffer(L4BufferSettings::default().read(0));
    }
    service.add_listener(listener);
    service
}

/// Returns the HTTP/2 settings. A body that waits for memory is not read. The unread bytes of all
/// such bodies must fit into the window of their connection, or they would block its other streams.
fn h2_options(head_bytes_max: usize) -> H2Options {
    let mut options = default_h2_options();
    options.max_concurrent_streams(H2_STREAMS_MAX);
    options.initial_window_size(H2_STREAM_WINDOW);
    options.initial_connection_window_size((H2_STREAMS_MAX + 16) * H2_STREAM_WINDOW);
    options.max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX));
    options
}
