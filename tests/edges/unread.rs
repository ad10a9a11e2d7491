//! Large answers that nobody reads, or not fast: what is held for them has a bound, for all and for
//! each account.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::cut_off::{given_up, narrow};
use super::{Client, head};
use crate::uploads::memory;
use crate::world::{Canned, EMBEDDING_B, IMAGE_B, Offer, Store, World, chat_of, http};

const MIB: usize = 1 << 20;
/// More than buffers on the way take in, so that the rest is held.
const REPLY_BYTES: usize = 8 * MIB;
const GAUGE: &str = "tollgate_answer_bytes";
/// An account's room is for one such answer and a half.
const LITTLE_ROOM: &str = "[limits]\nanswers_bytes_max = 67_108_864\n\
    answers_per_account_bytes_max = 12_582_912";

/// A vendor that answers calls for chat with so many letters.
async fn talker(bytes: usize) -> Canned {
    let message = json!({ "role": "assistant", "content": "a".repeat(bytes) });
    let usage = json!({ "prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8 });
    let choices = json!([{ "index": 0, "message": message, "finish_reason": "stop" }]);
    let reply = json!({ "id": "c", "choices": choices, "usage": usage });
    Canned::start(http(&reply.to_string()), usize::MAX).await
}

/// A vendor that answers calls for embeddings with so many vectors of 12 KiB.
async fn embedder(vectors: usize) -> Canned {
    let entry = format!(r#"{{"embedding":"{}","index":0}}"#, "AACAPw==".repeat(1_536));
    let entries = vec![entry.as_str(); vectors].join(",");
    let usage = r#"{"prompt_tokens":2000,"total_tokens":2000}"#;
    Canned::start(http(&format!(r#"{{"data":[{entries}],"usage":{usage}}}"#)), usize::MAX).await
}

async fn world_of(vendor: &Canned, conf: &str) -> World {
    World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).conf(conf).run().await
}

/// The bytes of a call, with a key.
fn call(world: &World, offer: Offer, members: &Value) -> Vec<u8> {
    let sent = offer.sent(members).bytes;
    let length = format!("content-length: {}\r\n", sent.len());
    let head = head(world, &format!("POST {} HTTP/1.1", offer.path), &length);
    [head.as_bytes(), &sent].concat()
}

fn chat_call(world: &World) -> Vec<u8> {
    let body = chat_of("lmb-5.5").to_string();
    let length = format!("content-length: {}\r\n", body.len());
    (head(world, "POST /v1/chat/completions HTTP/1.1", &length) + &body).into_bytes()
}

/// Clients that send a call and read nothing.
async fn unread(world: &World, call: &[u8], count: usize) -> Vec<Client> {
    join_all((0..count).map(|_| async {
        let mut client = narrow(world).await;
        client.send(call).await;
        client
    }))
    .await
}

/// Waits until at least so much is held.
async fn held(world: &World, bytes: usize) {
    let end = Instant::now() + super::PATIENCE;
    while world.metric(GAUGE, &[]).await < i64::try_from(bytes).expect("few") {
        assert!(Instant::now() < end, "only {} bytes are held", world.metric(GAUGE, &[]).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// For less than a cent each held 24 MiB, for a minute.
#[tokio::test]
async fn a_cent_of_embeddings_does_not_fill_the_memory() {
    const CLIENTS: usize = 30;
    let vendor = embedder(2_048).await;
    let world = world_of(&vendor, "[timeouts]\nclient_write_ms = 5_000").await;
    let process = world.gateway.id();
    let before = memory(process, "VmRSS");
    let call = call(&world, EMBEDDING_B, &json!({ "encoding_format": "base64" }));
    let clients = unread(&world, &call, CLIENTS).await;
    given_up(&world, CLIENTS).await;
    let more = memory(process, "VmHWM").saturating_sub(before) >> 20;
    assert!(more < 96, "{more} MiB more for {CLIENTS} clients");
    world.metric_becomes(GAUGE, &[], 0).await;
    // The vendor bills what nobody read, and so do we.
    let charges = world.settled(CLIENTS).await;
    assert!(charges.iter().all(|charge| charge.amount_nano == 2_000 * 20), "{charges:?}");
    drop(clients);
}

/// What nobody read was held for a minute, and nobody else had any room.
#[tokio::test]
async fn what_an_account_does_not_read_costs_only_that_account() {
    // One takes nearly all that there is for an account.
    let vendor = talker(12 * MIB - 160 * 1024).await;
    let mut world = world_of(&vendor, LITTLE_ROOM).await;
    world.command(&["account", "create", "other", "--credit", "1"]).await.done();
    let other = world.command(&["key", "issue", "other"]).await.done().trim().to_owned();
    let clients = unread(&world, &chat_call(&world), 3).await;
    held(&world, 12 * MIB - 192 * 1024).await;
    let refused = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(refused.refusal(), (429, "answers_unread".to_owned()), "{refused:?}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let mine = std::mem::replace(&mut world.key, other);
    let served = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!((served.status, served.body.len() > REPLY_BYTES), (200, true));
    world.key = mine;
    // Those that stand in the way are given up sooner than after a minute; the last one does not.
    given_up(&world, 2).await;
    drop(clients);
    world.metric_becomes(GAUGE, &[], 0).await;
    assert_eq!(world.settled(3).await.len(), 3);
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    assert_eq!((vendor.heard(), world.metric("tollgate_shed_total", &["answers"]).await), (5, 1));
}

/// Its vendor had made it, and nobody paid.
#[tokio::test]
async fn an_answer_that_its_own_account_left_no_room_for_was_made_for_nothing() {
    let vendor = talker(REPLY_BYTES).await;
    let conf = format!("{LITTLE_ROOM}\n[timeouts]\nstall_ms = 1_500");
    let world = world_of(&vendor, &conf).await;
    let first = unread(&world, &chat_call(&world), 1).await;
    held(&world, REPLY_BYTES).await;
    // The second goes beyond the room of its account.
    let second = unread(&world, &chat_call(&world), 1).await;
    vendor_heard(&vendor, 2).await;
    let lost = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(lost.refusal(), (502, "answers_unread".to_owned()), "{lost:?}");
    assert_eq!(lost.header("x-should-retry"), Some("false"));
    let id = lost.header("x-request-id").expect("an id").to_owned();
    drop((first, second));
    let charges = world.settled(3).await;
    let charge = charges.iter().find(|charge| charge.request_id == id).expect("it is charged");
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0));
    assert!(charge.amount_nano > 1_000_000, "{charge:?}");
}

async fn vendor_heard(vendor: &Canned, count: usize) {
    let end = Instant::now() + super::PATIENCE;
    while vendor.heard() < count {
        assert!(Instant::now() < end, "the vendor heard of {} calls", vendor.heard());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It answers at once.
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// Each had a part of the room, and none enough to end.
#[tokio::test]
async fn answers_that_share_too_little_room_all_come_to_their_end() {
    let vendor = talker(REPLY_BYTES).await;
    let world = world_of(&vendor, LITTLE_ROOM).await;
    let call = chat_of("lmb-5.5");
    let answers = join_all((0..6).map(|_| world.chat(call.clone()))).await;
    for answer in answers {
        // Whoever comes while all of it is taken is told to come again.
        let is_whole = answer.status == 200 && answer.body.len() > REPLY_BYTES;
        assert!(is_whole || answer.refusal().0 == 429, "{}", answer.status);
    }
    world.metric_becomes(GAUGE, &[], 0).await;
    assert_eq!(world.nothing_held().await.len(), vendor.heard());
}

/// An image is dear, and its bytes are many: it was made before anybody looked for room.
#[tokio::test]
async fn an_image_that_finds_no_room_is_not_made() {
    let conf = "[limits]\nanswers_per_account_bytes_max = 524_288";
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &["delay=3000"]);
    let world = builder.conf(conf).run().await;
    let mut first = Client::of(&world).await;
    first.send(call(&world, IMAGE_B, &json!({}))).await;
    held(&world, MIB / 4).await;
    let second = world.ask(IMAGE_B).await;
    assert_eq!(second.refusal(), (429, "answers_unread".to_owned()));
    assert_eq!(first.answer().await.status, 200);
    world.metric_becomes(GAUGE, &[], 0).await;
    assert_eq!(world.sim.seen().len(), 1);
    world.settled(1).await;
}

/// All of it had to be taken in the time that a client has for a piece.
#[tokio::test]
async fn who_reads_a_long_answer_slowly_gets_all_of_it() {
    let vendor = talker(REPLY_BYTES).await;
    let world = world_of(&vendor, "[timeouts]\nclient_write_ms = 1_500").await;
    let mut client = narrow(&world).await;
    client.send(chat_call(&world)).await;
    let began = Instant::now();
    let mut piece = vec![0; 128 << 10];
    while client.heard.len() < REPLY_BYTES {
        let read = client.stream.read(&mut piece).await.expect("more");
        assert!(read > 0, "cut after {} bytes", client.heard.len());
        client.heard.extend_from_slice(&piece[..read]);
        let due = Duration::from_millis((client.heard.len() / 2_000) as u64);
        tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
    }
    assert!(client.answer().await.whole);
    world.metric_becomes(GAUGE, &[], 0).await;
    world.settled(1).await;
}

/// Room that is not given back is gone for good.
#[tokio::test]
async fn whatever_becomes_of_an_answer_its_room_is_given_back() {
    let whole = talker(MIB).await;
    let broken = Canned::start(http(&format!(r#"{{"id":"{}"#, "a".repeat(MIB))), usize::MAX).await;
    let error = format!(r#"{{"error":{{"message":"{}"}}}}"#, "a".repeat(MIB));
    let told = Canned::start(http(&error), usize::MAX).await;
    for (vendor, status, charges) in [(&whole, 200, 2), (&broken, 502, 0), (&told, 502, 0)] {
        let world = world_of(vendor, "").await;
        let answer = world.chat(chat_of("lmb-5.5")).await;
        assert_eq!(answer.status, status);
        // And a client that leaves at once.
        let mut leaving = Client::of(&world).await;
        leaving.send(chat_call(&world)).await;
        drop(leaving);
        world.metric_becomes("tollgate_requests_total", &[], 2).await;
        world.metric_becomes(GAUGE, &[], 0).await;
        world.settled(charges).await;
    }
    // The older version gets its answer as a whole, which is held to the end.
    let vendor = embedder(600).await;
    let world = world_of(&vendor, "").await;
    let call = String::from_utf8(call(&world, EMBEDDING_B, &json!({}))).expect("text");
    let answers = world.raw(call.replacen("HTTP/1.1", "HTTP/1.0", 1).as_bytes()).await;
    assert_eq!((answers[0].status, answers[0].body.len() > 600 * 12_000), (200, true));
    world.metric_becomes(GAUGE, &[], 0).await;
}
