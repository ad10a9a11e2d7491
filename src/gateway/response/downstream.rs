//! Writes a response to the client, limits how long the client may take for it, and notices when
//! the client disconnects.

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use crate::failpoints::failpoint;
use crate::gateway::budgets::answers::{AnswerBudget, AnswerPermit};
use crate::gateway::deadline::await_until;

/// Output that is ready is collected up to this many bytes and written at once. Longer output is
/// written in chunks of this size, each of which the client must take in time.
pub(super) const WRITE_CHUNK_BYTES: usize = 64 << 10;
/// After the client has disconnected, at most this many more bytes of the vendor's response are
/// read.
const DRAIN_BYTES_MAX: u64 = 64 << 20;
/// Under memory pressure, a client that reads nothing for this long counts as disconnected.
const PRESSURE_WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Under memory pressure, a client that has read fewer bytes per second than this counts as
/// disconnected, once [`PRESSURE_WRITE_TIMEOUT`] has passed.
const PRESSURE_BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// How often a pending write checks for memory pressure.
const PRESSURE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Chunks of output for the client.
#[derive(Default)]
pub(super) struct OutputChunks(pub(super) Vec<Bytes>);

impl OutputChunks {
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub(super) fn append(&mut self, mut more: OutputChunks) {
        self.0.append(&mut more.0);
    }

    /// Joins the chunks into one if they have at most twice [`WRITE_CHUNK_BYTES`] in total; for
    /// more bytes a copy is not worth it.
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

/// When a client disconnected, and how many bytes of the vendor's response had been read then.
#[derive(Clone, Copy)]
pub(super) struct Disconnected {
    at: Instant,
    read_bytes: u64,
}

impl Disconnected {
    /// Whether to read on after the disconnect, because the usage is reported at the end of the
    /// response.
    pub(super) fn should_drain(self, read_bytes: u64, drain: Duration) -> bool {
        let beyond = read_bytes.saturating_sub(self.read_bytes);
        self.at.elapsed() < drain && beyond < DRAIN_BYTES_MAX
    }
}

/// The client's side of a response. After the client has disconnected, nothing more is written.
pub(super) struct Downstream<'a> {
    /// The response head, until it is written before the first bytes.
    pub(super) head: Option<Box<ResponseHeader>>,
    pub(super) disconnected: Option<Disconnected>,
    pub(super) is_stream: bool,
    /// The whole response for an HTTP/1.0 client. There the end of the connection ends the
    /// response, so one that was cut off would look complete.
    pub(super) http10_buffer: Option<OutputChunks>,
    /// Timeout of one write.
    pub(super) write_timeout: Duration,
    /// Timeout of all writes of one output.
    pub(super) total_timeout: Duration,
    /// How long the client took for all writes so far.
    pub(super) write_time: Duration,
    /// The memory that is reserved for bytes that wait for the client.
    pub(super) permit: AnswerPermit,
    pub(super) budget: &'a AnswerBudget,
}

/// The client did not take a write in time, or its connection failed.
struct WriteFailure;

/// The progress of one output: when its first write began, and how many bytes the client has taken.
struct PendingWrite {
    began: Instant,
    bytes: u64,
}

impl Downstream<'_> {
    /// Returns how many bytes are buffered here for an HTTP/1.0 client.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.http10_buffer.as_ref().map_or(0, OutputChunks::len)
    }

    /// Sends output to the client, or buffers it until `end` for an HTTP/1.0 client. `read_bytes`
    /// is how much of the vendor's response has been read, in case the client disconnects.
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
            // Boxed: most responses are short and take the other branch.
            Box::pin(self.write_chunks(session, pieces, end, began)).await
        } else {
            let deadline = began + self.write_timeout;
            let writing = pin!(self.write_chunks(session, pieces, end, began));
            await_until(deadline.into(), writing).await.unwrap_or(Err(WriteFailure))
        };
        let now = Instant::now();
        self.write_time += now - began;
        failpoint!("reply_begun", if self.is_stream && !end);
        failpoint!("reply_sent", if end);
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
        let mut pending = PendingWrite { began, bytes: 0 };
        let down = &mut session.downstream_session;
        if let Some(mut head) = self.head.take() {
            if end && !self.is_stream {
                // The whole response is here, so its length is known. A stream stays chunked.
                head.remove_header("transfer-encoding");
                let length: usize = pieces.iter().map(Bytes::len).sum();
                head.insert_header("content-length", length).map_err(|_| WriteFailure)?;
            }
            self.await_write(&pending, down.write_response_header(head)).await?;
        }
        let mut pieces = pieces.into_iter().peekable();
        loop {
            let mut rest = pieces.next().unwrap_or_default();
            let is_last = pieces.peek().is_none();
            loop {
                let piece = rest.split_to(rest.len().min(WRITE_CHUNK_BYTES));
                let bytes = piece.len() as u64;
                let ends = end && is_last && rest.is_empty();
                self.await_write(&pending, down.write_response_body(piece, ends)).await?;
                pending.bytes += bytes;
                if rest.is_empty() {
                    break;
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Waits until the client has taken a write, for at most as long as it may take.
    async fn await_write<T>(
        &self,
        pending: &PendingWrite,
        writing: impl Future<Output = pingora::Result<T>>,
    ) -> Result<(), WriteFailure> {
        if !self.permit.is_counted() {
            // The caller limits the time of all writes together.
            return writing.await.map(drop).map_err(|_| WriteFailure);
        }
        let began = Instant::now();
        let mut writing = pin!(writing);
        loop {
            let left = self.time_left(pending, began.elapsed()).ok_or(WriteFailure)?;
            let look = left.min(PRESSURE_POLL_INTERVAL);
            if let Ok(written) = tokio::time::timeout(look, &mut writing).await {
                return written.map(drop).map_err(|_| WriteFailure);
            }
        }
    }

    /// Returns how long the client may still take for a write that has been waiting for `since`;
    /// `None` if its time is over.
    fn time_left(&self, pending: &PendingWrite, since: Duration) -> Option<Duration> {
        let in_all = self.total_timeout.checked_sub(pending.began.elapsed())?;
        let mut write_timeout = self.write_timeout;
        if self.permit.is_under_pressure(self.budget) {
            let allowed_time = Duration::from_secs(pending.bytes / PRESSURE_BYTES_PER_SECOND_MIN);
            (PRESSURE_WRITE_TIMEOUT + allowed_time).checked_sub(pending.began.elapsed())?;
            write_timeout = write_timeout.min(PRESSURE_WRITE_TIMEOUT);
        }
        write_timeout.checked_sub(since).map(|left| left.min(in_all)).filter(|left| !left.is_zero())
    }
}
