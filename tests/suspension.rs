//! Suspended accounts: nothing new is served for them, what runs ends in order, and a resumed one
//! is served again. And when keys were last used.

use std::convert::Infallible;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::once;
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    ACCOUNT, Answer, CHAT, COUNT_TOKENS, MESSAGES, MODERATION, Offer, RESPONSES, SPEECH, Sent,
    Store, VIDEO, World, chat_of, model_of, quick, with,
};

/// Within this a change of an account is noticed, as is promised, and some more for a busy machine.
const NOTICED: Duration = Duration::from_secs(2);
/// A chat call whose answer is translated.
const TRANSLATED: Offer = Offer { model: "lma-sonnet-4-6", vendor: "vendor_a", ..CHAT };
/// A vendor who says some words, and then nothing any more for half a minute.
const SILENT: &str = "chunk-delay=20;stall=8";

async fn set(world: &World, option: &str) {
    world.command(&["account", "set", ACCOUNT, option]).await.done();
}

/// Waits until a free request is answered with a status.
async fn becomes(world: &World, status: u16) -> Answer {
    let end = Instant::now() + NOTICED;
    loop {
        let answer = world.get("/v1/models").await;
        if answer.status == status {
            return answer;
        }
        assert!(Instant::now() < end, "it is not noticed: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn suspend(world: &World) {
    set(world, "--suspend").await;
    assert_eq!(becomes(world, 403).await.code(), "account_suspended");
}

async fn resume(world: &World) {
    set(world, "--resume").await;
    becomes(world, 200).await;
}

/// Panics unless the answer is the refusal, in the format of its endpoint.
fn refused(answer: &Answer, offer: Offer) {
    assert_eq!(answer.status, 403, "{answer:?}");
    assert_eq!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
    let error = &answer.json()["error"];
    assert_eq!(error["type"], "permission_error", "{answer:?}");
    if offer.path.starts_with(MESSAGES.path) {
        assert!(answer.message().contains("suspended"), "{answer:?}");
    } else {
        assert_eq!(error["code"], "account_suspended", "{answer:?}");
    }
}

#[rstest]
#[tokio::test]
async fn a_suspended_account_is_served_nothing_and_a_resumed_one_all(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(&quick(&[])).run().await;
    suspend(&world).await;
    for offer in [CHAT, MESSAGES, RESPONSES, SPEECH, VIDEO, MODERATION, COUNT_TOKENS] {
        refused(&world.ask(offer).await, offer);
    }
    for path in ["/v1/models/lmb-5.5", "/v1/videos", "/v1/videos/video_1"] {
        refused(&world.get(path).await, VIDEO);
    }
    assert_eq!(world.sim.seen().len(), 0, "no vendor hears of it");
    world.free_of_charge().await;
    resume(&world).await;
    for offer in [CHAT, MESSAGES, MODERATION] {
        assert_eq!(world.ask(offer).await.status, 200, "{offer:?}");
    }
    world.settled(2).await;
}

#[tokio::test]
async fn every_gateway_of_a_store_notices_it() {
    let world = World::start(Store::Redis).run().await;
    let second = world.second_gateway().await;
    let ask_second = async || {
        let request = world.url_of(&second, CHAT.path).header("content-type", "application/json");
        Answer::read(request.body(CHAT.sent(&json!({})).bytes)).await
    };
    assert_eq!(ask_second().await.status, 200);
    suspend(&world).await;
    let end = Instant::now() + NOTICED;
    while ask_second().await.status != 403 {
        assert!(Instant::now() < end, "it is not noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.nothing_held().await;
}

/// A body that no account pays for was read to its end first.
#[tokio::test]
async fn it_is_refused_before_the_body_comes() {
    let world = World::start(Store::Sqlite).run().await;
    suspend(&world).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 200000\r\n\r\n",
        world.key
    );
    let answers = world.raw(head.as_bytes()).await;
    let answer = answers.first().expect("an answer");
    assert_eq!(answer.status, 403);
    assert!(String::from_utf8_lossy(&answer.body).contains("account_suspended"));
}

#[rstest]
#[tokio::test]
async fn an_account_that_is_suspended_while_its_body_comes_gets_no_hold(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let Sent { media, bytes } = CHAT.sent(&json!({}));
    let (begin, rest) = (bytes.slice(..9), bytes.slice(9..));
    let (go_on, may_go_on) = tokio::sync::oneshot::channel::<()>();
    let begin = once(async move { Ok::<Bytes, Infallible>(begin) });
    let rest = once(async move {
        may_go_on.await.expect("a word");
        Ok::<Bytes, Infallible>(rest)
    });
    let body = reqwest::Body::wrap_stream(begin.chain(rest));
    let calling = Answer::read(world.sending(CHAT.path, &media, Some(&world.key)).body(body));
    let suspending = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        suspend(&world).await;
        // Nobody waits any more if it was refused before.
        let _ = go_on.send(());
    };
    let (answer, ()) = tokio::join!(calling, suspending);
    refused(&answer, CHAT);
    assert_eq!(world.sim.seen().len(), 0, "no vendor hears of it");
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn a_silent_stream_is_ended_and_charged_exactly_what_was_delivered(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("vendor_b", "vendor_d", "vendor_e")] vendor: &str,
) {
    let world = World::start(store).vendor(vendor, &["chunk-delay=20;stall=3"]).run().await;
    let mut stream = world.open_stream(chat_of(model_of(vendor))).await;
    let mut delivered = String::new();
    for _ in 0..3 {
        let event = stream.next().await.expect("an event");
        let event: Value = serde_json::from_str(&event).expect("an event is JSON");
        delivered += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(delivered, "The answer ");
    suspend(&world).await;
    let ended = stream.rest().await;
    assert_eq!((ended.status, ended.broken, ended.data.len()), (200, false, 1), "{ended:?}");
    let error = ended.error().expect("an error event");
    assert_eq!(error["type"], "permission_error", "{ended:?}");
    assert_eq!(error["code"], "account_suspended", "{ended:?}");
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0));
    // Two words, and what the vendor adds to a reply.
    assert_eq!(charge.tokens().1, if vendor == "vendor_b" { 3 } else { 4 });
}

#[rstest]
#[tokio::test]
async fn a_stream_ends_with_an_error_in_the_format_of_its_client(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(MESSAGES, RESPONSES, TRANSLATED)] offer: Offer,
) {
    let world = World::start(store).vendor(offer.vendor, &[SILENT]).run().await;
    let mut stream = world.open_call(offer, json!({})).await;
    // A response begins with four events that have no output yet.
    stream.take(if offer == RESPONSES { 6 } else { 3 }).await;
    suspend(&world).await;
    let ended = stream.rest().await;
    assert!(!ended.broken, "{ended:?}");
    let error = ended.error().expect("an error event");
    assert_eq!(error["type"], "permission_error", "{ended:?}");
    if offer != MESSAGES {
        assert_eq!(error["code"], "account_suspended", "{ended:?}");
    }
    let charge = world.charge().await;
    assert!(charge.tokens().1 > 0 && charge.written_off_nano == 0, "{charge:?}");
}

#[rstest]
#[tokio::test]
async fn a_stream_in_full_flow_is_ended_with_its_next_piece(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "chunk-delay=30;chunks=500";
    let world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(3).await;
    set(&world, "--suspend").await;
    let told = Instant::now();
    let ended = stream.rest().await;
    assert!(told.elapsed() < NOTICED, "it took {:?}", told.elapsed());
    assert!(!ended.broken, "{ended:?}");
    assert_eq!(ended.error().expect("an error event")["code"], "account_suspended", "{ended:?}");
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0));
    assert!((3..500).contains(&charge.tokens().1), "{charge:?}");
    // The vendor is told to stop, and the client may go on once the account is resumed.
    assert!(world.sim.quiet(Duration::from_secs(5)).await);
    resume(&world).await;
    let mut again = world.open_stream(chat_of("lmb-5.5")).await;
    again.take(3).await;
    drop(again);
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn streams_of_other_accounts_go_on(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let mut world = World::start(store).vendor("vendor_b", &["held=4"]).run().await;
    let other = world.another_account("other", "5").await;
    let suspended = std::mem::replace(&mut world.key, other);
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    let other = std::mem::replace(&mut world.key, suspended);
    suspend(&world).await;
    world.key = other;
    assert_eq!(world.get("/v1/models").await.status, 200);
    world.sim.let_go();
    let streamed = stream.rest().await;
    assert!(streamed.is_done(), "{streamed:?}");
}

#[rstest]
#[tokio::test]
async fn a_whole_answer_that_is_under_way_is_delivered_and_charged(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["held=0"]).run().await;
    let suspending = async {
        while world.sim.count("vendor_b") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        suspend(&world).await;
        world.sim.let_go();
    };
    let (answer, ()) = tokio::join!(world.chat(chat_of("lmb-5.5")), suspending);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(world.charge().await.basis, "reported");
}

/// The vendor had the call, and had not said a word when the account was suspended.
#[rstest]
#[tokio::test]
async fn a_stream_that_has_not_begun_is_refused_and_free(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "delay=4000;chunk-delay=100;chunks=50";
    let world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    let suspending = async {
        while world.sim.count("vendor_b") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        suspend(&world).await;
    };
    let mut call = chat_of("lmb-5.5");
    call["stream"] = true.into();
    let (answer, ()) = tokio::join!(world.chat(call), suspending);
    refused(&answer, CHAT);
    world.free_of_charge().await;
}

/// Nothing wakes a client whose vendor takes minutes, and then says nothing.
#[rstest]
#[tokio::test]
async fn a_vendor_that_had_not_answered_kept_the_stream_of_a_suspended_account(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["delay=5000;stall=0"]).run().await;
    let suspending = async {
        while world.sim.count("vendor_b") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        suspend(&world).await;
        Instant::now()
    };
    let call = with(chat_of("lmb-5.5"), &json!({ "stream": true }));
    let calling = async { (world.chat(call).await, Instant::now()) };
    let ((answer, ended), suspended) = tokio::join!(calling, suspending);
    refused(&answer, CHAT);
    let late = ended.saturating_duration_since(suspended);
    assert!(late < NOTICED, "it took {late:?}");
    world.free_of_charge().await;
}

/// A route failed, and the next one was asked for an account that was suspended meanwhile.
#[rstest]
#[tokio::test]
async fn a_suspended_call_went_on_to_another_vendor_account(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let routes = ["delay=4000;page", ""];
    let world = World::start(store).vendor("vendor_b", &routes).run().await;
    let suspending = async {
        while world.sim.count("vendor_b") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        suspend(&world).await;
    };
    let (answer, ()) = tokio::join!(world.chat(chat_of("lmb-5.5")), suspending);
    refused(&answer, CHAT);
    assert_eq!(world.sim.count("vendor_b"), 1, "the other route hears nothing");
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn a_video_that_a_vendor_makes_is_finished_and_charged(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &["video-ms=2500"]);
    let world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({})).await;
    world.in_progress(&id).await;
    suspend(&world).await;
    assert_eq!(world.charge().await.request_id, id, "it is charged meanwhile");
    resume(&world).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
}

#[rstest]
#[tokio::test]
async fn a_video_that_no_vendor_has_waits_until_the_account_is_resumed(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &["submit.status=503;submit.times=3"]);
    let world = builder.conf(&quick(&[("retry_ms", 1_000)])).run().await;
    let id = world.place(json!({})).await;
    world.vendor_hears("the job", |world| !world.submissions().is_empty()).await;
    suspend(&world).await;
    let heard = world.submissions().len();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.submissions().len(), heard, "it is not sent meanwhile");
    assert!(world.balances().await.held > 0, "its money is held");
    resume(&world).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    assert_eq!((world.charge().await.request_id, world.sim.videos().len()), (id, 1));
}

/// When the key of the world was last used, in unix seconds.
async fn last_used(world: &World) -> Option<i64> {
    let told = world.command(&["--json", "key", "show", &world.key[..14]]).await;
    told.json().remove(0)["last_used_at"].as_i64()
}

#[rstest]
#[tokio::test]
async fn a_gateway_that_stops_has_told_when_keys_were_used(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).run().await;
    let unused = world.command(&["key", "issue", ACCOUNT]).await.done().trim().to_owned();
    assert_eq!(last_used(&world).await, None);
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    assert_eq!(last_used(&world).await, None, "a call writes nothing of it");
    world.gateway.signal("TERM");
    world.gateway.ended(Duration::from_secs(60)).await;
    let at = last_used(&world).await.expect("a use");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    let now = i64::try_from(now.as_secs()).expect("a time");
    assert_eq!(at % 60, 0, "it is told to the minute");
    assert!((now - 180..=now).contains(&at), "{at} at {now}");
    world.key = unused;
    assert_eq!(last_used(&world).await, None);
}
