//! Error messages for requests whose head or body is refused.

use super::{ApiError, INVALID_REQUEST, SERVER_ERROR};
use crate::gateway::edge::head::{FIELDS_MAX, HeadError};

impl ApiError {
    /// Status, type, code and message of what is wrong with how a request comes.
    pub(super) fn describe_edge(&self) -> (u16, &'static str, &'static str, String) {
        match self {
            ApiError::BodyTimeout => {
                (408, INVALID_REQUEST, "request_timeout", "the body came too slowly".to_owned())
            }
            ApiError::HeadTimeout => (
                408,
                INVALID_REQUEST,
                "request_timeout",
                "the head of the request took too long".to_owned(),
            ),
            ApiError::HeadTooLarge(most) => (
                431,
                INVALID_REQUEST,
                "headers_too_large",
                format!("the head of a request may have {most} bytes at most"),
            ),
            ApiError::InvalidHead(fault) => {
                let (status, code, message) = fault.describe();
                (status, INVALID_REQUEST, code, message)
            }
            ApiError::Overloaded => (
                503,
                SERVER_ERROR,
                "overloaded",
                "there is too much to do at the moment".to_owned(),
            ),
            ApiError::TooManyRequests(message) => {
                (429, "rate_limit_error", "rate_limit_exceeded", (*message).to_owned())
            }
            _ => self.describe_video(),
        }
    }
}

impl HeadError {
    /// The field at fault, if it is a certain one.
    pub(super) fn field(self) -> Option<&'static str> {
        match self {
            HeadError::MissingHost | HeadError::MultipleHosts | HeadError::BadHost => Some("host"),
            HeadError::ConflictingLengths | HeadError::BadContentLength => Some("content-length"),
            HeadError::BadTransferEncoding => Some("transfer-encoding"),
            HeadError::UnsupportedExpectation => Some("expect"),
            HeadError::UnsupportedUpgrade => Some("upgrade"),
            _ => None,
        }
    }

    fn describe(self) -> (u16, &'static str, String) {
        let (status, code, message) = match self {
            HeadError::ConnectMethod => {
                (405, "method_not_allowed", "this is no proxy; use GET or POST")
            }
            HeadError::UnsupportedExpectation => {
                (417, "expectation_failed", "nothing but '100-continue' can be expected")
            }
            HeadError::UnsupportedUpgrade => (
                400,
                "upgrade_refused",
                "the connection cannot be upgraded; streams come as server-sent events",
            ),
            HeadError::TooManyFields => {
                let message = format!("the head of a request may have {FIELDS_MAX} fields at most");
                return (431, "headers_too_large", message);
            }
            _ => (400, "bad_request", self.message()),
        };
        (status, code, message.to_owned())
    }

    fn message(self) -> &'static str {
        match self {
            HeadError::BadLineEnding => "a line of the head does not end with CR LF",
            HeadError::BadRequestLine => {
                "the request does not begin with a line such as 'POST /v1 HTTP/1.1'"
            }
            HeadError::UnsupportedVersion => {
                "only HTTP/1.1 and HTTP/1.0 are spoken here, and HTTP/2 over TLS"
            }
            HeadError::BadTarget => {
                "the target must be a path, or an address with the host of this server"
            }
            HeadError::MissingHost => "there is no host field",
            HeadError::MultipleHosts => "there is more than one host",
            HeadError::BadHost => "the host is no name and no address",
            HeadError::BadFieldName => {
                "a field has no name, or one with other characters than a token's"
            }
            HeadError::SpaceBeforeColon => {
                "there is space between the name of a field and its colon"
            }
            HeadError::FoldedField => "a field goes on in the next line",
            HeadError::Value => "a field has control characters in it",
            HeadError::ConflictingLengths => "the length of the body is told more than once",
            HeadError::BadContentLength => "the length of the body is no plain number",
            HeadError::BadTransferEncoding => {
                "the transfer encoding may only be 'chunked', once, and in HTTP/1.1"
            }
            HeadError::BadChunk => "the body is to come in chunks, but does not begin with one",
            HeadError::ConnectMethod
            | HeadError::UnsupportedExpectation
            | HeadError::UnsupportedUpgrade
            | HeadError::TooManyFields => "",
        }
    }
}
