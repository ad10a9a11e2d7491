//! Money: what is held, what is charged, and that the books are right to the nano.

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{Canned, Charge, Store, World, chat_of, long, model_of};

/// Nano-USD of a token of lmb-5.5, in and out.
const INPUT: i64 = 5_000;
const OUTPUT: i64 = 30_000;

fn usd(nano: i64) -> String {
    format!("{}.{:09}", nano / 1_000_000_000, nano % 1_000_000_000)
}

/// Bytes of a call: no token is less than one.
fn bytes(call: &Value) -> i64 {
    i64::try_from(call.to_string().len()).expect("a short call")
}

/// The least that an account must have for a call of lmb-5.5.
fn least(call: &Value) -> i64 {
    bytes(call) * INPUT + OUTPUT
}

#[rstest]
#[case::reasoning_inside("vendor_b", "", 50, 1_000 * 5_000 + 50 * 30_000)]
#[case::reasoning_outside("vendor_c", "", 70, 1_000 * 1_500 + 70 * 9_000)]
#[case::reasoning_outside_too("vendor_d", "", 70, 1_000 * 2_000 + 70 * 6_000)]
#[case::reasoning_inside_too("vendor_e", "", 50, 1_000 * 260 + 50 * 380)]
#[case::whatever_the_habit_b("vendor_b", ";reasoning-apart", 70, 1_000 * 5_000 + 70 * 30_000)]
#[case::whatever_the_habit_e("vendor_e", ";reasoning-apart", 70, 1_000 * 260 + 70 * 380)]
#[tokio::test]
async fn a_charge_is_what_the_vendor_bills_at_the_listed_price(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[case] vendor: &str,
    #[case] more: &str,
    #[case] output: u64,
    #[case] nano: i64,
) {
    let faults = format!("prompt=1000;completion=50;reasoning=20{more}");
    let world = World::start(store).vendor(vendor, &[&faults]).run().await;
    let mut call = chat_of(model_of(vendor));
    call["stream"] = stream.into();
    assert_eq!(world.chat(call).await.status, 200);
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.amount_nano), ((1_000, output), nano));
    assert_eq!((charge.basis.as_str(), charge.written_off_nano), ("reported", 0));
    assert_eq!((charge.endpoint.as_str(), charge.model.as_str()), ("chat", model_of(vendor)));
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(charge.tokens(), (billed.prompt, billed.total - billed.prompt));
    assert_eq!(world.balances().await.available, 5_000_000_000 - nano);
}

#[rstest]
#[case::at_the_threshold("vendor_b", 272_000, 272_000 * 5_000 + 10 * 30_000)]
#[case::above_it_all_is_dearer("vendor_b", 272_001, 272_001 * 10_000 + 10 * 45_000)]
#[case::at_anothers_threshold("vendor_d", 200_000, 200_000 * 2_000 + 10 * 6_000)]
#[case::above_anothers_threshold("vendor_d", 200_001, 200_001 * 4_000 + 10 * 12_000)]
#[tokio::test]
async fn long_calls_are_repriced_as_a_whole(
    #[case] vendor: &str,
    #[case] prompt: u64,
    #[case] nano: i64,
    #[values(false, true)] stream: bool,
) {
    let faults = format!("prompt={prompt};completion=10");
    let world = World::start(Store::Sqlite).vendor(vendor, &[&faults]).run().await;
    let mut call = long(chat_of(model_of(vendor)), 80_000);
    call["stream"] = stream.into();
    assert_eq!(world.chat(call).await.status, 200);
    assert_eq!(world.charge().await.amount_nano, nano);
}

#[rstest]
#[case::the_day_before("2999-01-01", 1_000 * 750 + 10 * 3_750)]
#[case::from_the_day_on("2020-01-01", 1_000 * 1_500 + 10 * 7_500)]
#[tokio::test]
async fn dated_prices_hold_from_their_day_on(#[case] day: &str, #[case] nano: i64) {
    let builder = World::start(Store::Sqlite).own_rules();
    let world = builder.vendor("vendor_c", &["prompt=1000;completion=10"]).run().await;
    let file = world.path("rules/vendor_c.toml");
    let rules = std::fs::read_to_string(&file).expect("the rules");
    std::fs::write(&file, rules.replace("2027-01-01", day)).expect("other rules");
    world.logged(&["rules reloaded"]).await;
    assert_eq!(world.chat(chat_of("lmc-3.7-flash")).await.status, 200);
    assert_eq!(world.charge().await.amount_nano, nano);
}

#[tokio::test]
async fn cached_tokens_cost_as_much_as_others_and_stand_in_the_journal() {
    let details = r#"{"cached_tokens":600,"cache_write_tokens":300}"#;
    let counts = r#""prompt_tokens":1000,"completion_tokens":10,"total_tokens":1010"#;
    let usage = format!(r#"{{{counts},"prompt_tokens_details":{details}}}"#);
    let vendor = Canned::with_usage(&usage).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    let charge = world.charge().await;
    assert_eq!(charge.amount_nano, 1_000 * INPUT + 10 * OUTPUT);
    let journal = json!({
        "prompt_tokens": 1_000,
        "completion_tokens": 10,
        "cached_tokens": 600,
        "cache_write_tokens": 300,
    });
    assert_eq!(charge.usage, journal);
}

#[rstest]
#[case::negative(r#"{"prompt_tokens":-1,"completion_tokens":5,"total_tokens":4}"#)]
#[case::fraction(r#"{"prompt_tokens":1.5,"completion_tokens":5,"total_tokens":6}"#)]
#[case::overflow(
    r#"{"prompt_tokens":9223372036854775807,"completion_tokens":9223372036854775807}"#
)]
#[case::beyond_all_numbers(r#"{"prompt_tokens":99999999999999999999,"completion_tokens":1}"#)]
#[case::text(r#"{"prompt_tokens":"9","completion_tokens":"1"}"#)]
#[case::half(r#"{"prompt_tokens":9}"#)]
#[case::list("[9,1]")]
#[tokio::test]
async fn a_report_that_makes_no_sense_is_replaced_by_counting(#[case] usage: &str) {
    let vendor = Canned::with_usage(usage).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let call = chat_of("lmb-5.5");
    assert_eq!(world.chat(call.clone()).await.status, 200);
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.tokens()), ("counted", (14, 2)));
}

#[rstest]
#[tokio::test]
async fn every_choice_is_charged(
    #[values("vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).run().await;
    let mut call = chat_of(model_of(vendor));
    call["n"] = 3.into();
    call["stream"] = stream.into();
    assert_eq!(world.chat(call).await.status, 200);
    assert_eq!(world.charge().await.tokens().1, 30, "three answers of ten words");
}

#[rstest]
#[tokio::test]
async fn the_least_balance_serves_and_a_nano_less_does_not(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let call = chat_of("lmb-5.5");
    let builder = World::start(store).vendor("vendor_b", &["prompt=1;completion=1"]);
    let world = builder.credit(&usd(least(&call) - 1)).run().await;
    let refused = world.chat(call.clone()).await;
    assert_eq!(refused.refusal(), (402, "insufficient_credits".to_owned()));
    assert_eq!(refused.json()["error"]["type"], "insufficient_credits");
    assert_eq!(world.sim.count("vendor_b"), 0);
    world.free_of_charge().await;
    world.command(&["credit", "add", "acct", "0.000000001"]).await.done();
    assert_eq!(world.chat(call).await.status, 200);
    assert_eq!(world.charge().await.amount_nano, INPUT + OUTPUT);
}

#[rstest]
#[case::as_asked(json!({ "max_tokens": 10 }), 10)]
#[case::the_other_limit(json!({ "max_completion_tokens": 20 }), 20)]
#[case::the_larger_of_both(json!({ "max_tokens": 10, "max_completion_tokens": 20 }), 20)]
#[case::by_default(json!({}), 4_096)]
#[case::for_every_choice(json!({ "n": 4, "max_tokens": 10 }), 40)]
#[tokio::test]
async fn the_input_and_the_output_asked_for_are_held_while_a_call_runs(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] members: Value,
    #[case] output: i64,
) {
    let world = World::start(store).vendor("vendor_b", &["delay=800"]).run().await;
    let mut call = chat_of("lmb-5.5");
    for (name, value) in members.as_object().expect("members") {
        call[name] = value.clone();
    }
    let expected = bytes(&call) * INPUT + output * OUTPUT;
    let held = async {
        while world.sim.count("vendor_b") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        world.balances().await.held
    };
    let (answer, held) = tokio::join!(world.chat(call), held);
    assert_eq!((answer.status, held), (200, expected));
    world.settled(1).await;
}

#[tokio::test]
async fn no_more_is_held_than_there_is_and_then_a_second_call_waits_for_credit() {
    let call = chat_of("lmb-5.5");
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &["delay=500;prompt=1"]);
    let world = builder.credit(&usd(least(&call) * 2)).run().await;
    let second = async {
        while world.sim.count("vendor_b") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        world.chat(call.clone()).await
    };
    let (first, second) = tokio::join!(world.chat(call.clone()), second);
    assert_eq!(first.status, 200);
    assert_eq!(second.refusal(), (429, "credit_in_use".to_owned()));
    assert_eq!(second.header("retry-after"), Some("1"));
    assert_eq!(world.sim.count("vendor_b"), 1);
    world.settled(1).await;
}

/// A coding agent sends a high limit with each call, and several calls at a time.
#[tokio::test]
async fn a_stream_with_a_high_limit_held_all_credit_and_the_next_call_was_refused() {
    let mut call = chat_of("lmb-5.5");
    call["max_tokens"] = 128_000.into();
    call["stream"] = true.into();
    let vendor = ["delay=500;prompt=1;completion=1"];
    let world = World::start(Store::Sqlite).credit("1").vendor("vendor_b", &vendor).run().await;
    let (first, second) = tokio::join!(world.chat(call.clone()), world.chat(call));
    assert_eq!((first.status, second.status), (200, 200));
    let charges = world.settled(2).await;
    assert!(charges.iter().all(|charge| charge.amount_nano == INPUT + OUTPUT), "{charges:?}");
}

#[tokio::test]
async fn a_long_input_is_held_at_the_dearer_tier() {
    let mut call = chat_of("lmb-5.5");
    call["max_tokens"] = 1.into();
    // A document of pages may fill the context of 400,000 tokens.
    let file = json!({ "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD" });
    call["messages"][0]["content"] = json!([{ "type": "file", "file": file }]);
    let needed = 400_000 * 10_000 + 45_000;
    let world = World::start(Store::Sqlite).credit(&usd(needed - 1)).run().await;
    assert_eq!(world.chat(call.clone()).await.status, 402);
    world.command(&["credit", "add", "acct", "0.000000001"]).await.done();
    assert_eq!(world.chat(call).await.status, 200);
}

/// Nano-USD of a token of lmd-4.6, in and out. Its vendor reasons beyond the limit that it is sent.
const REASONING_INPUT: i64 = 2_000;
const REASONING_OUTPUT: i64 = 6_000;

#[rstest]
#[tokio::test]
async fn what_an_answer_costs_beyond_the_balance_is_written_off_and_told(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("whole", "stream", "stream whose report comes apart from its end")] answer: &str,
) {
    let faults = "prompt=1;completion=10;reasoning=200000";
    let apart = format!("{faults};no-done;keep-open=100");
    let faults = if answer.contains("apart") { &apart } else { faults };
    let builder = World::start(store).vendor("vendor_d", &[faults]);
    let world = builder.credit("1").run().await;
    let mut call = chat_of("lmd-4.6");
    call["max_tokens"] = 10.into();
    call["stream"] = (answer != "whole").into();
    let reply = world.chat(call.clone()).await;
    assert_eq!(reply.status, 200);
    assert!(!String::from_utf8_lossy(&reply.body).contains("error"), "{reply:?}");
    let charge = world.charge().await;
    let cost = REASONING_INPUT + 200_010 * REASONING_OUTPUT;
    assert_eq!((charge.amount_nano, charge.written_off_nano), (cost, cost - 1_000_000_000));
    let balances = world.balances().await;
    assert_eq!((balances.available, balances.posted), (0, cost));
    let written_off = cost - 1_000_000_000;
    world.metric_becomes("tollgate_written_off_nanousd_total", &[], written_off).await;
    world.metric_becomes("tollgate_write_offs_total", &[], 1).await;
    let line = world.logged(&["charge written off: above what the account had"]).await;
    for word in ["error", "write_off", "acct", &charge.request_id, &written_off.to_string()] {
        assert!(line.contains(word), "{word} is not in {line}");
    }
    assert_eq!(world.chat(call).await.status, 402);
}

#[tokio::test]
async fn a_write_off_of_less_than_a_cent_is_no_alarm() {
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &["prompt=1;reasoning=5000"]);
    let call = chat_of("lmd-4.6");
    let credit = usd(bytes(&call) * REASONING_INPUT + 4_096 * REASONING_OUTPUT);
    let world = builder.credit(&credit).run().await;
    assert_eq!(world.chat(call).await.status, 200);
    let charge = world.charge().await;
    assert!((1..=10_000_000).contains(&charge.written_off_nano), "{charge:?}");
    let metric = "tollgate_written_off_nanousd_total";
    world.metric_becomes(metric, &[], charge.written_off_nano).await;
    assert_eq!(world.metric("tollgate_write_offs_total", &[]).await, 0);
    assert!(!world.log().contains("charge written off"));
}

#[tokio::test]
async fn what_an_answer_costs_beyond_its_hold_comes_out_of_the_balance() {
    let faults = "prompt=1;completion=10;reasoning=1000";
    let builder = World::start(Store::Sqlite).vendor("vendor_d", &[faults]);
    let world = builder.credit("1").run().await;
    let mut call = chat_of("lmd-4.6");
    call["max_tokens"] = 10.into();
    assert_eq!(world.chat(call).await.status, 200);
    let charge = world.charge().await;
    let cost = REASONING_INPUT + 1_010 * REASONING_OUTPUT;
    assert_eq!((charge.amount_nano, charge.written_off_nano), (cost, 0));
}

#[rstest]
#[tokio::test]
async fn a_settlement_is_made_before_the_last_byte_so_the_next_call_finds_its_money(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let mut call = chat_of("lmb-5.5");
    call["stream"] = stream.into();
    let cost = INPUT + OUTPUT;
    // Each call holds all that is left, and the last finds exactly the least it needs. The answer
    // is one word: of more than the vendor reports in the end, a stream may be cut before that.
    let credit = least(&call) + 29 * cost;
    let vendor = ["prompt=1;completion=1;chunks=1"];
    let builder = World::start(store).vendor("vendor_b", &vendor);
    let world = builder.credit(&usd(credit)).run().await;
    for number in 0..30 {
        let answer = world.chat(call.clone()).await;
        assert_eq!(answer.status, 200, "call {number}: {answer:?}");
    }
    assert_eq!(world.chat(call).await.status, 402);
    world.settled(30).await;
    assert_eq!(world.balances().await.available, credit - 30 * cost);
}

#[tokio::test]
async fn the_first_charge_on_a_new_redis_came_too_late_for_the_next_call() {
    let call = chat_of("lmb-5.5");
    let builder = World::start(Store::Redis).vendor("vendor_b", &["prompt=1;completion=1"]);
    let world = builder.credit(&usd(least(&call) + INPUT + OUTPUT)).run().await;
    for number in 1..=2 {
        assert_eq!(world.chat(call.clone()).await.status, 200, "call {number}");
    }
    assert_eq!(world.chat(call).await.status, 402);
}

#[rstest]
#[tokio::test]
async fn a_refused_call_gives_its_money_back_before_the_next_one(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("status=400", "status=500", "status=503", "reset=0", "garbage", "gzip")] fault: &str,
) {
    let call = chat_of("lmb-5.5");
    let builder = World::start(store).vendor("vendor_b", &[fault]);
    let world = builder.credit(&usd(least(&call))).run().await;
    for number in 0..5 {
        let answer = world.chat(call.clone()).await;
        assert_ne!(answer.status, 402, "call {number}");
        assert!(answer.status >= 400, "call {number}");
    }
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn the_journal_tells_all_of_a_charge(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).vendor("vendor_e", &["status=503", ""]).run().await;
    let checked = world.command(&["--json", "check"]).await.json().remove(0);
    let before = unix_ms();
    let answers = [
        world.chat(chat_of("lmb-5.5")).await,
        world.chat(chat_of("orgA/famA-V3.2")).await,
        world.chat(chat_of("lmc-3.5-flash")).await,
    ];
    let charges = world.settled(3).await;
    for (answer, charge) in answers.iter().zip(&charges) {
        assert_eq!(answer.header("x-request-id"), Some(charge.request_id.as_str()));
        assert_eq!(checked["price_version"], charge.price_version);
        assert!((before..=unix_ms()).contains(&charge.at), "{charge:?}");
        let id = charge.vendor_request_id.as_deref().expect("the vendor's id");
        assert!(id.starts_with("req_vendor_"), "{id}");
    }
    let told = |c: &Charge| (c.vendor.clone(), c.route.clone(), c.depth);
    let routes: Vec<_> = charges.iter().map(told).collect();
    let expected = [("vendor_b", "r0", 0), ("vendor_e", "r1", 1), ("vendor_c", "r0", 0)];
    assert_eq!(routes, expected.map(|(v, r, d)| (v.to_owned(), r.to_owned(), d)));
    assert!(charges.windows(2).all(|pair| pair[0].at <= pair[1].at), "oldest first");
}

fn unix_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.expect("a time after 1970").as_millis()).expect("a time before 292277026")
}

/// The worlds of most tests read their books in the process of the test.
#[rstest]
#[tokio::test]
async fn the_command_line_tells_the_books_as_they_are(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    for _ in 0..2 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    }
    let charges = world.settled(2).await;
    assert_eq!(world.told_charges().await, charges);
    assert_eq!(world.told_balances().await, world.balances().await);
}
