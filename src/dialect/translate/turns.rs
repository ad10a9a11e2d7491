//! The messages of a chat become a system text and turns that alternate.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::parts::{
    BLOCKS_MAX, BlockKind, ContentBlock, ContentParser, FieldPath, ToolResultContent, is_blank,
    too_many_blocks,
};
use super::tool_call_ids::ToolCallIds;
use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::json::{JsonDocument, JsonKind, JsonValue, scan};

const EMPTY_OBJECT: &[u8] = b"{}";

/// A turn of a conversation.
#[derive(Debug, Default)]
pub(super) struct ConversationTurn {
    pub(super) is_assistant: bool,
    /// Results of tools, which the vendor wants first.
    pub(super) tool_results: Vec<ContentBlock>,
    pub(super) blocks: Vec<ContentBlock>,
}

impl ConversationTurn {
    pub(super) fn write(&self, out: &mut MessagesWriter) {
        let role = if self.is_assistant { "assistant" } else { "user" };
        out.write_str(&format!(r#"{{"role":"{role}","content":["#));
        out.write_list(self.tool_results.iter().chain(&self.blocks), |out, block| block.write(out));
        out.write_str("]}");
    }

    /// The id of its first tool call.
    pub(super) fn first_tool_call_id(&self) -> Option<&str> {
        self.blocks.iter().find_map(|block| match &block.kind {
            BlockKind::ToolUse { id, .. } => Some(id.as_str()),
            _ => None,
        })
    }
}

/// A conversation, read.
#[derive(Default)]
pub(super) struct Conversation {
    pub(super) system: Vec<ContentBlock>,
    pub(super) turns: Vec<ConversationTurn>,
    /// How many blocks there are.
    block_count: usize,
    tool_call_ids: ToolCallIds,
    /// Ids that the last turn has had, to find those that stand twice: of calls, and of results
    /// with their places.
    turn_call_ids: HashSet<String>,
    result_positions: HashMap<String, usize>,
    /// The last call in the older form, which has no id: what it called, and whose it is.
    legacy_call: Option<(String, usize)>,
}

impl Conversation {
    pub(super) fn parse(
        document: &JsonDocument,
        messages: JsonValue<'_>,
    ) -> Result<Conversation, CallError> {
        let mut all = Conversation::default();
        let source = SourceBytes(document.body());
        for (i, message) in messages.elements().enumerate() {
            all.add_message(source, &ClientMessage::parse(i, message))?;
            if all.block_count > BLOCKS_MAX {
                return Err(too_many_blocks());
            }
        }
        if all.turns.first().is_none_or(|turn| turn.is_assistant) {
            let expected = "messages in which a user speaks first, after any system messages";
            return Err(CallError::invalid("messages", expected));
        }
        if let Some(last) = all.turns.last_mut().filter(|turn| turn.is_assistant) {
            trim_trailing_space(&mut last.blocks);
        }
        Ok(all)
    }

    fn add_message(
        &mut self,
        source: SourceBytes<'_>,
        message: &ClientMessage<'_>,
    ) -> Result<(), CallError> {
        let at = |rest: &str| message.field_path(rest);
        match &*message.role {
            "system" | "developer" => {
                let blocks = message.parse_content(source, &["text"])?;
                self.block_count += blocks.len();
                self.system.extend(blocks);
            }
            "user" => {
                let blocks = message.parse_content(source, &["text", "image_url", "file"])?;
                if blocks.is_empty() {
                    let expected = "text that is not empty, or an image or a file";
                    return Err(CallError::invalid(&at(".content"), expected));
                }
                self.block_count += blocks.len();
                self.turn_of_side(false).blocks.extend(blocks);
            }
            "assistant" => self.add_assistant_message(source, message)?,
            "tool" => {
                let id = required_string(message.tool_call_id, || at(".tool_call_id"))?;
                let name = self.tool_call_ids.id_for_result(&id, &id);
                self.add_tool_result(source, message, id, name)?;
            }
            "function" => {
                let called = required_string(message.name, || at(".name"))?;
                let known = self.legacy_call.take_if(|(name, _)| *name == called);
                let (id, preferred_id) = legacy_call_ids(known.map_or(message.index, |(_, i)| i));
                let name = self.tool_call_ids.id_for_result(&id, &preferred_id);
                self.add_tool_result(source, message, id, name)?;
            }
            _ => {
                let expected = "system, developer, user, assistant or tool";
                return Err(CallError::invalid(&at(".role"), expected));
            }
        }
        Ok(())
    }

    /// The turn of a side: the last one, or a new one after the other side's.
    fn turn_of_side(&mut self, assistant: bool) -> &mut ConversationTurn {
        if self.turns.last().is_none_or(|turn| turn.is_assistant != assistant) {
            self.turns
                .push(ConversationTurn { is_assistant: assistant, ..ConversationTurn::default() });
            self.turn_call_ids.clear();
            self.result_positions.clear();
        }
        let last = self.turns.len() - 1;
        &mut self.turns[last]
    }

    fn add_assistant_message(
        &mut self,
        source: SourceBytes<'_>,
        message: &ClientMessage<'_>,
    ) -> Result<(), CallError> {
        let at = |rest: &str| message.field_path(rest);
        let mut blocks = match message.content {
            Some(_) => message.parse_content(source, &["text", "refusal"])?,
            None => Vec::new(),
        };
        if let Some(refusal) = message.refusal {
            if refusal.kind() != JsonKind::String {
                return Err(invalid_value(&at(".refusal"), "a string", refusal));
            }
            if !is_blank(refusal) {
                blocks.push(ContentBlock::new(BlockKind::Text(source.slice_value(refusal))));
            }
        }
        if let Some(calls) = message.tool_calls {
            if calls.kind() != JsonKind::Array {
                return Err(invalid_value(&at(".tool_calls"), "an array", calls));
            }
            for (j, call) in calls.elements().enumerate() {
                if j >= BLOCKS_MAX {
                    return Err(too_many_blocks());
                }
                let at = |rest: &str| message.field_path(&format!(".tool_calls[{j}]{rest}"));
                blocks.extend(self.parse_tool_call(source, &at, call)?);
            }
        }
        if let Some(call) = message.function_call {
            let at = |rest: &str| message.field_path(&format!(".function_call{rest}"));
            let name = call.get("name").and_then(JsonValue::text).unwrap_or_default().into_owned();
            self.legacy_call = Some((name, message.index));
            let (id, preferred_id) = legacy_call_ids(message.index);
            blocks.extend(self.build_tool_use(source, &at, &id, &preferred_id, call)?);
        }
        message.apply_cache_control(source, &mut blocks);
        if !blocks.is_empty() {
            self.block_count += blocks.len();
            self.turn_of_side(true).blocks.extend(blocks);
        }
        Ok(())
    }

    fn parse_tool_call(
        &mut self,
        source: SourceBytes<'_>,
        at: FieldPath<'_>,
        call: JsonValue<'_>,
    ) -> Result<Option<ContentBlock>, CallError> {
        let kind = call.get("type").filter(|v| !v.is_null()).and_then(JsonValue::text);
        if kind.is_some_and(|kind| kind != "function") {
            return Err(CallError::invalid(&at(".type"), "\"function\" for this model"));
        }
        let id = required_string(call.get("id"), || at(".id"))?;
        let Some(function) = call.get("function").filter(|f| f.kind() == JsonKind::Object) else {
            return Err(CallError::missing(&at(".function"), "an object {name, arguments}"));
        };
        let within = |rest: &str| at(&format!(".function{rest}"));
        self.build_tool_use(source, &within, &id, &id, function)
    }

    /// Builds a tool use block from the client's id and the preferred one; `None` if the turn
    /// already has a call with this id.
    fn build_tool_use(
        &mut self,
        source: SourceBytes<'_>,
        at: FieldPath<'_>,
        id: &str,
        preferred_id: &str,
        function: JsonValue<'_>,
    ) -> Result<Option<ContentBlock>, CallError> {
        let name = function.get("name").filter(|v| !v.is_null());
        let expected = "the name of the function";
        let name = name.ok_or_else(|| CallError::missing(&at(".name"), expected))?;
        if name.kind() != JsonKind::String {
            return Err(invalid_value(&at(".name"), "a string", name));
        }
        let input = parse_arguments(function.get("arguments"), || at(".arguments"))?;
        self.turn_of_side(true);
        if !self.turn_call_ids.insert(id.to_owned()) {
            return Ok(None);
        }
        let id = self.tool_call_ids.assign_id(id, preferred_id);
        Ok(Some(ContentBlock::new(BlockKind::ToolUse {
            id,
            name: source.slice_value(name),
            input,
        })))
    }

    fn add_tool_result(
        &mut self,
        source: SourceBytes<'_>,
        message: &ClientMessage<'_>,
        client_id: String,
        id: String,
    ) -> Result<(), CallError> {
        let content = match message.content {
            None => ToolResultContent::Empty,
            Some(text) if text.kind() == JsonKind::String && is_blank(text) => {
                ToolResultContent::Empty
            }
            Some(text) if text.kind() == JsonKind::String => {
                ToolResultContent::Text(source.slice_value(text))
            }
            Some(_) => match message.parse_content(source, &["text", "image_url"])? {
                blocks if blocks.is_empty() => ToolResultContent::Empty,
                blocks => ToolResultContent::Blocks(blocks),
            },
        };
        let mut blocks = vec![ContentBlock::new(BlockKind::ToolResult { id, content })];
        message.apply_cache_control(source, &mut blocks);
        self.block_count += 1;
        let place = self.turn_of_side(false).tool_results.len();
        let place = *self.result_positions.entry(client_id).or_insert(place);
        let results = &mut self.turn_of_side(false).tool_results;
        match results.get_mut(place) {
            Some(earlier) => *earlier = blocks.remove(0),
            None => results.append(&mut blocks),
        }
        Ok(())
    }
}

/// A message of the client's, its members found in one pass.
#[derive(Default)]
struct ClientMessage<'a> {
    index: usize,
    role: String,
    content: Option<JsonValue<'a>>,
    refusal: Option<JsonValue<'a>>,
    tool_calls: Option<JsonValue<'a>>,
    function_call: Option<JsonValue<'a>>,
    tool_call_id: Option<JsonValue<'a>>,
    name: Option<JsonValue<'a>>,
    cache_control: Option<JsonValue<'a>>,
}

impl<'a> ClientMessage<'a> {
    fn parse(i: usize, value: JsonValue<'a>) -> ClientMessage<'a> {
        let mut message = ClientMessage { index: i, ..ClientMessage::default() };
        for (name, value) in value.members().filter(|(_, v)| !v.is_null()) {
            match &*name {
                "role" => message.role = value.text().unwrap_or_default().into_owned(),
                "content" => message.content = Some(value),
                "refusal" => message.refusal = Some(value),
                "tool_calls" => message.tool_calls = Some(value),
                "function_call" => message.function_call = Some(value),
                "tool_call_id" => message.tool_call_id = Some(value),
                "name" => message.name = Some(value),
                "cache_control" => message.cache_control = Some(value),
                _ => {}
            }
        }
        message
    }

    /// The path of something of it.
    fn field_path(&self, rest: &str) -> String {
        format!("messages[{}]{rest}", self.index)
    }

    fn parse_content(
        &self,
        source: SourceBytes<'_>,
        kinds: &[&str],
    ) -> Result<Vec<ContentBlock>, CallError> {
        let Some(content) = self.content else {
            return Err(CallError::missing(
                &self.field_path(".content"),
                "a string or an array of parts",
            ));
        };
        let mut blocks = ContentParser { source, message_index: self.index, allowed_kinds: kinds }
            .parse_content(content)?;
        if !matches!(&*self.role, "assistant" | "tool" | "function") {
            self.apply_cache_control(source, &mut blocks);
        }
        Ok(blocks)
    }

    /// Puts the message's own mark for the cache on its last block.
    fn apply_cache_control(&self, source: SourceBytes<'_>, blocks: &mut [ContentBlock]) {
        if let (Some(cache), Some(last)) = (self.cache_control, blocks.last_mut()) {
            last.cache_control.get_or_insert_with(|| source.slice_value(cache));
        }
    }
}

/// The ids for a legacy `function_call`, which has none: an internal key that no client can send,
/// and the id that the vendor gets.
fn legacy_call_ids(i: usize) -> (String, String) {
    (format!("\0{i}"), format!("call_{i}"))
}

/// A string that has to be there.
fn required_string(
    value: Option<JsonValue<'_>>,
    field: impl Fn() -> String,
) -> Result<String, CallError> {
    let value = value.filter(|v| !v.is_null());
    let value = value.ok_or_else(|| CallError::missing(&field(), "a string"))?;
    let text = value.text().filter(|t| !t.is_empty());
    text.map(std::borrow::Cow::into_owned).ok_or_else(|| invalid_value(&field(), "a string", value))
}

/// The input of a call: the object that its arguments spell, byte for byte.
fn parse_arguments(
    arguments: Option<JsonValue<'_>>,
    field: impl Fn() -> String,
) -> Result<Bytes, CallError> {
    let none = || Ok(Bytes::from_static(EMPTY_OBJECT));
    let Some(arguments) = arguments.filter(|a| !a.is_null()) else { return none() };
    let Some(text) = arguments.text() else {
        return Err(invalid_value(&field(), "a string that holds a JSON object", arguments));
    };
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    if text.is_empty() || text == "null" {
        return none();
    }
    match scan::validate_value(text.as_bytes()) {
        Ok(()) if text.starts_with('{') => Ok(Bytes::copy_from_slice(text.as_bytes())),
        Ok(()) => Err(invalid_value(&field(), "a string that holds a JSON object", arguments)),
        Err(why) => {
            let expected = format!("a string that holds a JSON object; this one is unsound: {why}");
            Err(CallError::invalid(&field(), &expected))
        }
    }
}

/// A turn that the vendor goes on with must not end in white space.
fn trim_trailing_space(blocks: &mut [ContentBlock]) {
    let Some(ContentBlock { kind: BlockKind::Text(text), .. }) = blocks.last_mut() else { return };
    // Blank text never becomes a block, so something is left.
    let end = 1 + trimmed_end(&text[1..text.len() - 1]);
    if end < text.len() - 1 {
        *text = Bytes::from([&text[..end], b"\""].concat());
    }
}

/// Where the white space at the end of a JSON string's inside begins, its escapes left as they are.
fn trimmed_end(inside: &[u8]) -> usize {
    let (mut at, mut end) = (0, 0);
    while let Some(first) = inside.get(at) {
        let length = match (first, inside.get(at + 1)) {
            (b'\\', Some(b'u')) => 6,
            (b'\\', _) => 2,
            (first, _) => first.leading_ones().max(1) as usize,
        };
        let unit = &inside[at..inside.len().min(at + length)];
        at += unit.len();
        if !is_space(unit) {
            end = at;
        }
    }
    end
}

/// Whether a character of a JSON string, plain or escaped, is white space.
fn is_space(unit: &[u8]) -> bool {
    match unit {
        [b'\\', b'n' | b't' | b'r' | b'f'] => true,
        [b'\\', b'u', digits @ ..] => {
            let digits = std::str::from_utf8(digits).ok();
            let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
            code.and_then(char::from_u32).is_some_and(char::is_whitespace)
        }
        plain => std::str::from_utf8(plain).is_ok_and(|p| p.chars().all(char::is_whitespace)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn white_space_at_the_end_goes_and_nothing_else(
            inside in r#"([a-zé🌍 ]|\\[nrtbf"/\\]|\\u00a0|\\u0041|\\ud83c\\udf0d){0,12}"#,
        ) {
            let whole = format!("\"{inside}\"");
            let spoken = JsonValue::from_validated(whole.as_bytes()).text().unwrap_or_default();
            prop_assume!(!spoken.trim().is_empty());
            let mut blocks = [ContentBlock::new(BlockKind::Text(Bytes::from(whole.clone())))];
            trim_trailing_space(&mut blocks);
            let BlockKind::Text(text) = &blocks[0].kind else {
                return Err(TestCaseError::fail("text"));
            };
            let left = JsonValue::from_validated(text).text().unwrap_or_default();
            prop_assert_eq!(left, spoken.trim_end());
            prop_assert!(whole.as_bytes().starts_with(&text[..text.len() - 1]));
        }
    }
}
