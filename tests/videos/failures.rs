//! Jobs that do not become a video: every way to fail, told by its code, and free.

use rstest::rstest;
use serde_json::json;

use super::{files, kept, proven};
use crate::world::{Store, Video, World, closed_port, quick};

/// Waits for the end of a job, which has to be a failure, told as failures are.
async fn failed(world: &World, id: &str) -> Video {
    let video = world.over(id).await;
    assert_eq!(video.status(), "failed", "{video:?}");
    let error = video.json["error"].as_object().expect("an error");
    assert_eq!(error.len(), 2, "{video:?}");
    assert!(error["message"].as_str().is_some_and(|told| !told.is_empty()), "{video:?}");
    assert!(!video.json.to_string().contains("sim-account"), "{video:?}");
    let usage = json!({ "seconds": 4, "resolution": "720p", "cost_usd": 0 });
    assert_eq!(video.json["usage"], usage);
    assert!(video.json["completed_at"].is_i64() && video.json["expires_at"].is_null(), "{video:?}");
    let content = world.get(&format!("/v1/videos/{id}/content")).await;
    assert_eq!(content.refusal(), (404, "not_found".to_owned()));
    video
}

/// The one job of a world, to its end, with nothing charged and nothing kept.
async fn only_failed(world: &World) -> Video {
    let id = world.place(json!({})).await;
    let video = failed(world, &id).await;
    world.free_of_charge().await;
    assert_eq!(kept(world).len(), 0, "{:?}", kept(world));
    video
}

/// What a prompt makes the vendor do, and what the client is told.
const ENDS: [(&str, &str); 8] = [
    ("[blocked]", "moderation_blocked"),
    ("[withheld]", "moderation_blocked"),
    ("[late]", "moderation_blocked"),
    ("[denied]", "moderation_blocked"),
    ("[fails]", "vendor_failed"),
    ("[expires]", "vendor_failed"),
    ("[gone]", "vendor_failed"),
    ("[lost-file]", "undelivered"),
];

#[rstest]
#[tokio::test]
async fn every_end_of_the_vendors_has_its_code_and_is_free(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(&quick(&[("copies_max", 3)])).run().await;
    let mut jobs = Vec::new();
    for (prompt, code) in ENDS {
        jobs.push((world.place(json!({ "prompt": prompt })).await, code));
    }
    for (id, code) in jobs {
        assert_eq!(failed(&world, &id).await.json["error"]["code"], code);
    }
    world.free_of_charge().await;
    assert_eq!((world.submissions().len(), kept(&world).len()), (ENDS.len(), 0));
}

#[rstest]
#[case::internal("fails=internal_error", "vendor_failed")]
#[case::away("fails=service_unavailable", "vendor_failed")]
#[case::precondition("fails=failed_precondition", "vendor_failed")]
#[case::argument("fails=invalid_argument", "vendor_failed")]
#[case::permission("fails=permission_denied", "vendor_failed")]
#[case::without_a_word("fails=silent", "vendor_failed")]
#[case::withheld("moderated", "moderation_blocked")]
#[case::without_an_address("url=none", "undelivered vendor_failed moderation_blocked")]
#[case::an_empty_address("url=empty", "undelivered vendor_failed moderation_blocked")]
#[case::an_address_of_clouds("url=metadata", "undelivered")]
#[case::an_address_of_files("url=scheme", "undelivered")]
#[case::half_an_address("url=relative", "undelivered")]
#[case::led_elsewhere("redirect", "undelivered")]
#[case::the_file_is_refused("file.status=500", "undelivered")]
#[case::the_file_breaks("file.cut=2", "undelivered")]
#[case::the_file_is_reset("file.reset=1", "undelivered")]
#[case::nobody_has_the_file("url-port=1", "undelivered")]
#[tokio::test]
async fn whatever_the_vendor_does_instead_is_a_failure_and_free(
    #[case] faults: &str,
    #[case] codes: &str,
) {
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &[faults]);
    let world = builder.conf(&quick(&[("copies_max", 3)])).run().await;
    let video = only_failed(&world).await;
    let code = video.json["error"]["code"].as_str().expect("a code");
    assert!(codes.split(' ').any(|known| known == code), "{video:?}");
    assert_eq!(world.submissions().len(), 1);
}

#[rstest]
#[tokio::test]
async fn a_file_that_cannot_be_copied_is_tried_so_often_and_no_more(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &["file.status=503"]);
    let world = builder.conf(&quick(&[("copies_max", 4)])).run().await;
    assert_eq!(only_failed(&world).await.json["error"]["code"], "undelivered");
    assert_eq!(world.fetches().len(), 4);
}

#[rstest]
#[case::refused(Store::Sqlite, "file.status=503;file.times=2")]
#[case::broken(Store::Redis, "file.cut=3;file.times=2")]
#[case::reset(Store::Sqlite, "file.reset=0;file.times=2")]
#[case::questions_refused(Store::Redis, "poll.status=503;poll.times=3")]
#[case::questions_too_many(Store::Sqlite, "poll.status=429;poll.times=3")]
#[case::questions_unanswered(Store::Redis, "poll.reset=0;poll.times=3")]
#[case::questions_cut(Store::Sqlite, "poll.cut=0;poll.times=3")]
#[case::answers_of_garbage(Store::Redis, "poll.garbage;poll.times=3")]
#[case::not_yet_known(Store::Sqlite, "poll.status=404;poll.times=2")]
#[case::a_slow_file(Store::Redis, "file.chunk-delay=20")]
#[tokio::test]
async fn what_fails_for_a_while_is_tried_again_and_charged_once(
    #[case] store: Store,
    #[case] faults: &str,
) {
    let builder = World::start(store).vendor("vendor_d", &[faults]);
    let world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    assert_eq!(proven(&world, &[id]).await.len(), 1);
    assert_eq!((world.submissions().len(), files(&world)), (1, 1));
}

#[rstest]
#[case::made_too_slowly("never", "in_progress")]
#[case::never_answered("poll.stall=0", "in_progress")]
#[case::never_taken("submit.status=503", "queued")]
#[tokio::test]
async fn what_is_not_finished_in_time_has_timed_out_and_is_free(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] faults: &str,
    #[case] before: &str,
) {
    let settings = [("timeout_ms", 1_500), ("answer_ms", 300), ("retry_ms", 50)];
    let builder = World::start(store).vendor("vendor_d", &[faults]).conf(&quick(&settings));
    let world = builder.run().await;
    let id = world.place(json!({})).await;
    assert_eq!(world.video_becomes(&id, |video| video.status() == before).await.status(), before);
    let video = world.over(&id).await;
    assert_eq!(video.outcome(), "failed timed_out");
    assert_eq!(video.cost_nano(), 0);
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn without_anybody_to_make_it_it_waits_and_times_out(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &[&closed_port()]);
    let world = builder.conf(&quick(&[("timeout_ms", 1_000)])).run().await;
    assert_eq!(only_failed(&world).await.json["error"]["code"], "timed_out");
}

/// What was made in time is delivered, even if the copy takes longer than a video may.
#[tokio::test]
async fn a_video_that_was_made_in_time_is_delivered_though_its_file_is_slow() {
    let faults = "video-ms=300;file.chunk-delay=80";
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &[faults]);
    let world = builder.conf(&quick(&[("timeout_ms", 1_000)])).run().await;
    let id = world.place(json!({})).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    proven(&world, &[id]).await;
}
