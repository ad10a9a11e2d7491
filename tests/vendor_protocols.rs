//! The core of what the gateway does, over each protocol that a vendor may speak. All other tests
//! have vendors that speak HTTP/2.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use crate::sim::Protocol;
use crate::world::{OFFERS, Store, VIDEO, World, chat_of, model_of, quick};

const EVERY_VENDOR: [&str; 5] = ["vendor_a", "vendor_b", "vendor_c", "vendor_d", "vendor_e"];
const ALONE: &str = "[server]\nthreads = 1";

#[rstest]
#[tokio::test]
async fn every_endpoint_is_answered_and_charged(
    #[values(Protocol::Plain, Protocol::Http1, Protocol::Http2)] protocol: Protocol,
) {
    let world = World::start(Store::Sqlite).protocol(protocol).run().await;
    for offer in OFFERS {
        let answer = world.ask(offer).await;
        assert_eq!(answer.status, 200, "{offer:?}: {answer:?}");
    }
    // Moderation is free.
    let charges = world.settled(OFFERS.len() - 1).await;
    assert!(charges.iter().all(|charge| charge.amount_nano > 0), "{charges:?}");
    let seen = world.sim.seen();
    assert!(seen.iter().all(|seen| seen.protocol == Some(protocol)), "{seen:?}");
}

#[rstest]
#[tokio::test]
async fn a_chat_is_the_same_whole_and_in_events(
    #[values(Protocol::Plain, Protocol::Http1, Protocol::Http2)] protocol: Protocol,
) {
    let world = World::start(Store::Sqlite).protocol(protocol).run().await;
    for vendor in EVERY_VENDOR {
        let call = chat_of(model_of(vendor));
        let whole = world.chat(call.clone()).await.text();
        let streamed = world.stream(call).await;
        assert_eq!((streamed.text(), streamed.is_done()), (whole, true), "{vendor}");
    }
    let charges = world.settled(2 * EVERY_VENDOR.len()).await;
    assert!(charges.iter().all(|charge| charge.basis == "reported"), "{charges:?}");
}

#[rstest]
#[tokio::test]
async fn a_failing_route_is_followed_by_the_next(
    #[values(Protocol::Plain, Protocol::Http1, Protocol::Http2)] protocol: Protocol,
    #[values("status=503", "reset=0", "cut=0")] fault: &str,
) {
    let builder = World::start(Store::Sqlite).protocol(protocol);
    let world = builder.vendor("vendor_b", &[fault, ""]).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    if fault == "cut=0" {
        assert_eq!(answer.refusal().0, 502, "a head came: the vendor may have done the work");
        world.free_of_charge().await;
        return;
    }
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(world.charge().await.depth, 1);
}

#[rstest]
#[tokio::test]
async fn a_broken_stream_is_charged_as_counted(
    #[values(Protocol::Plain, Protocol::Http1, Protocol::Http2)] protocol: Protocol,
    #[values("cut=3", "reset=3")] fault: &str,
) {
    let builder = World::start(Store::Sqlite).protocol(protocol);
    let world = builder.vendor("vendor_b", &[&format!("chunk-delay=20;{fault}")]).run().await;
    let streamed = world.stream(chat_of("lmb-5.5")).await;
    assert_eq!((streamed.status, streamed.text().as_str()), (200, "The answer "));
    assert!(streamed.error().is_some(), "{streamed:?}");
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.tokens().1), ("counted", 3));
}

#[rstest]
#[tokio::test]
async fn a_video_is_made_fetched_and_charged(
    #[values(Protocol::Plain, Protocol::Http1, Protocol::Http2)] protocol: Protocol,
) {
    let builder = World::start(Store::Sqlite).protocol(protocol);
    let world = builder.vendor("vendor_d", &["video-ms=50"]).conf(&quick(&[])).run().await;
    let video = world.over(&world.place(json!({})).await).await;
    assert_eq!(video.status(), "completed", "{video:?}");
    assert_eq!(world.charge().await.endpoint, VIDEO.endpoint);
}

#[rstest]
#[tokio::test]
async fn a_connection_serves_one_call_after_another(
    #[values(Protocol::Plain, Protocol::Http1, Protocol::Http2)] protocol: Protocol,
) {
    let world = World::start(Store::Sqlite).protocol(protocol).conf(ALONE).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    let before = world.sim.connections();
    for _ in 0..3 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
        assert!(world.stream(chat_of("lmb-5.5")).await.is_done());
    }
    world.settled(7).await;
    assert_eq!(world.sim.connections(), before);
}

#[tokio::test]
async fn calls_at_one_time_share_a_connection_over_http2() {
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &["delay=300"]);
    let world = builder.conf(ALONE).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    let before = world.sim.connections();
    let call = || world.chat(chat_of("lmb-5.5"));
    let answers = tokio::join!(call(), call(), call(), call());
    for answer in [answers.0, answers.1, answers.2, answers.3] {
        assert_eq!(answer.status, 200);
    }
    world.settled(5).await;
    assert_eq!(world.sim.connections(), before);
}

#[tokio::test]
async fn a_call_whose_stream_a_vendor_had_reset_was_sent_to_it_again() {
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &["reset=0"]);
    let world = builder.run().await;
    for calls in 1..4 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 502);
        assert!(world.sim.quiet(Duration::from_secs(2)).await);
        assert_eq!(world.sim.count("vendor_b"), calls);
    }
    world.free_of_charge().await;
}
