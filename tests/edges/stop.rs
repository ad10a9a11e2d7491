//! A gateway that is told to stop, and those who are connected.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;

use super::{Client, PATIENCE, chat, head};
use crate::world::{Opened, Store, World, chat_of};

/// How many streams are under way: `STREAMS` of the environment, else few.
fn streams() -> usize {
    std::env::var("STREAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(40)
}

#[rstest]
#[tokio::test]
async fn told_to_stop_it_cuts_no_stream_and_leaves_with_the_last(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder =
        World::start(store).credit("5000").vendor("vendor_b", &["chunk-delay=60;chunks=30"]);
    let mut world = builder.run().await;
    let mut opened = join_all((0..streams()).map(|_| world.open_stream(chat_of("lmb-5.5")))).await;
    for stream in &mut opened {
        stream.take(1).await;
    }
    world.gateway.signal("TERM");
    let streamed = join_all(opened.into_iter().map(Opened::rest)).await;
    let cut = streamed.iter().filter(|streamed| !streamed.is_done()).count();
    assert_eq!(cut, 0);
    // Its grace is much longer.
    world.gateway.ended(PATIENCE).await;
    world.settled(streams()).await;
}

/// Who asks within this after a stop was asked for is not too late.
const PROMPT: Duration = Duration::from_millis(250);
/// On a busy machine a signal, or a client, may be late this many times.
const ATTEMPTS_MAX: usize = 10;

/// They could not know whether what they had sent was read.
#[tokio::test]
async fn told_to_stop_it_answers_those_who_are_about_to_ask() {
    for _ in 0..ATTEMPTS_MAX {
        if are_answered().await {
            return;
        }
    }
    panic!("asked too late, or before the signal had arrived, {ATTEMPTS_MAX} times");
}

/// Whether they asked in time to be answered, and after the signal had arrived.
async fn are_answered() -> bool {
    let mut world = World::start(Store::Sqlite).run().await;
    let (mut idle, mut half) = (Client::of(&world).await, Client::of(&world).await);
    idle.send(chat(&world, "")).await;
    assert_eq!(idle.answer().await.status, 200);
    let call = chat(&world, "");
    half.send(&call[..30]).await;
    let (mut new, silent) = (Client::of(&world).await, Client::of(&world).await);
    world.metric_becomes("tollgate_connections", &[], 4).await;
    let told = Instant::now();
    world.gateway.signal("TERM");
    tokio::time::sleep(Duration::from_millis(100)).await;
    idle.send(&call).await;
    half.send(&call[30..]).await;
    new.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
    if told.elapsed() > PROMPT {
        return false;
    }
    for client in [&mut idle, &mut half, &mut new] {
        let answer = client.answer().await;
        assert_eq!(answer.status, 200);
        if answer.header("connection") == Some("keep-alive") {
            return false;
        }
        assert_eq!(answer.header("connection"), Some("close"));
    }
    drop(silent);
    world.gateway.ended(PATIENCE).await;
    world.settled(3).await;
    true
}

/// Nobody who is silent or slow keeps it from its end.
#[tokio::test]
async fn told_to_stop_it_waits_for_nobody_who_does_not_come_to_the_point() {
    let conf = "[timeouts]\nhead_ms = 120_000";
    let mut world = World::start(Store::Sqlite).conf(conf).run().await;
    let (silent, mut slow) = (Client::of(&world).await, Client::of(&world).await);
    slow.send("GET /v1/mod").await;
    world.metric_becomes("tollgate_connections", &[], 2).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
    drop((silent, slow));
}
