//! The life of a job that goes well, and of one that does not.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rstest::rstest;
use serde_json::{Value, json};

use super::{SHORT, SHORT_TICKS, files, proven};
use crate::world::{Form, Store, VIDEO, Video, World, quick};

const WEEK_S: i64 = 7 * 24 * 60 * 60;

fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    i64::try_from(now.as_secs()).expect("a time")
}

/// The object of a short call's job.
fn shown(video: &Video, members: &Value) -> Value {
    let mut shown = json!({
        "id": video.id(),
        "object": "video",
        "model": "lmd-imagine-video",
        "seconds": "4",
        "size": "1280x720",
        "created_at": video.json["created_at"],
        "error": null,
    });
    let object = shown.as_object_mut().expect("an object");
    object.extend(members.as_object().expect("members").clone());
    shown
}

#[rstest]
#[tokio::test]
async fn a_video_is_queued_made_kept_and_charged_what_the_vendor_bills(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &["video-ms=900"]);
    let world = builder.conf(&quick(&[])).run().await;
    let answer = world.ask(VIDEO).await;
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    assert!(answer.header("x-request-id").is_some(), "{answer:?}");
    let queued = Video::of(&answer);
    let nothing = json!({
        "status": "queued", "progress": 0, "completed_at": null, "expires_at": null,
    });
    assert_eq!(queued.json, shown(&queued, &nothing));
    let id = queued.id().to_owned();
    let uuid = id.strip_prefix("video_").expect("the form of an id");
    assert_eq!((uuid.len(), uuid.matches('-').count()), (36, 4), "{id}");
    let created = queued.json["created_at"].as_i64().expect("a time");
    assert!((created - now_s()).abs() < 60, "{created}");
    assert_eq!(world.balances().await.held, SHORT, "seconds times the listed rate");

    let running = world.video_becomes(&id, |v| v.json["progress"].as_i64() > Some(0)).await;
    let progress = running.json["progress"].clone();
    assert!(progress.as_i64() < Some(100), "{running:?}");
    let members = json!({
        "status": "in_progress", "progress": progress, "completed_at": null, "expires_at": null,
    });
    assert_eq!(running.json, shown(&queued, &members));
    assert_eq!(world.balances().await.held, SHORT);
    assert_eq!(world.charges().await, []);

    let done = world.over(&id).await;
    let ended = done.json["completed_at"].as_i64().expect("a time");
    assert!((created..=now_s()).contains(&ended), "{done:?}");
    let members = json!({
        "status": "completed", "progress": 100,
        "completed_at": ended, "expires_at": ended + WEEK_S,
        "usage": { "seconds": 4, "resolution": "720p", "cost_usd": 0.28 },
    });
    assert_eq!(done.json, shown(&queued, &members));
    let charge = proven(&world, &[id]).await.remove(0);
    assert_eq!((charge.amount_nano, charge.written_off_nano), (SHORT, 0));
    let usage = json!({ "seconds": 4, "resolution": "720p", "cost_in_usd_ticks": SHORT_TICKS });
    assert_eq!((charge.usage, charge.basis.as_str()), (usage, "reported"));
    let names = [&charge.endpoint, &charge.model, &charge.vendor, &charge.route];
    assert_eq!(names, ["videos", VIDEO.model, VIDEO.vendor, "r0"]);
    assert_eq!(charge.depth, 0);
    assert_eq!(world.balances().await.available, 5_000_000_000 - SHORT);
    assert_eq!((world.submissions().len(), world.fetches().len(), files(&world)), (1, 1, 1));
}

#[rstest]
#[tokio::test]
async fn it_is_counted_by_its_status_and_its_charge_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(&quick(&[])).run().await;
    let jobs = "tollgate_video_jobs";
    for (prompt, status) in [("a", "completed"), ("b", "completed"), ("c [fails]", "failed")] {
        let id = world.place(json!({ "prompt": prompt })).await;
        assert_eq!(world.over(&id).await.status(), status);
    }
    let never = world.place(json!({ "prompt": "d [never]" })).await;
    world.in_progress(&never).await;
    // They are counted now and then.
    let end = Instant::now() + Duration::from_secs(30);
    for (status, count) in [("completed", 2), ("failed", 1), ("in_progress", 1), ("queued", 0)] {
        while world.metric(jobs, &[&format!("status={status:?}")]).await != count {
            assert!(Instant::now() < end, "{status} is not {count}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let labels = [r#"endpoint="videos""#, r#"model="lmd-imagine-video""#, r#"vendor="vendor_d""#];
    let charged = world.metric("tollgate_charged_nanousd_total", &labels).await;
    assert_eq!(charged, 2 * SHORT);
    assert_eq!(charged, world.balances().await.posted);
    let metrics = world.metrics().await;
    let wrong = metrics.lines().find(|line| line.starts_with(jobs) && line.contains("video_"));
    assert_eq!(wrong.filter(|line| line.contains(&never)), None);
}

/// Clients poll as often as they are told to.
#[tokio::test]
async fn clients_are_told_how_long_to_wait_between_questions() {
    let world = World::start(Store::Sqlite).run().await;
    let id = world.place(json!({ "prompt": "[never]" })).await;
    let answer = world.get(&format!("/v1/videos/{id}")).await;
    let mut told = answer.headers.iter().filter(|(n, _)| n.as_str().ends_with("-poll-after-ms"));
    assert_eq!(told.next().map(|(_, ms)| ms.as_bytes()), Some(&b"5000"[..]), "{answer:?}");
    assert_eq!(told.next(), None);
}

#[rstest]
#[tokio::test]
async fn progress_never_goes_back_whatever_the_vendor_tells(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &["video-ms=1000"]);
    let world = builder.conf(&quick(&[("poll_ms", 20)])).run().await;
    let id = world.place(json!({})).await;
    let (mut last, mut steps) = (0, 0);
    loop {
        let video = world.video(&id).await;
        let progress = video.json["progress"].as_i64().expect("a number");
        assert!(progress >= last, "{video:?} after {last}");
        assert_eq!(progress == 100, video.status() == "completed", "{video:?}");
        steps += i32::from(progress > last);
        last = progress;
        if video.is_over() {
            break;
        }
    }
    assert!(steps > 1, "{steps}");
    proven(&world, &[id]).await;
}

/// The interface of jobs is the same whichever way they were asked for.
#[tokio::test]
async fn a_form_makes_the_same_job_as_json() {
    let world = World::start(Store::Sqlite).conf(&quick(&[])).run().await;
    let form = Form::new().field("model", VIDEO.model).field("prompt", "A red dot.");
    let form = form.field("seconds", "4").field("generate_audio", "true").sent();
    let by_form = Video::of(&world.send(VIDEO.path, &form).await);
    let by_json = Video::of(&world.ask(VIDEO).await);
    let expected = shown(&by_form, &by_json.json);
    let mut found = by_form.json.clone();
    found["id"] = by_json.json["id"].clone();
    found["created_at"] = by_json.json["created_at"].clone();
    assert_eq!(found, expected);
    for video in [by_form, by_json] {
        assert_eq!(world.over(video.id()).await.status(), "completed");
    }
    let posts = world.submissions();
    assert_eq!(posts[0].body, posts[1].body, "the vendor gets the same");
    world.settled(2).await;
}
