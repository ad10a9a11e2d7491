//! The audit trail: each change of an account, a key or a credit is told, before and after it.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{ACCOUNT, Store, World};

const PLACE: &str = "var/audit.jsonl";

fn lines_of(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line is one object")).collect()
}

/// The lines that commands have written.
fn lines(world: &World) -> Vec<Value> {
    let text = std::fs::read_to_string(world.path(PLACE)).expect("the audit trail");
    lines_of(&text)
}

/// What of a line is the same at every run.
fn told(line: &Value) -> Value {
    let mut line = line.clone();
    let fields = line.as_object_mut().expect("an object");
    for name in ["at", "id", "target", "user", "login_uid", "sudo_user", "host"] {
        fields.remove(name);
    }
    line
}

#[rstest]
#[tokio::test]
async fn nobody_could_tell_who_had_changed_a_balance(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit("1").run().await;
    let uid = rustix::process::getuid().as_raw();
    let env = [("SUDO_USER", "ada")];
    let add = ["credit", "add", ACCOUNT, "0.5", "--id", "tx-1"];
    world.command_with(&add, &env).await.done();
    let written = lines(&world);
    let begun = json!({
        "stage": "begun", "from": "cli", "action": "credit.add", "account": ACCOUNT,
        "payment": "tx-1", "amount_nano": 500_000_000, "credited_before_nano": 1_000_000_000,
        "uid": uid,
    });
    let ended = json!({
        "stage": "ended", "from": "cli", "action": "credit.add", "account": ACCOUNT,
        "payment": "tx-1", "amount_nano": 500_000_000, "credited_after_nano": 1_500_000_000,
        "result": "done",
    });
    assert_eq!(written.iter().map(told).collect::<Vec<_>>(), [begun, ended]);
    assert_eq!(written[0]["sudo_user"], "ada");
    assert_eq!(written[0]["id"], written[1]["id"]);
    assert!(written[0]["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{written:?}");
    let mode = std::fs::metadata(world.path(PLACE)).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// After a restore the books are those of another time.
#[tokio::test]
async fn a_restore_was_not_in_the_trail() {
    let mut world = World::start(Store::Sqlite).run().await;
    world.command(&["backup", "b.tar"]).await.done();
    assert_eq!(world.command(&["restore", "b.tar"]).await.code, 1, "a gateway runs");
    world.gateway.kill();
    let elsewhere = [("TOLLGATE__STORE__URL", "sqlite:other.db")];
    world.command_with(&["restore", "b.tar"], &elsewhere).await.done();
    let written: Vec<_> = lines(&world).iter().map(told).collect();
    let fields = |line: &Value| {
        ["action", "backup", "stage", "result"]
            .map(|name| line[name].as_str().unwrap_or("-").to_owned())
    };
    let expected = [("begun", "-"), ("ended", "failed"), ("begun", "-"), ("ended", "done")];
    let expected = expected.map(|(stage, result)| ["store.restore", "b.tar", stage, result]);
    assert_eq!(written.iter().map(fields).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn each_change_is_told_and_no_secret_with_it() {
    let world = World::start(Store::Sqlite).run().await;
    world.command(&["account", "create", "b", "--credit", "2"]).await.done();
    let key = world.command(&["key", "issue", "b"]).await.done().trim().to_owned();
    let prefix = &key[..14];
    // Somebody gives the whole key where its beginning is asked for.
    assert_eq!(world.command(&["key", "revoke", &key]).await.code, 1);
    world.command(&["key", "revoke", prefix]).await.done();
    assert_eq!(world.command(&["account", "create", "b"]).await.code, 1);
    assert_eq!(world.command(&["credit", "add", "nobody", "1", "--id", "t"]).await.code, 1);
    for words in [&["account", "list"][..], &["key", "list", "b"], &["charges", "b"]] {
        world.command(words).await.done();
    }
    let written = lines(&world);
    let of = |line: &Value, name: &str| line[name].as_str().unwrap_or("-").to_owned();
    let ended: Vec<_> = written.iter().filter(|line| line["stage"] == "ended").collect();
    let shown: Vec<_> = ended
        .iter()
        .map(|line| ["action", "account", "key_prefix", "result"].map(|name| of(line, name)))
        .collect();
    let expected = [
        ["account.create", "b", "-", "done"],
        ["key.issue", "b", prefix, "done"],
        ["key.revoke", "-", prefix, "failed"],
        ["key.revoke", "b", prefix, "done"],
        ["account.create", "b", "-", "failed"],
        ["credit.add", "nobody", "-", "failed"],
    ];
    assert_eq!(shown, expected);
    assert_eq!(written.len(), 2 * expected.len(), "what only looks is not told");
    let ids: BTreeSet<_> = written.iter().map(|line| of(line, "id")).collect();
    assert_eq!(ids.len(), expected.len());
    assert!(of(ended[4], "why").contains("there already"), "{:?}", ended[4]);
    let text = std::fs::read_to_string(world.path(PLACE)).expect("the audit trail");
    assert!(!text.contains(&key[..15]) && !text.contains(&world.key[..15]), "{text}");
}

#[rstest]
#[tokio::test]
async fn what_cannot_be_written_down_is_not_done(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit("1").run().await;
    let to = format!("file:{}", world.path("gone").join("x/audit").display());
    std::fs::write(world.path("gone"), "a file and no folder").expect("written");
    let env = [("TOLLGATE__AUDIT__TO", to.as_str())];
    for words in [
        &["credit", "add", ACCOUNT, "1"][..],
        &["account", "create", "b"],
        &["key", "issue", ACCOUNT],
        &["key", "revoke", &world.key[..14]],
    ] {
        let run = world.command_with(words, &env).await;
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{words:?}");
        assert!(run.err.contains("so nothing was changed"), "{words:?}: {}", run.err);
    }
    assert_eq!(world.balances().await.credited, 1_000_000_000);
    assert_eq!(world.command(&["--json", "account", "list"]).await.json().len(), 1);
    let keys = world.command(&["--json", "key", "list", ACCOUNT]).await.json();
    assert_eq!((keys.len(), &keys[0]["revoked_at"]), (1, &Value::Null));
    // What only looks needs no line.
    assert_eq!(world.command_with(&["account", "list"], &env).await.code, 0);
}

#[tokio::test]
async fn the_trail_can_go_where_a_collector_reads() {
    let world = World::start(Store::Sqlite).run().await;
    let env = [("TOLLGATE__AUDIT__TO", "log")];
    let run = world.command_with(&["key", "issue", ACCOUNT], &env).await;
    let written = lines_of(&run.err);
    assert_eq!(written.len(), 2, "{}", run.err);
    assert!(written.iter().all(|line| line["target"] == "audit"), "{written:?}");
    assert!(!world.path(PLACE).exists());
    for (to, code) in [("file:", 1), ("syslog", 1), ("log", 0)] {
        let run = world.command_with(&["check"], &[("TOLLGATE__AUDIT__TO", to)]).await;
        assert_eq!(run.code, code, "{to}: {}", run.err);
    }
}
