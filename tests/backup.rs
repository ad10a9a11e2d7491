//! Backups of a SQLite store: what was answered before one is charged once after its restore, and
//! a store as it was works on.

mod forged;
mod refused;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{ACCOUNT, Answer, CHAT, Charge, Store, World, quick, with};

const AT_ONCE: usize = 16;
/// The calls under idempotency keys of a test.
const KEYED: usize = 40;
/// What a call costs: ten tokens in, ten out.
const COST: i64 = 10 * 5_000 + 10 * 30_000;
const TOKENS: &str = "prompt=10;completion=10";
/// A hold whose process was killed is soon over. The machine may have more to do than this test.
const CONF: &str = "[timeouts]\nledger_ms = 10_000\nlease_ms = 2_000";
/// The backup of a test, in the folder of its world.
const BACKUP: &str = "kept.backup";
/// The files of a store, and the folders of its logs.
const DATABASE: [&str; 3] = ["tollgate.db", "tollgate.db-wal", "tollgate.db-shm"];
const LOGS: [&str; 2] = ["tollgate.db-outbox", "tollgate.db-allotments"];

/// An answer, and when it had come.
type Answered = (Answer, Instant);

/// A world whose first gateway makes holds in memory or not.
async fn busy_world(allotments: &'static str) -> World {
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &[TOKENS]).conf(CONF);
    builder.env("TOLLGATE__STORE__ALLOTMENTS", allotments).run().await
}

/// Makes calls, many at once, and counts the answers. A call whose connection broke has none.
async fn burst(world: &World, calls: usize, count: &AtomicUsize) -> Vec<Answered> {
    let call = with(CHAT.call(), &json!({ "max_tokens": 10 })).to_string();
    let calls = (0..calls).map(|_| {
        let request = world.request(CHAT.path).body(call.clone());
        async move {
            let answer = Answer::try_read(request).await.ok()?;
            count.fetch_add(1, Ordering::SeqCst);
            Some((answer, Instant::now()))
        }
    });
    let all: Vec<Option<Answered>> = stream::iter(calls).buffer_unordered(AT_ONCE).collect().await;
    all.into_iter().flatten().collect()
}

/// Waits until so many answers have come.
async fn answers_are(count: &AtomicUsize, wanted: usize) {
    let end = Instant::now() + Duration::from_secs(60);
    while count.load(Ordering::SeqCst) < wanted {
        assert!(Instant::now() < end, "{count:?} of {wanted} answers");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Kills the gateway while others still talk to it.
fn kill(world: &World) {
    let pid = world.gateway.id().to_string();
    let killed = std::process::Command::new("kill").args(["-s", "KILL", &pid]).status();
    assert!(killed.is_ok_and(|status| status.success()), "it ended by itself");
}

/// Makes the backup and gives what was told of it.
async fn back_up(world: &World) -> Value {
    world.command(&["--json", "backup", BACKUP]).await.json().remove(0)
}

/// Restores the backup and gives what was told of it.
async fn restore(world: &World) -> Value {
    world.command(&["--json", "restore", BACKUP]).await.json().remove(0)
}

/// Moves files and folders of the world into a new folder, if they exist.
fn move_away(world: &World, names: &[&str], to: &str) {
    fs::create_dir(world.path(to)).expect("a folder");
    for name in names.iter().filter(|name| world.path(name).exists()) {
        fs::rename(world.path(name), world.path(to).join(name)).expect("moved");
    }
}

/// The names in a folder; none if there is no such folder.
fn names_in(folder: &Path) -> BTreeSet<String> {
    let found = fs::read_dir(folder).into_iter().flatten();
    found.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned()).collect()
}

/// The ids of the calls that were served.
fn served<'a>(answers: impl IntoIterator<Item = &'a Answered>) -> BTreeSet<String> {
    let served = answers.into_iter().filter(|(answer, _)| answer.status == 200);
    served.map(|(answer, _)| answer.header("x-request-id").expect("an id").to_owned()).collect()
}

/// Each call that was answered was charged once, no call twice, and each for what it costs.
fn prove_each<'a>(answers: impl IntoIterator<Item = &'a Answered>, charges: &[Charge]) {
    let mut counts = BTreeMap::new();
    for charge in charges {
        assert_eq!(charge.amount_nano, COST, "{charge:?}");
        *counts.entry(charge.request_id.as_str()).or_insert(0) += 1;
    }
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    for (answer, _) in answers.into_iter().filter(|(answer, _)| answer.status == 200) {
        let id = answer.header("x-request-id").expect("an id");
        assert!(counts.contains_key(id), "{id} was answered and not charged");
    }
}

#[rstest]
#[tokio::test]
async fn a_call_that_was_answered_before_a_backup_is_charged_once_after_its_restore(
    #[values("true", "false")] allotments: &'static str,
) {
    let mut world = busy_world(allotments).await;
    let count = AtomicUsize::new(0);
    let backing_up = async {
        answers_are(&count, 200).await;
        let began = Instant::now();
        let told = back_up(&world).await;
        kill(&world);
        (began, told)
    };
    let (answers, (began, told)) = tokio::join!(burst(&world, 5_000, &count), backing_up);
    assert!(answers.len() < 5_000, "all was over before the kill");
    world.gateway.kill();
    assert!(!told.to_string().contains(&world.key), "{told}");
    assert_eq!((told["accounts"].as_u64(), told["file"].as_str()), (Some(1), Some(BACKUP)));
    assert!(told["log_bytes"].as_u64() > Some(0), "{told}");
    move_away(&world, &[&DATABASE[..], &LOGS].concat(), "lost");
    let restored = restore(&world).await;
    assert_eq!((&restored["backup"], &restored["log_folders_kept"]), (&told["backup"], &json!(0)));
    world.gateway = world.gateway_with("restored", &[]).await;
    let before: Vec<_> = answers.iter().filter(|(_, at)| *at < began).collect();
    assert!(before.len() >= 200, "{}", before.len());
    let charges = world.at_rest_with(&served(before.iter().copied())).await;
    prove_each(before, &charges);
    let count = AtomicUsize::new(0);
    let after = burst(&world, 50, &count).await;
    assert!(after.iter().all(|(answer, _)| answer.status == 200), "it sells no more");
    prove_each(&after, &world.settled(charges.len() + after.len()).await);
}

/// The lost database may be moved away, or deleted, so that the restored one may get its inode.
#[rstest]
#[tokio::test]
async fn what_the_lost_store_charged_since_the_backup_is_charged_once_out_of_its_logs(
    #[values("true", "false")] allotments: &'static str,
    #[values(true, false)] is_deleted: bool,
) {
    let mut world = busy_world(allotments).await;
    let count = AtomicUsize::new(0);
    let mut answers = burst(&world, 150, &count).await;
    back_up(&world).await;
    let killing = async {
        answers_are(&count, 350).await;
        kill(&world);
    };
    let (since, ()) = tokio::join!(burst(&world, 5_000, &count), killing);
    answers.extend(since);
    world.gateway.kill();
    if is_deleted {
        DATABASE.iter().for_each(|name| drop(fs::remove_file(world.path(name))));
    } else {
        move_away(&world, &DATABASE, "lost");
    }
    let lost = LOGS.map(|log| names_in(&world.path(log)));
    let restored = restore(&world).await;
    assert!(restored["log_folders_kept"].as_u64() > Some(0), "{restored}");
    for (log, lost) in LOGS.iter().zip(&lost) {
        assert!(names_in(&world.path(log)).is_superset(lost), "{log} lost some of {lost:?}");
    }
    world.gateway = world.gateway_with("restored", &[]).await;
    assert!(answers.len() >= 350, "{}", answers.len());
    let charges = world.at_rest_with(&served(&answers)).await;
    prove_each(&answers, &charges);
}

/// The outbox brought the charges of calls since the backup, but not their keys.
#[tokio::test]
async fn a_call_since_a_backup_was_charged_again_when_its_key_was_repeated() {
    let mut world = busy_world("true").await;
    back_up(&world).await;
    let call = with(CHAT.call(), &json!({ "max_tokens": 10 })).to_string();
    let ask_all = async |world: &World| {
        let calls = (0..KEYED).map(|number| {
            let request = world.request(CHAT.path).header("idempotency-key", number.to_string());
            Answer::try_read(request.body(call.clone()))
        });
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(AT_ONCE).collect().await;
        answers.into_iter().map(|answer| answer.expect("an answer")).collect::<Vec<Answer>>()
    };
    let answers = ask_all(&world).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    world.gateway.kill();
    DATABASE.iter().for_each(|name| drop(fs::remove_file(world.path(name))));
    restore(&world).await;
    world.gateway = world.gateway_with("restored", &[]).await;
    let charges = world.settled(KEYED).await;
    for answer in ask_all(&world).await {
        assert_eq!((answer.status, answer.code().as_str()), (409, "reply_lost"), "{answer:?}");
    }
    assert_eq!(world.settled(KEYED).await.len(), charges.len());
}

#[tokio::test]
async fn a_restore_that_was_interrupted_can_be_repeated() {
    let mut world = busy_world("true").await;
    let count = AtomicUsize::new(0);
    let answers = burst(&world, 200, &count).await;
    kill(&world);
    world.gateway.kill();
    back_up(&world).await;
    move_away(&world, &[&DATABASE[..], &LOGS].concat(), "lost");
    let staging = world.path(".tollgate.db.restore");
    fs::create_dir(&staging).expect("a folder");
    fs::write(staging.join("part-0"), "a half").expect("a file");
    restore(&world).await;
    assert!(!staging.exists());
    // As if it had ended before the last step, which gives the database its name.
    fs::remove_file(world.path("tollgate.db")).expect("a database");
    let before = LOGS.map(|log| names_in(&world.path(log)));
    restore(&world).await;
    assert_eq!(LOGS.map(|log| names_in(&world.path(log))), before, "some logs are there twice");
    world.gateway = world.gateway_with("restored", &[]).await;
    let charges = world.at_rest_with(&served(&answers)).await;
    prove_each(&answers, &charges);
    assert_eq!(charges.len(), 200);
}

#[tokio::test]
async fn a_store_that_nobody_uses_is_the_same_at_another_place() {
    let mut world = busy_world("true").await;
    let count = AtomicUsize::new(0);
    burst(&world, 100, &count).await;
    world.gateway.signal("TERM");
    world.gateway.ended(Duration::from_secs(30)).await;
    let told = world.command(&["backup", BACKUP]).await.done();
    for line in ["backup    kept.backup", "database  ", "logs      ", "books     1 accounts"] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let url = format!("sqlite:{}", world.path("else/where/new.db").display());
    let elsewhere = [("TOLLGATE__STORE__URL", url.as_str())];
    let told = world.command_with(&["restore", BACKUP], &elsewhere).await.done();
    assert!(told.contains("else/where/new.db") && !told.contains(&world.key), "{told}");
    for words in [
        &["--json", "account", "list"][..],
        &["--json", "charges", ACCOUNT],
        &["--json", "key", "list", ACCOUNT],
    ] {
        let old = world.command(words).await.done();
        assert_eq!(world.command_with(words, &elsewhere).await.done(), old, "{words:?}");
        assert_ne!(old, "", "{words:?}");
    }
    for file in [BACKUP, "else/where/new.db"] {
        let mode = fs::metadata(world.path(file)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{file}");
    }
    let hidden: Vec<_> =
        names_in(&world.path("")).into_iter().filter(|n| n.starts_with('.')).collect();
    assert_eq!(hidden, [""; 0], "something is left");
}

#[tokio::test]
async fn keys_and_a_finished_video_are_there_after_a_restore() {
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &["video-ms=40"]);
    let mut world = builder.conf(&quick(&[])).run().await;
    let id = world.place(json!({ "seconds": 2 })).await;
    let video = world.over(&id).await;
    assert_eq!(video.status(), "completed", "{video:?}");
    world.settled(1).await;
    let revoked = world.command(&["--json", "key", "issue", ACCOUNT]).await.json().remove(0);
    let prefix = revoked["prefix"].as_str().expect("a prefix");
    world.command(&["key", "revoke", prefix]).await.done();
    back_up(&world).await;
    world.gateway.kill();
    move_away(&world, &[&DATABASE[..], &LOGS].concat(), "lost");
    restore(&world).await;
    world.gateway = world.gateway_with("restored", &[]).await;
    let path = format!("/v1/videos/{id}");
    let again = world.over(&id).await;
    assert_eq!((again.status(), again.cost_nano()), ("completed", video.cost_nano()));
    assert_eq!(world.get(&format!("{path}/content")).await.status, 200);
    let revoked = revoked["key"].as_str().expect("a key");
    assert_eq!(world.get_with(&path, revoked).await.status, 403, "a revoked key is good again");
    world.settled(1).await;
}

#[tokio::test]
async fn a_redis_has_other_backups() {
    let world = World::start(Store::Redis).run().await;
    for (command, page) in [("backup", "backup.md#redis"), ("restore", "backup.md#restore-redis")] {
        let run = world.command(&[command, BACKUP]).await;
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{command}");
        assert!(run.err.contains(page), "{command}: {}", run.err);
    }
    assert!(!world.path(BACKUP).exists());
}
