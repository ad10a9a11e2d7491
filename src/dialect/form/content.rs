//! The content of a part, up to the next boundary.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use bytes::Bytes;
use memchr::memmem::Finder;

use super::head::{PartHead, PartKind};
use super::part::{FormPart, PartContent, UploadedFile};
use super::violation::{FormViolation, excerpt, violation_at};

/// Slices smaller than this are copied together, since each costs some bytes of its own.
const SLICE_BYTES_MIN: usize = 4 * 1_024;
/// Up to so much is copied together.
const COPY_BUFFER_BYTES_MAX: usize = 64 * 1_024;

/// What separates parts: a line break, two dashes and the boundary.
#[derive(Debug)]
pub(super) struct BoundaryMatcher {
    delimiter: Bytes,
    /// Finds the delimiter without its line break. The rest has no line break, so a failed match
    /// cannot contain the start of another one.
    dash_boundary: Finder<'static>,
}

impl BoundaryMatcher {
    pub(super) fn new(boundary: &str) -> BoundaryMatcher {
        let delimiter = Bytes::from(format!("\r\n--{boundary}"));
        BoundaryMatcher { dash_boundary: Finder::new(&delimiter[2..]).into_owned(), delimiter }
    }

    /// Whether this is all of it.
    pub(super) fn is_complete(&self, matched: usize) -> bool {
        matched == self.delimiter.len()
    }

    /// Goes on matching the first one, whose line break may be left out.
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

/// The content of a part, as far as it has come.
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
    /// How many of the dashes and the boundary.
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

    /// Reads at most up to the end of the next delimiter; returns the bytes used, and whether the
    /// part is complete.
    pub(super) fn push(
        &mut self,
        boundary: &BoundaryMatcher,
        piece: &Bytes,
    ) -> Result<(usize, bool), FormViolation> {
        let (from, is_whole) = self.resume_match(boundary, piece)?;
        if is_whole || from == piece.len() {
            return Ok((from, is_whole));
        }
        // The bytes before `from` are not a delimiter, and none begins in them.
        let fresh = piece.slice(from..);
        for hit in boundary.dash_boundary.find_iter(&fresh) {
            let before = &fresh[..hit];
            if let Some(content) = before.strip_suffix(b"\r\n") {
                self.add(fresh.slice(..content.len()))?;
                return Ok((from + hit + boundary.delimiter.len() - 2, true));
            }
            if before.ends_with(b"\n") || before.ends_with(b"\r") {
                self.add(fresh.slice(..hit - 1))?;
                return Err(half_line_break(from + hit + boundary.delimiter.len() - 3));
            }
        }
        self.partial = PartialBoundary::at_end_of(boundary, &fresh);
        self.add(fresh.slice(..fresh.len() - self.partial.length()))?;
        Ok((piece.len(), false))
    }

    /// Goes on with what is held, until it is a seam or is not.
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
            let held = &mut self.partial;
            if held.matched == 0 && !held.lf && *byte == b'\n' {
                held.lf = true;
            } else if *byte == dashes[held.matched] {
                held.matched += 1;
            } else {
                self.release_partial(boundary)?;
                return Ok((at, false));
            }
            if held.matched == dashes.len() {
                return if held.cr && held.lf {
                    Ok((at + 1, true))
                } else {
                    Err(half_line_break(at))
                };
            }
        }
        Ok((piece.len(), false))
    }

    /// What was held is content.
    fn release_partial(&mut self, boundary: &BoundaryMatcher) -> Result<(), FormViolation> {
        let held = std::mem::take(&mut self.partial);
        let begin = usize::from(!held.cr);
        let end = if held.lf { 2 } else { 1 };
        self.add(boundary.delimiter.slice(begin..end))?;
        self.add(boundary.delimiter.slice(2..2 + held.matched))
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

    /// The part, after its seam, which ended at a byte.
    pub(super) fn finish(&mut self, at: usize, ascii: bool) -> Result<FormPart, FormViolation> {
        let name = std::mem::take(&mut self.head.name);
        let kind = std::mem::replace(&mut self.head.kind, PartKind::Text);
        let content = match &mut self.storage {
            PartStorage::Text(text) => {
                let ascii = ascii || self.head.is_ascii_only;
                let text = String::from_utf8(std::mem::take(&mut text.0)).ok();
                let text = text.filter(|text| !ascii || text.is_ascii());
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

fn half_line_break(at: usize) -> FormViolation {
    violation_at(at, "a boundary must stand after CR and LF, not after one of them")
}

impl PartialBoundary {
    /// What at the end of these bytes may belong to a seam. No whole one is in them.
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

/// Bytes that are copied together. They are not shown.
#[derive(Default)]
struct TextBuffer(Vec<u8>);

impl fmt::Debug for TextBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// A file as slices of what came in.
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
