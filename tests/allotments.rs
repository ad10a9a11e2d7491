//! Busy accounts: their holds are in the memory of a gateway, and the store is told of many ends at
//! once. Nobody can tell, whatever dies or comes beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use rstest::rstest;
use serde_json::json;

use crate::world::{ACCOUNT, Answer, CHAT, Charge, Process, SPEECH, Store, World, usd, with};

const AT_ONCE: usize = 16;
/// What a call costs: ten tokens in, ten out.
const COST: i64 = 10 * 5_000 + 10 * 30_000;
const TOKENS: &str = "prompt=10;completion=10";
/// The machine may have more to do than this, and a ledger that is late is another test.
const PATIENT: &str = "[timeouts]\nledger_ms = 10_000";

/// Makes calls, many at once. `None` stands for one whose connection broke.
async fn burst(world: &World, gateway: &Process, calls: usize) -> Vec<Option<Answer>> {
    burst_until(world, gateway, calls, usize::MAX, || ()).await
}

/// The same. `then` is done after so many answers.
async fn burst_until(
    world: &World,
    gateway: &Process,
    calls: usize,
    answers: usize,
    then: impl Fn(),
) -> Vec<Option<Answer>> {
    let call = with(CHAT.call(), &json!({ "max_tokens": 10 })).to_string();
    let calls = (0..calls).map(|_| {
        let request = world.url_of(gateway, CHAT.path).body(call.clone());
        async { Answer::try_read(request).await.ok() }
    });
    let mut count = 0;
    let each = stream::iter(calls).buffer_unordered(AT_ONCE).inspect(|_| {
        count += 1;
        if count == answers {
            then();
        }
    });
    each.collect().await
}

/// Every answered call was charged once, and none twice.
fn prove_each(answers: &[Option<Answer>], charges: &[Charge]) {
    let mut counts = BTreeMap::new();
    for charge in charges {
        *counts.entry(charge.request_id.as_str()).or_insert(0) += 1;
    }
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    let answered = answers.iter().flatten().filter(|answer| answer.status == 200);
    for answer in answered {
        let id = answer.header("x-request-id").expect("an id");
        assert!(counts.contains_key(id), "{id} was answered and not charged");
    }
}

fn all_served(answers: &[Option<Answer>]) -> bool {
    answers.iter().all(|answer| answer.as_ref().is_some_and(|answer| answer.status == 200))
}

#[rstest]
#[tokio::test]
async fn a_busy_account_is_told_to_the_store_many_calls_at_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &[TOKENS]).conf(PATIENT).run().await;
    let answers = burst(&world, &world.gateway, 400).await;
    assert!(all_served(&answers), "{answers:?}");
    let charges = world.settled(400).await;
    prove_each(&answers, &charges);
    assert_eq!(world.balances().await.posted, 400 * COST);
    let ends = world.metric("tollgate_allotment_ends_total", &[]).await;
    let updates = world.metric("tollgate_allotment_updates_total", &[]).await;
    assert!(ends > 200, "{ends} of 400 ends were told in {updates} updates");
    world.metric_becomes("tollgate_allotments", &[], 0).await;
}

/// A budget is not a reason to ask the store for every call: an allotment has a slice of it.
#[rstest]
#[case::of_the_account(&["account", "set", ACCOUNT, "--budget", "day=9", "--budget", "total=8"])]
#[case::of_the_key(&["key", "set", "KEY", "--budget", "month=900"])]
#[tokio::test]
async fn budgets_ride_in_what_a_gateway_borrows(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] limit: &[&str],
) {
    let builder = World::start(store).vendor("vendor_b", &[TOKENS]).credit("1000").conf(PATIENT);
    let world = builder.run().await;
    let prefix = &world.key[..14];
    let limit: Vec<&str> =
        limit.iter().map(|word| if *word == "KEY" { prefix } else { word }).collect();
    world.command(&limit).await.done();
    let answers = burst(&world, &world.gateway, 400).await;
    assert!(all_served(&answers), "{answers:?}");
    let charges = world.settled(400).await;
    prove_each(&answers, &charges);
    let ends = world.metric("tollgate_allotment_ends_total", &[]).await;
    assert!(ends > 200, "{ends} of 400 ends were told by updates");
    world.metric_becomes("tollgate_allotments", &[], 0).await;
    let shown = world.command(&["--json", "account", "show", ACCOUNT]).await.json().remove(0);
    for budget in shown["budgets"].as_array().expect("budgets") {
        assert_eq!(budget["spent_nano"], 400 * COST, "{budget}");
        assert_eq!(budget["held_nano"], 0, "{budget}");
    }
}

/// Of a budget that ends in the middle of a burst no nano more is spent than there is, and what is
/// left in the end is too little for a call.
#[rstest]
#[tokio::test]
async fn a_burst_through_two_gateways_ends_at_the_budget(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    const PAID: usize = 300;
    let builder = World::start(store).vendor("vendor_b", &[TOKENS]).credit("1000").conf(PATIENT);
    let world = builder.run().await;
    let second = world.second_gateway().await;
    // A call holds its input by a bound, so the last ones of the budget are refused.
    let limit = i64::try_from(PAID).expect("few") * COST;
    let budget = format!("total={}", usd(limit));
    world.command(&["account", "set", ACCOUNT, "--budget", &budget]).await.done();
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (one, other) =
            tokio::join!(burst(&world, &world.gateway, 150), burst(&world, &second, 150));
        answers.extend(one.into_iter().chain(other));
    }
    let paid = answers.iter().flatten().filter(|answer| answer.status == 200).count();
    let refused = answers.iter().flatten().filter(|answer| answer.status != 200);
    for answer in refused {
        let code = answer.json()["error"]["code"].clone();
        let is_right = code == "account_budget_exceeded" || code == "credit_in_use";
        assert!(is_right, "{} {code}", answer.status);
    }
    let charges = world.nothing_held().await;
    prove_each(&answers, &charges);
    assert_eq!(charges.len(), paid);
    let spent = world.balances().await.posted;
    assert!(spent <= limit, "{spent} of {limit}");
    assert!(paid > PAID / 2, "{paid}");
    let shown = world.command(&["--json", "account", "show", ACCOUNT]).await.json().remove(0);
    assert_eq!(shown["budgets"][0]["spent_nano"], spent);
    assert_eq!(shown["budgets"][0]["held_nano"], 0);
}

#[rstest]
#[tokio::test]
async fn an_operator_may_have_every_hold_in_the_store(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &[TOKENS]).conf(PATIENT);
    let world = builder.env("TOLLGATE__STORE__ALLOTMENTS", "false").run().await;
    let answers = burst(&world, &world.gateway, 100).await;
    assert!(all_served(&answers), "{answers:?}");
    prove_each(&answers, &world.settled(100).await);
    assert_eq!(world.metric("tollgate_allotment_updates_total", &[]).await, 0);
}

#[rstest]
#[tokio::test]
async fn what_a_gateway_that_was_killed_had_borrowed_comes_back_and_each_end_counts_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let conf = format!("{PATIENT}\nlease_ms = 2_000");
    let builder = World::start(store).vendor("vendor_b", &[TOKENS]).conf(&conf);
    let mut world = builder.run().await;
    let mut answers = Vec::new();
    for round in 0..4 {
        let pid = world.gateway.id().to_string();
        let kill = || {
            let killed = std::process::Command::new("kill").args(["-s", "KILL", &pid]).status();
            assert!(killed.is_ok_and(|status| status.success()), "it ended by itself");
        };
        let served = burst_until(&world, &world.gateway, 2_000, 50 + 37 * round, kill).await;
        let count = served.iter().flatten().count();
        assert!(count < 2_000, "all was over before the kill");
        answers.extend(served);
        world.kill_and_start_again().await;
    }
    let charges = world.nothing_held().await;
    prove_each(&answers, &charges);
    assert!(charges.len() > 100, "{} charges", charges.len());
}

#[rstest]
#[tokio::test]
async fn a_gateway_that_is_stopped_leaves_nothing_to_its_successor(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &[TOKENS]).conf(PATIENT);
    let mut world = builder.run().await;
    let answers = burst(&world, &world.gateway, 200).await;
    world.gateway.signal("TERM");
    world.gateway.ended(Duration::from_secs(30)).await;
    // No gateway runs any more: what the command line reads is the store.
    let (balances, charges) = (world.balances().await, world.charges().await);
    assert_eq!((balances.held, balances.posted), (0, 200 * COST), "{balances:?}");
    prove_each(&answers, &charges);
    assert_eq!(charges.len(), 200);
}

/// A call that needs nearly all of the balance comes to another process while the first one has
/// borrowed a part of it.
#[rstest]
#[tokio::test]
async fn what_one_process_has_borrowed_is_there_for_a_call_at_another(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &[TOKENS]).conf(PATIENT);
    let speech = 4_000 * 15_000;
    // Less than eight calls hold is left beside the speech, and that is the least that is borrowed.
    let credit = usd(40 * COST + speech + 1_000_000);
    let world = builder.credit(&credit).run().await;
    let other = world.second_gateway().await;
    let answers = burst(&world, &world.gateway, 40).await;
    assert!(all_served(&answers), "{answers:?}");
    let call = with(SPEECH.call(), &json!({ "input": "a".repeat(4_000) }));
    let answer = Answer::read(world.url_of(&other, SPEECH.path).body(call.to_string())).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(world.metric("tollgate_allotment_ends_total", &[]).await > 0, "nothing was lent");
    let charges = world.settled(41).await;
    prove_each(&answers, &charges);
    assert_eq!(world.balances().await.available, 1_000_000);
}

/// The logs of ends below a folder.
fn end_logs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("it").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let logs = files.into_iter().filter(|path| path.extension().is_some_and(|it| it == "ends"));
    logs.chain(folders.iter().flat_map(|folder| end_logs(folder))).collect()
}

/// Such a log has no end of a call with a key: the hold of one is never in memory.
#[tokio::test]
async fn a_log_of_ends_that_could_not_be_read_refused_every_call_with_a_key() {
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &[TOKENS]);
    let mut world = builder.conf(PATIENT).run().await;
    assert!(all_served(&burst(&world, &world.gateway, 100).await));
    world.gateway.kill();
    let logs = end_logs(&world.path(""));
    assert!(!logs.is_empty(), "no call has ended in memory");
    for log in logs {
        fs::rename(&log, log.with_extension("away")).expect("a file");
        fs::create_dir(log).expect("no file");
    }
    world.gateway = world.second_gateway().await;
    let end = Instant::now() + Duration::from_secs(60);
    let call = with(CHAT.call(), &json!({ "max_tokens": 10 })).to_string();
    let keyed = || {
        let request = world.request(CHAT.path).header("idempotency-key", "a");
        Answer::read(request.body(call.clone()))
    };
    while keyed().await.status != 200 {
        assert!(Instant::now() < end, "nobody is let in");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(world.log().contains("orphaned outbox segments pending"), "{}", world.log());
}
