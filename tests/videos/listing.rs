//! The list of an account's jobs, page by page.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Store, World, quick, with};

const JOBS: usize = 23;

fn ids(list: &Value) -> Vec<String> {
    let data = list["data"].as_array().expect("a list").iter();
    data.map(|job| job["id"].as_str().expect("an id").to_owned()).collect()
}

/// A world with jobs, oldest first.
async fn world(store: Store) -> (World, Vec<String>) {
    let builder = World::start(store).vendor("vendor_d", &["never"]).credit("100");
    let world = builder.conf(&quick(&[])).run().await;
    let mut jobs = Vec::new();
    for number in 0..JOBS {
        jobs.push(world.place(json!({ "prompt": format!("number {number}") })).await);
    }
    (world, jobs)
}

#[rstest]
#[tokio::test]
async fn a_list_is_read_page_by_page_in_either_order(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let (world, jobs) = world(store).await;
    let newest: Vec<_> = jobs.iter().rev().cloned().collect();
    for (order, expected) in [("", &newest), ("&order=desc", &newest), ("&order=asc", &jobs)] {
        for limit in [1, 5, 22, 23, 100] {
            let mut after = String::new();
            let mut found = Vec::new();
            loop {
                let path = format!("/v1/videos?limit={limit}{order}{after}");
                let answer = world.get(&path).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                let list = answer.json();
                assert_eq!(list.as_object().map(serde_json::Map::len), Some(5), "{list}");
                assert_eq!(list["object"], "list");
                let page = ids(&list);
                assert!(!page.is_empty() && page.len() <= limit, "{list}");
                assert_eq!(list["first_id"], page[0]);
                assert_eq!(list["last_id"], page[page.len() - 1]);
                found.extend(page);
                let more = list["has_more"].as_bool().expect("whether there is more");
                assert_eq!(more, found.len() < JOBS, "{path}");
                if !more {
                    break;
                }
                after = format!("&after={}", found[found.len() - 1]);
            }
            assert_eq!(found, *expected, "limit {limit}, order {order}");
        }
    }
    let list = world.get("/v1/videos").await.json();
    assert_eq!((ids(&list).as_slice(), &list["has_more"]), (&newest[..20], &json!(true)));
    // Its progress may have grown between the two answers.
    let without_progress = |video: &Value| with(video.clone(), &json!({ "progress": null }));
    let video = world.video(&newest[0]).await.json;
    assert_eq!(without_progress(&list["data"][0]), without_progress(&video), "the same object");
    let last = world.get(&format!("/v1/videos?after={}", jobs[0])).await.json();
    assert_eq!(last["data"], json!([]));
    assert_eq!((&last["first_id"], &last["last_id"]), (&Value::Null, &Value::Null));
    assert_eq!(last["has_more"], false);
}

/// A page goes on where the last one ended, even if that job has gone since then.
#[rstest]
#[tokio::test]
async fn deleted_jobs_leave_a_gap_and_nothing_else(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let (world, jobs) = world(store).await;
    for id in jobs.iter().step_by(2) {
        assert_eq!(world.delete(&format!("/v1/videos/{id}")).await.status, 200);
    }
    let left: Vec<_> = jobs.iter().skip(1).step_by(2).cloned().collect();
    let list = world.get("/v1/videos?order=asc&limit=100").await.json();
    assert_eq!(ids(&list), left);
    let list = world.get(&format!("/v1/videos?order=asc&limit=3&after={}", left[0])).await.json();
    assert_eq!(ids(&list), left[1..4]);
}

#[rstest]
#[tokio::test]
async fn an_account_without_jobs_has_an_empty_list(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let expected = json!({
        "object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false,
    });
    for query in ["", "?", "?limit=100&order=asc", "?unknown=1"] {
        assert_eq!(world.get(&format!("/v1/videos{query}")).await.json(), expected, "{query}");
    }
}

/// Queries for pages that cannot be, and the field that is named.
const WRONG: [(&str, &str); 10] = [
    ("limit=0", "limit"),
    ("limit=101", "limit"),
    ("limit=-1", "limit"),
    ("limit=x", "limit"),
    ("limit=", "limit"),
    ("limit=1.5", "limit"),
    ("limit=99999999999999999999", "limit"),
    ("order=up", "order"),
    ("order=ASC", "order"),
    ("order=", "order"),
];

#[tokio::test]
async fn a_page_that_cannot_be_is_refused_by_its_field() {
    let world = World::start(Store::Sqlite).run().await;
    for (query, param) in WRONG {
        let answer = world.get(&format!("/v1/videos?{query}")).await;
        assert_eq!(answer.refusal_of(query), (400, "invalid_value".to_owned()), "{query}");
        assert_eq!(answer.json()["error"]["param"], param, "{query}: {answer:?}");
    }
}
