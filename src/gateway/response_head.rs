//! The head of an answer while it is put together.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType};

/// The head of an answer while it is put together. pingora's own head copies and parses the name of
/// each header, also if it is a constant. That costs 600 instructions, some ten times a call.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    status: u16,
    pub(crate) headers: HeaderMap,
}

impl ResponseHead {
    /// Begins a head with a status, and with room for `headers` headers.
    pub(crate) fn new(status: u16, headers: usize) -> ResponseHead {
        ResponseHead { status, headers: HeaderMap::with_capacity(headers) }
    }

    /// Adds a header, in the place of one of the same name.
    ///
    /// # Errors
    /// No header can have the name or the value.
    pub(crate) fn insert(
        &mut self,
        name: impl TryInto<HeaderName>,
        value: impl TryInto<HeaderValue>,
    ) -> pingora::Result<()> {
        let (Ok(name), Ok(value)) = (name.try_into(), value.try_into()) else {
            return Err(Error::new(ErrorType::InvalidHTTPHeader));
        };
        self.headers.insert(name, value);
        Ok(())
    }

    /// Returns the head as pingora writes it.
    ///
    /// # Errors
    /// There is no such status.
    pub(crate) fn build(self) -> pingora::Result<ResponseHeader> {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        let status = StatusCode::from_u16(self.status);
        parts.status = status.map_err(|_| Error::new(ErrorType::InvalidHTTPHeader))?;
        parts.headers = self.headers;
        Ok(ResponseHeader::from(parts))
    }
}
