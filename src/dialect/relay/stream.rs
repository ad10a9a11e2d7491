//! Relays a reply in events: each event is parsed, metered and passed on as soon as it is complete.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Bytes, BytesMut};

use super::mode::RelayMode;
use super::progress::{RelayError, RelayProgress, RetainedData};
use super::reply_id::ReplyIdReader;
use crate::dialect::json::compact::compact;
use crate::dialect::json::{JsonDocument, JsonKind, JsonPatch, JsonValue};
use crate::dialect::messages::ReportedUsage;
use crate::dialect::meter::{ReportQuality, TextSource, UsageMeter};
use crate::dialect::responses::{self, ResponseState};
use crate::dialect::sse::{SseEvent, SseSplitter};
use crate::dialect::translate::stream::{StreamStep, StreamTranslator};
use crate::dialect::vendor_error::VendorError;

const DONE_MARKER: &[u8] = b"[DONE]";

/// The relay of a reply in events.
#[derive(Debug)]
pub struct StreamRelay {
    format: StreamFormat,
    splitter: SseSplitter,
    pub(super) meter: UsageMeter,
    pub(super) reply_id: ReplyIdReader,
    pub(super) progress: RelayProgress,
    /// Whether the next event may be `[DONE]`, with which some vendors end a response as well.
    done_may_follow: bool,
}

/// The vendor's dialect, with the state of the stream in it.
#[derive(Debug)]
enum StreamFormat {
    /// The number of choices without a finish reason; the stream may end when none is left.
    Chat { include_usage: bool, unfinished_choices: u64 },
    /// The usage reported so far, and the request id that an error event names.
    Messages { reported: ReportedUsage, request_id: String },
    /// The state of the response so far, and an error that arrived as a separate event: the final
    /// event of the response may still follow it.
    Responses(ResponseState, Option<VendorError>),
    /// A messages stream, translated into chat.
    Translated(Box<StreamTranslator>),
}

/// What the relay does with an event.
enum EventAction {
    Forward,
    Drop,
    ReplaceData(Vec<Bytes>),
    /// Forwards the event, which is the last one.
    ForwardLast,
    /// Sends these bytes in place of the event, which may be the last one.
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
            RelayMode::Translated(metadata) => {
                StreamFormat::Translated(Box::new(StreamTranslator::new(metadata)))
            }
            // The other modes have no streams.
            _ => StreamFormat::Responses(ResponseState::default(), None),
        };
        let (meter, progress) = (UsageMeter::default(), RelayProgress::Open);
        let splitter = SseSplitter::default();
        let reply_id = ReplyIdReader::default();
        StreamRelay { format, splitter, meter, reply_id, progress, done_may_follow: false }
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.splitter.buffered_bytes()
    }

    pub(super) fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        if self.progress != RelayProgress::Open && !self.done_may_follow {
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

    /// Whether the events show the calls of tools that the vendor runs.
    pub(super) fn shows_tool_calls(&self) -> bool {
        !matches!(self.format, StreamFormat::Chat { .. })
    }

    pub(super) fn has_final_report(&self) -> bool {
        match self.format {
            // Some vendors report with every chunk.
            StreamFormat::Chat { unfinished_choices, .. } => {
                unfinished_choices == 0 && self.meter.has_whole_report()
            }
            _ => self.meter.has_final_report(),
        }
    }

    pub(super) fn finish(&mut self) -> Option<Bytes> {
        if self.progress != RelayProgress::Open {
            return None;
        }
        let mut out = OutputPieces::default();
        // The last event may lack its blank line; it counts as complete if it can be parsed. An
        // event without data was cut off before its data, and is ignored.
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

    /// Whether the response failed in a way for which nothing is charged.
    pub(super) fn is_unbilled(&self) -> bool {
        matches!(&self.format, StreamFormat::Responses(state, _) if state.is_unbilled())
    }

    /// Reads one event and appends the bytes for the client to `out`.
    fn relay_event(&mut self, event: SseEvent, out: &mut OutputPieces) {
        if self.progress != RelayProgress::Open {
            let is_done = event.data().is_some_and(|data| data[..] == *DONE_MARKER);
            if std::mem::take(&mut self.done_may_follow) && is_done {
                out.push(event.0);
            }
            return;
        }
        let action = match event.data_slice() {
            None if event.is_well_formed() => Ok(self.action_without_data(&event)),
            None => Err(RelayError::Malformed),
            // An event with empty data is treated like a comment.
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
                self.complete();
                out.push(event.0);
            }
            Ok(EventAction::ReplaceEvent(bytes, step)) => {
                if step == StreamStep::Last {
                    self.complete();
                }
                out.push(bytes);
            }
            Err(why) => out.push(self.fail(why).unwrap_or_default()),
        }
    }

    fn complete(&mut self) {
        self.progress = RelayProgress::Complete;
        self.done_may_follow = matches!(self.format, StreamFormat::Responses(..));
    }

    /// Returns the action for an event without data. A translated stream keeps only comments, since
    /// no other field means the same in the other format.
    fn action_without_data(&self, event: &SseEvent) -> EventAction {
        match self.format {
            StreamFormat::Translated(_) if !event.0.starts_with(b":") => EventAction::Drop,
            _ => EventAction::Forward,
        }
    }

    fn handle_data(&mut self, data: Bytes) -> Result<EventAction, RelayError> {
        let event = JsonDocument::parse_from_vendor(data).map_err(|_| RelayError::Malformed)?;
        // The events of a response report errors in their own way, which their handler reads.
        let has_own_errors = matches!(self.format, StreamFormat::Responses(..));
        if let Some(error) = VendorError::from_event(&event).filter(|_| !has_own_errors) {
            return Err(RelayError::Vendor(error));
        }
        self.reply_id.read(&event, matches!(self.format, StreamFormat::Translated(_)));
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
    /// Returns the error event that tells the client why the stream ends.
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

/// Meters a chunk of a chat stream. If the client did not ask for usage, the usage is removed from
/// the chunk.
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
    if let Some(uses) = meter.tool_uses_mut() {
        uses.read_report(|name| chunk.get(name));
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
        // Data that arrived on several lines is sent on one line.
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

/// Meters an event of a messages stream, which is forwarded unchanged.
fn handle_messages_event(
    event: &JsonDocument,
    reported: &mut ReportedUsage,
    meter: &mut UsageMeter,
) -> Result<EventAction, RelayError> {
    let kind = event.get("type").and_then(JsonValue::text).ok_or(RelayError::Malformed)?;
    let mut report = |usage: Option<JsonValue<'_>>, quality, meter: &mut UsageMeter| {
        let has_usage = usage.is_some_and(|usage| reported.merge(usage));
        if let (true, Some(tokens)) = (has_usage, reported.tokens()) {
            meter.record_tokens(tokens, quality);
        }
    };
    match &*kind {
        "message_start" => {
            let usage = event.get("message").and_then(|message| message.get("usage"));
            report(usage, ReportQuality::Early, meter);
        }
        "message_delta" => {
            report(event.get("usage"), ReportQuality::Final, meter);
            if let Some(uses) = meter.tool_uses_mut() {
                uses.read_report(|name| event.get(name));
            }
        }
        "content_block_start" => {
            count_block_text(event, "content_block", meter);
            if let (Some(uses), Some(block)) = (meter.tool_uses_mut(), event.get("content_block")) {
                uses.see_block(block);
            }
        }
        "content_block_delta" => count_block_text(event, "delta", meter),
        "message_stop" => return Ok(EventAction::ForwardLast),
        _ => {}
    }
    Ok(EventAction::Forward)
}

/// Counts the text in the beginning of a block or in a piece of it.
fn count_block_text(event: &JsonDocument, container: &str, meter: &mut UsageMeter) {
    let index = event.get("index").and_then(JsonValue::integer).unwrap_or_default();
    for (name, value) in event.get(container).into_iter().flat_map(JsonValue::raw_members) {
        let source = TextSource { index, part: 0 };
        match &*name {
            // The `content` is that of a summary, by which the vendor compacts a conversation.
            b"text" | b"thinking" | b"content" => meter.count_text(value, source),
            b"partial_json" => meter.count_text(value, TextSource { index, part: 1 }),
            b"name" => meter.count_tool_name(value, source),
            // Thinking that the vendor has encrypted.
            b"data" => meter.count_unread_bytes(value.string_bytes().map_or(0, <[u8]>::len)),
            _ => {}
        }
    }
}

/// Pieces of output for the client; a single piece is not copied.
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
