//! A Redis that comes back without what it acknowledged last.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;

use super::{PATIENCE, let_in_again};
use crate::world::{ACCOUNT, Answer, Process, RedisKind, Store, World, chat_of};

#[rstest]
#[tokio::test]
async fn charges_that_it_lost_are_made_again_before_anybody_is_let_in(
    #[values(RedisKind::Server, RedisKind::Sentinel, RedisKind::Cluster)] kind: RedisKind,
) {
    let mut world = World::start(Store::Redis).redis_kind(kind).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    let copy = world.redis().copy();
    for _ in 0..3 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    }
    let before = world.settled(4).await;
    world.redis().fall_back_to(&copy);
    let_in_again(&world).await;
    let after = world.settled(5).await;
    let ids = |charges: &[crate::world::Charge]| {
        charges.iter().map(|charge| charge.request_id.clone()).collect::<BTreeSet<_>>()
    };
    assert!(ids(&after).is_superset(&ids(&before)) && ids(&after).len() == 5);
    assert!(world.metric("tollgate_outbox_replayed_total", &[]).await >= 3);
    let told = world.logged(&["outbox replay finished", "charged=3"]).await;
    let number = |name| {
        let word = told.split(' ').find_map(|word| word.strip_prefix(name));
        word.and_then(|number| number.parse::<u32>().ok()).expect("a number")
    };
    assert!(
        number("delivered=") < number("entries="),
        "what it still has is not told again: {told}"
    );
    let log = world.log();
    let told = log.rfind("outbox replay finished").expect("it was logged");
    assert!(told < log.rfind("store recovery finished").expect("it was"), "too early:\n{log}");
}

#[tokio::test]
async fn a_hold_that_it_lost_is_made_again_while_its_call_runs() {
    let builder = World::start(Store::Redis).own_redis().vendor("vendor_b", &["held=4"]);
    let mut world = builder.run().await;
    let copy = world.redis().copy();
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    let held = world.balances().await.held;
    assert!(held > 0);
    world.redis().fall_back_to(&copy);
    world.logged(&["store restarted"]).await;
    let end = Instant::now() + PATIENCE;
    while world.balances().await.held != held {
        assert!(Instant::now() < end, "the hold is not made again:\n{}", world.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It is read to its end all the same.
    drop(stream);
    world.sim.let_go();
    assert_eq!(world.charge().await.basis, "reported");
}

/// A charge whose gateway has stopped is made again by the next, long after it was acknowledged.
#[rstest]
#[case::which_came_before_redis_forgot(true)]
#[case::which_came_after_redis_forgot(false)]
#[tokio::test]
async fn what_an_ended_gateway_had_acknowledged_is_made_again_by_its_successor(
    #[case] is_there: bool,
) {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    let copy = world.redis().copy();
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
    if is_there {
        world.gateway = world.second_gateway().await;
        world.settled(1).await;
    }
    world.redis().fall_back_to(&copy);
    if !is_there {
        world.gateway = world.second_gateway().await;
    }
    let_in_again(&world).await;
    world.settled(2).await;
}

/// The calls under `key` of its client, until one is not refused for the sake of the store.
async fn repeated(world: &World, key: &str) -> Answer {
    let end = Instant::now() + PATIENCE;
    loop {
        let request = world.request("/v1/chat/completions").header("idempotency-key", key);
        let answer = Answer::read(request.body(chat_of("lmb-5.5").to_string())).await;
        if answer.status != 503 {
            return answer;
        }
        assert_eq!(answer.refusal(), (503, "ledger_unavailable".to_owned()));
        assert!(Instant::now() < end, "nobody is let in");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// What was acknowledged longer ago than 15 s is sent after the gate has opened, but for the
/// charges of calls that may be repeated.
#[rstest]
#[case::whose_gateway_lives(true)]
#[case::whose_gateway_has_stopped(false)]
#[tokio::test]
async fn a_repeat_as_soon_as_calls_were_admitted_was_a_new_call(#[case] lives: bool) {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    let copy = world.redis().copy();
    assert_eq!(repeated(&world, "early").await.status, 200);
    let first = world.settled(1).await;
    tokio::time::sleep(Duration::from_secs(17)).await;
    assert_eq!(repeated(&world, "late").await.status, 200);
    world.settled(2).await;
    if !lives {
        world.gateway.signal("TERM");
        world.gateway.ended(PATIENCE).await;
    }
    world.redis().fall_back_to(&copy);
    if !lives {
        world.gateway = world.second_gateway().await;
    }
    let answer = repeated(&world, "early").await;
    assert_eq!(answer.refusal(), (409, "reply_lost".to_owned()), "{}", world.log());
    let after = world.settled(2).await;
    assert!(after.iter().any(|charge| charge.request_id == first[0].request_id));
}

/// Makes calls to one gateway after the other until it is told to stop, and then until one more is
/// answered; gives the ids of those that were.
async fn calls(world: &World, gateways: &[&Process], stop: &AtomicBool) -> Vec<String> {
    let mut answered = Vec::new();
    for gateway in gateways.iter().cycle() {
        let is_last = stop.load(Ordering::Relaxed);
        let request = world.url_of(gateway, "/v1/chat/completions");
        let answer = Answer::read(request.body(chat_of("lmb-5.5").to_string())).await;
        match answer.status {
            200 => {
                answered.push(answer.header("x-request-id").expect("an id").to_owned());
                if is_last {
                    break;
                }
            }
            503 => tokio::time::sleep(Duration::from_millis(50)).await,
            other => panic!("{other}: {answer:?}"),
        }
    }
    answered
}

#[tokio::test]
async fn under_load_from_two_gateways_every_answer_is_one_charge() {
    let builder = World::start(Store::Redis).own_redis().vendor("vendor_b", &["delay=5"]);
    let mut world = builder.run().await;
    let second = world.second_gateway().await;
    let stop = AtomicBool::new(false);
    let mut server = world.take_redis();
    let falls = async {
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let copy = server.copy();
            tokio::time::sleep(Duration::from_millis(400)).await;
            server = tokio::task::spawn_blocking(move || {
                server.fall_back_to(&copy);
                server
            })
            .await
            .expect("no panic");
            tokio::time::sleep(Duration::from_millis(900)).await;
        }
        stop.store(true, Ordering::Relaxed);
        server
    };
    let gateways = [&world.gateway, &second];
    let many = join_all((0..6).map(|_| calls(&world, &gateways, &stop)));
    let (answered, _server) = tokio::join!(many, falls);
    let answered: BTreeSet<String> = answered.into_iter().flatten().collect();
    let made = world.settled(answered.len()).await;
    let charged: BTreeSet<String> = made.iter().map(|c| c.request_id.clone()).collect();
    assert_eq!(charged, answered);
    let price = made[0].amount_nano;
    assert!(made.iter().all(|charge| charge.amount_nano == price));
    let sum = price * i64::try_from(made.len()).expect("few");
    assert_eq!(world.balances().await.posted, sum);
}

#[tokio::test]
async fn a_payment_that_it_lost_is_taken_once_more_before_the_command_returns() {
    let mut world = World::start(Store::Redis).own_redis().run().await;
    let copy = world.redis().copy();
    let before = world.balances().await.credited;
    // Redis syncs its file every second, and a payment waits for that.
    let mut server = world.take_redis();
    let adding = world.command(&["credit", "add", ACCOUNT, "1.5", "--id", "p"]);
    let credit = "redis.call('SELECT', 1) \
                  return redis.call('HGET', 'tollgate:{acct}:account', 'credit')";
    let falling = tokio::task::spawn_blocking(move || {
        let first = server.command(&["EVAL", credit, "0"]);
        while server.command(&["EVAL", credit, "0"]) == first {
            std::thread::sleep(Duration::from_millis(5));
        }
        server.fall_back_to(&copy);
        server
    });
    let (added, server) = tokio::join!(adding, falling);
    added.done();
    let _server = server.expect("no panic");
    assert_eq!(world.balances().await.credited, before + 1_500_000_000);
}
