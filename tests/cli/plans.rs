//! The commands that list plans, give them to accounts and keys, and suspend accounts.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{ACCOUNT, Store, World};

const PLANS: &str = "[plan.free]
requests_per_minute = 20
tokens_per_minute = \"40K\"
models = [\"lmb-*\"]
[[plan.free.of]]
models = [\"lmb-5.5\"]
tokens_per_minute = \"10K\"
[plan.trial]
mode = \"shadow\"
calls = 4
";

async fn given(store: Store) -> World {
    let world = World::start(store).own_rules().run().await;
    std::fs::write(world.path("rules/plans.toml"), PLANS).expect("plans");
    world
}

/// The first object that a command prints.
async fn shown(world: &World, words: &[&str]) -> Value {
    let words: Vec<_> = ["--json"].iter().chain(words).copied().collect();
    world.command(&words).await.json().remove(0)
}

#[tokio::test]
async fn plans_are_listed_and_shown() {
    let world = given(Store::Sqlite).await;
    let listed = world.command(&["--json", "plan", "list"]).await.json();
    let free = json!({
        "name": "free", "requests_per_minute": 20, "tokens_per_minute": 40_000, "calls": null,
        "models": ["lmb-*"], "shadow": false,
        "of": [{
            "models": ["lmb-5.5"], "requests_per_minute": null, "tokens_per_minute": 10_000,
            "calls": null,
        }],
    });
    let names: Vec<_> = listed.iter().map(|plan| plan["name"].as_str()).collect();
    assert_eq!((names, &listed[0]), (vec![Some("free"), Some("trial")], &free));
    assert_eq!(shown(&world, &["plan", "show", "free"]).await, free);
    let plain = world.command(&["plan", "list"]).await.done();
    assert!(plain.contains("4 calls at a time (shadow)"), "{plain}");
    let plain = world.command(&["plan", "show", "free"]).await.done();
    for line in [
        "plan         free\n",
        "limits       20 requests a minute, 40000 tokens a minute\n",
        "narrower     lmb-5.5: 10000 tokens a minute\n",
        "models       lmb-*\n",
    ] {
        assert!(plain.contains(line), "{line}: {plain}");
    }
}

#[rstest]
#[tokio::test]
async fn an_account_shows_what_is_set_of_it(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = given(store).await;
    let settings = |shown: &Value| [shown["plan"].clone(), shown["suspended"].clone()];
    let set = ["account", "set", ACCOUNT, "--plan", "free", "--suspend", "--budget", "day=5"];
    let account = shown(&world, &set).await;
    assert_eq!(settings(&account), [json!("free"), json!(true)]);
    assert_eq!(account["budgets"][0]["window"], "day");
    let plain = world.command(&["account", "show", ACCOUNT]).await.done();
    let lines = "\nplan         free\nstate        suspended\nbudget       day: ";
    assert!(plain.contains(lines), "{plain}");
    let account = shown(&world, &["account", "set", ACCOUNT, "--resume"]).await;
    assert_eq!(settings(&account), [json!("free"), json!(false)]);
    let account = shown(&world, &["account", "set", ACCOUNT, "--no-plan"]).await;
    assert_eq!(settings(&account), [Value::Null, json!(false)]);
    let plain = world.command(&["account", "list"]).await.done();
    assert!(!plain.contains("plan ") && !plain.contains("state "), "{plain}");
    let trail = std::fs::read_to_string(world.path("var/audit.jsonl")).expect("the audit trail");
    let lines = trail.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
    let lines: Vec<_> = lines.filter(|line| line["action"] == "account.set").collect();
    let told = lines.chunks(2).map(|pair| {
        let ended = &pair[1];
        assert_eq!((&pair[0]["settings"], &ended["result"]), (&ended["settings"], &json!("done")));
        assert_eq!(ended["settings"], ended["settings_after"]);
        (pair[0]["settings_before"].clone(), ended["settings"].clone())
    });
    let (none, free) = (json!({}), json!({ "plan": "free" }));
    let both = json!({ "plan": "free", "suspended": true });
    let expected = [(none.clone(), both.clone()), (both, free.clone()), (free, none)];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

#[rstest]
#[tokio::test]
async fn a_key_shows_its_plan(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = given(store).await;
    let issued = shown(&world, &["key", "issue", ACCOUNT, "--plan", "free"]).await;
    assert_eq!(issued["plan"], "free");
    let prefix = issued["prefix"].as_str().expect("a prefix");
    let plain = world.command(&["key", "show", prefix]).await.done();
    assert!(plain.contains("\nplan         free\n"), "{plain}");
    let plain = world.command(&["key", "list", ACCOUNT]).await.done();
    assert!(plain.contains("\n  plan  free\n"), "{plain}");
    let set = shown(&world, &["key", "set", prefix, "--plan", "trial"]).await;
    assert_eq!(set["plan"], "trial");
    let set = shown(&world, &["key", "set", prefix, "--no-plan"]).await;
    assert_eq!(set["plan"], Value::Null);
}

#[tokio::test]
async fn a_plan_that_nobody_has_set_up_was_given_to_an_account() {
    let world = given(Store::Sqlite).await;
    let prefix = &world.key[..14];
    for (words, told) in [
        (&["account", "set", ACCOUNT, "--plan", "fre"][..], "plan 'fre'; closest is 'free'"),
        (&["account", "set", ACCOUNT, "--plan", "gold-2027"], "the plans are free, trial"),
        (&["account", "set", ACCOUNT, "--plan", "a b"], "'a b' is no name of a plan"),
        (&["account", "set", "nobody", "--plan", "free"], "no account 'nobody'"),
        (&["key", "issue", ACCOUNT, "--plan", "Free"], "closest is 'free'"),
        (&["key", "set", prefix, "--plan", "trail"], "closest is 'trial'"),
        (&["plan", "show", "fre"], "closest is 'free'"),
    ] {
        let run = world.command(words).await;
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{words:?}");
        assert!(run.err.contains(told), "{words:?}: {}", run.err);
    }
    let account = shown(&world, &["account", "show", ACCOUNT]).await;
    assert_eq!((&account["plan"], &account["suspended"]), (&Value::Null, &json!(false)));
    let keys = world.command(&["--json", "key", "list", ACCOUNT]).await.json();
    assert_eq!((keys.len(), &keys[0]["plan"]), (1, &Value::Null));
}

/// The machine from which accounts are kept need not have the rules.
#[tokio::test]
async fn without_rules_a_plan_is_taken_as_it_is_named() {
    let world = given(Store::Sqlite).await;
    std::fs::write(world.path("rules/plans.toml"), "[plan.free\n").expect("broken plans");
    let run = world.command(&["account", "set", ACCOUNT, "--plan", "gold"]).await;
    assert!(run.err.contains("whether there is a plan 'gold' is not known"), "{}", run.err);
    assert!(run.done().contains("\nplan         gold\n"));
}
