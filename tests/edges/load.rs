//! More to do than can be done: what is above is refused before any work, and can be tried again.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::PATIENCE;
use crate::world::{Answer, Store, World, chat_of};

/// Waits until a vendor has heard of so many calls.
pub(super) async fn heard(world: &World, count: u64) {
    let end = Instant::now() + PATIENCE;
    while world.sim.count("vendor_b") < count {
        assert!(Instant::now() < end, "the vendor was not called {count} times");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_overload(answer: &Answer) -> bool {
    let told = answer.refusal() == (503, "overloaded".to_owned());
    told && answer.header("retry-after") == Some("1") && answer.header("x-should-retry").is_none()
}

#[tokio::test]
async fn more_requests_than_may_be_under_way_are_refused() {
    let builder = World::start(Store::Sqlite).conf("[limits]\nrequests_max = 2");
    let world = builder.vendor("vendor_b", &["held=0"]).run().await;
    let two = join_all((0..2).map(|_| world.chat(chat_of("lmb-5.5"))));
    let third = async {
        heard(&world, 2).await;
        let answers = [world.chat(chat_of("lmb-5.5")).await, world.get("/v1/models").await];
        world.sim.let_go();
        answers
    };
    let (two, third) = tokio::join!(two, third);
    assert!(two.iter().all(|answer| answer.status == 200), "{two:?}");
    assert!(third.iter().all(is_overload), "{third:?}");
    world.metric_becomes("tollgate_shed_total", &["reason=\"requests\""], 2).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(3).await;
}

#[tokio::test]
async fn more_bytes_of_bodies_than_may_be_in_memory_are_refused() {
    let builder = World::start(Store::Sqlite).conf("[limits]\nbodies_bytes_max = 20_000");
    let world = builder.vendor("vendor_b", &["held=0"]).run().await;
    let mut large = chat_of("lmb-5.5");
    large["user"] = "x".repeat(12_000).into();
    let first = world.chat(large.clone());
    let second = async {
        heard(&world, 1).await;
        let second = world.chat(large.clone()).await;
        // Of a vendor that answers.
        let small = world.chat(chat_of("lmc-3.5-flash")).await;
        world.sim.let_go();
        [second, small]
    };
    let (first, [second, small]) = tokio::join!(first, second);
    assert_eq!(first.status, 200, "{first:?}");
    assert!(is_overload(&second), "{second:?}");
    assert_eq!(small.status, 200, "a small one fits: {small:?}");
    assert_eq!(world.chat(large.clone()).await.status, 200, "there is room again");
    world.metric_becomes("tollgate_shed_total", &["reason=\"bodies\""], 1).await;
    world.settled(3).await;
}

#[tokio::test]
async fn a_stream_that_has_begun_needs_no_room_for_its_body_any_more() {
    let builder = World::start(Store::Sqlite).conf("[limits]\nbodies_bytes_max = 20_000");
    let world = builder.vendor("vendor_b", &["held=3;times=1"]).run().await;
    let mut large = chat_of("lmb-5.5");
    large["user"] = "x".repeat(12_000).into();
    let mut stream = world.open_stream(large.clone()).await;
    stream.take(2).await;
    assert_eq!(world.stream(large).await.status, 200);
    world.sim.let_go();
    assert!(stream.rest().await.is_done());
    world.settled(2).await;
}

/// A machine that stops again and again is one that has too much to do.
#[tokio::test]
async fn while_the_gateway_is_late_it_refuses_what_is_new() {
    let world = World::start(Store::Sqlite).conf("[timeouts]\nshed_lag_ms = 100").run().await;
    let end = Instant::now() + PATIENCE;
    let stumbling = async {
        loop {
            world.gateway.signal("STOP");
            tokio::time::sleep(Duration::from_millis(250)).await;
            world.gateway.signal("CONT");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let asking = async {
        loop {
            let answer = world.get("/v1/models").await;
            if answer.status != 200 {
                return answer;
            }
            assert!(Instant::now() < end, "it is never too late");
        }
    };
    let refused = tokio::select! {
        () = stumbling => unreachable!("it has no end"),
        refused = asking => refused,
    };
    world.gateway.signal("CONT");
    assert!(is_overload(&refused), "{refused:?}");
    assert!(world.metric("tollgate_shed_total", &["reason=\"lag\""]).await > 0);
    while world.chat(chat_of("lmb-5.5")).await.status != 200 {
        assert!(Instant::now() < end, "it does not forget");
    }
    world.settled(1).await;
}
