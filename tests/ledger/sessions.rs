//! Sign-in links and sessions, in all stores.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Barrier;
use tollgate::ledger::DeletionMark;
use tollgate::operators::Role;
use tollgate::sessions::bounds::{IDENTITY_NAME_BYTES_MAX, LINKS_MAX, SESSIONS_MAX, TTL_MS_MAX};
use tollgate::sessions::{Principal, SecretHash, Session, SessionSecret, SessionStore};
use tollgate::store::{self, OpenStore};

use super::redis_cluster;
use super::redis_server::RedisServer;
use super::script;
use super::subject::{at, name, opened};

mod random;

/// Two processes that use one store.
type Both = [OpenStore; 2];

const HOUR_MS: u32 = 60 * 60 * 1_000;
/// What lives so long has expired after [`EXPIRED`].
const SHORT_MS: u32 = 100;
const EXPIRED: Duration = Duration::from_millis(130);

async fn open_twice(url: &str) -> Both {
    [opened(url).await, store::open(&at(url.to_owned())).await.expect("a store")]
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

fn secret(seed: u32) -> SecretHash {
    let mut bits = [9; 32];
    bits[..4].copy_from_slice(&seed.to_be_bytes());
    let secret = SessionSecret::from_random(bits);
    assert_eq!(SessionSecret::parse(secret.reveal()), Some(secret.hash()));
    secret.hash()
}

fn operator(name: &str) -> Principal {
    Principal::Operator(name.to_owned())
}

fn identity(name: &str, role: Role) -> Principal {
    Principal::Identity { name: name.to_owned(), role }
}

fn account(text: &str) -> Principal {
    Principal::Account(name(text))
}

async fn add_sessions(store: &dyn SessionStore, who: &Principal, seeds: impl Iterator<Item = u32>) {
    for seed in seeds {
        assert_eq!(store.add_session(secret(seed), who, HOUR_MS).await, Ok(()));
    }
}

async fn add_links(store: &dyn SessionStore, who: &Principal, seeds: impl Iterator<Item = u32>) {
    for seed in seeds {
        assert_eq!(store.add_link(secret(seed), who, HOUR_MS).await, Ok(()));
    }
}

async fn found(store: &dyn SessionStore, seed: u32) -> Option<Session> {
    store.find_session(secret(seed)).await.expect("an answer")
}

async fn used(store: &dyn SessionStore, seed: u32) -> Option<Principal> {
    store.use_link(secret(seed)).await.expect("an answer")
}

/// The sessions of some seeds that are there.
async fn living(store: &dyn SessionStore, seeds: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut living = Vec::new();
    for seed in seeds {
        if found(store, seed).await.is_some() {
            living.push(seed);
        }
    }
    living
}

async fn somebody_signs_in_and_out([first, second]: &Both) {
    let (first, second) = (&*first.sessions, &*second.sessions);
    let principals = [
        operator("ada"),
        identity("ada@example.com", Role::Owner),
        // Whatever is printable.
        identity("{x}:*?[a]\\'\"%", Role::Support),
        identity(&"x".repeat(IDENTITY_NAME_BYTES_MAX), Role::Operator),
        account("ada"),
    ];
    for (who, seed) in principals.iter().zip((0..).step_by(10)) {
        assert_eq!(used(first, seed).await, None, "there is no link");
        assert_eq!(found(first, seed).await, None, "there is no session");
        add_links(first, who, seed..=seed).await;
        assert_eq!(found(second, seed).await, None, "a link is no session");
        for store in [first, second, first] {
            let looked_up = store.find_link(secret(seed)).await.expect("an answer");
            assert_eq!(looked_up.as_ref(), Some(who), "a look does not use it up");
        }
        assert_eq!(used(second, seed).await.as_ref(), Some(who));
        for store in [first, second] {
            assert_eq!(store.find_link(secret(seed)).await, Ok(None), "it was used");
            assert_eq!(used(store, seed).await, None, "it was used");
        }
        let before = script::now() / 1_000;
        assert_eq!(second.add_session(secret(seed), who, HOUR_MS).await, Ok(()));
        let session = found(first, seed).await.expect("a session");
        assert_eq!(&session.principal, who);
        let (now, lasts) = (script::now() / 1_000, i64::from(HOUR_MS / 1_000));
        // The clock of a server may differ a little.
        assert!((before - 2..=now + 2).contains(&session.created_at), "{session:?} {now}");
        assert_eq!(session.expires_at - session.created_at, lasts);
        assert_eq!(used(first, seed).await, None, "a session is no link");
        assert_eq!(first.find_link(secret(seed)).await, Ok(None), "a session is no link");
        add_sessions(first, who, seed + 1..seed + 3).await;
    }
    for (who, seed) in principals.iter().zip((0..).step_by(10)) {
        for store in [second, first] {
            assert_eq!(store.end_session(secret(seed)).await, Ok(()));
            assert_eq!(found(store, seed).await, None, "it was ended");
        }
        assert_eq!(living(first, seed..seed + 5).await, [seed + 1, seed + 2]);
        add_links(second, who, seed..seed + 2).await;
        assert_eq!(first.end_sessions_of(who).await, Ok(2));
        assert!(living(second, seed..seed + 5).await.is_empty(), "signed out everywhere");
        assert_eq!(used(first, seed).await, None, "the links are gone as well");
        assert_eq!(second.end_sessions_of(who).await, Ok(0));
        add_sessions(first, who, seed..=seed).await;
        assert_eq!(found(second, seed).await.expect("a session").principal, *who);
    }
}

async fn what_cannot_be_kept_is_refused([first, _]: &Both) {
    let store = &*first.sessions;
    let ada = operator("ada");
    for ttl_ms in [0, TTL_MS_MAX + 1, u32::MAX] {
        assert!(store.add_session(secret(1), &ada, ttl_ms).await.is_err(), "{ttl_ms}");
        assert!(store.add_link(secret(1), &ada, ttl_ms).await.is_err(), "{ttl_ms}");
    }
    let long = "x".repeat(IDENTITY_NAME_BYTES_MAX + 1);
    for who in [operator(""), operator("a b"), identity("a b", Role::Owner)].into_iter().chain([
        identity("", Role::Owner),
        identity(&long, Role::Owner),
        operator(&long),
    ]) {
        assert!(store.add_session(secret(1), &who, HOUR_MS).await.is_err(), "{who}");
        assert!(store.add_link(secret(1), &who, HOUR_MS).await.is_err(), "{who}");
        assert_eq!(store.end_sessions_of(&who).await, Ok(0), "{who}");
    }
    assert_eq!((found(store, 1).await, used(store, 1).await), (None, None));
    for ttl_ms in [TTL_MS_MAX, 1_000] {
        assert_eq!(store.add_session(secret(1), &ada, ttl_ms).await, Ok(()));
        let session = found(store, 1).await.expect("a session");
        assert_eq!(session.expires_at - session.created_at, i64::from(ttl_ms / 1_000));
    }
}

async fn what_has_expired_is_gone([first, second]: &Both) {
    let (first, second) = (&*first.sessions, &*second.sessions);
    let ada = operator("ada");
    let most = SESSIONS_MAX;
    add_sessions(first, &ada, 1..most).await;
    add_links(first, &ada, 1..LINKS_MAX).await;
    let began = tokio::time::Instant::now();
    assert_eq!(first.add_session(secret(100), &ada, SHORT_MS).await, Ok(()));
    assert_eq!(first.add_link(secret(100), &ada, SHORT_MS).await, Ok(()));
    let is_there = found(second, 100).await.is_some();
    assert!(is_there || began.elapsed() >= Duration::from_millis(SHORT_MS.into()));
    tokio::time::sleep(EXPIRED).await;
    for store in [first, second] {
        assert_eq!((found(store, 100).await, used(store, 100).await), (None, None));
    }
    // It takes no room, and none of the others had to leave.
    add_sessions(second, &ada, most..=most).await;
    add_links(second, &ada, LINKS_MAX..=LINKS_MAX).await;
    assert_eq!(living(first, 0..200).await, (1..=most).collect::<Vec<_>>());
    assert_eq!(used(first, 1).await, Some(ada.clone()));
    assert_eq!(first.add_session(secret(101), &operator("bob"), SHORT_MS).await, Ok(()));
    tokio::time::sleep(EXPIRED).await;
    assert_eq!(second.end_sessions_of(&operator("bob")).await, Ok(0), "it had expired");
    assert_eq!(second.end_sessions_of(&ada).await, Ok(most));
}

async fn the_oldest_make_room([first, second]: &Both) {
    let (first, second) = (&*first.sessions, &*second.sessions);
    let (ada, bob) = (operator("ada"), account("ada"));
    let most = SESSIONS_MAX;
    add_sessions(first, &bob, 900..902).await;
    add_links(first, &bob, 900..901).await;
    add_sessions(first, &ada, 0..most).await;
    add_links(first, &ada, 0..LINKS_MAX).await;
    assert_eq!(living(second, 0..most).await, (0..most).collect::<Vec<_>>());
    // What has no life any more takes no room.
    assert_eq!(used(second, 1).await, Some(ada.clone()));
    assert_eq!(second.end_session(secret(1)).await, Ok(()));
    add_sessions(second, &ada, most..=most).await;
    add_links(second, &ada, LINKS_MAX..=LINKS_MAX).await;
    assert_eq!(living(first, 0..3).await, [0, 2]);
    add_sessions(second, &ada, most + 1..most + 4).await;
    add_links(second, &ada, LINKS_MAX + 1..LINKS_MAX + 4).await;
    // 0, 2 and 3 have left.
    assert_eq!(living(first, 0..most + 10).await, (4..most + 4).collect::<Vec<_>>());
    // The same again takes no room, and is the newest then.
    add_sessions(first, &ada, 4..5).await;
    assert_eq!(living(first, 0..most + 10).await, (4..most + 4).collect::<Vec<_>>());
    add_sessions(second, &ada, 500..501).await;
    assert_eq!(living(second, 0..7).await, [4, 6]);
    for link in 0..4 {
        assert_eq!(used(first, link).await, None, "{link}");
    }
    for link in 4..LINKS_MAX + 4 {
        assert_eq!(used(first, link).await.as_ref(), Some(&ada), "{link}");
    }
    assert_eq!(living(second, 900..910).await, [900, 901], "those of others stay");
    assert_eq!(used(second, 900).await, Some(bob));
    // An identity is one, whatever its role.
    let roles = [Role::Owner, Role::Support].map(|role| identity("ada@example.com", role));
    for (who, seed) in roles.iter().cycle().zip(1_000..1_000 + most + 2) {
        add_sessions(first, who, seed..=seed).await;
    }
    assert_eq!(living(second, 1_000..1_100).await, (1_002..1_002 + most).collect::<Vec<_>>());
    assert_eq!(found(second, 1_003).await.expect("a session").principal, roles[1]);
    assert_eq!(second.end_sessions_of(&roles[0]).await, Ok(most));
    assert!(living(second, 1_000..1_100).await.is_empty());
}

/// Two processes use the same link at the same time, again and again.
async fn a_link_is_used_once([first, second]: &Both, rounds: u32) {
    let ada = operator("ada");
    for round in 0..rounds {
        add_links(&*first.sessions, &ada, round..=round).await;
        let start = Arc::new(Barrier::new(4));
        let users = [first, second, first, second].map(|store| {
            let (sessions, start) = (store.sessions.clone(), start.clone());
            tokio::spawn(async move {
                start.wait().await;
                used(&*sessions, round).await
            })
        });
        let mut winners = 0;
        for user in users {
            winners += u32::from(user.await.expect("an answer") == Some(ada.clone()));
        }
        assert_eq!(winners, 1, "{round}");
    }
}

/// One process adds sessions and links, while the other one signs out everywhere.
async fn what_is_added_meanwhile_is_ended_or_newer([first, second]: &Both, rounds: u32) {
    const ADDED: u32 = 12;
    for round in 0..rounds {
        let who = operator(&format!("ada-{round}"));
        let seeds = round * ADDED..(round + 1) * ADDED;
        let (adding, start) = (first.sessions.clone(), Arc::new(Barrier::new(2)));
        let (by, of, begun) = (who.clone(), seeds.clone(), start.clone());
        let adder = tokio::spawn(async move {
            begun.wait().await;
            for seed in of {
                add_sessions(&*adding, &by, seed..=seed).await;
                add_links(&*adding, &by, seed..=seed).await;
            }
        });
        let (ending, from) = (second.sessions.clone(), who.clone());
        let signing_out = tokio::spawn(async move {
            start.wait().await;
            tokio::time::sleep(Duration::from_micros(u64::from(round % 20) * 500)).await;
            ending.end_sessions_of(&from).await.expect("an answer")
        });
        adder.await.expect("added");
        let ended = signing_out.await.expect("ended");
        let sessions = living(&*first.sessions, seeds.clone()).await;
        let newer: Vec<_> = (seeds.start + ended..seeds.end).collect();
        assert_eq!(sessions, newer, "{ended} were ended");
        let mut links = Vec::new();
        for seed in seeds.clone() {
            if used(&*second.sessions, seed).await.is_some() {
                links.push(seed);
            }
        }
        let left = u32::try_from(links.len()).expect("a small number");
        assert_eq!(links, (seeds.end - left..seeds.end).collect::<Vec<_>>(), "the newest");
        // A link is added right after the session with its number.
        let added_between = links.len() - newer.len();
        assert!(added_between <= 1, "{links:?} {newer:?}");
    }
}

async fn a_deleted_account_has_none([first, second]: &Both) {
    let (acme, other) = (name("acme"), name("other"));
    for account in [&acme, &other] {
        assert_eq!(first.ledger.open_account(account).await, Ok(true));
    }
    for (who, seed) in [(account("acme"), 0), (account("other"), 10), (operator("acme"), 20)] {
        add_sessions(&*first.sessions, &who, seed..seed + 2).await;
        add_links(&*first.sessions, &who, seed..=seed).await;
    }
    second.eraser.erase_account(&acme).await.expect("an answer");
    assert_eq!(living(&*first.sessions, 0..2).await, [0, 1], "it is not deleted");
    let marked = second.eraser.mark_deleted(&acme).await;
    assert!(matches!(marked, Ok(DeletionMark::Deleted(_))), "{marked:?}");
    second.eraser.erase_account(&acme).await.expect("erased");
    assert_eq!(living(&*first.sessions, 0..30).await, [10, 11, 20, 21]);
    assert_eq!(used(&*first.sessions, 0).await, None);
    assert_eq!(used(&*first.sessions, 10).await, Some(account("other")));
    // What a call added that was late goes with the next erasure.
    add_sessions(&*first.sessions, &account("acme"), 3..4).await;
    second.eraser.erase_account(&acme).await.expect("erased");
    assert!(living(&*first.sessions, 0..10).await.is_empty());
}

#[tokio::test]
async fn sessions_are_kept_by_both_stores() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        let both = open_twice(&url).await;
        somebody_signs_in_and_out(&both).await;
        what_cannot_be_kept_is_refused(&both).await;
    }
}

#[tokio::test]
async fn links_and_sessions_expire() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        what_has_expired_is_gone(&open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn the_sessions_of_a_principal_are_bounded() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        the_oldest_make_room(&open_twice(&url).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_who_use_a_link_one_signs_in() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        a_link_is_used_once(&open_twice(&url).await, 200).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_signs_out_everywhere_ends_all_that_is_older() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        what_is_added_meanwhile_is_ended_or_newer(&open_twice(&url).await, 60).await;
    }
}

#[tokio::test]
async fn sessions_survive_the_process() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        let store = opened(&url).await;
        add_sessions(&*store.sessions, &operator("ada"), 1..4).await;
        add_links(&*store.sessions, &operator("ada"), 1..3).await;
        assert_eq!(used(&*store.sessions, 1).await, Some(operator("ada")));
        assert_eq!(store.sessions.end_session(secret(2)).await, Ok(()));
        let before = found(&*store.sessions, 1).await.expect("a session");
        drop(store);
        let store = opened(&url).await;
        assert_eq!(found(&*store.sessions, 1).await, Some(before));
        assert_eq!(living(&*store.sessions, 0..5).await, [1, 3]);
        assert_eq!(used(&*store.sessions, 1).await, None);
        assert_eq!(used(&*store.sessions, 2).await, Some(operator("ada")));
        assert_eq!(store.sessions.end_sessions_of(&operator("ada")).await, Ok(2));
    }
}

#[tokio::test]
async fn the_sessions_of_a_deleted_account_end() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        a_deleted_account_has_none(&open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn a_sweep_deletes_what_has_expired_from_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = opened(&sqlite_url(folder.path())).await;
    let beside = beside_file(folder.path());
    let count = || {
        let count = "SELECT count(*) FROM sign_in";
        beside.query_row(count, [], |row| row.get::<_, u32>(0)).expect("a number")
    };
    add_sessions(&*store.sessions, &operator("ada"), 1..3).await;
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
                INSERT INTO sign_in (kind, hash, subject, principal, created_at, lives_until)
                SELECT 'link', randomblob(32), 'operator b' || i, 'operator b' || i, 1, 2 FROM n";
    beside.execute_batch(fill).expect("links");
    assert_eq!(count(), 1_002);
    store.ledger.expire_holds().await.expect("a sweep");
    assert_eq!(count(), 2, "more than a step deletes");
    beside.execute("UPDATE sign_in SET lives_until = created_at + 1", []).expect("a day later");
    assert!(living(&*store.sessions, 1..3).await.is_empty());
    store.ledger.expire_holds().await.expect("a sweep");
    assert_eq!(count(), 0);
}

#[tokio::test]
async fn nothing_stays_in_a_server_for_ever() {
    let url = RedisServer::shared().fresh_url();
    let store = opened(&url).await.sessions;
    let mut beside = beside_redis(&url);
    let ada = operator("ada");
    let index = "tollgate:{:sessions}:sessions:operator ada";
    let mut ttl_of =
        |key: &str| redis::cmd("PTTL").arg(key).query::<i64>(&mut beside).expect("a time");
    assert_eq!(store.add_session(secret(1), &ada, TTL_MS_MAX).await, Ok(()));
    assert_eq!(store.add_session(secret(2), &ada, HOUR_MS).await, Ok(()));
    for (seed, ttl_ms) in [(1, TTL_MS_MAX), (2, HOUR_MS)] {
        let left = ttl_of(&format!("tollgate:{{:sessions}}:session:{}", hex_of(seed)));
        assert!((i64::from(ttl_ms) - 60_000..=ttl_ms.into()).contains(&left), "{left}");
    }
    let left = ttl_of(index);
    assert!(left > i64::from(TTL_MS_MAX) - 60_000, "as long as the last of them: {left}");
    // Somebody signs in and out all day.
    for seed in 10..200 {
        add_sessions(&*store, &ada, seed..=seed).await;
        add_links(&*store, &ada, seed..=seed).await;
        assert_eq!(store.end_session(secret(seed)).await, Ok(()));
        assert_eq!(used(&*store, seed).await, Some(ada.clone()));
    }
    for index in [index, "tollgate:{:sessions}:links:operator ada"] {
        let length: u32 = redis::cmd("LLEN").arg(index).query(&mut beside).expect("a number");
        assert!(length <= 3, "{index}: {length}");
    }
    assert_eq!(store.end_sessions_of(&ada).await, Ok(2));
    assert_eq!(store.add_session(secret(3), &ada, SHORT_MS).await, Ok(()));
    assert_eq!(store.add_link(secret(3), &ada, SHORT_MS).await, Ok(()));
    tokio::time::sleep(EXPIRED).await;
    let keys = redis::cmd("KEYS").arg("tollgate:{:sessions}:*").query(&mut beside);
    assert_eq!(keys, Ok(Vec::<String>::new()));
}

fn hex_of(seed: u32) -> String {
    secret(seed).0.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_principal_that_this_version_does_not_know_has_not_signed_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = opened(&sqlite_url(folder.path())).await.sessions;
    add_sessions(&*store, &operator("ada"), 1..3).await;
    add_links(&*store, &operator("ada"), 1..2).await;
    let rename = "UPDATE sign_in SET principal = 'robot r2' WHERE row <> 2";
    beside_file(folder.path()).execute(rename, []).expect("another principal");
    assert_eq!((living(&*store, 1..3).await, used(&*store, 1).await), (vec![2], None));

    let url = RedisServer::shared().fresh_url();
    let store = opened(&url).await.sessions;
    let mut beside = beside_redis(&url);
    for kind in ["link", "session"] {
        let key = format!("tollgate:{{:sessions}}:{kind}:{}", hex_of(1));
        let mut set = redis::cmd("SET");
        set.arg(key).arg("1 9999999999999 robot r2").exec(&mut beside).expect("a record");
    }
    assert_eq!((found(&*store, 1).await, used(&*store, 1).await), (None, None));
}

/// All keys of sign-ins are in one slot, whichever master has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sessions_are_kept_by_a_cluster() {
    let nodes = redis_cluster::start();
    let both = open_twice(&nodes[0].cluster_url()).await;
    let empty = || {
        for master in &nodes[..3] {
            master.command(&["FLUSHALL"]);
        }
    };
    somebody_signs_in_and_out(&both).await;
    empty();
    the_oldest_make_room(&both).await;
    empty();
    a_link_is_used_once(&both, 20).await;
    empty();
    what_is_added_meanwhile_is_ended_or_newer(&both, 10).await;
    empty();
    a_deleted_account_has_none(&both).await;
}
