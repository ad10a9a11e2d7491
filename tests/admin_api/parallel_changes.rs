//! Changes of one key or one account that are made at the same time.

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use super::AdminWorld;
use crate::world::{ACCOUNT, Store};

/// The number of changes at a time.
const CHANGES: usize = 8;

async fn issue_key(world: &AdminWorld) -> Value {
    let issued = world.post("keys", json!({"account": ACCOUNT})).await;
    assert_eq!(issued.status, 201);
    issued.json()
}

fn text(value: &Value, member: &str) -> String {
    value[member].as_str().unwrap_or_else(|| panic!("{member} of {value}")).to_owned()
}

/// Two changes read the same scope, and the one that was written last took the other one back.
#[rstest]
#[tokio::test]
async fn of_two_changes_of_one_key_one_was_lost(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = AdminWorld::start(store).await;
    let path = format!("keys/{}", text(&issue_key(&world).await, "prefix"));
    let changes = (0..CHANGES).map(|at| json!({"tags": {format!("change-{at}"): "made"}}));
    let changes = changes.chain([json!({"disabled": true}), json!({"name": "ci"})]);
    let answers = join_all(changes.map(|change| world.send("PATCH", &path, change))).await;
    for answer in &answers {
        assert_eq!(answer.status, 200, "{}", super::raw(answer));
    }
    let key = world.get(&path).await.json();
    assert_eq!(key["tags"].as_object().map(serde_json::Map::len), Some(CHANGES), "{key}");
    assert_eq!((&key["disabled"], &key["name"]), (&json!(true), &json!("ci")), "{key}");
}

/// An account that was suspended while its plan was changed was served again.
#[rstest]
#[tokio::test]
async fn a_suspension_beside_another_change_was_lost(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = AdminWorld::start(store).await;
    let path = format!("accounts/{ACCOUNT}");
    for is_suspended in [true, false, true] {
        let suspending = world.send("PATCH", &path, json!({"suspended": is_suspended}));
        let others = (0..CHANGES).map(|_| world.send("PATCH", &path, json!({"plan": null})));
        let others = async { join_all(others).await };
        let (answer, others) = tokio::join!(suspending, others);
        for answer in others.iter().chain([&answer]) {
            assert_eq!(answer.status, 200, "{}", super::raw(answer));
        }
        let account = world.get(&path).await.json();
        assert_eq!(account["suspended"], is_suspended, "{account}");
    }
}

/// A key that was disabled while it was rotated lived on in the one that replaced it.
#[rstest]
#[tokio::test]
async fn a_key_that_was_disabled_while_it_was_rotated_lived_on(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = AdminWorld::start(store).await;
    for _ in 0..CHANGES {
        let key = issue_key(&world).await;
        let (prefix, id) = (text(&key, "prefix"), text(&key, "id"));
        let rotate = format!("keys/{prefix}/rotate");
        let by_id = format!("keys/{id}");
        let (rotated, changed) = tokio::join!(
            world.post(&rotate, json!({"overlap_s": 3_600})),
            world.send("PATCH", &by_id, json!({"disabled": true})),
        );
        assert_eq!(changed.status, 200, "{}", super::raw(&changed));
        assert_eq!(rotated.status, 201, "{}", super::raw(&rotated));
        for prefix in [prefix, text(&rotated.json(), "prefix")] {
            let key = world.get(&format!("keys/{prefix}")).await.json();
            assert_eq!(key["disabled"], true, "{key}");
        }
    }
}

/// A change of all keys of an id was written into keys that had ended, too, and gave them what they
/// had lost.
#[rstest]
#[tokio::test]
async fn a_change_by_id_was_written_into_a_key_that_had_ended(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = AdminWorld::start(store).await;
    let old = issue_key(&world).await;
    let (prefix, id) = (text(&old, "prefix"), text(&old, "id"));
    let rotate = format!("keys/{prefix}/rotate");
    let new = world.post(&rotate, json!({"overlap_s": 3_600})).await.json();
    let newer = format!("keys/{}", text(&new, "prefix"));
    assert_eq!(world.delete(&newer).await.status, 200);
    let changed = world.send("PATCH", &format!("keys/{id}"), json!({"name": "ci"})).await;
    assert_eq!(changed.status, 200, "{}", super::raw(&changed));
    assert_eq!(world.get(&newer).await.json()["name"], Value::Null);
    assert_eq!(world.get(&format!("keys/{prefix}")).await.json()["name"], "ci");
}

/// All keys of an id were revoked while one of them was rotated: the new one worked.
#[rstest]
#[tokio::test]
async fn a_key_that_was_revoked_while_it_was_rotated_lived_on(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(0, 3_600)] overlap_s: i64,
) {
    let world = AdminWorld::start(store).await;
    for _ in 0..CHANGES {
        let key = issue_key(&world).await;
        let (prefix, id) = (text(&key, "prefix"), text(&key, "id"));
        let (rotate, by_id) = (format!("keys/{prefix}/rotate"), format!("keys/{id}"));
        let body = json!({ "overlap_s": overlap_s });
        let (rotated, revoked) = tokio::join!(world.post(&rotate, body), world.delete(&by_id));
        assert_eq!(revoked.status, 200, "{}", super::raw(&revoked));
        assert!([201, 409].contains(&rotated.status), "{}", super::raw(&rotated));
        let keys = world.get(&format!("keys?account={ACCOUNT}&limit=1000")).await.json();
        let keys = keys["data"].as_array().expect("keys").clone();
        for key in keys.iter().filter(|key| key["id"] == id.as_str()) {
            assert_eq!(key["state"], "revoked", "{key}");
        }
    }
}
