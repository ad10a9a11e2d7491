//! The single strict scan of a JSON body: it finds the members and rejects invalid or ambiguous
//! JSON.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::ops::Range;

use super::value::{self, LongValue};

/// The maximum number of members of one object. Reading a body costs time proportional to it, and
/// no vendor's format needs more.
pub(crate) const MEMBERS_MAX: usize = 4_096;
/// The maximum nesting depth of objects and arrays.
pub(crate) const DEPTH_MAX: usize = 64;
/// The digits before the decimal point plus the exponent may be at most this: such a number always
/// fits an `f64`.
const MAGNITUDE_MAX: i64 = 308;
/// Up to this many member names of an object are compared with those of the same bit to find
/// duplicates; more are sorted.
const PAIRWISE_MAX: usize = 16;
/// An error message quotes at most this many characters of a member name.
const SHOWN_CHARS_MAX: usize = 40;

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
pub(super) struct MemberName {
    pub(super) range: Range<usize>,
    pub(super) escaped: bool,
}

impl MemberName {
    /// The name with its escapes resolved.
    pub(super) fn decode<'a>(&self, body: &'a [u8]) -> Cow<'a, [u8]> {
        let raw = &body[self.range.clone()];
        if self.escaped { value::unescape(raw).into_bytes().into() } else { raw.into() }
    }
}

/// A member of the outermost object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonMember {
    /// The name, without its quotes.
    pub(super) name: MemberName,
    /// The bytes of the value.
    pub(super) value: Range<usize>,
}

/// The result of the scan of an object.
pub(super) struct ScannedObject {
    /// The offset of the byte after the opening brace.
    pub(super) content_start: usize,
    pub(super) members: Vec<JsonMember>,
    /// The bits of the members' names, see [`name_bit`].
    pub(super) name_bits: u64,
    /// The ranges of long values inside the members' values, sorted by their start.
    pub(super) long_values: Vec<LongValue>,
}

/// Scans bytes that must be one object. `outer_depth` is the number of objects and arrays around
/// it, which count towards the depth limit.
///
/// # Errors
/// See [`super::JsonDocument::parse`].
pub(super) fn scan_object(
    bytes: &[u8],
    strictness: ScanStrictness,
    outer_depth: usize,
) -> Result<ScannedObject, JsonError> {
    let mut scan = start_scan(bytes, strictness)?;
    if scan.peek() != Some(b'{') {
        return Err(scan.error_here("expected an object"));
    }
    let content_start = scan.at + 1;
    let mut members = Vec::with_capacity(12);
    scan.parse_object(1 + outer_depth, Some(&mut members))?;
    scan.expect_end()?;
    let mut long = scan.long_values;
    long.sort_unstable_by_key(|long| long.start);
    Ok(ScannedObject { content_start, members, name_bits: scan.name_bits, long_values: long })
}

/// Returns the one of 64 bits that stands for a name. Few names of one object have the same.
pub(super) fn name_bit(name: &[u8]) -> u64 {
    let first = name.first().copied().map_or(0, usize::from);
    1 << ((first + 8 * name.len()) % 64)
}

/// Scans bytes that must be one value of any kind.
///
/// # Errors
/// See [`super::JsonDocument::parse`].
pub(crate) fn validate_value(bytes: &[u8]) -> Result<(), JsonError> {
    let mut scan = start_scan(bytes, ScanStrictness::FromClient)?;
    scan.parse_value(1)?;
    scan.expect_end()
}

/// How strict a scan is about numbers. UTF-8, grammar, depth and duplicate names are always
/// checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScanStrictness {
    /// The bytes are from a client: a double must be able to hold each number.
    FromClient,
    /// The bytes are from a vendor: numbers may be of any size.
    FromVendor,
}

fn start_scan(bytes: &[u8], strictness: ScanStrictness) -> Result<JsonScanner<'_>, JsonError> {
    if !bytes.is_ascii()
        && let Err(e) = std::str::from_utf8(bytes)
    {
        return Err(JsonError::at(e.valid_up_to(), "invalid UTF-8"));
    }
    let (names, long) = (Vec::with_capacity(PAIRWISE_MAX), Vec::new());
    let mut scan = JsonScanner { bytes, at: 0, names, name_bits: 0, long_values: long, strictness };
    scan.skip_whitespace();
    Ok(scan)
}

struct JsonScanner<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Member names of the objects that have not ended, those of the innermost object last.
    names: Vec<MemberName>,
    /// The bits of the names of the object that ended last; that is the outermost one in the end.
    name_bits: u64,
    /// Long values in the order of their ends.
    long_values: Vec<LongValue>,
    strictness: ScanStrictness,
}

impl JsonScanner<'_> {
    fn error_here(&self, what: &str) -> JsonError {
        match self.peek() {
            Some(_) => JsonError::at(self.at, what),
            None => JsonError::at(self.at, format!("the body ends too early; {what}")),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn expect_end(&mut self) -> Result<(), JsonError> {
        self.skip_whitespace();
        if self.at < self.bytes.len() {
            Err(self.error_here("unexpected bytes after the end"))
        } else {
            Ok(())
        }
    }

    fn parse_value(&mut self, depth: usize) -> Result<(), JsonError> {
        let start = self.at;
        self.parse_by_kind(depth)?;
        if LongValue::is_recorded(self.at - start, self.long_values.len()) {
            self.long_values.push(LongValue { start, end: self.at });
        }
        Ok(())
    }

    fn parse_by_kind(&mut self, depth: usize) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"') => self.parse_string().map(|_| ()),
            Some(b'{') => self.parse_object(depth, None),
            Some(b'[') => self.parse_array(depth),
            Some(b'-' | b'0'..=b'9') => self.parse_number(),
            Some(b't') => self.expect_literal(b"true"),
            Some(b'f') => self.expect_literal(b"false"),
            Some(b'n') => self.expect_literal(b"null"),
            _ => Err(self.error_here("expected a value")),
        }
    }

    fn parse_object(
        &mut self,
        depth: usize,
        mut collected: Option<&mut Vec<JsonMember>>,
    ) -> Result<(), JsonError> {
        self.check_depth(depth)?;
        let first_name = self.names.len();
        self.at += 1;
        self.skip_whitespace();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error_here("expected a member name in quotes"));
            }
            let quote = self.at;
            let escaped = self.parse_string()?;
            let name = MemberName { range: quote + 1..self.at - 1, escaped };
            self.skip_whitespace();
            self.expect_byte(b':', "expected ':'")?;
            self.skip_whitespace();
            let value_start = self.at;
            if let Some(members) = collected.as_deref_mut() {
                // The member itself tells where its value ends.
                self.parse_by_kind(depth + 1)?;
                members.push(JsonMember { name: name.clone(), value: value_start..self.at });
            } else {
                self.parse_value(depth + 1)?;
            }
            self.names.push(name);
            if self.names.len() - first_name > MEMBERS_MAX {
                return Err(self.error_here("too many members in one object"));
            }
            self.skip_whitespace();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.error_here("expected ',' or '}'")),
            }
            self.skip_whitespace();
        }
        self.at += 1;
        self.name_bits = self.check_unique_names(first_name)?;
        self.names.truncate(first_name);
        Ok(())
    }

    fn parse_array(&mut self, depth: usize) -> Result<(), JsonError> {
        self.check_depth(depth)?;
        self.at += 1;
        self.skip_whitespace();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.parse_value(depth + 1)?;
            self.skip_whitespace();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.error_here("expected ',' or ']'")),
            }
            self.skip_whitespace();
        }
        self.at += 1;
        Ok(())
    }

    fn check_depth(&self, depth: usize) -> Result<(), JsonError> {
        if depth > DEPTH_MAX {
            return Err(self.error_here(&format!("more than {DEPTH_MAX} levels")));
        }
        Ok(())
    }

    fn expect_byte(&mut self, byte: u8, what: &str) -> Result<(), JsonError> {
        if self.peek() != Some(byte) {
            return Err(self.error_here(what));
        }
        self.at += 1;
        Ok(())
    }

    fn expect_literal(&mut self, literal: &[u8]) -> Result<(), JsonError> {
        if !self.bytes[self.at..].starts_with(literal) {
            return Err(self.error_here("expected a value"));
        }
        self.at += literal.len();
        Ok(())
    }

    /// Scans a string; returns whether it has escapes.
    fn parse_string(&mut self) -> Result<bool, JsonError> {
        self.at += 1;
        let mut escaped = false;
        loop {
            self.at = value::find_special(self.bytes, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.parse_escape()?;
                }
                Some(_) => return Err(self.error_here("control character in a string")),
                None => return Err(self.error_here("expected '\"'")),
            }
        }
    }

    fn parse_escape(&mut self) -> Result<(), JsonError> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => self.parse_unicode_escape(),
            _ => Err(self.error_here("unknown escape")),
        }
    }

    fn parse_unicode_escape(&mut self) -> Result<(), JsonError> {
        let parse_code_unit = |at| value::parse_hex4(self.bytes, at);
        let first = parse_code_unit(self.at + 2)
            .ok_or_else(|| self.error_here("expected four hex digits"))?;
        let length = match first {
            0xD800..=0xDBFF => {
                let marked = self.bytes[self.at + 6..].starts_with(b"\\u");
                let second = if marked { parse_code_unit(self.at + 8) } else { None };
                if !matches!(second, Some(0xDC00..=0xDFFF)) {
                    return Err(self.error_here("half a surrogate pair"));
                }
                12
            }
            0xDC00..=0xDFFF => return Err(self.error_here("half a surrogate pair")),
            _ => 6,
        };
        self.at += length;
        Ok(())
    }

    fn parse_number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let integer_digits = match self.peek() {
            Some(b'0') => {
                self.at += 1;
                1
            }
            _ => self.parse_digits()?,
        };
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.parse_digits()?;
        }
        let mut exponent: i64 = 0;
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            let negative = self.peek() == Some(b'-');
            if let Some(b'-' | b'+') = self.peek() {
                self.at += 1;
            }
            let from = self.at;
            self.parse_digits()?;
            let digits = std::str::from_utf8(&self.bytes[from..self.at]).unwrap_or_default();
            let size = digits.parse().unwrap_or(i64::from(u32::MAX));
            exponent = if negative { 0 } else { size };
        }
        let magnitude = i64::try_from(integer_digits).unwrap_or(i64::MAX).saturating_add(exponent);
        if magnitude > MAGNITUDE_MAX && self.strictness == ScanStrictness::FromClient {
            return Err(JsonError::at(start, "number out of range"));
        }
        Ok(())
    }

    /// Scans at least one digit; returns the number of digits.
    fn parse_digits(&mut self) -> Result<usize, JsonError> {
        let from = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == from { Err(self.error_here("expected a digit")) } else { Ok(self.at - from) }
    }

    /// Checks that the object that just ended has no duplicate member names. Returns the bits of
    /// the names: all bits if they are many or have escapes, with which a name may be any name.
    fn check_unique_names(&self, first_name: usize) -> Result<u64, JsonError> {
        let names = &self.names[first_name..];
        let duplicate = |name: &MemberName| {
            let text = shorten_for_error(&name.decode(self.bytes));
            JsonError::at(name.range.start, format!("member '{text}' stands twice"))
        };
        if names.len() <= PAIRWISE_MAX && names.iter().all(|n| !n.escaped) {
            let mut seen = 0;
            for (i, name) in names.iter().enumerate() {
                let raw = &self.bytes[name.range.clone()];
                let bit = name_bit(raw);
                let is_same = |n: &MemberName| &self.bytes[n.range.clone()] == raw;
                if seen & bit != 0 && names[..i].iter().any(is_same) {
                    return Err(duplicate(name));
                }
                seen |= bit;
            }
            return Ok(seen);
        }
        let mut sorted: Vec<_> = names.iter().map(|n| (n.decode(self.bytes), n)).collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(duplicate(pair[1].1)),
            None => Ok(u64::MAX),
        }
    }
}

/// Returns a member name for an error message: shortened, and on one line.
fn shorten_for_error(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let mut chars = text.chars().map(|c| if c.is_control() { '\u{FFFD}' } else { c });
    let mut begin: String = chars.by_ref().take(SHOWN_CHARS_MAX).collect();
    if chars.next().is_some() {
        begin.push('…');
    }
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_came_back_whole_when_it_stood_twice() {
        let fault = |name: &str| {
            let body = format!("{{\"{name}\":1,\"{name}\":2}}");
            let found = scan_object(body.as_bytes(), ScanStrictness::FromClient, 0)
                .err()
                .expect("it stands twice");
            found.what
        };
        let exact = "é".repeat(40);
        assert_eq!(fault(&exact), format!("member '{exact}' stands twice"));
        let long = "é".repeat(1 << 20);
        assert_eq!(fault(&long), format!("member '{exact}…' stands twice"));
        assert_eq!(fault("a\\nb\\u001b"), "member 'a\u{FFFD}b\u{FFFD}' stands twice");
    }
}
