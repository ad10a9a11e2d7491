//! Whole messages replies become chat replies.

use bytes::Bytes;
use serde_json::Value as Json;
use tollgate::dialect::relay::{Relay, RelayMode, RelayProgress, RetainedData};
use tollgate::dialect::translate::reply::ReplyMetadata;
use tollgate::dialect::translate::thinking::SavedThinking;
use tollgate::money::{TokenUsage, UsageBasis};

use super::golden::{CHUNK_SIZES, CREATED, Golden, goldens, judge};

/// A reply that has passed.
#[derive(Debug, PartialEq)]
pub(super) struct Passed {
    pub(super) out: String,
    pub(super) progress: RelayProgress,
    pub(super) tokens: TokenUsage,
    pub(super) basis: UsageBasis,
    pub(super) kept: Option<(String, Bytes)>,
}

impl Passed {
    /// What the client is told of a break.
    pub(super) fn broken(&self) -> Option<String> {
        let RelayProgress::Failed(why) = &self.progress else { return None };
        let body: Json = serde_json::from_str(&why.chat_body()).expect("an error body");
        body["error"]["message"].as_str().map(str::to_owned)
    }
}

/// Passes a reply in pieces of a size.
pub(super) fn pass(passage: RelayMode, stream: bool, reply: &[u8], size: usize) -> Passed {
    let mut relay = Relay::new(passage, stream);
    let mut out = Vec::new();
    for piece in reply.chunks(size.min(reply.len().max(1))) {
        out.extend(relay.push(Bytes::copy_from_slice(piece)).unwrap_or_default());
    }
    out.extend(relay.finish().unwrap_or_default());
    let kept = match relay.take_retained() {
        Some(RetainedData::Thinking(SavedThinking { id, record })) => Some((id, record)),
        _ => None,
    };
    let usage = relay.meter().expect("a text").usage(0);
    Passed {
        out: String::from_utf8(out).expect("text"),
        progress: relay.progress().clone(),
        tokens: usage.tokens,
        basis: usage.basis,
        kept,
    }
}

/// The passage of a reply to a chat call.
pub(super) fn translated(model: &str, usage_asked: bool, keep: bool) -> RelayMode {
    RelayMode::Translated(ReplyMetadata {
        model: model.to_owned(),
        created: CREATED,
        input_tokens: 0.into(),
        include_usage: usage_asked,
        save_thinking: keep,
    })
}

/// The passage of a reply to a call of the vendor's own format.
pub(super) fn native() -> RelayMode {
    RelayMode::Messages { request_id: "req_golden".to_owned() }
}

#[test]
fn every_golden_reply_becomes_what_is_expected_however_it_is_cut() {
    judge(&goldens("messages_to_chat", 38), |golden| {
        CHUNK_SIZES.iter().try_for_each(|size| judge_reply(golden, *size))
    });
}

fn judge_reply(golden: &Golden, size: usize) -> Result<(), String> {
    let asked = golden.json("asked");
    let passage = || {
        let usage_asked = asked["usage_asked"].as_bool().expect("a flag");
        translated(asked["model"].as_str().expect("a model"), usage_asked, true)
    };
    let Some(given) = golden.bytes("given") else {
        let passed = pass(passage(), false, golden.text("given_text").as_bytes(), size);
        let right = passed.out.is_empty() && passed.broken() == Some(golden.text("broken"));
        return if right { Ok(()) } else { Err(format!("{passed:?}")) };
    };
    let passed = pass(passage(), false, &given, size);
    if passed.progress != RelayProgress::Complete || passed.basis != UsageBasis::Reported {
        return Err(format!("{passed:?}"));
    }
    golden.agrees_on_usage(passed.tokens)?;
    let expected = golden.bytes("expect_text").expect("a reply");
    let expected = String::from_utf8(expected.to_vec()).expect("text");
    if passed.out == expected {
        Ok(())
    } else {
        Err(format!("\n  is  {}\n  not {expected}", passed.out))
    }
}

#[test]
fn every_golden_reply_passes_unchanged_to_who_speaks_the_vendors_format() {
    judge(&goldens("messages_to_chat", 38), |golden| {
        let Some(given) = golden.bytes("given") else { return Ok(()) };
        for size in CHUNK_SIZES {
            let passed = pass(native(), false, &given, size);
            if passed.progress != RelayProgress::Complete || passed.out.as_bytes() != given {
                return Err(format!("{passed:?}"));
            }
            golden.agrees_on_usage(passed.tokens)?;
        }
        Ok(())
    });
}
