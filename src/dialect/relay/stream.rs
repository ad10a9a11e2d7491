//! A reply in events: each is read, metered and passed on as soon as it is whole.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::{Break, Keep, Passage, Progress};
use crate::dialect::json::compact::compact;
use crate::dialect::json::{Document, Draft, Kind, Value};
use crate::dialect::messages::Reported;
use crate::dialect::meter::Meter;
use crate::dialect::responses::{self, Told};
use crate::dialect::sse::{Event, Splitter};
use crate::dialect::translate::stream::{Step, Translator};
use crate::dialect::vendor_error::VendorError;

const DONE: &[u8] = b"[DONE]";

/// See the module.
#[derive(Debug)]
pub struct Stream {
    voice: Voice,
    splitter: Splitter,
    pub(super) meter: Meter,
    pub(super) progress: Progress,
}

/// What is known of the stream in the vendor's dialect.
#[derive(Debug)]
enum Voice {
    /// How many choices have not said that they ended; a stream may end after the last.
    Chat { usage_asked: bool, unfinished: u64 },
    /// What was reported so far, and the id that an error names.
    Messages { reported: Reported, request_id: String },
    /// What was told so far, and an error that came as an event of its own: the response itself may
    /// still say how it ended.
    Responses(Told, Option<VendorError>),
    /// The other format, as far as it is written.
    Translated(Box<Translator>),
}

/// What becomes of an event.
enum Fate {
    Keep,
    Drop,
    Replace(Vec<Bytes>),
    /// It is the last one, and is kept.
    Last,
    /// It became this, and may be the last one.
    Became(Bytes, Step),
}

impl Stream {
    pub(super) fn new(passage: Passage) -> Stream {
        let voice = match passage {
            Passage::Chat { usage_asked, choices } => {
                Voice::Chat { usage_asked, unfinished: choices }
            }
            Passage::Messages { request_id } => {
                Voice::Messages { reported: Reported::default(), request_id }
            }
            Passage::Translated(stamp) => Voice::Translated(Box::new(Translator::new(stamp))),
            // The others don't come in events.
            _ => Voice::Responses(Told::default(), None),
        };
        let (meter, progress) = (Meter::default(), Progress::Open);
        Stream { voice, splitter: Splitter::default(), meter, progress }
    }

    pub(super) fn held(&self) -> usize {
        self.splitter.held()
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
        // The last event may lack its blank line; it is whole all the same if it can be read. One
        // without data was cut off before there was anything to read.
        let rest = Event(Bytes::from([&self.splitter.rest(), &b"\n\n"[..]].concat()));
        if rest.data_slice().is_some_and(|data| !data.trim_ascii().is_empty()) {
            self.pass(rest, &mut out);
        }
        if self.progress == Progress::Open {
            if let Voice::Chat { unfinished: 0, .. } = self.voice {
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
        let why = match &mut self.voice {
            Voice::Responses(_, told) if !why.is_ours() => told.take().map_or(why, Break::Told),
            _ => why,
        };
        let event = self.voice.error_event(&why);
        self.progress = Progress::Broken(why);
        Some(Bytes::from(event))
    }

    pub(super) fn keep(&mut self) -> Option<Keep> {
        match &mut self.voice {
            Voice::Translated(translator) => translator.kept().map(Keep::Thinking),
            Voice::Responses(told, _) => Some(Keep::Given(told.given())),
            Voice::Chat { .. } | Voice::Messages { .. } => None,
        }
    }

    /// Whether it ended in a way that costs nothing.
    pub(super) fn is_unpaid(&self) -> bool {
        matches!(&self.voice, Voice::Responses(told, _) if told.is_unpaid())
    }

    /// Reads one event and puts what the client is to see into `out`.
    fn pass(&mut self, event: Event, out: &mut Out) {
        if self.progress != Progress::Open {
            return;
        }
        let fate = match event.data_slice() {
            None if event.is_well_formed() => Ok(self.silent(&event)),
            None => Err(Break::Garbage),
            // Nothing in it: as good as a comment.
            Some(data) if data.trim_ascii().is_empty() => match self.voice {
                Voice::Translated(_) => Ok(Fate::Drop),
                _ => Ok(Fate::Keep),
            },
            Some(data) if &data[..] == DONE => match self.voice {
                Voice::Chat { .. } => Ok(Fate::Last),
                _ => Err(Break::Garbage),
            },
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
            Ok(Fate::Last) => {
                self.progress = Progress::Complete;
                out.push(event.0);
            }
            Ok(Fate::Became(bytes, step)) => {
                if step == Step::Last {
                    self.progress = Progress::Complete;
                }
                out.push(bytes);
            }
            Err(why) => out.push(self.fail(why).unwrap_or_default()),
        }
    }

    /// An event without data. In another format only comments mean the same.
    fn silent(&self, event: &Event) -> Fate {
        match self.voice {
            Voice::Translated(_) if !event.0.starts_with(b":") => Fate::Drop,
            _ => Fate::Keep,
        }
    }

    fn read(&mut self, data: Bytes) -> Result<Fate, Break> {
        let event = Document::received(data).map_err(|_| Break::Garbage)?;
        // A response's own events say how they went wrong.
        let events_tell = matches!(self.voice, Voice::Responses(..));
        if let Some(error) = VendorError::in_event(&event).filter(|_| !events_tell) {
            return Err(Break::Told(error));
        }
        match &mut self.voice {
            Voice::Chat { usage_asked, unfinished } => {
                Ok(chat(&event, *usage_asked, unfinished, &mut self.meter))
            }
            Voice::Messages { reported, .. } => messages(&event, reported, &mut self.meter),
            Voice::Responses(told, error) => response(&event, (told, error), &mut self.meter),
            Voice::Translated(translator) => {
                let mut out = BytesMut::new();
                let step = translator.event(&event, &mut self.meter, &mut out);
                Ok(Fate::Became(out.freeze(), step.ok_or(Break::Garbage)?))
            }
        }
    }
}

impl Voice {
    /// An event that tells the client why its stream ends.
    fn error_event(&self, why: &Break) -> String {
        match self {
            Voice::Messages { request_id, .. } => {
                format!("event: error\ndata: {}\n\n", why.messages_body(request_id))
            }
            Voice::Responses(told, _) => {
                responses::error_event(why.named(), &why.said(), told.next_sequence_number())
            }
            Voice::Chat { .. } | Voice::Translated(_) => {
                format!("data: {}\n\n", why.chat_body())
            }
        }
    }
}

/// A chunk of a chat stream.
fn chat(chunk: &Document, usage_asked: bool, unfinished: &mut u64, meter: &mut Meter) -> Fate {
    let choices = chunk.get("choices");
    if let Some(choices) = choices {
        let finished = meter.count(choices, "delta");
        *unfinished = unfinished.saturating_sub(finished);
    }
    let Some(usage) = chunk.get("usage") else { return Fate::Keep };
    meter.report(usage);
    if usage_asked {
        return Fate::Keep;
    }
    let usage_only = choices.is_none_or(|c| c.elements().next().is_none());
    if usage_only && usage.kind() == Kind::Object {
        return Fate::Drop;
    }
    let mut draft = Draft::new(chunk);
    draft.remove("usage");
    let pieces = draft.finish();
    if chunk.body().contains(&b'\n') || chunk.body().contains(&b'\r') {
        // Data that came on several lines goes on one.
        return Fate::Replace(vec![Bytes::from(compact(&pieces.concat()).into_owned())]);
    }
    Fate::Replace(pieces)
}

/// An event of a response, which goes on as it came. After an error only the response's own end is
/// waited for, which says the same.
fn response(
    event: &Document,
    (told, error): (&mut Told, &mut Option<VendorError>),
    meter: &mut Meter,
) -> Result<Fate, Break> {
    match (told.event(event, meter).ok_or(Break::Garbage)?, error.take()) {
        (responses::Step::Last, _) => Ok(match responses::without_secrets(event) {
            Some(clean) => {
                let kind = event.get("type").and_then(Value::text).unwrap_or_default();
                let head = format!("event: {kind}\ndata: ");
                let data = compact(&clean);
                Fate::Became([head.as_bytes(), &data, b"\n\n"].concat().into(), Step::Last)
            }
            None => Fate::Last,
        }),
        (_, Some(told)) => Err(Break::Told(told)),
        (responses::Step::More, None) => Ok(Fate::Keep),
        (responses::Step::Error(told), None) => {
            *error = Some(told);
            Ok(Fate::Drop)
        }
    }
}

/// An event of a messages stream, which goes on as it came.
fn messages(event: &Document, reported: &mut Reported, meter: &mut Meter) -> Result<Fate, Break> {
    let kind = event.get("type").and_then(Value::text).ok_or(Break::Garbage)?;
    let mut report = |usage: Option<Value<'_>>, early, meter: &mut Meter| {
        let counts = usage.is_some_and(|usage| reported.merge(usage));
        if let (true, Some(tokens)) = (counts, reported.tokens()) {
            meter.take(tokens, early);
        }
    };
    let count = |part: &str, of: &[&str], meter: &mut Meter| {
        let entries = event.get(part).into_iter().flat_map(Value::entries);
        let counts = |name: &[u8]| of.iter().any(|known| *known.as_bytes() == *name);
        entries.filter(|(name, _)| counts(name)).for_each(|(_, v)| meter.count_text(v));
    };
    match &*kind {
        "message_start" => report(event.get("message").and_then(|m| m.get("usage")), true, meter),
        "message_delta" => report(event.get("usage"), false, meter),
        "content_block_start" => {
            count("content_block", &["text", "thinking", "data", "name"], meter);
        }
        "content_block_delta" => count("delta", &["text", "thinking", "partial_json"], meter),
        "message_stop" => return Ok(Fate::Last),
        _ => {}
    }
    Ok(Fate::Keep)
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
