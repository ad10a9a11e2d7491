//! Counts of tokens: passed to the vendor under the rules of the calls that they count, and free.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    Answer, COUNT_TOKENS, Canned, INPUT_TOKENS, Offer, RESPONSES, Sent, Store, World, chat_of, http,
};

const COUNTS: [Offer; 2] = [COUNT_TOKENS, INPUT_TOKENS];

/// The status and the code of an error, or its type in the messages format.
fn refusal(offer: Offer, answer: &Answer) -> (u16, String) {
    if offer == COUNT_TOKENS { answer.messages_refusal() } else { answer.refusal() }
}

/// The same, of a call that is wrong.
fn refused(offer: Offer, status: u16, code: &str, of_messages: &str) -> (u16, String) {
    (status, if offer == COUNT_TOKENS { of_messages } else { code }.to_owned())
}

#[rstest]
#[tokio::test]
async fn a_count_is_free_and_needs_no_credit(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).credit("0").run().await;
    for offer in COUNTS {
        let answer = world.ask(offer).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.json()["input_tokens"].as_u64().is_some_and(|n| n > 0), "{answer:?}");
        assert_eq!(answer.header("x-gateway-fallback-depth"), Some("0"));
        let seen = world.sim.take_seen().remove(0);
        assert!(seen.path.ends_with(offer.path), "{}", seen.path);
        assert_eq!(seen.json(), offer.call(), "it passes as it came");
        let labels = format!("endpoint={:?}", offer.endpoint);
        world.metric_becomes("tollgate_requests_total", &[&labels, "status=\"200\""], 1).await;
    }
    let refused = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(refused.refusal(), (402, "insufficient_credits".to_owned()));
    world.free_of_charge().await;
}

#[tokio::test]
async fn the_vendors_count_passes_byte_for_byte() {
    let reply = r#"{ "object":"response.input_tokens", "input_tokens":11,"x":null }"#;
    let vendor = Canned::start(http(reply), usize::MAX).await;
    let url = vendor.url.as_str();
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[url]).vendor("vendor_b", &[url]);
    let world = world.run().await;
    for offer in COUNTS {
        let answer = world.ask(offer).await;
        assert_eq!((answer.status, answer.body.as_ref()), (200, reply.as_bytes()), "{answer:?}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_count_falls_back_and_has_the_vendors_name_of_the_model() {
    let names = "[vendor.vendor_a.names]\n\"lma-*\" = \"brand-*\"\n\
                 [vendor.vendor_b.names]\n\"lmb-*\" = \"brand-*\"\n";
    let routes = ["status=503", "status=503"];
    let world = World::start(Store::Sqlite).vendor("vendor_a", &routes);
    let world = world.vendor("vendor_b", &routes).conf(names).run().await;
    for (offer, name) in COUNTS.into_iter().zip(["brand-sonnet-4-6", "brand-5.5"]) {
        let answer = world.ask(offer).await;
        let overloaded = if offer == COUNT_TOKENS { 529 } else { 503 };
        let code = refused(offer, overloaded, "upstream_overloaded", "overloaded_error");
        assert_eq!(refusal(offer, &answer), code, "{answer:?}");
        assert_eq!(answer.header("x-gateway-fallback-depth"), Some("1"));
        let models: Vec<Value> =
            world.sim.take_seen().iter().map(|s| s.json()["model"].clone()).collect();
        assert_eq!(models, [name, name]);
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn what_is_wrong_with_the_call_is_wrong_with_its_count() {
    let world = World::start(Store::Sqlite).run().await;
    let invalid = "invalid_request_error";
    for (offer, members, status, code, of_messages) in [
        (COUNT_TOKENS, json!({ "model": "lma-sonnet-4-7" }), 404, "", "not_found_error"),
        (INPUT_TOKENS, json!({ "model": "lmb-5.55" }), 404, "model_not_found", ""),
        (COUNT_TOKENS, json!({ "model": "lmb-5.5" }), 400, "", invalid),
        (INPUT_TOKENS, json!({ "model": "lma-sonnet-4-6" }), 400, "wrong_endpoint", ""),
        (COUNT_TOKENS, json!({ "messages": null }), 400, "", invalid),
        (COUNT_TOKENS, json!({ "fallbacks": ["lma-opus-5"] }), 400, "", invalid),
        (INPUT_TOKENS, json!({ "background": true }), 400, "unsupported_parameter", ""),
        (INPUT_TOKENS, json!({ "input": [] }), 400, "invalid_value", ""),
        (INPUT_TOKENS, json!({ "previous_response_id": "resp_x" }), 404, "not_found", ""),
    ] {
        let what = format!("{} {members}", offer.endpoint);
        let answer = world.call(offer, members).await;
        let expected = refused(offer, status, code, of_messages);
        assert_eq!(refusal(offer, &answer), expected, "{what}: {answer:?}");
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{what}");
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    let misplaced = world.call(COUNT_TOKENS, json!({ "model": "lmb-5.5" })).await;
    assert!(misplaced.message().contains("/v1/chat/completions"), "{}", misplaced.message());
    world.free_of_charge().await;
}

#[tokio::test]
async fn what_the_account_was_given_is_counted_too() {
    let world = World::start(Store::Sqlite).run().await;
    let given = world.ask(RESPONSES).await.json()["id"].clone();
    let answer = world.call(INPUT_TOKENS, json!({ "previous_response_id": given, "input": null }));
    let answer = answer.await;
    assert_eq!(answer.status, 200, "{answer:?}");
    world.settled(1).await;
}

#[tokio::test]
async fn a_limit_of_output_is_the_vendors_to_judge() {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.call(COUNT_TOKENS, json!({ "max_tokens": 5 })).await;
    assert_eq!(answer.messages_refusal(), (400, "invalid_request_error".to_owned()));
    assert_eq!(world.sim.take_seen().len(), 1);
    world.free_of_charge().await;
}

#[rstest]
#[case::error(r#"{"type":"error","error":{"type":"api_error","message":"no"}}"#)]
#[case::nothing("{}")]
#[case::no_number(r#"{"input_tokens":"11"}"#)]
#[case::half(r#"{"input_tokens":1"#)]
#[tokio::test]
async fn a_200_without_a_count_is_no_success(#[case] reply: &str) {
    let vendor = Canned::start(http(reply), usize::MAX).await;
    let url = vendor.url.as_str();
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[url]).vendor("vendor_b", &[url]);
    let world = world.run().await;
    for offer in COUNTS {
        let answer = world.ask(offer).await;
        let expected = refused(offer, 502, "upstream_error", "api_error");
        assert_eq!(refusal(offer, &answer), expected, "{answer:?}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn each_count_is_asked_for_whatever_key_of_a_repeat_it_has() {
    let world = World::start(Store::Sqlite).run().await;
    for offer in COUNTS {
        let Sent { media, bytes } = offer.sent(&json!({}));
        for _ in 0..2 {
            let request = world.sending(offer.path, &media, Some(&world.key));
            let request = request.header("idempotency-key", "one").body(bytes.clone());
            assert_eq!(Answer::read(request).await.header("idempotent-replayed"), None);
        }
        assert_eq!(world.sim.take_seen().len(), 2, "{offer:?}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_count_is_served_while_the_ledger_is_down() {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    assert_eq!(world.ask(COUNT_TOKENS).await.status, 200);
    world.redis().stop();
    for offer in COUNTS {
        let answer = world.ask(offer).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert!(world.redis().start_again());
    world.free_of_charge().await;
}
