//! A fixed set of work whose instructions `benches/check.py` counts. With a name it does that part,
//! else it tells the names.

use std::hint::black_box;

use tollgate::dialect::Endpoint;
use tollgate::dialect::call::{ModelCall, ParsedBody};
use tollgate::dialect::chat::set_include_usage;
use tollgate::dialect::json::{JsonDocument, JsonPatch};
use tollgate::dialect::relay::{Relay, RelayMode};
use tollgate::dialect::sse::SseSplitter;
use tollgate::dialect::translate::request::{Translation, TranslationContext};
use tollgate::gateway::edge::head;
use tollgate::ledger::in_memory::InMemoryAccount;

mod inputs;

use inputs::{HEAD, call, credit, messages_stream, reply, request, stream, translated};

/// Each part is done so often, so that what happens only the first time hardly counts.
const TIMES: u32 = 20;

/// A part: makes ready, and gives what is counted.
type Part = (&'static str, fn() -> Box<dyn FnMut()>);

const PARTS: [Part; 11] = [
    ("check a head", || Box::new(|| _ = black_box(head::check_head(black_box(HEAD))))),
    ("strict pass over 1 KB", || strict_pass(1_000)),
    ("strict pass over 100 KB", || strict_pass(100_000)),
    ("read a call of 1 KB", || {
        let body = request(1_000);
        Box::new(move || {
            let opened = ParsedBody::parse(body.clone(), None).expect("sound");
            drop(black_box(ModelCall::parse(opened, Endpoint::Chat)));
        })
    }),
    ("splice include_usage", || {
        let document = JsonDocument::parse(request(1_000)).expect("sound");
        Box::new(move || {
            let mut draft = JsonPatch::new(&document);
            set_include_usage(&mut draft);
            drop(black_box(draft.finish()));
        })
    }),
    ("translate a call of 1 KB", || {
        let document = JsonDocument::parse(request(1_000)).expect("sound");
        Box::new(move || {
            let manner =
                TranslationContext { model: "lma-sonnet-4-6", account: "a", json_schema: true };
            let draft = JsonPatch::new(&document);
            let read = Translation::parse_chat(&document, &draft, manner).expect("a chat");
            drop(black_box(read.build_call().body_with_model("m")));
        })
    }),
    ("translate a reply", || {
        let reply = reply();
        Box::new(move || {
            let mut relay = Relay::new(translated(), false);
            drop(black_box(relay.push(reply.clone())));
            drop(black_box(relay.finish()));
        })
    }),
    ("split 202 events", || {
        let stream = stream();
        Box::new(move || {
            let (mut splitter, mut rest) = (SseSplitter::default(), stream.clone());
            while !rest.is_empty() {
                let piece = rest.split_to(64.min(rest.len()));
                drop(black_box(splitter.push(piece)));
            }
        })
    }),
    ("relay 202 events", || {
        let stream = stream();
        let passage = || RelayMode::Chat { include_usage: true, choices: 1 };
        Box::new(move || relay(Relay::new(passage(), true), stream.clone(), 217))
    }),
    ("translate 205 events", || {
        let stream = messages_stream();
        Box::new(move || relay(Relay::new(translated(), true), stream.clone(), 119))
    }),
    ("hold and settle, the pure machine", || {
        let (mut account, mut n) = (InMemoryAccount::default(), 0);
        black_box(account.apply(&credit(), 0));
        Box::new(move || {
            n += 1;
            black_box(call(n).map(|op| account.apply(&op, 0)));
        })
    }),
];

fn strict_pass(bytes: usize) -> Box<dyn FnMut()> {
    let body = request(bytes);
    Box::new(move || drop(black_box(JsonDocument::parse(body.clone()))))
}

fn relay(mut relay: Relay, mut rest: bytes::Bytes, size: usize) {
    while !rest.is_empty() {
        let piece = rest.split_to(size.min(rest.len()));
        drop(black_box(relay.push(piece)));
    }
}

/// What is counted, by this name.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    for _ in 0..TIMES {
        work();
    }
}

fn main() {
    // `cargo bench` adds a word of its own.
    let wanted = std::env::args().nth(1).filter(|word| !word.starts_with("--"));
    for (name, part) in PARTS {
        match &wanted {
            None => println!("{name}"),
            Some(wanted) if wanted == name => {
                let mut work = part();
                work();
                measured(&mut *work);
            }
            Some(_) => {}
        }
    }
}
