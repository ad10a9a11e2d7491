//! Keys that replace others: what of the old one goes on, and when it ends.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{ACCOUNT, Answer, CHAT, Store, World, chat_of};

/// Within this an old key has ended, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The beginning of a key, as it is listed.
fn prefix_of(key: &str) -> &str {
    &key[..14]
}

/// The first object that a command prints.
async fn shown(world: &World, words: &[&str]) -> Value {
    let words: Vec<_> = ["--json"].iter().chain(words).copied().collect();
    world.command(&words).await.json().remove(0)
}

async fn listed(world: &World) -> Vec<Value> {
    world.command(&["--json", "key", "list", ACCOUNT]).await.json()
}

fn text<'a>(shown: &'a Value, name: &str) -> &'a str {
    shown[name].as_str().expect("a text")
}

async fn chat_with(world: &World, key: &str) -> Answer {
    let request = world.sending(CHAT.path, "application/json", Some(key));
    Answer::read(request.body(chat_of("lmb-5.5").to_string())).await
}

/// Waits until a key is refused, and panics unless it is with this.
async fn ends(world: &World, key: &str, status: u16, code: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = world.get_with("/v1/models", key).await;
        if answer.status != 200 {
            assert_eq!(answer.refusal(), (status, code.to_owned()));
            return;
        }
        assert!(Instant::now() < end, "it still works");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[rstest]
#[tokio::test]
async fn a_rotated_key_began_with_fresh_budgets_and_without_its_scope(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let words = ["--name", "ci", "--models", "lmb-*", "--tag", "team=a", "--budget", "total=3"];
    let words: Vec<_> = ["key", "issue", ACCOUNT].into_iter().chain(words).collect();
    let old = world.command(&words).await.done().trim().to_owned();
    assert_eq!(chat_with(&world, &old).await.status, 200);
    world.settled(1).await;
    let before = shown(&world, &["key", "show", prefix_of(&old)]).await;
    let rotate = ["key", "rotate", prefix_of(&old), "--overlap", "1h"];
    let rotated = shown(&world, &rotate).await;
    let new = text(&rotated, "key");
    assert_ne!(new, old);
    assert_eq!(text(&rotated, "prefix"), prefix_of(new));
    assert_eq!(text(&rotated, "old_prefix"), prefix_of(&old));
    assert_eq!(rotated["id"], before["id"]);
    for key in [old.as_str(), new] {
        assert_eq!(chat_with(&world, key).await.status, 200, "both work");
    }
    let charges = world.settled(3).await;
    let spent: i64 = charges.iter().map(|charge| charge.amount_nano).sum();
    let after = shown(&world, &["key", "show", prefix_of(new)]).await;
    let kept = ["id", "account", "name", "tags", "models", "endpoints", "from", "plan", "disabled"];
    for name in kept {
        assert_eq!(after[name], before[name], "{name}");
    }
    assert_eq!(after["expires_at"], Value::Null);
    let of_old = shown(&world, &["key", "show", prefix_of(&old)]).await;
    assert_eq!(of_old["expires_at"], rotated["old_key_ends_at"]);
    assert!(of_old["expires_at"].is_i64(), "{of_old}");
    for key in [&of_old, &after] {
        let budget = &key["budgets"][0];
        let sums = (&budget["limit_nano"], &budget["spent_nano"]);
        assert_eq!(sums, (&json!(3_000_000_000_u64), &json!(spent)), "{key}");
    }
    let lines = world.command(&["--json", "charges", ACCOUNT]).await.json();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line["key_id"] == before["id"]), "{lines:?}");
}

#[rstest]
#[tokio::test]
async fn an_old_key_ends_at_once_or_with_the_overlap(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    assert_eq!(world.get("/v1/models").await.status, 200);
    let second = world.command(&["key", "rotate", prefix_of(&world.key)]).await.done();
    assert_eq!(second.lines().count(), 1, "the key alone, so that a shell can take it");
    let second = second.trim();
    ends(&world, &world.key, 403, "key_revoked").await;
    assert_eq!(chat_with(&world, second).await.status, 200);
    let rotate = ["key", "rotate", prefix_of(second), "--overlap", "2s"];
    let third = world.command(&rotate).await.done();
    ends(&world, second, 401, "key_expired").await;
    assert_eq!(chat_with(&world, third.trim()).await.status, 200);
    world.settled(2).await;
    // A rotation gives no key more time than it had.
    let issue = ["key", "issue", ACCOUNT, "--expires", "1h"];
    let short = shown(&world, &issue).await;
    let rotate = ["key", "rotate", text(&short, "prefix"), "--overlap", "7d"];
    let rotated = shown(&world, &rotate).await;
    assert_eq!(rotated["old_key_ends_at"], short["expires_at"]);
    let new = shown(&world, &["key", "show", text(&rotated, "prefix")]).await;
    assert_eq!(new["expires_at"], short["expires_at"]);
}

#[rstest]
#[tokio::test]
async fn an_id_stands_for_all_keys_that_have_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let first = shown(&world, &["key", "show", prefix_of(&world.key)]).await;
    let id = text(&first, "id");
    let rotate = ["key", "rotate", text(&first, "prefix"), "--overlap", "1h"];
    let second = shown(&world, &rotate).await;
    let rotate = ["key", "rotate", text(&second, "prefix"), "--overlap", "2h"];
    let third = shown(&world, &rotate).await;
    let prefixes = [&first, &second, &third].map(|key| text(key, "prefix"));
    let keys = listed(&world).await;
    let of_list: Vec<_> = keys.iter().map(|key| text(key, "prefix")).collect();
    assert_eq!(of_list, prefixes, "oldest first, although they were made within a second");
    assert!(keys.iter().all(|key| key["id"] == first["id"]), "{keys:?}");
    assert_eq!(text(&shown(&world, &["key", "show", id]).await, "prefix"), prefixes[2]);
    let before: Vec<_> = keys.iter().map(|key| key["expires_at"].clone()).collect();
    let set = shown(&world, &["key", "set", id, "--name", "ci", "--no-expiry"]).await;
    assert_eq!((text(&set, "prefix"), text(&set, "name")), (prefixes[2], "ci"));
    let keys = listed(&world).await;
    assert!(keys.iter().all(|key| key["name"] == "ci"), "{keys:?}");
    let after: Vec<_> = keys.iter().map(|key| key["expires_at"].clone()).collect();
    assert_eq!(after, before, "old keys were given more time");
    let revoked = world.command(&["--json", "key", "revoke", id]).await.json();
    let revoked: Vec<_> = revoked.iter().map(|key| text(key, "prefix")).collect();
    assert_eq!(revoked, prefixes);
    assert!(listed(&world).await.iter().all(|key| key["revoked_at"].is_i64()));
}

#[rstest]
#[tokio::test]
async fn a_rotation_that_ended_halfway_is_begun_again_by_the_id(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let first = prefix_of(&world.key);
    let second = shown(&world, &["key", "rotate", first, "--overlap", "1h"]).await;
    // As if the command had ended before it came to the old key.
    world.command(&["key", "set", first, "--no-expiry"]).await.done();
    let third = shown(&world, &["key", "rotate", text(&second, "id")]).await;
    let keys = listed(&world).await;
    let alive: Vec<_> = keys.iter().filter(|key| key["revoked_at"].is_null()).collect();
    let [alive] = &alive[..] else { panic!("one is left: {keys:?}") };
    assert_eq!((&alive["prefix"], &alive["expires_at"]), (&third["prefix"], &Value::Null));
    assert_eq!(chat_with(&world, text(&third, "key")).await.status, 200);
    world.settled(1).await;
}

/// The key that had been replaced was ended soon, and so was the one that replaced it again.
#[tokio::test]
async fn a_key_that_was_replaced_is_rotated_to_one_that_lasts() {
    let world = World::start(Store::Sqlite).run().await;
    let first = prefix_of(&world.key);
    let rotate = ["key", "rotate", first, "--overlap", "1h"];
    shown(&world, &rotate).await;
    let third = shown(&world, &rotate).await;
    let new = shown(&world, &["key", "show", text(&third, "prefix")]).await;
    assert_eq!(new["expires_at"], Value::Null);
}

#[tokio::test]
async fn a_key_that_has_ended_is_not_rotated() {
    let world = World::start(Store::Sqlite).run().await;
    let expired = shown(&world, &["key", "issue", ACCOUNT, "--expires", "1s"]).await;
    let revoked = shown(&world, &["key", "issue", ACCOUNT]).await;
    world.command(&["key", "revoke", text(&revoked, "prefix")]).await.done();
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    for (words, told) in [
        (["key", "rotate", text(&expired, "prefix"), "--overlap=1h"], "has expired"),
        (["key", "rotate", text(&revoked, "prefix"), "--overlap=1h"], "is revoked"),
        (["key", "rotate", text(&revoked, "id"), "--overlap=1h"], "is revoked"),
        (["key", "rotate", "sk-nothing", "--overlap=1h"], "no key listed"),
        (["key", "rotate", prefix_of(&world.key), "--overlap=soon"], "as in 1h or 7d"),
    ] {
        let run = world.command(&words).await;
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{words:?}");
        assert!(run.err.contains(told), "{words:?}: {}", run.err);
    }
    assert_eq!(listed(&world).await.len(), 3);
}

#[rstest]
#[tokio::test]
async fn a_rotation_is_told_in_the_audit_trail_and_no_secret_with_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let old = prefix_of(&world.key);
    let rotated = shown(&world, &["key", "rotate", old, "--overlap", "1h"]).await;
    let trail = std::fs::read_to_string(world.path("var/audit.jsonl")).expect("the audit trail");
    let lines = trail.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
    let lines: Vec<_> = lines.filter(|line| line["action"] == "key.rotate").collect();
    let [begun, ended] = &lines[..] else { panic!("two lines: {lines:?}") };
    let limited = json!({ "expires_at": rotated["old_key_ends_at"] });
    for line in [begun, ended] {
        assert_eq!((text(line, "account"), text(line, "key_prefix")), (ACCOUNT, old));
        assert_eq!((&line["new_key_prefix"], &line["scope"]), (&rotated["prefix"], &limited));
    }
    assert_eq!((&begun["scope_before"], &ended["scope_after"]), (&json!({}), &limited));
    assert_eq!(ended["result"], "done");
    assert!(!trail.contains(&text(&rotated, "key")[..15]), "{trail}");
}

/// The trail told the new key without what it may do, and of several keys the change of one.
#[tokio::test]
async fn nobody_could_tell_what_a_rotation_had_made_of_the_other_keys() {
    let world = World::start(Store::Sqlite).run().await;
    let issue = ["key", "issue", ACCOUNT, "--models", "lmb-*"];
    let issued = shown(&world, &issue).await;
    let (first, id) = (text(&issued, "prefix"), text(&issued, "id"));
    let second = shown(&world, &["key", "rotate", first, "--overlap", "1h"]).await;
    let second = text(&second, "prefix");
    let before = json!({ "models": ["lmb-*"] });
    world.command(&["key", "set", id, "--models", "lma-*"]).await.done();
    let third = shown(&world, &["key", "rotate", id]).await;
    let trail = std::fs::read_to_string(world.path("var/audit.jsonl")).expect("the audit trail");
    let lines = trail.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
    let lines: Vec<_> = lines.filter(|line| line["key_prefix"] == second).collect();
    let [set, set_end, rotated, _] = &lines[..] else { panic!("four lines: {lines:?}") };
    let models = |scope: &Value| json!({ "models": scope["models"] });
    assert_eq!(models(&set["other_scopes_before"][first]), before, "{set}");
    let after = json!({ "models": ["lma-*"] });
    assert_eq!(models(&set_end["other_scopes_after"][first]), after, "{set_end}");
    assert_eq!(models(&rotated["new_scope"]), after, "{rotated}");
    assert_eq!(rotated["new_key_prefix"], third["prefix"]);
}

#[rstest]
#[tokio::test]
async fn a_key_that_was_never_used_says_so(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).run().await;
    let issued = shown(&world, &["key", "issue", ACCOUNT]).await;
    let prefix = text(&issued, "prefix");
    let key = shown(&world, &["key", "show", prefix]).await;
    assert_eq!(key.get("last_used_at"), Some(&Value::Null), "{key}");
    let plain = world.command(&["key", "show", prefix]).await.done();
    assert!(plain.contains("\nlast used    -\n"), "{plain}");
    let plain = world.command(&["key", "list", ACCOUNT]).await.done();
    assert!(plain.contains(&format!("{prefix}…  valid  last used -\n")), "{plain}");
}
