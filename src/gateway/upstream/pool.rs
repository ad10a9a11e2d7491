//! Connections to vendors: pingora makes them, and they are kept between two calls.
//!
//! Plain ones are kept here. pingora has a task watch each that lies idle, and sends a head before
//! it has the body; for a short call that is much of what passing it on costs. Here whoever
//! takes a connection up looks whether it is still there (one that is closed just then costs a
//! second try, see `proxy_loop`), and head and body leave together. A connection with TLS may carry
//! many calls at a time, which pingora knows how to share out: these stay with it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use pingora::connectors::http::Connector;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::protocols::Stream;
use pingora::protocols::http::client::HttpSession as Upstream;
use pingora::protocols::http::v1::client::HttpSession as Plain;
use pingora::upstreams::peer::{HttpPeer, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::gateway::upstream::wrapped_stream::{IoPolicy, WrappedStream, WriteBuffer};

/// For whoever speaks without TLS: the system's certificates take milliseconds to read.
pub(crate) const NO_CERTIFICATES: &str = "/dev/null";

pub(crate) struct UpstreamPool {
    tls: Connector,
    plain: TransportConnector,
    /// Idle ones by where they lead to, those that came last at the end.
    idle: Mutex<HashMap<u64, VecDeque<IdleConnection>>>,
    idle_per_peer_max: usize,
    idle_timeout: Duration,
}

struct IdleConnection {
    connection: Box<UpstreamStream>,
    idle_since: Instant,
}

impl UpstreamPool {
    /// A pool that keeps idle plain connections, up to `keepalive_pool_size` of each peer.
    #[must_use]
    pub(crate) fn new(options: ConnectorOptions, idle_timeout: Duration) -> UpstreamPool {
        let idle_per_peer_max = options.keepalive_pool_size;
        let without_tls =
            ConnectorOptions { ca_file: Some(NO_CERTIFICATES.to_owned()), ..options.clone() };
        UpstreamPool {
            tls: Connector::new(Some(options)),
            plain: TransportConnector::new(Some(without_tls)),
            idle: Mutex::default(),
            idle_per_peer_max,
            idle_timeout,
        }
    }

    /// A connection, and whether it has served a call before.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) async fn connect(&self, peer: &HttpPeer) -> pingora::Result<(Upstream, bool)> {
        // Boxed: making one is far larger than what is around it, and would be moved along with it.
        if peer.is_tls() {
            return Box::pin(self.tls.get_http_session(peer)).await;
        }
        if let Some(connection) = self.take_idle(peer.reuse_hash()) {
            return Ok((http1_session(connection, peer), true));
        }
        let stream = Box::pin(self.plain.new_stream(peer)).await?;
        let connection = WrappedStream { stream, policy: CoalesceHead::default() };
        Ok((http1_session(Box::new(connection), peer), false))
    }

    /// Keeps a connection for the next call, if it can serve one.
    pub(crate) async fn release(&self, up: Upstream, peer: &HttpPeer) {
        let mut plain = match up {
            Upstream::H1(plain) if !peer.is_tls() => plain,
            up => {
                let releasing = self.tls.release_http_session(up, peer, Some(self.idle_timeout));
                // Boxed: it is far larger than all else that a call waits for at its end.
                return Box::pin(releasing).await;
            }
        };
        plain.respect_keepalive();
        let stream = plain.reuse().await;
        let connection =
            stream.and_then(|stream| stream.into_any().downcast::<UpstreamStream>().ok());
        let Some(mut connection) = connection.filter(|_| self.idle_per_peer_max > 0) else {
            return;
        };
        if connection.is_reusable() {
            let mut idle = self.lock_idle();
            let lines = idle.entry(peer.reuse_hash()).or_default();
            if lines.len() >= self.idle_per_peer_max {
                lines.pop_front();
            }
            lines.push_back(IdleConnection { connection, idle_since: Instant::now() });
        }
    }

    /// Closes what has been idle for too long, or was closed at the other end.
    pub(crate) fn sweep(&self) {
        self.lock_idle().retain(|_, lines| {
            lines.retain_mut(|idle| {
                idle.idle_since.elapsed() < self.idle_timeout && idle.connection.is_reusable()
            });
            !lines.is_empty()
        });
    }

    /// The connection that was used last, so that surplus ones stay idle and time out.
    fn take_idle(&self, place: u64) -> Option<Box<UpstreamStream>> {
        loop {
            let IdleConnection { mut connection, idle_since: since } =
                self.lock_idle().get_mut(&place)?.pop_back()?;
            if since.elapsed() < self.idle_timeout && connection.is_reusable() {
                connection.policy = CoalesceHead::default();
                return Some(connection);
            }
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, HashMap<u64, VecDeque<IdleConnection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn http1_session(connection: Box<UpstreamStream>, peer: &HttpPeer) -> Upstream {
    Upstream::H1(Plain::new_with_options(connection, peer))
}

/// A plain connection to a vendor.
type UpstreamStream = WrappedStream<CoalesceHead>;

impl UpstreamStream {
    /// Whether nothing unexpected arrived on it: neither bytes nor its end.
    fn is_reusable(&mut self) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }
}

/// Holds the head of a request back, until the body goes out or an answer is waited for.
#[derive(Debug, Default)]
struct CoalesceHead {
    buffer: WriteBuffer,
    /// Whether the head was flushed, and nothing is held back any more.
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
        let dial = pool(Duration::from_secs(60));
        let mut ends = Vec::new();
        for _ in 0..4 {
            let (line, far) = connection_pair();
            dial.lock_idle()
                .entry(7)
                .or_default()
                .push_back(IdleConnection { connection: line, idle_since: Instant::now() });
            ends.push(far);
        }
        drop(ends.pop());
        ends[2].write_all(b"?").await.expect("there is room");
        assert!(dial.take_idle(8).is_none(), "none leads there");
        let mut line = dial.take_idle(7).expect("the second");
        line.write_all(b"x").await.and(line.flush().await).expect("it is held back");
        line.flush().await.expect("it is sent");
        assert_eq!(ends[1].read_u8().await.expect("it"), b'x');
        assert!(dial.take_idle(7).is_some(), "the first");
        assert!(dial.take_idle(7).is_none());
    }

    #[tokio::test]
    async fn what_was_idle_for_too_long_is_closed() {
        let dial = pool(Duration::ZERO);
        let (line, far) = connection_pair();
        dial.lock_idle()
            .entry(7)
            .or_default()
            .push_back(IdleConnection { connection: line, idle_since: Instant::now() });
        dial.sweep();
        assert!(dial.lock_idle().is_empty());
        assert_eq!(read_all(far).await, b"");
    }
}
