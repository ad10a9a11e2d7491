//! Parses the headers of a part.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::parameters::{
    HeaderParameters, ParameterValue, WHITESPACE, decode_extended, token_length,
};
use super::violation::{FormViolation, excerpt, violation_at};

/// The headers of one part may have at most this many bytes.
const HEAD_BYTES_MAX: usize = 8 * 1_024;
/// A part may have at most this many headers.
const HEADERS_MAX: usize = 16;

/// The parsed headers of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartHead {
    pub(super) name: String,
    pub(super) kind: PartKind,
    pub(super) content_type: Option<String>,
    /// Whether the content's charset equals UTF-8 only for ASCII text.
    pub(super) is_ascii_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PartKind {
    Text,
    /// A file, with its name; `None` if the name is in a charset that is not read.
    File(Option<String>),
}

/// The reader of a part's headers, with those that have arrived.
#[derive(Debug, Default)]
pub(super) struct PartHeadReader {
    /// The bytes of the line that has not ended yet.
    line: Vec<u8>,
    bytes_read: usize,
    is_complete: bool,
    /// Names in lower case, and values.
    headers: Vec<(String, String)>,
}

impl PartHeadReader {
    /// Reads at most up to the end of a line; returns how many bytes were read.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<usize, FormViolation> {
        let used = memchr::memchr(b'\n', piece).map_or(piece.len(), |at| at + 1);
        let room = HEAD_BYTES_MAX - self.bytes_read;
        if used > room {
            return Err(violation_at(room, format!("more than {HEAD_BYTES_MAX} bytes of headers")));
        }
        self.bytes_read += used;
        self.line.extend_from_slice(&piece[..used]);
        if self.line.ends_with(b"\n") {
            let line = std::mem::take(&mut self.line);
            self.parse_line(&line).map_err(|what| violation_at(used - 1, what))?;
        }
        Ok(used)
    }

    /// Returns the parsed headers; `None` while some have not arrived. `at` is the offset of an
    /// error.
    pub(super) fn finish(&self, at: usize) -> Result<Option<PartHead>, FormViolation> {
        if !self.is_complete {
            return Ok(None);
        }
        self.parse_head().map(Some).map_err(|what| violation_at(at, what))
    }

    fn parse_line(&mut self, line: &[u8]) -> Result<(), String> {
        let line = line.strip_suffix(b"\r\n").ok_or("a header ends with a lone line feed")?;
        let Ok(line) = std::str::from_utf8(line) else {
            return Err("a header is not UTF-8".to_owned());
        };
        if line.is_empty() {
            self.is_complete = true;
            return Ok(());
        }
        if line.starts_with(WHITESPACE) {
            return Err("a header goes on in the next line".to_owned());
        }
        if line.contains(|c: char| c.is_control() && c != '\t') {
            return Err("a header has a control character".to_owned());
        }
        let (name, value) = line.split_at(token_length(line));
        let Some(value) = value.strip_prefix(':').filter(|_| !name.is_empty()) else {
            return Err(format!("'{}' is no header", excerpt(line)));
        };
        let name = name.to_ascii_lowercase();
        if self.header(&name).is_some() {
            return Err(format!("the header '{}' stands twice", excerpt(&name)));
        }
        self.headers.push((name, value.trim_matches(WHITESPACE).to_owned()));
        if self.headers.len() > HEADERS_MAX {
            return Err(format!("more than {HEADERS_MAX} headers"));
        }
        Ok(())
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| &**value)
    }

    fn parse_head(&self) -> Result<PartHead, String> {
        let disposition = self.header("content-disposition").ok_or("a part has no name")?;
        let (name, kind) = parse_disposition(disposition)?;
        if let Some(encoding) = self.header("content-transfer-encoding") {
            let plain = ["binary", "8bit", "7bit"];
            if !plain.iter().any(|p| encoding.eq_ignore_ascii_case(p)) {
                return Err(format!("the content-transfer-encoding is '{}'", excerpt(encoding)));
            }
        }
        // Some clients send an empty content-type for a file of a type that they do not know.
        let content_type = self.header("content-type").filter(|v| !v.is_empty());
        let mut ascii = false;
        if let Some(content_type) = content_type {
            let start = content_type.get(.."multipart/".len());
            if start.is_some_and(|start| start.eq_ignore_ascii_case("multipart/")) {
                return Err("a part has parts of its own".to_owned());
            }
            if kind == PartKind::Text {
                ascii = HeaderParameters::parse(content_type)?.is_ascii_only()?;
            }
        }
        Ok(PartHead {
            name,
            kind,
            content_type: content_type.map(str::to_owned),
            is_ascii_only: ascii,
        })
    }
}

/// Returns the name of a part, and whether it is a text or a file.
fn parse_disposition(disposition: &str) -> Result<(String, PartKind), String> {
    let read = HeaderParameters::parse(disposition)?;
    if !read.main_value.eq_ignore_ascii_case("form-data") {
        return Err(format!(
            "the content-disposition is '{}', not form-data",
            excerpt(read.main_value)
        ));
    }
    // Some parsers read a parameter such as `name*0` as `name`, and some do not.
    if let Some(name) = read.names().find(|name| name.contains('*') && *name != "filename*") {
        return Err(format!("the content-disposition has the parameter '{}'", excerpt(name)));
    }
    let name = read.get("name").ok_or("a part has no name")?;
    let text = name.text().into_owned();
    if text.is_empty() {
        return Err("a part has an empty name".to_owned());
    }
    // Before any other character some parsers keep a backslash, and some drop it.
    if name.raw().matches('\\').count() != count_escape_backslashes(name.raw()) {
        return Err(format!("the name '{}' has a lone backslash", excerpt(&text)));
    }
    let file_name = read.get("filename").map(|written| written.text().into_owned());
    let kind = match (read.get("filename*"), file_name) {
        (None, None) => PartKind::Text,
        (None, file_name) => PartKind::File(file_name),
        (Some(ParameterValue::Token(value)), file_name) => {
            PartKind::File(decode_extended(value)?.or(file_name))
        }
        (Some(ParameterValue::Quoted(_)), _) => return Err("filename* is in quotes".to_owned()),
    };
    Ok((text, kind))
}

/// Returns how many backslashes escape a quote or a backslash, or are escaped themselves.
fn count_escape_backslashes(raw: &str) -> usize {
    let (mut count, mut rest) = (0, raw);
    while let Some(at) = rest.find('\\') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('\\') {
            count += 2;
            rest = after;
        } else {
            count += usize::from(rest.starts_with('"'));
        }
    }
    count
}
