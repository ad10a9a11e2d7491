//! Video jobs of all accounts, as operators see them.

use rstest::rstest;
use serde_json::{Value, json};

use super::AdminWorld;
use super::holds::{video_of_other, world};
use crate::world::{ACCOUNT, Store, World, quick};

fn ids(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["id"].as_str().expect("an id")).collect()
}

#[rstest]
#[tokio::test]
async fn jobs_are_listed_by_account_and_state_also_those_that_their_clients_deleted(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = world(store).await;
    let mut own = Vec::new();
    for number in 0..3 {
        own.push(api.world.place(json!({ "prompt": format!("number {number}") })).await);
    }
    for id in &own {
        api.world.in_progress(id).await;
    }
    let (other, key) = video_of_other(&api).await;
    let of_account = format!("jobs?account={ACCOUNT}");
    for limit in [1, 2, 3, 100] {
        assert_eq!(ids(&api.rows(&of_account, limit).await), own, "{limit}");
        let all = api.rows("jobs", limit).await;
        assert_eq!(ids(&all), [own.as_slice(), std::slice::from_ref(&other)].concat(), "{limit}");
        let running = api.rows(&format!("{of_account}&state=in_progress"), limit).await;
        assert_eq!(ids(&running), own, "{limit}");
        for state in ["queued", "completed", "failed"] {
            assert!(api.rows(&format!("{of_account}&state={state}"), limit).await.is_empty());
        }
    }
    assert_eq!(api.world.delete(&format!("/v1/videos/{}", own[1])).await.status, 200);
    let listed = api.rows(&of_account, 2).await;
    assert_eq!(ids(&listed), own, "a vendor still works on it");
    let deleted: Vec<_> = listed.iter().map(|row| row["deleted"].clone()).collect();
    assert_eq!(deleted, [false, true, false].map(Value::from));
    for row in &listed {
        let told = (&row["state"], &row["stage"], &row["model"], &row["charged_nano"]);
        let expected = (&json!("in_progress"), &json!("running"), &json!("lmd-imagine-video"));
        assert_eq!(told, (expected.0, expected.1, expected.2, &Value::Null), "{row}");
        assert!(row["held_nano"].as_i64() > Some(0) && row["vendor_job_id"].is_string(), "{row}");
        assert!(row["error"].is_null() && row["ended_at"].is_null(), "{row}");
    }
    let all = api.rows("jobs", 100).await;
    for secret in [&key, &api.world.key] {
        let half = &secret[..secret.len() / 2];
        assert!(all.iter().all(|row| !row.to_string().contains(half)), "a key was shown");
    }
    let printed = api.world.command(&["--json", "jobs", ACCOUNT]).await.json();
    assert_eq!(ids(&printed), own);
    let words = api.world.command(&["jobs", "--state", "in_progress"]).await.done();
    assert!(words.lines().count() >= 3, "{words}");
    let wrong = api.world.command(&["jobs", "--state", "open"]).await;
    assert!(wrong.code != 0 && wrong.err.contains("no state of a job"), "{}", wrong.err);
}

#[rstest]
#[tokio::test]
async fn a_job_that_has_ended_tells_what_it_cost_and_holds_nothing(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = AdminWorld::of(World::start(store).credit("100").conf(&quick(&[]))).await;
    let id = api.world.place(json!({})).await;
    api.world.over(&id).await;
    let listed = api.rows("jobs?state=completed", 100).await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    let job = &listed[0];
    let charged = api.world.charge().await.amount_nano;
    assert_eq!((&job["id"], &job["stage"]), (&json!(id), &json!("ended")));
    assert_eq!((&job["charged_nano"], &job["held_nano"]), (&json!(charged), &json!(0)));
    assert!(job["ended_at"].as_i64() >= job["created_at"].as_i64(), "{job}");
    assert!(api.rows("holds", 100).await.is_empty());
}
