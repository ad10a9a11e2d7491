//! The events of a messages stream become chunks of a chat stream, one by one as they come.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{BufMut, Bytes, BytesMut};

use super::reply::{ReplyMetadata, arguments, chat_id, explanation, finish_reason, write_usage};
use super::thinking::{RECORD_BYTES_MAX, SavedThinking, ThinkingRecorder};
use crate::dialect::json::draft::quoted;
use crate::dialect::json::{JsonDocument, JsonValue, scan};
use crate::dialect::messages::ReportedUsage;
use crate::dialect::meter::UsageMeter;

/// Blocks that are open at a time, at most; vendors have one.
const OPEN_MAX: usize = 256;

/// The state of a stream.
#[derive(Debug)]
pub struct StreamTranslator {
    stamp: ReplyMetadata,
    /// What every chunk begins with, up to its delta, once the stream has begun.
    head: Option<Bytes>,
    open: Vec<(u64, OpenBlock)>,
    calls: u64,
    usage: ReportedUsage,
    finish: &'static str,
    keeper: Option<ThinkingRecorder>,
    kept: Option<SavedThinking>,
}

/// A block that is open.
#[derive(Debug)]
enum OpenBlock {
    /// Text or thinking: as kept, up to the end of its text, and the signature.
    Spoken { kept: Option<BytesMut>, signature: BytesMut },
    /// A tool call.
    Call(Box<OpenToolCall>),
    /// Nothing that a chat client could be told of.
    Other,
}

#[derive(Debug)]
struct OpenToolCall {
    /// Its place among the calls.
    index: u64,
    /// The input that the block began with.
    input: Bytes,
    /// Whether any of its arguments came.
    any: bool,
    /// As kept, up to its input, and the input so far.
    kept: Option<(BytesMut, BytesMut)>,
}

/// How far an event has brought the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dialect) enum StreamStep {
    More,
    Last,
}

impl StreamTranslator {
    pub(in crate::dialect) fn new(stamp: ReplyMetadata) -> StreamTranslator {
        let keeper = stamp.keep.then(|| ThinkingRecorder::new(&stamp.model));
        StreamTranslator {
            stamp,
            head: None,
            open: Vec::new(),
            calls: 0,
            usage: ReportedUsage::default(),
            finish: "stop",
            keeper,
            kept: None,
        }
    }

    /// What is to be kept of the answer, once it is complete.
    pub(in crate::dialect) fn kept(&mut self) -> Option<SavedThinking> {
        self.kept.take()
    }

    /// Takes an event; what the client is to see goes to `out`. `None` if it cannot be read.
    pub(in crate::dialect) fn event(
        &mut self,
        event: &JsonDocument,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<StreamStep> {
        match &*event.get("type")?.text()? {
            "message_start" => self.start(event.get("message")?, meter, out)?,
            "content_block_start" => {
                let index = event.get("index")?.whole()?;
                self.block_start(index, event.get("content_block")?, meter, out)?;
            }
            "content_block_delta" => {
                let index = event.get("index")?.whole()?;
                self.delta(index, event.get("delta")?, meter, out)?;
            }
            "content_block_stop" => self.block_stop(event.get("index")?.whole()?, out)?,
            "message_delta" => self.message_delta(event, meter, out)?,
            "message_stop" => {
                self.stop(meter, out)?;
                return Some(StreamStep::Last);
            }
            "ping" => out.put_slice(b": ping\n\n"),
            // The format grows: what is new has no counterpart here.
            _ => {}
        }
        Some(StreamStep::More)
    }

    fn start(
        &mut self,
        message: JsonValue<'_>,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<()> {
        if self.head.is_some() {
            return Some(());
        }
        let id = message.get("id")?.text()?;
        let head = format!(
            concat!(
                r#"data: {{"id":{},"object":"chat.completion.chunk","created":{},"model":{},"#,
                r#""system_fingerprint":null,"choices":["#
            ),
            quoted(&chat_id(&id)),
            self.stamp.created,
            quoted(&self.stamp.model),
        );
        self.head = Some(Bytes::from(head));
        self.report(message.get("usage"), meter, true);
        self.chunk(out, |out| out.put_slice(br#""role":"assistant","content":"""#))
    }

    fn report(&mut self, usage: Option<JsonValue<'_>>, meter: &mut UsageMeter, early: bool) {
        let counts = usage.is_some_and(|usage| self.usage.merge(usage));
        if let (true, Some(tokens)) = (counts, self.usage.tokens()) {
            meter.take(tokens, early);
        }
    }

    fn block_start(
        &mut self,
        index: u64,
        block: JsonValue<'_>,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<()> {
        let keeps = self.keeper.is_some();
        let inside = |name: &str| block.get(name).and_then(JsonValue::inside).unwrap_or_default();
        let opened = match &*block.get("type")?.text()? {
            kind @ ("text" | "thinking") => {
                let first = inside(kind);
                if !first.is_empty() {
                    meter.count_bytes(first.len());
                    self.spoken(kind, first, out)?;
                }
                let start = || BytesMut::from(format!(r#"{{"type":"{kind}","{kind}":""#).as_str());
                let mut kept = keeps.then(start);
                kept.iter_mut().for_each(|kept| keep(kept, first));
                OpenBlock::Spoken { kept, signature: inside("signature").into() }
            }
            "tool_use" => {
                let call = self.call_start(block, keeps, out)?;
                OpenBlock::Call(Box::new(call))
            }
            _ => {
                self.keeper.iter_mut().for_each(|keeper| keeper.block(block.raw()));
                OpenBlock::Other
            }
        };
        if self.open.len() >= OPEN_MAX {
            return None;
        }
        self.open.push((index, opened));
        Some(())
    }

    fn call_start(
        &mut self,
        block: JsonValue<'_>,
        keeps: bool,
        out: &mut BytesMut,
    ) -> Option<OpenToolCall> {
        let word = |name: &str| block.get(name).filter(|v| v.inside().is_some());
        let (id, name) = (word("id")?, word("name")?);
        let index = self.calls;
        self.calls += 1;
        self.chunk(out, |out| {
            out.put_slice(format!(r#""tool_calls":[{{"index":{index},"id":"#).as_bytes());
            out.put_slice(id.raw());
            out.put_slice(br#","type":"function","function":{"name":"#);
            out.put_slice(name.raw());
            out.put_slice(br#","arguments":""}}]"#);
        })?;
        let kept = keeps.then(|| {
            let mut kept = BytesMut::from(&br#"{"type":"tool_use","id":"#[..]);
            kept.put_slice(id.raw());
            kept.put_slice(br#","name":"#);
            kept.put_slice(name.raw());
            (kept, BytesMut::new())
        });
        let input = block.get("input").map_or(&b"{}"[..], JsonValue::raw);
        Some(OpenToolCall { index, input: Bytes::copy_from_slice(input), any: false, kept })
    }

    fn delta(
        &mut self,
        index: u64,
        delta: JsonValue<'_>,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<()> {
        let at = self.open.iter().rposition(|(open, _)| *open == index);
        let kind = delta.get("type")?.text()?;
        let inside = |name: &str| delta.get(name).and_then(JsonValue::inside).unwrap_or_default();
        match (&*kind, at.map(|at| &mut self.open[at].1)) {
            ("text_delta" | "thinking_delta", Some(OpenBlock::Spoken { kept, .. })) => {
                let kind = if kind == "text_delta" { "text" } else { "thinking" };
                let piece = inside(kind);
                kept.iter_mut().for_each(|kept| keep(kept, piece));
                if !piece.is_empty() {
                    meter.count_bytes(piece.len());
                    self.spoken(kind, piece, out)?;
                }
            }
            ("signature_delta", Some(OpenBlock::Spoken { signature, .. })) => {
                keep(signature, inside("signature"));
            }
            ("input_json_delta", Some(OpenBlock::Call(call))) => {
                let piece = delta.get("partial_json")?;
                let raw = piece.inside()?;
                if raw.is_empty() {
                    return Some(());
                }
                call.any = true;
                meter.count_bytes(raw.len());
                if let Some((_, input)) = &mut call.kept {
                    keep(input, piece.text()?.as_bytes());
                }
                let index = call.index;
                self.arguments(index, piece.raw(), out)?;
            }
            // What is said in a block that never began belongs nowhere.
            ("text_delta" | "thinking_delta" | "input_json_delta", None) => return None,
            _ => {}
        }
        Some(())
    }

    fn block_stop(&mut self, index: u64, out: &mut BytesMut) -> Option<()> {
        let Some(at) = self.open.iter().rposition(|(open, _)| *open == index) else {
            return Some(());
        };
        let mut whole = None;
        match self.open.remove(at).1 {
            OpenBlock::Spoken { kept, signature } => {
                whole = kept.map(|mut kept| {
                    kept.put_u8(b'"');
                    if !signature.is_empty() {
                        kept.put_slice(br#","signature":""#);
                        kept.put_slice(&signature);
                        kept.put_u8(b'"');
                    }
                    kept
                });
            }
            OpenBlock::Call(call) => {
                if !call.any {
                    // Without arguments a client would read an empty string, which is no JSON.
                    let arguments = arguments(Some(JsonValue::trusted(&call.input)));
                    self.arguments(call.index, arguments.as_bytes(), out)?;
                }
                if let Some((mut kept, input)) = call.kept {
                    let input = if call.any { input.freeze() } else { call.input.clone() };
                    kept.put_slice(br#","input":"#);
                    kept.put_slice(&input);
                    if input.starts_with(b"{") && scan::any(&input).is_ok() {
                        whole = Some(kept);
                    } else {
                        self.keeper.iter_mut().for_each(ThinkingRecorder::spoil);
                    }
                }
            }
            OpenBlock::Other => {}
        }
        if let (Some(mut whole), Some(keeper)) = (whole, &mut self.keeper) {
            whole.put_u8(b'}');
            keeper.block(&whole);
        }
        Some(())
    }

    fn message_delta(
        &mut self,
        event: &JsonDocument,
        meter: &mut UsageMeter,
        out: &mut BytesMut,
    ) -> Option<()> {
        self.report(event.get("usage"), meter, false);
        let Some(delta) = event.get("delta") else { return Some(()) };
        let Some(stop) = delta.get("stop_reason").and_then(JsonValue::text) else {
            return Some(());
        };
        let before = std::mem::replace(&mut self.finish, finish_reason(&stop));
        let refused = stop == "refusal" && before != self.finish;
        if let Some(told) = delta.get("stop_details").filter(|_| refused).and_then(explanation) {
            self.chunk(out, |out| {
                out.put_slice(br#""refusal":"#);
                out.put_slice(told.raw());
            })?;
        }
        Some(())
    }

    fn stop(&mut self, meter: &UsageMeter, out: &mut BytesMut) -> Option<()> {
        let head = self.head.clone()?;
        while let Some(index) = self.open.first().map(|(index, _)| *index) {
            self.block_stop(index, out)?;
        }
        let finish = self.finish;
        out.put_slice(&head);
        out.put_slice(br#"{"index":0,"delta":{},"logprobs":null,"finish_reason":""#);
        out.put_slice(finish.as_bytes());
        out.put_slice(br#""}]"#);
        if self.stamp.usage_asked {
            out.put_slice(b",\"usage\":null}\n\n");
            out.put_slice(&head);
            out.put_slice(br#"],"usage":"#);
            write_usage(out, meter.usage(self.stamp.input_tokens).tokens, self.usage.thinking);
        }
        out.put_slice(b"}\n\ndata: [DONE]\n\n");
        self.kept = self.keeper.take().and_then(|keeper| keeper.finish(&self.stamp.model));
        Some(())
    }

    fn spoken(&self, kind: &str, piece: &[u8], out: &mut BytesMut) -> Option<()> {
        self.chunk(out, |out| {
            let name: &[u8] =
                if kind == "text" { br#""content":""# } else { br#""reasoning_content":""# };
            out.put_slice(name);
            out.put_slice(piece);
            out.put_u8(b'"');
        })
    }

    /// A piece of a call's arguments, as a JSON string.
    fn arguments(&self, index: u64, piece: &[u8], out: &mut BytesMut) -> Option<()> {
        self.chunk(out, |out| {
            out.put_slice(format!(r#""tool_calls":[{{"index":{index},"#).as_bytes());
            out.put_slice(br#""function":{"arguments":"#);
            out.put_slice(piece);
            out.put_slice(b"}}]");
        })
    }

    /// A chunk with a delta; `None` before the stream has begun.
    fn chunk(&self, out: &mut BytesMut, delta: impl FnOnce(&mut BytesMut)) -> Option<()> {
        out.put_slice(self.head.as_ref()?);
        out.put_slice(br#"{"index":0,"delta":{"#);
        delta(out);
        out.put_slice(br#"},"logprobs":null,"finish_reason":null}]"#);
        let end: &[u8] = if self.stamp.usage_asked { b",\"usage\":null}\n\n" } else { b"}\n\n" };
        out.put_slice(end);
        Some(())
    }
}

/// Adds to what is kept of a block. What is too long stays too long or unsound, and is not kept.
fn keep(kept: &mut BytesMut, piece: &[u8]) {
    if kept.len() + piece.len() > RECORD_BYTES_MAX {
        kept.resize(RECORD_BYTES_MAX + 1, b' ');
    } else {
        kept.put_slice(piece);
    }
}
