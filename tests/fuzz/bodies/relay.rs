//! However a vendor's stream is cut, the client sees the same bytes and is charged the same, in
//! every format; and whatever comes, a stream ends as its format says or with an error event, never
//! with neither.

use bytes::Bytes;
use tollgate::dialect::meter::MeteredTokens;
use tollgate::dialect::relay::{Relay, RelayMode, RelayProgress};
use tollgate::dialect::translate::reply::ReplyMetadata;

pub(crate) fn run(data: &[u8]) {
    let Some((first, stream)) = data.split_first() else { return };
    let (flag, size) = (first & 1 == 1, usize::from(first >> 3).max(1));
    let mode = || match first >> 1 & 3 {
        0 => RelayMode::Chat { include_usage: flag, choices: 1 },
        1 => RelayMode::Messages { request_id: "r".to_owned() },
        2 => RelayMode::Responses,
        _ => RelayMode::Translated(ReplyMetadata {
            model: "m".to_owned(),
            created: 1,
            input_tokens: 40.into(),
            include_usage: flag,
            save_thinking: flag,
        }),
    };
    let (whole, whole_end, whole_usage) = relay_stream(mode(), stream, usize::MAX);
    let (cut, cut_end, cut_usage) = relay_stream(mode(), stream, size);
    assert_eq!(whole, cut);
    assert_eq!(whole_end, cut_end);
    assert_eq!(whole_usage, cut_usage);
    match whole_end {
        RelayProgress::Open => panic!("a stream that has ended is open"),
        RelayProgress::Complete => {}
        RelayProgress::Failed(_) => assert!(whole.ends_with(b"}\n\n")),
    }
}

fn relay_stream(
    mode: RelayMode,
    stream: &[u8],
    size: usize,
) -> (Vec<u8>, RelayProgress, MeteredTokens) {
    let mut relay = Relay::new(mode, true);
    let mut out = Vec::new();
    for chunk in stream.chunks(size.min(stream.len().max(1))) {
        out.extend(relay.push(Bytes::copy_from_slice(chunk)).unwrap_or_default());
    }
    out.extend(relay.finish().unwrap_or_default());
    (out, relay.progress().clone(), relay.meter().expect("a text").usage(40))
}
