//! Finds where the entries of a reply begin, and where each of them ends, in bytes that are still
//! arriving.
//!
//! The finders validate nothing: each entry that they find, and the rest of the reply around the
//! entries, is parsed strictly afterwards. If both parts are valid, so is the whole reply.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use memchr::{memchr2, memchr3};

/// The name of the list of entries. A name that is written with escapes is not found.
const ENTRIES_MEMBER: &[u8] = b"data";

/// Finds the list of entries in the outermost object.
#[derive(Debug, Default)]
pub(super) struct EntryListFinder {
    scanned: usize,
    depth: usize,
    /// The offset at which the current string begins, after its quote; `None` outside a string.
    text_start: Option<usize>,
    /// Whether the last string in the outermost object is the name of the list, and
    /// (`value_follows`) whether a colon came after it.
    name_matched: bool,
    value_follows: bool,
}

impl EntryListFinder {
    /// Returns the offset after the opening bracket of the list; `None` if the bracket has not
    /// arrived. `bytes` are all bytes of the reply so far, including those of earlier calls.
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

/// Finds the end of an object.
#[derive(Debug, Default)]
pub(super) struct ObjectEndFinder {
    scanned: usize,
    depth: usize,
    in_text: bool,
}

impl ObjectEndFinder {
    /// Returns the offset after the object with which `bytes` begin; `None` if its end has not
    /// arrived. `bytes` are all bytes since the beginning of the object, including those of earlier
    /// calls.
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

/// Returns the offset after the quote that ends a string, searching from `scanned` on; `None` if it
/// has not arrived.
fn find_text_end(bytes: &[u8], scanned: &mut usize) -> Option<usize> {
    loop {
        let Some(found) = memchr2(b'"', b'\\', &bytes[*scanned..]) else {
            *scanned = bytes.len();
            return None;
        };
        let at = *scanned + found;
        if bytes[at] == b'"' {
            *scanned = at + 1;
            return Some(at + 1);
        }
        if at + 1 == bytes.len() {
            // The escaped character has not arrived, so the next search begins at the backslash.
            *scanned = at;
            return None;
        }
        *scanned = at + 2;
    }
}
