//! Bodies in chunks that are none: refused, and no vendor hears of them.

use futures_util::future::join_all;

use super::{Client, head};
use crate::world::{Store, World, chat_of};

/// Bodies in which `{}` stands for the size and `{body}` for the bytes of a good call.
const BAD: [&str; 20] = [
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
    "{size};x=\"\n\"\r\n{body}\r\n0\r\n\r\n",
    "{size}\r\n{body}\r\nz\r\n\r\n",
    "{size}\r\n{body}\r\n0\r\nx\r\n\r\n",
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
    let mut client = Client::of(&world).await;
    for body in &bodies {
        let lines = "transfer-encoding: chunked\r\n";
        client.send(head(&world, "POST /v1/chat/completions HTTP/1.1", lines) + body).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    world.settled(bodies.len()).await;
    assert!(world.sim.seen().iter().all(|seen| seen.body == world.sim.seen()[0].body));
}
