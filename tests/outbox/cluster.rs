//! A cluster whose masters change while gateways sell.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use tollgate::ledger::{AccountName, Outcome};

use super::node::{Node, funded_as, nano, settle};
use super::{PATIENCE, let_in_again};
use crate::ledger::redis_cluster::{self, empty, fail_over_to, is_master, until};
use crate::world::{RedisKind, Store, World, chat_of};

/// Accounts on all masters.
const ACCOUNTS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[tokio::test]
async fn a_planned_failover_of_a_cluster_does_not_stop_the_gateway() {
    let mut world = World::start(Store::Redis).redis_kind(RedisKind::ClusterOfSix).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    // Each master goes, so the account's does, and there is never a call that would be redirected.
    for (count, place) in (2..).zip(2..5) {
        fail_over_to(&world.other_redis()[place]);
        world.logged(&[&format!("127.0.0.1:{}", world.other_redis()[place].port())]).await;
        let_in_again(&world).await;
        world.settled(count).await;
    }
    assert!(!is_master(world.redis()));
    world.sums_are_proved().await;
}

/// Settles what was held in each account, and proves the sums.
pub(super) async fn settles(node: &Node, accounts: &[AccountName], round: i64) {
    let id = format!("round{round}");
    for account in accounts {
        node.holds(account, &id).await;
        let end = Instant::now() + PATIENCE;
        while let Err(why) = node.ledger.submit(account, settle(&id)).await {
            assert!(Instant::now() < end, "{account}: {why}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let again = node.ledger.submit(account, settle(&id)).await;
        assert_eq!(again, Ok(Outcome::AlreadyPosted(nano(7))), "{account}");
        let balances = node.ledger.balances(account).await.expect("balances").expect("an account");
        assert_eq!((balances.posted, balances.held), (nano(7 * round), nano(0)), "{account}");
        assert!(balances.is_balanced(), "{balances:?}");
    }
}

pub(super) async fn accounts(node: &Node) -> Vec<AccountName> {
    let mut accounts = Vec::new();
    for name in ACCOUNTS {
        accounts.push(funded_as(&*node.ledger, name).await);
    }
    accounts
}

#[tokio::test]
async fn a_frozen_master_of_a_cluster_is_left_for_its_replica() {
    let (nodes, outbox) = (redis_cluster::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&nodes[0].cluster_url(), &outbox).await;
    let accounts = accounts(&node).await;
    settles(&node, &accounts, 1).await;
    // The only one whose address was given.
    nodes[0].signal("STOP");
    until("its replica takes over", || is_master(&nodes[3]));
    settles(&node, &accounts, 2).await;
    nodes[0].signal("CONT");
    until("it is a replica now", || !is_master(&nodes[0]));
    settles(&node, &accounts, 3).await;
}

#[tokio::test]
async fn a_master_whose_slots_have_all_moved_is_left() {
    let (nodes, outbox) = (redis_cluster::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&nodes[0].cluster_url(), &outbox).await;
    let accounts = accounts(&node).await;
    settles(&node, &accounts, 1).await;
    empty(&nodes, 0, 1);
    until("it is a replica now", || !is_master(&nodes[0]));
    settles(&node, &accounts, 2).await;
}
