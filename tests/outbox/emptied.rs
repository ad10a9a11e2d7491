//! A Redis that loses what it has, or stops keeping it, while gateways sell.

use std::time::Duration;

use tempfile::TempDir;
use tollgate::ledger::Outcome;
use tollgate::money::Money;

use super::let_in_again;
use super::node::{Node, funded, funded_as, hold, nano, settle};
use crate::ledger::redis_cluster;
use crate::ledger::redis_server::RedisServer;
use crate::world::{ACCOUNT, Store, World, chat_of};

const OTHER: &str = "not the one that is known";

#[tokio::test]
async fn a_store_that_was_emptied_sells_nothing_and_calls_no_key_wrong() {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    let second = world.command(&["key", "issue", ACCOUNT]).await.done();
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    let copy = world.redis().copy();
    world.redis().command(&["FLUSHALL"]);
    // At once, and later on: a key that was used, one that never was, and one that nobody has.
    let stranger = second.trim().chars().rev().skip(4).collect::<String>();
    let stranger = stranger.chars().rev().chain("0000".chars()).collect::<String>();
    for round in 0..40 {
        let known = world.chat(chat_of("lmb-5.5")).await;
        assert_eq!(known.refusal(), (503, "ledger_unavailable".to_owned()), "round {round}");
        for key in [second.trim(), &stranger] {
            let url = format!("http://{}/v1/chat/completions", world.gateway.http);
            let call = world.client().post(url).bearer_auth(key);
            let call = call.header("content-type", "application/json");
            let status = call.body(chat_of("lmb-5.5").to_string()).send().await;
            assert_eq!(status.expect("an answer").status(), 503, "in round {round}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.sim.count("vendor_b"), 1, "no vendor works without a hold");
    let ready = world.client().get(format!("http://{}/readyz", world.gateway.admin)).send().await;
    let ready = ready.expect("readiness");
    assert_eq!(ready.status(), 503);
    let told = ready.text().await.expect("a reason");
    assert!(told.contains(OTHER), "{told}");
    world.logged(&["it was emptied, or replaced"]).await;
    // It is restored, and all goes on.
    world.redis().fall_back_to(&copy);
    let_in_again(&world).await;
    world.settled(2).await;
    // Or somebody says that what is gone is gone.
    world.redis().command(&["FLUSHALL"]);
    world.kill_and_start_again().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.refusal().0, 401);
}

/// What was held when it was emptied is told to it when it is back, and to nobody else.
#[tokio::test]
async fn what_an_emptied_store_had_is_not_charged_to_the_one_after_it() {
    let (server, outbox) = (RedisServer::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&server.url(), &outbox).await;
    let account = funded(&*node.ledger).await;
    for id in ["before", "after"] {
        assert_eq!(node.ledger.submit(&account, hold(id)).await, Ok(Outcome::Held(nano(10))));
    }
    let posted = Outcome::Posted { amount: nano(7), written_off: Money::ZERO };
    assert_eq!(node.ledger.submit(&account, settle("before")).await, Ok(posted));
    server.command(&["FLUSHALL"]);
    node.refuses(&account, OTHER).await;
    let why = node.ledger.submit(&account, settle("after")).await;
    assert!(why.clone().is_err_and(|why| why.0.contains(OTHER)), "{why:?}");
    // An operator gives the account what his own books say that it has.
    let lazily = crate::ledger::subject::open(&server.url()).await;
    funded(&*lazily).await;
    drop((node.running.abort(), node));
    let next = Node::start(&server.url(), &outbox).await;
    next.holds(&account, "next").await;
    // Adopted is whatever ended processes left, now and then.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let balances = next.ledger.balances(&account).await.expect("balances").expect("an account");
    assert_eq!((balances.available, balances.held, balances.posted), (nano(90), nano(10), nano(0)));
}

#[tokio::test]
async fn what_a_file_had_was_charged_to_the_one_that_took_its_place() {
    let [folder, outbox] = [(); 2].map(|()| TempDir::new().expect("a folder"));
    let file = folder.path().join("tollgate.db");
    let url = format!("sqlite:{}", file.display());
    let account = funded(&*crate::ledger::subject::open(&url).await).await;
    let node = Node::start(&url, &outbox).await;
    node.holds(&account, "before").await;
    let posted = Outcome::Posted { amount: nano(7), written_off: Money::ZERO };
    assert_eq!(node.ledger.submit(&account, settle("before")).await, Ok(posted));
    drop((node.running.abort(), node));
    for ending in ["", "-wal", "-shm"] {
        let name = format!("{}{ending}", file.display());
        std::fs::rename(&name, format!("{name}.away")).expect("a file");
    }
    // An operator gives the account what his own books say that it has.
    funded(&*crate::ledger::subject::open(&url).await).await;
    let next = Node::start(&url, &outbox).await;
    next.holds(&account, "next").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let balances = next.ledger.balances(&account).await.expect("balances").expect("an account");
    assert_eq!((balances.available, balances.held, balances.posted), (nano(90), nano(10), nano(0)));
}

#[tokio::test]
async fn one_master_of_a_cluster_that_was_emptied_stops_sales_on_all() {
    let (nodes, outbox) = (redis_cluster::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&nodes[0].cluster_url(), &outbox).await;
    let mut accounts = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        accounts.push(funded_as(&*node.ledger, name).await);
    }
    nodes[1].command(&["FLUSHALL"]);
    for account in &accounts {
        node.refuses(account, OTHER).await;
    }
    // Whoever starts anew takes what there is: half of the accounts.
    node.running.abort();
    let next = Node::start(&nodes[0].cluster_url(), &outbox).await;
    let mut left = 0;
    for account in &accounts {
        left += usize::from(next.ledger.balances(account).await.expect("an answer").is_some());
    }
    assert!((1..accounts.len()).contains(&left), "{left} accounts are left");
    node.ledger.submit(&accounts[0], hold("x")).await.expect_err("it knows another store");
}

#[tokio::test]
async fn a_log_that_is_switched_off_stops_sales_until_it_is_on_again() {
    let (server, outbox) = (RedisServer::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&server.url(), &outbox).await;
    let account = funded(&*node.ledger).await;
    for (round, (setting, bad, good)) in [
        ("appendonly", "no", "yes"),
        ("appendfsync", "no", "everysec"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("round{round}");
        node.holds(&account, &id).await;
        server.command(&["CONFIG", "SET", setting, bad]);
        node.refuses(&account, setting).await;
        let posted = Outcome::Posted { amount: nano(7), written_off: Money::ZERO };
        assert_eq!(
            node.ledger.submit(&account, settle(&id)).await,
            Ok(posted),
            "what ends may end"
        );
        server.command(&["CONFIG", "SET", setting, good]);
        node.lets_in().await;
    }
}
