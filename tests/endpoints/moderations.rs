//! Moderations: free, whoever asks and whatever else is out of order.

use rstest::rstest;
use serde_json::json;

use crate::world::{MODERATION, Store, World, chat_of};

#[rstest]
#[tokio::test]
async fn a_moderation_is_free_and_needs_no_credit(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit("0").run().await;
    let answer = world.call(MODERATION, json!({ "input": ["peace", "some violence"] })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let results = answer.json()["results"].clone();
    assert_eq!((&results[0]["flagged"], &results[1]["flagged"]), (&json!(false), &json!(true)));
    let refused = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(refused.refusal(), (402, "insufficient_credits".to_owned()));
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_model_is_filled_in_where_there_is_none() {
    let world = World::start(Store::Sqlite).run().await;
    let dated = "omni-moderation-2024-09-26";
    for (members, model) in
        [(json!({ "model": null }), "omni-moderation-latest"), (json!({ "model": dated }), dated)]
    {
        let answer = world.call(MODERATION, members.clone()).await;
        assert_eq!(answer.status, 200, "{members}: {answer:?}");
        assert_eq!(answer.json()["model"].as_str(), Some(model), "{members}: {answer:?}");
        let sent = world.sim.take_seen()[0].json();
        assert_eq!(sent, json!({ "model": model, "input": "hello" }), "{members}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_null_in_the_place_of_a_model_is_filled_in_too() {
    let world = World::start(Store::Sqlite).run().await;
    let sent = crate::world::Sent::json(&json!({ "model": null, "input": "hello" }));
    let answer = world.send(MODERATION.path, &sent).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(world.sim.seen()[0].json()["model"], "omni-moderation-latest");
}

#[tokio::test]
async fn a_moderation_is_served_while_the_ledger_is_down() {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    assert_eq!(world.ask(MODERATION).await.status, 200);
    world.redis().stop();
    for number in 0..3 {
        let answer = world.ask(MODERATION).await;
        assert_eq!(answer.status, 200, "call {number}: {answer:?}");
    }
    let refused = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(refused.refusal(), (503, "ledger_unavailable".to_owned()));
    assert!(world.redis().start_again());
    world.free_of_charge().await;
}

#[tokio::test]
async fn what_is_wrong_is_named_and_no_vendor_hears_of_it() {
    let world = World::start(Store::Sqlite).run().await;
    for members in [json!({ "input": [] }), json!({ "input": null }), json!({ "input": 5 })] {
        let what = members.to_string();
        let answer = world.call(MODERATION, members).await;
        assert_eq!(answer.refusal_of(&what).0, 400, "{what}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], "input", "{what}");
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
}
