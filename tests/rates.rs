//! Rate limits of plans, as clients meet them: how many requests and tokens a minute and how many
//! calls at a time an account and a key have, and what who has no more of them is told.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    ACCOUNT, Answer, CHAT, MESSAGES, MODERATION, Offer, SPEECH, Sent, Store, VIDEO, World,
};

mod endpoints;
mod fleets;
mod places;
mod rules;

/// What the answers that are refused count in.
const LIMITED: &str = "tollgate_limited_total";

/// A key of the account, with these options.
async fn issue(world: &World, options: &[&str]) -> String {
    let words: Vec<_> = ["key", "issue", ACCOUNT].iter().chain(options).copied().collect();
    world.command(&words).await.done().trim().to_owned()
}

/// Gives the account a plan.
async fn set_plan(world: &World, plan: &str) {
    world.command(&["account", "set", ACCOUNT, "--plan", plan]).await.done();
}

/// A short call with a key.
async fn ask(world: &World, offer: Offer, key: &str) -> Answer {
    let Sent { media, bytes } = offer.sent(&json!({}));
    Answer::read(world.sending(offer.path, &media, Some(key)).body(bytes)).await
}

/// What an answer tells of its limits, such as the `limit` of `requests`. Those of messages have
/// names of their own as well.
fn part<'a>(answer: &'a Answer, what: &str, kind: &str) -> Option<&'a str> {
    let usual = answer.header(&format!("x-ratelimit-{what}-{kind}"));
    usual.or_else(|| answer.header(&format!("vendor_a-ratelimit-{kind}-{what}")))
}

/// The limit of this kind that an answer tells, and what is left of it.
fn told(answer: &Answer, kind: &str) -> (i64, i64) {
    let number = |what: &str| {
        let text = part(answer, what, kind).unwrap_or_else(|| panic!("no {what}: {answer:?}"));
        text.parse::<i64>().unwrap_or_else(|_| panic!("{what} is no number: {answer:?}"))
    };
    (number("limit"), number("remaining"))
}

/// Panics unless the answer is a refusal for a limit of this kind. After how many ms the client may
/// try again.
fn refused(answer: &Answer, offer: Offer, kind: &str) -> i64 {
    assert_eq!(answer.status, 429, "{answer:?}");
    let error = &answer.json()["error"];
    if offer.endpoint == "messages" {
        assert_eq!(error["type"], "rate_limit_error", "{answer:?}");
    } else {
        let expected = (&json!("rate_limit_exceeded"), &json!(kind));
        assert_eq!((&error["code"], &error["type"]), expected, "{answer:?}");
    }
    assert_ne!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
    let waits = ["retry-after", "retry-after-ms"].map(|name| {
        let text = answer.header(name).unwrap_or_else(|| panic!("no {name}: {answer:?}"));
        text.parse::<i64>().unwrap_or_else(|_| panic!("{name} is no number: {answer:?}"))
    });
    let [seconds, ms] = waits;
    assert!(ms > 0 && seconds == ms / 1_000 + i64::from(ms % 1_000 > 0), "{answer:?}");
    ms
}

#[rstest]
#[tokio::test]
async fn as_many_requests_pass_as_a_minute_allows_and_the_next_is_told_when_it_may_come(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(CHAT, MESSAGES, SPEECH)] offer: Offer,
) {
    let world = World::start(store).plans("[plan.few]\nrequests_per_minute = 3").run().await;
    set_plan(&world, "few").await;
    for left in [2, 1, 0] {
        let answer = world.ask(offer).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(told(&answer, "requests"), (3, left), "{answer:?}");
        assert!(part(&answer, "reset", "requests").is_some(), "{answer:?}");
        assert_eq!(part(&answer, "limit", "tokens"), None, "{answer:?}");
    }
    let answer = world.ask(offer).await;
    let wait = refused(&answer, offer, "requests");
    assert!((1..=20_000).contains(&wait), "{wait}");
    assert_eq!(told(&answer, "requests"), (3, 0), "{answer:?}");
    assert!(answer.message().contains("account"), "whose limit it is: {answer:?}");
    assert_eq!(world.sim.count(offer.vendor), 3, "no vendor hears of a call that is refused");
    world.settled(3).await;
    let labels = [r#"scope="account""#, r#"kind="requests""#, r#"mode="enforce""#];
    assert_eq!(world.metric(LIMITED, &labels).await, 1);
    assert_eq!(world.metric(LIMITED, &[]).await, 1);
}

/// The pace is a request a second, and none is at hand.
#[rstest]
#[tokio::test]
async fn who_waits_as_long_as_told_is_served(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(CHAT, MESSAGES)] offer: Offer,
) {
    let world = World::start(store).plans("[plan.pace]\nrequests_per_minute = 60").run().await;
    set_plan(&world, "pace").await;
    let answers = join_all((0..60).map(|_| world.ask(offer))).await;
    let mut served = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(served, 60, "they may come at once: {answers:?}");
    let refusal = loop {
        let answer = world.ask(offer).await;
        if answer.status != 200 {
            break answer;
        }
        served += 1;
        assert!(served < 120, "nothing is refused");
    };
    let wait = refused(&refusal, offer, "requests");
    assert!((1..=1_000).contains(&wait), "{wait}");
    tokio::time::sleep(Duration::from_millis(wait.unsigned_abs() + 5)).await;
    let answer = world.ask(offer).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    world.settled(served + 1).await;
}

#[rstest]
#[tokio::test]
async fn messages_clients_are_told_under_the_names_of_their_own(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.both]\nrequests_per_minute = 5\ntokens_per_minute = 100_000";
    let world = World::start(store).plans(plans).run().await;
    set_plan(&world, "both").await;
    let answer = world.ask(MESSAGES).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let own = |kind: &str, what: &str| answer.header(&format!("vendor_a-ratelimit-{kind}-{what}"));
    assert_eq!((own("requests", "limit"), own("requests", "remaining")), (Some("5"), Some("4")));
    let tokens = own("tokens", "remaining").expect("tokens that are left");
    for kind in ["tokens", "input-tokens", "output-tokens"] {
        assert_eq!(own(kind, "limit"), Some("100000"), "{kind}: {answer:?}");
        assert_eq!(own(kind, "remaining"), Some(tokens), "one limit counts both: {answer:?}");
        let reset = own(kind, "reset").unwrap_or_default();
        assert!(reset.contains('T') && reset.ends_with('Z'), "{kind}: {reset}");
    }
    assert!(answer.header("request-id").is_some(), "{answer:?}");
}

#[rstest]
#[tokio::test]
async fn a_key_and_its_account_have_limits_of_their_own(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.wide]\nrequests_per_minute = 5\n[plan.narrow]\nrequests_per_minute = 2";
    let world = World::start(store).plans(plans).run().await;
    set_plan(&world, "wide").await;
    let narrow = issue(&world, &["--plan", "narrow"]).await;
    for left in [1, 0] {
        let answer = ask(&world, CHAT, &narrow).await;
        assert_eq!((answer.status, told(&answer, "requests")), (200, (2, left)), "{answer:?}");
    }
    let refusal = ask(&world, CHAT, &narrow).await;
    refused(&refusal, CHAT, "requests");
    assert!(refusal.message().contains("key"), "whose limit it is: {refusal:?}");
    // What is refused for the key counts for nobody.
    for left in [2, 1, 0] {
        let answer = ask(&world, CHAT, &world.key).await;
        assert_eq!((answer.status, told(&answer, "requests")), (200, (5, left)), "{answer:?}");
    }
    let refusal = ask(&world, CHAT, &world.key).await;
    refused(&refusal, CHAT, "requests");
    assert!(refusal.message().contains("account"), "whose limit it is: {refusal:?}");
    let fresh = issue(&world, &["--plan", "narrow"]).await;
    refused(&ask(&world, CHAT, &fresh).await, CHAT, "requests");
    let stranger = world.another_account("stranger", "1").await;
    let free = ask(&world, CHAT, &stranger).await;
    assert_eq!(free.status, 200, "others are not in the way: {free:?}");
    assert_eq!(part(&free, "limit", "requests"), None, "{free:?}");
    assert_eq!(world.metric(LIMITED, &[r#"scope="key""#]).await, 1);
    assert_eq!(world.metric(LIMITED, &[r#"scope="account""#]).await, 2);
    world.settled(5).await;
}

#[rstest]
#[tokio::test]
async fn an_account_without_a_plan_has_the_default_plan(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.default]\nrequests_per_minute = 2\n[plan.more]\nrequests_per_minute = 9";
    let world = World::start(store).plans(plans).run().await;
    for _ in 0..2 {
        assert_eq!(world.ask(CHAT).await.status, 200);
    }
    refused(&world.ask(CHAT).await, CHAT, "requests");
    // The plan changes, and what was counted stays.
    set_plan(&world, "more").await;
    let end = Instant::now() + Duration::from_secs(2);
    let answer = loop {
        let answer = world.ask(CHAT).await;
        if answer.status == 200 {
            break answer;
        }
        assert!(Instant::now() < end, "it is not noticed: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(told(&answer, "requests"), (9, 6), "{answer:?}");
    world.command(&["account", "set", ACCOUNT, "--no-plan"]).await.done();
    let end = Instant::now() + Duration::from_secs(2);
    let answer = loop {
        let answer = world.ask(CHAT).await;
        if told(&answer, "requests").0 == 2 {
            break answer;
        }
        assert!(Instant::now() < end, "it is not noticed");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    refused(&answer, CHAT, "requests");
    world.nothing_held().await;
}

#[rstest]
#[tokio::test]
async fn some_models_have_a_narrower_limit_beside_that_of_all(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.p]\nrequests_per_minute = 4\n\
                 [[plan.p.of]]\nmodels = [\"lmb-5.5\", \"lma-*\"]\nrequests_per_minute = 2";
    let world = World::start(store).plans(plans).run().await;
    set_plan(&world, "p").await;
    let answer = world.ask(CHAT).await;
    assert_eq!((answer.status, told(&answer, "requests")), (200, (2, 1)), "{answer:?}");
    // The models of one row share its limit.
    assert_eq!(world.ask(MESSAGES).await.status, 200);
    for offer in [CHAT, MESSAGES] {
        refused(&world.ask(offer).await, offer, "requests");
    }
    let answer = world.ask(SPEECH).await;
    assert_eq!((answer.status, told(&answer, "requests")), (200, (4, 1)), "{answer:?}");
    assert_eq!(world.ask(SPEECH).await.status, 200);
    refused(&world.ask(SPEECH).await, SPEECH, "requests");
    world.settled(4).await;
}

#[rstest]
#[tokio::test]
async fn a_plan_is_for_its_models_alone(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let plans = "[plan.p]\ncalls = 9\nmodels = [\"lmb-*\"]\n\
                 [plan.chat]\ncalls = 9\nmodels = [\"lmb-4o-*\"]";
    let world = World::start(store).plans(plans).run().await;
    set_plan(&world, "p").await;
    assert_eq!(world.ask(CHAT).await.status, 200);
    let narrow = issue(&world, &["--plan", "chat"]).await;
    for (key, offer, allowed) in [
        (&world.key, MESSAGES, "lmb-*"),
        (&world.key, SPEECH, "lmb-*"),
        (&world.key, VIDEO, "lmb-*"),
        (&narrow, CHAT, "lmb-4o-*"),
    ] {
        let answer = ask(&world, offer, key).await;
        assert_eq!(answer.status, 403, "{answer:?}");
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
        let error = &answer.json()["error"];
        if offer == MESSAGES {
            assert_eq!(error["type"], "permission_error", "{answer:?}");
        } else {
            assert_eq!(error["code"], "model_not_allowed", "{answer:?}");
        }
        assert!(answer.message().contains(allowed), "{answer:?}");
    }
    let ids = async |key: &str| {
        let listing = world.get_with("/v1/models", key).await.json();
        let data = listing["data"].as_array().expect("a list").clone();
        data.iter().map(|model| model["id"].to_string()).collect::<Vec<_>>()
    };
    let (wide, few) = (ids(&world.key).await, ids(&narrow).await);
    assert!(!wide.is_empty() && wide.iter().all(|id| id.starts_with("\"lmb-")), "{wide:?}");
    assert!(!few.is_empty() && few.iter().all(|id| id.starts_with("\"lmb-4o-")), "{few:?}");
    world.settled(1).await;
}

#[rstest]
#[tokio::test]
async fn a_limit_of_nothing_is_not_asked_again(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("requests_per_minute", "tokens_per_minute")] limit: &str,
) {
    let world = World::start(store).plans(&format!("[plan.none]\n{limit} = 0")).run().await;
    set_plan(&world, "none").await;
    for offer in [CHAT, MESSAGES, SPEECH, VIDEO] {
        let answer = world.ask(offer).await;
        assert_eq!(answer.status, 429, "{answer:?}");
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
        let retries = ["retry-after", "retry-after-ms"].map(|name| answer.header(name));
        assert_eq!(retries, [None, None], "{answer:?}");
    }
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

/// What has no price is counted by each gateway for itself.
#[rstest]
#[tokio::test]
async fn free_calls_have_the_pace_of_the_plan_beside_those_that_are_paid(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).plans("[plan.few]\nrequests_per_minute = 2").run().await;
    set_plan(&world, "few").await;
    for _ in 0..2 {
        let answer = world.ask(MODERATION).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    refused(&world.ask(MODERATION).await, MODERATION, "requests");
    let paid = world.ask(CHAT).await;
    assert_eq!((paid.status, told(&paid, "requests")), (200, (2, 1)), "{paid:?}");
    let second = world.second_gateway().await;
    let call = Sent::json(&MODERATION.call());
    let request = world.url_of(&second, MODERATION.path).header("content-type", call.media);
    assert_eq!(Answer::read(request.body(call.bytes)).await.status, 200);
    world.settled(1).await;
}

#[rstest]
#[tokio::test]
async fn a_call_that_is_made_again_under_its_idempotency_key_counts_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).plans("[plan.one]\nrequests_per_minute = 1").run().await;
    set_plan(&world, "one").await;
    let call = Sent::json(&CHAT.call());
    let make = async |key: &'static str| {
        let request = world.sending(CHAT.path, &call.media, Some(&world.key));
        let request = request.header("idempotency-key", key).body(call.bytes.clone());
        Answer::read(request).await
    };
    assert_eq!(make("one").await.status, 200);
    world.settled(1).await;
    for _ in 0..3 {
        let again = make("one").await;
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    }
    refused(&make("other").await, CHAT, "requests");
    // A refusal is no reply that is kept: the key is as good as before.
    refused(&make("other").await, CHAT, "requests");
    world.settled(1).await;
}

/// Every attempt at a vendor is a part of one request.
#[rstest]
#[tokio::test]
async fn a_call_that_goes_on_at_the_next_route_counts_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &["status=503", "status=503", ""]);
    let world = builder.plans("[plan.few]\nrequests_per_minute = 5\ncalls = 1").run().await;
    set_plan(&world, "few").await;
    let answer = world.ask(CHAT).await;
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("2"), "{answer:?}");
    assert_eq!((answer.status, told(&answer, "requests")), (200, (5, 4)), "{answer:?}");
    world.settled(1).await;
}

/// It was a request, and it took no tokens.
#[rstest]
#[tokio::test]
async fn a_call_that_a_vendor_refuses_gives_its_tokens_back(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let plans = "[plan.p]\nrequests_per_minute = 9\ntokens_per_minute = 1_000";
    let builder = World::start(store).vendor("vendor_b", &["status=400;times=1"]);
    let world = builder.plans(plans).run().await;
    set_plan(&world, "p").await;
    let members: Value = json!({ "max_tokens": 800 });
    let failed = world.call(CHAT, members.clone()).await;
    assert_eq!(failed.status, 400, "{failed:?}");
    assert_eq!(told(&failed, "requests"), (9, 8), "an error tells of the limits, too: {failed:?}");
    world.free_of_charge().await;
    let served = world.call(CHAT, members).await;
    assert_eq!((served.status, told(&served, "requests")), (200, (9, 7)), "{served:?}");
    let (failed, served) = (told(&failed, "tokens"), told(&served, "tokens"));
    assert_eq!(failed, served, "nothing of the first call is left in the limit");
    world.settled(1).await;
}
