//! The command line: what its commands print, and how it says what is wrong.

mod grants;
mod operators;
mod plans;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt;

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{ACCOUNT, Store, World, chat_of, quick};

/// What is told of the scope of a key.
const SCOPE: [&str; 8] =
    ["name", "tags", "models", "endpoints", "from", "expires_at", "disabled", "plan"];

fn fields(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[rstest]
#[tokio::test]
async fn accounts_are_opened_shown_and_listed(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).credit("2.5").run().await;
    let shown = world.command(&["--json", "account", "show", ACCOUNT]).await.json();
    let expected = json!({
        "name": ACCOUNT,
        "credited_nano": 2_500_000_000_u64,
        "available_nano": 2_500_000_000_u64,
        "held_nano": 0,
        "posted_nano": 0,
        "written_off_nano": 0,
        "lots": [],
        "plan": null,
        "book": null,
        "suspended": false,
        "deleted_at": null,
        "budgets": [],
    });
    assert_eq!(shown, std::slice::from_ref(&expected));
    let opened = world.command(&["--json", "account", "create", "b.2-x_y"]).await.json();
    assert_eq!(opened[0]["credited_nano"], 0);
    let listed = world.command(&["--json", "account", "list"]).await.json();
    assert_eq!(listed, [expected, opened[0].clone()]);
    for (words, told) in [
        (&["account", "create", ACCOUNT][..], "there already"),
        (&["account", "create", "not a name"], "no account name"),
        (&["account", "create", "c", "--credit", "-1"], ""),
        (&["account", "create", "c", "--credit", "1e3"], "no amount"),
        (&["account", "create", "c", "--credit", "0.0000000001"], "no amount"),
        (&["account", "show", "nobody"], "there is no account 'nobody'"),
        (&["key", "issue", "nobody"], "there is no account 'nobody'"),
        (&["charges", "nobody"], "there is no account 'nobody'"),
        (&["credit", "add", "nobody", "1"], "there is no account 'nobody'"),
        (&["key", "revoke", "sk-nothing"], "no key"),
    ] {
        let run = world.command(words).await;
        assert_ne!(run.code, 0, "{words:?}");
        assert!(run.err.contains(told), "{words:?}: {}", run.err);
        assert_eq!(run.out, "", "{words:?}");
    }
    let failed = world.command(&["--json", "account", "show", "nobody"]).await;
    let told: Value = serde_json::from_str(&failed.err).expect("an error is JSON too");
    assert!(told["error"].as_str().is_some_and(|e| e.contains("nobody")), "{told}");
}

#[rstest]
#[tokio::test]
async fn a_payment_counts_once(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).credit("1").run().await;
    for _ in 0..2 {
        let shown = world.command(&["--json", "credit", "add", ACCOUNT, "0.5", "--id", "tx-1"]);
        assert_eq!(shown.await.json()[0]["credited_nano"], 1_500_000_000);
    }
    let other = world.command(&["credit", "add", ACCOUNT, "0.6", "--id", "tx-1"]).await;
    assert_eq!((other.code, world.balances().await.credited), (1, 1_500_000_000));
    let refused = "tollgate: payment 'tx-1' was taken before, with another amount";
    assert_eq!(other.err.trim(), refused, "it was told that it may have been taken");
    world.command(&["credit", "add", ACCOUNT, "0.5"]).await.done();
    world.command(&["credit", "add", ACCOUNT, "0.5"]).await.done();
    assert_eq!(world.balances().await.credited, 2_500_000_000);
    let huge = world.command(&["credit", "add", ACCOUNT, "9223372036"]).await;
    assert_eq!((huge.code, world.balances().await.credited), (1, 2_500_000_000));
}

#[rstest]
#[tokio::test]
async fn keys_are_shown_once_and_listed_by_their_beginnings(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    let plain = world.command(&["key", "issue", ACCOUNT]).await.done();
    assert_eq!(plain.lines().count(), 1, "the key alone, so that a shell can take it");
    assert!(plain.starts_with("sk-"), "{plain}");
    let issued = world.command(&["--json", "key", "issue", ACCOUNT]).await.json().remove(0);
    assert_eq!(
        fields(&issued),
        ["key", "prefix", "id", "budgets"].into_iter().chain(SCOPE).collect::<BTreeSet<_>>()
    );
    let prefix = issued["prefix"].as_str().expect("a prefix");
    world.command(&["key", "revoke", prefix]).await.done();
    let listed = world.command(&["--json", "key", "list", ACCOUNT]).await.json();
    assert_eq!(listed.len(), 3);
    let promised = ["prefix", "id", "created_at", "revoked_at", "last_used_at", "budgets"];
    let promised: BTreeSet<_> = promised.into_iter().chain(SCOPE).collect();
    assert!(listed.iter().all(|k| fields(k) == promised), "{listed:?}");
    let revoked: Vec<_> = listed.iter().filter(|k| !k["revoked_at"].is_null()).collect();
    assert_eq!(revoked.len(), 1);
    assert_eq!(revoked[0]["prefix"], prefix);
    let all = world.command(&["key", "list", ACCOUNT]).await.done();
    assert!(!all.contains(&world.key), "{all}");
}

#[rstest]
#[tokio::test]
async fn charges_have_the_fields_that_are_promised(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_d", &["video-ms=40"]);
    let world = builder.conf(&quick(&[])).run().await;
    assert_eq!(world.command(&["--json", "charges", ACCOUNT]).await.done(), "");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    let id = world.place(json!({})).await;
    assert_eq!(world.over(&id).await.outcome(), "completed");
    world.settled(2).await;
    let lines = world.command(&["--json", "charges", ACCOUNT]).await.json();
    let find = |name: &str| lines.iter().find(|l| l["endpoint"] == name).expect("a line");
    let (line, of_video) = (find("chat"), find("videos"));
    let promised = [
        "request_id",
        "at",
        "key_id",
        "endpoint",
        "model",
        "vendor",
        "route",
        "depth",
        "usage",
        "basis",
        "amount_nano",
        "price_version",
    ];
    // A video has no reply of a vendor that a client gets.
    let mut found = fields(line);
    found.retain(|field| *field != "reply_id");
    assert!(promised.iter().all(|field| found.contains(field)), "{line}");
    assert_eq!(fields(of_video), found, "a video's line says as much");
    assert_eq!(of_video["request_id"], id);
    for of_both in ["key_prefix", "key_id", "price_version"] {
        assert_eq!(of_video[of_both], line[of_both], "{of_both}");
    }
    assert!(line["amount_nano"].is_i64(), "money is a whole number: {line}");
    let plain = world.command(&["charges", ACCOUNT]).await.done();
    assert!(plain.contains("lmb-5.5") && plain.contains(" USD"), "{plain}");
}

#[tokio::test]
async fn a_journal_of_many_pages_is_told_whole() {
    let world =
        World::start(Store::Sqlite).vendor("vendor_b", &["prompt=1;completion=1"]).run().await;
    let calls = (0..1_100).map(|_| world.chat(chat_of("lmb-5-nano")));
    let calls = futures_util::StreamExt::buffer_unordered(futures_util::stream::iter(calls), 50);
    let answers: Vec<_> = futures_util::StreamExt::collect(calls).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    world.settled(1_100).await;
}

#[tokio::test]
async fn check_counts_what_it_read() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["", ""]).run().await;
    let told = world.command(&["--json", "check"]).await.json().remove(0);
    assert_eq!((&told["models"], &told["plans"]), (&json!(92), &json!(0)));
    let kinds = json!({
        "chat": 68, "responses": 6, "image": 7, "video": 2, "speech": 2, "embedding": 5,
        "moderation": 2,
    });
    assert_eq!(told["kinds"], kinds);
    assert_eq!(told["routes"]["vendor_b"], 2);
    let plain = world.command(&["check"]).await.done();
    assert!(plain.contains("92"), "{plain}");
}

#[tokio::test]
async fn models_are_listed_as_the_gateway_lists_them() {
    let world = World::start(Store::Sqlite).run().await;
    let listed = world.command(&["--json", "models"]).await.json();
    assert_eq!(world.get("/v1/models").await.json()["data"], Value::from(listed));
    let plain = world.command(&["models"]).await.done();
    assert_eq!(plain.lines().count(), 92);
}

#[tokio::test]
async fn an_unknown_setting_is_told_with_its_line_and_the_closest_known_one() {
    let world = World::start(Store::Sqlite).run().await;
    let file = world.path("tollgate.toml");
    let sound = std::fs::read_to_string(&file).expect("the configuration");
    let wrong = format!("{sound}\n[timeouts]\nstal_ms = 5\n[lisen]\nx = 1\n");
    std::fs::write(&file, &wrong).expect("a wrong configuration");
    let line = wrong.lines().position(|l| l == "stal_ms = 5").expect("the line") + 1;
    for words in [&["check"][..], &["serve"], &["account", "list"], &["models"]] {
        let run = world.command(words).await;
        assert_eq!(run.code, 1, "{words:?}");
        let told = format!("tollgate.toml:{line}: unknown key 'stal_ms'; closest is 'stall_ms'");
        assert!(run.err.contains(&told), "{}", run.err);
        assert!(run.err.contains("closest is 'listen'"), "all faults at once: {}", run.err);
    }
}

#[tokio::test]
async fn an_alias_that_misleads_is_told_with_its_line() {
    let world = World::start(Store::Sqlite).run().await;
    let file = world.path("tollgate.toml");
    let sound = std::fs::read_to_string(&file).expect("the configuration");
    let wrong = format!(
        "{sound}\n[vendor.vendor_a.aliases]\nboth = \"lma-opus-5\"\n[vendor.vendor_b.aliases]\n\
         both = \"lmb-4o\"\n\"lmb-5.5\" = \"lmb-4o\"\nnew = \"lmb-4o-minni\"\n"
    );
    std::fs::write(&file, &wrong).expect("a wrong configuration");
    let line = wrong.lines().position(|l| l == "both = \"lma-opus-5\"").expect("the line") + 1;
    for words in [&["check"][..], &["serve"], &["models"]] {
        let run = world.command(words).await;
        assert_eq!(run.code, 1, "{words:?}");
        for (below, told) in [
            (2, "alias 'both' is already defined at "),
            (3, "alias 'lmb-5.5' is the id of a model"),
            (4, "alias 'new' stands for 'lmb-4o-minni', which is no model id; closest is "),
        ] {
            let told = format!("tollgate.toml:{}: {told}", line + below);
            assert!(run.err.contains(&told), "{words:?}: {told}: {}", run.err);
        }
        assert!(run.err.contains("closest is 'lmb-4o-mini'"), "{}", run.err);
        assert!(run.err.contains(&format!("tollgate.toml:{line};")), "{}", run.err);
    }
}

/// A part of the rules, what takes its place, and a part of what is told then.
const BROKEN_RULES: [(&str, &str, &str); 4] = [
    ("[chat]\n", "[chat]\n\"x-1\" = { input = 1, ouput = 2 }\n", "closest is 'output'"),
    ("[chat]\n", "[chat\n", "vendor_b.toml:"),
    ("input = 0.05,", "input = 0.00005,", "nano"),
    ("refused = \"prompt\"", "refused = \"promt\"", "vendor_b.toml:"),
];

#[tokio::test]
async fn broken_rules_are_told_with_file_and_line() {
    let world = World::start(Store::Sqlite).own_rules().run().await;
    let file = world.path("rules/vendor_b.toml");
    let rules = std::fs::read_to_string(&file).expect("the rules");
    for (from, to, told) in BROKEN_RULES {
        assert!(rules.contains(from), "the rules have changed; so must this test: {from:?}");
        std::fs::write(&file, rules.replacen(from, to, 1)).expect("broken rules");
        let run = world.command(&["check"]).await;
        assert_eq!(run.code, 1, "{to:?}: {}", run.out);
        let err = &run.err;
        assert!(err.contains("vendor_b.toml:") && err.contains(told), "{to:?}: {err}");
    }
}

/// A file of plans, and what is told of it.
const BROKEN_PLANS: [(&str, &[&str]); 5] = [
    (
        "[plan.free]\ntokens_per_minute = \"40k\"\nmodels = [\"lmb-5-nanno\"]\n[plan.none]\n",
        &[
            "plans.toml:2: 'tokens_per_minute' must be a whole number from 0 to 1000000000",
            "plans.toml:3: 'lmb-5-nanno' matches no model on offer; closest is 'lmb-5-nano'",
            "plans.toml:4: a plan needs requests_per_minute",
        ],
    ),
    (
        "[plan.free]\ncals = 4\n",
        &["plans.toml:2: unknown key 'cals'; closest is 'calls'", "plans.toml:1: a plan needs"],
    ),
    ("[plan.free]\ncalls = 4\n[[plan.free.of]]\ncalls = 1\n", &["plans.toml:3: 'models' is"]),
    ("[plan.free\n", &["plans.toml:"]),
    ("[plan.free]\ncalls = 4", &["plans.toml: the file does not end with a line break"]),
];

#[tokio::test]
async fn broken_plans_are_told_with_file_and_line() {
    let world = World::start(Store::Sqlite).own_rules().run().await;
    for (text, faults) in BROKEN_PLANS {
        std::fs::write(world.path("rules/plans.toml"), text).expect("broken plans");
        for words in [&["check"][..], &["serve"], &["models"]] {
            let run = world.command(words).await;
            assert_eq!(run.code, 1, "{words:?}: {text:?}: {}", run.out);
            for fault in faults {
                assert!(run.err.contains(fault), "{words:?}: {fault:?}: {}", run.err);
            }
        }
    }
    std::fs::remove_file(world.path("rules/plans.toml")).expect("no file");
    let told = world.command(&["--json", "check"]).await.json().remove(0);
    assert_eq!(told["plans"], 0, "no plans are no fault");
}

#[tokio::test]
async fn the_examples_of_plans_were_only_comments_and_did_not_parse() {
    let world = World::start(Store::Sqlite).own_rules().run().await;
    let file = world.path("rules/plans.toml");
    let shipped = std::fs::read_to_string(&file).expect("the plans");
    let before = world.command(&["--json", "check"]).await.json().remove(0);
    // Behind the # of an explanation stands a space.
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    let plans: String = shipped.lines().map(uncomment).collect();
    std::fs::write(&file, plans).expect("the examples");
    let told = world.command(&["--json", "check"]).await.json().remove(0);
    assert_eq!((&before["plans"], &told["plans"]), (&json!(0), &json!(3)));
    assert_eq!(told["price_version"], before["price_version"], "plans are no prices");
    let plain = world.command(&["check"]).await.done();
    assert!(plain.contains("\nplans     3\n"), "{plain}");
}

#[tokio::test]
async fn the_environment_wins_over_the_file() {
    let world = World::start(Store::Sqlite).run().await;
    let listen = [("TOLLGATE__LISTEN__HTTP", "nowhere")];
    let run = world.command_with(&["check"], &listen).await;
    assert_eq!(run.code, 1);
    assert!(run.err.contains("TOLLGATE__LISTEN__HTTP"), "{}", run.err);
    let elsewhere = format!("sqlite:{}", world.path("other.db").display());
    let store = [("TOLLGATE__STORE__URL", elsewhere.as_str())];
    world.command_with(&["init"], &store).await.done();
    let accounts = world.command_with(&["--json", "account", "list"], &store).await;
    assert_eq!(accounts.done(), "");
    let unknown = [("TOLLGATE__STORE__ULR", "x")];
    let run = world.command_with(&["check"], &unknown).await;
    assert!(run.err.contains("closest is 'url'"), "{}", run.err);
}

#[tokio::test]
async fn a_key_that_no_header_can_carry_is_told_by_its_place() {
    let world = World::start(Store::Sqlite).run().await;
    std::fs::write(world.path("odd.key"), "vk-one\r\nx-evil: vk-two").expect("a key");
    for key in ["env:ODD_KEY", "file:odd.key"] {
        let base = "http://127.0.0.1:1";
        let routes = format!(r#"[{{ name = "r0", base_url = "{base}", key = "{key}" }}]"#);
        let routes = ("TOLLGATE__VENDOR__VENDOR_B__ROUTES", routes.as_str());
        let env = [routes, ("ODD_KEY", "vk-one\u{7}vk-two")];
        let run = world.command_with(&["check"], &env).await;
        assert_eq!(run.code, 1, "{key}: {}", run.out);
        let place = format!("the key of route 'r0' of vendor_b ({key}) has control characters");
        assert!(run.err.contains(&place), "{key}: {}", run.err);
        assert!(!run.err.contains("vk-"), "{key}: {}", run.err);
    }
}

#[tokio::test]
async fn a_file_that_is_not_there_is_named() {
    let world = World::start(Store::Sqlite).run().await;
    let run = world.command(&["--conf", "elsewhere.toml", "check"]).await;
    assert_ne!(run.code, 0);
    assert!(!run.err.is_empty());
    std::fs::remove_file(world.path("tollgate.toml")).expect("a configuration to remove");
    let run = world.command(&["check"]).await;
    assert!(run.code == 1 && run.err.contains("tollgate.toml"), "{}", run.err);
}

#[tokio::test]
async fn a_redis_that_may_forget_is_refused_unless_that_is_wanted() {
    let redis = crate::ledger::redis_server::RedisServer::start_with(&["--appendonly", "no"]);
    let world = World::start(Store::Sqlite).run().await;
    let url = redis.fresh_url();
    let env = [("TOLLGATE__STORE__URL", url.as_str())];
    let run = world.command_with(&["account", "list"], &env).await;
    assert_eq!(run.code, 1);
    assert!(run.err.contains("allow_volatile"), "{}", run.err);
    let env = [env[0], ("TOLLGATE__STORE__ALLOW_VOLATILE", "true")];
    assert_eq!(world.command_with(&["account", "list"], &env).await.done(), "");
}

#[rstest]
#[case("SOMETHING_ELSE", true)]
#[case("TOLLGATE__STORE__URL", false)]
fn a_variable_that_is_no_text_was_shown_in_a_panic(#[case] name: &str, #[case] is_fine: bool) {
    let value = std::ffi::OsString::from_vec(b"canary-\xff".to_vec());
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["--conf", "conf/live.toml", "models"])
        .env(name, value)
        .output()
        .expect("a command");
    let told = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.success(), is_fine, "{told}");
    assert!(!told.contains("canary") && !told.contains("panicked"), "{told}");
    assert_eq!(told.contains(name), !is_fine, "{told}");
}

#[test]
fn models_panicked_when_its_reader_left_early() {
    let mut listing = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["--conf", "conf/live.toml", "models"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    drop(listing.stdout.take());
    let ended = listing.wait_with_output().expect("ended");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert!(ended.status.success());
}
