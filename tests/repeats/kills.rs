//! Nodes that die, or stand still, while calls run that have a name: one charge in the end.

use rstest::rstest;

use super::*;
use crate::world::{CHAT, Opened};

#[rstest]
#[tokio::test]
async fn a_call_whose_node_was_killed_is_made_again_and_charged_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values((KEY, "a", "a"), (RETRIES, "0", "1"))] header: (&str, &str, &str),
) {
    let builder = World::start(store).vendor("vendor_b", &["held=0;times=1"]).conf(SHORT_LEASES);
    let mut world = builder.run().await;
    let (sent, (header, first, again)) = (CHAT.sent(&json!({})), header);
    let lost = request(&world, &world.gateway, &sent, CHAT.path).header(header, first);
    let lost = tokio::spawn(Answer::try_read(lost));
    vendor_becomes(&world, "vendor_b", 1).await;
    world.kill_and_start_again().await;
    assert!(lost.await.expect("no panic").is_err());
    let made = insists((&world, &world.gateway), (header, again), &sent).await;
    assert_eq!((made.status, made.header(REPLAYED)), (200, None), "{made:?}");
    let charge = world.charge().await;
    assert_eq!(Some(charge.request_id.as_str()), made.header("x-request-id"));
    repeats(&insists((&world, &world.gateway), (header, again), &sent).await, &made);
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// A part of the stream is noted in the ledger by then: either that is charged, and the reply is
/// lost, or the call is made again.
#[rstest]
#[tokio::test]
async fn a_stream_whose_node_was_killed_is_charged_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "chunk-delay=100;chunks=100;held=62;times=1";
    let builder = World::start(store).vendor("vendor_b", &[faults]).conf(SHORT_LEASES);
    let mut world = builder.run().await;
    let sent = CHAT.sent(&streamed("a"));
    let request = request(&world, &world.gateway, &sent, CHAT.path).header(KEY, "a");
    let mut stream = Opened::open(request).await;
    stream.take(60).await;
    world.kill_and_start_again().await;
    let answer = insists((&world, &world.gateway), (KEY, "a"), &sent).await;
    let charge = world.charge().await;
    if answer.status == 200 {
        assert_eq!(Some(charge.request_id.as_str()), answer.header("x-request-id"));
    } else {
        assert_eq!(answer.refusal(), (409, "reply_lost".to_owned()));
    }
    insists((&world, &world.gateway), (KEY, "a"), &sent).await;
    world.charge().await;
}

/// A call that runs for longer than its lease has its name kept alive.
#[rstest]
#[tokio::test]
async fn a_long_call_keeps_its_name(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values((KEY, "a", "a"), (RETRIES, "0", "1"))] header: (&str, &str, &str),
) {
    let leases = "[timeouts]\nledger_ms = 10_000\nlease_ms = 2_000";
    let builder = World::start(store).vendor("vendor_b", &["delay=5000"]).conf(leases);
    let world = builder.run().await;
    let (sent, (header, first, again)) = (CHAT.sent(&json!({})), header);
    let at = (&world, &world.gateway);
    let ask = |value| Answer::read(request(at.0, at.1, &sent, CHAT.path).header(header, value));
    let asked = async {
        let mut answers = Vec::new();
        for _ in 0..9 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            answers.push(ask(again).await);
        }
        answers
    };
    let (first, asked) = tokio::join!(ask(first), asked);
    for answer in asked {
        if answer.status == 200 {
            repeats(&answer, &first);
        } else {
            assert_eq!(answer.refusal(), (409, "idempotency_key_in_use".to_owned()));
        }
    }
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// A node that stood still for longer than its leases finds its call taken over: what it had begun
/// is not charged any more, and its reply is nobody's.
#[tokio::test]
async fn a_node_that_stood_still_finds_its_call_taken_over() {
    let builder = World::start(Store::Redis).vendor("vendor_b", &["held=0;times=1"]);
    let world = builder.conf(SHORT_LEASES).run().await;
    let other = world.second_gateway().await;
    let sent = CHAT.sent(&json!({}));
    let still = request(&world, &world.gateway, &sent, CHAT.path).header(KEY, "a");
    let still = tokio::spawn(Answer::read(still));
    vendor_becomes(&world, "vendor_b", 1).await;
    world.gateway.signal("STOP");
    let made = insists((&world, &other), (KEY, "a"), &sent).await;
    assert_eq!((made.status, made.header(REPLAYED)), (200, None), "{made:?}");
    world.gateway.signal("CONT");
    world.sim.let_go();
    assert_eq!(still.await.expect("no panic").status, 200);
    let charge = world.charge().await;
    assert_eq!(Some(charge.request_id.as_str()), made.header("x-request-id"));
    for at in [&world.gateway, &other] {
        repeats(&insists((&world, at), (KEY, "a"), &sent).await, &made);
    }
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}
