//! Idempotency keys: the same key is the same job, however often, wherever and whenever it is
//! shown.

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;

use super::{SHORT, proven, swift};
use crate::world::{Answer, Process, Store, VIDEO, Video, World, quick, usd};

/// A call that shows a key.
async fn keyed(world: &World, at: &Process, key: &str, prompt: &str) -> Answer {
    let body = VIDEO.sent(&json!({ "prompt": prompt }));
    let request = world.url_of(at, VIDEO.path).header("content-type", body.media);
    Answer::read(request.header("idempotency-key", key).body(body.bytes)).await
}

#[rstest]
#[case::on_sqlite(Store::Sqlite, false)]
#[case::on_redis(Store::Redis, false)]
#[case::two_on_redis(Store::Redis, true)]
#[tokio::test]
async fn forty_at_once_with_one_key_are_one_job(
    #[case] store: Store,
    #[case] two: bool,
    #[values("5", "0.28")] credit: &str,
) {
    let world = swift(store).credit(credit).run().await;
    let second = if two { Some(world.second_gateway().await) } else { None };
    let calls = (0..40).map(|number| {
        let gateway = second.as_ref().filter(|_| number % 2 == 1).unwrap_or(&world.gateway);
        keyed(&world, gateway, "key-1", "A red dot.")
    });
    let answers = join_all(calls).await;
    let videos: Vec<_> = answers.iter().map(Video::of).collect();
    let id = videos[0].id().to_owned();
    assert!(videos.iter().all(|video| video.id() == id), "{videos:#?}");
    assert!(world.balances().await.held <= SHORT);
    assert_eq!(proven(&world, std::slice::from_ref(&id)).await.len(), 1);
    assert_eq!(world.submissions().len(), 1);
    let again = keyed(&world, &world.gateway, "key-1", "Something else.").await;
    assert_eq!(Video::of(&again).json, world.video(&id).await.json, "the job as it is now");
    assert_eq!(world.get("/v1/videos").await.json()["data"].as_array().map(Vec::len), Some(1));
    world.settled(1).await;
}

/// Whatever comes with the key, even what would be refused without it for want of money.
#[rstest]
#[tokio::test]
async fn a_repeat_gives_the_job_as_it_is_whatever_its_body(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).credit(&usd(SHORT)).vendor("vendor_d", &["video-ms=700"]);
    let world = builder.conf(&quick(&[])).run().await;
    let first = Video::of(&keyed(&world, &world.gateway, "a", "A red dot.").await);
    let id = first.id().to_owned();
    world.in_progress(&id).await;
    for prompt in ["A red dot.", "A blue one."] {
        let video = Video::of(&keyed(&world, &world.gateway, "a", prompt).await);
        assert_eq!((video.id(), video.status()), (id.as_str(), "in_progress"));
    }
    assert_eq!(world.over(&id).await.outcome(), "completed");
    let video = Video::of(&keyed(&world, &world.gateway, "a", "A blue one.").await);
    assert_eq!((video.id(), video.status()), (id.as_str(), "completed"));
    let other = keyed(&world, &world.gateway, "b", "A blue one.").await;
    assert_eq!(other.refusal(), (402, "insufficient_credits".to_owned()));
    proven(&world, &[id]).await;
}

#[rstest]
#[tokio::test]
async fn a_call_that_was_refused_does_not_use_its_key(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = swift(store).credit("0.1").run().await;
    for _ in 0..2 {
        let answer = keyed(&world, &world.gateway, "a", "A red dot.").await;
        assert_eq!(answer.refusal(), (402, "insufficient_credits".to_owned()));
    }
    world.command(&["credit", "add", crate::world::ACCOUNT, "1"]).await.done();
    let id = Video::of(&keyed(&world, &world.gateway, "a", "A red dot.").await).id().to_owned();
    proven(&world, &[id]).await;
}

#[rstest]
#[tokio::test]
async fn the_same_key_of_two_accounts_is_two_jobs(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = swift(store).run().await;
    let mine = Video::of(&keyed(&world, &world.gateway, "same", "Mine.").await);
    let own = world.key.clone();
    world.key = world.another_account("stranger", "5").await;
    let theirs = Video::of(&keyed(&world, &world.gateway, "same", "Theirs.").await);
    assert_ne!(mine.id(), theirs.id());
    assert_eq!(world.over(theirs.id()).await.outcome(), "completed");
    world.key = own;
    assert_eq!(world.over(mine.id()).await.outcome(), "completed");
    world.settled(1).await;
    let told = world.command(&["--json", "charges", "stranger"]).await.json();
    assert_eq!((told.len(), &told[0]["request_id"]), (1, &theirs.id().into()));
    assert_eq!(world.submissions().len(), 2);
}

#[rstest]
#[tokio::test]
async fn the_key_of_a_deleted_job_leads_nowhere_and_makes_no_other(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = swift(store).run().await;
    let first = Video::of(&keyed(&world, &world.gateway, "a", "A red dot.").await);
    world.over(first.id()).await;
    world.settled(1).await;
    assert_eq!(world.delete(&format!("/v1/videos/{}", first.id())).await.status, 200);
    for _ in 0..2 {
        let answer = keyed(&world, &world.gateway, "a", "A red dot.").await;
        assert_eq!(answer.refusal(), (404, "not_found".to_owned()));
    }
    world.settled(1).await;
    assert_eq!(world.submissions().len(), 1);
}

#[tokio::test]
async fn a_key_is_visible_characters_and_not_too_many() {
    let world = swift(Store::Sqlite).run().await;
    let (longest, too_long) = ("k".repeat(255), "k".repeat(256));
    let cases = [
        ("", 400),
        ("a", 200),
        (longest.as_str(), 200),
        (too_long.as_str(), 400),
        ("a b", 400),
        ("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", 200),
    ];
    let mut ids = Vec::new();
    for (number, (key, status)) in cases.into_iter().enumerate() {
        let prompt = format!("number {number}");
        let answer = keyed(&world, &world.gateway, key, &prompt).await;
        assert_eq!(answer.status, status, "{key:?}: {answer:?}");
        if status == 200 {
            ids.push(Video::of(&answer).id().to_owned());
        } else {
            let param = answer.json()["error"]["param"].clone();
            assert_eq!(param, "Idempotency-Key", "{key:?}: {answer:?}");
        }
    }
    // Of the others the vendor has not heard, and they cost nothing.
    proven(&world, &ids).await;
    assert_eq!(world.submissions().len(), ids.len());
}

#[tokio::test]
async fn two_keys_at_once_are_none() {
    let world = swift(Store::Sqlite).run().await;
    let request = world.request(VIDEO.path).header("idempotency-key", "a");
    let body = VIDEO.sent(&json!({})).bytes;
    let answer = Answer::read(request.header("idempotency-key", "b").body(body)).await;
    assert_eq!(answer.refusal().0, 400, "{answer:?}");
    world.free_of_charge().await;
}

/// A key is remembered for as long as its job, through a crash as well.
#[rstest]
#[tokio::test]
async fn a_key_outlives_the_gateway_that_took_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = swift(store).run().await;
    let first = Video::of(&keyed(&world, &world.gateway, "a", "A red dot.").await);
    world.kill_and_start_again().await;
    let again = Video::of(&keyed(&world, &world.gateway, "a", "A red dot.").await);
    assert_eq!(again.id(), first.id());
    let id = first.id().to_owned();
    world.over(&id).await;
    assert_eq!(world.sim.videos().len(), world.submissions().len());
    assert!(world.submissions().len() <= 1);
}
