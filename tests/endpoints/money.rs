//! What is charged is what the vendor bills, at the listed price, once.

use rstest::rstest;
use serde_json::json;

use super::{price, reservation, usage};
use crate::world::{
    CHAT, COMPACT, Canned, EDIT_B, EDIT_D, EMBEDDING_B, EMBEDDING_C, IMAGE_B, IMAGE_D, MESSAGES,
    MODERATION, OFFERS, Offer, RESPONSES, SPEECH, Store, World, http, usd,
};

const PAID: [Offer; 9] =
    [RESPONSES, COMPACT, IMAGE_B, IMAGE_D, EDIT_B, EDIT_D, SPEECH, EMBEDDING_B, EMBEDDING_C];
/// A short list of what an image may be told to have cost.
const TOLD: i64 = 9 * 5_000 + 70 * 40_000;

#[rstest]
#[tokio::test]
async fn a_charge_is_what_the_vendor_bills_at_the_listed_price(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let mut paid = 0;
    for (number, offer) in (1..).zip(PAID) {
        let answer = world.ask(offer).await;
        assert_eq!(answer.status, 200, "{offer:?} {answer:?}");
        assert_eq!(answer.header("x-gateway-fallback-depth"), Some("0"), "{offer:?}");
        let charge = world.settled(number).await.remove(number - 1);
        let seen = world.sim.take_seen();
        assert_eq!(seen.len(), 1, "{offer:?}");
        let billed = seen[0].billed.expect("a bill");
        assert_eq!(charge.amount_nano, price(offer, &billed), "{offer:?} {charge:?}");
        assert!(charge.amount_nano > 0, "{offer:?}");
        assert_eq!(charge.usage, usage(offer, &billed), "{offer:?}");
        let basis = match offer {
            SPEECH => "fixed",
            EMBEDDING_C => "counted",
            _ => "reported",
        };
        assert_eq!((charge.basis.as_str(), charge.written_off_nano), (basis, 0), "{offer:?}");
        let names = [&charge.endpoint, &charge.model, &charge.vendor, &charge.route];
        assert_eq!(names, [offer.endpoint, offer.model, offer.vendor, "r0"]);
        assert_eq!((charge.depth, answer.header("x-request-id")), (0, Some(&*charge.request_id)));
        let id = charge.vendor_request_id.expect("the vendor's id");
        assert!(id.starts_with("req_vendor_"), "{id}");
        paid += charge.amount_nano;
    }
    assert_eq!(world.balances().await.available, 5_000_000_000 - paid);
}

#[rstest]
#[tokio::test]
async fn the_next_route_serves_every_endpoint_when_the_first_is_blocked(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let routes = ["status=503", ""];
    let builder = World::start(store);
    let vendors = ["vendor_a", "vendor_b", "vendor_c", "vendor_d"];
    let world = vendors.iter().fold(builder, |b, vendor| b.vendor(vendor, &routes)).run().await;
    for offer in OFFERS {
        let answer = world.ask(offer).await;
        assert_eq!(answer.status, 200, "{offer:?} {answer:?}");
        let depth = answer.header("x-gateway-fallback-depth");
        // A route that was blocked again and again is tried last.
        assert!(matches!(depth, Some("0" | "1")), "{offer:?} {depth:?}");
        let seen = world.sim.take_seen();
        let (faults, body) = (&seen[seen.len() - 1].faults, &seen[seen.len() - 1].body);
        assert!(faults.is_empty(), "{offer:?}");
        assert!(seen.iter().all(|seen| seen.body == *body), "{offer:?}: all routes get the same");
    }
    let charges = world.settled(OFFERS.len() - 1).await;
    assert!(charges.iter().all(|charge| charge.route == "r1"), "{charges:?}");
}

#[rstest]
#[tokio::test]
async fn depth_is_told_at_every_endpoint(
    #[values(
        RESPONSES,
        COMPACT,
        IMAGE_B,
        IMAGE_D,
        EDIT_B,
        EDIT_D,
        SPEECH,
        EMBEDDING_B,
        EMBEDDING_C,
        MODERATION
    )]
    offer: Offer,
) {
    let builder = World::start(Store::Sqlite).vendor(offer.vendor, &["status=503", ""]);
    let world = builder.run().await;
    let answer = world.ask(offer).await;
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("1"), "{answer:?}");
    assert_eq!(world.sim.count(offer.vendor), 2);
    if offer != MODERATION {
        assert_eq!(world.charge().await.depth, 1);
    }
}

#[rstest]
#[case::half_a_nano(IMAGE_D, "ticks=5", 1)]
#[case::one_nano(IMAGE_D, "ticks=10", 1)]
#[case::more_than_one(IMAGE_D, "ticks=11", 2)]
#[case::as_reserved(EDIT_D, "ticks=200000000", 20_000_000)]
#[case::dearer_than_reserved(EDIT_D, "ticks=1599999999", 160_000_000)]
#[case::tokens(IMAGE_B, "prompt=9;completion=70", TOLD)]
#[case::tokens_of_an_edit(EDIT_B, "prompt=9;completion=70", TOLD)]
#[case::more_tokens_than_reserved(EDIT_B, "prompt=0;completion=20000", 800_000_000)]
#[tokio::test]
async fn an_image_is_charged_what_it_cost_whatever_was_reserved(
    #[case] offer: Offer,
    #[case] fault: &str,
    #[case] nano: i64,
) {
    let builder = World::start(Store::Sqlite).vendor(offer.vendor, &[fault]);
    let world = builder.credit("200").run().await;
    assert_eq!(world.ask(offer).await.status, 200);
    let charge = world.charge().await;
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!((charge.amount_nano, price(offer, &billed)), (nano, nano));
    assert_eq!((charge.usage, charge.basis), (usage(offer, &billed), "reported".to_owned()));
}

#[rstest]
#[tokio::test]
async fn an_image_without_a_sound_report_costs_its_reservation(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("no-usage", "null-usage", "bad-usage")] fault: &str,
    #[values(IMAGE_B, IMAGE_D, EDIT_B, EDIT_D)] offer: Offer,
) {
    let world = World::start(store).vendor(offer.vendor, &[fault]).run().await;
    assert_eq!(world.ask(offer).await.status, 200);
    let charge = world.charge().await;
    assert_eq!(charge.amount_nano, reservation(offer));
    assert_eq!((charge.usage, charge.basis), (json!({ "images": 1 }), "fixed".to_owned()));
}

#[rstest]
#[case::output_outside_of_output_tokens(
    r#"{"input_tokens":10,"output_tokens":20,"total_tokens":90}"#, 10 * 5_000 + 80 * 40_000
)]
#[case::without_a_total(r#"{"input_tokens":10,"output_tokens":20}"#, 10 * 5_000 + 20 * 40_000)]
#[case::of_the_other_format(r#"{"prompt_tokens":10,"completion_tokens":20}"#, 360_000_000)]
#[case::text(r#"{"input_tokens":"10","output_tokens":"20"}"#, 360_000_000)]
#[case::beyond_all_numbers(
    r#"{"input_tokens":99999999999999999999,"output_tokens":20}"#,
    360_000_000
)]
#[case::beyond_all_prices(
    r#"{"input_tokens":9223372036854775807,"output_tokens":9223372036854775807}"#,
    360_000_000
)]
#[tokio::test]
async fn an_images_report_is_read_as_it_is_meant(#[case] usage: &str, #[case] nano: i64) {
    let reply = format!(r#"{{"created":1,"data":[{{"b64_json":"QUJD"}}],"usage":{usage}}}"#);
    let vendor = Canned::start(http(&reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.ask(IMAGE_B).await;
    assert_eq!((answer.status, answer.body.as_ref()), (200, reply.as_bytes()));
    assert_eq!(world.charge().await.amount_nano, nano);
}

#[rstest]
#[tokio::test]
async fn an_absurd_report_of_a_price_is_none(
    #[values("ticks=0", "ticks=100000000001", "ticks=18446744073709551615")] fault: &str,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_d", &[fault]).run().await;
    assert_eq!(world.ask(IMAGE_D).await.status, 200);
    let charge = world.charge().await;
    assert_eq!((charge.amount_nano, charge.basis.as_str()), (20_000_000, "fixed"));
}

#[tokio::test]
async fn what_an_image_costs_beyond_the_balance_is_written_off() {
    let world = World::start(Store::Sqlite).vendor("vendor_d", &["ticks=500000000"]);
    let world = world.credit(&usd(20_000_000)).run().await;
    assert_eq!(world.ask(IMAGE_D).await.status, 200);
    let charge = world.charge().await;
    assert_eq!((charge.amount_nano, charge.written_off_nano), (50_000_000, 30_000_000));
    assert_eq!(world.balances().await.available, 0);
}

#[rstest]
#[tokio::test]
async fn an_image_that_is_no_image_is_refused_and_free(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("moderated", "no-image")] fault: &str,
    #[values(IMAGE_B, IMAGE_D, EDIT_B, EDIT_D)] offer: Offer,
) {
    let world = World::start(store).vendor(offer.vendor, &[fault, ""]).run().await;
    let answer = world.ask(offer).await;
    let (status, code) = answer.refusal();
    // The vendor who refuses before he begins says so in words of his own.
    let own = offer.vendor == "vendor_b" && fault == "moderated";
    let codes = if own {
        "content_policy_violation moderation_blocked"
    } else {
        "content_policy_violation"
    };
    assert_eq!(status, 400, "{answer:?}");
    assert!(codes.split(' ').any(|known| known == code), "{answer:?}");
    assert_eq!(world.sim.count(offer.vendor), 1, "no other route is asked");
    world.free_of_charge().await;
}

#[tokio::test]
async fn conversation_is_charged_as_before() {
    let world = World::start(Store::Sqlite).run().await;
    for offer in [CHAT, MESSAGES, MODERATION] {
        assert_eq!(world.ask(offer).await.status, 200, "{offer:?}");
    }
    let charges = world.settled(2).await;
    let endpoints: Vec<_> = charges.iter().map(|charge| charge.endpoint.as_str()).collect();
    assert_eq!(endpoints, ["chat", "messages"]);
}
