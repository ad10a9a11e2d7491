//! Calls that come again: under an idempotency key, or as an official client's own retry. They get
//! the first reply again, and are paid for once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::{Answer, CHAT, Offer, Process, Sent, Store, World};

mod apart;
mod crowds;
mod deaths;
mod endpoints;
mod failures;
mod fleet;
mod keys;
mod kills;
mod lapses;
mod memory;
mod retries;
mod retries_of_large;
mod shared_file;
mod videos;

/// The machine may have more to do than this, and a ledger that is late is another test.
const PATIENT: &str = "[timeouts]\nledger_ms = 10_000";
/// So long a name is its call's after its node died.
const SHORT_LEASES: &str = "[timeouts]\nledger_ms = 10_000\nlease_ms = 1_000";
/// A gateway that has not polled for a quarter of its lease keeps first tries in Redis. Where a
/// test is about what only the gateway's memory has, a busy machine is not to be taken for one.
const MEMORY_LEASES: &str = "[timeouts]\nledger_ms = 10_000\nlease_ms = 6_000";
/// A lease that no test outlives.
const LONG_LEASES: &str = "[timeouts]\nledger_ms = 10_000\nlease_ms = 3_600_000";
/// Nothing that a test waits for takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

const KEY: &str = "idempotency-key";
const RETRIES: &str = "x-stainless-retry-count";
const REPLAYED: &str = "idempotent-replayed";
const ORIGINAL: &str = "x-original-request-id";

/// A call at a gateway, yet without a header by which it would be known again.
fn request(world: &World, at: &Process, sent: &Sent, path: &str) -> reqwest::RequestBuilder {
    world.url_of(at, path).header("content-type", &sent.media).body(sent.bytes.clone())
}

/// A call under a key.
async fn keyed(world: &World, offer: Offer, members: &Value, key: &str) -> Answer {
    let sent = offer.sent(members);
    let request = request(world, &world.gateway, &sent, offer.path).header(KEY, key);
    Answer::read(request).await
}

/// A call that an official client makes after so many others.
async fn tried(world: &World, offer: Offer, members: &Value, before: u32) -> Answer {
    tried_at((world, &world.gateway), offer, members, before).await
}

/// The same, at one of several gateways.
async fn tried_at(at: (&World, &Process), offer: Offer, members: &Value, before: u32) -> Answer {
    let sent = offer.sent(members);
    let count = before.to_string();
    Answer::read(request(at.0, at.1, &sent, offer.path).header(RETRIES, count)).await
}

/// Asks until there is another answer than that the first call runs.
async fn insists(at: (&World, &Process), header: (&str, &str), sent: &Sent) -> Answer {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer =
            Answer::read(request(at.0, at.1, sent, CHAT.path).header(header.0, header.1)).await;
        if answer.status != 409 || answer.code() != "idempotency_key_in_use" {
            return answer;
        }
        assert!(Instant::now() < end, "it is in use for ever");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The first try was charged, and nobody has its reply; it does not help to ask again.
async fn is_lost(at: (&World, &Process), sent: &Sent) {
    for _ in 0..2 {
        let answer = insists(at, (RETRIES, "1"), sent).await;
        assert_eq!(answer.refusal(), (409, "reply_lost".to_owned()));
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
    }
}

/// The first try came to nothing, so its retry is a new call, whose reply the next one gets.
async fn is_made_anew(at: (&World, &Process), sent: &Sent) -> Answer {
    let made = insists(at, (RETRIES, "1"), sent).await;
    assert_eq!((made.status, made.header(REPLAYED)), (200, None), "{made:?}");
    repeats(&insists(at, (RETRIES, "2"), sent).await, &made);
    made
}

/// A call whose client hangs up when the vendor, which is held, has heard of it.
async fn hung_up(world: &World, offer: Offer, header: (&str, &str), members: &Value) {
    let before = world.sim.count(offer.vendor);
    let sent = offer.sent(members);
    let request = request(world, &world.gateway, &sent, offer.path).header(header.0, header.1);
    tokio::select! {
        answered = Answer::try_read(request) => panic!("the answer came too soon: {answered:?}"),
        () = vendor_becomes(world, offer.vendor, before + 1) => {}
    }
}

/// A retry, and a vendor that goes on when it had the time to wait for the call that runs.
async fn joined(world: &World, offer: Offer, members: &Value, before: u32) -> Answer {
    let going_on = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        world.sim.let_go();
    };
    tokio::join!(tried(world, offer, members, before), going_on).0
}

/// What a repeat has in common with the first answer, its body aside.
fn marks(answer: &Answer) -> Vec<(String, String)> {
    let kept = |name: &str| {
        name == "content-type" || name.starts_with("x-gateway-") || name.starts_with("x-service-")
    };
    let headers = answer.headers.iter().filter(|(name, _)| kept(name.as_str()));
    let text = |value: &reqwest::header::HeaderValue| value.to_str().expect("text").to_owned();
    let mut marks: Vec<_> = headers.map(|(name, value)| (name.to_string(), text(value))).collect();
    marks.sort();
    marks
}

/// Panics unless an answer is another one again.
fn repeats(again: &Answer, first: &Answer) {
    assert_eq!((again.status, marks(again)), (first.status, marks(first)), "{again:?}");
    assert!(again.body == first.body, "{again:?}\n{first:?}");
    assert_eq!(again.header(REPLAYED), Some("true"), "{again:?}");
    assert_eq!(first.header(REPLAYED), None);
    assert_eq!(again.header(ORIGINAL), first.header("x-request-id"));
    assert_ne!(again.header("x-request-id"), first.header("x-request-id"));
}

/// The same, where the end of the first call may still be on its way.
async fn repeats_soon(ask: impl AsyncFn() -> Answer, first: &Answer) {
    let end = Instant::now() + PATIENCE;
    loop {
        let again = ask().await;
        if again.status != 409 {
            return repeats(&again, first);
        }
        assert_eq!(again.refusal(), (409, "idempotency_key_in_use".to_owned()));
        assert!(Instant::now() < end, "the reply is not there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many calls a vendor has worked on.
async fn vendor_becomes(world: &World, vendor: &str, count: u64) {
    let end = Instant::now() + PATIENCE;
    while world.sim.count(vendor) < count {
        assert!(Instant::now() < end, "{vendor} got {} calls", world.sim.count(vendor));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(world.sim.count(vendor), count);
}

/// So many repeats of an endpoint came to this.
async fn counted(world: &World, endpoint: &str, outcome: &str, count: i64) {
    let labels = [format!("endpoint=\"{endpoint}\""), format!("outcome=\"{outcome}\"")];
    let labels = [labels[0].as_str(), &labels[1]];
    world.metric_becomes("tollgate_repeats_total", &labels, count).await;
}

/// A stream that is no other's.
fn streamed(words: &str) -> Value {
    let question = json!([{ "role": "user", "content": words }]);
    json!({ "stream": true, "messages": question })
}

/// A call that is no other's, answered whole.
fn whole(words: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": words }] })
}

/// The file of SQLite, which is only read.
fn file_of(world: &World) -> rusqlite::Connection {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let path = world.path("tollgate.db");
    let file = rusqlite::Connection::open_with_flags(path, flags).expect("the file");
    file.busy_timeout(PATIENCE).expect("a setting");
    file
}

/// How many names the ledger's store has, and how many pieces of replies.
fn stored(world: &World, store: Store) -> (usize, usize) {
    if store == Store::Sqlite {
        let all = "SELECT (SELECT count(*) FROM repeat), (SELECT count(*) FROM reply)";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (names, replies) = file_of(world).query_row(all, [], read).expect("two numbers");
        let count = |rows: i64| usize::try_from(rows).expect("a count");
        return (count(names), count(replies));
    }
    let mut redis = world.connect_to_redis();
    let mut count = |pattern: &str| {
        let found = redis::cmd("KEYS").arg(pattern).query::<Vec<String>>(&mut redis);
        found.expect("keys").len()
    };
    (count("*:repeat:*"), count("*:reply:*"))
}

/// Waits until the store has so many names, each with its reply.
async fn stored_becomes(world: &World, store: Store, count: usize) {
    let end = Instant::now() + PATIENCE;
    while stored(world, store) != (count, count) {
        assert!(Instant::now() < end, "the store has {:?}", stored(world, store));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
