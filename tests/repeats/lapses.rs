//! Names of calls that nobody keeps alive any more: the ledger tells what became of the call.

use rstest::rstest;
use sha2::{Digest, Sha256};
use tollgate::idempotency::{ClaimMode, ClaimResult, IdempotencyKey};
use tollgate::ledger::{AccountName, Operation, Outcome as Posted};
use tollgate::money::Money;
use tollgate::store::{self, OpenStore, StoreSection};

use super::*;
use crate::world::{ACCOUNT, CHAT, VIDEO, Video, quick};

/// The store of a world, as another node of its fleet.
async fn beside(world: &World) -> OpenStore {
    let conf = std::fs::read_to_string(world.path("tollgate.toml")).expect("a configuration");
    let (_, rest) = conf.split_once("url = \"").expect("the store's address");
    let (url, _) = rest.split_once('"').expect("its end");
    let section = StoreSection {
        url: url.to_owned(),
        allow_volatile: true,
        outbox: String::new(),
        ..StoreSection::default()
    };
    store::open(&section).await.expect("the store")
}

fn account() -> AccountName {
    AccountName::parse(ACCOUNT).expect("a name")
}

/// Has a name taken by a call whose node then died.
async fn lapsed(node: &OpenStore, header: (&str, &str), offer: Offer, owner: &str) {
    let content: [u8; 32] = Sha256::digest(offer.sent(&json!({})).bytes).into();
    let hex = |digest: [u8; 32]| digest.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let name = match header {
        (KEY, key) => format!("key:{}:{}", offer.endpoint, hex(Sha256::digest(key).into())),
        _ => format!("retry:{}:{}", offer.endpoint, hex(content)),
    };
    let naming = IdempotencyKey { name, content, owner: owner.to_owned(), life_ms: 3_600_000 };
    let taken = node.reply_store.claim_key(&account(), &naming, &ClaimMode::Replace, 0).await;
    assert_eq!(taken, Ok(ClaimResult::Claimed));
}

async fn apply(node: &OpenStore, op: Operation) -> Posted {
    node.ledger.submit(&account(), op).await.expect("an answer")
}

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

fn hold(id: &str, lease_ms: u64) -> Operation {
    let (id, wanted, least) = (id.to_owned(), nano(500), nano(1));
    Operation::Hold { id, wanted, least, lease_ms, key: None, rates: Vec::new() }
}

fn checkpoint(id: &str) -> Operation {
    Operation::Checkpoint { id: id.to_owned(), charge: nano(70), line: line(id) }
}

fn settle(id: &str) -> Operation {
    Operation::Settle {
        id: id.to_owned(),
        charge: nano(70),
        line: line(id),
        origin: None,
        tokens: None,
    }
}

/// A line of the journal, of which nothing else is looked at here.
fn line(id: &str) -> String {
    json!({
        "request_id": id, "at": 0, "key_prefix": "", "endpoint": "chat", "model": "lmb-5.5",
        "vendor": "vendor_b", "route": "r0", "depth": 0,
        "usage": { "prompt_tokens": 1, "completion_tokens": 1 },
        "basis": "reported", "price_version": "",
    })
    .to_string()
}

/// Whatever of the first call there is but a charge: nothing, its hold, one that was voided, one
/// that expired. Its money is given back, and nothing of it can come any more.
#[rstest]
#[tokio::test]
async fn a_call_that_died_before_it_cost_anything_is_made_again(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values((KEY, "a"), (RETRIES, "1"))] header: (&str, &str),
    #[values("nothing", "held", "voided", "expired")] before: &str,
) {
    let world = World::start(store).conf(PATIENT).run().await;
    let node = beside(&world).await;
    lapsed(&node, header, CHAT, "dead").await;
    if before != "nothing" {
        let lease_ms = if before == "expired" { 0 } else { 3_600_000 };
        assert_eq!(apply(&node, hold("dead", lease_ms)).await, Posted::Held(nano(500)));
    }
    if before == "voided" {
        apply(&node, Operation::Void { id: "dead".to_owned() }).await;
    }
    let sent = CHAT.sent(&json!({}));
    let at = (&world, &world.gateway);
    let made = Answer::read(request(at.0, at.1, &sent, CHAT.path).header(header.0, header.1)).await;
    assert_eq!((made.status, made.header(REPLAYED)), (200, None), "{made:?}");
    repeats(
        &Answer::read(request(at.0, at.1, &sent, CHAT.path).header(header.0, header.1)).await,
        &made,
    );
    // The node that died comes back too late.
    let late = [hold("dead", 1), settle("dead")];
    for op in late {
        let answer = apply(&node, op).await;
        assert!(!matches!(answer, Posted::Held(_) | Posted::Posted { .. }), "{answer:?}");
    }
    let charge = world.charge().await;
    assert_eq!(Some(charge.request_id.as_str()), made.header("x-request-id"));
}

/// It was charged, in whole or for what was noted of it, and nobody has its reply.
#[rstest]
#[tokio::test]
async fn a_call_that_died_after_it_was_charged_is_lost_and_not_charged_again(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values((KEY, "a"), (RETRIES, "1"))] header: (&str, &str),
    #[values("settled", "expired")] before: &str,
) {
    let world = World::start(store).conf(PATIENT).run().await;
    let node = beside(&world).await;
    lapsed(&node, header, CHAT, "dead").await;
    if before == "settled" {
        assert_eq!(apply(&node, hold("dead", 3_600_000)).await, Posted::Held(nano(500)));
        apply(&node, settle("dead")).await;
    } else {
        // Long enough for the note.
        assert_eq!(apply(&node, hold("dead", 1_000)).await, Posted::Held(nano(500)));
        assert_eq!(apply(&node, checkpoint("dead")).await, Posted::Done);
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        node.ledger.expire_holds().await.expect("a sweep");
    }
    let sent = CHAT.sent(&json!({}));
    for _ in 0..2 {
        let request = request(&world, &world.gateway, &sent, CHAT.path).header(header.0, header.1);
        let answer = Answer::read(request).await;
        assert_eq!(answer.refusal(), (409, "reply_lost".to_owned()));
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    assert_eq!(world.charge().await.request_id, "dead");
    assert_eq!(world.sim.count("vendor_b"), 0);
    counted(&world, "chat", "lost", 2).await;
}

/// Many find that a call died; one of them makes it.
#[rstest]
#[tokio::test]
async fn a_call_that_died_is_taken_over_by_one(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["delay=200"]).conf(PATIENT).run().await;
    let node = beside(&world).await;
    lapsed(&node, (KEY, "a"), CHAT, "dead").await;
    let members = json!({});
    let calls = (0..20).map(|_| keyed(&world, CHAT, &members, "a"));
    let answers = futures_util::future::join_all(calls).await;
    let made = answers.iter().filter(|a| a.status == 200 && a.header(REPLAYED).is_none());
    assert_eq!(made.count(), 1, "{answers:?}");
    let refused = answers.iter().filter(|answer| answer.status != 200);
    refused.for_each(|a| assert_eq!(a.refusal(), (409, "idempotency_key_in_use".to_owned())));
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// The node died between placing the job and saying so; its hold is the job's, and stays.
#[rstest]
#[tokio::test]
async fn a_job_that_was_placed_is_found_though_its_call_died(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(&quick(&[])).run().await;
    let node = beside(&world).await;
    let placed = Video::of(&world.ask(VIDEO).await);
    lapsed(&node, (RETRIES, "1"), VIDEO, placed.id()).await;
    for before in 1..=2 {
        let found = Video::of(&tried(&world, VIDEO, &json!({}), before).await);
        assert_eq!(found.id(), placed.id());
    }
    assert_eq!(world.over(placed.id()).await.outcome(), "completed");
    // Of one that never was there is nothing to wait for.
    lapsed(&node, (RETRIES, "1"), VIDEO, "video_01a20232-4e3f-71e2-931e-f242c8c3e4e3").await;
    let made = Video::of(&tried(&world, VIDEO, &json!({}), 1).await);
    assert_ne!(made.id(), placed.id());
    assert_eq!(world.over(made.id()).await.outcome(), "completed");
    world.settled(2).await;
    assert_eq!(world.sim.videos().len(), 2);
}

/// The node was only stopped for a while, between taking the name and placing the job. It placed it
/// beside the one that was made meanwhile, and both were paid for.
#[rstest]
#[tokio::test]
async fn a_video_whose_name_had_lapsed_was_placed_after_all(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(1, 3)] times: u32,
) {
    let world = World::start(store).conf(&quick(&[])).run().await;
    let node = beside(&world).await;
    let held_up = "video_01a20232-4e3f-71e2-931e-f242c8c3e4e3";
    for _ in 0..times {
        lapsed(&node, (RETRIES, "1"), VIDEO, held_up).await;
        let made = Video::of(&tried(&world, VIDEO, &json!({}), 1).await);
        assert_ne!(made.id(), held_up);
        assert_eq!(world.over(made.id()).await.outcome(), "completed");
    }
    // A job is placed in one transaction with its hold.
    for lease_ms in [0, 3_600_000] {
        let late = apply(&node, hold(held_up, lease_ms)).await;
        assert!(
            !matches!(late, Posted::Held(_) | Posted::HoldExists { open: true, .. }),
            "{late:?}"
        );
    }
    world.settled(times as usize).await;
}

/// Redis may lose the last second of what it acknowledged.
#[tokio::test]
async fn a_reply_under_a_key_that_redis_lost_is_there_again() {
    let mut world = World::start(Store::Redis).own_redis().conf(PATIENT).run().await;
    let first = keyed(&world, CHAT, &json!({}), "a").await;
    world.charge().await;
    let forget = "redis.call('SELECT', 1) local lost = redis.call('KEYS', '*:rep*') \
                  for _, key in ipairs(lost) do redis.call('DEL', key) end return #lost";
    let lost = world.redis().command(&["EVAL", forget, "0"]);
    assert!(matches!(lost, redis::Value::Int(2..)), "{lost:?}");
    let (found, end) =
        ("redis.call('SELECT', 1) return #redis.call('KEYS', '*:rep*')", Instant::now());
    while world.redis().command(&["EVAL", found, "0"]) != lost {
        assert!(end.elapsed() < PATIENCE, "it is not there again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    repeats(&keyed(&world, CHAT, &json!({}), "a").await, &first);
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}
