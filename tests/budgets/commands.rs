//! The commands that set and show budgets, and what the audit trail says of them.

use rstest::rstest;
use serde_json::{Value, json};

use super::{ExactCall, first_budget, issue, prefix_of, refused_for};
use crate::world::{ACCOUNT, Store, World, usd};

/// The first object that a command prints.
async fn shown(world: &World, words: &[&str]) -> Value {
    let words: Vec<_> = ["--json"].iter().chain(words).copied().collect();
    world.command(&words).await.json().remove(0)
}

#[rstest]
#[tokio::test]
async fn a_key_is_limited_from_its_first_call_on(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let call = ExactCall::of("chat");
    let world = call.world(store, 0).run().await;
    let nothing = issue(&world, "total=0").await;
    refused_for(&call.make(&world, &nothing).await, "chat", "key");
    let one = issue(&world, &call.total(1)).await;
    assert_eq!(call.make(&world, &one).await.status, 200);
    refused_for(&call.make(&world, &one).await, "chat", "key");
    assert_eq!(world.charge().await.amount_nano, call.quote);
}

#[rstest]
#[tokio::test]
async fn a_new_key_is_told_with_its_id_and_its_budgets(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let words = ["key", "issue", ACCOUNT, "--budget", "total=5", "--budget", "month=0.5"];
    let issued = shown(&world, &words).await;
    let (key, prefix) = (issued["key"].as_str().expect("a key"), &issued["prefix"]);
    assert_eq!(prefix.as_str(), Some(prefix_of(key)));
    let id = issued["id"].as_str().expect("an id");
    assert!(id.parse::<u64>().is_ok_and(|id| id <= u64::MAX >> 1), "{id}");
    let budget = |window: &str, limit: i64, resets_at: &Value| {
        json!({
            "owner": "key", "key": prefix, "window": window, "limit_nano": limit,
            "spent_nano": 0, "held_nano": 0, "resets_at": resets_at,
        })
    };
    let end_of_month = &issued["budgets"][0]["resets_at"];
    assert!(end_of_month.is_i64(), "{issued}");
    let budgets = json!([
        budget("month", 500_000_000, end_of_month),
        budget("total", 5_000_000_000, &Value::Null),
    ]);
    assert_eq!(issued["budgets"], budgets);
    let listed = world.command(&["--json", "key", "list", ACCOUNT]).await.json();
    let of_issued = listed.iter().find(|key| key["prefix"] == *prefix).expect("the key");
    assert_eq!((&of_issued["id"], &of_issued["budgets"]), (&issued["id"], &budgets));
    let other = listed.iter().find(|key| key["prefix"] != *prefix).expect("the world's own");
    assert_eq!(other["budgets"], json!([]));
    let mut of_account = of_issued.clone();
    of_account["account"] = ACCOUNT.into();
    let prefix = prefix_of(key);
    assert_eq!(shown(&world, &["key", "show", prefix]).await, of_account);
    assert_eq!(shown(&world, &["key", "show", id]).await, of_account, "found by its id");
    assert_eq!(shown(&world, &["account", "show", ACCOUNT]).await["budgets"], budgets);
    let plain = world.command(&["key", "issue", ACCOUNT, "--budget", "day=1"]).await.done();
    assert_eq!(plain.lines().count(), 1, "the key alone, so that a shell can take it");
}

#[rstest]
#[tokio::test]
async fn budgets_are_shown_with_what_is_spent_and_held_of_them(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let call = ExactCall::of("chat");
    let world = call.world(store, 800).run().await;
    let prefix = prefix_of(&world.key);
    let set = ["account", "set", ACCOUNT, "--budget", "total=3", "--budget", "month=2"];
    let account = shown(&world, &set).await;
    let windows = |shown: &Value| {
        let budgets = shown["budgets"].as_array().expect("budgets").clone();
        let name = |budget: &Value| budget["window"].as_str().expect("a window").to_owned();
        budgets.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(
        (account["name"].as_str(), windows(&account)),
        (Some(ACCOUNT), words("month total"))
    );
    let key = shown(&world, &["key", "set", prefix, "--budget", "total=1"]).await;
    assert_eq!((key["prefix"].as_str(), windows(&key)), (Some(prefix), words("total")));
    let show = ["--json", "key", "show", prefix];
    let held = async {
        while world.sim.count("vendor_b") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        first_budget(&world, &show).await
    };
    let (answer, held) = tokio::join!(call.make(&world, &world.key), held);
    assert_eq!((answer.status, held), (200, (Some(1_000_000_000), 0, call.quote)));
    world.settled(1).await;
    let account = shown(&world, &["account", "show", ACCOUNT]).await;
    let budgets = account["budgets"].as_array().expect("budgets");
    let sums = budgets.iter().map(|budget| {
        assert_eq!(budget["held_nano"], 0, "{budget}");
        let owner = budget["owner"].as_str().expect("an owner");
        (owner, budget["limit_nano"].as_i64(), budget["spent_nano"].as_i64())
    });
    let spent = Some(call.quote);
    let expected = [
        ("account", Some(2_000_000_000), spent),
        ("account", Some(3_000_000_000), spent),
        ("key", Some(1_000_000_000), spent),
    ];
    assert_eq!(sums.collect::<Vec<_>>(), expected);
    let plain = world.command(&["account", "show", ACCOUNT]).await.done();
    let left = usd(3_000_000_000 - call.quote);
    let left = left.trim_end_matches('0');
    let total = format!("budget       total: limit 3.00, left {left}, ");
    assert!(plain.contains(&total), "{plain}");
    assert!(plain.contains(&format!("budget       {prefix}…  total: limit 1.00, ")), "{plain}");
    let plain = world.command(&["key", "show", prefix]).await.done();
    assert!(plain.contains("budget       total: limit 1.00, "), "{plain}");
    let plain = world.command(&["key", "list", ACCOUNT]).await.done();
    assert!(plain.contains("  budget  total: limit 1.00, "), "{plain}");
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[rstest]
#[tokio::test]
async fn what_cannot_be_set_is_told_and_changes_nothing(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let prefix = prefix_of(&world.key);
    let known = "the windows are hour, day, week, month, total";
    for (words, told) in [
        (&["account", "set", ACCOUNT, "--budget", "dya=5"][..], known),
        (&["account", "set", ACCOUNT, "--no-budget", "year"], known),
        (&["account", "set", ACCOUNT, "--budget", "5"], "as in day=5"),
        (&["account", "set", ACCOUNT, "--budget", "day=1e3"], "no amount in USD"),
        (&["account", "set", ACCOUNT, "--budget", "day=1", "--no-budget", "day"], "twice"),
        (&["account", "set", ACCOUNT], "nothing to set"),
        (&["account", "set", "nobody", "--budget", "day=5"], "there is no account 'nobody'"),
        (&["key", "set", prefix, "--budget", "dya=5"], known),
        (&["key", "set", prefix], "nothing to set"),
        (&["key", "set", "sk-nothing", "--budget", "day=5"], "no key"),
        (&["key", "set", "17", "--budget", "day=5"], "no key"),
        (&["key", "show", "sk-nothing"], "no key"),
        (&["key", "revoke", "17"], "no key"),
        (&["key", "issue", ACCOUNT, "--budget", "dya=5"], known),
    ] {
        let run = world.command(words).await;
        assert_eq!(run.code, 1, "{words:?}: {}", run.err);
        assert!(run.err.contains(told), "{words:?}: {}", run.err);
        assert_eq!(run.out, "", "{words:?}");
    }
    assert_eq!(shown(&world, &["account", "show", ACCOUNT]).await["budgets"], json!([]));
    assert_eq!(world.command(&["--json", "key", "list", ACCOUNT]).await.json().len(), 1);
}

#[rstest]
#[tokio::test]
async fn a_key_is_revoked_by_its_id_and_a_charge_names_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let call = ExactCall::of("chat");
    let world = call.world(store, 0).run().await;
    let key = shown(&world, &["key", "show", prefix_of(&world.key)]).await;
    let id = key["id"].as_str().expect("an id");
    assert_eq!(call.make(&world, &world.key).await.status, 200);
    world.settled(1).await;
    assert_eq!(shown(&world, &["charges", ACCOUNT]).await["key_id"], id);
    let revoked = shown(&world, &["key", "revoke", id]).await;
    assert_eq!(revoked, json!({ "prefix": prefix_of(&world.key), "revoked": true }));
    let key = shown(&world, &["key", "show", id]).await;
    assert!(key["revoked_at"].is_i64(), "{key}");
}

/// What of the lines of the audit trail is about budgets, without the first lines, which are about
/// the world.
fn audited(world: &World) -> Vec<Value> {
    let text = std::fs::read_to_string(world.path("var/audit.jsonl")).expect("the audit trail");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    let names = [
        "action",
        "account",
        "key_prefix",
        "stage",
        "budgets_nano",
        "budgets_before_nano",
        "budgets_after_nano",
        "result",
    ];
    let told = |line: Value| {
        let mut told = json!({});
        for name in names.into_iter().filter(|name| !line[*name].is_null()) {
            told[name] = line[name].clone();
        }
        told
    };
    lines.map(told).collect()
}

#[rstest]
#[tokio::test]
async fn each_change_of_a_budget_is_told_with_what_was_before_and_after(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let prefix = prefix_of(&world.key);
    world.command(&["account", "set", ACCOUNT, "--budget", "day=5"]).await.done();
    let change = ["account", "set", ACCOUNT, "--no-budget", "day", "--budget", "month=7"];
    world.command(&change).await.done();
    world.command(&["key", "set", prefix, "--budget", "total=1"]).await.done();
    let issued = issue(&world, "hour=0.5").await;
    assert_eq!(world.command(&["account", "set", "nobody", "--budget", "day=1"]).await.code, 1);
    let dollar = 1_000_000_000_u64;
    let expected = json!([
        { "action": "account.set", "account": ACCOUNT, "stage": "begun",
          "budgets_nano": { "day": 5 * dollar }, "budgets_before_nano": {} },
        { "action": "account.set", "account": ACCOUNT, "stage": "ended", "result": "done",
          "budgets_nano": { "day": 5 * dollar }, "budgets_after_nano": { "day": 5 * dollar } },
        { "action": "account.set", "account": ACCOUNT, "stage": "begun",
          "budgets_nano": { "day": null, "month": 7 * dollar },
          "budgets_before_nano": { "day": 5 * dollar } },
        { "action": "account.set", "account": ACCOUNT, "stage": "ended", "result": "done",
          "budgets_nano": { "day": null, "month": 7 * dollar },
          "budgets_after_nano": { "month": 7 * dollar } },
        { "action": "key.set", "account": ACCOUNT, "key_prefix": prefix, "stage": "begun",
          "budgets_nano": { "total": dollar }, "budgets_before_nano": {} },
        { "action": "key.set", "account": ACCOUNT, "key_prefix": prefix, "stage": "ended",
          "result": "done", "budgets_nano": { "total": dollar },
          "budgets_after_nano": { "total": dollar } },
        { "action": "key.issue", "account": ACCOUNT, "key_prefix": prefix_of(&issued),
          "stage": "begun", "budgets_nano": { "hour": dollar / 2 }, "budgets_before_nano": {} },
        { "action": "key.issue", "account": ACCOUNT, "key_prefix": prefix_of(&issued),
          "stage": "ended", "result": "done", "budgets_nano": { "hour": dollar / 2 },
          "budgets_after_nano": { "hour": dollar / 2 } },
    ]);
    let mut written = audited(&world);
    let failed = written.split_off(8);
    assert_eq!(Value::from(written), expected);
    let results: Vec<_> = failed.iter().map(|line| &line["result"]).collect();
    assert_eq!(results, [&Value::Null, &json!("failed")]);
}
