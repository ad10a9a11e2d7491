//! A reply in blocks, and the reason why it ends.

use super::super::faults::{Fault, Faults};
use super::super::record::Billed;
use super::super::reply::{Reply, first_words, fnv};
use super::usage::Usage;

/// What a model thinks; a number and a full stop follow.
pub(super) const THOUGHT: &str =
    "Two and two: \"four\", as ever.\nThe room agrees — naïvely. This is thought ";
/// What stands in a block of redacted thought.
pub(super) const REDACTED: &str = "cmVkYWN0ZWQ/dGhvdWdodA+8/Sim==";
/// Why a request is refused.
pub(super) const EXPLANATION: &str = "This request was declined: \"four\" is a secret.";
const SEARCH: &str = r#"{"query":"two and two"}"#;

/// The mark by which the vendor knows a thought of its own.
pub(super) fn signature(thought: &str) -> String {
    let backwards: Vec<_> = thought.bytes().rev().collect();
    format!("ErcB/{}+{}==", fnv(thought.as_bytes()), fnv(&backwards))
}

/// The tokens of a thought.
pub(super) fn thought_tokens() -> u64 {
    THOUGHT.split_whitespace().count() as u64 + 1
}

/// A block of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Thought {
        pieces: Vec<String>,
        signature: String,
    },
    Redacted,
    Text {
        pieces: Vec<String>,
    },
    Call {
        id: String,
        name: String,
        input: &'static str,
    },
    /// A search of the vendor's own, with what it looked for.
    Search {
        id: String,
        query: &'static str,
    },
    /// What that search found.
    Found {
        id: String,
    },
}

/// How a model speaks.
pub(super) struct Manner<'a> {
    pub(super) model: &'a str,
    pub(super) thought: String,
    /// Whether thoughts come without their text.
    pub(super) omitted: bool,
}

/// A reply of the vendor's, before it is put into JSON.
pub(in super::super) struct Turn<'a> {
    pub(super) reply: Reply,
    pub(super) usage: Usage,
    pub(super) model: &'a str,
    pub(super) blocks: Vec<Block>,
    pub(super) stop_reason: &'static str,
    pub(super) explained: bool,
    pub(super) faults: &'a Faults,
}

impl<'a> Turn<'a> {
    pub(super) fn new(
        reply: Reply,
        usage: Usage,
        manner: &Manner<'a>,
        faults: &'a Faults,
    ) -> Turn<'a> {
        let usual = match reply.finish_reason {
            "length" => "max_tokens",
            "tool_calls" => "tool_use",
            "refusal" => "refusal",
            _ if reply.stopped_by.is_some() => "stop_sequence",
            _ => "end_turn",
        };
        let blocks = blocks(&reply, manner, faults);
        Turn {
            usage,
            model: manner.model,
            blocks,
            stop_reason: faults.stop_reason().unwrap_or(usual),
            explained: reply.finish_reason == "refusal",
            faults,
            reply,
        }
    }

    pub(in super::super) fn billed(&self) -> Billed {
        self.reply.billed
    }

    pub(in super::super) fn billed_for_prompt(&self) -> Billed {
        self.reply.billed_for_prompt()
    }

    /// How many events of a stream bring the thought.
    pub(super) fn thought_parts(&self) -> u64 {
        self.count(|block| match block {
            Block::Thought { pieces, .. } => pieces.len() as u64 + 1,
            _ => 0,
        })
    }

    /// How many events of a stream bring the visible reply.
    pub(super) fn visible_parts(&self) -> u64 {
        self.count(|block| match block {
            Block::Text { pieces } => pieces.len() as u64,
            Block::Call { .. } => 3,
            _ => 0,
        })
    }

    fn count(&self, parts: impl Fn(&Block) -> u64) -> u64 {
        self.blocks.iter().map(parts).sum()
    }
}

fn blocks(reply: &Reply, manner: &Manner<'_>, faults: &Faults) -> Vec<Block> {
    let mut blocks = Vec::new();
    let tokens = reply.billed.reasoning;
    if tokens > 0 {
        let all = tokens >= thought_tokens();
        let thought = match manner.omitted {
            true => String::new(),
            false if all => manner.thought.clone(),
            false => first_words(&manner.thought, tokens),
        };
        let pieces = thirds(&thought);
        blocks.push(Block::Thought { pieces, signature: signature(&thought) });
    }
    if faults.has(Fault::Redacted) {
        blocks.push(Block::Redacted);
    }
    let pieces: Vec<_> = reply.pieces().into_iter().map(str::to_owned).collect();
    if faults.has(Fault::WebJson) {
        let (first, second) = pieces.split_at(pieces.len() / 2);
        let id = reply.id.replace("msg_", "srvtoolu_");
        blocks.extend(spoken(first));
        blocks.push(Block::Search { id: id.clone(), query: SEARCH });
        blocks.push(Block::Found { id });
        blocks.extend(spoken(second));
    } else {
        blocks.extend(spoken(&pieces));
    }
    blocks.extend(reply.calls.iter().map(|call| Block::Call {
        id: call.id.clone(),
        name: call.name.clone(),
        input: call.arguments,
    }));
    blocks
}

fn spoken(pieces: &[String]) -> Option<Block> {
    (!pieces.is_empty()).then(|| Block::Text { pieces: pieces.to_vec() })
}

/// A text in three pieces at most.
fn thirds(text: &str) -> Vec<String> {
    let words: Vec<_> = text.split_inclusive(' ').collect();
    let size = words.len().div_ceil(3).max(1);
    words.chunks(size).map(<[&str]>::concat).collect()
}
