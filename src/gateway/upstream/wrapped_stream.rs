//! A connection whose reads and writes go through an [`IoPolicy`]. Everything else that pingora
//! asks of a connection is delegated to the wrapped one.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::{SslDigest, TlsRef};
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Handles the reads, writes and flushes between a connection and its user.
pub(crate) trait IoPolicy: Debug + Send + Sync + Unpin {
    fn poll_read(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>>;

    fn poll_write(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>>;

    fn poll_flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    fn poll_shutdown(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// A [`WriteBuffer`] holds back at most this many bytes.
const BUFFERED_BYTES_MAX: usize = 64 << 10;
/// After a send, a [`WriteBuffer`] keeps at most this many bytes of capacity.
const CAPACITY_BYTES_KEPT: usize = 4 << 10;

/// Bytes that are held back and sent together with later ones: a send costs microseconds, most of
/// them for waking the receiver.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    bytes: Vec<u8>,
    /// How many of the bytes have been sent.
    sent: usize,
}

impl WriteBuffer {
    /// Returns how many bytes are still to be sent.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Holds bytes back, and returns whether it did: it does not if they exceed the limit, or if
    /// the buffer has been sent in part.
    pub(crate) fn try_push(&mut self, bytes: &[u8]) -> bool {
        let fits = self.sent == 0 && self.bytes.len() + bytes.len() <= BUFFERED_BYTES_MAX;
        if fits {
            self.bytes.extend_from_slice(bytes);
        }
        fits
    }

    /// Sends all bytes and empties the buffer. After an error the unsent bytes are dropped.
    pub(crate) fn poll_send(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut sent = Ok(());
        while sent.is_ok() && self.sent < self.bytes.len() {
            match ready!(Pin::new(&mut *stream).poll_write(cx, &self.bytes[self.sent..])) {
                Ok(0) => sent = Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => self.sent += more,
                Err(why) => sent = Err(why),
            }
        }
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(CAPACITY_BYTES_KEPT);
        Poll::Ready(sent)
    }
}

#[derive(Debug)]
pub(crate) struct WrappedStream<M> {
    pub(crate) stream: Stream,
    pub(crate) policy: M,
}

impl<M: IoPolicy> AsyncRead for WrappedStream<M> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let WrappedStream { stream, policy } = &mut *self;
        policy.poll_read(stream, cx, buf)
    }
}

impl<M: IoPolicy> AsyncWrite for WrappedStream<M> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let WrappedStream { stream, policy } = &mut *self;
        policy.poll_write(stream, cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let WrappedStream { stream, policy } = &mut *self;
        policy.poll_flush(stream, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let WrappedStream { stream, policy } = &mut *self;
        policy.poll_shutdown(stream, cx)
    }
}

#[async_trait]
impl<M: IoPolicy> Shutdown for WrappedStream<M> {
    async fn shutdown(&mut self) {
        // The connection is given up, so an error of its shutdown changes nothing.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl<M> UniqueID for WrappedStream<M> {
    fn id(&self) -> UniqueIDType {
        self.stream.id()
    }
}

impl<M> Ssl for WrappedStream<M> {
    fn get_ssl(&self) -> Option<&TlsRef> {
        self.stream.get_ssl()
    }

    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.stream.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.stream.selected_alpn_proto()
    }
}

impl<M> GetTimingDigest for WrappedStream<M> {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.stream.get_timing_digest()
    }

    fn get_read_pending_time(&self) -> Duration {
        self.stream.get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> Duration {
        self.stream.get_write_pending_time()
    }
}

impl<M> GetProxyDigest for WrappedStream<M> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.stream.get_proxy_digest()
    }

    fn set_proxy_digest(&mut self, digest: ProxyDigest) {
        self.stream.set_proxy_digest(digest);
    }
}

impl<M> GetSocketDigest for WrappedStream<M> {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.stream.get_socket_digest()
    }

    fn set_socket_digest(&mut self, digest: SocketDigest) {
        self.stream.set_socket_digest(digest);
    }
}

#[async_trait]
impl<M: IoPolicy> Peek for WrappedStream<M> {
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        self.stream.try_peek(buf).await
    }
}
