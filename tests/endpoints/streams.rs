//! What responses cost, however they end, whole and in events.

use rstest::rstest;
use serde_json::{Value, json};

use super::price;
use crate::world::{Canned, RESPONSES, Store, Streamed, World, events, http};

/// The error that a stream ended with, which nothing may follow.
fn error_of(streamed: &Streamed) {
    let raw = String::from_utf8(streamed.raw.clone()).expect("text");
    assert!(!streamed.broken, "{raw}");
    assert_eq!(raw.matches("event: error\n").count(), 1, "{raw}");
    let (before, data) = raw.rsplit_once("event: error\ndata: ").expect("an error event");
    let data: Value =
        serde_json::from_str(data.strip_suffix("\n\n").expect("an end")).expect("JSON");
    assert!(before.is_empty() || before.ends_with("\n\n") || before.ends_with("\r\n\r\n"), "{raw}");
    let known = streamed.events();
    let numbers = known[..known.len() - 1].iter().filter_map(|e| e["sequence_number"].as_u64());
    let next = numbers.max().map_or(0, |number| number + 1);
    assert_eq!(data["sequence_number"], next, "{raw}");
    assert_eq!((&data["type"], &data["code"]), (&json!("error"), &json!("upstream_error")));
    let error = &data["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("server_error"), &json!("upstream_error"))
    );
    assert_eq!(error["message"], data["message"]);
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{raw}");
    assert!(error["param"].is_null() && data["param"].is_null(), "{raw}");
}

#[rstest]
#[case::usual("", "completed")]
#[case::reasoning("reasoning=5;prompt=80;cache-read=7;cache-write=3", "completed")]
#[case::incomplete("incomplete", "incomplete")]
#[tokio::test]
async fn a_response_costs_what_it_reports(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[case] faults: &str,
    #[case] status: &str,
) {
    let world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    let last = if stream {
        let streamed = world.open_call(RESPONSES, json!({})).await.rest().await;
        let last = streamed.events().pop().expect("an event");
        assert_eq!(last["type"], format!("response.{status}"));
        last["response"].clone()
    } else {
        world.ask(RESPONSES).await.json()
    };
    assert_eq!(last["status"], status, "{last}");
    let charge = world.charge().await;
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(charge.tokens(), (billed.prompt, billed.total - billed.prompt));
    assert_eq!(charge.amount_nano, price(RESPONSES, &billed));
    let cached = if faults.contains("cache") { (7, 3) } else { (0, 0) };
    assert_eq!((charge.cached(), charge.basis.as_str()), (cached, "reported"));
}

#[rstest]
#[case::the_total_is_larger(
    r#"{"input_tokens":10,"output_tokens":1,"total_tokens":31}"#, "reported", (10, 21)
)]
#[case::without_a_total(r#"{"input_tokens":10,"output_tokens":1}"#, "reported", (10, 1))]
#[case::of_the_chat_format(
    r#"{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}"#, "counted", (0, 0)
)]
#[case::negative(r#"{"input_tokens":-1,"output_tokens":1}"#, "counted", (0, 0))]
#[case::broken(r#"{"input_tokens":1.5,"output_tokens":1}"#, "counted", (0, 0))]
#[tokio::test]
async fn a_report_is_read_as_it_is_meant(
    #[case] usage: &str,
    #[case] basis: &str,
    #[case] tokens: (u64, u64),
) {
    let text = r#"{"type":"output_text","text":"The answer is four."}"#;
    let item = format!(r#"{{"id":"msg_1","type":"message","content":[{text}]}}"#);
    let reply =
        format!(r#"{{"id":"resp_1","status":"completed","output":[{item}],"usage":{usage}}}"#);
    let vendor = Canned::start(http(&reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.ask(RESPONSES).await;
    assert_eq!((answer.status, answer.body.as_ref()), (200, reply.as_bytes()));
    let charge = world.charge().await;
    assert_eq!(charge.basis, basis);
    if basis == "reported" {
        assert_eq!(charge.tokens(), tokens);
    } else {
        assert!(charge.tokens().0 > 0 && charge.tokens().1 > 0, "{charge:?}");
    }
}

#[rstest]
#[tokio::test]
async fn a_response_that_failed_without_a_report_is_free_and_told_as_it_is(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let world = World::start(store).vendor("vendor_b", &["failed", ""]).run().await;
    let answer = world.call(RESPONSES, json!({ "stream": stream })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(said.contains("event: response.failed\n"), stream, "{said}");
    assert!(said.contains(r#""status":"failed""#) && !said.contains("upstream_error"), "{said}");
    assert_eq!(world.sim.count("vendor_b"), 1);
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn a_response_without_a_sound_report_is_counted(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[values("no-usage", "null-usage", "bad-usage", "incomplete;no-usage")] faults: &str,
) {
    let world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    let answer = world.call(RESPONSES, json!({ "stream": stream })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(!String::from_utf8_lossy(&answer.body).contains("event: error"), "{answer:?}");
    let charge = world.charge().await;
    let (input, output) = charge.tokens();
    assert_eq!(charge.basis, "counted");
    // The text has ten words in 52 letters.
    assert!(input > 5 && (8..=60).contains(&output), "{charge:?}");
    let rates = (i64::try_from(input).expect("few"), i64::try_from(output).expect("few"));
    assert_eq!(charge.amount_nano, rates.0 * 5_000 + rates.1 * 30_000);
}

#[rstest]
#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_an_error_and_costs_what_came(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("cut=9", "reset=9", "stall=9", "error-event=9", "no-done", "garbage")] fault: &str,
) {
    let faults = format!("chunk-delay=10;{fault}");
    let short = "[timeouts]\nstall_ms = 300";
    let world = World::start(store).vendor("vendor_b", &[&faults]).conf(short).run().await;
    if fault == "garbage" {
        let answer = world.call(RESPONSES, json!({ "stream": true })).await;
        assert_eq!(answer.refusal(), (502, "upstream_error".to_owned()));
        return world.free_of_charge().await;
    }
    let streamed = world.open_call(RESPONSES, json!({})).await.rest().await;
    assert_eq!(streamed.status, 200);
    error_of(&streamed);
    let deltas = streamed.events();
    let deltas = deltas.iter().filter(|e| e["type"] == "response.output_text.delta").count();
    assert!(deltas >= 4, "{streamed:?}");
    let charge = world.charge().await;
    assert_eq!(charge.basis, "counted");
    assert!(charge.tokens().0 > 0 && charge.tokens().1 > 0, "{charge:?}");
}

#[rstest]
#[tokio::test]
async fn a_stream_that_breaks_off_before_any_output_is_free(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("cut=2", "reset=2", "error-event=2", "error-event=0", "cut=0", "reset=0")] fault: &str,
) {
    let faults = format!("chunk-delay=10;{fault}");
    let world = World::start(store).vendor("vendor_b", &[&faults]).run().await;
    let streamed = world.open_call(RESPONSES, json!({})).await.rest().await;
    if streamed.status == 200 {
        error_of(&streamed);
    } else {
        assert_eq!(streamed.status, 502, "{streamed:?}");
        assert_eq!(streamed.header("x-should-retry"), Some("false"));
    }
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn nothing_after_the_end_of_a_response_is_read() {
    let end = r#"{"type":"response.completed","sequence_number":0,"response":{"id":"resp_1","usage":{"input_tokens":3,"output_tokens":1,"total_tokens":4}}}"#;
    let told = format!("event: response.completed\ndata: {end}\n\n");
    let more = told.replace(r#""output_tokens":1"#, r#""output_tokens":900"#) + "data: [DONE]\n\n";
    let vendor = Canned::start(crate::world::events(&(told.clone() + &more)), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let streamed = world.open_call(RESPONSES, json!({})).await.rest().await;
    assert_eq!(String::from_utf8_lossy(&streamed.raw), told);
    assert_eq!(world.charge().await.tokens(), (3, 1));
}

#[rstest]
#[tokio::test]
async fn who_hangs_up_pays_what_the_vendor_bills(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(1, 6)] taken: usize,
) {
    let faults = "chunk-delay=15;chunks=20;reasoning=5";
    let world = World::start(store).vendor("vendor_b", &[faults]).run().await;
    let mut stream = world.open_call(RESPONSES, json!({})).await;
    stream.take(taken).await;
    drop(stream);
    let charge = world.charge().await;
    let seen = world.sim.seen().remove(0);
    let billed = seen.billed.expect("a bill");
    assert_eq!((charge.basis.as_str(), seen.completed), ("reported", true));
    assert_eq!(charge.amount_nano, price(RESPONSES, &billed));
}

/// What the vendor makes of a conversation is in one item, sealed. It is no part of the answer that
/// the limit is for.
#[tokio::test]
async fn a_stream_with_a_compaction_is_not_cut_at_the_limit_of_its_answer() {
    let item = json!({
        "id": "cmp_1", "type": "compaction", "encrypted_content": "gAAA".repeat(20_000),
    });
    let usage = json!({ "input_tokens": 20, "output_tokens": 16, "total_tokens": 36 });
    let response = |status: &str| {
        json!({ "id": "resp_1", "object": "response", "status": status, "output": [item],
            "usage": usage })
    };
    let event = |kind: &str, number: u8, name: &str, value: &Value| {
        let data = json!({ "type": kind, "sequence_number": number, name: value });
        format!("event: {kind}\ndata: {data}\n\n")
    };
    let created = json!({ "id": "resp_1", "object": "response", "status": "in_progress" });
    let told = [
        event("response.created", 0, "response", &created),
        event("response.output_item.added", 1, "item", &item),
        event("response.output_item.done", 2, "item", &item),
        event("response.output_text.delta", 3, "delta", &json!("four")),
        event("response.completed", 4, "response", &response("completed")),
    ];
    let told = told.concat();
    let vendor = Canned::start(events(&told), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let members = json!({ "max_output_tokens": 16 });
    let streamed = world.open_call(RESPONSES, members).await.rest().await;
    assert_eq!(String::from_utf8_lossy(&streamed.raw), told);
    let charge = world.charge().await;
    assert_eq!((charge.tokens(), charge.basis.as_str()), ((20, 16), "reported"));
}
