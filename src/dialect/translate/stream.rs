//! Translates the events of a messages stream into chunks of a chat stream, each as it arrives.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{BufMut, Bytes, BytesMut};

use super::reply::{
    ReplyMetadata, chat_id, encode_arguments, finish_reason, refusal_explanation, write_usage,
};
use super::thinking::{RECORD_BYTES_MAX, SavedThinking, ThinkingRecorder};
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonValue, scan};
use crate::dialect::messages::ReportedUsage;
use crate::dialect::meter::{ReportQuality, TextSource, UsageMeter};

/// At most this many blocks may be open at a time; vendors open one.
const OPEN_BLOCKS_MAX: usize = 256;

/// The state of one stream's translation.
#[derive(Debug)]
pub(crate) struct StreamTranslator {
    metadata: ReplyMetadata,
    /// The JSON at the beginning of every chunk, up to the content of `choices`; `None` before
    /// `message_start`.
    chunk_prefix: Option<Bytes>,
    open_blocks: Vec<(u64, OpenBlock)>,
    call_count: u64,
    usage: ReportedUsage,
    finish_reason: &'static str,
    recorder: Option<ThinkingRecorder>,
    saved_thinking: Option<SavedThinking>,
}

/// A block that was started and not yet stopped.
#[derive(Debug)]
enum OpenBlock {
    /// Text or thinking: its JSON recorded up to the end of the text so far (`None` if blocks are
    /// not saved), and its signature.
    Text { recorded: Option<BytesMut>, signature: BytesMut },
    /// A tool call.
    ToolCall(Box<OpenToolCall>),
    /// A block that has no counterpart in the chat format.
    Other,
}

#[derive(Debug)]
struct OpenToolCall {
    /// The index of the call among the tool calls of the answer.
    index: u64,
    /// The input in the event that started the block.
    initial_input: Bytes,
    /// Whether a delta with arguments has arrived.
    has_arguments: bool,
    /// The JSON of the block recorded up to its input, and the input so far; `None` if blocks are
    /// not saved.
    recorded: Option<(BytesMut, BytesMut)>,
}

/// Whether the stream continues after an event, or ended with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dialect) enum StreamStep {
    Continue,
    Last,
}

impl StreamTranslator {
    pub(in crate::dialect) fn new(metadata: ReplyMetadata) -> StreamTranslator {
        let recorder = metadata.save_thinking.then(|| ThinkingRecorder::new(&metadata.model));
        StreamTranslator {
            metadata,
            chunk_prefix: None,
            open_blocks: Vec::new(),
            call_count: 0,
            usage: ReportedUsage::default(),
            finish_reason: "stop",
            recorder,
            saved_thinking: None,
        }
    }

    /// Takes the blocks to save; `None` before the answer is complete, or if there is nothing to
    /// save.
    pub(in crate::dialect) fn take_saved_thinking(&mut self) -> Option<SavedThinking> {
        self.saved_thinking.take()
    }

    /// Handles an event, and writes the chunks for the client to `out`. `None` if the event is
    /// malformed.
    pub(in crate::dialect) fn handle_event(
        &mut self,
        event: &JsonDocument,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<StreamStep> {
        match &*event.get("type")?.text()? {
            "message_start" => self.on_message_start(event.get("message")?, meter, out)?,
            "content_block_start" => {
                let index = event.get("index")?.integer()?;
                self.on_block_start(index, event.get("content_block")?, meter, out)?;
            }
            "content_block_delta" => {
                let index = event.get("index")?.integer()?;
                self.on_block_delta(index, event.get("delta")?, meter, out)?;
            }
            "content_block_stop" => self.on_block_stop(event.get("index")?.integer()?, out)?,
            "message_delta" => self.on_message_delta(event, meter, out)?,
            "message_stop" => {
                self.on_message_stop(meter, out)?;
                return Some(StreamStep::Last);
            }
            "ping" => out.put_slice(b": ping\n\n"),
            // The format grows; new events have no counterpart in the chat format.
            _ => {}
        }
        Some(StreamStep::Continue)
    }

    fn on_message_start(
        &mut self,
        message: JsonValue<'_>,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<()> {
        if self.chunk_prefix.is_some() {
            return Some(());
        }
        let id = message.get("id")?.text()?;
        let head = format!(
            concat!(
                r#"data: {{"id":{},"object":"chat.completion.chunk","created":{},"model":{},"#,
                r#""system_fingerprint":null,"choices":["#
            ),
            json_string(&chat_id(&id)),
            self.metadata.created,
            json_string(&self.metadata.model),
        );
        self.chunk_prefix = Some(Bytes::from(head));
        self.record_usage(message.get("usage"), meter, ReportQuality::Early);
        self.write_chunk(out, |out| out.put_slice(br#""role":"assistant","content":"""#))
    }

    fn record_usage(
        &mut self,
        usage: Option<JsonValue<'_>>,
        meter: &mut UsageMeter,
        quality: ReportQuality,
    ) {
        let counts = usage.is_some_and(|usage| self.usage.merge(usage));
        if let (true, Some(tokens)) = (counts, self.usage.tokens()) {
            meter.record_tokens(tokens, quality);
        }
    }

    fn on_block_start(
        &mut self,
        index: u64,
        block: JsonValue<'_>,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<()> {
        let is_recording = self.recorder.is_some();
        let string_content =
            |name: &str| block.get(name).and_then(JsonValue::string_bytes).unwrap_or_default();
        let opened = match &*block.get("type")?.text()? {
            kind @ ("text" | "thinking") => {
                let first = string_content(kind);
                if !first.is_empty() {
                    meter.count_escaped(first, TextSource { index, part: 0 });
                    self.write_text_chunk(kind, first, out)?;
                }
                let start = || BytesMut::from(format!(r#"{{"type":"{kind}","{kind}":""#).as_str());
                let mut recorded = is_recording.then(start);
                recorded.iter_mut().for_each(|recorded| append_recorded(recorded, first));
                OpenBlock::Text { recorded, signature: string_content("signature").into() }
            }
            "tool_use" => {
                let call = self.start_tool_call(block, is_recording, out)?;
                let name = block.get("name")?;
                meter.count_tool_name(name, TextSource { index, part: 0 });
                OpenBlock::ToolCall(Box::new(call))
            }
            _ => {
                self.recorder.iter_mut().for_each(|recorder| recorder.add_block(block.raw()));
                OpenBlock::Other
            }
        };
        if self.open_blocks.len() >= OPEN_BLOCKS_MAX {
            return None;
        }
        self.open_blocks.push((index, opened));
        Some(())
    }

    fn start_tool_call(
        &mut self,
        block: JsonValue<'_>,
        is_recording: bool,
        out: &mut BytesMut,
    ) -> Option<OpenToolCall> {
        let string_value = |name: &str| block.get(name).filter(|v| v.string_bytes().is_some());
        let (id, name) = (string_value("id")?, string_value("name")?);
        let index = self.call_count;
        self.call_count += 1;
        self.write_chunk(out, |out| {
            out.put_slice(format!(r#""tool_calls":[{{"index":{index},"id":"#).as_bytes());
            out.put_slice(id.raw());
            out.put_slice(br#","type":"function","function":{"name":"#);
            out.put_slice(name.raw());
            out.put_slice(br#","arguments":""}}]"#);
        })?;
        let recorded = is_recording.then(|| {
            let mut recorded = BytesMut::from(&br#"{"type":"tool_use","id":"#[..]);
            recorded.put_slice(id.raw());
            recorded.put_slice(br#","name":"#);
            recorded.put_slice(name.raw());
            (recorded, BytesMut::new())
        });
        let input = block.get("input").map_or(&b"{}"[..], JsonValue::raw);
        Some(OpenToolCall {
            index,
            initial_input: Bytes::copy_from_slice(input),
            has_arguments: false,
            recorded,
        })
    }

    fn on_block_delta(
        &mut self,
        index: u64,
        delta: JsonValue<'_>,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<()> {
        let at = self.open_blocks.iter().rposition(|(open, _)| *open == index);
        let kind = delta.get("type")?.text()?;
        let string_content =
            |name: &str| delta.get(name).and_then(JsonValue::string_bytes).unwrap_or_default();
        match (&*kind, at.map(|at| &mut self.open_blocks[at].1)) {
            ("text_delta" | "thinking_delta", Some(OpenBlock::Text { recorded, .. })) => {
                let kind = if kind == "text_delta" { "text" } else { "thinking" };
                let piece = string_content(kind);
                recorded.iter_mut().for_each(|recorded| append_recorded(recorded, piece));
                if !piece.is_empty() {
                    meter.count_escaped(piece, TextSource { index, part: 0 });
                    self.write_text_chunk(kind, piece, out)?;
                }
            }
            ("signature_delta", Some(OpenBlock::Text { signature, .. })) => {
                append_recorded(signature, string_content("signature"));
            }
            ("input_json_delta", Some(OpenBlock::ToolCall(call))) => {
                let piece = delta.get("partial_json")?;
                let raw = piece.string_bytes()?;
                if raw.is_empty() {
                    return Some(());
                }
                call.has_arguments = true;
                meter.count_escaped(raw, TextSource { index, part: 1 });
                if let Some((_, input)) = &mut call.recorded {
                    append_recorded(input, piece.text()?.as_bytes());
                }
                let index = call.index;
                self.write_arguments_chunk(index, piece.raw(), out)?;
            }
            // A delta for a block that was not started is malformed.
            ("text_delta" | "thinking_delta" | "input_json_delta", None) => return None,
            _ => {}
        }
        Some(())
    }

    fn on_block_stop(&mut self, index: u64, out: &mut BytesMut) -> Option<()> {
        let Some(at) = self.open_blocks.iter().rposition(|(open, _)| *open == index) else {
            return Some(());
        };
        let mut whole = None;
        match self.open_blocks.remove(at).1 {
            OpenBlock::Text { recorded, signature } => {
                whole = recorded.map(|mut recorded| {
                    recorded.put_u8(b'"');
                    if !signature.is_empty() {
                        recorded.put_slice(br#","signature":""#);
                        recorded.put_slice(&signature);
                        recorded.put_u8(b'"');
                    }
                    recorded
                });
            }
            OpenBlock::ToolCall(call) => {
                if !call.has_arguments {
                    // Without this chunk, a client would read an empty string as arguments, which
                    // is not JSON.
                    let arguments =
                        encode_arguments(Some(JsonValue::from_validated(&call.initial_input)));
                    self.write_arguments_chunk(call.index, arguments.as_bytes(), out)?;
                }
                if let Some((mut recorded, input)) = call.recorded {
                    let input = if call.has_arguments {
                        input.freeze()
                    } else {
                        call.initial_input.clone()
                    };
                    recorded.put_slice(br#","input":"#);
                    recorded.put_slice(&input);
                    if input.starts_with(b"{") && scan::validate_value(&input).is_ok() {
                        whole = Some(recorded);
                    } else {
                        self.recorder.iter_mut().for_each(ThinkingRecorder::discard);
                    }
                }
            }
            OpenBlock::Other => {}
        }
        if let (Some(mut whole), Some(recorder)) = (whole, &mut self.recorder) {
            whole.put_u8(b'}');
            recorder.add_block(&whole);
        }
        Some(())
    }

    fn on_message_delta(
        &mut self,
        event: &JsonDocument,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<()> {
        self.record_usage(event.get("usage"), meter, ReportQuality::Final);
        let Some(delta) = event.get("delta") else { return Some(()) };
        let Some(stop) = delta.get("stop_reason").and_then(JsonValue::text) else {
            return Some(());
        };
        let before = std::mem::replace(&mut self.finish_reason, finish_reason(&stop));
        let refused = stop == "refusal" && before != self.finish_reason;
        if let Some(explanation) =
            delta.get("stop_details").filter(|_| refused).and_then(refusal_explanation)
        {
            self.write_chunk(out, |out| {
                out.put_slice(br#""refusal":"#);
                out.put_slice(explanation.raw());
            })?;
        }
        Some(())
    }

    fn on_message_stop(&mut self, meter: &UsageMeter, out: &mut BytesMut) -> Option<()> {
        let head = self.chunk_prefix.clone()?;
        while let Some(index) = self.open_blocks.first().map(|(index, _)| *index) {
            self.on_block_stop(index, out)?;
        }
        let finish = self.finish_reason;
        out.put_slice(&head);
        out.put_slice(br#"{"index":0,"delta":{},"logprobs":null,"finish_reason":""#);
        out.put_slice(finish.as_bytes());
        out.put_slice(br#""}]"#);
        if self.metadata.include_usage {
            out.put_slice(b",\"usage\":null}\n\n");
            out.put_slice(&head);
            out.put_slice(br#"],"usage":"#);
            let tokens = meter.usage_with(&self.metadata.input_tokens).tokens;
            write_usage(out, tokens, self.usage.thinking);
        }
        out.put_slice(b"}\n\ndata: [DONE]\n\n");
        self.saved_thinking =
            self.recorder.take().and_then(|recorder| recorder.finish(&self.metadata.model));
        Some(())
    }

    fn write_text_chunk(&self, kind: &str, piece: &[u8], out: &mut BytesMut) -> Option<()> {
        self.write_chunk(out, |out| {
            let name: &[u8] =
                if kind == "text" { br#""content":""# } else { br#""reasoning_content":""# };
            out.put_slice(name);
            out.put_slice(piece);
            out.put_u8(b'"');
        })
    }

    /// Writes a chunk with a piece of a call's arguments; `piece` is a JSON string with quotes.
    fn write_arguments_chunk(&self, index: u64, piece: &[u8], out: &mut BytesMut) -> Option<()> {
        self.write_chunk(out, |out| {
            out.put_slice(format!(r#""tool_calls":[{{"index":{index},"#).as_bytes());
            out.put_slice(br#""function":{"arguments":"#);
            out.put_slice(piece);
            out.put_slice(b"}}]");
        })
    }

    /// Writes a chunk with the delta that the closure writes. `None` before `message_start`.
    fn write_chunk(&self, out: &mut BytesMut, delta: impl FnOnce(&mut BytesMut)) -> Option<()> {
        out.put_slice(self.chunk_prefix.as_ref()?);
        out.put_slice(br#"{"index":0,"delta":{"#);
        delta(out);
        out.put_slice(br#"},"logprobs":null,"finish_reason":null}]"#);
        let end: &[u8] =
            if self.metadata.include_usage { b",\"usage\":null}\n\n" } else { b"}\n\n" };
        out.put_slice(end);
        Some(())
    }
}

/// Appends to the recorded JSON of a block. A record above the limit is filled up with spaces to
/// one byte above the limit, so that it stays too long or becomes invalid, and is not saved.
fn append_recorded(recorded: &mut BytesMut, piece: &[u8]) {
    if recorded.len() + piece.len() > RECORD_BYTES_MAX {
        recorded.resize(RECORD_BYTES_MAX + 1, b' ');
    } else {
        recorded.put_slice(piece);
    }
}
