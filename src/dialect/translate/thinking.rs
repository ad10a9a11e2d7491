//! Saves a model's thinking between two calls of a tool loop.
//!
//! The vendor requires its thinking blocks back, unchanged, together with the results of the tools
//! that it called. The chat format has no field for them. So the blocks of an answer that calls
//! tools are saved. On the next call they replace the blocks of the assistant turn that the client
//! sends, if the visible content of that turn is the same.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::Value as Json;

use super::parts::{BlockKind, ContentBlock, is_blank};
use super::writer::SourceBytes;
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonValue};

/// Answers whose record is longer than this many bytes are not saved.
pub(crate) const RECORD_BYTES_MAX: usize = 256 << 10;

/// The saved blocks of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedThinking {
    /// The id of the answer's first tool call, which the client will send back.
    pub id: String,
    /// A JSON object with the id of the model and the blocks of the answer.
    pub record: Bytes,
}

/// Collects the blocks of an answer as they arrive.
#[derive(Debug)]
pub(super) struct ThinkingRecorder {
    first_call_id: Option<String>,
    record: BytesMut,
    any_thinking: bool,
    /// Whether the record is discarded: it is too long, or has a block that cannot be sent back.
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
            // The vendor may generate blank text, but refuses it in a request.
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

    /// Returns the record to save; `None` if the answer called no tool or if the record was
    /// discarded. An answer without thinking gets a record without blocks: it shows the next call
    /// that no thinking is missing.
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

/// Returns the blocks of a turn with its saved thinking; the blocks that the client sent if the
/// record has none. `None` if the record is of another model, or if the client changed the visible
/// part of the turn.
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
    // The client's `cache_control` is on its last block or near it. It moves to the last block that
    // is not thinking, because thinking blocks cannot have one.
    let cache = sent.iter().rev().find_map(|block| block.cache_control.clone());
    let marked = blocks.iter_mut().rev().find(|block| !block.is_thinking());
    marked?.cache_control = cache;
    Some(blocks)
}

/// The part of a turn that a chat client sees: its text, and the id, name and input of each call.
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

    /// Trims the text, because some clients trim the messages that they keep.
    fn trim_text(mut self) -> VisibleTurn {
        self.text = self.text.trim().to_owned();
        self
    }
}
