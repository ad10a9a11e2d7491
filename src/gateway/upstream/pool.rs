//! The pool of connections to vendors: pingora makes them, and they stay open between calls.
//!
//! HTTP/1 connections, which carry one call at a time, are kept here, with TLS or without.
//! pingora's own pool watches each idle connection with a task, and sends the request head before
//! it has the body; for a short call that is a large part of the cost of proxying. This pool checks
//! whether an idle connection is still open when a call takes it (a connection that closes just
//! then costs a second attempt, see `attempts`), and sends head and body together. An HTTP/2
//! connection carries many calls at a time. pingora can share out its streams, so HTTP/2
//! connections stay in pingora's pool.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use pingora::connectors::http::v2::{
    Connector as Http2Connector, H2HandshakeSettings, handshake as start_http2,
};
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::protocols::Stream;
use pingora::protocols::http::client::HttpSession as Upstream;
use pingora::protocols::http::v1::client::HttpSession as Http1Session;
use pingora::protocols::http::v2::client::Http2Session;
use pingora::upstreams::peer::{ALPN, HttpPeer, Peer};
use pingora::{ErrorType, OkOrErr};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::fast_map::FastMap;
use crate::gateway::upstream::wrapped_stream::{IoPolicy, WrappedStream, WriteBuffer};

/// The CA file for connections without TLS. It is empty, because reading the system's certificates
/// takes milliseconds.
pub(crate) const NO_CERTIFICATES: &str = "/dev/null";

pub(crate) struct UpstreamPool {
    /// Makes connections with TLS, and keeps those that carry HTTP/2.
    http2: Http2Connector,
    /// Makes connections without TLS.
    plain: TransportConnector,
    /// Idle HTTP/1 connections by the reuse hash of their peer, the most recently used at the end.
    idle: Mutex<FastMap<u64, VecDeque<IdleConnection>>>,
    idle_per_peer_max: usize,
    idle_timeout: Duration,
}

struct IdleConnection {
    stream: Box<UpstreamStream>,
    idle_since: Instant,
}

impl UpstreamPool {
    /// Creates a pool that keeps at most `keepalive_pool_size` idle connections of each peer, each
    /// for at most `idle_timeout`.
    #[must_use]
    pub(crate) fn new(options: ConnectorOptions, idle_timeout: Duration) -> UpstreamPool {
        let idle_per_peer_max = options.keepalive_pool_size;
        let without_tls =
            ConnectorOptions { ca_file: Some(NO_CERTIFICATES.to_owned()), ..options.clone() };
        UpstreamPool {
            http2: Http2Connector::new(Some(options)),
            plain: TransportConnector::new(Some(without_tls)),
            idle: Mutex::default(),
            idle_per_peer_max,
            idle_timeout,
        }
    }

    /// Returns a connection to a peer, and whether it has served a call before.
    ///
    /// # Errors
    /// The connection cannot be made.
    pub(crate) async fn connect(&self, peer: &HttpPeer) -> pingora::Result<(Upstream, bool)> {
        if peer.is_tls()
            && let Some(session) = self.http2.reused_http_session(peer).await?
        {
            return Ok((Upstream::H2(session), true));
        }
        if let Some(stream) = self.take_idle(peer.reuse_hash()) {
            return Ok((http1_session(stream, peer), true));
        }
        let connector = if peer.is_tls() { self.http2.transport() } else { &self.plain };
        // Boxed: the future that connects is far larger than the rest of this one, and would be
        // moved along with it.
        let stream = Box::pin(connector.new_stream(peer)).await?;
        if stream.selected_alpn_proto() == Some(ALPN::H2) {
            let session = Box::pin(self.first_http2_session(stream, peer)).await?;
            return Ok((Upstream::H2(session), false));
        }
        let stream = WrappedStream { stream, policy: CoalesceHead::default() };
        Ok((http1_session(Box::new(stream), peer), false))
    }

    /// Starts HTTP/2 on a new connection and opens its first stream. Other calls may share the
    /// connection from then on.
    async fn first_http2_session(
        &self,
        stream: Stream,
        peer: &HttpPeer,
    ) -> pingora::Result<Http2Session> {
        let mut settings = H2HandshakeSettings::new();
        settings.max_streams = peer.options.max_h2_streams;
        settings.ping_interval = peer.options.h2_ping_interval;
        settings.stream_window_size = peer.options.h2_stream_window_size;
        settings.connection_window_size = peer.options.h2_connection_window_size;
        let connection = start_http2(stream, settings).await?;
        let session = connection.spawn_stream().await?;
        if connection.more_streams_allowed() {
            self.http2.in_use_pool().insert(peer.reuse_hash(), connection);
        }
        session.or_err(ErrorType::H2Error, "a new connection takes no call")
    }

    /// Keeps a connection for the next call, if it can serve one.
    pub(crate) async fn release(&self, session: Upstream, peer: &HttpPeer) {
        let mut session = match session {
            Upstream::H1(session) => session,
            Upstream::H2(session) => {
                return self.http2.release_http_session(session, peer, Some(self.idle_timeout));
            }
            // The gateway configures no peer with another protocol.
            Upstream::Custom(()) => return,
        };
        session.respect_keepalive();
        let stream = session.reuse().await;
        let stream = stream.and_then(|stream| stream.into_any().downcast::<UpstreamStream>().ok());
        let Some(mut stream) = stream.filter(|_| self.idle_per_peer_max > 0) else {
            return;
        };
        if stream.is_reusable() {
            let mut idle = self.lock_idle();
            let of_peer = idle.entry(peer.reuse_hash()).or_default();
            if of_peer.len() >= self.idle_per_peer_max {
                of_peer.pop_front();
            }
            of_peer.push_back(IdleConnection { stream, idle_since: Instant::now() });
        }
    }

    /// Closes connections that have been idle for `idle_timeout`, or that the vendor has closed.
    pub(crate) fn sweep(&self) {
        self.lock_idle().retain(|_, of_peer| {
            of_peer.retain_mut(|idle| {
                idle.idle_since.elapsed() < self.idle_timeout && idle.stream.is_reusable()
            });
            !of_peer.is_empty()
        });
    }

    /// Takes the most recently used connection of a peer, so that surplus ones stay idle and time
    /// out. `None` if no usable connection is idle.
    fn take_idle(&self, reuse_hash: u64) -> Option<Box<UpstreamStream>> {
        loop {
            let IdleConnection { mut stream, idle_since } =
                self.lock_idle().get_mut(&reuse_hash)?.pop_back()?;
            if idle_since.elapsed() < self.idle_timeout && stream.is_reusable() {
                stream.policy = CoalesceHead::default();
                return Some(stream);
            }
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, FastMap<u64, VecDeque<IdleConnection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn http1_session(stream: Box<UpstreamStream>, peer: &HttpPeer) -> Upstream {
    Upstream::H1(Http1Session::new_with_options(stream, peer))
}

/// An HTTP/1 connection to a vendor, which carries one call at a time.
type UpstreamStream = WrappedStream<CoalesceHead>;

impl UpstreamStream {
    /// Whether an idle connection can serve another call: neither unexpected bytes nor the end of
    /// the stream have arrived on it.
    fn is_reusable(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }
}

/// Holds the request head back until the body is flushed or a response is read, so that head and
/// body leave together.
#[derive(Debug, Default)]
struct CoalesceHead {
    buffer: WriteBuffer,
    /// Whether the first flush, which follows the head and sends nothing, has been done. Every
    /// later flush sends what is held back.
    is_past_head: bool,
}

impl IoPolicy for CoalesceHead {
    fn poll_read(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.buffer.unsent_bytes() > 0 {
            self.is_past_head = true;
            ready!(self.poll_flush(stream, cx))?;
        }
        Pin::new(stream).poll_read(cx, buf)
    }

    fn poll_write(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let waits = self.buffer.unsent_bytes() > 0 || !self.is_past_head;
        if waits && self.buffer.try_push(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        ready!(self.buffer.poll_send(stream, cx))?;
        Pin::new(stream).poll_write(cx, bytes)
    }

    fn poll_flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.is_past_head, true) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.buffer.poll_send(stream, cx))?;
        Pin::new(stream).poll_flush(cx)
    }

    fn poll_shutdown(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.buffer.poll_send(stream, cx))?;
        Pin::new(stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn connection_pair() -> (Box<UpstreamStream>, DuplexStream) {
        let (near, far) = duplex(256 << 10);
        (Box::new(WrappedStream { stream: Box::new(near), policy: CoalesceHead::default() }), far)
    }

    fn pool(patience: Duration) -> UpstreamPool {
        UpstreamPool::new(ConnectorOptions::new(3), patience)
    }

    async fn read_all(mut far: DuplexStream) -> Vec<u8> {
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.expect("what was written");
        all
    }

    #[tokio::test]
    async fn head_and_body_leave_together() {
        let (mut line, mut far) = connection_pair();
        line.write_all(b"head ").await.expect("it is held back");
        line.flush().await.expect("nothing to be sent yet");
        let mut seen = [0; 64];
        assert!(futures_util::poll!(Box::pin(far.read(&mut seen))).is_pending());
        line.write_all(b"bo").await.expect("it is held back");
        line.write_all(b"dy").await.expect("it is held back");
        assert!(futures_util::poll!(Box::pin(far.read(&mut seen))).is_pending());
        line.flush().await.expect("it is sent");
        assert_eq!(far.read(&mut seen).await.expect("all of it"), 9);
        assert_eq!(&seen[..9], b"head body");
        line.write_all(b" more").await.expect("it goes as it comes");
        drop(line);
        assert_eq!(read_all(far).await, b" more");
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_to_wait_with_comes_after_its_head() {
        for pieces in [vec![100_000], vec![60_000, 60_000], vec![1, 70_000, 1]] {
            let (mut line, far) = connection_pair();
            line.write_all(b"head").await.expect("it is held back");
            line.flush().await.expect("nothing to be sent yet");
            let mut whole = b"head".to_vec();
            for (number, piece) in pieces.into_iter().enumerate() {
                let piece = vec![u8::try_from(number).expect("few"); piece];
                line.write_all(&piece).await.expect("there is room for it");
                whole.extend(piece);
            }
            line.flush().await.expect("it is sent");
            drop(line);
            assert!(read_all(far).await == whole);
        }
    }

    #[tokio::test]
    async fn who_waits_for_an_answer_has_asked() {
        let (mut line, mut far) = connection_pair();
        line.write_all(b"head").await.expect("it is held back");
        let asking = async {
            let mut head = [0; 4];
            far.read_exact(&mut head).await.expect("the head");
            far.write_all(b"answer").await.expect("it is read");
        };
        let mut answer = [0; 6];
        let (read, ()) = tokio::join!(line.read_exact(&mut answer), asking);
        assert_eq!(read.expect("the answer"), 6);
    }

    #[tokio::test]
    async fn what_was_said_before_the_request_was_taken_is_heard() {
        let (mut line, mut far) = connection_pair();
        far.write_all(b"no").await.expect("there is room");
        drop(far);
        line.write_all(b"head").await.expect("it is held back");
        line.flush().await.expect("nothing to be sent yet");
        line.flush().await.expect_err("nobody takes it");
        let mut heard = Vec::new();
        line.read_to_end(&mut heard).await.expect("what was said");
        assert_eq!(heard, b"no");
    }

    #[tokio::test]
    async fn the_last_one_is_taken_first_and_none_that_has_ended_or_spoken() {
        let pool = pool(Duration::from_secs(60));
        let mut ends = Vec::new();
        for _ in 0..4 {
            let (line, far) = connection_pair();
            pool.lock_idle()
                .entry(7)
                .or_default()
                .push_back(IdleConnection { stream: line, idle_since: Instant::now() });
            ends.push(far);
        }
        drop(ends.pop());
        ends[2].write_all(b"?").await.expect("there is room");
        assert!(pool.take_idle(8).is_none(), "none leads there");
        let mut line = pool.take_idle(7).expect("the second");
        line.write_all(b"x").await.and(line.flush().await).expect("it is held back");
        line.flush().await.expect("it is sent");
        assert_eq!(ends[1].read_u8().await.expect("it"), b'x');
        assert!(pool.take_idle(7).is_some(), "the first");
        assert!(pool.take_idle(7).is_none());
    }

    #[tokio::test]
    async fn what_was_idle_for_too_long_is_closed() {
        let pool = pool(Duration::ZERO);
        let (line, far) = connection_pair();
        pool.lock_idle()
            .entry(7)
            .or_default()
            .push_back(IdleConnection { stream: line, idle_since: Instant::now() });
        pool.sweep();
        assert!(pool.lock_idle().is_empty());
        assert_eq!(read_all(far).await, b"");
    }
}
