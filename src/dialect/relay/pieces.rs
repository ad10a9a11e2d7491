//! A reply in one body that needs no proof as a whole: its parts are proved and passed on one by
//! one, so that however long it is, little of it is held.
//!
//! Its first bytes are held back for a while, so that one which is not long, or breaks early, is
//! passed on as a whole or not at all. Once they are out, a break can only be told by cutting the
//! connection. Its last bytes wait for its end, when all of it is proved and its cost known.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::{Break, Progress};
use crate::dialect::embeddings::{Inputs, REPLY_BYTES_MAX, ReplyFault, ReplyReader};
use crate::dialect::meter::Meter;
use crate::money::TokenUsage;

/// So many bytes are held back at first.
const HELD_BACK_BYTES: usize = 256 << 10;

/// See the module.
#[derive(Debug)]
pub struct Pieces {
    reader: ReplyReader,
    out: BytesMut,
    bytes: usize,
    has_begun: bool,
    pub(super) meter: Meter,
    pub(super) progress: Progress,
}

impl Pieces {
    pub(super) fn new(inputs: Inputs) -> Pieces {
        Pieces {
            reader: ReplyReader::new(inputs),
            out: BytesMut::new(),
            bytes: 0,
            has_begun: false,
            meter: Meter::default(),
            progress: Progress::Open,
        }
    }

    pub(super) fn held(&self) -> usize {
        self.reader.held() + self.out.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<Bytes> {
        if self.progress != Progress::Open {
            return None;
        }
        self.bytes += bytes.len();
        if self.bytes > REPLY_BYTES_MAX {
            self.fail(Break::TooLarge);
        } else if let Err(why) = self.reader.push(bytes, &mut self.out) {
            self.fail(why.into());
        } else if self.has_begun || self.out.len() > HELD_BACK_BYTES {
            self.has_begun = true;
            return Some(self.out.split().freeze()).filter(|out| !out.is_empty());
        }
        None
    }

    pub(super) fn finish(&mut self) -> Option<Bytes> {
        if self.progress != Progress::Open {
            return None;
        }
        match self.reader.finish(&mut self.out) {
            Ok(tokens) => {
                if let Some(input) = tokens {
                    self.meter.take(TokenUsage { input, ..TokenUsage::default() }, false);
                }
                self.progress = Progress::Complete;
                Some(self.out.split().freeze())
            }
            Err(why) => {
                self.fail(why.into());
                None
            }
        }
    }

    pub(super) fn fail(&mut self, why: Break) {
        self.out = BytesMut::new();
        self.progress = Progress::Broken(why);
    }
}

impl From<ReplyFault> for Break {
    fn from(fault: ReplyFault) -> Break {
        match fault {
            ReplyFault::Unsound => Break::Garbage,
            ReplyFault::TooLarge => Break::TooLarge,
            ReplyFault::Told(error) => Break::Told(error),
        }
    }
}
