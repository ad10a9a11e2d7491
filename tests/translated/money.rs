//! What translated calls hold and cost.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::{INPUT, MODEL, OUTPUT};
use crate::world::{Store, World, chat_of, with};

#[rstest]
#[case::plain("prompt=1000;completion=50", (1_000, 50, 0, 0))]
#[case::caches_are_input(
    "prompt=1000;completion=50;cache-read=600;cache-write=300", (1_000, 50, 600, 300)
)]
#[case::told_at_the_start_only(
    "prompt=1000;completion=50;cache-read=600;cache-write=300;lean-usage", (1_000, 50, 600, 300)
)]
#[case::thoughts_are_output("prompt=1000;completion=50;reasoning=20", (1_000, 50, 0, 0))]
#[case::input_that_grows("prompt=1000;completion=50;web-json", (1_000, 50, 0, 0))]
#[case::several_reports("prompt=1000;completion=50;odd-events", (1_000, 50, 0, 0))]
#[case::two_starts("prompt=1000;completion=50;double-start", (1_000, 50, 0, 0))]
#[tokio::test]
async fn a_charge_is_what_the_vendor_bills_at_the_listed_price(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[case] faults: &str,
    #[case] (prompt, completion, read, written): (i64, i64, u64, u64),
) {
    let world = World::start(store).vendor("vendor_a", &[faults]).run().await;
    let reported = if stream {
        let members = json!({ "stream_options": { "include_usage": true } });
        world.stream(with(chat_of(MODEL), &members)).await.usages().pop().expect("usage")
    } else {
        let answer = world.chat(chat_of(MODEL)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["usage"].clone()
    };
    let counts = json!({ "cached_tokens": read, "cache_write_tokens": written });
    assert_eq!(reported["prompt_tokens_details"], counts);
    assert_eq!(
        (&reported["prompt_tokens"], &reported["completion_tokens"]),
        (&json!(prompt), &json!(completion))
    );
    assert_eq!(reported["total_tokens"], prompt + completion);
    let charge = world.charge().await;
    assert_eq!((charge.cached(), charge.basis.as_str()), ((read, written), "reported"));
    assert_eq!(charge.amount_nano, prompt * INPUT + completion * OUTPUT);
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(charge.tokens(), (billed.prompt, billed.total - billed.prompt));
    assert_eq!((charge.endpoint.as_str(), charge.vendor.as_str()), ("chat", "vendor_a"));
    let id = charge.vendor_request_id.expect("the vendor's id");
    assert!(id.starts_with("req_vendor_"), "{id}");
}

/// The call, whose input is so many bytes without what the addresses of images have.
fn bytes(call: &Value, addresses: &[&str]) -> i64 {
    let quoted: usize = addresses.iter().map(|address| address.len() + 2).sum();
    i64::try_from(call.to_string().len() - quoted).expect("a short call")
}

#[rstest]
#[case::by_default(json!({}), 0, 8_192)]
#[case::as_asked(json!({ "max_tokens": 10 }), 0, 10)]
#[case::the_newer_limit(json!({ "max_completion_tokens": 20 }), 0, 20)]
#[case::two_images(json!({ "max_tokens": 10 }), 2, 10)]
#[tokio::test]
async fn the_input_and_the_output_asked_for_are_held_while_a_call_runs(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] members: Value,
    #[case] images: usize,
    #[case] output: i64,
) {
    let world = World::start(store).vendor("vendor_a", &["delay=500"]).run().await;
    let url = "https://pictures.example/a.jpg";
    let image = json!({ "type": "image_url", "image_url": { "url": url } });
    let mut call = with(chat_of(MODEL), &members);
    let mut content = vec![json!({ "type": "text", "text": "Compare" })];
    content.resize(1 + images, image);
    call["messages"][0]["content"] = content.into();
    let images_most = 4_784 * i64::try_from(images).expect("few");
    let input = bytes(&call, &vec![url; images]) + images_most;
    let held = async {
        while world.sim.count("vendor_a") == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        world.balances().await.held
    };
    let (answer, held) = tokio::join!(world.chat(call), held);
    assert_eq!((answer.status, held), (200, input * INPUT + output * OUTPUT));
    world.settled(1).await;
}

#[tokio::test]
async fn the_least_balance_serves_and_a_nano_less_does_not() {
    let call = chat_of(MODEL);
    let least = bytes(&call, &[]) * INPUT + OUTPUT;
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &["prompt=1;completion=1"]);
    let world = builder.credit(&format!("0.{:09}", least - 1)).run().await;
    let refused = world.chat(call.clone()).await;
    assert_eq!(refused.refusal(), (402, "insufficient_credits".to_owned()));
    assert_eq!(world.sim.seen().len(), 0);
    world.command(&["credit", "add", "acct", "0.000000001"]).await.done();
    assert_eq!(world.chat(call).await.status, 200);
    assert_eq!(world.charge().await.amount_nano, INPUT + OUTPUT);
}

#[rstest]
#[tokio::test]
async fn a_client_that_hangs_up_pays_what_the_vendor_bills(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(1, 4)] events: usize,
) {
    let faults = "chunk-delay=15;chunks=20;reasoning=5";
    let world = World::start(store).vendor("vendor_a", &[faults]).run().await;
    let mut stream = world.open_stream(chat_of(MODEL)).await;
    stream.take(events).await;
    drop(stream);
    let charge = world.charge().await;
    assert!(world.sim.quiet(Duration::from_secs(5)).await);
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(charge.basis, "reported");
    assert_eq!(charge.tokens(), (billed.prompt, billed.total - billed.prompt));
}

#[rstest]
#[tokio::test]
async fn an_answer_without_a_sound_report_is_charged_as_counted(
    #[values("no-usage", "null-usage", "bad-usage")] fault: &str,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[fault]).run().await;
    let call = with(chat_of(MODEL), &json!({ "stream": stream }));
    assert_eq!(world.chat(call.clone()).await.status, 200);
    let charge = world.charge().await;
    assert_eq!(charge.basis, "counted");
    assert_eq!(charge.tokens(), (15, 15), "{charge:?}");
}

#[tokio::test]
async fn who_hangs_up_on_an_endless_stream_pays_what_was_counted() {
    let faults = "chunk-delay=40;chunks=1000;hangup-stops";
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &[faults]);
    let world = builder.conf("[timeouts]\ndrain_ms = 300").run().await;
    let mut stream = world.open_stream(chat_of(MODEL)).await;
    stream.take(3).await;
    drop(stream);
    let charge = world.charge().await;
    assert!(world.sim.quiet(Duration::from_secs(2)).await, "the vendor was told to stop");
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!((charge.basis.as_str(), charge.tokens().0), ("counted", billed.prompt));
    assert!((2..100).contains(&charge.tokens().1), "the drain is bounded: {charge:?}");
}

#[rstest]
#[tokio::test]
async fn who_hung_up_before_anything_visible_paid_nothing_for_what_was_read(
    #[values(false, true)] native: bool,
) {
    let faults = "chunk-delay=60;chunks=1000;comments;omitted;hangup-stops";
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &[faults]);
    let world = builder.conf("[timeouts]\ndrain_ms = 100").run().await;
    let call = with(chat_of("lma-opus-5"), &json!({ "max_tokens": 5_000, "stream": true }));
    let path = if native { "/v1/messages" } else { "/v1/chat/completions" };
    let answer = world.request(path).body(call.to_string()).send().await;
    drop(answer.expect("the head of an answer"));
    let charge = world.charge().await;
    assert!(world.sim.quiet(Duration::from_secs(2)).await, "the vendor was told to stop");
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!((charge.basis.as_str(), charge.tokens().0), ("counted", billed.prompt));
    assert!(charge.tokens().1 < 5, "nothing visible: {charge:?}");
}
