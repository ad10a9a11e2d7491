//! Translated calls that go wrong: refused, sent elsewhere, or broken on their way.

use rstest::rstest;
use serde_json::{Value, json};

use super::{MODEL, TEXT, tools, world_of};
use crate::world::{Store, World, chat_of, closed_port, with};

#[rstest]
#[case::limited("status=429")]
#[case::overloaded("status=529")]
#[case::failed("status=500")]
#[case::bad_gateway("status=502")]
#[case::unavailable("status=503")]
#[case::unauthorised("status=401")]
#[case::refused("refused")]
#[tokio::test]
async fn the_next_route_gets_the_translated_call_too(
    #[case] fault: &str,
    #[values(false, true)] stream: bool,
) {
    let closed = closed_port();
    let first = if fault == "refused" { closed.as_str() } else { fault };
    let names = "[vendor.vendor_a.names]\n\"lma-*\" = \"brand-*\"";
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &[first, ""]).conf(names);
    let world = builder.run().await;
    let call = with(chat_of(MODEL), &json!({ "stream": stream }));
    let answer = world.chat(call).await;
    assert_eq!((answer.status, answer.header("x-gateway-fallback-depth")), (200, Some("1")));
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(said.contains(MODEL) && !said.contains("brand"), "{said}");
    let seen = world.sim.seen();
    assert!(seen.iter().all(|s| s.body == seen[0].body && s.json()["model"] == "brand-sonnet-4-6"));
    let charge = world.charge().await;
    assert_eq!((charge.depth, charge.route.as_str(), charge.model.as_str()), (1, "r1", MODEL));
}

#[rstest]
#[case::invalid("status=400", 400, "invalid_request_error", "The request is invalid.")]
#[case::not_found("status=404", 404, "invalid_request_error", "Not Found")]
#[case::too_large("status=413", 413, "invalid_request_error", "Request exceeds")]
#[case::unauthorised("status=401", 502, "server_error", "the vendor")]
#[case::unpaid("status=402", 502, "server_error", "the vendor")]
#[case::forbidden("status=403", 502, "server_error", "the vendor")]
#[case::failed("status=500", 502, "server_error", "the vendor")]
#[case::overloaded("status=529", 503, "server_error", "the vendor is overloaded")]
#[case::limited("status=429;retry-after=7", 503, "server_error", "the vendor is overloaded")]
#[case::timed_out("status=408", 504, "server_error", "the vendor")]
#[tokio::test]
async fn an_error_of_the_vendor_is_told_in_the_chat_format(
    #[case] fault: &str,
    #[case] status: u16,
    #[case] kind: &str,
    #[case] said: &str,
) {
    let world = world_of(fault).await;
    for stream in [false, true] {
        let answer = world.chat(with(chat_of(MODEL), &json!({ "stream": stream }))).await;
        assert_eq!(answer.refusal().0, status);
        let error = &answer.json()["error"];
        assert_eq!(error["type"], kind, "{error}");
        assert!(answer.message().starts_with(said), "{error}");
        assert_eq!(answer.header("retry-after").is_some(), status == 503);
        assert!(!error.to_string().contains("sim"), "{error}");
    }
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn an_error_in_a_stream_is_told_and_what_came_is_charged(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "chunk-delay=20;error-event=5";
    let world = World::start(store).vendor("vendor_a", &[faults]).run().await;
    let streamed = world.stream(chat_of(MODEL)).await;
    let error = streamed.error().expect("an error event");
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("server_error"), &json!("upstream_error"))
    );
    assert_eq!(error["message"], "Overloaded", "the vendor's own words");
    assert!(!streamed.text().is_empty() && TEXT.starts_with(&streamed.text()), "{streamed:?}");
    let charge = world.charge().await;
    let billed = world.sim.seen()[0].billed.expect("a bill");
    assert_eq!(charge.tokens().0, billed.prompt, "{charge:?}");
    assert!(charge.tokens().1 > 0, "{charge:?}");
}

#[rstest]
#[tokio::test]
async fn a_stream_that_is_cut_anywhere_ends_with_an_error(
    #[values(0, 1, 2, 3, 4, 5, 6, 7)] events: usize,
    #[values("cut", "reset")] fault: &str,
) {
    let world = world_of(&format!("chunks=2;chunk-delay=10;{fault}={events}")).await;
    let streamed = world.stream(chat_of(MODEL)).await;
    match streamed.status {
        200 => assert!(streamed.error().is_some(), "{streamed:?}"),
        status => assert_eq!((status, events < 3), (502, true), "{streamed:?}"),
    }
    // Two events come before the first word.
    let charges = world.nothing_held().await;
    assert_eq!(charges.len(), usize::from(events > 2), "{charges:?}");
    for charge in charges {
        let billed = world.sim.seen()[0].billed.expect("a bill");
        assert_eq!(charge.tokens().0, billed.prompt);
        assert!((billed.completion..=5).contains(&charge.tokens().1), "{charge:?} {billed:?}");
    }
}

#[rstest]
#[case::without_its_last_event("no-done", true)]
#[case::garbage("garbage", true)]
#[case::no_events("gzip", true)]
#[case::too_short("wrong-length=short", false)]
#[case::garbage_at_once("garbage", false)]
#[case::packed("gzip", false)]
#[case::half("cut=1", false)]
#[tokio::test]
async fn no_broken_answer_looks_like_a_success_and_the_next_call_works(
    #[case] fault: &str,
    #[case] stream: bool,
) {
    let world = world_of(&format!("{fault};times=1")).await;
    let answer = world.chat(with(chat_of(MODEL), &json!({ "stream": stream }))).await;
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(said.contains(r#""code":"upstream_error""#) && !said.contains("[DONE]"), "{said}");
    assert_eq!(answer.status, if fault == "no-done" { 200 } else { 502 }, "{answer:?}");
    let (message, _) = world.both_ways(&chat_of(MODEL)).await;
    assert_eq!(message["content"], TEXT);
    world.nothing_held().await;
}

/// Members that the messages format has no place for, and the field that is named.
fn untranslatable() -> [(Value, &'static str); 4] {
    let file = json!({ "type": "file", "file": { "file_id": "file-1" } });
    [
        (json!({ "n": 2 }), "n"),
        (json!({ "tools": [{ "type": "custom", "custom": { "name": "f" } }] }), "tools[0].type"),
        (of_user(&json!([{ "type": "input_audio" }])), "messages[0].content[0].type"),
        (of_user(&json!([file])), "messages[0].content[0].file.file_id"),
    ]
}

#[tokio::test]
async fn a_field_that_cannot_be_translated_is_refused() {
    let world = world_of("").await;
    for (members, field) in untranslatable() {
        let answer = world.chat(with(chat_of(MODEL), &members)).await;
        let expected = (400, "unsupported_parameter".to_owned());
        assert_eq!(answer.refusal_of(field), expected, "{members}");
        assert_eq!(answer.json()["error"]["param"], field, "{members}");
        assert_eq!(world.sim.seen().len(), 0, "{members}");
    }
    world.free_of_charge().await;
}

fn of_user(content: &Value) -> Value {
    json!({ "messages": [{ "role": "user", "content": content }] })
}

fn image(url: &str) -> Value {
    of_user(&json!([{ "type": "image_url", "image_url": { "url": url } }]))
}

fn of_call(arguments: &str) -> Value {
    let function = json!({ "name": "f", "arguments": arguments });
    let calls = json!([{ "id": "a", "type": "function", "function": function }]);
    json!({ "messages": [
        { "role": "user", "content": "hi" },
        { "role": "assistant", "tool_calls": calls },
        { "role": "tool", "tool_call_id": "a", "content": "1" },
    ] })
}

const ARGUMENTS: &str = "messages[1].tool_calls[0].function.arguments";

/// What does not translate, the members that are such, and the field that is named.
fn wrong_fields() -> Vec<(&'static str, Value, &'static str)> {
    let said = |role: &str| json!({ "messages": [{ "role": role, "content": "hi" }] });
    let nameless = json!({ "tools": [{ "type": "function", "function": {} }] });
    let unknown = json!({ "type": "function", "function": { "name": "nobody" } });
    let allowed = json!({ "mode": "auto", "tools": [unknown] });
    let allowed = json!({ "tool_choice": { "type": "allowed_tools", "allowed_tools": allowed } });
    vec![
        ("broken arguments", of_call("{"), ARGUMENTS),
        ("a list of arguments", of_call("[1]"), ARGUMENTS),
        ("arguments with a duplicate", of_call(r#"{"a":1,"a":2}"#), ARGUMENTS),
        ("two objects", of_call("{}{}"), ARGUMENTS),
        ("nothing said", of_user(&json!(" \n")), "messages[0].content"),
        ("no picture", image("data:text/plain;base64,aGk="), "messages[0].content[0]"),
        ("not base64", image("data:image/png;base64,a*b"), "messages[0].content[0]"),
        ("a local file", image("file:///etc/passwd"), "messages[0].content[0]"),
        ("only a system message", said("system"), "messages"),
        ("effort", json!({ "reasoning_effort": "extreme" }), "reasoning_effort"),
        ("format", json!({ "response_format": { "type": "xml" } }), "response_format"),
        ("choice", json!({ "tool_choice": { "type": "custom" } }), "tool_choice"),
        ("a tool that is not defined", allowed, "tool_choice.allowed_tools.tools[0]"),
        ("a nameless tool", nameless, "tools[0].function.name"),
        ("no function", json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
    ]
}

#[tokio::test]
async fn what_does_not_translate_is_named_and_no_vendor_hears_of_it() {
    let world = world_of("").await;
    for (what, members, param) in wrong_fields() {
        let call = with(chat_of(MODEL), &members);
        let call = if members["tool_choice"].is_null() {
            call
        } else {
            with(call, &json!({ "tools": tools(&["f"]) }))
        };
        let answer = world.chat(call).await;
        assert_eq!(answer.refusal_of(what).0, 400, "{what}: {answer:?}");
        let error = &answer.json()["error"];
        assert_eq!(error["type"], "invalid_request_error", "{what}: {error}");
        let is_named = error["param"].as_str().is_some_and(|p| p.starts_with(param));
        assert!(is_named, "{what}: {error}");
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    world.free_of_charge().await;
}
