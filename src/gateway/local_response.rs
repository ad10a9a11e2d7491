//! Responses that the gateway makes itself, without a vendor.

use bytes::Bytes;

/// A response that the gateway makes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalResponse {
    /// The HTTP status.
    pub status: u16,
    /// The error code for programs; empty if the response is no error.
    pub code: String,
    pub body: Bytes,
    /// Headers in addition to those that every response has.
    pub headers: Vec<(&'static str, String)>,
}

impl LocalResponse {
    /// Makes a response with status 200 and this body.
    #[must_use]
    pub(crate) fn ok(body: impl Into<Bytes>) -> LocalResponse {
        LocalResponse { status: 200, code: String::new(), body: body.into(), headers: Vec::new() }
    }

    /// Adds a header.
    #[must_use]
    pub(crate) fn with_header(
        mut self,
        name: &'static str,
        value: &impl ToString,
    ) -> LocalResponse {
        self.headers.push((name, value.to_string()));
        self
    }
}
