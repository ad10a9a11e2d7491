//! Translates the messages of a chat call into a system text and into turns in which user and
//! assistant alternate.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::dropped_fields::DroppedFields;
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
/// The members of a function call, in a tool call or as a legacy `function_call`.
const FUNCTION_CALL: [&str; 2] = ["name", "arguments"];

/// A turn of a conversation in the messages format.
#[derive(Debug, Default)]
pub(super) struct ConversationTurn {
    pub(super) is_assistant: bool,
    /// Tool results. They are written before the other blocks, as the vendor requires.
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

    /// Returns the id of the first tool call in the turn, if there is one.
    pub(super) fn first_tool_call_id(&self) -> Option<&str> {
        self.blocks.iter().find_map(|block| match &block.kind {
            BlockKind::ToolUse { id, .. } => Some(id.as_str()),
            _ => None,
        })
    }
}

/// The parsed messages of a chat call.
#[derive(Default)]
pub(super) struct Conversation {
    pub(super) system: Vec<ContentBlock>,
    pub(super) turns: Vec<ConversationTurn>,
    /// The fields of messages that were dropped.
    pub(super) dropped_fields: DroppedFields,
    /// The number of blocks in the system text and in all turns so far.
    block_count: usize,
    tool_call_ids: ToolCallIds,
    /// The ids in the last turn, to find duplicates: `turn_call_ids` has those of tool calls,
    /// `result_positions` those of tool results with their index in the turn.
    turn_call_ids: HashSet<String>,
    result_positions: HashMap<String, usize>,
    /// The last call in the legacy `function_call` form, which has no id: the name of the function
    /// and the index of the message.
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
            let message = ClientMessage::parse(i, message, &mut all.dropped_fields);
            all.add_message(source, &message)?;
            if all.block_count > BLOCKS_MAX {
                return Err(too_many_blocks());
            }
        }
        if all.turns.is_empty() {
            let expected = "a message of the user or the assistant beside the system messages";
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
        let field_path = |rest: &str| message.field_path(rest);
        match &*message.role {
            "system" | "developer" => {
                let blocks = message.parse_content(source, &["text"], &mut self.dropped_fields)?;
                self.block_count += blocks.len();
                self.system.extend(blocks);
            }
            "user" => {
                let kinds = &["text", "image_url", "file"];
                let blocks = message.parse_content(source, kinds, &mut self.dropped_fields)?;
                if blocks.is_empty() {
                    let expected = "text that is not empty, or an image or a file";
                    return Err(CallError::invalid(&field_path(".content"), expected));
                }
                self.block_count += blocks.len();
                self.turn_of_role(false).blocks.extend(blocks);
            }
            "assistant" => self.add_assistant_message(source, message)?,
            "tool" => {
                let id = required_string(message.tool_call_id, || field_path(".tool_call_id"))?;
                let name = self.tool_call_ids.id_for_result(&id, &id);
                self.add_tool_result(source, message, id, name)?;
            }
            "function" => {
                let called = required_string(message.name, || field_path(".name"))?;
                let known = self.legacy_call.take_if(|(name, _)| *name == called);
                let (id, preferred_id) = legacy_call_ids(known.map_or(message.index, |(_, i)| i));
                let name = self.tool_call_ids.id_for_result(&id, &preferred_id);
                self.add_tool_result(source, message, id, name)?;
            }
            _ => {
                let expected = "system, developer, user, assistant or tool";
                return Err(CallError::invalid(&field_path(".role"), expected));
            }
        }
        Ok(())
    }

    /// Returns the last turn if it has this role, else appends a new turn.
    fn turn_of_role(&mut self, is_assistant: bool) -> &mut ConversationTurn {
        if self.turns.last().is_none_or(|turn| turn.is_assistant != is_assistant) {
            self.turns.push(ConversationTurn { is_assistant, ..ConversationTurn::default() });
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
        let field_path = |rest: &str| message.field_path(rest);
        let mut blocks = match message.content {
            Some(_) => {
                message.parse_content(source, &["text", "refusal"], &mut self.dropped_fields)?
            }
            None => Vec::new(),
        };
        if let Some(refusal) = message.refusal {
            if refusal.kind() != JsonKind::String {
                return Err(invalid_value(&field_path(".refusal"), "a string", refusal));
            }
            if !is_blank(refusal) {
                blocks.push(ContentBlock::new(BlockKind::Text(source.slice_value(refusal))));
            }
        }
        if let Some(calls) = message.tool_calls {
            if calls.kind() != JsonKind::Array {
                return Err(invalid_value(&field_path(".tool_calls"), "an array", calls));
            }
            for (j, call) in calls.elements().enumerate() {
                if j >= BLOCKS_MAX {
                    return Err(too_many_blocks());
                }
                let field_path =
                    |rest: &str| message.field_path(&format!(".tool_calls[{j}]{rest}"));
                blocks.extend(self.parse_tool_call(source, &field_path, call)?);
            }
        }
        if let Some(call) = message.function_call {
            let field_path = |rest: &str| message.field_path(&format!(".function_call{rest}"));
            self.dropped_fields.add_unknown("messages[].function_call", call, &FUNCTION_CALL);
            let name = call.get("name").and_then(JsonValue::text).unwrap_or_default().into_owned();
            self.legacy_call = Some((name, message.index));
            let (id, preferred_id) = legacy_call_ids(message.index);
            blocks.extend(self.build_tool_use(source, &field_path, &id, &preferred_id, call)?);
        }
        message.apply_cache_control(source, &mut blocks);
        if !blocks.is_empty() {
            self.block_count += blocks.len();
            self.turn_of_role(true).blocks.extend(blocks);
        }
        Ok(())
    }

    fn parse_tool_call(
        &mut self,
        source: SourceBytes<'_>,
        field_path: FieldPath<'_>,
        call: JsonValue<'_>,
    ) -> Result<Option<ContentBlock>, CallError> {
        let kind = call.get("type").filter(|v| !v.is_null()).and_then(JsonValue::text);
        if kind.is_some_and(|kind| kind != "function") {
            return Err(CallError::invalid(&field_path(".type"), "\"function\" for this model"));
        }
        let id = required_string(call.get("id"), || field_path(".id"))?;
        let Some(function) = call.get("function").filter(|f| f.kind() == JsonKind::Object) else {
            return Err(CallError::missing(
                &field_path(".function"),
                "an object {name, arguments}",
            ));
        };
        let known = ["id", "type", "function"];
        self.dropped_fields.add_unknown("messages[].tool_calls[]", call, &known);
        let parent = "messages[].tool_calls[].function";
        self.dropped_fields.add_unknown(parent, function, &FUNCTION_CALL);
        let within = |rest: &str| field_path(&format!(".function{rest}"));
        self.build_tool_use(source, &within, &id, &id, function)
    }

    /// Builds a tool use block from the client's id and the preferred one; `None` if the turn
    /// already has a call with this id.
    fn build_tool_use(
        &mut self,
        source: SourceBytes<'_>,
        field_path: FieldPath<'_>,
        id: &str,
        preferred_id: &str,
        function: JsonValue<'_>,
    ) -> Result<Option<ContentBlock>, CallError> {
        let name = function.get("name").filter(|v| !v.is_null());
        let expected = "the name of the function";
        let name = name.ok_or_else(|| CallError::missing(&field_path(".name"), expected))?;
        if name.kind() != JsonKind::String {
            return Err(invalid_value(&field_path(".name"), "a string", name));
        }
        let input = parse_arguments(function.get("arguments"), || field_path(".arguments"))?;
        self.turn_of_role(true);
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
            Some(_) => {
                let kinds = &["text", "image_url"];
                match message.parse_content(source, kinds, &mut self.dropped_fields)? {
                    blocks if blocks.is_empty() => ToolResultContent::Empty,
                    blocks => ToolResultContent::Blocks(blocks),
                }
            }
        };
        let mut blocks = vec![ContentBlock::new(BlockKind::ToolResult { id, content })];
        message.apply_cache_control(source, &mut blocks);
        self.block_count += 1;
        let place = self.turn_of_role(false).tool_results.len();
        let place = *self.result_positions.entry(client_id).or_insert(place);
        let results = &mut self.turn_of_role(false).tool_results;
        match results.get_mut(place) {
            Some(earlier) => *earlier = blocks.remove(0),
            None => results.append(&mut blocks),
        }
        Ok(())
    }
}

/// A message that the client sent. Its members are collected in one pass.
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
    /// Collects the members of a message. Those that the messages format does not have in a
    /// message of this role are added to `dropped`.
    fn parse(i: usize, value: JsonValue<'a>, dropped: &mut DroppedFields) -> ClientMessage<'a> {
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
                name => dropped.add("messages[]", name),
            }
        }
        let is_assistant = message.role == "assistant";
        let unused = [
            ("name", message.name.filter(|_| message.role != "function")),
            ("refusal", message.refusal.filter(|_| !is_assistant)),
            ("tool_calls", message.tool_calls.filter(|_| !is_assistant)),
            ("function_call", message.function_call.filter(|_| !is_assistant)),
            ("tool_call_id", message.tool_call_id.filter(|_| message.role != "tool")),
        ];
        let unused = unused.iter().filter(|(_, value)| value.is_some());
        unused.for_each(|(name, _)| dropped.add("messages[]", name));
        message
    }

    /// Returns the path of a field of this message, for error messages.
    fn field_path(&self, rest: &str) -> String {
        format!("messages[{}]{rest}", self.index)
    }

    fn parse_content(
        &self,
        source: SourceBytes<'_>,
        kinds: &[&str],
        dropped: &mut DroppedFields,
    ) -> Result<Vec<ContentBlock>, CallError> {
        let Some(content) = self.content else {
            return Err(CallError::missing(
                &self.field_path(".content"),
                "a string or an array of parts",
            ));
        };
        let mut blocks = ContentParser { source, message_index: self.index, allowed_kinds: kinds }
            .parse_content(content, dropped)?;
        if !matches!(&*self.role, "assistant" | "tool" | "function") {
            self.apply_cache_control(source, &mut blocks);
        }
        Ok(blocks)
    }

    /// Copies the message's own `cache_control` to its last block, unless that block has one
    /// already.
    fn apply_cache_control(&self, source: SourceBytes<'_>, blocks: &mut [ContentBlock]) {
        if let (Some(cache), Some(last)) = (self.cache_control, blocks.last_mut()) {
            last.cache_control.get_or_insert_with(|| source.slice_value(cache));
        }
    }
}

/// Returns two ids for a legacy `function_call`, which has none: an internal key, which begins with
/// NUL so that it differs from the ids that clients send, and the id that the vendor gets.
fn legacy_call_ids(i: usize) -> (String, String) {
    (format!("\0{i}"), format!("call_{i}"))
}

/// Returns a required string. Fails if it is absent, null, empty or not a string.
fn required_string(
    value: Option<JsonValue<'_>>,
    field: impl Fn() -> String,
) -> Result<String, CallError> {
    let value = value.filter(|v| !v.is_null());
    let value = value.ok_or_else(|| CallError::missing(&field(), "a string"))?;
    let text = value.text().filter(|t| !t.is_empty());
    text.map(std::borrow::Cow::into_owned).ok_or_else(|| invalid_value(&field(), "a string", value))
}

/// Parses the arguments of a tool call, a string that holds a JSON object. Returns that object byte
/// for byte, or `{}` if there are no arguments.
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

/// Removes the white space at the end of the last text: the vendor continues a final assistant
/// turn, and such a turn must not end in white space.
fn trim_trailing_space(blocks: &mut [ContentBlock]) {
    let Some(ContentBlock { kind: BlockKind::Text(text), .. }) = blocks.last_mut() else { return };
    // Blank text never becomes a block, so the text does not become empty here.
    let end = 1 + trimmed_end(&text[1..text.len() - 1]);
    if end < text.len() - 1 {
        *text = Bytes::from([&text[..end], b"\""].concat());
    }
}

/// Returns the length of a JSON string's content without the white space at its end, plain or
/// escaped. `inside` is the content between the quotes; its escapes are left as they are.
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
