//! Rate limits in a file: what two processes share, what a restart keeps, and what is given back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use rstest::rstest;
use rusqlite::Connection;
use tollgate::jobs::{Job, NewJob, PlaceResult};
use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::rate::RateDemand;
use tollgate::ledger::prepaid::records::AllotmentId;
use tollgate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
use tollgate::ledger::{
    AccountName, BudgetOwner, KeyId, Ledger, Operation, Outcome, RateAsk, RateId, RateKind,
    RateLimit, RateReading,
};
use tollgate::money::Money;
use tollgate::money::price::Quote;
use tollgate::store::sqlite::SqliteStore;

use super::queue;
use super::script::{LONG_MS, SHORT_MS, now, settle};
use super::subject::{name, open, opened};

const KEY: KeyId = KeyId(7);
/// What each hold has.
const HELD: i64 = 10;
/// One unit in a bucket.
const UNIT: i64 = 60_000;
const HOUR_MS: i64 = 3_600_000;
/// What there is of limits: buckets, asks of holds, and slices of allotments.
const ALL: [&str; 3] =
    ["rate_buckets, json_each(buckets)", "hold_rate", "allotment, json_each(rates)"];

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

fn file(folder: &Path) -> PathBuf {
    folder.join("ledger.db")
}

fn url(folder: &Path) -> String {
    format!("sqlite:{}", file(folder).display())
}

fn beside(folder: &Path) -> Connection {
    let beside = Connection::open(file(folder)).expect("the file");
    beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
    beside
}

fn number(folder: &Path, sql: &str) -> i64 {
    beside(folder).query_row(sql, [], |row| row.get(0)).expect("a number")
}

/// How many there are of each of [`ALL`].
fn rows(folder: &Path) -> [i64; 3] {
    ALL.map(|from| number(folder, &format!("SELECT count(*) FROM {from}")))
}

/// The places that are taken.
fn places(folder: &Path) -> i64 {
    let sql = "SELECT coalesce(sum(b.value ->> 0), 0) FROM rate_buckets, json_each(buckets) AS b
               WHERE b.key LIKE 'calls/%'";
    number(folder, sql) / UNIT
}

/// An ask of the account's limits. So slow a pace drains nothing while a test runs.
fn ask(kind: RateKind, burst: i64, amount: i64) -> RateAsk {
    let id = RateId { owner: BudgetOwner::Account, kind, row: 0 };
    let per_minute = i64::from(kind != RateKind::Calls);
    RateAsk { id, limit: RateLimit { per_minute, burst }, amount, is_shadow: false }
}

fn place(burst: i64) -> RateAsk {
    ask(RateKind::Calls, burst, 1)
}

fn hold(id: &str, rates: &[RateAsk], lease_ms: u64) -> Operation {
    let (id, amount, rates) = (id.to_owned(), nano(HELD), rates.to_vec());
    Operation::Hold { id, wanted: amount, least: amount, lease_ms, key: Some(KEY), rates }
}

fn void(id: &str) -> Operation {
    Operation::Void { id: id.to_owned() }
}

async fn rich(ledger: &dyn Ledger) -> AccountName {
    let account = name("ada");
    assert_eq!(ledger.open_account(&account).await, Ok(true));
    let paid = Operation::Credit { tx: "t".to_owned(), amount: nano(1_000) };
    assert_eq!(ledger.submit(&account, paid).await, Ok(Outcome::Done));
    account
}

async fn submit(ledger: &dyn Ledger, account: &AccountName, op: Operation) -> Outcome {
    ledger.submit(account, op).await.expect("an answer")
}

/// What is left of each limit of a new hold; `None` if a limit refuses it.
async fn admit(
    ledger: &dyn Ledger,
    account: &AccountName,
    id: &str,
    rates: &[RateAsk],
) -> Option<Vec<i64>> {
    match submit(ledger, account, hold(id, rates, LONG_MS)).await {
        Outcome::HeldWithinRates { held, rates } => {
            assert_eq!(held, nano(HELD));
            Some(rates.into_iter().map(|rate: RateReading| rate.remaining).collect())
        }
        Outcome::RateLimited { .. } => None,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_burst_through_two_processes_ends_at_the_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = url(folder.path());
    let nodes = [open(&url).await, open(&url).await];
    let account = rich(&*nodes[0]).await;
    let rates = [ask(RateKind::Requests, 10, 1), place(100)];
    let calls = (0..30).map(|number: u32| {
        let (node, account) = (nodes[usize::from(number % 2 == 1)].clone(), account.clone());
        let op = hold(&format!("h{number}"), &rates, LONG_MS);
        tokio::spawn(async move { node.submit(&account, op).await.expect("an answer") })
    });
    let mut held = 0;
    for call in calls.collect::<Vec<_>>() {
        match call.await.expect("it ends") {
            Outcome::HeldWithinRates { .. } => held += 1,
            Outcome::RateLimited { id, retry_after_ms, rates } => {
                assert_eq!(id, ask(RateKind::Requests, 10, 1).id);
                assert!(retry_after_ms.is_some_and(|ms| (1..=UNIT).contains(&ms)));
                assert_eq!((rates[0].remaining, rates[1].remaining), (0, 90));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(held, 10);
    assert_eq!((places(folder.path()), rows(folder.path())), (10, [2, 10, 0]));
    let swept = nodes[1].expire_holds().await.expect("a sweep");
    assert_eq!((swept.open, swept.held), (10, nano(10 * HELD)));
    assert_eq!((places(folder.path()), rows(folder.path())), (10, [2, 10, 0]));
}

#[tokio::test]
async fn a_bucket_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = rich(&*ledger).await;
    let rates = [ask(RateKind::Tokens, 1_000, 400), place(9)];
    assert_eq!(admit(&*ledger, &account, "a", &rates).await, Some(vec![600, 8]));
    assert_eq!(admit(&*ledger, &account, "b", &rates).await, Some(vec![200, 7]));
    drop(ledger);
    let ledger = open(&url(folder.path())).await;
    assert_eq!(admit(&*ledger, &account, "c", &rates).await, None);
    let end = Operation::Settle {
        id: "a".to_owned(),
        charge: nano(3),
        line: "\"a\"".to_owned(),
        origin: None,
        tokens: Some(30),
    };
    let posted = Outcome::Posted { amount: nano(3), written_off: Money::ZERO };
    assert_eq!(submit(&*ledger, &account, end).await, posted);
    assert_eq!(admit(&*ledger, &account, "c", &rates).await, Some(vec![170, 7]));
}

#[tokio::test]
async fn a_place_comes_back_however_its_call_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = rich(&*ledger).await;
    let rates = [place(1)];
    for (id, end) in [
        ("settled", Some(settle("settled", nano(3)))),
        ("voided", Some(void("voided"))),
        ("expired", None),
    ] {
        let lease_ms = if end.is_some() { LONG_MS } else { SHORT_MS };
        let begun = submit(&*ledger, &account, hold(id, &rates, lease_ms)).await;
        assert!(matches!(begun, Outcome::HeldWithinRates { .. }), "{id} {begun:?}");
        assert_eq!(admit(&*ledger, &account, "other", &rates).await, None, "{id}");
        assert_eq!((places(folder.path()), rows(folder.path())), (1, [1, 1, 0]), "{id}");
        if let Some(end) = end {
            drop(submit(&*ledger, &account, end).await);
        } else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(ledger.expire_holds().await.map(|swept| swept.expired), Ok(1));
        }
        assert_eq!((places(folder.path()), rows(folder.path())), (0, [1, 0, 0]), "{id}");
    }
    assert_eq!(admit(&*ledger, &account, "last", &rates).await, Some(vec![0]));
    let late = submit(&*ledger, &account, settle("expired", nano(2))).await;
    assert!(matches!(late, Outcome::Posted { .. }), "{late:?}");
    assert_eq!(places(folder.path()), 1, "a charge that comes late gives no place back");
}

/// What a version does that knows open holds but no rate limits, with a hold that it voids.
const VOIDED: &str = "
    BEGIN IMMEDIATE;
    INSERT INTO hold (account, id, wanted, least, held, lease_until, state)
    SELECT account, id, wanted, least, held, lease_until, 2 FROM open_hold WHERE id = 'a';
    DELETE FROM open_hold WHERE id = 'a';
    UPDATE account SET available = available + 10, held = held - 10;
    COMMIT";

/// What a version does that does not see the open hold, and charges it.
const CHARGED: &str = "
    BEGIN IMMEDIATE;
    INSERT INTO hold (account, id, wanted, least, held, lease_until, state, posted)
    SELECT account, id, wanted, least, 0, 0, 1, 5 FROM open_hold WHERE id = 'a';
    INSERT INTO journal (account, seq, amount, written_off, line)
    SELECT account, 1, 5, 0, '\"a\"' FROM open_hold WHERE id = 'a';
    UPDATE account SET available = available - 5, posted = posted + 5;
    COMMIT";

#[rstest]
#[case::found_by_the_sweep(VOIDED, None)]
#[case::found_by_a_late_end(VOIDED, Some((void("a"), Outcome::Voided)))]
#[case::charged_unseen(CHARGED, Some((settle("a", nano(7)), Outcome::AlreadyPosted(nano(5)))))]
#[tokio::test]
async fn the_place_of_a_hold_that_an_older_version_ended_stayed_taken(
    #[case] ended: &str,
    #[case] late: Option<(Operation, Outcome)>,
) {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = rich(&*ledger).await;
    let rates = [ask(RateKind::Requests, 9, 1), place(2)];
    assert_eq!(admit(&*ledger, &account, "a", &rates).await, Some(vec![8, 1]));
    assert_eq!(admit(&*ledger, &account, "b", &rates).await, Some(vec![7, 0]));
    beside(folder.path()).execute_batch(ended).expect("it is ended");
    assert_eq!(admit(&*ledger, &account, "c", &rates).await, None);
    match late {
        Some((late, answer)) => assert_eq!(submit(&*ledger, &account, late).await, answer),
        None => assert_eq!(ledger.expire_holds().await.map(|swept| swept.expired), Ok(0)),
    }
    for _ in 0..2 {
        assert_eq!((places(folder.path()), rows(folder.path())), (1, [2, 1, 0]));
        ledger.expire_holds().await.expect("a sweep");
    }
    assert_eq!(admit(&*ledger, &account, "c", &rates).await, Some(vec![6, 0]));
}

#[tokio::test]
async fn a_hold_without_rates_leaves_no_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = rich(&*ledger).await;
    for id in ["settled", "voided", "open"] {
        let held = submit(&*ledger, &account, hold(id, &[], LONG_MS)).await;
        assert_eq!(held, Outcome::Held(nano(HELD)));
    }
    submit(&*ledger, &account, settle("settled", nano(3))).await;
    assert_eq!(submit(&*ledger, &account, void("voided")).await, Outcome::Voided);
    ledger.expire_holds().await.expect("a sweep");
    assert_eq!(rows(folder.path()), [0, 0, 0]);
    let shadow = [RateAsk { is_shadow: true, ..ask(RateKind::Requests, 0, 1) }];
    let exceeded = Outcome::HeldWithinRates {
        held: nano(HELD),
        rates: vec![RateReading { remaining: 0, is_exceeded: true }],
    };
    assert_eq!(submit(&*ledger, &account, hold("shadow", &shadow, LONG_MS)).await, exceeded);
    assert_eq!(rows(folder.path()), [0, 0, 0], "what is not counted is not kept");
}

#[tokio::test]
async fn buckets_of_long_ago_are_deleted_and_no_sweep_looks_at_all_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    rich(&*ledger).await;
    let add = |owner: &str, count: i64, hours: i64| {
        let sql = "WITH RECURSIVE number (n) AS (
                       SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n + 1 < ?2)
                   INSERT INTO rate_buckets (account, owner, used_at, buckets)
                   SELECT account.id, ?1 || n, ?3, '{\"tokens/0\":[5,' || ?3 || ']}'
                   FROM account, number";
        let at = now() - hours * HOUR_MS;
        beside(folder.path()).execute(sql, (owner, count, at)).expect("rows");
    };
    let left = || {
        ["key:1", "key:2", "key:3"].map(|owner| {
            let sql = format!("SELECT count(*) FROM rate_buckets WHERE owner LIKE '{owner}%'");
            number(folder.path(), &sql)
        })
    };
    add("key:1", 1_203, 49);
    add("key:2", 600, 47);
    ledger.expire_holds().await.expect("a sweep");
    assert_eq!(left(), [0, 600, 0]);
    add("key:3", 3, 49);
    for _ in 0..3 {
        ledger.expire_holds().await.expect("a sweep");
    }
    assert_eq!(left(), [0, 600, 0]);
}

/// A plan that has changed leaves buckets that no call takes from any more.
#[tokio::test]
async fn a_bucket_of_long_ago_is_forgotten_when_its_owner_takes_from_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = rich(&*ledger).await;
    let (old, late) = (now() - 49 * HOUR_MS, now() - 47 * HOUR_MS);
    let row = format!(
        "INSERT INTO rate_buckets (account, owner, used_at, buckets) SELECT id, 'account', {late},
         '{{\"calls/3\":[60000,{old}],\"tokens/3\":[5,{late}],\"things/x\":[1,{late}]}}'
         FROM account"
    );
    beside(folder.path()).execute_batch(&row).expect("a row");
    assert_eq!(admit(&*ledger, &account, "a", &[place(9)]).await, Some(vec![8]));
    let names = "SELECT group_concat(b.key, ' ' ORDER BY b.key) FROM rate_buckets,
                 json_each(buckets) AS b";
    let names: String =
        beside(folder.path()).query_row(names, [], |row| row.get(0)).expect("names");
    assert_eq!(names, "calls/0 tokens/3");
}

/// The tables of a version that had a row for each slice, after it has lent to an allotment.
const ROW_EACH: &str = "
    CREATE TABLE allotment_rate (
        account INTEGER NOT NULL REFERENCES account, allotment TEXT NOT NULL, rate TEXT NOT NULL,
        slice INTEGER NOT NULL, PRIMARY KEY (account, allotment, rate)) STRICT, WITHOUT ROWID;
    CREATE TABLE allotment_slice (
        account INTEGER NOT NULL REFERENCES account, allotment TEXT NOT NULL, window TEXT NOT NULL,
        amount INTEGER NOT NULL, PRIMARY KEY (account, allotment, window)) STRICT, WITHOUT ROWID;
    INSERT INTO allotment_rate SELECT account, id, 'account/calls/0', 4 FROM allotment;
    INSERT INTO allotment_slice SELECT account, id, 'account/total/0', 7 FROM allotment;
    INSERT INTO budget_window (account, owner, kind, start, spent, held, lent)
    SELECT account, 'account', 'total', 0, 1, 9, 7 FROM allotment;
    DROP INDEX allotment_left;
    ALTER TABLE allotment DROP COLUMN slices;
    ALTER TABLE allotment DROP COLUMN rates;
    PRAGMA user_version = 2";

#[tokio::test]
async fn what_an_older_version_had_lent_comes_back_when_its_allotment_has_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(SqliteStore::create(&file(folder.path())), Ok(true));
    let ledger = SqliteStore::open(&file(folder.path())).expect("a store");
    let account = rich(&ledger).await;
    let told = ledger.update_allotment(&account, message(1, 4)).await;
    assert!(matches!(told, Ok(Some(LedgerAnswer::Status(_)))), "{told:?}");
    drop(ledger);
    beside(folder.path()).execute_batch(ROW_EACH).expect("older tables");
    let window = || {
        let row = "SELECT held || ' ' || lent FROM budget_window";
        beside(folder.path()).query_row(row, [], |row| row.get::<_, String>(0)).expect("a window")
    };
    let left = || {
        ["allotment_rate", "allotment_slice"]
            .map(|table| number(folder.path(), &format!("SELECT count(*) FROM {table}")))
    };
    let ledger = SqliteStore::open(&file(folder.path())).expect("a store");
    ledger.expire_holds().await.expect("a sweep");
    assert_eq!((places(folder.path()), window(), left()), (4, "9 7".to_owned(), [1, 1]));
    assert_eq!(number(folder.path(), "PRAGMA user_version"), 3);
    let ended = "UPDATE open_hold SET lease_until = 1";
    beside(folder.path()).execute_batch(ended).expect("its lease is over");
    for _ in 0..2 {
        ledger.expire_holds().await.expect("a sweep");
    }
    assert_eq!((places(folder.path()), window(), left()), (0, "2 0".to_owned(), [0, 0]));
}

/// The clock was ten days ahead when a call took a place. Nothing of the other limits was kept.
#[tokio::test]
async fn limits_counted_nothing_after_the_clock_had_been_ahead() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = rich(&*ledger).await;
    let rates = [ask(RateKind::Requests, 2, 1), place(9)];
    assert_eq!(admit(&*ledger, &account, "a", &rates).await, Some(vec![1, 8]));
    let ahead = now() + 240 * HOUR_MS;
    let sql = format!(
        "UPDATE rate_buckets SET used_at = {ahead},
         buckets = json_set(buckets, '$.\"calls/0\"', json_array(60000, {ahead}))"
    );
    beside(folder.path()).execute_batch(&sql).expect("it was ahead");
    assert_eq!(admit(&*ledger, &account, "b", &rates).await, Some(vec![0, 7]));
    assert_eq!(admit(&*ledger, &account, "c", &rates).await, None);
}

const ALLOTMENT: &str = "allotment_run1-1";

/// A message of a gateway that has so many calls open.
fn message(step: u64, calls: i64) -> AllotmentUpdate {
    let RateAsk { id, limit, .. } = place(100);
    let wanted = RateDemand { limit, spent: 0, needed: calls, kept: calls, free: 0, unit: 1 };
    AllotmentUpdate {
        allotment: AllotmentId(ALLOTMENT.to_owned()),
        step,
        lent_at: now(),
        first_seq: 1,
        ends: Vec::new(),
        earlier_lost: false,
        retires: false,
        checkpoints: Vec::new(),
        demand: Some(AllotmentDemand {
            rates: BTreeMap::from([(id, wanted)]),
            ..AllotmentDemand::default()
        }),
        lease_ms: LONG_MS,
    }
}

/// What a version does that knows allotments but no rate limits, when a lease has expired.
const ALLOTMENT_ENDED: &str = "
    BEGIN IMMEDIATE;
    DELETE FROM open_hold;
    UPDATE allotment SET state = 2, ended_at = lent_at;
    COMMIT";

#[rstest]
#[case::when_its_lease_expires("UPDATE open_hold SET lease_until = 1", true)]
#[case::ended_by_a_version_without_rate_limits(ALLOTMENT_ENDED, true)]
#[case::ended_by_a_version_without_allotments("DELETE FROM open_hold", false)]
#[tokio::test]
async fn the_places_of_an_allotment_come_back(#[case] ended: &str, #[case] is_swept: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(SqliteStore::create(&file(folder.path())), Ok(true));
    let ledger = SqliteStore::open(&file(folder.path())).expect("a store");
    let account = rich(&ledger).await;
    for (step, calls) in [(1, 3), (2, 5), (3, 4)] {
        let told = ledger.update_allotment(&account, message(step, calls)).await;
        let told = told.expect("an answer").expect("an account");
        assert!(matches!(told, LedgerAnswer::Status(_)), "{told:?}");
        assert_eq!((places(folder.path()), rows(folder.path())), (calls, [1, 0, 1]));
    }
    let all = [RateAsk { amount: 100, ..place(100) }];
    assert_eq!(admit(&ledger, &account, "before", &all).await, None);
    beside(folder.path()).execute_batch(ended).expect("it is ended");
    if is_swept {
        ledger.expire_holds().await.expect("a sweep");
        assert_eq!((places(folder.path()), rows(folder.path())), (0, [1, 0, 0]));
    }
    assert_eq!(admit(&ledger, &account, "after", &all).await, Some(vec![0]));
    assert_eq!((places(folder.path()), rows(folder.path())), (100, [1, 1, 0]));
}

#[tokio::test]
async fn a_hold_could_never_end_whose_limits_could_not_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = url(folder.path());
    let ledger = open(&url).await;
    let account = rich(&*ledger).await;
    for id in ["settled", "lapsed"] {
        let lease_ms = if id == "lapsed" { 0 } else { LONG_MS };
        let held = submit(&*ledger, &account, hold(id, &[place(9)], lease_ms)).await;
        assert!(matches!(held, Outcome::HeldWithinRates { .. }), "{held:?}");
    }
    let unreadable = "UPDATE hold_rate SET asks = 'account/things/x=4,' || asks";
    beside(folder.path()).execute_batch(unreadable).expect("it is written");
    let posted = Outcome::Posted { amount: nano(3), written_off: nano(0) };
    assert_eq!(submit(&*ledger, &account, settle("settled", nano(3))).await, posted);
    ledger.expire_holds().await.expect("a sweep");
    assert_eq!((places(folder.path()), rows(folder.path())), (0, [1, 0, 0]));
}

fn order(account: &AccountName, id: &str, rates: &[RateAsk]) -> NewJob {
    let order = queue::order(account, id);
    let job = Job { key_id: Some(KEY), held: nano(HELD), ..order.job };
    NewJob { job, quote: Quote::exactly(nano(HELD)), rates: rates.to_vec(), ..order }
}

#[tokio::test]
async fn a_job_above_a_limit_is_not_kept_and_one_that_fails_to_be_kept_takes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = opened(&url(folder.path())).await;
    let account = rich(&*node.ledger).await;
    let rates = [ask(RateKind::Requests, 9, 1), place(1)];
    let broken = "CREATE TRIGGER broken BEFORE INSERT ON video_body WHEN new.body = x'626164'
                  BEGIN SELECT RAISE(ABORT, 'broken on purpose'); END";
    beside(folder.path()).execute_batch(broken).expect("a trigger");
    let bad = NewJob { body: Bytes::from_static(b"bad"), ..order(&account, "failed", &rates) };
    node.queue.place_job(bad).await.expect_err("it is broken");
    assert_eq!(rows(folder.path()), [0, 0, 0]);
    let reading = |remaining| RateReading { remaining, is_exceeded: false };
    let first = order(&account, "first", &rates);
    let placed = node.queue.place_job(first.clone()).await;
    assert_eq!(placed, Ok(PlaceResult::New(vec![reading(8), reading(0)])));
    let repeated = node.queue.place_job(first).await;
    assert_eq!(repeated, Ok(PlaceResult::New(Vec::new())));
    let (id, retry_after_ms) = (place(1).id, Some(1_000));
    let limited =
        PlaceResult::RateLimited { id, retry_after_ms, rates: vec![reading(8), reading(0)] };
    let second = node.queue.place_job(order(&account, "second", &rates)).await;
    assert_eq!(second, Ok(limited));
    assert_eq!(node.queue.find_job(&account, "second").await, Ok(None));
    assert_eq!((places(folder.path()), rows(folder.path())), (1, [2, 1, 0]));
}
