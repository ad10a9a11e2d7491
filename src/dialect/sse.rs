//! Splits a byte stream into server-sent events, however it was cut into chunks. An event that lies
//! in one chunk is not copied.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

/// An event may have at most this many bytes. Events with images are larger than any event with
/// text.
pub(crate) const EVENT_BYTES_MAX: usize = 32 << 20;

/// The error for an event that exceeds the size limit before it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {EVENT_BYTES_MAX} bytes")]
pub struct EventTooLong;

/// The bytes of one event as received, with the blank line that ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent(pub Bytes);

impl SseEvent {
    /// Returns the data: the values of the `data:` lines, joined by line feeds; `None` if there is
    /// no such line.
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

    /// Whether the event is UTF-8 and has only comments and the known fields `event`, `id` and
    /// `retry`, as an event without data should.
    #[must_use]
    pub(crate) fn is_well_formed(&self) -> bool {
        const FIELDS: [&[u8]; 4] = [b":", b"event:", b"id:", b"retry:"];
        let known = |line: &[u8]| line.is_empty() || FIELDS.iter().any(|f| line.starts_with(f));
        std::str::from_utf8(&self.0).is_ok() && split_lines(&self.0).all(known)
    }

    /// Returns the data as [`Bytes`]: a single line is a slice of the event's bytes, several lines
    /// are copied.
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
    /// Received bytes that belong to an unfinished event.
    pending: BytesMut,
    /// The first bytes of `pending`, this many, certainly contain no end of an event.
    searched: usize,
}

impl SseSplitter {
    /// Takes the next bytes and returns the events that they complete.
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

    /// Returns how many bytes of an unfinished event are buffered.
    #[must_use]
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Returns the bytes that remain when the stream has ended: an event without its blank line.
    #[must_use]
    pub fn take_rest(&mut self) -> Bytes {
        self.searched = 0;
        self.pending.split().freeze()
    }

    fn check_size(&self, events: Vec<SseEvent>) -> Result<Vec<SseEvent>, EventTooLong> {
        if self.pending.len() > EVENT_BYTES_MAX { Err(EventTooLong) } else { Ok(events) }
    }
}

/// Returns the offset after the blank line that ends the first event; the search begins at `from`.
fn find_event_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += memchr::memchr2(b'\n', b'\r', bytes.get(at..)?)?;
        let first = line_break_length(&bytes[at..]);
        let second = line_break_length(&bytes[at + first..]);
        // A carriage return as the last byte may be half of CR LF, so the search waits for the next
        // byte.
        if second > 0 && !(bytes[at + first..].len() == 1 && bytes[at + first] == b'\r') {
            return Some(at + first + second);
        }
        at += first;
    }
}

/// Returns the length of the line break at the start of `bytes`, 0 if there is none.
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
