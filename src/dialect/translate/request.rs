//! A chat call becomes the body of a messages call.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;

use super::parts::{BlockKind, ContentBlock};
use super::settings::CallSettings;
use super::thinking;
use super::tools::CallTools;
use super::turns::{Conversation, ConversationTurn};
use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonPatch, JsonValue};

/// What a translation depends on besides the call.
#[derive(Debug, Clone, Copy)]
pub struct TranslationContext<'a> {
    /// The id of the model. What was kept of another model's thinking is not put back.
    pub model: &'a str,
    /// The account, which keeps its users apart from those of others.
    pub account: &'a str,
    /// Whether the model takes a JSON schema for its output.
    pub json_schema: bool,
}

/// A call that is read, and not yet written.
pub struct Translation {
    model: String,
    settings: CallSettings,
    conversation: Conversation,
    tools: CallTools,
}

impl Translation {
    /// Reads a chat body after the rules have made their changes to it.
    ///
    /// # Errors
    /// [`CallError`] if a field is invalid, or has no counterpart in the messages format.
    pub fn parse_chat(
        document: &JsonDocument,
        patch: &JsonPatch<'_>,
        context: TranslationContext<'_>,
    ) -> Result<Translation, CallError> {
        let messages = patch.get("messages").unwrap_or(JsonValue::from_validated(b"[]"));
        let conversation = Conversation::parse(document, messages)?;
        let tools = CallTools::parse(SourceBytes(document.body()), patch)?
            .define_called_tools(&conversation.turns);
        let settings = CallSettings::parse(document, patch, context)?;
        Ok(Translation { model: context.model.to_owned(), settings, conversation, tools })
    }

    /// The first tool call's id in each turn of the vendor's that the results at the end of the
    /// call continue, oldest first; empty if the call does not end in results.
    #[must_use]
    pub fn tool_loop_ids(&self) -> Vec<String> {
        let turns = self.tool_loop_turns().map(|at| &self.conversation.turns[at]);
        turns.filter_map(ConversationTurn::first_tool_call_id).map(str::to_owned).collect()
    }

    /// Where those turns stand.
    fn tool_loop_turns(&self) -> impl Iterator<Item = usize> + use<> {
        let turns = &self.conversation.turns;
        let mut first = turns.len();
        // Sides alternate, so each pair is a turn of the vendor's and the client's answer to it.
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
    /// turns it belongs to. `None` unless all of it is there and the client sent the visible part
    /// of these turns unchanged.
    #[must_use]
    pub fn match_saved_thinking(&self, kept: &[Option<Bytes>]) -> Option<RestoredThinking> {
        let places: Vec<usize> = self.tool_loop_turns().collect();
        if places.is_empty() || places.len() != kept.len() {
            return None;
        }
        let turns = places.into_iter().zip(kept).map(|(at, kept)| {
            let sent = &self.conversation.turns[at].blocks;
            Some((at, thinking::restore_blocks(&self.model, sent, kept.as_ref()?)?))
        });
        turns.collect::<Option<Vec<_>>>().map(RestoredThinking)
    }

    /// Puts the saved blocks in place of those that the client sent.
    pub fn apply_thinking(&mut self, restored: RestoredThinking) {
        for (at, blocks) in restored.0 {
            self.conversation.turns[at].blocks = blocks;
        }
    }

    /// The body of the messages call.
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
            dropped_fields: self.settings.dropped_fields.clone(),
        }
    }
}

/// Turns with the thinking that was kept of them.
pub struct RestoredThinking(Vec<(usize, Vec<ContentBlock>)>);

impl RestoredThinking {
    /// How many bytes of it come out of what was kept.
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
    /// The fields of the chat call that are not in it, in their order.
    pub dropped_fields: Vec<String>,
}

impl TranslatedCall {
    /// The body, in pieces.
    #[must_use]
    pub fn body_with_model(&self, name: &str) -> Vec<Bytes> {
        let mut pieces = Vec::with_capacity(self.body_after_model.len() + 1);
        pieces.push(Bytes::from(format!(r#"{{"model":{}"#, json_string(name))));
        pieces.extend(self.body_after_model.iter().cloned());
        pieces
    }
}
