//! A Redis that comes back sooner than anybody looks: another run refuses by itself what is meant
//! for the last one.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use tollgate::ledger::lease::{LeaseEntry, LeasedItem};
use tollgate::ledger::{Operation, Outcome};
use tollgate::money::Money;

use super::node::{Node, funded, hold, keep, nano, origin_at, settle};
use crate::ledger::redis_server::RedisServer;
use crate::ledger::script::now;

#[tokio::test]
async fn another_run_that_nobody_has_noticed_moves_no_money() {
    let (mut server, outbox) = (RedisServer::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&server.url(), &outbox).await;
    let account = funded(&*node.ledger).await;
    let copy = server.copy();
    for id in ["lost", "open"] {
        assert_eq!(node.ledger.submit(&account, hold(id)).await, Ok(Outcome::Held(nano(10))));
    }
    let posted = Outcome::Posted { amount: nano(7), written_off: Money::ZERO };
    assert_eq!(node.ledger.submit(&account, settle("lost")).await, Ok(posted));
    let kept = LeasedItem::Hold { origin: origin_at(now()), held: nano(10), is_in_memory: false };
    let entry = LeaseEntry { account: account.clone(), id: "open".to_owned(), item: kept };
    let _lease = node.leases.keep_alive(entry);

    // Nobody looks any more, and then it is another one.
    node.running.abort();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.fall_back_to(&copy);
    let extend = Operation::Extend { id: "open".to_owned(), wanted: nano(20) };
    for op in [hold("new"), extend, settle("open")] {
        // The connection has to notice first that its server is gone.
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let answer = node.ledger.submit(&account, op.clone()).await;
            let why = answer.expect_err("it is sold in a run that lacks something").0;
            if why.contains("another run") || why.contains("may lack something") {
                break;
            }
            assert!(Instant::now() < end, "{why}");
        }
    }
    let balances = node.ledger.balances(&account).await.expect("balances").expect("an account");
    assert_eq!((balances.available, balances.held, balances.posted), (nano(100), nano(0), nano(0)));

    // Somebody looks again. What was tried meanwhile is done, and what was lost is there.
    let _running = keep(&node.upkeep);
    node.lets_in().await;
    let balances = node.ledger.balances(&account).await.expect("balances").expect("an account");
    assert_eq!((balances.available, balances.held, balances.posted), (nano(86), nano(0), nano(14)));
    node.holds(&account, "new").await;
    let again = Outcome::AlreadyPosted(nano(7));
    for id in ["lost", "open"] {
        assert_eq!(node.ledger.submit(&account, settle(id)).await, Ok(again.clone()));
    }
}

/// Nobody else's money may be taken in the moment before a second node has said what it knows.
#[tokio::test]
async fn a_node_that_knows_the_new_run_does_not_open_it_for_another_that_does_not() {
    let mut server = RedisServer::start();
    let [one, two] = [(); 2].map(|()| TempDir::new().expect("a folder"));
    let (first, second) =
        (Node::start(&server.url(), &one).await, Node::start(&server.url(), &two).await);
    let account = funded(&*first.ledger).await;
    let copy = server.copy();
    assert_eq!(second.ledger.submit(&account, hold("a")).await, Ok(Outcome::Held(nano(10))));
    let posted = Outcome::Posted { amount: nano(7), written_off: Money::ZERO };
    assert_eq!(second.ledger.submit(&account, settle("a")).await, Ok(posted));
    second.running.abort();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.fall_back_to(&copy);
    first.holds(&account, "b").await;
    second.ledger.submit(&account, hold("c")).await.expect_err("it has not made up for anything");
    let _running = keep(&second.upkeep);
    second.lets_in().await;
    second.holds(&account, "d").await;
    let balances = first.ledger.balances(&account).await.expect("balances").expect("an account");
    assert_eq!((balances.available, balances.held, balances.posted), (nano(73), nano(20), nano(7)));
}

/// An outbox tells a charge for as long as it may be missing, and its record may be gone by then.
#[tokio::test]
async fn a_charge_whose_record_was_gone_was_made_again_by_a_replay() {
    let (mut server, outbox) = (RedisServer::start(), TempDir::new().expect("a folder"));
    let node = Node::start(&server.url(), &outbox).await;
    let account = funded(&*node.ledger).await;
    let began = now() - 3 * 3_600_000;
    let id = format!("{:08x}-{:04x}-7000-8000-000000000001", began >> 16, began & 0xffff);
    let line = format!(r#"{{"request_id":"{id}","at":1}}"#);
    let origin = Some(origin_at(began));
    let charge = Operation::Settle { id: id.clone(), charge: nano(7), line, origin, tokens: None };
    assert_eq!(node.ledger.submit(&account, hold(&id)).await, Ok(Outcome::Held(nano(10))));
    let posted = Outcome::Posted { amount: nano(7), written_off: Money::ZERO };
    assert_eq!(node.ledger.submit(&account, charge.clone()).await, Ok(posted));

    // The server does so by itself, two hours after the charge.
    let record = format!("tollgate:{{{account}}}:hold:{id}");
    let forget = |server: &RedisServer| {
        assert_eq!(server.command(&["DEL", &record]), redis::Value::Int(1));
    };
    for again in [charge, Operation::Void { id: id.clone() }] {
        forget(&server);
        let told = node.ledger.submit(&account, again).await;
        assert_eq!(told, Ok(Outcome::AlreadyPosted(nano(7))));
    }
    forget(&server);
    let copy = server.copy();
    server.fall_back_to(&copy);
    node.holds(&account, "new").await;
    let balances = node.ledger.balances(&account).await.expect("balances").expect("an account");
    assert_eq!((balances.available, balances.held, balances.posted), (nano(83), nano(10), nano(7)));
}
