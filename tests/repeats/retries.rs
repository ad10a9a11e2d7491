//! What official clients do by themselves when no answer comes: without a key, but they say so.

use rstest::rstest;

use super::*;
use crate::world::{CHAT, MESSAGES, Opened, RESPONSES};

#[rstest]
#[tokio::test]
async fn a_retry_of_a_call_that_has_ended_gets_its_reply(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(
        (CHAT, json!({})),
        (CHAT, json!({ "stream": true })),
        (MESSAGES, json!({ "stream": true })),
        (RESPONSES, json!({})),
    )]
    what: (Offer, Value),
) {
    let (offer, members) = what;
    let world = World::start(store).conf(PATIENT).run().await;
    let first = tried(&world, offer, &members, 0).await;
    assert_eq!(first.status, 200, "{first:?}");
    for before in 1..=3 {
        repeats(&tried(&world, offer, &members, before).await, &first);
    }
    world.charge().await;
    assert_eq!(world.sim.count(offer.vendor), 1);
    // The next call is a new one, whose retries get its own reply.
    let second = tried(&world, offer, &members, 0).await;
    assert_eq!((second.status, second.header(REPLAYED)), (200, None));
    repeats(&tried(&world, offer, &members, 1).await, &second);
    // Without the header nobody asks for anything again.
    let third = world.call(offer, members).await;
    assert_eq!((third.status, third.header(REPLAYED)), (200, None));
    world.settled(3).await;
}

#[rstest]
#[tokio::test]
async fn a_retry_joins_the_call_that_still_runs(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(store).vendor("vendor_b", &["held=4"]).conf(PATIENT).run().await;
    let members = if stream { streamed("a") } else { json!({}) };
    hung_up(&world, CHAT, (RETRIES, "0"), &members).await;
    let joined = joined(&world, CHAT, &members, 1).await;
    assert_eq!((joined.status, joined.header(REPLAYED)), (200, Some("true")), "{joined:?}");
    let charge = world.charge().await;
    assert_eq!(joined.header(ORIGINAL), Some(charge.request_id.as_str()));
    assert_eq!(charge.basis, "reported");
    if stream {
        assert!(joined.body.ends_with(b"data: [DONE]\n\n"), "{joined:?}");
    }
    assert_eq!(world.sim.count("vendor_b"), 1);
    // On a machine that is busy it may come when the call has ended.
    world.metric_becomes("tollgate_repeats_total", &["endpoint=\"chat\""], 1).await;
}

/// The client that waits is a third one by then.
#[rstest]
#[tokio::test]
async fn a_retry_that_is_given_up_as_well_leaves_the_call_to_the_next(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["held=0"]).conf(PATIENT).run().await;
    let members = json!({});
    hung_up(&world, CHAT, (RETRIES, "0"), &members).await;
    let second = tried(&world, CHAT, &members, 1);
    let given_up = tokio::time::timeout(Duration::from_secs(1), second).await;
    assert!(given_up.is_err(), "the answer came too soon: {given_up:?}");
    world.logged(&["status=499", "client_gone=true"]).await;
    let joined = joined(&world, CHAT, &members, 2).await;
    assert_eq!((joined.status, joined.header(REPLAYED)), (200, Some("true")), "{joined:?}");
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// A retry of which the first call never came, or was refused on the way, is a call.
#[rstest]
#[tokio::test]
async fn a_retry_without_a_first_call_is_one(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).conf(PATIENT).run().await;
    let first = tried(&world, CHAT, &json!({}), 1).await;
    assert_eq!((first.status, first.header(REPLAYED)), (200, None));
    repeats(&tried(&world, CHAT, &json!({}), 2).await, &first);
    let other = tried(&world, CHAT, &json!({ "max_tokens": 99 }), 1).await;
    assert_eq!((other.status, other.header(REPLAYED)), (200, None));
    world.settled(2).await;
}

#[tokio::test]
async fn what_is_no_count_says_nothing() {
    let world = World::start(Store::Sqlite).run().await;
    let sent = CHAT.sent(&json!({}));
    for (number, count) in (1..).zip(["first", "-1", ""]) {
        for _ in 0..2 {
            let request = request(&world, &world.gateway, &sent, CHAT.path).header(RETRIES, count);
            let answer = Answer::read(request).await;
            let told = (answer.status, answer.header(REPLAYED));
            assert_eq!(told, (200, None), "{count:?}: {answer:?}");
        }
        world.settled(2 * number).await;
    }
}

#[rstest]
#[tokio::test]
async fn a_key_counts_for_more_than_a_count(#[values("0", "1")] count: &str) {
    let world = World::start(Store::Sqlite).run().await;
    let sent = CHAT.sent(&json!({}));
    let ask = async || {
        let request = request(&world, &world.gateway, &sent, CHAT.path).header(RETRIES, count);
        Answer::read(request.header(KEY, "a")).await
    };
    let first = ask().await;
    repeats(&ask().await, &first);
    repeats(&keyed(&world, CHAT, &json!({}), "a").await, &first);
    let retry = tried(&world, CHAT, &json!({}), 1).await;
    assert_eq!((retry.status, retry.header(REPLAYED)), (200, None), "the key was another matter");
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn a_retry_of_another_account_is_another_call(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).conf(PATIENT).run().await;
    assert_eq!(tried(&world, CHAT, &json!({}), 0).await.status, 200);
    world.settled(1).await;
    world.key = world.another_account("stranger", "5").await;
    let theirs = tried(&world, CHAT, &json!({}), 1).await;
    assert_eq!((theirs.status, theirs.header(REPLAYED)), (200, None));
    world.settled(1).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// Another node may take the retry, which must not keep a stop waiting.
#[tokio::test]
async fn told_to_stop_it_sends_those_away_who_wait_for_a_call() {
    let mut world =
        World::start(Store::Redis).vendor("vendor_b", &["held=4"]).conf(PATIENT).run().await;
    let other = world.second_gateway().await;
    let sent = CHAT.sent(&streamed("a"));
    let first = request(&world, &other, &sent, CHAT.path).header(RETRIES, "0");
    let mut first = Opened::open(first).await;
    first.take(2).await;
    let waiting = request(&world, &world.gateway, &sent, CHAT.path).header(RETRIES, "1");
    let waiting = tokio::spawn(Answer::try_read(waiting));
    world.metric_becomes("tollgate_connections", &[], 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.gateway.signal("TERM");
    let answer = waiting.await.expect("no panic").expect("an answer");
    assert_eq!(answer.refusal(), (409, "idempotency_key_in_use".to_owned()));
    assert_eq!(answer.header("retry-after"), Some("1"));
    world.gateway.ended(PATIENCE).await;
    let joined = Answer::read(request(&world, &other, &sent, CHAT.path).header(RETRIES, "2"));
    world.sim.let_go();
    let (joined, first) = tokio::join!(joined, first.rest());
    assert!(first.is_done() && joined.body == first.raw);
    world.charge().await;
}
