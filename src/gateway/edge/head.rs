//! The head of a request, read strictly: what two readers could read in two ways is refused.
//!
//! pingora reads the head once more, by itself. It takes more than is taken here and reads it as it
//! is read here, so whatever stands behind it never sees a head that nobody has looked at.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use memchr::{memchr, memchr_iter};

/// Fields of a head, at most.
pub const FIELDS_MAX: usize = 128;
/// Bytes of a method, at most.
const METHOD_BYTES_MAX: usize = 32;
/// Digits of a length, at most.
const LENGTH_DIGITS_MAX: usize = 15;

/// What is wrong with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// A line does not end with CR LF.
    BadLineEnding,
    /// It does not begin with a request line.
    BadRequestLine,
    /// It is of another version of the protocol.
    UnsupportedVersion,
    /// The target is none that a server takes.
    BadTarget,
    /// It asks for a tunnel.
    ConnectMethod,
    /// It names no host.
    MissingHost,
    /// It names several hosts.
    MultipleHosts,
    /// The host is none.
    BadHost,
    /// A field has no name.
    BadFieldName,
    /// There is space between a field's name and its colon.
    SpaceBeforeColon,
    /// A field goes on in the next line.
    FoldedField,
    /// A field has control characters in it.
    ControlInValue,
    /// There are several lengths, or a length beside an encoding.
    ConflictingLengths,
    /// The length is no plain number.
    BadContentLength,
    /// The transfer encoding is not exactly `chunked`, or there are several.
    BadTransferEncoding,
    /// It expects something that is not done here.
    UnsupportedExpectation,
    /// It wants to change the protocol.
    UnsupportedUpgrade,
    /// It has too many fields.
    TooManyFields,
}

/// Where the head ends that these bytes begin with; `None` if it is not whole yet. So many of them
/// were looked at before.
///
/// # Errors
/// What there is of it is wrong already.
pub fn find_end(bytes: &[u8], scanned: usize) -> Result<Option<usize>, HeadError> {
    for found in memchr_iter(b'\n', &bytes[scanned..]) {
        let at = scanned + found;
        if at == 0 || bytes[at - 1] != b'\r' {
            return Err(HeadError::BadLineEnding);
        }
        // Of an empty line the end of the line before is two bytes away.
        if at >= 2 && bytes[at - 2] == b'\n' {
            return Ok(Some(at + 1));
        }
    }
    // No need to wait for the end of what has none.
    let begun = bytes.first().is_none_or(|first| is_token_byte(*first));
    let rest = &bytes[scanned.saturating_sub(1)..];
    let alone = |at: usize| rest.get(at + 1).is_some_and(|next| *next != b'\n');
    match memchr_iter(b'\r', rest).any(alone) {
        _ if !begun => Err(HeadError::BadRequestLine),
        true => Err(HeadError::BadLineEnding),
        false => Ok(None),
    }
}

/// Checks a whole head, with the empty line at its end.
///
/// # Errors
/// What is wrong with it.
pub fn check_head(head: &[u8]) -> Result<(), HeadError> {
    let mut lines = HeadLines(head);
    let request = RequestLine::parse(lines.next().ok_or(HeadError::BadRequestLine)??)?;
    let mut fields = FramingFields::default();
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        fields.add_line(line)?;
    }
    fields.check_consistency(&request)
}

/// The path that a head asks for, as far as it says one. The head may be wrong, or not whole.
#[must_use]
pub fn request_path(head: &[u8]) -> String {
    let line = head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let rest = split_absolute(target).map_or(target, |(_, rest)| rest);
    let path = rest.split(|byte| *byte == b'?').next().unwrap_or_default();
    String::from_utf8_lossy(path).into_owned()
}

/// The lines of a head, without their ends.
struct HeadLines<'a>(&'a [u8]);

impl<'a> Iterator for HeadLines<'a> {
    type Item = Result<&'a [u8], HeadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = memchr(b'\n', self.0)?;
        let (line, rest) = self.0.split_at(at);
        self.0 = &rest[1..];
        Some(line.strip_suffix(b"\r").ok_or(HeadError::BadLineEnding))
    }
}

/// What the first line says of the rest.
struct RequestLine<'a> {
    /// Whether it is of version 1.0.
    is_http_10: bool,
    /// The host, if the target names it.
    authority: Option<&'a [u8]>,
}

impl<'a> RequestLine<'a> {
    fn parse(line: &'a [u8]) -> Result<RequestLine<'a>, HeadError> {
        let mut words = line.split(|byte| *byte == b' ');
        let [Some(method), Some(target), Some(version), None] =
            [words.next(), words.next(), words.next(), words.next()]
        else {
            return Err(HeadError::BadRequestLine);
        };
        if method.len() > METHOD_BYTES_MAX || !is_token(method) {
            return Err(HeadError::BadRequestLine);
        }
        let is_http_10 = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ if version.starts_with(b"HTTP/") => return Err(HeadError::UnsupportedVersion),
            _ => return Err(HeadError::BadRequestLine),
        };
        if method == b"CONNECT" {
            return Err(HeadError::ConnectMethod);
        }
        if !all_in_class(target, TARGET_CLASS) {
            return Err(HeadError::BadTarget);
        }
        let authority = match target {
            [b'/', ..] => None,
            b"*" if method == b"OPTIONS" => None,
            _ => {
                let named = split_absolute(target).map(|(authority, _)| authority);
                Some(named.filter(|host| is_host(host)).ok_or(HeadError::BadTarget)?)
            }
        };
        Ok(RequestLine { is_http_10, authority })
    }
}

/// Host and path of a target that names both.
fn split_absolute(target: &[u8]) -> Option<(&[u8], &[u8])> {
    let (scheme, rest) = target.split_at(memchr(b':', target)?);
    if !(scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")) {
        return None;
    }
    let rest = rest.strip_prefix(b"://")?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    Some(rest.split_at(end))
}

/// The fields that bear on where a request goes and where it ends.
#[derive(Default)]
struct FramingFields<'a> {
    count: usize,
    host: Option<&'a [u8]>,
    has_content_length: bool,
    has_transfer_encoding: bool,
}

impl<'a> FramingFields<'a> {
    fn add_line(&mut self, line: &'a [u8]) -> Result<(), HeadError> {
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Err(HeadError::FoldedField);
        }
        let colon = memchr(b':', line).ok_or(HeadError::BadFieldName)?;
        let (name, value) = (&line[..colon], trim_ows(&line[colon + 1..]));
        if matches!(name.last(), Some(b' ' | b'\t')) {
            return Err(HeadError::SpaceBeforeColon);
        }
        if !is_token(name) {
            return Err(HeadError::BadFieldName);
        }
        if has_controls(value) {
            return Err(HeadError::ControlInValue);
        }
        self.count += 1;
        if self.count > FIELDS_MAX {
            return Err(HeadError::TooManyFields);
        }
        let called = |known: &[u8]| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if called(b"host") => self.set_host(value),
            6 if called(b"expect") => {
                let known = value.eq_ignore_ascii_case(b"100-continue");
                known.then_some(()).ok_or(HeadError::UnsupportedExpectation)
            }
            // What is offered here is the other version by its name alone, and may be passed over.
            7 if called(b"upgrade") => {
                let known = value.eq_ignore_ascii_case(b"h2c");
                known.then_some(()).ok_or(HeadError::UnsupportedUpgrade)
            }
            14 if called(b"content-length") => self.set_content_length(value),
            17 if called(b"transfer-encoding") => self.set_transfer_encoding(value),
            _ => Ok(()),
        }
    }

    fn set_host(&mut self, value: &'a [u8]) -> Result<(), HeadError> {
        if self.host.is_some() {
            return Err(HeadError::MultipleHosts);
        }
        self.host = Some(value);
        is_host(value).then_some(()).ok_or(HeadError::BadHost)
    }

    fn set_content_length(&mut self, value: &[u8]) -> Result<(), HeadError> {
        if self.has_content_length || self.has_transfer_encoding {
            return Err(HeadError::ConflictingLengths);
        }
        self.has_content_length = true;
        let plain = match value {
            [] => false,
            [b'0', rest @ ..] => rest.is_empty(),
            digits => digits.len() <= LENGTH_DIGITS_MAX && digits.iter().all(u8::is_ascii_digit),
        };
        plain.then_some(()).ok_or(HeadError::BadContentLength)
    }

    fn set_transfer_encoding(&mut self, value: &[u8]) -> Result<(), HeadError> {
        if self.has_content_length {
            return Err(HeadError::ConflictingLengths);
        }
        if self.has_transfer_encoding || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(HeadError::BadTransferEncoding);
        }
        self.has_transfer_encoding = true;
        Ok(())
    }

    /// Whether they go together with the first line.
    fn check_consistency(&self, request: &RequestLine<'_>) -> Result<(), HeadError> {
        if self.host.is_none() && !request.is_http_10 {
            return Err(HeadError::MissingHost);
        }
        let differs = |authority: &[u8]| self.host.is_some_and(|host| host != authority);
        if request.authority.is_some_and(differs) {
            return Err(HeadError::MultipleHosts);
        }
        // The older version knows no encodings: it would take the chunks for the body.
        if self.has_transfer_encoding && request.is_http_10 {
            Err(HeadError::BadTransferEncoding)
        } else {
            Ok(())
        }
    }
}

/// Whether it is `host`, `host:port` or `[address]:port`.
fn is_host(value: &[u8]) -> bool {
    let (host, port) = if let [b'[', rest @ ..] = value {
        let Some(end) = memchr(b']', rest) else { return false };
        let inside = &rest[..end];
        let of_address = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
        (!inside.is_empty() && inside.iter().all(of_address), &rest[end + 1..])
    } else {
        let end = memchr(b':', value).unwrap_or(value.len());
        (end > 0 && all_in_class(&value[..end], HOST_CLASS), &value[end..])
    };
    let digits =
        |digits: &[u8]| (1..=5).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    host && (port.is_empty() || port.strip_prefix(b":").is_some_and(digits))
}

fn trim_ows(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Whether anything in it is a control character. It looks at all of them, which is quicker than to
/// stop at the first.
fn has_controls(value: &[u8]) -> bool {
    let is_control = |byte: u8| (byte < b' ' && byte != b'\t') || byte == 0x7F;
    value.iter().fold(false, |found, byte| found | is_control(*byte))
}

/// Whether a byte may stand in the name of a field.
pub(super) fn is_token_byte(byte: u8) -> bool {
    is_in_class(byte, TOKEN_CLASS)
}

fn is_token(name: &[u8]) -> bool {
    !name.is_empty() && all_in_class(name, TOKEN_CLASS)
}

fn all_in_class(bytes: &[u8], class: u8) -> bool {
    bytes.iter().fold(true, |sound, byte| sound & is_in_class(*byte, class))
}

fn is_in_class(byte: u8, class: u8) -> bool {
    BYTE_CLASSES[usize::from(byte)] & class != 0
}

/// May stand in a name or a method.
const TOKEN_CLASS: u8 = 1;
/// May stand in a target.
const TARGET_CLASS: u8 = 2;
/// May stand in a host that is no address in brackets.
const HOST_CLASS: u8 = 4;
/// What each byte may stand in.
const BYTE_CLASSES: [u8; 256] = build_classes();

const fn build_classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let sets: [(&[u8], u8); 4] = [
        (
            b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            TOKEN_CLASS | TARGET_CLASS | HOST_CLASS,
        ),
        (b"!#$%&'*+-.^_`|~", TOKEN_CLASS),
        (b"-._~!$&'()*+,;=%", TARGET_CLASS | HOST_CLASS),
        (b":@/?[]", TARGET_CLASS),
    ];
    let mut set = 0;
    while set < sets.len() {
        let (bytes, class) = sets[set];
        let mut at = 0;
        while at < bytes.len() {
            classes[bytes[at] as usize] |= class;
            at += 1;
        }
        set += 1;
    }
    classes
}

#[cfg(test)]
mod tests;
