//! The pure rooms on the way of a request, and the ledgers, each on its own.

use bytes::Bytes;
use divan::Bencher;
use tollgate::dialect::Endpoint;
use tollgate::dialect::call::{Call, Opened};
use tollgate::dialect::chat::ask_for_usage;
use tollgate::dialect::json::{Document, Draft};
use tollgate::dialect::relay::{Passage, Relay};
use tollgate::dialect::sse::Splitter;
use tollgate::dialect::translate::reply::Stamp;
use tollgate::dialect::translate::request::{Manner, Translation};
use tollgate::gateway::edge::head;
use tollgate::ledger::account::Account;
use tollgate::ledger::{AccountName, Answer, Ledger, Operation};
use tollgate::money::Money;
use tollgate::store::sqlite::Sqlite;

fn main() {
    divan::main();
}

/// A chat request of about so many bytes.
fn request(bytes: usize) -> Bytes {
    let text = "Explain in a few plain words what a toll gate does. ".repeat(bytes / 52 + 1);
    let body = serde_json::json!({
        "model": "lmb-5.5", "stream": true, "max_tokens": 256,
        "messages": [{ "role": "user", "content": &text[..bytes] }],
    });
    Bytes::from(body.to_string())
}

/// A stream of 200 chunks with usage, as `vendor_b` sends it.
fn stream() -> Bytes {
    let chunk = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word "},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"abcdef"}"#;
    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":200,"total_tokens":209}}"#;
    Bytes::from(format!("{}{usage}\n\ndata: [DONE]\n\n", format!("{chunk}\n\n").repeat(200)))
}

#[divan::bench(args = [1_000, 100_000, 5_000_000])]
fn strict_pass(bencher: Bencher<'_, '_>, bytes: usize) {
    let body = request(bytes);
    bencher
        .counter(divan::counter::BytesCount::new(body.len()))
        .bench(|| Document::parse(body.clone()).expect("sound"));
}

/// The head of a call as official clients send it.
const HEAD: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\
    Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nAccept: application/json\r\n\
    Content-Type: application/json\r\nUser-Agent: Client/Python 2.31.0\r\n\
    X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 2.31.0\r\nX-Stainless-OS: Linux\r\n\
    X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n\
    X-Stainless-Runtime-Version: 3.12.3\r\n\
    Authorization: Bearer sk-0123456789abcdef0123456789abcdef0123456789ab\r\n\
    X-Stainless-Async: false\r\nx-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n\
    Content-Length: 1024\r\n\r\n";

#[divan::bench]
fn check_a_head(bencher: Bencher<'_, '_>) {
    bencher.bench(|| {
        let end = head::end(divan::black_box(HEAD), 0).expect("sound").expect("whole");
        head::check(&HEAD[..end]).expect("sound")
    });
}

#[divan::bench(args = [1_000, 100_000])]
fn read_a_call(bencher: Bencher<'_, '_>, bytes: usize) {
    let body = request(bytes);
    bencher.bench(|| {
        let opened = Opened::parse(body.clone(), None).expect("sound");
        Call::parse(opened, Endpoint::Chat).expect("a call")
    });
}

#[divan::bench(args = [1_000, 100_000])]
fn translate_a_call(bencher: Bencher<'_, '_>, bytes: usize) {
    let document = Document::parse(request(bytes)).expect("sound");
    let manner = Manner { model: "lma-sonnet-4-6", account: "a", json_schema: true };
    bencher.bench(|| {
        let draft = Draft::new(&document);
        Translation::read(&document, &draft, manner).expect("a chat").finish().with_model("m")
    });
}

#[divan::bench]
fn translate_a_reply(bencher: Bencher<'_, '_>) {
    let reply = Bytes::from_static(
        br#"{"id":"msg_01","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"The answer is four and everybody in the room agrees."},{"type":"tool_use","id":"toolu_1","name":"f","input":{"city":"Oslo"}}],"stop_reason":"tool_use","usage":{"input_tokens":12,"output_tokens":5}}"#,
    );
    bencher.bench(|| {
        let mut relay = Relay::new(translated(), false);
        relay.push(reply.clone());
        relay.finish()
    });
}

fn translated() -> Passage {
    let stamp = Stamp {
        model: "m".to_owned(),
        created: 1,
        input_tokens: 0,
        usage_asked: true,
        keep: false,
    };
    Passage::Translated(stamp)
}

#[divan::bench]
fn splice_include_usage(bencher: Bencher<'_, '_>) {
    let document = Document::parse(request(1_000)).expect("sound");
    bencher.bench(|| {
        let mut draft = Draft::new(&document);
        ask_for_usage(&mut draft);
        draft.finish()
    });
}

#[divan::bench(args = [64, 4_096])]
fn split_events(bencher: Bencher<'_, '_>, size: usize) {
    let stream = stream();
    bencher.counter(divan::counter::ItemsCount::new(202usize)).bench(|| {
        let mut splitter = Splitter::default();
        let mut rest = stream.clone();
        let mut events = 0;
        while !rest.is_empty() {
            let piece = rest.split_to(size.min(rest.len()));
            events += splitter.push(piece).expect("short").len();
        }
        events
    });
}

#[divan::bench(args = [false, true])]
fn relay_a_stream(bencher: Bencher<'_, '_>, usage_asked: bool) {
    let stream = stream();
    bencher.counter(divan::counter::ItemsCount::new(202usize)).bench(|| {
        let mut relay = Relay::new(Passage::Chat { usage_asked, choices: 1 }, true);
        let mut rest = stream.clone();
        let mut passed = 0;
        while !rest.is_empty() {
            let piece = rest.split_to(217.min(rest.len()));
            passed += relay.push(piece).map_or(0, |b| b.len());
        }
        passed
    });
}

/// A messages stream of 200 pieces of text.
fn messages_stream() -> Bytes {
    let event =
        |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    let start = r#","message":{"id":"msg_01","usage":{"input_tokens":9,"output_tokens":1}}"#;
    let delta = r#","index":0,"delta":{"type":"text_delta","text":"word "}"#;
    let parts = [
        event("message_start", start),
        event("content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#),
        event("content_block_delta", delta).repeat(200),
        event("content_block_stop", r#","index":0"#),
        event(
            "message_delta",
            r#","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}"#,
        ),
        event("message_stop", ""),
    ];
    Bytes::from(parts.concat())
}

#[divan::bench(args = [false, true])]
fn relay_a_messages_stream(bencher: Bencher<'_, '_>, translate: bool) {
    let stream = messages_stream();
    let native = || Passage::Messages { request_id: "r".to_owned() };
    bencher.counter(divan::counter::ItemsCount::new(205usize)).bench(|| {
        let mut relay = Relay::new(if translate { translated() } else { native() }, true);
        let mut rest = stream.clone();
        let mut passed = 0;
        while !rest.is_empty() {
            let piece = rest.split_to(119.min(rest.len()));
            passed += relay.push(piece).map_or(0, |b| b.len());
        }
        passed
    });
}

/// An account that never runs dry, and the operations of one call.
fn call(n: u64) -> [Operation; 2] {
    let id = format!("{n:016x}");
    let amount = Money::from_nano(1_000).expect("not negative");
    [
        Operation::Hold { id: id.clone(), wanted: amount, least: amount, lease_ms: 60_000 },
        Operation::Settle { id, charge: amount, line: "{}".to_owned(), origin: None },
    ]
}

fn credit() -> Operation {
    let amount = Money::parse_usd("1000000").expect("an amount");
    Operation::Credit { tx: "t".to_owned(), amount }
}

#[divan::bench]
fn hold_and_settle_pure(bencher: Bencher<'_, '_>) {
    let mut account = Account::default();
    assert_eq!(account.apply(&credit(), 0), Answer::Done);
    let mut n = 0;
    bencher.bench_local(|| {
        n += 1;
        call(n).map(|op| account.apply(&op, 0))
    });
}

#[divan::bench]
fn hold_and_settle_sqlite(bencher: Bencher<'_, '_>) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Sqlite::open(&folder.path().join("bench.db")).expect("a store");
    let name = AccountName::parse("bench").expect("a name");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        store.open(&name).await.expect("opened");
        store.apply(&name, credit()).await.expect("credited");
    });
    let mut n = 0;
    bencher.bench_local(|| {
        n += 1;
        runtime.block_on(async {
            for op in call(n) {
                store.apply(&name, op).await.expect("done");
            }
        });
    });
}
