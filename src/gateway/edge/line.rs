//! A connection of a client's. What goes out has to be taken in time, whoever writes it: pingora
//! ends a connection by flushing what is left, and would wait for ever for a client that does not
//! read. And a body that comes in chunks is looked at on its way in.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pingora_core::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::chunks::{ChunkReader, InvalidChunk};
use crate::gateway::wire::{IoPolicy, WrappedStream, WriteBuffer};

/// See the module.
pub(super) type EdgeConnection = WrappedStream<ClientStream>;

/// What is minded of a client.
#[derive(Debug)]
pub(super) struct ClientStream {
    taking: WriteTimeout,
    /// A head, or an event, that waits for what comes with it, until that is flushed.
    gathered: WriteBuffer,
    /// Those of the body that is under way, if it comes in chunks.
    chunks: Option<ChunkReader>,
}

impl EdgeConnection {
    /// The connection of a client that may take nothing for so long.
    pub(super) fn new(stream: Stream, patience: Duration) -> EdgeConnection {
        let (taking, gathered) = (WriteTimeout::new(patience), WriteBuffer::default());
        WrappedStream { stream, manners: ClientStream { taking, gathered, chunks: None } }
    }

    /// A body comes, of which so much was read already.
    pub(super) fn follow(&mut self, chunks: Option<ChunkReader>) {
        self.manners.chunks = chunks;
    }

    /// The connection that a stream is, to be used again: not where the body has not ended.
    pub(super) fn again(stream: Stream) -> Option<Box<EdgeConnection>> {
        let mut line = stream.into_any().downcast::<EdgeConnection>().ok()?;
        let has_ended = line.manners.chunks.take().is_none_or(|chunks| chunks.is_over());
        has_ended.then_some(line)
    }
}

/// Whether a client takes what it is given.
#[derive(Debug)]
struct WriteTimeout {
    patience: Duration,
    /// Runs while it takes nothing.
    until: Option<Pin<Box<Sleep>>>,
    given_up: bool,
}

impl WriteTimeout {
    fn new(patience: Duration) -> WriteTimeout {
        WriteTimeout { patience, until: None, given_up: false }
    }

    /// Gives it something. From when it has taken nothing for too long on, that fails.
    fn give<T>(
        &mut self,
        cx: &mut Context<'_>,
        gathered: &mut WriteBuffer,
        stream: &mut Stream,
        last: impl FnOnce(Pin<&mut Stream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if !self.given_up {
            let before = gathered.left();
            let given = match gathered.send(stream, cx) {
                Poll::Ready(Ok(())) => last(Pin::new(stream), cx),
                Poll::Ready(Err(why)) => Poll::Ready(Err(why)),
                Poll::Pending => Poll::Pending,
            };
            if given.is_ready() || gathered.left() != before {
                self.until = None;
            }
            if given.is_ready() {
                return given;
            }
            let until = self.until.get_or_insert_with(|| Box::pin(sleep(self.patience)));
            ready!(until.as_mut().poll(cx));
            self.given_up = true;
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl IoPolicy for ClientStream {
    fn read(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Nobody waits for more while there is something that nobody was told.
        let waited = self.gathered.left();
        if waited > 0 {
            if self.gathered.send(stream, cx)?.is_ready() {
                let _ = Pin::new(&mut *stream).poll_flush(cx)?;
            }
            if self.gathered.left() != waited {
                self.taking.until = None;
            }
        }
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buf))?;
        let Some(chunks) = &mut self.chunks else { return Poll::Ready(Ok(())) };
        let read = chunks.read(&buf.filled()[before..]);
        Poll::Ready(read.map_err(|InvalidChunk| io::ErrorKind::InvalidData.into()))
    }

    fn write(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let ClientStream { taking, gathered, .. } = self;
        if !taking.given_up && gathered.takes(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        taking.give(cx, gathered, stream, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ClientStream { taking, gathered, .. } = self;
        taking.give(cx, gathered, stream, AsyncWrite::poll_flush)
    }

    fn shut(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ClientStream { taking, gathered, .. } = self;
        taking.give(cx, gathered, stream, AsyncWrite::poll_shutdown)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(300);

    /// Writes, and has it sent.
    async fn say(line: &mut EdgeConnection, bytes: &[u8]) -> io::Result<()> {
        line.write_all(bytes).await?;
        line.flush().await
    }

    #[tokio::test]
    async fn head_and_body_leave_together_and_nothing_waits_while_the_client_is_waited_for() {
        let (near, mut far) = duplex(256 << 10);
        let mut line = EdgeConnection::new(Box::new(near), PATIENCE);
        line.write_all(b"head ").await.expect("it waits");
        let mut seen = vec![0; 128 << 10];
        assert!(futures_util::poll!(Box::pin(far.read(&mut seen))).is_pending());
        say(&mut line, b"body").await.expect("it is taken");
        assert_eq!(far.read(&mut seen).await.expect("both"), 9);
        line.write_all(b"more").await.expect("it waits");
        let reading = line.read_u8();
        assert!(futures_util::poll!(Box::pin(reading)).is_pending());
        assert_eq!(far.read(&mut seen).await.expect("it did not wait"), 4);
        line.write_all(b"head").await.expect("it waits");
        say(&mut line, &vec![7; 100_000]).await.expect("it is taken");
        far.read_exact(&mut seen[..100_004]).await.expect("all of it");
        assert_eq!((&seen[..4], seen[100_003]), (&b"head"[..], 7));
    }

    #[tokio::test]
    async fn who_takes_nothing_is_given_up_for_good() {
        let (near, mut far) = duplex(64);
        let mut line = EdgeConnection::new(Box::new(near), PATIENCE);
        let began = Instant::now();
        let failed = say(&mut line, &[0; 100]).await.expect_err("nobody takes all of it");
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
        let mut line = EdgeConnection::new(Box::new(near), PATIENCE);
        let writing = tokio::time::timeout(PATIENCE * 2, async {
            let first = tokio::time::timeout(PATIENCE / 2, say(&mut line, &[0; 100])).await;
            assert!(first.is_err());
            say(&mut line, b"x").await
        });
        let failed = writing.await.expect("in time").expect_err("it takes nothing");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_takes_its_time_and_takes_it_all_is_served() {
        let (near, mut far) = duplex(64);
        let mut line = EdgeConnection::new(Box::new(near), PATIENCE);
        let taking = async {
            let mut taken = 0;
            while taken < 640 {
                tokio::time::sleep(PATIENCE / 10).await;
                taken += far.read(&mut [0; 16]).await.expect("more");
            }
        };
        let (written, ()) = tokio::join!(say(&mut line, &[0; 640]), taking);
        written.expect("it was taken");
    }
}
