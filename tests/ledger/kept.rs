//! What is kept beside the books has a bound in all, on every store: whoever keeps most makes room,
//! nobody pays twice for it, and holds are taken as ever.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::Connection;
use tollgate::idempotency::{ClaimMode, ClaimResult, IdempotencyKey, ReplyHead, ReplyParts};
use tollgate::kv_cache::ID_PREFIX;
use tollgate::ledger::{AccountName, Operation, Outcome};
use tollgate::money::Money;
use tollgate::store::{OpenStore, StoreSection};

use super::redis_server::RedisServer;
use super::script::LONG_MS;
use super::subject::{at, name, opened_as};

const HOUR_MS: u64 = 60 * 60 * 1_000;
const PATIENCE: Duration = Duration::from_secs(60);
const KIB: usize = 1 << 10;

async fn keeping(url: String, kept_bytes_max: u64) -> OpenStore {
    opened_as(&StoreSection { kept_bytes_max, ..at(url) }).await
}

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("ledger.db").display())
}

fn naming(id: &str) -> IdempotencyKey {
    let (name, owner) = (id.to_owned(), id.to_owned());
    IdempotencyKey { name, content: [1; 32], owner, life_ms: HOUR_MS }
}

/// Ends a call with a reply of so many bytes.
async fn end(store: &OpenStore, account: &AccountName, id: &str, bytes: usize) {
    let head = ReplyHead::new(200, Vec::new());
    let reply = ReplyParts { head, body: vec![b'x'; bytes].into() };
    assert_eq!(store.reply_store.complete(account, &naming(id), Some(reply)).await, Ok(true));
}

/// Whether the body of a call's reply is there; its name always is.
async fn is_there(store: &OpenStore, account: &AccountName, id: &str) -> bool {
    let asked = IdempotencyKey { owner: "another".to_owned(), ..naming(id) };
    match store
        .reply_store
        .claim_key(account, &asked, &ClaimMode::IfFree, LONG_MS)
        .await
        .expect("an answer")
    {
        ClaimResult::Replied(kept) => store
            .reply_store
            .read_piece(account, &kept.owner, 0)
            .await
            .expect("an answer")
            .is_some(),
        ClaimResult::ReplyNotStored { .. } => false,
        other => panic!("{id} would be paid for again: {other:?}"),
    }
}

async fn note(store: &OpenStore, account: &AccountName, name: &str, bytes: usize) {
    let note = Bytes::from(vec![b'n'; bytes]);
    let end = Instant::now() + PATIENCE;
    // A store of a fleet may have to make room first.
    while store.account_cache.put(account, &[name.to_owned()], note.clone(), HOUR_MS).await.is_err()
    {
        assert!(Instant::now() < end, "{name} is not kept");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn notes(store: &OpenStore, account: &AccountName, names: &[String]) -> Vec<bool> {
    let found = store.account_cache.get_many(account, names).await.expect("an answer");
    found.iter().map(Option::is_some).collect()
}

/// Waits until something is so.
async fn becomes(what: &str, is_so: impl AsyncFn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

async fn whoever_keeps_most_makes_room(store: &OpenStore) {
    let (greedy, modest) = (name("greedy"), name("modest"));
    let (own, theirs) = (numbered("own-", 3), numbered("theirs-", 100));
    for id in &own {
        end(store, &modest, id, 10 * KIB).await;
    }
    note(store, &modest, "thinking", 10 * KIB).await;
    for id in &theirs {
        end(store, &greedy, id, 64 * KIB).await;
    }
    for id in &own {
        assert!(is_there(store, &modest, id).await, "{id}");
    }
    assert_eq!(notes(store, &modest, &["thinking".to_owned()]).await, [true]);
    becomes("the first are still there", async || !is_there(store, &greedy, "theirs-0").await)
        .await;
    let mut left = 0;
    for id in &theirs {
        left += usize::from(is_there(store, &greedy, id).await);
    }
    assert!((1..=32).contains(&left), "{left} of 2 MiB");
    // There is room again.
    becomes("nothing is kept any more", async || {
        let id = format!("late-{:?}", Instant::now());
        end(store, &greedy, &id, 64 * KIB).await;
        is_there(store, &greedy, &id).await
    })
    .await;
}

async fn bodies_go_before_thinking_and_thinking_before_ids(store: &OpenStore) {
    let account = name("sorted");
    let (ids, thoughts) = (numbered(ID_PREFIX, 20), numbered("thinking:", 10));
    for id in &ids {
        note(store, &account, id, 200).await;
    }
    for thought in &thoughts[..4] {
        note(store, &account, thought, 100 * KIB).await;
    }
    for number in 0..60 {
        end(store, &account, &format!("call-{number}"), 60 * KIB).await;
    }
    becomes("call-0 is there", async || !is_there(store, &account, "call-0").await).await;
    assert_eq!(notes(store, &account, &thoughts[..4]).await, [true; 4]);
    // More than there is room for, even without any body.
    for number in 4..40 {
        note(store, &account, &format!("thinking:{number}"), 100 * KIB).await;
    }
    becomes("thinking:0 is there", async || !notes(store, &account, &thoughts[..1]).await[0]).await;
    assert_eq!(notes(store, &account, &["thinking:39".to_owned()]).await, [true]);
    assert!(!is_there(store, &account, "call-59").await);
    assert_eq!(notes(store, &account, &ids).await, [true; 20]);
}

#[tokio::test]
async fn one_account_filled_what_all_share_in_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = keeping(sqlite_url(folder.path()), 2 << 20).await;
    whoever_keeps_most_makes_room(&store).await;
    counts_are_true(folder.path(), 2 << 20);
    let folder = tempfile::tempdir().expect("a folder");
    let store = keeping(sqlite_url(folder.path()), 2 << 20).await;
    bodies_go_before_thinking_and_thinking_before_ids(&store).await;
    counts_are_true(folder.path(), 2 << 20);
}

/// What the file says that it keeps is what it keeps, and no more than it may.
fn counts_are_true(folder: &Path, most: i64) -> i64 {
    let file = Connection::open(folder.join("ledger.db")).expect("the file");
    let number = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number");
    let all = number("SELECT bytes FROM kept_all");
    assert_eq!(all, number("SELECT coalesce(sum(bytes), 0) FROM kept"));
    let bodies = number("SELECT coalesce(sum(length(body)), 0) FROM reply");
    let notes = number("SELECT coalesce(sum(length(body) + length(name)), 0) FROM note");
    assert_eq!(all, bodies + notes);
    assert!(all <= most, "{all} bytes of {most}");
    all
}

#[tokio::test]
async fn one_account_filled_what_all_share_in_redis() {
    let server = RedisServer::start();
    whoever_keeps_most_makes_room(&keeping(server.fresh_url(), 2 << 20).await).await;
    let store = keeping(server.fresh_url(), 2 << 20).await;
    bodies_go_before_thinking_and_thinking_before_ids(&store).await;
    let cluster = RedisServer::start_cluster();
    whoever_keeps_most_makes_room(&keeping(cluster.cluster_url(), 2 << 20).await).await;
}

/// Notes that are replaced, expired and dropped, and what a file had before anything was counted.
#[tokio::test]
async fn what_sqlite_keeps_was_counted_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, account) = (sqlite_url(folder.path()), name("counted"));
    let store = keeping(url.clone(), 1 << 20).await;
    for round in 0..5 {
        note(&store, &account, "again", 1_000 * round).await;
        note(&store, &account, &format!("thinking:{round}"), 100).await;
        end(&store, &account, &format!("call-{round}"), 100).await;
    }
    store
        .account_cache
        .put(&account, &["over".to_owned()], vec![1].into(), 0)
        .await
        .expect("taken");
    let all = counts_are_true(folder.path(), 1 << 20);
    store.ledger.expire_holds().await.expect("a sweep");
    assert!(counts_are_true(folder.path(), 1 << 20) < all);
    drop(store);

    let file = Connection::open(folder.path().join("ledger.db")).expect("the file");
    file.busy_timeout(PATIENCE).expect("a setting");
    let triggers = "SELECT group_concat('DROP TRIGGER ' || name, ';') FROM sqlite_schema
                    WHERE type = 'trigger' AND name LIKE 'kept%'";
    let drops: String = file.query_row(triggers, [], |row| row.get(0)).expect("triggers");
    let as_before = format!("{drops}; DROP TABLE kept; DROP TABLE kept_all");
    file.execute_batch(&as_before).expect("they were there");
    file.execute_batch("INSERT INTO note VALUES ('counted', 'older', 9223372036854775807, x'78')")
        .expect("as an older version writes it");
    let again = keeping(url, 1 << 20).await;
    note(&again, &account, "newer", 7).await;
    counts_are_true(folder.path(), 1 << 20);
}

/// The sum of a fleet is in a slot of its own, so words to it can be lost.
#[tokio::test]
async fn a_word_that_was_lost_made_the_sum_of_a_fleet_wrong_for_ever() {
    let server = RedisServer::start();
    let (store, account) = (keeping(server.url(), 1 << 20).await, name("told"));
    store.ledger.open_account(&account).await.expect("an account");
    end(&store, &account, "call", 50 * KIB).await;
    let total = || match server.command(&["GET", "tollgate:{:kept}:total"]) {
        redis::Value::BulkString(digits) => String::from_utf8(digits).expect("digits"),
        other => format!("{other:?}"),
    };
    becomes("it is told", async || total() == "51200").await;
    for wrong in ["7", "999999999"] {
        server.command(&["ZADD", "tollgate:{:kept}:accounts", wrong, "told"]);
        server.command(&["ZADD", "tollgate:{:kept}:accounts", wrong, "nobody"]);
        server.command(&["SET", "tollgate:{:kept}:total", "-12345"]);
        // A minute later.
        server.command(&["DEL", "tollgate:{:kept}:sweeping"]);
        store.ledger.expire_holds().await.expect("a sweep");
        // Its first goes through all accounts there are, the next through all that keep something.
        server.command(&["DEL", "tollgate:{:kept}:sweeping"]);
        store.ledger.expire_holds().await.expect("a sweep");
        assert_eq!(total(), "51200");
    }
    assert!(is_there(&store, &account, "call").await);
}

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

/// Keeps far more than a server has room for, and asks for a hold of somebody else's.
async fn hold_beside(server: &RedisServer, kept_bytes_max: u64) -> Result<Outcome, String> {
    let (store, other) = (keeping(server.url(), kept_bytes_max).await, name("other"));
    store.ledger.open_account(&other).await.expect("an account");
    let paid = Operation::Credit { tx: "t".to_owned(), amount: nano(100) };
    assert_eq!(store.ledger.submit(&other, paid).await, Ok(Outcome::Done));
    for number in 0..900 {
        let (account, id) = (name(&format!("greedy-{}", number % 3)), number.to_string());
        let head = ReplyHead::new(200, Vec::new());
        let reply = ReplyParts { head, body: vec![b'x'; 64 * KIB].into() };
        let ended = store.reply_store.complete(&account, &naming(&id), Some(reply)).await;
        assert_eq!(ended, Ok(true), "an end is taken by a full server too");
        let thought = Bytes::from(vec![b'n'; 64 * KIB]);
        // It may be refused.
        let _ = store.account_cache.put(&account, &[id], thought, HOUR_MS).await;
    }
    let (id, one) = ("h".to_owned(), nano(1));
    let hold = Operation::Hold {
        id,
        wanted: one,
        least: one,
        lease_ms: LONG_MS,
        key: None,
        rates: Vec::new(),
    };
    store.ledger.submit(&other, hold).await.map_err(|why| why.to_string())
}

#[tokio::test]
async fn a_redis_that_was_filled_with_replies_took_no_holds() {
    let small = ["--maxmemory", "48mb"];
    let unbounded = hold_beside(&RedisServer::start_with(&small), 1 << 40).await;
    assert!(unbounded.is_err_and(|why| why.contains("maxmemory")), "it would prove nothing");
    let bounded = hold_beside(&RedisServer::start_with(&small), 16 << 20).await;
    assert_eq!(bounded, Ok(Outcome::Held(nano(1))));
}
