//! A new process takes the place of the old one, and no client notices.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;

use super::{Client, chat};
use crate::world::{Opened, Store, Streamed, World, chat_of};

/// The disk of a busy machine may take its time, which is not what this is about.
const SERVER: &str = "[server]\npid_file = \"var/tollgate.pid\"\n[timeouts]\nledger_ms = 5_000";

/// Calls until it is told to stop, on a new connection each, or on one as long as it is kept. Tells
/// how many calls it made; each has to be served.
async fn calls(world: &World, address: &str, anew: bool, stop: &AtomicBool) -> usize {
    let mut client = None;
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut open = match client.take() {
            Some(open) => open,
            None => Client::at(address).await,
        };
        open.send(chat(world, "")).await;
        let answer = open.answer().await;
        assert_eq!(answer.status, 200, "call {count}: {answer:?}\n{}", world.log());
        count += 1;
        if answer.header("connection") == Some("keep-alive") && !anew {
            client = Some(open);
        }
    }
    count
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_takes_over_and_nothing_is_refused_or_cut(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let long = "chunk-delay=100;chunks=100";
    let builder = World::start(store).conf(SERVER).credit("5000");
    let builder = builder.vendor("vendor_c", &[long]);
    let mut world = builder.run().await;
    let streams = join_all((0..5).map(|_| world.open_stream(chat_of("lmc-3.5-flash")))).await;
    let address = world.gateway.http.clone();
    let stop = AtomicBool::new(false);
    let served = AtomicUsize::new(0);
    let (old, new) = (&world.gateway, world.successor("new"));
    let calling = join_all((0..6).map(|number| calls(&world, &address, number % 2 == 0, &stop)));
    let replacing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        let new = new.await;
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        let end = Instant::now() + Duration::from_secs(8);
        while std::net::TcpStream::connect(&old.http).is_ok() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        stop.store(true, Ordering::Relaxed);
        new
    };
    let (counts, new) = tokio::join!(calling, replacing);
    served.store(counts.iter().sum(), Ordering::Relaxed);
    let streamed = join_all(streams.into_iter().map(Opened::rest)).await;
    assert!(streamed.iter().all(Streamed::is_done), "{streamed:?}");
    let mut old = std::mem::replace(&mut world.gateway, new);
    old.ended(Duration::from_secs(10)).await;
    let total = served.load(Ordering::Relaxed) + 5;
    assert!(total > 100, "{total} calls are few");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200, "the new one serves alone");
    world.settled(total + 1).await;
}

#[tokio::test]
async fn told_to_give_way_to_nobody_it_stays() {
    let mut world = World::start(Store::Sqlite).run().await;
    world.gateway.signal("QUIT");
    world.logged(&["nobody is there to give way to"]).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.gateway.signal("QUIT");
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.gateway.signal("TERM");
    world.gateway.ended(Duration::from_secs(3)).await;
}

#[tokio::test]
async fn who_finds_nobody_to_take_over_from_says_so() {
    let mut world = World::start(Store::Sqlite).conf(SERVER).run().await;
    world.gateway.kill();
    let told = world.command(&["serve", "--upgrade"]).await;
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains("nobody to take over from"), "{told:?}");
    std::fs::write(world.path("var/tollgate.pid"), "1\n").expect("a file");
    let told = world.command(&["serve", "--upgrade"]).await;
    assert_eq!(told.code, 1, "another program has that number: {told:?}");
}
