//! Allotments: whatever gateways do, a store answers and keeps what the pure machine of the next
//! ledger does, and no end is posted twice or lost.

use std::cell::Cell;

use proptest::prelude::*;
use rstest::rstest;
use tokio::runtime::{Builder, Runtime};
use tollgate::ledger::{AccountName, Operation, Outcome};

use super::redis_server::RedisServer;
use super::script::wait_for_room_in_the_hour;
use super::subject::name;

mod events;
mod lending_stores;
mod pair;
mod redis_alone;

use events::{Event, Life};
use lending_stores::{LendingFile, LendingRedis, LendingStore};
use pair::{Pair, nano};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// As many lives as the environment says, where it does: mutants and long runs want others.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = if is_set { default.cases } else { 60 };
    ProptestConfig { cases, failure_persistence: None, ..default }
}

/// No life takes so long, in ms: all its calls count in windows of one hour.
const LIFE_MS: i64 = 30_000;

async fn live(store: &dyn LendingStore, account: AccountName, life: Life) {
    wait_for_room_in_the_hour(LIFE_MS).await;
    let mut pair = Pair::new(store, account, life.factor).await;
    pair.burst = life.burst;
    for (at, event) in life.events {
        pair.happen(at, event.clone()).await;
        pair.compare(&event).await;
    }
    pair.finish().await;
}

fn live_on_a_file(life: Life) {
    let folder = tempfile::tempdir().expect("a folder");
    runtime().block_on(async { live(&LendingFile::new(folder.path()), name("ada"), life).await });
}

fn live_on_a_redis(life: Life) {
    let server = RedisServer::shared();
    runtime().block_on(async {
        live(&LendingRedis::open(&server.fresh_url()).await, name("ada"), life).await;
    });
}

#[test]
fn a_file_does_what_the_pure_machine_does() {
    proptest!(config(), |(life in events::lives())| live_on_a_file(life));
}

/// All lives share a connection and its runtime, and each has an account of its own. A sweep passes
/// by the accounts of earlier lives, since no lease there has run out.
#[test]
fn a_redis_does_what_the_pure_machine_does() {
    let (server, runtime, begun) = (RedisServer::shared(), runtime(), Cell::new(0));
    let redis = runtime.block_on(LendingRedis::open(&server.fresh_url()));
    proptest!(config(), |(life in events::lives())| {
        begun.set(begun.get() + 1);
        let account = name(&format!("ada{}", begun.get()));
        runtime.block_on(live(&redis, account, life));
    });
}

/// The last message of a successor has no ends, so nobody looked for the calls of its checkpoints.
#[rstest]
#[case::on_a_file(live_on_a_file)]
#[case::on_a_redis(live_on_a_redis)]
fn the_checkpoint_of_a_voided_call_was_charged_when_its_gateway_was_retired(
    #[case] live: fn(Life),
) {
    let events = [
        Event::Pay(3_000),
        Event::Update { free: 300 },
        Event::Hold(20),
        Event::Checkpoint { which: 0, charge: 7 },
        Event::Update { free: 300 },
        Event::VoidElsewhere { which: 0 },
        Event::Kill,
    ];
    live(Life { factor: 1, burst: 0, events: events.map(|event| (0, event)).into() });
}

/// It ended at its second word, although what is lent had not been called back meanwhile: only the
/// time of the first word was kept.
async fn a_refund_that_was_left_alone_waits(store: &dyn LendingStore) {
    let mut pair = Pair::new(store, name("ada"), 1).await;
    pair.happen(0, Event::Pay(1_000)).await;
    pair.happen(0, Event::Update { free: 200 }).await;
    let ask = async || {
        let (tx, amount) = ("r".to_owned(), nano(1_000));
        let op = Operation::Take { tx, amount, reason: String::new() };
        store.ledger().submit(&name("ada"), op).await.expect("an outcome")
    };
    assert_eq!(ask().await, Outcome::Wait);
    store.age_refund(&name("ada"), "r", 300_000, 200_000);
    for _ in 0..3 {
        assert_eq!(ask().await, Outcome::Wait, "it begins anew");
    }
    store.age_refund(&name("ada"), "r", 60_001, 100);
    let lent = 1_000 - store.raw_balances(&name("ada"))[1];
    assert!(lent > 0, "a gateway has borrowed");
    let (taken, uncovered) = (nano(1_000 - lent), nano(lent));
    assert_eq!(ask().await, Outcome::Taken { taken, uncovered }, "it has waited a minute");
}

#[tokio::test]
async fn a_refund_that_was_left_alone_was_uncovered_at_its_second_word() {
    let folder = tempfile::tempdir().expect("a folder");
    a_refund_that_was_left_alone_waits(&LendingFile::new(folder.path())).await;
    let server = RedisServer::shared();
    a_refund_that_was_left_alone_waits(&LendingRedis::open(&server.fresh_url()).await).await;
}
