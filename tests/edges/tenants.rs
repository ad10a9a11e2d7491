//! One tenant against all: what one account or address has under way shuts nobody else out.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::Version;

use super::load::heard;
use super::many::{builder, encrypted_of};
use super::{Client, PATIENCE, code};
use crate::world::{Answer, RawAnswer, Store, World, chat_of};

/// A head that announces a body of so many bytes.
fn announcing(key: &str, bytes: usize) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: tollgate\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
    )
}

fn is_over_share(answer: &RawAnswer) -> bool {
    let told = (answer.status, code(answer)) == (429, "rate_limit_exceeded".to_owned());
    told && answer.header("retry-after") == Some("1")
}

async fn chat_with(world: &World, key: &str) -> Answer {
    let url = format!("http://{}/v1/chat/completions", world.gateway.http);
    let call = chat_of("lmb-5.5").to_string();
    let request = world.client().post(url).bearer_auth(key).body(call);
    Answer::read(request.header("content-type", "application/json")).await
}

/// Streams of one connection that ask for the models and take nothing of the answers.
async fn unread(world: &World, key: &str, streams: usize) -> (reqwest::Client, Vec<u16>) {
    let deaf = builder().http2_initial_stream_window_size(0).build().expect("a client");
    let url = format!("https://{}/v1/models", world.gateway.http);
    let asking = (0..streams).map(|_| async {
        let answer = deaf.get(&url).bearer_auth(key).send().await.expect("a head");
        assert_eq!(answer.version(), Version::HTTP_2);
        answer
    });
    let answers = join_all(asking).await;
    let statuses = answers.iter().map(|answer| answer.status().as_u16()).collect();
    // An answer that is dropped ends its stream.
    answers.into_iter().for_each(std::mem::forget);
    (deaf, statuses)
}

fn count_of(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|one| **one == status).count()
}

#[tokio::test]
async fn answers_that_nobody_reads_shut_nobody_out() {
    let conf = "[limits]\nrequests_max = 40\nrequests_per_account_max = 10";
    let (world, _folder) = encrypted_of(World::start(Store::Sqlite), conf).await;
    let poor = world.another_account("poor", "0").await;
    let (_deaf, statuses) = unread(&world, &poor, 30).await;
    assert_eq!((count_of(&statuses, 200), count_of(&statuses, 429)), (10, 20), "{statuses:?}");
    let (_deaf, statuses) = unread(&world, &poor, 30).await;
    assert_eq!(count_of(&statuses, 429), 30, "{statuses:?}");
    for _ in 0..3 {
        let client = builder().build().expect("a client");
        let url = format!("https://{}/v1/models", world.gateway.http);
        let answer = client.get(url).bearer_auth(&world.key).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        answer.bytes().await.expect("a body");
    }
    assert!(world.metric("tollgate_shed_total", &["reason=\"account_requests\""]).await >= 20);
}

#[tokio::test]
async fn an_address_without_a_good_key_has_its_bound() {
    let conf = "[limits]\nrequests_per_address_max = 4";
    let (world, _folder) = encrypted_of(World::start(Store::Sqlite), conf).await;
    let (deaf, statuses) = unread(&world, "sk-nobody", 30).await;
    assert_eq!((count_of(&statuses, 401), count_of(&statuses, 429)), (4, 26), "{statuses:?}");
    world.metric_becomes("tollgate_shed_total", &["reason=\"address_requests\""], 26).await;
    drop(deaf);
    let end = Instant::now() + PATIENCE;
    let url = format!("https://{}/v1/models", world.gateway.http);
    let client = builder().build().expect("a client");
    while client.get(&url).bearer_auth(&world.key).send().await.expect("an answer").status() != 200
    {
        assert!(Instant::now() < end, "what was not read counts for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn bodies_that_are_announced_and_never_come_shut_nobody_out() {
    let conf = "[limits]\nrequests_max = 20\nrequests_per_account_max = 6";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    let poor = world.another_account("poor", "0").await;
    let mut waiting = Vec::new();
    for _ in 0..6 {
        let mut client = Client::of(&world).await;
        client.send(announcing(&poor, 100)).await;
        waiting.push(client);
    }
    // They are in when one more is refused.
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "the account has no bound");
        let mut client = Client::of(&world).await;
        client.send(announcing(&poor, 100)).await;
        let heard = tokio::time::timeout(Duration::from_secs(1), client.answer()).await;
        if let Ok(answer) = heard {
            assert!(is_over_share(&answer), "{answer:?}");
            break;
        }
        waiting.push(client);
    }
    assert_eq!(chat_with(&world, &world.key).await.status, 200);
    world.settled(1).await;
}

/// There is one place, and who has it sends nothing.
#[tokio::test]
async fn whoever_sends_slowest_makes_room_for_a_newcomer() {
    let world = World::start(Store::Sqlite).conf("[limits]\nrequests_max = 1").run().await;
    let end = Instant::now() + PATIENCE;
    // Whoever was refused because of a question whether the place is taken, asks again.
    let mut slow = Vec::new();
    loop {
        let mut client = Client::of(&world).await;
        client.send(announcing(&world.key, 100)).await;
        slow.push(client);
        tokio::time::sleep(Duration::from_millis(200)).await;
        if world.get("/v1/models").await.status == 503 {
            break;
        }
        assert!(Instant::now() < end, "nobody has the place");
    }
    let mut statuses = Vec::new();
    // The first second it is not slow, and the newcomer is told to come back.
    while statuses.last() != Some(&200) {
        assert!(Instant::now() < end, "nobody makes room: {statuses:?}");
        statuses.push(chat_with(&world, &world.key).await.status);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut evicted = 0;
    for mut client in slow {
        evicted += usize::from(client.answer().await.status == 408);
    }
    assert_eq!(evicted, 1);
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    world.metric_becomes("tollgate_shed_total", &["reason=\"evicted\""], 1).await;
    world.settled(1).await;
}

#[tokio::test]
async fn bytes_of_slow_bodies_make_room_for_a_newcomer() {
    let conf = "[limits]\nbodies_bytes_max = 20_000";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    let mut slow = Client::of(&world).await;
    slow.send(announcing(&world.key, 18_000) + &" ".repeat(17_900)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut large = chat_of("lmb-5.5");
    large["user"] = "x".repeat(12_000).into();
    let end = Instant::now() + PATIENCE;
    // Until the other body is there there is room, and for a second it is not slow.
    while world.metric("tollgate_shed_total", &["reason=\"evicted\""]).await == 0 {
        assert!(Instant::now() < end, "nobody makes room");
        let answer = world.chat(large.clone()).await;
        assert!(matches!(answer.status, 200 | 503), "{answer:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(world.chat(large).await.status, 200);
    assert_eq!(slow.answer().await.status, 408);
}

#[tokio::test]
async fn more_bytes_of_bodies_than_an_account_may_have_are_refused_to_it_alone() {
    let conf = "[limits]\nbodies_per_account_bytes_max = 20_000";
    let builder = World::start(Store::Sqlite).conf(conf);
    let world = builder.vendor("vendor_b", &["held=0"]).run().await;
    let other = world.another_account("other", "1").await;
    let mut large = chat_of("lmb-5.5");
    large["user"] = "x".repeat(12_000).into();
    let first = world.chat(large.clone());
    let others = async {
        heard(&world, 1).await;
        let second = world.chat(large.clone()).await;
        let url = format!("http://{}/v1/chat/completions", world.gateway.http);
        let third = world.client().post(url).bearer_auth(&other).body(large.to_string());
        let third = Answer::read(third.header("content-type", "application/json"));
        let letting_go = async {
            heard(&world, 2).await;
            world.sim.let_go();
        };
        (second, tokio::join!(third, letting_go).0)
    };
    let (first, (second, third)) = tokio::join!(first, others);
    assert_eq!(second.refusal(), (429, "rate_limit_exceeded".to_owned()));
    assert_eq!(second.header("retry-after"), Some("1"));
    assert_eq!([first.status, third.status], [200, 200]);
    world.metric_becomes("tollgate_shed_total", &["reason=\"account_bodies\""], 1).await;
}

/// Only the head has come, or the beginning of a body whose length is not told.
#[tokio::test]
async fn a_large_body_is_not_read_when_nobody_pays_for_it() {
    let world = World::start(Store::Sqlite).run().await;
    let poor = world.another_account("poor", "0").await;
    let told = announcing(&poor, 10 << 20);
    let untold = told.replace("content-length: 10485760", "transfer-encoding: chunked");
    let begun = untold + "50000\r\n" + &" ".repeat(0x5_0000) + "\r\n";
    for request in [told, begun] {
        let mut client = Client::of(&world).await;
        client.send(request).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, code(&answer)), (402, "insufficient_credits".to_owned()));
    }
    let mut client = Client::of(&world).await;
    client.send(announcing(&world.key, 10 << 20)).await;
    let heard = tokio::time::timeout(Duration::from_secs(1), client.answer()).await;
    assert!(heard.is_err(), "an account with money is waited for: {heard:?}");
    assert_eq!(world.sim.seen().len(), 0);
}
