//! A reply in one body: kept until it is complete and proved sound, then passed on, byte for byte
//! where the client speaks what the vendor speaks.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::{Break, Passage, Progress};
use crate::dialect::json::{Document, Value};
use crate::dialect::messages::Reported;
use crate::dialect::meter::Meter;
use crate::dialect::translate::reply;
use crate::dialect::translate::thinking::Kept;
use crate::dialect::vendor_error::VendorError;

/// A reply may be so many bytes, at most.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// See the module.
#[derive(Debug)]
pub struct Whole {
    passage: Passage,
    pieces: Vec<Bytes>,
    bytes: usize,
    pub(super) meter: Meter,
    pub(super) progress: Progress,
    pub(super) kept: Option<Kept>,
}

impl Whole {
    pub(super) fn new(passage: Passage) -> Whole {
        let (meter, progress) = (Meter::default(), Progress::Open);
        Whole { passage, pieces: Vec::new(), bytes: 0, meter, progress, kept: None }
    }

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
        match self.read(body) {
            Ok(body) => {
                self.progress = Progress::Complete;
                Some(body)
            }
            Err(why) => {
                self.progress = Progress::Broken(why);
                None
            }
        }
    }

    /// Meters a body, and gives what the client is to have of it.
    fn read(&mut self, body: Bytes) -> Result<Bytes, Break> {
        let document = Document::received(body.clone()).map_err(|_| Break::Garbage)?;
        if let Some(error) = VendorError::in_event(&document) {
            return Err(Break::Told(error));
        }
        match &self.passage {
            Passage::Chat { .. } => {
                meter_chat(&document, &mut self.meter);
                Ok(body)
            }
            Passage::Messages { .. } => {
                document.get("content").ok_or(Break::Garbage)?;
                meter_messages(&document, &mut self.meter);
                Ok(body)
            }
            Passage::Translated(stamp) => {
                let reply = reply::translate(&document, stamp, &mut self.meter);
                let reply = reply.ok_or(Break::Garbage)?;
                self.kept = reply.kept;
                Ok(reply.body)
            }
        }
    }
}

fn meter_chat(document: &Document, meter: &mut Meter) {
    if let Some(usage) = document.get("usage") {
        meter.report(usage);
    }
    if !meter.is_reported()
        && let Some(choices) = document.get("choices")
    {
        meter.count(choices, "message");
    }
}

fn meter_messages(document: &Document, meter: &mut Meter) {
    let mut usage = Reported::default();
    let counts = document.get("usage").is_some_and(|reported| usage.merge(reported));
    if let (true, Some(tokens)) = (counts, usage.tokens()) {
        meter.take(tokens, false);
        return;
    }
    for block in document.get("content").into_iter().flat_map(Value::elements) {
        for name in ["text", "thinking", "input"] {
            meter.count_bytes(block.get(name).map_or(0, |value| value.raw().len()));
        }
    }
}
