//! Heads that two servers could read in two ways: each is refused, its connection is closed, and no
//! vendor hears of it.

use futures_util::future::join_all;
use serde_json::Value;

use super::{Client, chat, code, head};
use crate::world::{RawAnswer, Store, World, chat_of};

/// The request that hides in the body of another.
const HIDDEN: &str = "GET /v1/models HTTP/1.1\r\nhost: tollgate\r\n\r\n";

/// Lines that make the head of a call a bad one, each with the code it is refused with.
const LINES: [(&str, &str); 52] = [
    ("content-length: 1", "bad_request"),
    ("Content-Length: 999", "bad_request"),
    ("transfer-encoding: chunked", "bad_request"),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "bad_request"),
    ("Transfer-Encoding: gzip, chunked", "bad_request"),
    ("Transfer-Encoding: chunked, identity", "bad_request"),
    ("Transfer-Encoding: identity", "bad_request"),
    ("Transfer-Encoding: xchunked", "bad_request"),
    ("Transfer-Encoding: chunked;q=1", "bad_request"),
    ("Transfer-Encoding:\u{b}chunked", "bad_request"),
    ("Transfer-Encoding : chunked", "bad_request"),
    ("Transfer-Encoding\t: chunked", "bad_request"),
    (" Transfer-Encoding: chunked", "bad_request"),
    ("Transfer-Encoding\r\n : chunked", "bad_request"),
    ("X: y\r\n\ttransfer-encoding: chunked", "bad_request"),
    ("X: y\nTransfer-Encoding: chunked", "bad_request"),
    ("X: y\n\nGET /v1/models HTTP/1.1", "bad_request"),
    ("X: y\rTransfer-Encoding: chunked", "bad_request"),
    ("X: y\r\rTransfer-Encoding: chunked", "bad_request"),
    ("X: y\n\r\nGET /v1/models HTTP/1.1", "bad_request"),
    ("X: y\0\r\nZ: 1", "bad_request"),
    ("X: \0", "bad_request"),
    ("X: \u{7f}", "bad_request"),
    ("X: \u{1b}[0m", "bad_request"),
    ("X\0: y", "bad_request"),
    ("X y: z", "bad_request"),
    ("X(y): z", "bad_request"),
    ("\u{e9}: z", "bad_request"),
    ("\"content-length\": 1", "bad_request"),
    (": z", "bad_request"),
    (":", "bad_request"),
    ("X", "bad_request"),
    ("host: tollgate", "bad_request"),
    ("Host: other", "bad_request"),
    ("HOST : other", "bad_request"),
    ("hOsT:\u{a0}other", "bad_request"),
    ("Upgrade: websocket\r\nConnection: Upgrade", "upgrade_refused"),
    ("Upgrade: WebSocket", "upgrade_refused"),
    ("Upgrade: h2c, websocket", "upgrade_refused"),
    ("Upgrade: HTTP/2.0", "upgrade_refused"),
    ("Upgrade: TLS/1.2", "upgrade_refused"),
    ("Upgrade:", "upgrade_refused"),
    ("Expect: 200-ok", "expectation_failed"),
    ("Expect: 100-continue, x", "expectation_failed"),
    ("Content-Length : 5", "bad_request"),
    ("Content-Length\u{b}: 5", "bad_request"),
    ("content-length:", "bad_request"),
    ("X: y\r\n z", "bad_request"),
    ("X: y\r\n \r\nZ: 1", "bad_request"),
    ("X: y\r\n\u{b}Z: 1", "bad_request"),
    ("X: y\r\n\0: 1", "bad_request"),
    ("X: y\r\nZ: \r1", "bad_request"),
];

/// What the length of the call is told as.
const LENGTHS: [&str; 16] = [
    "",
    "+76",
    "-76",
    "076",
    "0x4c",
    "76,76",
    "76, 76",
    "76;",
    "7 6",
    "76.0",
    "7e1",
    "\"76\"",
    "18446744073709551692",
    "99999999999999999",
    "\u{661}",
    "76\0",
];

/// Whole heads.
const HEADS: [(&str, u16); 30] = [
    ("GET /v1/models HTTP/1.1\r\n\r\n", 400),
    ("GET /v1/models HTTP/1.1\nHost: tollgate\n\n", 400),
    ("GET /v1/models HTTP/1.1\r\nHost: tollgate\n\r\n", 400),
    ("GET /v1/models HTTP/1.1\rHost: tollgate\r\r", 400),
    ("GET /v1/models HTTP/1.1\r\nHost:\r\n\r\n", 400),
    ("GET /v1/models HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    ("GET /v1/models HTTP/1.1\r\nHost: a@b\r\n\r\n", 400),
    ("GET /v1/models HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    ("GET /v1/models HTTP/1.1\r\nHost: a:99999999\r\n\r\n", 400),
    ("GET /v1/models HTTP/1.1\r\nHost: [::1\r\n\r\n", 400),
    ("GET http://other/v1/models HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET http:/tollgate/v1/models HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET http://u@tollgate/v1/models HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET file:///v1/models HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET v1/models HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET /v1/models#x HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET \\v1\\models HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET /v1/models\0 HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET /v1/mod els HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET  /v1/models HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET\t/v1/models\tHTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    (" GET /v1/models HTTP/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("GET /v1/models\r\n\r\n", 400),
    ("GET /v1/models HTTP/1.2\r\nHost: tollgate\r\n\r\n", 400),
    ("GET /v1/models HTTP/0.9\r\nHost: tollgate\r\n\r\n", 400),
    ("GET /v1/models http/1.1\r\nHost: tollgate\r\n\r\n", 400),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("\u{16}\u{3}\u{1}\0", 400),
    ("CONNECT tollgate:443 HTTP/1.1\r\nHost: tollgate:443\r\n\r\n", 405),
    ("POST /v1/models HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
];

/// Proves that there is one answer, which refuses, and that the connection ends with it.
async fn refused(world: &World, bytes: &[u8]) -> RawAnswer {
    let mut client = Client::of(world).await;
    client.send(bytes).await;
    client.send(HIDDEN).await;
    let mut answers = client.rest().await;
    let shown = bytes.escape_ascii();
    assert_eq!(answers.len(), 1, "{shown}: {answers:?}");
    let answer = answers.remove(0);
    assert!(answer.whole, "{shown}: {answer:?}");
    assert_eq!(answer.header("connection"), Some("close"), "{shown}: {answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{shown}: {answer:?}");
    assert!(answer.header("x-request-id").is_some_and(|id| id.len() == 36), "{shown}: {answer:?}");
    answer
}

#[tokio::test]
async fn heads_that_can_be_read_in_two_ways_are_refused() {
    let world = World::start(Store::Sqlite).run().await;
    let world = &world;
    let by_lines = LINES.iter().map(|(lines, expected)| async move {
        let answer = refused(world, chat(world, &format!("{lines}\r\n")).as_bytes()).await;
        let status = if *expected == "expectation_failed" { 417 } else { 400 };
        assert_eq!((answer.status, code(&answer).as_str()), (status, *expected), "{lines:?}");
    });
    let by_lengths = LENGTHS.iter().map(|length| async move {
        let told = format!("content-length: {length}\r\n");
        let call = head(world, "POST /v1/chat/completions HTTP/1.1", &told);
        let answer = refused(world, (call + &chat_of("lmb-5.5").to_string()).as_bytes()).await;
        assert_eq!((answer.status, code(&answer).as_str()), (400, "bad_request"), "{length:?}");
    });
    let by_heads = HEADS.iter().map(|(head, status)| async move {
        assert_eq!(refused(world, head.as_bytes()).await.status, *status, "{head:?}");
    });
    tokio::join!(join_all(by_lines), join_all(by_lengths), join_all(by_heads));
    assert_eq!(world.sim.seen().len(), 0, "a vendor heard of one");
    world.free_of_charge().await;
    let refused = i64::try_from(LINES.len() + LENGTHS.len() + HEADS.len()).expect("a number");
    world.metric_becomes("tollgate_requests_total", &["endpoint=\"other\""], refused).await;
    world.metric_becomes("tollgate_connections", &[], 0).await;
    let mut client = Client::of(world).await;
    client.send(chat(world, "")).await;
    assert_eq!(client.answer().await.status, 200);
    world.settled(1).await;
}

#[tokio::test]
async fn a_refusal_is_told_as_the_path_has_it() {
    let world = World::start(Store::Sqlite).run().await;
    for path in ["/v1/chat/completions", "/x", "http://tollgate/v1/responses"] {
        let bad = format!("POST {path} HTTP/1.1\r\nHost: tollgate\r\nContent-Length: x\r\n\r\n");
        let answer = refused(&world, bad.as_bytes()).await;
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let error = &body["error"];
        assert_eq!(error["type"], "invalid_request_error", "{path}: {body}");
        assert_eq!(
            (&error["code"], &error["param"]),
            (&"bad_request".into(), &"content-length".into()),
            "{path}: {body}"
        );
        assert!(error["message"].is_string(), "{path}: {body}");
    }
}

#[tokio::test]
async fn a_websocket_for_responses_got_400_and_its_client_did_not_fall_back() {
    let world = World::start(Store::Sqlite).run().await;
    let lines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let first = "GET /v1/responses HTTP/1.1";
    let answer = refused(&world, head(&world, first, lines).as_bytes()).await;
    assert_eq!((answer.status, code(&answer)), (426, "upgrade_required".to_owned()));
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(body["error"]["type"], "invalid_request_error", "{body}");
    assert_eq!(body["error"]["param"], "upgrade", "{body}");
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("send POST"), "{message}");
    for first in ["GET /v1/realtime HTTP/1.1", "GET /v1/messages HTTP/1.1"] {
        assert_eq!(refused(&world, head(&world, first, lines).as_bytes()).await.status, 400);
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_refusal_of_the_messages_path_is_told_as_messages_are() {
    let world = World::start(Store::Sqlite).run().await;
    let bad = "POST /v1/messages HTTP/1.1\r\nHost: tollgate\r\nContent-Length: x\r\n\r\n";
    let answer = refused(&world, bad.as_bytes()).await;
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["type"], "invalid_request_error");
    assert_eq!(body["request_id"].as_str(), answer.header("x-request-id"));
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused_whatever_they_consist_of() {
    let world = World::start(Store::Sqlite).run().await;
    let first = "GET /v1/models HTTP/1.1\r\nhost: tollgate\r\n";
    let wide = format!("{first}x: {}\r\n\r\n", "y".repeat(33 << 10));
    let endless = format!("{first}x: {}", "y".repeat(40 << 10));
    let long = format!("GET /{} HTTP/1.1\r\nhost: tollgate\r\n\r\n", "v".repeat(33 << 10));
    let many = format!("{first}{}\r\n", "x: y\r\n".repeat(129));
    for bytes in [wide, endless, long, many] {
        let answer = refused(&world, bytes.as_bytes()).await;
        assert_eq!((answer.status, code(&answer)), (431, "headers_too_large".to_owned()));
    }
    let mut client = Client::of(&world).await;
    let key = &world.key;
    let most = format!("{first}authorization: Bearer {key}\r\nx: {}\r\n\r\n", "y".repeat(30 << 10));
    client.send(most).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn how_large_a_head_may_be_can_be_set() {
    let world = World::start(Store::Sqlite).conf("[limits]\nhead_bytes_max = 1024").run().await;
    let head = format!("GET /v1/models HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(1_000));
    assert_eq!(refused(&world, head.as_bytes()).await.status, 431);
}
