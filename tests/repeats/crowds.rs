//! Many at once under one name.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use rstest::rstest;

use super::*;
use crate::world::{CHAT, EDIT_B, SPEECH};

const CROWD: usize = 40;

#[rstest]
#[case::one_on_sqlite(Store::Sqlite, false)]
#[case::one_on_redis(Store::Redis, false)]
#[case::two_on_redis(Store::Redis, true)]
#[tokio::test]
async fn forty_at_once_with_one_key_are_one_call(
    #[case] store: Store,
    #[case] two: bool,
    #[values(
        (CHAT, json!({})),
        (CHAT, json!({ "stream": true })),
        (EDIT_B, json!({})),
        (SPEECH, json!({})),
    )]
    what: (Offer, Value),
) {
    let (offer, members) = what;
    let world = World::start(store).vendor("vendor_b", &["held=0"]).conf(PATIENT).run().await;
    let second = if two { Some(world.second_gateway().await) } else { None };
    let sent = offer.sent(&members);
    let (world, refused) = (&world, &AtomicUsize::new(0));
    let calls = (0..CROWD).map(|number| {
        let at = second.as_ref().filter(|_| number % 2 == 1).unwrap_or(&world.gateway);
        let call = request(world, at, &sent, offer.path).header(KEY, "one");
        async move {
            let answer = Answer::read(call).await;
            // The vendor answers when all others know that they are too late.
            if refused.fetch_add(1, Ordering::Relaxed) == CROWD - 2 {
                world.sim.let_go();
            }
            answer
        }
    });
    let answers = join_all(calls).await;
    let (made, others): (Vec<_>, Vec<_>) = answers.iter().partition(|a| a.status == 200);
    let [first] = made[..] else { panic!("{made:?}") };
    assert_eq!(first.header(REPLAYED), None);
    for answer in others {
        assert_eq!(answer.refusal(), (409, "idempotency_key_in_use".to_owned()));
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header("x-should-retry"), None);
    }
    let charge = world.charge().await;
    assert_eq!(Some(charge.request_id.as_str()), first.header("x-request-id"));
    assert_eq!(world.sim.count("vendor_b"), 1);
    for at in second.iter().chain([&world.gateway]) {
        let again = request(world, at, &sent, offer.path).header(KEY, "one");
        repeats(&Answer::read(again).await, first);
    }
}

/// Whoever asks for samples asks the same several times on purpose.
#[rstest]
#[tokio::test]
async fn the_same_first_calls_at_once_are_calls_of_their_own(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["delay=50"]).conf(PATIENT).run().await;
    let members = json!({});
    let answers = join_all((0..CROWD).map(|_| tried(&world, CHAT, &members, 0))).await;
    let ids: BTreeSet<_> = answers.iter().map(|a| a.header("x-request-id")).collect();
    assert!(answers.iter().all(|a| a.status == 200 && a.header(REPLAYED).is_none()));
    let charges = world.settled(CROWD).await;
    let charged: BTreeSet<_> = charges.iter().map(|c| Some(c.request_id.as_str())).collect();
    assert_eq!(ids, charged);
    assert_eq!(world.sim.count("vendor_b"), CROWD as u64);
}

/// Many retries of one call wait together; when it comes to nothing one of them is made instead.
#[rstest]
#[case::one_on_sqlite(Store::Sqlite, false)]
#[case::two_on_redis(Store::Redis, true)]
#[tokio::test]
async fn of_retries_that_wait_for_a_call_that_fails_one_is_made(
    #[case] store: Store,
    #[case] two: bool,
) {
    let faults = "delay=700;garbage;times=1";
    let world = World::start(store).vendor("vendor_b", &[faults]).conf(PATIENT).run().await;
    let second = if two { Some(world.second_gateway().await) } else { None };
    let members = json!({});
    let retries = async {
        vendor_becomes(&world, "vendor_b", 1).await;
        let sent = CHAT.sent(&members);
        let calls = (0..10).map(|number| {
            let at = second.as_ref().filter(|_| number % 2 == 1).unwrap_or(&world.gateway);
            Answer::read(request(&world, at, &sent, CHAT.path).header(RETRIES, "1"))
        });
        join_all(calls).await
    };
    let (first, retries) = tokio::join!(tried(&world, CHAT, &members, 0), retries);
    assert_eq!(first.status, 502, "{first:?}");
    let made: Vec<_> = retries.iter().filter(|a| a.header(REPLAYED).is_none()).collect();
    assert_eq!(made.len(), 1, "{retries:?}");
    retries.iter().filter(|a| a.header(REPLAYED).is_some()).for_each(|a| repeats(a, made[0]));
    assert_eq!(world.sim.count("vendor_b"), 2);
    world.charge().await;
}

/// A sample that was refused has no reply, so its retry is not one of another sample.
#[rstest]
#[tokio::test]
async fn the_retry_of_a_refused_sample_got_the_reply_of_another_one(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let vendor = ["delay=500;prompt=1;completion=1"];
    let builder = World::start(store).vendor("vendor_b", &vendor).conf(PATIENT);
    let world = builder.credit("0.02").run().await;
    let members = json!({});
    let second = async {
        while world.sim.count("vendor_b") == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tried(&world, CHAT, &members, 0).await
    };
    let (first, second) = tokio::join!(tried(&world, CHAT, &members, 0), second);
    assert_eq!((first.status, second.refusal().1.as_str()), (200, "credit_in_use"));
    let retry = tried(&world, CHAT, &members, 1).await;
    assert_eq!((retry.status, retry.header(REPLAYED)), (200, None));
    assert_eq!(world.sim.count("vendor_b"), 2);
    let lost = tried(&world, CHAT, &members, 1).await;
    assert_eq!((lost.status, lost.header(REPLAYED)), (200, Some("true")));
    assert_eq!(world.settled(2).await.len(), 2);
}
