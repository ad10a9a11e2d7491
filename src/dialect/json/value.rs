//! Reading inside bytes that the scan has already proved sound.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

/// The kinds of JSON values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number.
    Number,
    /// A string.
    Text,
    /// A list.
    List,
    /// An object.
    Object,
}

impl Kind {
    /// The kind in words, for messages to clients.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Kind::Null => "null",
            Kind::Bool => "a boolean",
            Kind::Number => "a number",
            Kind::Text => "a string",
            Kind::List => "an array",
            Kind::Object => "an object",
        }
    }
}

/// A value as its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value<'a> {
    raw: &'a [u8],
}

impl<'a> Value<'a> {
    /// Bytes that a scan has passed. On others nothing panics, but answers mean nothing.
    #[must_use]
    pub fn trusted(raw: &'a [u8]) -> Value<'a> {
        Value { raw }
    }

    /// The bytes of the value.
    #[must_use]
    pub fn raw(self) -> &'a [u8] {
        self.raw
    }

    /// What kind of value it is.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self.raw.first() {
            Some(b'"') => Kind::Text,
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::List,
            Some(b't' | b'f') => Kind::Bool,
            Some(b'-' | b'0'..=b'9') => Kind::Number,
            _ => Kind::Null,
        }
    }

    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// The text of a string.
    #[must_use]
    pub fn text(self) -> Option<Cow<'a, str>> {
        let inside = self.inside()?;
        Some(match std::str::from_utf8(inside) {
            Ok(plain) if memchr::memchr(b'\\', inside).is_none() => Cow::Borrowed(plain),
            _ => Cow::Owned(unescape(inside)),
        })
    }

    /// The bytes between the quotes of a string, escapes as they stand.
    #[must_use]
    pub fn inside(self) -> Option<&'a [u8]> {
        (self.kind() == Kind::Text).then(|| &self.raw[1..self.raw.len().max(2) - 1])
    }

    /// `true` or `false`.
    #[must_use]
    pub fn bool(self) -> Option<bool> {
        (self.kind() == Kind::Bool).then(|| self.raw == b"true")
    }

    /// A whole number from 0 to 2^53 - 1 that is written as one, without sign, point or exponent.
    /// Larger ones are not the same number to every reader of JSON.
    #[must_use]
    pub fn whole(self) -> Option<u64> {
        let is_written_as_one = self.raw.first().is_some_and(u8::is_ascii_digit);
        let read = std::str::from_utf8(self.raw).ok()?.parse().ok();
        read.filter(|n| is_written_as_one && *n < 1 << 53)
    }

    /// The members of an object, in order; of anything else, none.
    pub fn members(self) -> impl Iterator<Item = (Cow<'a, str>, Value<'a>)> {
        let mut walk = Walk::into(self.raw, b'{');
        std::iter::from_fn(move || {
            let key = walk.next()?;
            let value = walk.next()?;
            Some((Value::trusted(key).text().unwrap_or_default(), Value::trusted(value)))
        })
    }

    /// A member of an object.
    #[must_use]
    pub fn get(self, name: &str) -> Option<Value<'a>> {
        self.members().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// The elements of a list, in order; of anything else, none.
    pub fn elements(self) -> impl Iterator<Item = Value<'a>> {
        let mut walk = Walk::into(self.raw, b'[');
        std::iter::from_fn(move || walk.next().map(Value::trusted))
    }
}

/// Goes over the values directly inside an object or list.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    fn into(raw: &'a [u8], open: u8) -> Walk<'a> {
        let at = if raw.first() == Some(&open) { 1 } else { raw.len() };
        Walk { bytes: raw, at }
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r' | b',' | b':') = self.bytes.get(self.at) {
            self.at += 1;
        }
        let start = self.at;
        self.at = match self.bytes.get(start)? {
            b'}' | b']' => return None,
            b'"' => string_end(self.bytes, start),
            b'{' | b'[' => nested_end(self.bytes, start),
            _ => plain_end(self.bytes, start),
        };
        self.bytes.get(start..self.at)
    }
}

fn plain_end(bytes: &[u8], start: usize) -> usize {
    let stops = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
    bytes[start..].iter().position(stops).map_or(bytes.len(), |n| start + n)
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(next) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += next;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

/// The end of an object or list. In sound bytes brackets match, so only its own kind is counted.
fn nested_end(bytes: &[u8], start: usize) -> usize {
    let (open, close) = if bytes[start] == b'{' { (b'{', b'}') } else { (b'[', b']') };
    let mut depth = 0usize;
    let mut at = start;
    while let Some(next) = memchr::memchr3(b'"', open, close, &bytes[at..]) {
        at += next;
        match bytes[at] {
            b'"' => {
                at = string_end(bytes, at);
                continue;
            }
            byte if byte == open => depth += 1,
            _ => depth = depth.saturating_sub(1),
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// From `at` on, where the first quote, backslash or control character stands; eight bytes a step.
#[must_use]
pub(super) fn special(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    // Marks the lowest zero byte for certain; marks above it may be false, and are not looked at.
    let zero = |w: u64| w.wrapping_sub(ONES) & !w;
    while let Some(Ok(eight)) = bytes.get(at..at + 8).map(<[u8; 8]>::try_from) {
        let word = u64::from_le_bytes(eight);
        let quote = zero(word ^ u64::from_le_bytes([b'"'; 8]));
        let backslash = zero(word ^ u64::from_le_bytes([b'\\'; 8]));
        let control = word.wrapping_sub(u64::from_le_bytes([0x20; 8])) & !word;
        let marks = (quote | backslash | control) & HIGH;
        if marks != 0 {
            return at + marks.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let stops = |b: &u8| matches!(b, b'"' | b'\\' | 0..0x20);
    bytes[at.min(bytes.len())..].iter().position(stops).map_or(bytes.len(), |n| at + n)
}

/// Four hex digits from `at`.
#[must_use]
pub(super) fn hex4(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    digits.iter().try_fold(0, |n, b| Some(n * 16 + char::from(*b).to_digit(16)?))
}

/// The text that escaped bytes stand for.
#[must_use]
pub(super) fn unescape(raw: &[u8]) -> String {
    let mut text: Vec<u8> = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        let next = memchr::memchr(b'\\', &raw[at..]).map_or(raw.len(), |n| at + n);
        text.extend_from_slice(&raw[at..next]);
        at = next;
        let Some(letter) = raw.get(at + 1) else { break };
        at += 2;
        let plain = match letter {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = hex4(raw, at).unwrap_or(0xFFFD);
                at += 4;
                let code = if (0xD800..0xDC00).contains(&first) {
                    let second = hex4(raw, at + 2).unwrap_or(0xDC00);
                    at += 6;
                    0x10000 + ((first - 0xD800) << 10) + (second.wrapping_sub(0xDC00) & 0x3FF)
                } else {
                    first
                };
                char::from_u32(code).unwrap_or('\u{FFFD}')
            }
            other => char::from(*other),
        };
        text.extend_from_slice(plain.encode_utf8(&mut [0; 4]).as_bytes());
    }
    String::from_utf8_lossy(&text).into_owned()
}
