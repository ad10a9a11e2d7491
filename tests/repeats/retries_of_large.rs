//! Replies of many bytes are kept for retries only where the client had gone.

use rstest::rstest;

use super::*;
use crate::world::CHAT;

#[rstest]
#[tokio::test]
async fn a_large_reply_that_was_taken_is_not_kept_and_one_that_was_missed_is(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let usual = "reply-bytes=200000;completion=9";
    let faults = format!("{usual};chunks=12;held=2");
    let world = World::start(store).vendor("vendor_b", &[&faults]).conf(PATIENT).run().await;
    world.sim.let_go();
    let members = json!({ "stream": stream });
    let taken = tried(&world, CHAT, &members, 0).await;
    assert!(taken.status == 200 && taken.body.len() > 200_000);
    world.settled(1).await;
    let again = tried(&world, CHAT, &members, 1).await;
    assert_eq!(again.refusal(), (409, "reply_not_kept".to_owned()));
    assert_eq!(again.header("x-should-retry"), Some("false"));
    counted(&world, "chat", "not_kept", 1).await;

    world.sim.hold();
    hung_up(&world, CHAT, (RETRIES, "0"), &members).await;
    let joined = joined(&world, CHAT, &members, 1).await;
    assert_eq!((joined.status, joined.header(REPLAYED)), (200, Some("true")), "{joined:?}");
    assert!(joined.body.len() > 200_000);
    let charges = world.settled(2).await;
    assert_eq!(joined.header(ORIGINAL), Some(charges[1].request_id.as_str()));
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// A connection on which the answer was taken goes on to be used.
#[tokio::test]
async fn a_client_that_took_a_large_reply_goes_on_with_its_connection() {
    let faults = "reply-bytes=200000;completion=9";
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[faults]).run().await;
    let body = CHAT.sent(&json!({})).bytes;
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\n{RETRIES}: 0\r\n\
         content-length: {}\r\n\r\n",
        CHAT.path,
        world.key,
        body.len()
    );
    let mut stream = tokio::net::TcpStream::connect(&world.gateway.http).await.expect("a line");
    for _ in 0..3 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        stream.write_all(&[head.as_bytes(), &body].concat()).await.expect("it takes the call");
        let mut said = Vec::new();
        while said.len() < 200_000 {
            let mut buffer = vec![0; 64 << 10];
            let count = stream.read(&mut buffer).await.expect("more of the answer");
            assert!(count > 0, "the connection was closed after {} bytes", said.len());
            said.extend_from_slice(&buffer[..count]);
        }
        // To the very end, whose length the head tells.
        let text = String::from_utf8_lossy(&said).into_owned();
        let (head, _) = text.split_once("\r\n\r\n").expect("a head");
        let length = head.to_lowercase();
        let (_, length) = length.split_once("content-length: ").expect("a length");
        let length: usize = length.lines().next().expect("digits").parse().expect("a number");
        let mut left = (head.len() + 4 + length) - said.len();
        while left > 0 {
            let mut buffer = vec![0; left];
            left -= stream.read(&mut buffer).await.expect("the rest");
        }
    }
    world.settled(3).await;
}
