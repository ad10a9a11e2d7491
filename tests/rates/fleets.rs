//! Several gateways share the limits of an account, small ones to the unit, and large ones of which
//! they borrow; and with all limits at work at once the books are right.

use std::time::Instant;

use futures_util::stream::{self, StreamExt};
use rstest::rstest;
use serde_json::{Value, json};

use super::{LIMITED, issue, refused, set_plan};
use crate::world::{
    ACCOUNT, Answer, CHAT, Charge, EMBEDDING_B, MESSAGES, Offer, Process, RESPONSES, SPEECH, Sent,
    Store, World,
};

const AT_ONCE: usize = 16;
const TOKENS: &str = "prompt=5;completion=5";

/// What became of many calls at a gateway.
struct Burst {
    served: Vec<Answer>,
    refused: Vec<Answer>,
}

/// Makes calls at a gateway, some of them at once. None of them may break off.
async fn burst(world: &World, gateway: &Process, sent: &Sent, path: &str, calls: usize) -> Burst {
    let make = |_| {
        let request = world.url_of(gateway, path).header("content-type", sent.media.as_str());
        let request = request.body(sent.bytes.clone());
        async { Answer::read(request).await }
    };
    let answers: Vec<Answer> =
        stream::iter((0..calls).map(make)).buffer_unordered(AT_ONCE).collect().await;
    let (served, refused) = answers.into_iter().partition(|answer| answer.status == 200);
    Burst { served, refused }
}

/// How many units the pace of a limit gives in the time since then, a begun one counted.
fn pace(per_minute: usize, since: Instant) -> usize {
    let ms = usize::try_from(since.elapsed().as_millis()).expect("a short time");
    (per_minute * (ms + 1)).div_ceil(60_000)
}

/// Every answered call is one line of the journal, and no other.
fn prove(served: &[&Burst], charges: &[Charge]) {
    let answers = served.iter().flat_map(|burst| &burst.served);
    let mut answered: Vec<_> =
        answers.map(|answer| answer.header("x-request-id").expect("an id")).collect();
    let mut ids: Vec<_> = charges.iter().map(|charge| charge.request_id.as_str()).collect();
    answered.sort_unstable();
    ids.sort_unstable();
    assert_eq!(answered, ids);
}

/// Of a limit below 64 calls nothing is lent, so it is exact; of a larger one some may be with the
/// other gateway when the last calls come.
#[rstest]
#[case::which_is_exact(50, 50)]
#[case::of_which_some_is_lent(100, 90)]
#[tokio::test]
async fn a_burst_through_two_gateways_ends_at_the_requests_of_a_minute(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] limit: usize,
    #[case] least: usize,
) {
    let builder = World::start(store).vendor("vendor_b", &[TOKENS]).credit("1000");
    let plan = format!("[plan.p]\nrequests_per_minute = {limit}");
    let world = builder.plans(&plan).run().await;
    set_plan(&world, "p").await;
    let second = world.second_gateway().await;
    let sent = CHAT.sent(&json!({ "max_tokens": 10 }));
    let since = Instant::now();
    let (one, other) = tokio::join!(
        burst(&world, &world.gateway, &sent, CHAT.path, 150),
        burst(&world, &second, &sent, CHAT.path, 150)
    );
    let most = limit + pace(limit, since);
    let served = one.served.len() + other.served.len();
    assert!((least..=most).contains(&served), "{served} of at most {most}");
    for refusal in one.refused.iter().chain(&other.refused) {
        let wait = refused(refusal, CHAT, "requests");
        assert!((1..=60_000).contains(&wait), "{refusal:?}");
    }
    prove(&[&one, &other], &world.settled(served).await);
    assert_eq!(world.sim.count("vendor_b"), served as u64, "no vendor hears of the others");
    let counted = world.metric(LIMITED, &[r#"kind="requests""#, r#"mode="enforce""#]).await;
    assert_eq!(usize::try_from(counted), Ok(one.refused.len()));
}

/// Requests and tokens are lent as money is: most calls of a busy account do not ask the store.
#[rstest]
#[case::requests(CHAT, json!({ "max_tokens": 10 }), "requests", 1_000, 1)]
#[case::tokens(SPEECH, json!({ "input": "a".repeat(20) }), "tokens", 20_000, 20)]
#[tokio::test]
async fn a_large_limit_is_lent_and_never_passed(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] offer: Offer,
    #[case] members: Value,
    #[case] kind: &str,
    #[case] limit: usize,
    #[case] unit: usize,
) {
    const CALLS: usize = 650;
    let builder = World::start(store).vendor("vendor_b", &[TOKENS]).credit("1000");
    let plan = format!("[plan.p]\n{kind}_per_minute = {limit}");
    let world = builder.plans(&plan).run().await;
    set_plan(&world, "p").await;
    let second = world.second_gateway().await;
    let sent = offer.sent(&members);
    let since = Instant::now();
    let (one, other) = tokio::join!(
        burst(&world, &world.gateway, &sent, offer.path, CALLS),
        burst(&world, &second, &sent, offer.path, CALLS)
    );
    let most = limit + pace(limit, since);
    let served = one.served.len() + other.served.len();
    assert!(served * unit <= most, "{served} calls of {unit} are more than {most}");
    let least = limit * 9 / 10;
    assert!(served * unit >= least, "{served} calls of {unit} are fewer than {least}");
    for refusal in one.refused.iter().chain(&other.refused) {
        refused(refusal, offer, kind);
    }
    let ends = world.metric("tollgate_allotment_ends_total", &[]).await;
    assert!(ends > 50, "{ends} of {} ends were in memory", one.served.len());
    prove(&[&one, &other], &world.settled(served).await);
    world.metric_becomes("tollgate_allotments", &[], 0).await;
}

/// The limits of an account, a key and some models, in requests, tokens and places, at two gateways
/// at once, beside budgets and vendors that fail: nothing is charged twice, and nothing stays held.
#[rstest]
#[tokio::test]
async fn the_books_are_right_with_all_limits_at_work(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.default]\ncalls = 512\n\
                 [plan.all]\nrequests_per_minute = 1_000\ntokens_per_minute = \"30K\"\ncalls = 96\n\
                 [[plan.all.of]]\nmodels = [\"lma-*\"]\nrequests_per_minute = 30\n\
                 [[plan.all.of]]\nmodels = [\"tts-1\"]\ntokens_per_minute = 300\n\
                 [plan.key]\nrequests_per_minute = 250\ncalls = 10\n\
                 [plan.watch]\nmode = \"shadow\"\nrequests_per_minute = 10\ncalls = 1";
    let faults = ["status=503;times=40", "prompt=5;completion=5;delay=5"];
    let builder = World::start(store).vendor("vendor_b", &faults).credit("1000");
    let mut world = builder.plans(plans).run().await;
    set_plan(&world, "all").await;
    world.command(&["account", "set", ACCOUNT, "--budget", "day=900"]).await.done();
    let second = world.second_gateway().await;
    let keys = [
        world.key.clone(),
        issue(&world, &["--plan", "key", "--budget", "hour=90"]).await,
        issue(&world, &["--plan", "watch"]).await,
    ];
    let short = json!({ "max_tokens": 10 });
    let streamed = json!({ "max_tokens": 10, "stream": true });
    let calls = [
        (CHAT, short.clone()),
        (CHAT, streamed),
        (MESSAGES, short),
        (RESPONSES, json!({ "max_output_tokens": 16 })),
        (SPEECH, json!({})),
        (EMBEDDING_B, json!({})),
    ];
    let mut bursts = Vec::new();
    for key in keys {
        world.key = key;
        let sent = calls.each_ref().map(|(offer, members)| (offer.path, offer.sent(members)));
        let all = sent.iter().flat_map(|(path, sent)| {
            [&world.gateway, &second].map(|gateway| burst(&world, gateway, sent, path, 12))
        });
        bursts.extend(futures_util::future::join_all(all).await);
    }
    let refusals = bursts.iter().flat_map(|burst| &burst.refused);
    let mut counts = std::collections::BTreeMap::new();
    for refusal in refusals {
        let error = refusal.json()["error"].clone();
        let is_limited = error["code"] == "rate_limit_exceeded"
            || error["type"] == "rate_limit_error"
            || error["code"] == "credit_in_use";
        assert!(is_limited && refusal.status == 429, "{refusal:?}");
        *counts.entry(error["type"].to_string()).or_insert(0) += 1;
    }
    assert!(!counts.is_empty(), "no limit was reached");
    let served: Vec<&Burst> = bursts.iter().collect();
    let charges = world.nothing_held().await;
    prove(&served, &charges);
    assert!(charges.len() > 40, "{} calls were served: {counts:?}", charges.len());
    let shadow = world.metric(LIMITED, &[r#"mode="shadow""#, r#"scope="key""#]).await;
    assert!(shadow > 0, "the limit that only tells was exceeded");
    // All places are free.
    world.metric_becomes("tollgate_allotments", &[], 0).await;
    let sent = EMBEDDING_B.sent(&json!({}));
    let last = burst(&world, &second, &sent, EMBEDDING_B.path, 10).await;
    assert!(last.refused.is_empty(), "{:?}", last.refused);
    world.settled(charges.len() + 10).await;
}
