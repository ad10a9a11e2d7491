//! A reply in events: each is read, metered and passed on as soon as it is whole.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::{Break, Progress};
use crate::dialect::json::{Document, Draft, Kind};
use crate::dialect::meter::Meter;
use crate::dialect::sse::{Event, Splitter};
use crate::dialect::vendor_error::VendorError;

const DONE: &[u8] = b"[DONE]";

/// See the module.
#[derive(Debug)]
pub struct Stream {
    usage_asked: bool,
    splitter: Splitter,
    /// How many choices have not said that they ended; a stream may end after the last.
    unfinished: u64,
    pub(super) meter: Meter,
    pub(super) progress: Progress,
}

/// What becomes of an event.
enum Fate {
    Keep,
    Drop,
    Replace(Vec<Bytes>),
}

impl Stream {
    pub(super) fn new(usage_asked: bool, choices: u64) -> Stream {
        Stream {
            usage_asked,
            splitter: Splitter::default(),
            unfinished: choices,
            meter: Meter::default(),
            progress: Progress::Open,
        }
    }

    pub(super) fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        if self.progress != Progress::Open {
            return None;
        }
        let Ok(events) = self.splitter.push(bytes) else {
            return self.fail(Break::TooLarge);
        };
        let mut out = Out::default();
        for event in events {
            self.pass(event, &mut out);
        }
        out.join()
    }

    pub(super) fn finish(&mut self) -> Option<Bytes> {
        if self.progress != Progress::Open {
            return None;
        }
        let mut out = Out::default();
        let rest = self.splitter.rest();
        if !rest.trim_ascii().is_empty() {
            // The last event lacks its blank line; it is whole all the same if it can be read.
            self.pass(Event(Bytes::from([&rest, &b"\n\n"[..]].concat())), &mut out);
        }
        if self.progress == Progress::Open {
            if self.unfinished == 0 {
                self.progress = Progress::Complete;
                out.push(Bytes::from_static(b"data: [DONE]\n\n"));
            } else {
                out.push(self.fail(Break::Cut).unwrap_or_default());
            }
        }
        out.join()
    }

    pub(super) fn fail(&mut self, why: Break) -> Option<Bytes> {
        if self.progress != Progress::Open {
            return None;
        }
        let event = format!("data: {}\n\n", why.chat_body());
        self.progress = Progress::Broken(why);
        Some(Bytes::from(event))
    }

    /// Reads one event and puts what the client is to see into `out`.
    fn pass(&mut self, event: Event, out: &mut Out) {
        if self.progress != Progress::Open {
            return;
        }
        let fate = match event.data_slice() {
            None if event.is_well_formed() => Ok(Fate::Keep),
            None => Err(Break::Garbage),
            // Nothing in it: as good as a comment.
            Some(data) if data.trim_ascii().is_empty() => Ok(Fate::Keep),
            Some(data) if &data[..] == DONE => {
                self.progress = Progress::Complete;
                Ok(Fate::Keep)
            }
            Some(data) => self.read(data),
        };
        match fate {
            Ok(Fate::Keep) => out.push(event.0),
            Ok(Fate::Drop) => {}
            Ok(Fate::Replace(pieces)) => {
                out.push(Bytes::from_static(b"data: "));
                pieces.into_iter().for_each(|piece| out.push(piece));
                out.push(Bytes::from_static(b"\n\n"));
            }
            Err(why) => out.push(self.fail(why).unwrap_or_default()),
        }
    }

    fn read(&mut self, data: Bytes) -> Result<Fate, Break> {
        let chunk = Document::parse(data).map_err(|_| Break::Garbage)?;
        if let Some(error) = VendorError::in_event(&chunk) {
            return Err(Break::Told(error));
        }
        let choices = chunk.get("choices");
        if let Some(choices) = choices {
            let finished = self.meter.count(choices, "delta");
            self.unfinished = self.unfinished.saturating_sub(finished);
        }
        let Some(usage) = chunk.get("usage") else { return Ok(Fate::Keep) };
        self.meter.report(usage);
        if self.usage_asked {
            return Ok(Fate::Keep);
        }
        let usage_only = choices.is_none_or(|c| c.elements().next().is_none());
        if usage_only && usage.kind() == Kind::Object {
            return Ok(Fate::Drop);
        }
        let mut draft = Draft::new(&chunk);
        draft.remove("usage");
        Ok(Fate::Replace(draft.finish()))
    }
}

/// Pieces for the client; neighbours in one buffer are joined without a copy.
#[derive(Default)]
struct Out {
    pieces: Vec<Bytes>,
}

impl Out {
    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    fn join(mut self) -> Option<Bytes> {
        if self.pieces.len() <= 1 {
            return self.pieces.pop();
        }
        let mut joined = BytesMut::with_capacity(self.pieces.iter().map(Bytes::len).sum());
        self.pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
        Some(joined.freeze())
    }
}
