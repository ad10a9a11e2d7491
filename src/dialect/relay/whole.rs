//! A reply in one body: kept until it is complete and proved sound, then passed on byte for byte.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::{Break, Progress};
use crate::dialect::json::Document;
use crate::dialect::meter::Meter;
use crate::dialect::vendor_error::VendorError;

/// A reply may be so many bytes, at most.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// See the module.
#[derive(Debug)]
pub struct Whole {
    pieces: Vec<Bytes>,
    bytes: usize,
    pub(super) meter: Meter,
    pub(super) progress: Progress,
}

impl Default for Whole {
    fn default() -> Whole {
        Whole { pieces: Vec::new(), bytes: 0, meter: Meter::default(), progress: Progress::Open }
    }
}

impl Whole {
    pub(super) fn push(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        if self.bytes > REPLY_BYTES_MAX {
            self.pieces.clear();
            self.progress = Progress::Broken(Break::TooLarge);
        } else if self.progress == Progress::Open {
            self.pieces.push(bytes);
        }
    }

    pub(super) fn finish(&mut self) -> Option<Bytes> {
        if self.progress != Progress::Open {
            return None;
        }
        let body = if self.pieces.len() == 1 {
            self.pieces.remove(0)
        } else {
            let mut joined = BytesMut::with_capacity(self.bytes);
            self.pieces.drain(..).for_each(|piece| joined.extend_from_slice(&piece));
            joined.freeze()
        };
        self.progress = self.read(&body);
        (self.progress == Progress::Complete).then_some(body)
    }

    fn read(&mut self, body: &Bytes) -> Progress {
        let Ok(document) = Document::parse(body.clone()) else {
            return Progress::Broken(Break::Garbage);
        };
        if let Some(error) = VendorError::in_event(&document) {
            return Progress::Broken(Break::Told(error));
        }
        if let Some(usage) = document.get("usage") {
            self.meter.report(usage);
        }
        if !self.meter.is_reported()
            && let Some(choices) = document.get("choices")
        {
            self.meter.count(choices, "message");
        }
        Progress::Complete
    }
}
