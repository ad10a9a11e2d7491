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

use super::chunks::{Chunks, Unsound};
use crate::gateway::wire::{Manners, Wire};

/// See the module.
pub(super) type Line = Wire<Client>;

/// What is minded of a client.
#[derive(Debug)]
pub(super) struct Client {
    taking: Taking,
    /// Those of the body that is under way, if it comes in chunks.
    chunks: Option<Chunks>,
}

impl Line {
    /// The connection of a client that may take nothing for so long.
    pub(super) fn new(stream: Stream, patience: Duration) -> Line {
        Wire { stream, manners: Client { taking: Taking::new(patience), chunks: None } }
    }

    /// A body comes, of which so much was read already.
    pub(super) fn follow(&mut self, chunks: Option<Chunks>) {
        self.manners.chunks = chunks;
    }

    /// The connection that a stream is, to be used again: not where the body has not ended.
    pub(super) fn again(stream: Stream) -> Option<Box<Line>> {
        let mut line = stream.into_any().downcast::<Line>().ok()?;
        let has_ended = line.manners.chunks.take().is_none_or(|chunks| chunks.is_over());
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

impl Manners for Client {
    fn read(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buf))?;
        let Some(chunks) = &mut self.chunks else { return Poll::Ready(Ok(())) };
        let read = chunks.read(&buf.filled()[before..]);
        Poll::Ready(read.map_err(|Unsound| io::ErrorKind::InvalidData.into()))
    }

    fn write(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.taking.give(cx, |cx| Pin::new(stream).poll_write(cx, bytes))
    }

    fn flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.taking.give(cx, |cx| Pin::new(stream).poll_flush(cx))
    }

    fn shut(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.taking.give(cx, |cx| Pin::new(stream).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

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
