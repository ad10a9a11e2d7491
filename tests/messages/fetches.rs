//! Pages that the vendor fetches: they have no fee, and are taken as long as the hold covers what
//! may be in them and how often the vendor reads it.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{MESSAGES, Offer, Store, World, messages_of, with};

/// A cheap model: 1,000 and 5,000 nano-USD a token, with a context of 200,000.
const CHEAP: Offer = Offer { model: "lma-haiku-4-5", ..MESSAGES };
/// 2,000 and 10,000 nano-USD a token, with a context of 1,000,000.
const LONG: Offer = Offer { model: "lma-sonnet-5", ..MESSAGES };
const CONTEXT: i64 = 200_000;
/// What the vendor adds for having tools and for its own.
const TOOLS: i64 = 2 * 1_500;
/// The vendor reads the input at most so many times after the first.
const REPEATS: i64 = 9;

fn fetch(limits: &Value) -> Value {
    let tool = json!({ "type": "web_fetch_20250910", "name": "web_fetch" });
    json!({ "max_tokens": 10, "tools": [with(tool, limits)] })
}

fn length(offer: Offer, members: &Value) -> i64 {
    i64::try_from(offer.sent(members).bytes.len()).expect("a short call")
}

#[rstest]
#[tokio::test]
async fn a_fetch_passes_as_it_came_and_the_pages_are_charged_as_input(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(
        "web_fetch_20250910",
        "web_fetch_20260209",
        "web_fetch_20260309",
        "web_fetch_20260318"
    )]
    kind: &str,
    #[values(false, true)] stream: bool,
) {
    // So many tokens are read only if the input is read several times.
    let world = World::start(store).vendor("vendor_a", &["prompt=900000"]).run().await;
    let limits = json!({
        "type": kind, "max_uses": 5, "max_content_tokens": 100_000,
        "citations": { "enabled": true }, "allowed_domains": ["sums.example"],
    });
    let members = with(fetch(&limits), &json!({ "stream": stream, "max_tokens": 1_000 }));
    let answer = world.messages(with(messages_of(CHEAP.model), &members)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(String::from_utf8_lossy(&answer.body).contains("web_fetch_tool_result"), "{answer:?}");
    let seen = world.sim.take_seen().remove(0);
    assert_eq!(seen.json()["tools"], members["tools"]);
    let charge = world.charge().await;
    let billed = seen.billed.expect("a bill");
    assert_eq!((charge.tokens().0, charge.basis.as_str()), (900_000, "reported"));
    let output = i64::try_from(billed.total - billed.prompt).expect("few");
    assert_eq!(charge.amount_nano, 900_000 * 1_000 + output * 5_000);
    assert_eq!(charge.written_off_nano, 0);
}

#[rstest]
#[case::without_limits(json!({}), CONTEXT)]
#[case::of_uses_only(json!({ "max_uses": 1 }), CONTEXT)]
#[case::of_content_only(json!({ "max_content_tokens": 10 }), CONTEXT)]
#[case::a_limit_of_text(json!({ "max_uses": 1, "max_content_tokens": "10" }), CONTEXT)]
// A document of pages is never cut, and does not fit into the context of this model.
#[case::of_both(json!({ "max_uses": 1, "max_content_tokens": 10 }), CONTEXT)]
#[tokio::test]
async fn the_whole_context_is_held_for_each_reading(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] limits: Value,
    #[case] reading: i64,
) {
    let world = World::start(store).vendor("vendor_a", &["delay=800"]).run().await;
    let members = fetch(&limits);
    let first = length(CHEAP, &members) + TOOLS;
    let (answer, held) = world.held_during(CHEAP, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(held, (first + REPEATS * reading) * 1_000 + 10 * 5_000);
    world.settled(1).await;
}

#[rstest]
#[case::of_a_page(json!({ "max_uses": 1, "max_content_tokens": 10 }), 500_000)]
#[case::of_a_long_text(json!({ "max_uses": 1, "max_content_tokens": 300_000 }), 600_000)]
#[tokio::test]
async fn limits_make_the_hold_for_a_long_context_smaller(
    #[case] limits: Value,
    #[case] added: i64,
) {
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &["delay=800"]);
    let world = builder.credit("20").run().await;
    let members = fetch(&limits);
    let first = length(LONG, &members) + TOOLS;
    let (answer, held) = world.held_during(LONG, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(held, (first + REPEATS * (first + added + 10)) * 2_000 + 10 * 10_000);
    world.settled(1).await;
}

#[rstest]
#[tokio::test]
async fn who_cannot_pay_for_the_readings_is_refused_before_the_vendor_hears_of_it(
    #[values(false, true)] stream: bool,
) {
    let members = with(fetch(&json!({ "max_uses": 1 })), &json!({ "stream": stream }));
    let least = (length(CHEAP, &members) + TOOLS + REPEATS * CONTEXT) * 1_000 + 5_000;
    let usd = |nano: i64| format!("{}.{:09}", nano / 1_000_000_000, nano % 1_000_000_000);
    let world = World::start(Store::Sqlite).credit(&usd(least - 1)).run().await;
    let call = with(messages_of(CHEAP.model), &members);
    let answer = world.messages(call.clone()).await;
    assert_eq!(answer.messages_refusal(), (402, "billing_error".to_owned()), "{answer:?}");
    assert_eq!(world.sim.seen().len(), 0);
    world.command(&["credit", "add", "acct", "0.000000001"]).await.done();
    assert_eq!(world.messages(call).await.status, 200);
    world.settled(1).await;
}

#[tokio::test]
async fn a_tool_of_the_vendor_with_a_fee_or_of_an_unknown_date_is_refused_by_its_place() {
    let world = World::start(Store::Sqlite).run().await;
    for kind in ["web_search_20250305", "web_fetch_20990101", "web_fetch", "code_execution_1"] {
        let tools = json!([
            { "name": "f", "input_schema": { "type": "object" } }, { "type": kind, "name": "w" },
        ]);
        let call = with(messages_of(CHEAP.model), &json!({ "tools": tools }));
        let answer = world.messages(call).await;
        assert_eq!(answer.messages_refusal(), (400, "invalid_request_error".to_owned()), "{kind}");
        let begins = format!("tools[1].type '{kind}' is not available: ");
        assert!(answer.message().starts_with(&begins), "{}", answer.message());
        assert!(answer.message().contains("web_fetch"), "{}", answer.message());
    }
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_conversation_with_fetched_pages_goes_on() {
    let world = World::start(Store::Sqlite).run().await;
    let call = with(messages_of(CHEAP.model), &fetch(&json!({ "max_uses": 2 })));
    let first = world.messages(call.clone()).await;
    assert_eq!(first.status, 200, "{first:?}");
    let messages = json!([
        call["messages"][0],
        { "role": "assistant", "content": first.json()["content"] },
        { "role": "user", "content": "And three?" },
    ]);
    let second = world.messages(with(call, &json!({ "messages": messages }))).await;
    assert_eq!(second.status, 200, "{second:?}");
    assert_eq!(world.sim.seen()[1].json()["messages"], messages);
    world.settled(2).await;
}
