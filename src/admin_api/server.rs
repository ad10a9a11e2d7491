//! The server of the API: HTTP/1.1, with bounds for connections, heads and times.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tower_service::Service as _;

use super::admit::ClientAddress;
use super::state::REQUESTS_MAX;

/// The most connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// A head must have come within this time, also the first one of a connection that is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A client must take some of a reply within this time.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long a stopping server waits for the requests that run. A refund waits for at most 90 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(100);
/// The pause after a connection could not be accepted.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// What is served at an address.
#[derive(Clone)]
pub(crate) struct ServedRouters {
    /// What is below `/admin/`.
    pub(crate) api: Router,
    /// All other paths.
    pub(crate) pages: Router,
}

impl ServedRouters {
    fn of_path(&mut self, path: &str) -> &mut Router {
        if path.starts_with("/admin/") { &mut self.api } else { &mut self.pages }
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
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &connections) => accepted,
            _ = stopping.changed() => break,
        };
        match accepted {
            Ok((stream, address, permit)) => {
                let serving = serve_connection(stream, address, routers.clone(), stopping.clone());
                tokio::spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(why) => {
                log::warn!(
                    event = "console_accept_failed", error:% = why;
                    "connection of an operator not accepted"
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

/// Serves the requests of a connection until it ends. A stopping server answers the request that
/// runs, and closes the connection.
async fn serve_connection(
    stream: TcpStream,
    address: SocketAddr,
    routers: ServedRouters,
    mut stopping: watch::Receiver<bool>,
) {
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ClientAddress(address.ip()));
        routers.clone().of_path(request.uri().path()).call(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
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
