//! Streams for clients of the vendor's own format pass as they came.

use super::golden::{CHUNK_SIZES, goldens, judge};
use super::replies::{native, pass};
use super::streams::passes_as_expected;

#[test]
fn every_native_stream_passes_as_expected_however_it_is_cut() {
    judge(&goldens("messages_native", 27), |golden| {
        let given = golden.beside("sse");
        if golden.text("outcome") == "complete" && golden.beside("expect.sse") != given {
            return Err("a stream that is complete is expected as it came".to_owned());
        }
        passes_as_expected(golden, |size| pass(native(), true, &given, size))
    });
}

#[test]
fn what_is_translated_for_some_passes_unchanged_to_others() {
    judge(&goldens("messages_to_chat_stream", 46), |golden| {
        if golden.text("outcome") != "complete" || golden.name == "after_the_end" {
            return Ok(());
        }
        // A client of this format sees only events that have a name.
        let given = golden.beside("sse");
        if golden.name == "no_event_lines" || !given.ends_with(b"\n\n") {
            return Ok(());
        }
        for size in CHUNK_SIZES {
            let passed = pass(native(), true, &given, size);
            if passed.out.as_bytes() != given {
                return Err(format!("in {size}s\n{}", passed.out));
            }
            golden.agrees_on_usage(passed.tokens)?;
        }
        Ok(())
    });
}
