//! Nodes that are killed again and again while many jobs are under way.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;
use tokio::sync::watch;

use super::{nano, proven};
use crate::world::{Answer, Process, Store, VIDEO, World, quick};

const JOBS: usize = 30;
/// So long the nodes are killed, one every so often.
const TIME: Duration = Duration::from_secs(8);
const PAUSE_MS: u64 = 300;

/// A number below another one.
fn random(below: u64) -> u64 {
    RandomState::new().hash_one(0) % below
}

/// Asks for a video until somebody takes the order, wherever a gateway is at that time.
async fn insists(world: &World, gateways: watch::Receiver<Vec<String>>, number: usize) -> String {
    tokio::time::sleep(Duration::from_millis(random(6_500))).await;
    let end = Instant::now() + Duration::from_secs(40);
    loop {
        let address = {
            let known = gateways.borrow();
            known[usize::try_from(random(known.len() as u64)).expect("a small number")].clone()
        };
        let body = VIDEO.sent(&json!({ "prompt": format!("number {number}"), "seconds": 1 }));
        let request = world.client().post(format!("http://{address}{}", VIDEO.path));
        let request = request.bearer_auth(&world.key).header("content-type", body.media);
        let request = request.header("idempotency-key", number.to_string()).body(body.bytes);
        let request = request.timeout(Duration::from_secs(2));
        match Answer::try_read(request).await {
            Ok(answer) if answer.status == 200 => {
                return answer.json()["id"].as_str().expect("an id").to_owned();
            }
            Ok(answer) => assert_eq!(answer.status, 503, "{answer:?}"),
            Err(_) => {}
        }
        assert!(Instant::now() < end, "nobody takes the order");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Kills one node after the other, and starts each again.
async fn kills(world: &World, nodes: &mut [Process], told: &watch::Sender<Vec<String>>) -> usize {
    let end = Instant::now() + TIME;
    let mut deaths = 0;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(PAUSE_MS / 2 + random(PAUSE_MS))).await;
        let place = deaths % nodes.len();
        nodes[place].kill();
        nodes[place] = world.gateway_with(&format!("node{deaths}"), &[]).await;
        told.send_replace(nodes.iter().map(|node| node.http.clone()).collect());
        deaths += 1;
    }
    deaths
}

#[rstest]
#[case::one_on_sqlite(Store::Sqlite, 1)]
#[case::one_on_redis(Store::Redis, 1)]
#[case::two_on_redis(Store::Redis, 2)]
#[tokio::test]
async fn killed_at_random_all_jobs_end_and_every_charge_is_a_bill(
    #[case] store: Store,
    #[case] count: usize,
) {
    let faults = "video-ms=300;submit.delay=80;file.chunk-delay=15";
    let conf = quick(&[("copies_max", 20)]);
    let mut world = World::start(store).vendor("vendor_d", &[faults]).conf(&conf).run().await;
    let first = world.second_gateway().await;
    let mut nodes = vec![std::mem::replace(&mut world.gateway, first)];
    for number in 1..count {
        nodes.push(world.gateway_with(&format!("begin{number}"), &[]).await);
    }
    // On SQLite there is one at a time.
    world.gateway.kill();
    let addresses: Vec<String> = nodes.iter().map(|node| node.http.clone()).collect();
    let told = watch::Sender::new(addresses);
    let orders = (0..JOBS).map(|number| insists(&world, told.subscribe(), number));
    let (ids, deaths) = tokio::join!(join_all(orders), kills(&world, &mut nodes, &told));
    drop(std::mem::replace(&mut world.gateway, nodes.pop().expect("a node")));
    let distinct: BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), JOBS, "each order is one job");

    let charges = proven(&world, &ids).await;
    let listed = world.get("/v1/videos?limit=100").await.json();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(JOBS), "and no job is nobody's");
    let made = world.sim.videos();
    let bills = made.iter().filter(|video| {
        charges.iter().any(|charge| charge.vendor_request_id.as_deref() == Some(&video.id))
    });
    let bills: i64 = bills.map(|video| nano(video.billed.expect("a bill"))).sum();
    let balances = world.balances().await;
    assert_eq!((balances.posted, balances.held), (bills, 0));
    assert_eq!(super::files(&world), charges.len(), "a file of each that is completed");
    println!(
        "| {store:?}, {count} | {deaths} kills | {JOBS} jobs | {} submissions | {} completed | \
         {} failed | posted {} |",
        world.submissions().len(),
        charges.len(),
        JOBS - charges.len(),
        balances.posted
    );
    assert!(deaths > 0 && charges.len() > JOBS / 8, "{deaths} {}", charges.len());
}
