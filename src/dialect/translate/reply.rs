//! Translates a complete messages reply into a chat reply.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{BufMut, Bytes, BytesMut};

use super::thinking::{SavedThinking, ThinkingRecorder};
use crate::dialect::json::compact::compact;
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonValue};
use crate::dialect::messages::ReportedUsage;
use crate::dialect::meter::{ReportQuality, UsageMeter, count_block};
use crate::dialect::tokens::InputCount;
use crate::money::TokenUsage;

/// What a translated reply needs that the vendor's reply does not contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyMetadata {
    /// The model as the client asked for it.
    pub model: String,
    /// When the call arrived, in unix seconds.
    pub created: i64,
    /// The input tokens as the gateway counts them. If the vendor reports no usage, the reply shows
    /// this count, which is the one that is charged.
    pub input_tokens: InputCount,
    /// Whether a stream ends with a usage chunk.
    pub include_usage: bool,
    /// Whether the blocks of an answer that calls tools are saved for the next call.
    pub save_thinking: bool,
}

/// A reply in the chat format, with the thinking to save.
pub(in crate::dialect) struct TranslatedReply {
    pub(in crate::dialect) body: Bytes,
    pub(in crate::dialect) saved_thinking: Option<SavedThinking>,
}

/// Translates a reply, and meters it. `None` if the document is not a messages reply.
pub(in crate::dialect) fn translate_reply(
    document: &JsonDocument,
    metadata: &ReplyMetadata,
    meter: &mut UsageMeter,
) -> Option<TranslatedReply> {
    let id = document.get("id")?.text()?;
    let content = document.get("content")?;
    let recorder = metadata.save_thinking.then(|| ThinkingRecorder::new(&metadata.model));
    let mut message = ReplyMessage { recorder, ..ReplyMessage::default() };
    content.elements().for_each(|block| message.add_block(block));
    let mut usage = ReportedUsage::default();
    if let Some(tokens) =
        document.get("usage").filter(|u| usage.merge(*u)).and_then(|_| usage.tokens())
    {
        meter.record_tokens(tokens, ReportQuality::Final);
    }
    if !meter.has_whole_report() {
        let blocks = (0..).zip(content.elements());
        blocks.for_each(|(index, block)| count_block(block, index, meter));
    }
    let stop = document.get("stop_reason").and_then(JsonValue::text).unwrap_or_default();
    let refusal =
        document.get("stop_details").filter(|_| stop == "refusal").and_then(refusal_explanation);
    let mut out = BytesMut::with_capacity(document.body().len() + 512);
    out.put_slice(br#"{"id":"#);
    out.put_slice(json_string(&chat_id(&id)).as_bytes());
    out.put_slice(br#","object":"chat.completion","created":"#);
    out.put_slice(metadata.created.to_string().as_bytes());
    out.put_slice(br#","model":"#);
    out.put_slice(json_string(&metadata.model).as_bytes());
    out.put_slice(br#","choices":[{"index":0,"message":{"role":"assistant","content":"#);
    message.write(&mut out, refusal);
    out.put_slice(br#","annotations":[]},"logprobs":null,"finish_reason":""#);
    out.put_slice(finish_reason(&stop).as_bytes());
    out.put_slice(br#""}],"usage":"#);
    let tokens = meter.usage_with(&metadata.input_tokens).tokens;
    write_usage(&mut out, tokens, usage.thinking);
    out.put_slice(br#","system_fingerprint":null}"#);
    let saved_thinking = message.recorder.and_then(|recorder| recorder.finish(&metadata.model));
    Some(TranslatedReply { body: out.freeze(), saved_thinking })
}

/// The parts of a reply's message. `text` and `thinking` are contents of JSON strings, with escapes
/// and without quotes; `tool_calls` is the content of a JSON list.
#[derive(Default)]
struct ReplyMessage {
    text: Vec<u8>,
    thinking: Vec<u8>,
    tool_calls: Vec<u8>,
    recorder: Option<ThinkingRecorder>,
}

impl ReplyMessage {
    fn add_block(&mut self, block: JsonValue<'_>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.add_block(block.raw());
        }
        let string_content =
            |name: &str| block.get(name).and_then(JsonValue::string_bytes).unwrap_or_default();
        match block.get("type").and_then(JsonValue::text).as_deref() {
            Some("text") => self.text.extend_from_slice(string_content("text")),
            Some("thinking") => self.thinking.extend_from_slice(string_content("thinking")),
            Some("tool_use") => self.add_tool_call(block),
            _ => {}
        }
    }

    fn add_tool_call(&mut self, block: JsonValue<'_>) {
        let string_value = |name: &str| block.get(name).filter(|v| v.string_bytes().is_some());
        let raw = |name: &str| string_value(name).map_or(&b"\"\""[..], JsonValue::raw);
        self.tool_calls.extend_from_slice(if self.tool_calls.is_empty() { b"" } else { b"," });
        self.tool_calls.extend_from_slice(br#"{"id":"#);
        self.tool_calls.extend_from_slice(raw("id"));
        self.tool_calls.extend_from_slice(br#","type":"function","function":{"name":"#);
        self.tool_calls.extend_from_slice(raw("name"));
        self.tool_calls.extend_from_slice(br#","arguments":"#);
        self.tool_calls.extend_from_slice(encode_arguments(block.get("input")).as_bytes());
        self.tool_calls.extend_from_slice(b"}}");
    }

    /// Writes the members of the message, beginning with the value of `content`.
    fn write(&self, out: &mut BytesMut, refusal: Option<JsonValue<'_>>) {
        if self.text.is_empty() {
            out.put_slice(b"null");
        } else {
            put_string(out, &self.text);
        }
        out.put_slice(br#","refusal":"#);
        out.put_slice(refusal.map_or(&b"null"[..], JsonValue::raw));
        if !self.thinking.is_empty() {
            out.put_slice(br#","reasoning_content":"#);
            put_string(out, &self.thinking);
        }
        if !self.tool_calls.is_empty() {
            out.put_slice(br#","tool_calls":["#);
            out.put_slice(&self.tool_calls);
            out.put_slice(b"]");
        }
    }
}

/// Encodes the input of a tool call as a JSON string, the form of arguments in the chat format.
pub(super) fn encode_arguments(input: Option<JsonValue<'_>>) -> String {
    let input = input.filter(|i| !i.is_null()).map_or(&b"{}"[..], JsonValue::raw);
    json_string(&String::from_utf8_lossy(&compact(input)))
}

fn put_string(out: &mut BytesMut, content: &[u8]) {
    out.put_u8(b'"');
    out.put_slice(content);
    out.put_u8(b'"');
}

/// Makes the id of a chat reply from the id of a message.
pub(in crate::dialect) fn chat_id(id: &str) -> String {
    format!("chatcmpl-{}", id.strip_prefix("msg_").unwrap_or(id))
}

/// Returns the vendor's explanation of a refusal, if it is a non-empty string.
pub(super) fn refusal_explanation(details: JsonValue<'_>) -> Option<JsonValue<'_>> {
    let explanation = details.get("explanation")?;
    explanation.string_bytes().filter(|text| !text.is_empty()).map(|_| explanation)
}

/// Maps a `stop_reason` to a `finish_reason` of the chat format (spec: chat completion response,
/// and two stop reasons that were added later).
pub(super) fn finish_reason(stop: &str) -> &'static str {
    match stop {
        "max_tokens" | "model_context_window_exceeded" => "length",
        "tool_use" => "tool_calls",
        "refusal" => "content_filter",
        _ => "stop",
    }
}

/// Writes usage in the chat format. Tokens read from or written to a cache are part of the prompt
/// tokens, thinking tokens are part of the completion tokens.
pub(super) fn write_usage(out: &mut BytesMut, tokens: TokenUsage, thinking: u64) {
    let TokenUsage { input, output, cache_read, cache_write, .. } = tokens;
    let total = input.saturating_add(output);
    let usage = format!(
        concat!(
            r#"{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"#,
            r#""prompt_tokens_details":{{"cached_tokens":{},"cache_write_tokens":{}}},"#,
            r#""completion_tokens_details":{{"reasoning_tokens":{}}}}}"#,
        ),
        input, output, total, cache_read, cache_write, thinking,
    );
    out.put_slice(usage.as_bytes());
}
