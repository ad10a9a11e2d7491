//! The pure rooms on the way of a request, and the ledgers, each on its own.

use divan::Bencher;
use tollgate::dialect::Endpoint;
use tollgate::dialect::call::{ModelCall, ParsedBody};
use tollgate::dialect::chat::set_include_usage;
use tollgate::dialect::json::{JsonDocument, JsonPatch};
use tollgate::dialect::relay::{Relay, RelayMode};
use tollgate::dialect::sse::SseSplitter;
use tollgate::dialect::translate::request::{Translation, TranslationContext};
use tollgate::gateway::edge::head;
use tollgate::ledger::in_memory::InMemoryAccount;
use tollgate::ledger::{AccountName, Ledger, Outcome};
use tollgate::store::sqlite::SqliteStore;

mod inputs;

use inputs::{HEAD, call, credit, messages_stream, reply, request, stream, translated};

fn main() {
    divan::main();
}

#[divan::bench(args = [1_000, 100_000, 5_000_000])]
fn strict_pass(bencher: Bencher<'_, '_>, bytes: usize) {
    let body = request(bytes);
    bencher
        .counter(divan::counter::BytesCount::new(body.len()))
        .bench(|| JsonDocument::parse(body.clone()).expect("sound"));
}

#[divan::bench]
fn check_a_head(bencher: Bencher<'_, '_>) {
    bencher.bench(|| {
        let end = head::find_end(divan::black_box(HEAD), 0).expect("sound").expect("whole");
        head::check_head(&HEAD[..end]).expect("sound");
    });
}

#[divan::bench(args = [1_000, 100_000])]
fn read_a_call(bencher: Bencher<'_, '_>, bytes: usize) {
    let body = request(bytes);
    bencher.bench(|| {
        let opened = ParsedBody::parse(body.clone(), None).expect("sound");
        ModelCall::parse(opened, Endpoint::Chat).expect("a call")
    });
}

#[divan::bench(args = [1_000, 100_000])]
fn translate_a_call(bencher: Bencher<'_, '_>, bytes: usize) {
    let document = JsonDocument::parse(request(bytes)).expect("sound");
    let manner = TranslationContext { model: "lma-sonnet-4-6", account: "a", json_schema: true };
    bencher.bench(|| {
        let draft = JsonPatch::new(&document);
        Translation::parse_chat(&document, &draft, manner)
            .expect("a chat")
            .build_call()
            .body_with_model("m")
    });
}

#[divan::bench]
fn translate_a_reply(bencher: Bencher<'_, '_>) {
    let reply = reply();
    bencher.bench(|| {
        let mut relay = Relay::new(translated(), false);
        relay.push(reply.clone());
        relay.finish()
    });
}

#[divan::bench]
fn splice_include_usage(bencher: Bencher<'_, '_>) {
    let document = JsonDocument::parse(request(1_000)).expect("sound");
    bencher.bench(|| {
        let mut draft = JsonPatch::new(&document);
        set_include_usage(&mut draft);
        draft.finish()
    });
}

#[divan::bench(args = [64, 4_096])]
fn split_events(bencher: Bencher<'_, '_>, size: usize) {
    let stream = stream();
    bencher.counter(divan::counter::ItemsCount::new(202usize)).bench(|| {
        let mut splitter = SseSplitter::default();
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
fn relay_a_stream(bencher: Bencher<'_, '_>, include_usage: bool) {
    let stream = stream();
    bencher.counter(divan::counter::ItemsCount::new(202usize)).bench(|| {
        let mut relay = Relay::new(RelayMode::Chat { include_usage, choices: 1 }, true);
        let mut rest = stream.clone();
        let mut passed = 0;
        while !rest.is_empty() {
            let piece = rest.split_to(217.min(rest.len()));
            passed += relay.push(piece).map_or(0, |b| b.len());
        }
        passed
    });
}

#[divan::bench(args = [false, true])]
fn relay_a_messages_stream(bencher: Bencher<'_, '_>, translate: bool) {
    let stream = messages_stream();
    let native = || RelayMode::Messages { request_id: "r".to_owned() };
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

#[divan::bench]
fn hold_and_settle_pure(bencher: Bencher<'_, '_>) {
    let mut account = InMemoryAccount::default();
    assert_eq!(account.apply(&credit(), 0), Outcome::Done);
    let mut n = 0;
    bencher.bench_local(|| {
        n += 1;
        call(n).map(|op| account.apply(&op, 0))
    });
}

#[divan::bench]
fn hold_and_settle_sqlite(bencher: Bencher<'_, '_>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bench.db");
    SqliteStore::create(&path).expect("a new store");
    let store = SqliteStore::open(&path).expect("a store");
    let name = AccountName::parse("bench").expect("a name");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        store.open_account(&name).await.expect("opened");
        store.submit(&name, credit()).await.expect("credited");
    });
    let mut n = 0;
    bencher.bench_local(|| {
        n += 1;
        runtime.block_on(async {
            for op in call(n) {
                store.submit(&name, op).await.expect("done");
            }
        });
    });
}
