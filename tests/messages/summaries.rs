//! Summaries by which the vendor compacts a conversation before it answers: what is held for them,
//! and that no limit of the answer ends them.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::MODEL;
use crate::world::{Answer, Canned, Store, World, events, long, messages_of, with};

/// Nano-USD of a token of lma-sonnet-4-6, in and out.
const INPUT: i64 = 3_000;
const OUTPUT: i64 = 15_000;
/// The longest summary.
const SUMMARY: i64 = 128_000;

fn compacting(trigger: &Value) -> Value {
    let edit = with(json!({ "type": "compact_20260112" }), trigger);
    json!({ "max_tokens": 10, "context_management": { "edits": [edit] } })
}

fn trigger(tokens: u64) -> Value {
    json!({ "trigger": { "type": "input_tokens", "value": tokens } })
}

/// A stream with a summary in so many pieces before a short answer.
fn summarized(pieces: usize, usage: &str) -> Vec<u8> {
    let event = |data: &Value| {
        let kind = data["type"].as_str().expect("a type");
        format!("event: {kind}\ndata: {data}\n\n")
    };
    let block = |index: u8, start: Value, delta: Value, times: usize| {
        let deltas = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        let start =
            json!({ "type": "content_block_start", "index": index, "content_block": start });
        let stop = json!({ "type": "content_block_stop", "index": index });
        [event(&start), event(&deltas).repeat(times), event(&stop)].concat()
    };
    let message = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": null, "usage": { "input_tokens": 18_000, "output_tokens": 1 },
    });
    let summary = json!({ "type": "compaction_delta", "content": "word " });
    let text = json!({ "type": "text_delta", "text": "four" });
    let end = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}"#;
    let stream = [
        event(&json!({ "type": "message_start", "message": message })),
        block(0, json!({ "type": "compaction", "content": null }), summary, pieces),
        block(1, json!({ "type": "text", "text": "" }), text, 1),
        format!("event: message_delta\ndata: {end},\"usage\":{usage}}}\n\n"),
        event(&json!({ "type": "message_stop" })),
    ];
    events(&stream.concat())
}

const USAGE: &str = r#"{"input_tokens":2300,"output_tokens":2,"iterations":[{"type":"compaction","input_tokens":18000,"output_tokens":6000},{"type":"message","input_tokens":2300,"output_tokens":2}]}"#;

/// The gateway counts a piece as a token, and took the summary for an answer that goes on far
/// beyond its limit.
#[rstest]
#[tokio::test]
async fn a_stream_with_a_summary_was_cut_at_the_limit_of_its_answer(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(6_000, 20_000)] pieces: usize,
) {
    let vendor = Canned::start(summarized(pieces, USAGE), usize::MAX).await;
    let world = World::start(store).vendor("vendor_a", &[&vendor.url]).run().await;
    let call = with(long(messages_of(MODEL), 20_000), &compacting(&json!({})));
    let streamed = world.stream_messages(call).await;
    let last = streamed.messages().pop().expect("events");
    assert_eq!(last["type"], "message_stop", "{last}");
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.basis.as_str()), ((20_300, 6_002), "reported"));
    assert_eq!(charge.amount_nano, 20_300 * INPUT + 6_002 * OUTPUT);
}

/// Without a report the summary is counted, and no limit of the answer makes it less.
#[tokio::test]
async fn a_summary_without_a_report_is_charged_by_count() {
    let vendor = Canned::start(summarized(6_000, "null"), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]).run().await;
    let call = with(long(messages_of(MODEL), 20_000), &compacting(&json!({})));
    let last = world.stream_messages(call).await.messages().pop().expect("events");
    assert_eq!(last["type"], "message_stop", "{last}");
    let charge = world.charge().await;
    assert_eq!((charge.tokens().1, charge.basis.as_str()), (6_485, "counted"));
}

/// What was not asked for is no summary: a vendor that makes one all the same is stopped.
#[tokio::test]
async fn a_summary_that_nobody_asked_for_is_cut() {
    let vendor = Canned::start(summarized(20_000, USAGE), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]).run().await;
    let call = with(long(messages_of(MODEL), 20_000), &json!({ "max_tokens": 10 }));
    let streamed = world.stream_messages(call).await;
    let last = streamed.messages().pop().expect("events");
    assert_eq!(last["type"], "error", "{last}");
    world.nothing_held().await;
}

/// The account cannot pay for the whole of the summary, and owes nothing for its rest.
#[tokio::test]
async fn a_summary_that_the_balance_covers_no_longer_ends_there() {
    let vendor = Canned::start(summarized(60_000, "null"), usize::MAX).await;
    let builder = World::start(Store::Sqlite).credit("0.2").vendor("vendor_a", &[&vendor.url]);
    let world = builder.run().await;
    let call = with(long(messages_of(MODEL), 20_000), &compacting(&json!({})));
    let last = world.stream_messages(call).await.messages().pop().expect("events");
    assert_eq!(last["error"]["type"], "billing_error", "{last}");
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0));
    assert!((50_000_000..=200_000_000).contains(&charge.amount_nano), "{charge:?}");
}

#[rstest]
#[case::long_enough(trigger(50_000), 60_000, true)]
#[case::too_short(trigger(50_000), 40_000, false)]
#[case::too_short_for_the_usual_trigger(json!({}), 60_000, false)]
#[case::a_trigger_that_cannot_be_read(json!({ "trigger": { "value": "many" } }), 100, true)]
#[tokio::test]
async fn a_summary_and_a_second_reading_are_held_where_the_input_is_long_enough(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] trigger: Value,
    #[case] bytes: usize,
    #[case] is_expected: bool,
) {
    let world = World::start(store).vendor("vendor_a", &["delay=800"]).run().await;
    let call = with(long(messages_of(MODEL), bytes), &compacting(&trigger)).to_string();
    let sent = i64::try_from(call.len()).expect("a short call");
    let request = world.messages_request().header("vendor_a-beta", "compact-2026-01-12");
    let (answer, held) = tokio::join!(Answer::read(request.body(call)), async {
        while world.sim.count("vendor_a") == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        world.balances().await.held
    });
    assert_eq!(answer.status, 200, "{answer:?}");
    let expected = if is_expected {
        let output = SUMMARY + 10;
        (sent + sent + output) * INPUT + output * OUTPUT
    } else {
        sent * INPUT + 10 * OUTPUT
    };
    assert_eq!(held, expected);
    world.settled(1).await;
}

#[rstest]
#[tokio::test]
async fn the_pass_that_makes_a_summary_is_charged_beside_that_of_the_answer(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(store).vendor("vendor_a", &["summary=400;prompt=1000;completion=30"]);
    let world = world.run().await;
    let call = with(messages_of(MODEL), &compacting(&json!({})));
    let call = with(call, &json!({ "max_tokens": 100, "stream": stream }));
    let request = world.messages_request().header("vendor_a-beta", "compact-2026-01-12");
    let answer = Answer::read(request.body(call.to_string())).await;
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(answer.status, 200, "{said}");
    assert!(said.contains(r#""type":"compaction""#) && said.contains("iterations"), "{said}");
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.basis.as_str()), ((2_000, 430), "reported"));
    assert_eq!(charge.amount_nano, 2_000 * INPUT + 430 * OUTPUT);
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(charge.tokens(), (billed.prompt, billed.completion));
}
