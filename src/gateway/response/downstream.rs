//! The client's side of an answer: what it is given, whether it takes that, and how fast.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use crate::gateway::budgets::answers::{AnswerBudget, AnswerPermit};

/// What is there already goes out in one write, up to this size; what is longer goes in pieces of
/// it, each of which a client has to take in time.
pub(super) const WRITE_CHUNK_BYTES: usize = 64 << 10;
/// After the client has gone this much is read on, at most.
const DRAIN_BYTES_MAX: u64 = 64 << 20;
/// Under memory pressure, a client that reads nothing for this long counts as disconnected,
const PRESSURE_WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// and so does one that, after the same time, has read less than this per second.
const PRESSURE_BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// How often a pending write checks for memory pressure.
const PRESSURE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes for the client.
#[derive(Default)]
pub(super) struct OutputChunks(pub(super) Vec<Bytes>);

impl OutputChunks {
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub(super) fn append(&mut self, mut more: OutputChunks) {
        self.0.append(&mut more.0);
    }

    /// In as few pieces as are worth a copy.
    fn coalesce(mut self) -> Vec<Bytes> {
        let length = self.len();
        if self.0.len() > 1 && length <= 2 * WRITE_CHUNK_BYTES {
            let mut joined = BytesMut::with_capacity(length);
            self.0.iter().for_each(|piece| joined.extend_from_slice(piece));
            self.0 = vec![joined.freeze()];
        }
        self.0
    }
}

/// When a client went, and how far the answer was.
#[derive(Clone, Copy)]
pub(super) struct Disconnected {
    at: Instant,
    read_bytes: u64,
}

impl Disconnected {
    /// Whether to read on, for the sake of the usage at the end.
    pub(super) fn should_drain(self, read_bytes: u64, drain: Duration) -> bool {
        let beyond = read_bytes.saturating_sub(self.read_bytes);
        self.at.elapsed() < drain && beyond < DRAIN_BYTES_MAX
    }
}

/// The client's side of an answer. Once it has gone, nothing is written any more.
pub(super) struct Downstream<'a> {
    /// The head, until the first bytes go out.
    pub(super) head: Option<Box<ResponseHeader>>,
    pub(super) disconnected: Option<Disconnected>,
    pub(super) is_stream: bool,
    /// The whole response for an HTTP/1.0 client. There the end of the connection ends the
    /// response, so one that was cut off would look complete.
    pub(super) http10_buffer: Option<OutputChunks>,
    /// For one write.
    pub(super) write_timeout: Duration,
    /// For all that was there at once.
    pub(super) total_timeout: Duration,
    /// How long it took to take what it was given.
    pub(super) write_time: Duration,
    /// What is held for it.
    pub(super) permit: AnswerPermit,
    pub(super) budget: &'a AnswerBudget,
}

/// It did not take something in time, or its connection failed.
struct WriteFailure;

/// How far a client is with what it was given at once.
struct PendingWrite {
    began: Instant,
    bytes: u64,
}

impl Downstream<'_> {
    /// How much is held for it beside what was not read yet.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.http10_buffer.as_ref().map_or(0, OutputChunks::len)
    }

    /// Gives it something, after which the vendor had been read this far.
    pub(super) async fn send_output(
        &mut self,
        session: &mut Session,
        mut out: OutputChunks,
        end: bool,
        read_bytes: u64,
    ) {
        if let Some(collected) = self.http10_buffer.as_mut().filter(|_| self.disconnected.is_none())
        {
            collected.append(out);
            if !end {
                return;
            }
            out = std::mem::take(collected);
        }
        if self.disconnected.is_some() || (out.len() == 0 && !end) {
            return;
        }
        let began = Instant::now();
        let pieces = out.coalesce();
        let written = if self.permit.is_counted() {
            // Boxed: most answers are short.
            Box::pin(self.write_chunks(session, pieces, end, began)).await
        } else {
            let writing = tokio::time::timeout(
                self.write_timeout,
                self.write_chunks(session, pieces, end, began),
            );
            writing.await.unwrap_or(Err(WriteFailure))
        };
        let now = Instant::now();
        self.write_time += now - began;
        if written.is_err() {
            session.set_keepalive(None);
            self.http10_buffer = None;
            self.disconnected = Some(Disconnected { at: now, read_bytes });
        }
    }

    async fn write_chunks(
        &mut self,
        session: &mut Session,
        pieces: Vec<Bytes>,
        end: bool,
        began: Instant,
    ) -> Result<(), WriteFailure> {
        let mut taking = PendingWrite { began, bytes: 0 };
        let down = &mut session.downstream_session;
        if let Some(mut head) = self.head.take() {
            if end && !self.is_stream {
                // All of it is here, so its length can be told. A stream stays one.
                head.remove_header("transfer-encoding");
                let length: usize = pieces.iter().map(Bytes::len).sum();
                head.insert_header("content-length", length).map_err(|_| WriteFailure)?;
            }
            self.await_write(&taking, down.write_response_header(head)).await?;
        }
        let mut pieces = pieces.into_iter().peekable();
        loop {
            let mut rest = pieces.next().unwrap_or_default();
            let is_last = pieces.peek().is_none();
            loop {
                let piece = rest.split_to(rest.len().min(WRITE_CHUNK_BYTES));
                let bytes = piece.len() as u64;
                let ends = end && is_last && rest.is_empty();
                self.await_write(&taking, down.write_response_body(piece, ends)).await?;
                taking.bytes += bytes;
                if rest.is_empty() {
                    break;
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Waits until something is taken, as long as a client may take for it.
    async fn await_write<T>(
        &self,
        taking: &PendingWrite,
        writing: impl Future<Output = pingora::Result<T>>,
    ) -> Result<(), WriteFailure> {
        if !self.permit.is_counted() {
            // All of it has a bound together.
            return writing.await.map(drop).map_err(|_| WriteFailure);
        }
        let began = Instant::now();
        let mut writing = std::pin::pin!(writing);
        loop {
            let left = self.time_left(taking, began.elapsed()).ok_or(WriteFailure)?;
            let look = left.min(PRESSURE_POLL_INTERVAL);
            if let Ok(written) = tokio::time::timeout(look, &mut writing).await {
                return written.map(drop).map_err(|_| WriteFailure);
            }
        }
    }

    /// How long a client may still take for something that it was given so long ago.
    fn time_left(&self, taking: &PendingWrite, since: Duration) -> Option<Duration> {
        let in_all = self.total_timeout.checked_sub(taking.began.elapsed())?;
        let mut patience = self.write_timeout;
        if self.permit.is_under_pressure(self.budget) {
            let due = Duration::from_secs(taking.bytes / PRESSURE_BYTES_PER_SECOND_MIN);
            (PRESSURE_WRITE_TIMEOUT + due).checked_sub(taking.began.elapsed())?;
            patience = patience.min(PRESSURE_WRITE_TIMEOUT);
        }
        patience.checked_sub(since).map(|left| left.min(in_all)).filter(|left| !left.is_zero())
    }
}
