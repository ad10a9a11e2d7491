//! Notes: the same on every store, within bounds, and in nobody's way.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::Connection;
use tollgate::kv_cache::{
    AccountCache, CacheRefusal, ENTRY_BYTES_MAX, ID_PREFIX, IDS_MAX, LOOKUP_BYTES_MAX,
    NAME_BYTES_MAX, OTHER_ENTRIES_MAX,
};
use tollgate::ledger::{AccountName, Ledger, Operation, Outcome, Unavailable};
use tollgate::money::Money;
use tollgate::store::{self, OpenStore};

use super::redis_server::RedisServer;
use super::script::{LONG_MS, settle};
use super::subject::{at, name, opened};

const HOUR_MS: u64 = 60 * 60 * 1_000;
/// Longer than any test waits, shorter than a note that is to stay.
const GONE_WITHIN: Duration = Duration::from_secs(20);

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", file(folder).display())
}

fn file(folder: &Path) -> std::path::PathBuf {
    folder.join("ledger.db")
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

async fn keep(notes: &dyn AccountCache, account: &AccountName, name: &str, text: &str) {
    notes.put(account, &[name.to_owned()], bytes(text), HOUR_MS).await.expect("it is kept");
}

/// What is found, in words; `-` where there is nothing.
async fn found(notes: &dyn AccountCache, account: &AccountName, names: &[&str]) -> String {
    let found = find(notes, account, names).await.expect("an answer");
    let word = |note: &Option<Bytes>| {
        note.as_ref().map_or("-".to_owned(), |n| String::from_utf8_lossy(n).into_owned())
    };
    found.iter().map(word).collect::<Vec<_>>().join(" ")
}

async fn find(
    notes: &dyn AccountCache,
    account: &AccountName,
    names: &[&str],
) -> Result<Vec<Option<Bytes>>, Unavailable> {
    let names: Vec<String> = names.iter().copied().map(str::to_owned).collect();
    notes.get_many(account, &names).await
}

/// Waits until a note is gone; tells how long that took.
async fn gone(notes: &dyn AccountCache, account: &AccountName, name: &str) -> Duration {
    let asked = Instant::now();
    while found(notes, account, &[name]).await != "-" {
        assert!(asked.elapsed() < GONE_WITHIN, "{name} does not go");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    asked.elapsed()
}

async fn answers_come_in_the_order_of_the_names(notes: &dyn AccountCache) {
    let account = name("order");
    assert_eq!(find(notes, &account, &[]).await, Ok(vec![]));
    assert_eq!(find(notes, &account, &["a", "b"]).await, Ok(vec![None, None]));
    for (name, text) in [("a", "one"), ("b", "two"), ("c", "three")] {
        keep(notes, &account, name, text).await;
    }
    assert_eq!(found(notes, &account, &["c", "nobody", "a", "b"]).await, "three - one two");
    assert_eq!(found(notes, &account, &["b", "a", "b", "z", "b"]).await, "two one two - two");
    // More than are looked up at once.
    let many: Vec<String> = (0..100).map(|n| format!("many-{n}")).collect();
    for name in many.iter().step_by(3) {
        keep(notes, &account, name, name).await;
    }
    let all = notes.get_many(&account, &many).await.expect("an answer");
    let expected = |(n, name): (usize, &String)| n.is_multiple_of(3).then(|| bytes(name));
    assert_eq!(all, many.iter().enumerate().map(expected).collect::<Vec<_>>());
}

async fn the_last_of_a_name_counts(notes: &dyn AccountCache) {
    let account = name("again");
    for text in ["first", "", "third, which is longer"] {
        keep(notes, &account, "a", text).await;
        keep(notes, &account, "b", "other").await;
        assert_eq!(found(notes, &account, &["a", "b"]).await, format!("{text} other"));
    }
}

async fn a_note_may_have_several_names(notes: &dyn AccountCache) {
    let account = name("several-names");
    keep(notes, &account, "b", "old").await;
    let names = ["a", "b", "c"].map(str::to_owned);
    notes.put(&account, &names, bytes("new"), HOUR_MS).await.expect("it is kept");
    assert_eq!(found(notes, &account, &["a", "b", "c", "d"]).await, "new new new -");
    notes.put(&account, &[], bytes("none"), HOUR_MS).await.expect("it is taken");
    notes.put(&account, &names[..2], bytes("x"), 0).await.expect("it is taken");
    assert_eq!(found(notes, &account, &["a", "b", "c"]).await, "- - new");
    let long = [names[2].clone(), "n".repeat(NAME_BYTES_MAX + 1)];
    let refused = notes.put(&account, &long, bytes("x"), HOUR_MS).await;
    assert_eq!(refused, Err(CacheRefusal::TooLarge));
    assert_eq!(found(notes, &account, &["c"]).await, "new");
}

async fn accounts_do_not_see_each_other(notes: &dyn AccountCache) {
    let [one, other, like] = ["one", "other", "one.a"].map(name);
    keep(notes, &one, "a", "of-one").await;
    keep(notes, &other, "a", "of-other").await;
    keep(notes, &one, "b", "of-one-too").await;
    assert_eq!(found(notes, &one, &["a", "b"]).await, "of-one of-one-too");
    assert_eq!(found(notes, &other, &["a", "b"]).await, "of-other -");
    assert_eq!(found(notes, &like, &["a", "b", ""]).await, "- - -");
}

async fn any_text_is_a_name(notes: &dyn AccountCache) {
    let account = name("names");
    let longest = "n".repeat(NAME_BYTES_MAX);
    let names = [
        "toolu_01A-z",
        "TOOLU_01A-Z",
        "",
        " ",
        "a b\r\nc",
        "a\0b",
        "a\0c",
        "{x}",
        "}{",
        "*",
        "?",
        "[a]",
        "a:b",
        "%",
        "_",
        "'; DROP TABLE note; --",
        "\"",
        "\\",
        "ä",
        "a\u{308}",
        "\u{1f980}",
        &longest,
    ];
    for (n, name) in names.iter().enumerate() {
        keep(notes, &account, name, &n.to_string()).await;
    }
    let expected: Vec<String> = (0..names.len()).map(|n| n.to_string()).collect();
    assert_eq!(found(notes, &account, &names).await, expected.join(" "));
    let too_long = format!("{longest}n");
    let refused = notes.put(&account, std::slice::from_ref(&too_long), bytes("x"), HOUR_MS).await;
    assert_eq!(refused, Err(CacheRefusal::TooLarge));
    assert_eq!(found(notes, &account, &[&too_long, "%"]).await, "- 13");
}

async fn a_note_has_any_bytes_up_to_its_bound(notes: &dyn AccountCache) {
    let account = name("sizes");
    let of = |size: usize| (0..=255).cycle().take(size).collect::<Bytes>();
    for size in [0, 1, 256, ENTRY_BYTES_MAX - 1, ENTRY_BYTES_MAX] {
        notes.put(&account, &["a".to_owned()], of(size), HOUR_MS).await.expect("it is kept");
        assert_eq!(find(notes, &account, &["a"]).await, Ok(vec![Some(of(size))]), "{size}");
    }
    let refused = notes.put(&account, &["a".to_owned()], of(ENTRY_BYTES_MAX + 1), HOUR_MS).await;
    assert_eq!(refused, Err(CacheRefusal::TooLarge));
    assert_eq!(find(notes, &account, &["a"]).await, Ok(vec![Some(of(ENTRY_BYTES_MAX))]));
}

/// One answer is bounded, however many notes there are and however often one is asked for.
async fn an_answer_has_its_bound_too(notes: &dyn AccountCache) {
    let account = name("answers");
    let note = Bytes::from(vec![b'x'; ENTRY_BYTES_MAX]);
    let count = LOOKUP_BYTES_MAX / ENTRY_BYTES_MAX + 20;
    let names: Vec<String> = (0..count).map(|n| format!("n{n}")).collect();
    for name in &names {
        notes
            .put(&account, std::slice::from_ref(name), note.clone(), HOUR_MS)
            .await
            .expect("it is kept");
    }
    let all = notes.get_many(&account, &names).await.expect("an answer");
    assert_eq!(all.len(), count);
    let there = all.iter().take_while(|note| note.is_some()).count();
    assert!((count - 20..count).contains(&there), "{there} of {count}");
    assert!(all[there..].iter().all(Option::is_none), "one of the rest is there");
    assert_eq!(
        notes.get_many(&account, &names[there..]).await,
        Ok(vec![Some(note); count - there])
    );
    // The same bytes a thousand times, not a thousand copies.
    let again = notes.get_many(&account, &vec!["n0".to_owned(); 1_000]).await.expect("an answer");
    let first = again[0].as_ref().expect("it is there").as_ptr();
    assert!(again.iter().all(|note| note.as_ref().is_some_and(|n| n.as_ptr() == first)));
}

async fn a_note_lives_as_long_as_it_was_told(notes: &dyn AccountCache) {
    let account = name("lives");
    let kept = Instant::now();
    notes.put(&account, &["long".to_owned()], bytes("l"), HOUR_MS).await.expect("it is kept");
    notes.put(&account, &["short".to_owned()], bytes("s"), 400).await.expect("it is kept");
    notes.put(&account, &["longer".to_owned()], bytes("l"), 400).await.expect("it is kept");
    notes.put(&account, &["longer".to_owned()], bytes("m"), HOUR_MS).await.expect("it is kept");
    notes.put(&account, &["shorter".to_owned()], bytes("s"), HOUR_MS).await.expect("it is kept");
    notes.put(&account, &["shorter".to_owned()], bytes("t"), 400).await.expect("it is kept");
    notes.put(&account, &["ever".to_owned()], bytes("e"), u64::MAX).await.expect("it is kept");
    let (short, shorter) = tokio::join!(
        async {
            gone(notes, &account, "short").await;
            kept.elapsed()
        },
        async {
            gone(notes, &account, "shorter").await;
            kept.elapsed()
        },
    );
    // The store's clock is not this one; both tell milliseconds.
    let early = Duration::from_millis(395);
    assert!(short >= early && shorter >= early, "gone after {short:?} and {shorter:?}");
    let names = ["long", "short", "longer", "shorter", "ever"];
    assert_eq!(found(notes, &account, &names).await, "l - m - e");
    keep(notes, &account, "short", "back").await;
    assert_eq!(found(notes, &account, &["short"]).await, "back");
    notes.put(&account, &["long".to_owned()], bytes("no life"), 0).await.expect("it is taken");
    notes.put(&account, &["never".to_owned()], bytes("no life"), 0).await.expect("it is taken");
    assert_eq!(found(notes, &account, &["long", "never", "longer"]).await, "- - m");
}

/// What every store must do.
async fn conforms(opened: &OpenStore) {
    let notes = &*opened.account_cache;
    answers_come_in_the_order_of_the_names(notes).await;
    the_last_of_a_name_counts(notes).await;
    a_note_may_have_several_names(notes).await;
    accounts_do_not_see_each_other(notes).await;
    any_text_is_a_name(notes).await;
    a_note_has_any_bytes_up_to_its_bound(notes).await;
    an_answer_has_its_bound_too(notes).await;
    a_note_lives_as_long_as_it_was_told(notes).await;
    // Notes are no accounts.
    assert_eq!(opened.ledger.list_accounts().await, Ok(vec![]));
}

#[tokio::test]
async fn sqlite_keeps_notes() {
    let folder = tempfile::tempdir().expect("a folder");
    conforms(&opened(&sqlite_url(folder.path())).await).await;
}

#[tokio::test]
async fn redis_keeps_notes() {
    conforms(&opened(&RedisServer::shared().fresh_url()).await).await;
}

#[tokio::test]
async fn a_redis_cluster_keeps_notes() {
    let node = RedisServer::start_cluster();
    conforms(&opened(&node.cluster_url()).await).await;
}

#[tokio::test]
async fn a_master_behind_sentinel_keeps_notes() {
    let master = RedisServer::start();
    let sentinel = RedisServer::start_sentinel(&master);
    let url = format!("redis-sentinel://127.0.0.1:{}/mymaster", sentinel.port());
    conforms(&opened(&url).await).await;
}

#[tokio::test]
async fn nodes_of_a_fleet_find_each_others_notes() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = RedisServer::shared();
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        let section = at(url.clone());
        let (one, other) = (
            opened(&url).await.account_cache,
            store::open_lazily(&section).expect("it opens").account_cache,
        );
        let account = name("fleet");
        for round in 0..50 {
            keep(&*one, &account, "a", &format!("one-{round}")).await;
            assert_eq!(found(&*other, &account, &["a"]).await, format!("one-{round}"), "{url}");
            keep(&*other, &account, "a", &format!("other-{round}")).await;
            assert_eq!(found(&*one, &account, &["a"]).await, format!("other-{round}"), "{url}");
        }
    }
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

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

async fn funded(ledger: &dyn Ledger, account: &AccountName, credit: i64) {
    assert_eq!(ledger.open_account(account).await, Ok(true));
    let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(credit) };
    assert_eq!(ledger.submit(account, credit).await, Ok(Outcome::Done));
}

/// Calls and notes at once, by turns on the one store and the other.
async fn calls_and_notes_do_not_disturb_each_other(stores: [OpenStore; 2]) {
    let account = name("crowd");
    funded(&*stores[0].ledger, &account, 100_000).await;
    let mut tasks = tokio::task::JoinSet::new();
    for (n, store) in (0..120).zip(stores.iter().cycle()) {
        let (OpenStore { ledger, account_cache, .. }, account) = (store.clone(), account.clone());
        tasks.spawn(async move {
            let (id, own) = (format!("h{n}"), format!("own-{n}"));
            assert_eq!(ledger.submit(&account, hold(&id)).await, Ok(Outcome::Held(nano(10))));
            let large = Bytes::from(vec![b'a' + u8::try_from(n % 26).expect("a letter"); 50_000]);
            let names = ["shared".to_owned()];
            let (kept, shared, posted) = tokio::join!(
                account_cache.put(&account, std::slice::from_ref(&own), large.clone(), HOUR_MS),
                account_cache.put(&account, &names, large.clone(), HOUR_MS),
                ledger.submit(&account, settle(&id, nano(7))),
            );
            assert_eq!((kept, shared), (Ok(()), Ok(())));
            assert_eq!(posted, Ok(Outcome::Posted { amount: nano(7), written_off: Money::ZERO }));
            let both = find(&*account_cache, &account, &[&own, "shared"]).await.expect("an answer");
            assert_eq!(both[0], Some(large));
            let shared = both[1].as_ref().expect("somebody's");
            assert!(shared.len() == 50_000 && shared.iter().all(|b| *b == shared[0]), "torn");
        });
    }
    tasks.join_all().await;
    let balances = stores[1].ledger.balances(&account).await.expect("balances").expect("some");
    assert!(balances.is_balanced(), "{balances:?}");
    assert_eq!((balances.posted, balances.held), (nano(840), Money::ZERO));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_and_notes_at_once_on_both_stores() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = RedisServer::shared();
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        let stores = [opened(&url).await, opened(&url).await];
        calls_and_notes_do_not_disturb_each_other(stores).await;
    }
}

fn rows(folder: &Path) -> usize {
    let beside = Connection::open(file(folder)).expect("the file");
    let count = beside.query_row("SELECT count(*) FROM note", [], |row| row.get::<_, i64>(0));
    usize::try_from(count.expect("a number")).expect("no negative one")
}

#[tokio::test]
async fn notes_outlive_the_store_that_took_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, account) = (sqlite_url(folder.path()), name("lasting"));
    let first = opened(&url).await;
    keep(&*first.account_cache, &account, "a", "one").await;
    drop(first);
    for _ in 0..3 {
        let again = opened(&url).await;
        assert_eq!(found(&*again.account_cache, &account, &["a", "b"]).await, "one -");
    }
}

#[tokio::test]
async fn a_file_from_before_there_were_notes_opens() {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, account) = (sqlite_url(folder.path()), name("old"));
    funded(&*opened(&url).await.ledger, &account, 100).await;
    let beside = Connection::open(file(folder.path())).expect("the file");
    beside.busy_timeout(GONE_WITHIN).expect("a setting");
    let later = "DROP TABLE note; DROP TABLE video_body; DROP TABLE video; DROP TABLE secret;
                 DROP TABLE repeat; DROP TABLE replies; DROP TABLE reply; DROP TABLE kept;
                 DROP TABLE kept_all; DROP TABLE store_id; DROP TABLE lending;
                 DROP TABLE allotment; DROP TABLE allotment_call;
                 DROP TABLE allotment_call_budget; DROP TABLE budget;
                 DROP TABLE budget_window; DROP TABLE hold_budget; DROP TABLE restricted_key;
                 DROP TABLE key_revision; DROP TABLE rate_buckets; DROP TABLE hold_rate;
                 DROP TABLE account_setting; DROP TABLE correction_line;
                 DROP TABLE credit_lot; DROP TABLE hold_lots; DROP TABLE credit_grant;
                 DROP TABLE correction_lots; DROP TABLE expiry_line;
                 DROP TABLE transfer; DROP TABLE operator; DROP TABLE audit;
                 DROP TABLE operator_request; DROP TABLE sign_in;
                 DROP TABLE usage_due; DROP TABLE usage_fold; DROP TABLE journal_hour;
                 DROP TABLE usage_rollup; DROP TABLE statement;
                 DROP TABLE archived_day; DROP TABLE journal_base; DROP TABLE archive_turn;
                 DROP TABLE key_use; DROP TABLE deleted_account; DROP TABLE webhook;
                 DROP INDEX access_key_of; DROP INDEX payment_time";
    beside.execute_batch(later).expect("they were there");
    let tables = "SELECT group_concat(name, ' ' ORDER BY name) FROM sqlite_schema
                  WHERE name NOT LIKE 'sqlite_%'";
    let left: String = beside.query_row(tables, [], |row| row.get(0)).expect("names");
    assert_eq!(left, "access_key account hold hold_open journal open_hold payment");

    // The old version may still be at work on it.
    let new = opened(&url).await;
    keep(&*new.account_cache, &account, "a", "one").await;
    assert_eq!(found(&*new.account_cache, &account, &["a"]).await, "one");
    let balances = new.ledger.balances(&account).await.expect("balances").expect("the account");
    assert_eq!(balances.available, nano(100));
    assert_eq!(new.ledger.submit(&account, hold("a")).await, Ok(Outcome::Held(nano(10))));
    drop(beside);
}

#[tokio::test]
async fn an_account_has_so_many_notes_and_the_first_to_expire_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = opened(&sqlite_url(folder.path())).await;
    let (notes, full, other) = (&*store.account_cache, name("full"), name("other"));
    // Sooner gone than all others, but not in their account.
    notes.put(&other, &["n7".to_owned()], bytes("other"), HOUR_MS / 2).await.expect("it is kept");
    let most = u64::try_from(OTHER_ENTRIES_MAX).expect("a small number");
    // The later, the sooner they expire: what goes is not what came first.
    for n in 0..most {
        let kept = notes.put(&full, &[format!("n{n}")], bytes("x"), HOUR_MS - n * 1_000).await;
        assert_eq!(kept, Ok(()));
    }
    let last = format!("n{}", most - 1);
    // Replacing takes no room.
    keep(notes, &full, "n5", "y").await;
    assert_eq!(found(notes, &full, &["n0", "n5", &last]).await, "x y x");
    for more in ["more-1", "more-2", "more-3"] {
        keep(notes, &full, more, "m").await;
    }
    let names: Vec<String> = (0..most).map(|n| format!("n{n}")).collect();
    let there = notes.get_many(&full, &names).await.expect("an answer");
    let left = there.iter().take_while(|note| note.is_some()).count();
    // A few go at once, and always those that expire first.
    assert!((OTHER_ENTRIES_MAX - 50..=OTHER_ENTRIES_MAX - 3).contains(&left), "{left} are left");
    assert!(there[left..].iter().all(Option::is_none), "not those that expire first went");
    assert_eq!(found(notes, &full, &["more-1", "more-2", "more-3"]).await, "m m m");
    assert_eq!(found(notes, &other, &["n7"]).await, "other");
    assert_eq!(rows(folder.path()), left + 3 + 1);
    // Replacing one and the same takes no room either, however often.
    for _ in 0..2 * OTHER_ENTRIES_MAX {
        keep(notes, &full, "n5", "z").await;
    }
    assert_eq!(rows(folder.path()), left + 3 + 1);
    for n in 0..2 * OTHER_ENTRIES_MAX {
        keep(notes, &full, &format!("later-{n}"), "l").await;
        assert_eq!(found(notes, &full, &[&format!("later-{n}")]).await, "l");
    }
    let all = rows(folder.path()) - 1;
    assert!((OTHER_ENTRIES_MAX - 50..=OTHER_ENTRIES_MAX).contains(&all), "{all} notes");
}

/// Ids are many and small, and live long: what a model thought must not make room for them.
#[tokio::test]
async fn ids_and_other_notes_do_not_make_room_for_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = opened(&sqlite_url(folder.path())).await;
    let (notes, account) = (&*store.account_cache, name("shelves"));
    keep(notes, &account, "thinking:a", "a").await;
    let ids: Vec<String> = (0..IDS_MAX).map(|n| format!("{ID_PREFIX}{n}")).collect();
    for some in ids.chunks(5_000) {
        notes.put(&account, some, bytes("1"), 2 * HOUR_MS).await.expect("they are kept");
    }
    assert_eq!(rows(folder.path()), IDS_MAX + 1);
    keep(notes, &account, "given:new", "2").await;
    assert!((IDS_MAX - 50..IDS_MAX).contains(&rows(folder.path())));
    for n in 0..OTHER_ENTRIES_MAX {
        keep(notes, &account, &format!("thinking:{n}"), "x").await;
    }
    let last = ids[IDS_MAX - 1].as_str();
    assert_eq!(found(notes, &account, &[last, "given:new", "thinking:a"]).await, "1 2 -");
}

#[tokio::test]
async fn a_new_note_is_found_however_full_the_account_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = opened(&sqlite_url(folder.path())).await;
    let (notes, together) = (&*store.account_cache, name("together"));
    let beside = Connection::open(file(folder.path())).expect("the file");
    beside.busy_timeout(GONE_WITHIN).expect("a setting");
    let thousand = "WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n LIMIT 1000)
                    INSERT INTO note
                    SELECT 'together', 'n' || n, 9223372036854775807, x'78' FROM n";
    beside.execute_batch(thousand).expect("a full account");
    // Of those that expire together the oldest go.
    notes.put(&together, &["new".to_owned()], bytes("new"), u64::MAX).await.expect("it is kept");
    assert_eq!(found(notes, &together, &["n0", "n1", "n999", "new"]).await, "- - x new");
    // It expires long before all others.
    for n in 0..200 {
        keep(notes, &together, &format!("soon-{n}"), "s").await;
        assert_eq!(found(notes, &together, &[&format!("soon-{n}")]).await, "s");
        assert!(rows(folder.path()) <= OTHER_ENTRIES_MAX);
    }
}

/// Each process counts what it writes itself.
#[tokio::test]
async fn an_account_has_no_more_notes_for_several_that_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, account) = (sqlite_url(folder.path()), name("several"));
    let stores = [opened(&url).await, opened(&url).await];
    // In turns, and each for a while.
    for (n, store) in (0..OTHER_ENTRIES_MAX).zip(stores.iter().cycle()) {
        keep(&*store.account_cache, &account, &format!("turn-{n}"), "x").await;
    }
    for (s, store) in stores.iter().enumerate() {
        for n in 0..100 {
            keep(&*store.account_cache, &account, &format!("while-{s}-{n}"), "x").await;
            assert!(rows(folder.path()) <= OTHER_ENTRIES_MAX);
        }
    }
}

#[tokio::test]
async fn sweeps_delete_notes_whose_time_has_come_and_no_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = opened(&sqlite_url(folder.path())).await;
    let (notes, account) = (&*store.account_cache, name("swept"));
    for n in 0..150 {
        let life_ms = if n % 3 == 0 { HOUR_MS } else { 0 };
        notes.put(&account, &[format!("n{n}")], bytes("x"), life_ms).await.expect("it is taken");
    }
    assert_eq!(rows(folder.path()), 150);
    assert_eq!(found(notes, &account, &["n0", "n1", "n2", "n3"]).await, "x - - x");
    assert_eq!(store.ledger.expire_holds().await.expect("a sweep").expired, 0);
    assert_eq!(rows(folder.path()), 50);
    assert_eq!(found(notes, &account, &["n0", "n1", "n2", "n3"]).await, "x - - x");
}

/// The writer does all waiting operations in one transaction; a note is not worth a charge.
#[tokio::test]
async fn a_note_that_cannot_be_written_fails_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = opened(&sqlite_url(folder.path())).await;
    let account = name("neighbour");
    funded(&*store.ledger, &account, 1_000).await;
    let beside = Connection::open(file(folder.path())).expect("the file");
    let broken = "CREATE TRIGGER broken BEFORE INSERT ON note WHEN new.name LIKE 'bad%'
                  BEGIN SELECT RAISE(ABORT, 'broken on purpose'); END";
    beside.execute_batch(broken).expect("a trigger");
    for n in 0..40 {
        let (id, good, bad) = (format!("h{n}"), format!("good-{n}"), format!("bad-{n}"));
        let (held, good, bad) = tokio::join!(
            store.ledger.submit(&account, hold(&id)),
            store.account_cache.put(&account, std::slice::from_ref(&good), bytes("g"), HOUR_MS),
            store.account_cache.put(&account, std::slice::from_ref(&bad), bytes("b"), HOUR_MS),
        );
        assert_eq!((held, good), (Ok(Outcome::Held(nano(10))), Ok(())));
        let Err(CacheRefusal::Unavailable(why)) = bad else { panic!("{bad:?}") };
        assert!(why.to_string().contains("broken on purpose"), "{why}");
    }
    assert_eq!(
        found(&*store.account_cache, &account, &["good-0", "bad-0", "good-39"]).await,
        "g - g"
    );
}

/// Whoever looks for notes needs no turn of the writer's.
#[tokio::test]
async fn notes_are_found_while_somebody_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = opened(&sqlite_url(folder.path())).await;
    let account = name("reader");
    keep(&*store.account_cache, &account, "a", "one").await;
    let beside = Connection::open(file(folder.path())).expect("the file");
    beside.execute_batch("BEGIN IMMEDIATE").expect("the writer's turn");
    let waiting = store.ledger.submit(&account, hold("a"));
    let (mut waiting, asked) = (std::pin::pin!(waiting), Instant::now());
    tokio::select! {
        biased;
        answer = &mut waiting => panic!("{answer:?} while another process writes"),
        found = found(&*store.account_cache, &account, &["a"]) => assert_eq!(found, "one"),
    }
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    beside.execute_batch("COMMIT").expect("the end of it");
    assert_eq!(waiting.await, Ok(Outcome::NoAccount));
}

#[tokio::test]
async fn a_full_redis_keeps_no_notes_and_still_finds_them() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    let account = name("full");
    keep(&*store.account_cache, &account, "a", "one").await;
    server.command(&["SET", "ballast", &"x".repeat(1 << 20)]);
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    for _ in 0..3 {
        let refused =
            store.account_cache.put(&account, &["b".to_owned()], bytes("two"), HOUR_MS).await;
        let Err(CacheRefusal::Unavailable(why)) = refused else { panic!("{refused:?}") };
        assert!(why.to_string().contains("maxmemory"), "{why}");
    }
    assert_eq!(found(&*store.account_cache, &account, &["a", "b"]).await, "one -");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    keep(&*store.account_cache, &account, "b", "two").await;
    assert_eq!(found(&*store.account_cache, &account, &["a", "b"]).await, "one two");
}

#[tokio::test]
async fn notes_wait_for_a_redis_that_is_gone_no_longer_than_calls_do() {
    let mut server = RedisServer::start();
    let store = opened(&server.url()).await;
    let account = name("gone");
    keep(&*store.account_cache, &account, "a", "one").await;
    server.stop();
    let asked = Instant::now();
    let refused = store.account_cache.put(&account, &["b".to_owned()], bytes("two"), HOUR_MS).await;
    assert!(matches!(refused, Err(CacheRefusal::Unavailable(_))), "{refused:?}");
    find(&*store.account_cache, &account, &["a"]).await.expect_err("it is gone");
    assert!(asked.elapsed() < Duration::from_secs(6), "{:?}", asked.elapsed());
    assert!(server.start_again(), "Redis does not start again");
    let asked = Instant::now();
    while store.ledger.ping().await.is_err() {
        assert!(asked.elapsed() < GONE_WITHIN, "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    keep(&*store.account_cache, &account, "b", "two").await;
    assert_eq!(found(&*store.account_cache, &account, &["b"]).await, "two");
}
