//! A reply in blocks, and the reason why it ends.

use serde_json::Value;

use super::super::faults::{Fault, Faults};
use super::super::record::Billed;
use super::super::reply::{Reply, first_words, fnv};
use super::usage::Usage;

/// What a model thinks; a number and a full stop follow.
pub(super) const THOUGHT: &str =
    "Two and two: \"four\", as ever.\nThe room agrees — naïvely. This is thought ";
/// What stands in a block of redacted thought.
pub(super) const REDACTED: &str = "cmVkYWN0ZWQ/dGhvdWdodA+8/Sim==";
/// What a summary says.
pub(super) const SUMMARY: &str = "They added two and two.";
/// Why a request is refused.
pub(super) const EXPLANATION: &str = "This request was declined: \"four\" is a secret.";

/// A tool of the vendor's own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerTool {
    pub(super) name: &'static str,
    /// What it is called with.
    pub(super) input: &'static str,
    /// The type of the block that holds its result.
    pub(super) result: &'static str,
    pub(super) content: &'static str,
    /// How the usage counts its calls.
    pub(super) requests: &'static str,
}

const SEARCH: ServerTool = ServerTool {
    name: "web_search",
    input: r#"{"query":"two and two"}"#,
    result: "web_search_tool_result",
    content: concat!(
        r#"[{"type":"web_search_result","url":"https://sums.example/","title":"Sums","#,
        r#""encrypted_content":"c3Vtcw==","page_age":null}]"#,
    ),
    requests: r#"{"web_search_requests":1}"#,
};
const FETCH: ServerTool = ServerTool {
    name: "web_fetch",
    input: r#"{"url":"https://sums.example/"}"#,
    result: "web_fetch_tool_result",
    content: concat!(
        r#"{"type":"web_fetch_result","url":"https://sums.example/","#,
        r#""retrieved_at":"2026-11-25T00:00:00Z","content":{"type":"document","title":"Sums","#,
        r#""source":{"type":"text","media_type":"text/plain","data":"2 + 2 = 4"}}}"#,
    ),
    requests: r#"{"web_search_requests":0,"web_fetch_requests":1}"#,
};

/// The tool that the vendor runs for a request, if it runs one: it fetches wherever it may, and
/// else searches wherever it may.
pub(super) fn server_tool(body: &Value, faults: &Faults) -> Option<&'static ServerTool> {
    if faults.has(Fault::WebJson) {
        return Some(&SEARCH);
    }
    let mut tools = body["tools"].as_array().into_iter().flatten();
    let is_allowed = body["tool_choice"]["type"] != "none";
    let tool = if tools.clone().any(is_fetch) {
        Some(&FETCH)
    } else {
        tools.any(is_search).then_some(&SEARCH)
    };
    tool.filter(|_| is_allowed)
}

/// Whether this is the vendor's tool for pages.
pub(super) fn is_fetch(tool: &Value) -> bool {
    tool["type"].as_str().is_some_and(|kind| kind.starts_with("web_fetch"))
}

/// Whether this is the vendor's tool that searches.
fn is_search(tool: &Value) -> bool {
    tool["type"].as_str().is_some_and(|kind| kind.starts_with("web_search"))
}

/// Whether the request lets the vendor make its conversation shorter.
pub(super) fn is_to_be_compacted(body: &Value) -> bool {
    let edits = body["context_management"]["edits"].as_array().into_iter().flatten();
    let mut kinds = edits.filter_map(|edit| edit["type"].as_str());
    kinds.any(|kind| kind.starts_with("compact_"))
}

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
    /// What is left of the conversation.
    Summary,
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
    /// A call of a tool of the vendor's own.
    Asked {
        id: String,
        tool: &'static ServerTool,
    },
    /// What that tool found.
    Found {
        id: String,
        tool: &'static ServerTool,
    },
}

/// How a model speaks.
pub(super) struct Manner<'a> {
    pub(super) model: &'a str,
    pub(super) thought: String,
    /// Whether thoughts come without their text.
    pub(super) omitted: bool,
    /// What the vendor runs between the halves of the text.
    pub(super) server_tool: Option<&'static ServerTool>,
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
        let mut blocks = blocks(&reply, manner, faults);
        if usage.summary.is_some() {
            blocks.insert(0, Block::Summary);
        }
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
        self.usage.with_summary(self.reply.billed)
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
    if let Some(tool) = manner.server_tool {
        let (first, second) = pieces.split_at(pieces.len() / 2);
        let id = reply.id.replace("msg_", "srvtoolu_");
        blocks.extend(spoken(first));
        blocks.push(Block::Asked { id: id.clone(), tool });
        blocks.push(Block::Found { id, tool });
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
