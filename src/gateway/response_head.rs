//! The head of an answer while it is put together.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pingora::http::ResponseHeader;

/// The head of an answer while it is put together. pingora's own head copies and parses the name of
/// each header, also if it is a constant. That costs 600 instructions, some ten times a call.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    status: StatusCode,
    pub(crate) headers: HeaderMap,
}

impl ResponseHead {
    /// Begins a head with a status, and with room for `headers` headers.
    pub(crate) fn new(status: StatusCode, headers: usize) -> ResponseHead {
        ResponseHead { status, headers: HeaderMap::with_capacity(headers) }
    }

    /// Adds a header, in the place of one of the same name.
    pub(crate) fn insert(&mut self, name: HeaderName, value: impl Into<HeaderValue>) {
        self.headers.insert(name, value.into());
    }

    /// Adds a header, in the place of one of the same name. A name or a text that no header can
    /// have is left out: an answer without the header is better than none.
    pub(crate) fn insert_text(
        &mut self,
        name: impl TryInto<HeaderName>,
        text: impl TryInto<HeaderValue>,
    ) {
        if let (Ok(name), Ok(text)) = (name.try_into(), text.try_into()) {
            self.headers.insert(name, text);
        }
    }

    /// Returns the head as pingora writes it.
    #[must_use]
    pub(crate) fn build(self) -> ResponseHeader {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status = self.status;
        parts.headers = self.headers;
        ResponseHeader::from(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_cannot_be_is_left_out_of_a_head_that_is_built() {
        let mut head = ResponseHead::new(StatusCode::IM_A_TEAPOT, 2);
        head.insert_text("x-good", "a b");
        head.insert_text("x-split", "a\r\nx-forged: b");
        head.insert_text("x bad", "a");
        head.insert(http::header::CONTENT_LENGTH, 7_u64);
        let head = head.build();
        let mut headers: Vec<_> = head.headers.iter().map(|(n, v)| (n.as_str(), v)).collect();
        headers.sort_unstable();
        assert_eq!(head.status.as_u16(), 418);
        let expected = [
            ("content-length", &HeaderValue::from_static("7")),
            ("x-good", &HeaderValue::from_static("a b")),
        ];
        assert_eq!(headers, expected);
    }
}
