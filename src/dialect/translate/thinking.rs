//! A model's thinking between two calls of a tool loop.
//!
//! The vendor wants its thinking back, untouched, with the results of the tools it called. A chat
//! client has no place for it, so the blocks of such an answer are kept, and put back in place of
//! the turn that the client sends, which has to say the same.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::Value as Json;

use super::parts::{BlockKind, ContentBlock, is_blank};
use super::writer::SourceBytes;
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonValue};

/// Longer answers are not kept.
pub(crate) const RECORD_BYTES_MAX: usize = 256 << 10;

/// What is kept of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedThinking {
    /// The id of its first tool call, which the client will send back.
    pub id: String,
    /// The model and its blocks, as JSON.
    pub record: Bytes,
}

/// Collects the blocks of an answer as they come.
#[derive(Debug)]
pub(super) struct ThinkingRecorder {
    first_call_id: Option<String>,
    record: BytesMut,
    any_thinking: bool,
    /// Whether there is more than can be kept, or something that cannot be put back.
    is_discarded: bool,
}

impl ThinkingRecorder {
    pub(super) fn new(model: &str) -> ThinkingRecorder {
        let record =
            BytesMut::from(format!(r#"{{"model":{},"content":["#, json_string(model)).as_str());
        ThinkingRecorder { first_call_id: None, record, any_thinking: false, is_discarded: false }
    }

    /// Appends one content block to the record, or discards the record if the block cannot be
    /// replayed.
    pub(super) fn add_block(&mut self, block: &[u8]) {
        let value = JsonValue::from_validated(block);
        match value.get("type").and_then(JsonValue::text).as_deref() {
            // The vendor may write blank text, but does not take it back.
            Some("text") if value.get("text").is_none_or(is_blank) => return,
            Some("text") => {}
            Some("thinking") => {
                self.any_thinking = true;
                let signature = value.get("signature").and_then(JsonValue::string_bytes);
                self.is_discarded |= signature.is_none_or(<[u8]>::is_empty);
            }
            Some("redacted_thinking") => self.any_thinking = true,
            Some("tool_use") => {
                let id = value.get("id").and_then(JsonValue::text);
                self.first_call_id =
                    self.first_call_id.take().or_else(|| id.map(std::borrow::Cow::into_owned));
            }
            _ => self.is_discarded = true,
        }
        if self.record.len() + block.len() + 3 > RECORD_BYTES_MAX {
            self.is_discarded = true;
        }
        if !self.is_discarded {
            if !self.record.ends_with(b"[") {
                self.record.put_u8(b',');
            }
            self.record.put_slice(block);
        }
    }

    /// Discards the record, because a block could not be assembled.
    pub(super) fn discard(&mut self) {
        self.is_discarded = true;
    }

    /// What is to be kept, if the answer called a tool. That there was no thinking is worth
    /// keeping too: then nothing is missing.
    pub(super) fn finish(self, model: &str) -> Option<SavedThinking> {
        let id = self.first_call_id?;
        if self.is_discarded {
            return None;
        }
        if !self.any_thinking {
            let record = Bytes::from(format!(r#"{{"model":{},"content":[]}}"#, json_string(model)));
            return Some(SavedThinking { id, record });
        }
        let mut record = self.record;
        record.put_slice(b"]}");
        Some(SavedThinking { id, record: record.freeze() })
    }
}

/// The blocks of a turn with the thinking that was kept of it; `None` if it is another model's, or
/// if the client changed what it had seen.
pub(super) fn restore_blocks(
    model: &str,
    sent: &[ContentBlock],
    record: &Bytes,
) -> Option<Vec<ContentBlock>> {
    let record = JsonDocument::parse_from_vendor(record.clone()).ok()?;
    if record.get("model")?.text()? != model {
        return None;
    }
    let kept: Vec<JsonValue<'_>> = record.get("content")?.elements().collect();
    if kept.is_empty() {
        return Some(sent.to_vec());
    }
    if VisibleTurn::from_saved(&kept)? != VisibleTurn::from_sent(sent)? {
        return None;
    }
    let source = SourceBytes(record.body());
    let mut blocks: Vec<ContentBlock> = kept
        .into_iter()
        .map(|block| ContentBlock::new(BlockKind::Verbatim(source.slice_value(block))))
        .collect();
    // What the client marked for the cache is its last block or near it; thinking takes no mark.
    let cache = sent.iter().rev().find_map(|block| block.cache_control.clone());
    let marked = blocks.iter_mut().rev().find(|block| !block.is_thinking());
    marked?.cache_control = cache;
    Some(blocks)
}

/// What a chat client sees of a turn.
#[derive(PartialEq)]
struct VisibleTurn {
    text: String,
    calls: Vec<(String, String, Json)>,
}

impl VisibleTurn {
    fn from_saved(blocks: &[JsonValue<'_>]) -> Option<VisibleTurn> {
        let mut visible = VisibleTurn { text: String::new(), calls: Vec::new() };
        for block in blocks {
            match block.get("type")?.text()?.as_ref() {
                "text" => visible.text.push_str(&block.get("text")?.text()?),
                "tool_use" => visible.calls.push((
                    block.get("id")?.text()?.into_owned(),
                    block.get("name")?.text()?.into_owned(),
                    serde_json::from_slice(block.get("input")?.raw()).ok()?,
                )),
                _ => {}
            }
        }
        Some(visible.trim_text())
    }

    fn from_sent(blocks: &[ContentBlock]) -> Option<VisibleTurn> {
        let mut visible = VisibleTurn { text: String::new(), calls: Vec::new() };
        for block in blocks {
            match &block.kind {
                BlockKind::Text(text) => {
                    visible.text.push_str(&JsonValue::from_validated(text).text()?);
                }
                BlockKind::ToolUse { id, name, input } => visible.calls.push((
                    id.clone(),
                    JsonValue::from_validated(name).text()?.into_owned(),
                    serde_json::from_slice(input).ok()?,
                )),
                BlockKind::Media(_) | BlockKind::ToolResult { .. } | BlockKind::Verbatim(_) => {
                    return None;
                }
            }
        }
        Some(visible.trim_text())
    }

    /// Some clients trim what they keep.
    fn trim_text(mut self) -> VisibleTurn {
        self.text = self.text.trim().to_owned();
        self
    }
}
