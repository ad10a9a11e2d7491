//! Listening for the next head on a connection.

use bytes::{Buf, BytesMut};
use pingora_core::server::ShutdownWatch;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};

use super::chunks::ChunkReader;
use super::head::{BodyFraming, HeadError};
use super::line::EdgeConnection;
use super::{EdgeTimeouts, LEAVING_WAIT, head, stopped};
use crate::gateway::busy::InFlightGuard;
use crate::gateway::load::shed;
use crate::gateway::refusal::ApiError;

/// A head is read in steps of so many bytes, which is all of it but for few clients.
const STEP_BYTES: usize = 4 << 10;

/// What was heard so far of a head, and until when all of it has to come.
pub(super) struct HeadReader {
    bytes: BytesMut,
    looked: usize,
    /// Whether an empty line was passed over, as some clients send after a body.
    skipped: bool,
    deadline: Instant,
    /// None while nobody expects anything: a used connection may be idle.
    busy: Option<InFlightGuard>,
    leaving: bool,
}

/// A head, and what came with it.
pub(super) struct HeadOutcome {
    /// All bytes from the beginning of the head.
    pub(super) bytes: BytesMut,
    /// What more of the body has to go on from, if it comes in chunks.
    pub(super) chunks: Option<ChunkReader>,
    /// Counts the request.
    pub(super) busy: InFlightGuard,
}

/// What came of a read.
enum ReadOutcome {
    Bytes,
    End,
    Late,
}

impl HeadReader {
    /// For a new connection, which has to say something.
    pub(super) fn of_new(busy: InFlightGuard, deadline: Instant) -> HeadReader {
        HeadReader { busy: Some(busy), ..HeadReader::until(deadline) }
    }

    /// For one that has been used, and may be silent for a while.
    pub(super) fn of_used(patience: &EdgeTimeouts) -> HeadReader {
        HeadReader::until(Instant::now() + patience.idle_wait)
    }

    fn until(deadline: Instant) -> HeadReader {
        let bytes = BytesMut::new();
        HeadReader { bytes, looked: 0, skipped: false, deadline, busy: None, leaving: false }
    }

    /// Waits for a whole head and gives it, with what came after it. None if no more comes.
    ///
    /// # Errors
    /// Something is wrong with it.
    pub(super) async fn hear(
        &mut self,
        line: &mut EdgeConnection,
        shutdown: &mut ShutdownWatch,
        patience: &EdgeTimeouts,
    ) -> Result<Option<HeadOutcome>, ApiError> {
        loop {
            match self.more(line, shutdown).await {
                ReadOutcome::Bytes => {}
                ReadOutcome::End => return Ok(None),
                ReadOutcome::Late if !self.bytes.is_empty() => {
                    shed("head");
                    return Err(ApiError::HeadSlow);
                }
                ReadOutcome::Late => {
                    self.busy.iter().for_each(|_| drop(shed("silence")));
                    return Ok(None);
                }
            }
            if self.busy.is_none() {
                self.busy = Some(patience.busy.enter());
                self.deadline = Instant::now() + patience.head_wait;
            }
            if !self.skipped && self.bytes.starts_with(b"\r\n") {
                self.bytes.advance(2);
                self.skipped = true;
            }
            if self.bytes.is_empty() || (!self.skipped && *self.bytes == *b"\r") {
                continue;
            }
            let most = patience.head_bytes_max;
            match head::end(&self.bytes, self.looked).map_err(ApiError::Head)? {
                Some(end) if end <= most => {
                    let chunks = self.check(end).map_err(ApiError::Head)?;
                    let bytes = std::mem::take(&mut self.bytes);
                    return Ok(self.busy.take().map(|busy| HeadOutcome { bytes, chunks, busy }));
                }
                None if self.bytes.len() <= most => self.looked = self.bytes.len(),
                _ => return Err(ApiError::HeadTooLarge(most)),
            }
        }
    }

    /// Checks the head that ends there, and what is there of a body in chunks.
    fn check(&self, end: usize) -> Result<Option<ChunkReader>, HeadError> {
        let (head, body) = self.bytes.split_at(end);
        if head::check(head)? == BodyFraming::Length {
            return Ok(None);
        }
        let mut chunks = ChunkReader::default();
        chunks.read(body).map_err(|_| HeadError::Chunks)?;
        Ok(Some(chunks).filter(|chunks| !chunks.is_over()))
    }

    /// The path that is asked for, as far as it was heard.
    pub(super) fn path(&self) -> String {
        head::path(&self.bytes)
    }

    async fn more(
        &mut self,
        line: &mut EdgeConnection,
        shutdown: &mut ShutdownWatch,
    ) -> ReadOutcome {
        if self.bytes.capacity() - self.bytes.len() < STEP_BYTES / 2 {
            self.bytes.reserve(STEP_BYTES);
        }
        loop {
            let reading = timeout_at(self.deadline, line.read_buf(&mut self.bytes));
            let read = if self.busy.is_none() || self.leaving {
                reading.await
            } else {
                tokio::select! {
                    biased;
                    read = reading => read,
                    () = stopped(shutdown) => {
                        self.leaving = true;
                        self.deadline = self.deadline.min(Instant::now() + LEAVING_WAIT);
                        continue;
                    }
                }
            };
            return match read {
                Ok(Ok(1..)) => ReadOutcome::Bytes,
                Ok(_) => ReadOutcome::End,
                Err(_) => ReadOutcome::Late,
            };
        }
    }
}
