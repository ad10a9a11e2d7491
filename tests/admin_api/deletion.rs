//! Deleting accounts through the API and on the command line: what hinders it, that all gateways
//! heed it, what is refused and shown afterwards, and that the books stay.

use std::time::{Duration, Instant};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{AdminWorld, raw};
use crate::world::{ACCOUNT, Answer, CHAT, Store, chat_of};

/// Within this a deletion is noticed, as is promised, and some more for a busy machine.
const NOTICED: Duration = Duration::from_secs(5);

fn path() -> String {
    format!("accounts/{ACCOUNT}")
}

/// Pays back all that the account has.
async fn empty(api: &AdminWorld) {
    let account = api.get(&path()).await.json();
    let amount = account["available_usd"].as_str().expect("an amount");
    let refund = json!({ "account": ACCOUNT, "amount_usd": amount, "id": "all-of-it" });
    assert_eq!(api.post("refunds", refund).await.status, 201);
}

/// The id of the only charge.
async fn request_id(api: &AdminWorld) -> String {
    let charges = api.world.settled(1).await;
    assert_eq!(charges.len(), 1);
    let rows = api.rows(&format!("charges?account={ACCOUNT}"), 10).await;
    rows[0]["request_id"].as_str().expect("an id").to_owned()
}

/// What the command line and the API tell that is refused, by its code.
async fn all_is_refused(api: &AdminWorld, request: &str) {
    for (method, path, body) in [
        ("POST", "payments", json!({ "account": ACCOUNT, "amount_usd": "1", "id": "late" })),
        (
            "POST",
            "grants",
            json!({ "account": ACCOUNT, "amount_usd": "1", "id": "late", "expires_at": null }),
        ),
        (
            "POST",
            "refunds",
            json!({ "account": ACCOUNT, "amount_usd": "1", "id": "late", "reason": "late" }),
        ),
        (
            "POST",
            "corrections",
            json!({
                "account": ACCOUNT, "request_id": request, "amount_usd": "0.001", "id": "late",
                "reason": "late",
            }),
        ),
        ("POST", "keys", json!({ "account": ACCOUNT, "name": "late" })),
        ("PATCH", &path(), json!({ "suspended": false })),
        ("PATCH", &path(), json!({ "budgets": { "day": "1" } })),
    ] {
        let answer = api.send(method, path, body).await;
        let expected = (409, "account_deleted".to_owned());
        assert_eq!(answer.refusal(), expected, "{path}: {}", raw(&answer));
    }
    let again = api.post("accounts", json!({ "name": ACCOUNT })).await;
    assert_eq!(again.refusal(), (409, "account_exists".to_owned()));
    assert!(again.message().contains("was deleted"), "{}", raw(&again));
    let told = api.world.command(&["credit", "add", ACCOUNT, "1", "--id", "late"]).await;
    assert!(told.code == 1 && told.err.contains("is deleted"), "{told:?}");
}

async fn names(api: &AdminWorld, list: &str) -> Vec<Value> {
    api.rows(list, 10).await.iter().map(|row| row["name"].clone()).collect()
}

/// The deletion is told to be, and the books are there.
async fn the_books_stay(api: &AdminWorld, store: Store) {
    api.post("accounts", json!({ "name": "other" })).await;
    assert_eq!(names(api, "accounts").await, ["other"]);
    assert_eq!(names(api, "accounts?deleted=true").await, [ACCOUNT, "other"]);
    let shown = api.get(&path()).await.json();
    assert!(shown["deleted_at"].is_i64(), "{shown}");
    assert_eq!((&shown["available_nano"], &shown["held_nano"]), (&json!(0), &json!(0)));
    assert_eq!((&shown["budgets"], &shown["plan"]), (&json!([]), &json!(null)));
    assert_eq!(api.rows(&format!("keys?account={ACCOUNT}"), 10).await, [] as [Value; 0]);
    assert_eq!(api.rows(&format!("charges?account={ACCOUNT}"), 10).await.len(), 1);
    assert_eq!(api.rows(&format!("payments?account={ACCOUNT}"), 10).await.len(), 2);
    let world = &api.world;
    let listed = world.command(&["account", "list"]).await.done();
    assert!(listed.contains("other") && !listed.contains(ACCOUNT), "{listed}");
    let listed = world.command(&["account", "list", "--deleted"]).await.done();
    assert!(listed.contains(ACCOUNT) && listed.contains("deleted  "), "{listed}");
    assert_eq!(world.command(&["charges", ACCOUNT]).await.done().lines().count(), 1);
    let month = jiff::Timestamp::now().to_string()[..7].to_owned();
    world.command(&["statement", ACCOUNT, &month]).await.done();
    world.command(&["check", "--books"]).await.done();
    if store == Store::Sqlite {
        let backup = world.path("backup.tar");
        world.command(&["backup", backup.to_str().expect("a path")]).await.done();
    }
    let changes = api.rows("audit", 100).await;
    let deletions: Vec<_> = changes.iter().filter(|c| c["action"] == "account.delete").collect();
    let told = |change: &&Value| (change["who"].clone(), change["result"].clone());
    let told: Vec<_> = deletions.iter().map(told).collect();
    assert!(told.contains(&(json!("owner"), json!("failed"))), "{told:?}");
    assert!(told.contains(&(json!("owner"), json!("done"))), "{told:?}");
}

#[rstest]
#[tokio::test]
async fn an_account_is_deleted_once_it_is_empty_and_its_books_stay(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = AdminWorld::start(store).await;
    let world = &api.world;
    assert_eq!(world.ask(CHAT).await.status, 200);
    let request = request_id(&api).await;
    let method = Method::DELETE.as_str();
    for role in ["support", "operator"] {
        let sent = api.request(role, method, &format!("/admin/v1/{}", path()));
        assert_eq!(Answer::read(sent).await.status, 403, "{role}");
    }
    assert_eq!(api.delete("accounts/nobody").await.refusal().0, 404);
    let refused = api.delete(&path()).await;
    assert_eq!(refused.refusal(), (409, "account_not_empty".to_owned()));
    let told = refused.message();
    assert!(told.contains(" USD available"), "{told}");
    assert!(told.contains(&format!("`tollgate credit take {ACCOUNT} ")), "{told}");
    assert_eq!(world.get("/v1/models").await.status, 200, "nothing was changed");
    empty(&api).await;
    let second = if store == Store::Redis { Some(world.second_gateway().await) } else { None };
    let gateway = second.as_ref().unwrap_or(&world.gateway);
    let began = Instant::now();
    let noticing = async {
        loop {
            let asked = world.url_of(gateway, CHAT.path).json(&chat_of("lmb-5.5"));
            let answer = Answer::read(asked).await;
            if answer.status == 401 {
                return answer;
            }
            assert!(began.elapsed() < NOTICED, "it is not noticed: {answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let path = path();
    let (deleted, noticed) = tokio::join!(api.delete(&path), noticing);
    assert_eq!(deleted.status, 200, "{}", raw(&deleted));
    let reply = deleted.json();
    assert_eq!((&reply["deleted"], &reply["was_deleted"]), (&json!(true), &json!(false)));
    assert_eq!(noticed.code(), "invalid_api_key");
    let again = api.delete(&path).await.json();
    assert_eq!((&again["was_deleted"], &again["deleted_at"]), (&json!(true), &reply["deleted_at"]));
    let told = world.command(&["account", "delete", ACCOUNT]).await.done();
    assert!(told.contains("was deleted at") && told.contains("erased"), "{told}");
    all_is_refused(&api, &request).await;
    let told = world.command(&["account", "delete", "other"]).await;
    assert!(told.code == 1 && told.err.contains("there is no account 'other'"), "{told:?}");
    the_books_stay(&api, store).await;
}
