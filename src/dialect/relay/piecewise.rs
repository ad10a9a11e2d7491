//! Relays a reply in one body whose parts are validated and passed on one by one, so that little of
//! it is buffered, however long it is.
//!
//! The first bytes are held back for a while, so that a reply which is short, or fails early, is
//! passed on as a whole or not at all. Once they have been sent, the gateway can report a failure
//! only by cutting the connection. The last bytes are held back until the reply ends, when all of
//! it has been validated and its cost is known.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::progress::{RelayError, RelayProgress};
use crate::dialect::embeddings::{
    EmbeddingInputs, EmbeddingsReader, EmbeddingsReplyError, REPLY_BYTES_MAX,
};
use crate::dialect::meter::{ReportQuality, UsageMeter};
use crate::money::TokenUsage;

/// At first this many bytes for the client are held back.
const INITIAL_BUFFER_BYTES: usize = 256 << 10;

/// The relay of a reply in one body that is passed on part by part.
#[derive(Debug)]
pub struct PiecewiseRelay {
    reader: EmbeddingsReader,
    out: BytesMut,
    received_bytes: usize,
    has_sent_bytes: bool,
    pub(super) meter: UsageMeter,
    pub(super) progress: RelayProgress,
}

impl PiecewiseRelay {
    pub(super) fn new(inputs: EmbeddingInputs) -> PiecewiseRelay {
        PiecewiseRelay {
            reader: EmbeddingsReader::new(inputs),
            out: BytesMut::new(),
            received_bytes: 0,
            has_sent_bytes: false,
            meter: UsageMeter::default(),
            progress: RelayProgress::Open,
        }
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.reader.buffered_bytes() + self.out.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<Bytes> {
        if self.progress != RelayProgress::Open {
            return None;
        }
        self.received_bytes += bytes.len();
        if self.received_bytes > REPLY_BYTES_MAX {
            self.fail(RelayError::TooLarge);
        } else if let Err(why) = self.reader.push(bytes, &mut self.out) {
            self.fail(why.into());
        } else if self.has_sent_bytes || self.out.len() > INITIAL_BUFFER_BYTES {
            self.has_sent_bytes = true;
            return Some(self.out.split().freeze()).filter(|out| !out.is_empty());
        }
        None
    }

    pub(super) fn finish(&mut self) -> Option<Bytes> {
        if self.progress != RelayProgress::Open {
            return None;
        }
        match self.reader.finish(&mut self.out) {
            Ok(tokens) => {
                if let Some(input) = tokens {
                    let tokens = TokenUsage { input, ..TokenUsage::default() };
                    self.meter.record_tokens(tokens, ReportQuality::Final);
                }
                self.progress = RelayProgress::Complete;
                Some(self.out.split().freeze())
            }
            Err(why) => {
                self.fail(why.into());
                None
            }
        }
    }

    pub(super) fn fail(&mut self, why: RelayError) {
        self.out = BytesMut::new();
        self.progress = RelayProgress::Failed(why);
    }
}

impl From<EmbeddingsReplyError> for RelayError {
    fn from(fault: EmbeddingsReplyError) -> RelayError {
        match fault {
            EmbeddingsReplyError::Malformed => RelayError::Malformed,
            EmbeddingsReplyError::TooLarge => RelayError::TooLarge,
            EmbeddingsReplyError::VendorFailed(error) => RelayError::Vendor(error),
        }
    }
}
