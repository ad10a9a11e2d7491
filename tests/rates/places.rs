//! Calls at a time: how many there are, and when a place is free again.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use super::{LIMITED, issue, refused, set_plan};
use crate::world::{
    Answer, Builder, CHAT, MESSAGES, Offer, Opened, Process, RESPONSES, SPEECH, Store, VIDEO,
    World, chat_of, quick, with,
};

/// A place that is not free by then never will be.
const PATIENCE: Duration = Duration::from_secs(20);
const SHORT_LEASES: &str = "[timeouts]\nlease_ms = 2_000";

fn given(store: Store, faults: &str, places: u32) -> Builder {
    let builder = World::start(store).vendor("vendor_b", &[faults]);
    builder.plans(&format!("[plan.p]\ncalls = {places}"))
}

/// A stream at a gateway, of which the first event has come.
async fn open_at(world: &World, gateway: &Process) -> Opened {
    let call = with(chat_of(CHAT.model), &json!({ "stream": true, "max_tokens": 200 }));
    let mut stream = Opened::open(world.url_of(gateway, CHAT.path).body(call.to_string())).await;
    assert_eq!(stream.status, 200);
    stream.take(1).await;
    stream
}

/// Asks until a place is free, which has to come. Each refusal says when to ask again.
async fn admitted(world: &World, offer: Offer, members: &Value) -> Answer {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = world.call(offer, members.clone()).await;
        if answer.status == 200 {
            return answer;
        }
        assert_eq!(refused(&answer, offer, "calls"), 1_000);
        assert!(Instant::now() < end, "no place is free again: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[rstest]
#[tokio::test]
async fn a_third_stream_waits_until_one_of_two_has_ended(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = given(store, "held=2;chunks=5", 2).run().await;
    set_plan(&world, "p").await;
    let streams = [open_at(&world, &world.gateway).await, open_at(&world, &world.gateway).await];
    for offer in [CHAT, MESSAGES, RESPONSES, SPEECH] {
        let refusal = world.ask(offer).await;
        assert_eq!(refused(&refusal, offer, "calls"), 1_000, "{refusal:?}");
        assert_eq!(refusal.header("retry-after"), Some("1"), "{refusal:?}");
    }
    world.sim.let_go();
    for stream in streams {
        assert!(stream.rest().await.is_done());
    }
    world.settled(2).await;
    for number in 3..6 {
        assert_eq!(world.ask(CHAT).await.status, 200);
        world.settled(number).await;
    }
    assert_eq!(world.metric(LIMITED, &[r#"kind="calls""#, r#"mode="enforce""#]).await, 4);
}

#[rstest]
#[tokio::test]
async fn a_client_that_hangs_up_leaves_its_place(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = given(store, "held=3;chunks=5", 1).run().await;
    set_plan(&world, "p").await;
    let stream = open_at(&world, &world.gateway).await;
    assert_eq!(refused(&world.ask(MESSAGES).await, MESSAGES, "calls"), 1_000);
    drop(stream);
    // The gateway notices it, and reads on for what the vendor bills.
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.sim.let_go();
    admitted(&world, MESSAGES, &json!({})).await;
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn a_vendor_that_fails_leaves_the_place_of_the_call(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("status=400", "status=500", "reset=0", "garbage")] fault: &str,
) {
    let world = given(store, fault, 1).run().await;
    set_plan(&world, "p").await;
    for _ in 0..4 {
        let answer = world.ask(CHAT).await;
        assert!(answer.status >= 400 && answer.status != 429, "{answer:?}");
        world.nothing_held().await;
    }
    admitted(&world, MESSAGES, &json!({})).await;
    world.nothing_held().await;
}

#[rstest]
#[tokio::test]
async fn a_stream_that_a_vendor_cuts_leaves_its_place(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("cut=2", "error-event=2", "reset=2")] fault: &str,
) {
    let world = given(store, fault, 1).run().await;
    set_plan(&world, "p").await;
    for _ in 0..3 {
        let streamed = world.stream(chat_of(CHAT.model)).await;
        assert_ne!(streamed.status, 429, "{streamed:?}");
        world.nothing_held().await;
    }
    admitted(&world, MESSAGES, &json!({})).await;
    world.nothing_held().await;
}

#[rstest]
#[tokio::test]
async fn a_video_has_its_place_until_it_is_over(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = given(store, "", 1).vendor("vendor_d", &["video-ms=3000"]);
    let world = world.conf(&quick(&[])).run().await;
    set_plan(&world, "p").await;
    let id = world.place(json!({})).await;
    for offer in [VIDEO, CHAT] {
        refused(&world.ask(offer).await, offer, "calls");
    }
    world.over(&id).await;
    admitted(&world, CHAT, &json!({})).await;
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn a_key_has_places_of_its_own_among_those_of_the_account(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.wide]\ncalls = 3\n[plan.narrow]\ncalls = 1";
    let builder = World::start(store).vendor("vendor_b", &["held=2;chunks=5"]).plans(plans);
    let mut world = builder.run().await;
    set_plan(&world, "wide").await;
    let narrow = issue(&world, &["--plan", "narrow"]).await;
    let wide = std::mem::replace(&mut world.key, narrow);
    let mut streams = vec![open_at(&world, &world.gateway).await];
    refused(&world.ask(CHAT).await, CHAT, "calls");
    world.key = wide;
    for _ in 0..2 {
        streams.push(open_at(&world, &world.gateway).await);
    }
    refused(&world.ask(CHAT).await, CHAT, "calls");
    world.sim.let_go();
    for stream in streams {
        assert!(stream.rest().await.is_done());
    }
    world.settled(3).await;
    let labels = [r#"scope="key""#, r#"scope="account""#];
    for label in labels {
        assert_eq!(world.metric(LIMITED, &[label, r#"kind="calls""#]).await, 1, "{label}");
    }
}

#[rstest]
#[tokio::test]
async fn two_gateways_share_the_places(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = given(store, "held=2;chunks=5", 2).run().await;
    set_plan(&world, "p").await;
    let second = world.second_gateway().await;
    let streams = [open_at(&world, &world.gateway).await, open_at(&world, &second).await];
    for gateway in [&world.gateway, &second] {
        let request = world.url_of(gateway, CHAT.path).body(CHAT.call().to_string());
        refused(&Answer::read(request).await, CHAT, "calls");
    }
    world.sim.let_go();
    for stream in streams {
        assert!(stream.rest().await.is_done());
    }
    world.settled(2).await;
    let both = [open_at(&world, &second).await, open_at(&world, &world.gateway).await];
    for stream in both {
        assert!(stream.rest().await.is_done());
    }
    world.settled(4).await;
}

/// A place lapses with the lease of its call.
#[rstest]
#[tokio::test]
async fn the_places_of_a_gateway_that_was_killed_come_back_with_its_leases(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = given(store, "held=2;chunks=5", 2).conf(SHORT_LEASES);
    let mut world = builder.run().await;
    set_plan(&world, "p").await;
    let streams = [open_at(&world, &world.gateway).await, open_at(&world, &world.gateway).await];
    world.kill_and_start_again().await;
    drop(streams);
    admitted(&world, MESSAGES, &json!({})).await;
    world.nothing_held().await;
    // Both are back.
    let answers = join_all((0..2).map(|_| world.ask(MESSAGES))).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    let charges = world.nothing_held().await;
    let served = charges.iter().filter(|charge| charge.endpoint == "messages").count();
    assert_eq!(served, 3, "{charges:?}");
}

/// Many places are lent to gateways of a busy account. None is lost on the way, and none is there
/// twice.
#[rstest]
#[tokio::test]
async fn lent_places_come_back(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    const PLACES: usize = 128;
    let world = given(store, "delay=20;prompt=5;completion=5", 128).credit("1000").run().await;
    set_plan(&world, "p").await;
    let second = world.second_gateway().await;
    let call = with(CHAT.call(), &json!({ "max_tokens": 10 })).to_string();
    let make = |number: usize| {
        let gateway = if number.is_multiple_of(2) { &world.gateway } else { &second };
        let request = world.url_of(gateway, CHAT.path).body(call.clone());
        async { Answer::read(request).await }
    };
    let mut served = 0;
    for _ in 0..3 {
        // What is lent of another gateway's may be refused here, and nothing else.
        let answers = join_all((0..PLACES).map(make)).await;
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            refused(answer, CHAT, "calls");
        }
        served += answers.iter().filter(|answer| answer.status == 200).count();
    }
    assert!(served > PLACES, "{served}");
    world.settled(served).await;
    world.metric_becomes("tollgate_allotments", &[], 0).await;
    // All places are free again: both gateways find some at the same time.
    let answers = join_all((0..PLACES / 2).map(make)).await;
    let refusals: Vec<_> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert!(refusals.is_empty(), "{refusals:?}");
    world.settled(served + PLACES / 2).await;
}
