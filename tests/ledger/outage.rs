//! A Redis that is set up badly, full, forgetful, or gone for a while.

use std::time::{Duration, Instant};

use tollgate::ledger::{AccountName, Ledger, Operation, Outcome};
use tollgate::money::Money;
use tollgate::store::{self, StoreSection};

use super::redis_server::RedisServer;
use super::script::{LONG_MS, settle};
use super::subject::{at, name, open};

/// Nobody waits longer for a server that is gone.
const FAILS_WITHIN: Duration = Duration::from_secs(3);

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

fn hold(id: &str) -> Operation {
    let (id, amount) = (id.to_owned(), nano(10));
    Operation::Hold {
        id,
        wanted: amount,
        least: amount,
        lease_ms: LONG_MS,
        key: None,
        rates: Vec::new(),
    }
}

async fn funded(ledger: &dyn Ledger) -> AccountName {
    let account = name("outage");
    ledger.open_account(&account).await.expect("open");
    let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(100) };
    assert_eq!(ledger.submit(&account, credit).await, Ok(Outcome::Done));
    account
}

async fn held(ledger: &dyn Ledger, account: &AccountName) -> i64 {
    let balances = ledger.balances(account).await.expect("balances").expect("the account");
    assert!(balances.is_balanced(), "{balances:?}");
    balances.held.nano()
}

#[tokio::test]
async fn a_redis_that_may_lose_money_is_refused_by_the_name_of_the_setting() {
    let wrong = [
        ("appendonly", "no"),
        ("appendfsync", "no"),
        ("maxmemory-policy", "allkeys-lru"),
        ("maxmemory-policy", "volatile-ttl"),
    ];
    for (setting, value) in wrong {
        let server = RedisServer::start_with(&[&format!("--{setting}"), value]);
        let section = at(server.url());
        let Err(refused) = store::open(&section).await else { panic!("{setting} {value} opens") };
        let said = refused.to_string();
        for part in [setting, value, "allow_volatile"] {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
        let section = StoreSection { allow_volatile: true, ..section };
        let allowed = store::open(&section).await.expect("it was allowed");
        funded(&*allowed.ledger).await;
    }
}

#[tokio::test]
async fn every_wrong_setting_is_named_at_once() {
    let server =
        RedisServer::start_with(&["--appendonly", "no", "--maxmemory-policy", "allkeys-lru"]);
    let section = at(server.url());
    let Err(refused) = store::open(&section).await else { panic!("it opens") };
    let said = refused.to_string();
    assert!(said.contains("appendonly") && said.contains("maxmemory-policy"), "{said}");
}

#[tokio::test]
async fn an_address_of_no_store_is_refused_without_its_password() {
    for url in ["postgres://me:secret@host/db", "redis://me:secret@127.0.0.1:1/0", "redis:", ""] {
        let section = at(url.to_owned());
        let Err(refused) = store::open(&section).await else { panic!("{url} opens") };
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }
}

#[tokio::test]
async fn a_full_redis_takes_no_holds_and_still_ends_them() {
    let server = RedisServer::start();
    let ledger = open(&server.url()).await;
    let account = funded(&*ledger).await;
    for id in ["a", "b", "c"] {
        assert_eq!(ledger.submit(&account, hold(id)).await, Ok(Outcome::Held(nano(10))));
    }
    server.command(&["SET", "ballast", &"x".repeat(1 << 20)]);
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);

    ledger.submit(&account, hold("d")).await.expect_err("there is no memory for it");
    let credit = Operation::Credit { tx: "t2".to_owned(), amount: nano(5) };
    ledger.submit(&account, credit).await.expect_err("there is no memory for it");
    let charge = super::script::checkpoint("a", nano(3));
    assert_eq!(ledger.submit(&account, charge).await, Ok(Outcome::Done));
    let renew = Operation::Renew { id: "a".to_owned(), lease_ms: LONG_MS };
    assert_eq!(ledger.submit(&account, renew).await, Ok(Outcome::Done));
    let posted = Outcome::Posted { amount: nano(7), written_off: Money::ZERO };
    assert_eq!(ledger.submit(&account, settle("a", nano(7))).await, Ok(posted));
    for id in ["b", "d"] {
        let void = Operation::Void { id: id.to_owned() };
        assert_eq!(ledger.submit(&account, void).await, Ok(Outcome::Voided));
    }
    assert_eq!(held(&*ledger, &account).await, 10);

    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(ledger.submit(&account, hold("d")).await, Ok(Outcome::Tombstoned));
    assert_eq!(ledger.submit(&account, hold("e")).await, Ok(Outcome::Held(nano(10))));
}

#[tokio::test]
async fn a_redis_that_forgot_the_scripts_is_told_them_again() {
    let server = RedisServer::start();
    let ledger = open(&server.url()).await;
    let account = funded(&*ledger).await;
    for round in 0..5 {
        let [kept, charged] = [format!("v{round}"), format!("s{round}")];
        let ops = [
            (hold(&kept), Outcome::Held(nano(10))),
            (hold(&charged), Outcome::Held(nano(10))),
            (settle(&charged, nano(1)), Outcome::Posted { amount: nano(1), written_off: nano(0) }),
            (Operation::Void { id: kept }, Outcome::Voided),
        ];
        for (op, expected) in ops {
            server.command(&["SCRIPT", "FLUSH"]);
            assert_eq!(ledger.submit(&account, op).await, Ok(expected));
        }
    }
    server.command(&["SCRIPT", "FLUSH"]);
    ledger.expire_holds().await.expect("a sweep");
    assert_eq!(held(&*ledger, &account).await, 0);
}

/// The operations that a gateway makes while its Redis is gone.
async fn all_fail_in_time(ledger: &dyn Ledger, account: &AccountName) {
    let void = Operation::Void { id: "b".to_owned() };
    for op in [hold("b"), settle("a", nano(5)), void] {
        let (asked, answer) = (Instant::now(), ledger.submit(account, op.clone()).await);
        assert!(answer.is_err(), "{op:?} gave {answer:?}");
        assert!(asked.elapsed() < FAILS_WITHIN, "{op:?} took {:?}", asked.elapsed());
    }
    ledger.ping().await.expect_err("it is gone");
}

/// While its disk is busy a server that syncs every second answers before it has written, and what
/// it has not written does not outlive it.
const KEPT: [&str; 4] = ["CONFIG", "SET", "appendfsync", "always"];

/// Asks until the store answers again.
async fn answers_again(ledger: &dyn Ledger) {
    let asked = Instant::now();
    while ledger.ping().await.is_err() {
        assert!(asked.elapsed() < Duration::from_secs(10), "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_redis_that_comes_back_has_kept_the_holds() {
    let mut server = RedisServer::start();
    server.command(&KEPT);
    let ledger = open(&server.url()).await;
    let account = funded(&*ledger).await;
    assert_eq!(ledger.submit(&account, hold("a")).await, Ok(Outcome::Held(nano(10))));
    server.stop();
    all_fail_in_time(&*ledger, &account).await;
    assert!(server.start_again(), "Redis does not start again");
    answers_again(&*ledger).await;
    assert_eq!(held(&*ledger, &account).await, 10);
    let again = Outcome::HoldExists { held: nano(10), open: true };
    assert_eq!(ledger.submit(&account, hold("a")).await, Ok(again));
    let posted = Outcome::Posted { amount: nano(5), written_off: Money::ZERO };
    assert_eq!(ledger.submit(&account, settle("a", nano(5))).await, Ok(posted));
}

/// Whoever was locked out for some seconds stayed out.
#[tokio::test]
async fn a_password_that_is_right_again_lets_the_gateway_in_again() {
    let server = RedisServer::start();
    let password = |password: &str| {
        let password = format!(">{password}");
        let user = ["ACL", "SETUSER", "us", "on", "resetpass", &password, "~*", "&*", "+@all"];
        server.command(&user);
    };
    password("right");
    let url = server.url().replace("redis://", "redis://us:right@");
    let ledger = open(&url).await;
    let account = funded(&*ledger).await;
    password("wrong");
    server.command(&["CLIENT", "KILL", "USER", "us"]);
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        ledger.ping().await.expect_err("it is locked out");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    password("right");
    answers_again(&*ledger).await;
    assert_eq!(held(&*ledger, &account).await, 0);
}

/// The connection to the master is kept, so it must be let go of when the master is gone.
#[tokio::test]
async fn a_master_behind_sentinel_that_comes_back_is_found_again() {
    let mut master = RedisServer::start();
    master.command(&KEPT);
    let sentinel = RedisServer::start_sentinel(&master);
    let ledger = open(&format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port())).await;
    let account = funded(&*ledger).await;
    assert_eq!(ledger.submit(&account, hold("a")).await, Ok(Outcome::Held(nano(10))));
    master.stop();
    all_fail_in_time(&*ledger, &account).await;
    assert!(master.start_again(), "Redis does not start again");
    answers_again(&*ledger).await;
    assert_eq!(held(&*ledger, &account).await, 10);
}

/// Every operation asked the Sentinels and opened a connection of its own.
#[tokio::test]
async fn each_operation_behind_sentinel_opened_a_connection() {
    let master = RedisServer::start();
    let sentinel = RedisServer::start_sentinel(&master);
    let ledger = open(&format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port())).await;
    let account = funded(&*ledger).await;
    let opened = || {
        let stats = format!("{:?}", master.command(&["INFO", "stats"]));
        let (_, rest) = stats.split_once("total_connections_received:").expect("the number");
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().expect("a number")
    };
    let before = opened();
    for _ in 0..50 {
        ledger.balances(&account).await.expect("balances");
    }
    // Sentinel itself and this test connect now and then.
    assert!(opened() - before < 25, "{} connections", opened() - before);
}
