//! Usage through the API and on the command line, and the proof of the books.

use std::time::Duration;

use rstest::rstest;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::{AdminWorld, USAGE, raw};
use crate::world::{Answer, Store, World, chat_of};

/// What a call costs: see the vendor's report in `AdminWorld::start`.
const COST: i64 = 1_000 * 5_000 + 100 * 30_000;
const CALLS: i64 = 3;

/// Waits until the sums have so many calls.
async fn calls_of(api: &AdminWorld, path: &str, calls: i64) -> Vec<Value> {
    let mut told = Value::Null;
    for _ in 0..200 {
        told = api.get(path).await.json()["data"].clone();
        let rows = told.as_array().expect("rows");
        if rows.iter().filter_map(|row| row["calls"].as_i64()).sum::<i64>() == calls {
            return rows.clone();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("there are not {calls} calls: {told}");
}

async fn charged_account(api: &AdminWorld) -> String {
    api.post("accounts", json!({ "name": "acme", "credit_usd": "5" })).await;
    let issued = api.post("keys", json!({ "account": "acme" })).await.json();
    let key = issued["key"].as_str().expect("a key").to_owned();
    for _ in 0..CALLS {
        let url = format!("http://{}/v1/chat/completions", api.world.gateway.http);
        let request = api.world.client().post(url).bearer_auth(&key).json(&chat_of("lmb-5.5"));
        assert_eq!(Answer::read(request).await.status, 200);
    }
    issued["id"].as_str().expect("an id").to_owned()
}

#[rstest]
#[tokio::test]
async fn calls_are_in_the_sums_within_seconds_and_a_correction_beside_them(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = AdminWorld::start(store).await;
    let key_id = charged_account(&api).await;
    let rows = calls_of(&api, "usage?account=acme&group_by=model,day", CALLS).await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    let row = &rows[0];
    assert_eq!((&row["model"], &row["key_id"]), (&json!("lmb-5.5"), &Value::Null));
    let day = row["day"].as_str().expect("a day");
    assert_eq!(row["start"], format!("{day}T00:00:00Z"));
    assert_eq!((&row["charged_nano"], &row["charged_usd"]), (&json!(3 * COST), &json!("0.024")));
    assert_eq!((&row["prompt_tokens"], &row["completion_tokens"]), (&json!(3_000), &json!(300)));
    let whole = "usage?account=acme&group_by=key,endpoint,hour";
    let rows = calls_of(&api, whole, CALLS).await;
    assert!(rows.iter().all(|row| row["key_id"] == key_id && row["endpoint"] == "chat"));

    let charges = api.get("charges?account=acme").await.json();
    let correction = json!({
        "account": "acme", "request_id": charges["data"][0]["request_id"], "amount_usd": "0.003",
        "id": "c", "reason": "cut off",
    });
    assert_eq!(api.post("corrections", correction).await.status, 201);
    let mut total = Value::Null;
    for _ in 0..200 {
        total = api.get("usage?account=acme&group_by=key").await.json()["data"][0].clone();
        if total["corrected_nano"] != 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!((&total["corrected_nano"], &total["calls"]), (&json!(3_000_000), &json!(3)));
    let account = api.get("accounts/acme").await.json();
    assert_eq!(account["posted_nano"], 3 * COST - 3_000_000);

    let words = ["--json", "usage", "acme", "--group-by", "model,day"];
    let told = api.world.command(&words).await.json();
    let of_model: Vec<_> = told.iter().filter(|row| row["model"] == "lmb-5.5").collect();
    assert_eq!(of_model.len(), 1, "{told:?}");
    assert_eq!(
        (&of_model[0]["day"], &of_model[0]["charged_nano"]),
        (&json!(day), &json!(3 * COST))
    );
    let shown = api.world.command(&["usage", "acme", "--group-by", "model"]).await.done();
    assert!(shown.contains("lmb-5.5  3 calls  3000+300 tokens  0.024 USD"), "{shown}");
}

#[rstest]
#[tokio::test]
async fn what_is_wrong_with_a_question_about_usage_is_named(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = AdminWorld::start(store).await;
    api.post("accounts", json!({ "name": "acme" })).await;
    for (path, status, param) in [
        ("usage", 400, "account"),
        ("usage?account=nobody", 404, "account"),
        ("usage?account=acme&group_by=colour", 400, "group_by"),
        ("usage?account=acme&from=yesterday", 400, "from"),
        ("usage?account=acme&from=2026-11-02&to=2026-11-01", 400, "from"),
        ("usage?account=acme&from=2020-01-01&to=2020-01-02&group_by=hour", 400, "from"),
        ("usage?account=acme&after=7", 400, "after"),
        ("usage?account=acme&limit=7", 400, "limit"),
    ] {
        let answer = api.get(path).await;
        let told = answer.json()["error"]["param"].clone();
        assert_eq!((answer.status, told), (status, json!(param)), "{path}: {}", raw(&answer));
    }
    let empty = api.get("usage?account=acme").await.json();
    assert_eq!(empty, json!({ "data": [], "has_more": false, "next": null }));
}

/// Adds a nano-USD to what was charged in the sums by day.
fn falsify_sums(api: &mut AdminWorld, store: Store) {
    if store == Store::Sqlite {
        let beside = Connection::open(api.world.path("tollgate.db")).expect("the store");
        beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
        let wrong = "UPDATE usage_rollup SET charged = charged + 1 WHERE kind = 'day'";
        beside.execute_batch(wrong).expect("changed");
        return;
    }
    let mut redis = api.world.redis().connection();
    // A server of its own has one world, in the first database after that of the tests.
    redis::cmd("SELECT").arg(1).exec(&mut redis).expect("a database");
    let mut texts = |words: &[&str]| -> Vec<String> {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut redis).expect("texts")
    };
    for kind in ["day", "day-keys"] {
        let index = format!("tollgate:{{acme}}:usage:1:{kind}");
        let day = texts(&["ZRANGE", &index, "0", "-1"]).remove(0);
        let rows = format!("{index}:{day}");
        let row = texts(&["HGETALL", &rows]);
        let charged = (CALLS * COST).to_string();
        let wrong = row[1].replace(&charged, &(CALLS * COST + 1).to_string());
        assert_ne!(wrong, row[1]);
        let script = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) return {}";
        texts(&["EVAL", script, "1", &rows, &row[0], &wrong]);
    }
}

#[rstest]
#[tokio::test]
async fn the_proof_of_the_books_tells_the_first_difference(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).own_redis().vendor("vendor_b", &[USAGE]);
    let mut api = AdminWorld::of(builder).await;
    charged_account(&api).await;
    calls_of(&api, "usage?account=acme", CALLS).await;
    let proved = api.world.command(&["--json", "check", "--books"]).await.json().remove(0);
    assert_eq!((&proved["lines"], &proved["lines_not_folded"]), (&json!(CALLS), &json!(0)));
    falsify_sums(&mut api, store);
    let command = api.world.command(&["check", "--books"]).await;
    assert_eq!(command.code, 1);
    let told = format!("the roll-up says {}, the journal {}", 3 * COST + 1, 3 * COST);
    assert!(command.err.contains("account 'acme'"), "{}", command.err);
    assert!(command.err.contains(&told), "{}", command.err);
}
