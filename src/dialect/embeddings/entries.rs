//! Where the entries of a reply begin, and where each of them ends, in bytes that are still coming.
//!
//! Neither validates anything: each entry that they find, and the rest of the reply around the
//! entries, is parsed strictly afterwards. If both parts are valid, so is the whole reply.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use memchr::{memchr2, memchr3};

/// The name of the list of entries. One that is written with escapes is not found.
const ENTRIES_MEMBER: &[u8] = b"data";

/// Looks for the list of entries in the outermost object.
#[derive(Debug, Default)]
pub(super) struct EntryListFinder {
    scanned: usize,
    depth: usize,
    /// Where the text began that has not ended.
    text_start: Option<usize>,
    /// Whether the last text of the outermost object is the name of the list, and whether its
    /// colon was there.
    name_matched: bool,
    value_follows: bool,
}

impl EntryListFinder {
    /// The byte after the opening bracket; `bytes` are all that came, also those of last time.
    pub(super) fn find_list_start(&mut self, bytes: &[u8]) -> Option<usize> {
        while self.scanned < bytes.len() {
            if let Some(start) = self.text_start {
                let end = find_text_end(bytes, &mut self.scanned)?;
                self.text_start = None;
                if self.depth == 1 {
                    self.name_matched = bytes[start..end - 1] == *ENTRIES_MEMBER;
                }
                continue;
            }
            let byte = bytes[self.scanned];
            self.scanned += 1;
            match byte {
                b'"' => self.text_start = Some(self.scanned),
                b'[' if self.depth == 1 && self.value_follows => return Some(self.scanned),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b':' if self.depth == 1 => self.value_follows = self.name_matched,
                b',' if self.depth == 1 => (self.name_matched, self.value_follows) = (false, false),
                _ => {}
            }
        }
        None
    }
}

/// Looks for the end of an object.
#[derive(Debug, Default)]
pub(super) struct ObjectEndFinder {
    scanned: usize,
    depth: usize,
    in_text: bool,
}

impl ObjectEndFinder {
    /// The byte after the object with which `bytes` begin; these are all that came of it, also
    /// those of last time.
    pub(super) fn find_object_end(&mut self, bytes: &[u8]) -> Option<usize> {
        loop {
            if self.in_text {
                find_text_end(bytes, &mut self.scanned)?;
                self.in_text = false;
            }
            let Some(found) = memchr3(b'"', b'{', b'}', &bytes[self.scanned..]) else {
                self.scanned = bytes.len();
                return None;
            };
            let at = self.scanned + found;
            self.scanned = at + 1;
            match bytes[at] {
                b'"' => self.in_text = true,
                b'{' => self.depth += 1,
                _ => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.scanned);
                    }
                }
            }
        }
    }
}

/// The byte after the quote that ends a text, looking from `looked` on.
fn find_text_end(bytes: &[u8], looked: &mut usize) -> Option<usize> {
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
