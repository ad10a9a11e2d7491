//! Plans as they are changed while calls come in, and plans that only tell.

use rstest::rstest;
use serde_json::json;

use super::{LIMITED, issue, part, refused, set_plan, told};
use crate::world::{Answer, CHAT, MESSAGES, SPEECH, Sent, Store, World, chat_of, with};

/// Replaces all plans, which are then in force.
async fn change(world: &World, plans: &str) {
    let file = world.path("rules/plans.toml");
    world.reload(|| std::fs::write(file, format!("{plans}\n")).expect("other plans")).await;
}

#[rstest]
#[tokio::test]
async fn a_plan_that_only_tells_refuses_nothing_and_counts_what_it_would_have(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.trial]\nmode = \"shadow\"\nrequests_per_minute = 2\n\
                 tokens_per_minute = 0\ncalls = 0";
    let world = World::start(store).plans(plans).run().await;
    set_plan(&world, "trial").await;
    for offer in [CHAT, MESSAGES, SPEECH, CHAT] {
        let answer = world.ask(offer).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let shown = ["requests", "tokens"].map(|kind| part(&answer, "limit", kind));
        assert_eq!(shown, [None, None], "what binds nobody is not shown: {answer:?}");
    }
    world.settled(4).await;
    for (kind, count) in [("requests", 2), ("tokens", 4), ("calls", 4)] {
        let kind = format!("kind=\"{kind}\"");
        let labels = [kind.as_str(), r#"mode="shadow""#, r#"scope="account""#];
        assert_eq!(world.metric(LIMITED, &labels).await, count, "{kind}");
    }
    assert_eq!(world.metric(LIMITED, &[r#"mode="enforce""#]).await, 0);
}

/// A plan that only tells stands beside one that refuses.
#[rstest]
#[tokio::test]
async fn a_limit_that_refuses_is_not_softened_by_one_that_only_tells(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.trial]\nmode = \"shadow\"\nrequests_per_minute = 1\n\
                 [plan.firm]\nrequests_per_minute = 2";
    let mut world = World::start(store).plans(plans).run().await;
    set_plan(&world, "trial").await;
    world.key = issue(&world, &["--plan", "firm"]).await;
    for left in [1, 0] {
        let answer = world.ask(CHAT).await;
        assert_eq!((answer.status, told(&answer, "requests")), (200, (2, left)), "{answer:?}");
    }
    refused(&world.ask(CHAT).await, CHAT, "requests");
    assert_eq!(world.metric(LIMITED, &[r#"mode="shadow""#]).await, 1);
    assert_eq!(world.metric(LIMITED, &[r#"mode="enforce""#, r#"scope="key""#]).await, 1);
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn a_changed_limit_holds_for_the_next_call(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).plans("[plan.p]\nrequests_per_minute = 1").run().await;
    set_plan(&world, "p").await;
    assert_eq!(world.ask(CHAT).await.status, 200);
    refused(&world.ask(CHAT).await, CHAT, "requests");
    change(&world, "[plan.p]\nrequests_per_minute = 5").await;
    // What was taken under the old limit stays taken.
    let answer = world.ask(CHAT).await;
    assert_eq!((answer.status, told(&answer, "requests")), (200, (5, 3)), "{answer:?}");
    change(&world, "[plan.p]\nrequests_per_minute = 1").await;
    refused(&world.ask(CHAT).await, CHAT, "requests");
    change(&world, "[plan.p]\nmode = \"shadow\"\nrequests_per_minute = 1").await;
    assert_eq!(world.ask(CHAT).await.status, 200);
    change(&world, "[plan.p]\ncalls = 7").await;
    let answer = world.ask(CHAT).await;
    assert_eq!((answer.status, part(&answer, "limit", "requests")), (200, None), "{answer:?}");
    world.settled(4).await;
}

/// A stream has its place under the limit with which it began, and gives it back.
#[rstest]
#[tokio::test]
async fn a_call_under_way_outlives_its_plan(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let builder = World::start(store).vendor("vendor_b", &["held=2;chunks=5;completion=9"]);
    let plan = "[plan.p]\ncalls = 2\ntokens_per_minute = 1_000";
    let world = builder.plans(plan).run().await;
    set_plan(&world, "p").await;
    let call = with(chat_of(CHAT.model), &json!({ "max_tokens": 500 }));
    let mut stream = world.open_stream(call).await;
    stream.take(1).await;
    change(&world, "[plan.p]\ncalls = 1").await;
    refused(&world.ask(MESSAGES).await, MESSAGES, "calls");
    world.sim.let_go();
    assert!(stream.rest().await.is_done());
    world.settled(1).await;
    assert_eq!(world.ask(MESSAGES).await.status, 200);
    world.settled(2).await;
}

/// Nobody knows what a plan allows that is not there.
#[rstest]
#[tokio::test]
async fn a_plan_that_is_gone_admits_nobody_who_has_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.here]\ncalls = 5\n[plan.gone]\ncalls = 5";
    let mut world = World::start(store).plans(plans).run().await;
    set_plan(&world, "here").await;
    let other = issue(&world, &["--plan", "gone"]).await;
    let stays = std::mem::replace(&mut world.key, other);
    assert_eq!(world.ask(CHAT).await.status, 200);
    change(&world, "[plan.here]\ncalls = 5").await;
    for offer in [CHAT, SPEECH] {
        let answer = world.ask(offer).await;
        assert_eq!(answer.refusal(), (503, "plan_not_found".to_owned()), "{answer:?}");
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
        assert!(answer.message().contains("gone"), "{answer:?}");
    }
    assert_eq!(world.ask(MESSAGES).await.status, 503);
    world.key = stays;
    assert_eq!(world.ask(CHAT).await.status, 200, "a key of another plan is not in the way");
    world.settled(2).await;
}

/// A repeated call was answered before anybody looked which models its plan is for.
#[rstest]
#[tokio::test]
async fn a_key_got_a_reply_that_its_plan_forbids_by_its_idempotency_key(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.other]\nmodels = [\"lma-*\"]";
    let world = World::start(store).plans(plans).run().await;
    let narrow = issue(&world, &["--plan", "other"]).await;
    let call = Sent::json(&CHAT.call());
    let repeated = async |key: &str| {
        let request = world.sending(CHAT.path, &call.media, Some(key));
        let request = request.header("idempotency-key", "one").body(call.bytes.clone());
        Answer::read(request).await
    };
    assert_eq!(repeated(&world.key).await.status, 200);
    let answer = repeated(&narrow).await;
    assert_eq!(answer.refusal(), (403, "model_not_allowed".to_owned()), "{answer:?}");
    assert_eq!(repeated(&world.key).await.status, 200);
    assert_eq!(world.sim.seen().len(), 1);
    world.settled(1).await;
}

#[tokio::test]
async fn broken_plans_change_nothing() {
    let plans = "[plan.p]\nrequests_per_minute = 2";
    let world = World::start(Store::Sqlite).plans(plans).run().await;
    set_plan(&world, "p").await;
    assert_eq!(world.ask(CHAT).await.status, 200);
    std::fs::write(world.path("rules/plans.toml"), "[plan.p]\nrequests_per_minut = 9\n")
        .expect("broken plans");
    world.gateway.signal("HUP");
    let line = world.logged(&["rules not reloaded", "plans.toml:"]).await;
    assert!(line.contains("requests_per_minut"), "{line}");
    let answer = world.ask(CHAT).await;
    assert_eq!((answer.status, told(&answer, "requests")), (200, (2, 0)), "{answer:?}");
    refused(&world.ask(CHAT).await, CHAT, "requests");
    world.settled(2).await;
}
