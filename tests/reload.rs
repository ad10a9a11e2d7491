//! New rules while serving: whole or not at all, and never for a call that is under way.

use std::path::PathBuf;

use rstest::rstest;

use crate::world::{Builder, CHAT, Store, World, chat_of};

const LISTED: &str = r#""lmb-5.5"       = { input = 5,    output = 30,"#;
const DEARER: &str = r#""lmb-5.5"       = { input = 6,    output = 31,"#;
const AS_LISTED: i64 = 10 * 5_000 + 10 * 30_000;
const AS_DEARER: i64 = 10 * 6_000 + 10 * 31_000;

fn given(store: Store, faults: &str) -> Builder {
    let faults = format!("prompt=10;completion=10;{faults}");
    World::start(store).own_rules().vendor("vendor_b", &[&faults])
}

fn rules(world: &World) -> PathBuf {
    world.path("rules/vendor_b.toml")
}

/// Replaces a text in the rules, which must have it.
fn change(world: &World, from: &str, to: &str) {
    let text = std::fs::read_to_string(rules(world)).expect("the rules");
    assert!(text.contains(from), "the rules have changed; so must this test");
    std::fs::write(rules(world), text.replacen(from, to, 1)).expect("other rules");
}

#[rstest]
#[tokio::test]
async fn a_changed_price_holds_for_new_calls(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = given(store, "").run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    change(&world, LISTED, DEARER);
    world.logged(&["rules reloaded"]).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    let charges = world.settled(2).await;
    let amounts: Vec<_> = charges.iter().map(|c| c.amount_nano).collect();
    assert_eq!(amounts, [AS_LISTED, AS_DEARER]);
    assert_ne!(charges[0].price_version, charges[1].price_version);
    let shown = world.get("/v1/models/lmb-5.5").await.json();
    assert_eq!(shown["pricing"]["prompt"], "0.000006");
}

/// Fields that nobody reads are removed early, so a new rule for one of them must reach that place.
#[tokio::test]
async fn a_field_of_the_client_goes_on_as_soon_as_the_rules_say_so() {
    let world = given(Store::Sqlite, "").run().await;
    let send = async || {
        let request = world.request(CHAT.path).header("X-Stainless-OS", "Linux");
        let request = request.header("accept-language", "en").body(chat_of("lmb-5.5").to_string());
        assert_eq!(request.send().await.expect("an answer").status(), 200);
        let seen = world.sim.take_seen().remove(0);
        ["x-stainless-os", "accept-language"].map(|name| seen.header(name).map(str::to_owned))
    };
    assert_eq!(send().await, [None, None]);
    change(&world, "forward_headers = []", "forward_headers = [\"x-stainless-*\"]");
    world.logged(&["rules reloaded"]).await;
    assert_eq!(send().await, [Some("Linux".to_owned()), None]);
}

#[tokio::test]
async fn a_hangup_reloads_at_once() {
    let world = given(Store::Sqlite, "").run().await;
    change(&world, LISTED, DEARER);
    world.gateway.signal("HUP");
    world.logged(&["rules reloaded"]).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    assert_eq!(world.charge().await.amount_nano, AS_DEARER);
}

#[rstest]
#[case::broken_toml("[chat]\n", "[chat\n")]
#[case::unknown_field("[chat]\n", "[chat]\n\"x\" = { input = 1, outptu = 2 }\n")]
#[case::a_price_below_a_nano("output = 30,", "output = 30.0001,")]
#[case::an_example_that_fails("refused = \"prompt\"", "refused = \"other\"")]
#[tokio::test]
async fn broken_rules_change_nothing_and_are_told_with_their_line(
    #[case] from: &str,
    #[case] to: &str,
) {
    let world = given(Store::Sqlite, "").run().await;
    change(&world, LISTED, DEARER);
    change(&world, from.replace("30,", "31,").as_str(), &to.replace("30.", "31."));
    let line = world.logged(&["rules not reloaded", "vendor_b.toml:"]).await;
    assert!(line.contains("error"), "{line}");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    assert_eq!(world.charge().await.amount_nano, AS_LISTED);
    assert_eq!(world.get("/v1/models").await.json()["data"].as_array().map(Vec::len), Some(92));
}

#[tokio::test]
async fn rules_that_were_broken_and_mended_are_taken() {
    let world = given(Store::Sqlite, "").run().await;
    change(&world, "[chat]\n", "[chat\n");
    world.logged(&["rules not reloaded"]).await;
    change(&world, "[chat\n", "[chat]\n");
    change(&world, LISTED, DEARER);
    world.logged(&["rules reloaded"]).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    assert_eq!(world.charge().await.amount_nano, AS_DEARER);
}

#[tokio::test]
async fn a_folder_without_rules_leaves_the_old_ones() {
    let world = given(Store::Sqlite, "").run().await;
    std::fs::rename(world.path("rules"), world.path("away")).expect("rules to move");
    world.gateway.signal("HUP");
    world.logged(&["rules not reloaded"]).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
}

/// The rules as they are, and what becomes of a sale of another vendor's while they are broken so.
async fn a_broken_file_changes_nothing(
    vendor: &str,
    break_it: impl FnOnce(&std::path::Path, &str),
    told: &str,
) {
    let world = given(Store::Sqlite, "").run().await;
    let file = world.path(&format!("rules/{vendor}.toml"));
    let whole = std::fs::read_to_string(&file).expect("the rules");
    break_it(&file, &whole);
    let line = world.logged(&["rules not reloaded", &format!("{vendor}.toml"), told]).await;
    assert!(line.contains("error"), "{line}");
    let listed = world.get("/v1/models").await.json()["data"].as_array().map(Vec::len);
    assert_eq!(listed, Some(92), "{vendor}");
    // At once, too.
    world.gateway.signal("HUP");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    assert_eq!(world.get("/v1/models").await.json()["data"].as_array().map(Vec::len), Some(92));
    assert!(!world.log().contains("rules reloaded"), "{}", world.log());
    // Mended, and with another price, it is taken.
    std::fs::write(&file, &whole).expect("the rules again");
    change(&world, LISTED, DEARER);
    world.logged(&["rules reloaded", "models=92"]).await;
}

/// Of a vendor that has a section, and of one that has none and was for sale all the same.
#[rstest]
#[tokio::test]
async fn a_missing_rules_file_took_a_vendor_out_of_sale(
    #[values("vendor_b", "vendor_a")] vendor: &str,
) {
    let remove = |file: &std::path::Path, _: &str| std::fs::remove_file(file).expect("no file");
    a_broken_file_changes_nothing(vendor, remove, "").await;
}

#[rstest]
#[tokio::test]
async fn an_empty_rules_file_changes_nothing(#[values("", "\n", "# later\n")] text: &str) {
    let empty = |file: &std::path::Path, _: &str| std::fs::write(file, text).expect("written");
    a_broken_file_changes_nothing("vendor_e", empty, "").await;
}

#[rstest]
#[case::in_a_line(|whole: &str| whole.len() / 2, "")]
#[case::before_the_examples(|whole: &str| whole.find("[[example]]").expect("one"), "examples")]
#[case::before_the_last_line_break(|whole: &str| whole.len() - 1, "cut short")]
#[tokio::test]
async fn a_rules_file_that_is_cut_short_changes_nothing(
    #[case] at: fn(&str) -> usize,
    #[case] told: &str,
) {
    let cut = |file: &std::path::Path, whole: &str| {
        std::fs::write(file, &whole[..at(whole)]).expect("cut");
    };
    a_broken_file_changes_nothing("vendor_c", cut, told).await;
}

#[tokio::test]
async fn a_vendor_without_its_file_is_no_configuration() {
    let world = given(Store::Sqlite, "").run().await;
    std::fs::remove_file(rules(&world)).expect("no file");
    for words in [&["check"][..], &["serve"]] {
        let run = world.command(words).await;
        assert_eq!(run.code, 1, "{words:?}");
        assert!(run.err.contains("rules/vendor_b.toml: the file does not exist"), "{}", run.err);
        assert!(run.err.contains("[vendor.vendor_b]"), "{}", run.err);
    }
    // Retired on purpose: without its section.
    let conf = std::fs::read_to_string(world.path("tollgate.toml")).expect("a configuration");
    let routes = conf.lines().position(|line| line == "[vendor.vendor_b]").expect("its section");
    let without = conf.lines().enumerate().filter(|(n, _)| *n != routes && *n != routes + 1);
    let without: Vec<_> = without.map(|(_, line)| line).collect();
    std::fs::write(world.path("tollgate.toml"), without.join("\n")).expect("a configuration");
    let told = world.command(&["--json", "check"]).await.json().remove(0);
    assert!(told["models"].as_u64().is_some_and(|n| n > 0 && n < 92), "{told}");
}

#[rstest]
#[tokio::test]
async fn a_call_under_way_keeps_the_price_it_began_with(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = given(store, "chunks=30;chunk-delay=50").run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(1).await;
    change(&world, LISTED, DEARER);
    world.gateway.signal("HUP");
    world.logged(&["rules reloaded"]).await;
    assert!(!world.sim.seen()[0].completed, "the stream outlives the reload");
    assert!(stream.rest().await.is_done());
    assert_eq!(world.charge().await.amount_nano, AS_LISTED);
}

#[tokio::test]
async fn a_model_that_is_taken_off_the_list_is_no_longer_sold() {
    let world = given(Store::Sqlite, "").run().await;
    change(&world, "\"lmb-4.1-mini\"  =", "\"lmb-4.1-maxi\"  =");
    world.logged(&["rules reloaded"]).await;
    assert_eq!(world.chat(chat_of("lmb-4.1-mini")).await.status, 404);
    assert_eq!(world.chat(chat_of("lmb-4.1-maxi")).await.status, 200);
}
