//! A job belongs to one account. To all others it is not there, whatever they try.

use rstest::rstest;
use serde_json::{Value, json};

use super::{SHORT, swift};
use crate::world::{Answer, Store, World};

/// Asks as somebody else does.
async fn tries(world: &World, key: &str, method: reqwest::Method, path: &str) -> Answer {
    let url = format!("http://{}{path}", world.gateway.http);
    Answer::read(world.client().request(method, url).bearer_auth(key)).await
}

#[rstest]
#[tokio::test]
async fn nobody_sees_fetches_or_deletes_anothers_job(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = swift(store).run().await;
    let own = world.key.clone();
    let other = world.another_account("stranger", "5").await;
    let mut jobs = Vec::new();
    for (key, name) in [(&own, "acct"), (&other, "stranger")] {
        world.key.clone_from(key);
        let done = world.place(json!({ "prompt": format!("{name} done") })).await;
        world.over(&done).await;
        let failed = world.place(json!({ "prompt": format!("{name} [fails]") })).await;
        world.over(&failed).await;
        let running = world.place(json!({ "prompt": format!("{name} [never]") })).await;
        world.in_progress(&running).await;
        jobs.push([done, failed, running]);
    }
    let not_found = || (404, "not_found".to_owned());
    for (key, ids) in [(&own, &jobs[1]), (&other, &jobs[0])] {
        for id in ids {
            for (method, path) in [
                (reqwest::Method::GET, format!("/v1/videos/{id}")),
                (reqwest::Method::GET, format!("/v1/videos/{id}/content")),
                (reqwest::Method::GET, format!("/v1/videos/{id}/file")),
                (reqwest::Method::DELETE, format!("/v1/videos/{id}")),
                (reqwest::Method::GET, format!("/v1/videos?after={id}")),
            ] {
                let what = format!("{method} {path}");
                let answer = tries(&world, key, method, &path).await;
                assert_eq!(answer.refusal(), not_found(), "{what}");
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                assert!(!body.contains("stranger") && !body.contains("acct"), "{body}");
            }
        }
    }
    for (key, ids) in [(&own, &jobs[0]), (&other, &jobs[1])] {
        let list = tries(&world, key, reqwest::Method::GET, "/v1/videos?order=asc").await.json();
        let listed = list["data"].as_array().expect("a list").iter().map(|job| job["id"].clone());
        assert_eq!(listed.collect::<Vec<Value>>(), ids.to_vec());
        for id in ids {
            let path = format!("/v1/videos/{id}");
            assert_eq!(tries(&world, key, reqwest::Method::GET, &path).await.status, 200);
        }
    }
    for (account, id) in [("acct", &jobs[0][0]), ("stranger", &jobs[1][0])] {
        let charges = world.command(&["--json", "charges", account]).await.json();
        assert_eq!((charges.len(), &charges[0]["request_id"]), (1, &json!(id)), "{charges:?}");
        assert_eq!(charges[0]["amount_nano"], SHORT);
    }
}

/// A job is its account's, whichever of the account's keys asks.
#[tokio::test]
async fn every_key_of_an_account_sees_its_jobs_and_a_revoked_one_sees_nothing() {
    let world = swift(Store::Sqlite).run().await;
    let id = world.place(json!({})).await;
    world.over(&id).await;
    let mut keys = Vec::new();
    for _ in 0..2 {
        let words = ["--json", "key", "issue", crate::world::ACCOUNT];
        keys.push(world.command(&words).await.json().remove(0));
    }
    let [good, revoked] = [&keys[0], &keys[1]].map(|key| key["key"].as_str().expect("a key"));
    let prefix = keys[1]["prefix"].as_str().expect("a prefix");
    world.command(&["key", "revoke", prefix]).await.done();
    let place = format!("/v1/videos/{id}");
    for path in [place.clone(), format!("{place}/content"), "/v1/videos".to_owned()] {
        assert_eq!(tries(&world, good, reqwest::Method::GET, &path).await.status, 200, "{path}");
        let answer = tries(&world, revoked, reqwest::Method::GET, &path).await;
        assert_eq!(answer.refusal(), (403, "key_revoked".to_owned()), "{path}");
    }
}

#[rstest]
#[tokio::test]
async fn without_a_good_key_there_is_nothing_to_see(
    #[values("", "sk-tg-0000000000000000000000000000000000000000000000000000000000000000")]
    key: &str,
) {
    let world = swift(Store::Sqlite).run().await;
    let id = world.place(json!({})).await;
    world.over(&id).await;
    let code = if key.is_empty() { "missing_api_key" } else { "invalid_api_key" };
    for (method, path) in [
        (reqwest::Method::GET, format!("/v1/videos/{id}")),
        (reqwest::Method::GET, format!("/v1/videos/{id}/content")),
        (reqwest::Method::DELETE, format!("/v1/videos/{id}")),
        (reqwest::Method::GET, "/v1/videos".to_owned()),
    ] {
        let url = format!("http://{}{path}", world.gateway.http);
        let request = world.client().request(method, url);
        let request = if key.is_empty() { request } else { request.bearer_auth(key) };
        assert_eq!(Answer::read(request).await.refusal(), (401, code.to_owned()), "{path}");
    }
    assert_eq!(world.video(&id).await.status(), "completed");
}

/// Ids that no job has, and that nobody may read a key of the store out of.
#[rstest]
#[tokio::test]
async fn what_is_no_id_is_not_found(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(
        "video_00000000-0000-7000-8000-000000000000",
        "video_",
        "a",
        "VIDEO_00000000-0000-7000-8000-000000000000",
        "00000000-0000-7000-8000-000000000000",
        "video_%00",
        "..%2f..%2fetc%2fpasswd",
        "video_*",
        "%7Bacct%7D:account"
    )]
    id: &str,
) {
    let world = swift(store).run().await;
    let place = format!("/v1/videos/{id}");
    for path in [place.clone(), format!("{place}/content"), format!("{place}/file?token=a")] {
        assert_eq!(world.get(&path).await.refusal(), (404, "not_found".to_owned()), "{path}");
    }
    assert_eq!(world.delete(&place).await.refusal(), (404, "not_found".to_owned()));
    let after = world.get(&format!("/v1/videos?after={id}")).await;
    assert_eq!(after.refusal(), (404, "not_found".to_owned()));
}
