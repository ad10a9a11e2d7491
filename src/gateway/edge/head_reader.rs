//! Reads the next request head from an HTTP/1 connection, within limits of size and time.

use bytes::{Buf, BytesMut};
use pingora::server::ShutdownWatch;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};

use super::connection::EdgeConnection;
use super::head;
use super::limits::{EdgeLimits, SHUTDOWN_GRACE, wait_for_shutdown};
use super::unread_fields::{is_unread, remove_lines};
use crate::gateway::api_error::{ApiError, RequestError};
use crate::gateway::budgets::overload::reject;
use crate::gateway::in_flight::InFlightGuard;

/// Buffer space for one read, in bytes. Most heads arrive in one read.
const READ_STEP_BYTES: usize = 4 << 10;

/// The bytes of a head that have arrived so far, and the deadline for the rest.
pub(super) struct HeadReader {
    bytes: BytesMut,
    scanned: usize,
    /// Whether an empty line before the head was skipped. Some clients send one after a body.
    skipped_empty_line: bool,
    deadline: Instant,
    /// `None` between two requests: a kept-alive connection may be idle.
    in_flight: Option<InFlightGuard>,
    is_shutting_down: bool,
}

/// A complete and valid head without the fields that nobody reads, and the bytes that arrived after
/// it.
pub(super) struct ReceivedHead {
    /// The head, and all bytes that were read after it.
    pub(super) bytes: BytesMut,
    /// Counts the request as in flight until it is dropped.
    pub(super) in_flight: InFlightGuard,
}

/// The result of one read from the connection.
enum ReadOutcome {
    Data,
    Closed,
    TimedOut,
}

impl HeadReader {
    /// Returns a reader for a new connection, which counts as in flight at once. Its first head
    /// must be complete by `deadline`.
    pub(super) fn for_new(in_flight: InFlightGuard, deadline: Instant) -> HeadReader {
        HeadReader { in_flight: Some(in_flight), ..HeadReader::new(deadline) }
    }

    /// Returns a reader for a connection that has served a request, and may now be idle for
    /// `limits.idle_wait`.
    pub(super) fn for_reused(limits: &EdgeLimits) -> HeadReader {
        HeadReader::new(Instant::now() + limits.idle_wait)
    }

    fn new(deadline: Instant) -> HeadReader {
        let bytes = BytesMut::new();
        HeadReader {
            bytes,
            scanned: 0,
            skipped_empty_line: false,
            deadline,
            in_flight: None,
            is_shutting_down: false,
        }
    }

    /// Waits for a complete head, and returns it with the bytes that arrived after it. `None` if
    /// the client closed the connection, or sent nothing before the deadline.
    ///
    /// # Errors
    /// The head is invalid, too large, or not complete by the deadline.
    pub(super) async fn next_head(
        &mut self,
        connection: &mut EdgeConnection,
        shutdown: &mut ShutdownWatch,
        limits: &EdgeLimits,
    ) -> Result<Option<ReceivedHead>, ApiError> {
        loop {
            match self.read_more(connection, shutdown).await {
                ReadOutcome::Data => {}
                ReadOutcome::Closed => return Ok(None),
                ReadOutcome::TimedOut if !self.bytes.is_empty() => {
                    reject("head");
                    return Err(RequestError::HeadTimeout.into());
                }
                ReadOutcome::TimedOut => {
                    self.in_flight.iter().for_each(|_| drop(reject("silence")));
                    return Ok(None);
                }
            }
            if self.in_flight.is_none() {
                self.in_flight = Some(limits.in_flight.begin());
                self.deadline = Instant::now() + limits.head_wait;
            }
            if !self.skipped_empty_line && self.bytes.starts_with(b"\r\n") {
                self.bytes.advance(2);
                self.skipped_empty_line = true;
            }
            if self.bytes.is_empty() || (!self.skipped_empty_line && *self.bytes == *b"\r") {
                continue;
            }
            let most = limits.head_bytes_max;
            match head::find_end(&self.bytes, self.scanned)? {
                Some(end) if end <= most => {
                    let unread = head::check_and_select(&self.bytes[..end], is_unread)?;
                    let mut bytes = std::mem::take(&mut self.bytes);
                    if !unread.is_empty() && !(limits.is_unread_forwarded)() {
                        remove_lines(&mut bytes, &unread);
                    }
                    let received = |in_flight| ReceivedHead { bytes, in_flight };
                    return Ok(self.in_flight.take().map(received));
                }
                None if self.bytes.len() <= most => self.scanned = self.bytes.len(),
                _ => return Err(RequestError::HeadTooLarge(most).into()),
            }
        }
    }

    /// Returns the path of the request, as far as it has arrived.
    pub(super) fn path(&self) -> String {
        head::request_path(&self.bytes)
    }

    async fn read_more(
        &mut self,
        connection: &mut EdgeConnection,
        shutdown: &mut ShutdownWatch,
    ) -> ReadOutcome {
        if self.bytes.capacity() - self.bytes.len() < READ_STEP_BYTES / 2 {
            self.bytes.reserve(READ_STEP_BYTES);
        }
        loop {
            let reading = timeout_at(self.deadline, connection.read_buf(&mut self.bytes));
            let read = if self.in_flight.is_none() || self.is_shutting_down {
                reading.await
            } else {
                tokio::select! {
                    biased;
                    read = reading => read,
                    () = wait_for_shutdown(shutdown) => {
                        self.is_shutting_down = true;
                        self.deadline = self.deadline.min(Instant::now() + SHUTDOWN_GRACE);
                        continue;
                    }
                }
            };
            return match read {
                Ok(Ok(1..)) => ReadOutcome::Data,
                Ok(_) => ReadOutcome::Closed,
                Err(_) => ReadOutcome::TimedOut,
            };
        }
    }
}
