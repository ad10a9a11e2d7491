//! A console behind a proxy: whose address the audit trail has, and whose keys sign in.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::admin_api::AdminWorld;
use crate::world::{ACCOUNT, Store, World};

const HOST: &str = "console.example.com";
const URL: &str = "[console]\nurl = \"https://console.example.com\"\n";

/// A world behind a proxy, with a key that signs in from one network only.
async fn world(listen: &str) -> (AdminWorld, String) {
    let conf = format!("{URL}{listen}");
    let world = AdminWorld::of(World::start(Store::Sqlite).conf(&conf)).await;
    let from = ["--endpoints", "account", "--from", "192.0.2.0/24"];
    let words = [&["key", "issue", ACCOUNT], &from[..]].concat();
    let key = world.world.command(&words).await.done().trim().to_owned();
    (world, key)
}

/// Sends bytes and a request after them; returns all that comes back.
async fn send(world: &AdminWorld, before: &[u8], request: &str) -> String {
    let address = world.root.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let all = [before, request.as_bytes()].concat();
    stream.write_all(&all).await.expect("sent");
    let mut answer = Vec::new();
    // A connection that is refused may be reset.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn sign_in(key: &str, headers: &str) -> String {
    let body = format!("token={key}");
    format!(
        "POST /sign-in HTTP/1.1\r\nhost: {HOST}\r\norigin: https://{HOST}\r\n{headers}\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn a_trusted_proxy_states_the_address_of_a_browser_before_http() {
    let (world, key) = world("[listen]\nproxy = \"protocol\"\ntrusted = [\"127.0.0.0/8\"]\n").await;
    let line = |client: &str| format!("PROXY TCP4 {client} 127.0.0.1 4711 80\r\n").into_bytes();
    let binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x08\x7f\0\0\x01\x12\x67\0\x50";
    for (before, expected) in [
        (line("192.0.2.7"), "303"),
        (binary.to_vec(), "303"),
        (line("198.51.100.1"), "403"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "403"),
        (Vec::new(), "none"),
        (b"PROXY TCP4 one two 1 2\r\n".to_vec(), "none"),
    ] {
        let forged = sign_in(&key, "x-forwarded-for: 192.0.2.7\r\n");
        let answer = send(&world, &before, &forged).await;
        assert_eq!(status(&answer), expected, "{before:?}: {answer}");
    }
    // The API of operators is at the same address.
    let body = "{\"name\":\"acme\"}";
    let create = format!(
        "POST /admin/v1/accounts HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        world.tokens["owner"],
        body.len()
    );
    assert_eq!(status(&send(&world, &line("192.0.2.9"), &create).await), "201");
    let audit = std::fs::read_to_string(world.world.path("var/audit.jsonl")).expect("the file");
    assert!(audit.contains("192.0.2.9"), "{audit}");
}

#[tokio::test]
async fn a_trusted_proxy_states_the_address_of_a_browser_in_a_header() {
    let (world, key) = world("[listen]\nproxy = \"header\"\ntrusted = [\"127.0.0.0/8\"]\n").await;
    for (headers, expected) in [
        ("x-forwarded-for: 192.0.2.7\r\n", "303"),
        ("forwarded: for=192.0.2.7\r\n", "303"),
        ("x-forwarded-for: 192.0.2.7, 198.51.100.1\r\n", "403"),
        ("", "403"),
        ("x-forwarded-for: 192.0.2.7\r\nforwarded: for=192.0.2.7\r\n", "400"),
    ] {
        let answer = send(&world, b"", &sign_in(&key, headers)).await;
        assert_eq!(status(&answer), expected, "{headers}: {answer}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_known_says_nothing_of_a_browser() {
    let (world, key) = world("").await;
    let answer = send(&world, b"", &sign_in(&key, "x-forwarded-for: 192.0.2.7\r\n")).await;
    assert_eq!(status(&answer), "403", "{answer}");
    // A peer that is no trusted proxy is a client itself.
    let (world, key) =
        self::world("[listen]\nproxy = \"header\"\ntrusted = [\"10.0.0.0/8\"]\n").await;
    let answer = send(&world, b"", &sign_in(&key, "x-forwarded-for: 192.0.2.7\r\n")).await;
    assert_eq!(status(&answer), "403", "{answer}");
}
