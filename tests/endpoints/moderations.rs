//! Moderations: free, whoever asks and whatever else is out of order.

use rstest::rstest;
use serde_json::{Value, json};

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

#[rstest]
#[case::none(json!({ "model": null }), "omni-moderation-latest")]
#[case::dated(json!({ "model": "omni-moderation-2024-09-26" }), "omni-moderation-2024-09-26")]
#[tokio::test]
async fn a_model_is_filled_in_where_there_is_none(#[case] members: Value, #[case] model: &str) {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.call(MODERATION, members).await;
    assert_eq!((answer.status, answer.json()["model"].as_str()), (200, Some(model)), "{answer:?}");
    assert_eq!(world.sim.seen()[0].json(), json!({ "model": model, "input": "hello" }));
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

#[rstest]
#[case::nothing(json!({ "input": [] }))]
#[case::no_input(json!({ "input": null }))]
#[case::of_another_type(json!({ "input": 5 }))]
#[tokio::test]
async fn what_is_wrong_is_named_and_no_vendor_hears_of_it(#[case] members: Value) {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.call(MODERATION, members).await;
    assert_eq!(answer.refusal().0, 400, "{answer:?}");
    assert_eq!(answer.json()["error"]["param"], "input");
    assert_eq!(world.sim.seen().len(), 0);
}
