//! Streams that outgrow what was held for them.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Canned, Store, World, chat_of, events, messages_of, with};

/// A model whose output is all seen, so that it needs no limit where the credit is short.
const SEEN: &str = "lmb-4.1";

/// Nano-USD of a token of lmb-5.5, in and out.
const INPUT: i64 = 5_000;
const OUTPUT: i64 = 30_000;

/// A stream of so many words, without end as far as a small balance is concerned.
const LONG: &str = "prompt=20;chunks=3000;chunk-delay=1";

struct Format {
    path: &'static str,
    vendor: &'static str,
    call: Value,
    code: &'static str,
}

fn format(name: &str) -> Format {
    let (path, vendor, call, code) = match name {
        "chat" => ("/v1/chat/completions", "vendor_b", chat_of("lmb-5.5"), "/error/code"),
        "translated" => {
            ("/v1/chat/completions", "vendor_a", chat_of("lma-sonnet-4-6"), "/error/code")
        }
        "messages" => {
            let call = with(messages_of("lma-sonnet-4-6"), &json!({ "max_tokens": 50_000 }));
            ("/v1/messages", "vendor_a", call, "/error/type")
        }
        _ => {
            let call = json!({ "model": "lmb-5.5", "input": "How much is 2 + 2?" });
            ("/v1/responses", "vendor_b", call, "/code")
        }
    };
    Format { path, vendor, call: with(call, &json!({ "stream": true })), code }
}

#[rstest]
#[tokio::test]
async fn a_stream_that_the_balance_covers_no_longer_ends_there_and_no_nano_is_owed(
    #[values("chat", "responses")] name: &str,
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let Format { path, vendor, call, code } = format(name);
    let call = with(call, &json!({ "model": SEEN }));
    let world = World::start(store).credit("0.01").vendor(vendor, &[LONG]).run().await;
    let request = world.request(path).body(call.to_string());
    let streamed = crate::world::Opened::open(request).await.rest().await;
    let last: Value = serde_json::from_str(streamed.data.last().expect("events")).expect("JSON");
    assert_eq!(last.pointer(code), Some(&json!("insufficient_credits")), "{last}");
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0));
    let amount = charge.amount_nano;
    assert!((6_000_000..=10_000_000).contains(&amount), "most of it was delivered: {amount}");
    assert_eq!(world.balances().await.available, 10_000_000 - amount);
}

#[rstest]
#[tokio::test]
async fn a_stream_that_outgrows_its_hold_goes_on_as_long_as_the_balance_covers_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "prompt=20;chunks=9000";
    let world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    let streamed = world.stream(chat_of("lmb-5.5")).await;
    assert!(streamed.is_done());
    let charge = world.charge().await;
    let amount = 20 * INPUT + 9_000 * OUTPUT;
    assert_eq!((charge.amount_nano, charge.written_off_nano), (amount, 0));
    let name = match store {
        Store::Sqlite => "sqlite",
        Store::Redis => "redis",
    };
    let labels = ["op=\"extend\"", &format!("store=\"{name}\"")];
    let asked = world.metric("tollgate_ledger_seconds_count", &labels).await;
    assert!((1..=40).contains(&asked), "more is asked for seldom: {asked} times");
}

#[tokio::test]
async fn a_stream_in_many_small_pieces_is_not_cut_when_all_it_may_cost_is_held() {
    let faults = "prompt=20;reply-bytes=90;chunks=60;completion=10;chunk-delay=2";
    let call = with(chat_of("lmb-5.5"), &json!({ "max_tokens": 10, "stream": true }));
    let bytes = i64::try_from(call.to_string().len()).expect("a short call");
    let credit = format!("0.{:09}", bytes * INPUT + 10 * OUTPUT);
    let world =
        World::start(Store::Sqlite).credit(&credit).vendor("vendor_b", &[faults]).run().await;
    let streamed = world.stream(call).await;
    assert!(streamed.is_done(), "{streamed:?}");
    assert_eq!(world.charge().await.amount_nano, 20 * INPUT + 10 * OUTPUT);
}

/// So many words of a chat, and no usage.
fn chat_events(words: usize) -> String {
    let word = json!({ "index": 0, "delta": { "content": "word " }, "finish_reason": null });
    let event = json!({ "id": "c", "object": "chat.completion.chunk", "choices": [word] });
    format!("data: {event}\n\n").repeat(words) + "data: [DONE]\n\n"
}

/// So many words of a message.
fn message_events(words: usize) -> String {
    let event =
        |data: Value| format!("event: {}\ndata: {data}\n\n", data["type"].as_str().expect("text"));
    let usage = json!({ "input_tokens": 20, "output_tokens": 1 });
    let message = json!({
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage,
    });
    let block = json!({ "type": "text", "text": "" });
    let delta = json!({ "type": "text_delta", "text": "word " });
    [
        event(json!({ "type": "message_start", "message": message })),
        event(json!({ "type": "content_block_start", "index": 0, "content_block": block })),
        event(json!({ "type": "content_block_delta", "index": 0, "delta": delta })).repeat(words),
        event(json!({ "type": "content_block_stop", "index": 0 })),
    ]
    .concat()
}

/// Whoever asks for few tokens holds money for few.
#[rstest]
#[case::chat("chat", chat_events(20_000))]
#[case::translated("translated", message_events(20_000))]
#[case::messages("messages", message_events(20_000))]
#[tokio::test]
async fn a_vendor_that_goes_on_beyond_what_was_asked_for_is_stopped_and_no_nano_is_owed(
    #[case] name: &str,
    #[case] said: String,
) {
    let Format { path, vendor, call, .. } = format(name);
    let call = with(call, &json!({ "max_tokens": 20 }));
    let canned = Canned::start(events(&said), usize::MAX).await;
    let builder = World::start(Store::Sqlite).credit("0.01").vendor(vendor, &[&canned.url]);
    let world = builder.run().await;
    let request = world.request(path).body(call.to_string());
    let streamed = crate::world::Opened::open(request).await.rest().await;
    assert!((2_000..10_000).contains(&streamed.data.len()), "{}", streamed.data.len());
    assert!(streamed.data.last().is_some_and(|last| last.contains("too large")));
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.tokens().1), ("counted", 20));
    assert_eq!(charge.written_off_nano, 0);
}

/// The gateway sends the limit because the credit covers no more, so nobody would pay for the rest.
#[rstest]
#[case::chat("chat", chat_events(3_000))]
#[case::translated("translated", message_events(3_000))]
#[case::messages("messages", message_events(3_000))]
#[tokio::test]
async fn a_vendor_that_goes_on_beyond_a_limit_for_short_credit_is_soon_stopped(
    #[case] name: &str,
    #[case] said: String,
) {
    let Format { path, vendor, call, code } = format(name);
    let canned = Canned::start(events(&said), usize::MAX).await;
    let builder = World::start(Store::Sqlite).credit("0.01").vendor(vendor, &[&canned.url]);
    let world = builder.run().await;
    let request = world.request(path).body(call.to_string());
    let streamed = crate::world::Opened::open(request).await.rest().await;
    let last: Value = serde_json::from_str(streamed.data.last().expect("events")).expect("JSON");
    let expected = if name == "messages" { "billing_error" } else { "insufficient_credits" };
    assert_eq!(last.pointer(code), Some(&json!(expected)), "{last}");
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0));
    assert!((6_000_000..=10_000_000).contains(&charge.amount_nano), "{charge:?}");
}

#[tokio::test]
async fn what_nobody_reports_is_charged_up_to_what_was_asked_for() {
    let canned = Canned::start(events(&chat_events(60)), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&canned.url]).run().await;
    let call = with(chat_of("lmb-5.5"), &json!({ "max_tokens": 10 }));
    assert!(world.stream(call).await.is_done());
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.tokens().1), ("counted", 10));
}

#[tokio::test]
async fn a_stream_ends_where_its_hold_does_if_nobody_can_tell_what_the_balance_is() {
    let faults = "prompt=20;chunks=20000;held=10";
    let world = World::start(Store::Redis).own_redis().vendor("vendor_b", &[faults]);
    let mut world = world.credit("0.05").run().await;
    let mut stream = world.open_stream(chat_of(SEEN)).await;
    stream.take(3).await;
    world.redis().stop();
    world.sim.let_go();
    let streamed = stream.rest().await;
    let last: Value = serde_json::from_str(streamed.data.last().expect("events")).expect("JSON");
    assert_eq!(last["error"]["code"], "ledger_unavailable");
    assert!(world.redis().start_again());
    let charge = world.charge().await;
    assert_eq!(charge.written_off_nano, 0);
    assert!((30_000_000..=50_000_000).contains(&charge.amount_nano), "{charge:?}");
}

#[rstest]
#[tokio::test]
async fn whoever_hung_up_pays_no_more_than_the_balance_covers(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit("0.01").vendor("vendor_b", &[LONG]).run().await;
    let mut stream = world.open_stream(chat_of(SEEN)).await;
    stream.take(2).await;
    drop(stream);
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.balances().await.available, 10_000_000 - charge.amount_nano);
}
