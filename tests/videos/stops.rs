//! A gateway that is told to stop in the middle of a job: it ends what it has begun, leaves in
//! time, and the job goes on elsewhere.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::proven;
use crate::world::{Store, Video, World, quick};

/// It has ended by then, whatever it was doing.
const SOON: Duration = Duration::from_secs(8);

#[rstest]
#[case::placed("", "placed")]
#[case::being_sent("submit.delay=900", "sent")]
#[case::with_the_vendor("video-ms=2500", "in_progress")]
#[case::being_asked_for("poll.delay=700", "asked")]
#[case::being_copied("file.chunk-delay=40", "fetched")]
#[tokio::test]
async fn a_clean_stop_leaves_nothing_unknown(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] faults: &str,
    #[case] stage: &str,
) {
    let builder = World::start(store).vendor("vendor_d", &[faults]);
    let mut world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    match stage {
        "placed" => {}
        "sent" => world.vendor_hears("it", |world| !world.submissions().is_empty()).await,
        "asked" => world.vendor_hears("it", |world| !world.polls().is_empty()).await,
        "fetched" => world.vendor_hears("it", |world| !world.fetches().is_empty()).await,
        status => drop(world.video_becomes(&id, |video| video.status() == status).await),
    }
    world.gateway.signal("TERM");
    world.gateway.ended(SOON).await;
    let log = world.log();
    assert!(!log.contains("may have billed it"), "{log}");
    world.kill_and_start_again().await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    assert_eq!(proven(&world, &[id]).await.len(), 1);
    assert_eq!(world.submissions().len(), 1);
    assert_eq!(super::files(&world), 1);
}

/// While it leaves, another one is there.
#[tokio::test]
async fn what_one_node_leaves_another_goes_on_with() {
    let faults = "video-ms=800;file.chunk-delay=20";
    let builder = World::start(Store::Redis).vendor("vendor_d", &[faults]);
    let mut world = builder.conf(&quick(&[])).run().await;
    let mut ids = Vec::new();
    for number in 0..10 {
        ids.push(world.place(json!({ "prompt": format!("number {number}") })).await);
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let second = world.second_gateway().await;
    let mut first = std::mem::replace(&mut world.gateway, second);
    first.signal("TERM");
    first.ended(SOON).await;
    assert_eq!(proven(&world, &ids).await.len(), 10);
    assert_eq!(world.submissions().len(), 10);
}

/// A vendor who does not answer keeps nobody from leaving.
#[rstest]
#[case::of_the_vendor("submit.stall=0", "failed vendor_failed")]
#[case::of_the_file("file.stall=2;file.times=1", "completed")]
#[tokio::test]
async fn a_stop_does_not_wait_for_ever(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] faults: &str,
    #[case] outcome: &str,
) {
    let conf = quick(&[("answer_ms", 60_000)]) + "[server]\ngrace_s = 1";
    let mut world = World::start(store).vendor("vendor_d", &[faults]).conf(&conf).run().await;
    let id = world.place(json!({})).await;
    world
        .vendor_hears("it", |world| {
            let heard =
                if faults.starts_with("file") { world.fetches() } else { world.submissions() };
            !heard.is_empty()
        })
        .await;
    world.gateway.signal("TERM");
    world.gateway.ended(SOON).await;
    world.kill_and_start_again().await;
    assert_eq!(world.over(&id).await.outcome(), outcome);
    proven(&world, &[id]).await;
    assert_eq!(world.submissions().len(), 1);
}

/// Told to stop it takes no order that nobody would keep.
#[rstest]
#[tokio::test]
async fn an_order_that_was_taken_is_kept_through_a_stop(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).conf(&quick(&[])).run().await;
    let orders = (0..10).map(|number| {
        let members = json!({ "prompt": format!("number {number}") });
        let body = crate::world::VIDEO.sent(&members);
        let request = world.request("/v1/videos").body(body.bytes);
        crate::world::Answer::try_read(request)
    });
    let stop = async {
        tokio::time::sleep(Duration::from_millis(3)).await;
        world.gateway.signal("TERM");
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(orders), stop);
    let taken = answers.iter().flatten().filter(|answer| answer.status == 200);
    let ids: Vec<_> = taken.map(|answer| Video::of(answer).id().to_owned()).collect();
    world.gateway.ended(SOON).await;
    world.kill_and_start_again().await;
    assert_eq!(proven(&world, &ids).await.len(), ids.len());
    let listed = world.get("/v1/videos").await.json();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(ids.len()));
}

/// Who hangs up before he is told has an order all the same, or none: nothing between.
#[rstest]
#[tokio::test]
async fn a_client_who_hangs_up_has_an_order_or_has_none(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    use tokio::io::AsyncWriteExt;
    let world = World::start(store).conf(&quick(&[])).run().await;
    for number in 0..10 {
        let body = json!({ "model": "lmd-imagine-video", "prompt": format!("number {number}") });
        let body = body.to_string();
        let head = format!(
            "POST /v1/videos HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            world.key,
            body.len()
        );
        let connected = tokio::net::TcpStream::connect(&world.gateway.http).await;
        let mut stream = connected.expect("a connection");
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("all of it");
        tokio::time::sleep(Duration::from_micros(number * 300)).await;
        drop(stream);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let list = world.get("/v1/videos").await.json();
    let jobs = list["data"].as_array().expect("a list").iter();
    let ids: Vec<_> = jobs.map(|job| job["id"].as_str().expect("an id").to_owned()).collect();
    assert_eq!(proven(&world, &ids).await.len(), ids.len());
    assert_eq!(world.submissions().len(), ids.len());
}
