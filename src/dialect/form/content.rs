//! Reads the content of a part, up to the next boundary.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use bytes::Bytes;
use memchr::memmem::Finder;

use super::head::{PartHead, PartKind};
use super::part::{FormPart, PartContent, UploadedFile};
use super::violation::{FormViolation, excerpt, violation_at};

/// Slices of a file with fewer bytes are copied together, since each slice has a memory overhead.
const SLICE_BYTES_MIN: usize = 4 * 1_024;
/// Small slices are copied together until there are this many bytes.
const COPY_BUFFER_BYTES_MAX: usize = 64 * 1_024;

/// Matches the delimiter between parts: a line break, two dashes and the boundary.
#[derive(Debug)]
pub(super) struct BoundaryMatcher {
    delimiter: Bytes,
    /// Finds the delimiter without its line break. These bytes contain no line break, so a failed
    /// match cannot contain the start of another delimiter.
    dash_boundary: Finder<'static>,
}

impl BoundaryMatcher {
    pub(super) fn new(boundary: &str) -> BoundaryMatcher {
        let delimiter = Bytes::from(format!("\r\n--{boundary}"));
        BoundaryMatcher { dash_boundary: Finder::new(&delimiter[2..]).into_owned(), delimiter }
    }

    /// Whether `matched` bytes are the whole delimiter.
    pub(super) fn is_complete(&self, matched: usize) -> bool {
        matched == self.delimiter.len()
    }

    /// Continues to match the first delimiter, whose line break may be left out. `matched` counts
    /// the bytes matched so far. Returns how many bytes of the piece matched.
    pub(super) fn match_first(
        &self,
        matched: &mut usize,
        piece: &[u8],
    ) -> Result<usize, FormViolation> {
        if *matched == 0 && piece[0] == b'-' {
            *matched = 2;
        }
        let expected = &self.delimiter[*matched..];
        let used = expected.len().min(piece.len());
        if let Some(at) = (0..used).find(|i| piece[*i] != expected[*i]) {
            return Err(violation_at(at, "a form must begin with its boundary"));
        }
        *matched += used;
        Ok(used)
    }
}

/// The content of a part, as far as it has arrived.
#[derive(Debug)]
pub(super) struct PartBody {
    head: PartHead,
    storage: PartStorage,
    bytes_max: usize,
    partial: PartialBoundary,
}

/// Bytes at the end of the last piece that may belong to the next delimiter.
#[derive(Debug, Clone, Copy, Default)]
struct PartialBoundary {
    cr: bool,
    lf: bool,
    /// How many bytes of the dashes and the boundary have matched.
    matched: usize,
}

#[derive(Debug)]
enum PartStorage {
    Text(TextBuffer),
    File(FileSlices),
}

impl PartBody {
    pub(super) fn new(head: PartHead, text_bytes_max: usize, file_bytes_max: usize) -> PartBody {
        let (storage, bytes_max) = match head.kind {
            PartKind::Text => (PartStorage::Text(TextBuffer::default()), text_bytes_max),
            PartKind::File(_) => (PartStorage::File(FileSlices::default()), file_bytes_max),
        };
        PartBody { head, storage, bytes_max, partial: PartialBoundary::default() }
    }

    /// Reads at most up to the end of the next delimiter; returns the number of bytes used, and
    /// whether the part is complete.
    pub(super) fn push(
        &mut self,
        boundary: &BoundaryMatcher,
        piece: &Bytes,
    ) -> Result<(usize, bool), FormViolation> {
        let (from, is_complete) = self.resume_match(boundary, piece)?;
        if is_complete || from == piece.len() {
            return Ok((from, is_complete));
        }
        // The bytes before `from` are not a delimiter, and no delimiter begins in them.
        let unmatched = piece.slice(from..);
        for match_start in boundary.dash_boundary.find_iter(&unmatched) {
            let before = &unmatched[..match_start];
            if let Some(content) = before.strip_suffix(b"\r\n") {
                self.add(unmatched.slice(..content.len()))?;
                return Ok((from + match_start + boundary.delimiter.len() - 2, true));
            }
            if before.ends_with(b"\n") || before.ends_with(b"\r") {
                self.add(unmatched.slice(..match_start - 1))?;
                return Err(lone_line_break_error(
                    from + match_start + boundary.delimiter.len() - 3,
                ));
            }
        }
        self.partial = PartialBoundary::at_end_of(boundary, &unmatched);
        self.add(unmatched.slice(..unmatched.len() - self.partial.length()))?;
        Ok((piece.len(), false))
    }

    /// Continues a partial match of the last piece until the delimiter is complete or the match
    /// fails; then the partial match becomes content. Returns how many bytes of the piece were
    /// used, and whether the delimiter is complete.
    fn resume_match(
        &mut self,
        boundary: &BoundaryMatcher,
        piece: &[u8],
    ) -> Result<(usize, bool), FormViolation> {
        let dashes = &boundary.delimiter[2..];
        if self.partial.length() == 0 {
            return Ok((0, false));
        }
        for (at, byte) in piece.iter().enumerate() {
            let partial = &mut self.partial;
            if partial.matched == 0 && !partial.lf && *byte == b'\n' {
                partial.lf = true;
            } else if *byte == dashes[partial.matched] {
                partial.matched += 1;
            } else {
                self.release_partial(boundary)?;
                return Ok((at, false));
            }
            if partial.matched == dashes.len() {
                return if partial.cr && partial.lf {
                    Ok((at + 1, true))
                } else {
                    Err(lone_line_break_error(at))
                };
            }
        }
        Ok((piece.len(), false))
    }

    /// Adds the bytes of a failed partial match to the content.
    fn release_partial(&mut self, boundary: &BoundaryMatcher) -> Result<(), FormViolation> {
        let partial = std::mem::take(&mut self.partial);
        let begin = usize::from(!partial.cr);
        let end = if partial.lf { 2 } else { 1 };
        self.add(boundary.delimiter.slice(begin..end))?;
        self.add(boundary.delimiter.slice(2..2 + partial.matched))
    }

    fn add(&mut self, slice: Bytes) -> Result<(), FormViolation> {
        let length = match &self.storage {
            PartStorage::Text(text) => text.0.len(),
            PartStorage::File(file) => file.length,
        };
        if slice.len() > self.bytes_max - length {
            return Err(match self.storage {
                PartStorage::Text(_) => FormViolation::TextTooLarge,
                PartStorage::File(_) => FormViolation::FileTooLarge(excerpt(&self.head.name)),
            });
        }
        match &mut self.storage {
            PartStorage::Text(text) => text.0.extend_from_slice(&slice),
            PartStorage::File(file) => file.add(slice),
        }
        Ok(())
    }

    /// Returns the part after its delimiter. `at` is the offset of the delimiter's last byte, for
    /// errors.
    pub(super) fn finish(
        &mut self,
        at: usize,
        form_is_ascii_only: bool,
    ) -> Result<FormPart, FormViolation> {
        let name = std::mem::take(&mut self.head.name);
        let kind = std::mem::replace(&mut self.head.kind, PartKind::Text);
        let content = match &mut self.storage {
            PartStorage::Text(text) => {
                let is_ascii_only = form_is_ascii_only || self.head.is_ascii_only;
                let text = String::from_utf8(std::mem::take(&mut text.0)).ok();
                let text = text.filter(|text| !is_ascii_only || text.is_ascii());
                let what = || format!("the text of '{}' is not UTF-8", excerpt(&name));
                PartContent::Text(text.ok_or_else(|| violation_at(at, what()))?)
            }
            PartStorage::File(file) => PartContent::File(UploadedFile {
                name: match kind {
                    PartKind::Text => None,
                    PartKind::File(name) => name,
                },
                content_type: self.head.content_type.take(),
                length: file.length,
                content: std::mem::take(file).finish(),
            }),
        };
        Ok(FormPart { name, content })
    }
}

fn lone_line_break_error(at: usize) -> FormViolation {
    violation_at(at, "a boundary must stand after CR and LF, not after one of them")
}

impl PartialBoundary {
    /// Returns which bytes at the end of `bytes` may belong to a delimiter. No whole delimiter is
    /// in them.
    fn at_end_of(boundary: &BoundaryMatcher, bytes: &[u8]) -> PartialBoundary {
        let dashes = &boundary.delimiter[2..];
        let last = bytes.len().saturating_sub(dashes.len());
        let Some(at) = memchr::memrchr2(b'\r', b'\n', &bytes[last..]) else {
            return PartialBoundary::default();
        };
        let (before, after) = (&bytes[..=last + at], &bytes[last + at + 1..]);
        if !dashes.starts_with(after) {
            return PartialBoundary::default();
        }
        let lf = before.ends_with(b"\n");
        PartialBoundary { cr: !lf || before.ends_with(b"\r\n"), lf, matched: after.len() }
    }

    fn length(self) -> usize {
        usize::from(self.cr) + usize::from(self.lf) + self.matched
    }
}

/// Bytes that are copied together. `Debug` shows only how many there are.
#[derive(Default)]
struct TextBuffer(Vec<u8>);

impl fmt::Debug for TextBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The content of a file, as slices of the received chunks.
#[derive(Default)]
struct FileSlices {
    slices: Vec<Bytes>,
    buffer: TextBuffer,
    length: usize,
}

impl fmt::Debug for FileSlices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.length)
    }
}

impl FileSlices {
    fn add(&mut self, slice: Bytes) {
        self.length += slice.len();
        if slice.len() < SLICE_BYTES_MIN {
            self.buffer.0.extend_from_slice(&slice);
            if self.buffer.0.len() >= COPY_BUFFER_BYTES_MAX {
                self.flush();
            }
        } else {
            self.flush();
            self.slices.push(slice);
        }
    }

    fn flush(&mut self) {
        if !self.buffer.0.is_empty() {
            self.slices.push(Bytes::from(std::mem::take(&mut self.buffer.0)));
        }
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.flush();
        self.slices
    }
}
