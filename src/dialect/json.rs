//! A strict zero-copy JSON reader: one scan validates the body, members are byte ranges in it, and
//! edits are splices of the original.
//!
//! Vendors read bodies with parsers that disagree on duplicate members, lone surrogates or numbers
//! out of range. What one of them bills must be what we held for, so such bodies are refused.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

pub mod compact;
pub mod patch;
pub mod scan;
pub mod value;

pub use patch::JsonPatch;
pub use value::{JsonKind, JsonValue};

/// The maximum number of members of one object. Reading a body costs time proportional to it, and
/// no vendor's format needs more.
pub const MEMBERS_MAX: usize = 4_096;
/// The maximum nesting depth of objects and arrays.
pub const DEPTH_MAX: usize = 64;

/// Why bytes are not one valid JSON value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset}")]
pub struct JsonError {
    /// The byte offset of the error, from 0.
    pub offset: usize,
    /// What is wrong there.
    pub what: String,
}

impl JsonError {
    fn at(offset: usize, what: impl Into<String>) -> JsonError {
        JsonError { offset, what: what.into() }
    }
}

/// A member name: its bytes between the quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemberName {
    range: Range<usize>,
    escaped: bool,
}

impl MemberName {
    /// The name with its escapes resolved.
    fn decode<'a>(&self, body: &'a [u8]) -> Cow<'a, [u8]> {
        let raw = &body[self.range.clone()];
        if self.escaped { value::unescape(raw).into_bytes().into() } else { raw.into() }
    }
}

/// A member of the outermost object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JsonMember {
    /// Its name, between the quotes.
    name: MemberName,
    /// The bytes of the value.
    value: Range<usize>,
}

/// A sound JSON object: the bytes as they came, and its members.
#[derive(Debug, Clone)]
pub struct JsonDocument {
    body: Bytes,
    members: Vec<JsonMember>,
    /// The byte after the opening brace.
    content_start: usize,
    /// The ranges of long values, so that iterating over the body can skip them.
    long_values: Vec<value::LongValue>,
}

impl JsonDocument {
    /// Scans a body once, from its first to its last byte.
    ///
    /// # Errors
    /// [`JsonError`] if it isn't exactly one JSON object: invalid UTF-8 or grammar, a member name
    /// that stands twice at any level, more than [`DEPTH_MAX`] levels or [`MEMBERS_MAX`] members, a
    /// number no double can hold, half a surrogate pair, or anything after the end.
    pub fn parse(body: Bytes) -> Result<JsonDocument, JsonError> {
        JsonDocument::scan_body(body, scan::ScanStrictness::FromClient, 0)
    }

    /// Like [`JsonDocument::parse`], for JSON that a vendor sent. Numbers may be of any size: the
    /// gateway does not compute with numbers that a model wrote, and the reply has to be billed
    /// whatever is in it.
    ///
    /// # Errors
    /// [`JsonError`] as [`JsonDocument::parse`], except for numbers.
    pub fn parse_from_vendor(body: Bytes) -> Result<JsonDocument, JsonError> {
        JsonDocument::parse_from_vendor_within(body, 0)
    }

    /// Like [`JsonDocument::parse_from_vendor`], for an object nested in `outer` other objects and
    /// arrays, which count towards the depth limit.
    ///
    /// # Errors
    /// [`JsonError`] as [`JsonDocument::parse_from_vendor`].
    pub fn parse_from_vendor_within(body: Bytes, outer: usize) -> Result<JsonDocument, JsonError> {
        JsonDocument::scan_body(body, scan::ScanStrictness::FromVendor, outer)
    }

    fn scan_body(
        body: Bytes,
        strictness: scan::ScanStrictness,
        outer: usize,
    ) -> Result<JsonDocument, JsonError> {
        let scan::ScannedObject { content_start, members, long_values } =
            scan::scan_object(&body, strictness, outer)?;
        Ok(JsonDocument { body, members, content_start, long_values })
    }

    /// The bytes as they came.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The value of a member.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<JsonValue<'_>> {
        self.members.iter().find(|m| self.is_named(m, name)).map(|m| self.value(m))
    }

    /// The names of the members and their values, in order.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'_, str>, JsonValue<'_>)> {
        self.members.iter().map(|member| {
            let name = match member.name.decode(&self.body) {
                Cow::Borrowed(raw) => String::from_utf8_lossy(raw),
                Cow::Owned(read) => Cow::Owned(String::from_utf8_lossy(&read).into_owned()),
            };
            (name, self.value(member))
        })
    }

    fn is_named(&self, member: &JsonMember, name: &str) -> bool {
        // An escape only makes a name longer.
        let range = &member.name.range;
        let raw = &self.body[range.clone()];
        if member.name.escaped {
            range.len() > name.len() && *member.name.decode(&self.body) == *name.as_bytes()
        } else {
            raw == name.as_bytes()
        }
    }

    fn value(&self, member: &JsonMember) -> JsonValue<'_> {
        JsonValue::at_offset(
            &self.body[member.value.clone()],
            &self.long_values,
            member.value.start,
        )
    }
}
