//! What customers are told with the keys with which they make their calls: the balance, the key,
//! the charge of one call, the list of charges, and the charge in the head of a whole answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    ACCOUNT, Answer, CHAT, Charge, EDIT_B, EMBEDDING_B, EMBEDDING_C, IMAGE_B, IMAGE_D, MESSAGES,
    MODERATION, Offer, RESPONSES, SPEECH, Sent, Store, World, chat_of,
};

/// Within this a change of an account is noticed, as is promised, and some more for a busy machine.
const NOTICED: Duration = Duration::from_secs(2);
/// The header with the charge of a whole answer.
const CHARGED: &str = "x-gateway-charged-nano";
/// A chat call whose answer is translated.
const TRANSLATED: Offer = Offer { model: "lma-sonnet-4-6", vendor: "vendor_a", ..CHAT };
/// What a vendor reports, and what that costs at lmb-5.5 in nano-USD.
const USAGE: &str = "prompt=1000;completion=100";
const COST: i64 = 1_000 * 5_000 + 100 * 30_000;
/// The paths that ask about the own account, with what makes them whole.
const PATHS: [&str; 7] = [
    "/v1/credits",
    "/v1/key",
    "/v1/generation?id=a",
    "/v1/charges",
    "/v1/usage",
    "/v1/organization/costs?start_time=1795737600",
    "/v1/organization/usage/completions?start_time=1795737600",
];

async fn issue(world: &World, options: &[&str]) -> String {
    let words: Vec<_> = ["key", "issue", ACCOUNT].iter().chain(options).copied().collect();
    world.command(&words).await.done().trim().to_owned()
}

/// The beginning of a key, as it is listed.
fn prefix_of(key: &str) -> &str {
    &key[..14]
}

/// A chat with a key: the id of its request, and that of its reply.
async fn chat_with(world: &World, key: &str) -> [String; 2] {
    let request = world.sending(CHAT.path, "application/json", Some(key));
    let answer = Answer::read(request.body(chat_of("lmb-5.5").to_string())).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    ids_of(&answer)
}

/// The id of the request of an answer, and that of the reply.
fn ids_of(answer: &Answer) -> [String; 2] {
    let request = answer.header("x-request-id").expect("an id").to_owned();
    [request, answer.json()["id"].as_str().expect("an id").to_owned()]
}

/// The charge of a call as a key is told it.
async fn generation(world: &World, key: &str, id: &str) -> Answer {
    world.get_with(&format!("/v1/generation?id={id}"), key).await
}

/// All charges that a key is told, page by page, each with so many lines at most.
async fn charges_of(world: &World, key: &str, limit: usize) -> Vec<Value> {
    let (mut after, mut lines) = (0, Vec::new());
    loop {
        let path = format!("/v1/charges?after={after}&limit={limit}");
        let answer = world.get_with(&path, key).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let page = answer.json();
        let data = page["data"].as_array().expect("a list");
        assert!(data.len() <= limit, "{}", data.len());
        lines.extend(data.iter().cloned());
        if page["has_more"] == json!(false) {
            assert_eq!(page["next"], Value::Null);
            return lines;
        }
        let next = page["next"].as_u64().expect("a number");
        assert!(next > after, "it does not go on: {page}");
        after = next;
    }
}

/// The ids of the calls in a list of charges.
fn call_ids(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["id"].as_str().expect("an id")).collect()
}

/// When a charge was made, as it is told.
fn created_at(charge: &Charge) -> String {
    jiff::Timestamp::from_millisecond(charge.at).expect("a time").to_string()
}

#[rstest]
#[tokio::test]
async fn a_charge_is_told_to_the_byte(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).vendor("vendor_b", &[USAGE]).run().await;
    let [request, reply] = chat_with(&world, &world.key).await;
    let charge = world.charge().await;
    assert_eq!((charge.amount_nano, &charge.request_id), (COST, &request));
    let credits = r#"{"balance":"4.992","total_used":"0.008","data":{"total_credits":5.0,"total_usage":0.008}}"#;
    for path in ["/v1/credits", "/api/v1/credits"] {
        let answer = world.get(path).await;
        assert_eq!((answer.status, &*answer.body), (200, credits.as_bytes()), "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    let (at, version) = (created_at(&charge), &charge.price_version);
    let usage = r#"{"prompt_tokens":1000,"completion_tokens":100}"#;
    for id in [&request, &reply] {
        for base in ["/v1", "/api/v1"] {
            let answer = world.get(&format!("{base}/generation?id={id}")).await;
            let corrected = answer.json()["data"]["corrected_nano"].clone();
            assert!(corrected.is_null() || corrected == json!(0), "{answer:?}");
            let expected = format!(
                concat!(
                    r#"{{"data":{{"id":"{}","model":"lmb-5.5","total_cost":0.008,"#,
                    r#""tokens_prompt":1000,"tokens_completion":100,"created_at":"{}","#,
                    r#""streamed":null,"latency":null,"api_type":"chat","#,
                    r#""provider_name":"vendor_b","reply_id":"{}","usage":{},"#,
                    r#""basis":"reported","price_version":"{}","depth":0,"held_nano":null,"#,
                    r#""amount_nano":8000000,"corrected_nano":{}}}}}"#
                ),
                request, at, reply, usage, version, corrected
            );
            assert_eq!(String::from_utf8_lossy(&answer.body), expected, "{id}");
        }
    }
    let key = world.get("/v1/key").await.json();
    let listed = world.get("/v1/charges").await;
    let expected = format!(
        concat!(
            r#"{{"data":[{{"seq":1,"id":"{}","kind":"charge","created_at":"{}","#,
            r#""endpoint":"chat","model":"lmb-5.5","key_id":{},"key_prefix":"{}","usage":{},"#,
            r#""basis":"reported","price_version":"{}","route":"r0","vendor":"vendor_b","#,
            r#""amount_nano":8000000,"amount_usd":"0.008","written_off_nano":0}}],"#,
            r#""has_more":false,"next":null}}"#
        ),
        request,
        at,
        key["data"]["id"],
        prefix_of(&world.key),
        usage,
        version
    );
    assert_eq!(String::from_utf8_lossy(&listed.body), expected);
}

#[rstest]
#[tokio::test]
async fn a_key_is_told_what_it_is_for_and_what_is_left(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &[USAGE]).run().await;
    let options = ["--name", "ci", "--models", "lmb-*", "--endpoints", "chat"];
    let budgets = ["--budget", "day=1", "--budget", "total=0.5", "--expires", "2099-01-31"];
    let key = issue(&world, &[&options[..], &budgets].concat()).await;
    chat_with(&world, &key).await;
    world.settled(1).await;
    for path in ["/v1/key", "/api/v1/key"] {
        let answer = world.get_with(path, &key).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let data = answer.json()["data"].clone();
        let part = |name: &str| data[name].clone();
        assert_eq!([part("label"), part("name")], [json!("ci"), json!("ci")]);
        assert_eq!([part("usage"), part("usage_daily")], [json!(0.008), json!(0.008)]);
        assert_eq!([part("usage_weekly"), part("usage_monthly")], [Value::Null, Value::Null]);
        let limit = ["limit", "limit_remaining", "limit_reset"].map(part);
        assert_eq!(limit, [json!(0.5), json!(0.492), Value::Null], "{data}");
        let part = |name: &str| data[name].clone();
        assert_eq!(part("expires_at"), "2099-01-31T00:00:00Z");
        assert_eq!([part("is_free_tier"), part("is_management_key")], [json!(false), json!(false)]);
        assert_eq!([part("models"), part("endpoints")], [json!(["lmb-*"]), json!(["chat"])]);
        assert_eq!(part("prefix"), prefix_of(&key));
        assert_eq!(part("rate_limit")["interval"], "1m");
        let day = &data["budgets"][0];
        assert_eq!([&day["window"], &day["limit_nano"]], [&json!("day"), &json!(1_000_000_000)]);
        assert_eq!([&day["spent_nano"], &day["held_nano"]], [&json!(COST), &json!(0)]);
        let created = part("created_at");
        let created = created.as_str().expect("a time").parse::<jiff::Timestamp>();
        assert!(created.is_ok(), "{data}");
    }
    let own = world.get("/v1/key").await.json();
    assert_eq!([&own["data"]["usage"], &own["data"]["limit"]], [&Value::Null, &Value::Null]);
}

#[tokio::test]
async fn the_plan_is_told_with_the_key_and_counts_the_questions() {
    let plan = "[plan.few]\nrequests_per_minute = 5\ncalls = 2";
    let world = World::start(Store::Sqlite).plans(plan).run().await;
    world.command(&["account", "set", ACCOUNT, "--plan", "few"]).await.done();
    let end = Instant::now() + NOTICED;
    let told = loop {
        let key = world.get("/v1/key").await.json();
        if key["data"]["rate_limit"]["requests"] == json!(5) {
            break key["data"]["rate_limit"].clone();
        }
        assert!(Instant::now() < end, "it is not noticed: {key}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(told["note"], "requests a minute: 5; calls at a time: 2");
    let mut refused: usize = 0;
    for path in PATHS {
        let answers = [world.get(path).await, world.get(path).await];
        for answer in answers.iter().filter(|answer| answer.status == 429) {
            assert_eq!(answer.code(), "rate_limit_exceeded", "{answer:?}");
            assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("5"), "{answer:?}");
            refused += 1;
        }
    }
    assert_eq!(refused, 2 * PATHS.len() - 4, "one request of five has asked for the key");
}

#[rstest]
#[tokio::test]
async fn no_call_of_another_key_or_account_can_be_read(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let other_account = world.another_account("other", "5").await;
    let narrow = issue(&world, &["--endpoints", "chat"]).await;
    let wide = issue(&world, &["--endpoints", "chat,account"]).await;
    let callers = [world.key.clone(), other_account, narrow, wide];
    let mut calls = Vec::new();
    for key in &callers {
        calls.push(chat_with(&world, key).await);
    }
    world.settled(3).await;
    let unknown = generation(&world, &callers[0], "01a20a28-fb8d-7670-a627-04cb5eb4e2c9").await;
    assert_eq!(unknown.refusal(), (404, "generation_not_found".to_owned()));
    assert_eq!(unknown.header("x-should-retry"), Some("false"), "{unknown:?}");
    // The account `other` has one call; whoever sees more than one's own sees those of the account.
    let visible = |reader: usize, owner: usize| reader == owner || reader == 3 && owner != 1;
    for (reader, key) in callers.iter().enumerate() {
        let expected = calls.iter().enumerate().filter(|(owner, _)| visible(reader, *owner));
        let expected: BTreeSet<&str> = expected.map(|(_, [request, _])| &**request).collect();
        let listed = until_listed(&world, key, expected.len()).await;
        assert_eq!(call_ids(&listed).into_iter().collect::<BTreeSet<_>>(), expected);
        for (owner, ids) in calls.iter().enumerate() {
            for id in ids {
                let answer = generation(&world, key, id).await;
                if visible(reader, owner) {
                    assert_eq!(answer.status, 200, "{reader} {owner}: {answer:?}");
                    assert_eq!(answer.json()["data"]["id"], ids[0]);
                } else {
                    assert_eq!(answer.status, 404, "{reader} {owner}: {answer:?}");
                    assert_eq!(answer.body, unknown.body, "{reader} {owner}");
                    assert_eq!(answer.header_names(), unknown.header_names());
                }
            }
        }
    }
}

/// Waits until a key is told so many charges.
async fn until_listed(world: &World, key: &str, count: usize) -> Vec<Value> {
    let end = Instant::now() + NOTICED;
    loop {
        let lines = charges_of(world, key, 100).await;
        if lines.len() >= count {
            return lines;
        }
        assert!(Instant::now() < end, "{lines:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[rstest]
#[tokio::test]
async fn a_key_that_replaces_another_sees_the_calls_of_both(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let old = issue(&world, &["--name", "ci"]).await;
    let before = chat_with(&world, &old).await;
    let words = ["key", "rotate", prefix_of(&old), "--overlap", "1h"];
    let new = world.command(&words).await.done().trim().to_owned();
    let after = chat_with(&world, &new).await;
    world.settled(2).await;
    for key in [&old, &new] {
        let listed = charges_of(&world, key, 1).await;
        assert_eq!(call_ids(&listed), [&before[0], &after[0]]);
        for id in before.iter().chain(&after) {
            assert_eq!(generation(&world, key, id).await.status, 200, "{id}");
        }
    }
    assert!(charges_of(&world, &world.key, 10).await.is_empty());
}

#[tokio::test]
async fn a_key_for_the_account_alone_makes_no_calls() {
    let world = World::start(Store::Sqlite).run().await;
    let reader = issue(&world, &["--endpoints", "account"]).await;
    let request = world.sending(CHAT.path, "application/json", Some(&reader));
    let refused = Answer::read(request.body(chat_of("lmb-5.5").to_string())).await;
    assert_eq!(refused.refusal(), (403, "endpoint_not_allowed".to_owned()));
    let [call, _] = chat_with(&world, &world.key).await;
    world.settled(1).await;
    assert_eq!(generation(&world, &reader, &call).await.status, 200);
    assert_eq!(world.get_with("/v1/credits", &reader).await.status, 200);
}

#[rstest]
#[tokio::test]
async fn each_of_many_charges_is_on_one_page(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).credit("100").run().await;
    let other = issue(&world, &[]).await;
    let mut own = BTreeSet::new();
    for _ in 0..10 {
        let calls = join_all((0..25).map(|_| chat_with(&world, &world.key)));
        let others = join_all((0..3).map(|_| chat_with(&world, &other)));
        let (calls, _) = tokio::join!(calls, others);
        own.extend(calls.into_iter().map(|[request, _]| request));
    }
    assert_eq!(own.len(), 250);
    let amounts = world.settled(280).await;
    let amounts: BTreeMap<_, _> =
        amounts.iter().map(|charge| (charge.request_id.as_str(), charge.amount_nano)).collect();
    for limit in [1_000, 100, 37] {
        let lines = charges_of(&world, &world.key, limit).await;
        let ids = call_ids(&lines);
        assert_eq!(ids.len(), 250, "{limit}");
        assert_eq!(ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>(), own);
        let numbers: Vec<_> = lines.iter().map(|line| line["seq"].as_u64()).collect();
        assert!(numbers.is_sorted(), "oldest first");
        for line in &lines {
            let id = line["id"].as_str().expect("an id");
            assert_eq!(line["amount_nano"].as_i64(), amounts.get(id).copied());
        }
    }
    for id in own.iter().step_by(50) {
        assert_eq!(generation(&world, &world.key, id).await.status, 200, "{id}");
        assert_eq!(generation(&world, &other, id).await.status, 404, "{id}");
    }
}

#[tokio::test]
async fn a_wrong_parameter_is_named() {
    let world = World::start(Store::Sqlite).run().await;
    let long = format!("/v1/generation?id={}", "x".repeat(129));
    for (path, code, param) in [
        ("/v1/generation", "missing_required_parameter", "id"),
        ("/v1/generation?ids=a", "missing_required_parameter", "id"),
        ("/v1/generation?id=", "invalid_value", "id"),
        ("/v1/generation?id=a&id=b", "invalid_value", "id"),
        ("/v1/generation?id=%zz", "invalid_value", "id"),
        ("/v1/generation?id=a%0Ab", "invalid_value", "id"),
        (long.as_str(), "invalid_value", "id"),
        ("/v1/charges?limit=0", "invalid_value", "limit"),
        ("/v1/charges?limit=1001", "invalid_value", "limit"),
        ("/v1/charges?limit=1.5", "invalid_value", "limit"),
        ("/v1/charges?limit=5&limit=5", "invalid_value", "limit"),
        ("/v1/charges?after=-1", "invalid_value", "after"),
        ("/v1/charges?after=x", "invalid_value", "after"),
        ("/v1/charges?after=18446744073709551615", "invalid_value", "after"),
    ] {
        let answer = world.get(path).await;
        assert_eq!(answer.refusal_of(path), (400, code.to_owned()), "{path}");
        assert_eq!(answer.json()["error"]["param"], param, "{path}");
    }
    for (path, code) in [("/credits", "not_found"), ("/v1/credit", "not_found")] {
        assert_eq!(world.get(path).await.refusal_of(path), (404, code.to_owned()));
    }
    assert!(world.get("/credits").await.message().contains("it is /v1/credits"));
    let past = world.get("/v1/charges?after=9007199254740991").await.json();
    assert_eq!(past, json!({ "data": [], "has_more": false, "next": null }));
}

#[tokio::test]
async fn only_get_is_allowed_and_only_with_a_key() {
    let world = World::start(Store::Sqlite).run().await;
    for path in PATHS {
        let url = format!("http://{}{path}", world.gateway.http);
        let posted = Answer::read(world.client().post(&url).bearer_auth(&world.key)).await;
        assert_eq!(posted.refusal_of(path), (405, "method_not_allowed".to_owned()));
        assert_eq!(posted.header("allow"), Some("GET"), "{path}");
        let head = Answer::read(world.client().head(&url).bearer_auth(&world.key)).await;
        assert_eq!(head.status, 405, "{path}");
        let nobody = Answer::read(world.client().get(&url)).await;
        assert_eq!(nobody.refusal_of(path), (401, "missing_api_key".to_owned()));
        let unknown = format!("sk-tg-{}", "0".repeat(64));
        let unknown = world.get_with(path, &unknown).await;
        assert_eq!(unknown.refusal_of(path), (401, "invalid_api_key".to_owned()));
        let plain = Answer::read(world.client().get(&url).header("x-api-key", &world.key)).await;
        assert!(matches!(plain.status, 200 | 404), "{path}: {plain:?}");
    }
}

#[tokio::test]
async fn a_suspended_account_is_told_nothing() {
    let world = World::start(Store::Sqlite).run().await;
    world.command(&["account", "set", ACCOUNT, "--suspend"]).await.done();
    let end = Instant::now() + NOTICED;
    while world.get("/v1/credits").await.status != 403 {
        assert!(Instant::now() < end, "it is not noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for path in PATHS {
        let answer = world.get(path).await;
        assert_eq!(answer.refusal_of(path), (403, "account_suspended".to_owned()));
    }
}

/// A call under an idempotency key.
async fn keyed(world: &World, offer: Offer, name: &str) -> Answer {
    let Sent { media, bytes } = offer.sent(&json!({}));
    let request = world.sending(offer.path, &media, Some(&world.key));
    Answer::read(request.header("idempotency-key", name).body(bytes)).await
}

#[rstest]
#[tokio::test]
async fn a_whole_answer_tells_its_charge_and_so_does_its_repeat(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).credit("100").run().await;
    let offers = [
        CHAT,
        TRANSLATED,
        MESSAGES,
        RESPONSES,
        EMBEDDING_B,
        EMBEDDING_C,
        IMAGE_B,
        IMAGE_D,
        EDIT_B,
        SPEECH,
    ];
    for (number, offer) in offers.into_iter().enumerate() {
        let name = format!("call-{number}");
        let first = keyed(&world, offer, &name).await;
        assert_eq!(first.status, 200, "{offer:?}: {first:?}");
        let charges = world.settled(number + 1).await;
        let id = first.header("x-request-id").expect("an id");
        let charge = charges.iter().find(|charge| charge.request_id == id).expect("its charge");
        let told = charge.amount_nano.to_string();
        assert_eq!(first.header(CHARGED), Some(told.as_str()), "{offer:?}: {first:?}");
        assert_eq!(first.headers.get_all(CHARGED).iter().count(), 1, "{offer:?}");
        let again = keyed(&world, offer, &name).await;
        assert_eq!(again.header("idempotent-replayed"), Some("true"), "{offer:?}: {again:?}");
        assert_eq!(again.header(CHARGED), Some(told.as_str()), "{offer:?}: {again:?}");
        assert_eq!(again.headers.get_all(CHARGED).iter().count(), 1, "{offer:?}");
    }
    world.settled(offers.len()).await;
}

#[tokio::test]
async fn streams_free_answers_and_errors_tell_no_charge() {
    let world = World::start(Store::Sqlite).run().await;
    for offer in [CHAT, TRANSLATED, MESSAGES, RESPONSES] {
        let stream = world.open_call(offer, json!({})).await.rest().await;
        assert_eq!((stream.status, stream.header(CHARGED)), (200, None), "{offer:?}");
    }
    let free = world.ask(MODERATION).await;
    assert_eq!((free.status, free.header(CHARGED)), (200, None), "{free:?}");
    let wrong = world.chat(json!({ "model": "lmb-5.5" })).await;
    assert_eq!((wrong.status, wrong.header(CHARGED)), (400, None), "{wrong:?}");
}

#[tokio::test]
async fn the_reply_of_a_stream_is_found_by_the_id_that_its_client_got() {
    let world = World::start(Store::Sqlite).run().await;
    for (number, (offer, place)) in
        [(CHAT, "/id"), (TRANSLATED, "/id"), (MESSAGES, "/message/id"), (RESPONSES, "/response/id")]
            .into_iter()
            .enumerate()
    {
        let stream = world.open_call(offer, json!({})).await.rest().await;
        let request = stream.header("x-request-id").expect("an id").to_owned();
        let events = stream.events();
        let id = events.iter().find_map(|event| event.pointer(place)?.as_str());
        let id = id.unwrap_or_else(|| panic!("{offer:?}: {events:?}"));
        world.settled(number + 1).await;
        let found = generation(&world, &world.key, id).await;
        assert_eq!(found.status, 200, "{offer:?} {id}: {found:?}");
        let data = &found.json()["data"];
        assert_eq!((&data["id"], &data["reply_id"]), (&json!(request), &json!(id)), "{offer:?}");
    }
}

#[tokio::test]
async fn a_page_may_read_the_charge() {
    let conf = "[listen]\ncors_origins = [\"https://app.example\"]";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    let request = world.request(CHAT.path).header("origin", "https://app.example");
    let answer = Answer::read(request.body(chat_of("lmb-5.5").to_string())).await;
    let exposed = answer.header("access-control-expose-headers").expect("a list");
    assert!(exposed.split(", ").any(|name| name == CHARGED), "{exposed}");
}
