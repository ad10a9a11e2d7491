//! Whatever a vendor sends, in the other format or in its own: however it is cut, the client sees
//! the same bytes and is charged the same, and what it sees is sound.

use bytes::Bytes;
use tollgate::dialect::json::JsonDocument;
use tollgate::dialect::meter::MeteredTokens;
use tollgate::dialect::relay::{Relay, RelayMode, RelayProgress, RetainedData};
use tollgate::dialect::translate::reply::ReplyMetadata;
use tollgate::money::UsageBasis;

/// What one usage may come to: four counts, none absurd.
const TOKENS_MAX: u64 = 4_000_000_000;

pub(crate) fn run(data: &[u8]) {
    let size = usize::from(data.last().copied().unwrap_or_default() >> 2).max(1);
    for include_usage in [false, true] {
        let mode = RelayMode::Translated(ReplyMetadata {
            model: "m".to_owned(),
            created: 7,
            input_tokens: 0.into(),
            include_usage,
            save_thinking: true,
        });
        check_chat_stream(&relay_both_ways(&mode, true, data, size));
        check_chat_reply(&relay_both_ways(&mode, false, &given_reply(data), size));
    }
    let native = RelayMode::Messages { request_id: "req_1".to_owned() };
    let outcome = relay_both_ways(&native, true, data, size);
    if outcome.progress == RelayProgress::Complete {
        assert!(data.starts_with(outcome.out.trim_ascii_end()));
    } else {
        assert!(outcome.out.ends_with(b"}\n\n"));
    }
    let body = given_reply(data);
    let outcome = relay_both_ways(&native, false, &body, size);
    assert_eq!(
        outcome.progress == RelayProgress::Complete,
        outcome.out == body && !body.is_empty()
    );
}

#[derive(Debug, PartialEq)]
struct Outcome {
    out: Vec<u8>,
    progress: RelayProgress,
    usage: MeteredTokens,
    saved_thinking: Option<Bytes>,
}

/// A golden file holds the reply that it gives; anything else is one itself.
fn given_reply(data: &[u8]) -> Bytes {
    let data = Bytes::copy_from_slice(data);
    match JsonDocument::parse(data.clone()) {
        Ok(seed) if seed.get("given").is_some() => {
            Bytes::copy_from_slice(seed.get("given").expect("it is there").raw())
        }
        _ => data,
    }
}

/// Passes a reply at once and in pieces.
fn relay_both_ways(mode: &RelayMode, stream: bool, reply: &[u8], size: usize) -> Outcome {
    let at_once = relay_in_pieces(mode.clone(), stream, reply, usize::MAX);
    assert_eq!(at_once, relay_in_pieces(mode.clone(), stream, reply, size));
    assert_ne!(at_once.progress, RelayProgress::Open, "a reply that has ended is open");
    let MeteredTokens { tokens, basis } = at_once.usage;
    assert!(tokens.input <= TOKENS_MAX && tokens.output <= TOKENS_MAX);
    if basis == UsageBasis::Reported {
        assert!(tokens.cache_read + tokens.cache_write <= tokens.input);
    }
    at_once
}

fn relay_in_pieces(mode: RelayMode, stream: bool, reply: &[u8], size: usize) -> Outcome {
    let mut relay = Relay::new(mode, stream);
    let mut out = Vec::new();
    for piece in reply.chunks(size.min(reply.len().max(1))) {
        out.extend(relay.push(Bytes::copy_from_slice(piece)).unwrap_or_default());
    }
    out.extend(relay.finish().unwrap_or_default());
    let (progress, usage) = (relay.progress().clone(), relay.meter().expect("a text").usage(40));
    let saved_thinking = match relay.take_retained() {
        Some(RetainedData::Thinking(saved)) => Some(saved.record),
        _ => None,
    };
    Outcome { out, progress, usage, saved_thinking }
}

fn parse_strictly(json: &[u8]) -> serde_json::Value {
    if let Err(fault) = JsonDocument::parse(Bytes::copy_from_slice(json)) {
        panic!("{fault}: {}", String::from_utf8_lossy(json));
    }
    serde_json::from_slice(json).expect("what our scan takes")
}

/// A chat stream is chunks and comments, and ends with `[DONE]` or with an error.
fn check_chat_stream(outcome: &Outcome) {
    let out = std::str::from_utf8(&outcome.out).expect("text");
    let (mut done, mut error) = (false, false);
    for line in out.split(['\n', '\r']) {
        // The vendor's comments pass with all that their events hold, which is no data.
        let Some(data) = line.strip_prefix("data:").filter(|data| !data.trim().is_empty()) else {
            let mut fields = [":", "event:", "id:", "retry:", "data:"].into_iter();
            let has_no_data = line.is_empty() || fields.any(|field| line.starts_with(field));
            assert!(has_no_data, "{line}");
            continue;
        };
        assert!(!done && !error, "something after the end: {data}");
        if data == " [DONE]" {
            done = true;
            continue;
        }
        let data = parse_strictly(data.as_bytes());
        error = data.get("error").is_some();
        assert!(error || data["object"] == "chat.completion.chunk", "{data}");
    }
    let complete = outcome.progress == RelayProgress::Complete;
    assert_eq!((done, error), (complete, !complete));
    if let Some(record) = &outcome.saved_thinking {
        parse_strictly(record);
    }
}

fn check_chat_reply(outcome: &Outcome) {
    if outcome.progress != RelayProgress::Complete {
        assert!(outcome.out.is_empty() && outcome.saved_thinking.is_none());
        return;
    }
    let body = parse_strictly(&outcome.out);
    assert_eq!(body["object"], "chat.completion");
    for call in body["choices"][0]["message"]["tool_calls"].as_array().into_iter().flatten() {
        let arguments = call["function"]["arguments"].as_str().expect("text");
        parse_strictly(arguments.as_bytes());
    }
    if let Some(record) = &outcome.saved_thinking {
        parse_strictly(record);
    }
}
