//! A client connection with a timeout for every write, regardless of which code writes. pingora
//! ends a connection by flushing the remaining bytes, and would wait forever for a client that does
//! not read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::gateway::upstream::wrapped_stream::{IoPolicy, WrappedStream, WriteBuffer};

pub(super) type EdgeConnection = WrappedStream<ClientPolicy>;

/// The write timeout and the write buffer of a client connection.
#[derive(Debug)]
pub(super) struct ClientPolicy {
    write_timeout: WriteTimeout,
    /// Holds back a response head or an event until the next flush, so that it is sent together
    /// with the bytes that follow it.
    write_buffer: WriteBuffer,
}

impl EdgeConnection {
    /// Wraps the stream of a client. Writes fail once the client accepts no bytes for `timeout`.
    pub(super) fn new(stream: Stream, timeout: Duration) -> EdgeConnection {
        let (write_timeout, write_buffer) = (WriteTimeout::new(timeout), WriteBuffer::default());
        WrappedStream { stream, policy: ClientPolicy { write_timeout, write_buffer } }
    }

    /// Returns the connection inside a stream, for the next request; `None` if the stream has
    /// another type.
    pub(super) fn from_stream(stream: Stream) -> Option<Box<EdgeConnection>> {
        stream.into_any().downcast().ok()
    }
}

/// Detects that a client has accepted no bytes for too long.
#[derive(Debug)]
struct WriteTimeout {
    timeout: Duration,
    /// Runs while a write is blocked; `None` otherwise.
    deadline: Option<Pin<Box<Sleep>>>,
    has_timed_out: bool,
}

impl WriteTimeout {
    fn new(timeout: Duration) -> WriteTimeout {
        WriteTimeout { timeout, deadline: None, has_timed_out: false }
    }

    /// Sends the buffered bytes, then calls `then_poll`. Once the client has accepted no bytes for
    /// the timeout, this and all later calls fail.
    fn poll_with_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut WriteBuffer,
        stream: &mut Stream,
        then_poll: impl FnOnce(Pin<&mut Stream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if !self.has_timed_out {
            let before = buffer.unsent_bytes();
            let result = match buffer.poll_send(stream, cx) {
                Poll::Ready(Ok(())) => then_poll(Pin::new(stream), cx),
                Poll::Ready(Err(why)) => Poll::Ready(Err(why)),
                Poll::Pending => Poll::Pending,
            };
            if result.is_ready() || buffer.unsent_bytes() != before {
                self.deadline = None;
            }
            if result.is_ready() {
                return result;
            }
            let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
            ready!(deadline.as_mut().poll(cx));
            self.has_timed_out = true;
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl IoPolicy for ClientPolicy {
    fn poll_read(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Send what is buffered before waiting for more from the client.
        let waited = self.write_buffer.unsent_bytes();
        if waited > 0 {
            if self.write_buffer.poll_send(stream, cx)?.is_ready() {
                let _ = Pin::new(&mut *stream).poll_flush(cx)?;
            }
            if self.write_buffer.unsent_bytes() != waited {
                self.write_timeout.deadline = None;
            }
        }
        Pin::new(stream).poll_read(cx, buf)
    }

    fn poll_write(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let ClientPolicy { write_timeout, write_buffer } = self;
        if !write_timeout.has_timed_out && write_buffer.try_push(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        write_timeout
            .poll_with_timeout(cx, write_buffer, stream, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ClientPolicy { write_timeout, write_buffer } = self;
        write_timeout.poll_with_timeout(cx, write_buffer, stream, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ClientPolicy { write_timeout, write_buffer } = self;
        write_timeout.poll_with_timeout(cx, write_buffer, stream, AsyncWrite::poll_shutdown)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(300);

    /// Writes the bytes and flushes them.
    async fn write_and_flush(line: &mut EdgeConnection, bytes: &[u8]) -> io::Result<()> {
        line.write_all(bytes).await?;
        line.flush().await
    }

    #[tokio::test]
    async fn head_and_body_leave_together_and_nothing_waits_while_the_client_is_waited_for() {
        let (near, mut far) = duplex(256 << 10);
        let mut line = EdgeConnection::new(Box::new(near), TIMEOUT);
        line.write_all(b"head ").await.expect("it waits");
        let mut seen = vec![0; 128 << 10];
        assert!(futures_util::poll!(Box::pin(far.read(&mut seen))).is_pending());
        write_and_flush(&mut line, b"body").await.expect("it is taken");
        assert_eq!(far.read(&mut seen).await.expect("both"), 9);
        line.write_all(b"more").await.expect("it waits");
        let reading = line.read_u8();
        assert!(futures_util::poll!(Box::pin(reading)).is_pending());
        assert_eq!(far.read(&mut seen).await.expect("it did not wait"), 4);
        line.write_all(b"head").await.expect("it waits");
        write_and_flush(&mut line, &vec![7; 100_000]).await.expect("it is taken");
        far.read_exact(&mut seen[..100_004]).await.expect("all of it");
        assert_eq!((&seen[..4], seen[100_003]), (&b"head"[..], 7));
    }

    #[tokio::test]
    async fn who_takes_nothing_is_given_up_for_good() {
        let (near, mut far) = duplex(64);
        let mut line = EdgeConnection::new(Box::new(near), TIMEOUT);
        let began = Instant::now();
        let failed =
            write_and_flush(&mut line, &[0; 100]).await.expect_err("nobody takes all of it");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= TIMEOUT);
        far.read_exact(&mut [0; 64]).await.expect("what was written");
        assert!(line.write_all(b"x").await.is_err(), "a part would be missing");
        assert!(line.flush().await.is_err());
        assert!(AsyncWriteExt::shutdown(&mut line).await.is_err());
    }

    #[tokio::test]
    async fn a_write_that_nobody_waits_for_any_more_is_not_forgotten() {
        let (near, _far) = duplex(64);
        let mut line = EdgeConnection::new(Box::new(near), TIMEOUT);
        let writing = tokio::time::timeout(TIMEOUT * 2, async {
            let first =
                tokio::time::timeout(TIMEOUT / 2, write_and_flush(&mut line, &[0; 100])).await;
            assert!(first.is_err());
            write_and_flush(&mut line, b"x").await
        });
        let failed = writing.await.expect("in time").expect_err("it takes nothing");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_takes_its_time_and_takes_it_all_is_served() {
        let (near, mut far) = duplex(64);
        let mut line = EdgeConnection::new(Box::new(near), TIMEOUT);
        let taking = async {
            let mut taken = 0;
            while taken < 640 {
                tokio::time::sleep(TIMEOUT / 10).await;
                taken += far.read(&mut [0; 16]).await.expect("more");
            }
        };
        let (written, ()) = tokio::join!(write_and_flush(&mut line, &[0; 640]), taking);
        written.expect("it was taken");
    }
}
