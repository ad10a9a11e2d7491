//! What is held while a call runs, and that nobody gets more than was paid for.

use std::time::Duration;

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;

use super::{price, reservation};
use crate::world::{
    COMPACT, EDIT_B, EDIT_D, EMBEDDING_B, IMAGE_B, IMAGE_D, Offer, RESPONSES, SPEECH, Store, World,
    usd,
};

#[rstest]
#[tokio::test]
async fn exactly_the_reservation_is_enough_and_is_held_and_a_nano_less_is_not(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(IMAGE_B, IMAGE_D, EDIT_B, EDIT_D, SPEECH)] offer: Offer,
) {
    let reservation = reservation(offer);
    let builder = World::start(store).vendor(offer.vendor, &["delay=800"]);
    let world = builder.credit(&usd(reservation - 1)).run().await;
    let refused = world.ask(offer).await;
    assert_eq!(refused.refusal(), (402, "insufficient_credits".to_owned()));
    assert_eq!(world.sim.count(offer.vendor), 0);
    world.free_of_charge().await;
    world.command(&["credit", "add", "acct", "0.000000001"]).await.done();
    let (answer, held) = world.held_during(offer, json!({})).await;
    assert_eq!((answer.status, held), (200, reservation), "{answer:?}");
    let charge = world.charge().await;
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(charge.amount_nano, price(offer, &billed));
}

#[rstest]
#[tokio::test]
async fn a_response_holds_its_input_and_the_output_asked_for(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["delay=800"]).run().await;
    let members = json!({ "max_output_tokens": 20 });
    let bytes = i64::try_from(RESPONSES.sent(&members).bytes.len()).expect("a short call");
    let (answer, held) = world.held_during(RESPONSES, members).await;
    assert_eq!((answer.status, held), (200, bytes * 5_000 + 20 * 30_000), "{answer:?}");
    world.settled(1).await;
}

#[rstest]
#[tokio::test]
async fn an_embedding_holds_what_it_may_cost(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).vendor("vendor_b", &["delay=800"]).run().await;
    let (answer, held) = world.held_during(EMBEDDING_B, json!({})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(held >= world.charge().await.amount_nano, "{held}");
}

#[rstest]
#[case::images_b(IMAGE_B, "delay=60;prompt=8;completion=8999")]
#[case::images_d(IMAGE_D, "delay=60")]
#[case::edits_d(EDIT_D, "delay=60;ticks=200000000")]
#[case::speech(SPEECH, "delay=60")]
#[tokio::test]
async fn credit_for_seven_serves_exactly_seven_of_twenty_at_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] offer: Offer,
    #[case] faults: &str,
) {
    let builder = World::start(store).vendor(offer.vendor, &[faults]);
    let patient = "[timeouts]\nledger_ms = 10_000";
    let world = builder.credit(&usd(7 * reservation(offer))).conf(patient).run().await;
    let answers = join_all((0..20).map(|_| world.ask(offer))).await;
    let good = answers.iter().filter(|answer| answer.status == 200).count();
    let short = answers.iter().filter(|answer| answer.is_short_of_credit()).count();
    assert_eq!((good, short), (7, 13), "{answers:?}");
    assert_eq!(world.sim.count(offer.vendor), 7);
    let charges = world.settled(7).await;
    assert!(charges.iter().all(|c| c.amount_nano == reservation(offer)), "{charges:?}");
    assert_eq!(world.balances().await.available, 0);
}

#[rstest]
#[tokio::test]
async fn a_call_that_fails_gives_its_reservation_back_before_the_next(
    #[values(IMAGE_B, EDIT_D, SPEECH)] offer: Offer,
    #[values("status=400", "status=500", "status=503", "reset=0", "cut=0", "moderated")]
    fault: &str,
) {
    let builder = World::start(Store::Sqlite).vendor(offer.vendor, &[fault]);
    let world = builder.credit(&usd(reservation(offer))).run().await;
    if offer == SPEECH && fault == "moderated" {
        return;
    }
    for number in 0..4 {
        let answer = world.ask(offer).await;
        assert!(answer.status >= 400 && answer.status != 402, "call {number}: {answer:?}");
    }
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn who_hangs_up_before_the_answer_pays_for_it_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(RESPONSES, COMPACT, IMAGE_B, EDIT_D, SPEECH, EMBEDDING_B)] offer: Offer,
) {
    let world = World::start(store).vendor(offer.vendor, &["delay=400", ""]).run().await;
    let sent = offer.sent(&json!({}));
    let request = world.sending(offer.path, &sent.media, Some(&world.key)).body(sent.bytes);
    let asked = async {
        while world.sim.count(offer.vendor) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        answer = request.send() => panic!("the vendor takes longer: {answer:?}"),
        () = asked => {}
    }
    let charge = world.charge().await;
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(charge.amount_nano, price(offer, &billed), "{charge:?}");
    assert_eq!(world.sim.count(offer.vendor), 1);
}
