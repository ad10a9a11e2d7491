//! However a vendor's stream is cut, the client sees the same bytes and is charged the same; and
//! whatever comes, a stream ends with `[DONE]` or with an error event, never with neither.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tollgate::dialect::meter::Metered;
use tollgate::dialect::relay::{Passage, Progress, Relay};

fuzz_target!(|data: &[u8]| {
    let Some((first, stream)) = data.split_first() else { return };
    let (asked, size) = (first & 1 == 1, usize::from(first >> 1).max(1));
    let (whole, whole_end, whole_usage) = run(asked, stream, usize::MAX);
    let (cut, cut_end, cut_usage) = run(asked, stream, size);
    assert_eq!(whole, cut);
    assert_eq!(whole_end, cut_end);
    assert_eq!(whole_usage, cut_usage);
    match whole_end {
        Progress::Open => panic!("a stream that has ended is open"),
        Progress::Complete => {}
        Progress::Broken(_) => assert!(whole.ends_with(b"}\n\n")),
    }
});

fn run(asked: bool, stream: &[u8], size: usize) -> (Vec<u8>, Progress, Metered) {
    let mut relay = Relay::new(Passage::Chat { usage_asked: asked, choices: 1 }, true);
    let mut out = Vec::new();
    for chunk in stream.chunks(size.min(stream.len().max(1))) {
        out.extend(relay.push(Bytes::copy_from_slice(chunk)).unwrap_or_default());
    }
    out.extend(relay.finish().unwrap_or_default());
    (out, relay.progress().clone(), relay.meter().expect("a text").usage(40))
}
