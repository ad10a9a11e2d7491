//! What the vendor refuses or fails at: told at every endpoint alike, and free.

use rstest::rstest;

use super::{Expected, Table};
use crate::world::{OFFERS, Offer, Store, World};

const VENDORS: [&str; 4] = ["vendor_a", "vendor_b", "vendor_c", "vendor_d"];

/// A vendor's own code of a bad request; ours where it has none.
fn code_of_400(offer: Offer) -> &'static str {
    match offer.vendor {
        "vendor_c" => "INVALID_ARGUMENT",
        "vendor_d" => "invalid-argument",
        _ => "vendor_refused",
    }
}

fn expected(offer: Offer, fault: &str) -> Expected {
    let failed = Expected { no_retry: true, ..Expected::new(502, "upstream_error", "api_error") };
    match fault {
        "status=400" => Expected::new(400, code_of_400(offer), "invalid_request_error")
            .saying("The request is invalid."),
        "status=429;retry-after=7" => Expected {
            messages: (529, "overloaded_error"),
            retry_after: Some("7"),
            ..Expected::new(503, "upstream_overloaded", "overloaded_error")
        },
        _ => failed,
    }
}

#[rstest]
#[tokio::test]
async fn what_the_vendor_refuses_or_fails_at_is_told_and_free(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(
        "status=400",
        "status=401",
        "status=403",
        "status=429;retry-after=7",
        "status=500",
        "reset=0",
        "garbage",
        "cut=0"
    )]
    fault: &str,
) {
    let builder = World::start(store);
    let world = VENDORS.iter().fold(builder, |b, vendor| b.vendor(vendor, &[fault])).run().await;
    let mut table = Table::default();
    let mut cells = 0;
    for offer in OFFERS {
        // Sound is not read, so that nobody knows noise when it comes.
        if fault == "garbage" && offer.endpoint == "speech" {
            continue;
        }
        let answer = world.ask(offer).await;
        cells += 1;
        table.judge(offer, fault, &answer, &expected(offer, fault));
        let heard = world.sim.take_seen().len();
        table.hold(&format!("{} was heard {heard} times, not once", offer.path), heard == 1);
    }
    table.end(&world, cells).await;
}
