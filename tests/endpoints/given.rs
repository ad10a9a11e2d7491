//! Ids of what the vendor keeps: they lead on for the account that they were given to, and for
//! nobody else.

use rstest::rstest;
use serde_json::{Value, json};

use super::response_of;
use crate::world::{Answer, Canned, RESPONSES, Sent, Store, World, http, with};

/// Makes a response and gives its object.
async fn made(world: &World, stream: bool, members: &Value) -> Value {
    let members = with(members.clone(), &json!({ "stream": stream }));
    response_of(&world.call(RESPONSES, members).await, stream)
}

fn refused(answer: &Answer, param: &str) {
    assert_eq!(answer.refusal(), (404, "not_found".to_owned()), "{answer:?}");
    let named = answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
    assert!(named.starts_with(param), "{answer:?}");
}

#[rstest]
#[tokio::test]
async fn a_response_is_gone_on_from_by_its_own_account_only(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(store).run().await;
    let first = made(&world, stream, &json!({})).await;
    let next = json!({ "previous_response_id": first["id"] });
    let second = made(&world, stream, &next).await;
    assert_ne!(second["id"], first["id"]);
    made(&world, !stream, &json!({ "previous_response_id": second["id"] })).await;
    world.settled(3).await;
    let asked = world.sim.count("vendor_b");
    let stranger = world.another_account("stranger", "5").await;
    for id in [&first["id"], &second["id"]] {
        let sent = RESPONSES.sent(&json!({ "previous_response_id": id, "stream": stream }));
        let request = world.sending(RESPONSES.path, &sent.media, Some(&stranger));
        refused(&Answer::read(request.body(sent.bytes)).await, "previous_response_id");
    }
    assert_eq!(world.sim.count("vendor_b"), asked);
    let told = world.command(&["--json", "charges", "stranger"]).await.done();
    assert!(told.is_empty(), "{told}");
}

/// Another route may lead to another account at the vendor, which knows nothing of the id.
#[rstest]
#[tokio::test]
async fn an_id_leads_back_over_the_route_that_it_came_over(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["status=503;times=1", ""]).run().await;
    let first = made(&world, false, &json!({})).await;
    made(&world, false, &json!({})).await;
    let next = json!({ "previous_response_id": first["id"] });
    let answer = world.call(RESPONSES, next).await;
    // Nothing was blocked, and nothing was passed over.
    assert_eq!((answer.status, answer.header("x-gateway-fallback-depth")), (200, Some("0")));
    let charges = world.settled(3).await;
    let taken: Vec<_> = charges.iter().map(|c| (c.route.as_str(), c.depth)).collect();
    assert_eq!(taken, [("r1", 1), ("r0", 0), ("r1", 0)]);
}

/// Each item was taken for as much as its whole answer.
#[tokio::test]
async fn items_of_one_answer_are_held_for_once() {
    let faults = "prompt=10;completion=100000;tools=3";
    // The first answer is 0.80002 USD, and the input of the second at most 0.2 and a little.
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &[faults]).credit("1.1");
    let world = builder.run().await;
    let tool = json!([{ "type": "function", "name": "f", "parameters": {} }]);
    let members = json!({ "model": "o3", "tools": tool });
    let first = made(&world, false, &members).await;
    let items = first["output"].as_array().expect("items");
    assert_eq!(items.len(), 3, "{first}");
    let named = items.iter().map(|item| json!({ "type": "item_reference", "id": item["id"] }));
    let input: Vec<_> = named.collect();
    let answer = world.call(RESPONSES, with(members, &json!({ "input": input }))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn another_gateway_on_the_same_store_knows_the_ids_too(#[values(false, true)] stream: bool) {
    let world = World::start(Store::Redis).run().await;
    let first = made(&world, stream, &json!({})).await;
    let second = world.second_gateway().await;
    let next = json!({ "previous_response_id": first["id"], "stream": stream });
    let sent = RESPONSES.sent(&next);
    let request = world.url_of(&second, RESPONSES.path).header("content-type", sent.media);
    let answer = Answer::read(request.body(sent.bytes)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    world.settled(2).await;
}

/// Members that name what was never given, and the field that is told.
fn never_given() -> Vec<(Value, &'static str)> {
    let reference = json!({ "type": "item_reference", "id": "msg_nobody" });
    let said = json!({ "role": "user", "content": "hi" });
    vec![
        (json!({ "previous_response_id": "resp_nobody" }), "previous_response_id"),
        (json!({ "conversation": "conv_nobody" }), "conversation"),
        (json!({ "conversation": { "id": "conv_nobody" } }), "conversation"),
        (json!({ "input": [reference] }), "input"),
        (json!({ "input": [{ "id": "msg_nobody" }] }), "input"),
        (json!({ "input": [{ "type": "reasoning", "id": "rs_nobody", "summary": [] }] }), "input"),
        (json!({ "input": [said, reference] }), "input"),
    ]
}

#[rstest]
#[tokio::test]
async fn an_id_that_was_never_given_is_not_found_and_no_vendor_hears_of_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    for (members, param) in never_given() {
        for stream in [false, true] {
            let members = with(members.clone(), &json!({ "stream": stream }));
            let what = members.to_string();
            let answer = world.call(RESPONSES, members).await;
            let expected = (404, "not_found".to_owned());
            assert_eq!(answer.refusal_of(&what), expected, "{what}: {answer:?}");
            let named = answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
            assert!(named.starts_with(param), "{what}: {answer:?}");
            assert_eq!(world.sim.seen().len(), 0, "{what}");
        }
    }
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn the_items_of_an_output_were_given_too(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(store).run().await;
    let first = made(&world, stream, &json!({ "reasoning": { "effort": "low" } })).await;
    let output = first["output"].as_array().expect("items");
    assert_eq!(output[0]["type"], "reasoning", "{first}");
    let mut input = vec![json!({ "role": "user", "content": "hi" }), output[0].clone()];
    input.push(json!({ "type": "item_reference", "id": output[1]["id"] }));
    made(&world, stream, &json!({ "input": input })).await;
    world.settled(2).await;
    let stranger = world.another_account("stranger", "5").await;
    for item in &input[1..] {
        let sent = RESPONSES.sent(&json!({ "input": [item] }));
        let request = world.sending(RESPONSES.path, &sent.media, Some(&stranger));
        refused(&Answer::read(request.body(sent.bytes)).await, "input");
    }
    assert_eq!(world.sim.count("vendor_b"), 2);
}

#[tokio::test]
async fn items_that_come_with_their_content_need_not_have_been_given() {
    let world = World::start(Store::Sqlite).run().await;
    let call = json!({ "type": "function_call", "id": "fc_9", "call_id": "c", "name": "f",
        "arguments": "{}" });
    let output = json!({ "type": "function_call_output", "id": "fo_9", "call_id": "c",
        "output": "4" });
    let text = json!([{ "type": "output_text", "text": "Four.", "annotations": [] }]);
    let said = json!({ "type": "message", "id": "msg_9", "role": "assistant", "content": text });
    let thought = json!({ "type": "reasoning", "id": "rs_9", "summary": [],
        "encrypted_content": "gAAA" });
    let asked = json!({ "role": "user", "content": "hi" });
    let answer = world.call(RESPONSES, json!({ "input": [asked, said, call, output] })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // What is sealed carries its content, but names a thought of the vendor's keeping.
    let sealed = world.call(RESPONSES, json!({ "input": [asked, thought] })).await;
    assert!([200, 404].contains(&sealed.status), "{sealed:?}");
}

#[rstest]
#[tokio::test]
async fn what_the_vendor_does_not_keep_is_not_remembered(#[values(false, true)] stream: bool) {
    let world = World::start(Store::Sqlite).run().await;
    let first = made(&world, stream, &json!({ "store": false })).await;
    if first["store"] != false {
        // A reply that does not say so is remembered, and the vendor knows better.
        return;
    }
    let answer = world.call(RESPONSES, json!({ "previous_response_id": first["id"] })).await;
    refused(&answer, "previous_response_id");
}

#[tokio::test]
async fn a_conversation_that_was_given_may_be_gone_on_with() {
    let reply = json!({
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "conversation": { "id": "conv_1" },
        "output": [],
        "usage": { "input_tokens": 1, "output_tokens": 1, "total_tokens": 2 },
    });
    let vendor = Canned::start(http(&reply.to_string()), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    assert_eq!(world.ask(RESPONSES).await.status, 200);
    world.settled(1).await;
    for conversation in [json!("conv_1"), json!({ "id": "conv_1" })] {
        let answer = world.call(RESPONSES, json!({ "conversation": conversation })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    refused(&world.call(RESPONSES, json!({ "conversation": "resp" })).await, "conversation");
    assert_eq!(vendor.heard(), 3);
    world.settled(3).await;
}

#[tokio::test]
async fn an_id_of_another_type_is_refused() {
    let world = World::start(Store::Sqlite).run().await;
    for name in ["previous_response_id", "conversation"] {
        for id in [json!(5), json!({}), json!(["conv_1"]), json!("")] {
            let what = format!("{name} {id}");
            let mut call = RESPONSES.call();
            call[name] = id;
            let answer = world.send(RESPONSES.path, &Sent::json(&call)).await;
            assert!([400, 404].contains(&answer.status), "{what}: {answer:?}");
            let named = answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
            assert!(named.starts_with(name), "{what}: {answer:?}");
            assert_eq!(world.sim.seen().len(), 0, "{what}");
        }
    }
}
