//! Payments, refunds and corrections on every store: how they are listed, and what the tables and
//! random scripts cannot show of them.

use futures_util::future::join_all;
use rusqlite::Connection;
use tollgate::ledger::{Ledger, Operation, Outcome, TransferType};
use tollgate::money::Money;

use super::redis_server::RedisServer;
use super::script::{LONG_MS, checkpoint, now, settle};
use super::subject::{name, open};

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

fn pay(tx: &str, amount: i64) -> Operation {
    Operation::Credit { tx: tx.to_owned(), amount: nano(amount) }
}

fn refund(tx: &str, amount: i64) -> Operation {
    let reason = "asked for \u{fc}berall".to_owned();
    Operation::Take { tx: tx.to_owned(), amount: nano(amount), reason }
}

fn correct(tx: &str, request: &str, found: &[u64], amount: i64) -> Operation {
    let (tx, request, reason) = (tx.to_owned(), request.to_owned(), "too \"dear\"".to_owned());
    Operation::Correct { tx, request, found: found.to_vec(), amount: nano(amount), reason }
}

async fn submit(ledger: &dyn Ledger, op: Operation) -> Outcome {
    ledger.submit(&name("ada"), op).await.expect("an outcome")
}

/// Charges a call.
async fn charge(ledger: &dyn Ledger, id: &str, amount: i64) {
    let (id, wanted) = (id.to_owned(), nano(amount));
    let settled = settle(&id, wanted);
    let (lease_ms, key, rates) = (LONG_MS, None, Vec::new());
    submit(ledger, Operation::Hold { id, wanted, least: wanted, lease_ms, key, rates }).await;
    assert!(matches!(submit(ledger, settled).await, Outcome::Posted { .. }));
}

/// The urls of the stores.
fn urls(folder: &tempfile::TempDir, server: &RedisServer) -> [String; 2] {
    [format!("sqlite:{}", folder.path().join("ledger.db").display()), server.fresh_url()]
}

#[tokio::test]
async fn all_that_came_in_and_went_back_is_listed_in_order() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (ledger, account, begun) = (open(&url).await, name("ada"), now());
        let ledger = &*ledger;
        assert_eq!(ledger.list_transfers(&account, 0, 9).await, Ok(Vec::new()), "{url}");
        ledger.open_account(&account).await.expect("open");
        let pause = || tokio::time::sleep(std::time::Duration::from_millis(3));
        submit(ledger, pay("t1", 100)).await;
        pause().await;
        charge(ledger, "a", 30).await;
        assert_eq!(
            submit(ledger, correct("c1", "a", &[1], 50)).await,
            Outcome::Corrected(nano(30))
        );
        pause().await;
        let taken = Outcome::Taken { taken: nano(100), uncovered: nano(20) };
        assert_eq!(submit(ledger, refund("r1", 120)).await, taken);
        pause().await;
        submit(ledger, pay("t0", 5)).await;
        let all = ledger.list_transfers(&account, 0, 9).await.expect("a list");
        let told: Vec<_> = all
            .iter()
            .map(|t| {
                let (amount, moved) = (t.amount.nano(), t.moved.map(Money::nano));
                (t.tx.as_str(), t.kind, amount, moved, t.request.as_deref(), t.reason.as_str())
            })
            .collect();
        let expected = [
            ("t1", TransferType::Payment, 100, Some(100), None, ""),
            ("c1", TransferType::Correction, 50, Some(30), Some("a"), "too \"dear\""),
            ("r1", TransferType::Refund, 120, Some(100), None, "asked for \u{fc}berall"),
            ("t0", TransferType::Payment, 5, Some(5), None, ""),
        ];
        assert_eq!(told, expected, "{url}");
        let times: Vec<i64> = all.iter().map(|t| t.at.expect("a time")).collect();
        assert!(times.is_sorted() && times[0] >= begun - 1_000 && times[3] <= now() + 1_000);
        let page = ledger.list_transfers(&account, 1, 2).await.expect("a list");
        assert_eq!(page, all[1..3], "{url}");
        assert_eq!(ledger.list_transfers(&name("bob"), 0, 9).await, Ok(Vec::new()));
        let mut newest = ledger.newest_transfers(&account, None, 9).await.expect("a list");
        newest.reverse();
        assert_eq!(newest, all, "{url}");
        assert_eq!(ledger.newest_transfers(&name("bob"), None, 9).await, Ok(Vec::new()));
    }
}

/// Payments of the same moment are common: a file of them is imported. None is shown twice, and
/// none is left out.
#[tokio::test]
async fn the_newest_come_first_and_each_page_goes_on_where_the_one_before_ended() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (ledger, account) = (open(&url).await, name("ada"));
        let ledger = &*ledger;
        ledger.open_account(&account).await.expect("open");
        let many = (0..30).map(|at| submit(ledger, pay(&format!("t{at}"), at + 1)));
        join_all(many).await;
        submit(ledger, refund("r", 7)).await;
        let all = ledger.list_transfers(&account, 0, 100).await.expect("a list");
        for limit in [1, 7, 31, 100] {
            let (mut read, mut before) = (Vec::new(), None);
            loop {
                let page = ledger.newest_transfers(&account, before.as_ref(), limit).await;
                let page = page.expect("a page");
                let Some(last) = page.last() else { break };
                before = Some(last.place());
                assert!(page.len() <= limit as usize);
                read.extend(page);
            }
            read.reverse();
            assert_eq!(read, all, "{url}, {limit} at a time");
        }
    }
}

/// A gateway of an older version writes transfers without their places in the index, or even
/// without their times, while this one reads.
#[tokio::test]
async fn what_an_older_version_has_written_is_among_the_newest() {
    let (server, account) = (RedisServer::shared(), name("ada"));
    let url = server.fresh_url();
    let ledger = open(&url).await;
    ledger.open_account(&account).await.expect("open");
    for tx in ["t1", "t2", "t3"] {
        submit(&*ledger, pay(tx, 5)).await;
    }
    let client = redis::Client::open(url.as_str()).expect("an address");
    let mut connection = client.get_connection().expect("a connection");
    let times = "tollgate:{ada}:transfer-times";
    redis::cmd("ZREM").arg(times).arg("t2").exec(&mut connection).expect("removed");
    for tx in ["o1", "o2"] {
        let mut old = redis::cmd("HSET");
        old.arg("tollgate:{ada}:payments").arg(tx).arg(9);
        old.exec(&mut connection).expect("written");
    }
    let mut all = ledger.list_transfers(&account, 0, 9).await.expect("a list");
    all.reverse();
    assert_eq!(all.last().map(|last| (last.tx.as_str(), last.at)), Some(("o1", None)));
    assert_eq!(ledger.newest_transfers(&account, None, 9).await, Ok(all.clone()));
    let before = all[3].place();
    assert_eq!(ledger.newest_transfers(&account, Some(&before), 9).await, Ok(all[4..].to_vec()));
    // An index that has more than there is was written by a run of the server that is gone.
    redis::cmd("ZADD").arg(times).arg(1).arg("gone").exec(&mut connection).expect("added");
    assert_eq!(ledger.newest_transfers(&account, None, 9).await, Ok(all));
    let indexed: u64 = redis::cmd("ZCARD").arg(times).query(&mut connection).expect("a number");
    assert_eq!(indexed, 3);
}

/// A search that ended before the newest correction must not give its money back again.
#[tokio::test]
async fn corrections_that_come_together_give_back_the_charge_once() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let ledger = open(&url).await;
        let ledger = &*ledger;
        ledger.open_account(&name("ada")).await.expect("open");
        submit(ledger, pay("t1", 1_000)).await;
        charge(ledger, "a", 100).await;
        let many = (0..20).map(|at| submit(ledger, correct(&format!("c{at}"), "a", &[1], 9)));
        let given = join_all(many).await.into_iter().map(|outcome| match outcome {
            Outcome::Corrected(given) => given.nano(),
            other => panic!("{other:?}"),
        });
        assert_eq!(given.sum::<i64>(), 100, "{url}");
        let balances = ledger.balances(&name("ada")).await.expect("an answer").expect("balances");
        assert_eq!(balances.posted, Money::ZERO);
        assert_eq!(balances.available, nano(1_000));
    }
}

/// Numbers that are named twice, of other calls, of corrections, or of no line at all.
#[tokio::test]
async fn lines_that_are_no_charges_of_the_request_give_nothing() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let ledger = open(&url).await;
        let ledger = &*ledger;
        ledger.open_account(&name("ada")).await.expect("open");
        submit(ledger, pay("t1", 1_000)).await;
        charge(ledger, "a", 100).await;
        charge(ledger, "b", 50).await;
        assert_eq!(submit(ledger, correct("c1", "b", &[1], 50)).await, Outcome::UnknownCharge);
        assert_eq!(submit(ledger, correct("c1", "a", &[], 50)).await, Outcome::UnknownCharge);
        assert_eq!(submit(ledger, correct("c1", "a", &[9], 50)).await, Outcome::UnknownCharge);
        let odd = correct("c1", "a", &[1, 1, 2, 3, 0, u64::MAX], 70);
        assert_eq!(submit(ledger, odd).await, Outcome::Corrected(nano(70)), "{url}");
        let odd = correct("c2", "a", &[1, 1, 3], 70);
        assert_eq!(submit(ledger, odd).await, Outcome::Corrected(nano(30)), "{url}");
    }
}

/// It was refused as though a balance were too large, or by an error of a script.
#[tokio::test]
async fn a_search_that_found_less_than_an_earlier_one_gives_back_less() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let ledger = open(&url).await;
        let ledger = &*ledger;
        ledger.open_account(&name("ada")).await.expect("open");
        submit(ledger, pay("t1", 1_000)).await;
        let (wanted, id, lease_ms) = (nano(60), "a".to_owned(), 1);
        let (least, key, rates) = (wanted, None, Vec::new());
        submit(ledger, Operation::Hold { id, wanted, least, lease_ms, key, rates }).await;
        submit(ledger, checkpoint("a", nano(20))).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert_eq!(ledger.expire_holds().await.map(|swept| swept.expired), Ok(1));
        submit(ledger, settle("a", nano(50))).await;
        let given = submit(ledger, correct("c1", "a", &[1, 2], 45)).await;
        assert_eq!(given, Outcome::Corrected(nano(45)), "{url}");
        let given = submit(ledger, correct("c2", "a", &[2], 45)).await;
        assert_eq!(given, Outcome::Corrected(Money::ZERO), "{url}");
        let given = submit(ledger, correct("c3", "a", &[1, 2], 45)).await;
        assert_eq!(given, Outcome::Corrected(nano(5)), "{url}");
    }
}

#[tokio::test]
async fn a_payment_of_an_older_version_has_no_time_on_redis_and_comes_first() {
    let server = RedisServer::shared();
    let url = server.fresh_url();
    let ledger = open(&url).await;
    ledger.open_account(&name("ada")).await.expect("open");
    submit(&*ledger, pay("t1", 100)).await;
    let client = redis::Client::open(url.as_str()).expect("an address");
    let mut beside = client.get_connection().expect("a connection");
    redis::cmd("HSET")
        .arg("tollgate:{ada}:payments")
        .arg("old")
        .arg(7)
        .exec(&mut beside)
        .expect("set");
    assert_eq!(submit(&*ledger, pay("old", 7)).await, Outcome::AlreadyDone);
    assert_eq!(submit(&*ledger, refund("old", 7)).await, Outcome::Conflict);
    let all = ledger.list_transfers(&name("ada"), 0, 9).await.expect("a list");
    let told: Vec<_> = all.iter().map(|t| (t.tx.as_str(), t.at.is_some())).collect();
    assert_eq!(told, [("old", false), ("t1", true)]);
}

/// A version that does not know corrections would take one for a charge.
#[tokio::test]
async fn the_first_refund_or_correction_raises_the_version_of_the_data() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    let [file, redis] = urls(&folder, &server);
    let client = redis::Client::open(redis.as_str()).expect("an address");
    let mut beside = client.get_connection().expect("a connection");
    for url in [&file, &redis] {
        let ledger = open(url).await;
        ledger.open_account(&name("ada")).await.expect("open");
        submit(&*ledger, pay("t1", 100)).await;
        let path = folder.path().join("ledger.db");
        let mut version = || -> Option<u32> {
            if url.starts_with("sqlite") {
                let c = Connection::open(&path).expect("the file");
                return c.pragma_query_value(None, "user_version", |row| row.get(0)).ok();
            }
            redis::cmd("GET").arg("tollgate:schema-version").query(&mut beside).expect("read")
        };
        let before = version();
        assert!(before.is_none_or(|version| version < 4), "{url}: {before:?}");
        submit(&*ledger, refund("r1", 1)).await;
        assert_eq!(version(), Some(4), "{url}");
        drop(ledger);
        open(url).await;
    }
}
