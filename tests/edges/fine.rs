//! Heads that are odd, and in order.

use super::{Client, chat, head};
use crate::world::{Store, World, chat_of};

/// What clients that are in use send, as far as it is not the same for all.
const CLIENTS: [&str; 4] = [
    "Accept: application/json\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
     Connection: keep-alive\r\nUser-Agent: Client/Python 2.31.0\r\nX-Stainless-Lang: python\r\n\
     X-Stainless-Async: false\r\nx-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n",
    "accept: application/json\r\naccept-language: *\r\nsec-fetch-mode: cors\r\n\
     user-agent: Client/JS 6.1.0\r\nconnection: keep-alive\r\naccept-encoding: gzip, deflate\r\n",
    "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n\
     Upgrade: h2c\r\nUser-Agent: Java-http-client/21\r\n",
    "Accept: */*\r\nUser-Agent: curl/8.5.0\r\nExpect: 100-continue\r\n",
];

#[tokio::test]
async fn what_clients_send_passes() {
    let world = World::start(Store::Sqlite).run().await;
    for lines in CLIENTS {
        let mut client = Client::of(&world).await;
        client.send(chat(&world, lines)).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{lines}: {answer:?}");
        assert_eq!(answer.header("connection"), Some("keep-alive"), "{lines}");
    }
    world.settled(CLIENTS.len()).await;
}

#[tokio::test]
async fn odd_fields_pass() {
    let world = World::start(Store::Sqlite).run().await;
    for line in [
        "!#$%&'*+-.^_`|~: x\r\n",
        "a:b\r\n",
        "a: \t b \t \r\n",
        "a:\r\n",
        "x-title: \u{e9}\u{4e16}\u{1f600}\r\n",
        "x: 1\r\nx: 2\r\n",
    ] {
        let mut client = Client::of(&world).await;
        client.send(chat(&world, line)).await;
        assert_eq!(client.answer().await.status, 200, "{line:?}");
    }
}

#[tokio::test]
async fn any_host_is_this_one() {
    let world = World::start(Store::Sqlite).run().await;
    for host in [
        "Host: tollgate.test",
        "Host: tollgate:8080",
        "HOST: 127.0.0.1:80",
        "host:[::1]",
        "host: [2001:db8::7]:8443",
    ] {
        let mut client = Client::of(&world).await;
        let key = &world.key;
        client.send(format!("GET /v1/models HTTP/1.1\r\n{host}\r\nx-api-key: {key}\r\n\r\n")).await;
        assert_eq!(client.answer().await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn the_target_may_name_the_host() {
    let world = World::start(Store::Sqlite).run().await;
    let body = chat_of("lmb-5.5").to_string();
    let length = format!("content-length: {}\r\n", body.len());
    for target in [
        "http://tollgate/v1/chat/completions",
        "HTTPS://tollgate/v1/chat/completions",
        "http://tollgate/v1/chat/completions?x=1",
    ] {
        let mut client = Client::of(&world).await;
        client.send(head(&world, &format!("POST {target} HTTP/1.1"), &length) + &body).await;
        assert_eq!(client.answer().await.status, 200, "{target}");
    }
}

/// Paths that another server would take for one of ours; here they are none.
#[tokio::test]
async fn paths_are_taken_by_the_letter() {
    let world = World::start(Store::Sqlite).run().await;
    for target in [
        "//v1/models",
        "/v1//models",
        "/v1/./models",
        "/x/../v1/models",
        "/%76%31/models",
        "/v1%2fmodels",
        "/v1/models%20",
        "/V1/MODELS",
        "/v1/models/",
        "/v1/models;x",
        "http://tollgate",
    ] {
        let mut client = Client::of(&world).await;
        client.send(head(&world, &format!("GET {target} HTTP/1.1"), "")).await;
        assert_eq!(client.answer().await.status, 404, "{target}");
    }
}

#[tokio::test]
async fn an_empty_line_before_a_request_is_passed_over_once() {
    let world = World::start(Store::Sqlite).run().await;
    let mut client = Client::of(&world).await;
    for _ in 0..2 {
        client.send("\r\n").await;
        client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
        assert_eq!(client.answer().await.status, 200);
    }
    client.send("\r").await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    client.send(format!("\n{}", head(&world, "GET /v1/models HTTP/1.1", ""))).await;
    assert_eq!(client.answer().await.status, 200);
    client.send("\r\n\r\n").await;
    let answers = client.rest().await;
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [400]);
}

#[tokio::test]
async fn compressed_bodies_are_not_taken() {
    let world = World::start(Store::Sqlite).run().await;
    for (lines, status) in [
        ("content-encoding: gzip\r\n", 415),
        ("content-encoding: identity\r\ncontent-encoding: gzip\r\n", 415),
        ("content-encoding: gzip, identity\r\n", 415),
        ("content-encoding: Identity\r\n", 200),
    ] {
        let mut client = Client::of(&world).await;
        client.send(chat(&world, lines)).await;
        assert_eq!(client.answer().await.status, status, "{lines:?}");
        assert_eq!(world.sim.take_seen().len(), usize::from(status == 200), "{lines:?}");
    }
}
