//! Calls that come again: under an idempotency key, or as an official client's own retry. They get
//! the first reply again, and are paid for once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::{Answer, Offer, Process, Sent, Store, World};

mod apart;
mod crowds;
mod deaths;
mod endpoints;
mod failures;
mod keys;
mod kills;
mod lapses;
mod retries;
mod retries_of_large;
mod videos;

/// The machine may have more to do than this, and a ledger that is late is another test.
const PATIENT: &str = "[timeouts]\nledger_ms = 10_000";
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
    let sent = offer.sent(members);
    let count = before.to_string();
    let request = request(world, &world.gateway, &sent, offer.path).header(RETRIES, count);
    Answer::read(request).await
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
