//! A connection of a client's. What goes out has to be taken in time, whoever writes it: pingora
//! ends a connection by flushing what is left, and would wait for ever for a client that does not
//! read. And a body that comes in chunks is looked at on its way in.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::{SslDigest, TlsRef};
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::chunks::{Chunks, Unsound};

/// See the module.
#[derive(Debug)]
pub(super) struct Line {
    inner: Stream,
    taking: Taking,
    /// Those of the body that is under way, if it comes in chunks.
    chunks: Option<Chunks>,
}

impl Line {
    /// The connection of a client that may take nothing for so long.
    pub(super) fn new(inner: Stream, patience: Duration) -> Line {
        Line { inner, taking: Taking::new(patience), chunks: None }
    }

    /// A body comes, of which so much was read already.
    pub(super) fn follow(&mut self, chunks: Option<Chunks>) {
        self.chunks = chunks;
    }

    /// The connection that a stream is, to be used again: not where the body has not ended.
    pub(super) fn again(stream: Stream) -> Option<Box<Line>> {
        let mut line = stream.into_any().downcast::<Line>().ok()?;
        let has_ended = line.chunks.take().is_none_or(|chunks| chunks.is_over());
        has_ended.then_some(line)
    }
}

/// Whether a client takes what it is given.
#[derive(Debug)]
struct Taking {
    patience: Duration,
    /// Runs while it takes nothing.
    until: Option<Pin<Box<Sleep>>>,
    given_up: bool,
}

impl Taking {
    fn new(patience: Duration) -> Taking {
        Taking { patience, until: None, given_up: false }
    }

    /// Gives it something. From when it has taken nothing for too long on, that fails.
    fn give<T>(
        &mut self,
        cx: &mut Context<'_>,
        give: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if !self.given_up {
            let given = give(cx);
            if given.is_ready() {
                self.until = None;
                return given;
            }
            let until = self.until.get_or_insert_with(|| Box::pin(sleep(self.patience)));
            ready!(until.as_mut().poll(cx));
            self.given_up = true;
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let line = &mut *self;
        ready!(Pin::new(&mut line.inner).poll_read(cx, buf))?;
        let Some(chunks) = &mut line.chunks else { return Poll::Ready(Ok(())) };
        let read = chunks.read(&buf.filled()[before..]);
        Poll::Ready(read.map_err(|Unsound| io::ErrorKind::InvalidData.into()))
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Line { inner, taking, .. } = &mut *self;
        taking.give(cx, |cx| Pin::new(inner).poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Line { inner, taking, .. } = &mut *self;
        taking.give(cx, |cx| Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Line { inner, taking, .. } = &mut *self;
        taking.give(cx, |cx| Pin::new(inner).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Line { inner, taking, .. } = &mut *self;
        taking.give(cx, |cx| Pin::new(inner).poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[async_trait]
impl Shutdown for Line {
    async fn shutdown(&mut self) {
        // What fails here has failed for good.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for Line {
    fn id(&self) -> UniqueIDType {
        self.inner.id()
    }
}

impl Ssl for Line {
    fn get_ssl(&self) -> Option<&TlsRef> {
        self.inner.get_ssl()
    }

    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.inner.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.inner.selected_alpn_proto()
    }
}

impl GetTimingDigest for Line {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.inner.get_timing_digest()
    }

    fn get_read_pending_time(&self) -> Duration {
        self.inner.get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> Duration {
        self.inner.get_write_pending_time()
    }
}

impl GetProxyDigest for Line {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.inner.get_proxy_digest()
    }

    fn set_proxy_digest(&mut self, digest: ProxyDigest) {
        self.inner.set_proxy_digest(digest);
    }
}

impl GetSocketDigest for Line {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.get_socket_digest()
    }

    fn set_socket_digest(&mut self, digest: SocketDigest) {
        self.inner.set_socket_digest(digest);
    }
}

#[async_trait]
impl Peek for Line {
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        self.inner.try_peek(buf).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(300);

    #[tokio::test]
    async fn who_takes_nothing_is_given_up_for_good() {
        let (near, mut far) = duplex(64);
        let mut line = Line::new(Box::new(near), PATIENCE);
        let began = Instant::now();
        let failed = line.write_all(&[0; 100]).await.expect_err("nobody takes all of it");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= PATIENCE);
        far.read_exact(&mut [0; 64]).await.expect("what was written");
        assert!(line.write_all(b"x").await.is_err(), "a part would be missing");
        assert!(line.flush().await.is_err());
        assert!(AsyncWriteExt::shutdown(&mut line).await.is_err());
    }

    #[tokio::test]
    async fn a_write_that_nobody_waits_for_any_more_is_not_forgotten() {
        let (near, _far) = duplex(64);
        let mut line = Line::new(Box::new(near), PATIENCE);
        let writing = tokio::time::timeout(PATIENCE * 2, async {
            let first = tokio::time::timeout(PATIENCE / 2, line.write_all(&[0; 100])).await;
            assert!(first.is_err());
            line.write_all(b"x").await
        });
        let failed = writing.await.expect("in time").expect_err("it takes nothing");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_takes_its_time_and_takes_it_all_is_served() {
        let (near, mut far) = duplex(64);
        let mut line = Line::new(Box::new(near), PATIENCE);
        let taking = async {
            let mut taken = 0;
            while taken < 640 {
                tokio::time::sleep(PATIENCE / 10).await;
                taken += far.read(&mut [0; 16]).await.expect("more");
            }
        };
        let (written, ()) = tokio::join!(line.write_all(&[0; 640]), taking);
        written.expect("it was taken");
    }
}
