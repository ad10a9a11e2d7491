//! A validated JSON body, whose members are read in place.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use bytes::Bytes;

use super::scan::{JsonError, JsonMember, ScanStrictness, ScannedObject, name_bit, scan_object};
use super::value::{JsonValue, LongValue};

/// A valid JSON object: its bytes as received, and its members.
#[derive(Debug, Clone)]
pub struct JsonDocument {
    pub(super) body: Bytes,
    pub(super) members: Vec<JsonMember>,
    /// The offset of the byte after the opening brace.
    pub(super) content_start: usize,
    /// The bits of the members' names: most names that are absent are known by them.
    name_bits: u64,
    /// The ranges of long values inside the members' values, so that reading these can skip them.
    long_values: Vec<LongValue>,
}

impl JsonDocument {
    /// Scans a body once, from its first to its last byte.
    ///
    /// # Errors
    /// [`JsonError`] if the body is not exactly one JSON object: invalid UTF-8 or grammar, a
    /// duplicate member name at any level, more than [`DEPTH_MAX`] levels or [`MEMBERS_MAX`]
    /// members, a number that no double can hold, half a surrogate pair, or anything after the end.
    ///
    /// [`DEPTH_MAX`]: super::scan::DEPTH_MAX
    /// [`MEMBERS_MAX`]: super::scan::MEMBERS_MAX
    pub fn parse(body: Bytes) -> Result<JsonDocument, JsonError> {
        JsonDocument::scan_body(body, ScanStrictness::FromClient, 0)
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
    pub(crate) fn parse_from_vendor_within(
        body: Bytes,
        outer: usize,
    ) -> Result<JsonDocument, JsonError> {
        JsonDocument::scan_body(body, ScanStrictness::FromVendor, outer)
    }

    fn scan_body(
        body: Bytes,
        strictness: ScanStrictness,
        outer: usize,
    ) -> Result<JsonDocument, JsonError> {
        let ScannedObject { content_start, members, name_bits, long_values } =
            scan_object(&body, strictness, outer)?;
        Ok(JsonDocument { body, members, content_start, name_bits, long_values })
    }

    /// Returns the bytes as received.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the value of a member; `None` if there is no such member.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<JsonValue<'_>> {
        if self.name_bits & name_bit(name.as_bytes()) == 0 {
            return None;
        }
        self.members.iter().find(|m| self.is_named(m, name)).map(|m| self.value(m))
    }

    /// Returns the names of the members and their values, in order.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'_, str>, JsonValue<'_>)> {
        self.members.iter().map(|member| {
            let name = match member.name.decode(&self.body) {
                Cow::Borrowed(raw) => String::from_utf8_lossy(raw),
                Cow::Owned(read) => Cow::Owned(String::from_utf8_lossy(&read).into_owned()),
            };
            (name, self.value(member))
        })
    }

    #[inline]
    pub(super) fn is_named(&self, member: &JsonMember, name: &str) -> bool {
        // Most names differ in their lengths, so these are compared first. A name with escapes is
        // longer than the name that it stands for.
        let range = &member.name.range;
        if member.name.escaped {
            range.len() > name.len() && *member.name.decode(&self.body) == *name.as_bytes()
        } else {
            range.len() == name.len() && self.body[range.clone()] == *name.as_bytes()
        }
    }

    pub(super) fn value(&self, member: &JsonMember) -> JsonValue<'_> {
        JsonValue::at_offset(
            &self.body[member.value.clone()],
            &self.long_values,
            member.value.start,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    /// Returns the content of a name's string: mostly one of its own, or one that has a double in
    /// other letters.
    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            30 => "[a-z_]{4,12}",
            1 => "[ab]{0,2}",
            1 => prop_oneof![Just("\\u0061"), Just("\\u0062a"), Just("\\n\\\"")]
                .prop_map(str::to_owned),
        ]
    }

    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            30 => prop_oneof![Just("null"), Just("-1.5e3"), Just(r#"{"b":[1,{"a":"é"}]}"#)]
                .prop_map(str::to_owned),
            9 => (0..300usize).prop_map(|length| format!("\"{}\"", "}".repeat(length))),
            1 => Just(format!("[\"{}\", 1]", ",".repeat(16 << 10))),
        ]
    }

    proptest! {
        #[test]
        fn what_is_remembered_of_the_members_is_what_a_walk_finds(
            members in prop::collection::vec((name(), value()), 0..80),
            absent in "[a-c]{0,3}",
        ) {
            let members = members.iter().map(|(name, value)| format!(" \"{name}\" : {value}"));
            let body = Bytes::from(format!("{{{} }}", members.collect::<Vec<_>>().join(",")));
            let walk = JsonValue::from_validated(&body);
            let walked: Vec<_> = walk.members().collect();
            let names: BTreeSet<_> = walked.iter().map(|(name, _)| name.clone()).collect();
            match JsonDocument::parse(body.clone()) {
                Ok(document) => {
                    prop_assert_eq!(names.len(), walked.len());
                    prop_assert_eq!(document.get(&absent), walk.get(&absent));
                    for (name, value) in &walked {
                        prop_assert_eq!(document.get(name), Some(*value));
                    }
                    prop_assert_eq!(document.members().collect::<Vec<_>>(), walked);
                }
                Err(why) => {
                    prop_assert!(why.what.ends_with("stands twice"), "{}", why);
                    prop_assert!(names.len() < walked.len());
                }
            }
        }
    }
}
