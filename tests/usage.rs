//! Usage that a vendor reports and that cannot be: it is no report, and nobody pays for it.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    Answer, CHAT, Canned, EMBEDDING_B, IMAGE_B, IMAGE_D, MESSAGES, Offer, RESPONSES, Store, World,
    chat_of, http, messages_of, usd, with,
};

/// What the account of a world begins with.
const CREDIT: i64 = 5_000_000_000;
const ABSURD: u64 = 900_000_000;
const TRANSLATED: Offer = Offer { vendor: "vendor_a", model: "lma-sonnet-4-6", ..CHAT };

/// Makes a call, and tells how much was held for it while its vendor worked.
async fn held_for(world: &World, offer: Offer, members: Value) -> (Answer, i64) {
    let held = async {
        while world.sim.count(offer.vendor) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let held = world.balances().await.held;
        world.sim.let_go();
        held
    };
    tokio::join!(world.call(offer, members), held)
}

/// What was refused is in the journal, in a metric and in the log, and the charge was counted.
async fn is_refused(world: &World, offer: Offer) -> crate::world::Charge {
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0), "{charge:?}");
    assert!(charge.rejected_usage.is_some(), "{charge:?}");
    let labels = [&*format!("vendor=\"{}\"", offer.vendor), "route=\"r0\""];
    world.metric_becomes("tollgate_usage_rejected_total", &labels, 1).await;
    let line = world.logged(&["vendor usage rejected"]).await;
    for word in ["error", "usage_rejected", &charge.request_id, "acct", offer.vendor, offer.model] {
        assert!(line.contains(word), "{word} is not in {line}");
    }
    charge
}

#[rstest]
#[case::chat(CHAT, "completion=900000000", json!({ "max_tokens": 5 }), "completion_tokens")]
#[case::chat_input(CHAT, "prompt=900000000", json!({ "max_tokens": 5 }), "prompt_tokens")]
#[case::chat_without_a_limit(CHAT, "completion=900000000", json!({}), "completion_tokens")]
#[case::translated(
    TRANSLATED, "completion=900000000", json!({ "max_tokens": 5 }), "completion_tokens"
)]
#[case::translated_input(
    TRANSLATED, "prompt=900000000", json!({ "max_tokens": 5 }), "prompt_tokens"
)]
#[case::messages(MESSAGES, "completion=900000000", json!({ "max_tokens": 5 }), "completion_tokens")]
#[case::messages_input(MESSAGES, "prompt=900000000", json!({ "max_tokens": 5 }), "prompt_tokens")]
#[case::responses(
    RESPONSES, "completion=900000000", json!({ "max_output_tokens": 16 }), "completion_tokens"
)]
#[case::responses_input(RESPONSES, "prompt=900000000", json!({}), "prompt_tokens")]
#[tokio::test]
async fn a_vendor_that_reports_900_million_tokens_takes_no_more_than_the_hold(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[case] offer: Offer,
    #[case] faults: &str,
    #[case] members: Value,
    #[case] refused: &str,
) {
    let faults = format!("{faults};held=0");
    let world = World::start(store).vendor(offer.vendor, &[&faults]).run().await;
    let members = with(members, &json!({ "stream": stream }));
    let (answer, held) = held_for(&world, offer, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = is_refused(&world, offer).await;
    assert!((1..=held).contains(&charge.amount_nano), "{held} {charge:?}");
    let figures = charge.rejected_usage.expect("what was refused");
    assert_eq!(figures[refused], ABSURD, "{figures}");
    assert_eq!(world.balances().await.available, CREDIT - charge.amount_nano);
}

fn tokens(input: u64, output: u64) -> Value {
    json!({ "prompt_tokens": input, "completion_tokens": output })
}

#[rstest]
#[case::embedding(EMBEDDING_B, "prompt=900000000", tokens(ABSURD, 0))]
#[case::image(IMAGE_B, "prompt=8;completion=900000000", tokens(8, ABSURD))]
#[case::image_input(IMAGE_B, "prompt=900000000;completion=9", tokens(ABSURD, 9))]
#[case::image_of_a_bill(
    IMAGE_D, "ticks=99999999999", json!({ "images": 1, "cost_in_usd_ticks": 99_999_999_999_u64 })
)]
#[tokio::test]
async fn what_is_no_text_is_not_believed_without_bounds_either(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] offer: Offer,
    #[case] faults: &str,
    #[case] figures: Value,
) {
    let faults = format!("{faults};held=0");
    let world = World::start(store).vendor(offer.vendor, &[&faults]).credit("50").run().await;
    let (answer, held) = held_for(&world, offer, json!({})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = is_refused(&world, offer).await;
    assert!((1..=held).contains(&charge.amount_nano), "{held} {charge:?}");
    assert_eq!(charge.rejected_usage, Some(figures));
}

/// The balance covers the least of the call, and more was counted of its answer.
#[rstest]
#[tokio::test]
async fn what_is_counted_in_the_place_of_a_refused_report_is_at_most_the_hold(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "completion=900000000;reply-bytes=40000";
    let call = chat_of("lmb-5.5");
    let bytes = i64::try_from(call.to_string().len()).expect("a short call");
    let credit = bytes * 5_000 + 30_000;
    let world = World::start(store).credit(&usd(credit)).vendor("vendor_b", &[faults]).run().await;
    assert_eq!(world.chat(call).await.status, 200);
    let charge = is_refused(&world, CHAT).await;
    assert!(charge.amount_nano <= credit, "{charge:?}");
    assert_eq!(charge.tokens().1, 1, "no more is counted than the limit that was sent: {charge:?}");
}

#[rstest]
#[tokio::test]
async fn a_refused_report_that_comes_after_the_client_has_gone_takes_no_more_either(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "completion=900000000;chunks=20;chunk-delay=20";
    let world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    let mut stream =
        world.open_stream(with(chat_of("lmb-5.5"), &json!({ "max_tokens": 50 }))).await;
    stream.take(3).await;
    drop(stream);
    let charge = is_refused(&world, CHAT).await;
    assert!(charge.amount_nano < 5_000_000, "{charge:?}");
}

/// Replies as they were recorded, and calls that they answer.
#[rstest]
#[case::reasoning_in_the_total_only(
    "vendor_d", "lmd-4.6", json!({ "max_tokens": 1 }),
    r#"{"prompt_tokens":12,"completion_tokens":1,"total_tokens":241,"completion_tokens_details":{"reasoning_tokens":228}}"#,
    (12, 229)
)]
#[case::reasoning_left_out(
    "vendor_e", "orgI/famI-4-31B-it", json!({ "max_tokens": 1_200 }),
    r#"{"prompt_tokens":19,"completion_tokens":84,"total_tokens":1184}"#,
    (19, 1_165)
)]
#[case::long_reasoning_without_a_limit(
    "vendor_b", "lmb-5.5", json!({}),
    r#"{"prompt_tokens":11,"completion_tokens":90000,"total_tokens":90011,"completion_tokens_details":{"reasoning_tokens":89998}}"#,
    (11, 90_000)
)]
#[case::all_of_the_limit(
    "vendor_b", "lmb-4o", json!({ "max_tokens": 16 }),
    r#"{"prompt_tokens":11,"completion_tokens":16,"total_tokens":27}"#,
    (11, 16)
)]
#[case::what_was_predicted(
    "vendor_b", "lmb-4o",
    json!({
        "max_tokens": 16, "prediction": { "type": "content", "content": "word ".repeat(6_000) },
    }),
    r#"{"prompt_tokens":7011,"completion_tokens":6016,"total_tokens":13027,"completion_tokens_details":{"rejected_prediction_tokens":6000}}"#,
    (7_011, 6_016)
)]
#[case::a_picture(
    "vendor_b", "lmb-4o-mini",
    json!({ "messages": [{ "role": "user", "content": [
        { "type": "image_url", "image_url": { "url": "https://a.test/b.png" } },
    ] }] }),
    r#"{"prompt_tokens":48180,"completion_tokens":16,"total_tokens":48196}"#,
    (48_180, 16)
)]
#[tokio::test]
async fn an_honest_report_is_charged_exactly(
    #[case] vendor: &str,
    #[case] model: &str,
    #[case] members: Value,
    #[case] usage: &str,
    #[case] tokens: (u64, u64),
) {
    let canned = Canned::with_usage(usage).await;
    let world = World::start(Store::Sqlite).credit("50").vendor(vendor, &[&canned.url]).run().await;
    let answer = world.chat(with(chat_of(model), &members)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.basis.as_str()), (tokens, "reported"));
    assert_eq!((charge.rejected_usage, charge.written_off_nano), (None, 0));
    assert_eq!(world.metric("tollgate_usage_rejected_total", &[]).await, 0);
}

#[rstest]
#[case::within_the_limit(1_088, true)]
#[case::above_it(1_200, false)]
#[tokio::test]
async fn a_limit_that_was_filled_in_is_one(#[case] output: u64, #[case] is_believed: bool) {
    // The rules fill in 8192 where a chat call for this vendor names none.
    let output = output + 8_192 - 512;
    let body = format!(
        r#"{{"id":"m","type":"message","role":"assistant","model":"m","content":[{{"type":"text","text":"four"}}],"stop_reason":"end_turn","usage":{{"input_tokens":12,"output_tokens":{output}}}}}"#
    );
    let canned = Canned::start(http(&body), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[&canned.url]).run().await;
    assert_eq!(world.chat(chat_of("lma-opus-5")).await.status, 200);
    let charge = world.charge().await;
    assert_eq!(charge.basis == "reported", is_believed, "{charge:?}");
}

#[tokio::test]
async fn what_is_cached_for_an_hour_is_charged_at_its_price_or_refused() {
    let hour = json!({ "type": "ephemeral", "ttl": "1h" });
    let system = json!([{ "type": "text", "text": "a ".repeat(2_000), "cache_control": hour }]);
    let native = with(messages_of("lma-opus-5"), &json!({ "system": system }));
    let mut chat = chat_of("lma-opus-5");
    chat["messages"][0]["content"] = system.clone();
    let usage = json!({
        "input_tokens": 12, "cache_creation_input_tokens": 1_000, "cache_read_input_tokens": 0,
        "cache_creation": { "ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 900 },
        "output_tokens": 5,
    });
    let reply = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
        "stop_reason": "end_turn", "content": [{ "type": "text", "text": "four" }], "usage": usage,
    });
    let canned = Canned::start(http(&reply.to_string()), usize::MAX).await;
    let builder = World::start(Store::Sqlite).own_rules().vendor("vendor_a", &[&canned.url]);
    let world = builder.run().await;
    let paths = ["/v1/messages", "/v1/chat/completions"];
    for (path, call) in paths.iter().zip([&native, &chat]) {
        let answer = Answer::read(world.request(path).body(call.to_string())).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(said.contains("cache_control.ttl"), "{said}");
    }
    assert_eq!(canned.heard(), 0);
    world.free_of_charge().await;
    let file = world.path("rules/vendor_a.toml");
    let rules = std::fs::read_to_string(&file).expect("the rules");
    let (head, examples) = rules.split_once("# Examples of the refusals.").expect("examples");
    let kept = examples.split("[[example]]").filter(|e| !e.contains("cache_control.ttl"));
    let priced = head.replacen(
        "{ input = 5,  output = 25,",
        "{ input = 5, cache_write = 6.25, cache_write_1h = 10, output = 25,",
        1,
    );
    let rules = format!("{priced}{}", kept.collect::<Vec<_>>().join("[[example]]"));
    std::fs::write(&file, rules).expect("other rules");
    world.logged(&["rules reloaded"]).await;
    for (path, call) in paths.iter().zip([&native, &chat]) {
        let answer = Answer::read(world.request(path).body(call.to_string())).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let nano = 12 * 5_000 + 100 * 6_250 + 900 * 10_000 + 5 * 25_000;
    for charge in world.settled(2).await {
        assert_eq!((charge.amount_nano, &*charge.basis), (nano, "reported"), "{charge:?}");
        assert_eq!(charge.usage["cache_write_1h_tokens"], 900, "{charge:?}");
    }
}

/// What an account that holds little may cost the operator today: see docs/reliability.md.
#[tokio::test]
async fn an_account_used_up_many_times_its_credit() {
    let whole = World::start(Store::Sqlite)
        .credit("0.02")
        .vendor("vendor_b", &["completion=50000"])
        .run()
        .await;
    let body = json!({ "model": "o1-pro", "input": "2 + 2?" }).to_string();
    let answer = Answer::read(whole.request(RESPONSES.path).body(body)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = whole.charge().await;
    assert!((1..=20_000_000).contains(&charge.amount_nano), "{charge:?}");
    assert_eq!(charge.written_off_nano, 0);

    let faults = "completion=10;reasoning=4000;delay=2000";
    let many = World::start(Store::Sqlite).credit("0.05").vendor("vendor_d", &[faults]).run().await;
    let call = with(chat_of("lmd-4.6"), &json!({ "max_tokens": 16 }));
    let answers = futures_util::future::join_all((0..300).map(|_| many.chat(call.clone()))).await;
    let served = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(served, 2, "each holds more than 0.024 USD");
    let charges = many.settled(served).await;
    assert!(charges.iter().all(|charge| charge.written_off_nano == 0), "{charges:?}");
}
