//! A log of Redis that ends within an operation, as after a power failure.

use rstest::rstest;

use super::let_in_again;
use crate::ledger::redis_server::RedisServer;
use crate::world::{RedisKind, Store, World, chat_of};

/// Redis kept what was whole of the operation in its log, without doing it, and wrote on behind it:
/// at its next start that came into force together with what followed.
#[rstest]
#[tokio::test]
async fn half_of_a_charge_that_a_power_failure_left_was_done_at_the_start_after_next(
    #[values(RedisKind::Server, RedisKind::Sentinel, RedisKind::Cluster)] kind: RedisKind,
) {
    let mut world = World::start(Store::Redis).redis_kind(kind).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    world.redis().tear_log("posted");
    assert!(world.redis().start_again());
    let_in_again(&world).await;
    let before = world.settled(2).await;
    world.redis().has_written();
    world.redis().stop();
    assert!(world.redis().start_again());
    let_in_again(&world).await;
    let after = world.settled(3).await;
    assert!(before.iter().all(|charge| after.contains(charge)), "{before:?} {after:?}");
}

/// Nobody is paid or sold anything by a server that would go on behind half an operation.
#[tokio::test]
async fn a_server_that_must_not_begin_its_log_anew_takes_no_payment_unless_it_refuses_torn_logs() {
    let world = World::start(Store::Sqlite).run().await;
    let forbids = ["--rename-command", "BGREWRITEAOF", ""];
    for (further, is_sound) in [(&["--aof-load-truncated", "no"][..], true), (&[], false)] {
        let server = RedisServer::start_with(&[&forbids, further].concat());
        let url = server.fresh_url();
        let env = [("TOLLGATE__STORE__URL", url.as_str())];
        let opened = world.command_with(&["account", "create", "a", "--credit", "1"], &env).await;
        assert_eq!(opened.code == 0, is_sound, "{opened:?}");
        if !is_sound {
            assert!(opened.err.contains("aof-load-truncated"), "{}", opened.err);
            let env = [env[0], ("TOLLGATE__STORE__ALLOW_VOLATILE", "true")];
            world.command_with(&["account", "create", "a", "--credit", "1"], &env).await.done();
        }
    }
}
