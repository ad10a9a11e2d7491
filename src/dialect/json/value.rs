//! Reads values inside JSON bytes that the scan has already validated.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

/// The kinds of JSON values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonKind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number.
    Number,
    /// A string.
    String,
    /// A list.
    Array,
    /// An object.
    Object,
}

impl JsonKind {
    /// Returns the kind in words, for messages to clients.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            JsonKind::Null => "null",
            JsonKind::Bool => "a boolean",
            JsonKind::Number => "a number",
            JsonKind::String => "a string",
            JsonKind::Array => "an array",
            JsonKind::Object => "an object",
        }
    }
}

/// A JSON value, as its bytes.
#[derive(Debug, Clone, Copy)]
pub struct JsonValue<'a> {
    raw: &'a [u8],
    /// The long values of the body in which this value stands, without some of those before it;
    /// `offset` is where it begins there.
    long_values: &'a [LongValue],
    offset: usize,
}

impl PartialEq for JsonValue<'_> {
    fn eq(&self, other: &JsonValue<'_>) -> bool {
        self.raw == other.raw
    }
}

impl Eq for JsonValue<'_> {}

/// The range of a long value, recorded so that the value is not read again to find its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LongValue {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl LongValue {
    /// A value of fewer bytes is not recorded: reading it once more costs as little.
    const BYTES_MIN: usize = 256;
    /// At most this many values of a body are recorded, and beside them only very long ones. Where
    /// more values are long, the list that has them is very long itself.
    const COUNT_MAX: usize = 64;
    /// A value of at least this many bytes is very long. One body can only have a few of them.
    const ALWAYS_BYTES_MIN: usize = 16 << 10;

    /// Whether a value of this length is recorded if `recorded` others were recorded before it.
    pub(super) fn is_recorded(bytes: usize, recorded: usize) -> bool {
        bytes >= LongValue::BYTES_MIN
            && (recorded < LongValue::COUNT_MAX || bytes >= LongValue::ALWAYS_BYTES_MIN)
    }
}

impl<'a> JsonValue<'a> {
    /// Wraps bytes that a scan has validated. Other bytes cause no panic, but wrong results.
    #[must_use]
    pub fn from_validated(raw: &'a [u8]) -> JsonValue<'a> {
        JsonValue::at_offset(raw, &[], 0)
    }

    /// Like [`Self::from_validated`], for a value at an offset of a body whose long values are
    /// indexed.
    pub(super) fn at_offset(
        raw: &'a [u8],
        long_values: &'a [LongValue],
        offset: usize,
    ) -> JsonValue<'a> {
        JsonValue { raw, long_values, offset }
    }

    /// Returns the bytes of the value.
    #[must_use]
    pub fn raw(self) -> &'a [u8] {
        self.raw
    }

    /// Returns the kind of the value.
    #[must_use]
    pub fn kind(self) -> JsonKind {
        match self.raw.first() {
            Some(b'"') => JsonKind::String,
            Some(b'{') => JsonKind::Object,
            Some(b'[') => JsonKind::Array,
            Some(b't' | b'f') => JsonKind::Bool,
            Some(b'-' | b'0'..=b'9') => JsonKind::Number,
            _ => JsonKind::Null,
        }
    }

    /// Whether the value is `null`.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.kind() == JsonKind::Null
    }

    /// Returns the text of a string, with its escapes decoded; `None` if the value is not a string.
    #[must_use]
    pub fn text(self) -> Option<Cow<'a, str>> {
        self.string_bytes().map(unescape_lossy)
    }

    /// Returns the bytes between the quotes of a string, with its escapes not decoded; `None` if
    /// the value is not a string.
    #[must_use]
    pub(crate) fn string_bytes(self) -> Option<&'a [u8]> {
        (self.kind() == JsonKind::String).then(|| &self.raw[1..self.raw.len().max(2) - 1])
    }

    /// Returns a boolean; `None` if the value is not a boolean.
    #[must_use]
    pub fn bool(self) -> Option<bool> {
        (self.kind() == JsonKind::Bool).then(|| self.raw == b"true")
    }

    /// Returns a whole number from 0 to 2^53 - 1 that is written without sign, point or exponent;
    /// `None` for any other value. JSON parsers disagree about larger numbers.
    #[must_use]
    pub fn integer(self) -> Option<u64> {
        let starts_with_digit = self.raw.first().is_some_and(u8::is_ascii_digit);
        let read = std::str::from_utf8(self.raw).ok()?.parse().ok();
        read.filter(|n| starts_with_digit && *n < 1 << 53)
    }

    /// Returns the members of an object, in order; none if the value is not an object.
    pub fn members(self) -> impl Iterator<Item = (Cow<'a, str>, JsonValue<'a>)> {
        self.raw_members().map(|(name, value)| {
            let name = match name {
                // The lossy conversion takes longer. It is needed only for bytes that no scan has
                // validated.
                Cow::Borrowed(raw) => std::str::from_utf8(raw)
                    .map_or_else(|_| String::from_utf8_lossy(raw), Cow::Borrowed),
                Cow::Owned(read) => Cow::Owned(into_utf8_lossy(read)),
            };
            (name, value)
        })
    }

    /// Like [`Self::members`], with the names as bytes: comparing them needs no UTF-8 check.
    pub(crate) fn raw_members(self) -> impl Iterator<Item = (Cow<'a, [u8]>, JsonValue<'a>)> {
        let mut walk = ValueWalk::new(self, b'{');
        std::iter::from_fn(move || walk.next_member())
    }

    /// Calls `visit` for each element of an array, with its place and its members, which are none
    /// for an element that is no object. It reads an element once; [`Self::elements`] reads it to
    /// its end before its members can be read.
    pub(crate) fn visit_objects(
        self,
        mut visit: impl FnMut(u64, &mut dyn Iterator<Item = (Cow<'a, [u8]>, JsonValue<'a>)>),
    ) {
        let mut walk = ValueWalk::new(self, b'[');
        let mut place = 0;
        while let Some(first) = walk.peek() {
            if first == b'{' {
                let mut inner = ValueWalk { at: walk.at + 1, ..walk };
                let mut members = std::iter::from_fn(|| inner.next_member());
                visit(place, &mut members);
                members.for_each(drop);
                walk.at = inner.at.saturating_add(1);
            } else {
                walk.next();
                visit(place, &mut std::iter::empty());
            }
            place += 1;
        }
    }

    /// Returns a member of an object; `None` if there is no such member.
    #[must_use]
    pub fn get(self, name: &str) -> Option<JsonValue<'a>> {
        self.raw_members().find(|(n, _)| **n == *name.as_bytes()).map(|(_, v)| v)
    }

    /// Returns the elements of an array, in order; none if the value is not an array.
    pub fn elements(self) -> impl Iterator<Item = JsonValue<'a>> {
        let mut walk = ValueWalk::new(self, b'[');
        std::iter::from_fn(move || walk.next())
    }
}

/// Iterates over the values directly inside an object or array.
struct ValueWalk<'a> {
    /// The object or array. Its long values are those that the walk has not passed, and a few more.
    container: JsonValue<'a>,
    at: usize,
}

impl<'a> ValueWalk<'a> {
    fn new(container: JsonValue<'a>, open: u8) -> ValueWalk<'a> {
        let at = if container.raw.first() == Some(&open) { 1 } else { container.raw.len() };
        ValueWalk { container, at }
    }

    /// Returns the first byte of the next value, and moves there; `None` at the end.
    fn peek(&mut self) -> Option<u8> {
        let raw = self.container.raw;
        while let Some(b' ' | b'\t' | b'\n' | b'\r' | b',' | b':') = raw.get(self.at) {
            self.at += 1;
        }
        raw.get(self.at).copied().filter(|first| !matches!(first, b'}' | b']'))
    }

    fn next_member(&mut self) -> Option<(Cow<'a, [u8]>, JsonValue<'a>)> {
        self.peek()?;
        let (raw, start) = (self.container.raw, self.at);
        let (end, escaped) = string_end(raw, start);
        self.at = end;
        let value = self.next()?;
        let name = raw.get(start + 1..end - 1).unwrap_or_default();
        let name = if escaped { unescape(name).into_bytes().into() } else { name.into() };
        Some((name, value))
    }

    fn next(&mut self) -> Option<JsonValue<'a>> {
        let first = self.peek()?;
        let (raw, start) = (self.container.raw, self.at);
        self.at = self.known_end(start).unwrap_or_else(|| match first {
            b'"' => string_end(raw, start).0,
            b'{' | b'[' => nested_end(raw, start),
            _ => scalar_end(raw, start),
        });
        let raw = raw.get(start..self.at)?;
        Some(JsonValue { raw, offset: self.container.offset + start, ..self.container })
    }

    /// Returns the end of the value that begins at `start`, if it is recorded as a long value. Most
    /// values are short and cost a comparison with the next long one.
    fn known_end(&mut self, start: usize) -> Option<usize> {
        let JsonValue { long_values, offset, .. } = &mut self.container;
        let start = *offset + start;
        if long_values.first()?.start < start {
            let passed = long_values.partition_point(|long| long.start < start);
            *long_values = &long_values[passed..];
        }
        let next = long_values.first().filter(|next| next.start == start)?;
        Some(next.end - *offset)
    }
}

fn scalar_end(bytes: &[u8], start: usize) -> usize {
    let stops = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
    bytes[start..].iter().position(stops).map_or(bytes.len(), |n| start + n)
}

/// Returns the end of a string, and whether it has escapes.
fn string_end(bytes: &[u8], start: usize) -> (usize, bool) {
    let (mut at, mut escaped) = (start + 1, false);
    loop {
        // Valid strings have no control characters, so a quote or a backslash is found.
        at = find_special(bytes, at);
        match bytes.get(at) {
            Some(b'"') => return (at + 1, escaped),
            Some(b'\\') => (at, escaped) = (at + 2, true),
            Some(_) => at += 1,
            None => return (bytes.len(), escaped),
        }
    }
}

/// Returns the end of an object or array. In valid JSON brackets match, so only brackets of its own
/// kind are counted.
fn nested_end(bytes: &[u8], start: usize) -> usize {
    let (open, close) = if bytes[start] == b'{' { (b'{', b'}') } else { (b'[', b']') };
    let mut depth = 0usize;
    let mut at = start;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'"' {
            at = string_end(bytes, at).0;
            continue;
        }
        at += 1;
        if byte == open {
            depth += 1;
        } else if byte == close {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return at;
            }
        }
    }
    bytes.len()
}

/// The first bytes of a string, this many, are searched eight at a time; most strings are not
/// longer. The rest is searched in blocks.
const SHORT_STRING_BYTES: usize = 64;
/// The size of a block in bytes. The compiler vectorizes the check of a block.
const BLOCK_BYTES: usize = 64;

/// Returns the position of the first quote, backslash or control character from `at` on, or the
/// length of `bytes` if there is none.
#[must_use]
pub(super) fn find_special(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    // Marks zero bytes. The lowest mark is always right; marks above it may be false, and are not
    // used.
    let zero_byte_marks = |w: u64| w.wrapping_sub(ONES) & !w;
    let mut short_until = at + SHORT_STRING_BYTES;
    while let Some(Ok(eight)) = bytes.get(at..at + 8).map(<[u8; 8]>::try_from) {
        let word = u64::from_le_bytes(eight);
        let quote = zero_byte_marks(word ^ u64::from_le_bytes([b'"'; 8]));
        let backslash = zero_byte_marks(word ^ u64::from_le_bytes([b'\\'; 8]));
        let control = word.wrapping_sub(u64::from_le_bytes([0x20; 8])) & !word;
        let marks = (quote | backslash | control) & HIGH;
        if marks != 0 {
            return at + marks.trailing_zeros() as usize / 8;
        }
        at += 8;
        if at >= short_until {
            at = skip_plain_blocks(bytes, at);
            // The next block contains a special byte, or there is no whole block left.
            short_until = at + BLOCK_BYTES;
        }
    }
    let is_special = |byte: &u8| special_mask(*byte) != 0;
    bytes[at.min(bytes.len())..].iter().position(is_special).map_or(bytes.len(), |n| at + n)
}

/// Returns the start of the first block from `at` on that has a special byte or is incomplete.
fn skip_plain_blocks(bytes: &[u8], mut at: usize) -> usize {
    while let Some(Ok(block)) = bytes.get(at..at + BLOCK_BYTES).map(<&[u8; BLOCK_BYTES]>::try_from)
    {
        if block.iter().fold(0, |found, byte| found | special_mask(*byte)) != 0 {
            break;
        }
        at += BLOCK_BYTES;
    }
    at
}

/// Returns a value other than 0 for a quote, backslash or control character. The function has no
/// branch, so that the check of a block can be vectorized.
fn special_mask(byte: u8) -> u8 {
    u8::from(byte == b'"') | u8::from(byte == b'\\') | u8::from(byte < 0x20)
}

/// Parses the four hex digits from `at`; `None` if there are not four.
#[must_use]
pub(super) fn parse_hex4(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    digits.iter().try_fold(0, |n, b| Some(n * 16 + char::from(*b).to_digit(16)?))
}

/// Decodes the escapes in the bytes of a string, if it has any. Invalid UTF-8, which a validated
/// document does not have, is replaced.
#[must_use]
pub(in crate::dialect) fn unescape_lossy(content: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(content) {
        Ok(plain) if memchr::memchr(b'\\', content).is_none() => Cow::Borrowed(plain),
        _ => Cow::Owned(unescape(content)),
    }
}

/// Decodes the escapes in the bytes of a string.
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
                let first = parse_hex4(raw, at).unwrap_or(0xFFFD);
                at += 4;
                let code = if (0xD800..0xDC00).contains(&first) {
                    let second = parse_hex4(raw, at + 2).unwrap_or(0xDC00);
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
    into_utf8_lossy(text)
}

/// Replaces invalid UTF-8, which a validated document does not have.
fn into_utf8_lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|why| String::from_utf8_lossy(why.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::json::JsonDocument;
    use bytes::Bytes;
    use proptest::prelude::*;

    /// Returns a JSON string of at least `bytes` bytes, whose content looks like the end of values.
    fn text(bytes: usize) -> String {
        format!("\"{}\"", r#"a]}[{,:\"\\"#.repeat(bytes.div_ceil(11)))
    }

    fn nested() -> impl Strategy<Value = String> {
        let about = |bytes: usize| bytes - 40..bytes + 40;
        let (long, very_long) = (LongValue::BYTES_MIN, LongValue::ALWAYS_BYTES_MIN);
        let sizes = prop_oneof![0..40usize, about(long), about(very_long)];
        let leaf =
            prop_oneof![sizes.prop_map(text), Just("-1.5".to_owned()), Just("{}".to_owned())];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let some = prop::collection::vec(inner, 0..4);
            prop_oneof![
                some.clone().prop_map(|values| format!("[{}]", values.join(" , "))),
                some.prop_map(|values| {
                    let named = values.iter().enumerate();
                    let members: Vec<_> = named.map(|(n, v)| format!("\"n{n}\" : {v}")).collect();
                    format!("{{ {} }}", members.join(","))
                }),
            ]
        })
    }

    /// Collects the bytes of a value and of all values inside it, in order.
    fn collect_values<'a>(value: JsonValue<'a>, seen: &mut Vec<&'a [u8]>) {
        seen.push(value.raw());
        value.elements().for_each(|element| collect_values(element, seen));
        value.raw_members().for_each(|(_, value)| collect_values(value, seen));
    }

    #[test]
    fn the_first_64_long_values_of_a_body_and_all_very_long_ones_are_stepped_over() {
        let text = |length: usize| format!("\"{}\"", "x".repeat(length));
        let inner = [vec![text(300); 65].join(","), text(16 << 10)].join(",");
        let body = format!("{{\"own\":{},\"list\":[{inner}]}}", text(300));
        let document = JsonDocument::parse(body.into()).expect("sound");
        let list = document.get("list").expect("a member");
        assert_eq!(list.long_values.len(), 65);
        let (mut walk, mut stepped_over) = (ValueWalk::new(list, b'['), 0);
        while walk.peek().is_some() {
            stepped_over += usize::from(walk.known_end(walk.at).is_some());
            walk.next();
        }
        assert_eq!(stepped_over, 65);
    }

    proptest! {
        #[test]
        fn a_visit_sees_the_members_of_each_element_however_many_it_reads(
            json in nested(),
            read_max in 0..4usize,
        ) {
            let body = Bytes::from(format!("{{\"v\": [1, {json} ,{json}]}}"));
            let document = JsonDocument::parse(body).expect("sound");
            let array = document.get("v").expect("it is there");
            let mut seen = Vec::new();
            array.visit_objects(|place, members| {
                let values: Vec<_> = members.take(read_max).map(|(_, v)| v.raw()).collect();
                seen.push((place, values));
            });
            let elements = (0..).zip(array.elements());
            let expected: Vec<_> = elements
                .map(|(place, element)| {
                    let members = element.raw_members().take(read_max);
                    (place, members.map(|(_, v)| v.raw()).collect::<Vec<_>>())
                })
                .collect();
            prop_assert_eq!(seen, expected);
        }

        #[test]
        fn who_knows_where_long_values_end_finds_the_same(
            before in prop_oneof![Just(0usize), LongValue::COUNT_MAX - 4..=LongValue::COUNT_MAX],
            json in nested(),
        ) {
            let many = format!("{},", text(LongValue::BYTES_MIN)).repeat(before);
            let json = format!("[{many} {json}]");
            let body = Bytes::from(format!("{{\"a\":{json}, \"v\": {json}}}"));
            let document = JsonDocument::parse(body).expect("sound");
            let (mut known, mut read) = (Vec::new(), Vec::new());
            collect_values(document.get("v").expect("it is there"), &mut known);
            collect_values(JsonValue::from_validated(json.as_bytes()), &mut read);
            prop_assert_eq!(known, read);
        }

        #[test]
        fn what_is_special_is_found_wherever_it_stands(
            mut bytes in prop::collection::vec(0x20..=0xFFu8, 0..400),
            place in any::<prop::sample::Index>(),
            mark in prop_oneof![Just(b'"'), Just(b'\\'), 0..0x20u8],
            from in 0..80usize,
        ) {
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] = mark;
            }
            let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
            let found = bytes.iter().skip(from).position(is_special).map(|n| from + n);
            prop_assert_eq!(find_special(&bytes, from), found.unwrap_or(bytes.len()));
        }
    }
}
