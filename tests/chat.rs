//! Chat calls: what reaches the vendor, and what comes back.

use bytes::Bytes;
use futures_util::stream;
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Store, VENDOR_KEY, World, chat_of, model_of};

/// A call whose body has exactly so many bytes, or a little over what a call needs.
fn call_of_size(bytes: usize) -> String {
    let around = chat_of("lmb-5.5").to_string();
    let filler = "x".repeat(bytes.saturating_sub(around.len()));
    around.replace("How much", &format!("How{filler} much"))
}

/// Spaces where no serialiser puts them, so that a body that was written anew would show.
fn spaced(body: &str) -> String {
    body.replacen(':', " :\t", 1).replacen(",\"", " ,\n \"", 1)
}

#[rstest]
#[case::tiny(10)]
#[case::above_pingoras_retry_buffer(70 << 10)]
#[case::mebibyte(1 << 20)]
#[tokio::test]
async fn a_body_reaches_the_vendor_byte_for_byte(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] bytes: usize,
    #[values(false, true)] chunked: bool,
) {
    let world = World::start(store).credit("100").run().await;
    let body = spaced(&call_of_size(bytes));
    let answer =
        if chunked { world.post(in_chunks(&body)).await } else { world.post(body.clone()).await };
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(world.sim.seen()[0].body, body.as_bytes());
    world.settled(1).await;
}

fn in_chunks(body: &str) -> reqwest::Body {
    let chunks: Vec<_> = body.as_bytes().chunks(16_001).map(Bytes::copy_from_slice).collect();
    reqwest::Body::wrap_stream(stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>)))
}

#[rstest]
#[tokio::test]
async fn twenty_mebibytes_reach_the_third_route_after_two_that_are_blocked(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] chunked: bool,
) {
    let routes = ["status=503", "status=429", "echo"];
    let world = World::start(store).vendor("vendor_b", &routes).credit("100").run().await;
    let body = call_of_size(20 << 20);
    let answer =
        if chunked { world.post(in_chunks(&body)).await } else { world.post(body.clone()).await };
    assert_eq!(answer.status, 200, "{:?}", answer.headers);
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("2"));
    let echo: Value = serde_json::from_str(&answer.text()).expect("the simulator's echo");
    assert_eq!(echo["bytes"], body.len());
    let seen = world.sim.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|s| s.body == body.as_bytes()), "each route got the same bytes");
    let charge = world.charge().await;
    assert_eq!((charge.depth, charge.route.as_str()), (2, "r2"));
}

#[tokio::test]
async fn twenty_mebibytes_go_through_a_route_that_answers_at_once() {
    let world = World::start(Store::Sqlite).credit("100").run().await;
    let body = call_of_size(20 << 20);
    let answer = world.post(body.clone()).await;
    assert_eq!(answer.status, 200, "{:?}", answer.headers);
    assert_eq!(world.sim.seen()[0].body, body.as_bytes());
}

#[tokio::test]
async fn a_large_body_is_spliced_anew_for_every_route() {
    let routes = ["status=503", "status=500", ""];
    let names = "[vendor.vendor_b.names]\n\"lmb-5.5\" = \"theirs\"";
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &routes).conf(names);
    let world = builder.credit("100").run().await;
    let mut call = chat_of("lmb-5.5");
    call["messages"][0]["content"] = "x".repeat(5 << 20).into();
    let streamed = world.stream(call.clone()).await;
    assert!(streamed.is_done());
    call["model"] = "theirs".into();
    call["stream"] = true.into();
    call["stream_options"] = json!({ "include_usage": true });
    let seen = world.sim.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|s| s.json() == call), "each route got the same call");
}

#[tokio::test]
async fn a_stream_asks_for_usage_by_a_splice_and_changes_nothing_else() {
    let world = World::start(Store::Sqlite).run().await;
    let messages = r#"[{"role":"user","content":"\u0041é"}]"#;
    let body = format!(r#"{{"model" :"lmb-5.5",  "stream":true, "messages":{messages} }}"#);
    assert_eq!(world.post(body.clone()).await.status, 200);
    let seen = String::from_utf8(world.sim.seen()[0].body.to_vec()).expect("text");
    let asked = r#""stream_options":{"include_usage":true}"#;
    let without = seen.replacen(&format!(",{asked}"), "", 1).replacen(&format!("{asked},"), "", 1);
    assert!(seen.contains(asked), "{seen}");
    assert_eq!(without, body, "{seen}");
}

#[tokio::test]
async fn stream_options_keep_what_the_client_put_there() {
    let world = World::start(Store::Sqlite).run().await;
    let with_another = json!({ "include_obfuscation": false, "include_usage": true });
    for (given, sent) in [
        (json!({ "include_usage": true }), json!({ "include_usage": true })),
        (json!({ "include_usage": false }), json!({ "include_usage": true })),
        (json!({ "include_obfuscation": false }), with_another),
        (Value::Null, json!({ "include_usage": true })),
    ] {
        let mut body = chat_of("lmb-5.5");
        body["stream_options"] = given.clone();
        assert!(world.stream(body).await.is_done(), "{given}");
        assert_eq!(world.sim.take_seen()[0].json()["stream_options"], sent, "{given}");
    }
}

#[tokio::test]
async fn a_call_that_is_no_stream_gets_no_stream_options() {
    let world = World::start(Store::Sqlite).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    assert_eq!(world.sim.seen()[0].json(), chat_of("lmb-5.5"));
}

#[tokio::test]
async fn the_vendors_name_of_a_model_takes_the_place_of_ours() {
    let names = "[vendor.vendor_b.names]\n\"lmb-5.5\" = \"theirs\"\n\"lmb-4*\" = \"old-*\"";
    let world = World::start(Store::Sqlite).credit("100").conf(names).run().await;
    for (ours, theirs) in [("lmb-5.5", "theirs"), ("lmb-4o", "old-o"), ("o1", "o1")] {
        let body =
            format!(r#"{{"messages":[{{"role":"user","content":"hi"}}], "model":"{ours}"}}"#);
        assert_eq!(world.post(body.clone()).await.status, 200);
        let seen = world.sim.take_seen().remove(0).body;
        assert_eq!(seen, body.replace(&format!("{ours:?}"), &format!("{theirs:?}")).as_bytes());
    }
    let charged: Vec<_> = world.settled(3).await.into_iter().map(|c| c.model).collect();
    assert_eq!(charged, ["lmb-5.5", "lmb-4o", "o1"]);
}

#[tokio::test]
async fn effort_is_left_out_for_models_that_do_not_take_it() {
    let world = World::start(Store::Sqlite).run().await;
    for (model, sent) in [("lmb-5.5", Some("low")), ("lmb-4o", None)] {
        let mut body = chat_of(model);
        body["reasoning_effort"] = "low".into();
        body["temperature"] = json!(0.5);
        let answer = world.chat(body.clone()).await;
        assert_eq!(answer.status, 200, "{model}: {answer:?}");
        let seen = world.sim.take_seen()[0].json();
        assert_eq!(seen["reasoning_effort"].as_str(), sent, "{model}");
        assert_eq!(seen["temperature"], body["temperature"], "{model}");
    }
}

#[rstest]
#[tokio::test]
async fn only_the_allowed_headers_reach_the_vendor(
    #[values("vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).run().await;
    let mut body = chat_of(model_of(vendor));
    body["stream"] = stream.into();
    let names = [
        "cookie",
        "x-forwarded-for",
        "forwarded",
        "via",
        "x-api-key",
        "openai-organization",
        "x-stainless-lang",
        "x-request-id",
        "traceparent",
        "idempotency-key",
        "te",
        "referer",
    ];
    let request = world.request("/v1/chat/completions").body(body.to_string());
    let request = names.iter().fold(request, |r, name| r.header(*name, "from-the-client"));
    assert_eq!(request.send().await.expect("an answer").status(), 200);
    let seen = world.sim.seen().remove(0);
    let mut sent: Vec<_> = seen.headers.iter().map(|(n, _)| n.to_ascii_lowercase()).collect();
    sent.sort();
    let allowed = [
        "accept",
        "accept-encoding",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "user-agent",
    ];
    assert_eq!(sent, allowed);
    assert_eq!(seen.header("authorization"), Some(format!("Bearer {VENDOR_KEY}").as_str()));
    assert_eq!(seen.header("accept-encoding"), Some("identity"));
    assert_eq!(seen.header("host"), Some(world.sim.address().to_string().as_str()));
    assert!(!format!("{:?}", seen.headers).contains(&world.key));
}

#[rstest]
#[tokio::test]
async fn nothing_of_the_vendors_head_comes_back(#[values(false, true)] stream: bool) {
    let world = World::start(Store::Sqlite).run().await;
    let mut call = chat_of("lmb-5.5");
    call["stream"] = stream.into();
    let answer = world.chat(call).await;
    let mut expected = vec!["content-type", "x-gateway-fallback-depth", "x-request-id"];
    if stream {
        expected.insert(0, "cache-control");
    } else {
        expected.insert(1, "x-gateway-charged-nano");
    }
    assert_eq!(answer.header_names(), expected);
    let id = answer.header("x-request-id").expect("an id").to_owned();
    assert!(!id.contains("req_vendor"), "{id}");
    let charge = world.charge().await;
    assert_eq!(charge.request_id, id);
    assert_eq!(charge.vendor_request_id.as_deref(), Some("req_vendor_1"));
}

#[rstest]
#[tokio::test]
async fn every_vendor_answers_in_the_chat_format(
    #[values("vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let whole = world.chat(chat_of(model_of(vendor))).await;
    assert_eq!(whole.status, 200, "{whole:?}");
    assert_eq!(whole.json()["object"], "chat.completion");
    let streamed = world.stream(chat_of(model_of(vendor))).await;
    assert!(streamed.is_done(), "{streamed:?}");
    assert_eq!(streamed.text(), whole.text());
    let depths =
        [whole.header("x-gateway-fallback-depth"), streamed.header("x-gateway-fallback-depth")];
    assert_eq!(depths, [Some("0"), Some("0")]);
    assert_eq!(world.settled(2).await[1].vendor, vendor);
}

#[tokio::test]
async fn a_request_id_is_on_every_answer_and_never_twice_the_same() {
    let world = World::start(Store::Sqlite).vendor("vendor_c", &["status=500"]).run().await;
    let mut ids = Vec::new();
    for answer in [
        world.get("/v1/models").await,
        world.get("/v1/models/nothing").await,
        world.get("/nowhere").await,
        world.get_with("/v1/models", "sk-none").await,
        world.get("/v1/chat/completions").await,
        world.post("{").await,
        world.chat(chat_of("lmb-5.5")).await,
        world.chat(chat_of("lmc-3.5-flash")).await,
    ] {
        ids.push(answer.header("x-request-id").expect("an id").to_owned());
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[tokio::test]
async fn an_unknown_model_is_never_replaced_by_another() {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.chat(chat_of("lmb-5.6-tera")).await;
    assert_eq!(answer.refusal(), (404, "model_not_found".to_owned()));
    assert!(answer.message().contains("lmb-5.6-terra"), "{}", answer.message());
    assert_eq!(world.sim.count("vendor_b"), 0);
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_model_of_another_kind_names_the_right_endpoint() {
    let world = World::start(Store::Sqlite).run().await;
    for (model, path) in [
        ("o1-pro", "/v1/responses"),
        ("lmb-image-1", "/v1/images/generations"),
        ("lmd-imagine-video", "/v1/videos"),
        ("tts-1", "/v1/audio/speech"),
        ("text-embedding-3-small", "/v1/embeddings"),
        ("omni-moderation-latest", "/v1/moderations"),
    ] {
        let answer = world.chat(chat_of(model)).await;
        assert_eq!(answer.refusal_of(model), (400, "wrong_endpoint".to_owned()), "{model}");
        assert!(answer.message().contains(path), "{model}: {}", answer.message());
    }
    world.free_of_charge().await;
}
