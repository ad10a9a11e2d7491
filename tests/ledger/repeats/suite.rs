//! What every store must do with names and replies beyond the tables: times, sizes, bounds.

use rusqlite::Connection;
use tollgate::idempotency::{REPLIES_BYTES_MAX, StoredReply};
use tollgate::store::StoreSection;

use super::super::subject::{at, opened_as};

use super::*;

/// A time that runs out in the course of a test, and what surely is after its end.
const SHORT_MS: u64 = 40;
const SHORT_GONE: Duration = Duration::from_millis(60);
/// Longer than any sweep takes.
const GONE_WITHIN: Duration = Duration::from_secs(20);

async fn conforms(nodes: &[OpenStore; 2]) {
    a_name_lapses_with_its_time_and_is_kept_alive_by_renewal(nodes).await;
    a_name_is_remembered_for_its_life_and_not_longer(nodes).await;
    a_body_of_any_size_comes_back_byte_for_byte(nodes).await;
    any_text_is_a_name(nodes).await;
    a_body_that_is_written_twice_is_there_once(nodes).await;
}

/// Bytes that are different wherever two pieces could be mistaken for each other.
fn pattern(bytes: usize) -> Bytes {
    (0..=250).cycle().take(bytes).collect()
}

async fn take(
    repeats: &dyn ReplyStore,
    account: &AccountName,
    naming: &IdempotencyKey,
    ms: u64,
) -> ClaimResult {
    repeats.claim_key(account, naming, &ClaimMode::IfFree, ms).await.expect("an answer")
}

async fn a_name_lapses_with_its_time_and_is_kept_alive_by_renewal([one, other]: &[OpenStore; 2]) {
    let account = name("times");
    let (first, second) = (naming("n", "first"), naming("n", "second"));
    assert_eq!(take(&*one.reply_store, &account, &first, SHORT_MS).await, ClaimResult::Claimed);
    let began = Instant::now();
    let found = take(&*other.reply_store, &account, &second, SHORT_MS).await;
    // Else the machine was too busy for the question to mean anything.
    if began.elapsed() < Duration::from_millis(SHORT_MS / 2) {
        assert_eq!(found, ClaimResult::Running);
    }
    tokio::time::sleep(SHORT_GONE).await;
    let lapsed = ClaimResult::Expired { owner: "first".to_owned() };
    assert_eq!(take(&*other.reply_store, &account, &second, SHORT_MS).await, lapsed);
    assert_eq!(one.reply_store.renew_key(&account, "n", "first", LONG_MS).await, Ok(true));
    tokio::time::sleep(SHORT_GONE).await;
    assert_eq!(take(&*other.reply_store, &account, &second, SHORT_MS).await, ClaimResult::Running);
}

async fn a_name_is_remembered_for_its_life_and_not_longer([one, other]: &[OpenStore; 2]) {
    let account = name("lives");
    let short = |name: &str| IdempotencyKey { life_ms: SHORT_MS, ..naming(name, name) };
    let body_of = |account, owner| body(&*one.reply_store, account, owner);
    for (name, reply) in [("kept", Some(reply("hello"))), ("not-kept", None)] {
        assert_eq!(
            take(&*one.reply_store, &account, &short(name), SHORT_MS).await,
            ClaimResult::Claimed
        );
        assert_eq!(one.reply_store.complete(&account, &short(name), reply).await, Ok(true));
    }
    // A call that runs is remembered for longer than its own life, if that is kept alive.
    assert_eq!(take(&*one.reply_store, &account, &short("runs"), 1).await, ClaimResult::Claimed);
    assert_eq!(one.reply_store.renew_key(&account, "runs", "runs", LONG_MS).await, Ok(true));
    tokio::time::sleep(SHORT_GONE).await;
    assert_eq!(body_of(&account, "kept").await, Vec::<Bytes>::new());
    for name in ["kept", "not-kept"] {
        assert_eq!(
            take(&*other.reply_store, &account, &naming(name, "z"), 1).await,
            ClaimResult::Claimed
        );
    }
    let found = take(&*other.reply_store, &account, &naming("runs", "z"), 1).await;
    assert_eq!(found, ClaimResult::Running);
    // The end begins another life.
    let ending = naming("runs", "runs");
    assert_eq!(one.reply_store.complete(&account, &ending, Some(reply("long"))).await, Ok(true));
    tokio::time::sleep(SHORT_GONE).await;
    assert_eq!(body_of(&account, "runs").await.concat(), b"long");
}

async fn a_body_of_any_size_comes_back_byte_for_byte([one, other]: &[OpenStore; 2]) {
    let account = name("sizes");
    let sizes = [1, 65_536, 65_537, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1];
    for bytes in sizes.into_iter().chain([3 * PIECE_BYTES, 8 << 20]) {
        let naming = naming(&bytes.to_string(), &bytes.to_string());
        let written = pattern(bytes);
        assert_eq!(take(&*one.reply_store, &account, &naming, LONG_MS).await, ClaimResult::Claimed);
        let ended = one.reply_store.complete(&account, &naming, Some(reply(written.clone()))).await;
        assert_eq!(ended, Ok(true));
        let kept = StoredReply {
            owner: naming.owner.clone(),
            head: head(),
            bytes: written.len() as u64,
            body: None,
        };
        let found = take(&*other.reply_store, &account, &naming, LONG_MS).await;
        assert_eq!(found, ClaimResult::Replied(kept));
        let pieces = body(&*other.reply_store, &account, &naming.owner).await;
        assert_eq!(pieces.len(), bytes.div_ceil(PIECE_BYTES));
        assert!(pieces.iter().rev().skip(1).all(|piece| piece.len() == PIECE_BYTES));
        assert!(pieces.concat() == written, "{bytes}");
    }
}

async fn any_text_is_a_name([one, other]: &[OpenStore; 2]) {
    let account = name("texts");
    for text in ["{a}b", "*", "a b\r\n", "a:b", "ä\u{0}\"'", &"n".repeat(512)] {
        let naming = naming(text, "o");
        assert_eq!(
            take(&*one.reply_store, &account, &naming, LONG_MS).await,
            ClaimResult::Claimed,
            "{text}"
        );
        let stranger = IdempotencyKey { owner: "z".to_owned(), ..naming };
        assert_eq!(
            take(&*other.reply_store, &account, &stranger, LONG_MS).await,
            ClaimResult::Running
        );
    }
}

/// The answer to the first end was lost, so that it comes again.
async fn a_body_that_is_written_twice_is_there_once([one, other]: &[OpenStore; 2]) {
    let account = name("twice");
    let written = pattern(3 * PIECE_BYTES + 5);
    let naming = naming("n", "o");
    for node in [one, other] {
        let ended =
            node.reply_store.complete(&account, &naming, Some(reply(written.clone()))).await;
        assert_eq!(ended, Ok(true));
        assert!(body(&*other.reply_store, &account, "o").await.concat() == written);
    }
}

/// The answer to the first end was lost. What was kept then lived for as long as something whose
/// call has not ended, and whoever read it at that moment got a part.
#[tokio::test]
async fn a_reply_whose_end_came_twice_was_written_anew_and_lived_for_ten_minutes() {
    let server = RedisServer::start();
    let node = opened(&server.url()).await;
    let (account, naming) = (name("twice"), naming("n", "o"));
    let end = async || {
        let body = reply(pattern(3 * PIECE_BYTES + 5));
        assert_eq!(node.reply_store.complete(&account, &naming, Some(body)).await, Ok(true));
    };
    let key = "tollgate:{twice}:reply:o";
    let is_long = || match server.command(&["PTTL", key]) {
        redis::Value::Int(life_ms) => life_ms > 45 * 60 * 1_000,
        other => panic!("{other:?}"),
    };
    end().await;
    assert!(is_long());
    server.command(&["SETRANGE", key, "7", "mark"]);
    end().await;
    assert!(is_long());
    assert_eq!(&body(&*node.reply_store, &account, "o").await.concat()[7..11], b"mark");
    // A server that lost it has it again, for as long.
    server.command(&["DEL", key]);
    end().await;
    assert!(is_long());
    assert!(body(&*node.reply_store, &account, "o").await.concat() == pattern(3 * PIECE_BYTES + 5));
}

#[tokio::test]
async fn sqlite_keeps_replies() {
    let folder = tempfile::tempdir().expect("a folder");
    conforms(&two(&sqlite_url(folder.path())).await).await;
}

#[tokio::test]
async fn redis_keeps_replies() {
    conforms(&two(&RedisServer::shared().fresh_url()).await).await;
}

#[tokio::test]
async fn a_redis_cluster_keeps_replies() {
    let node = RedisServer::start_cluster();
    conforms(&two(&node.cluster_url()).await).await;
}

/// A store that has room for more than an account may have.
async fn roomy(url: String) -> OpenStore {
    opened_as(&StoreSection { kept_bytes_max: 1 << 30, ..at(url) }).await
}

/// Ends calls with replies of 8 MiB until they are not kept any more; tells how many were.
async fn fill(repeats: &dyn ReplyStore, account: &AccountName, life_ms: u64) -> u64 {
    let large = Bytes::from(vec![7; 8 << 20]);
    for number in 0.. {
        let id = format!("o{number}");
        let naming = IdempotencyKey { life_ms, ..naming(&id, &id) };
        let ended = repeats.complete(account, &naming, Some(reply(large.clone()))).await;
        assert_eq!(ended, Ok(true));
        if take(repeats, account, &naming, LONG_MS).await
            == (ClaimResult::ReplyNotStored { owner: naming.owner.clone() })
        {
            assert_eq!(body(repeats, account, &id).await, Vec::<Bytes>::new());
            return number;
        }
    }
    unreachable!("there is a bound")
}

async fn an_account_keeps_so_much_and_no_more(node: &OpenStore) {
    let (account, repeats) = (name("full"), &*node.reply_store);
    assert_eq!(fill(repeats, &account, LONG_MS).await, REPLIES_BYTES_MAX / (8 << 20));
    // Others have room of their own.
    let naming = naming("n", "o");
    let beside = name("beside");
    assert_eq!(repeats.complete(&beside, &naming, Some(reply("hello"))).await, Ok(true));
    let found = take(repeats, &beside, &naming, LONG_MS).await;
    assert!(matches!(found, ClaimResult::Replied(_)), "{found:?}");
}

#[tokio::test]
async fn sqlite_keeps_so_many_replies_of_an_account_and_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    an_account_keeps_so_much_and_no_more(&roomy(sqlite_url(folder.path())).await).await;
}

#[tokio::test]
async fn redis_keeps_so_many_replies_of_an_account_and_no_more() {
    let server = RedisServer::start();
    an_account_keeps_so_much_and_no_more(&roomy(server.fresh_url()).await).await;
}

/// Some calls whose names and replies will be over soon.
async fn passing(repeats: &dyn ReplyStore) {
    let account = name("passing");
    for number in 0..50 {
        let id = format!("o{number}");
        let naming = IdempotencyKey { life_ms: SHORT_MS, ..naming(&id, &id) };
        take(repeats, &account, &naming, 1).await;
        let bytes = if number == 7 { 5 * PIECE_BYTES } else { 1_000 };
        let body = Some(reply(vec![0; bytes]));
        assert_eq!(repeats.complete(&account, &naming, body).await, Ok(true));
    }
}

#[tokio::test]
async fn sqlite_forgets_what_is_over_and_counts_it_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = opened(&sqlite_url(folder.path())).await;
    passing(&*node.reply_store).await;
    let lasting = naming("lasting", "lasting");
    let ended = node.reply_store.complete(&name("passing"), &lasting, Some(reply("hello"))).await;
    assert_eq!(ended, Ok(true));
    tokio::time::sleep(SHORT_GONE).await;
    node.ledger.expire_holds().await.expect("a sweep");
    let file = Connection::open(folder.path().join("ledger.db")).expect("the file");
    let count = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a count");
    assert_eq!(count("SELECT count(*) FROM repeat"), 1);
    assert_eq!(count("SELECT count(*) FROM reply"), 1);
    assert_eq!(count("SELECT bytes FROM replies"), 5);
}

#[tokio::test]
async fn redis_forgets_what_is_over_and_counts_it_no_more() {
    let server = RedisServer::start();
    let node = opened(&server.url()).await;
    passing(&*node.reply_store).await;
    let keys = || format!("{:?}", server.command(&["KEYS", "*"]));
    let end = Instant::now() + GONE_WITHIN;
    while keys().contains("repeat:") || keys().contains("reply:") {
        assert!(Instant::now() < end, "{}", keys());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let lasting = naming("lasting", "lasting");
    let ended = node.reply_store.complete(&name("passing"), &lasting, Some(reply("hello"))).await;
    assert_eq!(ended, Ok(true));
    let total = server.command(&["GET", "tollgate:{passing}:replies-bytes"]);
    assert_eq!(total, redis::Value::BulkString(b"5".to_vec()));
    let counted = server.command(&["ZCARD", "tollgate:{passing}:replies"]);
    assert_eq!(counted, redis::Value::Int(1));
}
