//! Fees: tools that a vendor runs itself are sold where the rules have a price for their uses.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    ACCOUNT, Builder, CHAT, Canned, Charge, MESSAGES, Offer, Opened, RESPONSES, Store, World,
    chat_of, events, http, messages_of, with,
};

/// 1,000 and 5,000 nano-USD a token, with a context of 200,000.
const CHEAP: Offer = Offer { model: "lma-haiku-4-5", ..MESSAGES };
/// What a search costs in nano-USD.
const FEE: i64 = 10_000_000;
/// What the canned replies report, at the price of [`CHEAP`].
const TOKENS: i64 = 20 * 1_000 + 5 * 5_000;
/// The most searches of the calls here.
const MOST: u64 = 3;

/// A world whose rules have the fees that stand beside the configuration.
fn given(store: Store) -> Builder {
    World::start(store).fees()
}

/// The members of a call that may search so often.
fn search(uses: &Value) -> Value {
    let tool = json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": uses });
    json!({ "max_tokens": 10, "tools": [tool] })
}

/// What the vendor charges for a search in the rules of some tests, in nano-USD.
const BOUGHT: i64 = 8_000_000;
/// What it charges there for tokens: 800 in and 4,000 out.
const BOUGHT_TOKENS: (i64, i64) = (800, 4_000);

/// Adds the cost of the model, and that of a search if it is given.
async fn set_costs(world: &World, search: Option<&str>) {
    let change = || {
        world.add_costs("vendor_a", &[(CHEAP.model, "{ input = 0.8, output = 4 }")]);
        search.into_iter().for_each(|usd| world.add_fee_cost("vendor_a", usd));
    };
    world.reload(change).await;
}

/// What the tokens of a charge cost at these prices.
fn cost_of(charge: &Charge, prices: (i64, i64)) -> i64 {
    let (input, output) = prices;
    let (read, written) = charge.tokens();
    let [read, written] = [read, written].map(|tokens| i64::try_from(tokens).expect("few"));
    read * input + written * output
}

fn charged_fees(charge: &Charge, uses: u64, rejected: Option<u64>) {
    let nano = i64::try_from(uses).expect("few") * FEE;
    let mut fee = json!({ "name": "web_search", "uses": uses, "nano": nano });
    if let Some(rejected) = rejected {
        fee["rejected_uses"] = rejected.into();
    }
    assert_eq!(charge.fees, json!([fee]), "{charge:?}");
    assert_eq!(charge.written_off_nano, 0, "{charge:?}");
}

const CALL: &str = r#"{"type":"server_tool_use","id":"s","name":"web_search","input":{}}"#;

/// The usage of a messages reply with this report of tools.
fn usage(report: &str) -> String {
    format!(r#"{{"input_tokens":20,"output_tokens":5,"server_tool_use":{report}}}"#)
}

/// A messages reply, whole or in events, that shows so many searches and has this report of them.
fn reply(report: &str, seen: usize, stream: bool) -> Vec<u8> {
    let head = r#""id":"msg_1","type":"message","role":"assistant","model":"m""#;
    if !stream {
        let calls = format!("{CALL},").repeat(seen);
        let content = format!(r#"[{calls}{{"type":"text","text":"four"}}]"#);
        let usage = usage(report);
        return http(&format!(
            r#"{{{head},"content":{content},"stop_reason":"end_turn","usage":{usage}}}"#
        ));
    }
    let mut body = String::new();
    let mut say = |kind: &str, members: &str| {
        let event = format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{members}}}\n\n");
        body.push_str(&event);
    };
    let early = usage("null");
    say("message_start", &format!(r#","message":{{{head},"content":[],"usage":{early}}}"#));
    for index in 0..seen {
        say("content_block_start", &format!(r#","index":{index},"content_block":{CALL}"#));
        say("content_block_stop", &format!(r#","index":{index}"#));
    }
    let text = r#"{"type":"text","text":""}"#;
    say("content_block_start", &format!(r#","index":{seen},"content_block":{text}"#));
    let delta = r#"{"type":"text_delta","text":"four"}"#;
    say("content_block_delta", &format!(r#","index":{seen},"delta":{delta}"#));
    say("content_block_stop", &format!(r#","index":{seen}"#));
    let usage = usage(report);
    say("message_delta", &format!(r#","delta":{{"stop_reason":"end_turn"}},"usage":{usage}"#));
    say("message_stop", "");
    events(&body)
}

#[rstest]
#[case::as_reported(r#"{"web_search_requests":2}"#, 2, 2, None)]
#[case::a_search_that_failed(r#"{"web_search_requests":1}"#, 2, 1, None)]
#[case::none(r#"{"web_search_requests":0}"#, 0, 0, None)]
#[case::more_than_allowed(r#"{"web_search_requests":9}"#, 3, MOST, Some(9))]
#[case::no_report_but_seen("null", 2, 2, None)]
#[case::no_report_and_none_seen("null", 0, 0, None)]
#[case::no_number(r#"{"web_search_requests":"2"}"#, 1, 1, None)]
#[tokio::test]
async fn a_call_costs_its_tokens_and_the_searches_that_were_made(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[case] report: &str,
    #[case] seen: usize,
    #[case] uses: u64,
    #[case] rejected: Option<u64>,
) {
    let vendor = Canned::start(reply(report, seen, stream), usize::MAX).await;
    let world = given(store).vendor("vendor_a", &[&vendor.url]).run().await;
    let members = with(search(&MOST.into()), &json!({ "stream": stream }));
    let answer = world.messages(with(messages_of(CHEAP.model), &members)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = world.charge().await;
    assert_eq!(charge.amount_nano, TOKENS + i64::try_from(uses).expect("few") * FEE, "{charge:?}");
    charged_fees(&charge, uses, rejected);
    if rejected.is_some() {
        let labels = ["vendor=\"vendor_a\"", "route=\"r0\""];
        world.metric_becomes("tollgate_usage_rejected_total", &labels, 1).await;
        world.logged(&["vendor usage rejected", "9 uses of web_search"]).await;
    }
    if !stream {
        let told = answer.header("x-gateway-charged-nano").and_then(|nano| nano.parse().ok());
        assert_eq!(told, Some(charge.amount_nano));
    }
    let shown = world.get(&format!("/v1/generation?id={}", charge.request_id)).await.json();
    assert_eq!(shown["data"]["fees"], charge.fees, "{shown}");
    let shown = world.get("/v1/charges").await.json();
    assert_eq!(shown["data"][0]["fees"], charge.fees, "{shown}");
}

/// The vendor bills what it reports, whoever pays for it.
#[rstest]
#[case::as_reported(r#"{"web_search_requests":2}"#, 2, Some("0.008"), Some(2))]
#[case::more_than_allowed(r#"{"web_search_requests":9}"#, 3, Some("0.008"), Some(9))]
#[case::no_report_but_seen("null", 1, Some("0.008"), Some(1))]
#[case::none(r#"{"web_search_requests":0}"#, 0, Some("0.008"), Some(0))]
#[case::none_of_an_unknown_cost(r#"{"web_search_requests":0}"#, 0, None, Some(0))]
#[case::no_report_and_none_seen("null", 0, None, Some(0))]
#[case::one_of_an_unknown_cost(r#"{"web_search_requests":1}"#, 1, None, None)]
#[tokio::test]
async fn the_cost_of_a_call_is_that_of_its_tokens_and_its_searches_or_is_not_known(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[case] report: &str,
    #[case] seen: usize,
    #[case] cost: Option<&str>,
    #[case] uses: Option<i64>,
) {
    let vendor = Canned::start(reply(report, seen, stream), usize::MAX).await;
    let world = given(store).vendor("vendor_a", &[&vendor.url]).run().await;
    set_costs(&world, cost).await;
    let members = with(search(&MOST.into()), &json!({ "stream": stream }));
    let answer = world.messages(with(messages_of(CHEAP.model), &members)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = world.charge().await;
    assert_eq!(charge.tokens(), (20, 5), "{charge:?}");
    let cost = uses.map(|uses| cost_of(&charge, BOUGHT_TOKENS) + uses * BOUGHT);
    assert_eq!(charge.cost_nano, cost, "{charge:?}");
    let shown = world.get("/v1/charges").await.json();
    assert_eq!(shown["data"][0].get("cost_nano"), None, "customers see no cost: {shown}");
}

/// If the gateway dies, what was noted last is charged, with the searches until then.
#[rstest]
#[tokio::test]
async fn a_stream_that_is_cut_behind_a_checkpoint_has_the_fees_and_the_cost_of_what_was_seen(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut half = reply("null", 2, true);
    let end = half.windows(13).position(|words| words == b"message_delta").expect("an end");
    half.truncate(end);
    let vendor = Canned::start(half, usize::MAX).await;
    let builder = given(store).vendor("vendor_a", &[&vendor.url]);
    let mut world = builder.conf("[timeouts]\nlease_ms = 2_000").run().await;
    set_costs(&world, Some("0.008")).await;
    let call = with(with(messages_of(CHEAP.model), &search(&MOST.into())), &json!({"stream":true}));
    let mut stream = Opened::open(world.request(MESSAGES.path).body(call.to_string())).await;
    stream.take(6).await;
    // A checkpoint is written every five seconds.
    tokio::time::sleep(Duration::from_millis(6_500)).await;
    assert_eq!(world.charges().await, []);
    world.kill_and_start_again().await;
    let charge = world.charge().await;
    charged_fees(&charge, 2, None);
    assert_eq!(charge.amount_nano, cost_of(&charge, (1_000, 5_000)) + 2 * FEE, "{charge:?}");
    let cost = cost_of(&charge, BOUGHT_TOKENS) + 2 * BOUGHT;
    assert_eq!(charge.cost_nano, Some(cost), "{charge:?}");
}

/// The book's factor is that of fees as well, so that they must not be below their cost either.
#[tokio::test]
async fn a_fee_is_listed_by_the_book_and_is_not_sold_below_its_cost() {
    let world = given(Store::Sqlite).run().await;
    let new_book = || {
        world.add_fee_cost("vendor_a", "0.008");
        std::fs::write(world.path("rules/books.toml"), "[book.low]\nfactor = \"0.85\"\n")
            .expect("a book");
    };
    world.reload(new_book).await;
    let listed = async || {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let model = world.get(&format!("/v1/models/{}", CHEAP.model)).await.json();
            let all = world.get("/v1/models").await.json();
            let mut all = all["data"].as_array().expect("a list").iter();
            if all.any(|one| *one == model) {
                return model["pricing"]["fees"].clone();
            }
            // The account's book may have become another one in between.
            assert!(Instant::now() < end, "the list has no such model: {model}");
        }
    };
    let fee = |usd: &str| {
        json!([{
            "name": "web_search", "endpoints": ["/v1/messages"], "field": "tools[].type",
            "value": "web_search_*", "per": "usage.server_tool_use.web_search_requests",
            "most": "max_uses", "usd": usd,
        }])
    };
    assert_eq!(listed().await, fee("0.01"));
    world.command(&["account", "set", ACCOUNT, "--book", "low"]).await.done();
    let end = Instant::now() + Duration::from_secs(5);
    while listed().await != fee("0.0085") {
        assert!(Instant::now() < end, "the book is not noticed: {}", listed().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let answer = world.messages(with(messages_of(CHEAP.model), &search(&json!(1)))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = world.charge().await;
    charged_fees(&charge, 1, None);
    let list = cost_of(&charge, (1_000, 5_000)) + FEE;
    assert_eq!(charge.amount_nano, (list * 85 + 99) / 100, "{charge:?}");
    std::fs::write(world.path("rules/books.toml"), "[book.low]\nfactor = \"0.79\"\n")
        .expect("a book below cost");
    let told = world.command(&["check"]).await;
    assert_eq!(told.code, 1, "{told:?}");
    let fault = "books.toml:1: the price book 'low' is below the cost of ";
    assert!(told.err.contains(fault) && told.err.contains(" for a use of web_search"), "{told:?}");
}

/// Live search reads what it finds once, so that the searches are held beside one reading.
#[rstest]
#[tokio::test]
async fn a_search_that_reads_nothing_again_is_held_beside_one_reading(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = given(store).vendor("vendor_d", &["delay=800"]).run().await;
    let offer = Offer { vendor: "vendor_d", model: "lmd-4.6", ..CHAT };
    let sources = json!({ "mode": "on", "max_search_results": 4 });
    let members = json!({ "max_tokens": 9_000, "search_parameters": sources });
    let sent = i64::try_from(offer.sent(&members).bytes.len()).expect("a short call");
    let (answer, held) = world.held_during(offer, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(held, (sent + 4 * 2_000) * 2_000 + 9_000 * 6_000 + 4 * 25_000_000);
}

#[rstest]
#[case::one(1)]
#[case::three(3)]
#[tokio::test]
async fn the_searches_that_a_call_allows_are_held_beside_its_tokens(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] most: i64,
) {
    let world = given(store).vendor("vendor_a", &["delay=800"]).run().await;
    let members = search(&most.into());
    let sent = i64::try_from(CHEAP.sent(&members).bytes.len()).expect("a short call") + 2 * 1_500;
    let found = most * 16_000;
    // One reading after each use, and one after a try that is refused.
    let input = sent + found + (most + 1) * (sent + found + 10);
    let (answer, held) = world.held_during(CHEAP, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(held, input * 1_000 + 10 * 5_000 + most * FEE);
    // The simulator searches once.
    charged_fees(&world.charge().await, 1, None);
}

#[rstest]
#[case::missing(None, "is required: a whole number from 1 to 1000")]
#[case::null(Some(json!(null)), "is required: a whole number from 1 to 1000")]
#[case::zero(Some(json!(0)), "not a number (0)")]
#[case::negative(Some(json!(-1)), "not a number (-1)")]
#[case::float(Some(json!(1.5)), "not a number (1.5)")]
#[case::text(Some(json!("3")), "not a string (\"3\")")]
#[case::too_many(Some(json!(1_001)), "not a number (1001)")]
#[tokio::test]
async fn a_search_without_a_bound_is_refused_before_anything_is_held(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[case] bound: Option<Value>,
    #[case] told: &str,
) {
    let world = given(store).run().await;
    let mut members = with(search(&json!(1)), &json!({ "stream": stream }));
    let tool = members["tools"][0].as_object_mut().expect("a tool");
    match bound {
        Some(bound) => tool.insert("max_uses".to_owned(), bound),
        None => tool.remove("max_uses"),
    };
    let answer = world.messages(with(messages_of(CHEAP.model), &members)).await;
    let refusal = answer.messages_refusal();
    assert_eq!(refusal, (400, "invalid_request_error".to_owned()), "{answer:?}");
    let body = answer.json();
    let message = body["error"]["message"].as_str().expect("a message");
    for word in ["tools[0].max_uses", told, "0.01 USD each"] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn a_search_that_is_translated_or_has_no_fee_stays_refused(
    #[values(true, false)] has_fees: bool,
) {
    let builder = World::start(Store::Sqlite);
    let world = if has_fees { builder.fees() } else { builder }.run().await;
    let members = search(&json!(1));
    let answer = world.chat(with(chat_of("lma-haiku-4-5"), &members)).await;
    assert_eq!(answer.refusal().0, 400, "{answer:?}");
    let answer = world.messages(with(messages_of(CHEAP.model), &members)).await;
    assert_eq!(answer.status, if has_fees { 200 } else { 400 }, "{answer:?}");
    let members = json!({ "tools": [{ "type": "code_execution_20250522", "name": "c" }] });
    let answer = world.messages(with(messages_of(CHEAP.model), &members)).await;
    assert_eq!(answer.messages_refusal().0, 400, "{answer:?}");
    assert_eq!(world.settled(usize::from(has_fees)).await.len(), usize::from(has_fees));
}

#[rstest]
#[tokio::test]
async fn a_call_that_fails_has_no_fee(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = given(store).vendor("vendor_a", &["status=500"]).run().await;
    let answer = world.messages(with(messages_of(CHEAP.model), &search(&json!(3)))).await;
    assert!(answer.status >= 500, "{answer:?}");
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn who_cannot_pay_for_the_searches_is_refused(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = given(store).credit("1").run().await;
    let call = |uses| with(messages_of(CHEAP.model), &search(&uses));
    let answer = world.messages(call(json!(100))).await;
    assert_eq!(answer.messages_refusal(), (402, "billing_error".to_owned()), "{answer:?}");
    assert_eq!(world.sim.seen().len(), 0);
    assert_eq!(world.messages(call(json!(3))).await.status, 200);
    charged_fees(&world.charge().await, 1, None);
}

/// A responses reply, whole or in events, with this report of tools.
fn response(tool_usage: &str, stream: bool) -> Vec<u8> {
    let call = r#"{"type":"web_search_call","id":"ws_1","status":"completed"}"#;
    let text = r#"{"type":"message","content":[{"type":"output_text","text":"four"}]}"#;
    let usage = r#"{"input_tokens":20,"output_tokens":5,"total_tokens":25}"#;
    let object = format!(
        r#"{{"id":"resp_1","object":"response","status":"completed","output":[{call},{text}],"usage":{usage}{tool_usage}}}"#
    );
    if !stream {
        return http(&object);
    }
    let mut body = String::new();
    let said = [
        ("response.output_item.added", format!(r#""output_index":0,"item":{call}"#)),
        ("response.completed", format!(r#""response":{object}"#)),
    ];
    for (number, (kind, members)) in said.into_iter().enumerate() {
        let head = format!(r#""type":"{kind}","sequence_number":{number}"#);
        let event = format!("event: {kind}\ndata: {{{head},{members}}}\n\n");
        body.push_str(&event);
    }
    events(&body)
}

#[rstest]
#[case::as_reported(r#","tool_usage":{"web_search":{"num_requests":2}}"#, 2, None)]
#[case::more_than_allowed(r#","tool_usage":{"web_search":{"num_requests":7}}"#, MOST, Some(7))]
#[case::no_report_but_seen("", 1, None)]
#[tokio::test]
async fn a_search_of_a_response_is_bounded_by_its_calls_of_tools(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[case] report: &str,
    #[case] uses: u64,
    #[case] rejected: Option<u64>,
) {
    let vendor = Canned::start(response(report, stream), usize::MAX).await;
    let world = given(store).vendor("vendor_b", &[&vendor.url]).run().await;
    let tools = json!([{ "type": "web_search" }]);
    let unbounded = json!({ "tools": tools, "stream": stream, "max_output_tokens": 100 });
    let answer = world.call(RESPONSES, unbounded.clone()).await;
    assert_eq!(answer.refusal(), (400, "missing_required_parameter".to_owned()), "{answer:?}");
    assert_eq!(answer.json()["error"]["param"], "max_tool_calls");
    assert_eq!(vendor.heard(), 0);
    let members = with(unbounded, &json!({ "max_tool_calls": MOST }));
    let answer = world.call(RESPONSES, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = world.charge().await;
    let tokens = 20 * 5_000 + 5 * 30_000;
    assert_eq!(charge.amount_nano, tokens + i64::try_from(uses).expect("few") * FEE, "{charge:?}");
    charged_fees(&charge, uses, rejected);
}

/// A chat reply shows no searches, so those that were allowed are charged.
#[rstest]
#[case::as_reported(r#","num_sources_used":2"#, 2)]
#[case::no_report("", 4)]
#[tokio::test]
async fn without_a_report_a_chat_costs_all_sources_that_it_allows(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] report: &str,
    #[case] uses: i64,
) {
    let usage =
        format!(r#"{{"prompt_tokens":20,"completion_tokens":5,"total_tokens":25{report}}}"#);
    let vendor = Canned::with_usage(&usage).await;
    let world = given(store).vendor("vendor_d", &[&vendor.url]).run().await;
    let change = || {
        world.add_costs("vendor_d", &[("lmd-4.6", "{ input = 1, output = 3 }")]);
        world.add_fee_cost("vendor_d", "0.02");
    };
    world.reload(change).await;
    let offer = Offer { vendor: "vendor_d", model: "lmd-4.6", ..CHAT };
    let sources = json!({ "search_parameters": { "mode": "on", "max_search_results": 4 } });
    let answer = world.call(offer, sources).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let charge = world.charge().await;
    assert_eq!(charge.amount_nano, 20 * 2_000 + 5 * 6_000 + uses * 25_000_000, "{charge:?}");
    // What nobody told is charged as the call allows it, and its cost is not guessed.
    let is_told = !report.is_empty();
    let cost = is_told.then_some(20 * 1_000 + 5 * 3_000 + uses * 20_000_000);
    assert_eq!(charge.cost_nano, cost, "{charge:?}");
    let mut fee = json!({ "name": "live_search", "uses": uses, "nano": uses * 25_000_000 });
    if !is_told {
        fee["assumed"] = true.into();
    }
    assert_eq!(charge.fees, json!([fee]));
}

#[tokio::test]
async fn a_fee_holds_for_new_calls_as_soon_as_the_rules_have_it() {
    let world = World::start(Store::Sqlite).own_rules().run().await;
    let call = with(messages_of(CHEAP.model), &search(&json!(2)));
    assert_eq!(world.messages(call.clone()).await.status, 400);
    let file = world.path("rules/vendor_a.toml");
    let mut rules = std::fs::read_to_string(&file).expect("the rules");
    rules += include_str!("../conf/fees/vendor_a.toml");
    std::fs::write(&file, rules).expect("other rules");
    world.logged(&["rules reloaded"]).await;
    assert_eq!(world.messages(call).await.status, 200);
    charged_fees(&world.charge().await, 1, None);
}
