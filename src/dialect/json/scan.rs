//! The one strict pass.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::value::LongValue;
use super::{DEPTH_MAX, JsonError, JsonMember, MEMBERS_MAX, MemberName, value};

/// Whole digits before the decimal point plus exponent, at most: what a double surely holds.
const MAGNITUDE_MAX: i64 = 308;
/// Up to so many names are compared pair by pair, more are sorted.
const PAIRWISE_MAX: usize = 16;
/// So much of a name is told in a fault.
const SHOWN_CHARS_MAX: usize = 40;

/// What a scan finds out about an object.
pub(super) struct ScannedObject {
    /// The byte after its brace.
    pub(super) inside: usize,
    pub(super) members: Vec<JsonMember>,
    /// Where long values inside of it end, by where they begin.
    pub(super) long: Vec<LongValue>,
}

/// Scans bytes that must be one object, which stands inside `outer` others.
///
/// # Errors
/// See [`super::Document::parse`].
pub(super) fn object(
    bytes: &[u8],
    strictness: ScanStrictness,
    outer: usize,
) -> Result<ScannedObject, JsonError> {
    let mut scan = start(bytes, strictness)?;
    if scan.peek() != Some(b'{') {
        return Err(scan.fault("expected an object"));
    }
    let inside = scan.at + 1;
    let mut members = Vec::with_capacity(12);
    scan.object(1 + outer, Some(&mut members))?;
    scan.end()?;
    let mut long = scan.long;
    long.sort_unstable_by_key(|long| long.start);
    Ok(ScannedObject { inside, members, long })
}

/// Scans bytes that must be one value of any kind.
///
/// # Errors
/// See [`super::Document::parse`].
pub fn any(bytes: &[u8]) -> Result<(), JsonError> {
    let mut scan = start(bytes, ScanStrictness::Sent)?;
    scan.value(1)?;
    scan.end()
}

/// How strict a scan is beyond UTF-8, grammar, depth and names that stand twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScanStrictness {
    /// A client sent it: a double can hold each number.
    Sent,
    /// A vendor sent it: numbers may be of any size.
    Received,
}

fn start(bytes: &[u8], strictness: ScanStrictness) -> Result<JsonScanner<'_>, JsonError> {
    if !bytes.is_ascii()
        && let Err(e) = std::str::from_utf8(bytes)
    {
        return Err(JsonError::at(e.valid_up_to(), "invalid UTF-8"));
    }
    let (names, long) = (Vec::with_capacity(PAIRWISE_MAX), Vec::new());
    let mut scan = JsonScanner { bytes, at: 0, names, long, strictness };
    scan.space();
    Ok(scan)
}

struct JsonScanner<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Names of the objects that are open, innermost last.
    names: Vec<MemberName>,
    /// Long values, those that ended first before the others.
    long: Vec<LongValue>,
    strictness: ScanStrictness,
}

impl JsonScanner<'_> {
    fn fault(&self, what: &str) -> JsonError {
        match self.peek() {
            Some(_) => JsonError::at(self.at, what),
            None => JsonError::at(self.at, format!("the body ends too early; {what}")),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn end(&mut self) -> Result<(), JsonError> {
        self.space();
        if self.at < self.bytes.len() {
            Err(self.fault("unexpected bytes after the end"))
        } else {
            Ok(())
        }
    }

    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        let start = self.at;
        self.any(depth)?;
        if self.at - start >= LongValue::BYTES {
            self.long.push(LongValue { start, end: self.at });
        }
        Ok(())
    }

    fn any(&mut self, depth: usize) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"') => self.string().map(|_| ()),
            Some(b'{') => self.object(depth, None),
            Some(b'[') => self.list(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            _ => Err(self.fault("expected a value")),
        }
    }

    fn object(
        &mut self,
        depth: usize,
        mut keep: Option<&mut Vec<JsonMember>>,
    ) -> Result<(), JsonError> {
        self.deep(depth)?;
        let first_name = self.names.len();
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.fault("expected a member name in quotes"));
            }
            let quote = self.at;
            let escaped = self.string()?;
            let name = MemberName { range: quote + 1..self.at - 1, escaped };
            self.space();
            self.expect(b':', "expected ':'")?;
            self.space();
            let value_start = self.at;
            self.value(depth + 1)?;
            if let Some(members) = keep.as_deref_mut() {
                members.push(JsonMember { name: name.clone(), value: value_start..self.at });
            }
            self.names.push(name);
            if self.names.len() - first_name > MEMBERS_MAX {
                return Err(self.fault("too many members in one object"));
            }
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.fault("expected ',' or '}'")),
            }
            self.space();
        }
        self.at += 1;
        self.distinct(first_name)?;
        self.names.truncate(first_name);
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Result<(), JsonError> {
        self.deep(depth)?;
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.fault("expected ',' or ']'")),
            }
            self.space();
        }
        self.at += 1;
        Ok(())
    }

    fn deep(&self, depth: usize) -> Result<(), JsonError> {
        if depth > DEPTH_MAX {
            return Err(self.fault(&format!("more than {DEPTH_MAX} levels")));
        }
        Ok(())
    }

    fn expect(&mut self, byte: u8, what: &str) -> Result<(), JsonError> {
        if self.peek() != Some(byte) {
            return Err(self.fault(what));
        }
        self.at += 1;
        Ok(())
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.fault("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    /// Passes a string; tells whether it has escapes.
    fn string(&mut self) -> Result<bool, JsonError> {
        self.at += 1;
        let mut escaped = false;
        loop {
            self.at = value::special(self.bytes, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.fault("control character in a string")),
                None => return Err(self.fault("expected '\"'")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => self.unicode(),
            _ => Err(self.fault("unknown escape")),
        }
    }

    fn unicode(&mut self) -> Result<(), JsonError> {
        let half = |at| value::hex4(self.bytes, at);
        let first = half(self.at + 2).ok_or_else(|| self.fault("expected four hex digits"))?;
        let length = match first {
            0xD800..=0xDBFF => {
                let marked = self.bytes[self.at + 6..].starts_with(b"\\u");
                let second = if marked { half(self.at + 8) } else { None };
                if !matches!(second, Some(0xDC00..=0xDFFF)) {
                    return Err(self.fault("half a surrogate pair"));
                }
                12
            }
            0xDC00..=0xDFFF => return Err(self.fault("half a surrogate pair")),
            _ => 6,
        };
        self.at += length;
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole = match self.peek() {
            Some(b'0') => {
                self.at += 1;
                1
            }
            _ => self.digits()?,
        };
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        let mut exponent: i64 = 0;
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            let negative = self.peek() == Some(b'-');
            if let Some(b'-' | b'+') = self.peek() {
                self.at += 1;
            }
            let from = self.at;
            self.digits()?;
            let digits = std::str::from_utf8(&self.bytes[from..self.at]).unwrap_or_default();
            let size = digits.parse().unwrap_or(i64::from(u32::MAX));
            exponent = if negative { 0 } else { size };
        }
        let magnitude = i64::try_from(whole).unwrap_or(i64::MAX).saturating_add(exponent);
        if magnitude > MAGNITUDE_MAX && self.strictness == ScanStrictness::Sent {
            return Err(JsonError::at(start, "number out of range"));
        }
        Ok(())
    }

    /// Passes at least one digit; tells how many.
    fn digits(&mut self) -> Result<usize, JsonError> {
        let from = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == from { Err(self.fault("expected a digit")) } else { Ok(self.at - from) }
    }

    /// No name of the object that just ended stands twice.
    fn distinct(&self, first_name: usize) -> Result<(), JsonError> {
        let names = &self.names[first_name..];
        let twice = |name: &MemberName| {
            let text = shown(&name.read(self.bytes));
            JsonError::at(name.range.start, format!("member '{text}' stands twice"))
        };
        if names.len() <= PAIRWISE_MAX && names.iter().all(|n| !n.escaped) {
            for (i, name) in names.iter().enumerate() {
                let raw = &self.bytes[name.range.clone()];
                if names[..i].iter().any(|n| &self.bytes[n.range.clone()] == raw) {
                    return Err(twice(name));
                }
            }
            return Ok(());
        }
        let mut sorted: Vec<_> = names.iter().map(|n| (n.read(self.bytes), n)).collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(twice(pair[1].1)),
            None => Ok(()),
        }
    }
}

/// A name as a fault tells it: not longer than one reads, and on one line.
fn shown(name: &[u8]) -> String {
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
            let found =
                object(body.as_bytes(), ScanStrictness::Sent, 0).err().expect("it stands twice");
            found.what
        };
        let exact = "é".repeat(40);
        assert_eq!(fault(&exact), format!("member '{exact}' stands twice"));
        let long = "é".repeat(1 << 20);
        assert_eq!(fault(&long), format!("member '{exact}…' stands twice"));
        assert_eq!(fault("a\\nb\\u001b"), "member 'a\u{FFFD}b\u{FFFD}' stands twice");
    }
}
