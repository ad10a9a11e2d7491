//! What is refused before anything costs anything: unsound bodies, wrong fields, unpriced fields.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Answer, Store, World, chat_of, model_of};

const MESSAGES: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

/// Posts a body, and proves that no vendor heard of it and that nothing is held for it.
async fn refused(
    world: &World,
    what: &str,
    body: impl Into<reqwest::Body>,
) -> (u16, String, Value) {
    let answer = world.post(body).await;
    let (status, code) = answer.refusal_of(what);
    assert_eq!(world.sim.seen().len(), 0, "a vendor heard of it, {what}: {answer:?}");
    (status, code, answer.json()["error"]["param"].clone())
}

fn with(members: &str) -> Vec<u8> {
    format!(r#"{{"model":"lmb-5.5",{MESSAGES}{members}}}"#).into_bytes()
}

fn unsound_bodies() -> Vec<(&'static str, Vec<u8>)> {
    let deep = |depth: usize| {
        let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
        with(&format!(r#","metadata":{open}{close}"#))
    };
    let with_bytes = |bytes: &[u8]| {
        let mut body = with(r#","user":""#);
        body.truncate(body.len() - 1);
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\"}");
        body
    };
    let sound = String::from_utf8(with("")).expect("text");
    vec![
        ("empty", vec![]),
        ("white space", b" \n".to_vec()),
        ("a word", b"hello".to_vec()),
        ("cut", sound.as_bytes()[..sound.len() - 1].to_vec()),
        ("an array at the top", format!("[{sound}]").into_bytes()),
        ("a text at the top", br#""{}""#.to_vec()),
        ("a duplicate", with(r#","model":"o1-pro""#)),
        ("an escaped duplicate", with(r#","mo\u0064el":"lmb-5-nano""#)),
        ("a duplicate of an unknown field", with(r#","x":1,"x":1"#)),
        ("a duplicate inside", with(r#","metadata":{"a":1,"\u0061":2}"#)),
        ("a duplicate inside a list", with(r#","tools":[{"type":"function","type":"custom"}]"#)),
        ("depth 65", deep(65)),
        ("depth 100,000", deep(100_000)),
        ("bad UTF-8", with_bytes(b"\xff")),
        ("overlong UTF-8", with_bytes(b"\xc0\xaf")),
        ("a surrogate in UTF-8", with_bytes(b"\xed\xa0\x80")),
        ("a lone high surrogate", with_bytes(br"\ud800")),
        ("a lone low surrogate", with_bytes(br"\udc00")),
        ("a high surrogate before a letter", with_bytes(br"\ud800\u0041")),
        ("a control character", with_bytes(b"\x01")),
        ("a line feed in a text", with_bytes(b"\n")),
        ("an unknown escape", with_bytes(br"\x41")),
        ("a byte order mark", [b"\xef\xbb\xbf".as_slice(), sound.as_bytes()].concat()),
        ("UTF-16", sound.bytes().flat_map(|byte| [byte, 0]).collect()),
        ("trailing data", format!("{sound}{{}}").into_bytes()),
        ("a trailing letter", format!("{sound}x").into_bytes()),
        ("a trailing zero byte", format!("{sound}\0").into_bytes()),
        ("an endless number", with(r#","temperature":1e400"#)),
        ("a number with a leading zero", with(r#","seed":01"#)),
        ("a number with a plus", with(r#","seed":+1"#)),
        ("a number without digits after the point", with(r#","seed":1."#)),
        ("not a number", with(r#","temperature":NaN"#)),
        ("a comma too many", with(r#","stop":["a",]"#)),
        ("a comment", with(r#","seed":1/* no */"#)),
        ("single quotes", with(",'seed':1")),
        ("a name without quotes", with(",seed:1")),
    ]
}

#[rstest]
#[tokio::test]
async fn unsound_json_is_refused_before_anything_else(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    for (what, body) in unsound_bodies() {
        let (status, code, _) = refused(&world, what, body).await;
        assert_eq!((status, code.as_str()), (400, "invalid_json"), "{what}");
    }
    world.free_of_charge().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
}

#[tokio::test]
async fn depth_64_and_odd_but_sound_json_pass() {
    let world = World::start(Store::Sqlite).run().await;
    let deep = format!(r#","metadata":{}{}"#, "[".repeat(63), "]".repeat(63));
    for members in [
        deep.as_str(),
        r#","user":"\ud83d\ude00""#,
        r#","seed":-0"#,
        r#","temperature":1e-400"#,
        r#","unknown":{"a":{"a":1},"b":{"a":1}}"#,
        r#","":1," ":2"#,
    ] {
        assert_eq!(world.post(with(members)).await.status, 200, "{members}");
        assert_eq!(world.sim.take_seen()[0].body, with(members));
    }
}

/// What is wrong, the members that make it so, in the place of those of a good call (null for none
/// at all), and the field that is named.
fn wrong_fields() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("no model", json!({ "model": null }), "model"),
        ("an empty model", json!({ "model": "" }), "model"),
        ("a model of another type", json!({ "model": 5 }), "model"),
        ("no messages", json!({ "messages": null }), "messages"),
        ("empty messages", json!({ "messages": [] }), "messages"),
        ("messages of another type", json!({ "messages": "hi" }), "messages"),
        ("a message of another type", json!({ "messages": ["hi"] }), "messages[0]"),
        (
            "a message without a role",
            json!({ "messages": [{ "content": "hi" }] }),
            "messages[0].role",
        ),
        ("stream of another type", json!({ "stream": "yes" }), "stream"),
        ("stream a number", json!({ "stream": 1 }), "stream"),
        ("stream options of another type", json!({ "stream_options": true }), "stream_options"),
        (
            "a usage wish of another type",
            json!({ "stream_options": { "include_usage": "yes" } }),
            "stream_options.include_usage",
        ),
        ("a negative limit", json!({ "max_tokens": -1 }), "max_tokens"),
        ("a broken limit", json!({ "max_tokens": 1.5 }), "max_tokens"),
        ("a limit as text", json!({ "max_tokens": "5" }), "max_tokens"),
        ("a limit of zero", json!({ "max_tokens": 0 }), "max_tokens"),
        (
            "the other limit negative",
            json!({ "max_completion_tokens": -1 }),
            "max_completion_tokens",
        ),
        (
            "a limit that not every reader reads alike",
            json!({ "max_tokens": 9_007_199_254_740_993_u64 }),
            "max_tokens",
        ),
        ("no choices", json!({ "n": 0 }), "n"),
        ("too many choices", json!({ "n": 129 }), "n"),
        ("choices as text", json!({ "n": "1" }), "n"),
    ]
}

#[tokio::test]
async fn a_wrong_field_is_named() {
    let world = World::start(Store::Sqlite).run().await;
    for (what, members, param) in wrong_fields() {
        let body = crate::world::with(chat_of("lmb-5.5"), &members).to_string();
        let (status, code, named) = refused(&world, what, body).await;
        assert_eq!((status, named.as_str()), (400, Some(param)), "{what}: {code}");
        let known = ["missing_required_parameter", "invalid_value"];
        assert!(known.contains(&code.as_str()), "{what}: {code}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_body_of_two_types_was_read_as_the_first() {
    let world = World::start(Store::Sqlite).run().await;
    let typed = |first: &str, second: &str| {
        let request =
            world.client().post(format!("http://{}/v1/chat/completions", world.gateway.http));
        let request = request.bearer_auth(&world.key).body(with(""));
        request.header("content-type", first).header("content-type", second)
    };
    let answer = Answer::read(typed("application/json", "text/plain")).await;
    assert_eq!(answer.refusal(), (400, "invalid_value".to_owned()));
    assert_eq!(answer.json()["error"]["param"], "content-type");
    world.free_of_charge().await;
}

#[tokio::test]
async fn limits_and_choices_at_their_bounds_pass() {
    let world = World::start(Store::Sqlite).run().await;
    for members in [r#","max_tokens":1"#, r#","n":128"#, r#","max_completion_tokens":1e2"#] {
        let answer = world.post(with(members)).await;
        assert!([200, 400].contains(&answer.status), "{members} {answer:?}");
        if answer.status == 400 {
            assert_eq!(answer.code(), "invalid_value", "{members}");
        }
    }
}

/// A vendor, members that he has no price for, and the field that is named.
const UNPRICED: [(&str, &str, &str); 16] = [
    ("vendor_b", r#","service_tier":"priority""#, "service_tier"),
    ("vendor_b", r#","service_ti\u0065r":"\u0070riority""#, "service_tier"),
    ("vendor_b", r#","service_tier":["priority"]"#, "service_tier"),
    ("vendor_b", r#","web_search_options":{}"#, "web_search_options"),
    ("vendor_b", r#","tools":[{"type":"web_search"}]"#, "tools[0].type"),
    ("vendor_b", r#","tools":[{"type":"function"},{"type":"code_interpreter"}]"#, "tools[1].type"),
    ("vendor_b", r#","audio":{"voice":"x"}"#, "audio"),
    ("vendor_b", r#","modalities":["text","audio"]"#, "modalities[1]"),
    ("vendor_d", r#","deferred":true"#, "deferred"),
    ("vendor_d", r#","search_parameters":{}"#, "search_parameters"),
    ("vendor_d", r#","service_tier":"priority""#, "service_tier"),
    ("vendor_c", r#","serviceTier":"priority""#, "serviceTier"),
    ("vendor_c", r#","tools":[{"google_search":{}}]"#, "tools[0].google_search"),
    (
        "vendor_c",
        r#","extra_body":{"google":{"cached_content":"x"}}"#,
        "extra_body.google.cached_content",
    ),
    ("vendor_e", r#","service_tier":"priority""#, "service_tier"),
    ("vendor_e", r#","background":true"#, "background"),
];

#[tokio::test]
async fn a_field_without_a_price_is_refused_by_name() {
    let world = World::start(Store::Sqlite).run().await;
    for (vendor, members, field) in UNPRICED {
        let what = format!("{members} of {vendor}");
        let body = format!(r#"{{"model":"{}",{MESSAGES}{members}}}"#, model_of(vendor));
        let (status, code, param) = refused(&world, &what, body).await;
        assert_eq!((status, code.as_str()), (400, "unsupported_parameter"), "{what}");
        assert_eq!(param, field, "{what}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn sound_in_a_message_is_refused() {
    let world = World::start(Store::Sqlite).run().await;
    let part = r#"{"type":"input_audio","input_audio":{"data":"","format":"wav"}}"#;
    let body =
        format!(r#"{{"model":"lmb-5.5","messages":[{{"role":"user","content":[{part}]}}]}}"#);
    let (status, code, param) = refused(&world, "sound", body).await;
    assert_eq!((status, code.as_str()), (400, "unsupported_parameter"));
    assert_eq!(param, "messages[0].content[0].type");
}

#[tokio::test]
async fn harmless_values_of_priced_fields_pass() {
    let world = World::start(Store::Sqlite).run().await;
    for members in [
        r#","service_tier":"auto""#,
        r#","service_tier":null"#,
        r#","tools":[{"type":"function","function":{"name":"f"}}]"#,
        r#","modalities":["text"]"#,
        r#","deferred":false"#,
    ] {
        assert_eq!(world.post(with(members)).await.status, 200, "{members}");
    }
}

#[tokio::test]
async fn a_compressed_body_is_refused() {
    let world = World::start(Store::Sqlite).run().await;
    for encoding in ["gzip", "br", "zstd", "identity, gzip"] {
        let request = world.request("/v1/chat/completions").header("content-encoding", encoding);
        let answer = Answer::try_read(request.body(with(""))).await.expect("an answer");
        assert_eq!(answer.refusal(), (415, "unsupported_encoding".to_owned()), "{encoding}");
    }
    let request = world.request("/v1/chat/completions").header("content-encoding", "identity");
    let answer = Answer::try_read(request.body(with(""))).await.expect("an answer");
    assert_eq!(answer.status, 200);
    world.settled(1).await;
}

#[tokio::test]
async fn a_body_that_is_told_to_be_too_large_is_refused_before_it_comes() {
    let world = World::start(Store::Sqlite).run().await;
    let head = head(&world, &format!("content-length: {}", (32 << 20) + 1));
    let answers = world.raw(head.as_bytes()).await;
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!((answers[0].status, answers[0].whole), (413, true));
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_body_that_grows_too_large_in_chunks_is_refused() {
    let world = World::start(Store::Sqlite).conf("[limits]\njson_bytes_max = 100_000").run().await;
    let mut bytes = head(&world, "transfer-encoding: chunked").into_bytes();
    bytes.extend_from_slice(b"186a1\r\n");
    bytes.resize(bytes.len() + 100_001, b' ');
    bytes.extend_from_slice(b"\r\n0\r\n\r\n");
    let answers = world.raw(&bytes).await;
    assert_eq!(answers[0].status, 413, "{answers:?}");
    assert_eq!(world.sim.seen().len(), 0);
}

#[tokio::test]
async fn the_largest_body_passes_and_a_byte_more_does_not() {
    let world = World::start(Store::Sqlite).credit("200").run().await;
    let mut body = with("");
    body.resize(32 << 20, b' ');
    assert_eq!(world.post(body.clone()).await.status, 200);
    body.push(b' ');
    let request = world.request("/v1/chat/completions").body(body);
    // A server may close before it has read what it does not want.
    if let Ok(answer) = Answer::try_read(request).await {
        assert_eq!(answer.refusal(), (413, "request_too_large".to_owned()));
    }
    assert_eq!(world.sim.count("vendor_b"), 1);
}

#[tokio::test]
async fn a_body_that_does_not_come_whole_is_not_served() {
    let world = World::start(Store::Sqlite).conf("[timeouts]\nbody_ms = 200").run().await;
    let bytes = head(&world, "content-length: 1000") + r#"{"model":"lmb-5.5","#;
    let answers = world.raw(bytes.as_bytes()).await;
    assert_eq!(answers[0].status, 408, "{answers:?}");
    assert_eq!(world.sim.seen().len(), 0);
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
}

#[tokio::test]
async fn two_lengths_or_a_length_beside_chunks_smuggle_nothing_past_the_gateway() {
    let world = World::start(Store::Sqlite).run().await;
    let body = String::from_utf8(with("")).expect("text");
    let length = format!("content-length: {}", body.len());
    let (size, inner) = (body.len(), head(&world, &length) + &body);
    for bytes in [
        head(&world, &format!("content-length: 5\r\n{length}")) + &body,
        head(&world, &format!("{length}\r\ntransfer-encoding: chunked"))
            + &format!("{size:x}\r\n{body}\r\n0\r\n\r\n"),
        head(&world, "content-length: 0\r\ntransfer-encoding: chunked") + "0\r\n\r\n" + &inner,
    ] {
        let answers = world.raw(bytes.as_bytes()).await;
        let served = answers.iter().filter(|a| a.status == 200).count() as u64;
        assert!(served <= 1, "{answers:?}");
        assert!(world.sim.take_seen().iter().all(|seen| seen.body == body.as_bytes()));
    }
}

#[tokio::test]
async fn unknown_paths_are_404_and_other_methods_405() {
    let world = World::start(Store::Sqlite).run().await;
    for path in
        ["/", "/v1", "/v1/chat", "/v1/chat/completions/", "/v1//models", "/v1/fine_tuning/jobs"]
    {
        assert_eq!(world.get(path).await.refusal(), (404, "not_found".to_owned()), "{path}");
    }
    let doubled = world.get("/v1/v1/chat/completions").await;
    assert!(doubled.message().contains("base address"), "{}", doubled.message());
    let got = world.get("/v1/chat/completions").await;
    assert_eq!(got.refusal(), (405, "method_not_allowed".to_owned()));
    let posted = Answer::try_read(world.request("/v1/models").body("{}")).await.expect("an answer");
    assert_eq!(posted.refusal(), (405, "method_not_allowed".to_owned()));
}

fn head(world: &World, framing: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\n{framing}\r\n\r\n",
        world.key
    )
}
