//! Conversations that are compacted: the body goes to the vendor and the reply to the client as
//! they are, under the rules of responses, and what the pass cost is charged.

use rstest::rstest;
use serde_json::{Value, json};

use super::price;
use crate::world::{Answer, COMPACT, Canned, RESPONSES, Sent, Store, World, http};

const NAMES: &str = "[vendor.vendor_b.names]\n\"lmb-*\" = \"brand-*\"\n\
                     [vendor.vendor_b.aliases]\n\"agent\" = \"lmb-5.5\"";

/// A conversation, with items that agents send.
fn conversation() -> Value {
    json!([
        { "role": "user", "content": "How much is 2 + 2?" },
        { "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAA" },
        { "type": "message", "role": "assistant", "id": "msg_1", "content": [
            { "type": "output_text", "text": "Four." },
        ] },
        { "type": "compaction", "id": "cmp_1", "encrypted_content": "gAA" },
        { "role": "user", "content": "And three?" },
    ])
}

#[rstest]
#[case::by_its_id("lmb-5.5", None)]
#[case::by_an_alias("agent", Some("lmb-5.5"))]
#[tokio::test]
async fn a_conversation_is_compacted_as_it_came_and_charged_as_reported(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] name: &str,
    #[case] model: Option<&str>,
) {
    let world = World::start(store).vendor("vendor_b", &["prompt=900;completion=70"]).conf(NAMES);
    let world = world.run().await;
    let rest = r#""input" : "\u0041 \"model\"","instructions":"Be brief.","service_tier":"flex""#;
    let body = |model: &str| format!(r#"{{ {rest}, "model":"{model}" }}"#);
    let answer = Answer::read(world.request(COMPACT.path).body(body(name))).await;
    assert_eq!((answer.status, answer.header("x-gateway-model")), (200, model), "{answer:?}");
    let object = answer.json();
    assert_eq!(object["object"], "response.compaction");
    let last = object["output"].as_array().and_then(|items| items.last()).expect("items");
    assert_eq!(last["type"], "compaction");
    let seen = world.sim.take_seen().remove(0);
    assert!(seen.path.ends_with(COMPACT.path), "{}", seen.path);
    assert_eq!(seen.body, body("brand-5.5").as_bytes());
    let charge = world.charge().await;
    assert_eq!((charge.endpoint.as_str(), charge.model.as_str()), ("responses_compact", "lmb-5.5"));
    assert_eq!((charge.tokens(), charge.basis.as_str()), ((900, 70), "reported"));
    assert_eq!(charge.amount_nano, 900 * 5_000 + 70 * 30_000);
}

#[tokio::test]
async fn what_is_left_of_a_conversation_is_gone_on_from() {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.call(COMPACT, json!({ "input": conversation() })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut input = answer.json()["output"].clone();
    input.as_array_mut().expect("items").push(json!({ "role": "user", "content": "Go on." }));
    for offer in [RESPONSES, COMPACT] {
        let answer = world.call(offer, json!({ "input": input })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(world.sim.seen().pop().expect("a call").json()["input"], input);
    }
    world.settled(3).await;
}

#[rstest]
#[tokio::test]
async fn its_input_and_the_estimate_of_its_output_are_held(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["delay=800"]).run().await;
    let bytes = i64::try_from(COMPACT.sent(&json!({})).bytes.len()).expect("a short call");
    let (answer, held) = world.held_during(COMPACT, json!({})).await;
    assert_eq!((answer.status, held), (200, bytes * 5_000 + 4_096 * 30_000), "{answer:?}");
    world.settled(1).await;
}

/// The vendor knows no limit there, so none of the client's may make the hold or the charge less.
#[tokio::test]
async fn a_limit_of_output_limits_no_compaction() {
    let usage = r#"{"input_tokens":10,"output_tokens":900,"total_tokens":910}"#;
    let reply = format!(r#"{{"object":"response.compaction","output":[],"usage":{usage}}}"#);
    let vendor = Canned::start(http(&reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    assert_eq!(world.call(COMPACT, json!({ "max_output_tokens": 16 })).await.status, 200);
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.basis.as_str()), ((10, 900), "reported"));
}

#[rstest]
#[case::reported(r#","usage":{"input_tokens":10,"output_tokens":2}"#, Some((10, 2)))]
#[case::without_usage("", None)]
#[case::null(r#","usage":null"#, None)]
#[case::absurd(r#","usage":{"input_tokens":10,"output_tokens":900000000}"#, None)]
#[tokio::test]
async fn the_vendors_reply_passes_byte_for_byte(
    #[case] usage: &str,
    #[case] reported: Option<(u64, u64)>,
) {
    let output = r#"[ {"id":"cmp_1","type":"compaction","encrypted_content":"gAAAAAB0123456"}]"#;
    let head = r#"{ "id":"resp_1","object":"response.compaction","created_at":1"#;
    let reply = format!(r#"{head},"output":{output}{usage}}}"#);
    let vendor = Canned::start(http(&reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.ask(COMPACT).await;
    assert_eq!((answer.status, answer.body.as_ref()), (200, reply.as_bytes()), "{answer:?}");
    let charge = world.charge().await;
    // Of what was made, which cannot be read, four bytes are a token.
    let counted = (14, 4);
    let basis = if reported.is_some() { "reported" } else { "counted" };
    assert_eq!((charge.tokens(), &*charge.basis), (reported.unwrap_or(counted), basis));
}

#[rstest]
#[case::a_response(r#"{"id":"resp_1","object":"response","status":"completed","output":[]}"#)]
#[case::no_output(r#"{"id":"resp_1","object":"response.compaction"}"#)]
#[case::error(r#"{"error":{"message":"no","type":"server_error"}}"#)]
#[case::half(r#"{"object":"response.compaction","output":[]"#)]
#[tokio::test]
async fn a_200_without_a_compaction_is_no_success_and_free(#[case] reply: &str) {
    let vendor = Canned::start(http(reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.ask(COMPACT).await;
    assert_eq!(answer.refusal(), (502, "upstream_error".to_owned()), "{answer:?}");
    world.free_of_charge().await;
}

#[tokio::test]
async fn what_is_refused_of_responses_is_refused_of_their_compaction() {
    let world = World::start(Store::Sqlite).run().await;
    let file = json!({ "type": "input_file", "file_id": "f" });
    let unsupported = |place: &'static str| (400, "unsupported_parameter", place);
    for (members, (status, code, place)) in [
        (json!({ "service_tier": "priority" }), unsupported("service_tier")),
        (json!({ "background": true }), unsupported("background")),
        (json!({ "prompt": { "id": "pmpt_1" }, "input": null }), unsupported("prompt")),
        (json!({ "tools": [{ "type": "web_search" }] }), unsupported("tools[0].type")),
        (json!({ "input": [{ "type": "web_search_call" }] }), unsupported("input[0].type")),
        (
            json!({ "input": [{ "role": "user", "content": [file] }] }),
            unsupported("input[0].content[0].file_id"),
        ),
        (json!({ "input": null }), (400, "missing_required_parameter", "input")),
        (json!({ "input": [] }), (400, "invalid_value", "input")),
        (json!({ "input": [5] }), (400, "invalid_value", "input[0]")),
        (
            json!({ "input": null, "previous_response_id": "resp_nobody" }),
            (404, "not_found", "previous_response_id"),
        ),
        (
            json!({ "input": [{ "type": "item_reference", "id": "msg_nobody" }] }),
            (404, "not_found", "input[0].id"),
        ),
        (json!({ "model": "lmb-5.55" }), (404, "model_not_found", "model")),
        (json!({ "model": "lma-opus-5" }), (400, "wrong_endpoint", "model")),
    ] {
        let what = members.to_string();
        let answer = world.call(COMPACT, members).await;
        assert_eq!(answer.refusal_of(&what), (status, code.to_owned()), "{what}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], place, "{what}");
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn what_the_account_was_given_is_compacted_too() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["prompt=700"]).run().await;
    let given = world.ask(RESPONSES).await.json()["id"].clone();
    let members = json!({ "previous_response_id": given, "input": null });
    let answer = world.call(COMPACT, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charges = world.settled(2).await;
    let billed = world.sim.seen()[1].billed.expect("a bill");
    assert_eq!(charges[1].amount_nano, price(COMPACT, &billed));
}

/// The vendor repeats the messages of the input with the ids that the client made up. Whoever got
/// them back would be taken for the one to whom they were given.
#[tokio::test]
async fn an_id_that_comes_back_in_a_compaction_is_not_the_accounts() {
    let world = World::start(Store::Sqlite).run().await;
    let anothers = json!({ "type": "message", "id": "msg_x", "role": "user", "content": "a" });
    let answer = world.call(COMPACT, json!({ "input": [anothers] })).await;
    assert_eq!(answer.json()["output"][0]["id"], "msg_x", "{answer:?}");
    let object = answer.json();
    for id in [json!("msg_x"), object["output"][1]["id"].clone()] {
        let reference = json!({ "type": "item_reference", "id": id });
        let answer = world.call(RESPONSES, json!({ "input": [reference] })).await;
        assert_eq!(answer.refusal(), (404, "not_found".to_owned()), "{answer:?}");
    }
    let next = json!({ "previous_response_id": object["id"] });
    let answer = world.call(RESPONSES, next).await;
    assert_eq!(answer.refusal(), (404, "not_found".to_owned()), "{answer:?}");
    world.settled(1).await;
}

#[tokio::test]
async fn a_null_in_the_place_of_an_optional_member_is_none() {
    let world = World::start(Store::Sqlite).run().await;
    let mut call = COMPACT.call();
    for name in ["instructions", "previous_response_id", "service_tier", "prompt_cache_key"] {
        call[name] = Value::Null;
    }
    let answer = world.send(COMPACT.path, &Sent::json(&call)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    world.settled(1).await;
}
