//! Chat replies, in one body or in events, pass as they came. Only a usage that the client did not
//! ask for is taken out of a stream.

use tollgate::dialect::relay::{Relay, RelayMode};

use super::golden::{CHUNK_SIZES, Golden, goldens, judge};
use super::relayed::{given, pass};

const FOLDER: &str = "chat_native";
const AT_LEAST: usize = 42;
/// Tokens of the input, as counted where the vendor reports none.
const INPUT: u64 = 40;

fn mode(golden: &Golden, include_usage: bool) -> RelayMode {
    RelayMode::Chat { include_usage, choices: golden.json("choices").as_u64().unwrap_or(1) }
}

#[test]
fn every_golden_chat_passes_as_expected_however_it_is_cut() {
    judge(&goldens(FOLDER, AT_LEAST), |golden| {
        let events = golden.beside_if_any("sse");
        let is_stream = events.is_some();
        let reply = events.unwrap_or_else(|| given(golden));
        let expected = if is_stream { golden.beside("expect.sse") } else { reply.clone() };
        for size in CHUNK_SIZES {
            let passed = pass(Relay::new(mode(golden, false), is_stream), &reply, size, INPUT);
            passed.is(&expected)?;
            passed.ended_rightly(golden)?;
            passed.costs_rightly(golden)?;
        }
        Ok(())
    });
}

#[test]
fn every_golden_chat_passes_unchanged_to_who_asked_for_usage() {
    judge(&goldens(FOLDER, AT_LEAST), |golden| {
        let Some(events) = golden.beside_if_any("sse") else { return Ok(()) };
        if !events.ends_with(b"data: [DONE]\n\n") {
            return Ok(());
        }
        for size in CHUNK_SIZES {
            let passed = pass(Relay::new(mode(golden, true), true), &events, size, INPUT);
            passed.is(&events)?;
            passed.costs_rightly(golden)?;
        }
        Ok(())
    });
}
