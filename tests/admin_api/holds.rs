//! What is held of accounts at the moment, as operators see it.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use rstest::rstest;
use serde_json::{Value, json};

use super::{AdminWorld, raw};
use crate::world::{ACCOUNT, Answer, Store, VIDEO, World, chat_of, quick};

/// A world whose videos are never made, and whose streams stop after their beginning.
pub(super) async fn world(store: Store) -> AdminWorld {
    let builder = World::start(store).vendor("vendor_b", &["stall=3"]);
    let builder = builder.vendor("vendor_d", &["never"]).credit("100").conf(&quick(&[]));
    AdminWorld::of(builder).await
}

/// Opens another account, and asks for a video with its key. Returns the id of the job and the key.
pub(super) async fn video_of_other(api: &AdminWorld) -> (String, String) {
    api.post("accounts", json!({ "name": "beta", "credit_usd": "100" })).await;
    let issued = api.post("keys", json!({ "account": "beta" })).await.json();
    let key = issued["key"].as_str().expect("a key").to_owned();
    let url = format!("http://{}{}", api.world.gateway.http, VIDEO.path);
    let body = VIDEO.sent(&json!({})).bytes;
    let request = api.world.client().post(url).bearer_auth(&key);
    let asked = Answer::read(request.header("content-type", "application/json").body(body)).await;
    assert_eq!(asked.status, 200, "{}", raw(&asked));
    (asked.json()["id"].as_str().expect("an id").to_owned(), key)
}

fn ids(rows: &[Value]) -> BTreeSet<String> {
    rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
}

#[rstest]
#[tokio::test]
async fn open_holds_are_all_that_an_account_has_held(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = world(store).await;
    assert!(api.rows("holds", 100).await.is_empty());
    let mut jobs = BTreeSet::new();
    for number in 0..3 {
        jobs.insert(api.world.place(json!({ "prompt": format!("number {number}") })).await);
    }
    let mut stream = api.world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(1).await;
    let (other, key) = video_of_other(&api).await;

    let own = format!("holds?account={ACCOUNT}");
    let listed = api.rows(&own, 100).await;
    let kinds: Vec<&str> = listed.iter().filter_map(|row| row["kind"].as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "job").count(), 3, "{listed:?}");
    assert_eq!(kinds.len(), 4, "{listed:?}");
    let sum: i64 = listed.iter().filter_map(|row| row["held_nano"].as_i64()).sum();
    let account = api.get(&format!("accounts/{ACCOUNT}")).await.json();
    assert_eq!(account["held_nano"], sum, "{listed:?}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_millis();
    let now = i64::try_from(now).expect("a time");
    for row in &listed {
        assert_eq!(row["account"], ACCOUNT, "{row}");
        let made_at = row["made_at"].as_i64().expect("a time");
        assert!((now - 60_000..=now + 1_000).contains(&made_at), "{row}");
        assert!(row["lease_until"].as_i64() > Some(made_at), "{row}");
        let is_job = row["kind"] == "job";
        assert_eq!(row["job_id"].as_str().is_some_and(|id| jobs.contains(id)), is_job, "{row}");
    }
    // A hold whose lease is renewed between two pages may be on both.
    assert_eq!(ids(&api.rows(&own, 1).await), ids(&listed));
    let all = api.rows("holds", 2).await;
    assert_eq!(ids(&all).len(), 5, "{all:?}");
    assert_eq!(
        all.last().map(|row| (&row["account"], &row["id"])),
        Some((&json!("beta"), &json!(other)))
    );
    for secret in [&key, &api.world.key] {
        let half = &secret[..secret.len() / 2];
        assert!(all.iter().all(|row| !row.to_string().contains(half)), "a key was shown");
    }

    let printed = api.world.command(&["--json", "holds", ACCOUNT]).await.json();
    assert_eq!(ids(&printed), ids(&listed));
    let words = api.world.command(&["holds"]).await.done();
    assert_eq!(words.lines().count(), 5, "{words}");
    let nobody = api.world.command(&["holds", "nobody"]).await;
    assert!(nobody.code != 0 && nobody.err.contains("there is no account 'nobody'"));
}
