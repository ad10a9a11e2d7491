//! Streams and whole replies through the relay, however they are cut.

use bytes::Bytes;
use proptest::prelude::*;
use rstest::rstest;

use super::{Relay, RelayError, RelayMode, RelayProgress, RetainedData};
use crate::dialect::meter::bounds::UsageBounds;
use crate::dialect::translate::reply::ReplyMetadata;
use crate::money::{BilledUnits, UsageBasis};

fn chat_stream(include_usage: bool, choices: u64) -> Relay {
    Relay::new(RelayMode::Chat { include_usage, choices }, true)
}

fn run_relay(mut relay: Relay, reply: &str, size: usize) -> (String, Relay) {
    let mut out = Vec::new();
    for chunk in reply.as_bytes().chunks(size.max(1)) {
        out.extend(relay.push(Bytes::copy_from_slice(chunk)));
    }
    out.extend(relay.finish());
    (String::from_utf8(out.concat()).expect("text"), relay)
}

const TEXT: &str =
    r#"data: {"choices":[{"index":0,"delta":{"content":"Hé"},"finish_reason":null}],"usage":null}"#;
const END: &str = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str =
    r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14}}"#;

#[rstest]
#[case::bytes(1)]
#[case::sevens(7)]
#[case::lines(64)]
#[case::at_once(10_000)]
fn a_stream_passes_unchanged_to_who_asked_for_usage(#[case] size: usize) {
    let stream = format!("{TEXT}\n\n: ping\n\n{END}\n\n{USAGE}\n\ndata: [DONE]\n\n");
    let (out, relay) = run_relay(chat_stream(true, 1), &stream, size);
    assert_eq!(out, stream);
    assert_eq!(relay.progress(), &RelayProgress::Complete);
    assert_eq!(relay.meter().expect("a text").usage(0).tokens.input, 9);
}

#[rstest]
#[case::bytes(1)]
#[case::sevens(7)]
#[case::at_once(10_000)]
fn who_did_not_ask_sees_no_usage(#[case] size: usize) {
    let stream = format!("{TEXT}\n\n{END}\n\n{USAGE}\n\ndata: [DONE]\n\n");
    let (out, relay) = run_relay(chat_stream(false, 1), &stream, size);
    let text = TEXT.replace(r#","usage":null"#, "");
    assert_eq!(out, format!("{text}\n\n{END}\n\ndata: [DONE]\n\n"));
    assert_eq!(relay.meter().expect("a text").usage(0).basis, UsageBasis::Reported);
}

#[test]
fn usage_on_the_finish_chunk_is_taken_off_it_and_counted() {
    let finish = r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
    let (out, relay) =
        run_relay(chat_stream(false, 1), &format!("{finish}\n\ndata: [DONE]\n\n"), 10_000);
    assert_eq!(
        out,
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
    );
    assert_eq!(relay.meter().expect("a text").usage(0).tokens.output, 4);
}

#[rstest]
#[case::cut_between_events(&format!("{TEXT}\n\n"), RelayError::Truncated)]
#[case::cut_inside_an_event(&TEXT[..40], RelayError::Malformed)]
#[case::garbage("data: <html>\n\n", RelayError::Malformed)]
fn a_broken_stream_ends_with_an_error_event(#[case] stream: &str, #[case] why: RelayError) {
    let (out, relay) = run_relay(chat_stream(true, 1), stream, 7);
    let last = out.trim_end().rsplit("\n\n").next().expect("an event");
    assert!(last.starts_with(r#"data: {"error":{"message":"the vendor"#), "{out}");
    assert!(!out.contains("[DONE]"));
    assert_eq!(relay.progress(), &RelayProgress::Failed(why));
}

#[rstest]
#[case::chat(
    RelayMode::Chat { include_usage: true, choices: 1 },
    "data: {\"error\":{",
    r#""type":"permission_error","param":null,"code":"account_suspended"}"#
)]
#[case::messages(
    RelayMode::Messages { request_id: "r".to_owned() },
    "event: error\ndata: {",
    r#""error":{"type":"permission_error","message":"the account is suspended"}"#
)]
#[case::responses(RelayMode::Responses, "event: error\ndata: {", r#""code":"account_suspended""#)]
fn a_stream_of_a_suspended_account_ends_with_an_error_in_the_format_of_its_client(
    #[case] mode: RelayMode,
    #[case] begin: &str,
    #[case] told: &str,
) {
    let mut relay = Relay::new(mode, true);
    let event = relay.fail(RelayError::AccountSuspended).expect("an event");
    let event = String::from_utf8(event.to_vec()).expect("text");
    assert!(event.starts_with(begin) && event.contains(told) && event.ends_with("\n\n"), "{event}");
    assert_eq!(relay.progress(), &RelayProgress::Failed(RelayError::AccountSuspended));
    assert_eq!(relay.push(Bytes::from(format!("{TEXT}\n\n"))), None, "nothing follows it");
    assert_eq!(relay.billable_usage(9), None, "nothing was passed on");
}

#[test]
fn a_vendors_error_event_is_told_in_our_shape_and_ends_the_stream() {
    let stream = format!("{TEXT}\n\ndata: {{\"code\":\"x\",\"error\":\"busy\"}}\n\n{TEXT}\n\n");
    let (out, relay) = run_relay(chat_stream(true, 1), &stream, 10_000);
    let error = r#"{"error":{"message":"busy","type":"server_error","param":null,"code":"x"}}"#;
    assert_eq!(out, format!("{TEXT}\n\ndata: {error}\n\n"));
    assert!(matches!(relay.progress(), RelayProgress::Failed(RelayError::Vendor(_))));
    assert_eq!(relay.meter().expect("a text").usage(10).basis, UsageBasis::Counted);
    assert_eq!(relay.meter().expect("a text").usage(10).tokens.input, 10);
    assert_eq!(relay.meter().expect("a text").usage(10).tokens.output, 5);
}

#[test]
fn a_stream_that_finished_but_was_not_closed_with_done_is_closed() {
    let (out, relay) = run_relay(chat_stream(true, 1), &format!("{END}\n\n{USAGE}\n\n"), 10_000);
    assert!(out.ends_with("data: [DONE]\n\n"));
    assert_eq!(relay.progress(), &RelayProgress::Complete);
}

#[test]
fn a_stream_of_two_choices_is_not_complete_when_one_has_ended() {
    let (out, relay) = run_relay(chat_stream(true, 2), &format!("{TEXT}\n\n{END}\n\n"), 64);
    assert!(!out.contains("[DONE]"), "{out}");
    assert_eq!(relay.progress(), &RelayProgress::Failed(RelayError::Truncated));
}

#[test]
fn a_cut_stream_is_not_charged_less_than_it_sent_because_an_early_report_was_low() {
    let early = r#"data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":0}}"#;
    let (_, relay) =
        run_relay(chat_stream(true, 1), &format!("{early}\n\n{TEXT}\n\n{TEXT}\n\n"), 64);
    let usage = relay.meter().expect("a text").usage_so_far(400);
    assert_eq!((usage.tokens.input, usage.tokens.output, usage.basis), (9, 9, UsageBasis::Counted));
}

#[rstest]
#[case::cut(r#"{"choices":["#)]
#[case::garbage("<html>")]
#[case::two(r#"{"usage":null}{"usage":null}"#)]
fn half_a_reply_is_never_passed_on(#[case] reply: &str) {
    let (out, relay) =
        run_relay(Relay::new(RelayMode::Chat { include_usage: true, choices: 1 }, false), reply, 3);
    assert_eq!(out, "");
    assert_eq!(relay.progress(), &RelayProgress::Failed(RelayError::Malformed));
}

#[test]
fn a_whole_reply_without_usage_is_counted() {
    let reply =
        r#"{"choices":[{"message":{"role":"assistant","content":"12345678"}}],"usage":null}"#;
    let (out, relay) =
        run_relay(Relay::new(RelayMode::Chat { include_usage: true, choices: 1 }, false), reply, 9);
    assert_eq!(out, reply);
    let usage = relay.meter().expect("a text").usage(1_000);
    assert_eq!(
        (usage.tokens.input, usage.tokens.output, usage.basis),
        (1_000, 6, UsageBasis::Counted)
    );
}

#[test]
fn data_on_several_lines_lost_its_line_names_when_usage_was_taken_out() {
    let lines = [r#"{"choices":[{"index":0,"#, r#""delta":{"content":"x"}}],"#, r#""usage":null}"#];
    let chunk = format!("data: {}", lines.join("\ndata: "));
    let (out, _) = run_relay(chat_stream(false, 1), &format!("{chunk}\n\n"), 10_000);
    let one = r#"data: {"choices":[{"index":0,"delta":{"content":"x"}}]}"#;
    assert!(out.starts_with(&format!("{one}\n\n")), "{out}");
}

/// A messages stream of these events.
fn messages_stream(events: &[(&str, &str)]) -> String {
    let event = |(kind, rest): &(&str, &str)| {
        format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n")
    };
    events.iter().map(event).collect()
}

const START: (&str, &str) = (
    "message_start",
    r#","message":{"id":"msg_1","usage":{"input_tokens":100,"output_tokens":1}}"#,
);
const BLOCK: (&str, &str) =
    ("content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#);
const WORDS: (&str, &str) =
    ("content_block_delta", r#","index":0,"delta":{"type":"text_delta","text":"twelve bytes"}"#);
const STOP: (&str, &str) = ("message_stop", "");

fn run_both_formats(events: &[(&str, &str)]) -> [Relay; 2] {
    let metadata = ReplyMetadata {
        model: "m".to_owned(),
        created: 1,
        input_tokens: 0.into(),
        include_usage: true,
        save_thinking: true,
    };
    let native = RelayMode::Messages { request_id: "r".to_owned() };
    [native, RelayMode::Translated(metadata)]
        .map(|passage| run_relay(Relay::new(passage, true), &messages_stream(events), 50).1)
}

#[rstest]
#[case::empty(r#","delta":{},"usage":{}"#)]
#[case::no_object(r#","delta":{},"usage":7"#)]
#[case::null_output(r#","delta":{},"usage":{"output_tokens":null}"#)]
#[case::only_input(r#","delta":{},"usage":{"input_tokens":100}"#)]
fn a_report_without_output_made_the_early_count_final(#[case] delta: &str) {
    for relay in
        run_both_formats(&[START, BLOCK, WORDS, WORDS, WORDS, ("message_delta", delta), STOP])
    {
        assert_eq!(relay.progress(), &RelayProgress::Complete);
        let usage = relay.meter().expect("a text").usage(0);
        assert_eq!((usage.tokens.output, usage.basis), (7, UsageBasis::Counted));
    }
}

#[test]
fn what_came_after_a_report_was_free_if_the_stream_was_cut() {
    let report = ("message_delta", r#","delta":{},"usage":{"output_tokens":1}"#);
    for relay in run_both_formats(&[START, BLOCK, report, WORDS, WORDS, WORDS]) {
        assert_eq!(relay.progress(), &RelayProgress::Failed(RelayError::Truncated));
        assert_eq!(relay.meter().expect("a text").usage_so_far(0).tokens.output, 8);
    }
}

#[test]
fn a_last_report_was_set_aside_for_a_count_when_only_the_stop_was_missing() {
    let report = ("message_delta", r#","delta":{},"usage":{"output_tokens":2}"#);
    for relay in run_both_formats(&[START, BLOCK, WORDS, report]) {
        let usage = relay.meter().expect("a text").usage_so_far(0);
        assert_eq!((usage.tokens.output, usage.basis), (2, UsageBasis::Reported));
    }
}

#[test]
fn a_stream_was_ended_over_the_report_of_what_it_had_generated() {
    let report = ("message_delta", r#","delta":{},"usage":{"output_tokens":900}"#);
    for (events, is_final) in [
        (&[START, BLOCK, WORDS, report][..], true),
        (&[START, BLOCK, WORDS, report, WORDS][..], false),
        (&[START, BLOCK, WORDS][..], false),
    ] {
        for relay in run_both_formats(events) {
            assert_eq!(relay.has_final_report(), is_final, "{events:?}");
        }
    }
    let with_usage = &*TEXT.replace(
        r#""usage":null"#,
        r#""usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14}"#,
    );
    for (chunks, is_final) in [
        (&[TEXT, END, USAGE][..], true),
        (&[with_usage, END][..], true),
        (&[with_usage, with_usage][..], false),
        (&[TEXT, END][..], false),
    ] {
        let stream: String = chunks.iter().map(|chunk| format!("{chunk}\n\n")).collect();
        let (_, relay) = run_relay(chat_stream(true, 1), &stream, 10_000);
        assert_eq!(relay.has_final_report(), is_final, "{chunks:?}");
    }
}

#[test]
fn text_of_a_block_that_never_began_was_paid_and_not_heard() {
    let [_, translated] = run_both_formats(&[START, WORDS, STOP]);
    assert_eq!(translated.progress(), &RelayProgress::Failed(RelayError::Malformed));
}

#[test]
fn a_reply_with_a_number_beyond_a_double_was_paid_and_not_passed_on() {
    let number = "7".repeat(617);
    let reply = format!(
        r#"{{"id":"msg_1","content":[{{"type":"tool_use","id":"t","name":"f","input":{{"n":{number}}}}}],"stop_reason":"tool_use","usage":{{"input_tokens":1,"output_tokens":2}}}}"#
    );
    let native = RelayMode::Messages { request_id: "r".to_owned() };
    let (out, relay) = run_relay(Relay::new(native, false), &reply, 100);
    assert_eq!(out, reply);
    assert_eq!(relay.meter().expect("a text").usage(0).tokens.output, 2);
}

#[rstest]
#[case::blank_text(r#"{"type":"text","text":"\n\n"}"#, "", Some("sig"))]
#[case::no_signature("", "", None)]
#[case::input_cut("", "{\"a\":", Some("sig"))]
fn what_the_vendor_does_not_take_back_is_not_kept(
    #[case] block: &str,
    #[case] input: &str,
    #[case] signature: Option<&str>,
) {
    let think = r#","index":0,"content_block":{"type":"thinking","thinking":"hm"}"#;
    let sign = signature.map_or_else(String::new, |s| {
        format!(r#","index":0,"delta":{{"type":"signature_delta","signature":"{s}"}}"#)
    });
    let text = format!(r#","index":1,"content_block":{block}"#);
    let call = r#","index":2,"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}}"#;
    let piece = input.replace('"', "\\\"");
    let piece =
        format!(r#","index":2,"delta":{{"type":"input_json_delta","partial_json":"{piece}"}}"#);
    let mut events = vec![START, ("content_block_start", think)];
    events.extend(signature.map(|_| ("content_block_delta", sign.as_str())));
    events.push(("content_block_stop", r#","index":0"#));
    if !block.is_empty() {
        events.extend([("content_block_start", &*text), ("content_block_stop", r#","index":1"#)]);
    }
    events.push(("content_block_start", call));
    events.push(("content_block_delta", &piece));
    events.extend([("content_block_stop", r#","index":2"#), STOP]);
    let [_, mut translated] = run_both_formats(&events);
    assert_eq!(translated.progress(), &RelayProgress::Complete);
    let record = match translated.take_retained() {
        Some(RetainedData::Thinking(kept)) => Some(String::from_utf8(kept.record.to_vec())),
        _ => None,
    };
    let expected = concat!(
        r#"{"model":"m","content":[{"type":"thinking","thinking":"hm","signature":"sig"},"#,
        r#"{"type":"tool_use","id":"t1","name":"f","input":{}}]}"#
    );
    let kept = (signature.is_some() && input.is_empty()).then(|| Ok(expected.to_owned()));
    assert_eq!(record, kept);
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_stream_and_usage(
        events in proptest::collection::vec(prop_oneof![
            Just(TEXT), Just(END), Just(USAGE), Just(": ping"), Just("data: [DONE]"),
            Just("data: {"),
        ], 0..8),
        include_usage: bool,
        size in 1..200usize,
    ) {
        let stream: String = events.iter().map(|e| format!("{e}\n\n")).collect();
        let (once, whole) = run_relay(chat_stream(include_usage, 1), &stream, usize::MAX);
        let (cut, pieces) = run_relay(chat_stream(include_usage, 1), &stream, size);
        prop_assert_eq!(once, cut);
        prop_assert_eq!(whole.progress(), pieces.progress());
        prop_assert_eq!(whole.billable_usage(8), pieces.billable_usage(8));
    }
}

/// Returns replies without hidden reasoning, with texts of `bytes` bytes and reports of `output`
/// tokens.
fn long_replies(bytes: usize, output: u64, status: &str) -> [(RelayMode, bool, String); 6] {
    let text = "a".repeat(bytes);
    let chat = RelayMode::Chat { include_usage: true, choices: 1 };
    let usage = format!(r#"{{"prompt_tokens":9,"completion_tokens":{output}}}"#);
    let native = format!(r#"{{"input_tokens":9,"output_tokens":{output}}}"#);
    let response = format!(
        r#"{{"id":"r","status":"{status}","output":[{{"type":"message","content":[{{"type":"output_text","text":"{text}"}}]}}],"usage":{native}}}"#
    );
    let message =
        |message: &str| format!(r#"{{"choices":[{{"message":{message}}}],"usage":{usage}}}"#);
    let delta = format!(r#"data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
    [
        (chat.clone(), false, message(&format!(r#"{{"content":"{text}"}}"#))),
        (chat.clone(), false, message(&format!(r#"{{"function_call":{{"arguments":"{text}"}}}}"#))),
        (
            chat.clone(),
            false,
            message(&format!(r#"{{"tool_calls":[{{"custom":{{"input":"{text}"}}}}]}}"#)),
        ),
        (
            chat,
            true,
            format!("{delta}\n\ndata: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n"),
        ),
        (
            RelayMode::Messages { request_id: "q".to_owned() },
            false,
            format!(r#"{{"content":[{{"type":"text","text":"{text}"}}],"usage":{native}}}"#),
        ),
        (RelayMode::Responses, false, response),
    ]
}

#[rstest]
#[case::a_token_a_byte(20_000, 20_000, true)]
#[case::little_beyond_what_is_seen(0, 4_096, true)]
#[case::more_than_was_seen(40, 4_096 + 16 * 20, false)]
#[case::absurd(20_000, 900_000_000, false)]
fn where_all_output_is_seen_a_report_is_held_to_it(
    #[case] bytes: usize,
    #[case] output: u64,
    #[case] is_believed: bool,
    #[values("completed", "failed")] status: &str,
) {
    for (passage, stream, reply) in long_replies(bytes, output, status) {
        let bounds = UsageBounds { output_is_visible: true, ..UsageBounds::default() };
        let is_response = passage == RelayMode::Responses;
        let (_, relay) = run_relay(Relay::new(passage, stream).with_bounds(bounds), &reply, 10_000);
        let due = relay.billable_usage(7);
        if is_response && status == "failed" && !is_believed {
            assert_eq!(due, None, "it failed, and no report of it is believed");
            continue;
        }
        let usage = due.expect("it is complete");
        let expected = if is_believed { UsageBasis::Reported } else { UsageBasis::Counted };
        assert_eq!(usage.basis, expected, "{reply:.80}");
        let rejected = relay
            .rejected_usage()
            .map(|units| matches!(units, BilledUnits::Tokens(t) if t.output == output));
        assert_eq!(rejected, (!is_believed).then_some(true), "{reply:.80}");
        let tokens = usage.tokens();
        assert_eq!(tokens.input, if is_believed { 9 } else { 7 });
        assert!(is_believed || tokens.output <= bytes as u64, "{tokens:?}");
    }
}
