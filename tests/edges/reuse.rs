//! Connections that are used again: each request is looked at as strictly as the first.

use std::time::{Duration, Instant};

use super::load::heard;
use super::{Client, chat, code, head};
use crate::world::{Store, World, chat_of};

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let world = World::start(Store::Sqlite).run().await;
    let mut client = Client::of(&world).await;
    for number in 0..20 {
        if number % 2 == 0 {
            client.send(chat(&world, "")).await;
        } else {
            client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
        }
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{number}: {answer:?}");
        assert_eq!(answer.header("connection"), Some("keep-alive"));
    }
    assert_eq!(world.metric("tollgate_connections", &[]).await, 1);
    world.settled(10).await;
}

#[tokio::test]
async fn a_later_head_is_read_as_strictly_as_the_first() {
    let world = World::start(Store::Sqlite).run().await;
    for lines in ["transfer-encoding: chunked\r\n", "x: y\n", "x : y\r\n", "host: b\r\n"] {
        let mut client = Client::of(&world).await;
        client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
        assert_eq!(client.answer().await.status, 200);
        client.send(chat(&world, lines)).await;
        client.send(chat(&world, "")).await;
        let answers = client.rest().await;
        assert_eq!(answers.iter().map(|a| a.status).collect::<Vec<_>>(), [400], "{lines:?}");
    }
    assert_eq!(world.sim.seen().len(), 0);
}

#[tokio::test]
async fn a_later_head_has_as_much_time_as_the_first() {
    let conf = "[timeouts]\nhead_ms = 300\nkeepalive_ms = 300_000";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    let mut client = Client::of(&world).await;
    client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
    assert_eq!(client.answer().await.status, 200);
    // Idle it may be for longer.
    tokio::time::sleep(Duration::from_millis(600)).await;
    for byte in head(&world, "GET /v1/models HTTP/1.1", "").as_bytes().chunks(1).take(40) {
        client.send(byte).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let answers = client.rest().await;
    assert_eq!((answers[0].status, code(&answers[0])), (408, "request_timeout".to_owned()));
}

#[tokio::test]
async fn an_idle_connection_is_closed_when_its_time_is_over() {
    let world = World::start(Store::Sqlite).conf("[timeouts]\nkeepalive_ms = 1_000").run().await;
    let mut client = Client::of(&world).await;
    client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
    assert_eq!(client.answer().await.status, 200);
    let began = Instant::now();
    assert!(client.rest().await.is_empty());
    let waited = began.elapsed();
    assert!(waited > Duration::from_millis(500), "{waited:?}");
    assert_eq!(world.metric("tollgate_shed_total", &[]).await, 0, "nobody is to blame");
}

/// A second request in the same bytes as the first must not get past the eyes that the first got.
#[tokio::test]
async fn requests_in_one_breath_are_each_looked_at_or_not_served() {
    let world = World::start(Store::Sqlite).run().await;
    let good = head(&world, "GET /v1/models HTTP/1.1", "");
    let bad = chat(&world, "transfer-encoding: chunked\r\n");
    for first in [good.clone(), chat(&world, "")] {
        let seen = world.sim.seen().len();
        let mut client = Client::of(&world).await;
        client.send(format!("{first}{bad}{good}")).await;
        let answers = client.rest().await;
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        assert!(matches!(statuses[..], [200] | [200, 400]), "{statuses:?}");
        let more = usize::from(first.starts_with("POST"));
        assert_eq!(world.sim.seen().len(), seen + more);
    }
}

/// What comes while an answer is under way waits, and is looked at when its turn has come.
#[tokio::test]
async fn a_request_that_comes_too_early_waits_for_its_turn() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["held=0"]).run().await;
    let mut client = Client::of(&world).await;
    client.send(chat(&world, "")).await;
    heard(&world, 1).await;
    client.send(chat(&world, "content-length: 5\r\n")).await;
    world.sim.let_go();
    let answers = client.rest().await;
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 400]);
    assert_eq!(world.sim.count("vendor_b"), 1);
    world.settled(1).await;
}

#[tokio::test]
async fn old_clients_are_served_once_or_as_often_as_they_ask() {
    let world = World::start(Store::Sqlite).run().await;
    let key = &world.key;
    let old = |lines: &str| format!("GET /v1/models HTTP/1.0\r\nx-api-key: {key}\r\n{lines}\r\n");
    let mut client = Client::of(&world).await;
    client.send(old("")).await;
    let answers = client.rest().await;
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200]);
    let mut client = Client::of(&world).await;
    for _ in 0..2 {
        client.send(old("connection: keep-alive\r\n")).await;
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test]
async fn who_asks_before_it_sends_its_body_is_told_to_go_on_or_why_not() {
    let world = World::start(Store::Sqlite).run().await;
    let body = chat_of("lmb-5.5").to_string();
    let lines =
        |more: &str| format!("content-length: {}\r\nexpect: 100-continue\r\n{more}", body.len());
    let first = "POST /v1/chat/completions HTTP/1.1";
    let mut client = Client::of(&world).await;
    client.send(head(&world, first, &lines(""))).await;
    while !client.heard.ends_with(b"\r\n\r\n") {
        assert!(client.listen().await);
    }
    assert!(client.heard.starts_with(b"HTTP/1.1 100 "), "{}", client.heard.escape_ascii());
    client.send(&body).await;
    assert_eq!(client.answer().await.status, 200);
    let mut client = Client::of(&world).await;
    client.send(head(&world, first, &lines("content-encoding: gzip\r\n"))).await;
    assert_eq!(client.answer().await.status, 415);
    let mut old = Client::of(&world).await;
    let first = "POST /v1/chat/completions HTTP/1.0";
    old.send(head(&world, first, &lines("")) + &body).await;
    let answers = old.rest().await;
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200]);
}
