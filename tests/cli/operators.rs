//! The commands that add, list, rotate and revoke operators, and what is kept of their tokens.

use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};
use tollgate::ledger::AccountName;
use tollgate::operators::{OperatorRecord, Role, TokenHash};
use tollgate::sessions::{Principal, SessionSecret};
use tollgate::store::{self, OpenStore};

use super::fields;
use crate::ledger::subject::at;
use crate::world::{ACCOUNT, Store, World};

const TRAIL: &str = "var/audit.jsonl";
/// How a token begins that a list shows, and the digits of it that a list shows.
const SHOWN: (&str, usize) = ("sk-tg-op-", 8);

/// The first object that a command prints.
async fn shown(world: &World, words: &[&str]) -> Value {
    let words: Vec<_> = ["--json", "operator"].iter().chain(words).copied().collect();
    world.command(&words).await.json().remove(0)
}

/// What a command prints alone on one line.
async fn plain(world: &World, words: &[&str]) -> String {
    let words: Vec<_> = ["operator"].iter().chain(words).copied().collect();
    let printed = world.command(&words).await.done();
    assert_eq!(printed.lines().count(), 1, "the token alone, so that a shell can take it");
    printed.trim().to_owned()
}

/// What a command says when it fails.
async fn fault(world: &World, words: &[&str]) -> String {
    let words: Vec<_> = ["operator"].iter().chain(words).copied().collect();
    let run = world.command(&words).await;
    assert_eq!((run.code, run.out.as_str()), (1, ""), "{words:?}");
    run.err
}

/// All bytes of the files of a folder.
fn bytes_of(folder: &Path, is_meant: impl Fn(&str) -> bool) -> Vec<u8> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry"));
    let named = entries.filter(|entry| is_meant(&entry.file_name().to_string_lossy()));
    let files = named.filter(|entry| entry.path().is_file());
    files.flat_map(|file| std::fs::read(file.path()).expect("a file")).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

/// The store that the world's commands use.
async fn store_of(world: &World) -> OpenStore {
    let conf = std::fs::read_to_string(world.path("tollgate.toml")).expect("the configuration");
    let url = conf.lines().find_map(|line| line.strip_prefix("url = \"")?.strip_suffix('"'));
    let url = url.expect("the address of the store").to_owned();
    store::open(&at(url)).await.expect("the store")
}

async fn find(world: &World, token: &str) -> Option<OperatorRecord> {
    let hash = TokenHash::of(token).expect("a token");
    store_of(world).await.operators.find_operator(hash).await.expect("an answer")
}

#[rstest]
#[tokio::test]
async fn a_token_is_shown_once_and_kept_nowhere(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store);
    let mut world =
        if store == Store::Redis { builder.own_redis().run().await } else { builder.run().await };
    let first = world.command(&["operator", "add", "ada"]).await;
    assert!(first.err.contains("'ada' is the first operator, and so an owner"), "{}", first.err);
    let ada = first.done().trim().to_owned();
    let bob = shown(&world, &["add", "bob", "--role", "support", "--expires", "90d"]).await;
    let promised = ["token", "name", "role", "prefix", "expires_at"].into_iter().collect();
    assert_eq!(fields(&bob), promised);
    assert_eq!((&bob["name"], &bob["role"]), (&json!("bob"), &json!("support")));
    let of_bob = bob["token"].as_str().expect("a token").to_owned();
    let eve = plain(&world, &["add", "eve"]).await;
    let later = plain(&world, &["rotate", "eve", "--expires", "2099-01-31"]).await;
    let rotated = shown(&world, &["rotate", "bob"]).await;
    assert_eq!(rotated["expires_at"], Value::Null);
    let last = rotated["token"].as_str().expect("a token").to_owned();

    let found = find(&world, &ada).await.expect("an operator");
    assert_eq!((found.name.as_str(), found.role), ("ada", Role::Owner));
    for gone in [&of_bob, &eve] {
        assert_eq!(find(&world, gone).await, None, "an earlier token works");
    }
    let found = find(&world, &later).await.expect("an operator");
    assert_eq!((found.role, found.expires_at), (Role::Operator, Some(4_073_500_800)));
    world.command(&["operator", "revoke", "bob"]).await.done();
    assert_eq!(find(&world, &last).await, None);

    let trail = std::fs::read(world.path(TRAIL)).expect("the audit trail");
    let mut kept = bytes_of(world.path(".").as_path(), |name| name.contains(".db"));
    if store == Store::Redis {
        let copy = world.redis().copy();
        kept = bytes_of(copy.path(), |_| true);
    }
    assert!(contains(&kept, SHOWN.0), "what the store has written was not found");
    for token in [&ada, &of_bob, &eve, &later, &last] {
        assert!(token.starts_with(SHOWN.0) && token.len() == SHOWN.0.len() + 64, "{token}");
        // One digit more than is shown.
        let secret = &token[..=SHOWN.0.len() + SHOWN.1];
        assert!(!contains(&kept, secret), "the store has it");
        assert!(!contains(&trail, secret), "the audit trail has it");
        assert!(!contains(&kept, &token[SHOWN.0.len()..]), "the store has its digits");
    }
}

#[rstest]
#[tokio::test]
async fn operators_are_listed_by_name(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).run().await;
    assert_eq!(world.command(&["operator", "list"]).await.done(), "");
    let bob = shown(&world, &["add", "bob", "--role", "operator", "--expires", "2099-01-31"]).await;
    let ada = shown(&world, &["add", "ada", "--role", "owner"]).await;
    let listed = world.command(&["--json", "operator", "list"]).await.json();
    let names: Vec<_> = listed.iter().map(|one| one["name"].as_str()).collect();
    assert_eq!(names, [Some("ada"), Some("bob")]);
    for (listed, added) in listed.iter().zip([&ada, &bob]) {
        let promised = ["name", "role", "prefix", "created_at", "expires_at"].into_iter().collect();
        assert_eq!(fields(listed), promised);
        for member in ["name", "role", "prefix", "expires_at"] {
            assert_eq!(listed[member], added[member], "{member}");
        }
    }
    let text = world.command(&["operator", "list"]).await.done();
    let prefix = |added: &Value| added["prefix"].as_str().expect("a prefix").to_owned();
    let expected = format!(
        "ada  owner  {}…  valid  expires -\nbob  operator  {}…  valid  expires \
         2099-01-31T00:00:00Z\n",
        prefix(&ada),
        prefix(&bob)
    );
    assert_eq!(text, expected);
}

#[rstest]
#[tokio::test]
async fn the_last_owner_stays(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).run().await;
    let ada = plain(&world, &["add", "ada", "--role", "owner"]).await;
    shown(&world, &["add", "eve", "--role", "owner", "--expires", "90d"]).await;
    for words in [&["revoke", "ada"][..], &["rotate", "ada", "--expires", "90d"]] {
        let told = fault(&world, words).await;
        assert!(told.contains("'ada' is the last owner whose token does not expire"), "{told}");
    }
    assert!(find(&world, &ada).await.is_some());
    // A name that is taken, and one that nobody has.
    let told = fault(&world, &["add", "ada", "--role", "support"]).await;
    assert!(told.contains("there is an operator 'ada' already"), "{told}");
    for words in [["rotate", "bob"], ["revoke", "bob"]] {
        let told = fault(&world, &words).await;
        assert!(told.contains("there is no operator 'bob'"), "{told}");
    }
    plain(&world, &["rotate", "eve"]).await;
    let told = shown(&world, &["revoke", "ada"]).await;
    assert_eq!(told, json!({ "name": "ada", "revoked": true }));
    assert_eq!(find(&world, &ada).await, None);
}

#[tokio::test]
async fn what_is_no_operator_is_refused() {
    let world = World::start(Store::Sqlite).run().await;
    for (words, told) in [
        (&["add", "a b"][..], "'a b' is no name of an operator: 1 to 64 letters"),
        (&["add", "ada", "--role", "root"], "the roles are support, operator, owner"),
        (&["add", "ada", "--expires", "soon"], "as in 90d or 12h"),
        (&["add", "ada", "--expires", "2020-01-31"], "not in the future"),
        (&["rotate", "a/b"], "is no name of an operator"),
        (&["revoke", ""], "is no name of an operator"),
    ] {
        let why = fault(&world, words).await;
        assert!(why.contains(told), "{words:?}: {why}");
    }
    assert_eq!(world.command(&["operator", "list"]).await.done(), "");
    assert!(!world.path(TRAIL).exists(), "nothing was begun");
}

#[rstest]
#[tokio::test]
async fn each_change_of_an_operator_is_told(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).run().await;
    plain(&world, &["add", "ada", "--role", "owner"]).await;
    fault(&world, &["revoke", "ada"]).await;
    plain(&world, &["add", "bob"]).await;
    plain(&world, &["rotate", "bob"]).await;
    shown(&world, &["revoke", "bob"]).await;
    let told = |line: &Value| ["action", "operator", "role", "result"].map(|f| line[f].clone());
    let line = |action: &str, name: &str, role: &str, result: &str| {
        [action, name, role, result].map(Value::from)
    };
    let trail = std::fs::read_to_string(world.path(TRAIL)).expect("the audit trail");
    let trail = trail.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
    let (begun, ended): (Vec<_>, Vec<_>) = trail.partition(|line| line["stage"] == "begun");
    assert_eq!(begun.len(), ended.len());
    let ended: Vec<_> = ended.iter().map(told).collect();
    let mut expected = vec![
        line("operator.add", "ada", "owner", "done"),
        line("operator.revoke", "ada", "owner", "failed"),
        line("operator.add", "bob", "operator", "done"),
        line("operator.rotate", "bob", "operator", "done"),
        line("operator.revoke", "bob", "operator", "done"),
    ];
    assert_eq!(ended, expected);

    // The store has one line about each change, newest first.
    expected.reverse();
    let kept = store_of(&world).await.operators.read_audit(None, 10).await.expect("lines");
    let numbers: Vec<u64> = kept.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [5, 4, 3, 2, 1]);
    let lines = kept.iter().map(|(_, line)| serde_json::from_str(line).expect("a line"));
    let lines: Vec<Value> = lines.collect();
    assert_eq!(lines.iter().map(told).collect::<Vec<_>>(), expected);
    let uid = rustix::process::getuid().as_raw();
    assert!(lines.iter().all(|line| line["uid"] == uid && line["from"] == "cli"), "{lines:?}");
}

#[tokio::test]
async fn what_cannot_be_written_down_is_not_done() {
    let world = World::start(Store::Sqlite).run().await;
    std::fs::write(world.path("gone"), "a file and no folder").expect("written");
    let to = format!("file:{}", world.path("gone").join("x/audit").display());
    let env = [("TOLLGATE__AUDIT__TO", to.as_str())];
    let run = world.command_with(&["operator", "add", "ada", "--role", "owner"], &env).await;
    assert_eq!((run.code, run.out.as_str()), (1, ""));
    assert!(run.err.contains("so nothing was changed"), "{}", run.err);
    assert_eq!(world.command(&["operator", "list"]).await.done(), "");
}

#[rstest]
#[tokio::test]
async fn a_new_token_and_a_removal_end_the_sessions_of_an_operator(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    for name in ["ada", "bob"] {
        plain(&world, &["add", name, "--role", "owner"]).await;
    }
    let sessions = store_of(&world).await.sessions;
    let principal = |name: &str| Principal::Operator(name.to_owned());
    let of_ada = SessionSecret::from_random([1; 32]).hash();
    sessions.add_session(of_ada, &principal("ada"), 3_600_000).await.expect("a session");
    for (words, seed) in [(["rotate", "bob"], 2), (["revoke", "bob"], 3)] {
        let secret = SessionSecret::from_random([seed; 32]).hash();
        sessions.add_session(secret, &principal("bob"), 3_600_000).await.expect("a session");
        sessions.add_link(secret, &principal("bob"), 3_600_000).await.expect("a link");
        world.command(&["operator", words[0], words[1]]).await.done();
        assert_eq!(sessions.find_session(secret).await, Ok(None), "{words:?}");
        assert_eq!(sessions.use_link(secret).await, Ok(None), "{words:?}");
    }
    // As if they had not been ended.
    let secret = SessionSecret::from_random([4; 32]).hash();
    sessions.add_session(secret, &principal("bob"), 3_600_000).await.expect("a session");
    plain(&world, &["add", "bob"]).await;
    assert_eq!(sessions.find_session(secret).await, Ok(None), "another bob has not signed in");
    // What is refused ends nothing.
    fault(&world, &["revoke", "ada"]).await;
    fault(&world, &["add", "ada"]).await;
    let found = sessions.find_session(of_ada).await.expect("an answer").expect("a session");
    assert_eq!(found.principal, principal("ada"));
}

#[rstest]
#[tokio::test]
async fn sessions_end_for_one_person_alone_and_that_is_recorded(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit("1").run().await;
    plain(&world, &["add", "ada"]).await;
    let identity = |role| Principal::Identity { name: "ada@example.com".to_owned(), role };
    let account = AccountName::parse(ACCOUNT).expect("a name");
    let people = [
        Principal::Operator("ada".to_owned()),
        Principal::Account(account),
        identity(Role::Owner),
        identity(Role::Support),
    ];
    let sessions = store_of(&world).await.sessions;
    let secret = |at: usize| SessionSecret::from_random([at.to_le_bytes()[0]; 32]).hash();
    for (at, person) in people.iter().enumerate() {
        sessions.add_session(secret(at), person, 3_600_000).await.expect("a session");
        sessions.add_link(secret(at), person, 3_600_000).await.expect("a link");
    }
    let mut is_in = [true; 4];
    for (option, name, ends) in [
        ("--account", ACCOUNT, &[1][..]),
        ("--identity", "ada@example.com", &[2, 3]),
        ("--operator", "ada", &[0]),
    ] {
        let words = ["--json", "console", "end-sessions", option, name];
        let told = world.command(&words).await.json();
        assert_eq!(told, [json!({ "sessions_ended": ends.len() })], "{option}");
        ends.iter().for_each(|at| is_in[*at] = false);
        for (at, is_in) in is_in.iter().enumerate() {
            let found = sessions.find_session(secret(at)).await.expect("an answer");
            assert_eq!(found.is_some(), *is_in, "{option}: {:?}", people[at]);
        }
        assert_eq!(sessions.use_link(secret(ends[0])).await, Ok(None), "{option}");
        let again = world.command(&words[1..]).await.done();
        assert_eq!(again.trim(), "0 session(s) ended");
    }
    let text = std::fs::read_to_string(world.path(TRAIL)).expect("the audit trail");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
    let ended =
        lines.filter(|line| line["action"] == "console.end_sessions" && line["stage"] == "ended");
    let told = ended.map(|line| {
        ["account", "identity", "operator"].map(|name| line[name].as_str().map(str::to_owned))
    });
    let person = |at: usize, name: &str| {
        let mut expected = [None, None, None];
        expected[at] = Some(name.to_owned());
        expected
    };
    let expected = [(0, ACCOUNT), (1, "ada@example.com"), (2, "ada")];
    let expected = expected.map(|(at, name)| [person(at, name), person(at, name)]).concat();
    assert_eq!(told.collect::<Vec<_>>(), expected);
    for (words, told) in [
        (&["--operator", "bob"][..], "bob"),
        (&["--account", "nobody"], "there is no account 'nobody'"),
        (&["--identity", "a b"], "an identity has 1 to 255"),
        (&["--identity", ""], "an identity has 1 to 255"),
        (&["--identity", "a", "--operator", "ada"], "cannot be used with"),
        (&[], "--identity"),
    ] {
        let run = world.command(&[&["console", "end-sessions"], words].concat()).await;
        assert!(run.code != 0 && run.err.contains(told), "{words:?}: {}", run.err);
    }
}
