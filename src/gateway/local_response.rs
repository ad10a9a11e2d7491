//! Answers that the gateway makes itself.

use bytes::Bytes;

/// What a client gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalResponse {
    /// The status.
    pub status: u16,
    /// The code that programs read.
    pub code: String,
    pub body: Bytes,
    /// Headers beside those that every answer has.
    pub headers: Vec<(&'static str, String)>,
}

impl LocalResponse {
    /// A good answer of our own.
    #[must_use]
    pub(crate) fn ok(body: impl Into<Bytes>) -> LocalResponse {
        LocalResponse { status: 200, code: String::new(), body: body.into(), headers: Vec::new() }
    }

    /// With a header more.
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
