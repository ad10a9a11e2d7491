//! Operators, the record of their changes and the requests that they have named, in all stores.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rusqlite::Connection;
use tollgate::operators::bounds::{
    AUDIT_LINE_BYTES_MAX, AUDIT_LINES_MAX, AUDIT_TRIM_MAX, OPERATOR_REQUESTS_MAX, OPERATORS_MAX,
    REQUEST_NAME_BYTES_MAX, REQUEST_REPLY_BYTES_MAX,
};
use tollgate::operators::{
    NamedRequest, OperatorChange, OperatorRecord, OperatorStore, OperatorToken, Role,
};
use tollgate::store;

use super::redis_cluster;
use super::redis_server::RedisServer;
use super::subject::{at, opened};

/// The operators of two processes that use one store.
type Both = [Arc<dyn OperatorStore>; 2];

async fn open_twice(url: &str) -> Both {
    let first = opened(url).await;
    let second = store::open(&at(url.to_owned())).await.expect("a store");
    [first.operators, second.operators]
}

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("ledger.db").display())
}

fn beside_file(folder: &Path) -> Connection {
    let beside = Connection::open(folder.join("ledger.db")).expect("the file");
    beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
    beside
}

fn beside_redis(url: &str) -> redis::Connection {
    let client = redis::Client::open(url).expect("an address");
    client.get_connection().expect("a connection")
}

fn token(seed: u32) -> OperatorToken {
    let mut bits = [7; 32];
    bits[..4].copy_from_slice(&seed.to_be_bytes());
    OperatorToken::from_random(bits)
}

fn record(name: &str, role: Role, token: &OperatorToken, ends: Option<i64>) -> OperatorRecord {
    OperatorRecord {
        name: name.to_owned(),
        role,
        prefix: token.prefix().to_owned(),
        created_at: 5,
        expires_at: ends,
    }
}

async fn add(store: &dyn OperatorStore, name: &str, role: Role, seed: u32, ends: Option<i64>) {
    let token = token(seed);
    let record = record(name, role, &token, ends);
    let added = store.add_operator(token.hash(), record).await;
    assert_eq!(added, Ok(OperatorChange::Done), "{name}");
}

async fn names(store: &dyn OperatorStore) -> Vec<String> {
    let operators = store.list_operators().await.expect("a list");
    operators.into_iter().map(|operator| operator.name).collect()
}

async fn rotate(
    store: &dyn OperatorStore,
    name: &str,
    seed: u32,
    ends: Option<i64>,
) -> OperatorChange {
    let token = token(seed);
    let changed = store.replace_token(name, token.hash(), token.prefix(), ends).await;
    changed.expect("an answer")
}

async fn operators_are_added_rotated_and_removed([first, second]: Both) {
    assert_eq!(first.list_operators().await, Ok(Vec::new()));
    assert_eq!(first.find_operator(token(1).hash()).await, Ok(None));
    assert_eq!(first.remove_operator("ada").await, Ok(OperatorChange::Unknown));
    assert_eq!(rotate(&*first, "ada", 1, None).await, OperatorChange::Unknown);

    let [ada, bob] = [token(1), token(2)];
    let of_ada = record("ada", Role::Owner, &ada, None);
    let of_bob = record("bob-2_x.y", Role::Support, &bob, Some(90));
    for (token, record) in [(&bob, &of_bob), (&ada, &of_ada)] {
        // A write of the command line may come twice.
        for _ in 0..2 {
            let added = first.add_operator(token.hash(), record.clone()).await;
            assert_eq!(added, Ok(OperatorChange::Done));
        }
        let found = second.find_operator(token.hash()).await;
        assert_eq!(found, Ok(Some(record.clone())), "an expired one is found, too");
    }
    assert_eq!(second.list_operators().await, Ok(vec![of_ada.clone(), of_bob.clone()]));
    let again = second.add_operator(token(3).hash(), of_ada.clone()).await;
    assert_eq!(again, Ok(OperatorChange::AlreadyExists));
    let other_role = OperatorRecord { role: Role::Support, ..of_ada.clone() };
    let again = second.add_operator(ada.hash(), other_role).await;
    assert_eq!(again, Ok(OperatorChange::AlreadyExists));
    let same_token = second.add_operator(ada.hash(), record("eve", Role::Owner, &ada, None)).await;
    assert!(same_token.is_err(), "one token is of one operator: {same_token:?}");
    assert_eq!(second.find_operator(token(3).hash()).await, Ok(None));

    let later = token(4);
    for _ in 0..2 {
        assert_eq!(rotate(&*second, "bob-2_x.y", 4, None).await, OperatorChange::Done);
    }
    assert_eq!(first.find_operator(bob.hash()).await, Ok(None), "the old token works");
    let rotated = OperatorRecord { prefix: later.prefix().to_owned(), expires_at: None, ..of_bob };
    assert_eq!(first.find_operator(later.hash()).await, Ok(Some(rotated.clone())));
    let taken = first.replace_token("bob-2_x.y", ada.hash(), ada.prefix(), None).await;
    assert!(taken.is_err(), "{taken:?}");
    assert_eq!(first.list_operators().await, Ok(vec![of_ada.clone(), rotated]));

    assert_eq!(first.remove_operator("bob-2_x.y").await, Ok(OperatorChange::Done));
    assert_eq!(second.remove_operator("bob-2_x.y").await, Ok(OperatorChange::Unknown));
    assert_eq!(second.find_operator(later.hash()).await, Ok(None));
    assert_eq!(first.list_operators().await, Ok(vec![of_ada]));
    add(&*second, "eve", Role::Operator, 2, None).await;
    assert_eq!(names(&*first).await, ["ada", "eve"], "a token of nobody can be given again");
}

/// Operators, each with its role and whether its token expires; what is tried; what comes of it.
type LastOwnerCase = (&'static [(&'static str, Role, bool)], Attempt, OperatorChange);

#[derive(Debug, Clone, Copy)]
enum Attempt {
    Remove(&'static str),
    RotateWithEnd(&'static str),
    Rotate(&'static str),
}

const LAST_OWNER: [LastOwnerCase; 11] = [
    (&[("ada", Role::Owner, false)], Attempt::Remove("ada"), OperatorChange::LastOwner),
    (&[("ada", Role::Owner, false)], Attempt::RotateWithEnd("ada"), OperatorChange::LastOwner),
    (&[("ada", Role::Owner, false)], Attempt::Rotate("ada"), OperatorChange::Done),
    (
        &[("ada", Role::Owner, false), ("bob", Role::Operator, false)],
        Attempt::Remove("ada"),
        OperatorChange::LastOwner,
    ),
    (
        &[("ada", Role::Owner, false), ("bob", Role::Owner, true)],
        Attempt::Remove("ada"),
        OperatorChange::LastOwner,
    ),
    (
        &[("ada", Role::Owner, false), ("bob", Role::Owner, true)],
        Attempt::Remove("bob"),
        OperatorChange::Done,
    ),
    (
        &[("ada", Role::Owner, false), ("bob", Role::Owner, false)],
        Attempt::RotateWithEnd("ada"),
        OperatorChange::Done,
    ),
    (
        &[("ada", Role::Owner, false), ("bob", Role::Owner, false)],
        Attempt::Remove("bob"),
        OperatorChange::Done,
    ),
    // A store whose first operators were no lasting owners.
    (&[("bob", Role::Support, false)], Attempt::Remove("bob"), OperatorChange::Done),
    (&[("ada", Role::Owner, true)], Attempt::RotateWithEnd("ada"), OperatorChange::Done),
    (&[("ada", Role::Owner, true)], Attempt::Rotate("ada"), OperatorChange::Done),
];

async fn is_last_owner_kept(store: &dyn OperatorStore, case: &LastOwnerCase) {
    let (operators, attempt, expected) = case;
    for ((name, role, expires), seed) in operators.iter().zip(1..) {
        add(store, name, *role, seed, expires.then_some(90)).await;
    }
    let before = store.list_operators().await.expect("a list");
    let change = match attempt {
        Attempt::Remove(name) => store.remove_operator(name).await.expect("an answer"),
        Attempt::RotateWithEnd(name) => rotate(store, name, 50, Some(95)).await,
        Attempt::Rotate(name) => rotate(store, name, 50, None).await,
    };
    assert_eq!(change, *expected, "{case:?}");
    let after = store.list_operators().await.expect("a list");
    assert_eq!(before == after, change == OperatorChange::LastOwner, "{case:?}");
    let has_lasting = |all: &[OperatorRecord]| all.iter().any(OperatorRecord::is_lasting_owner);
    assert!(has_lasting(&after) || !has_lasting(&before), "{case:?}");
    // Whatever was there, the command line can add an owner.
    add(store, "late", Role::Owner, 60, None).await;
}

async fn operators_are_bounded([first, second]: Both) {
    add(&*first, "ada", Role::Owner, 0, None).await;
    let others = (1..OPERATORS_MAX).map(|seed| {
        let first = first.clone();
        async move { add(&*first, &format!("op-{seed:03}"), Role::Support, seed, None).await }
    });
    join_all(others).await;
    let one_more = token(OPERATORS_MAX);
    let of_one_more = record("one-more", Role::Owner, &one_more, None);
    let added = second.add_operator(one_more.hash(), of_one_more.clone()).await;
    assert!(added.is_err(), "{added:?}");
    assert_eq!(names(&*second).await.len(), OPERATORS_MAX as usize);
    let known = record("ada", Role::Owner, &token(0), None);
    let again = second.add_operator(token(0).hash(), known).await;
    assert_eq!(again, Ok(OperatorChange::Done), "what is there needs no room");
    assert_eq!(second.remove_operator("op-001").await, Ok(OperatorChange::Done));
    let added = second.add_operator(one_more.hash(), of_one_more).await;
    assert_eq!(added, Ok(OperatorChange::Done));

    let other = token(9_000);
    for name in ["", "a b", "a:b", "{a}", &"n".repeat(65)] {
        let record = record(name, Role::Support, &other, None);
        assert!(first.add_operator(other.hash(), record).await.is_err(), "{name:?}");
    }
    for prefix in ["", "a b", &"p".repeat(65)] {
        let replaced = first.replace_token("ada", other.hash(), prefix, None).await;
        assert!(replaced.is_err(), "{prefix:?}");
    }
    assert_eq!(first.find_operator(other.hash()).await, Ok(None));
}

const A: [u8; 32] = [1; 32];
const B: [u8; 32] = [2; 32];

async fn claim(store: &dyn OperatorStore, name: &str, content: [u8; 32]) -> NamedRequest {
    store.claim_request("ada", name, content).await.expect("an answer")
}

async fn requests_are_named([first, second]: Both) {
    assert_eq!(claim(&*first, "n", A).await, NamedRequest::New);
    assert_eq!(claim(&*second, "n", A).await, NamedRequest::Running);
    assert_eq!(claim(&*second, "n", B).await, NamedRequest::OtherContent);
    let of_other = second.claim_request("bob", "n", B).await;
    assert_eq!(of_other, Ok(NamedRequest::New), "names are of one operator");
    for reply in ["{\"a\":1}", "{\"a\":1}", "another"] {
        assert_eq!(first.answer_request("ada", "n", reply).await, Ok(()));
        let answered = NamedRequest::Answered("{\"a\":1}".to_owned());
        assert_eq!(claim(&*second, "n", A).await, answered, "the first reply stays");
    }
    assert_eq!(claim(&*second, "n", B).await, NamedRequest::OtherContent);
    assert_eq!(first.release_request("ada", "n").await, Ok(()));
    assert_ne!(claim(&*second, "n", A).await, NamedRequest::New, "it was answered");
    assert_eq!(second.claim_request("bob", "n", B).await, Ok(NamedRequest::Running));

    for _ in 0..2 {
        assert_eq!(second.release_request("bob", "n").await, Ok(()));
    }
    assert_eq!(first.claim_request("bob", "n", A).await, Ok(NamedRequest::New));
    assert_eq!(first.answer_request("ada", "never", "reply").await, Ok(()));
    assert_eq!(claim(&*first, "never", A).await, NamedRequest::New, "it was not claimed");
    let empty = first.answer_request("ada", "never", "").await;
    assert_eq!((empty, claim(&*first, "never", A).await), answered(""));

    // A name may contain anything.
    for name in ["", " ", "a:b", "{b}", "ö'\"\n\0", &"x".repeat(REQUEST_NAME_BYTES_MAX)] {
        assert_eq!(claim(&*first, name, A).await, NamedRequest::New, "{name:?}");
        assert_eq!(claim(&*second, name, A).await, NamedRequest::Running, "{name:?}");
    }
    let long = "x".repeat(REQUEST_NAME_BYTES_MAX + 1);
    assert!(first.claim_request("ada", &long, A).await.is_err());
    assert!(first.claim_request("a:b", "n", A).await.is_err());
    let longest = "ä".repeat(REQUEST_REPLY_BYTES_MAX / 2);
    let kept = first.answer_request("ada", "a:b", &longest).await;
    assert_eq!((kept, claim(&*second, "a:b", A).await), answered(&longest));
    assert!(first.answer_request("ada", "{b}", &format!("{longest}x")).await.is_err());
    assert_eq!(claim(&*second, "{b}", A).await, NamedRequest::Running);
}

fn answered(reply: &str) -> (Result<(), tollgate::ledger::Unavailable>, NamedRequest) {
    (Ok(()), NamedRequest::Answered(reply.to_owned()))
}

async fn one_of_many_claims_is_new([first, second]: Both) {
    for round in 0..20 {
        let name = format!("n-{round}");
        let claims = (0..8).map(|number| {
            let store = if number % 2 == 0 { &first } else { &second };
            claim(&**store, &name, A)
        });
        let mut results = join_all(claims).await;
        results.retain(|result| *result != NamedRequest::Running);
        assert_eq!(results, [NamedRequest::New], "{name}");
    }
}

fn lines(numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, String)> {
    numbers.into_iter().map(|number| (number, format!("{{\"line\":{number}}}"))).collect()
}

async fn audit_lines_are_read_backwards([first, second]: Both) {
    assert_eq!(first.read_audit(None, 10).await, Ok(Vec::new()));
    assert_eq!(first.read_audit(Some(5), 10).await, Ok(Vec::new()));
    for (number, line) in lines(1..=20) {
        let store = if number % 2 == 0 { &first } else { &second };
        assert_eq!(store.append_audit(&line).await, Ok(()));
    }
    for (_, line) in lines([20, 20, 17]) {
        assert_eq!(first.append_audit(&line).await, Ok(()), "the same again");
    }
    for (before, limit, expected) in [
        (None, 3, vec![20, 19, 18]),
        (Some(18), 3, vec![17, 16, 15]),
        (Some(3), 10, vec![2, 1]),
        (Some(1), 10, vec![]),
        (Some(0), 10, vec![]),
        (Some(21), 1, vec![20]),
        (Some(u64::MAX), 2, vec![20, 19]),
        (None, 0, vec![]),
        (None, u32::MAX, (1..=20).rev().collect()),
    ] {
        let read = second.read_audit(before, limit).await;
        assert_eq!(read, Ok(lines(expected)), "{before:?} {limit}");
    }
    let longest = "ä".repeat(AUDIT_LINE_BYTES_MAX / 2);
    assert!(first.append_audit(&format!("{longest}x")).await.is_err());
    assert_eq!(first.append_audit(&longest).await, Ok(()));
    assert_eq!(second.read_audit(None, 1).await, Ok(vec![(21, longest)]));
}

/// There are `lines` numbered lines more than are kept.
async fn old_audit_lines_leave_in_steps([first, second]: Both) {
    let (most, step) = (u64::from(AUDIT_LINES_MAX), u64::from(AUDIT_TRIM_MAX));
    let newest = second.read_audit(None, 1).await;
    assert_eq!(newest, Ok(lines([most + 20])), "the test has filled it");
    assert_eq!(first.read_audit(Some(2), 5).await, Ok(lines([1])), "nothing has left yet");
    for (appended, oldest) in [(most + 21, 1 + step), (most + 22, 23), (most + 23, 24)] {
        let (_, line) = lines([appended]).remove(0);
        assert_eq!(first.append_audit(&line).await, Ok(()));
        assert_eq!(second.read_audit(None, 1).await, Ok(lines([appended])));
        assert_eq!(second.read_audit(Some(oldest), 5).await, Ok(Vec::new()), "{oldest}");
        assert_eq!(first.read_audit(Some(oldest + 1), 5).await, Ok(lines([oldest])));
        // A number stays that of its line.
        assert_eq!(first.read_audit(Some(501), 1).await, Ok(lines([500])));
    }
}

/// The operator has `OPERATOR_REQUESTS_MAX` requests, of which `oldest` is the oldest.
async fn the_oldest_requests_leave([first, second]: Both) {
    assert_eq!(claim(&*first, "oldest", B).await, NamedRequest::OtherContent);
    assert_eq!(claim(&*first, "new-1", A).await, NamedRequest::New);
    assert_eq!(second.claim_request("bob", "n", A).await, Ok(NamedRequest::New));
    assert_eq!(claim(&*second, "name-00001", B).await, NamedRequest::OtherContent);
    assert_eq!(claim(&*second, "oldest", B).await, NamedRequest::New, "it has left");
    assert_eq!(claim(&*second, "name-00001", B).await, NamedRequest::New, "it came next");
    assert_eq!(claim(&*first, "new-1", A).await, NamedRequest::Running);
}

fn filled_audit_file(folder: &Path) {
    let fill = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})
         INSERT INTO audit (seq, line) SELECT i, '{{\"line\":' || i || '}}' FROM n",
        AUDIT_LINES_MAX + 20
    );
    beside_file(folder).execute_batch(&fill).expect("lines");
}

fn filled_audit_list(url: &str) {
    let all = lines(1..=u64::from(AUDIT_LINES_MAX) + 20);
    let mut beside = beside_redis(url);
    for some in all.chunks(10_000) {
        let some: Vec<&String> = some.iter().map(|(_, line)| line).collect();
        let mut push = redis::cmd("RPUSH");
        push.arg("tollgate:{:operators}:audit").arg(some).exec(&mut beside).expect("lines");
    }
}

#[tokio::test]
async fn operators_are_kept_by_both_stores() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        operators_are_added_rotated_and_removed(open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn the_last_owner_whose_token_does_not_expire_stays() {
    let server = RedisServer::shared();
    for case in &LAST_OWNER {
        let folder = tempfile::tempdir().expect("a folder");
        for url in [sqlite_url(folder.path()), server.fresh_url()] {
            is_last_owner_kept(&*opened(&url).await.operators, case).await;
        }
    }
}

#[tokio::test]
async fn two_owners_who_remove_each_other_do_not_both_go() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        let [first, second] = open_twice(&url).await;
        for (name, seed) in [("ada", 1), ("bob", 2)] {
            add(&*first, name, Role::Owner, seed, None).await;
        }
        let removing = [first.remove_operator("ada"), second.remove_operator("bob")];
        let mut changes = join_all(removing).await;
        changes.sort_by_key(|change| *change == Ok(OperatorChange::LastOwner));
        assert_eq!(changes, [Ok(OperatorChange::Done), Ok(OperatorChange::LastOwner)]);
        assert_eq!(names(&*first).await.len(), 1);
    }
}

#[tokio::test]
async fn there_is_no_room_for_any_number_of_operators() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        operators_are_bounded(open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn a_named_request_is_made_once() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        requests_are_named(open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn of_claims_at_the_same_time_one_is_new() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        one_of_many_claims_is_new(open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn the_record_of_changes_is_read_from_its_end() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        audit_lines_are_read_backwards(open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn numbers_of_lines_stay_when_old_lines_leave() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    let both = open_twice(&sqlite_url(folder.path())).await;
    filled_audit_file(folder.path());
    old_audit_lines_leave_in_steps(both).await;
    let url = server.fresh_url();
    filled_audit_list(&url);
    old_audit_lines_leave_in_steps(open_twice(&url).await).await;
}

#[tokio::test]
async fn the_requests_of_an_operator_are_bounded() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    let both = open_twice(&sqlite_url(folder.path())).await;
    assert_eq!(claim(&*both[0], "oldest", A).await, NamedRequest::New);
    let fill = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})
         INSERT INTO operator_request (owner, name, content, lives_until)
         SELECT 'ada', printf('name-%05d', i), unhex('{}'),
                (SELECT max(lives_until) FROM operator_request) + i FROM n",
        OPERATOR_REQUESTS_MAX - 1,
        "01".repeat(32)
    );
    beside_file(folder.path()).execute_batch(&fill).expect("requests");
    the_oldest_requests_leave(both).await;

    let url = server.fresh_url();
    let both = open_twice(&url).await;
    assert_eq!(claim(&*both[0], "oldest", A).await, NamedRequest::New);
    let mut beside = beside_redis(&url);
    let of_name = "tollgate:{:operators}:request:ada:";
    let index = "tollgate:{:operators}:requests:ada";
    let first: i64 = redis::cmd("ZSCORE").arg(index).arg("oldest").query(&mut beside).expect("one");
    let mut fill = redis::pipe();
    for number in 1..i64::from(OPERATOR_REQUESTS_MAX) {
        let name = format!("name-{number:05}");
        let key = format!("{of_name}{name}");
        fill.cmd("HSET").arg(key).arg("content").arg("01".repeat(32)).ignore();
        fill.cmd("ZADD").arg(index).arg(first + number).arg(name).ignore();
    }
    fill.exec(&mut beside).expect("requests");
    the_oldest_requests_leave(both).await;
    let count: u32 = redis::cmd("ZCARD").arg(index).query(&mut beside).expect("a number");
    assert_eq!(count, OPERATOR_REQUESTS_MAX);
}

#[tokio::test]
async fn a_name_is_free_again_after_a_day() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = opened(&sqlite_url(folder.path())).await;
    let operators = &*store.operators;
    let beside = beside_file(folder.path());
    let is_kept = || {
        let count = "SELECT count(*) FROM operator_request";
        beside.query_row(count, [], |row| row.get::<_, u32>(0)).expect("a number")
    };
    for name in ["n", "m"] {
        assert_eq!(claim(operators, name, A).await, NamedRequest::New);
        assert_eq!(operators.answer_request("ada", name, "reply").await, Ok(()));
    }
    store.ledger.expire_holds().await.expect("a sweep");
    assert_eq!(is_kept(), 2);
    let left = "SELECT min(lives_until) - unixepoch() * 1000 FROM operator_request";
    let left: i64 = beside.query_row(left, [], |row| row.get(0)).expect("a time");
    assert!((86_300_000..=86_401_000).contains(&left), "{left}");
    beside.execute("UPDATE operator_request SET lives_until = 1", []).expect("a day later");
    assert_eq!(operators.answer_request("ada", "m", "later").await, Ok(()));
    assert_eq!(claim(operators, "n", B).await, NamedRequest::New);
    store.ledger.expire_holds().await.expect("a sweep");
    assert_eq!(is_kept(), 1);
    assert_eq!(claim(operators, "m", B).await, NamedRequest::New);

    let server = RedisServer::shared();
    let url = server.fresh_url();
    let operators = opened(&url).await.operators;
    assert_eq!(claim(&*operators, "n", A).await, NamedRequest::New);
    let mut beside = beside_redis(&url);
    for key in ["request:ada:n", "requests:ada"] {
        let mut ask = redis::cmd("PTTL");
        let left: i64 =
            ask.arg(format!("tollgate:{{:operators}}:{key}")).query(&mut beside).expect("a time");
        assert!((86_300_000..=86_400_000).contains(&left), "{key}: {left}");
    }
    let mut forget = redis::cmd("DEL");
    forget.arg("tollgate:{:operators}:request:ada:n").exec(&mut beside).expect("a day later");
    assert_eq!(claim(&*operators, "n", B).await, NamedRequest::New);
}

/// All keys of operators are in one slot, whichever master has it.
#[tokio::test]
async fn operators_are_kept_by_a_cluster() {
    let nodes = redis_cluster::start();
    let url = nodes[0].cluster_url();
    let empty = || {
        for master in &nodes[..3] {
            master.command(&["FLUSHALL"]);
        }
    };
    operators_are_added_rotated_and_removed(open_twice(&url).await).await;
    for case in &LAST_OWNER {
        empty();
        is_last_owner_kept(&*opened(&url).await.operators, case).await;
    }
    empty();
    requests_are_named(open_twice(&url).await).await;
    one_of_many_claims_is_new(open_twice(&url).await).await;
    audit_lines_are_read_backwards(open_twice(&url).await).await;
}
