//! Streams: passed on as they come, metered as they pass, never ended cleanly when they broke.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::json;

use crate::world::{
    Answer, CHAT, Canned, MESSAGES, Offer, RESPONSES, Store, World, chat_of, model_of,
};

const SHORT: &str = "[timeouts]\nstall_ms = 300\ndrain_ms = 400";
const TEXT: &str = "The answer is four and everybody in the room agrees.";

#[rstest]
#[tokio::test]
async fn an_event_arrives_before_the_next_is_sent(
    #[values("vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
) {
    let world =
        World::start(Store::Sqlite).vendor(vendor, &["chunk-delay=60;chunks=4"]).run().await;
    let mut stream = world.open_stream(chat_of(model_of(vendor))).await;
    stream.next().await.expect("a first event");
    assert!(!world.sim.seen()[0].completed, "the vendor has more to say");
    stream.next().await.expect("a second event");
    assert!(!world.sim.seen()[0].completed, "the vendor still has more to say");
    assert!(stream.rest().await.is_done());
    assert!(world.sim.seen()[0].completed);
}

#[rstest]
#[tokio::test]
async fn usage_is_shown_to_who_asked_and_hidden_from_who_did_not(
    #[values("vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor(vendor, &["prompt=11;completion=7"]).run().await;
    let mut asked = chat_of(model_of(vendor));
    asked["stream_options"] = json!({ "include_usage": true });
    let shown = world.stream(asked).await;
    let last = shown.usages().pop().expect("usage was asked for");
    assert_eq!((&last["prompt_tokens"], &last["completion_tokens"]), (&json!(11), &json!(7)));
    let hidden = world.stream(chat_of(model_of(vendor))).await;
    assert_eq!(hidden.usages(), [] as [serde_json::Value; 0]);
    assert!(hidden.events().iter().all(|e| e["choices"] != json!([])), "{hidden:?}");
    assert_eq!((hidden.text(), hidden.is_done()), (shown.text(), true));
    let tokens: Vec<_> = world.settled(2).await.iter().map(super::world::Charge::tokens).collect();
    assert_eq!(tokens, [(11, 7), (11, 7)]);
}

#[rstest]
#[tokio::test]
async fn a_stream_passes_byte_for_byte_to_who_asked_for_usage(
    #[values("", "crlf", "comments", "crlf;comments", "split-utf8", "split-utf8;crlf;comments")]
    faults: &str,
) {
    let direct = World::start(Store::Sqlite).vendor("vendor_b", &[faults]).run().await;
    let mut call = chat_of("lmb-5.5");
    call["stream_options"] = json!({ "include_usage": true, "include_obfuscation": false });
    let streamed = direct.stream(call.clone()).await;
    assert!(streamed.is_done(), "{streamed:?}");
    call["stream"] = true.into();
    let url = direct.sim.base_url("vendor_b", faults) + "/chat/completions";
    let vendor = direct.client().post(url).bearer_auth("vk").body(call.to_string()).send().await;
    let vendor = vendor.expect("the vendor's answer").bytes().await.expect("a whole answer");
    // Two answers differ in their numbers and, perhaps, in their second.
    let blank = |bytes: &[u8]| -> String {
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        text.chars().filter(|c| !c.is_ascii_digit()).collect()
    };
    assert_eq!(blank(&streamed.raw), blank(&vendor));
}

#[rstest]
#[tokio::test]
async fn characters_cut_between_packets_arrive_whole(
    #[values("vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
) {
    let world = World::start(Store::Sqlite).vendor(vendor, &["split-utf8;crlf"]).run().await;
    let whole = world.chat(chat_of(model_of(vendor))).await.text();
    let streamed = world.stream(chat_of(model_of(vendor))).await;
    assert_eq!((streamed.text(), streamed.is_done()), (whole.clone(), true));
    assert!(whole.contains("東京"), "{whole}");
}

#[rstest]
#[case::error_event("error-event=3")]
#[case::cut("cut=3")]
#[case::reset("reset=3")]
#[case::stall("stall=3")]
#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_and_is_charged_as_counted(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("vendor_b", "vendor_d", "vendor_e")] vendor: &str,
    #[case] fault: &str,
) {
    let faults = format!("chunk-delay=20;{fault}");
    let world = World::start(store).vendor(vendor, &[&faults]).conf(SHORT).run().await;
    let streamed = world.stream(chat_of(model_of(vendor))).await;
    assert_eq!(streamed.status, 200);
    let error = streamed.error().expect("an error event");
    let told = (&error["type"], &error["code"]);
    // What the vendor itself says of its error stays, if it says anything.
    let is_told = fault.starts_with("error-event") && vendor == "vendor_d";
    let code = if is_told { "internal-error" } else { "upstream_error" };
    assert_eq!(told, (&json!("server_error"), &json!(code)));
    assert_eq!(streamed.text(), "The answer ", "what came before the break was passed on");
    let charge = world.charge().await;
    assert_eq!(charge.basis, "counted");
    // Two words, and what the vendor adds to a reply.
    assert_eq!(charge.tokens().1, if vendor == "vendor_b" { 3 } else { 4 });
}

#[rstest]
#[tokio::test]
async fn a_stream_that_breaks_before_the_client_saw_any_of_it_is_a_plain_error_and_free(
    #[values("error-event=3", "cut=3")] fault: &str,
) {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[fault]).run().await;
    for _ in 0..5 {
        let streamed = world.stream(chat_of("lmb-5.5")).await;
        // All of it may come at once, or not; either way it is no success.
        match streamed.status {
            200 => assert!(streamed.error().is_some(), "{streamed:?}"),
            status => assert_eq!((status, streamed.header("x-should-retry")), (502, Some("false"))),
        }
    }
    assert!(world.sim.quiet(Duration::from_secs(2)).await);
    let charged = world.nothing_held().await;
    assert!(charged.iter().all(|c| c.tokens().1 == 3), "{charged:?}");
}

#[rstest]
#[case::cut("cut=3", 3)]
#[case::stall("stall=3", 3)]
#[case::much_was_thought("cut=3;reasoning=90", 93)]
#[tokio::test]
async fn usage_that_came_before_the_break_is_charged(#[case] fault: &str, #[case] output: u64) {
    let faults = format!("chunk-delay=20;{fault}");
    let world = World::start(Store::Sqlite).vendor("vendor_c", &[&faults]).conf(SHORT).run().await;
    let streamed = world.stream(chat_of("lmc-3.5-flash")).await;
    assert!(streamed.error().is_some(), "{streamed:?}");
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(billed.total - billed.prompt, output);
    // Each piece came with a report of all tokens up to it, so nothing is left to be counted.
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), charge.tokens()), ("reported", (billed.prompt, output)));
}

#[rstest]
#[case::before_anything("cut=0")]
#[case::after_the_role("cut=1")]
#[case::error_at_once("error-event=0")]
#[case::silence("stall=1")]
#[tokio::test]
async fn a_stream_that_breaks_before_its_first_word_costs_nothing(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] fault: &str,
) {
    let world = World::start(store).vendor("vendor_b", &[fault]).conf(SHORT).run().await;
    let streamed = world.stream(chat_of("lmb-5.5")).await;
    match streamed.status {
        200 => assert!(streamed.error().is_some(), "{streamed:?}"),
        status => {
            assert_eq!(status, 502, "{streamed:?}");
            assert_eq!(streamed.header("x-should-retry"), Some("false"));
        }
    }
    world.free_of_charge().await;
}

#[rstest]
#[case::a_page(b"<html>\n\n<h1>It works!</h1>\n\n")]
#[case::no_text(b"data\xff\xfe\n\n")]
#[tokio::test]
async fn a_page_of_the_vendors_was_passed_on_as_if_it_were_an_event(#[case] page: &[u8]) {
    // Nothing follows the page, so that it cannot be read together with the end.
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
        content-length: 1000\r\n\r\n";
    let vendor = Canned::start([head.as_bytes(), page].concat(), usize::MAX).await;
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]);
    let world = builder.conf(SHORT).run().await;
    let mut call = chat_of("lmb-5.5");
    call["stream"] = true.into();
    let answer = world.chat(call).await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert_eq!(answer.refusal(), (502, "upstream_error".to_owned()));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    world.free_of_charge().await;
}

#[tokio::test]
async fn nonsense_instead_of_a_stream_is_no_success_and_free() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["garbage"]).run().await;
    let mut call = chat_of("lmb-5.5");
    call["stream"] = true.into();
    let answer = world.chat(call).await;
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(said.contains(r#""code":"upstream_error""#) && !said.contains("[DONE]"), "{said}");
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_stream_without_done_is_closed_properly() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["no-done"]).run().await;
    let streamed = world.stream(chat_of("lmb-5.5")).await;
    assert_eq!((streamed.text().as_str(), streamed.is_done()), (TEXT, true));
    assert_eq!(world.charge().await.basis, "reported");
}

#[rstest]
#[tokio::test]
async fn a_stream_without_usage_is_charged_as_counted(
    #[values("no-usage", "null-usage", "bad-usage")] fault: &str,
    #[values("vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
) {
    let world = World::start(Store::Sqlite).vendor(vendor, &[fault]).run().await;
    let streamed = world.stream(chat_of(model_of(vendor))).await;
    assert_eq!((streamed.text().as_str(), streamed.is_done()), (TEXT, true));
    let charge = world.charge().await;
    let tokens = match vendor {
        "vendor_b" => (14, 12),
        "vendor_c" => (8, 12),
        "vendor_d" => (17, 13),
        _ => (13, 13),
    };
    assert_eq!((charge.basis.as_str(), charge.tokens()), ("counted", tokens));
}

#[rstest]
#[tokio::test]
async fn a_client_that_hangs_up_pays_what_the_vendor_bills(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("vendor_b", "vendor_c", "vendor_d", "vendor_e")] vendor: &str,
    #[values(1, 3)] events: usize,
) {
    let faults = "chunk-delay=15;chunks=30;reasoning=5";
    let world = World::start(store).vendor(vendor, &[faults]).run().await;
    let mut stream = world.open_stream(chat_of(model_of(vendor))).await;
    stream.take(events).await;
    drop(stream);
    let charge = world.charge().await;
    assert!(world.sim.quiet(Duration::from_secs(5)).await);
    let seen = world.sim.seen().remove(0);
    let billed = seen.billed.expect("a bill");
    assert!(seen.completed, "the gateway read on to the end");
    assert_eq!(charge.basis, "reported");
    assert_eq!(charge.tokens(), (billed.prompt, billed.total - billed.prompt));
}

#[rstest]
#[tokio::test]
async fn who_hangs_up_on_an_endless_stream_pays_what_was_counted(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "chunk-delay=50;chunks=1000;hangup-stops";
    let world = World::start(store).vendor("vendor_b", &[faults]).conf(SHORT).run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(3).await;
    drop(stream);
    let charge = world.charge().await;
    assert_eq!(charge.basis, "counted");
    let words = charge.tokens().1;
    assert!((3..200).contains(&words), "the drain is bounded: {words}");
    assert!(world.sim.quiet(Duration::from_secs(2)).await, "the vendor was told to stop");
}

#[tokio::test]
async fn a_client_that_hangs_up_before_the_answer_pays_for_the_answer() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["delay=300"]).run().await;
    let request = world.request("/v1/chat/completions").body(chat_of("lmb-5.5").to_string());
    let hurried = request.timeout(Duration::from_millis(100)).send().await;
    assert!(hurried.is_err_and(|why| why.is_timeout()));
    assert_eq!(world.charge().await.basis, "reported");
}

#[tokio::test]
async fn a_stream_holds_its_connection_open_after_done_and_the_client_need_not_wait() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["keep-open=700"]).run().await;
    let streamed = world.stream(chat_of("lmb-5.5")).await;
    assert!(streamed.is_done());
    assert!(!world.sim.quiet(Duration::ZERO).await, "the vendor still holds its connection open");
    world.settled(1).await;
}

#[tokio::test]
async fn after_a_broken_stream_the_next_call_works() {
    let faults = ["cut=2;times=1"];
    let world = World::start(Store::Sqlite).vendor("vendor_b", &faults).run().await;
    assert!(world.stream(chat_of("lmb-5.5")).await.error().is_some());
    assert!(world.stream(chat_of("lmb-5.5")).await.is_done());
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
}

#[tokio::test]
async fn a_hundred_streams_at_once_do_not_mix() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["echo;chunk-delay=1"]).run().await;
    let calls = (0..100).map(|number| {
        let mut call = chat_of("lmb-5.5");
        call["user"] = "x".repeat(number).into();
        call["max_tokens"] = 10.into();
        world.stream(call)
    });
    let answers = futures_util::future::join_all(calls).await;
    let mut lengths: Vec<_> = answers.iter().map(super::world::Streamed::text).collect();
    assert!(answers.iter().all(super::world::Streamed::is_done));
    lengths.sort();
    lengths.dedup();
    assert_eq!(lengths.len(), 100, "every stream has an echo of its own");
    world.settled(100).await;
}

#[tokio::test]
async fn a_client_of_http_1_0_was_sent_chunks_it_could_not_read() {
    let world = World::start(Store::Sqlite).run().await;
    let mut call = chat_of("lmb-5.5");
    call["stream"] = json!(true);
    let request = world.request("/v1/chat/completions").version(reqwest::Version::HTTP_10);
    let answer = Answer::try_read(request.body(call.to_string())).await.expect("an answer");
    assert_eq!(answer.header("transfer-encoding"), None);
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(answer.body.ends_with(b"\n\ndata: [DONE]\n\n"), "{answer:?}");
}

#[tokio::test]
async fn a_stream_that_came_at_once_was_sent_with_a_length() {
    let world = World::start(Store::Sqlite).run().await;
    let streamed = world.stream(chat_of("lmb-5.5")).await;
    assert_eq!(streamed.header("content-length"), None);
    assert_eq!(streamed.header("transfer-encoding"), Some("chunked"));
}

#[rstest]
#[case::chat(CHAT)]
#[case::messages(MESSAGES)]
#[case::responses(RESPONSES)]
#[tokio::test]
async fn an_answer_that_takes_more_than_a_second_is_served_and_charged(
    #[case] offer: Offer,
    #[values(false, true)] stream: bool,
) {
    let faults = "delay=1300;prompt=11;completion=7";
    let world = World::start(Store::Sqlite).vendor(offer.vendor, &[faults]).run().await;
    let begun = Instant::now();
    let answer = world.call(offer, json!({ "stream": stream })).await;
    assert!(begun.elapsed() >= Duration::from_millis(1_300), "{answer:?}");
    assert_eq!(answer.status, 200, "{answer:?}");
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(said.contains("agrees.") && !said.contains("upstream"), "{said}");
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.basis.as_str()), ((11, 7), "reported"));
}
