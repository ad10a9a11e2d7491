//! Streams and whole replies through the relay, however they are cut.

use bytes::Bytes;
use proptest::prelude::*;
use rstest::rstest;

use super::{Break, Passage, Progress, Relay};
use crate::money::Basis;

fn chat_stream(usage_asked: bool, choices: u64) -> Relay {
    Relay::new(Passage::Chat { usage_asked, choices }, true)
}

fn run(mut relay: Relay, reply: &str, size: usize) -> (String, Relay) {
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
    let (out, relay) = run(chat_stream(true, 1), &stream, size);
    assert_eq!(out, stream);
    assert_eq!(relay.progress(), &Progress::Complete);
    assert_eq!(relay.meter().usage(0).tokens.input, 9);
}

#[rstest]
#[case::bytes(1)]
#[case::sevens(7)]
#[case::at_once(10_000)]
fn who_did_not_ask_sees_no_usage(#[case] size: usize) {
    let stream = format!("{TEXT}\n\n{END}\n\n{USAGE}\n\ndata: [DONE]\n\n");
    let (out, relay) = run(chat_stream(false, 1), &stream, size);
    let text = TEXT.replace(r#","usage":null"#, "");
    assert_eq!(out, format!("{text}\n\n{END}\n\ndata: [DONE]\n\n"));
    assert_eq!(relay.meter().usage(0).basis, Basis::Reported);
}

#[test]
fn usage_on_the_finish_chunk_is_taken_off_it_and_counted() {
    let finish = r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
    let (out, relay) = run(chat_stream(false, 1), &format!("{finish}\n\ndata: [DONE]\n\n"), 10_000);
    assert_eq!(
        out,
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
    );
    assert_eq!(relay.meter().usage(0).tokens.output, 4);
}

#[rstest]
#[case::cut_between_events(&format!("{TEXT}\n\n"), Break::Cut)]
#[case::cut_inside_an_event(&TEXT[..40], Break::Garbage)]
#[case::garbage("data: <html>\n\n", Break::Garbage)]
fn a_broken_stream_ends_with_an_error_event(#[case] stream: &str, #[case] why: Break) {
    let (out, relay) = run(chat_stream(true, 1), stream, 7);
    let last = out.trim_end().rsplit("\n\n").next().expect("an event");
    assert!(last.starts_with(r#"data: {"error":{"message":"the vendor"#), "{out}");
    assert!(!out.contains("[DONE]"));
    assert_eq!(relay.progress(), &Progress::Broken(why));
}

#[test]
fn a_vendors_error_event_is_told_in_our_shape_and_ends_the_stream() {
    let stream = format!("{TEXT}\n\ndata: {{\"code\":\"x\",\"error\":\"busy\"}}\n\n{TEXT}\n\n");
    let (out, relay) = run(chat_stream(true, 1), &stream, 10_000);
    let error = r#"{"error":{"message":"busy","type":"server_error","param":null,"code":"upstream_error"}}"#;
    assert_eq!(out, format!("{TEXT}\n\ndata: {error}\n\n"));
    assert!(matches!(relay.progress(), Progress::Broken(Break::Told(_))));
    assert_eq!(relay.meter().usage(40).basis, Basis::Counted);
    assert_eq!(relay.meter().usage(40).tokens.input, 10);
    assert_eq!(relay.meter().usage(40).tokens.output, 1);
}

#[test]
fn a_stream_that_finished_but_was_not_closed_with_done_is_closed() {
    let (out, relay) = run(chat_stream(true, 1), &format!("{END}\n\n{USAGE}\n\n"), 10_000);
    assert!(out.ends_with("data: [DONE]\n\n"));
    assert_eq!(relay.progress(), &Progress::Complete);
}

#[test]
fn a_stream_of_two_choices_is_not_complete_when_one_has_ended() {
    let (out, relay) = run(chat_stream(true, 2), &format!("{TEXT}\n\n{END}\n\n"), 64);
    assert!(!out.contains("[DONE]"), "{out}");
    assert_eq!(relay.progress(), &Progress::Broken(Break::Cut));
}

#[test]
fn a_cut_stream_is_not_charged_less_than_it_sent_because_an_early_report_was_low() {
    let early = r#"data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":0}}"#;
    let (_, relay) = run(chat_stream(true, 1), &format!("{early}\n\n{TEXT}\n\n{TEXT}\n\n"), 64);
    let usage = relay.meter().usage_so_far(400);
    assert_eq!((usage.tokens.input, usage.tokens.output, usage.basis), (9, 3, Basis::Counted));
}

#[rstest]
#[case::cut(r#"{"choices":["#)]
#[case::garbage("<html>")]
#[case::two(r#"{"usage":null}{"usage":null}"#)]
fn half_a_reply_is_never_passed_on(#[case] reply: &str) {
    let (out, relay) =
        run(Relay::new(Passage::Chat { usage_asked: true, choices: 1 }, false), reply, 3);
    assert_eq!(out, "");
    assert_eq!(relay.progress(), &Progress::Broken(Break::Garbage));
}

#[test]
fn a_whole_reply_without_usage_is_counted() {
    let reply =
        r#"{"choices":[{"message":{"role":"assistant","content":"12345678"}}],"usage":null}"#;
    let (out, relay) =
        run(Relay::new(Passage::Chat { usage_asked: true, choices: 1 }, false), reply, 9);
    assert_eq!(out, reply);
    let usage = relay.meter().usage(4_000);
    assert_eq!((usage.tokens.input, usage.tokens.output, usage.basis), (1_000, 2, Basis::Counted));
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_stream_and_usage(
        events in proptest::collection::vec(prop_oneof![
            Just(TEXT), Just(END), Just(USAGE), Just(": ping"), Just("data: [DONE]"),
            Just("data: {"),
        ], 0..8),
        asked: bool,
        size in 1..200usize,
    ) {
        let stream: String = events.iter().map(|e| format!("{e}\n\n")).collect();
        let (once, whole) = run(chat_stream(asked, 1), &stream, usize::MAX);
        let (cut, pieces) = run(chat_stream(asked, 1), &stream, size);
        prop_assert_eq!(once, cut);
        prop_assert_eq!(whole.progress(), pieces.progress());
        prop_assert_eq!(whole.meter().usage(8), pieces.meter().usage(8));
    }
}
