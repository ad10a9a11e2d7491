//! A job that its client deletes is gone for him at once, and is paid for all the same if the
//! vendor makes it.

use rstest::rstest;
use serde_json::{Value, json};

use super::{SHORT, files, nothing_kept};
use crate::world::{Answer, Store, VIDEO, World, quick};

/// Deletes a job, and proves that its client sees nothing of it any more.
async fn delete(world: &World, id: &str) {
    let path = format!("/v1/videos/{id}");
    let answer = world.delete(&path).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json(), json!({ "id": id, "object": "video.deleted", "deleted": true }));
    hidden(world, id).await;
    assert_eq!(world.delete(&path).await.refusal(), (404, "not_found".to_owned()));
}

async fn hidden(world: &World, id: &str) {
    for path in [format!("/v1/videos/{id}"), format!("/v1/videos/{id}/content")] {
        assert_eq!(world.get(&path).await.refusal(), (404, "not_found".to_owned()), "{path}");
    }
    let list = world.get("/v1/videos").await.json();
    assert_eq!((&list["data"], &list["first_id"]), (&json!([]), &Value::Null));
    let after = world.get(&format!("/v1/videos?after={id}")).await;
    assert_eq!(after.refusal(), (404, "not_found".to_owned()));
}

/// What a job was when it was deleted, how the test gets there, and what is charged in the end.
#[rstest]
#[case::queued("submit.status=503", "queued", 0)]
#[case::being_sent("submit.delay=700", "sent", SHORT)]
#[case::running("video-ms=1200", "in_progress", SHORT)]
#[case::copied("file.chunk-delay=60", "copied", SHORT)]
#[case::completed("", "completed", SHORT)]
#[case::running_and_never_made("fails=internal_error;video-ms=1200", "in_progress", 0)]
#[case::failed("fails=internal_error", "failed", 0)]
#[tokio::test]
async fn a_deleted_job_is_gone_and_settled_all_the_same(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] faults: &str,
    #[case] stage: &str,
    #[case] charge: i64,
) {
    let world = World::start(store).vendor("vendor_d", &[faults]).conf(&quick(&[])).run().await;
    let body = VIDEO.sent(&json!({})).bytes;
    let request = world.request(VIDEO.path).header("idempotency-key", "a").body(body);
    let id = Answer::read(request).await.json()["id"].as_str().expect("an id").to_owned();
    match stage {
        "sent" => world.vendor_hears("it", |world| !world.submissions().is_empty()).await,
        "copied" => world.vendor_hears("the file", |world| !world.fetches().is_empty()).await,
        "completed" | "failed" => drop(world.over(&id).await),
        _ => drop(world.video_becomes(&id, |video| video.status() == stage).await),
    }
    delete(&world, &id).await;
    let charges = world.settled(usize::from(charge > 0)).await;
    assert_eq!(charges.iter().map(|charge| charge.amount_nano).sum::<i64>(), charge);
    assert!(charges.iter().all(|charge| charge.request_id == id));
    hidden(&world, &id).await;
    let body = VIDEO.sent(&json!({})).bytes;
    let request = world.request(VIDEO.path).header("idempotency-key", "a").body(body);
    assert_eq!(Answer::read(request).await.refusal(), (404, "not_found".to_owned()));
    assert_eq!(world.sim.videos().len(), usize::from(stage != "queued"));
    nothing_kept(&world).await;
}

#[rstest]
#[tokio::test]
async fn a_file_is_gone_as_soon_as_its_job_is_deleted(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(&quick(&[])).run().await;
    let mut ids = Vec::new();
    for prompt in ["a", "b"] {
        ids.push(world.place(json!({ "prompt": prompt })).await);
    }
    super::proven(&world, &ids).await;
    assert_eq!(files(&world), 2);
    let content = format!("/v1/videos/{}/content", ids[0]);
    let content = world.get_there(&content, Some(&world.key), None).await;
    let place = content.header("location").expect("an address").to_owned();
    assert_eq!(world.get_there(&place, None, None).await.status, 200);
    assert_eq!(world.delete(&format!("/v1/videos/{}", ids[0])).await.status, 200);
    assert_eq!(world.get_there(&place, None, None).await.status, 404, "the address is dead");
    assert_eq!(files(&world), 1);
    assert_eq!(world.video(&ids[1]).await.status(), "completed", "the other one stays");
    let list = world.get("/v1/videos").await.json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1));
}

#[rstest]
#[tokio::test]
async fn twenty_who_delete_one_job_delete_it_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_d", &["video-ms=900"]).conf(&quick(&[]));
    let world = world.run().await;
    let id = world.place(json!({})).await;
    world.in_progress(&id).await;
    let path = format!("/v1/videos/{id}");
    let deletes = futures_util::future::join_all((0..20).map(|_| world.delete(&path))).await;
    let done = deletes.iter().filter(|answer| answer.status == 200).count();
    let gone = deletes.iter().filter(|answer| answer.status == 404).count();
    assert_eq!((done, gone), (1, 19), "{deletes:?}");
    assert_eq!(world.charge().await.amount_nano, SHORT);
}

/// Deleted while it ran, and its node dies: somebody settles it.
#[rstest]
#[tokio::test]
async fn a_deleted_job_is_settled_though_its_gateway_dies(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &["video-ms=1500"]);
    let mut world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    world.in_progress(&id).await;
    delete(&world, &id).await;
    world.kill_and_start_again().await;
    assert_eq!(world.charge().await.amount_nano, SHORT);
    hidden(&world, &id).await;
    nothing_kept(&world).await;
    assert_eq!(world.submissions().len(), 1);
}

/// Not even the metrics count it, once it is over and forgotten.
#[rstest]
#[tokio::test]
async fn what_was_deleted_is_forgotten_in_the_end(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(&quick(&[("keep_ms", 1_500)])).run().await;
    let body = VIDEO.sent(&json!({})).bytes;
    let keyed = || world.request(VIDEO.path).header("idempotency-key", "a").body(body.clone());
    let id = Answer::read(keyed()).await.json()["id"].as_str().expect("an id").to_owned();
    world.over(&id).await;
    delete(&world, &id).await;
    assert_eq!(Answer::read(keyed()).await.status, 404);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    // Then the key is free again, as the key of a job that expired.
    let again = loop {
        let answer = Answer::read(keyed()).await;
        if answer.status == 200 {
            break answer;
        }
        assert!(std::time::Instant::now() < end, "{answer:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert_ne!(again.json()["id"], id);
    world.over(again.json()["id"].as_str().expect("an id")).await;
    world.settled(2).await;
}
