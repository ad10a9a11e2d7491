//! The server of the API: HTTP/1.1, with bounds for connections, heads and times.

use std::io::{self, Cursor};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, Chain, Join, join};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tower_service::Service as _;

use super::client_address::{AddressSource, ClientAddress};
use super::state::REQUESTS_MAX;
use crate::gateway::edge::connection_limits::ConnectionLimits;
use crate::gateway::edge::proxy_protocol::ProxyHeaderError;

/// A PROXY header must have come within this time.
const PROXY_HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// What a client is told whose proxy passes on both headers with the address of a client.
const BOTH_HEADERS: &str = "send 'forwarded' or 'x-forwarded-for', and not both\n";
/// A client must take some of a reply within this time.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long a stopping server waits for the requests that run. A refund waits for at most 90 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(100);
/// The pause after a connection could not be accepted.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// What the connections of a listener may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionBounds {
    /// The most connections at a time. Others wait.
    pub(crate) total_max: usize,
    /// The most of them from one address (of IPv6, from one /64) that is no proxy's; 0 is no bound.
    pub(crate) from_address_max: usize,
    /// A head must have come within this time, also the next one of a connection that is kept.
    pub(crate) head_timeout: Duration,
}

impl ConnectionBounds {
    /// Those of an address that operators alone can reach.
    pub(crate) const PRIVATE: ConnectionBounds = ConnectionBounds {
        total_max: 64,
        from_address_max: 0,
        head_timeout: Duration::from_secs(30),
    };
    /// Those of an address that anybody may reach.
    pub(crate) const PUBLIC: ConnectionBounds = ConnectionBounds {
        total_max: 512,
        from_address_max: 32,
        head_timeout: Duration::from_secs(10),
    };
}

/// What is served at an address.
#[derive(Clone)]
pub(crate) struct ServedRouters {
    /// What is below `/admin/`; `None` if nothing is there.
    pub(crate) api: Option<Router>,
    /// All other paths.
    pub(crate) pages: Router,
    /// Where the addresses of clients are found.
    pub(crate) addresses: Arc<AddressSource>,
    pub(crate) bounds: ConnectionBounds,
}

impl ServedRouters {
    fn of_path(&mut self, path: &str) -> &mut Router {
        match &mut self.api {
            Some(api) if path.starts_with("/admin/") => api,
            _ => &mut self.pages,
        }
    }
}

/// Accepts connections and serves them, until the process stops. Then the requests that run are
/// waited for: each has a permit of `running`.
pub(crate) async fn serve(
    listener: TcpListener,
    routers: ServedRouters,
    running: Arc<Semaphore>,
    mut stopping: watch::Receiver<bool>,
) {
    let bounds = routers.bounds;
    let connections = Arc::new(Semaphore::new(bounds.total_max));
    let limits = ConnectionLimits::without_metrics(bounds.total_max, bounds.from_address_max);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &connections) => accepted,
            _ = stopping.changed() => break,
        };
        match accepted {
            Ok((stream, address, permit)) => {
                let (routers, mut stopping) = (routers.clone(), stopping.clone());
                let limits = limits.clone();
                tokio::spawn(async move {
                    let peer = address.ip();
                    let opening = open_connection(stream, peer, &routers.addresses, &mut stopping);
                    if let Some((stream, connection)) = opening.await {
                        let client = routers.addresses.client_of(connection);
                        // One client leaves the others their places.
                        match limits.acquire(client) {
                            Ok(place) => {
                                serve_connection(stream, connection, routers, stopping).await;
                                drop(place);
                            }
                            Err(_) => log::debug!(
                                event = "console_connection_refused";
                                "too many connections from one address"
                            ),
                        }
                    }
                    drop(permit);
                });
            }
            Err(why) => {
                log::warn!(
                    event = "console_accept_failed", error:% = why;
                    "connection to the console not accepted"
                );
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
    drop(listener);
    let all = u32::try_from(REQUESTS_MAX).unwrap_or(u32::MAX);
    if timeout(STOP_TIMEOUT, running.acquire_many(all)).await.is_err() {
        log::warn!(event = "console_stop_slow"; "requests of operators still run at shutdown");
    }
}

/// Accepts a connection once there is a permit for it.
async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = connections.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, address, permit))
}

/// The stream of a connection: what was read of it already, and then the rest.
type ConnectionStream = Join<Chain<Cursor<Vec<u8>>, OwnedReadHalf>, OwnedWriteHalf>;

/// Reads what a connection has before its requests. Returns whose connection it is; `None` if it
/// has ended, if it does not begin as it has to, or if that takes too long.
async fn open_connection(
    mut stream: TcpStream,
    peer: IpAddr,
    addresses: &AddressSource,
    stopping: &mut watch::Receiver<bool>,
) -> Option<(ConnectionStream, ClientAddress)> {
    let reading = timeout(PROXY_HEADER_TIMEOUT, addresses.read_connection(&mut stream, peer));
    let read = tokio::select! {
        read = reading => read.ok()?,
        _ = stopping.changed() => return None,
    };
    if read == Err(ProxyHeaderError::Malformed) {
        log::debug!(event = "proxy_header_malformed"; "malformed PROXY header");
    }
    let (address, rest) = read.ok()?;
    let (from, to) = stream.into_split();
    Some((join(Cursor::new(rest).chain(from), to), address))
}

/// Serves the requests of a connection until it ends. A stopping server answers the request that
/// runs, and closes the connection.
async fn serve_connection(
    stream: ConnectionStream,
    connection: ClientAddress,
    routers: ServedRouters,
    mut stopping: watch::Receiver<bool>,
) {
    let head_timeout = routers.bounds.head_timeout;
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let (mut request, mut routers) = (request.map(Body::new), routers.clone());
        async move {
            let Ok(client) = routers.addresses.resolve(connection, request.headers()) else {
                return Ok((StatusCode::BAD_REQUEST, BOTH_HEADERS).into_response());
            };
            request.extensions_mut().insert(client);
            let router = routers.of_path(request.uri().path());
            router.call(request).await
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(HEAD_BYTES_MAX);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let stream = TokioIo::new(Box::pin(stream));
    let mut connection = pin!(builder.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(why) = ended {
        log::debug!(event = "console_connection_ended", error:% = why; "operator connection ended");
    }
}
