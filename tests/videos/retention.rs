//! Jobs and files are kept for a while after their end, and then they are gone.

use rstest::rstest;
use serde_json::json;

use super::{SHORT, files, nothing_kept};
use crate::world::{Answer, Store, VIDEO, World, quick};

#[rstest]
#[tokio::test]
async fn after_its_time_a_job_is_gone_with_its_file_and_its_charge_stays(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("A red dot.", "[fails]")] prompt: &str,
) {
    let world = World::start(store).conf(&quick(&[("keep_ms", 2_000)])).run().await;
    let id = world.place(json!({ "prompt": prompt })).await;
    let video = world.over(&id).await;
    let completed = video.status() == "completed";
    if completed {
        let times = [&video.json["completed_at"], &video.json["expires_at"]];
        let [done, gone] = times.map(|time| time.as_i64().expect("a time"));
        assert!((1..=3).contains(&(gone - done)), "{video:?}");
    }
    assert_eq!(files(&world), usize::from(completed));
    world.gone(&format!("/v1/videos/{id}")).await;
    world.gone(&format!("/v1/videos/{id}/content")).await;
    assert_eq!(world.delete(&format!("/v1/videos/{id}")).await.status, 404);
    assert_eq!(world.get("/v1/videos").await.json()["data"], json!([]));
    nothing_kept(&world).await;
    let charges = world.settled(usize::from(completed)).await;
    assert_eq!(charges.iter().map(|c| c.amount_nano).sum::<i64>(), i64::from(completed) * SHORT);
}

/// A gateway that comes back long after finds what is to be forgotten.
#[rstest]
#[tokio::test]
async fn what_expired_while_nobody_was_there_is_gone_afterwards(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).conf(&quick(&[("keep_ms", 1_500)])).run().await;
    let id = world.place(json!({})).await;
    world.over(&id).await;
    world.gateway.kill();
    tokio::time::sleep(std::time::Duration::from_millis(1_600)).await;
    world.kill_and_start_again().await;
    let answer = world.get(&format!("/v1/videos/{id}")).await;
    assert_eq!(answer.refusal(), (404, "not_found".to_owned()), "before anybody has swept");
    world.gone(&format!("/v1/videos/{id}/content")).await;
    nothing_kept(&world).await;
    world.settled(1).await;
}

/// An idempotency key lives as long as its job.
#[rstest]
#[tokio::test]
async fn the_key_of_a_job_that_expired_can_be_used_again(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(&quick(&[("keep_ms", 1_000)])).run().await;
    let mut ids = Vec::new();
    for prompt in ["a", "b"] {
        let body = VIDEO.sent(&json!({ "prompt": prompt })).bytes;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let id = loop {
            let request = world.request(VIDEO.path).header("idempotency-key", "same");
            let answer = Answer::read(request.body(body.clone())).await;
            match answer.status {
                200 => break answer.json()["id"].as_str().expect("an id").to_owned(),
                _ => assert_eq!(answer.refusal(), (404, "not_found".to_owned())),
            }
            assert!(std::time::Instant::now() < end, "the key stays used");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        };
        world.over(&id).await;
        world.gone(&format!("/v1/videos/{id}")).await;
        ids.push(id);
    }
    assert_ne!(ids[0], ids[1]);
    world.settled(2).await;
}
