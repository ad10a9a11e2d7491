//! Thinking that a chat client cannot carry is kept, and put back in the turn it belongs to.

use bytes::Bytes;
use rstest::rstest;
use serde_json::{Value as Json, json};

use super::golden::model;
use super::replies::{pass, translated};
use super::requests::{Outcome, translate, translate_with};

const MODEL: &str = "lma-opus-5";
const THINKING: &str =
    r#"{"type":"thinking","thinking":"Hm é \"\n","signature":"c2lnbmF0dXJl+/=="}"#;
const REDACTED: &str = r#"{"type":"redacted_thinking","data":"AAEC/w=="}"#;

/// A reply with thinking, a text and two calls, whose ids begin with `id`.
fn reply(id: &str) -> String {
    let blocks = [
        THINKING.to_owned(),
        REDACTED.to_owned(),
        r#"{"type":"text","text":"I look. "}"#.to_owned(),
        format!(r#"{{"type":"tool_use","id":"{id}1","name":"temp","input":{{"z":1,"a":"é"}}}}"#),
        format!(r#"{{"type":"tool_use","id":"{id}2","name":"now","input":{{}}}}"#),
    ];
    format!(
        r#"{{"id":"msg_1","type":"message","role":"assistant","model":"v","content":[{}],"stop_reason":"tool_use","usage":{{"input_tokens":1,"output_tokens":2}}}}"#,
        blocks.join(",")
    )
}

/// The same reply in events.
fn stream(id: &str) -> String {
    let block = |index: usize, begun: &str, deltas: &[&str]| {
        let at = format!(r#""index":{index}"#);
        let mut events =
            vec![format!(r#"{{"type":"content_block_start",{at},"content_block":{begun}}}"#)];
        events.extend(deltas.iter().map(|delta| {
            format!(r#"{{"type":"content_block_delta",{at},"delta":{{"type":{delta}}}}}"#)
        }));
        events.push(format!(r#"{{"type":"content_block_stop",{at}}}"#));
        events
    };
    let call = |n: &str, name: &str| {
        format!(r#"{{"type":"tool_use","id":"{id}{n}","name":"{name}","input":{{}}}}"#)
    };
    let think = |text: &str| format!(r#""thinking_delta","thinking":"{text}""#);
    let sign = |text: &str| format!(r#""signature_delta","signature":"{text}""#);
    let say = |text: &str| format!(r#""text_delta","text":"{text}""#);
    let input = |text: &str| format!(r#""input_json_delta","partial_json":"{text}""#);
    let start = r#"{"type":"message_start","message":{"id":"msg_1","type":"message","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}"#;
    let empty = r#"{"type":"thinking","thinking":"","signature":""}"#;
    let delta = r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":2}}"#;
    let events = [
        vec![start.to_owned(), r#"{"type":"ping"}"#.to_owned()],
        block(
            0,
            empty,
            &[&think("Hm "), &think(r#"é \"\n"#), &sign("c2lnbmF0dXJl"), &sign("+/==")],
        ),
        block(1, REDACTED, &[]),
        block(2, r#"{"type":"text","text":""}"#, &[&say("I "), &say("look. ")]),
        block(3, &call("1", "temp"), &[&input(r#"{\"z\":1,\"a"#), &input(r#"\":\"é\"}"#)]),
        block(4, &call("2", "now"), &[]),
        vec![delta.to_owned(), r#"{"type":"message_stop"}"#.to_owned()],
    ];
    let kind = |event: &str| event.split('"').nth(3).expect("a type").to_owned();
    let events = events.concat();
    events.iter().map(|e| format!("event: {}\ndata: {e}\n\n", kind(e))).collect()
}

/// What was kept of a reply, and the message that the client has of it.
fn exchanged(id: &str, streamed: bool) -> (Bytes, Json) {
    let whole = pass(translated(MODEL, false, true), false, reply(id).as_bytes(), 7);
    let (key, record) = if streamed {
        pass(translated(MODEL, false, true), true, stream(id).as_bytes(), 7).kept
    } else {
        whole.kept
    }
    .expect("a reply with thinking and a call is kept");
    assert_eq!(key, format!("{id}1"));
    let body: Json = serde_json::from_str(&whole.out).expect("a reply");
    (record, body["choices"][0]["message"].clone())
}

fn results(id: &str) -> Vec<Json> {
    ["1", "2"]
        .map(|n| json!({"role": "tool", "tool_call_id": format!("{id}{n}"), "content": n}))
        .to_vec()
}

fn request(messages: &[Json]) -> Bytes {
    let tool = |name| json!({"type": "function", "function": {"name": name}});
    let tools = [tool("temp"), tool("now")];
    let body = json!({"model": MODEL, "messages": messages, "tools": tools});
    Bytes::from(body.to_string())
}

fn question() -> Json {
    json!({"role": "user", "content": "How warm is it?"})
}

/// One step of a loop: the question, the reply, its results.
fn one_step(id: &str, message: &Json) -> Vec<Json> {
    let mut messages = vec![question(), message.clone()];
    messages.extend(results(id));
    messages
}

/// Whether the blocks were put back, and the body then.
fn restore(on: &str, messages: &[Json], ids: &[&str], kept: &[Option<Bytes>]) -> (bool, String) {
    let mut restored = false;
    let outcome = translate_with(model(on), request(messages), |translation| {
        assert_eq!(translation.tool_loop_ids(), ids);
        let found = translation.match_saved_thinking(kept);
        restored = found.is_some();
        found.into_iter().for_each(|found| translation.apply_thinking(found));
    });
    let Outcome::Body(body, _) = outcome else { panic!("{outcome:?}") };
    (restored, String::from_utf8(body).expect("text"))
}

fn without(on: &str, messages: &[Json]) -> String {
    let outcome = translate(model(on), request(messages));
    let Outcome::Body(body, _) = outcome else { panic!("{outcome:?}") };
    String::from_utf8(body).expect("text")
}

fn turn(body: &str, at: usize) -> Json {
    let body: Json = serde_json::from_str(body).expect("JSON");
    body["messages"][at]["content"].clone()
}

fn blocks(id: &str) -> Json {
    serde_json::from_str::<Json>(&reply(id)).expect("a reply")["content"].clone()
}

#[rstest]
#[case::whole(false)]
#[case::stream(true)]
fn a_turn_gets_its_blocks_back(#[case] streamed: bool) {
    let (record, message) = exchanged("toolu_a", streamed);
    assert!(message["content"] == "I look. " && message["reasoning_content"] == "Hm é \"\n");
    let messages = one_step("toolu_a", &message);
    let (restored, body) = restore(MODEL, &messages, &["toolu_a1"], &[Some(record)]);
    assert!(restored);
    assert_eq!(turn(&body, 1), blocks("toolu_a"));
    assert!(body.contains(REDACTED) && body.contains(THINKING), "{body}");
    assert_eq!(turn(&body, 2), turn(&without(MODEL, &messages), 2));
    assert_eq!(super::checker::check(body.as_bytes()), Ok(()));
}

#[test]
fn every_turn_of_a_loop_gets_its_own_blocks_back() {
    let (first, message) = exchanged("toolu_a", false);
    let (second, next) = exchanged("toolu_b", true);
    let mut messages = one_step("toolu_a", &message);
    messages.push(next);
    messages.extend(results("toolu_b"));
    let ids = ["toolu_a1", "toolu_b1"];
    let kept = [Some(first.clone()), Some(second.clone())];
    let (restored, body) = restore(MODEL, &messages, &ids, &kept);
    assert!(restored);
    assert_eq!((turn(&body, 1), turn(&body, 3)), (blocks("toolu_a"), blocks("toolu_b")));
    for kept in [[None, Some(second.clone())], [Some(first.clone()), None], [None, None]] {
        let (restored, body) = restore(MODEL, &messages, &ids, &kept);
        assert!(!restored);
        assert_eq!(body, without(MODEL, &messages));
    }
    let (restored, body) = restore(MODEL, &messages, &ids, &[Some(second), Some(first)]);
    assert!(!restored, "blocks of another turn were put in");
    assert_eq!(body, without(MODEL, &messages));
}

#[test]
fn only_the_current_loop_is_looked_up() {
    let (_, message) = exchanged("toolu_a", false);
    let (second, next) = exchanged("toolu_b", false);
    let mut messages = one_step("toolu_a", &message);
    messages.push(json!({"role": "assistant", "content": "It is warm."}));
    messages.push(json!({"role": "user", "content": "And now?"}));
    messages.push(next);
    messages.extend(results("toolu_b"));
    let (restored, body) = restore(MODEL, &messages, &["toolu_b1"], &[Some(second)]);
    assert!(restored);
    assert_eq!(turn(&body, 5), blocks("toolu_b"));
    assert_eq!(turn(&body, 1), turn(&without(MODEL, &messages), 1));
}

#[test]
fn who_sends_no_results_has_no_loop() {
    let (_, message) = exchanged("toolu_a", false);
    let mut messages = one_step("toolu_a", &message);
    messages.push(json!({"role": "assistant", "content": "It is warm."}));
    messages.push(json!({"role": "user", "content": "Thanks"}));
    let outcome = translate_with(model(MODEL), request(&messages), |translation| {
        assert!(translation.tool_loop_ids().is_empty());
    });
    assert!(matches!(outcome, Outcome::Body(..)), "{outcome:?}");
    let outcome = translate_with(model(MODEL), request(&[question()]), |translation| {
        assert!(translation.tool_loop_ids().is_empty());
    });
    assert!(matches!(outcome, Outcome::Body(..)), "{outcome:?}");
}

/// What a client may do to a message of ours.
type Edit = fn(&mut Json);

#[rstest]
#[case::text(|m: &mut Json| m["content"] = "I look!".into())]
#[case::text_gone(|m: &mut Json| m["content"] = Json::Null)]
#[case::more_text(|m: &mut Json| {
    m["content"] = json!([{"type": "text", "text": "I look. "}, {"type": "text", "text": "x"}]);
})]
#[case::name(|m: &mut Json| m["tool_calls"][0]["function"]["name"] = "now".into())]
#[case::arguments(|m: &mut Json| {
    m["tool_calls"][0]["function"]["arguments"] = "{\"z\":2,\"a\":\"é\"}".into();
})]
#[case::second_arguments(|m: &mut Json| {
    m["tool_calls"][1]["function"]["arguments"] = "{\"a\":1}".into();
})]
#[case::call_gone(|m: &mut Json| m["tool_calls"] = json!([m["tool_calls"][0]]))]
#[case::call_added(|m: &mut Json| {
    let mut more = m["tool_calls"][1].clone();
    more["id"] = "toolu_a3".into();
    m["tool_calls"] = json!([m["tool_calls"][0], m["tool_calls"][1], more]);
})]
#[case::calls_turned(|m: &mut Json| {
    let mut second = m["tool_calls"][1].clone();
    second["id"] = "toolu_a1".into();
    let mut first = m["tool_calls"][0].clone();
    first["id"] = "toolu_a2".into();
    m["tool_calls"] = json!([second, first]);
})]
#[case::second_id(|m: &mut Json| m["tool_calls"][1]["id"] = "toolu_x".into())]
fn a_turn_that_the_client_edited_gets_nothing_back(#[case] edit: Edit) {
    let (record, mut message) = exchanged("toolu_a", false);
    edit(&mut message);
    let messages = one_step("toolu_a", &message);
    let (restored, body) = restore(MODEL, &messages, &["toolu_a1"], &[Some(record)]);
    assert!(!restored);
    assert_eq!(body, without(MODEL, &messages));
    assert!(!body.contains("thinking"), "{body}");
}

#[rstest]
#[case::parts(|m: &mut Json| m["content"] = json!([{"type": "text", "text": "I look. "}]))]
#[case::reasoning_gone(|m: &mut Json| {
    m.as_object_mut().expect("a message").remove("reasoning_content");
})]
#[case::arguments_written_otherwise(|m: &mut Json| {
    m["tool_calls"][0]["function"]["arguments"] = "{ \"z\" : 1, \"a\" : \"é\" }".into();
})]
fn a_turn_that_says_the_same_gets_its_blocks_back(#[case] edit: Edit) {
    let (record, mut message) = exchanged("toolu_a", false);
    edit(&mut message);
    let messages = one_step("toolu_a", &message);
    let (restored, body) = restore(MODEL, &messages, &["toolu_a1"], &[Some(record)]);
    assert!(restored, "{body}");
    assert_eq!(turn(&body, 1), blocks("toolu_a"));
}

#[test]
fn thinking_of_one_model_is_not_given_to_another() {
    let (record, message) = exchanged("toolu_a", false);
    let messages = one_step("toolu_a", &message);
    for other in ["lma-sonnet-5", "lma-opus-4-6"] {
        let (restored, body) = restore(other, &messages, &["toolu_a1"], &[Some(record.clone())]);
        assert!(!restored);
        assert_eq!(body, without(other, &messages));
    }
}

#[rstest]
#[case::empty(b"")]
#[case::other(b"{}")]
#[case::garbage(b"\x00\xff[")]
fn a_record_that_is_none_restores_nothing(#[case] record: &'static [u8]) {
    let (_, message) = exchanged("toolu_a", false);
    let messages = one_step("toolu_a", &message);
    let kept = [Some(Bytes::from_static(record))];
    let (restored, body) = restore(MODEL, &messages, &["toolu_a1"], &kept);
    assert!(!restored);
    assert_eq!(body, without(MODEL, &messages));
}

#[test]
fn nothing_is_kept_that_nobody_asks_for() {
    let no_call = r#"{"id":"msg_1","type":"message","content":[{"type":"text","text":"x"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1}}"#;
    assert_eq!(pass(translated(MODEL, false, true), false, no_call.as_bytes(), 64).kept, None);
    assert_eq!(pass(translated(MODEL, false, false), false, reply("a").as_bytes(), 64).kept, None);
    assert_eq!(pass(translated(MODEL, false, false), true, stream("a").as_bytes(), 64).kept, None);
    let cut = stream("a");
    let cut = &cut.as_bytes()[..cut.len() - 60];
    assert_eq!(pass(translated(MODEL, false, true), true, cut, 64).kept, None);
}

#[test]
fn what_is_too_large_to_keep_is_not_kept() {
    let large = reply("a").replace("Hm é", &"x".repeat(300 << 10));
    assert_eq!(pass(translated(MODEL, false, true), false, large.as_bytes(), 4096).kept, None);
    let fits = reply("a").replace("Hm é", &"x".repeat(200 << 10));
    assert!(pass(translated(MODEL, false, true), false, fits.as_bytes(), 4096).kept.is_some());
}
