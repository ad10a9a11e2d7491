//! Translates a chat call into the body of a messages call.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::parts::{BlockKind, ContentBlock};
use super::settings::CallSettings;
use super::thinking;
use super::tools::CallTools;
use super::turns::{Conversation, ConversationTurn};
use super::writer::MessagesWriter;
use crate::dialect::CallError;
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonPatch, JsonValue};

/// The instruction for an answer that must be a JSON object: a JSON string that is added to the
/// system text.
const JSON_OBJECT_INSTRUCTION: &[u8] = b"\"Give your final answer as one JSON object and nothing \
    else: no text before or after it, and no code fence.\"";

/// The facts that a translation depends on besides the call.
#[derive(Debug, Clone, Copy)]
pub struct TranslationContext<'a> {
    /// The id of the model. Saved thinking of another model is not restored.
    pub model: &'a str,
    /// The account of the call. It is hashed into the user id, so that users of different accounts
    /// do not get the same id.
    pub account: &'a str,
    /// Whether the model takes a JSON schema for its output, and strict tools.
    pub json_schema: bool,
}

/// A chat call that was parsed and can be written as a messages call.
pub struct Translation {
    model: String,
    settings: CallSettings,
    conversation: Conversation,
    tools: CallTools,
    dropped_fields: Vec<String>,
}

impl Translation {
    /// Parses a chat body; `patch` has the changes that the rules made to it.
    ///
    /// # Errors
    /// [`CallError`] if a field is invalid, or has no counterpart in the messages format.
    pub fn parse_chat(
        document: &JsonDocument,
        patch: &JsonPatch<'_>,
        context: TranslationContext<'_>,
    ) -> Result<Translation, CallError> {
        let messages = patch.get("messages").unwrap_or(JsonValue::from_validated(b"[]"));
        let mut conversation = Conversation::parse(document, messages)?;
        let mut tools = CallTools::parse(document, patch, context.json_schema)?
            .define_called_tools(&conversation.turns);
        let mut settings = CallSettings::parse(document, patch, context)?;
        if settings.wants_json_object {
            let instruction = BlockKind::Text(Bytes::from_static(JSON_OBJECT_INSTRUCTION));
            conversation.system.push(ContentBlock::new(instruction));
        }
        let mut dropped = std::mem::take(&mut settings.dropped_fields);
        dropped.append(std::mem::take(&mut conversation.dropped_fields));
        dropped.append(std::mem::take(&mut tools.dropped_fields));
        let (model, dropped_fields) = (context.model.to_owned(), dropped.into_paths());
        Ok(Translation { model, settings, conversation, tools, dropped_fields })
    }

    /// Returns the ids under which the thinking of the current tool loop was saved: the id of the
    /// first tool call in each assistant turn of the loop, oldest first. The loop is the run of
    /// turns that the tool results at the end of the call continue. Empty if the call does not end
    /// with tool results.
    #[must_use]
    pub fn tool_loop_ids(&self) -> Vec<String> {
        let turns = self.tool_loop_turns().map(|at| &self.conversation.turns[at]);
        turns.filter_map(ConversationTurn::first_tool_call_id).map(str::to_owned).collect()
    }

    /// Returns the indexes of the assistant turns of that tool loop, oldest first.
    fn tool_loop_turns(&self) -> impl Iterator<Item = usize> + use<> {
        let turns = &self.conversation.turns;
        let mut first = turns.len();
        // Roles alternate, so each pair is an assistant turn and the user turn that answers it.
        while first >= 2
            && !turns[first - 1].is_assistant
            && !turns[first - 1].tool_results.is_empty()
            && turns[first - 2].first_tool_call_id().is_some()
        {
            first -= 2;
        }
        (first..turns.len()).step_by(2)
    }

    /// Matches the saved thinking, one entry for each of [`Translation::tool_loop_ids`], with the
    /// turns it belongs to. Returns `None` if there is no tool loop, if an entry is missing or of
    /// another model, or if the client changed the visible part of one of these turns.
    #[must_use]
    pub fn match_saved_thinking(&self, kept: &[Option<Bytes>]) -> Option<RestoredThinking> {
        let turn_indexes: Vec<usize> = self.tool_loop_turns().collect();
        if turn_indexes.is_empty() || turn_indexes.len() != kept.len() {
            return None;
        }
        let turns = turn_indexes.into_iter().zip(kept).map(|(at, kept)| {
            let sent = &self.conversation.turns[at].blocks;
            Some((at, thinking::restore_blocks(&self.model, sent, kept.as_ref()?)?))
        });
        turns.collect::<Option<Vec<_>>>().map(RestoredThinking)
    }

    /// Replaces the blocks that the client sent with the saved blocks.
    pub fn apply_thinking(&mut self, restored: RestoredThinking) {
        for (at, blocks) in restored.0 {
            self.conversation.turns[at].blocks = blocks;
        }
    }

    /// Sets the limit of output tokens.
    pub(crate) fn limit_output(&mut self, limit: u64) {
        self.settings.limit_output(limit);
    }

    /// Writes the body of the messages call.
    #[must_use]
    pub fn build_call(&self) -> TranslatedCall {
        let mut out = MessagesWriter::default();
        self.settings.write(&mut out);
        if !self.conversation.system.is_empty() {
            out.write_str(r#","system":["#);
            out.write_list(&self.conversation.system, |out, block| block.write(out));
            out.write_str("]");
        }
        out.write_str(r#","messages":["#);
        out.write_list(&self.conversation.turns, |out, turn| turn.write(out));
        out.write_str("]");
        self.tools.write(&mut out);
        out.write_str("}");
        TranslatedCall {
            body_after_model: out.finish(),
            dropped_fields: self.dropped_fields.clone(),
        }
    }
}

/// The assistant turns, by index, with their saved thinking put back.
pub struct RestoredThinking(Vec<(usize, Vec<ContentBlock>)>);

impl RestoredThinking {
    /// Returns how many bytes of these turns are copied from saved thinking.
    #[must_use]
    pub(crate) fn saved_bytes(&self) -> u64 {
        let blocks = self.0.iter().flat_map(|(_, blocks)| blocks);
        let kept = blocks.map(|block| match &block.kind {
            BlockKind::Verbatim(raw) => raw.len() as u64,
            _ => 0,
        });
        kept.sum()
    }
}

/// The body of a messages call without the model's name, which depends on the route.
#[derive(Debug)]
pub struct TranslatedCall {
    body_after_model: Vec<Bytes>,
    /// The paths of the chat fields that were dropped or replaced by an instruction: first those of
    /// the body itself, in its order, then those inside messages and tools.
    pub dropped_fields: Vec<String>,
}

impl TranslatedCall {
    /// Returns the body, in pieces, with `name` as the model.
    #[must_use]
    pub fn body_with_model(&self, name: &str) -> Vec<Bytes> {
        let mut pieces = Vec::with_capacity(self.body_after_model.len() + 1);
        pieces.push(Bytes::from(format!(r#"{{"model":{}"#, json_string(name))));
        pieces.extend(self.body_after_model.iter().cloned());
        pieces
    }
}
