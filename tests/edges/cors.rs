//! Calls by pages in browsers: which pages may, and that without the setting none is spoken of.

use reqwest::Method;
use serde_json::json;

use crate::world::{Answer, CHAT, MESSAGES, Store, World, chat_of, messages_of, with};

const PAGE: &str = "https://app.example";
const CONF: &str =
    "[listen]\ncors_origins = [\"https://app.example\", \"http://localhost:5173\"]\n";
const ALLOW_ORIGIN: &str = "access-control-allow-origin";

/// Asks as a browser does before a page may send a request.
async fn preflight(world: &World, path: &str, origin: &str) -> Answer {
    let url = format!("http://{}{path}", world.gateway.http);
    let request = world.client().request(Method::OPTIONS, url).header("origin", origin);
    let request = request.header("access-control-request-method", "POST");
    let request = request.header("access-control-request-headers", "authorization,x-stainless-os");
    Answer::read(request).await
}

/// A chat call by a page.
async fn called_by(world: &World, origin: &str) -> Answer {
    let body = chat_of("lmb-5.5").to_string();
    Answer::read(world.request(CHAT.path).header("origin", origin).body(body)).await
}

/// The names of the headers of an answer that a page may read.
fn exposed(answer: &Answer) -> Vec<&str> {
    let names = answer.header("access-control-expose-headers").unwrap_or_default();
    names.split(", ").collect()
}

#[tokio::test]
async fn a_browser_is_told_what_a_page_may_send() {
    let world = World::start(Store::Sqlite).conf(CONF).run().await;
    for (path, methods) in [
        (CHAT.path, "POST"),
        ("/v1/messages", "POST"),
        ("/v1/messages/count_tokens", "POST"),
        ("/v1/models", "GET"),
        ("/v1/videos", "GET, POST"),
        ("/v1/videos/video_1", "GET, DELETE"),
    ] {
        let answer = preflight(&world, path, PAGE).await;
        let told = |name| answer.header(name).unwrap_or_default();
        assert_eq!((answer.status, answer.body.len()), (204, 0), "{path}: {answer:?}");
        assert_eq!(told(ALLOW_ORIGIN), PAGE, "{path}");
        assert_eq!(told("access-control-allow-methods"), methods, "{path}");
        let allowed = told("access-control-allow-headers");
        for name in ["authorization", "x-api-key", "content-type", "idempotency-key"] {
            assert!(allowed.contains(name), "{path}: {allowed}");
        }
        assert!(allowed.ends_with("authorization,x-stainless-os"), "{path}: {allowed}");
        assert_eq!(told("access-control-max-age"), "7200", "{path}");
        assert_eq!(told("vary"), "origin", "{path}");
        assert_eq!(answer.header("access-control-allow-credentials"), None, "{path}");
        assert_eq!(answer.header("content-length"), None, "{path}");
    }
    let elsewhere = preflight(&world, "/v1/nothing", PAGE).await;
    assert_eq!((elsewhere.status, elsewhere.header(ALLOW_ORIGIN)), (404, Some(PAGE)));
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_page_may_read_answers_streams_and_errors_alike() {
    let world = World::start(Store::Sqlite).conf(CONF).run().await;
    let answer = called_by(&world, PAGE).await;
    assert_eq!((answer.status, answer.header(ALLOW_ORIGIN)), (200, Some(PAGE)));
    assert_eq!(answer.header("vary"), Some("origin"));
    for name in ["x-request-id", "x-gateway-fallback-depth"] {
        assert!(exposed(&answer).contains(&name), "{answer:?}");
    }
    let call = with(chat_of("lmb-5.5"), &json!({ "stream": true })).to_string();
    let request = world.request(CHAT.path).header("origin", "http://localhost:5173").body(call);
    let stream = Answer::read(request).await;
    assert_eq!((stream.status, stream.header(ALLOW_ORIGIN)), (200, Some("http://localhost:5173")));
    for (path, status) in [(CHAT.path, 400), ("/v1/nothing", 404)] {
        let request = world.request(path).header("origin", PAGE).body("{}");
        let refused = Answer::read(request).await;
        assert_eq!((refused.status, refused.header(ALLOW_ORIGIN)), (status, Some(PAGE)));
        assert!(exposed(&refused).contains(&"x-should-retry"), "{refused:?}");
    }
    world.settled(2).await;
}

#[tokio::test]
async fn a_page_may_read_rate_limits_under_the_names_that_the_operator_gives() {
    let names = "[vendor.vendor_a.header_names]\n\"vendor_a-ratelimit-*\" = \"brand-limit-*\"";
    let plans = "[plan.default]\nrequests_per_minute = 1\ntokens_per_minute = 100_000";
    let builder = World::start(Store::Sqlite).plans(plans).conf(CONF).conf(names);
    let world = builder.run().await;
    for (status, more) in [(200, "x-gateway-fallback-depth"), (429, "retry-after-ms")] {
        let body = messages_of(MESSAGES.model).to_string();
        let request = world.request(MESSAGES.path).header("origin", PAGE).body(body);
        let answer = Answer::read(request).await;
        assert_eq!(answer.status, status, "{answer:?}");
        let readable = exposed(&answer);
        for name in ["request-id", "brand-limit-requests-remaining", "brand-limit-tokens-reset"] {
            assert!(readable.contains(&name), "{name}: {answer:?}");
        }
        for name in ["x-ratelimit-remaining-tokens", more] {
            assert!(readable.contains(&name), "{name}: {answer:?}");
        }
    }
    world.settled(1).await;
}

#[tokio::test]
async fn a_page_may_read_that_a_reply_was_sent_before() {
    let world = World::start(Store::Sqlite).conf(CONF).run().await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request = world.request(CHAT.path).header("origin", PAGE);
        let request = request.header("idempotency-key", "once");
        answers.push(Answer::read(request.body(chat_of("lmb-5.5").to_string())).await);
    }
    let names = ["idempotent-replayed", "x-original-request-id"];
    let readable = |answer: &Answer| names.map(|name| exposed(answer).contains(&name));
    assert_eq!(readable(&answers[0]), [false, false]);
    assert_eq!(readable(&answers[1]), [true, true], "{:?}", answers[1]);
    world.settled(1).await;
}

#[tokio::test]
async fn another_page_is_told_nothing() {
    let world = World::start(Store::Sqlite).conf(CONF).run().await;
    for origin in ["https://app.example.evil.example", "http://app.example", "null"] {
        let asked = preflight(&world, CHAT.path, origin).await;
        assert_eq!(asked.refusal(), (405, "method_not_allowed".to_owned()), "{origin}");
        let answer = called_by(&world, origin).await;
        for answer in [asked, answer] {
            assert_eq!(answer.header(ALLOW_ORIGIN), None, "{origin}");
            assert_eq!(answer.header("access-control-expose-headers"), None, "{origin}");
            assert_eq!(answer.header("vary"), Some("origin"), "{origin}");
        }
    }
    world.settled(3).await;
}

#[tokio::test]
async fn any_page_may_where_any_may_but_none_without_an_origin() {
    let any = "[listen]\ncors_origins = [\"*\"]\n";
    let world = World::start(Store::Sqlite).conf(any).run().await;
    let asked = preflight(&world, CHAT.path, "https://a.example").await;
    assert_eq!((asked.status, asked.header(ALLOW_ORIGIN)), (204, Some("*")));
    assert_eq!(preflight(&world, CHAT.path, "null").await.status, 405);
}

#[tokio::test]
async fn without_the_setting_no_answer_speaks_of_origins() {
    let world = World::start(Store::Sqlite).run().await;
    let asked = preflight(&world, CHAT.path, PAGE).await;
    assert_eq!(asked.refusal(), (405, "method_not_allowed".to_owned()));
    for answer in [asked, called_by(&world, PAGE).await] {
        let names = answer.headers.keys().map(reqwest::header::HeaderName::as_str);
        let told: Vec<_> = names.filter(|n| n.starts_with("access-") || *n == "vary").collect();
        assert_eq!(told, [""; 0]);
    }
    world.settled(1).await;
}
