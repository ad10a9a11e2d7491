//! Streams of messages events become streams of chat chunks.

use bytes::Bytes;
use tollgate::dialect::relay::{Relay, RelayError, RelayProgress};
use tollgate::money::UsageBasis;

use super::golden::{CHUNK_SIZES, Golden, goldens, judge};
use super::replies::{Passed, pass, translated};

const CUT: &str = r#"data: {"error":{"message":"the vendor's reply ended before it was complete","type":"server_error","param":null,"code":"upstream_error"}}"#;

fn pass_golden(golden: &Golden, stream: &[u8], size: usize) -> Passed {
    let usage_asked = golden.json("usage_asked").as_bool().expect("a flag");
    pass(translated(&golden.text("model"), usage_asked, true), true, stream, size)
}

#[test]
fn every_golden_stream_becomes_what_is_expected_however_it_is_cut() {
    judge(&goldens("messages_to_chat_stream", 46), |golden| {
        let given = golden.beside("sse");
        passes_as_expected(golden, |size| pass_golden(golden, &given, size))
    });
}

/// Whether a stream in pieces of any size becomes what the case expects and ends as it says.
pub(super) fn passes_as_expected(
    golden: &Golden,
    pass: impl Fn(usize) -> Passed,
) -> Result<(), String> {
    let expected = String::from_utf8(golden.beside("expect.sse")).expect("text");
    for size in CHUNK_SIZES {
        let passed = pass(size);
        if passed.out != expected {
            return Err(format!("in {size}s\n  is\n{}\n  not\n{expected}", passed.out));
        }
        ended_rightly(golden, &passed)?;
        golden.agrees_on_usage(passed.tokens)?;
    }
    Ok(())
}

fn ended_rightly(golden: &Golden, passed: &Passed) -> Result<(), String> {
    let right = match &*golden.text("outcome") {
        "complete" => {
            passed.progress == RelayProgress::Complete && passed.basis == UsageBasis::Reported
        }
        _ => matches!(passed.progress, RelayProgress::Failed(_)),
    };
    if right { Ok(()) } else { Err(format!("ended as {:?}", passed.progress)) }
}

/// The events of a stream whose lines end in one byte, each with its blank line.
fn events(stream: &str) -> Vec<&str> {
    stream.split_inclusive("\n\n").collect()
}

/// The number of events up to the end of the message.
fn length(events: &[&str]) -> Option<usize> {
    events.iter().position(|event| event.contains(r#""type":"message_stop""#)).map(|at| at + 1)
}

#[test]
fn a_stream_cut_after_any_event_says_so_and_is_never_done() {
    let mut cuts = 0;
    judge(&goldens("messages_to_chat_stream", 46), |golden| {
        let given = String::from_utf8(golden.beside("sse")).expect("text");
        let uncut = pass_golden(golden, given.as_bytes(), usize::MAX).out;
        let events = events(&given);
        let Some(length) = length(&events).filter(|_| golden.text("outcome") == "complete") else {
            return Ok(());
        };
        for kept in 0..length {
            let passed = pass_golden(golden, events[..kept].concat().as_bytes(), 64);
            let Some(before) = passed.out.strip_suffix(&format!("{CUT}\n\n")) else {
                return Err(format!("after {kept} events it ends otherwise:\n{}", passed.out));
            };
            if passed.progress != RelayProgress::Failed(RelayError::Truncated)
                || !uncut.starts_with(before)
            {
                return Err(format!("after {kept} events: {passed:?}"));
            }
            if kept > 0 && passed.tokens.input == 0 {
                return Err(format!("after {kept} events the input is not known"));
            }
        }
        Ok(())
    });
    for golden in goldens("messages_to_chat_stream", 46) {
        let given = String::from_utf8(golden.beside("sse")).expect("text");
        cuts += length(&events(&given)).unwrap_or_default();
    }
    assert!(cuts > 200, "only {cuts} cuts were tried");
}

#[test]
fn a_stream_cut_at_any_byte_passes_on_whole_events_only() {
    judge(&goldens("messages_to_chat_stream", 46), |golden| {
        let given = golden.beside("sse");
        let uncut = pass_golden(golden, &given, usize::MAX).out;
        for kept in (0..given.len()).step_by(13) {
            let passed = pass_golden(golden, &given[..kept], usize::MAX);
            if passed.progress == RelayProgress::Complete {
                if passed.out != uncut {
                    return Err(format!("complete after {kept} bytes:\n{}", passed.out));
                }
                continue;
            }
            let events = events(&passed.out);
            let (last, before) = events.split_last().expect("an error event");
            let whole = before.concat();
            if !last.starts_with(r#"data: {"error":"#) || !uncut.starts_with(&whole) {
                return Err(format!("after {kept} bytes:\n{}", passed.out));
            }
        }
        Ok(())
    });
}

#[test]
fn a_vendor_that_stalls_is_told_to_the_client() {
    let start = concat!(
        "event: message_start\n",
        r#"data: {"type":"message_start","message":{"id":"msg_1","#,
        r#""usage":{"input_tokens":3,"output_tokens":1}}}"#,
        "\n\n"
    );
    let mut relay = Relay::new(translated("m", false, false), true);
    let first = relay.push(Bytes::from_static(start.as_bytes())).expect("a chunk");
    assert!(first.ends_with(b"\n\n"));
    let told = relay.fail(RelayError::Stalled).expect("an error event");
    let told = String::from_utf8(told.to_vec()).expect("text");
    assert!(
        told.starts_with(r#"data: {"error":{"message":"the vendor stopped answering""#),
        "{told}"
    );
    assert!(told.ends_with("}\n\n"), "{told}");
    assert_eq!(relay.push(Bytes::from_static(start.as_bytes())), None);
    assert_eq!(relay.finish(), None);
    assert_eq!(relay.progress(), &RelayProgress::Failed(RelayError::Stalled));
    assert_eq!(relay.meter().expect("a text").usage(0).tokens.input, 3);
}
