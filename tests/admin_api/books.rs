//! An account from its first payment to its suspension, through the API, at two gateways.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use super::AdminWorld;
use crate::world::{Answer, Process, Store, World, chat_of, closed_port};

/// Makes a call of a key at a gateway.
async fn call(world: &World, gateway: &Process, key: &str) -> Answer {
    let url = format!("http://{}/v1/chat/completions", gateway.http);
    let request = world.client().post(url).bearer_auth(key);
    Answer::read(request.json(&chat_of("lmb-5.5"))).await
}

/// The operator is at one gateway and the customer at both, and the account is so busy that they
/// borrow of its money.
#[rstest]
#[tokio::test]
async fn the_books_of_a_busy_account_agree_from_its_first_payment_to_its_refund(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = AdminWorld::start(store).await;
    let console = closed_port();
    let console = console.trim_start_matches("http://").trim_end_matches("/v1");
    let second = api.world.gateway_with("second", &[("TOLLGATE__LISTEN__CONSOLE", console)]).await;
    let gateways = [&api.world.gateway, &second];
    api.post("accounts", json!({ "name": "acme" })).await;
    let paid = json!({ "account": "acme", "amount_usd": "500", "id": "p" });
    assert_eq!(api.post("payments", paid.clone()).await.status, 201);
    assert_eq!(api.post("payments", paid).await.status, 201, "the same again");
    let issued = json!({ "account": "acme", "budgets": { "day": "400" }, "models": ["lmb-*"] });
    let issued = api.post("keys", issued).await.json();
    let (key, prefix) = (issued["key"].as_str().expect("a key"), &issued["prefix"]);
    let mut calls = 0;
    for _ in 0..12 {
        let burst = (0..16).map(|at| call(&api.world, gateways[at % 2], key));
        for answer in join_all(burst).await {
            assert_eq!(answer.status, 200);
            calls += 1;
        }
    }
    let sum = |lines: &Value, name: &str| -> i64 {
        let lines = lines["data"].as_array().expect("a list");
        lines.iter().map(|line| line[name].as_i64().expect("an amount")).sum()
    };
    let charges = async || api.get("charges?account=acme&limit=1000").await.json();
    let end = Instant::now() + Duration::from_secs(5);
    while charges().await["data"].as_array().map(Vec::len) != Some(calls) {
        assert!(Instant::now() < end, "not all calls are charged");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lines = charges().await;
    let charged = sum(&lines, "amount_nano");
    let shown = api.get(&format!("keys/{}", prefix.as_str().expect("a prefix"))).await.json();
    assert_eq!(shown["budgets"][0]["spent_nano"], charged, "{shown}");

    let first = &lines["data"][0];
    let wrong = json!({ "account": "acme", "request_id": first["request_id"], "amount_usd": "9",
                        "id": "c", "reason": "cut off" });
    let given = api.post("corrections", wrong).await.json()["moved_nano"].as_i64();
    assert_eq!(given, first["amount_nano"].as_i64(), "at most what is left of it");
    let given = given.expect("an amount");
    let spent = api.get(&format!("keys/{}", prefix.as_str().expect("a prefix"))).await.json();
    assert_eq!(spent["budgets"][0]["spent_nano"], charged - given);
    // Both gateways have borrowed of what is left.
    let back = json!({ "account": "acme", "amount_usd": "600", "id": "r" });
    let back = api.post("refunds", back).await.json();
    let paid_nano = 500_000_000_000;
    assert_eq!(back["moved_nano"], paid_nano - (charged - given), "{back}");
    assert_eq!(back["uncovered_nano"], 100_000_000_000_i64 + charged - given);
    let account = api.get("accounts/acme").await.json();
    assert_eq!((&account["available_nano"], &account["held_nano"]), (&json!(0), &json!(0)));
    assert_eq!(account["posted_nano"], charged - given);
    assert_eq!(account["credited_nano"], charged - given);
    for gateway in gateways {
        assert_eq!(call(&api.world, gateway, key).await.status, 402, "nothing is left");
    }

    api.post("payments", json!({ "account": "acme", "amount_usd": "5", "id": "p2" })).await;
    assert_eq!(call(&api.world, &second, key).await.status, 200);
    api.send("PATCH", "accounts/acme", json!({ "suspended": true })).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for gateway in gateways {
        let refused = call(&api.world, gateway, key).await;
        let code = refused.json()["error"]["code"].clone();
        assert_eq!((refused.status, code), (403, json!("account_suspended")));
    }
    let moved = api.get("payments?account=acme").await.json();
    let kinds = moved["data"].as_array().expect("a list").iter().map(|line| line["kind"].clone());
    let kinds: Vec<Value> = kinds.collect();
    assert_eq!(kinds, ["payment", "correction", "refund", "payment"].map(Value::from));
}
