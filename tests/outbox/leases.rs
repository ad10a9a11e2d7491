//! Leases that are shorter than the calls, and calls that are shorter than they should have been.

use std::time::{Duration, Instant};

use rstest::rstest;

use crate::world::{Store, World, chat_of};

const SHORT: &str = "[timeouts]\nlease_ms = 1000";

#[rstest]
#[tokio::test]
async fn a_call_that_outlives_its_lease_keeps_its_hold(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["held=4"]);
    let world = world.conf("[timeouts]\nlease_ms = 2000").run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    let (held, end) = (world.balances().await.held, Instant::now() + Duration::from_millis(5_000));
    assert!(held > 0);
    while Instant::now() < end {
        assert!(world.balances().await.held >= held, "the hold has ended");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.sim.let_go();
    assert!(stream.rest().await.is_done());
    assert_eq!(world.charge().await.basis, "reported");
    assert!(!world.log().contains("expired holds released"), "{}", world.log());
}

#[rstest]
#[tokio::test]
async fn a_call_whose_gateway_was_killed_gives_its_money_back_after_its_lease(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &["held=4"]).conf(SHORT);
    let mut world = builder.own_redis().run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    assert!(world.balances().await.held > 0);
    let killed = Instant::now();
    world.kill_and_start_again().await;
    world.nothing_held().await;
    assert!(killed.elapsed() > Duration::from_millis(900), "its lease was cut short");
    world.logged(&["expired holds released", "expired=1"]).await;
}

#[rstest]
#[case::too_short("999")]
#[case::too_long("3600001")]
#[tokio::test]
async fn a_lease_has_its_bounds(#[case] ms: &str) {
    let world = World::start(Store::Sqlite).run().await;
    let told = world.command_with(&["check"], &[("TOLLGATE__TIMEOUTS__LEASE_MS", ms)]).await;
    assert!(told.err.contains("'lease_ms' may be 1000 to 3600000"), "{told:?}");
}
