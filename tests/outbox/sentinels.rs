//! A master that three Sentinels watch, and that gives way to its replica while a node sells.

use std::collections::HashMap;

use tempfile::TempDir;

use super::cluster::{accounts, settles};
use super::node::Node;
use crate::ledger::redis_cluster::{is_master, says, until};
use crate::ledger::redis_server::RedisServer;

/// What is silent for a second is gone.
const PATIENCE: &str = "sentinel down-after-milliseconds mymaster 1000\n\
    sentinel failover-timeout mymaster 5000\n";

struct Watched {
    master: RedisServer,
    replica: RedisServer,
    sentinels: Vec<RedisServer>,
}

impl Watched {
    fn start() -> Watched {
        let settings = ["--repl-diskless-sync-delay", "0"];
        let master = RedisServer::start_with(&settings);
        let port = master.port().to_string();
        let replica = RedisServer::start_with(
            &[&settings[..], &["--replicaof", "127.0.0.1", &port]].concat(),
        );
        until("the replica has its master", || says(&replica, &["INFO"], "master_link_status:up"));
        let watching = || RedisServer::start_sentinel_with(master.port(), PATIENCE);
        let sentinels: Vec<_> = (0..3).map(|_| watching()).collect();
        until("the Sentinels know each other and the replica", || {
            sentinels.iter().all(|one| {
                let told = one.command(&["SENTINEL", "MASTER", "mymaster"]);
                let told = redis::from_redis_value::<HashMap<String, String>>(told).expect("words");
                told["num-slaves"] == "1" && told["num-other-sentinels"] == "2"
            })
        });
        Watched { master, replica, sentinels }
    }

    fn url(&self) -> String {
        let places = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port()));
        format!("redis-sentinel://{}/mymaster", places.collect::<Vec<_>>().join(","))
    }
}

#[tokio::test]
async fn a_planned_failover_behind_sentinels_left_gateways_at_the_old_master() {
    let (watched, outbox) = (Watched::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&watched.url(), &outbox).await;
    let accounts = accounts(&node).await;
    settles(&node, &accounts, 1).await;
    watched.sentinels[0].command(&["SENTINEL", "FAILOVER", "mymaster"]);
    until("the replica takes over", || is_master(&watched.replica));
    settles(&node, &accounts, 2).await;
    until("it is a replica now", || !is_master(&watched.master));
    settles(&node, &accounts, 3).await;
}

#[tokio::test]
async fn a_frozen_master_behind_sentinels_is_left_for_its_replica() {
    let (watched, outbox) = (Watched::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&watched.url(), &outbox).await;
    let accounts = accounts(&node).await;
    settles(&node, &accounts, 1).await;
    watched.master.signal("STOP");
    until("the replica takes over", || is_master(&watched.replica));
    settles(&node, &accounts, 2).await;
    // It takes itself for the master until it is told.
    watched.master.signal("CONT");
    settles(&node, &accounts, 3).await;
    until("it is a replica now", || !is_master(&watched.master));
    settles(&node, &accounts, 4).await;
}

#[tokio::test]
async fn a_master_behind_sentinels_that_died_is_left_for_its_replica() {
    let (mut watched, outbox) = (Watched::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&watched.url(), &outbox).await;
    let accounts = accounts(&node).await;
    settles(&node, &accounts, 1).await;
    watched.master.stop();
    until("the replica takes over", || is_master(&watched.replica));
    settles(&node, &accounts, 2).await;
}
