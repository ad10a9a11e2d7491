//! A gateway that is killed after it has written down how a hold ended.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::{PATIENCE, lines, written};
use crate::world::{Hold, Store, World, chat_of, with};

/// A stream that goes on when the test says so.
const STREAM: &str = "held=4";

#[rstest]
#[case::whole(b"")]
#[case::torn(b"12345678 {\"is\":\"settle\",\"se")]
#[tokio::test]
async fn what_it_could_not_send_its_successor_sends(#[case] half_a_line: &[u8]) {
    let builder = World::start(Store::Redis).own_redis().vendor("vendor_b", &[STREAM]);
    let mut world = builder.run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    world.redis().stop();
    world.sim.let_go();
    assert!(stream.rest().await.is_done());
    world.metric_becomes("tollgate_outbox_pending", &[], 1).await;
    world.gateway.kill();
    let files = written(&world);
    assert_eq!(files.len(), 1, "{files:?}");
    std::fs::write(&files[0], [&lines(&files[0]), half_a_line].concat()).expect("the file");
    assert!(world.redis().start_again());
    world.gateway = world.second_gateway().await;
    let charge = world.charge().await;
    assert_eq!(charge.basis, "reported");
    world.metric_becomes("tollgate_outbox_replayed_total", &[], 1).await;

    // Nothing of it is left to do for anybody who comes later.
    world.kill_and_start_again().await;
    world.charge().await;
    assert_eq!(world.metric("tollgate_outbox_replayed_total", &[]).await, 0);
}

#[tokio::test]
async fn what_nobody_can_pay_of_it_its_successor_tells() {
    let faults = "held=0;prompt=1;completion=10;reasoning=200000";
    let builder = World::start(Store::Redis).own_redis().vendor("vendor_d", &[faults]);
    let mut world = builder.credit("1").run().await;
    let mut redis = world.take_redis();
    let call = with(chat_of("lmd-4.6"), &json!({ "max_tokens": 10 }));
    let (answer, ()) = tokio::join!(world.chat(call), async {
        while world.sim.count("vendor_d") == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        redis.stop();
        world.sim.let_go();
    });
    assert_eq!(answer.status, 200, "{answer:?}");
    world.metric_becomes("tollgate_outbox_pending", &[], 1).await;
    world.gateway.kill();
    assert!(redis.start_again());
    world.gateway = world.second_gateway().await;
    let charge = world.charge().await;
    assert!(charge.written_off_nano > 10_000_000, "{charge:?}");
    world.metric_becomes("tollgate_write_offs_total", &[], 1).await;
    let words = ["charge written off: above what the account had", &charge.request_id];
    world.logged(&words).await;
}

/// An answer was out a moment before its charge was in the file: what was in between died.
#[tokio::test]
async fn what_an_embedded_store_had_not_written_yet_its_successor_charges() {
    let mut world = World::start(Store::Sqlite).vendor("vendor_b", &[STREAM]).run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    let beside = rusqlite::Connection::open(world.path("tollgate.db")).expect("the file");
    beside.execute_batch("BEGIN IMMEDIATE").expect("the writer's turn");
    world.sim.let_go();
    assert!(stream.rest().await.is_done());
    world.metric_becomes("tollgate_outbox_pending", &[], 1).await;
    world.gateway.kill();
    drop(beside);
    world.kill_and_start_again().await;
    assert_eq!(world.charge().await.basis, "reported");
    world.metric_becomes("tollgate_outbox_replayed_total", &[], 1).await;
    world.kill_and_start_again().await;
    world.charge().await;
    assert_eq!(world.metric("tollgate_outbox_replayed_total", &[]).await, 0);
}

/// Every settlement ends in its journal line, which names the request.
#[rstest]
#[case::and_redis_has_not_heard_it(Hold::Words)]
#[case::and_redis_has_done_it(Hold::Answer)]
#[tokio::test]
async fn what_it_sent_into_the_dark_is_charged_once(#[case] hold: Hold) {
    let world = World::start(Store::Redis).gated().run().await;
    let through = [("TOLLGATE__STORE__URL", world.gate().url.as_str())];
    let mut first = world.gateway_with("first", &through).await;
    world.gate().shut_at("\"request_id\":\"0", hold);
    let call = world.url_of(&first, "/v1/chat/completions").body(chat_of("lmb-5.5").to_string());
    assert_eq!(call.send().await.expect("an answer").status(), 200);
    world.gate().is_shut().await;
    first.kill();
    // Whatever is on its way arrives, after the successor's or before.
    world.gate().open();
    let _successor = world.gateway_with("successor", &through).await;
    world.charge().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    world.charge().await;
}

#[tokio::test]
async fn told_to_stop_while_redis_is_away_it_leaves_soon_and_its_successor_charges() {
    let builder = World::start(Store::Redis).own_redis().vendor("vendor_b", &[STREAM]);
    let mut world = builder.run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    world.redis().stop();
    world.gateway.signal("TERM");
    world.sim.let_go();
    assert!(stream.rest().await.is_done());
    world.gateway.ended(PATIENCE).await;
    assert!(world.redis().start_again());
    world.gateway = world.second_gateway().await;
    world.charge().await;
}
