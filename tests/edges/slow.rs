//! Clients that take their time: they are told to go, and good ones do not notice.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use rstest::rstest;

use super::{Client, chat, code, head};
use crate::world::{EDIT_B, Form, Store, World, chat_of};

/// An answer that no buffers can take, once it goes on.
pub(super) const ENDLESS: &str = "held=3;reply-bytes=16000000;chunks=400;completion=9";
const QUICK: &str = "[timeouts]\nhead_ms = 1_000";

#[tokio::test]
async fn who_says_nothing_is_hung_up_on() {
    let world = World::start(Store::Sqlite).conf(QUICK).run().await;
    let began = Instant::now();
    let client = Client::of(&world).await;
    assert!(client.rest().await.is_empty());
    let waited = began.elapsed();
    assert!(waited > Duration::from_millis(900), "{waited:?}");
    world.metric_becomes("tollgate_shed_total", &["reason=\"silence\""], 1).await;
    world.metric_becomes("tollgate_connections", &[], 0).await;
}

#[rstest]
#[case::a_byte_now_and_then(1, 20)]
#[case::a_line_now_and_then(20, 100)]
#[case::half_of_it_and_no_more(60, 10_000)]
#[tokio::test]
async fn a_head_has_to_come_in_time(#[case] bytes: usize, #[case] wait_ms: u64) {
    let world = World::start(Store::Sqlite).conf(QUICK).run().await;
    let mut client = Client::of(&world).await;
    let head = head(&world, "GET /v1/models HTTP/1.1", &"x: y\r\n".repeat(100));
    let dripping = async {
        for piece in head.as_bytes().chunks(bytes) {
            client.send(piece).await;
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(1_500), dripping).await;
    let answers = client.rest().await;
    assert_eq!((answers[0].status, code(&answers[0])), (408, "request_timeout".to_owned()));
    assert_eq!(answers[0].header("connection"), Some("close"));
    world.metric_becomes("tollgate_shed_total", &["reason=\"head\""], 1).await;
}

/// The head of a call whose body is yet to come, and of an upload.
fn heads(world: &World) -> [String; 3] {
    let form = Form::new().file("image", "image/png", &[1; 5_000]).sent();
    let chat = "POST /v1/chat/completions HTTP/1.1";
    let edit = format!("POST {} HTTP/1.1", EDIT_B.path);
    let upload = head(world, &edit, &format!("content-length: {}\r\n", form.bytes.len()));
    [
        head(world, chat, "content-length: 5000\r\n"),
        head(world, chat, "transfer-encoding: chunked\r\n"),
        upload.replace("application/json", &form.media),
    ]
}

#[rstest]
#[tokio::test]
async fn a_body_has_to_come_at_some_speed(#[values(0, 1, 2)] kind: usize) {
    let world = World::start(Store::Sqlite).conf(QUICK).run().await;
    let head = &heads(&world)[kind];
    let mut client = Client::of(&world).await;
    client.send(head).await;
    for _ in 0..40 {
        client.send(if kind == 1 { "1\r\n \r\n" } else { " " }).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let answers = client.rest().await;
    assert_eq!((answers[0].status, code(&answers[0])), (408, "request_timeout".to_owned()));
    assert_eq!(answers[0].header("connection"), Some("close"));
    world.metric_becomes("tollgate_shed_total", &["reason=\"body\""], 1).await;
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

/// What it sent at once is no reason to wait for the rest for longer.
#[tokio::test]
async fn a_body_that_stops_is_not_waited_for() {
    let world = World::start(Store::Sqlite).conf(QUICK).run().await;
    let first = "POST /v1/chat/completions HTTP/1.1";
    let mut client = Client::of(&world).await;
    client.send(head(&world, first, "content-length: 60000\r\n") + &" ".repeat(50_000)).await;
    assert_eq!(client.rest().await[0].status, 408);
}

#[tokio::test]
async fn a_body_at_that_speed_may_take_longer() {
    let conf = "[timeouts]\nhead_ms = 2_000";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    let mut call = chat_of("lmb-5.5");
    call["user"] = "x".repeat(12_000).into();
    let body = call.to_string();
    let length = format!("content-length: {}\r\n", body.len());
    let mut client = Client::of(&world).await;
    client.send(head(&world, "POST /v1/chat/completions HTTP/1.1", &length)).await;
    for piece in body.as_bytes().chunks(150) {
        client.send(piece).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(client.answer().await.status, 200);
    world.settled(1).await;
}

/// What is left for it would be waited for as long as it likes.
#[tokio::test]
async fn who_does_not_read_its_answer_does_not_stay_connected() {
    let builder = World::start(Store::Sqlite).conf("[timeouts]\nclient_write_ms = 1_000");
    let world = builder.credit("5000").vendor("vendor_b", &[ENDLESS]).run().await;
    let mut call = chat_of("lmb-5.5");
    call["stream"] = true.into();
    let body = call.to_string();
    let length = format!("content-length: {}\r\n", body.len());
    let mut client = Client::of(&world).await;
    client.send(head(&world, "POST /v1/chat/completions HTTP/1.1", &length) + &body).await;
    super::load::heard(&world, 1).await;
    world.sim.let_go();
    world.metric_becomes("tollgate_connections", &[], 0).await;
    drop(client);
    world.settled(1).await;
}

/// How many sockets are slow at a time: `SLOW_SOCKETS` of the environment, else few.
fn sockets() -> usize {
    std::env::var("SLOW_SOCKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

#[tokio::test]
async fn many_slow_sockets_are_closed_in_time_while_good_calls_go_on() {
    let conf = "[timeouts]\nhead_ms = 1_500\n[limits]\nconnections_per_address_max = 0";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    let world = &world;
    let slow = (0..sockets()).map(|number| async move {
        let mut client = Client::of(world).await;
        let head = head(world, "GET /v1/models HTTP/1.1", "x: y\r\n");
        // Some say nothing, some half of a head, some a byte now and then, some only a head.
        match number % 4 {
            0 => {}
            1 => client.send(&head[..20]).await,
            2 => {
                for byte in head.as_bytes().chunks(1).take(30) {
                    client.send(byte).await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            _ => client.send(&heads(world)[0]).await,
        }
        client.rest().await;
    });
    let good = async {
        for _ in 0..40 {
            let mut client = Client::of(world).await;
            client.send(chat(world, "")).await;
            assert_eq!(client.answer().await.status, 200);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    join(join_all(slow), good).await;
    world.metric_becomes("tollgate_connections", &[], 0).await;
    assert_eq!(world.sim.seen().len(), 40);
    world.settled(40).await;
}
