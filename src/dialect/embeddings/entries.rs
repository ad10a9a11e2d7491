//! Where the entries of a reply begin, and where each of them ends, in bytes that are still coming.
//!
//! Neither proves anything: what they take for an entry, and what is left around the entries, is
//! scanned strictly afterwards. Bytes that are sound in both scans are sound as a whole.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use memchr::{memchr2, memchr3};

/// The name of the list of entries. One that is written with escapes is not found.
const NAME: &[u8] = b"data";

/// Looks for the list of entries in the outermost object.
#[derive(Debug, Default)]
pub(super) struct EntryListFinder {
    looked: usize,
    depth: usize,
    /// Where the text began that has not ended.
    text_start: Option<usize>,
    /// Whether the last text of the outermost object is the name of the list, and whether its
    /// colon was there.
    is_name: bool,
    is_value: bool,
}

impl EntryListFinder {
    /// The byte after the opening bracket; `bytes` are all that came, also those of last time.
    pub(super) fn list_start(&mut self, bytes: &[u8]) -> Option<usize> {
        while self.looked < bytes.len() {
            if let Some(start) = self.text_start {
                let end = text_end(bytes, &mut self.looked)?;
                self.text_start = None;
                if self.depth == 1 {
                    self.is_name = bytes[start..end - 1] == *NAME;
                }
                continue;
            }
            let byte = bytes[self.looked];
            self.looked += 1;
            match byte {
                b'"' => self.text_start = Some(self.looked),
                b'[' if self.depth == 1 && self.is_value => return Some(self.looked),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b':' if self.depth == 1 => self.is_value = self.is_name,
                b',' if self.depth == 1 => (self.is_name, self.is_value) = (false, false),
                _ => {}
            }
        }
        None
    }
}

/// Looks for the end of an object.
#[derive(Debug, Default)]
pub(super) struct ObjectEndFinder {
    looked: usize,
    depth: usize,
    in_text: bool,
}

impl ObjectEndFinder {
    /// The byte after the object with which `bytes` begin; these are all that came of it, also
    /// those of last time.
    pub(super) fn object_end(&mut self, bytes: &[u8]) -> Option<usize> {
        loop {
            if self.in_text {
                text_end(bytes, &mut self.looked)?;
                self.in_text = false;
            }
            let Some(found) = memchr3(b'"', b'{', b'}', &bytes[self.looked..]) else {
                self.looked = bytes.len();
                return None;
            };
            let at = self.looked + found;
            self.looked = at + 1;
            match bytes[at] {
                b'"' => self.in_text = true,
                b'{' => self.depth += 1,
                _ => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.looked);
                    }
                }
            }
        }
    }
}

/// The byte after the quote that ends a text, looking from `looked` on.
fn text_end(bytes: &[u8], looked: &mut usize) -> Option<usize> {
    loop {
        let Some(found) = memchr2(b'"', b'\\', &bytes[*looked..]) else {
            *looked = bytes.len();
            return None;
        };
        let at = *looked + found;
        if bytes[at] == b'"' {
            *looked = at + 1;
            return Some(at + 1);
        }
        if at + 1 == bytes.len() {
            // What is escaped has not come.
            *looked = at;
            return None;
        }
        *looked = at + 2;
    }
}
