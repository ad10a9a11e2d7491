//! The messages of a chat become a system text and turns that alternate.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::ids::ToolCallIds;
use super::parts::{
    BLOCKS_MAX, BlockKind, ContentBlock, FieldPath, PartPosition, ToolResultContent, is_blank,
    too_many,
};
use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::call::wrong;
use crate::dialect::json::{JsonDocument, JsonKind, JsonValue, scan};

const EMPTY: &[u8] = b"{}";

/// A turn of a conversation.
#[derive(Debug, Default)]
pub(super) struct ConversationTurn {
    pub(super) assistant: bool,
    /// Results of tools, which the vendor wants first.
    pub(super) results: Vec<ContentBlock>,
    pub(super) blocks: Vec<ContentBlock>,
}

impl ConversationTurn {
    pub(super) fn write(&self, out: &mut MessagesWriter) {
        let role = if self.assistant { "assistant" } else { "user" };
        out.text(&format!(r#"{{"role":"{role}","content":["#));
        out.list(self.results.iter().chain(&self.blocks), |out, block| block.write(out));
        out.text("]}");
    }

    /// The id of its first tool call.
    pub(super) fn first_call(&self) -> Option<&str> {
        self.blocks.iter().find_map(|block| match &block.what {
            BlockKind::Use { id, .. } => Some(id.as_str()),
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
    count: usize,
    ids: ToolCallIds,
    /// Ids that the last turn has had, to find those that stand twice: of calls, and of results
    /// with their places.
    calls: HashSet<String>,
    answered: HashMap<String, usize>,
    /// The last call in the older form, which has no id: what it called, and whose it is.
    old_call: Option<(String, usize)>,
}

impl Conversation {
    pub(super) fn read(
        document: &JsonDocument,
        messages: JsonValue<'_>,
    ) -> Result<Conversation, CallError> {
        let mut all = Conversation::default();
        let source = SourceBytes(document.body());
        for (i, message) in messages.elements().enumerate() {
            all.message(source, &ClientMessage::read(i, message))?;
            if all.count > BLOCKS_MAX {
                return Err(too_many());
            }
        }
        if all.turns.first().is_none_or(|turn| turn.assistant) {
            let right = "messages in which a user speaks first, after any system messages";
            return Err(CallError::invalid("messages", right));
        }
        if let Some(last) = all.turns.last_mut().filter(|turn| turn.assistant) {
            trim_end(&mut last.blocks);
        }
        Ok(all)
    }

    fn message(
        &mut self,
        source: SourceBytes<'_>,
        message: &ClientMessage<'_>,
    ) -> Result<(), CallError> {
        let at = |rest: &str| message.at(rest);
        match &*message.role {
            "system" | "developer" => {
                let blocks = message.blocks(source, &["text"])?;
                self.count += blocks.len();
                self.system.extend(blocks);
            }
            "user" => {
                let blocks = message.blocks(source, &["text", "image_url", "file"])?;
                if blocks.is_empty() {
                    let right = "text that is not empty, or an image or a file";
                    return Err(CallError::invalid(&at(".content"), right));
                }
                self.count += blocks.len();
                self.turn(false).blocks.extend(blocks);
            }
            "assistant" => self.assistant(source, message)?,
            "tool" => {
                let id = word(message.call_id, || at(".tool_call_id"))?;
                let name = self.ids.result(&id, &id);
                self.result(source, message, id, name)?;
            }
            "function" => {
                let called = word(message.name, || at(".name"))?;
                let known = self.old_call.take_if(|(name, _)| *name == called);
                let (id, wish) = old_id(known.map_or(message.i, |(_, i)| i));
                let name = self.ids.result(&id, &wish);
                self.result(source, message, id, name)?;
            }
            _ => {
                let right = "system, developer, user, assistant or tool";
                return Err(CallError::invalid(&at(".role"), right));
            }
        }
        Ok(())
    }

    /// The turn of a side: the last one, or a new one after the other side's.
    fn turn(&mut self, assistant: bool) -> &mut ConversationTurn {
        if self.turns.last().is_none_or(|turn| turn.assistant != assistant) {
            self.turns.push(ConversationTurn { assistant, ..ConversationTurn::default() });
            self.calls.clear();
            self.answered.clear();
        }
        let last = self.turns.len() - 1;
        &mut self.turns[last]
    }

    fn assistant(
        &mut self,
        source: SourceBytes<'_>,
        message: &ClientMessage<'_>,
    ) -> Result<(), CallError> {
        let at = |rest: &str| message.at(rest);
        let mut blocks = match message.content {
            Some(_) => message.blocks(source, &["text", "refusal"])?,
            None => Vec::new(),
        };
        if let Some(refusal) = message.refusal {
            if refusal.kind() != JsonKind::Text {
                return Err(wrong(&at(".refusal"), "a string", refusal));
            }
            if !is_blank(refusal) {
                blocks.push(ContentBlock::of(BlockKind::Text(source.keep(refusal))));
            }
        }
        if let Some(calls) = message.calls {
            if calls.kind() != JsonKind::List {
                return Err(wrong(&at(".tool_calls"), "an array", calls));
            }
            for (j, call) in calls.elements().enumerate() {
                if j >= BLOCKS_MAX {
                    return Err(too_many());
                }
                let at = |rest: &str| message.at(&format!(".tool_calls[{j}]{rest}"));
                blocks.extend(self.call(source, &at, call)?);
            }
        }
        if let Some(call) = message.old_call {
            let at = |rest: &str| message.at(&format!(".function_call{rest}"));
            let name = call.get("name").and_then(JsonValue::text).unwrap_or_default().into_owned();
            self.old_call = Some((name, message.i));
            let (id, wish) = old_id(message.i);
            blocks.extend(self.used(source, &at, (&id, &wish), call)?);
        }
        message.mark(source, &mut blocks);
        if !blocks.is_empty() {
            self.count += blocks.len();
            self.turn(true).blocks.extend(blocks);
        }
        Ok(())
    }

    fn call(
        &mut self,
        source: SourceBytes<'_>,
        at: FieldPath<'_>,
        call: JsonValue<'_>,
    ) -> Result<Option<ContentBlock>, CallError> {
        let kind = call.get("type").filter(|v| !v.is_null()).and_then(JsonValue::text);
        if kind.is_some_and(|kind| kind != "function") {
            return Err(CallError::invalid(&at(".type"), "\"function\" for this model"));
        }
        let id = word(call.get("id"), || at(".id"))?;
        let Some(function) = call.get("function").filter(|f| f.kind() == JsonKind::Object) else {
            return Err(CallError::missing(&at(".function"), "an object {name, arguments}"));
        };
        let within = |rest: &str| at(&format!(".function{rest}"));
        self.used(source, &within, (&id, &id), function)
    }

    /// A tool that was used, with its id and what that is to be called; nothing for an id that the
    /// turn has had.
    fn used(
        &mut self,
        source: SourceBytes<'_>,
        at: FieldPath<'_>,
        (id, wish): (&str, &str),
        function: JsonValue<'_>,
    ) -> Result<Option<ContentBlock>, CallError> {
        let name = function.get("name").filter(|v| !v.is_null());
        let right = "the name of the function";
        let name = name.ok_or_else(|| CallError::missing(&at(".name"), right))?;
        if name.kind() != JsonKind::Text {
            return Err(wrong(&at(".name"), "a string", name));
        }
        let input = input(function.get("arguments"), || at(".arguments"))?;
        self.turn(true);
        if !self.calls.insert(id.to_owned()) {
            return Ok(None);
        }
        let id = self.ids.call(id, wish);
        Ok(Some(ContentBlock::of(BlockKind::Use { id, name: source.keep(name), input })))
    }

    fn result(
        &mut self,
        source: SourceBytes<'_>,
        message: &ClientMessage<'_>,
        asked: String,
        id: String,
    ) -> Result<(), CallError> {
        let content = match message.content {
            None => ToolResultContent::None,
            Some(text) if text.kind() == JsonKind::Text && is_blank(text) => {
                ToolResultContent::None
            }
            Some(text) if text.kind() == JsonKind::Text => {
                ToolResultContent::Text(source.keep(text))
            }
            Some(_) => match message.blocks(source, &["text", "image_url"])? {
                blocks if blocks.is_empty() => ToolResultContent::None,
                blocks => ToolResultContent::Blocks(blocks),
            },
        };
        let mut blocks = vec![ContentBlock::of(BlockKind::Result { id, content })];
        message.mark(source, &mut blocks);
        self.count += 1;
        let place = self.turn(false).results.len();
        let place = *self.answered.entry(asked).or_insert(place);
        let results = &mut self.turn(false).results;
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
    i: usize,
    role: String,
    content: Option<JsonValue<'a>>,
    refusal: Option<JsonValue<'a>>,
    calls: Option<JsonValue<'a>>,
    old_call: Option<JsonValue<'a>>,
    call_id: Option<JsonValue<'a>>,
    name: Option<JsonValue<'a>>,
    cache: Option<JsonValue<'a>>,
}

impl<'a> ClientMessage<'a> {
    fn read(i: usize, value: JsonValue<'a>) -> ClientMessage<'a> {
        let mut message = ClientMessage { i, ..ClientMessage::default() };
        for (name, value) in value.members().filter(|(_, v)| !v.is_null()) {
            match &*name {
                "role" => message.role = value.text().unwrap_or_default().into_owned(),
                "content" => message.content = Some(value),
                "refusal" => message.refusal = Some(value),
                "tool_calls" => message.calls = Some(value),
                "function_call" => message.old_call = Some(value),
                "tool_call_id" => message.call_id = Some(value),
                "name" => message.name = Some(value),
                "cache_control" => message.cache = Some(value),
                _ => {}
            }
        }
        message
    }

    /// The path of something of it.
    fn at(&self, rest: &str) -> String {
        format!("messages[{}]{rest}", self.i)
    }

    fn blocks(
        &self,
        source: SourceBytes<'_>,
        kinds: &[&str],
    ) -> Result<Vec<ContentBlock>, CallError> {
        let Some(content) = self.content else {
            return Err(CallError::missing(&self.at(".content"), "a string or an array of parts"));
        };
        let mut blocks = PartPosition { source, message: self.i, kinds }.blocks(content)?;
        if !matches!(&*self.role, "assistant" | "tool" | "function") {
            self.mark(source, &mut blocks);
        }
        Ok(blocks)
    }

    /// Puts the message's own mark for the cache on its last block.
    fn mark(&self, source: SourceBytes<'_>, blocks: &mut [ContentBlock]) {
        if let (Some(cache), Some(last)) = (self.cache, blocks.last_mut()) {
            last.cache.get_or_insert_with(|| source.keep(cache));
        }
    }
}

/// What stands for the id of a call in the older form: something that no client has, and what the
/// vendor is told.
fn old_id(i: usize) -> (String, String) {
    (format!("\0{i}"), format!("call_{i}"))
}

/// A string that has to be there.
fn word(value: Option<JsonValue<'_>>, field: impl Fn() -> String) -> Result<String, CallError> {
    let value = value.filter(|v| !v.is_null());
    let value = value.ok_or_else(|| CallError::missing(&field(), "a string"))?;
    let text = value.text().filter(|t| !t.is_empty());
    text.map(std::borrow::Cow::into_owned).ok_or_else(|| wrong(&field(), "a string", value))
}

/// The input of a call: the object that its arguments spell, byte for byte.
fn input(arguments: Option<JsonValue<'_>>, field: impl Fn() -> String) -> Result<Bytes, CallError> {
    let none = || Ok(Bytes::from_static(EMPTY));
    let Some(arguments) = arguments.filter(|a| !a.is_null()) else { return none() };
    let Some(text) = arguments.text() else {
        return Err(wrong(&field(), "a string that holds a JSON object", arguments));
    };
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    if text.is_empty() || text == "null" {
        return none();
    }
    match scan::any(text.as_bytes()) {
        Ok(()) if text.starts_with('{') => Ok(Bytes::copy_from_slice(text.as_bytes())),
        Ok(()) => Err(wrong(&field(), "a string that holds a JSON object", arguments)),
        Err(why) => {
            let right = format!("a string that holds a JSON object; this one is unsound: {why}");
            Err(CallError::invalid(&field(), &right))
        }
    }
}

/// A turn that the vendor goes on with must not end in white space.
fn trim_end(blocks: &mut [ContentBlock]) {
    let Some(ContentBlock { what: BlockKind::Text(text), .. }) = blocks.last_mut() else { return };
    // Blank text never becomes a block, so something is left.
    let end = 1 + spoken_end(&text[1..text.len() - 1]);
    if end < text.len() - 1 {
        *text = Bytes::from([&text[..end], b"\""].concat());
    }
}

/// Where the white space at the end of a JSON string's inside begins, its escapes left as they are.
fn spoken_end(inside: &[u8]) -> usize {
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
            let spoken = JsonValue::trusted(whole.as_bytes()).text().unwrap_or_default();
            prop_assume!(!spoken.trim().is_empty());
            let mut blocks = [ContentBlock::of(BlockKind::Text(Bytes::from(whole.clone())))];
            trim_end(&mut blocks);
            let BlockKind::Text(text) = &blocks[0].what else { return Err(TestCaseError::fail("text")) };
            let left = JsonValue::trusted(text).text().unwrap_or_default();
            prop_assert_eq!(left, spoken.trim_end());
            prop_assert!(whole.as_bytes().starts_with(&text[..text.len() - 1]));
        }
    }
}
