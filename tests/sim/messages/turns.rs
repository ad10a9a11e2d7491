//! The order of a conversation: who speaks, and which calls are answered.

use std::collections::HashSet;

use serde_json::Value;

use super::super::vendor::THOUGHTFUL;
use super::blocks::{self, Place};
use super::family::Family;
use super::node::{Node, Verdict};
use super::turn::{REDACTED, signature};

const MESSAGES_MAX: usize = 100_000;

/// Messages of the same role, which the vendor takes as one.
struct Turn<'a> {
    first: usize,
    assistant: bool,
    /// The blocks and their places; a bare text is a block, too.
    blocks: Vec<Node<'a>>,
}

impl<'a> Turn<'a> {
    fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &Node<'a>> {
        self.blocks.iter().filter(move |block| block.value["type"] == kind)
    }

    /// The ids in the blocks of a kind.
    fn ids(&self, kind: &'static str, member: &'static str) -> Vec<&'a str> {
        let blocks = self.of_kind(kind);
        blocks.map(|block| block.value[member].as_str().unwrap_or_default()).collect()
    }

    fn has_thought(&self) -> bool {
        self.of_kind("thinking").chain(self.of_kind("redacted_thinking")).next().is_some()
    }
}

/// Refuses a conversation that the vendor refuses.
pub(super) fn check(root: &Node<'_>, family: &Family) -> Verdict {
    let messages = root.need("messages")?;
    let items = messages.items()?;
    if items.is_empty() {
        return Err(messages.fault("at least one message is required"));
    }
    if items.len() > MESSAGES_MAX {
        return Err(messages.fault("Too many messages"));
    }
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for (at, message) in items.iter().enumerate() {
        let assistant = match role(message, family)? {
            Role::System => {
                instruction(&items, at)?;
                continue;
            }
            role => role == Role::Assistant,
        };
        let mut blocks = contents(message, assistant, at + 1 == items.len())?;
        match turns.last_mut().filter(|turn| turn.assistant == assistant) {
            Some(turn) => turn.blocks.append(&mut blocks),
            None => turns.push(Turn { first: at, assistant, blocks }),
        }
    }
    for turn in &turns {
        turn.blocks.iter().try_for_each(untouched)?;
    }
    calls(&turns)?;
    definitions(root, &turns)?;
    loop_thoughts(root, &turns)?;
    ending(turns.last().expect("an instruction is never the first message"), family)
}

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    User,
    Assistant,
    System,
}

fn role(message: &Node<'_>, family: &Family) -> Result<Role, String> {
    message.only(&["role content"])?;
    let role = message.need("role")?;
    if role.value == "system" && family.takes_instructions_midway() {
        return Ok(Role::System);
    }
    if role.value == "system" {
        return Err("messages: Unexpected role \"system\". The Messages API accepts a top-level \
            `system` parameter, not \"system\" as an input message role."
            .to_owned());
    }
    let is_assistant = role.one_of(&["user", "assistant"])? == "assistant";
    Ok(if is_assistant { Role::Assistant } else { Role::User })
}

/// Refuses an instruction in the midst of a conversation that is not text, or that does not stand
/// between a turn of the user and one of the assistant, or at the end.
fn instruction(items: &[Node<'_>], at: usize) -> Verdict {
    let message = &items[at];
    let before = at.checked_sub(1).map(|before| items[before].value);
    let after = items.get(at + 1).map(|after| &after.value["role"]);
    let follows = before.is_some_and(|before| {
        let last = before["content"].as_array().and_then(|blocks| blocks.last());
        let kind = last.and_then(|block| block["type"].as_str()).unwrap_or_default();
        let is_searched = kind == "server_tool_use" || kind.ends_with("_tool_result");
        before["role"] == "user" || before["role"] == "assistant" && is_searched
    });
    if !follows || after.is_some_and(|role| role != "assistant") {
        return Err(message.fault(
            "a `system` message must follow a `user` message, and must be the last message or be \
             followed by an `assistant` message",
        ));
    }
    let content = message.need("content")?;
    if let Value::String(text) = content.value {
        return blocks::said(&content, text);
    }
    let blocks = content.items()?;
    if blocks.is_empty() {
        return Err(content.fault("a `system` message must have content"));
    }
    blocks.iter().try_for_each(|block| blocks::check(block, Place::System))
}

fn contents<'a>(message: &Node<'a>, assistant: bool, last: bool) -> Result<Vec<Node<'a>>, String> {
    let content = message.need("content")?;
    let blocks = match content.value {
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::String(text) => {
            blocks::said(&content, text)?;
            vec![content]
        }
        _ => content.items()?,
    };
    if blocks.is_empty() && !(assistant && last) {
        return Err(message.fault(
            "all messages must have non-empty content except for the optional final \
             assistant message",
        ));
    }
    let place = if assistant { Place::Assistant } else { Place::User };
    for block in blocks.iter().filter(|block| !block.value.is_string()) {
        blocks::check(block, place)?;
    }
    Ok(blocks)
}

/// Refuses a thought that is not the vendor's own.
fn untouched(block: &Node<'_>) -> Verdict {
    let value = block.value;
    let text = |name: &str| value[name].as_str().unwrap_or_default();
    if value["type"] == "thinking" && text("signature") != signature(text("thinking")) {
        return Err(block.fault("Invalid `signature` in `thinking` block"));
    }
    if value["type"] == "redacted_thinking" && text("data") != REDACTED {
        return Err(block.fault("Invalid `data` in `redacted_thinking` block"));
    }
    Ok(())
}

/// Every call has one result, in the next turn and before all else there, and no other has.
fn calls(turns: &[Turn<'_>]) -> Verdict {
    let mut all = HashSet::new();
    for (at, turn) in turns.iter().enumerate() {
        let made = turn.ids("tool_use", "id");
        if let Some(twice) = made.iter().find(|id| !all.insert(**id)) {
            return Err(format!("messages: `tool_use` ids must be unique; found twice: {twice}"));
        }
        let before = at.checked_sub(1).map(|before| turns[before].ids("tool_use", "id"));
        let before = before.unwrap_or_default();
        let mut answered = HashSet::new();
        for result in turn.of_kind("tool_result") {
            let id = result.value["tool_use_id"].as_str().unwrap_or_default();
            if !before.contains(&id) {
                return Err(result.fault(&format!(
                    "unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each \
                     `tool_result` block must have a corresponding `tool_use` block in the \
                     previous message."
                )));
            }
            if !answered.insert(id) {
                return Err(result.fault(&format!(
                    "each tool_use must have a single result. Found multiple `tool_result` \
                     blocks with id: {id}"
                )));
            }
        }
        let open: Vec<_> =
            made.into_iter().filter(|id| !is_answered(turns.get(at + 1), id)).collect();
        if !open.is_empty() {
            return Err(format!(
                "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately \
                 after: {}. Each `tool_use` block must have a corresponding `tool_result` block \
                 in the next message.",
                turn.first,
                open.join(", ")
            ));
        }
    }
    Ok(())
}

/// Whether a result stands among the first blocks of a turn, which are results only.
fn is_answered(turn: Option<&Turn<'_>>, id: &str) -> bool {
    let blocks = turn.into_iter().flat_map(|turn| &turn.blocks);
    let mut results = blocks.take_while(|block| block.value["type"] == "tool_result");
    results.any(|result| result.value["tool_use_id"] == id)
}

fn definitions(root: &Node<'_>, turns: &[Turn<'_>]) -> Verdict {
    let defined = root.value["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let used = turns.iter().any(|turn| turn.of_kind("tool_use").next().is_some());
    if used && !defined {
        return Err("Requests which have `tool_use` or `tool_result` blocks in `messages` must \
            define tools."
            .to_owned());
    }
    Ok(())
}

/// The thoughts of the present loop of tools come back all, or none; one that was asked for in
/// the old manner has to come back.
fn loop_thoughts(root: &Node<'_>, turns: &[Turn<'_>]) -> Verdict {
    let mut said = Vec::new();
    for (number, pair) in turns.rchunks(2).enumerate() {
        let [assistant, user] = pair else { break };
        let results = user.of_kind("tool_result").count();
        // Whoever adds a text to results begins anew, as far as later turns are concerned.
        let goes_on = if number == 0 { results > 0 } else { results == user.blocks.len() };
        if user.assistant || !goes_on {
            break;
        }
        said.push(assistant);
    }
    if root.value["thinking"]["type"] == "enabled"
        && let Some(turn) = said.iter().find(|turn| {
            let first = turn.blocks.first().map(|block| &block.value["type"]);
            !first.is_some_and(|kind| kind == "thinking" || kind == "redacted_thinking")
        })
    {
        return Err(format!(
            "messages.{}.content.0: Expected `thinking` or `redacted_thinking`, but found \
             another block. When `thinking` is enabled, a final `assistant` message must start \
             with a thinking block.",
            turn.first
        ));
    }
    let thoughtless = said.iter().find(|turn| {
        let ids = turn.ids("tool_use", "id");
        !turn.has_thought() && ids.iter().any(|id| id.starts_with(THOUGHTFUL))
    });
    match thoughtless {
        Some(turn) if said.iter().any(|turn| turn.has_thought()) => Err(format!(
            "messages.{}: `thinking` blocks were removed from some turns of the tool loop only",
            turn.first
        )),
        _ => Ok(()),
    }
}

/// Whether the vendor goes on from the last turn.
fn ending(last: &Turn<'_>, family: &Family) -> Verdict {
    if !last.assistant {
        return Ok(());
    }
    if !family.takes_prefill() {
        return Err("This model does not support assistant message prefill. The conversation \
            must end with a user message."
            .to_owned());
    }
    let text = last
        .blocks
        .last()
        .and_then(|block| block.value.as_str().or_else(|| block.value["text"].as_str()));
    if text.is_some_and(|text| text != text.trim_end()) {
        return Err("messages: final assistant content cannot end with trailing whitespace".into());
    }
    Ok(())
}
