//! Bodies in chunks that are none: refused, and no vendor hears of them.

use futures_util::future::join_all;

use super::{Client, head};
use crate::world::{Store, World, chat_of};

/// Bodies in which `{}` stands for the size and `{body}` for the bytes of a good call.
const BAD: [&str; 18] = [
    "g\r\n{body}\r\n0\r\n\r\n",
    "-1\r\n{body}\r\n0\r\n\r\n",
    "+{size}\r\n{body}\r\n0\r\n\r\n",
    "0x{size}\r\n{body}\r\n0\r\n\r\n",
    " {size}\r\n{body}\r\n0\r\n\r\n",
    "{size}\n{body}\n0\n\n",
    "{size}\r{body}\r0\r\r",
    "{size}\r\n{body}0\r\n\r\n",
    "{size}\r\n{body}xx0\r\n\r\n",
    "{size}\r\n{body}\n0\r\n\r\n",
    "\r\n{body}\r\n0\r\n\r\n",
    "fffffffffffffffff\r\n{body}\r\n0\r\n\r\n",
    "ffffffffffffffff\r\n{body}\r\n0\r\n\r\n",
    "8000000000000000\r\n{body}\r\n0\r\n\r\n",
    "{size} ;\n{body}\r\n0\r\n\r\n",
    "{size};x\n{body}\r\n0\r\n\r\n",
    "{size}\r\n{body}\r\nz\r\n\r\n",
    "{size}\0\r\n{body}\r\n0\r\n\r\n",
];

#[tokio::test]
async fn bodies_whose_chunks_are_none_are_refused() {
    let world = World::start(Store::Sqlite).run().await;
    let (world, call) = (&world, &chat_of("lmb-5.5").to_string());
    let sent = BAD.iter().map(|bad| async move {
        let size = format!("{:x}", call.len());
        let body = bad.replace("{size}", &size).replace("{body}", call);
        let lines = "transfer-encoding: chunked\r\n";
        let mut client = Client::of(world).await;
        client.send(head(world, "POST /v1/chat/completions HTTP/1.1", lines) + &body).await;
        // Some of them are no end either, so the client has to make one.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await;
        let statuses: Vec<_> = client.rest().await.iter().map(|answer| answer.status).collect();
        (bad, statuses)
    });
    let odd: Vec<_> = join_all(sent).await.into_iter().filter(|(_, s)| s != &[400]).collect();
    assert!(odd.is_empty(), "{odd:?}");
    assert_eq!(world.sim.seen().len(), 0, "a vendor heard of one");
    world.free_of_charge().await;
}

#[tokio::test]
async fn bodies_in_good_chunks_arrive() {
    let world = World::start(Store::Sqlite).run().await;
    let call = chat_of("lmb-5.5").to_string();
    let (begin, end) = call.split_at(7);
    let (a, b) = (begin.len(), end.len());
    let bodies = [
        format!("{a:x}\r\n{begin}\r\n{b:X}\r\n{end}\r\n0\r\n\r\n"),
        format!("000{a:x};x=y\r\n{begin}\r\n{b:x}\r\n{end}\r\n000\r\n\r\n"),
        format!("{a:x}\r\n{begin}\r\n{b:x}\r\n{end}\r\n0\r\nx-trailer: y\r\n\r\n"),
    ];
    for body in &bodies {
        let mut client = Client::of(&world).await;
        let lines = "transfer-encoding: chunked\r\n";
        client.send(head(&world, "POST /v1/chat/completions HTTP/1.1", lines) + body).await;
        let answers = client.rest().await;
        assert_eq!(answers.len(), 1, "the connection closes");
        assert_eq!(answers[0].status, 200, "{answers:?}");
        assert_eq!(answers[0].header("connection"), Some("close"));
    }
    world.settled(bodies.len()).await;
    assert!(world.sim.seen().iter().all(|seen| seen.body == world.sim.seen()[0].body));
}

#[tokio::test]
async fn what_comes_behind_a_body_in_chunks_is_no_request() {
    let world = World::start(Store::Sqlite).run().await;
    let call = chat_of("lmb-5.5").to_string();
    let behind = head(&world, "GET /v1/models HTTP/1.1", "");
    let size = call.len();
    for body in [
        format!("{size:x}\r\n{call}\r\n0\r\n\r\n{behind}"),
        // The end of the first line is here for one reader, and the end of the body for another.
        format!("{size:x};\n\r\n{call}\r\n0\r\n\r\n{behind}"),
        format!("{size:x};a=\"\n\"\r\n{call}\r\n0\r\n\r\n{behind}"),
        format!("{size:x}\r\n{call}\r\n0\r\nno trailer\r\n\r\n{behind}"),
        format!("0;\n\r\n\r\n{behind}"),
        format!("0\r\n\r\n{behind}"),
    ] {
        let mut client = Client::of(&world).await;
        let lines = "transfer-encoding: chunked\r\n";
        client.send(head(&world, "POST /v1/chat/completions HTTP/1.1", lines) + &body).await;
        let answers = client.rest().await;
        assert_eq!(answers.len(), 1, "{body:?}: {answers:?}");
    }
    world.nothing_held().await;
}
