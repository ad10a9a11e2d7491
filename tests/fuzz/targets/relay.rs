//! However a vendor's stream is cut, the client sees the same bytes and is charged the same, in
//! every format; and whatever comes, a stream ends as its format says or with an error event, never
//! with neither.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tollgate::dialect::meter::Metered;
use tollgate::dialect::relay::{Passage, Progress, Relay};
use tollgate::dialect::translate::reply::Stamp;

fuzz_target!(|data: &[u8]| {
    let Some((first, stream)) = data.split_first() else { return };
    let (asked, size) = (first & 1 == 1, usize::from(first >> 3).max(1));
    let passage = || match first >> 1 & 3 {
        0 => Passage::Chat { usage_asked: asked, choices: 1 },
        1 => Passage::Messages { request_id: "r".to_owned() },
        2 => Passage::Responses,
        _ => Passage::Translated(Stamp {
            model: "m".to_owned(),
            created: 1,
            input_tokens: 40,
            usage_asked: asked,
            keep: asked,
        }),
    };
    let (whole, whole_end, whole_usage) = run(passage(), stream, usize::MAX);
    let (cut, cut_end, cut_usage) = run(passage(), stream, size);
    assert_eq!(whole, cut);
    assert_eq!(whole_end, cut_end);
    assert_eq!(whole_usage, cut_usage);
    match whole_end {
        Progress::Open => panic!("a stream that has ended is open"),
        Progress::Complete => {}
        Progress::Broken(_) => assert!(whole.ends_with(b"}\n\n")),
    }
});

fn run(passage: Passage, stream: &[u8], size: usize) -> (Vec<u8>, Progress, Metered) {
    let mut relay = Relay::new(passage, true);
    let mut out = Vec::new();
    for chunk in stream.chunks(size.min(stream.len().max(1))) {
        out.extend(relay.push(Bytes::copy_from_slice(chunk)).unwrap_or_default());
    }
    out.extend(relay.finish().unwrap_or_default());
    (out, relay.progress().clone(), relay.meter().expect("a text").usage(40))
}
