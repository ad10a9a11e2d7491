//! Nodes that die while calls under a key run: their successor knows what they had begun, so nobody
//! waits for the lease of a key.

use std::path::PathBuf;

use rstest::rstest;

use super::*;
use crate::world::{CHAT, Hold};

/// Asks until there is another answer than that the first call runs.
async fn insists(world: &World, sent: &Sent) -> Answer {
    let end = Instant::now() + PATIENCE;
    loop {
        let asked = request(world, &world.gateway, sent, CHAT.path).header(KEY, "a");
        let answer = Answer::read(asked).await;
        let waits = [(409, "idempotency_key_in_use"), (503, "ledger_unavailable")];
        if !waits.contains(&(answer.status, &answer.code())) {
            return answer;
        }
        assert!(Instant::now() < end, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The first try is gone with its node; the same key is a new call, and the only one that is
/// charged.
async fn is_made_again(world: &World, sent: &Sent) {
    let made = insists(world, sent).await;
    assert_eq!((made.status, made.header(REPLAYED)), (200, None), "{made:?}");
    let charge = world.charge().await;
    assert_eq!(Some(charge.request_id.as_str()), made.header("x-request-id"));
    repeats_soon(async || insists(world, sent).await, &made).await;
    world.charge().await;
}

/// The first try was charged, and its reply is kept if its node could still say so.
async fn is_charged_once(world: &World, sent: &Sent, may_be_kept: bool) {
    for _ in 0..2 {
        let answer = insists(world, sent).await;
        if may_be_kept && answer.header(REPLAYED).is_some() {
            assert_eq!(answer.status, 200);
        } else {
            assert_eq!(answer.refusal(), (409, "reply_lost".to_owned()));
        }
    }
    world.charge().await;
}

/// A key of a call whose node was killed while its vendor worked answered 409 for a whole lease.
#[rstest]
#[tokio::test]
async fn a_key_of_a_call_that_died_is_free_as_soon_as_its_node_is_back(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &["held=0;times=1"]).conf(LONG_LEASES);
    let mut world = builder.run().await;
    let sent = CHAT.sent(&json!({}));
    let lost = request(&world, &world.gateway, &sent, CHAT.path).header(KEY, "a");
    let lost = tokio::spawn(Answer::try_read(lost));
    vendor_becomes(&world, "vendor_b", 1).await;
    world.kill_and_start_again().await;
    assert!(lost.await.expect("no panic").is_err());
    is_made_again(&world, &sent).await;
    world.logged(&["idempotency_keys_released", "names=1"]).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// What an answered call had not told the store yet its successor tells, before it gives keys free.
#[tokio::test]
async fn a_key_of_a_call_that_died_after_its_answer_is_not_charged_again() {
    let mut world =
        World::start(Store::Sqlite).vendor("vendor_b", &["held=4"]).conf(LONG_LEASES).run().await;
    let sent = CHAT.sent(&streamed("a"));
    let asked = request(&world, &world.gateway, &sent, CHAT.path).header(KEY, "a");
    let mut stream = crate::world::Opened::open(asked).await;
    stream.take(2).await;
    let beside = rusqlite::Connection::open(world.path("tollgate.db")).expect("the file");
    beside.execute_batch("BEGIN IMMEDIATE").expect("the writer's turn");
    world.sim.let_go();
    world.metric_becomes("tollgate_outbox_pending", &[], 1).await;
    world.gateway.kill();
    drop(beside);
    drop(stream);
    world.kill_and_start_again().await;
    is_charged_once(&world, &sent, false).await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// What only a journal line has. The texts of scripts have the name of the field, too.
const LINE: &str = "\"request_id\":\"0";

/// Where a node dies between two words to Redis: each is said (and done), or not heard at all.
#[rstest]
#[case::before_its_name_is_taken(":repeat:", Hold::Words, false)]
#[case::when_its_name_is_taken(":repeat:", Hold::Answer, false)]
#[case::before_its_hold(":hold:", Hold::Words, false)]
#[case::when_its_money_is_held(":hold:", Hold::Answer, false)]
#[case::before_its_charge(LINE, Hold::Words, true)]
#[case::when_it_is_charged(LINE, Hold::Answer, true)]
#[case::before_its_reply_is_kept("application/json", Hold::Words, true)]
#[tokio::test]
async fn a_key_of_a_call_that_died_between_two_words_is_charged_once(
    #[case] words: &str,
    #[case] hold: Hold,
    #[case] is_charged: bool,
) {
    let mut world = World::start(Store::Redis).gated().conf(LONG_LEASES).run().await;
    let through = [("TOLLGATE__STORE__URL", world.gate().url.clone())];
    let through: Vec<_> = through.iter().map(|(name, url)| (*name, url.as_str())).collect();
    world.gateway = world.gateway_with("first", &through).await;
    let sent = CHAT.sent(&json!({}));
    world.gate().shut_at(words, hold);
    let lost = request(&world, &world.gateway, &sent, CHAT.path).header(KEY, "a");
    let lost = tokio::spawn(Answer::try_read(lost));
    world.gate().is_shut().await;
    if is_charged {
        // What ends the call is written down by then.
        world.metric_becomes("tollgate_requests_total", &["endpoint=\"chat\""], 1).await;
    }
    world.gateway.kill();
    world.gate().open();
    let _ = lost.await.expect("no panic");
    world.gateway = world.gateway_with("successor", &through).await;
    if is_charged {
        // What was on its way arrives.
        is_charged_once(&world, &sent, true).await;
    } else {
        is_made_again(&world, &sent).await;
    }
    assert_eq!(world.sim.count("vendor_b"), 1, "no vendor works twice");
    assert_eq!(world.balances().await.held, 0, "nothing of the first try is held");
}

/// A node that only stands still has its folder, and its names.
#[tokio::test]
async fn a_key_of_a_node_that_stands_still_is_not_given_to_another() {
    let builder = World::start(Store::Redis).vendor("vendor_b", &["held=0;times=1"]);
    let world = builder.conf(LONG_LEASES).run().await;
    let sent = CHAT.sent(&json!({}));
    let still = request(&world, &world.gateway, &sent, CHAT.path).header(KEY, "a");
    let still = tokio::spawn(Answer::read(still));
    vendor_becomes(&world, "vendor_b", 1).await;
    world.gateway.signal("STOP");
    let other = world.second_gateway().await;
    // It has looked for what ended processes left by now.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let asked = Answer::read(request(&world, &other, &sent, CHAT.path).header(KEY, "a")).await;
    assert_eq!(asked.refusal(), (409, "idempotency_key_in_use".to_owned()));
    world.gateway.signal("CONT");
    world.sim.let_go();
    let made = still.await.expect("no panic");
    let again =
        async || Answer::read(request(&world, &other, &sent, CHAT.path).header(KEY, "a")).await;
    repeats_soon(again, &made).await;
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// Of calls without a key nothing is written down.
#[rstest]
#[tokio::test]
async fn an_ordinary_call_paid_for_the_keys_of_others(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let files = || {
        let root = if store == Store::Redis { "var/outbox" } else { "tollgate.db-outbox" };
        let mut folders = vec![world.path(root)];
        let mut found: Vec<PathBuf> = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() { &mut folders } else { &mut found }.push(path);
            }
        }
        found.retain(|file| file.extension().is_some_and(|ending| ending == "calls"));
        found.len()
    };
    for count in ["0", "0"] {
        let sent = CHAT.sent(&json!({}));
        let asked = request(&world, &world.gateway, &sent, CHAT.path).header(RETRIES, count);
        assert_eq!(Answer::read(asked).await.status, 200);
    }
    assert_eq!(world.post(crate::world::chat_of("lmb-5.5").to_string()).await.status, 200);
    assert_eq!(files(), 0);
    assert_eq!(keyed(&world, CHAT, &json!({}), "a").await.status, 200);
    assert_eq!(files(), 1);
}
