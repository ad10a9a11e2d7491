//! What holds for any reply of the vendor's, whole or in events.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use tollgate::dialect::relay::RelayProgress;

use super::replies::{pass, translated};

/// A block of a reply, in the pieces that it comes in.
#[derive(Debug, Clone)]
enum Block {
    Text(Vec<String>),
    Thinking(Vec<String>),
    Redacted,
    Call { id: String, name: String, input: Option<String>, cuts: Vec<usize> },
    Server(String),
}

/// A reply, and how its events are disturbed.
#[derive(Debug, Clone)]
struct Reply {
    blocks: Vec<Block>,
    stop: &'static str,
    explanation: Option<String>,
    /// Input, written to the cache, read from it, output, thinking.
    usage: [u64; 5],
    /// Before which events something comes that says nothing.
    noise: Vec<(usize, &'static str)>,
}

fn piece() -> impl Strategy<Value = String> {
    "[ a-zé\u{1F600}\"\\\\\n\u{2028}/]{0,6}"
}

fn block() -> impl Strategy<Value = Block> {
    let pieces = || proptest::collection::vec(piece(), 0..4);
    let id = "toolu_[a-zA-Z0-9]{1,6}";
    let input =
        proptest::option::of((piece(), any::<i64>(), any::<bool>()).prop_map(|(t, n, e)| {
            if e { "{}".to_owned() } else { json!({"z": t, "a": [n, {"b": null}]}).to_string() }
        }));
    let cuts = proptest::collection::vec(0..40usize, 0..4);
    let call = (id, "[a-z_]{1,8}", input, cuts).prop_map(|(id, name, input, cuts)| Block::Call {
        id,
        name,
        input,
        cuts,
    });
    prop_oneof![
        4 => pieces().prop_map(Block::Text),
        2 => pieces().prop_map(Block::Thinking),
        1 => Just(Block::Redacted),
        3 => call,
        1 => piece().prop_map(Block::Server),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    let stops = select(vec![
        "end_turn",
        "tool_use",
        "max_tokens",
        "stop_sequence",
        "refusal",
        "pause_turn",
        "new",
        "model_context_window_exceeded",
    ]);
    let noise = select(vec![PING, NEWS, COMMENT_FREE_ID]);
    (
        proptest::collection::vec(block(), 0..6),
        stops,
        proptest::option::of(piece()),
        proptest::array::uniform5(0..100_000u64),
        proptest::collection::vec((1..20usize, noise), 0..4),
    )
        .prop_map(|(blocks, stop, explanation, usage, noise)| Reply {
            blocks,
            stop,
            explanation: explanation.filter(|e| !e.is_empty()),
            usage,
            noise,
        })
}

const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
const NEWS: &str = "event: news\ndata: {\"type\":\"news\",\"text\":\"no\",\"index\":0}\n\n";
const COMMENT_FREE_ID: &str = "id: 7\n\n";

fn event(data: &Json) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().expect("a type"))
}

impl Block {
    fn whole(&self) -> Json {
        match self {
            Block::Text(pieces) => json!({"type": "text", "text": pieces.concat()}),
            Block::Thinking(pieces) => {
                json!({"type": "thinking", "thinking": pieces.concat(), "signature": "c2ln"})
            }
            Block::Redacted => json!({"type": "redacted_thinking", "data": "AAEC"}),
            Block::Call { id, name, input, .. } => {
                let input: Json =
                    serde_json::from_str(input.as_deref().unwrap_or("{}")).expect("an object");
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
            Block::Server(text) => {
                json!({"type": "server_tool_use", "id": "s", "name": "x", "input": {"q": text}})
            }
        }
    }

    fn begun(&self) -> Json {
        let mut block = self.whole();
        for (member, empty) in [("text", ""), ("thinking", ""), ("signature", "")] {
            if block.get(member).is_some() {
                block[member] = empty.into();
            }
        }
        if block.get("input").is_some() {
            block["input"] = json!({});
        }
        block
    }

    fn deltas(&self) -> Vec<Json> {
        let partial = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
        match self {
            Block::Text(pieces) => {
                pieces.iter().map(|p| json!({"type": "text_delta", "text": p})).collect()
            }
            Block::Thinking(pieces) => {
                let thinking = |p| json!({"type": "thinking_delta", "thinking": p});
                let signature = json!({"type": "signature_delta", "signature": "c2ln"});
                pieces.iter().map(thinking).chain([signature]).collect()
            }
            Block::Redacted => vec![],
            Block::Call { input, cuts, .. } => {
                let Some(input) = input else { return vec![] };
                let mut cuts: Vec<usize> =
                    cuts.iter().copied().filter(|at| input.is_char_boundary(*at)).collect();
                cuts.extend([0, input.len()]);
                cuts.sort_unstable();
                cuts.windows(2).map(|pair| partial(&input[pair[0]..pair[1]])).collect()
            }
            Block::Server(text) => vec![partial(&json!({"q": text}).to_string())],
        }
    }
}

impl Reply {
    fn details(&self) -> Json {
        match &self.explanation {
            Some(text) if self.stop == "refusal" => json!({"type": "refusal", "explanation": text}),
            _ => Json::Null,
        }
    }

    fn usage(&self, output: u64) -> Json {
        let [input, written, read, _, thinking] = self.usage;
        json!({
            "input_tokens": input, "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read, "output_tokens": output,
            "output_tokens_details": {"thinking_tokens": thinking},
        })
    }

    fn whole(&self) -> String {
        let content: Vec<Json> = self.blocks.iter().map(Block::whole).collect();
        json!({
            "id": "msg_p", "type": "message", "role": "assistant", "model": "v",
            "content": content, "stop_reason": self.stop, "stop_details": self.details(),
            "usage": self.usage(self.usage[3]),
        })
        .to_string()
    }

    /// Its events, and how many of them are pings.
    fn stream(&self) -> (String, usize) {
        let message =
            json!({"id": "msg_p", "type": "message", "content": [], "usage": self.usage(1)});
        let mut events = vec![event(&json!({"type": "message_start", "message": message}))];
        for (i, block) in self.blocks.iter().enumerate() {
            let begun = block.begun();
            events.push(event(
                &json!({"type": "content_block_start", "index": i, "content_block": begun}),
            ));
            events.extend(block.deltas().into_iter().map(|delta| {
                event(&json!({"type": "content_block_delta", "index": i, "delta": delta}))
            }));
            events.push(event(&json!({"type": "content_block_stop", "index": i})));
        }
        let delta = json!({"stop_reason": self.stop, "stop_details": self.details()});
        let usage = json!({"output_tokens": self.usage[3], "input_tokens": null});
        events.push(event(&json!({"type": "message_delta", "delta": delta, "usage": usage})));
        let mut pings = 0;
        for (at, noise) in &self.noise {
            let at = (*at).min(events.len());
            events.insert(at, (*noise).to_owned());
            pings += usize::from(*noise == PING);
        }
        events.push(event(&json!({"type": "message_stop"})));
        (events.concat(), pings)
    }
}

/// What a client makes of chunks: a message, the reason, the usage.
fn assembled(chunks: &[Json]) -> (Json, Json, Json) {
    let (mut content, mut reasoning, mut refusal) = (String::new(), String::new(), String::new());
    let mut calls: Vec<Json> = Vec::new();
    let (mut finish, mut usage) = (Json::Null, Json::Null);
    for chunk in chunks {
        usage = chunk["usage"].clone();
        let Some(choice) = chunk["choices"].get(0) else { continue };
        assert_eq!(finish, Json::Null, "a delta after the end: {chunk}");
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        refusal += delta["refusal"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = usize::try_from(call["index"].as_u64().expect("an index")).expect("small");
            let function = &call["function"];
            if at == calls.len() {
                assert_eq!(call["type"], "function", "{call}");
                calls.push(json!({"id": call["id"], "type": "function", "function": function}));
                continue;
            }
            assert!(call.get("id").is_none() && function.get("name").is_none(), "{call}");
            let arguments = calls[at]["function"]["arguments"].as_str().expect("text");
            let more = function["arguments"].as_str().expect("text");
            calls[at]["function"]["arguments"] = format!("{arguments}{more}").into();
        }
        finish = choice["finish_reason"].clone();
    }
    let or_null = |text: String| if text.is_empty() { Json::Null } else { text.into() };
    let mut message = json!({
        "role": "assistant", "content": or_null(content), "refusal": or_null(refusal),
        "annotations": [],
    });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    (message, finish, usage)
}

/// The chunks of a stream that is done, and how many pings it has.
fn chunks(stream: &str) -> (Vec<Json>, usize) {
    let stream = stream.strip_suffix("data: [DONE]\n\n").expect("a stream that is done");
    let (mut chunks, mut pings) = (Vec::new(), 0);
    for event in stream.split_inclusive("\n\n") {
        if event == ": ping\n\n" {
            pings += 1;
            continue;
        }
        let data = event.strip_prefix("data: ").expect("data");
        let chunk: Json = serde_json::from_str(data).expect("a chunk");
        let same = ["id", "object", "created", "model", "system_fingerprint"].map(|n| &chunk[n]);
        let stamp = json!(["chatcmpl-p", "chat.completion.chunk", 1_795_219_200, "m", null]);
        assert_eq!(json!(same), stamp, "{chunk}");
        chunks.push(chunk);
    }
    (chunks, pings)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_stream_says_what_the_whole_reply_says(reply in reply()) {
        let whole = pass(translated("m", true, true), false, reply.whole().as_bytes(), usize::MAX);
        prop_assert_eq!(&whole.progress, &RelayProgress::Complete);
        let whole_body: Json = serde_json::from_str(&whole.out).expect("a reply");
        let (stream, pings) = reply.stream();
        let passed = pass(translated("m", true, true), true, stream.as_bytes(), usize::MAX);
        prop_assert_eq!(&passed.progress, &RelayProgress::Complete, "{}", passed.out);
        let (chunks, pings_passed) = chunks(&passed.out);
        prop_assert_eq!(pings_passed, pings);
        let (message, finish, usage) = assembled(&chunks);
        prop_assert_eq!(&message, &whole_body["choices"][0]["message"]);
        prop_assert_eq!(&finish, &whole_body["choices"][0]["finish_reason"]);
        prop_assert_eq!(&usage, &whole_body["usage"]);
        prop_assert_eq!(passed.tokens, whole.tokens);
        let [input, written, read, output, _] = reply.usage;
        let tokens = passed.tokens;
        prop_assert_eq!(tokens.input, input + written + read);
        // A report of no output is not believed beside a text.
        prop_assert!(tokens.output == output || output == 0, "{} {}", tokens.output, output);
        prop_assert_eq!((tokens.cache_write, tokens.cache_read), (written, read));
    }

    #[test]
    fn how_a_stream_is_cut_into_pieces_changes_nothing(
        reply in reply(),
        size in 1..200usize,
        asked in any::<bool>(),
    ) {
        let (stream, _) = reply.stream();
        let at_once = pass(translated("m", asked, true), true, stream.as_bytes(), usize::MAX);
        let in_pieces = pass(translated("m", asked, true), true, stream.as_bytes(), size);
        prop_assert_eq!(&at_once, &in_pieces);
        prop_assert_eq!(at_once.out.contains("usage"), asked);
        let whole = reply.whole();
        let at_once = pass(translated("m", asked, true), false, whole.as_bytes(), usize::MAX);
        prop_assert_eq!(at_once, pass(translated("m", asked, true), false, whole.as_bytes(), size));
    }
}
