//! The API of operators: who may do what, what is recorded of it, what a repeat gets, and how it
//! says what is wrong.

use std::collections::BTreeMap;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{ACCOUNT, Answer, Builder, Store, World, chat_of, closed_port};

mod books;
mod deletion;
mod grants;
mod holds;
mod jobs;
mod parallel_changes;
mod statements;
mod usage;

/// The roles, the one with the fewest rights first.
const ROLES: [&str; 3] = ["support", "operator", "owner"];
const JSON: &str = "application/json";
/// What the vendor reports of each chat.
const USAGE: &str = "prompt=1000;completion=100";

/// A world whose gateway serves the API, with a token of each role.
pub(crate) struct AdminWorld {
    pub(crate) world: World,
    pub(crate) root: String,
    pub(crate) tokens: BTreeMap<&'static str, String>,
}

impl AdminWorld {
    pub(crate) async fn start(store: Store) -> AdminWorld {
        AdminWorld::of(World::start(store).vendor("vendor_b", &[USAGE])).await
    }

    pub(crate) async fn of(builder: Builder) -> AdminWorld {
        let free = closed_port();
        let root = free.trim_end_matches("/v1").to_owned();
        let address: &'static str = root.trim_start_matches("http://").to_owned().leak();
        let world = builder.env("TOLLGATE__LISTEN__CONSOLE", address).run().await;
        let mut tokens = BTreeMap::new();
        for role in ROLES {
            let words = ["operator", "add", role, "--role", role];
            tokens.insert(role, world.command(&words).await.done().trim().to_owned());
        }
        AdminWorld { world, root, tokens }
    }

    fn request(&self, role: &str, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let request = self.world.client().request(method, format!("{}{path}", self.root));
        request.bearer_auth(&self.tokens[role])
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::read(self.request("support", "GET", &format!("/admin/v1/{path}"))).await
    }

    /// All rows of a list, page by page.
    async fn rows(&self, list: &str, limit: usize) -> Vec<Value> {
        let (mut rows, mut after) = (Vec::new(), String::new());
        for _ in 0..100 {
            let join = if list.contains('?') { '&' } else { '?' };
            let answer = self.get(&format!("{list}{join}limit={limit}{after}")).await;
            assert_eq!(answer.status, 200, "{}", raw(&answer));
            let page = answer.json();
            let data = page["data"].as_array().expect("rows");
            assert!(data.len() <= limit, "{page}");
            rows.extend(data.iter().cloned());
            assert_eq!(page["has_more"], page["next"].is_string(), "{page}");
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return rows,
            }
        }
        panic!("{list} has no end");
    }

    async fn send(&self, method: &str, path: &str, body: Value) -> Answer {
        let request = self.request("owner", method, &format!("/admin/v1/{path}"));
        Answer::read(request.json(&body)).await
    }

    async fn delete(&self, path: &str) -> Answer {
        Answer::read(self.request("owner", "DELETE", &format!("/admin/v1/{path}"))).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, body).await
    }

    /// The same with an idempotency key.
    async fn post_named(&self, key: &str, path: &str, body: Value) -> Answer {
        let request = self.request("owner", "POST", &format!("/admin/v1/{path}"));
        Answer::read(request.header("idempotency-key", key).json(&body)).await
    }

    async fn document(&self) -> Value {
        let request = self.world.client().get(format!("{}/admin/v1/openapi.json", self.root));
        let answer = Answer::read(request).await;
        assert_eq!(answer.status, 200, "the document needs no token");
        answer.json()
    }
}

/// The body of an answer.
fn raw(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// The operations of a document: method, path with names filled in, and the role.
fn operations(document: &Value) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let role = operation["x-required-role"].as_str().expect("a role").to_owned();
            let names = ["{name}", "{prefix}", "{request_id}"];
            let path = names.iter().fold(path.clone(), |path, name| path.replace(name, "nobody"));
            found.push((method.to_uppercase(), path, role));
        }
    }
    found
}

fn rank(role: &str) -> usize {
    ROLES.iter().position(|known| *known == role).expect("a role")
}

#[tokio::test]
async fn each_role_may_do_what_the_document_says_and_no_more() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let operations = operations(&world.document().await);
    assert!(operations.len() > 20, "{operations:?}");
    for (method, path, least) in &operations {
        for role in ROLES {
            let mut request = world.request(role, method, path);
            if method != "GET" {
                // Nothing is changed by it: what it needs is missing, or it names nobody.
                request = request.header("content-type", JSON).body(r#"{"unknown":1}"#);
            }
            let answer = Answer::read(request).await;
            let is_refused = rank(role) < rank(least);
            let case = format!("{role} {method} {path}: {}", raw(&answer));
            assert_eq!(answer.status == 403, is_refused, "{case}");
            assert!(![401, 405].contains(&answer.status), "{case}");
            assert_ne!(answer.code(), "unknown_path", "{case}");
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{case}");
        }
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let url = format!("{}{path}", world.root);
        let anyone = Answer::read(world.world.client().request(method, url)).await;
        assert_eq!(anyone.refusal(), (401, "missing_token".to_owned()), "{path}");
        assert_eq!(anyone.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(world.get("audit").await.json()["data"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn the_document_lists_what_answers() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let document = world.document().await;
    assert_eq!(document["openapi"], "3.1.0");
    let known = operations(&document);
    for (_, path, _) in &known {
        let of_path = |method: &str| known.iter().any(|(m, p, _)| m == method && p == path);
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            if of_path(method) {
                continue;
            }
            let answer = Answer::read(world.request("owner", method, path)).await;
            let case = format!("{method} {path}");
            assert_eq!(answer.refusal(), (405, "method_not_allowed".to_owned()), "{case}");
            let allowed = answer.header("allow").expect("the right methods").to_owned();
            assert!(allowed.split(", ").all(of_path), "{case}: {allowed}");
        }
    }
    for path in ["/admin/v1/account", "/admin/v1", "/admin/", "/admin/v1/accounts/a/b"] {
        let answer = Answer::read(world.request("owner", "GET", path)).await;
        assert_eq!(answer.refusal(), (404, "unknown_path".to_owned()), "{path}");
    }
    // Neither do clients get there by their address.
    assert_eq!(world.world.get("/admin/v1/accounts").await.status, 404);
}

#[rstest]
#[tokio::test]
async fn an_account_is_opened_paid_used_corrected_and_paid_back(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = AdminWorld::start(store).await;
    let opened = world.post("accounts", json!({ "name": "acme" })).await;
    assert_eq!((opened.status, &opened.json()["credited_nano"]), (201, &json!(0)));
    let payment = json!({ "account": "acme", "amount_usd": "5", "id": "p-1" });
    let paid = world.post("payments", payment.clone()).await;
    assert_eq!((paid.status, &paid.json()["moved_usd"]), (201, &json!("5.00")));
    assert_eq!(world.post("payments", payment).await.status, 201, "it counts once");
    let issuing = json!({
        "account": "acme", "name": "ci", "budgets": { "day": "1" }, "models": ["lmb-*"],
    });
    let issued = world.post("keys", issuing).await;
    assert_eq!(issued.status, 201, "{}", raw(&issued));
    let (key, issued) = (issued.json()["key"].as_str().expect("a key").to_owned(), issued.json());
    assert_eq!(issued["budgets"][0]["limit_nano"], 1_000_000_000);
    let call = || {
        let url = format!("http://{}/v1/chat/completions", world.world.gateway.http);
        let request = world.world.client().post(url).bearer_auth(&key);
        Answer::read(request.json(&chat_of("lmb-5.5")))
    };
    let called = call().await;
    assert_eq!(called.status, 200, "{}", raw(&called));
    let request_id = called.header("x-request-id").expect("an id").to_owned();
    let charges = async || world.get("charges?account=acme").await.json();
    let mut listed = charges().await;
    for _ in 0..200 {
        if listed["data"].as_array().is_some_and(|lines| !lines.is_empty()) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        listed = charges().await;
    }
    let line = &listed["data"][0];
    assert_eq!((&line["request_id"], &line["kind"]), (&json!(request_id), &json!("charge")));
    assert_eq!(line["amount_nano"], 1_000 * 5_000 + 100 * 30_000);
    assert_eq!((&listed["has_more"], &listed["next"]), (&json!(false), &Value::Null));
    let correction = json!({
        "account": "acme", "request_id": request_id, "amount_usd": "0.001", "id": "c-1",
        "reason": "cut off",
    });
    let corrected = world.post("corrections", correction).await;
    assert_eq!((corrected.status, &corrected.json()["moved_nano"]), (201, &json!(1_000_000)));
    let shown = world.get(&format!("charges/{request_id}")).await.json();
    assert_eq!((&shown["account"], &shown["corrected_nano"]), (&json!("acme"), &json!(1_000_000)));
    let refund = json!({ "account": "acme", "amount_usd": "100", "id": "r-1", "reason": "over" });
    let refunded = world.post("refunds", refund).await;
    assert_eq!(refunded.status, 201, "{}", raw(&refunded));
    let left = 5_000_000_000 - 8_000_000 + 1_000_000;
    assert_eq!(refunded.json()["moved_nano"], left);
    assert_eq!(refunded.json()["uncovered_nano"], 100_000_000_000_i64 - left);
    let account = world.get("accounts/acme").await.json();
    let sum = |names: &[&str]| names.iter().filter_map(|name| account[*name].as_i64()).sum::<i64>();
    assert_eq!(
        sum(&["credited_nano", "written_off_nano"]),
        sum(&["available_nano", "held_nano", "posted_nano"])
    );
    let kinds = world.get("payments?account=acme").await.json();
    let kinds = kinds["data"].as_array().expect("rows").iter().map(|row| row["kind"].clone());
    assert_eq!(kinds.collect::<Vec<_>>(), ["payment", "correction", "refund"]);
    let suspended = world.send("PATCH", "accounts/acme", json!({ "suspended": true })).await;
    assert_eq!(suspended.json()["suspended"], true);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(call().await.refusal(), (403, "account_suspended".to_owned()));
}

#[rstest]
#[tokio::test]
async fn every_write_is_one_line_of_the_record(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = AdminWorld::start(store).await;
    world.post("accounts", json!({ "name": "acme", "credit_usd": "1" })).await;
    world.send("PATCH", "accounts/acme", json!({ "budgets": { "day": "2" } })).await;
    world.post("payments", json!({ "account": "acme", "amount_usd": "1", "id": "p" })).await;
    let grant = json!({ "account": "acme", "amount_usd": "1", "id": "g", "expires_at": null });
    world.post("grants", grant).await;
    world.post("refunds", json!({ "account": "acme", "amount_usd": "1", "id": "r" })).await;
    let issued = world.post("keys", json!({ "account": "acme" })).await.json();
    let prefix = issued["prefix"].as_str().expect("a prefix").to_owned();
    world.send("PATCH", &format!("keys/{prefix}"), json!({ "name": "ci" })).await;
    let rotated = world.post(&format!("keys/{prefix}/rotate"), json!({})).await.json();
    let newer = rotated["prefix"].as_str().expect("a prefix").to_owned();
    world.delete(&format!("keys/{newer}")).await;
    world.post("operators", json!({ "name": "eve", "role": "support" })).await;
    world.post("operators/eve/rotate", json!({})).await;
    world.delete("operators/eve").await;
    // What fails is told with its reason, and what only looks is not told.
    assert_eq!(world.post("accounts", json!({ "name": "acme" })).await.status, 409);
    world.get("accounts").await;
    let refused = world.delete("operators/eve?why=none").await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("query")));
    let record = world.get("audit?limit=13").await.json();
    let mut lines: Vec<_> = record["data"].as_array().expect("lines").iter().rev().collect();
    let failed = lines.pop().expect("a line");
    assert_eq!(
        (&failed["action"], &failed["result"]),
        (&json!("account.create"), &json!("failed"))
    );
    assert!(failed["why"].as_str().is_some_and(|why| why.contains("acme")), "{failed}");
    let revoked = lines.iter().find(|line| line["action"] == "key.revoke").expect("a line");
    assert!(revoked["before"]["revoked_at"].is_null() && revoked["after"]["revoked_at"].is_i64());
    let actions: Vec<_> = lines.iter().map(|line| line["action"].clone()).collect();
    let expected = [
        "account.create",
        "account.set",
        "credit.add",
        "credit.grant",
        "credit.take",
        "key.issue",
        "key.set",
        "key.rotate",
        "key.revoke",
        "operator.add",
        "operator.rotate",
        "operator.revoke",
    ];
    assert_eq!(actions, expected);
    for line in &lines {
        assert_eq!((&line["who"], &line["from"]), (&json!("owner"), &json!("api")), "{line}");
        assert_eq!((&line["result"], &line["address"]), (&json!("done"), &json!("127.0.0.1")));
        assert!(line["before"].is_object() && line["after"].is_object(), "{line}");
    }
    assert_eq!(lines[2]["before"]["credited_nano"], 1_000_000_000);
    assert_eq!(lines[2]["after"]["credited_nano"], 2_000_000_000);
    assert_eq!(lines[3]["lot"], "never/promotion");
    assert_eq!(lines[1]["after"]["budgets_nano"], json!({ "day": 2_000_000_000 }));
    let next = record["next"].as_str().expect("the operators were added before");
    let rest = world.get(&format!("audit?after={next}")).await.json();
    assert_eq!(rest["data"].as_array().map(Vec::len), Some(ROLES.len()));
    let file = std::fs::read_to_string(world.world.path("var/audit.jsonl")).expect("the file");
    let of_api = file.lines().filter(|line| line.contains(r#""from":"api""#)).count();
    assert_eq!(of_api, 2 * (expected.len() + 1), "two lines a change, also of the one that failed");
}

#[rstest]
#[tokio::test]
async fn no_key_and_no_token_is_shown_twice(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = AdminWorld::start(store).await;
    let mut secrets = Vec::new();
    for (path, body, name) in [
        ("keys", json!({ "account": ACCOUNT }), "key"),
        ("operators", json!({ "name": "eve", "role": "support" }), "token"),
        ("operators/eve/rotate", json!({}), "token"),
    ] {
        let first = world.post_named(path, path, body.clone()).await;
        assert_eq!(first.status, 201, "{path}: {}", raw(&first));
        let secret = first.json()[name].as_str().expect("a secret").to_owned();
        let again = world.post_named(path, path, body).await;
        assert_eq!(again.refusal(), (409, "already_issued".to_owned()), "{path}");
        let prefix = first.json()["prefix"].as_str().expect("a prefix").to_owned();
        assert!(again.message().contains(&prefix), "{}", again.message());
        secrets.push((secret, raw(&again)));
    }
    let mut texts: Vec<String> = secrets.iter().map(|(_, again)| again.clone()).collect();
    let keys = format!("keys?account={ACCOUNT}");
    for path in ["audit", "operators", "operators/eve", &keys, "accounts", "holds", "jobs"] {
        texts.push(raw(&world.get(path).await));
    }
    texts.push(std::fs::read_to_string(world.world.path("var/audit.jsonl")).expect("the file"));
    texts.push(world.world.log());
    for (secret, _) in &secrets {
        let half = &secret[..secret.len() / 2];
        assert!(texts.iter().all(|text| !text.contains(half)), "a secret was shown twice");
    }
}

#[rstest]
#[tokio::test]
async fn keys_are_listed_oldest_first_page_by_page(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = AdminWorld::start(store).await;
    world.post("accounts", json!({ "name": "acme" })).await;
    let mut issued = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let body = json!({ "account": "acme", "name": name, "budgets": { "day": "1" } });
        issued.push(world.post("keys", body).await.json()["prefix"].clone());
    }
    // Keys of one second are ordered by their beginnings.
    let prefixes = |rows: &[Value]| rows.iter().map(|row| row["prefix"].clone()).collect();
    let all: Vec<Value> = prefixes(&world.rows("keys?account=acme", 100).await);
    assert_eq!(all.len(), issued.len());
    assert!(issued.iter().all(|prefix| all.contains(prefix)), "{all:?}");
    for limit in [1, 2, 5] {
        let rows = world.rows("keys?account=acme", limit).await;
        let listed: Vec<Value> = prefixes(&rows);
        assert_eq!(listed, all, "{limit}");
        assert!(rows.iter().all(|row| row["budgets"][0]["limit_usd"] == "1.00"), "{rows:?}");
    }
}

#[rstest]
#[tokio::test]
async fn the_same_request_again_changes_nothing(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = AdminWorld::start(store).await;
    let body = |usd: &str| json!({ "account": ACCOUNT, "amount_usd": usd, "id": "p-1" });
    let first = world.post_named("k", "payments", body("1")).await;
    let again = world.post_named("k", "payments", body("1")).await;
    assert_eq!((first.status, again.status), (201, 201));
    assert_eq!((raw(&first), again.header("idempotent-replayed")), (raw(&again), Some("true")));
    let other = world.post_named("k", "payments", body("2")).await;
    assert_eq!(other.refusal(), (409, "idempotency_key_reused".to_owned()));
    let reused = world.post("payments", body("2")).await;
    assert_eq!(reused.refusal(), (409, "id_reused".to_owned()));
    // A request that was refused gives its name back.
    let refused = world.post_named("l", "payments", body("-1")).await;
    assert_eq!(refused.refusal(), (400, "invalid_value".to_owned()));
    let right = json!({ "account": ACCOUNT, "amount_usd": "1", "id": "p-2" });
    assert_eq!(world.post_named("l", "payments", right).await.status, 201);
    let account = world.get(&format!("accounts/{ACCOUNT}")).await.json();
    assert_eq!(account["credited_nano"], 7_000_000_000_i64);
}

#[tokio::test]
async fn what_is_wrong_is_named_with_what_would_be_right() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let payment = |usd: Value| json!({ "account": ACCOUNT, "amount_usd": usd, "id": "p" });
    let key = |name: &str, value: Value| json!({ "account": ACCOUNT, name: value });
    for (path, body, param, told) in [
        ("accounts", json!({ "nmae": "a" }), "nmae", "unknown field `nmae`"),
        ("accounts", json!({}), "name", "missing field `name`"),
        ("accounts", json!({ "name": "a b" }), "name", "'a b' is no account name"),
        ("accounts", json!({ "name": "a", "plan": "nope" }), "plan", "there is no plan 'nope'"),
        ("accounts", json!({ "name": "a", "book": "no" }), "book", "there is no price book 'no'"),
        ("payments", payment(json!(5)), "amount_usd", "expected a string"),
        ("payments", payment(json!("0")), "amount_usd", "must be above 0"),
        ("payments", payment(json!("1e3")), "amount_usd", "'1e3' is no amount in USD"),
        ("keys", key("budgets", json!({ "dya": "5" })), "budgets.dya", "expected one of"),
        ("keys", key("budgets", json!({ "day": "x" })), "budgets.day", "'x' is no amount"),
        ("keys", key("endpoints", json!(["chatt"])), "endpoints", "the endpoints are chat"),
        ("keys", key("from", json!(["10.0.0.0/40"])), "from", "is no network"),
        ("keys", key("expires_at", json!("soon")), "expires_at", "'soon' is no time"),
        (
            "keys",
            key("expires_at", json!(1)),
            "expires_at",
            "expires_at '1' is not in the future: give a time after 20",
        ),
        ("operators", json!({ "name": "eve", "role": "boss" }), "role", "the roles are support"),
    ] {
        let answer = world.post(path, body.clone()).await;
        assert_eq!(answer.status, 400, "{path} {body}: {}", raw(&answer));
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {}", raw(&answer));
        assert!(answer.message().contains(told), "{body}: {}", answer.message());
    }
    for (path, status, param) in [
        ("accounts?limit=0", 400, "limit"),
        ("accounts?lmit=5", 400, "lmit"),
        ("charges", 400, "account"),
        ("charges?account=nobody", 404, "account"),
        ("keys?account=acct&after=x", 400, "after"),
        ("holds?account=nobody", 404, "account"),
        ("holds?after=x", 400, "after"),
        ("jobs?account=nobody", 404, "account"),
        ("jobs?after=x", 400, "after"),
        ("jobs?state=open", 400, "state"),
        ("accounts/nobody", 404, "account"),
        ("keys/sk-tg-00000000", 404, "key"),
        ("charges/none?account=acct", 404, "charge"),
        ("plans?x=1", 400, "x"),
        ("books?x=1", 400, "x"),
    ] {
        let answer = world.get(path).await;
        assert_eq!(answer.status, status, "{path}: {}", raw(&answer));
        assert_eq!(answer.json()["error"]["param"], param, "{path}: {}", raw(&answer));
    }
    let post = |kind: &str, body: String| {
        let request = world.request("owner", "POST", "/admin/v1/accounts");
        Answer::read(request.header("content-type", kind).body(body))
    };
    let refusal = async |kind, body: &str| post(kind, body.to_owned()).await.refusal();
    assert_eq!(refusal(JSON, "{").await, (400, "invalid_json".to_owned()));
    assert_eq!(refusal(JSON, r#"{"name":"a","name":"b"}"#).await.0, 400);
    assert_eq!(refusal("text/plain", "{}").await, (415, "unsupported_media_type".to_owned()));
    let long = "x".repeat((64 << 10) + 1);
    assert_eq!(refusal(JSON, &long).await, (413, "body_too_large".to_owned()));
    assert_eq!(world.get("accounts").await.json()["data"].as_array().map(Vec::len), Some(1));
}

#[rstest]
#[tokio::test]
async fn an_account_is_opened_with_a_price_book_if_the_rules_have_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let api = AdminWorld::of(World::start(store).vendor("vendor_b", &[USAGE]).own_rules()).await;
    let list = |data: Value| json!({ "data": data, "has_more": false, "next": null });
    assert_eq!(api.get("books").await.json(), list(json!([])));
    let books = "[book.low]\nfactor = \"0.850\"\n[book.low.prices]\n\
                 \"lmb-5.5\" = { input = 4, output = 20 }\n\
                 [book.friends]\nfactor = \"0.5\"\nloss = true\n";
    let file = api.world.path("rules/books.toml");
    api.world.reload(|| std::fs::write(file, books).expect("books")).await;
    let known = list(json!([
        { "name": "friends", "factor": "0.5", "prices": 0, "loss": true },
        { "name": "low", "factor": "0.85", "prices": 1, "loss": false },
    ]));
    assert_eq!(api.get("books").await.json(), known);
    let opened = api.post("accounts", json!({ "name": "acme", "book": "low" })).await;
    assert_eq!((opened.status, &opened.json()["book"]), (201, &json!("low")), "{}", raw(&opened));
    let refused = api.post("accounts", json!({ "name": "eve", "book": "lo" })).await;
    assert_eq!(refused.refusal(), (400, "invalid_value".to_owned()));
    assert_eq!(refused.json()["error"]["param"], "book");
    let closest = "there is no price book 'lo'; closest is 'low'";
    assert!(refused.message().contains(closest), "{}", refused.message());
    assert_eq!(api.get("accounts/eve").await.status, 404);
}

#[tokio::test]
async fn a_token_that_is_unknown_replaced_or_revoked_opens_nothing() {
    let mut world = AdminWorld::start(Store::Sqlite).await;
    let old = world.tokens["support"].clone();
    let new = world.world.command(&["operator", "rotate", "support"]).await.done();
    assert_eq!(world.get("accounts").await.refusal(), (401, "invalid_token".to_owned()));
    world.tokens.insert("support", new.trim().to_owned());
    assert_eq!(world.get("accounts").await.status, 200);
    world.delete("operators/support").await;
    assert_eq!(world.get("accounts").await.refusal(), (401, "invalid_token".to_owned()));
    let key = world.world.key.clone();
    for token in ["", "sk-tg-op-", old.as_str(), key.as_str()] {
        world.tokens.insert("support", token.to_owned());
        assert_eq!(world.get("accounts").await.status, 401, "{token}");
    }
    let last = world.delete("operators/owner").await;
    assert_eq!(last.refusal(), (409, "last_owner".to_owned()));
}
