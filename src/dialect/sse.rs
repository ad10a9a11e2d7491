//! Server-sent events out of bytes, however they were cut, without copying whole ones.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

/// The most bytes of an event. Images inside events are larger than text ever is.
pub(crate) const EVENT_BYTES_MAX: usize = 32 << 20;

/// The bytes of an event never ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {EVENT_BYTES_MAX} bytes")]
pub struct EventTooLong;

/// One event with the blank line that ends it, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent(pub Bytes);

impl SseEvent {
    /// Its data: the `data:` lines without their names, joined by line feeds; `None` without any.
    #[must_use]
    pub fn data(&self) -> Option<Cow<'_, [u8]>> {
        let mut found: Option<Cow<'_, [u8]>> = None;
        for line in split_lines(&self.0) {
            let Some(rest) = line.strip_prefix(b"data:") else { continue };
            let rest = rest.strip_prefix(b" ").unwrap_or(rest);
            found = Some(match found {
                None => Cow::Borrowed(rest),
                Some(before) => {
                    let mut joined = before.into_owned();
                    joined.push(b'\n');
                    joined.extend_from_slice(rest);
                    Cow::Owned(joined)
                }
            });
        }
        found
    }

    /// Whether it is text of comments and known fields only, as an event without data should be.
    #[must_use]
    pub(crate) fn is_well_formed(&self) -> bool {
        const FIELDS: [&[u8]; 4] = [b":", b"event:", b"id:", b"retry:"];
        let known = |line: &[u8]| line.is_empty() || FIELDS.iter().any(|f| line.starts_with(f));
        std::str::from_utf8(&self.0).is_ok() && split_lines(&self.0).all(known)
    }

    /// Where a single line of data stands in the event's bytes, so that it can be sliced.
    #[must_use]
    pub(crate) fn data_slice(&self) -> Option<Bytes> {
        match self.data()? {
            Cow::Borrowed(data) => Some(self.0.slice_ref(data)),
            Cow::Owned(data) => Some(Bytes::from(data)),
        }
    }
}

fn split_lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        let after = &rest[end.min(rest.len())..];
        rest = after.strip_prefix(b"\r\n").unwrap_or(after.get(1..).unwrap_or_default());
        Some(line)
    })
}

/// Cuts a byte stream into events.
#[derive(Debug, Default)]
pub struct SseSplitter {
    /// What came and has not been given out.
    pending: BytesMut,
    /// How much of `pending` holds no end of an event for certain.
    searched: usize,
}

impl SseSplitter {
    /// Takes bytes and gives the events that they complete.
    ///
    /// # Errors
    /// [`EventTooLong`] once an unfinished event outgrows [`EVENT_BYTES_MAX`].
    pub fn push(&mut self, bytes: Bytes) -> Result<Vec<SseEvent>, EventTooLong> {
        let mut events = Vec::new();
        let mut whole = bytes;
        if !self.pending.is_empty() {
            self.pending.extend_from_slice(&whole);
            let Some(end) = find_event_end(&self.pending, self.searched) else {
                self.searched = self.pending.len().saturating_sub(3);
                return self.check_size(events);
            };
            events.push(SseEvent(self.pending.split_to(end).freeze()));
            whole = self.pending.split().freeze();
        }
        while let Some(end) = find_event_end(&whole, 0) {
            events.push(SseEvent(whole.split_to(end)));
        }
        self.searched = whole.len().saturating_sub(3);
        self.pending.extend_from_slice(&whole);
        self.check_size(events)
    }

    /// How many bytes there are of an event that has not ended.
    #[must_use]
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.pending.len()
    }

    /// What remains when the stream has ended: an event that nothing finished.
    #[must_use]
    pub fn take_rest(&mut self) -> Bytes {
        self.searched = 0;
        self.pending.split().freeze()
    }

    fn check_size(&self, events: Vec<SseEvent>) -> Result<Vec<SseEvent>, EventTooLong> {
        if self.pending.len() > EVENT_BYTES_MAX { Err(EventTooLong) } else { Ok(events) }
    }
}

/// The byte after the blank line that ends the first event, looking from `from` on.
fn find_event_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += memchr::memchr2(b'\n', b'\r', bytes.get(at..)?)?;
        let first = line_break_length(&bytes[at..]);
        let second = line_break_length(&bytes[at + first..]);
        // A carriage return at the very end may be half of a pair: wait for what follows.
        if second > 0 && !(bytes[at + first..].len() == 1 && bytes[at + first] == b'\r') {
            return Some(at + first + second);
        }
        at += first;
    }
}

/// The length of the line break that the bytes begin with, 0 if they begin with none.
fn line_break_length(bytes: &[u8]) -> usize {
    match bytes {
        [b'\r', b'\n', ..] => 2,
        [b'\r' | b'\n', ..] => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(bytes: &[u8], size: usize) -> (Vec<SseEvent>, Bytes) {
        let mut splitter = SseSplitter::default();
        let mut events = Vec::new();
        for chunk in bytes.chunks(size) {
            events.extend(splitter.push(Bytes::copy_from_slice(chunk)).expect("short"));
        }
        (events, splitter.take_rest())
    }

    #[test]
    fn all_three_line_breaks_end_events_at_any_cut() {
        let stream =
            b"data: 1\n\ndata: 2\r\n\r\nevent: x\ndata: 3\n: c\ndata:4\n\n: ping\n\ndata: half";
        for size in 1..=stream.len() {
            let (events, rest) = split(stream, size);
            let data: Vec<_> =
                events.iter().filter_map(SseEvent::data).map(Cow::into_owned).collect();
            assert_eq!(data, [&b"1"[..], b"2", b"3\n4"], "{size}");
            assert_eq!(&rest[..], b"data: half");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_added(
            text in "(data: [a-z]{0,3}|:|\n|\r\n){0,20}",
            size in 1..9usize,
        ) {
            let (events, rest) = split(text.as_bytes(), size);
            let mut joined: Vec<u8> = events.iter().flat_map(|e| e.0.to_vec()).collect();
            joined.extend_from_slice(&rest);
            prop_assert_eq!(joined, text.as_bytes());
        }
    }
}
