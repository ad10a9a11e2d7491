//! Messages calls that are not served: each in that format, most before a vendor hears of them.

use rstest::rstest;
use serde_json::{Value, json};

use super::MODEL;
use crate::world::{ACCOUNT, Answer, Store, World, messages_of, with};

const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/lua-free-rules/vendor_a.toml");

fn refused(status: u16, kind: &str) -> (u16, String) {
    (status, kind.to_owned())
}

/// What is wrong, the members that make it so, in the place of those of a good call, and what is
/// named: the field, or where the model is served.
fn wrong_calls() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("no model", json!({ "model": null }), "model"),
        ("a model of another type", json!({ "model": 5 }), "model"),
        ("no limit", json!({ "max_tokens": null }), "max_tokens"),
        ("a limit as text", json!({ "max_tokens": "5" }), "max_tokens"),
        ("a negative limit", json!({ "max_tokens": -1 }), "max_tokens"),
        ("a broken limit", json!({ "max_tokens": 1.5 }), "max_tokens"),
        (
            "only the chat format's limit",
            json!({ "max_tokens": null, "max_completion_tokens": 5 }),
            "max_tokens",
        ),
        ("stream as text", json!({ "stream": "yes" }), "stream"),
        ("no messages", json!({ "messages": null }), "messages"),
        ("empty messages", json!({ "messages": [] }), "messages"),
        ("messages of another type", json!({ "messages": "hi" }), "messages"),
        ("a model of vendor_b", json!({ "model": "lmb-5.5" }), "/v1/chat/completions"),
        ("a model of vendor_e", json!({ "model": "orgA/famA-V3.2" }), "/v1/chat/completions"),
        ("a pro model", json!({ "model": "o1-pro" }), "/v1/responses"),
        ("a model of images", json!({ "model": "lmb-image-1" }), "/v1/images/generations"),
        ("a model of videos", json!({ "model": "lmd-imagine-video" }), "/v1/videos"),
        ("a model of speech", json!({ "model": "tts-1" }), "/v1/audio/speech"),
        ("one of embeddings", json!({ "model": "text-embedding-3-small" }), "/v1/embeddings"),
        ("one of moderations", json!({ "model": "omni-moderation-latest" }), "/v1/moderations"),
    ]
}

#[tokio::test]
async fn what_is_wrong_is_named_and_no_vendor_hears_of_it() {
    let world = World::start(Store::Sqlite).run().await;
    for (what, members, named) in wrong_calls() {
        let answer = world.messages(with(messages_of(MODEL), &members)).await;
        assert_eq!(answer.status, 400, "{what}: {answer:?}");
        assert_eq!(answer.messages_refusal(), refused(400, "invalid_request_error"), "{what}");
        assert!(answer.message().contains(named), "{what}: {}", answer.message());
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn an_unknown_model_names_the_closest() {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.messages(messages_of("lma-sonet-5")).await;
    assert_eq!(answer.messages_refusal(), refused(404, "not_found_error"));
    assert!(answer.message().contains("'lma-sonnet-5'"), "{}", answer.message());
}

#[tokio::test]
async fn who_has_no_valid_key_or_no_credit_is_told_so_in_the_messages_format() {
    let world = World::start(Store::Sqlite).credit("0.001").run().await;
    let url = format!("http://{}/v1/messages", world.gateway.http);
    let post = |key: Option<&str>| {
        let request = world.client().post(&url).body(messages_of(MODEL).to_string());
        key.iter().fold(request, |request, key| request.header("x-api-key", *key))
    };
    let unknown = refused(401, "authentication_error");
    assert_eq!(Answer::read(post(None)).await.messages_refusal(), unknown);
    assert_eq!(Answer::read(post(Some("sk-nobody"))).await.messages_refusal(), unknown);
    let second = world.command(&["--json", "key", "issue", ACCOUNT]).await.json().remove(0);
    world.command(&["key", "revoke", second["prefix"].as_str().expect("a prefix")]).await.done();
    let revoked = Answer::read(post(second["key"].as_str())).await;
    assert_eq!(revoked.messages_refusal(), refused(403, "permission_error"));
    let long = "x".repeat(400);
    let messages = json!([{ "role": "user", "content": long }]);
    let poor = world.messages(with(messages_of(MODEL), &json!({ "messages": messages }))).await;
    assert_eq!(poor.messages_refusal(), refused(402, "billing_error"));
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

#[tokio::test]
async fn unsound_and_oversized_bodies_are_refused_in_the_messages_format() {
    let world = World::start(Store::Sqlite).conf("[limits]\njson_bytes_max = 10_000").run().await;
    let sound = messages_of(MODEL).to_string();
    let twice = sound.replacen('{', r#"{"max_t\u006fkens":1,"#, 1);
    for body in ["", "{", "[]", &sound[1..], &format!("{sound}x"), &twice] {
        let answer = world.post_messages(body.to_owned()).await;
        assert_eq!(answer.messages_refusal(), refused(400, "invalid_request_error"), "{body}");
    }
    let large = world.post_messages(format!("{sound}{}", " ".repeat(10_000))).await;
    assert_eq!(large.messages_refusal(), refused(413, "request_too_large"));
    let packed = world.messages_request().header("content-encoding", "gzip").body(sound);
    assert_eq!(
        Answer::read(packed).await.messages_refusal(),
        refused(415, "invalid_request_error")
    );
    let got = world.get("/v1/messages").await;
    assert_eq!(got.messages_refusal(), refused(405, "invalid_request_error"));
    assert_eq!(got.header("allow"), Some("POST"));
    assert_eq!(world.sim.seen().len(), 0);
}

#[tokio::test]
async fn paths_around_messages_are_not_found() {
    let world = World::start(Store::Sqlite).run().await;
    for path in ["/v1/v1/messages", "/v1/messages/count", "/v1/messages/batches"] {
        let answer = Answer::read(world.request(path).body(messages_of(MODEL).to_string())).await;
        assert_eq!(answer.messages_refusal(), refused(404, "not_found_error"), "{path}");
        let told = answer.message();
        assert_eq!(told.contains("base address"), path.starts_with("/v1/v1"), "{told}");
    }
    world.free_of_charge().await;
}

#[rstest]
#[case::invalid(&["status=400"], 400, "invalid_request_error", None, "The request is invalid.")]
#[case::not_found(&["status=404"], 404, "not_found_error", None, "Not Found")]
#[case::too_large(&["status=413"], 413, "request_too_large", None, "Request exceeds")]
#[case::overloaded(&["status=529", "status=529"], 529, "overloaded_error", Some("1"), "")]
#[case::asks_for_patience(
    &["status=429;retry-after=7"], 529, "overloaded_error", Some("7"), ""
)]
#[case::failed(&["status=500"], 502, "api_error", None, "")]
#[case::unauthorised(&["status=401"], 502, "api_error", None, "")]
#[case::unpaid(&["status=402"], 502, "api_error", None, "")]
#[case::forbidden(&["status=403"], 502, "api_error", None, "")]
#[case::timed_out(&["status=408"], 504, "timeout_error", None, "")]
#[case::garbage(&["garbage"], 502, "api_error", None, "")]
#[case::reset(&["reset=0"], 502, "api_error", None, "")]
#[case::silent(&["stall=0"], 504, "timeout_error", None, "")]
#[case::the_last_route_speaks(
    &["status=500", "status=529"], 529, "overloaded_error", Some("1"), ""
)]
#[tokio::test]
async fn what_the_vendor_refuses_or_fails_at_is_told_in_the_messages_format(
    #[case] routes: &[&str],
    #[case] status: u16,
    #[case] kind: &str,
    #[case] retry_after: Option<&str>,
    #[case] said: &str,
) {
    let short = "[timeouts]\nanswer_ms = 300";
    let world = World::start(Store::Sqlite).vendor("vendor_a", routes).conf(short).run().await;
    let answer = world.messages(messages_of(MODEL)).await;
    assert_eq!(answer.messages_refusal(), refused(status, kind));
    let lost = status == 502 || status == 504 || routes[0] == "status=500";
    let is_final = lost || (400..500).contains(&status);
    assert_eq!(answer.header("x-should-retry"), is_final.then_some("false"));
    assert_eq!(answer.header("retry-after"), retry_after);
    assert!(answer.message().starts_with(said), "{answer:?}");
    let all = String::from_utf8_lossy(&answer.body).into_owned();
    for secret in ["vk-", "sim-account", "req_sim", "req_vendor"] {
        assert!(!all.contains(secret), "{all}");
    }
    assert_eq!(world.sim.count("vendor_a"), routes.len() as u64);
    world.free_of_charge().await;
}

#[tokio::test]
async fn without_a_route_or_a_ledger_nothing_is_served() {
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[]).run().await;
    assert_eq!(
        world.messages(messages_of(MODEL)).await.messages_refusal(),
        refused(503, "api_error")
    );
    let mut world = World::start(Store::Redis).own_redis().run().await;
    assert_eq!(world.messages(messages_of(MODEL)).await.status, 200);
    world.settled(1).await;
    world.redis().stop();
    let answer = world.messages(messages_of(MODEL)).await;
    assert_eq!(answer.messages_refusal(), refused(503, "api_error"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(world.sim.seen().len(), 1);
}

/// The values of a key in the sections of a kind that are about the messages endpoint.
fn rules(kind: &str, key: &str) -> Vec<String> {
    let text = std::fs::read_to_string(RULES).expect("the rules");
    let begin = format!("[[{kind}]]\n");
    let sections = text.split("\n[").map(|s| format!("[{s}")).filter(|s| s.starts_with(&begin));
    let about = sections.filter(|s| {
        s.contains(r#"endpoints = ["messages"]"#) || s.contains(r#"endpoint = "messages""#)
    });
    let value = |s: String| {
        let line = s.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='))?;
        Some(line.trim().trim_matches(['"', '\'']).to_owned())
    };
    about.filter_map(value).collect()
}

#[tokio::test]
async fn every_field_that_has_no_price_is_refused_and_no_vendor_hears_of_it() {
    let world = World::start(Store::Sqlite).run().await;
    let fields = rules("refuse", "field");
    let given: Vec<_> = rules("example", "given").into_iter().skip(3).collect();
    let named = rules("example", "refused");
    let mut once = named.clone();
    once.dedup();
    assert_eq!((given.len(), &once), (named.len(), &fields), "an example for every field");
    for (given, field) in given.iter().zip(&named) {
        let mut members: Value = serde_json::from_str(given).expect("JSON");
        for message in members["messages"].as_array_mut().into_iter().flatten() {
            message["role"] = "user".into();
        }
        if members["messages"].is_null() {
            members["messages"] = messages_of(MODEL)["messages"].clone();
        }
        let answer = world.messages(with(messages_of(MODEL), &members)).await;
        assert_eq!(answer.messages_refusal(), refused(400, "invalid_request_error"), "{field}");
        let named = without_indexes(&answer.message());
        assert!(named.starts_with(&format!("{field} ")), "{field}: {}", answer.message());
    }
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

/// The text with `[]` in the place of `[8]`.
fn without_indexes(text: &str) -> String {
    let mut is_inside = false;
    let keep = |c: &char| {
        is_inside = *c == '[' || (is_inside && c.is_ascii_digit());
        !(is_inside && c.is_ascii_digit())
    };
    text.chars().filter(keep).collect()
}
