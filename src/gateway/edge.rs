//! The client side: limits connections, and reads and validates request heads.
//!
//! pingora keeps reading a request head for as long as the client sends bytes, and accepts heads
//! that another server might parse differently. So the edge reads each head first, within limits of
//! size and time, checks it, removes the fields that nobody reads, and hands the rest to pingora as
//! already read. It does so for every request of an HTTP/1 connection.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::listeners::tls::Acceptor;
use pingora::protocols::http::ServerSession;
use pingora::protocols::l4::stream::Stream as Socket;
use pingora::protocols::{ALPN, Ssl, Stream};
use pingora::server::ShutdownWatch;
use tokio::time::Instant;

use super::in_flight::{InFlight, InFlightGuard};
use super::limits::{Limits, Timeouts};
use crate::gateway::budgets::overload;
use crate::gateway::budgets::overload::OverloadMonitor;
use crate::gateway::request::client_address::{ProxyMode, TrustedProxies};
use crate::gateway::request::router;

mod connection;
pub(crate) mod connection_limits;
pub mod head;
mod head_reader;
mod http2;
mod limits;
pub(crate) mod proxy_protocol;
mod reject;
pub(crate) mod unread_fields;

use connection::EdgeConnection;
use connection_limits::{ConnectionLimits, ConnectionPermit, LimitReached};
use head_reader::{HeadReader, ReceivedHead};
use http2::H2Connection;
use limits::{EdgeLimits, peer_ip, with_deadline};
use proxy_protocol::{ConnectionSource, ProxyHeaderError};
use unread_fields::ForwardCheck;

/// The service that accepts client connections; see the module docs. `A` is the application that
/// serves the requests.
pub(crate) struct EdgeService<A> {
    app: Arc<A>,
    tls: Option<Acceptor>,
    connection_limits: Arc<ConnectionLimits>,
    overload: OverloadMonitor,
    proxies: Option<Arc<TrustedProxies>>,
    /// Whether a connection from an untrusted peer was logged already.
    untrusted_logged: AtomicBool,
    probe_started: Once,
    limits: EdgeLimits,
}

/// The parts of an [`EdgeService`]: the application, TLS, and the counters that it shares.
pub(crate) struct EdgeConfig<A> {
    /// The application that serves the requests.
    pub app: A,
    /// Performs the TLS handshakes; `None` for a listener without TLS.
    pub tls: Option<Acceptor>,
    /// Counts the open connections, and limits their number.
    pub connection_limits: Arc<ConnectionLimits>,
    /// Counts new connections and requests in flight, for which a shutdown waits.
    pub in_flight: InFlight,
    /// Measures the lag of the async runtime. Requests are refused while the lag is too high.
    pub overload: OverloadMonitor,
    /// The only peers that may connect, on behalf of their clients; `None` allows every peer.
    pub proxies: Option<Arc<TrustedProxies>>,
    /// Tells whether a vendor may get a field that the gateway itself does not read.
    pub is_unread_forwarded: ForwardCheck,
}

impl<A> EdgeService<A> {
    #[must_use]
    pub(crate) fn new(
        parts: EdgeConfig<A>,
        limits: &Limits,
        timeouts: &Timeouts,
    ) -> EdgeService<A> {
        let EdgeConfig {
            app,
            tls,
            connection_limits,
            in_flight,
            overload,
            proxies,
            is_unread_forwarded,
        } = parts;
        EdgeService {
            app: Arc::new(app),
            tls,
            connection_limits,
            overload,
            proxies,
            untrusted_logged: AtomicBool::new(false),
            probe_started: Once::new(),
            limits: EdgeLimits {
                head_wait: timeouts.head,
                head_bytes_max: limits.head_bytes_max,
                idle_wait: timeouts.keepalive,
                write_wait: timeouts.client_write,
                in_flight,
                is_unread_forwarded,
            },
        }
    }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> ServerApp for EdgeService<A> {
    async fn process_new(
        self: &Arc<Self>,
        stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let deadline = Instant::now() + self.limits.head_wait;
        // The probe must run on the runtime that serves the requests, because it measures its lag.
        self.probe_started.call_once(|| drop(tokio::spawn(self.overload.clone().measure_lag())));
        let peer = peer_ip(&*stream);
        if !self.may_connect(peer) {
            return None;
        }
        // The peer may be a trusted proxy with connections of many clients. So it does not count as
        // one client.
        let client = if self.proxies.is_none() { peer } else { None };
        let mut permit = match self.connection_limits.acquire(client) {
            Ok(permit) => permit,
            Err(limit_reached) => {
                self.reject_connection(stream, limit_reached);
                return None;
            }
        };
        // Counted from here on, so that a shutdown waits for every accepted connection.
        let in_flight = self.limits.in_flight.begin();
        let (edge, shutdown) = (self.clone(), shutdown.clone());
        // Runs in a separate task, so that pingora's task can end: as long as that one lives, it
        // uses the memory of a whole TLS handshake.
        tokio::spawn(async move {
            if let Some(stream) =
                edge.read_proxy_header(stream, &mut permit, &shutdown, deadline).await
            {
                edge.serve_connection(stream, shutdown, deadline, in_flight).await;
            }
            drop(permit);
        });
        None
    }

    async fn cleanup(&self) {
        self.app.http_cleanup().await;
    }
}

/// Performs the TLS handshake and returns the encrypted stream; `None` if the handshake fails.
async fn accept_tls(acceptor: &Acceptor, stream: Stream) -> Option<Stream> {
    let socket = stream.into_any().downcast::<Socket>().ok()?;
    match acceptor.tls_handshake(*socket).await {
        Ok(stream) => Some(Box::new(stream)),
        Err(why) => {
            log::debug!(event = "tls_handshake_failed", error:% = why; "TLS handshake failed");
            None
        }
    }
}

impl<A> EdgeService<A> {
    /// Whether a peer with this address may connect: any peer, unless trusted proxies are
    /// configured.
    fn may_connect(&self, peer: Option<IpAddr>) -> bool {
        let Some(proxies) = &self.proxies else { return true };
        let is_trusted = peer.is_some_and(|peer| proxies.contains(peer));
        if !is_trusted {
            overload::reject("untrusted");
            // Logged only once: otherwise a peer could write any number of log lines by connecting.
            if !self.untrusted_logged.swap(true, Ordering::Relaxed) {
                let peer = peer.map_or_else(String::new, |peer| peer.to_string());
                let event = "untrusted_peer_closed";
                log::warn!(event, peer; "connection from an untrusted peer closed");
            }
        }
        is_trusted
    }

    fn reject_connection(&self, stream: Stream, limit_reached: LimitReached) {
        let reason = match limit_reached {
            LimitReached::Total => "connections",
            LimitReached::Client => "address",
        };
        let refusal = overload::reject(reason);
        if self.tls.is_none() {
            reject::try_send_error(stream, &refusal);
        }
    }

    /// Reads the PROXY header, if the listener expects one. `None` if it is malformed or missing,
    /// or if the client has too many connections.
    async fn read_proxy_header(
        &self,
        stream: Stream,
        permit: &mut ConnectionPermit,
        shutdown: &ShutdownWatch,
        deadline: Instant,
    ) -> Option<Stream> {
        if !self.proxies.as_ref().is_some_and(|p| p.mode == ProxyMode::Protocol) {
            return Some(stream);
        }
        let mut socket = stream.into_any().downcast::<Socket>().ok()?;
        let stopping = &mut shutdown.clone();
        let source =
            with_deadline(proxy_protocol::read_header(&mut socket), deadline, stopping).await;
        let client = match source {
            Some(Ok(ConnectionSource::Proxy)) => None,
            Some(Ok(ConnectionSource::Client(client))) => Some(client.ip()),
            // Load balancers connect and close to check that the port is open. That is no error.
            Some(Err(ProxyHeaderError::Ended)) => return None,
            Some(Err(ProxyHeaderError::Malformed)) => {
                overload::reject("proxy_header");
                log::debug!(event = "proxy_header_malformed"; "malformed PROXY header");
                return None;
            }
            None => {
                overload::reject("silence");
                return None;
            }
        };
        if let Some(limit_reached) = client.and_then(|client| permit.assign_client(client).err()) {
            self.reject_connection(socket, limit_reached);
            return None;
        }
        Some(socket)
    }
}

impl<A: HttpServerApp + Send + Sync + 'static> EdgeService<A> {
    /// Serves an accepted connection: the TLS handshake, if any, then HTTP/1 or HTTP/2.
    async fn serve_connection(
        &self,
        stream: Stream,
        shutdown: ShutdownWatch,
        deadline: Instant,
        in_flight: InFlightGuard,
    ) {
        let stream = match &self.tls {
            None => stream,
            Some(acceptor) => {
                let encrypting = Box::pin(accept_tls(acceptor, stream));
                // Uses a clone of the receiver: pingora waits for a change of the value, and a
                // receiver that has already seen the change would miss it.
                let stopping = &mut shutdown.clone();
                let Some(done) = with_deadline(encrypting, deadline, stopping).await else {
                    overload::reject("silence");
                    return;
                };
                let Some(encrypted) = done else { return };
                encrypted
            }
        };
        let connection = Box::new(EdgeConnection::new(stream, self.limits.write_wait));
        if matches!(connection.selected_alpn_proto(), Some(ALPN::H2)) {
            let h2 = Arc::new(H2Connection::new(self.app.clone(), in_flight));
            h2.serve(connection, &shutdown, deadline).await;
        } else {
            self.serve_http1(connection, shutdown, deadline, in_flight).await;
        }
    }

    /// Serves the requests of an HTTP/1 connection, one after the other.
    async fn serve_http1(
        &self,
        mut connection: Box<EdgeConnection>,
        mut shutdown: ShutdownWatch,
        deadline: Instant,
        in_flight: InFlightGuard,
    ) {
        let mut head_reader = HeadReader::for_new(in_flight, deadline);
        loop {
            let received =
                match head_reader.next_head(&mut connection, &mut shutdown, &self.limits).await {
                    Ok(Some(received)) => received,
                    Ok(None) => return,
                    Err(refusal) => {
                        let error_format = router::error_format(&head_reader.path());
                        // Boxed: few connections end with an error, and the future of each would
                        // grow by its size.
                        return Box::pin(reject::send_error(connection, &refusal, error_format))
                            .await;
                    }
                };
            let ReceivedHead { bytes, in_flight } = received;
            let mut session = ServerSession::new_http1(connection);
            session.set_pipelined_prefix(bytes);
            let served = self.app.process_new_http(session, &shutdown).await;
            drop(in_flight);
            let reused_connection =
                served.and_then(|reused| EdgeConnection::from_stream(reused.consume().0));
            let Some(reused_connection) = reused_connection else { return };
            connection = reused_connection;
            head_reader = HeadReader::for_reused(&self.limits);
        }
    }
}
