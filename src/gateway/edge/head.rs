//! Checks request heads strictly: a head that two servers could parse differently is refused.
//!
//! `httparse` parses the head here, and once more inside pingora. This module refuses what
//! `httparse` permits although another server may parse it differently: a bare line feed, a target
//! or host with unusual characters, lengths and transfer encodings that contradict each other.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::mem::MaybeUninit;
use std::ops::Range;

use httparse::{Request, Status};
use memchr::{memchr, memchr_iter};

/// A head has at most this many fields.
pub const FIELDS_MAX: usize = 128;
const LINE_END: &[u8] = b"\r\n";
/// A method has at most this many bytes.
const METHOD_BYTES_MAX: usize = 32;
/// A `content-length` has at most this many digits.
const LENGTH_DIGITS_MAX: usize = 15;
/// The path on which a WebSocket is refused in a way of its own.
const RESPONSES_PATH: &[u8] = b"/v1/responses";

/// The reason why a request head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// A line does not end with CR LF.
    BadLineEnding,
    /// The first line is not a valid request line.
    BadRequestLine,
    /// The version is neither HTTP/1.0 nor HTTP/1.1.
    UnsupportedVersion,
    /// The target is neither a path nor an http URL, or has characters that need an escape.
    BadTarget,
    /// The method is CONNECT: there are no tunnels here.
    ConnectMethod,
    /// HTTP/1.1 requires a `host` field.
    MissingHost,
    /// There is more than one `host` field, or the target names another host than the field.
    MultipleHosts,
    /// The host is neither a name nor an address, with or without a port.
    BadHost,
    /// The name of a field is malformed: it is empty, a space precedes the colon, or the line is
    /// folded.
    BadFieldName,
    /// The value of a field has control characters in it.
    ControlInValue,
    /// There is more than one `content-length`, or one beside a `transfer-encoding`.
    ConflictingLengths,
    /// `content-length` is no plain decimal number.
    BadContentLength,
    /// `transfer-encoding` is not exactly `chunked`, appears more than once, or comes with
    /// HTTP/1.0.
    BadTransferEncoding,
    /// `expect` is not `100-continue`.
    UnsupportedExpectation,
    /// `upgrade` names another protocol than `h2c`.
    UnsupportedUpgrade,
    /// A client asks for a WebSocket on the path of responses. It has an answer of its own, because
    /// a known client then falls back to plain requests at once.
    WebSocketRefused,
    /// There are more than [`FIELDS_MAX`] fields.
    TooManyFields,
}

impl From<httparse::Error> for HeadError {
    fn from(error: httparse::Error) -> HeadError {
        match error {
            httparse::Error::HeaderName => HeadError::BadFieldName,
            httparse::Error::HeaderValue => HeadError::ControlInValue,
            // `find_end` has checked all line endings, so these errors are about the request line.
            httparse::Error::NewLine | httparse::Error::Status | httparse::Error::Token => {
                HeadError::BadRequestLine
            }
            httparse::Error::TooManyHeaders => HeadError::TooManyFields,
            httparse::Error::Version => HeadError::UnsupportedVersion,
        }
    }
}

/// Returns the length of the head at the start of `bytes`, with the empty line at its end; `None`
/// if its end has not arrived. The first `scanned` bytes were searched by an earlier call.
///
/// # Errors
/// A line does not end with CR LF, or the first byte cannot begin a request line.
pub fn find_end(bytes: &[u8], scanned: usize) -> Result<Option<usize>, HeadError> {
    for found in memchr_iter(b'\n', &bytes[scanned..]) {
        let at = scanned + found;
        if at == 0 || bytes[at - 1] != b'\r' {
            return Err(HeadError::BadLineEnding);
        }
        // The line is empty if the line feed of the previous line is two bytes before this one.
        if at >= 2 && bytes[at - 2] == b'\n' {
            return Ok(Some(at + 1));
        }
    }
    // A head with a wrong first byte or a bare CR can be refused before its end has arrived.
    let is_valid_start = bytes.first().is_none_or(|first| is_token_byte(*first));
    let rest = &bytes[scanned.saturating_sub(1)..];
    let is_bare_cr = |at: usize| rest.get(at + 1).is_some_and(|next| *next != b'\n');
    match memchr_iter(b'\r', rest).any(is_bare_cr) {
        _ if !is_valid_start => Err(HeadError::BadRequestLine),
        true => Err(HeadError::BadLineEnding),
        false => Ok(None),
    }
}

/// Checks a complete head, with the empty line at its end. [`find_end`] must have checked before
/// that its lines end with CR LF.
///
/// # Errors
/// The reason why the head is refused.
pub fn check_head(head: &[u8]) -> Result<(), HeadError> {
    check_and_select(head, |_| false).map(drop)
}

/// Checks a complete head like [`check_head`]. Returns where the lines of the fields with
/// `selected` names are. A line ends where the next one begins.
pub(super) fn check_and_select(
    head: &[u8],
    selected: impl Fn(&str) -> bool,
) -> Result<Vec<Range<usize>>, HeadError> {
    // httparse would skip empty lines before a request.
    if !head.first().is_some_and(|first| is_token_byte(*first)) {
        return Err(HeadError::BadRequestLine);
    }
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut request = Request::new(&mut []);
    if request.parse_with_uninit_headers(head, &mut fields)? != Status::Complete(head.len()) {
        return Err(HeadError::BadRequestLine);
    }
    let target = check_target(&request)?;
    let mut framing = FramingFields::default();
    let mut lines: Vec<Range<usize>> = Vec::new();
    let mut is_in_line = false;
    for field in request.headers.iter() {
        let start = field.name.as_ptr().addr() - head.as_ptr().addr();
        if is_in_line && let Some(line) = lines.last_mut() {
            line.end = start;
        }
        framing.add(field)?;
        is_in_line = selected(field.name);
        if is_in_line {
            // It ends where the next line begins; after the last field is an empty line.
            lines.push(start..head.len() - LINE_END.len());
        }
    }
    framing.check_consistency(&target)?;
    Ok(lines)
}

/// Returns the path of a request, without the query, as far as the head contains one. The head may
/// be invalid or incomplete.
#[must_use]
pub fn request_path(head: &[u8]) -> String {
    let line = head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    String::from_utf8_lossy(path_of(target)).into_owned()
}

/// Returns the path of a target, without the query.
fn path_of(target: &[u8]) -> &[u8] {
    let rest = split_absolute(target).map_or(target, |(_, rest)| rest);
    rest.split(|byte| *byte == b'?').next().unwrap_or_default()
}

/// The parts of the request line against which the fields are checked.
struct RequestTarget<'a> {
    is_http_10: bool,
    /// Whether it is a GET on the path of responses, which exists for POST only.
    is_responses_get: bool,
    /// The host and port in the target, if the target is a URL.
    authority: Option<&'a [u8]>,
}

fn check_target<'a>(request: &Request<'_, 'a>) -> Result<RequestTarget<'a>, HeadError> {
    let method = request.method.unwrap_or_default();
    let target = request.path.unwrap_or_default().as_bytes();
    if method.len() > METHOD_BYTES_MAX {
        return Err(HeadError::BadRequestLine);
    }
    if method == "CONNECT" {
        return Err(HeadError::ConnectMethod);
    }
    if !all_in_class(target, TARGET_CLASS) {
        return Err(HeadError::BadTarget);
    }
    let authority = match target {
        [b'/', ..] => None,
        b"*" if method == "OPTIONS" => None,
        _ => {
            let named = split_absolute(target).map(|(authority, _)| authority);
            Some(named.filter(|host| is_host(host)).ok_or(HeadError::BadTarget)?)
        }
    };
    let is_responses_get = method == "GET" && path_of(target) == RESPONSES_PATH;
    Ok(RequestTarget { is_http_10: request.version == Some(0), is_responses_get, authority })
}

/// Splits an http or https URL into its authority (host and port) and the rest. `None` if the
/// target is no such URL.
fn split_absolute(target: &[u8]) -> Option<(&[u8], &[u8])> {
    let (scheme, rest) = target.split_at(memchr(b':', target)?);
    if !(scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")) {
        return None;
    }
    let rest = rest.strip_prefix(b"://")?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    Some(rest.split_at(end))
}

/// The fields that determine the host of a request, the end of its body, and its protocol.
#[derive(Default)]
struct FramingFields<'a> {
    host: Option<&'a [u8]>,
    has_content_length: bool,
    has_transfer_encoding: bool,
    asks_for_websocket: bool,
}

impl<'a> FramingFields<'a> {
    fn add(&mut self, field: &httparse::Header<'a>) -> Result<(), HeadError> {
        let (name, value) = (field.name, field.value);
        let is_named = |known: &str| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if is_named("host") => self.set_host(value),
            6 if is_named("expect") => {
                let known = value.eq_ignore_ascii_case(b"100-continue");
                known.then_some(()).ok_or(HeadError::UnsupportedExpectation)
            }
            7 if is_named("upgrade") => self.set_upgrade(value),
            14 if is_named("content-length") => self.set_content_length(value),
            17 if is_named("transfer-encoding") => self.set_transfer_encoding(value),
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

    fn set_upgrade(&mut self, value: &[u8]) -> Result<(), HeadError> {
        // Refused at the end of the head, because the path decides how.
        let is_websocket = value.eq_ignore_ascii_case(b"websocket");
        self.asks_for_websocket |= is_websocket;
        // `h2c` offers HTTP/2 without TLS; a server may ignore it (RFC 9113, section 3.1).
        let known = is_websocket || value.eq_ignore_ascii_case(b"h2c");
        known.then_some(()).ok_or(HeadError::UnsupportedUpgrade)
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

    /// Checks the fields against the request line.
    fn check_consistency(&self, request: &RequestTarget<'_>) -> Result<(), HeadError> {
        if self.host.is_none() && !request.is_http_10 {
            return Err(HeadError::MissingHost);
        }
        let differs = |authority: &[u8]| self.host.is_some_and(|host| host != authority);
        if request.authority.is_some_and(differs) {
            return Err(HeadError::MultipleHosts);
        }
        // HTTP/1.0 has no transfer encodings: an HTTP/1.0 server would read the chunk sizes as
        // content.
        if self.has_transfer_encoding && request.is_http_10 {
            return Err(HeadError::BadTransferEncoding);
        }
        if !self.asks_for_websocket {
            return Ok(());
        }
        // HTTP/1.0 has no upgrades either.
        let is_known = request.is_responses_get && !request.is_http_10;
        Err(if is_known { HeadError::WebSocketRefused } else { HeadError::UnsupportedUpgrade })
    }
}

/// Whether `value` has the form `host`, `host:port`, `[address]` or `[address]:port`.
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

/// Whether a byte may be part of a method.
fn is_token_byte(byte: u8) -> bool {
    is_in_class(byte, TOKEN_CLASS)
}

fn all_in_class(bytes: &[u8], class: u8) -> bool {
    bytes.iter().fold(true, |sound, byte| sound & is_in_class(*byte, class))
}

fn is_in_class(byte: u8, class: u8) -> bool {
    BYTE_CLASSES[usize::from(byte)] & class != 0
}

/// The class of bytes that may be part of a field name or a method.
const TOKEN_CLASS: u8 = 1;
/// The class of bytes that may be part of a target.
const TARGET_CLASS: u8 = 2;
/// The class of bytes that may be part of a host, unless it is an address in brackets.
const HOST_CLASS: u8 = 4;
/// The classes of each byte, as a bit set.
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
