//! A sweep of many accounts, of which few have holds.

use std::sync::Arc;

use tollgate::ledger::{Ledger, Operation, SweepReport};
use tollgate::metrics::METRICS;
use tollgate::money::Money;

use super::redis_server::RedisServer;
use super::script::LONG_MS;
use super::subject::{name, open};

/// More than a store asks at a time.
const ACCOUNTS: usize = 1_300;
/// Each of these has two holds that are due and one that stands.
const WITH_HOLDS: [usize; 3] = [7, 650, 1_299];

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

/// Opens the accounts, ends what is due, and tells whether all that should have ended did.
async fn sweeps(store: &Arc<dyn Ledger>) {
    let names: Vec<_> = (0..ACCOUNTS).map(|n| name(&format!("one-of-many-{n}"))).collect();
    for few in names.chunks(100) {
        let opened = few.iter().map(|name| store.open_account(name));
        for opened in futures_util::future::join_all(opened).await {
            assert_eq!(opened, Ok(true));
        }
    }
    for n in WITH_HOLDS {
        let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(30) };
        store.submit(&names[n], credit).await.expect("a payment");
        for (id, lease_ms) in [("a", 1), ("b", 1), ("c", LONG_MS)] {
            let (id, wanted, least) = (id.to_owned(), nano(10), nano(10));
            let hold =
                Operation::Hold { id, wanted, least, lease_ms, key: None, rates: Vec::new() };
            store.submit(&names[n], hold).await.expect("a hold");
        }
    }
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let left = SweepReport { expired: 6, open: 3, held: nano(30) };
    assert_eq!(store.expire_holds().await, Ok(left));
    assert_eq!(store.expire_holds().await, Ok(SweepReport { expired: 0, ..left }));
    for n in WITH_HOLDS {
        let balances = store.balances(&names[n]).await.expect("an answer").expect("an account");
        assert_eq!((balances.available, balances.held), (nano(20), nano(10)));
    }
}

/// What its checkpoint posts is more than the hold, and than all that the account had.
async fn writes_off(store: &Arc<dyn Ledger>) {
    let account = name("poor");
    assert_eq!(store.open_account(&account).await, Ok(true));
    let (id, wanted, least) = ("h".to_owned(), nano(10), nano(10));
    for op in [
        Operation::Credit { tx: "t".to_owned(), amount: nano(10) },
        Operation::Hold {
            id: id.clone(),
            wanted,
            least,
            lease_ms: 1,
            key: None,
            rates: Vec::new(),
        },
        Operation::Checkpoint { id, charge: nano(50_000_000), line: "{}".to_owned() },
    ] {
        store.submit(&account, op).await.expect("it is done");
    }
    let before = METRICS.write_offs.get();
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    assert_eq!(store.expire_holds().await.map(|swept| swept.expired), Ok(1));
    let balances = store.balances(&account).await.expect("an answer").expect("an account");
    assert_eq!(balances.written_off, nano(49_999_990));
    assert_eq!(METRICS.write_offs.get(), before + 1);
}

#[tokio::test]
async fn what_a_sweep_of_sqlite_writes_off_is_told_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
    writes_off(&open(&url).await).await;
}

#[tokio::test]
async fn what_a_sweep_of_redis_writes_off_is_told_too() {
    let server = RedisServer::start();
    writes_off(&open(&server.url()).await).await;
}

/// How often a server was told a command.
fn told(server: &RedisServer, command: &str) -> u64 {
    let stats = format!("{:?}", server.command(&["INFO", "commandstats"]));
    let of = stats.split_once(&format!("cmdstat_{command}:calls="));
    of.map_or(0, |(_, calls)| {
        let digits: String = calls.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    })
}

#[tokio::test]
async fn sqlite_finds_the_few_that_are_due() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
    sweeps(&open(&url).await).await;
}

/// An id that the gateway would have made so many hours ago.
fn id_of(hours_ago: i64, number: i64) -> String {
    let ms = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let ms = i64::try_from(ms).expect("it fits") - hours_ago * 3_600_000;
    format!("{:08x}-{:04x}-7000-8000-{number:012x}", ms >> 16, ms & 0xffff)
}

#[tokio::test]
async fn sqlite_forgets_what_ended_more_than_a_day_ago() {
    const OLD: i64 = 1_400;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ledger.db");
    let store = open(&format!("sqlite:{}", file.display())).await;
    for account in ["a", "b", "c"] {
        assert_eq!(store.open_account(&name(account)).await, Ok(true));
    }
    let beside = rusqlite::Connection::open(file).expect("the file");
    let insert = "INSERT INTO hold VALUES (?, ?, 1, 1, 0, ?, ?, 0, NULL)";
    let mut insert = beside.prepare(insert).expect("a statement");
    beside.execute_batch("BEGIN IMMEDIATE").expect("a transaction");
    for (number, account) in (0..OLD).zip([1, 2, 3].into_iter().cycle()) {
        let prefix = if number % 7 == 0 { "video_" } else { "" };
        for hours in [23, 25] {
            let id = format!("{prefix}{}", id_of(hours, number));
            let state = 1 + number % 4;
            insert.execute(rusqlite::params![account, id, i64::MAX, state]).expect("a row");
        }
    }
    insert.execute(rusqlite::params![1, id_of(30, 0), i64::MAX, 0]).expect("one that stands");
    beside.execute_batch("COMMIT").expect("they are there");

    store.expire_holds().await.expect("a sweep");
    let count = |what: String| -> i64 {
        let count = format!("SELECT count(*) FROM hold WHERE {what}");
        beside.query_row(&count, [], |row| row.get(0)).expect("a number")
    };
    let bound = id_of(24, 0);
    assert_eq!(count(format!("replace(id, 'video_', '') < '{bound}' AND state > 0")), 0);
    assert_eq!(count("state > 0".to_owned()), OLD, "those that are younger");
    assert_eq!(count("state = 0".to_owned()), 1, "it has not ended");
}

#[tokio::test]
async fn redis_finds_the_few_that_are_due_and_asks_the_others_for_nothing_more() {
    let server = RedisServer::start();
    sweeps(&open(&server.url()).await).await;
    // Two sweeps; of the other accounts neither asked for what is due.
    let few = u64::try_from(2 * WITH_HOLDS.len()).expect("a small number");
    assert_eq!(told(&server, "zrangebyscore"), few);
    assert!(told(&server, "zcard") >= 2 * u64::try_from(ACCOUNTS).expect("a small number"));
}

#[tokio::test]
async fn a_cluster_finds_the_few_that_are_due() {
    let node = RedisServer::start_cluster();
    sweeps(&open(&node.cluster_url()).await).await;
}

#[tokio::test]
async fn a_master_behind_sentinel_finds_the_few_that_are_due() {
    let master = RedisServer::start();
    let sentinel = RedisServer::start_sentinel(&master);
    let url = format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port());
    sweeps(&open(&url).await).await;
}

#[tokio::test]
async fn a_store_without_accounts_has_nothing_to_sweep() {
    let server = RedisServer::shared();
    assert_eq!(open(&server.fresh_url()).await.expire_holds().await, Ok(SweepReport::default()));
}
