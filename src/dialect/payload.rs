//! Request bodies for vendors, kept in pieces; base64 content is encoded only while it is sent.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes};

/// Largest chunk: at most 256 KiB of base64 text of one body are in memory at a time.
const CHUNK_BYTES_MAX: usize = 256 * 1_024;

/// A request body for a vendor, as pieces that are not joined.
#[derive(Clone, Default)]
pub struct RequestPayload {
    pieces: Vec<PayloadPiece>,
    length: usize,
}

#[derive(Clone)]
enum PayloadPiece {
    Plain(Bytes),
    /// The slices of one content, which is sent as base64.
    Base64(Vec<Bytes>),
}

impl RequestPayload {
    /// Appends bytes that are sent unchanged.
    pub(crate) fn push_bytes(&mut self, bytes: Bytes) {
        self.length += bytes.len();
        self.pieces.push(PayloadPiece::Plain(bytes));
    }

    /// Appends one content, given in slices, that is sent as base64.
    pub(crate) fn push_base64(&mut self, content: Vec<Bytes>) {
        let length: usize = content.iter().map(Bytes::len).sum();
        self.length += length.div_ceil(3) * 4;
        self.pieces.push(PayloadPiece::Base64(content));
    }

    /// Returns the length of the body in bytes, with its base64 encoded.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the body from its beginning, in chunks of at most 256 KiB, none of them empty. Plain
    /// bytes are not copied.
    pub fn chunks(&self) -> impl Iterator<Item = Bytes> + '_ {
        PayloadChunks { pieces: self.pieces.iter(), current: OpenPiece::Plain(Bytes::new()) }
    }
}

impl From<Vec<Bytes>> for RequestPayload {
    fn from(pieces: Vec<Bytes>) -> RequestPayload {
        let length = pieces.iter().map(Bytes::len).sum();
        RequestPayload { pieces: pieces.into_iter().map(PayloadPiece::Plain).collect(), length }
    }
}

impl fmt::Debug for RequestPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestPayload").field("length", &self.length).finish_non_exhaustive()
    }
}

struct PayloadChunks<'a> {
    pieces: std::slice::Iter<'a, PayloadPiece>,
    current: OpenPiece<'a>,
}

/// The piece whose chunks are being returned.
enum OpenPiece<'a> {
    Plain(Bytes),
    Base64(UnencodedContent<'a>),
}

impl Iterator for PayloadChunks<'_> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            let chunk = match &mut self.current {
                OpenPiece::Plain(bytes) => bytes.split_to(bytes.len().min(CHUNK_BYTES_MAX)),
                OpenPiece::Base64(raw) => raw.encode_chunk(),
            };
            if !chunk.is_empty() {
                return Some(chunk);
            }
            self.current = match self.pieces.next()? {
                PayloadPiece::Plain(bytes) => OpenPiece::Plain(bytes.clone()),
                PayloadPiece::Base64(content) => OpenPiece::Base64(UnencodedContent::new(content)),
            };
        }
    }
}

/// The part of a content that has not been encoded yet.
struct UnencodedContent<'a> {
    slice: Bytes,
    remaining: std::slice::Iter<'a, Bytes>,
    bytes_left: usize,
}

impl UnencodedContent<'_> {
    fn new(content: &[Bytes]) -> UnencodedContent<'_> {
        let bytes_left = content.iter().map(Bytes::len).sum();
        UnencodedContent { slice: Bytes::new(), remaining: content.iter(), bytes_left }
    }

    /// Encodes as much of the content as fits into one chunk; returns no bytes after the end.
    fn encode_chunk(&mut self) -> Bytes {
        let mut out = String::with_capacity(CHUNK_BYTES_MAX.min(self.bytes_left.div_ceil(3) * 4));
        while self.bytes_left > 0 && out.len() < CHUNK_BYTES_MAX {
            self.refill();
            // Base64 encodes groups of three bytes. The whole groups of this slice are encoded at
            // once; a group that spans two slices, and the last group, are encoded one by one.
            let groups = (self.slice.len() / 3).min((CHUNK_BYTES_MAX - out.len()) / 4);
            if groups > 0 {
                self.encode_bytes(groups * 3, &mut out);
            } else {
                self.encode_group(&mut out);
            }
        }
        Bytes::from(out)
    }

    fn encode_bytes(&mut self, length: usize, out: &mut String) {
        STANDARD.encode_string(&self.slice[..length], out);
        self.slice.advance(length);
        self.bytes_left -= length;
    }

    fn encode_group(&mut self, out: &mut String) {
        let (mut group, length) = ([0; 3], self.bytes_left.min(3));
        for byte in &mut group[..length] {
            self.refill();
            *byte = self.slice.get_u8();
        }
        self.bytes_left -= length;
        STANDARD.encode_string(&group[..length], out);
    }

    /// Moves to the next non-empty slice if the current one is used up.
    fn refill(&mut self) {
        while self.slice.is_empty() {
            let Some(next) = self.remaining.next() else { return };
            self.slice = next.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(content: &[u8], cuts: &[usize]) -> Vec<Bytes> {
        let mut rest = Bytes::copy_from_slice(content);
        let mut slices: Vec<_> =
            cuts.iter().map(|size| rest.split_to((*size).min(rest.len()))).collect();
        slices.push(rest);
        slices
    }

    proptest! {
        #[test]
        fn what_is_cut_anywhere_reads_as_its_base64(
            content in proptest::collection::vec(any::<u8>(), 0..40),
            cuts in proptest::collection::vec(0..5usize, 0..20),
        ) {
            let mut payload = RequestPayload::default();
            payload.push_bytes(Bytes::from_static(b"<"));
            payload.push_base64(cut(&content, &cuts));
            payload.push_bytes(Bytes::from_static(b">"));
            let sent: Vec<_> = payload.chunks().collect();
            let expected = format!("<{}>", STANDARD.encode(&content));
            prop_assert_eq!(sent.concat(), expected.as_bytes());
            prop_assert_eq!(payload.length(), expected.len());
            prop_assert!(sent.iter().all(|chunk| !chunk.is_empty()));
        }
    }

    #[test]
    fn large_contents_come_in_bounded_chunks_whatever_the_cuts() {
        let content: Vec<u8> = (0..=u8::MAX).cycle().take(1_000_001).collect();
        let expected = STANDARD.encode(&content);
        for sizes in [vec![], vec![196_607, 1, 1, 300_000], vec![65_536; 15], vec![7; 140_000]] {
            let mut payload = RequestPayload::default();
            payload.push_base64(cut(&content, &sizes));
            let sent: Vec<_> = payload.chunks().collect();
            assert_eq!(payload.length(), expected.len());
            assert_eq!(sent.len(), expected.len().div_ceil(CHUNK_BYTES_MAX));
            assert!(sent.iter().all(|chunk| chunk.len() <= CHUNK_BYTES_MAX));
            assert!(sent.concat() == expected.as_bytes());
            assert!(payload.chunks().eq(sent), "the second time it reads otherwise");
        }
    }

    #[test]
    fn plain_bytes_are_not_copied() {
        let body = Bytes::from(vec![b'a'; 600_000]);
        let payload = RequestPayload::from(vec![body.clone()]);
        let sent: Vec<_> = payload.chunks().collect();
        assert_eq!(sent.iter().map(Bytes::len).collect::<Vec<_>>(), [262_144, 262_144, 75_712]);
        assert!(sent.iter().all(|chunk| body.as_ptr_range().contains(&chunk.as_ptr())));
        assert_eq!(payload.length(), 600_000);
    }

    #[test]
    fn a_body_of_nothing_has_no_chunks() {
        let mut payload = RequestPayload::from(vec![Bytes::new()]);
        payload.push_base64(vec![Bytes::new()]);
        payload.push_bytes(Bytes::new());
        assert_eq!((payload.length(), payload.chunks().count()), (0, 0));
        assert_eq!(RequestPayload::default().chunks().count(), 0);
    }

    #[test]
    fn a_payload_goes_between_threads_and_shows_no_content() {
        fn goes<T: Send + Sync>(_: &T) {}
        let payload = RequestPayload::from(vec![Bytes::from_static(b"content")]);
        goes(&payload);
        goes(&payload.chunks());
        assert!(!format!("{payload:?}").contains("content"));
    }
}
