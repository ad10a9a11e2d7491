//! Heads that are odd, and in order.

use rstest::rstest;

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

#[rstest]
#[case::odd_but_legal("!#$%&'*+-.^_`|~: x\r\n")]
#[case::no_space("a:b\r\n")]
#[case::much_space("a: \t b \t \r\n")]
#[case::nothing("a:\r\n")]
#[case::foreign_letters("x-title: \u{e9}\u{4e16}\u{1f600}\r\n")]
#[case::the_same_twice("x: 1\r\nx: 2\r\n")]
#[tokio::test]
async fn odd_fields_pass(#[case] line: &str) {
    let world = World::start(Store::Sqlite).run().await;
    let mut client = Client::of(&world).await;
    client.send(chat(&world, line)).await;
    assert_eq!(client.answer().await.status, 200);
}

#[rstest]
#[case::name("Host: tollgate.test")]
#[case::port("Host: tollgate:8080")]
#[case::old_address("HOST: 127.0.0.1:80")]
#[case::new_address("host:[::1]")]
#[case::new_address_with_port("host: [2001:db8::7]:8443")]
#[tokio::test]
async fn any_host_is_this_one(#[case] host: &str) {
    let world = World::start(Store::Sqlite).run().await;
    let mut client = Client::of(&world).await;
    let key = &world.key;
    client.send(format!("GET /v1/models HTTP/1.1\r\n{host}\r\nx-api-key: {key}\r\n\r\n")).await;
    assert_eq!(client.answer().await.status, 200);
}

#[rstest]
#[case::plain("http://tollgate/v1/chat/completions")]
#[case::encrypted("HTTPS://tollgate/v1/chat/completions")]
#[case::with_query("http://tollgate/v1/chat/completions?x=1")]
#[tokio::test]
async fn the_target_may_name_the_host(#[case] target: &str) {
    let world = World::start(Store::Sqlite).run().await;
    let body = chat_of("lmb-5.5").to_string();
    let length = format!("content-length: {}\r\n", body.len());
    let mut client = Client::of(&world).await;
    client.send(head(&world, &format!("POST {target} HTTP/1.1"), &length) + &body).await;
    assert_eq!(client.answer().await.status, 200);
}

/// Paths that another server would take for one of ours; here they are none.
#[rstest]
#[case("//v1/models")]
#[case("/v1//models")]
#[case("/v1/./models")]
#[case("/x/../v1/models")]
#[case("/%76%31/models")]
#[case("/v1%2fmodels")]
#[case("/v1/models%20")]
#[case("/V1/MODELS")]
#[case("/v1/models/")]
#[case("/v1/models;x")]
#[case("http://tollgate")]
#[tokio::test]
async fn paths_are_taken_by_the_letter(#[case] target: &str) {
    let world = World::start(Store::Sqlite).run().await;
    let mut client = Client::of(&world).await;
    client.send(head(&world, &format!("GET {target} HTTP/1.1"), "")).await;
    assert_eq!(client.answer().await.status, 404);
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

#[rstest]
#[case::plain("content-encoding: gzip\r\n", 415)]
#[case::listed("content-encoding: identity\r\ncontent-encoding: gzip\r\n", 415)]
#[case::several("content-encoding: gzip, identity\r\n", 415)]
#[case::none("content-encoding: Identity\r\n", 200)]
#[tokio::test]
async fn compressed_bodies_are_not_taken(#[case] lines: &str, #[case] status: u16) {
    let world = World::start(Store::Sqlite).run().await;
    let mut client = Client::of(&world).await;
    client.send(chat(&world, lines)).await;
    assert_eq!(client.answer().await.status, status);
    assert_eq!(world.sim.seen().len(), usize::from(status == 200));
}
