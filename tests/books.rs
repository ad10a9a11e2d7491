//! Price books and costs: an account pays by its book, its lines tell the list price and the cost
//! beside the charge, and a book below cost is not taken.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::world::{
    ACCOUNT, CHAT, EMBEDDING_B, IMAGE_D, MESSAGES, MODERATION, Offer, SPEECH, Store, VIDEO, World,
    chat_of, quick, usd, with,
};

const COST: &str = "tollgate_cost_nanousd_total";
/// The price of the chat model on the list, in nano-USD a token in and out.
const LIST: (i64, i64) = (5_000, 30_000);
/// Its cost in the rules of these tests.
const BOUGHT: (i64, i64) = (4_000, 24_000);
/// A book whose products of odd amounts are no whole nano-USD.
const BOOK: &str = "[book.partner]\nfactor = \"0.8333\"\n";
/// The price by the book of a token in, in USD.
const BOOKED: &str = "0.0000041665";

/// Replaces all price books, which are then in force.
async fn set_books(world: &World, text: &str) {
    let file = world.path("rules/books.toml");
    world.reload(|| std::fs::write(file, text).expect("other books")).await;
}

const CHAT_COST: (&str, &str) = ("lmb-5.5", "{ input = 4, output = 24 }");
const SPEECH_COST: (&str, &str) = ("tts-1", "{ characters = 12 }");
const VIDEO_COST: (&str, &str) = ("lmd-imagine-video", "{ second = { 480p = 0.04, 720p = 0.05 } }");

/// A world whose account has the book, and whose rules know some costs.
async fn given(world: World) -> World {
    let change = || {
        world.add_costs("vendor_b", &[CHAT_COST, SPEECH_COST]);
        world.add_costs("vendor_d", &[VIDEO_COST]);
        std::fs::write(world.path("rules/books.toml"), BOOK).expect("books");
    };
    world.reload(change).await;
    world.command(&["account", "set", ACCOUNT, "--book", "partner"]).await.done();
    prompt_becomes(&world, BOOKED).await;
    world
}

/// Waits until the listing of the key has this price of the chat model.
async fn prompt_becomes(world: &World, price: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    while listed(world, CHAT.model).await["prompt"] != price {
        assert!(Instant::now() < end, "the change of the account is not noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The prices of a model in the listing of the key; null if it gets none.
async fn listed(world: &World, model: &str) -> Value {
    let answer = world.get("/v1/models").await.json();
    let Some(models) = answer["data"].as_array() else { return Value::Null };
    let entry = models.iter().find(|entry| entry["id"] == model).expect("the model");
    entry["pricing"].clone()
}

/// The lines of the account as the command prints them, once so many charges are made.
async fn lines(world: &World, count: usize) -> Vec<Value> {
    world.settled(count).await;
    world.command(&["--json", "charges", ACCOUNT]).await.json()
}

/// The amount times the factor of the book, rounded up.
fn by_book(list: i64) -> i64 {
    let product = i128::from(list) * 8_333;
    i64::try_from((product + 9_999) / 10_000).expect("a small amount")
}

fn number(line: &Value, name: &str) -> i64 {
    line[name].as_i64().unwrap_or_else(|| panic!("no {name}: {line}"))
}

/// What tokens cost at these prices for one in and one out.
fn cost_of(prices: (i64, i64), usage: &Value) -> i64 {
    let (input, output) = prices;
    number(usage, "prompt_tokens") * input + number(usage, "completion_tokens") * output
}

/// Panics unless the line was charged by the book, and tells its list price.
fn is_booked(line: &Value) {
    let (amount, list) = (number(line, "amount_nano"), number(line, "list_nano"));
    assert_eq!((amount, &line["book"]), (by_book(list), &json!("partner")), "{line}");
    assert_eq!(line["written_off_nano"], 0, "the hold was enough: {line}");
    if let Some(cost) = line["cost_nano"].as_i64() {
        assert_eq!(number(line, "margin_nano"), amount - cost, "{line}");
    } else {
        assert_eq!((line.get("cost_nano"), line.get("margin_nano")), (None, None), "{line}");
    }
}

#[rstest]
#[tokio::test]
async fn an_account_with_a_book_is_charged_its_part_of_the_list_price_rounded_up_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let builder = World::start(store).vendor("vendor_b", &["prompt=37;completion=11"]);
    let world = given(builder.own_rules().run().await).await;
    assert_eq!(world.call(CHAT, json!({ "stream": stream })).await.status, 200);
    let line = lines(&world, 1).await.remove(0);
    is_booked(&line);
    assert_eq!(number(&line, "list_nano"), 37 * LIST.0 + 11 * LIST.1, "{line}");
    assert_eq!(number(&line, "cost_nano"), 37 * BOUGHT.0 + 11 * BOUGHT.1, "{line}");
    let labels = [r#"endpoint="chat""#, r#"model="lmb-5.5""#, r#"vendor="vendor_b""#];
    world.metric_becomes(COST, &labels, number(&line, "cost_nano")).await;
}

#[rstest]
#[tokio::test]
async fn speech_is_held_and_told_at_the_price_of_the_book(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = given(World::start(store).own_rules().run().await).await;
    let answer = world.ask(SPEECH).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let line = lines(&world, 1).await.remove(0);
    is_booked(&line);
    let characters = number(&line["usage"], "characters");
    assert_eq!(number(&line, "list_nano"), characters * 15_000);
    assert_eq!(number(&line, "cost_nano"), characters * 12_000);
    let amount = number(&line, "amount_nano").to_string();
    for name in ["x-service-charged-nano", "x-gateway-charged-nano"] {
        assert_eq!(answer.header(name), Some(amount.as_str()), "{name}: {answer:?}");
    }
}

/// The vendor's bill is the list price of such an image, and nobody knows its cost.
#[rstest]
#[case::embedding(EMBEDDING_B)]
#[case::bill(IMAGE_D)]
#[case::messages(MESSAGES)]
#[tokio::test]
async fn every_kind_of_price_has_the_factor_and_a_cost_that_is_not_known_is_left_out(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] offer: Offer,
) {
    let world = given(World::start(store).own_rules().run().await).await;
    assert_eq!(world.ask(offer).await.status, 200);
    let line = lines(&world, 1).await.remove(0);
    is_booked(&line);
    assert_eq!(line.get("cost_nano"), None, "{line}");
    let metrics = world.metrics().await;
    assert!(!metrics.contains(COST), "no cost is counted: {metrics}");
}

#[rstest]
#[tokio::test]
async fn a_video_keeps_the_book_of_its_order(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let world = World::start(store).conf(&quick(&[])).own_rules().run().await;
    let world = given(world).await;
    let held_for = by_book(280_000_000);
    world.place(json!({ "prompt": "[never]" })).await;
    assert_eq!(world.balances().await.held, held_for);
    let id = world.place(json!({ "prompt": "a" })).await;
    set_books(&world, "[book.partner]\nfactor = \"2\"\n").await;
    assert_eq!(world.over(&id).await.status(), "completed");
    let all = world.command(&["--json", "charges", ACCOUNT]).await.json();
    let line = all.iter().find(|line| line["request_id"] == id.as_str()).expect("a charge");
    is_booked(line);
    assert_eq!(line["endpoint"], VIDEO.endpoint);
    let list = (number(line, "list_nano"), number(line, "amount_nano"));
    assert_eq!(list, (280_000_000, held_for), "the vendor bills what is listed: {line}");
    assert_eq!(number(line, "cost_nano"), 280_000_000, "the bill is the cost: {line}");
}

/// The vendor bills what it reports, whoever believes it.
#[rstest]
#[tokio::test]
async fn a_refused_report_still_costs_what_the_vendor_reports(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &["completion=900000000"]);
    let world = given(builder.own_rules().run().await).await;
    let call = with(chat_of(CHAT.model), &json!({ "max_tokens": 5 }));
    assert_eq!(world.chat(call).await.status, 200);
    let line = lines(&world, 1).await.remove(0);
    let rejected = &line["rejected_usage"];
    assert_eq!(number(&line, "cost_nano"), cost_of(BOUGHT, rejected), "{line}");
    assert_eq!(number(&line, "list_nano"), cost_of(LIST, &line["usage"]), "{line}");
    assert!(number(&line, "amount_nano") <= by_book(number(&line, "list_nano")), "{line}");
    assert!(number(&line, "margin_nano") < 0, "{line}");
}

/// A balance that is short at the list price, and not at that of the book.
#[rstest]
#[tokio::test]
async fn a_hold_is_as_large_as_the_book_asks_and_a_long_stream_stays_within_the_credit(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &["prompt=9;completion=400;chunks=40"]);
    let credit = by_book(9 * LIST.0 + 400 * LIST.1) + 20_000_000;
    let world = given(builder.credit(&usd(credit)).own_rules().run().await).await;
    let stream = world.stream(chat_of(CHAT.model)).await;
    assert!(stream.is_done());
    let line = lines(&world, 1).await.remove(0);
    is_booked(&line);
    assert_eq!(number(&line, "list_nano"), 9 * LIST.0 + 400 * LIST.1, "{line}");
}

#[rstest]
#[tokio::test]
async fn a_changed_book_is_the_price_of_the_next_call_and_a_price_of_its_own_has_no_factor(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &["prompt=10;completion=10"]);
    let world = given(builder.own_rules().run().await).await;
    assert_eq!(world.ask(CHAT).await.status, 200);
    let own = "[book.partner.prices]\n\"lmb-5.5\" = { input = 7, output = 40 }\n";
    set_books(&world, &format!("{BOOK}{own}")).await;
    let prices = listed(&world, CHAT.model).await;
    let one = world.get(&format!("/v1/models/{}", CHAT.model)).await.json();
    assert_eq!(one["pricing"], prices);
    assert_eq!((&prices["prompt"], &prices["completion"]), (&json!("0.000007"), &json!("0.00004")));
    assert_eq!(world.ask(CHAT).await.status, 200);
    world.command(&["account", "set", ACCOUNT, "--no-book"]).await.done();
    prompt_becomes(&world, "0.000005").await;
    assert_eq!(world.ask(CHAT).await.status, 200);
    let found = lines(&world, 3).await;
    is_booked(&found[0]);
    let told = |line: &Value| (number(line, "amount_nano"), line["list_nano"].as_i64());
    assert_eq!(told(&found[1]), (470_000, Some(350_000)));
    assert_eq!(told(&found[2]), (350_000, None));
    assert_eq!(found[2].get("book"), None, "{}", found[2]);
    let versions: Vec<_> = found.iter().map(|line| &line["price_version"]).collect();
    assert_ne!(versions[0], versions[1], "books are prices");
    assert_eq!(versions[1], versions[2]);
}

/// Nobody knows what an account pays by a book that is not there.
#[rstest]
#[tokio::test]
async fn a_book_that_is_gone_admits_no_paid_call_of_its_accounts(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = given(World::start(store).own_rules().run().await).await;
    set_books(&world, "[book.other]\nfactor = \"1\"\n").await;
    world.logged(&["warn", "price book removed", "partner"]).await;
    for offer in [CHAT, SPEECH, VIDEO] {
        let answer = world.ask(offer).await;
        assert_eq!(answer.refusal(), (503, "book_not_found".to_owned()), "{answer:?}");
        assert_eq!(answer.header("x-should-retry"), Some("false"), "{answer:?}");
        assert!(answer.message().contains("partner"), "{answer:?}");
    }
    assert_eq!(world.ask(MESSAGES).await.status, 503);
    assert_eq!(world.ask(MODERATION).await.status, 200, "what is free has no price");
    assert_eq!(world.sim.seen().len(), 1);
    world.logged(&["price book not found", "partner"]).await;
    world.free_of_charge().await;
    set_books(&world, BOOK).await;
    assert_eq!(world.ask(CHAT).await.status, 200);
    is_booked(&lines(&world, 1).await[0]);
}

#[tokio::test]
async fn a_book_below_cost_is_refused_by_the_check_and_by_the_gateway() {
    let world = given(World::start(Store::Sqlite).own_rules().run().await).await;
    let file = world.path("rules/books.toml");
    let below = "[book.partner]\nfactor = \"0.79\"\n";
    std::fs::write(&file, below).expect("a book below cost");
    let told = world.command(&["check"]).await;
    assert_eq!(told.code, 1, "{told:?}");
    let fault = "books.toml:1: the price book 'partner' is below the cost of 'lmb-5.5' for an \
                 input token";
    assert!(told.err.contains(fault), "{told:?}");
    world.gateway.signal("HUP");
    world.logged(&["rules not reloaded", "below the cost of"]).await;
    assert_eq!(listed(&world, CHAT.model).await["prompt"], BOOKED, "the old one stays");
    std::fs::write(&file, format!("{below}loss = true\n")).expect("a book at a loss");
    let told = world.command(&["--json", "check"]).await.json().remove(0);
    assert_eq!(told["books"], 1);
}

#[rstest]
#[tokio::test]
async fn the_book_of_an_account_is_set_shown_and_checked(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).own_rules().run().await;
    std::fs::write(world.path("rules/books.toml"), BOOK).expect("books");
    let show = async |words: &[&str]| {
        let words: Vec<_> = ["--json", "account"].iter().chain(words).copied().collect();
        world.command(&words).await.json().remove(0)["book"].clone()
    };
    assert_eq!(show(&["show", ACCOUNT]).await, Value::Null);
    assert_eq!(show(&["set", ACCOUNT, "--book", "partner"]).await, "partner");
    assert_eq!(show(&["set", ACCOUNT, "--suspend"]).await, "partner");
    assert_eq!(show(&["list"]).await, "partner");
    let plain = world.command(&["account", "show", ACCOUNT]).await.done();
    assert!(plain.contains("\nprice book   partner\nstate        suspended\n"), "{plain}");
    let told = world.command(&["account", "set", ACCOUNT, "--book", "partners"]).await;
    assert_eq!(told.code, 1);
    let closest = "there is no price book 'partners'; closest is 'partner'";
    assert!(told.err.contains(closest), "{told:?}");
    assert_eq!(show(&["set", ACCOUNT, "--no-book"]).await, Value::Null);
    assert_eq!(show(&["create", "bob", "--book", "partner"]).await, "partner");
    let told = world.command(&["account", "create", "eve", "--book", "partners"]).await;
    assert!(told.code == 1 && told.err.contains(closest), "{told:?}");
    assert_eq!(world.command(&["account", "show", "eve"]).await.code, 1, "nothing was opened");
}

#[tokio::test]
async fn the_books_of_the_rules_are_listed_by_name() {
    let world = World::start(Store::Sqlite).own_rules().run().await;
    assert_eq!(world.command(&["book", "list"]).await.done(), "");
    let own = "[book.partner.prices]\n\"lmb-5.5\" = { input = 7, output = 40 }\n";
    let friends = "[book.friends]\nfactor = \"0.50\"\nloss = true\n";
    std::fs::write(world.path("rules/books.toml"), format!("{BOOK}{own}{friends}")).expect("books");
    let table = "friends          list price times 0.5 (loss)\n\
                 partner          list price times 0.8333, and 1 price of its own\n";
    assert_eq!(world.command(&["book", "list"]).await.done(), table);
    let listed = [
        json!({ "name": "friends", "factor": "0.5", "prices": 0, "loss": true }),
        json!({ "name": "partner", "factor": "0.8333", "prices": 1, "loss": false }),
    ];
    assert_eq!(world.command(&["--json", "book", "list"]).await.json(), listed);
}

#[tokio::test]
async fn the_shipped_books_are_only_comments_and_their_examples_parse() {
    let world = World::start(Store::Sqlite).own_rules().run().await;
    let check = async || world.command(&["--json", "check"]).await.json().remove(0);
    let before = check().await;
    let file = world.path("rules/books.toml");
    let shipped = std::fs::read_to_string(&file).expect("the books");
    // Behind the # of an explanation stands a space.
    let uncomment = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    std::fs::write(&file, shipped.lines().map(uncomment).collect::<String>()).expect("examples");
    let told = check().await;
    assert_eq!((&before["books"], &told["books"]), (&json!(0), &json!(2)));
    std::fs::remove_file(&file).expect("no file");
    assert_eq!(check().await["price_version"], before["price_version"], "comments are no prices");
}
