//! Gateways that are killed one after the other under load, and a Redis that forgets now and then.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;

use super::PATIENCE;
use crate::ledger::redis_server::RedisServer;
use crate::world::{Answer, Process, Store, World, chat_of};

/// So many rounds: a gateway dies, then Redis falls back a little.
const ROUNDS: usize = 4;
const CALLERS: usize = 6;

/// What a caller saw.
#[derive(Default)]
struct Seen {
    /// The calls that were answered.
    answered: Vec<String>,
    /// Calls that may have been made all the same.
    lost: usize,
}

/// Makes calls wherever a gateway is, until there is none any more. Each that is answered counts.
async fn calls(
    world: &World,
    mut gateways: watch::Receiver<Vec<String>>,
    place: usize,
    count: &AtomicUsize,
) -> Seen {
    let mut seen = Seen::default();
    loop {
        let known = gateways.borrow_and_update().clone();
        let Some(address) = known.get(place % known.len().max(1)) else { return seen };
        let request = world.client().post(format!("http://{address}/v1/chat/completions"));
        let request = request.bearer_auth(&world.key).body(chat_of("lmb-5.5").to_string());
        match Answer::try_read(request.timeout(Duration::from_secs(3))).await {
            Ok(answer) if answer.status == 200 => {
                seen.answered.push(answer.header("x-request-id").expect("an id").to_owned());
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(answer) => {
                assert_eq!(answer.status, 503, "{answer:?}");
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            Err(_) => {
                seen.lost += 1;
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        }
    }
}

async fn falls_back(mut server: RedisServer) -> RedisServer {
    let copy = server.copy();
    tokio::time::sleep(Duration::from_millis(250)).await;
    let falling = tokio::task::spawn_blocking(move || {
        server.fall_back_to(&copy);
        server
    });
    falling.await.expect("no panic")
}

/// Waits until calls are let in again, and some are answered.
async fn more(count: &AtomicUsize) {
    let (enough, end) = (count.load(Ordering::Relaxed) + 3 * CALLERS, Instant::now() + PATIENCE);
    while count.load(Ordering::Relaxed) < enough {
        assert!(Instant::now() < end, "nobody is let in again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn whatever_dies_every_answer_is_one_charge_and_nothing_stays_held() {
    let builder = World::start(Store::Redis).own_redis().vendor("vendor_b", &["delay=20"]);
    let mut world = builder.conf("[timeouts]\nlease_ms = 1000").run().await;
    let mut server = world.take_redis();
    let mut nodes = [world.gateway_with("a", &[]).await, world.gateway_with("b", &[]).await];
    let addresses = |nodes: &[Process; 2]| nodes.iter().map(|n| n.http.clone()).collect();
    let told = watch::Sender::new(addresses(&nodes));
    let count = AtomicUsize::new(0);
    let many = join_all((0..CALLERS).map(|place| calls(&world, told.subscribe(), place, &count)));
    let dying = async {
        for round in 0..ROUNDS {
            tokio::time::sleep(Duration::from_millis(250)).await;
            nodes[round % 2].kill();
            if round % 2 == 0 {
                server = falls_back(server).await;
            }
            nodes[round % 2] = world.gateway_with(&format!("node{round}"), &[]).await;
            told.send_replace(addresses(&nodes));
            if round % 2 == 1 {
                server = falls_back(server).await;
            }
            more(&count).await;
        }
        told.send_replace(Vec::new());
        server
    };
    let began = Instant::now();
    let (seen, _server) = tokio::join!(many, dying);
    let lost: usize = seen.iter().map(|seen| seen.lost).sum();
    let answered: BTreeSet<String> = seen.into_iter().flat_map(|seen| seen.answered).collect();
    // What Redis lost last may not be made up for yet.
    let end = Instant::now() + PATIENCE;
    let (made, charged) = loop {
        let made = world.nothing_held().await;
        let charged: BTreeSet<String> = made.iter().map(|c| c.request_id.clone()).collect();
        assert_eq!(charged.len(), made.len(), "a call is charged twice");
        let free = answered.difference(&charged).count();
        if free == 0 {
            break (made, charged);
        }
        assert!(Instant::now() < end, "{free} calls were answered and not charged");
    };
    assert!(charged.len() <= answered.len() + lost, "{} + {lost}", answered.len());
    world.sums_are_proved().await;
    let price = made[0].amount_nano;
    assert!(made.iter().all(|charge| charge.amount_nano == price));
    println!(
        "| {} answered | {lost} lost | {} charged | {:?} |",
        answered.len(),
        charged.len(),
        began.elapsed()
    );
}
