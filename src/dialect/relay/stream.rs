//! A reply in events: each is read, metered and passed on as soon as it is whole.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::mode::RelayMode;
use super::progress::{RelayError, RelayProgress, RetainedData};
use crate::dialect::json::compact::compact;
use crate::dialect::json::{JsonDocument, JsonKind, JsonPatch, JsonValue};
use crate::dialect::messages::ReportedUsage;
use crate::dialect::meter::UsageMeter;
use crate::dialect::responses::{self, ResponseState};
use crate::dialect::sse::{SseEvent, SseSplitter};
use crate::dialect::translate::stream::{StreamStep, StreamTranslator};
use crate::dialect::vendor_error::VendorError;

const DONE_MARKER: &[u8] = b"[DONE]";

/// See the module.
#[derive(Debug)]
pub struct StreamRelay {
    format: StreamFormat,
    splitter: SseSplitter,
    pub(super) meter: UsageMeter,
    pub(super) progress: RelayProgress,
}

/// What is known of the stream in the vendor's dialect.
#[derive(Debug)]
enum StreamFormat {
    /// The number of choices without a finish reason; the stream may end when none is left.
    Chat { include_usage: bool, unfinished_choices: u64 },
    /// What was reported so far, and the id that an error names.
    Messages { reported: ReportedUsage, request_id: String },
    /// What was reported so far, and an error that came as an event of its own: the response may
    /// still say how it ended.
    Responses(ResponseState, Option<VendorError>),
    /// A messages stream, translated into chat.
    Translated(Box<StreamTranslator>),
}

/// What becomes of an event.
enum EventAction {
    Forward,
    Drop,
    ReplaceData(Vec<Bytes>),
    /// It is the last one, and is kept.
    ForwardLast,
    /// It became this, and may be the last one.
    ReplaceEvent(Bytes, StreamStep),
}

impl StreamRelay {
    pub(super) fn new(mode: RelayMode) -> StreamRelay {
        let format = match mode {
            RelayMode::Chat { include_usage, choices } => {
                StreamFormat::Chat { include_usage, unfinished_choices: choices }
            }
            RelayMode::Messages { request_id } => {
                StreamFormat::Messages { reported: ReportedUsage::default(), request_id }
            }
            RelayMode::Translated(stamp) => {
                StreamFormat::Translated(Box::new(StreamTranslator::new(stamp)))
            }
            // The others don't come in events.
            _ => StreamFormat::Responses(ResponseState::default(), None),
        };
        let (meter, progress) = (UsageMeter::default(), RelayProgress::Open);
        StreamRelay { format, splitter: SseSplitter::default(), meter, progress }
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.splitter.buffered_bytes()
    }

    pub(super) fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        if self.progress != RelayProgress::Open {
            return None;
        }
        let Ok(events) = self.splitter.push(bytes) else {
            return self.fail(RelayError::TooLarge);
        };
        let mut out = OutputPieces::default();
        for event in events {
            self.relay_event(event, &mut out);
        }
        out.into_bytes()
    }

    pub(super) fn finish(&mut self) -> Option<Bytes> {
        if self.progress != RelayProgress::Open {
            return None;
        }
        let mut out = OutputPieces::default();
        // The last event may lack its blank line; it is whole all the same if it can be read. One
        // without data was cut off before there was anything to read.
        let rest = SseEvent(Bytes::from([&self.splitter.take_rest(), &b"\n\n"[..]].concat()));
        if rest.data_slice().is_some_and(|data| !data.trim_ascii().is_empty()) {
            self.relay_event(rest, &mut out);
        }
        if self.progress == RelayProgress::Open {
            if let StreamFormat::Chat { unfinished_choices: 0, .. } = self.format {
                self.progress = RelayProgress::Complete;
                out.push(Bytes::from_static(b"data: [DONE]\n\n"));
            } else {
                out.push(self.fail(RelayError::Truncated).unwrap_or_default());
            }
        }
        out.into_bytes()
    }

    pub(super) fn fail(&mut self, why: RelayError) -> Option<Bytes> {
        if self.progress != RelayProgress::Open {
            return None;
        }
        let why = match &mut self.format {
            StreamFormat::Responses(_, pending) if !why.is_gateway_side() => {
                pending.take().map_or(why, RelayError::Vendor)
            }
            _ => why,
        };
        let event = self.format.error_event(&why);
        self.progress = RelayProgress::Failed(why);
        Some(Bytes::from(event))
    }

    pub(super) fn take_retained(&mut self) -> Option<RetainedData> {
        match &mut self.format {
            StreamFormat::Translated(translator) => {
                translator.take_saved_thinking().map(RetainedData::Thinking)
            }
            StreamFormat::Responses(state, _) => {
                Some(RetainedData::IssuedIds(state.take_issued_ids()))
            }
            StreamFormat::Chat { .. } | StreamFormat::Messages { .. } => None,
        }
    }

    /// Whether it ended in a way that costs nothing.
    pub(super) fn is_unbilled(&self) -> bool {
        matches!(&self.format, StreamFormat::Responses(state, _) if state.is_unbilled())
    }

    /// Reads one event and puts what the client is to see into `out`.
    fn relay_event(&mut self, event: SseEvent, out: &mut OutputPieces) {
        if self.progress != RelayProgress::Open {
            return;
        }
        let action = match event.data_slice() {
            None if event.is_well_formed() => Ok(self.action_without_data(&event)),
            None => Err(RelayError::Malformed),
            // Nothing in it: as good as a comment.
            Some(data) if data.trim_ascii().is_empty() => match self.format {
                StreamFormat::Translated(_) => Ok(EventAction::Drop),
                _ => Ok(EventAction::Forward),
            },
            Some(data) if &data[..] == DONE_MARKER => match self.format {
                StreamFormat::Chat { .. } => Ok(EventAction::ForwardLast),
                _ => Err(RelayError::Malformed),
            },
            Some(data) => self.handle_data(data),
        };
        match action {
            Ok(EventAction::Forward) => out.push(event.0),
            Ok(EventAction::Drop) => {}
            Ok(EventAction::ReplaceData(pieces)) => {
                out.push(Bytes::from_static(b"data: "));
                pieces.into_iter().for_each(|piece| out.push(piece));
                out.push(Bytes::from_static(b"\n\n"));
            }
            Ok(EventAction::ForwardLast) => {
                self.progress = RelayProgress::Complete;
                out.push(event.0);
            }
            Ok(EventAction::ReplaceEvent(bytes, step)) => {
                if step == StreamStep::Last {
                    self.progress = RelayProgress::Complete;
                }
                out.push(bytes);
            }
            Err(why) => out.push(self.fail(why).unwrap_or_default()),
        }
    }

    /// An event without data. In another format only comments mean the same.
    fn action_without_data(&self, event: &SseEvent) -> EventAction {
        match self.format {
            StreamFormat::Translated(_) if !event.0.starts_with(b":") => EventAction::Drop,
            _ => EventAction::Forward,
        }
    }

    fn handle_data(&mut self, data: Bytes) -> Result<EventAction, RelayError> {
        let event = JsonDocument::parse_from_vendor(data).map_err(|_| RelayError::Malformed)?;
        // A response's own events say how they went wrong.
        let has_own_errors = matches!(self.format, StreamFormat::Responses(..));
        if let Some(error) = VendorError::from_event(&event).filter(|_| !has_own_errors) {
            return Err(RelayError::Vendor(error));
        }
        match &mut self.format {
            StreamFormat::Chat { include_usage, unfinished_choices: unfinished } => {
                Ok(handle_chat_chunk(&event, *include_usage, unfinished, &mut self.meter))
            }
            StreamFormat::Messages { reported, .. } => {
                handle_messages_event(&event, reported, &mut self.meter)
            }
            StreamFormat::Responses(state, error) => {
                handle_response_event(&event, state, error, &mut self.meter)
            }
            StreamFormat::Translated(translator) => {
                let mut out = BytesMut::new();
                let step = translator.handle_event(&event, &mut self.meter, &mut out);
                Ok(EventAction::ReplaceEvent(out.freeze(), step.ok_or(RelayError::Malformed)?))
            }
        }
    }
}

impl StreamFormat {
    /// An event that tells the client why its stream ends.
    fn error_event(&self, why: &RelayError) -> String {
        match self {
            StreamFormat::Messages { request_id, .. } => {
                format!("event: error\ndata: {}\n\n", why.messages_body(request_id))
            }
            StreamFormat::Responses(state, _) => {
                let (kind, code) = why.type_and_code();
                responses::error_event(kind, code, &why.message(), state.next_sequence_number())
            }
            StreamFormat::Chat { .. } | StreamFormat::Translated(_) => {
                format!("data: {}\n\n", why.chat_body())
            }
        }
    }
}

/// A chunk of a chat stream.
fn handle_chat_chunk(
    chunk: &JsonDocument,
    include_usage: bool,
    unfinished: &mut u64,
    meter: &mut UsageMeter,
) -> EventAction {
    let choices = chunk.get("choices");
    if let Some(choices) = choices {
        let finished = meter.count_choices(choices, "delta");
        *unfinished = unfinished.saturating_sub(finished);
    }
    let Some(usage) = chunk.get("usage") else { return EventAction::Forward };
    meter.record_chat_usage(usage);
    if include_usage {
        return EventAction::Forward;
    }
    let usage_only = choices.is_none_or(|c| c.elements().next().is_none());
    if usage_only && usage.kind() == JsonKind::Object {
        return EventAction::Drop;
    }
    let mut patch = JsonPatch::new(chunk);
    patch.remove("usage");
    let pieces = patch.finish();
    if chunk.body().contains(&b'\n') || chunk.body().contains(&b'\r') {
        // Data that came on several lines goes on one.
        return EventAction::ReplaceData(vec![Bytes::from(compact(&pieces.concat()).into_owned())]);
    }
    EventAction::ReplaceData(pieces)
}

/// Handles an event of a response, which is forwarded unchanged. After an error event only the
/// response's final event is awaited, which repeats the error.
fn handle_response_event(
    event: &JsonDocument,
    state: &mut ResponseState,
    error: &mut Option<VendorError>,
    meter: &mut UsageMeter,
) -> Result<EventAction, RelayError> {
    match (state.read_event(event, meter).ok_or(RelayError::Malformed)?, error.take()) {
        (responses::EventStep::Last, _) => Ok(match responses::redact_error(event) {
            Some(clean) => {
                let kind = event.get("type").and_then(JsonValue::text).unwrap_or_default();
                let head = format!("event: {kind}\ndata: ");
                let data = compact(&clean);
                EventAction::ReplaceEvent(
                    [head.as_bytes(), &data, b"\n\n"].concat().into(),
                    StreamStep::Last,
                )
            }
            None => EventAction::ForwardLast,
        }),
        (_, Some(reported)) => Err(RelayError::Vendor(reported)),
        (responses::EventStep::Continue, None) => Ok(EventAction::Forward),
        (responses::EventStep::Error(reported), None) => {
            *error = Some(reported);
            Ok(EventAction::Drop)
        }
    }
}

/// An event of a messages stream, which goes on as it came.
fn handle_messages_event(
    event: &JsonDocument,
    reported: &mut ReportedUsage,
    meter: &mut UsageMeter,
) -> Result<EventAction, RelayError> {
    let kind = event.get("type").and_then(JsonValue::text).ok_or(RelayError::Malformed)?;
    let mut report = |usage: Option<JsonValue<'_>>, early, meter: &mut UsageMeter| {
        let counts = usage.is_some_and(|usage| reported.merge(usage));
        if let (true, Some(tokens)) = (counts, reported.tokens()) {
            meter.record_tokens(tokens, early);
        }
    };
    let count = |part: &str, of: &[&str], meter: &mut UsageMeter| {
        let entries = event.get(part).into_iter().flat_map(JsonValue::raw_members);
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
        "message_stop" => return Ok(EventAction::ForwardLast),
        _ => {}
    }
    Ok(EventAction::Forward)
}

/// Pieces for the client; neighbours in one buffer are joined without a copy.
#[derive(Default)]
struct OutputPieces {
    pieces: Vec<Bytes>,
}

impl OutputPieces {
    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    fn into_bytes(mut self) -> Option<Bytes> {
        if self.pieces.len() <= 1 {
            return self.pieces.pop();
        }
        let mut joined = BytesMut::with_capacity(self.pieces.iter().map(Bytes::len).sum());
        self.pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
        Some(joined.freeze())
    }
}
