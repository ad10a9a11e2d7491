//! What customers are told of their usage with the keys with which they make their calls: by day,
//! model and key, and in the reports that dashboards know.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{ACCOUNT, Answer, CHAT, EMBEDDING_B, Offer, Store, World};

/// Within this all charges are in the sums.
const PATIENCE: Duration = Duration::from_secs(30);
const USAGE: &str = "prompt=1000;completion=100";
/// What that costs at lmb-5.5, in nano-USD.
const COST: i64 = 1_000 * 5_000 + 100 * 30_000;
const DAY_S: i64 = 86_400;

async fn issue(world: &World, options: &[&str]) -> String {
    let words: Vec<_> = ["key", "issue", ACCOUNT].iter().chain(options).copied().collect();
    world.command(&words).await.done().trim().to_owned()
}

async fn call(world: &World, offer: Offer, key: &str) {
    let sent = offer.sent(&json!({}));
    let request = world.sending(offer.path, &sent.media, Some(key)).body(sent.bytes);
    let answer = Answer::read(request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// What a key is told at a path, as soon as it has so many calls in all.
async fn told(world: &World, key: &str, path: &str, calls: i64) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let told = world.get_with(path, key).await;
        assert_eq!(told.status, 200, "{path}: {told:?}");
        let told = told.json();
        let rows = told["data"].as_array().expect("rows").iter();
        let counted = |row: &Value| match row["results"].as_array() {
            Some(results) => results.iter().filter_map(|r| r["num_model_requests"].as_i64()).sum(),
            None => row["calls"].as_i64().expect("a number"),
        };
        let count: i64 = rows.map(counted).sum();
        if count == calls {
            return told;
        }
        assert!(count < calls && Instant::now() < end, "{path}: {told}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn key_id(world: &World, key: &str) -> String {
    let told = world.get_with("/v1/key", key).await.json();
    told["data"]["id"].as_str().expect("an id").to_owned()
}

/// The nano-USD of an amount in USD.
fn nano_of(usd: &Value) -> i64 {
    let text = usd.to_string();
    let (whole, decimals) = text.split_once('.').expect("a decimal");
    format!("{whole}{decimals:0<9}").parse().expect("a number")
}

/// When the current day of UTC began, in unix seconds.
fn today() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time");
    i64::try_from(now.as_secs()).expect("seconds") / DAY_S * DAY_S
}

#[rstest]
#[tokio::test]
async fn a_key_is_told_what_it_has_used_and_a_key_for_the_account_what_all_have(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &[USAGE]).run().await;
    let other_account = world.another_account("other", "5").await;
    let (narrow, wide) =
        (issue(&world, &[]).await, issue(&world, &["--endpoints", "chat,account"]).await);
    let (narrow_id, wide_id) = (key_id(&world, &narrow).await, key_id(&world, &wide).await);
    for key in [&narrow, &narrow, &wide, &other_account] {
        call(&world, CHAT, key).await;
    }
    call(&world, EMBEDDING_B, &narrow).await;
    let since = today() - DAY_S;

    let own = told(&world, &narrow, "/v1/usage?group_by=model", 3).await;
    let rows = own["data"].as_array().expect("rows");
    let chats = rows.iter().find(|row| row["model"] == CHAT.model).expect("a row");
    assert_eq!((&chats["calls"], &chats["charged_nano"]), (&json!(2), &json!(2 * COST)));
    assert_eq!((&chats["prompt_tokens"], &chats["key_id"]), (&json!(2_000), &Value::Null));
    assert!(rows.iter().all(|row| row.get("cost_nano").is_none()), "{own}");
    let own = told(&world, &narrow, "/v1/usage?group_by=key,hour", 3).await;
    let rows = own["data"].as_array().expect("rows").iter();
    assert!(rows.clone().all(|row| row["key_id"] == narrow_id), "{own}");

    let all = told(&world, &wide, "/v1/usage?group_by=key", 4).await;
    let calls_of = |id: &str| {
        let row = all["data"].as_array().expect("rows").iter().find(|row| row["key_id"] == id);
        row.map(|row| row["calls"].clone())
    };
    assert_eq!([calls_of(&narrow_id), calls_of(&wide_id)], [Some(json!(3)), Some(json!(1))]);
    told(&world, &wide, "/v1/usage", 4).await;
    told(&world, &other_account, "/v1/usage", 1).await;

    let costs = format!("/v1/organization/costs?start_time={since}&limit=3&group_by[]=line_item");
    let completions = format!(
        "/v1/organization/usage/completions?start_time={since}&group_by[]=api_key_id&limit=3"
    );
    let report = told(&world, &wide, &completions, 3).await;
    let results: Vec<&Value> = buckets(&report).collect();
    let of_key = |id: &str| results.iter().find(|r| r["api_key_id"] == id).expect("a result");
    assert_eq!(of_key(&narrow_id)["input_tokens"], 2_000, "{report}");
    assert_eq!(of_key(&wide_id)["num_model_requests"], 1);
    let own = told(&world, &narrow, &completions, 2).await;
    assert!(buckets(&own).all(|result| result["api_key_id"] == narrow_id), "{own}");
    let spent = world.get_with(&costs, &wide).await.json();
    let of_chat = buckets(&spent).filter(|r| r["line_item"] == CHAT.model);
    let nano: i64 = of_chat.map(|result| nano_of(&result["amount"]["value"])).sum();
    assert_eq!(nano, 3 * COST, "{spent}");
    // A key that is asked for and is not the own one has nothing.
    let others = format!("{completions}&api_key_ids[]={wide_id}");
    let none = world.get_with(&others, &narrow).await.json();
    assert_eq!(buckets(&none).count(), 0, "{none}");
}

/// The results of all buckets.
fn buckets(report: &Value) -> impl Iterator<Item = &Value> {
    assert_eq!(report["object"], "page", "{report}");
    let buckets = report["data"].as_array().expect("buckets").iter();
    buckets.flat_map(|bucket| bucket["results"].as_array().expect("results"))
}

#[tokio::test]
async fn what_is_wrong_with_a_question_about_usage_is_named_in_the_own_dialect() {
    let world = World::start(Store::Sqlite).run().await;
    for (path, param) in [
        ("/v1/usage?from=yesterday", "from"),
        ("/v1/usage?from=2020-01-01&to=2020-01-02&group_by=hour", "from"),
        ("/v1/usage?group_by=colour", "group_by"),
        ("/v1/usage?after=7", "after"),
        ("/v1/organization/costs", "start_time"),
        ("/v1/organization/costs?start_time=1&bucket_width=1h", "bucket_width"),
        (
            "/v1/organization/usage/completions?start_time=1795737600&bucket_width=1h&limit=999",
            "limit",
        ),
        ("/v1/organization/usage/completions?start_time=1&bucket_width=1h", "start_time"),
        ("/v1/organization/usage/completions?start_time=1&user_ids=u", "user_ids"),
    ] {
        let answer = world.get(path).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{path}: {error}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(param)), "{error}");
    }
}
