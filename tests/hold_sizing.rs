//! How much is held for a call where the balance is short, and the limit that the vendor is sent.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{CHAT, MESSAGES, Offer, RESPONSES, Store, World, chat_of, usd};

const HEADER: &str = "x-gateway-output-limit";
const PRO: Offer = Offer { model: "o1-pro", ..RESPONSES };
/// Nano-USD of a token of o1-pro, in and out.
const PRO_INPUT: i64 = 150_000;
const PRO_OUTPUT: i64 = 600_000;

/// Bytes of a call: no token is less than one.
fn bytes(offer: Offer, members: &Value) -> i64 {
    i64::try_from(offer.sent(members).bytes.len()).expect("a short call")
}

#[rstest]
#[tokio::test]
async fn a_call_without_a_limit_cost_thirty_dollars_on_a_balance_of_two_cents(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let members = json!({ "stream": stream });
    let credit = bytes(PRO, &members) * PRO_INPUT + 20 * PRO_OUTPUT;
    let vendor = ["prompt=10;reasoning=50000"];
    let builder = World::start(store).vendor("vendor_b", &vendor);
    let world = builder.credit(&usd(credit)).run().await;
    let answer = world.call(PRO, members).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, Some("20")));
    assert_eq!(world.sim.seen()[0].json()["max_output_tokens"], 20);
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.written_off_nano), ((10, 20), 0));
}

#[tokio::test]
async fn a_limit_below_the_least_that_the_vendor_takes_is_no_limit_but_a_refusal() {
    let credit = bytes(PRO, &json!({})) * PRO_INPUT + 16 * PRO_OUTPUT;
    let world = World::start(Store::Sqlite).credit(&usd(credit - 1)).run().await;
    let refused = world.call(PRO, json!({})).await;
    assert_eq!(refused.refusal(), (402, "insufficient_credits".to_owned()));
    assert_eq!(world.sim.count("vendor_b"), 0);
    world.command(&["credit", "add", "acct", "0.000000001"]).await.done();
    let served = world.call(PRO, json!({})).await;
    assert_eq!((served.status, served.header(HEADER)), (200, Some("16")));
}

#[rstest]
#[case::none(json!({ "n": 1 }), json!({ "max_completion_tokens": 5_000 }))]
#[case::its_own_name(json!({ "max_tokens": 90_000 }), json!({ "max_tokens": 5_000 }))]
#[tokio::test]
async fn where_one_call_runs_it_may_take_a_quarter_of_a_short_balance(
    #[case] members: Value,
    #[case] sent: Value,
) {
    // A quarter of the balance covers the input and 5,000 tokens of output.
    let credit = 4 * (bytes(CHAT, &members) * 5_000 + 5_000 * 30_000);
    let world = World::start(Store::Sqlite).credit(&usd(credit)).run().await;
    let answer = world.call(CHAT, members.clone()).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, Some("5000")));
    let seen = world.sim.seen()[0].json();
    for (field, value) in sent.as_object().expect("members") {
        assert_eq!(&seen[field], value);
    }
}

#[tokio::test]
async fn a_balance_that_covers_the_call_at_its_largest_changes_no_byte() {
    let credit = bytes(CHAT, &json!({})) * 5_000 + 128_000 * 30_000;
    let world = World::start(Store::Sqlite).credit(&usd(credit)).run().await;
    let answer = world.call(CHAT, json!({})).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, None));
    assert_eq!(world.sim.seen()[0].body, CHAT.sent(&json!({})).bytes);
}

#[rstest]
#[case::vendor_b(CHAT, json!({}), "max_completion_tokens", 5_000, 30_000)]
#[case::translated(
    Offer { model: "lma-sonnet-4-5", vendor: "vendor_a", ..CHAT },
    json!({ "max_completion_tokens": 60_000 }),
    "max_tokens",
    3_000,
    15_000
)]
#[case::messages(
    Offer { model: "lma-sonnet-4-5", ..MESSAGES },
    json!({ "max_tokens": 60_000 }),
    "max_tokens",
    3_000,
    15_000
)]
#[tokio::test]
async fn a_stream_that_may_reason_unseen_may_take_half_of_a_short_balance(
    #[case] offer: Offer,
    #[case] mut members: Value,
    #[case] field: &str,
    #[case] input: i64,
    #[case] output: i64,
) {
    members["stream"] = true.into();
    // Half of the balance covers the input and 9,000 tokens of output.
    let credit = 2 * (bytes(offer, &members) * input + 9_000 * output);
    let vendor = ["prompt=1;reasoning=90000"];
    let builder = World::start(Store::Sqlite).vendor(offer.vendor, &vendor);
    let world = builder.credit(&usd(credit)).run().await;
    let answer = world.call(offer, members).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, Some("9000")));
    assert_eq!(world.sim.seen()[0].json()[field], 9_000);
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.written_off_nano), ((1, 9_000), 0));
}

#[tokio::test]
async fn a_report_beyond_the_limit_that_was_sent_is_not_believed() {
    let members = json!({ "stream": true });
    let credit = bytes(CHAT, &members) * 5_000 + 650 * 30_000;
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &["prompt=10;completion=50000"]);
    let world = builder.credit(&usd(credit)).run().await;
    let answer = world.call(CHAT, members).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, Some("650")));
    let charge = world.charge().await;
    assert!(charge.tokens().1 <= 650, "{charge:?}");
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0));
}

#[tokio::test]
async fn a_stream_whose_output_is_all_seen_is_not_limited() {
    let offer = Offer { model: "lmb-4.1", ..CHAT };
    let members = json!({ "stream": true });
    let credit = bytes(offer, &members) * 2_000 + 4_096 * 8_000;
    let world = World::start(Store::Sqlite).credit(&usd(credit)).run().await;
    let answer = world.call(offer, members).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, None));
}

#[rstest]
#[tokio::test]
async fn a_budget_of_thought_stays_below_the_limit(#[values(false, true)] stream: bool) {
    let offer = Offer { model: "lma-sonnet-4-5", ..MESSAGES };
    let thinking = json!({ "type": "enabled", "budget_tokens": 2_000 });
    let members = json!({ "max_tokens": 60_000, "thinking": thinking, "stream": stream });
    let least = bytes(offer, &members) * 3_000 + 2_001 * 15_000;
    let world = World::start(Store::Sqlite).credit(&usd(least - 1)).run().await;
    assert_eq!(world.call(offer, members.clone()).await.refusal().0, 402);
    world.command(&["credit", "add", "acct", "0.000000001"]).await.done();
    let answer = world.call(offer, members).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, Some("2001")));
    assert_eq!(world.sim.seen()[0].json()["max_tokens"], 2_001);
}

#[tokio::test]
async fn a_translated_call_is_limited_in_the_vendors_format() {
    let members = json!({ "max_completion_tokens": 60_000 });
    let offer = Offer { model: "lma-sonnet-4-5", vendor: "vendor_a", ..CHAT };
    let credit = bytes(offer, &members) * 3_000 + 100 * 15_000;
    let world = World::start(Store::Sqlite).credit(&usd(credit)).run().await;
    let answer = world.call(offer, members).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, Some("100")));
    assert_eq!(world.sim.seen()[0].json()["max_tokens"], 100);
}

#[rstest]
#[tokio::test]
async fn where_a_limit_does_not_bound_hidden_output_the_whole_estimate_is_needed(
    #[values(false, true)] stream: bool,
) {
    let offer = Offer { model: "lmd-4.6", vendor: "vendor_d", ..CHAT };
    let members = json!({ "max_tokens": 10, "stream": stream });
    let least = bytes(offer, &members) * 2_000 + 4_096 * 6_000;
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &["reasoning=4000"]);
    let world = builder.credit(&usd(least - 1)).run().await;
    assert_eq!(world.call(offer, members.clone()).await.refusal().0, 402);
    world.command(&["credit", "add", "acct", "0.000000001"]).await.done();
    let answer = world.call(offer, members).await;
    assert_eq!((answer.status, answer.header(HEADER)), (200, None));
    assert_eq!(world.charge().await.written_off_nano, 0);
}

/// A framework sends a high limit with each call, and several calls at a time.
#[rstest]
#[tokio::test]
async fn ten_parallel_calls_with_a_high_limit_were_one_served_and_nine_refused(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut call = chat_of("lmb-5.4-mini");
    call["max_tokens"] = 128_000.into();
    let vendor = ["delay=500;prompt=10;completion=80"];
    let world = World::start(store).credit("1").vendor("vendor_b", &vendor).run().await;
    let calls = (0..10).map(|_| world.chat(call.clone()));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    let charges = world.settled(10).await;
    assert!(charges.iter().all(|charge| charge.written_off_nano == 0), "{charges:?}");
}

#[rstest]
#[tokio::test]
async fn parallel_calls_with_hidden_reasoning_wrote_off_many_times_the_balance(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let mut call = chat_of("lmb-5-mini");
    call["stream"] = stream.into();
    let vendor = ["delay=200;prompt=10;reasoning=100000"];
    let world = World::start(store).credit("0.05").vendor("vendor_b", &vendor).run().await;
    let calls = (0..60).map(|_| world.chat(call.clone()));
    let answers = futures_util::future::join_all(calls).await;
    let served = answers.iter().filter(|answer| answer.status == 200).count();
    assert!((1..60).contains(&served), "{served} were served");
    let refused = answers.iter().filter(|answer| answer.status != 200);
    refused.for_each(|answer| assert!(matches!(answer.status, 402 | 429), "{answer:?}"));
    let charges = world.settled(served).await;
    assert!(charges.iter().all(|charge| charge.written_off_nano == 0), "{charges:?}");
    assert_eq!(world.balances().await.held, 0);
}

#[tokio::test]
async fn a_stream_holds_what_the_account_took_lately() {
    let vendor = ["delay=300;prompt=1;completion=10"];
    let world = World::start(Store::Sqlite).vendor("vendor_b", &vendor).run().await;
    let offer = Offer { model: "lmb-4.1", ..CHAT };
    let members = json!({ "max_tokens": 5_000, "stream": true });
    let input = bytes(offer, &members) * 2_000;
    let (_, held) = world.held_during(offer, members.clone()).await;
    assert_eq!(held, input + 4_096 * 8_000, "by the rules");
    world.settled(1).await;
    let (_, held) = world.held_during(offer, members).await;
    assert_eq!(held, input + 16 * 8_000, "half as much again as the call before");
}
