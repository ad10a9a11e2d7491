//! Where connections come in: how many there may be, how long a head may take, and what it may be.
//!
//! pingora reads requests from a connection as long as the client likes to send them, and takes
//! heads that another server might read in another way. Here they are read first, within bounds,
//! and checked; what has passed goes on to pingora as bytes that were read already. The same is
//! done for every request of a connection that is used again.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::apps::{HttpServerApp, ServerApp};
use pingora_core::listeners::tls::Acceptor;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::l4::stream::Stream as Socket;
use pingora_core::protocols::{ALPN, GetSocketDigest, Ssl, Stream};
use pingora_core::server::ShutdownWatch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::busy::{InFlight, InFlightGuard};
use super::client_address::{ProxyMode, TrustedProxies};
use super::limits::{Limits, Timeouts};
use super::load::{self, OverloadMonitor};
use super::local;

pub mod chunks;
pub mod crowd;
mod ear;
pub mod head;
mod line;
mod many;
mod proxy_protocol;
mod turned_away;

use crowd::{ConnectionLimits, ConnectionPermit, LimitReached};
use ear::{HeadOutcome, HeadReader};
use line::EdgeConnection;
use many::H2Connection;
use proxy_protocol::{ProxiedClient, ProxyHeaderError};

/// Once the process stops, what a client has begun to say has to come within this.
const LEAVING_WAIT: Duration = Duration::from_millis(500);

/// See the module. `A` is what serves the requests.
pub struct EdgeService<A> {
    app: Arc<A>,
    tls: Option<Acceptor>,
    crowd: Arc<ConnectionLimits>,
    load: OverloadMonitor,
    proxies: Option<Arc<TrustedProxies>>,
    /// Whether it was told that somebody connects who is no such proxy.
    stranger_told: AtomicBool,
    probed: Once,
    patience: EdgeTimeouts,
}

/// What a client is allowed.
struct EdgeTimeouts {
    /// Before it has said what it wants.
    head_wait: Duration,
    head_bytes_max: usize,
    /// Between two requests.
    idle_wait: Duration,
    /// To take something of what it is given.
    write_wait: Duration,
    /// Counts those who have begun to say it.
    busy: InFlight,
}

/// What an edge stands between, and what it counts.
pub struct EdgeConfig<A> {
    /// What serves the requests.
    pub app: A,
    /// What TLS is spoken with, if it is.
    pub tls: Option<Acceptor>,
    /// Who is connected.
    pub crowd: Arc<ConnectionLimits>,
    /// What is under way.
    pub busy: InFlight,
    /// How much there is to do.
    pub load: OverloadMonitor,
    /// The only ones who may connect, for clients of theirs; none for everybody.
    pub proxies: Option<Arc<TrustedProxies>>,
}

impl<A> EdgeService<A> {
    /// Puts an edge together.
    #[must_use]
    pub fn new(parts: EdgeConfig<A>, limits: &Limits, timeouts: &Timeouts) -> EdgeService<A> {
        let EdgeConfig { app, tls, crowd, busy, load, proxies } = parts;
        EdgeService {
            app: Arc::new(app),
            tls,
            crowd,
            load,
            proxies,
            stranger_told: AtomicBool::new(false),
            probed: Once::new(),
            patience: EdgeTimeouts {
                head_wait: timeouts.head,
                head_bytes_max: limits.head_bytes_max,
                idle_wait: timeouts.keepalive,
                write_wait: timeouts.client_write,
                busy,
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
        let deadline = Instant::now() + self.patience.head_wait;
        // It has to run where the requests do.
        self.probed.call_once(|| drop(tokio::spawn(self.load.clone().probe())));
        let peer = address(&*stream);
        if !self.may_connect(peer) {
            return None;
        }
        // A proxy's connections are those of its clients.
        let client = if self.proxies.is_none() { peer } else { None };
        let mut seat = match self.crowd.enter(client) {
            Ok(seat) => seat,
            Err(full) => {
                self.turn_away(stream, full);
                return None;
            }
        };
        // A connection that was taken is waited for before the process ends.
        let busy = self.patience.busy.enter();
        let (edge, shutdown) = (self.clone(), shutdown.clone());
        // A task of its own: pingora's has room for all of a TLS handshake as long as it lives.
        tokio::spawn(async move {
            if let Some(stream) = edge.learn_client(stream, &mut seat, &shutdown, deadline).await {
                edge.serve(stream, shutdown, deadline, busy).await;
            }
            drop(seat);
        });
        None
    }

    async fn cleanup(&self) {
        self.app.http_cleanup().await;
    }
}

/// The connection, encrypted.
async fn over_tls(acceptor: &Acceptor, stream: Stream) -> Option<Stream> {
    let socket = stream.into_any().downcast::<Socket>().ok()?;
    match acceptor.tls_handshake(*socket).await {
        Ok(stream) => Some(Box::new(stream)),
        Err(why) => {
            log::debug!(why:% = why; "no TLS");
            None
        }
    }
}

/// Does something within the time that a client has for it, which is short once the process stops.
async fn in_time<T>(
    doing: impl Future<Output = T>,
    deadline: Instant,
    shutdown: &mut ShutdownWatch,
) -> Option<T> {
    let mut doing = std::pin::pin!(doing);
    tokio::select! {
        biased;
        done = &mut doing => return Some(done),
        () = sleep_until(deadline) => return None,
        () = stopped(shutdown) => {}
    }
    timeout_at(deadline.min(Instant::now() + LEAVING_WAIT), doing).await.ok()
}

/// Waits until the process is to stop.
async fn stopped(shutdown: &mut ShutdownWatch) {
    // Who could say so is gone only if the process is.
    let _ = shutdown.wait_for(|stopping| *stopping).await;
}

fn address(stream: &(impl GetSocketDigest + ?Sized)) -> Option<IpAddr> {
    let digest = stream.get_socket_digest()?;
    digest.peer_addr()?.as_inet().map(std::net::SocketAddr::ip)
}

impl<A> EdgeService<A> {
    /// Whether somebody with this address may connect at all.
    fn may_connect(&self, peer: Option<IpAddr>) -> bool {
        let Some(proxies) = &self.proxies else { return true };
        let is_trusted = peer.is_some_and(|peer| proxies.contains(peer));
        if !is_trusted {
            load::shed("untrusted");
            // Once: who else connects would write as many lines as he likes.
            if !self.stranger_told.swap(true, Ordering::Relaxed) {
                let peer = peer.map_or_else(String::new, |peer| peer.to_string());
                let event = "untrusted_peer_closed";
                log::warn!(event, peer; "connections that are not from a trusted proxy are closed");
            }
        }
        is_trusted
    }

    fn turn_away(&self, stream: Stream, full: LimitReached) {
        let reason = match full {
            LimitReached::All => "connections",
            LimitReached::Client => "address",
        };
        let refusal = load::shed(reason);
        if self.tls.is_none() {
            turned_away::at_once(stream, &refusal);
        }
    }

    /// Where proxies speak the PROXY protocol: reads for whom this one does. None if it does not
    /// say, or if its client has too many connections.
    async fn learn_client(
        &self,
        stream: Stream,
        seat: &mut ConnectionPermit,
        shutdown: &ShutdownWatch,
        deadline: Instant,
    ) -> Option<Stream> {
        if !self.proxies.as_ref().is_some_and(|p| p.mode == ProxyMode::Protocol) {
            return Some(stream);
        }
        let mut socket = stream.into_any().downcast::<Socket>().ok()?;
        let stopping = &mut shutdown.clone();
        let speaker = in_time(proxy_protocol::read(&mut socket), deadline, stopping).await;
        let client = match speaker {
            Some(Ok(ProxiedClient::Proxy)) => None,
            Some(Ok(ProxiedClient::Client(client))) => Some(client.ip()),
            // Balancers look whether somebody is there, and go.
            Some(Err(ProxyHeaderError::Ended)) => return None,
            Some(Err(ProxyHeaderError::Malformed)) => {
                load::shed("proxy_header");
                log::debug!(event = "proxy_header_malformed"; "no PROXY header");
                return None;
            }
            None => {
                load::shed("silence");
                return None;
            }
        };
        if let Some(full) = client.and_then(|client| seat.assign_client(client).err()) {
            self.turn_away(socket, full);
            return None;
        }
        Some(socket)
    }
}

impl<A: HttpServerApp + Send + Sync + 'static> EdgeService<A> {
    /// Serves a connection that was taken.
    async fn serve(
        &self,
        stream: Stream,
        shutdown: ShutdownWatch,
        deadline: Instant,
        busy: InFlightGuard,
    ) {
        let stream = match &self.tls {
            None => stream,
            Some(acceptor) => {
                let encrypting = Box::pin(over_tls(acceptor, stream));
                // By a receiver of its own: pingora waits for a change, which who saw it misses.
                let stopping = &mut shutdown.clone();
                let Some(done) = in_time(encrypting, deadline, stopping).await else {
                    load::shed("silence");
                    return;
                };
                let Some(encrypted) = done else { return };
                encrypted
            }
        };
        let line = Box::new(EdgeConnection::new(stream, self.patience.write_wait));
        if matches!(line.selected_alpn_proto(), Some(ALPN::H2)) {
            let many = Arc::new(H2Connection::new(self.app.clone(), busy));
            many.serve(line, &shutdown, deadline).await;
        } else {
            self.one_by_one(line, shutdown, deadline, busy).await;
        }
    }

    /// Serves the requests of a connection, one after the other.
    async fn one_by_one(
        &self,
        mut line: Box<EdgeConnection>,
        mut shutdown: ShutdownWatch,
        deadline: Instant,
        busy: InFlightGuard,
    ) {
        let mut ear = HeadReader::of_new(busy, deadline);
        loop {
            let heard = match ear.hear(&mut line, &mut shutdown, &self.patience).await {
                Ok(Some(heard)) => heard,
                Ok(None) => return,
                Err(refusal) => {
                    let tongue = local::tongue(&ear.path());
                    // Boxed: few connections end so, and all would grow by it.
                    return Box::pin(turned_away::with_reason(line, &refusal, tongue)).await;
                }
            };
            let HeadOutcome { bytes, chunks, busy } = heard;
            line.follow(chunks);
            let mut session = ServerSession::new_http1(line);
            session.set_pipelined_prefix(bytes);
            let served = self.app.process_new_http(session, &shutdown).await;
            drop(busy);
            let again = served.and_then(|reused| EdgeConnection::again(reused.consume().0));
            let Some(again) = again else { return };
            line = again;
            ear = HeadReader::of_used(&self.patience);
        }
    }
}
