//! Granted credit through the API: its lots, what a call draws of it, and its end.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::{AdminWorld, raw};
use crate::world::{Answer, Store, chat_of};

/// 2030-01-01, as the API says it and as lots are named.
const DAY: &str = "2030-01-01T00:00:00Z";
const DAY_MS: &str = "1893456000000";
/// What a call costs: see the vendor's report in `AdminWorld::start`.
const COST: i64 = 1_000 * 5_000 + 100 * 30_000;

fn grant(usd: &str, id: &str, expires_at: &Value) -> Value {
    json!({ "account": "acme", "amount_usd": usd, "id": id, "expires_at": expires_at })
}

/// The body of an answer of the gateway to a key.
async fn get_with(api: &AdminWorld, key: &str, path: &str) -> Value {
    let url = format!("http://{}{path}", api.world.gateway.http);
    Answer::read(api.world.client().get(url).bearer_auth(key)).await.json()
}

/// Waits until the journal of the account has so many lines.
async fn lines_of(api: &AdminWorld, count: usize) -> Vec<Value> {
    for _ in 0..200 {
        let lines = api.get("charges?account=acme").await.json()["data"].clone();
        let lines = lines.as_array().expect("lines").clone();
        if lines.len() >= count {
            return lines;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("there are not {count} lines");
}

#[rstest]
#[tokio::test]
async fn a_call_draws_granted_credit_first_and_a_correction_returns_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = AdminWorld::start(store).await;
    api.post("accounts", json!({ "name": "acme", "credit_usd": "5" })).await;
    let body = grant("1", "g", &json!(DAY));
    let granted = api.post("grants", body.clone()).await;
    assert_eq!(granted.status, 201, "{}", raw(&granted));
    let granted = granted.json();
    assert_eq!((&granted["kind"], &granted["moved_usd"]), (&json!("grant"), &json!("1.00")));
    assert_eq!((&granted["source"], &granted["expires_at"]), (&json!("promotion"), &json!(DAY)));
    assert_eq!(api.post("grants", body).await.status, 201, "it counts once");
    let lots = |nano: i64, usd: &str| {
        json!([{ "source": "promotion", "expires_at": DAY, "available_nano": nano,
                 "available_usd": usd, "held_nano": 0, "held_usd": "0.00" }])
    };
    let account = async || api.get("accounts/acme").await.json();
    let whole = account().await;
    assert_eq!(whole["lots"], lots(1_000_000_000, "1.00"));
    assert_eq!(whole["credited_nano"], 6_000_000_000_i64);

    let issued = api.post("keys", json!({ "account": "acme" })).await.json();
    let key = issued["key"].as_str().expect("a key");
    let url = format!("http://{}/v1/chat/completions", api.world.gateway.http);
    let request = api.world.client().post(url).bearer_auth(key).json(&chat_of("lmb-5.5"));
    assert_eq!(Answer::read(request).await.status, 200);
    let charge = lines_of(&api, 1).await.remove(0);
    assert_eq!(charge["lots"], format!("{DAY_MS}/promotion {COST}"));
    assert_eq!(account().await["lots"], lots(1_000_000_000 - COST, "0.992"));
    let credits = get_with(&api, key, "/v1/credits").await;
    let data = json!({ "total_credits": 6.0, "total_usage": 0.008 });
    assert_eq!((&credits["balance"], &credits["data"]), (&json!("5.992"), &data));

    let correction = json!({
        "account": "acme", "request_id": charge["request_id"], "amount_usd": "0.003", "id": "c",
        "reason": "cut off",
    });
    assert_eq!(api.post("corrections", correction).await.status, 201);
    let corrected = lines_of(&api, 2).await.remove(1);
    assert_eq!(corrected["lots"], format!("{DAY_MS}/promotion 3000000"));
    assert_eq!(account().await["lots"], lots(1_000_000_000 - COST + 3_000_000, "0.995"));
    let back = json!({ "account": "acme", "amount_usd": "6", "id": "r" });
    let back = api.post("refunds", back).await.json();
    assert_eq!(back["moved_nano"], 5_000_000_000_i64, "only paid credit is paid back");
    assert_eq!(account().await["available_nano"], 1_000_000_000 - COST + 3_000_000);
    let listed = api.get("payments?account=acme").await.json();
    let row = |at: usize, name: &str| listed["data"][at][name].clone();
    let told = [row(1, "kind"), row(1, "source"), row(1, "expires_at")];
    assert_eq!(told, ["grant", "promotion", DAY]);
    assert_eq!([row(0, "source"), row(0, "expires_at")], [Value::Null, Value::Null]);
}

#[rstest]
#[tokio::test]
async fn an_expiry_is_a_line_that_keys_for_the_account_see(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = AdminWorld::start(store).await;
    api.post("accounts", json!({ "name": "acme", "credit_usd": "5" })).await;
    let end = jiff::Timestamp::now().as_second() + 2;
    assert_eq!(api.post("grants", grant("1", "g", &json!(end))).await.status, 201);
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(api.get("accounts/acme").await.json()["available_nano"], 5_000_000_000_i64);
    // Any change lets it expire in the books as well.
    api.post("payments", json!({ "account": "acme", "amount_usd": "1", "id": "p" })).await;
    let line = lines_of(&api, 1).await.remove(0);
    let expected = json!({
        "seq": 1, "account": "acme", "kind": "expiry", "request_id": null,
        "amount_nano": 1_000_000_000, "amount_usd": "1.00", "written_off_nano": 0,
        "expired": format!("{end}000/promotion"), "at": line["at"],
    });
    assert_eq!(line, expected);
    assert!(line["at"].as_i64().is_some_and(|at| at >= end * 1_000), "{line}");
    let key = async |body: Value| {
        let issued = api.post("keys", body).await.json();
        issued["key"].as_str().expect("a key").to_owned()
    };
    let narrow = key(json!({ "account": "acme" })).await;
    let wide = key(json!({ "account": "acme", "endpoints": ["account"] })).await;
    assert_eq!(get_with(&api, &narrow, "/v1/charges").await["data"], json!([]));
    let told = get_with(&api, &wide, "/v1/charges").await["data"][0].clone();
    assert_eq!((&told["kind"], &told["id"]), (&json!("expiry"), &Value::Null));
    assert_eq!((&told["amount_usd"], &told["key_id"]), (&json!("1.00"), &Value::Null));
    let credits = get_with(&api, &narrow, "/v1/credits").await;
    assert_eq!(credits["balance"], "6.00");
    assert_eq!(credits["data"]["total_credits"], 6.0);
}

#[rstest]
#[tokio::test]
async fn a_grant_that_cannot_be_is_refused(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let api = AdminWorld::start(store).await;
    api.post("accounts", json!({ "name": "acme" })).await;
    let with = |name: &str, value: Value| {
        let mut body = grant("1", "g", &json!(DAY));
        body[name] = value;
        body
    };
    let mut without = with("id", json!("g"));
    without.as_object_mut().expect("an object").remove("expires_at");
    let mut paid = with("source", json!("paid"));
    paid["expires_at"] = Value::Null;
    for (body, param, told) in [
        (without, "expires_at", "missing field `expires_at`"),
        (with("expires_at", json!("soon")), "expires_at", "'soon' is no time"),
        (
            with("expires_at", json!("2020-01-01")),
            "expires_at",
            "expires_at '2020-01-01' is not in the future: give a time after 20",
        ),
        (
            with("expires_at", json!("2099-01-01")),
            "expires_at",
            "'2099-01-01T00:00:00Z' is more than ten years away: give a time up to 20",
        ),
        (paid, "expires_at", "is a payment"),
        (with("source", json!("gift")), "source", "the sources are promotion, voucher, paid"),
        (with("amount_usd", json!("0")), "amount_usd", "must be above 0"),
        (with("reason", json!("x")), "reason", "unknown field `reason`"),
    ] {
        let answer = api.post("grants", body.clone()).await;
        assert_eq!(answer.status, 400, "{body}: {}", raw(&answer));
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {}", raw(&answer));
        assert!(answer.message().contains(told), "{body}: {}", answer.message());
    }
    let nobody = api.post("grants", with("account", json!("nobody"))).await;
    assert_eq!(nobody.refusal(), (404, "account_not_found".to_owned()));
    for day in 1..=15 {
        let body = grant("1", &format!("g-{day}"), &json!(format!("2030-01-{day:02}")));
        assert_eq!(api.post("grants", body).await.status, 201, "{day}");
    }
    let reused = api.post("grants", grant("2", "g-1", &json!("2030-01-01"))).await;
    assert_eq!(reused.refusal(), (409, "id_reused".to_owned()));
    let many = api.post("grants", grant("1", "h", &json!("2030-02-01"))).await;
    assert_eq!(many.refusal(), (409, "too_many_lots".to_owned()));
    let first = "(promotion until 2030-01-01T00:00:00Z)";
    assert!(many.message().contains(first), "{}", many.message());
    let named = grant("1", "i", &json!("2030-01-15"));
    let done = api.post_named("k", "grants", named.clone()).await;
    let again = api.post_named("k", "grants", named).await;
    assert_eq!((done.status, raw(&done)), (201, raw(&again)));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(api.get("accounts/acme").await.json()["credited_nano"], 16_000_000_000_i64);
}
