//! However a stream is cut, it has the same events; nothing of it is lost; and what an event's data
//! is agrees with the standard's own way of reading, line by line.

use std::borrow::Cow;

use bytes::Bytes;
use tollgate::dialect::sse::SseSplitter;

pub(crate) fn run(data: &[u8]) {
    let Some((first, stream)) = data.split_first() else { return };
    let (whole, rest) = split(stream, usize::MAX);
    let (cut, cut_rest) = split(stream, usize::from(*first).max(1));
    assert_eq!((&whole, &rest), (&cut, &cut_rest));
    let mut joined = whole.iter().map(|(raw, _)| &raw[..]).collect::<Vec<_>>().concat();
    joined.extend_from_slice(&rest);
    assert_eq!(joined, stream);
    let data: Vec<_> = whole.into_iter().filter_map(|(_, data)| data).collect();
    assert_eq!(data, read_by_lines(&stream[..stream.len() - rest.len()]));
}

type Events = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn split(stream: &[u8], size: usize) -> (Events, Vec<u8>) {
    let mut splitter = SseSplitter::default();
    let mut events = Vec::new();
    for chunk in stream.chunks(size.min(stream.len().max(1))) {
        for event in splitter.push(Bytes::copy_from_slice(chunk)).expect("a short stream") {
            events.push((event.0.to_vec(), event.data().map(Cow::into_owned)));
        }
    }
    (events, splitter.take_rest().to_vec())
}

/// The data of the events, by lines: each ends with a line feed, a carriage return, or both.
fn read_by_lines(stream: &[u8]) -> Vec<Vec<u8>> {
    let (mut events, mut data, mut line) = (Vec::new(), None::<Vec<u8>>, Vec::new());
    let mut bytes = stream.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\n' && byte != b'\r' {
            line.push(byte);
            continue;
        }
        if byte == b'\r' {
            bytes.next_if_eq(&b'\n');
        }
        if line.is_empty() {
            events.extend(data.take());
        } else if let Some(value) = line.strip_prefix(b"data:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => data = Some(value.to_vec()),
            }
        }
        line.clear();
    }
    events
}
