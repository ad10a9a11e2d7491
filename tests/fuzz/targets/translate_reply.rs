//! Whatever a vendor sends, in the other format or in its own: however it is cut, the client sees
//! the same bytes and is charged the same, and what it sees is sound.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tollgate::dialect::json::Document;
use tollgate::dialect::meter::Metered;
use tollgate::dialect::relay::{Keep, Passage, Progress, Relay};
use tollgate::dialect::translate::reply::Stamp;
use tollgate::money::Basis;

/// What one usage may come to: four counts, none absurd.
const TOKENS_MAX: u64 = 4_000_000_000;

fuzz_target!(|data: &[u8]| {
    let size = usize::from(data.last().copied().unwrap_or_default() >> 2).max(1);
    for asked in [false, true] {
        let stamp = Stamp {
            model: "m".to_owned(),
            created: 7,
            input_tokens: 0,
            usage_asked: asked,
            keep: true,
        };
        chat(&alike(&Passage::Translated(stamp.clone()), true, data, size));
        whole(&alike(&Passage::Translated(stamp), false, reply(data).as_ref(), size));
    }
    let native = Passage::Messages { request_id: "req_1".to_owned() };
    let passed = alike(&native, true, data, size);
    if passed.progress == Progress::Complete {
        assert!(data.starts_with(passed.out.trim_ascii_end()));
    } else {
        assert!(passed.out.ends_with(b"}\n\n"));
    }
    let body = reply(data);
    let passed = alike(&native, false, &body, size);
    assert_eq!(passed.progress == Progress::Complete, passed.out == body && !body.is_empty());
});

#[derive(Debug, PartialEq)]
struct Passed {
    out: Vec<u8>,
    progress: Progress,
    usage: Metered,
    kept: Option<Bytes>,
}

/// A golden file holds the reply that it gives; anything else is one itself.
fn reply(data: &[u8]) -> Bytes {
    let data = Bytes::copy_from_slice(data);
    match Document::parse(data.clone()) {
        Ok(seed) if seed.get("given").is_some() => {
            Bytes::copy_from_slice(seed.get("given").expect("it is there").raw())
        }
        _ => data,
    }
}

/// Passes a reply at once and in pieces.
fn alike(passage: &Passage, stream: bool, reply: &[u8], size: usize) -> Passed {
    let at_once = run(passage.clone(), stream, reply, usize::MAX);
    assert_eq!(at_once, run(passage.clone(), stream, reply, size));
    assert_ne!(at_once.progress, Progress::Open, "a reply that has ended is open");
    let Metered { tokens, basis } = at_once.usage;
    assert!(tokens.input <= TOKENS_MAX && tokens.output <= TOKENS_MAX);
    if basis == Basis::Reported {
        assert!(tokens.cache_read + tokens.cache_write <= tokens.input);
    }
    at_once
}

fn run(passage: Passage, stream: bool, reply: &[u8], size: usize) -> Passed {
    let mut relay = Relay::new(passage, stream);
    let mut out = Vec::new();
    for piece in reply.chunks(size.min(reply.len().max(1))) {
        out.extend(relay.push(Bytes::copy_from_slice(piece)).unwrap_or_default());
    }
    out.extend(relay.finish().unwrap_or_default());
    let (progress, usage) = (relay.progress().clone(), relay.meter().expect("a text").usage(40));
    let kept = match relay.keep() {
        Some(Keep::Thinking(kept)) => Some(kept.record),
        _ => None,
    };
    Passed { out, progress, usage, kept }
}

fn sound(json: &[u8]) -> serde_json::Value {
    if let Err(fault) = Document::parse(Bytes::copy_from_slice(json)) {
        panic!("{fault}: {}", String::from_utf8_lossy(json));
    }
    serde_json::from_slice(json).expect("what our scan takes")
}

/// A chat stream is chunks and comments, and ends with `[DONE]` or with an error.
fn chat(passed: &Passed) {
    let out = std::str::from_utf8(&passed.out).expect("text");
    let (mut done, mut error) = (false, false);
    for line in out.split(['\n', '\r']) {
        // The vendor's comments pass with all that their events hold, which is no data.
        let Some(data) = line.strip_prefix("data:").filter(|data| !data.trim().is_empty()) else {
            let mut fields = [":", "event:", "id:", "retry:", "data:"].into_iter();
            let silent = line.is_empty() || fields.any(|field| line.starts_with(field));
            assert!(silent, "{line}");
            continue;
        };
        assert!(!done && !error, "something after the end: {data}");
        if data == " [DONE]" {
            done = true;
            continue;
        }
        let data = sound(data.as_bytes());
        error = data.get("error").is_some();
        assert!(error || data["object"] == "chat.completion.chunk", "{data}");
    }
    let complete = passed.progress == Progress::Complete;
    assert_eq!((done, error), (complete, !complete));
    if let Some(record) = &passed.kept {
        sound(record);
    }
}

fn whole(passed: &Passed) {
    if passed.progress != Progress::Complete {
        assert!(passed.out.is_empty() && passed.kept.is_none());
        return;
    }
    let body = sound(&passed.out);
    assert_eq!(body["object"], "chat.completion");
    for call in body["choices"][0]["message"]["tool_calls"].as_array().into_iter().flatten() {
        let arguments = call["function"]["arguments"].as_str().expect("text");
        sound(arguments.as_bytes());
    }
    if let Some(record) = &passed.kept {
        sound(record);
    }
}
