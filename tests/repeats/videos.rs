//! Video jobs: a key leads to its job, as ever; a retry without one gets the job of the first call.

use rstest::rstest;

use super::*;
use crate::world::{VIDEO, Video, quick};

#[rstest]
#[tokio::test]
async fn a_retry_for_a_video_gets_the_job_that_was_made(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(&quick(&[])).run().await;
    let first = tried(&world, VIDEO, &json!({}), 0).await;
    let id = Video::of(&first).id().to_owned();
    repeats(&tried(&world, VIDEO, &json!({}), 1).await, &first);
    assert_eq!(world.over(&id).await.outcome(), "completed");
    repeats(&tried(&world, VIDEO, &json!({}), 2).await, &first);
    // Another call is another job, and so is what nobody asked for before.
    let second = tried(&world, VIDEO, &json!({}), 0).await;
    assert_ne!(Video::of(&second).id(), id);
    let third = tried(&world, VIDEO, &json!({ "prompt": "A blue dot." }), 1).await;
    for answer in [&second, &third] {
        assert_eq!(world.over(Video::of(answer).id()).await.outcome(), "completed");
    }
    world.settled(3).await;
    assert_eq!(world.sim.videos().len(), 3);
    // The first of them may have come before the name had its reply.
    let labels = ["endpoint=\"videos\""];
    world.metric_becomes("tollgate_repeats_total", &labels, 2).await;
}

#[rstest]
#[tokio::test]
async fn a_video_that_was_refused_can_be_tried_again(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit("0.01").conf(&quick(&[])).run().await;
    assert_eq!(tried(&world, VIDEO, &json!({}), 0).await.status, 402);
    assert_eq!(tried(&world, VIDEO, &json!({}), 1).await.status, 402);
    world.command(&["credit", "add", crate::world::ACCOUNT, "5"]).await.done();
    let made = tried(&world, VIDEO, &json!({}), 2).await;
    assert_eq!(world.over(Video::of(&made).id()).await.outcome(), "completed");
    world.settled(1).await;
}

/// The queue keeps a video's key for as long as its job, whatever the count beside it says.
#[tokio::test]
async fn the_key_of_a_video_stays_with_its_job() {
    let world = World::start(Store::Sqlite).conf(&quick(&[])).run().await;
    let sent = VIDEO.sent(&json!({}));
    let ask = async |count: &str| {
        let request = request(&world, &world.gateway, &sent, VIDEO.path).header(RETRIES, count);
        Answer::read(request.header(KEY, "a")).await
    };
    let id = Video::of(&ask("0").await).id().to_owned();
    assert_eq!(world.over(&id).await.outcome(), "completed");
    for count in ["0", "1"] {
        let again = ask(count).await;
        assert_eq!((Video::of(&again).status(), again.header(REPLAYED)), ("completed", None));
    }
    world.settled(1).await;
}
