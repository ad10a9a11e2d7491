//! Redis goes away, or falls asleep, in the middle of a job.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::json;

use super::{SHORT, proven};
use crate::world::{Answer, Store, VIDEO, Video, World, quick};

/// A ledger that takes longer is away.
const LEDGER_MS: (&str, &str) = ("TOLLGATE__TIMEOUTS__LEDGER_MS", "1000");

/// How Redis goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Killed,
    Asleep,
}

impl Way {
    fn goes(self, world: &mut World) {
        match self {
            Way::Killed => world.redis().stop(),
            Way::Asleep => world.redis().signal("STOP"),
        }
    }

    fn comes_back(self, world: &mut World) {
        match self {
            Way::Killed => assert!(world.redis().start_again()),
            Way::Asleep => world.redis().signal("CONT"),
        }
    }
}

/// A gateway that has lost its ledger mends by itself, soon.
async fn mended(world: &World) {
    let end = Instant::now() + Duration::from_secs(15);
    let ready = format!("http://{}/readyz", world.gateway.admin);
    loop {
        let told = world.client().get(&ready).send().await;
        if told.is_ok_and(|told| told.status() == 200)
            && world.get("/v1/videos").await.status == 200
        {
            return;
        }
        assert!(Instant::now() < end, "it does not mend: {}", world.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[rstest]
#[case::being_sent("submit.delay=500", "sent")]
#[case::with_the_vendor("video-ms=900", "in_progress")]
#[case::being_copied("file.chunk-delay=40", "fetched")]
#[tokio::test]
async fn a_job_outlives_its_store_and_is_charged_once(
    #[values(Way::Killed, Way::Asleep)] way: Way,
    #[values(300, 2_500)] away_ms: u64,
    #[case] faults: &str,
    #[case] stage: &str,
) {
    let builder = World::start(Store::Redis)
        .own_redis()
        .env(LEDGER_MS.0, LEDGER_MS.1)
        .vendor("vendor_d", &[faults]);
    let mut world = builder.conf(&quick(&[("lease_ms", 5_000)])).run().await;
    let id = world.place(json!({})).await;
    match stage {
        "sent" => world.vendor_hears("it", |world| !world.submissions().is_empty()).await,
        "fetched" => world.vendor_hears("it", |world| !world.fetches().is_empty()).await,
        status => drop(world.video_becomes(&id, |video| video.status() == status).await),
    }
    way.goes(&mut world);
    tokio::time::sleep(Duration::from_millis(away_ms)).await;
    way.comes_back(&mut world);
    mended(&world).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    assert_eq!(proven(&world, &[id]).await.len(), 1);
    assert_eq!((world.submissions().len(), super::files(&world)), (1, 1));
}

#[rstest]
#[tokio::test]
async fn without_its_store_no_order_is_taken_and_one_that_was_refused_costs_nothing(
    #[values(Way::Killed, Way::Asleep)] way: Way,
) {
    let mut world = World::start(Store::Redis)
        .own_redis()
        .env(LEDGER_MS.0, LEDGER_MS.1)
        .conf(&quick(&[]))
        .run()
        .await;
    let first = world.place(json!({ "prompt": "the first" })).await;
    proven(&world, std::slice::from_ref(&first)).await;
    way.goes(&mut world);
    for number in 0..3 {
        let began = Instant::now();
        let answer = world.call(VIDEO, json!({ "prompt": format!("refused {number}") })).await;
        assert_eq!(answer.refusal(), (503, "ledger_unavailable".to_owned()));
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let shown = world.get(&format!("/v1/videos/{first}")).await;
        assert_eq!(shown.refusal(), (503, "ledger_unavailable".to_owned()));
    }
    way.comes_back(&mut world);
    mended(&world).await;
    // Whatever was still on its way has arrived by then, and been looked at.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let list = world.get("/v1/videos").await.json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(world.settled(1).await.len(), 1, "who was refused pays nothing");
    assert_eq!(world.submissions().len(), 1);
    let next = world.place(json!({ "prompt": "the next" })).await;
    proven(&world, &[first, next]).await;
}

/// Whoever shows a key can ask again, and has one job whatever became of the first call.
#[rstest]
#[tokio::test]
async fn an_order_with_a_key_is_one_job_though_its_store_was_away(
    #[values(Way::Killed, Way::Asleep)] way: Way,
) {
    let mut world = World::start(Store::Redis)
        .own_redis()
        .env(LEDGER_MS.0, LEDGER_MS.1)
        .conf(&quick(&[]))
        .run()
        .await;
    assert_eq!(world.get("/v1/videos").await.status, 200);
    let body = VIDEO.sent(&json!({})).bytes;
    way.goes(&mut world);
    let ask = |world: &World| {
        let request = world.request(VIDEO.path).header("idempotency-key", "a");
        Answer::read(request.body(body.clone()))
    };
    for _ in 0..3 {
        assert_eq!(ask(&world).await.status, 503);
    }
    way.comes_back(&mut world);
    mended(&world).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(Video::of(&ask(&world).await).id().to_owned());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let charge = proven(&world, &ids).await.remove(0);
    assert_eq!(charge.amount_nano, SHORT);
    assert_eq!(world.submissions().len(), 1);
}

/// There is nobody to tell what became of the job, and no use in waiting.
#[rstest]
#[case::with_the_vendor("video-ms=2500")]
#[case::being_copied("file.chunk-delay=60")]
#[tokio::test]
async fn told_to_stop_while_its_store_is_away_it_leaves_all_the_same(
    #[values(Way::Killed, Way::Asleep)] way: Way,
    #[case] faults: &str,
) {
    let conf = quick(&[]) + "[server]\ngrace_s = 1";
    let builder = World::start(Store::Redis).own_redis().env(LEDGER_MS.0, LEDGER_MS.1);
    let mut world = builder.vendor("vendor_d", &[faults]).conf(&conf).run().await;
    let id = world.place(json!({})).await;
    if faults.starts_with("file") {
        world.vendor_hears("the file", |world| !world.fetches().is_empty()).await;
    } else {
        world.in_progress(&id).await;
    }
    way.goes(&mut world);
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.gateway.signal("TERM");
    world.gateway.ended(Duration::from_secs(10)).await;
    way.comes_back(&mut world);
    world.kill_and_start_again().await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    assert_eq!(proven(&world, &[id]).await.len(), 1);
    assert_eq!(world.submissions().len(), 1);
}
