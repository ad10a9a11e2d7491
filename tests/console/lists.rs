//! Lists that may be long: an account's keys.

use serde_json::json;

use super::{Browser, Page, operator};
use crate::admin_api::AdminWorld;
use crate::world::{Store, World};

#[rstest::rstest]
#[tokio::test]
async fn keys_are_searched_and_read_page_by_page(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = AdminWorld::start(store).await;
    world.post("accounts", json!({ "name": "acme" })).await;
    let mut issued = Vec::new();
    for at in 0..55 {
        let body = json!({ "account": "acme", "name": format!("Robot {at}") });
        let key = world.post("keys", body).await.json();
        issued.push(key["prefix"].as_str().expect("a prefix").to_owned());
    }
    let body = json!({ "account": "acme", "name": "Only one", "budgets": { "day": "3" } });
    let last = world.post("keys", body).await.json()["prefix"].as_str().expect("one").to_owned();
    let support = Browser::of(&world, &operator("support")).await;
    let count = |html: &str, prefixes: &[String]| {
        prefixes.iter().filter(|prefix| html.contains(prefix.as_str())).count()
    };

    let account = support.get("/accounts/acme").await.html();
    assert!(account.contains("href=\"/accounts/acme/keys\""), "{account}");
    assert!(count(&account, &issued) <= 10, "{account}");

    let first = support.get("/accounts/acme/keys").await.html();
    let next = first.split("rel=\"next\" href=\"").nth(1).expect("a next page");
    let next = next.split('"').next().expect("an address").replace("&amp;", "&");
    let second = support.get(&next).await.html();
    assert!(!second.contains("rel=\"next\""), "{second}");
    issued.push(last.clone());
    assert_eq!((count(&first, &issued), count(&second, &issued)), (50, 6));
    assert!(issued.iter().all(|key| first.contains(key) != second.contains(key)));

    let found = support.get(&format!("/accounts/acme/keys?q={last}")).await.html();
    assert_eq!(count(&found, &issued), 1, "{found}");
    assert!(found.contains("3.00"), "its budget: {found}");
    for wanted in ["only", "ONLY+ONE"] {
        let found = support.get(&format!("/accounts/acme/keys?q={wanted}")).await.html();
        assert!(count(&found, &issued) == 1 && found.contains(&last), "{wanted}: {found}");
    }
    let found = support.get(&format!("/accounts/acme/keys?q={}", &issued[3][..13])).await.html();
    assert!(found.contains(&issued[3]), "{found}");
    let none = support.get("/accounts/acme/keys?q=%3Cb%3E").await.html();
    assert!(count(&none, &issued) == 0 && none.contains("&lt;b&gt;"), "{none}");
    assert_eq!(support.get("/accounts/acme/keys?after=x").await.status, 400);
    assert_eq!(support.get("/accounts/nobody/keys").await.status, 404);
}

#[tokio::test]
async fn a_redis_whose_memory_was_full_showed_no_keys_and_no_payments() {
    let world = AdminWorld::of(World::start(Store::Redis).own_redis()).await;
    world.post("accounts", json!({ "name": "acme" })).await;
    world.post("keys", json!({ "account": "acme", "name": "Robot" })).await;
    let body = json!({ "account": "acme", "amount_usd": "25", "id": "p1" });
    assert_eq!(world.post("payments", body).await.status, 201);
    let support = Browser::of(&world, &operator("support")).await;
    let mut connection = world.world.connect_to_redis();
    let full = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1").exec(&mut connection);
    full.expect("full");
    for path in ["/", "/accounts", "/accounts/acme", "/accounts/acme/keys", "/audit"] {
        assert_eq!(support.get(path).await.status, 200, "{path}");
    }
    assert!(support.get("/accounts/acme/keys").await.html().contains("Robot"));
    assert!(support.get("/accounts/acme").await.html().contains("p1"));
}
