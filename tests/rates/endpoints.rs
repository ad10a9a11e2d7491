//! Tokens at each endpoint: they are reserved when a call begins, and what it is billed for stands
//! when it has ended. The next call is speech of one letter, which takes one token and no more.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use super::{refused, set_plan, told};
use crate::world::{
    Builder, CHAT, COMPACT, Charge, EDIT_B, EDIT_D, EMBEDDING_B, EMBEDDING_C, IMAGE_B, IMAGE_D,
    MESSAGES, Offer, RESPONSES, SPEECH, Store, VIDEO, World, quick,
};

const TRANSLATED: Offer = Offer { model: "lma-sonnet-4-6", vendor: "vendor_a", ..CHAT };
/// The pace of a limit gives all of it back in this time.
const A_MINUTE_MS: i64 = 60_000;

/// A call, and the limit under which it is made.
struct Limited {
    world: World,
    tokens: i64,
    /// What the call has reserved.
    reserved: i64,
    began: Instant,
    ended: Instant,
}

impl Limited {
    /// Makes a call in a world with a limit of its own, and waits until it is settled.
    async fn call(
        builder: Builder,
        offer: Offer,
        members: &Value,
        tokens: i64,
    ) -> (Limited, Charge) {
        let plan = format!("[plan.p]\ntokens_per_minute = {tokens}");
        // Rich enough that no call is cut to what there is.
        let world = builder.plans(&plan).credit("1000").run().await;
        set_plan(&world, "p").await;
        let began = Instant::now();
        let answer = world.call(offer, members.clone()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        // The account had used nothing.
        let (limit, left) = told(&answer, "tokens");
        assert_eq!(limit, tokens, "{answer:?}");
        if offer == VIDEO {
            world.over(answer.json()["id"].as_str().expect("an id")).await;
        }
        let ended = Instant::now();
        let charge = world.charge().await;
        (Limited { world, tokens, reserved: tokens - left, began, ended }, charge)
    }

    /// Panics unless the call has taken so many tokens, less what the pace has given back since.
    async fn has_taken(&self, used: i64) {
        let Limited { world, tokens, .. } = self;
        let (sent, probe) = (Instant::now(), json!({ "input": "a" }));
        let answer = world.call(SPEECH, probe).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let (limit, left) = told(&answer, "tokens");
        assert_eq!(limit, *tokens, "{answer:?}");
        let ms = |from: Instant, to: Instant| {
            i64::try_from(to.duration_since(from).as_millis()).expect("a short time")
        };
        // Both moments at which the store looked at its clock are between these.
        let (least, most) = (ms(self.ended, sent) - 1, ms(self.began, Instant::now()) + 2);
        let drained = |ms: i64| tokens * ms.max(0) / A_MINUTE_MS;
        let taken = tokens - left - 1;
        let bounds = (used - drained(most) - 1).max(0)..=(used - drained(least)).max(0) + 1;
        assert!(bounds.contains(&taken), "{taken} of {used} were taken, not {bounds:?}");
    }
}

/// What a charge counts in a limit of tokens.
fn units(charge: &Charge) -> i64 {
    let number = |name: &str| charge.usage[name].as_i64().unwrap_or_default();
    let names = ["prompt_tokens", "completion_tokens", "characters", "seconds"];
    names.into_iter().map(number).sum()
}

#[rstest]
#[case::chat(CHAT, json!({ "max_tokens": 300 }), "prompt=20;completion=250", 1_000)]
#[case::chat_stream(
    CHAT, json!({ "max_tokens": 300, "stream": true }), "prompt=20;completion=250", 1_000
)]
#[case::translated(TRANSLATED, json!({ "max_tokens": 300 }), "prompt=20;completion=250", 1_000)]
#[case::translated_stream(
    TRANSLATED, json!({ "max_tokens": 300, "stream": true }), "prompt=20;completion=250", 1_000
)]
#[case::messages(MESSAGES, json!({ "max_tokens": 300 }), "prompt=20;completion=250", 1_000)]
#[case::messages_stream(
    MESSAGES, json!({ "max_tokens": 300, "stream": true }), "prompt=20;completion=250", 1_000
)]
#[case::responses(
    RESPONSES, json!({ "max_output_tokens": 300 }), "prompt=20;completion=250", 1_000
)]
#[case::responses_stream(
    RESPONSES,
    json!({ "max_output_tokens": 300, "stream": true }),
    "prompt=20;completion=250",
    1_000
)]
// Nobody says how long a summary becomes, so it reserves what is usual.
#[case::compact(COMPACT, json!({}), "prompt=20;completion=3000", 20_000)]
#[case::image(IMAGE_B, json!({}), "prompt=8;completion=4000", 40_000)]
#[case::edit(EDIT_B, json!({}), "prompt=8;completion=4000", 40_000)]
#[case::speech(SPEECH, json!({ "input": "a".repeat(300) }), "", 1_000)]
#[tokio::test]
async fn what_a_call_has_reserved_becomes_what_it_is_billed_for(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] offer: Offer,
    #[case] members: Value,
    #[case] faults: &str,
    #[case] tokens: i64,
) {
    let builder = World::start(store).vendor(offer.vendor, &[faults]);
    let (limited, charge) = Limited::call(builder, offer, &members, tokens).await;
    let used = units(&charge);
    assert!(used > 0 && limited.reserved >= used, "{} for {charge:?}", limited.reserved);
    assert!(limited.reserved < tokens, "the limit is too small for this test");
    limited.has_taken(used).await;
}

/// The vendor may count in another way than the gateway did.
#[rstest]
#[case::more_than_reserved(EMBEDDING_B, "prompt=900", 3_000)]
#[case::told_by_others(EMBEDDING_C, "with-usage;prompt=900", 3_000)]
#[case::counted_here(EMBEDDING_C, "", 3_000)]
#[tokio::test]
async fn an_embedding_takes_what_it_is_billed_for_and_may_come_into_debt(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] offer: Offer,
    #[case] faults: &str,
    #[case] tokens: i64,
) {
    let builder = World::start(store).vendor(offer.vendor, &[faults]);
    let members = json!({ "input": "one two three four" });
    let (limited, charge) = Limited::call(builder, offer, &members, tokens).await;
    assert!(limited.reserved > 0, "nothing is reserved");
    limited.has_taken(units(&charge)).await;
}

/// Such a vendor tells a price and no tokens, so what was reserved stands.
#[rstest]
#[tokio::test]
async fn an_image_that_is_billed_by_its_price_takes_what_it_has_reserved(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(IMAGE_D, EDIT_D)] offer: Offer,
) {
    let members = json!({ "prompt": "red ".repeat(250) });
    let (limited, charge) = Limited::call(World::start(store), offer, &members, 3_000).await;
    assert_eq!((charge.usage["images"].as_i64(), units(&charge)), (Some(1), 0));
    assert_eq!(limited.reserved, 1);
    limited.has_taken(limited.reserved).await;
}

#[rstest]
#[tokio::test]
async fn a_video_takes_its_seconds(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let builder = World::start(store).vendor("vendor_d", &["video-ms=40"]).conf(&quick(&[]));
    let members = json!({ "seconds": 15 });
    let (limited, charge) = Limited::call(builder, VIDEO, &members, 60).await;
    assert_eq!((units(&charge), limited.reserved), (15, 15), "{charge:?}");
    limited.has_taken(15).await;
}

/// A report that nobody believes, or none, is no reason to take nothing.
#[rstest]
#[tokio::test]
async fn a_call_without_a_report_takes_what_its_charge_says(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let builder = World::start(store).vendor("vendor_b", &["no-usage;chunks=100"]);
    let members = json!({ "max_tokens": 300, "stream": stream });
    let (limited, charge) = Limited::call(builder, CHAT, &members, 1_000).await;
    assert!(units(&charge) > 0, "{charge:?}");
    limited.has_taken(units(&charge)).await;
}

/// A limit never refuses a call for ever: it passes where nothing is used, and others wait for it.
#[rstest]
#[tokio::test]
async fn a_call_that_is_larger_than_the_limit_passes_when_all_of_it_is_free(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plan = "[plan.p]\ntokens_per_minute = 1_000";
    let world = World::start(store).plans(plan).run().await;
    set_plan(&world, "p").await;
    let large = json!({ "input": "a".repeat(1_200) });
    let answer = world.call(SPEECH, large.clone()).await;
    assert_eq!((answer.status, told(&answer, "tokens")), (200, (1_000, 0)), "{answer:?}");
    world.settled(1).await;
    let small = refused(&world.call(SPEECH, json!({ "input": "a" })).await, SPEECH, "tokens");
    assert!((1..=12_060).contains(&small), "the debt comes first: {small}");
    let again = refused(&world.call(SPEECH, large).await, SPEECH, "tokens");
    assert!(again > small, "it waits for all of the limit: {again}");
    world.settled(1).await;
}

/// What is held in reserve for one call is not there for another.
#[rstest]
#[tokio::test]
async fn tokens_are_reserved_while_a_call_runs(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(CHAT, MESSAGES, TRANSLATED)] offer: Offer,
) {
    let faults = "held=0;prompt=5;completion=5";
    let builder = World::start(store).vendor(offer.vendor, &[faults]);
    let world = builder.plans("[plan.p]\ntokens_per_minute = 1_000").run().await;
    set_plan(&world, "p").await;
    let members = json!({ "max_tokens": 600 });
    let second = async {
        while world.sim.count(offer.vendor) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let refusal = world.call(offer, members.clone()).await;
        world.sim.let_go();
        refusal
    };
    let (first, refusal) = tokio::join!(world.call(offer, members.clone()), second);
    assert_eq!(first.status, 200, "{first:?}");
    refused(&refusal, offer, "tokens");
    world.settled(1).await;
    let answer = world.call(offer, members).await;
    assert_eq!(answer.status, 200, "what was not used is free again: {answer:?}");
    world.settled(2).await;
}
