//! Budgets of accounts and of keys, as clients meet them: what is paid, what is refused, and that
//! no call takes a budget over its limit.

mod commands;

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    ACCOUNT, Answer, Builder, CHAT, MESSAGES, Offer, Opened, Process, SPEECH, Sent, Store, World,
    chat_of, usd, with,
};

/// A call that costs what is held for it.
struct ExactCall {
    offer: Offer,
    members: Value,
    /// What it holds and costs, in nano-USD.
    quote: i64,
    /// How its vendor bills that.
    faults: String,
}

impl ExactCall {
    /// A call by its endpoint.
    fn of(endpoint: &str) -> ExactCall {
        match endpoint {
            "speech" => {
                // Five characters.
                let quote = 5 * 15_000;
                ExactCall { offer: SPEECH, members: json!({}), quote, faults: String::new() }
            }
            "messages" => ExactCall::of_text(MESSAGES, 3_000, 15_000),
            _ => ExactCall::of_text(CHAT, 5_000, 30_000),
        }
    }

    /// A call whose input is a token a byte, and whose output is one token. The prices of a token
    /// are in nano-USD.
    fn of_text(offer: Offer, input: i64, output: i64) -> ExactCall {
        let members = json!({ "max_tokens": 1 });
        let bytes = i64::try_from(offer.sent(&members).bytes.len()).expect("a short call");
        let faults = format!("prompt={bytes};completion=1");
        ExactCall { offer, members, quote: bytes * input + output, faults }
    }

    /// A world whose vendor bills the call so, after `delay` ms.
    fn world(&self, store: Store, delay: u64) -> Builder {
        let separator = if self.faults.is_empty() { "" } else { ";" };
        let faults = format!("{}{separator}delay={delay}", self.faults);
        World::start(store).vendor(self.offer.vendor, &[&faults])
    }

    async fn make(&self, world: &World, key: &str) -> Answer {
        self.make_at(world, &world.gateway, key).await
    }

    async fn make_at(&self, world: &World, gateway: &Process, key: &str) -> Answer {
        let Sent { media, bytes } = self.offer.sent(&self.members);
        let url = format!("http://{}{}", gateway.http, self.offer.path);
        let request = world.client().post(url).bearer_auth(key).header("content-type", media);
        Answer::read(request.body(bytes)).await
    }

    /// The budget for so many of these calls, as the command line takes it.
    fn total(&self, calls: i64) -> String {
        format!("total={}", usd(calls * self.quote))
    }
}

/// The beginning of a key, as it is listed.
fn prefix_of(key: &str) -> &str {
    &key[..14]
}

async fn issue(world: &World, budget: &str) -> String {
    let issued = world.command(&["key", "issue", ACCOUNT, "--budget", budget]).await;
    issued.done().trim().to_owned()
}

/// The first budget that a command shows, by `limit_nano`, `spent_nano` and `held_nano`.
async fn first_budget(world: &World, words: &[&str]) -> (Option<i64>, i64, i64) {
    let shown = world.command(words).await.json().remove(0);
    let budget = &shown["budgets"][0];
    let nano = |name: &str| budget[name].as_i64();
    let (spent, held) = (nano("spent_nano"), nano("held_nano"));
    (nano("limit_nano"), spent.expect("a sum"), held.expect("a sum"))
}

/// Panics unless a call was refused for a budget that is spent.
fn refused_for(answer: &Answer, endpoint: &str, owner: &str) {
    assert_eq!(answer.status, 402, "{answer:?}");
    assert_eq!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
    assert_eq!(answer.header("retry-after"), None, "{answer:?}");
    if endpoint == "messages" {
        assert_eq!(answer.json()["error"]["type"], "billing_error");
    } else {
        assert_eq!(answer.code(), format!("{owner}_budget_exceeded"));
        assert_eq!(answer.json()["error"]["type"], "insufficient_credits");
    }
    assert!(answer.message().contains(&format!("budget of the {owner}")), "{answer:?}");
}

#[rstest]
#[tokio::test]
async fn a_key_pays_for_as_many_calls_as_its_budget_covers_and_not_for_one_more(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("chat", "messages", "speech")] endpoint: &str,
) {
    let call = ExactCall::of(endpoint);
    let world = call.world(store, 0).run().await;
    let limited = issue(&world, &call.total(3)).await;
    for number in 0..3 {
        let answer = call.make(&world, &limited).await;
        assert_eq!(answer.status, 200, "call {number}: {answer:?}");
    }
    for _ in 0..2 {
        let refused = call.make(&world, &limited).await;
        refused_for(&refused, endpoint, "key");
        let message = refused.message();
        let told = [format!("the call needs {}", shown(call.quote)), "leaves 0.00 USD".to_owned()];
        assert!(told.iter().all(|told| message.contains(told)), "{message}");
        assert!(message.contains("it does not reset"), "{message}");
    }
    let charges = world.settled(3).await;
    assert!(charges.iter().all(|charge| charge.amount_nano == call.quote), "{charges:?}");
    assert_eq!(world.sim.count(call.offer.vendor), 3, "no vendor heard of the others");
    assert_eq!(call.make(&world, &world.key).await.status, 200, "the other key has no budget");
    let listed = first_budget(&world, &["--json", "key", "show", prefix_of(&limited)]).await;
    assert_eq!(listed, (Some(3 * call.quote), 3 * call.quote, 0));
}

/// An amount as messages have it, without zeros at its end.
fn shown(nano: i64) -> String {
    usd(nano).trim_end_matches('0').to_owned()
}

#[rstest]
#[tokio::test]
async fn a_nano_less_than_the_call_needs_is_too_little(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("chat", "messages", "speech")] endpoint: &str,
) {
    let call = ExactCall::of(endpoint);
    let world = call.world(store, 0).run().await;
    let limited = issue(&world, &format!("total={}", usd(call.quote - 1))).await;
    refused_for(&call.make(&world, &limited).await, endpoint, "key");
    let set = format!("total={}", usd(call.quote));
    world.command(&["key", "set", prefix_of(&limited), "--budget", &set]).await.done();
    assert_eq!(call.make(&world, &limited).await.status, 200);
    assert_eq!(world.charge().await.amount_nano, call.quote);
}

#[rstest]
#[tokio::test]
async fn a_refusal_says_when_the_window_of_the_budget_ends(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let call = ExactCall::of("chat");
    let world = call.world(store, 0).run().await;
    world.command(&["account", "set", ACCOUNT, "--budget", "month=0"]).await.done();
    let refused = call.make(&world, &world.key).await;
    refused_for(&refused, "chat", "account");
    let message = refused.message();
    assert!(message.contains("the budget of the account for this month leaves 0.00 USD"));
    let (_, reset) = message.split_once("it resets at ").expect("a reset");
    assert!(reset.ends_with("-01T00:00:00Z"), "{message}");
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn the_budget_of_an_account_refuses_all_of_its_keys(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("chat", "messages", "speech")] endpoint: &str,
) {
    let call = ExactCall::of(endpoint);
    let world = call.world(store, 0).run().await;
    world.command(&["account", "set", ACCOUNT, "--budget", &call.total(2)]).await.done();
    let second = world.command(&["key", "issue", ACCOUNT]).await.done().trim().to_owned();
    for key in [&world.key, &second] {
        assert_eq!(call.make(&world, key).await.status, 200);
    }
    for key in [&world.key, &second] {
        refused_for(&call.make(&world, key).await, endpoint, "account");
    }
    let stranger = world.another_account("stranger", "1").await;
    assert_eq!(call.make(&world, &stranger).await.status, 200, "others are not in the way");
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn two_keys_of_one_account_have_budgets_of_their_own(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let call = ExactCall::of("chat");
    let world = call.world(store, 0).run().await;
    let (first, second) =
        (issue(&world, &call.total(1)).await, issue(&world, &call.total(2)).await);
    assert_eq!(call.make(&world, &first).await.status, 200);
    refused_for(&call.make(&world, &first).await, "chat", "key");
    for _ in 0..2 {
        assert_eq!(call.make(&world, &second).await.status, 200);
    }
    refused_for(&call.make(&world, &second).await, "chat", "key");
    world.settled(3).await;
}

#[rstest]
#[tokio::test]
async fn a_changed_limit_resets_nothing(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("account", "key")] owner: &str,
) {
    let call = ExactCall::of("chat");
    let world = call.world(store, 0).run().await;
    let name = if owner == "account" { ACCOUNT } else { prefix_of(&world.key) };
    let change = |option: &'static str, budget: String| {
        let world = &world;
        async move { world.command(&[owner, "set", name, option, &budget]).await.done() }
    };
    let is_paid = async || match call.make(&world, &world.key).await {
        answer if answer.status == 200 => true,
        answer => {
            refused_for(&answer, "chat", owner);
            false
        }
    };
    change("--budget", call.total(2)).await;
    assert_eq!([is_paid().await, is_paid().await, is_paid().await], [true, true, false]);
    change("--budget", call.total(3)).await;
    assert_eq!([is_paid().await, is_paid().await], [true, false], "raised by one call");
    change("--budget", call.total(1)).await;
    assert!(!is_paid().await, "lowered below what is spent");
    world.settled(3).await;
    let show = ["--json", owner, "show", name];
    assert_eq!(first_budget(&world, &show).await, (Some(call.quote), 3 * call.quote, 0));
    change("--no-budget", "total".to_owned()).await;
    assert!(is_paid().await, "without a limit");
    world.settled(4).await;
    assert_eq!(first_budget(&world, &show).await, (None, 4 * call.quote, 0), "it counts on");
    change("--budget", call.total(4)).await;
    // A gateway may use what it has borrowed without a limit for as long.
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    assert!(!is_paid().await, "what was spent without a limit counts");
    world.settled(4).await;
}

#[rstest]
#[case::one_on_sqlite(Store::Sqlite, false)]
#[case::two_on_sqlite(Store::Sqlite, true)]
#[case::one_on_redis(Store::Redis, false)]
#[case::two_on_redis(Store::Redis, true)]
#[tokio::test]
async fn a_crowd_never_passes_a_limit_by_a_nano(
    #[case] store: Store,
    #[case] two: bool,
    #[values("account", "key")] owner: &str,
) {
    let call = ExactCall::of("chat");
    let patient = "[timeouts]\nledger_ms = 10_000";
    let world = call.world(store, 60).conf(patient).run().await;
    let second = if two { Some(world.second_gateway().await) } else { None };
    let name = if owner == "account" { ACCOUNT } else { prefix_of(&world.key) };
    let limit = 7 * call.quote + call.quote - 1;
    let budget = format!("total={}", usd(limit));
    world.command(&[owner, "set", name, "--budget", &budget]).await.done();
    let calls = (0..40).map(|number| {
        let gateway = second.as_ref().filter(|_| number % 2 == 1).unwrap_or(&world.gateway);
        call.make_at(&world, gateway, &world.key)
    });
    let answers = join_all(calls).await;
    let (good, bad): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    for answer in bad {
        if answer.status == 429 {
            assert_eq!(answer.refusal(), (429, "credit_in_use".to_owned()));
            assert_eq!(answer.header("retry-after"), Some("1"));
        } else {
            refused_for(answer, "chat", owner);
        }
    }
    assert_eq!(good.len(), 7);
    let charges = world.settled(7).await;
    let spent: i64 = charges.iter().map(|charge| charge.amount_nano).sum();
    assert!(spent <= limit, "{spent} of {limit}");
    let show = ["--json", owner, "show", name];
    assert_eq!(first_budget(&world, &show).await, (Some(limit), spent, 0));
}

#[rstest]
#[tokio::test]
async fn what_running_calls_hold_of_a_budget_is_waited_for(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("chat", "messages", "speech")] endpoint: &str,
) {
    let call = ExactCall::of(endpoint);
    let world = call.world(store, 800).run().await;
    let limited = issue(&world, &call.total(1)).await;
    let second = async {
        while world.sim.count(call.offer.vendor) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        call.make(&world, &limited).await
    };
    let (first, second) = tokio::join!(call.make(&world, &limited), second);
    assert_eq!(first.status, 200);
    assert_eq!((second.status, second.header("retry-after")), (429, Some("1")), "{second:?}");
    if endpoint == "messages" {
        assert_eq!(second.json()["error"]["type"], "rate_limit_error");
    } else {
        assert_eq!(second.refusal(), (429, "credit_in_use".to_owned()));
    }
    world.settled(1).await;
    refused_for(&call.make(&world, &limited).await, endpoint, "key");
}

/// A budget that does not cover a call is treated as a short balance is.
#[rstest]
#[tokio::test]
async fn a_call_without_a_limit_is_sent_one_that_its_budget_covers(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let members = json!({ "n": 1 });
    let bytes = i64::try_from(CHAT.sent(&members).bytes.len()).expect("a short call");
    let budget = bytes * 5_000 + 2_000 * 30_000;
    let world = World::start(store).run().await;
    let set = format!("total={}", usd(budget));
    world.command(&["key", "set", prefix_of(&world.key), "--budget", &set]).await.done();
    let answer = world.call(CHAT, members).await;
    assert_eq!((answer.status, answer.header("x-gateway-output-limit")), (200, Some("2000")));
    assert_eq!(world.sim.seen()[0].json()["max_completion_tokens"], 2_000);
    world.settled(1).await;
}

#[rstest]
#[tokio::test]
async fn a_stream_that_reaches_its_budget_ends_as_one_that_has_used_up_the_balance(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &["prompt=20;chunks=3000;chunk-delay=1"]);
    let world = builder.run().await;
    let limited = issue(&world, "total=0.01").await;
    // A model whose output is all seen, so that it needs no limit.
    let call = with(chat_of("lmb-4.1"), &json!({ "stream": true }));
    let request = world.sending(CHAT.path, "application/json", Some(&limited));
    let streamed = Opened::open(request.body(call.to_string())).await.rest().await;
    let error = streamed.error().expect("an error at its end");
    assert_eq!(error["code"], "insufficient_credits", "{error}");
    assert!(error["message"].as_str().is_some_and(|told| told.contains("budget")), "{error}");
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("counted", 0));
    let amount = charge.amount_nano;
    assert!((6_000_000..=10_000_000).contains(&amount), "most of it was delivered: {amount}");
    assert_eq!(world.balances().await.available, 5_000_000_000 - amount);
    let spent = first_budget(&world, &["--json", "key", "show", prefix_of(&limited)]).await;
    assert_eq!(spent, (Some(10_000_000), amount, 0));
}

#[rstest]
#[tokio::test]
async fn a_charge_above_its_hold_counts_in_the_budget(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    // The vendor reasons beyond the limit that it is sent.
    let faults = "prompt=1;completion=10;reasoning=10000";
    let world = World::start(store).vendor("vendor_d", &[faults]).run().await;
    let limited = issue(&world, "total=0.03").await;
    let call = Offer { model: "lmd-4.6", vendor: "vendor_d", ..CHAT };
    let sent = call.sent(&json!({ "max_tokens": 10 }));
    let make = async || {
        let request = world.sending(call.path, &sent.media, Some(&limited));
        Answer::read(request.body(sent.bytes.clone())).await
    };
    assert_eq!(make().await.status, 200);
    let amount = world.charge().await.amount_nano;
    assert_eq!(amount, 2_000 + 10_010 * 6_000);
    let spent = first_budget(&world, &["--json", "key", "show", prefix_of(&limited)]).await;
    assert_eq!(spent, (Some(30_000_000), amount, 0), "it is told, above the limit");
    refused_for(&make().await, "chat", "key");
}
