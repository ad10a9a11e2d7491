//! What fails for nothing can be tried again under its key; what was charged cannot be charged
//! again, however it ended.

use rstest::rstest;

use super::*;
use crate::world::{ACCOUNT, CHAT, Opened, RESPONSES, SPEECH, usd};

#[rstest]
#[tokio::test]
async fn a_call_that_was_refused_does_not_use_its_key(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit(&usd(1_000)).conf(PATIENT).run().await;
    for (members, status) in [
        (json!({ "model": "nothing" }), 404),
        (json!({ "max_tokens": "many" }), 400),
        (json!({ "model": "tts-1" }), 400),
        (json!({}), 402),
        (json!({}), 402),
    ] {
        let answer = keyed(&world, CHAT, &members, "a").await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    world.command(&["credit", "add", ACCOUNT, "5"]).await.done();
    let first = keyed(&world, CHAT, &json!({}), "a").await;
    assert_eq!((first.status, first.header(REPLAYED)), (200, None));
    repeats(&keyed(&world, CHAT, &json!({}), "a").await, &first);
    world.charge().await;
}

/// The vendor fails once, in whatever way, and nothing is charged for it.
#[rstest]
#[tokio::test]
async fn a_failure_that_cost_nothing_can_be_tried_again(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(
        (CHAT, false, "status=503;times=1"),
        (CHAT, false, "status=400;times=1"),
        (CHAT, false, "garbage;times=1"),
        (CHAT, false, "cut=1;times=1"),
        (CHAT, false, "reset=0;times=1"),
        (CHAT, true, "cut=0;times=1"),
        (CHAT, true, "error-event=0;times=1"),
        (RESPONSES, false, "failed;times=1"),
        (RESPONSES, true, "failed;times=1"),
        (SPEECH, false, "cut=1;times=1"),
    )]
    what: (Offer, bool, &str),
    #[values((KEY, "a", "a"), (RETRIES, "0", "1"))] header: (&str, &str, &str),
) {
    let (offer, stream, faults) = what;
    let world = World::start(store).vendor("vendor_b", &[faults]).conf(PATIENT).run().await;
    let members = if stream { json!({ "stream": true }) } else { json!({}) };
    let (sent, at) = (offer.sent(&members), (&world, &world.gateway));
    let (header, first, again) = header;
    // Sound that breaks off breaks its connection.
    let failed =
        Answer::try_read(request(at.0, at.1, &sent, offer.path).header(header, first)).await;
    let before = world.sim.count("vendor_b");
    let made = Answer::read(request(at.0, at.1, &sent, offer.path).header(header, again)).await;
    assert_eq!((made.status, made.header(REPLAYED)), (200, None), "{failed:?} {made:?}");
    assert_eq!(world.sim.count("vendor_b"), before + 1);
    repeats(
        &Answer::read(request(at.0, at.1, &sent, offer.path).header(header, again)).await,
        &made,
    );
    let charge = world.charge().await;
    assert_eq!(Some(charge.request_id.as_str()), made.header("x-request-id"));
}

/// What came of it is charged, so it is what there is: the same bytes, with the error at the end.
#[rstest]
#[tokio::test]
async fn a_stream_that_broke_after_a_part_was_delivered_is_given_again_as_it_broke(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values((KEY, "a", "a"), (RETRIES, "0", "1"))] header: (&str, &str, &str),
    #[values("cut=4", "error-event=4")] faults: &str,
) {
    let faults = format!("{faults};times=1");
    let world = World::start(store).vendor("vendor_b", &[&faults]).conf(PATIENT).run().await;
    let (sent, at) = (CHAT.sent(&streamed("a")), (&world, &world.gateway));
    let (header, first, again) = header;
    let first = Answer::read(request(at.0, at.1, &sent, CHAT.path).header(header, first)).await;
    let said = String::from_utf8_lossy(&first.body).into_owned();
    assert!(said.contains("\"error\"") && !said.contains("[DONE]"), "{said}");
    let charge = world.charge().await;
    assert_eq!(charge.basis, "counted");
    repeats(
        &Answer::read(request(at.0, at.1, &sent, CHAT.path).header(header, again)).await,
        &first,
    );
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// The answer is read on for the sake of its usage, and kept for whoever comes back.
#[rstest]
#[tokio::test]
async fn a_client_that_hung_up_finds_its_reply(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(store).vendor("vendor_b", &["held=4"]).conf(PATIENT).run().await;
    let members = if stream { streamed("a") } else { json!({}) };
    hung_up(&world, CHAT, (KEY, "a"), &members).await;
    let running = keyed(&world, CHAT, &members, "a").await;
    assert_eq!(running.refusal(), (409, "idempotency_key_in_use".to_owned()));
    world.sim.let_go();
    let charge = world.charge().await;
    assert_eq!(charge.basis, "reported");
    let again = keyed(&world, CHAT, &members, "a").await;
    assert_eq!((again.status, again.header(REPLAYED)), (200, Some("true")));
    assert_eq!(again.header(ORIGINAL), Some(charge.request_id.as_str()));
    if stream {
        assert!(again.body.ends_with(b"data: [DONE]\n\n"), "{again:?}");
    } else {
        assert!(!again.text().is_empty());
    }
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// A name can be neither given nor looked up, so nothing is promised.
#[rstest]
#[tokio::test]
async fn without_its_store_a_keyed_call_is_refused_and_works_again_with_it(
    #[values((KEY, "a"), (RETRIES, "1"))] header: (&str, &str),
) {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    let sent = CHAT.sent(&json!({}));
    assert_eq!(keyed(&world, CHAT, &json!({}), "before").await.status, 200);
    world.settled(1).await;
    world.redis().stop();
    let at = (&world, &world.gateway);
    let answer =
        Answer::read(request(at.0, at.1, &sent, CHAT.path).header(header.0, header.1)).await;
    assert_eq!(answer.refusal(), (503, "ledger_unavailable".to_owned()));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(world.redis().start_again());
    let end = Instant::now() + PATIENCE;
    let first = loop {
        let at = (&world, &world.gateway);
        let answer =
            Answer::read(request(at.0, at.1, &sent, CHAT.path).header(header.0, header.1)).await;
        if answer.status == 200 {
            break answer;
        }
        assert!(Instant::now() < end, "it does not mend: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(first.header(REPLAYED), None);
    let at = (&world, &world.gateway);
    // The server has to be told its scripts anew.
    let ask = async || {
        Answer::read(request(at.0, at.1, &sent, CHAT.path).header(header.0, header.1)).await
    };
    repeats_soon(ask, &first).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// Told to stop, it still ends the names of the calls that run.
#[rstest]
#[tokio::test]
async fn told_to_stop_it_keeps_the_replies_of_its_last_calls(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "chunk-delay=30;chunks=25";
    let mut world = World::start(store).vendor("vendor_b", &[faults]).conf(PATIENT).run().await;
    let sent = CHAT.sent(&streamed("a"));
    let request = request(&world, &world.gateway, &sent, CHAT.path).header(KEY, "a");
    let mut stream = Opened::open(request).await;
    stream.take(2).await;
    drop(stream);
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
    world.gateway = world.gateway_with("again", &[]).await;
    let again = keyed(&world, CHAT, &streamed("a"), "a").await;
    assert_eq!((again.status, again.header(REPLAYED)), (200, Some("true")), "{again:?}");
    assert!(again.body.ends_with(b"data: [DONE]\n\n"), "{again:?}");
    world.charge().await;
}
