//! A Redis that comes back without what it acknowledged last, as after a power cut: what was
//! accepted is made, once, and what a vendor has is not forgotten.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;

use super::{SHORT, proven};
use crate::ledger::redis_server::RedisServer;
use crate::world::{Answer, Process, Store, VIDEO, Video, World, quick};

/// Nothing that a test waits for takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// A gateway that makes no videos.
const IDLE: (&str, &str) = ("TOLLGATE__VIDEOS__WORKER", "false");

/// Waits until a gateway has told Redis what it lacks, after it has come back as another run.
async fn recovered(gateway: &Process) {
    let end = Instant::now() + PATIENCE;
    let runs = || gateway.log().matches("store recovery finished").count();
    while !gateway.log().contains("store restarted") || runs() < 2 {
        assert!(Instant::now() < end, "it is not made up for:\n{}", gateway.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until a gateway lets calls in again, after Redis has come back as another run.
async fn complete(world: &World, gateway: &Process) {
    let end = Instant::now() + PATIENCE;
    recovered(gateway).await;
    // Requests find their way to it a moment later.
    while world.get("/v1/videos").await.status != 200 {
        assert!(Instant::now() < end, "it does not answer:\n{}", gateway.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the gateway answers to the order of a video under a key.
async fn order(world: &World, key: &str) -> Answer {
    let body = VIDEO.sent(&json!({ "prompt": key }));
    let request = world.url_of(&world.gateway, VIDEO.path).header("content-type", body.media);
    Answer::read(request.header("idempotency-key", key).body(body.bytes)).await
}

/// Orders a video under a key.
async fn ordered(world: &World, key: &str) -> Video {
    Video::of(&order(world, key).await)
}

/// Of 366 jobs that were accepted 46 became 404, since Redis had lost its last second.
#[rstest]
#[case::while_its_gateway_lives(false)]
#[case::with_its_gateway(true)]
#[tokio::test]
async fn a_job_that_was_accepted_was_gone_after_a_power_cut(#[case] dies: bool) {
    let builder = World::start(Store::Redis).own_redis().env(IDLE.0, IDLE.1);
    let mut world = builder.vendor("vendor_d", &["video-ms=40"]).conf(&quick(&[])).run().await;
    let kept = ordered(&world, "kept").await;
    let copy = world.redis().copy();
    let mut lost = Vec::new();
    for number in 0..3 {
        lost.push(ordered(&world, &format!("lost-{number}")).await.id().to_owned());
    }
    let gone = ordered(&world, "deleted").await;
    assert_eq!(world.delete(&format!("/v1/videos/{}", gone.id())).await.status, 200);
    if dies {
        world.gateway.kill();
    }
    world.redis().fall_back_to(&copy);
    if dies {
        world.gateway = world.gateway_with("successor", &[IDLE]).await;
    } else {
        complete(&world, &world.gateway).await;
    }
    for id in &lost {
        assert_eq!(world.video(id).await.outcome(), "queued");
    }
    assert_eq!(world.balances().await.held, 5 * SHORT, "a worker gives back what is not wanted");
    let deleted = world.get(&format!("/v1/videos/{}", gone.id())).await;
    assert_eq!(deleted.status, 404, "it came back");
    assert_eq!(ordered(&world, "lost-0").await.id(), lost[0], "its key leads to it");
    lost.push(kept.id().to_owned());
    let _worker = world.gateway_with("worker", &[]).await;
    assert_eq!(proven(&world, &lost).await.len(), 4);
    assert_eq!(world.submissions().len(), 4);
    world.nothing_held().await;
}

/// The charge was in the outbox of the gateway that had made it, its key in that of another one.
#[rstest]
#[case::while_its_gateway_lives(false)]
#[case::with_its_gateway(true)]
#[tokio::test]
async fn a_job_that_another_gateway_had_made_was_made_again_for_a_repeat(#[case] dies: bool) {
    let builder = World::start(Store::Redis).own_redis().env(IDLE.0, IDLE.1);
    let mut world = builder.vendor("vendor_d", &["video-ms=40"]).conf(&quick(&[])).run().await;
    let copy = world.redis().copy();
    let worker = world.gateway_with("worker", &[]).await;
    let id = ordered(&world, "a").await.id().to_owned();
    assert_eq!(world.over(&id).await.outcome(), "completed");
    world.settled(1).await;
    // The charge comes back first, and the order after it.
    if dies {
        world.gateway.kill();
    } else {
        world.gateway.signal("STOP");
    }
    world.redis().fall_back_to(&copy);
    recovered(&worker).await;
    world.settled(1).await;
    if dies {
        world.gateway = world.gateway_with("successor", &[IDLE]).await;
    } else {
        world.gateway.signal("CONT");
        complete(&world, &world.gateway).await;
    }
    let again = order(&world, "a").await;
    assert_eq!(again.refusal(), (409, "reply_lost".to_owned()), "{id}: {again:?}");
    assert_eq!((world.submissions().len(), world.settled(1).await.len()), (1, 1));
    world.nothing_held().await;
}

/// A vendor had it, and after the power cut nobody knew under which id: it failed.
#[rstest]
#[case::while_its_gateway_lives(false)]
#[case::with_its_gateway(true)]
#[tokio::test]
async fn a_job_that_a_vendor_had_failed_after_a_power_cut(#[case] dies: bool) {
    let builder = World::start(Store::Redis).own_redis();
    let faults = "submit.delay=1500;video-ms=4000";
    let mut world =
        builder.vendor("vendor_d", &[faults]).conf(&quick(&[("lease_ms", 5_000)])).run().await;
    let id = world.place(json!({})).await;
    world.vendor_hears("it", |world| !world.submissions().is_empty()).await;
    let copy = world.redis().copy();
    world.in_progress(&id).await;
    if dies {
        world.gateway.kill();
    }
    world.redis().fall_back_to(&copy);
    if dies {
        world.gateway = world.gateway_with("successor", &[]).await;
    } else {
        complete(&world, &world.gateway).await;
    }
    // It is known again. On a slow machine the vendor has made it by now.
    let status = world.video(&id).await.status().to_owned();
    assert!(["in_progress", "completed"].contains(&&*status), "{status}");
    assert_eq!(world.over(&id).await.outcome(), "completed");
    assert_eq!(proven(&world, &[id]).await.len(), 1);
    assert_eq!(world.submissions().len(), 1);
}

/// What had ended is not begun once more by what is written down of its beginning.
#[tokio::test]
async fn a_job_that_was_deleted_before_a_power_cut_stays_so() {
    let builder = World::start(Store::Redis).own_redis();
    let mut world = builder.vendor("vendor_d", &["video-ms=40"]).conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    world.settled(1).await;
    assert_eq!(world.delete(&format!("/v1/videos/{id}")).await.status, 200);
    super::nothing_kept(&world).await;
    // The record goes with the file; whatever is said of it by now is kept.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let copy = world.redis().copy();
    world.redis().fall_back_to(&copy);
    complete(&world, &world.gateway).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.get(&format!("/v1/videos/{id}")).await.status, 404);
    assert_eq!((world.submissions().len(), world.settled(1).await.len()), (1, 1));
}

/// Redis might forget that it was sent, and then it would be sent once more.
#[tokio::test]
async fn a_job_was_sent_to_its_vendor_before_a_power_cut_could_not_undo_that() {
    let builder = World::start(Store::Redis).own_redis();
    let mut world = builder
        .vendor("vendor_d", &["video-ms=40"])
        .conf(&quick(&[("lease_ms", 5_000)]))
        .run()
        .await;
    let port = world.redis().port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    let end = Instant::now() + PATIENCE;
    while !format!("{:?}", world.redis().command(&["INFO", "replication"])).contains("state=online")
    {
        assert!(Instant::now() < end, "the replica does not follow");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    replica.signal("STOP");
    let id = world.place(json!({})).await;
    // Without the replica's word for it nobody else hears of it.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(world.submissions().len(), 0);
    assert_eq!(world.video(&id).await.status(), "queued");
    replica.signal("CONT");
    assert_eq!(world.over(&id).await.outcome(), "completed");
    assert_eq!(proven(&world, &[id]).await.len(), 1);
}

/// Orders videos until it is told to stop; gives the ids of those that were accepted.
async fn orders(world: &World, worker: usize, stop: &AtomicBool) -> Vec<String> {
    let mut accepted = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let members = json!({ "prompt": format!("{worker}, {number}"), "seconds": 1 });
        let answer = world.call(VIDEO, members).await;
        match answer.status {
            200 => accepted.push(Video::of(&answer).id().to_owned()),
            503 => {}
            other => panic!("{other}: {answer:?}"),
        }
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    accepted
}

/// Redis loses less than it takes until a vendor is told anything.
#[tokio::test]
async fn of_many_jobs_that_were_accepted_none_was_gone_or_sent_twice_after_power_cuts() {
    let builder = World::start(Store::Redis).own_redis().credit("900");
    let conf = quick(&[("lease_ms", 5_000), ("open_max", 1_000)]);
    let mut world = builder.vendor("vendor_d", &["video-ms=300"]).conf(&conf).run().await;
    let (stop, mut server) = (AtomicBool::new(false), world.take_redis());
    let cuts = async {
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(900)).await;
            let copy = server.copy();
            tokio::time::sleep(Duration::from_millis(700)).await;
            let falling = tokio::task::spawn_blocking(move || {
                server.fall_back_to(&copy);
                server
            });
            server = falling.await.expect("no panic");
            tokio::time::sleep(Duration::from_millis(2_500)).await;
        }
        stop.store(true, Ordering::Relaxed);
        server
    };
    let many = join_all((0..4).map(|worker| orders(&world, worker, &stop)));
    let (accepted, _server) = tokio::join!(many, cuts);
    let accepted: Vec<String> = accepted.into_iter().flatten().collect();
    complete(&world, &world.gateway).await;
    let lines = world.log().matches("video jobs replayed into the store").count();
    let charges = proven(&world, &accepted).await;
    println!("| {} accepted | {} completed | {lines} times |", accepted.len(), charges.len());
    assert!(charges.len() == accepted.len() && lines > 0, "{lines}");
}
