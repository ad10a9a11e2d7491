//! Files that somebody deletes under a running gateway, and files that are not there at its start.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::Value;

use super::{PATIENCE, let_in_again};
use crate::world::{ACCOUNT, Answer, Store, World, chat_of};

/// A stream that goes on when the test says so.
const STREAM: &str = "held=4";
/// The files of a store, and where the tests put them away.
const FILES: [&str; 3] = ["tollgate.db", "tollgate.db-wal", "tollgate.db-shm"];

fn rename(world: &World, from: &str, to: &str) {
    fs::rename(world.path(from), world.path(to)).expect("a file");
}

/// Makes calls until one is refused for want of the ledger.
async fn nobody_is_let_in(world: &World) {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = world.chat(chat_of("lmb-5.5")).await;
        if answer.status != 200 {
            assert_eq!(answer.refusal(), (503, "ledger_unavailable".to_owned()));
            return;
        }
        assert!(Instant::now() < end, "it goes on selling");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What `/readyz` has under `ledger`, and its status.
async fn readiness(world: &World) -> (u16, String) {
    let asked = world.client().get(format!("http://{}/readyz", world.gateway.admin)).send().await;
    let answer = asked.expect("readiness");
    let status = answer.status().as_u16();
    let told: Value = serde_json::from_str(&answer.text().await.expect("it")).expect("JSON");
    (status, told["ledger"].as_str().expect("how the ledger is").to_owned())
}

#[rstest]
#[case::deleted("tollgate.db", false)]
#[case::replaced("tollgate.db", true)]
#[case::its_log_deleted("tollgate.db-wal", false)]
#[case::the_index_of_its_log_replaced("tollgate.db-shm", true)]
#[tokio::test]
async fn the_sqlite_file_deleted_under_a_running_gateway_sells_nothing_into_the_void(
    #[case] file: &str,
    #[case] is_replaced: bool,
) {
    let world = World::start(Store::Sqlite).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    if is_replaced {
        fs::copy(world.path(file), world.path("copy")).expect("a copy");
        rename(&world, file, "kept");
        rename(&world, "copy", file);
    } else {
        rename(&world, file, "kept");
    }
    nobody_is_let_in(&world).await;
    let sold = world.sim.count("vendor_b");
    let what = if is_replaced { "replaced" } else { "deleted" };
    world.logged(&["ledger_file_lost", file, what]).await;
    let (status, ledger) = readiness(&world).await;
    assert!(status == 503 && ledger.contains(what) && ledger.contains(file), "{status} {ledger}");
    let url = format!("http://{}/v1/chat/completions", world.gateway.http);
    let (end, other) = (world.key.len() - 4, if world.key.ends_with("0000") { "1" } else { "0" });
    let key = format!("{}{}", &world.key[..end], other.repeat(4));
    let unknown = world.client().post(url).bearer_auth(key);
    let refused = Answer::read(unknown.body(chat_of("lmb-5.5").to_string())).await;
    assert_eq!(refused.refusal(), (503, "ledger_unavailable".to_owned()), "nobody knows that key");
    // Another process may have written it meanwhile.
    rename(&world, "kept", file);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 503, "it was let in again");
    assert_eq!(world.sim.count("vendor_b"), sold);
}

#[tokio::test]
async fn what_ran_while_the_file_was_deleted_is_charged_on_the_file_that_comes_back() {
    let mut world = World::start(Store::Sqlite).vendor("vendor_b", &[STREAM]).run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    for file in FILES {
        rename(&world, file, &format!("{file}.away"));
    }
    world.logged(&["ledger_file_lost"]).await;
    world.sim.let_go();
    assert!(stream.rest().await.is_done());
    world.metric_becomes("tollgate_outbox_pending", &[], 1).await;
    world.gateway.kill();
    let run = world.command(&["serve"]).await;
    assert!(run.code != 0 && run.err.contains("tollgate init"), "{run:?}");
    for file in FILES {
        rename(&world, &format!("{file}.away"), file);
    }
    world.kill_and_start_again().await;
    assert_eq!(world.charge().await.basis, "reported");
}

/// What an older file lacks of the last minute is still in the outbox.
#[tokio::test]
async fn the_last_charges_are_made_again_on_a_copy_of_the_file_from_before() {
    let mut world = World::start(Store::Sqlite).run().await;
    let copy = world.path("copy.db");
    let source = rusqlite::Connection::open(world.path("tollgate.db")).expect("the file");
    source.execute("VACUUM INTO ?1", [copy.display().to_string()]).expect("a copy");
    drop(source);
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    let charged = world.settled(1).await;
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
    for file in FILES {
        let _ = fs::remove_file(world.path(file));
    }
    rename(&world, "copy.db", "tollgate.db");
    world.kill_and_start_again().await;
    assert_eq!(world.settled(1).await, charged);
}

fn is_there(file: &Path) -> bool {
    fs::exists(file).expect("a look")
}

#[tokio::test]
async fn commands_on_a_missing_file_made_an_empty_one() {
    let world = World::start(Store::Sqlite).run().await;
    let file = world.path("other/t.db");
    let url = format!("sqlite:{}", file.display());
    let env = [("TOLLGATE__STORE__URL", url.as_str())];
    let all: [&[&str]; 7] = [
        &["account", "list"],
        &["account", "create", "a"],
        &["credit", "add", ACCOUNT, "1"],
        &["key", "issue", ACCOUNT],
        &["key", "list", ACCOUNT],
        &["charges", ACCOUNT],
        &["serve"],
    ];
    let refused = async |words: &[&str], told: &str| {
        let run = world.command_with(words, &env).await;
        assert!(run.code == 1 && run.err.contains(told) && run.out.is_empty(), "{words:?} {run:?}");
    };
    for words in all {
        refused(words, "`tollgate init` makes a new one").await;
        assert!(!is_there(&file), "{words:?}");
    }
    fs::create_dir_all(world.path("other")).expect("a folder");
    fs::write(&file, "").expect("an empty file");
    for words in all {
        refused(words, "`tollgate init` makes a new one").await;
    }
    let made = world.command_with(&["init"], &env).await.done();
    assert!(made.contains("a new store was made"), "{made}");
    world.command_with(&["account", "create", "a", "--credit", "1"], &env).await.done();
    let again = world.command_with(&["--json", "init"], &env).await.json().remove(0);
    assert_eq!((&again["store"], &again["created"]), (&"sqlite".into(), &false.into()));
    let listed = world.command_with(&["--json", "account", "list"], &env).await.json();
    assert_eq!(listed.len(), 1, "nothing was changed");
}

#[tokio::test]
async fn a_new_store_is_made_beside_an_account_where_that_is_asked_for_and_over_nothing_else() {
    let world = World::start(Store::Sqlite).run().await;
    let (file, foreign) = (world.path("other/t.db"), world.path("foreign.db"));
    let (url, foreign_url) = (format!("sqlite:{}", file.display()), foreign.display());
    let env = [("TOLLGATE__STORE__URL", url.as_str())];
    for code in [0, 1] {
        let create = ["account", "create", "a", "--new-store"];
        let run = world.command_with(&create, &env).await;
        assert_eq!(run.code, code, "{run:?}");
    }
    let tables = rusqlite::Connection::open(&foreign).expect("a file");
    tables.execute_batch("CREATE TABLE song (name TEXT)").expect("a table");
    let url = format!("sqlite:{foreign_url}");
    let env = [("TOLLGATE__STORE__URL", url.as_str())];
    for words in [&["init"][..], &["account", "list"], &["account", "create", "a", "--new-store"]] {
        let run = world.command_with(words, &env).await;
        assert!(run.code == 1 && run.err.contains("no store of tollgate"), "{words:?} {run:?}");
    }
    // Of a store whose file is gone the log may have what nobody else has.
    let left = world.path("left.db");
    fs::write(world.path("left.db-wal"), "x").expect("a log");
    let url = format!("sqlite:{}", left.display());
    let run = world.command_with(&["init"], &[("TOLLGATE__STORE__URL", &url)]).await;
    assert!(run.code == 1 && run.err.contains("left of another store"), "{run:?}");
    assert!(!is_there(&left));
}

#[tokio::test]
async fn init_on_redis_changes_nothing_and_says_so() {
    let world = World::start(Store::Redis).own_redis().run().await;
    let told = world.command(&["init"]).await.done();
    assert!(told.contains("needs no init"), "{told}");
    let mut world = world;
    world.redis().command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let run = world.command(&["init"]).await;
    assert!(run.code == 1 && run.err.contains("maxmemory-policy"), "{run:?}");
}

/// The place of the outbox.
fn outbox(world: &World, store: Store) -> std::path::PathBuf {
    world.path(if store == Store::Redis { "var/outbox" } else { "tollgate.db-outbox" })
}

#[tokio::test]
async fn what_waited_in_an_outbox_that_was_deleted_is_written_into_a_new_one() {
    let builder = World::start(Store::Redis).own_redis().vendor("vendor_b", &[STREAM]);
    let mut world = builder.run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    world.redis().stop();
    world.sim.let_go();
    assert!(stream.rest().await.is_done());
    world.metric_becomes("tollgate_outbox_pending", &[], 1).await;
    fs::remove_dir_all(outbox(&world, Store::Redis)).expect("the outbox");
    world.logged(&["outbox write recovered"]).await;
    world.gateway.kill();
    assert!(world.redis().start_again());
    world.gateway = world.second_gateway().await;
    assert_eq!(world.charge().await.basis, "reported");
}

#[rstest]
#[tokio::test]
async fn without_a_place_for_its_outbox_nobody_is_let_in_until_there_is_one(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    let folder = outbox(&world, store);
    // It may be made again in between.
    while fs::write(&folder, "in the way").is_err() {
        fs::remove_dir_all(&folder).expect("the outbox");
    }
    nobody_is_let_in(&world).await;
    let (status, ledger) = readiness(&world).await;
    assert!(status == 503 && ledger.contains("outbox"), "{status} {ledger}");
    let before = world.sim.count("vendor_b");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 503);
    assert_eq!(world.sim.count("vendor_b"), before);
    fs::remove_file(&folder).expect("a file");
    let_in_again(&world).await;
    let calls = usize::try_from(before + 1).expect("few");
    world.settled(calls).await;
    assert_eq!(readiness(&world).await, (200, "ok".to_owned()));
}
