//! What is wrong with the call or with who makes it: no vendor hears of any of it.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rstest::rstest;
use serde_json::{Value, json};

use super::{Expected, Table};
use crate::world::{
    ACCOUNT, Answer, Form, MODERATION, OFFERS, Offer, RawAnswer, Sent, Store, VIDEO, World,
};

const INVALID: &str = "invalid_request_error";

/// A model that the endpoint does not serve, and where it is served.
fn wrong_kind(offer: Offer) -> (&'static str, &'static str) {
    match offer.endpoint {
        "chat" | "moderations" => ("tts-1", "/v1/audio/speech"),
        "responses" | "responses_compact" => ("lmc-3.5-flash", "/v1/chat/completions"),
        "image_edits" => ("text-embedding-3-small", "/v1/embeddings"),
        "speech" => ("lmb-image-1", "/v1/images/generations"),
        _ => ("lmb-5.5", "/v1/chat/completions"),
    }
}

/// A field that has to be there.
fn needed(offer: Offer) -> &'static str {
    match offer.endpoint {
        "chat" => "messages",
        "messages" => "max_tokens",
        "images" | "image_edits" | "videos" => "prompt",
        _ => "input",
    }
}

/// A body that cannot be read.
fn unreadable(offer: Offer) -> Sent {
    let mut sent = offer.sent(&json!({}));
    let cut = if offer.endpoint == "image_edits" { 20 } else { 1 };
    sent.bytes.truncate(sent.bytes.len() - cut);
    sent
}

/// The keys that open nothing, or too little.
struct Keys {
    revoked: String,
    poor: String,
    /// With a budget of nothing.
    limited: String,
    disabled: String,
    /// For models that there are none of.
    of_others: String,
}

impl Keys {
    async fn issue(world: &World) -> Keys {
        let second = world.command(&["--json", "key", "issue", ACCOUNT]).await.json().remove(0);
        let (revoked, prefix) = (&second["key"], &second["prefix"]);
        let prefix = prefix.as_str().expect("a prefix");
        world.command(&["key", "revoke", prefix]).await.done();
        let poor = world.another_account("poor", "0").await;
        let limited = world.command(&["key", "issue", ACCOUNT, "--budget", "day=0"]).await.done();
        let limited = limited.trim().to_owned();
        let disabled = world.command(&["key", "issue", ACCOUNT]).await.done().trim().to_owned();
        world.command(&["key", "set", &disabled[..14], "--disable"]).await.done();
        let of_others = world.command(&["key", "issue", ACCOUNT, "--models", "other-*"]).await;
        let of_others = of_others.done().trim().to_owned();
        let revoked = revoked.as_str().expect("a key").to_owned();
        Keys { revoked, poor, limited, disabled, of_others }
    }
}

async fn keys(world: &World, keys: &Keys, offer: Offer, table: &mut Table) {
    let Sent { media, bytes } = offer.sent(&json!({}));
    let stranger = format!("sk-tg-{}", "0".repeat(64));
    let unknown = "authentication_error";
    for (what, key, expected) in [
        ("no key", None, Expected::new(401, "missing_api_key", unknown)),
        ("a bad key", Some(&stranger), Expected::new(401, "invalid_api_key", unknown)),
        (
            "a revoked key",
            Some(&keys.revoked),
            Expected::new(403, "key_revoked", "permission_error"),
        ),
        ("a disabled key", Some(&keys.disabled), Expected::new(401, "key_disabled", unknown)),
        (
            "a key for other models",
            Some(&keys.of_others),
            Expected::new(403, "model_not_allowed", "permission_error")
                .at("model")
                .saying("it may use other-*"),
        ),
        (
            "no balance",
            Some(&keys.poor),
            Expected::new(402, "insufficient_credits", "billing_error"),
        ),
        (
            "no budget",
            Some(&keys.limited),
            Expected::new(402, "key_budget_exceeded", "billing_error").saying("it resets at "),
        ),
    ] {
        let request = world.sending(offer.path, &media, key.map(String::as_str));
        let answer = Answer::read(request.body(bytes.clone())).await;
        if offer == MODERATION && matches!(what, "no balance" | "no budget") {
            table.hold("a moderation needs no money", answer.status == 200);
        } else {
            table.judge(offer, what, &answer, &expected);
        }
    }
}

async fn fields(world: &World, offer: Offer, table: &mut Table) {
    let misspelt = format!("{}x", offer.model);
    let (other, right) = wrong_kind(offer);
    let needed = needed(offer);
    let missing = || Expected::new(400, "missing_required_parameter", INVALID);
    let mut rows = vec![
        (
            "an unknown model",
            json!({ "model": misspelt }),
            Expected::new(404, "model_not_found", "not_found_error")
                .at("model")
                .saying(&format!("'{}'", offer.model)),
        ),
        (
            "a model of another kind",
            json!({ "model": other }),
            Expected::new(400, "wrong_endpoint", INVALID).at("model").saying(right),
        ),
        ("a missing field", json!({ needed: null }), missing().at(needed).saying(needed)),
        ("no model", json!({ "model": null }), missing().at("model")),
        ("an empty model", json!({ "model": "" }), missing().at("model")),
    ];
    if offer == MODERATION {
        rows.retain(|(what, ..)| !["no model", "an empty model"].contains(what));
    }
    if offer.endpoint == "image_edits" {
        rows.retain(|(what, ..)| *what != "no model");
        rows.push(("no file", json!({ "image": null }), missing().at("image")));
    }
    for (what, members, expected) in rows {
        let answer = world.call(offer, members).await;
        table.judge(offer, what, &answer, &expected);
    }
}

async fn bodies(world: &World, offer: Offer, table: &mut Table) {
    let code = if offer.endpoint == "image_edits" { "invalid_form" } else { "invalid_json" };
    let answer = world.send(offer.path, &unreadable(offer)).await;
    table.judge(offer, "a broken body", &answer, &Expected::new(400, code, INVALID));
    let Sent { media, bytes } = offer.sent(&json!({}));
    if offer.endpoint == "image_edits" {
        let answer = world.send(offer.path, &Sent::json(&offer.call())).await;
        table.judge(offer, "JSON for a form", &answer, &Expected::new(400, code, INVALID));
    }
    if offer == VIDEO {
        let mut form = Form::new().field("model", offer.model).field("prompt", "A dot.").sent();
        form.bytes.truncate(form.bytes.len() - 20);
        let answer = world.send(offer.path, &form).await;
        table.judge(offer, "a broken form", &answer, &Expected::new(400, "invalid_form", INVALID));
    }
    let packed = world.sending(offer.path, &media, Some(&world.key));
    let packed = packed.header("content-encoding", "gzip").body(bytes);
    let expected = Expected::new(415, "unsupported_encoding", INVALID);
    table.judge(offer, "a packed body", &Answer::read(packed).await, &expected);
    let expected = Expected::new(405, "method_not_allowed", INVALID);
    // A list is a page of its own.
    let answer =
        if offer == VIDEO { world.delete(offer.path).await } else { world.get(offer.path).await };
    table.judge(offer, "another method", &answer, &expected);
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {}\r\n\
         content-type: {media}\r\ncontent-length: {}\r\n\r\n",
        offer.path,
        world.key,
        64 << 20
    );
    let expected = Expected::new(413, "request_too_large", "request_too_large");
    match world.raw(head.as_bytes()).await.pop() {
        Some(raw) => table.judge(offer, "a body that is too large", &answer_of(&raw), &expected),
        None => table.hold(&format!("{} answers a body that is too large", offer.path), false),
    }
}

fn answer_of(raw: &RawAnswer) -> Answer {
    let header = |(name, value): &(String, String)| {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("the name of a header");
        (name, HeaderValue::from_str(value).expect("the value of a header"))
    };
    let headers: HeaderMap = raw.headers.iter().map(header).collect();
    Answer { status: raw.status, headers, body: raw.body.clone().into() }
}

/// All cells of these, for the endpoints that have them: keys, fields and bodies.
const CELLS: usize = 13 * (7 + 5 + 4) - 6 + 2 * 2 + 1;

#[rstest]
#[tokio::test]
async fn what_is_wrong_with_a_call_is_told_and_no_vendor_hears_of_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let issued = Keys::issue(&world).await;
    let mut table = Table::default();
    for offer in OFFERS.into_iter().chain([VIDEO]) {
        keys(&world, &issued, offer, &mut table).await;
        // The moderations that need no money were made.
        let heard: Vec<_> = world.sim.take_seen().into_iter().map(|seen| seen.path).collect();
        let free = if offer == MODERATION { 2 } else { 0 };
        table.hold(&format!("{heard:?} was heard"), heard.len() == free);
        fields(&world, offer, &mut table).await;
        bodies(&world, offer, &mut table).await;
    }
    let heard: Vec<_> = world.sim.take_seen().into_iter().map(|seen| seen.path).collect();
    table.hold(&format!("{heard:?} was heard"), heard.is_empty());
    let told = world.command(&["--json", "charges", "poor"]).await.done();
    table.hold("who has nothing pays nothing", told.is_empty());
    table.end(&world, CELLS).await;
}

/// What an SDK has to be told, or it tries again by itself or its user does.
#[tokio::test]
async fn a_wrong_key_was_tried_again_for_a_minute() {
    let world = World::start(Store::Sqlite).run().await;
    let sent = MODERATION.sent(&json!({}));
    for key in [None, Some("sk-tg-wrong")] {
        let request = world.sending(MODERATION.path, &sent.media, key);
        let answer = Answer::read(request.body(sent.bytes.clone())).await;
        assert_eq!((answer.status, answer.header("x-should-retry")), (401, Some("false")));
    }
}

#[rstest]
#[case::chat("/chat/completions", true)]
#[case::responses("/responses", true)]
#[case::compaction("/responses/compact", true)]
#[case::messages("/messages", true)]
#[case::count("/messages/count_tokens", true)]
#[case::models("/models", true)]
#[case::model("/models/lmb-5.5", true)]
#[case::video("/videos/video_1", true)]
#[case::nothing("/", false)]
#[case::completions("/completions", false)]
#[tokio::test]
async fn a_base_address_without_v1_was_not_found_and_no_more_was_said(
    #[case] path: &str,
    #[case] is_hinted: bool,
) {
    let world = World::start(Store::Sqlite).run().await;
    for answer in [world.send(path, &Sent::json(&json!({}))).await, world.get(path).await] {
        assert_eq!(answer.status, 404, "{answer:?}");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        let message = answer.message();
        assert_eq!(message.contains("must end in '/v1'"), is_hinted, "{message}");
        assert_eq!(message.contains(&format!("it is /v1{path}")), is_hinted, "{message}");
        // Clients of the messages format look for its shape there as well.
        let of_messages = answer.json()["type"] == "error";
        assert_eq!(of_messages, path.starts_with("/messages"), "{answer:?}");
    }
}

#[rstest]
#[tokio::test]
async fn paths_around_the_endpoints_are_not_found(
    #[values(
        "/v1/responses/resp_1",
        "/v1/responses/resp_1/input_items",
        "/v1/responses/compact/",
        "/v1/images",
        "/v1/images/variations",
        "/v1/audio/transcriptions",
        "/v1/embeddings/",
        "/v1/v1/embeddings",
        "/v1/videos/",
        "/v1/videos/video_00000000-0000-7000-8000-000000000000/other"
    )]
    path: &str,
) {
    let world = World::start(Store::Sqlite).run().await;
    let sent = Sent::json(&Value::from(Vec::<u8>::new()));
    for answer in [world.send(path, &sent).await, world.get(path).await] {
        assert_eq!(answer.refusal(), (404, "not_found".to_owned()), "{answer:?}");
    }
    world.free_of_charge().await;
}
