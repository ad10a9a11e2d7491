//! Coding agents on responses: calls of the tools that they run, turn by turn and with nothing
//! stored, and the compaction of a long session.

use rstest::rstest;
use serde_json::{Value, json};

use super::{price, response_of};
use crate::world::{RESPONSES, Store, World, with};

fn items_of(response: &Value) -> Vec<Value> {
    response["output"].as_array().expect("items").clone()
}

fn kinds(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["type"].as_str().expect("a type")).collect()
}

fn question() -> Value {
    json!({
        "type": "message", "role": "user",
        "content": [{ "type": "input_text", "text": "How much is 2 + 2?" }],
    })
}

/// What an agent sends with each call, which keeps nothing at the vendor.
fn session(stream: bool) -> Value {
    let function = json!({ "type": "function", "name": "g", "parameters": {} });
    json!({
        "store": false,
        "stream": stream,
        "include": ["reasoning.encrypted_content"],
        "client_metadata": { "installation": "a" },
        "reasoning": { "effort": "low", "summary": "auto" },
        "tools": [function, { "type": "local_shell" }, { "type": "apply_patch" }],
    })
}

/// What came of a call; agents tell it of a shell in one of two ways.
fn output_of(call: &Value, as_function: bool) -> Option<Value> {
    let id = &call["call_id"];
    match call["type"].as_str().expect("a type") {
        "local_shell_call" if as_function => {
            Some(json!({ "type": "function_call_output", "call_id": id, "output": "4\n" }))
        }
        "local_shell_call" => {
            Some(json!({ "type": "local_shell_call_output", "id": id, "output": "4\n" }))
        }
        "apply_patch_call" => Some(json!({
            "type": "apply_patch_call_output", "call_id": id, "status": "completed",
            "output": "Done.",
        })),
        _ => None,
    }
}

#[rstest]
#[tokio::test]
async fn a_second_turn_with_what_the_agent_ran_was_refused(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[values(false, true)] as_function: bool,
) {
    let world = World::start(store).vendor("vendor_b", &["shell-calls=1;patch-calls=1"]);
    let world = world.run().await;
    let members = with(session(stream), &json!({ "input": [question()] }));
    let first = items_of(&response_of(&world.call(RESPONSES, members).await, stream));
    assert_eq!(kinds(&first), ["reasoning", "local_shell_call", "apply_patch_call"]);
    assert!(first[0]["encrypted_content"].is_string(), "{first:?}");
    let outputs = first.iter().filter_map(|call| output_of(call, as_function));
    let mut input = vec![question()];
    input.extend(first.iter().cloned().chain(outputs));
    let members = with(session(stream), &json!({ "input": input }));
    let second = items_of(&response_of(&world.call(RESPONSES, members).await, stream));
    assert_eq!(second.last().expect("a message")["content"][0]["text"], "The tool said: Done.");
    let seen = world.sim.seen();
    assert_eq!(seen[1].json()["input"], json!(input));
    let charges = world.settled(2).await;
    for (charge, seen) in charges.iter().zip(&seen) {
        let billed = seen.billed.expect("a bill");
        assert_eq!(charge.tokens(), (billed.prompt, billed.completion));
        assert_eq!((charge.amount_nano, &*charge.basis), (price(RESPONSES, &billed), "reported"));
    }
}

/// An output without the call that it belongs to is the vendor's to refuse.
#[tokio::test]
async fn an_output_without_its_call_is_refused_by_the_vendor() {
    let world = World::start(Store::Sqlite).run().await;
    let output = json!({ "type": "local_shell_call_output", "id": "call_x", "output": "4" });
    let members = with(session(false), &json!({ "input": [question(), output] }));
    let answer = world.call(RESPONSES, members).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.message().starts_with("No tool call found"), "{}", answer.message());
    assert_eq!(world.sim.seen().len(), 1);
    world.free_of_charge().await;
}

/// A session that ends in the trigger of a compaction.
fn long_session(stream: bool) -> Value {
    let said = json!({
        "type": "message", "role": "assistant",
        "content": [{ "type": "output_text", "text": "Four." }],
    });
    let input = [question(), said, json!({ "type": "compaction_trigger" })];
    with(session(stream), &json!({ "input": input, "reasoning": null }))
}

#[rstest]
#[tokio::test]
async fn the_trigger_at_the_end_of_a_long_session_was_refused(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(store).vendor("vendor_b", &["prompt=900;completion=70"]).run().await;
    let members = long_session(stream);
    let mut items = items_of(&response_of(&world.call(RESPONSES, members.clone()).await, stream));
    assert_eq!(kinds(&items), ["compaction"]);
    assert_eq!(world.sim.seen()[0].json()["input"], members["input"]);
    let charge = world.charge().await;
    assert_eq!((charge.endpoint.as_str(), charge.basis.as_str()), ("responses", "reported"));
    assert_eq!((charge.tokens(), charge.amount_nano), ((900, 70), 900 * 5_000 + 70 * 30_000));
    // The session goes on with what is left of it.
    items.push(question());
    let members = with(session(stream), &json!({ "input": items, "tools": null }));
    let next = items_of(&response_of(&world.call(RESPONSES, members).await, stream));
    assert_eq!(next.last().expect("a message")["type"], "message");
    world.settled(2).await;
}

/// Nothing of a compaction can be read, and no limit ends it: its report is believed all the same,
/// on a model whose other output is all to be seen.
#[rstest]
#[tokio::test]
async fn a_compaction_is_charged_as_reported_however_little_of_it_is_seen(
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["prompt=900;completion=7000"]);
    let world = world.run().await;
    let members = json!({ "model": "lmb-4.1", "max_output_tokens": 16 });
    let answer = world.call(RESPONSES, with(long_session(stream), &members)).await;
    assert_eq!(kinds(&items_of(&response_of(&answer, stream))), ["compaction"]);
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.basis.as_str()), ((900, 7_000), "reported"));
    assert_eq!(charge.amount_nano, 900 * 2_000 + 7_000 * 8_000);
}

#[rstest]
#[tokio::test]
async fn a_compaction_without_a_report_is_counted_by_what_it_made(
    #[values(false, true)] stream: bool,
    #[values("no-usage", "null-usage", "bad-usage")] faults: &str,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[faults]).run().await;
    let answer = world.call(RESPONSES, long_session(stream)).await;
    let items = items_of(&response_of(&answer, stream));
    let sealed = items[0]["encrypted_content"].as_str().expect("a text");
    let charge = world.charge().await;
    let output = sealed.len().div_ceil(4) as u64;
    assert_eq!((charge.tokens().1, charge.basis.as_str()), (output, "counted"), "{charge:?}");
    assert!(charge.tokens().0 > 5, "{charge:?}");
}
