//! Prompts that the vendor stores: they are refused as what they are, whatever else a call has.

use serde_json::{Value, json};

use crate::world::{COMPACT, INPUT_TOKENS, RESPONSES, Store, World};

/// Prompts as clients write them, each with how it is shown.
fn prompts() -> [(Value, &'static str); 5] {
    [
        (json!({ "id": "pmpt_1" }), r#"{"id":"pmpt_1"}"#),
        (json!({ "id": "pmpt_1", "version": "2" }), r#"{"id":"pmpt_1","version":"2"}"#),
        (json!({}), "{}"),
        (json!("pmpt_1"), "'pmpt_1'"),
        (json!(false), "false"),
    ]
}

/// What else a call may have or lack.
fn companions() -> Vec<Value> {
    let item = json!({ "role": "user", "content": "hi" });
    vec![
        json!({ "input": null }),
        json!({ "input": "hi" }),
        json!({ "input": "" }),
        json!({ "input": [] }),
        json!({ "input": 7 }),
        json!({ "input": {} }),
        json!({ "input": [item] }),
        json!({ "input": null, "previous_response_id": "resp_nobody" }),
        json!({ "input": null, "conversation": "conv_nobody" }),
        json!({ "input": null, "instructions": "Be brief.", "stream": true }),
        json!({ "input": null, "max_output_tokens": 16, "store": false }),
        json!({ "input": null, "tools": [{ "type": "function", "name": "f" }] }),
    ]
}

#[tokio::test]
async fn a_stored_prompt_is_refused_by_its_name_in_every_company() {
    let world = World::start(Store::Sqlite).run().await;
    for offer in [RESPONSES, COMPACT, INPUT_TOKENS] {
        for (prompt, shown) in prompts() {
            for mut members in companions() {
                members["prompt"] = prompt.clone();
                let what = format!("{} {members}", offer.path);
                let answer = world.call(offer, members).await;
                let expected = (400, "unsupported_parameter".to_owned());
                assert_eq!(answer.refusal_of(&what), expected, "{what}: {answer:?}");
                assert_eq!(answer.json()["error"]["param"], "prompt", "{what}");
                let begins = format!("prompt {shown} is not available: stored prompts");
                assert!(answer.message().starts_with(&begins), "{what}: {}", answer.message());
            }
        }
    }
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_prompt_that_is_null_is_none() {
    let world = World::start(Store::Sqlite).run().await;
    for offer in [RESPONSES, COMPACT] {
        let answer = world.call(offer, json!({ "prompt": null, "input": null })).await;
        let expected = (400, "missing_required_parameter".to_owned());
        assert_eq!(answer.refusal(), expected, "{answer:?}");
        assert_eq!(answer.json()["error"]["param"], "input", "{answer:?}");
    }
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}
