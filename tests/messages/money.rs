//! What native calls hold and cost.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::MODEL;
use crate::world::{Answer, Canned, Store, World, events, http, long, messages_of, with};

/// Nano-USD of a token of lma-sonnet-4-6, in and out.
const INPUT: i64 = 3_000;
const OUTPUT: i64 = 15_000;

/// A call about a picture or a document.
fn about(kind: &str, source: &Value) -> Value {
    let block = json!({ "type": kind, "source": source });
    let content = json!([{ "type": "text", "text": "What is it?" }, block]);
    let messages = json!([{ "role": "user", "content": content }]);
    json!({ "max_tokens": 10, "messages": messages })
}

/// A document of pages, of hardly any bytes.
fn pages() -> Value {
    json!({ "type": "base64", "media_type": "application/pdf", "data": "QUJD" })
}

fn inline() -> Value {
    json!({ "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=" })
}

#[rstest]
#[case::as_asked(json!({ "max_tokens": 10 }), 0, 10)]
#[case::nothing_to_generate(json!({ "max_tokens": 0 }), 0, 0)]
#[case::an_image(about("image", &inline()), 4_784 - 14, 10)]
#[case::an_address(
    about("image", &json!({ "type": "url", "url": "https://pictures.example/a.jpg" })), 4_784, 10
)]
#[case::a_document(
    about("document", &json!({ "type": "text", "media_type": "text/plain", "data": "hi" })), 0, 10
)]
#[case::a_document_elsewhere(
    about("document", &json!({ "type": "url", "url": "https://papers.example/a.pdf" })), 500_000, 10
)]
#[case::a_small_document_of_pages(
    about("document", &pages()), 500_000 - 6, 10
)]
#[case::tools(
    json!({ "max_tokens": 10, "tools": [{ "name": "f", "input_schema": { "type": "object" } }] }),
    1_500, 10
)]
#[tokio::test]
async fn the_input_and_the_output_asked_for_are_held_while_a_call_runs(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] members: Value,
    #[case] beside: i64,
    #[case] output: i64,
) {
    let world = World::start(store).vendor("vendor_a", &["delay=500"]).run().await;
    let call = with(messages_of(MODEL), &members);
    let bytes = i64::try_from(call.to_string().len()).expect("a short call");
    let held = async {
        while world.sim.count("vendor_a") == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        world.balances().await.held
    };
    let (answer, held) = tokio::join!(world.messages(call), held);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(held, (bytes + beside) * INPUT + output * OUTPUT);
    world.settled(1).await;
}

/// A stream whose events report these usages, the first of them at its start.
fn stream_with(usages: &[&str]) -> Vec<u8> {
    let event =
        |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    let head = r#""id":"msg_1","type":"message","role":"assistant","model":"m","content":[]"#;
    let start = format!(r#","message":{{{head},"stop_reason":null,"usage":{}}}"#, usages[0]);
    let mut body = event("message_start", &start);
    let block = r#","index":0,"content_block":{"type":"text","text":""}"#;
    body += &event("content_block_start", block);
    let text = r#","index":0,"delta":{"type":"text_delta","text":"four"}"#;
    body += &event("content_block_delta", text);
    body += &event("content_block_stop", r#","index":0"#);
    for usage in &usages[1..] {
        let delta = format!(r#","delta":{{"stop_reason":"end_turn"}},"usage":{usage}"#);
        body += &event("message_delta", &delta);
    }
    events(&(body + &event("message_stop", "")))
}

#[rstest]
#[case::start_and_end(
    &[r#"{"input_tokens":10,"output_tokens":1}"#, r#"{"output_tokens":50}"#],
    (10, 50, 0, 0)
)]
#[case::caches_are_input(
    &[
        r#"{"input_tokens":10,"cache_creation_input_tokens":200,"cache_read_input_tokens":3000,"output_tokens":1}"#,
        r#"{"output_tokens":50}"#,
    ],
    (3_210, 50, 3_000, 200)
)]
#[case::later_reports_replace_earlier_ones(
    &[
        r#"{"input_tokens":2037,"cache_read_input_tokens":5,"output_tokens":1}"#,
        r#"{"input_tokens":9000,"cache_read_input_tokens":null,"output_tokens":20}"#,
        r#"{"input_tokens":15665,"output_tokens":33}"#,
    ],
    (15_670, 33, 5, 0)
)]
#[tokio::test]
async fn a_streams_usage_is_read_from_its_start_and_its_last_report(
    #[case] usages: &[&str],
    #[case] (input, output, read, written): (u64, u64, u64, u64),
    #[values("/v1/messages", "/v1/chat/completions")] path: &str,
) {
    let vendor = Canned::start(stream_with(usages), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]).run().await;
    let call = long(with(messages_of(MODEL), &json!({ "stream": true })), 4_000);
    assert_eq!(Answer::read(world.request(path).body(call.to_string())).await.status, 200);
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.cached()), ((input, output), (read, written)));
    assert_eq!(charge.basis, "reported");
    let nano = |tokens: u64, rate: i64| i64::try_from(tokens).expect("few") * rate;
    assert_eq!(charge.amount_nano, nano(input, INPUT) + nano(output, OUTPUT));
}

#[rstest]
#[tokio::test]
async fn a_compaction_was_refused_although_all_that_it_costs_is_reported(
    #[values(true, false)] stream: bool,
) {
    let steps = r#"[{"type":"compaction","input_tokens":18000,"output_tokens":3500},{"type":"message","input_tokens":2300,"output_tokens":1000}]"#;
    let total = format!(r#"{{"input_tokens":2300,"output_tokens":1000,"iterations":{steps}}}"#);
    let whole = format!(r#"{{"content":[{{"type":"text","text":"four"}}],"usage":{total}}}"#);
    let answer = if stream {
        stream_with(&[r#"{"input_tokens":18000,"output_tokens":1}"#, &total])
    } else {
        http(&whole)
    };
    let vendor = Canned::start(answer, usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[&vendor.url]).run().await;
    let edits = json!({ "edits": [{ "type": "compact_20260112" }] });
    let members = json!({ "stream": stream, "context_management": edits });
    let answer = world.messages(long(with(messages_of(MODEL), &members), 20_000)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.basis.as_str()), ((20_300, 4_500), "reported"));
    assert_eq!(charge.amount_nano, 20_300 * INPUT + 4_500 * OUTPUT);
}

#[rstest]
#[tokio::test]
async fn who_hangs_up_pays_what_the_vendor_bills(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(1, 4)] taken: usize,
) {
    let faults = "chunk-delay=15;chunks=20;reasoning=5";
    let world = World::start(store).vendor("vendor_a", &[faults]).run().await;
    let mut stream = world.open_messages(messages_of(MODEL)).await;
    stream.take(taken).await;
    drop(stream);
    let charge = world.charge().await;
    let seen = world.sim.seen().remove(0);
    let billed = seen.billed.expect("a bill");
    assert_eq!((charge.basis.as_str(), seen.completed), ("reported", true));
    assert_eq!(charge.tokens(), (billed.prompt, billed.total - billed.prompt));
    let model = format!("model={MODEL:?}");
    let labels = [r#"endpoint="messages""#, model.as_str(), r#"vendor="vendor_a""#];
    world.metric_becomes("tollgate_charged_nanousd_total", &labels, charge.amount_nano).await;
    world.metric_becomes("tollgate_requests_total", &[labels[0], labels[1], "200"], 1).await;
    let tokens = i64::try_from(billed.total).expect("few");
    world.metric_becomes("tollgate_tokens_total", &[labels[1]], tokens).await;
}
