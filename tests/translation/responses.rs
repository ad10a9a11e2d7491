//! Responses, in one body or in events, pass as they came; their usage and their ids are read.

use bytes::Bytes;
use serde_json::Value as Json;
use tollgate::dialect::relay::{Relay, RelayError, RelayMode, RelayProgress};

use super::golden::{CHUNK_SIZES, Golden, goldens, judge};
use super::relayed::{Relayed, given, pass};

const FOLDER: &str = "responses";
const AT_LEAST: usize = 114;
/// Tokens of the input, as counted where the vendor reports none.
const INPUT: u64 = 40;

fn pass_events(events: &[u8], size: usize) -> Relayed {
    pass(Relay::new(RelayMode::Responses, true), events, size, INPUT)
}

fn pass_body(body: &[u8], size: usize) -> Relayed {
    pass(Relay::new(RelayMode::Responses, false), body, size, INPUT)
}

#[test]
fn every_golden_stream_passes_as_expected_however_it_is_cut() {
    judge(&goldens(FOLDER, AT_LEAST), |golden| {
        let Some(events) = golden.beside_if_any("sse") else { return Ok(()) };
        let expected = golden.beside_if_any("expect.sse").unwrap_or_else(|| events.clone());
        for size in CHUNK_SIZES {
            let passed = pass_events(&events, size);
            passed.is(&expected).and_then(|()| is_right(golden, &passed))?;
        }
        Ok(())
    });
}

#[test]
fn every_golden_reply_passes_unchanged_or_not_at_all() {
    judge(&goldens(FOLDER, AT_LEAST), |golden| {
        if golden.beside_if_any("sse").is_some() {
            return Ok(());
        }
        let body = given(golden);
        for size in CHUNK_SIZES {
            let passed = pass_body(&body, size);
            let is_broken = matches!(passed.progress, RelayProgress::Failed(_));
            passed.is(if is_broken { b"" } else { &body })?;
            is_right(golden, &passed)?;
        }
        Ok(())
    });
}

#[test]
fn every_golden_compaction_passes_unchanged_or_not_at_all() {
    judge(&goldens("compactions", 13), |golden| {
        let body = given(golden);
        for size in CHUNK_SIZES {
            let passed = pass(Relay::new(RelayMode::Compaction, false), &body, size, INPUT);
            let is_broken = matches!(passed.progress, RelayProgress::Failed(_));
            passed.is(if is_broken { b"" } else { &body })?;
            is_right(golden, &passed)?;
        }
        Ok(())
    });
}

fn is_right(golden: &Golden, passed: &Relayed) -> Result<(), String> {
    passed.ended_rightly(golden)?;
    passed.costs_rightly(golden)?;
    let ids = golden.json("ids");
    if ids["whole"] == Json::from(passed.given.response_ids.clone())
        && ids["items"] == Json::from(passed.given.item_ids.clone())
    {
        return Ok(());
    }
    Err(format!("ids are {:?} instead of {ids}", passed.given))
}

/// The golden streams that are complete and whose lines end in line feeds, in events up to the one
/// that ends them, with what becomes of them.
fn each_complete(check: impl Fn(&[String], &Relayed) -> Result<(), String>) {
    let streams: Vec<_> = goldens(FOLDER, AT_LEAST)
        .into_iter()
        .filter(|golden| golden.json("why").is_null() && golden.name != "crlf")
        // Of this one an event does not go on.
        .filter(|golden| golden.name != "failed_after_an_error")
        .filter(|golden| golden.beside_if_any("sse").is_some())
        .collect();
    judge(&streams, |golden| {
        let stream = String::from_utf8(golden.beside("sse")).expect("text");
        let mut events: Vec<String> = stream.split_inclusive("\n\n").map(str::to_owned).collect();
        let end = events.iter().position(|event| is_last(event)).expect("an end");
        events.truncate(end + 1);
        check(&events, &pass_events(stream.as_bytes(), usize::MAX))
    });
    assert!(streams.len() > 40, "only {} streams were tried", streams.len());
}

fn is_last(event: &str) -> bool {
    let ends = ["completed", "incomplete", "failed"];
    ends.iter().any(|end| event.contains(&format!(r#""type":"response.{end}""#)))
}

/// The JSON of an event.
fn data(event: &str) -> Option<Json> {
    let lines = event.lines().filter_map(|line| line.strip_prefix("data:"));
    serde_json::from_str(&lines.collect::<Vec<_>>().join("\n")).ok()
}

#[test]
fn a_stream_cut_after_any_event_says_so_in_the_next_event() {
    each_complete(|events, uncut| {
        for kept in 0..events.len() - 1 {
            let passed = pass_events(events[..kept].concat().as_bytes(), 64);
            let out = passed.text();
            let mut out: Vec<&str> = out.split_inclusive("\n\n").collect();
            let told = out.pop().and_then(data).ok_or("no event tells of the cut")?;
            if out.concat() != events[..kept].concat() {
                return Err(format!("after {kept} events it is\n{}", passed.text()));
            }
            let numbers = out.iter().filter_map(|event| data(event)?["sequence_number"].as_u64());
            let next = numbers.max().map_or(0, |last| last + 1);
            let error = &told["error"];
            let twice = ["code", "message", "param"].iter().all(|name| told[name] == error[name]);
            if told["type"] != "error" || told["sequence_number"] != next || !twice {
                return Err(format!("after {kept} events it says {told}"));
            }
            let any_output = out.iter().any(|event| event.contains(".delta\",\"sequence_number"));
            let none_due = passed.due.is_none();
            if passed.progress != RelayProgress::Failed(RelayError::Truncated)
                || (any_output && none_due)
            {
                return Err(format!("after {kept} events: {passed:?}"));
            }
            let known = |id: &String| uncut.given.response_ids.contains(id);
            if !passed.given.response_ids.iter().all(known) {
                return Err(format!("after {kept} events {:?} are given", passed.given));
            }
        }
        Ok(())
    });
}

#[test]
fn a_stream_cut_at_any_byte_passes_on_whole_events_only() {
    each_complete(|events, _| {
        let stream = events.concat();
        for kept in (0..stream.len()).step_by(13) {
            let passed = pass_events(&stream.as_bytes()[..kept], usize::MAX);
            // An event that lacked its blank line may get more than that.
            let out = passed.text().replace("\n\n\n", "\n\n");
            let told =
                out.rfind("event: error\n").filter(|_| passed.progress != RelayProgress::Complete);
            let events_out = &out[..told.unwrap_or(out.len())];
            let least = if told.is_some() { 0 } else { events.len() };
            if !(least..=events.len()).any(|count| events[..count].concat() == events_out) {
                return Err(format!("after {kept} bytes:\n{out}"));
            }
        }
        Ok(())
    });
}

#[test]
fn what_ends_a_stream_is_worth_the_same_as_a_reply_in_one_body() {
    each_complete(|events, uncut| {
        let last = events.last().and_then(|event| data(event)).ok_or("no last event")?;
        let passed = pass_body(last["response"].to_string().as_bytes(), usize::MAX);
        let (due, expected) = (passed.journal(), uncut.journal());
        // Pieces are counted only where there are some.
        if due != expected && expected["basis"] != "counted" {
            return Err(format!("due is {due} instead of {expected}"));
        }
        let (mut given, mut expected) = (passed.given, uncut.given.clone());
        given.item_ids.sort();
        expected.item_ids.sort();
        if given == expected { Ok(()) } else { Err(format!("{given:?} not {expected:?}")) }
    });
}

#[test]
fn a_vendor_that_stalls_is_told_to_the_client_in_the_next_event() {
    let created = concat!(
        "event: response.created\n",
        r#"data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1"}}"#,
        "\n\n"
    );
    let mut relay = Relay::new(RelayMode::Responses, true);
    assert_eq!(
        relay.push(Bytes::from_static(created.as_bytes())).as_deref(),
        Some(created.as_bytes())
    );
    let told = relay.fail(RelayError::Stalled).expect("an error event");
    let told = String::from_utf8(told.to_vec()).expect("text");
    assert!(told.starts_with("event: error\ndata: {") && told.ends_with("}\n\n"), "{told}");
    let error = data(&told).expect("JSON");
    assert_eq!(error["message"], "the vendor stopped answering");
    assert_eq!((&error["sequence_number"], &error["code"]), (&1.into(), &"upstream_error".into()));
    assert_eq!(relay.push(Bytes::from_static(created.as_bytes())), None);
    assert_eq!((relay.finish(), relay.billable_usage(INPUT)), (None, None));
    assert_eq!(relay.progress(), &RelayProgress::Failed(RelayError::Stalled));
}
