//! Many calls at once on too little credit: nobody gets more than was paid for.

use futures_util::StreamExt;
use futures_util::stream;
use rstest::rstest;
use serde_json::Value;

use crate::world::{Answer, Process, Store, World, chat_of};

const CALLS: usize = 1_000;
/// So many are under way at any time.
const AT_ONCE: usize = 200;
/// The machine may have more to do than this, and a ledger that is late is another test.
const PATIENT: &str = "[timeouts]\nledger_ms = 10_000";

/// Makes the calls, by turns at each of the gateways.
async fn all_at_once(world: &World, gateways: &[&Process], call: &Value) -> Vec<Answer> {
    let calls = (0..CALLS).map(|number| {
        let gateway = gateways[number % gateways.len()];
        let request = world.url_of(gateway, "/v1/chat/completions").body(call.to_string());
        async { Answer::try_read(request).await.expect("an answer") }
    });
    stream::iter(calls).buffer_unordered(AT_ONCE).collect().await
}

fn count(answers: &[Answer], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

/// What must be true whatever happened: the books are right and every success is in them.
async fn prove(world: &World, answers: &[Answer]) {
    let good = count(answers, 200);
    let odd: Vec<_> =
        answers.iter().filter(|a| a.status != 200 && !a.is_short_of_credit()).collect();
    assert!(odd.is_empty(), "{odd:?}");
    let charges = world.settled(good).await;
    let balances = world.balances().await;
    assert!(balances.posted - balances.written_off <= balances.credited, "{balances:?}");
    assert!(balances.available >= 0, "{balances:?}");
    assert_eq!(world.sim.count("vendor_b"), good as u64, "no vendor worked for nothing");
    let mut paid: Vec<_> = charges.iter().map(|c| c.request_id.as_str()).collect();
    let ids = answers.iter().filter(|a| a.status == 200);
    let mut served: Vec<_> = ids.map(|a| a.header("x-request-id").expect("an id")).collect();
    paid.sort_unstable();
    served.sort_unstable();
    assert_eq!(paid, served);
}

#[rstest]
#[case::one_on_sqlite(Store::Sqlite, false)]
#[case::two_on_sqlite(Store::Sqlite, true)]
#[case::one_on_redis(Store::Redis, false)]
#[case::two_on_redis(Store::Redis, true)]
#[tokio::test]
async fn a_thousand_calls_spend_no_more_than_was_paid(
    #[case] store: Store,
    #[case] two: bool,
    #[values(false, true)] stream: bool,
) {
    // Enough for some 150 calls.
    let builder = World::start(store).vendor("vendor_b", &["prompt=10;completion=10;delay=5"]);
    let world = builder.credit("0.0525").conf(PATIENT).run().await;
    let second = if two { Some(world.second_gateway().await) } else { None };
    let gateways: Vec<_> = std::iter::once(&world.gateway).chain(&second).collect();
    let mut call = chat_of("lmb-5.5");
    call["max_tokens"] = 10.into();
    call["stream"] = stream.into();
    let answers = all_at_once(&world, &gateways, &call).await;
    let good = count(&answers, 200);
    assert!((50..=150).contains(&good), "{good} of {CALLS} were served");
    prove(&world, &answers).await;
}

#[rstest]
#[case::one_on_sqlite(Store::Sqlite, false)]
#[case::two_on_sqlite(Store::Sqlite, true)]
#[case::two_on_redis(Store::Redis, true)]
#[tokio::test]
async fn a_thousand_calls_that_cost_more_than_they_hold_write_off_what_is_missing(
    #[case] store: Store,
    #[case] two: bool,
) {
    // Every answer costs several times what was held for it, and no more than is believed.
    let builder = World::start(store).vendor("vendor_b", &["prompt=1;completion=70"]);
    let world = builder.credit("0.1").conf(PATIENT).run().await;
    let second = if two { Some(world.second_gateway().await) } else { None };
    let gateways: Vec<_> = std::iter::once(&world.gateway).chain(&second).collect();
    let mut call = chat_of("lmb-5.5");
    call["max_tokens"] = 10.into();
    let answers = all_at_once(&world, &gateways, &call).await;
    assert!(count(&answers, 200) >= 10);
    prove(&world, &answers).await;
    let balances = world.balances().await;
    assert_eq!(balances.available, 0, "{balances:?}");
    assert_eq!(balances.posted - balances.written_off, balances.credited, "{balances:?}");
}

#[rstest]
#[tokio::test]
async fn enough_credit_serves_every_one_of_a_thousand_calls(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &["prompt=10;completion=10"]);
    let world = builder.conf(PATIENT).run().await;
    let mut call = chat_of("lmb-5.5");
    call["max_tokens"] = 10.into();
    let answers = all_at_once(&world, &[&world.gateway], &call).await;
    assert_eq!(count(&answers, 200), CALLS);
    prove(&world, &answers).await;
    assert_eq!(world.balances().await.posted, 1_000 * (10 * 5_000 + 10 * 30_000));
}

#[rstest]
#[tokio::test]
async fn clients_that_hang_up_in_droves_are_all_charged(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "prompt=10;completion=10;chunk-delay=10";
    let world = World::start(store).vendor("vendor_b", &[faults]).conf(PATIENT).run().await;
    let mut call = chat_of("lmb-5.5");
    call["max_tokens"] = 10.into();
    let calls = (0..100).map(|number| {
        let opened = world.open_stream(call.clone());
        async move {
            let mut stream = opened.await;
            stream.take(number % 4).await;
        }
    });
    stream::iter(calls).buffer_unordered(100).collect::<Vec<()>>().await;
    let charges = world.settled(100).await;
    assert!(charges.iter().all(|c| c.basis == "reported" && c.tokens() == (10, 10)), "{charges:?}");
}
