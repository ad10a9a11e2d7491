//! Routes that take so many calls at a time and no more.

use super::load::heard;
use crate::world::{Store, World, chat_of};

#[tokio::test]
async fn a_route_that_is_full_is_passed_over_and_when_all_are_the_call_is_refused() {
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &["held=0", "held=1"]);
    let world = builder.requests_max(1).run().await;
    let call = |before| {
        let world = &world;
        async move {
            heard(world, before).await;
            let answer = world.chat(chat_of("lmb-5.5")).await;
            if before == 2 {
                world.sim.let_go();
            }
            answer
        }
    };
    let (first, second, third) = tokio::join!(call(0), call(1), call(2));
    let depth = |answer: &crate::world::Answer| {
        answer.header("x-gateway-fallback-depth").map(str::to_owned)
    };
    assert_eq!((first.status, depth(&first).as_deref()), (200, Some("0")));
    assert_eq!((second.status, depth(&second).as_deref()), (200, Some("1")));
    assert_eq!(third.refusal(), (503, "overloaded".to_owned()));
    assert_eq!(third.header("retry-after"), Some("1"));
    assert_eq!(world.sim.count("vendor_b"), 2);
    assert_eq!(world.metric("tollgate_fallbacks_total", &["reason=\"full\""]).await, 3);
    assert_eq!(world.metric("tollgate_shed_total", &["reason=\"routes\""]).await, 1);
    let fourth = call(0).await;
    assert_eq!(
        (fourth.status, depth(&fourth).as_deref()),
        (200, Some("0")),
        "there is place again"
    );
    world.settled(3).await;
}

#[tokio::test]
async fn a_stream_keeps_its_place_until_it_has_ended() {
    let world = World::start(Store::Redis).vendor("vendor_b", &["held=3"]);
    let world = world.requests_max(1).run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(2).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.refusal().0, 503);
    world.sim.let_go();
    assert!(stream.rest().await.is_done());
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(2).await;
}
